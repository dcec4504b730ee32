"""One device: its windows, the account of each, the longest gaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflops.categories.activities import Categorised
from traceflops.columns import BoolArray, IntArray, numbers
from traceflops.components import WORK, Timeline, timeline
from traceflops.hostwork import Whole
from traceflops.idle import DeviceWork, IdleTime, idle_time
from traceflops.intervals import Intervals
from traceflops.links import Links
from traceflops.results import Account, Gap, Window
from traceflops.rows import ABSENT
from traceflops.trace import Trace
from traceflops.whole import DeviceRows

_GAPS_KEPT = 100


@dataclass(frozen=True, slots=True)
class LinkedTrace:
    """A trace with what was found out about each activity."""

    trace: Trace
    links: Links
    categorised: Categorised
    whole: Whole


class DeviceAccount:
    """Accounts for any window of one device."""

    def __init__(self, linked: LinkedTrace, rows: IntArray) -> None:
        trace = linked.trace
        start = numbers(trace.activities["start_ns"])[rows]
        order = np.argsort(start, kind="stable")
        row, start = rows[order], start[order]
        end = start + numbers(trace.activities["dur_ns"])[row]
        self._linked = linked
        self.rows = DeviceRows(row, start, end, linked.whole.first[row])
        self.timeline: Timeline = timeline(start, end, self._parts())
        self._call = linked.links.call_of_activity[row]
        self._begun = np.append(0, np.cumsum(linked.whole.first[row]))
        self.has_calls = bool(trace.calls.num_rows) and not self._is_cpu(row)
        self.idle: IdleTime = idle_time(self._work(), self.timeline.busy)

    def _parts(self) -> dict[str, BoolArray]:
        categorised = self._linked.categorised
        top = np.array([WORK.index(name) for name in categorised.top()], dtype=np.int64)
        part = top[categorised.category[self.rows.row]]
        return {name: part == place for place, name in enumerate(WORK)}

    def _work(self) -> DeviceWork:
        trace = self._linked.trace
        call_start = numbers(trace.calls["start_ns"])
        known = self._call >= 0
        launched = np.full(len(self._call), ABSENT, dtype=np.int64)
        launched[known] = call_start[self._call[known]]
        stream = numbers(trace.activities["stream"], ABSENT)[self.rows.row]
        return DeviceWork(self.rows.start_ns, self.rows.end_ns, stream, launched)

    def account(self, start_ns: int, end_ns: int) -> Account:
        """Return the account of the window [start_ns, end_ns)."""
        return self.accounts(np.array([start_ns]), np.array([end_ns]))[0]

    def accounts(self, start_ns: IntArray, end_ns: IntArray) -> list[Account]:
        """Return the accounts of windows [start, end)."""
        components = self.timeline.components(start_ns, end_ns)
        idle = np.array([one.idle_ns for one in components], dtype=np.int64)
        causes = self.idle.causes(start_ns, end_ns, idle)
        hidden = self.timeline.hidden_communication_ns(start_ns, end_ns).tolist()
        first = np.searchsorted(self.rows.start_ns, start_ns, side="left")
        last = np.searchsorted(self.rows.start_ns, end_ns, side="left")
        # What begins and ends with the span is in the window that ends there.
        last[end_ns >= self.rows.span[1]] = len(self.rows.start_ns)
        counts = [self._counts(a, b) for a, b in zip(first, last, strict=True)]
        return [
            Account(parts, why, hidden_ns, *count)
            for parts, why, hidden_ns, count in zip(components, causes, hidden, counts, strict=True)
        ]

    def _counts(self, first: int, last: int) -> tuple[int, int, int | None]:
        """Return activities, activities with a launch, and launches of a run of activities."""
        calls = self._call[first:last]
        linked = calls[calls >= 0]
        begun = int(self._begun[last] - self._begun[first])
        return begun, len(linked), len(np.unique(linked)) if self.has_calls else None

    def _is_cpu(self, row: IntArray) -> bool:
        trace = self._linked.trace
        device = int(numbers(trace.activities["device"])[row[0]])
        return str(trace.devices["type"][device].as_py()) == "cpu"

    def gaps(self, device: int, chosen: Intervals, windows: tuple[Window, ...]) -> tuple[Gap, ...]:
        """Return the longest gaps that touch the chosen windows, the longest first."""
        start, end = self.idle.gap_start_ns, self.idle.gap_end_ns
        touched = chosen.length_within(start, end) > 0
        length = np.where(touched, end - start, -1)
        order = np.argsort(-length, kind="stable")[: min(_GAPS_KEPT, int(touched.sum()))]
        return tuple(self._gap(device, place, windows) for place in order.tolist())

    def _gap(self, device: int, place: int, windows: tuple[Window, ...]) -> Gap:
        start = int(self.idle.gap_start_ns[place])
        end = int(self.idle.gap_end_ns[place])
        ended = int(np.argmax(self.rows.end_ns == start))
        started = int(self.idle.next_row[place])
        return Gap(
            device=device,
            start_ns=start,
            dur_ns=end - start,
            step=next((w.step for w in windows if w.start_ns <= start < w.end_ns), None),
            after=self._name(ended),
            before=self._name(started),
            call=self._cause_name("calls", self._linked.links.call_of_activity, started),
            op=self._cause_name("ops", self._linked.links.op_of_activity, started),
            causes=self.account(start, end).idle_causes,
        )

    def _name(self, place: int) -> str:
        return self._text("activities", int(self.rows.row[place]))

    def _cause_name(self, table: str, links: IntArray, place: int) -> str:
        row = int(links[self.rows.row[place]])
        return self._text(table, row) if row >= 0 else ""

    def _text(self, table: str, row: int) -> str:
        return str(self._linked.trace.table(table)["name"][row].as_py())

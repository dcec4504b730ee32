"""The activities of one device, its time by component, and its figures over the whole recording.

Each ns goes to the first component that applies: compute, memory, other, graph, communication,
start-up, idle. So the component communication is the exposed part of all communication; while other
work runs, communication is hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.categories.activities import Categorised
from traceflops.table.columns import ABSENT, BoolArray, IntArray, codes, names, numbers
from traceflops.table.grouping import distinct
from traceflops.table.links import Links
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals, latest_end_before
from traceflops.timeline.records import WORK, Account, Components, Copies, Sums, WholeSpan

_MIGRATION = "migration"
"""The directions of copies that the driver makes for unified memory begin with this."""


class Timeline(Struct, frozen=True):
    """The components of one device as disjoint sets of instants.

    `parts` has, by component of WORK, the time that no earlier component covers; `communication` is
    all communication, exposed or not; `busy` is the union of all work.
    """

    parts: dict[str, Intervals]
    communication: Intervals
    busy: Intervals

    def components(
        self, start_ns: IntArray, end_ns: IntArray, start_up: Intervals
    ) -> list[Components]:
        """Return components per window, which sum to its length; nothing ran in `start_up`."""
        parts = (*(self.parts[name] for name in WORK), start_up)
        lengths = [part.length_within(start_ns, end_ns) for part in parts]
        idle = end_ns - start_ns - sum(lengths)
        return [Components(*row) for row in np.stack([*lengths, idle], axis=1).tolist()]

    def hidden_communication_ns(self, start_ns: IntArray, end_ns: IntArray) -> IntArray:
        """Return, per window [start, end), the ns of communication while something else ran."""
        exposed = self.parts["communication"].length_within(start_ns, end_ns)
        return self.communication.length_within(start_ns, end_ns) - exposed


def timeline(start_ns: IntArray, end_ns: IntArray, is_part: dict[str, BoolArray]) -> Timeline:
    """Return the timeline of one device; `is_part` marks, by name of WORK, its activities."""
    busy = communication = Intervals.empty()
    parts: dict[str, Intervals] = {}
    for name in WORK:
        component = Intervals.of(start_ns[is_part[name]], end_ns[is_part[name]])
        communication = component if name == "communication" else communication
        parts[name] = component.subtract(busy)
        if len(component):
            busy = busy.union(component) if len(busy) else component
    return Timeline(parts, communication, busy)


class ActivityColumns(Struct, frozen=True):
    """Columns of all activities, converted once for all devices."""

    name: IntArray
    stream: IntArray
    kind: IntArray
    direction: IntArray
    bytes: IntArray

    @classmethod
    def of(cls, activities: pa.Table) -> ActivityColumns:
        """Return the columns of a table of activities."""
        return cls(
            name=codes(activities["name"]),
            stream=numbers(activities["stream"], ABSENT),
            kind=codes(activities["kind"]),
            direction=codes(activities["direction"]),
            bytes=numbers(activities["bytes"], ABSENT),
        )


class DeviceRows(Struct, frozen=True):
    """The activities of one device, sorted by start: their rows and times.

    `begins` is 0 for later parts of an operator, else 1; `columns` are of all devices.
    """

    row: IntArray
    start_ns: IntArray
    end_ns: IntArray
    begins: IntArray
    columns: ActivityColumns

    @property
    def span(self) -> tuple[int, int]:
        """The first start and the last end."""
        return int(self.start_ns.min()), int(self.end_ns.max())

    def sums(self, which: BoolArray) -> Sums:
        """Return count, sum of durations and union of the marked activities."""
        start, end = self.start_ns[which], self.end_ns[which]
        count = int(self.begins[which].sum())
        return Sums(count, int((end - start).sum()), Intervals.of(start, end).length_ns)


def whole_span(
    trace: Trace,
    links: Links,
    categorised: Categorised,
    work: DeviceRows,
    parts: Timeline,
    account: Account,
    has_calls: bool,
) -> WholeSpan:
    """Return the figures of a device over its whole span.

    `account` is that of the span; `unlinked` is counted only if calls are recorded (`has_calls`).
    """
    row, columns = work.row, work.columns
    kind, stream, category = columns.kind[row], columns.stream[row], categorised.category[row]
    length = work.end_ns - work.start_ns
    directions = names(trace.activities["direction"])
    # No call launches the migrations of unified memory.
    migrations = [code for code, label in enumerate(directions) if label.startswith(_MIGRATION)]
    is_migration = np.isin(columns.direction[row], migrations)
    is_launched = (links.call_of_activity[row] >= 0) | is_migration
    kinds, unlinked = {}, {}
    for code, label in enumerate(names(trace.activities["kind"])):
        if code in kind:
            kinds[label] = work.sums(kind == code)
            unlinked[label] = int((~is_launched & (kind == code)).sum())
    categories: dict[str, Sums] = {}
    for top in {*categorised.top()}:
        if (of_top := is_top(categorised, top, row)).any():
            categories[top] = work.sums(of_top)
    for code in distinct(category).tolist():
        top, sub = categorised.categories[code].top, categorised.categories[code].sub
        if sub != top:
            categories[f"{top}/{sub}"] = work.sums(category == code)
    # Per activity, how long earlier work of its stream still runs after it has started; 0 without
    # earlier work, which then ends at NEVER.
    on_stream = stream != ABSENT
    start_ns = work.start_ns[on_stream]
    earlier_end_ns = latest_end_before(stream[on_stream], start_ns, work.end_ns[on_stream])
    overlap_ns = np.maximum(earlier_end_ns, start_ns) - start_ns
    return WholeSpan(
        start_ns=work.span[0],
        end_ns=work.span[1],
        busy_ns=parts.busy.length_ns,
        sum_ns=int(length.sum()),
        streams=len(distinct(stream)),
        zero_length=int((length == 0).sum()),
        same_stream_overlaps=int((overlap_ns > 0).sum()),
        same_stream_overlap_max_ns=int(overlap_ns.max(initial=0)),
        kinds=kinds,
        categories=dict(sorted(categories.items())),
        communication=work.sums(is_top(categorised, "communication", row)),
        exposed_communication_ns=account.components.communication_ns,
        hidden_communication_ns=account.hidden_communication_ns,
        copies=_copies(work, directions),
        unlinked=unlinked if has_calls else None,
        account=account,
    )


def _copies(work: DeviceRows, directions: Sequence[str]) -> dict[str, Copies]:
    """Return the copies of a device by direction, only for directions that it has."""
    direction, size = work.columns.direction[work.row], work.columns.bytes[work.row]
    copies = {}
    for code in distinct(direction[direction >= 0]).tolist():
        is_same = direction == code
        sizes = size[is_same & (size != ABSENT)]
        total_bytes = int(sizes.sum()) if len(sizes) else None
        sum_ns = int((work.end_ns - work.start_ns)[is_same].sum())
        copies[directions[code]] = Copies(int(is_same.sum()), total_bytes, sum_ns)
    return copies


def is_top(categorised: Categorised, top: str, rows: IntArray | slice = slice(None)) -> BoolArray:
    """Return, per row of activities, whether it is of this top category."""
    # By code of a category; code -1 takes the False at the end.
    is_wanted = np.array([*(name == top for name in categorised.top()), False], dtype=np.bool_)
    return is_wanted[categorised.category[rows]]

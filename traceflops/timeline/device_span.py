"""The activities of one device, its time by component, and its figures over all that was recorded.

Each nanosecond goes to the first component that applies: compute, memory, other, graph,
communication, idle. Communication counted here is therefore exposed; what another component covers
is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceflops.categories import Categorised
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Links,
    Trace,
    codes,
    distinct,
    names,
    numbers,
)
from traceflops.timeline.intervals import Intervals, latest_end_before
from traceflops.timeline.records import COMPONENTS, Account, Components, Copies, Sums, WholeSpan

WORK = COMPONENTS[:-1]
"""The components that are work, in their order of precedence."""

_MIGRATION = "migration"
"""How the direction of a copy begins that the driver made for unified memory."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The components of one device as disjoint sets of instants.

    `parts` excludes what an earlier component covers; `communication` is all communication,
    exposed or not; `busy` is the union of all work.
    """

    parts: dict[str, Intervals]
    communication: Intervals
    busy: Intervals

    def components(self, start_ns: IntArray, end_ns: IntArray) -> list[Components]:
        """Return the components of windows [start, end); they sum to their lengths exactly."""
        lengths = [self.parts[name].length_within(start_ns, end_ns) for name in WORK]
        idle = end_ns - start_ns - sum(lengths)
        return [Components(*row) for row in np.stack([*lengths, idle], axis=1).tolist()]

    def hidden_communication_ns(self, start_ns: IntArray, end_ns: IntArray) -> IntArray:
        """Return the communication of windows during which something else ran."""
        exposed = self.parts["communication"].length_within(start_ns, end_ns)
        return self.communication.length_within(start_ns, end_ns) - exposed


def timeline(start_ns: IntArray, end_ns: IntArray, is_part: dict[str, BoolArray]) -> Timeline:
    """Return the components of one device; `is_part` tells which activities are of which."""
    busy = Intervals.empty()
    parts: dict[str, Intervals] = {}
    communication = Intervals.empty()
    for name in WORK:
        rows = is_part[name]
        whole = Intervals.of(start_ns[rows], end_ns[rows])
        if name == "communication":
            communication = whole
        parts[name] = whole.subtract(busy)
        busy = busy.union(whole) if len(busy) else whole
    return Timeline(parts, communication, busy)


@dataclass(frozen=True, slots=True)
class ActivityColumns:
    """Columns of all activities, taken from the table once and not for each device anew."""

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


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """The activities of one device, sorted by start: their rows and times.

    `begins` is 0 for the later parts of an operator and 1 for everything else; `columns` are of
    the activities of all devices.
    """

    row: IntArray
    start_ns: IntArray
    end_ns: IntArray
    begins: IntArray
    columns: ActivityColumns

    @property
    def span(self) -> tuple[int, int]:
        """Return the first start and the last end."""
        return int(self.start_ns.min()), int(self.end_ns.max())

    def sums(self, which: BoolArray) -> Sums:
        """Return count, sum and union of some of the activities."""
        start, end = self.start_ns[which], self.end_ns[which]
        count = int(self.begins[which].sum())
        return Sums(count, int((end - start).sum()), Intervals.of(start, end).length_ns)


def whole_span(
    trace: Trace,
    links: Links,
    categorised: Categorised,
    mine: DeviceRows,
    parts: Timeline,
    account: Account,
    has_calls: bool,
) -> WholeSpan:
    """Return the whole-span figures of the device whose activities are `mine`."""
    kind = mine.columns.kind[mine.row]
    kinds = names(trace.activities["kind"])
    stream = mine.columns.stream[mine.row]
    communication = is_top(categorised, "communication", mine.row)
    overlaps = _same_stream_overlaps(mine, stream)
    return WholeSpan(
        start_ns=mine.span[0],
        end_ns=mine.span[1],
        busy_ns=parts.busy.length_ns,
        sum_ns=int((mine.end_ns - mine.start_ns).sum()),
        streams=len(distinct(stream)),
        zero_length=int((mine.end_ns == mine.start_ns).sum()),
        same_stream_overlaps=len(overlaps),
        same_stream_overlap_max_ns=int(overlaps.max()) if len(overlaps) else 0,
        kinds={label: mine.sums(kind == code) for code, label in enumerate(kinds) if code in kind},
        categories=_by_category(categorised, mine),
        communication=mine.sums(communication),
        exposed_communication_ns=account.components.communication_ns,
        hidden_communication_ns=account.hidden_communication_ns,
        copies=_copies(trace, mine),
        unlinked=_unlinked(trace, links, mine) if has_calls else None,
        account=account,
    )


def is_top(categorised: Categorised, top: str, rows: IntArray | slice = slice(None)) -> BoolArray:
    """Return which activities are of a top category."""
    wanted = np.array([*(one == top for one in categorised.top()), False], dtype=np.bool_)
    return wanted[categorised.category[rows]]


def _by_category(categorised: Categorised, mine: DeviceRows) -> dict[str, Sums]:
    """Return the sums keyed by "top" and by "top/sub", in the order of the letters."""
    category = categorised.category[mine.row]
    found: dict[str, Sums] = {}
    for top in set(categorised.top()):
        of_top = is_top(categorised, top, mine.row)
        if of_top.any():
            found[top] = mine.sums(of_top)
    for place in distinct(category).tolist():
        one = categorised.categories[place]
        if one.sub != one.top:
            found[f"{one.top}/{one.sub}"] = mine.sums(category == place)
    return dict(sorted(found.items()))


def _copies(trace: Trace, mine: DeviceRows) -> dict[str, Copies]:
    direction = mine.columns.direction[mine.row]
    size = mine.columns.bytes[mine.row]
    duration = mine.end_ns - mine.start_ns
    found: dict[str, Copies] = {}
    for code, label in enumerate(names(trace.activities["direction"])):
        rows = direction == code
        if rows.any():
            sizes = size[rows]
            known = sizes[sizes != ABSENT]
            total = int(known.sum()) if len(known) else None
            found[label] = Copies(int(rows.sum()), total, int(duration[rows].sum()))
    return found


def _unlinked(trace: Trace, links: Links, mine: DeviceRows) -> dict[str, int]:
    """Return by kind what has no launch; no call launches the migrations of unified memory."""
    ways = names(trace.activities["direction"])
    migrations = [code for code, label in enumerate(ways) if label.startswith(_MIGRATION)]
    alone = links.call_of_activity[mine.row] < 0
    alone &= ~np.isin(mine.columns.direction[mine.row], migrations)
    kind = mine.columns.kind[mine.row]
    return {
        label: int((alone & (kind == code)).sum())
        for code, label in enumerate(names(trace.activities["kind"]))
        if code in kind
    }


def _same_stream_overlaps(mine: DeviceRows, stream: IntArray) -> IntArray:
    """Return by how much each activity begins before the latest end so far on its stream.

    What is on no known stream overlaps with nothing.
    """
    known = stream != ABSENT
    start = mine.start_ns[known]
    latest = latest_end_before(stream[known], start, mine.end_ns[known])
    overlaps: IntArray = latest[latest > start] - start[latest > start]
    return overlaps

"""How much of each collective is waiting for the last rank, and how much is transfer.

A rank waits until the last one has started, on aligned clocks; a rank that leaves before that does
not wait. Wait and transfer add up to the duration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from traceflops.ranks.clocks import Alignment, medians
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.matching import Matches
from traceflops.table.columns import BoolArray, IntArray
from traceflops.table.grouping import groups, in_order


@dataclass(frozen=True)
class Waits:
    """Waiting by matched record and by collective. Times are in ns, ranks are places.

    `row` are the matched records in the order of their collectives, `wait_ns`, `transfer_ns` and
    `exposed_ns` (waiting while the rank does nothing else) theirs. `held_ns` is how
    long each kernel runs while the rank has no work but communication, of several at a time the
    first. By collective: `last` is the rank that started last, `margin_ns` by how much, `tie`
    whether that is within the error of the clocks; `from_ns` is its start, `ended_ns` the median
    end, `until_ns` the last end, on aligned clocks. `first` and `final` are its first and last
    record by start, as places in `row`.
    """

    row: IntArray
    collective: IntArray
    wait_ns: IntArray
    transfer_ns: IntArray
    exposed_ns: IntArray
    held_ns: IntArray
    first: IntArray
    final: IntArray
    last: IntArray
    margin_ns: IntArray
    tie: BoolArray
    from_ns: IntArray
    ended_ns: IntArray
    until_ns: IntArray

    @property
    def size(self) -> IntArray:
        """Return the number of ranks of each collective."""
        return self.final - self.first + 1

    def largest(self, values: IntArray) -> IntArray:
        """Return the largest value of the records of each collective."""
        rows = values[self.row]
        return np.maximum.reduceat(rows, self.first) if len(self.first) else self.first

    def within(self, chosen: BoolArray) -> Waits:
        """Return the same without the times of collectives other than those chosen."""
        mine, by_record = chosen[self.collective], ("wait_ns", "transfer_ns", "exposed_ns")
        times = {name: getattr(self, name) * mine for name in by_record}
        return replace(self, **times, margin_ns=self.margin_ns * chosen)


def waits(
    records: CommRecords, matches: Matches, alignment: Alignment, *, comparable: bool = True
) -> Waits:
    """Return the waits of all matched records.

    Where times are not `comparable` between ranks all are taken to end together, so that a rank
    waits for as long as its kernel runs longer than the shortest; then nobody is blamed.
    """
    known = np.flatnonzero(matches.collective >= 0)
    offset = alignment.record_offset_ns
    start = (records.start_ns - offset if comparable else -records.dur_ns)[known]
    order = np.lexsort((start, matches.collective[known]))
    row, start = known[order], start[order]
    collective = matches.collective[row]
    end = start + records.dur_ns[row]
    first = np.flatnonzero(np.append(True, np.diff(collective) != 0)) if len(row) else order
    final = np.append(first[1:], len(row))[: len(first)] - 1
    latest, margin = start[final], start[final] - start[final - 1]
    waited = np.where(end >= latest[collective], latest[collective] - start, 0)
    exposed, held = np.zeros((2, len(row)), dtype=np.int64)
    for place, of_rank in groups(records.place[row]):
        rows = of_rank[in_order(records.start_ns[row[of_rank]])]
        begun, ended = records.start_ns[row[rows]], records.end_ns[row[rows]]
        exposed[rows] = records.alone[place].length_within(begun, begun + waited[rows])
        before = np.maximum.accumulate(np.append(begun[:1], ended))[:-1]
        free = np.clip(before, begun, ended)
        work = records.work[place].length_within(free, ended) if records.work else 0
        held[rows] = ended - free - work
    return Waits(
        row=row,
        collective=collective,
        wait_ns=waited,
        transfer_ns=records.dur_ns[row] - waited,
        exposed_ns=exposed,
        held_ns=held if records.work else exposed,
        first=first,
        final=final,
        last=records.place[row[final]],
        margin_ns=margin,
        tie=(margin <= 2 * (alignment.residual_p95_ns or 0)) | (not comparable),
        from_ns=latest,
        ended_ns=medians(collective, end),
        until_ns=np.maximum.reduceat(end, first) if len(row) else end,
    )

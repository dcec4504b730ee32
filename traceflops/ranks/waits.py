"""How much of each collective is waiting for the last rank, and how much is transfer.

A rank waits until the last one has started, on aligned clocks; a rank that leaves before that does
not wait. Wait and transfer add up to the duration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflops.ranks.clocks import Alignment, medians
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.matching import Matches
from traceflops.table import BoolArray, IntArray, groups


@dataclass(frozen=True)
class Waits:
    """Waiting by matched record and by collective. Times are in ns, ranks are places.

    `row` are the matched records in the order of their collectives, `wait_ns`, `transfer_ns` and
    `exposed_ns` (waiting while the rank does nothing else) theirs. By collective: `last` is the
    rank that started last, `margin_ns` by how much, `tie` whether that is within the error of the
    clocks; `from_ns` is its start, `ended_ns` the median end, `until_ns` the last end, on aligned
    clocks; `lost_ns` by how much it would at most have ended earlier if the last rank had come as
    early as the one before it: nothing for ties, nothing while the others had other work.
    """

    row: IntArray
    collective: IntArray
    wait_ns: IntArray
    transfer_ns: IntArray
    exposed_ns: IntArray
    first: IntArray
    last: IntArray
    margin_ns: IntArray
    tie: BoolArray
    from_ns: IntArray
    ended_ns: IntArray
    until_ns: IntArray
    lost_ns: IntArray


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
    exposed = _alone(records, row, records.start_ns[row] + waited)
    tie = (margin <= 2 * (alignment.residual_p95_ns or 0)) | (not comparable)
    return Waits(
        row=row,
        collective=collective,
        wait_ns=waited,
        transfer_ns=records.dur_ns[row] - waited,
        exposed_ns=exposed,
        first=first,
        last=records.place[row[final]],
        margin_ns=margin,
        tie=tie,
        from_ns=latest,
        ended_ns=medians(collective, end),
        until_ns=np.maximum.reduceat(end, first) if len(row) else end,
        lost_ns=np.where(tie, 0, np.minimum(margin, _least_of_others(exposed, first, final))),
    )


def _least_of_others(exposed: IntArray, first: IntArray, final: IntArray) -> IntArray:
    """Return the least exposed waiting of the ranks of each collective, without the last one."""
    others = np.delete(exposed, final)
    return np.minimum.reduceat(others, first - np.arange(len(first))) if len(first) else first


def _alone(records: CommRecords, row: IntArray, until_ns: IntArray) -> IntArray:
    """Return for how long, from the start of each record, nothing else ran on its rank."""
    found = np.zeros(len(row), dtype=np.int64)
    for place, mine in groups(records.place[row]):
        start = records.start_ns[row[mine]]
        found[mine] = records.alone[place].length_within(start, until_ns[mine])
    return found

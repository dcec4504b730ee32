"""Rule `unified-memory`: kernels that wait for pages which the driver migrates on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.facts import fact
from traceflops.findings.case import cause, limit, share_of_window
from traceflops.findings.finding import Cause, Gain, Row, row_name, short_name
from traceflops.table.columns import codes, is_one_of, matching, names
from traceflops.table.grouping import group_sums
from traceflops.timeline.intervals import Intervals
from traceflops.windows.records import chosen_time

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.windows.prepared import Prepared

_RULE: Final = "unified-memory"
_MIGRATION: Final = "migration"
_ASKED: Final = "prefetch"
_MOST_ROWS: Final = 3


def unified_memory(case: Case) -> Iterator[Cause]:
    """Give a cause where pages migrate on demand while kernels run."""
    if case.prepared is None:
        return
    inside_ns, kernels_ns, by_kernel = _times_ns(case.prepared)
    share = share_of_window(case, inside_ns)
    if share < limit(case, _RULE, "least_share"):
        return
    found = by_kernel.most_common(_MOST_ROWS)
    high_ns = inside_ns // case.windows_used
    yield cause(
        case,
        _RULE,
        share,
        {"migrating_ns": inside_ns, "kernels_ns": kernels_ns},
        (fact("part.largest", name=short_name(found[0][0])),),
        rows=tuple(Row(row_name(name), ns) for name, ns in found),
        gain=Gain(high_ns // 2, high_ns, None),
    )


def _times_ns(prepared: Prepared) -> tuple[int, int, Counter[str]]:
    """Return how long pages migrate while kernels run, how long these run; the first by kernel."""
    table, inside_ns, kernels_ns = prepared.trace.activities, 0, 0
    label, name = names(table["name"]), codes(table["name"])
    moves = matching(table["direction"], lambda way: way.startswith(_MIGRATION))
    moves &= ~matching(table["name"], lambda text: _ASKED in text)
    computes = is_one_of(table["kind"], "kernel")
    by_name = np.zeros(len(label), dtype=np.int64)
    for device, account in prepared.accounts.items() if moves.any() else ():
        rows, chosen = account.rows, chosen_time(prepared.windows[device])
        moving, running = (
            Intervals.of(rows.start_ns[some], rows.end_ns[some]).intersect(chosen)
            for some in (moves[rows.row], computes[rows.row])
        )
        inside_ns += moving.intersect(running).length_ns
        kernels_ns += running.length_ns
        mine = computes[rows.row]
        each_ns = moving.length_within(rows.start_ns[mine], rows.end_ns[mine])
        by_name += group_sums(name[rows.row[mine]], each_ns, len(label))
    return inside_ns, kernels_ns, Counter(dict(zip(label, by_name.tolist(), strict=True)))

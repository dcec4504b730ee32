"""The ranks of a job as plain dicts and lists. Times are ns, unknown is null."""

from __future__ import annotations

from typing import Any, Final

from msgspec import to_builtins

from traceflops.ranks.who_waits import RankReport
from traceflops.reports.view.figures import fields

_MOST_COLLECTIVES: Final = 20_000
"""If a job has more collectives, those with the most waiting are listed."""


def ranks_object(ranks: RankReport) -> dict[str, Any]:
    """Return clocks, collectives, waits, rates and the late rank of a job."""
    by_wait = sorted(ranks.collectives(), key=lambda collective: -collective.wait_ns)
    in_time = sorted(by_wait[:_MOST_COLLECTIVES], key=lambda collective: collective.index)
    cycles = ranks.cycles
    by_step = zip(cycles.steps, cycles.slowdown.tolist(), cycles.own_ns.tolist(), strict=True)
    # How the clocks of the ranks are aligned. Without a residual, offsets have no bounds.
    clocks, names = ranks.alignment, ranks.records.ranks
    earliest, latest = clocks.earliest_ns.tolist(), clocks.latest_ns.tolist()
    if clocks.residual_p95_ns is None:
        earliest = latest = [None] * len(names)
    return {
        "alignment": {
            "basis": clocks.basis or None,
            **fields(clocks, "residual_median_ns", "residual_p95_ns"),
            "offsets": [
                {
                    "rank": rank,
                    "offset_ns": offset,
                    "error_at_least_ns": low,
                    "error_at_most_ns": high,
                }
                for rank, offset, low, high in zip(
                    names, clocks.offset_ns.tolist(), earliest, latest, strict=True
                )
            ],
        },
        "matched": ranks.matches.count,
        "unmatched": ranks.unmatched,
        "impossible": ranks.matches.impossible,
        "partial": ranks.partial,
        "collectives": list(map(to_builtins, in_time)),
        "waits": list(map(to_builtins, ranks.by_rank())),
        "rates": list(map(to_builtins, ranks.rates())),
        "pipeline": to_builtins(ranks.pipeline) if ranks.pipeline is not None else None,
        "experts": list(map(to_builtins, ranks.experts())) or None,
        "slowdown": {
            "overall": cycles.overall,
            "steps": [
                {"step": step, "slowdown": slowdown, "own_ns": own_ns}
                for step, slowdown, own_ns in by_step
            ],
        },
        "culprit": to_builtins(ranks.slow) if ranks.slow is not None else None,
    }

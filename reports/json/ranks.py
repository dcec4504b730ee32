"""Who waits for whom, as plain dicts and lists: times are ns, unknown is null."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from traceflops.ranks import RankReport

_MOST: Final = 20_000
"""So many collectives are listed, those with most waiting."""


def ranks_object(ranks: RankReport) -> dict[str, Any]:
    """Return what there is to say of the ranks of a job."""
    found = sorted(ranks.collectives(), key=lambda one: -one.wait_ns)[:_MOST]
    return {
        "alignment": _alignment(ranks),
        "matched": ranks.matches.count,
        "unmatched": ranks.unmatched,
        "impossible": ranks.matches.impossible,
        "partial": ranks.partial,
        "collectives": [asdict(one) for one in sorted(found, key=lambda one: one.index)],
        "waits": [asdict(one) for one in ranks.by_rank()],
        "rates": [asdict(one) for one in ranks.rates()],
        "pipeline": asdict(ranks.pipeline) if ranks.pipeline is not None else None,
        "experts": [asdict(one) for one in ranks.experts()] or None,
        "slowdown": _slowdown(ranks),
        "culprit": asdict(ranks.slow) if ranks.slow is not None else None,
    }


def _alignment(ranks: RankReport) -> dict[str, Any]:
    found = ranks.alignment
    bounds = [column.tolist() for column in (found.earliest_ns, found.latest_ns)]
    if found.residual_p95_ns is None:
        bounds = [[None] * len(ranks.records.ranks)] * 2
    of_ranks = zip(ranks.records.ranks, found.offset_ns.tolist(), *bounds, strict=True)
    return {
        "basis": found.basis or None,
        "residual_median_ns": found.residual_median_ns,
        "residual_p95_ns": found.residual_p95_ns,
        "offsets": [
            {"rank": rank, "offset_ns": offset, "error_at_least_ns": low, "error_at_most_ns": high}
            for rank, offset, low, high in of_ranks
        ],
    }


def _slowdown(ranks: RankReport) -> dict[str, Any]:
    cycles = ranks.cycles
    return {
        "overall": cycles.overall,
        "steps": [
            {"step": step, "slowdown": slowdown, "own_ns": own}
            for step, slowdown, own in zip(
                cycles.steps, cycles.slowdown.tolist(), cycles.own_ns.tolist(), strict=True
            )
        ],
    }

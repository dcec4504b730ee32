"""Rules of work that is split over ranks so that some wait: experts, and stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from traceflops.findings.case import cause, limit
from traceflops.findings.finding import Cause, Gain, Row, Where
from traceflops.units import listed

if TYPE_CHECKING:
    from traceflops.findings.case import Case

_MOST_ROWS: Final = 3


def rank_balance(case: Case) -> Iterator[Cause]:
    """Give causes where ranks wait because of how work is split over them."""
    yield from _experts(case)
    yield from _bubbles(case)


def _experts(case: Case) -> Iterator[Cause]:
    """Give a cause where the experts of one rank work longer than those of the others."""
    ranks, rule = case.ranks, "expert-imbalance"
    groups = ranks.experts() if ranks is not None and ranks.span_ns else []
    group = max(groups, key=lambda one: one.lost_ns, default=None)
    if ranks is None or group is None or group.compute_imbalance is None:
        return
    lost_ns, uneven = group.lost_ns + group.moving_ns, group.compute_imbalance
    share = lost_ns / ranks.span_ns
    if uneven < limit(case, rule, "least_imbalance") or share < limit(case, rule, "least_share"):
        return
    per_step = case.total.components.window_ns / case.windows_used / ranks.span_ns
    always_ns = max(group.compute_ns) * (1 - 1 / uneven)
    busiest = sorted(zip(group.compute_ns, group.ranks, strict=True), reverse=True)
    yield cause(
        case,
        rule,
        share,
        {"rank": group.most_compute, "times": uneven, "ranks": listed(group.ranks)},
        rows=tuple(
            Row(f"experts of rank {rank}", time_ns, group.dispatches)
            for time_ns, rank in busiest[:_MOST_ROWS]
        ),
        where=Where(rank=group.most_compute),
        gain=Gain(round(always_ns * per_step), round(lost_ns * per_step), None),
    )


def _bubbles(case: Case) -> Iterator[Cause]:
    """Give a cause where the bubbles of a pipeline cost much."""
    found, rule = case.ranks.pipeline if case.ranks is not None else None, "pipeline-bubble"
    if found is None or found.ideal is None or not found.steps:
        return
    turns = found.steps * len(found.ranks)
    bubble_ns = sum(one.bubble_ns for one in found.ranks) / turns
    busy_ns = sum(one.busy_ns for one in found.ranks) / turns
    share = bubble_ns * case.windows_used / case.total.components.window_ns
    if share < limit(case, rule, "least_share"):
        return
    ideal_ns, parts = found.ideal * busy_ns, found.micro_batches
    uneven = bubble_ns > limit(case, rule, "far_above_ideal") * ideal_ns
    emptiest = sorted(found.ranks, key=lambda one: -one.bubble_ns)[:_MOST_ROWS]
    yield cause(
        case,
        rule,
        share,
        {
            "bubble": found.bubble,
            "stages": found.stages,
            "microbatches": parts,
            "ideal": found.ideal,
        },
        knows=frozenset({"far-above-ideal"} if uneven else ()),
        rows=tuple(
            Row(f"bubble of rank {one.rank}", one.bubble_ns, found.steps) for one in emptiest
        ),
        where=Where(rank=emptiest[0].rank),
        gain=Gain(round(min(bubble_ns, ideal_ns) / 3), round(bubble_ns * 3 / 4), None),
    )

"""Rules of ranks that wait for a late rank, for uneven experts, or for stages of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from traceflops.attribution.idle_classes import CLASSES
from traceflops.characters import function_name
from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, cause, limit
from traceflops.findings.clocks import clocks_of_late
from traceflops.findings.finding import (
    MOST_ROWS,
    Cause,
    Finding,
    Gain,
    Owner,
    Row,
    Where,
    as_loss,
    severity_of,
    short_name,
)
from traceflops.findings.owners import owner_of
from traceflops.findings.rules import advice_of, cause_of
from traceflops.ranks.late_causes import STALLS
from traceflops.ranks.slow_rank import SlowRank
from traceflops.ranks.who_waits import RankReport
from traceflops.table.grouping import exact_sums
from traceflops.units import listed

RULE: Final = "late-rank"
_BY_REASON: Final = frozenset(
    {
        *("slow_clock", "slow_kernel", "more_work", "checkpoint", "gc_pause", "memory_pressure"),
        *("device_wait", "slow_host", "unknown"),
    }
)
"""Reasons with texts of their own; other reasons are classes of idle time."""
_OF_HOST: Final = frozenset({"host_code", "eager_overhead"})
"""Classes of idle time in code that all ranks run: if several are late, their hosts are slow."""
_OWNERS: Final[Mapping[str, Owner]] = {
    **dict.fromkeys(("slow_clock", "device_wait", "slow_host"), "cluster"),
    "slow_kernel": "library",
    "data_input": "input pipeline",
}


def late_rank_fact(ranks: RankReport, *, lasting: bool = False) -> Fact | None:
    """Return which ranks the others wait for and for how long, None if that costs little.

    With `lasting`, return None also if it happened in one step only.
    """
    slow = ranks.slow
    if slow is None or severity_of(_share(ranks, slow)) is None:
        return None
    if lasting and slow.sporadic and len(slow.steps) < 2:
        return None
    several, cycles = "" if len(slow.ranks) == 1 else "-several", ranks.cycles
    window = "each-step" if cycles.has_steps else "recording"
    if not cycles.has_steps:
        when = fact(f"{RULE}.part-of-recording")
    elif cycles.count == 1:
        when = fact(f"{RULE}.step", number=cycles.steps[0])
    else:
        numbers = listed(slow.steps)
        when = fact(f"{RULE}.steps", count=len(slow.steps), all=cycles.count, numbers=numbers)
    return fact(
        f"{RULE}.{'claim-sporadic' if slow.sporadic else 'claim'}",
        who=fact(f"{RULE}.who{several}", ranks=listed(slow.ranks), position=slow.position),
        when=when,
        window=fact(f"{RULE}.{window}"),
        lost_ns=slow.lost_ns_per_step,
        share=_share(ranks, slow),
        clocks_ns=clocks_apart_ns(ranks),
    )


def clocks_apart_ns(ranks: RankReport) -> int | None:
    """Return by how much the clocks of ranks may differ after alignment, None if not at all."""
    return ranks.alignment.residual_p95_ns or None


def waiting_for(ranks: RankReport) -> tuple[Fact, tuple[Fact, ...]] | None:
    """Return for whom communication mostly waits, and statements on how much of it is waiting.

    None if most of it is transfer, or if ranks are late: a finding of its own tells that.
    """
    if late_rank_fact(ranks) is not None:
        return None
    waits = (ranks.in_cycles() if ranks.cycles.has_steps else ranks).waits
    waited_ns = int(waits.wait_ns.sum())
    total_ns = waited_ns + int(waits.transfer_ns.sum())
    if 2 * waited_ns <= total_ns:
        return None
    # If several ranks join a collective last, at the same time, no single one causes the waiting.
    clear_ns = np.where(waits.tie[waits.collective], 0, waits.wait_ns)
    caused_ns = exact_sums(waits.last[waits.collective], clear_ns, len(ranks.records.ranks))
    rank = ranks.records.ranks[caused_ns.index(max(caused_ns))]
    is_one = 2 * max(caused_ns) > waited_ns
    whom = fact("waiting.rank", rank=rank) if is_one else fact("waiting.others")
    claim = fact(
        "waiting.claim-at-least" if ranks.partial else "waiting.claim",
        share=waited_ns / total_ns,
        whom=whom,
        clocks_ns=clocks_apart_ns(ranks),
    )
    # Ranks may wait in the first collective because they start at different times.
    in_first = waits.collective == waits.from_ns.argmin()
    is_first = 2 * int(waits.wait_ns[in_first].sum()) > waited_ns
    return whom, (claim, *(fact("waiting.first"),) * is_first)


def late_rank_findings(ranks: RankReport, program: frozenset[str]) -> Iterator[Finding]:
    """Give a finding without a gain if waiting for late ranks costs much."""
    yield from filter(None, map(as_loss, _causes(ranks, program)))


def late_rank(case: Case) -> Iterator[Cause]:
    """Give a cause if waiting for late ranks costs much; samples of clocks may say why."""
    for late in _causes(case.ranks, case.program):
        slow, (_, why) = case.ranks.slow, case.replay_or_reason
        assert slow is not None
        if not case.has_events:  # a summary is not replayed, but tells how late the rank is
            doubts = (fact("doubt.refused", why=why), fact("doubt.as-late"))
            gain = Gain(0, slow.lost_ns_per_step, None)
            late = replace(late, gain=gain, doubts=doubts)
        is_clock = slow.cause == "slow_clock"
        clocks, advice = clocks_of_late(case, slow) if is_clock else (None, None)
        if advice is None and not (slow.cause in _BY_REASON or _is_of_hosts(slow)):
            advice = advice_of(slow.cause.replace("_", "-"), case.program)
        details = (*late.details, *filter(None, [clocks]))
        yield replace(late, details=details, advice=advice or late.advice)


def _causes(ranks: RankReport, program: frozenset[str]) -> Iterator[Cause]:
    """Yield at most one cause: which ranks others wait for, why these are late, and what to do."""
    claim = late_rank_fact(ranks)
    if ranks.slow is None or claim is None:
        return
    slow, is_of_hosts = ranks.slow, _is_of_hosts(ranks.slow)
    why, advice = late_rank_reason(slow)
    lost_ns = slow.lost_ns_per_step * ranks.cycles.count
    # One edit removes what holds up the hosts, others make late ranks as fast as the others. Of a
    # label such as "call in function" the edit takes the call.
    name = re.escape(_label(slow).partition(" in ")[0])
    stall = (f"host:^{name}$=0",) if name and slow.cause in STALLS else ()
    as_others = tuple(f"rank {rank}=median" for rank in slow.ranks)
    title = "title" if len(slow.ranks) == 1 else "title-several"
    owner = "cluster" if is_of_hosts else _OWNERS.get(slow.cause)
    if owner is None and (slow.cause in _BY_REASON or not slow.label):
        owner = "yours"
    elif owner is None:
        owner = owner_of(slow.label)
        has_no_file = function_name(slow.label) == slow.label
        owner = None if owner == "yours" and has_no_file else owner
    yield cause_of(
        program,
        RULE,
        _share(ranks, slow),
        details=(why,),
        name=fact(f"{RULE}.{title}", ranks=listed(slow.ranks)),
        claim=claim,
        advice=advice,
        owner=owner,
        rows=(Row(_label(slow) or f"rank {slow.rank}", lost_ns),),
        where=Where(rank=slow.rank),
        edits=() if is_of_hosts else (*stall, *as_others),
        partly=as_others if stall else (),
        # Replay cannot change hosts: at most, nobody waits for these ranks any longer.
        gain=Gain(0, slow.lost_ns_per_step, None) if is_of_hosts else None,
        doubts=(fact("doubt.hosts"),) if is_of_hosts else (),
    )


def late_rank_reason(slow: SlowRank) -> tuple[Fact, Fact]:
    """Return why a rank is late and what to do."""
    several = "" if len(slow.ranks) == 1 else "-several"
    has_text = slow.cause in _BY_REASON
    why = fact(
        f"{RULE}.why{several}.{slow.cause if has_text else 'idle'}",
        label=short_name(_label(slow)),
        factor=slow.factor or 1.0,
        kind=None if has_text else CLASSES[slow.cause],
    )
    if has_text:
        return why, fact(f"{RULE}.remedy{several}.{slow.cause}")
    if _is_of_hosts(slow):
        return why, fact(f"{RULE}.remedy-several.hosts")
    return why, fact("sentence", text=fact(f"idle.remedy.{slow.cause}"))


def _is_of_hosts(slow: SlowRank) -> bool:
    """Return whether several ranks are late in code that all ranks run: their hosts are slower."""
    return len(slow.ranks) > 1 and slow.cause in _OF_HOST


def _label(slow: SlowRank) -> str:
    """Return the name of what holds up a rank, "" for slow hosts, where no code is at fault."""
    return "" if _is_of_hosts(slow) else slow.label


def _share(ranks: RankReport, slow: SlowRank) -> float:
    """Return the share of the time of all steps that is lost to late ranks."""
    length_ns = int(ranks.cycles.length_ns.sum())
    if not ranks.cycles.has_steps:  # a rank may become late before the first cycle
        length_ns = max(length_ns, ranks.recorded_ns)
    return slow.lost_ns_per_step * ranks.cycles.count / length_ns if length_ns else 0.0


def rank_balance(case: Case) -> Iterator[Cause]:
    """Give causes if ranks wait because of how work is split over them."""
    yield from _experts(case)
    yield from _bubbles(case)


def _experts(case: Case) -> Iterator[Cause]:
    """Give a cause if the experts of one rank work longer than those of the others."""
    ranks, rule = case.ranks, "expert-imbalance"
    groups = ranks.experts() if ranks.span_ns else []
    group = max(groups, key=lambda group: group.lost_ns, default=None)
    if group is None or group.compute_imbalance is None:
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
            for time_ns, rank in busiest[:MOST_ROWS]
        ),
        where=Where(rank=group.most_compute),
        # With equal work all take as long as the mean; transfers of tokens may get shorter, too.
        gain=Gain(round(always_ns * per_step), round(lost_ns * per_step), None),
    )


def _bubbles(case: Case) -> Iterator[Cause]:
    """Give a cause if the bubbles of a pipeline, times in which a stage has no work, cost much."""
    pipeline, rule = case.ranks.pipeline, "pipeline-bubble"
    if pipeline is None or pipeline.ideal is None or not pipeline.steps:
        return
    # The mean times per step and stage
    turns = pipeline.steps * len(pipeline.ranks)
    bubble_ns = sum(rank.bubble_ns for rank in pipeline.ranks) / turns
    busy_ns = sum(rank.busy_ns for rank in pipeline.ranks) / turns
    share = bubble_ns * case.windows_used / case.total.components.window_ns
    if share < limit(case, rule, "least_share"):
        return
    ideal_ns = pipeline.ideal * busy_ns
    emptiest = sorted(pipeline.ranks, key=lambda rank: -rank.bubble_ns)[:MOST_ROWS]
    yield cause(
        case,
        rule,
        share,
        {
            "bubble": pipeline.bubble,
            "stages": pipeline.stages,
            "microbatches": pipeline.micro_batches,
            "ideal": pipeline.ideal,
        },
        rows=tuple(
            Row(f"bubble of rank {stage.rank}", stage.bubble_ns, pipeline.steps)
            for stage in emptiest
        ),
        where=Where(rank=emptiest[0].rank),
        # Bubbles shrink with more micro-batches: 1.5 to 4 times as many leave 2/3 to 1/4 of each.
        gain=Gain(round(min(bubble_ns, ideal_ns) / 3), round(bubble_ns * 3 / 4), None),
    )

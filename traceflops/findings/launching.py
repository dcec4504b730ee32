"""Whether the host launches too slowly: its lead, very short kernels, whether graphs would fit."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from traceflops.attribution.culprits import Culprit, IdleClass
from traceflops.attribution.idle_classes import CLASSES
from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, limit, share_of_window
from traceflops.findings.finding import Cause
from traceflops.findings.owners import only_launches
from traceflops.findings.rules import rule_of
from traceflops.table.columns import is_one_of, numbers
from traceflops.windows.records import chosen_time

LATENCY: Final = "launch-latency"
_LAUNCH_BOUND: Final = "launch-bound"
UNRECORDED: Final = "host-unrecorded"
"""The rule of untraced time, which may be that of a framework between its launches."""
TORCH_OPTIMIZER: Final = re.compile(r"^$|zero_grad|torch/optim/|\b(Adagrad|Adam|AdamW|SGD)\b")
"""Optimizers with an option `fused`, and code that all optimizers share."""
_DRAINED: Final = f"{LATENCY}.remedy.drained"  # the advice to wait less often
_MOSTLY: Final = 0.75  # idle time is one of short gaps if so much of it is in them
_MOST_PLACES: Final = 5  # places named in one sentence where the GPU waits for launches


def at_floor(case: Case) -> bool:
    """Return whether most launches reach the GPU about as fast as they can."""
    pace = case.host_bound
    most = limit(case, LATENCY, "most_of_floor")
    return pace is not None and pace.lead_median_ns <= most * pace.floor_ns


def drained_by(case: Case, late: Cause, waits: Mapping[str, Cause]) -> Cause | None:
    """Return the wait that keeps the host from being ahead, with launch latency `late` after it.

    Without the wait the host would launch while the GPU works, so both are one cause. None if the
    remedy of `late` is another. `waits` are by rule.
    """
    is_drained = late.advice is not None and late.advice.code == _DRAINED
    if not is_drained:
        return None
    longest = max(case.synchronisations, key=attrgetter("idle_after_ns"))
    wait = waits.get("blocking-copy" if "Memcpy" in longest.call else "sync-call")
    if wait is None:
        return None
    after = fact(f"{LATENCY}.after-wait", share=late.share)
    share, joins = wait.share + late.share, frozenset({wait.rule, LATENCY})
    return replace(wait, share=share, details=(after, *wait.details), joins=joins)


def is_between_launches(case: Case, idle: IdleClass) -> bool:
    """Return whether untraced time is that of PyTorch, mostly in short gaps between launches.

    PyTorch starts its operators in such nameless time. Where recorded launching takes more, its own
    finding gives the same advice.
    """
    is_bound = case.host_bound is not None and case.host_bound.is_bound
    is_short = idle.short_ns >= _MOSTLY * idle.idle_ns
    kinds = {rule.replace("-", "_") for rule in LAUNCHING}
    launch_ns = sum(own.idle_ns for own in case.idle.culprits if own.kind in kinds)
    return "torch" in case.program and is_bound and is_short and launch_ns < idle.idle_ns


def tiny_kernels(case: Case) -> int | None:
    """Return the mean time in ns of short kernels, where they are nearly all and GPUs mostly idle.

    None for other work, and where the host is ahead of the GPU.
    """
    is_bound = case.host_bound is not None and case.host_bound.is_bound
    if case.launches is None or not is_bound:
        return None
    sums, idle = case.launches.total, case.total.components.share("idle") or 0.0
    are_short = sums.short_kernels >= limit(case, UNRECORDED, "tiny_share") * sums.kernels > 0
    is_idle = idle >= limit(case, UNRECORDED, "tiny_idle")
    return sums.short_kernel_ns // sums.short_kernels if are_short and is_idle else None


def pace_facts(case: Case) -> Iterator[Fact]:
    """Give facts on slow launching: for how many launches the GPU waits, the lead, short kernels.

    Short kernels are told if graphs would fit the steps.
    """
    pace = case.host_bound
    if pace is None or not pace.is_bound:
        return
    yield fact("idle.starved", share=pace.starved_share, where=tuple(pace.bound_in[:_MOST_PLACES]))
    if pace.verdict == "host-bound" and pace.has_leads:  # otherwise the median lead is long
        yield fact("idle.lead", lead_ns=pace.lead_median_ns)
    if case.launches is not None and fits_graphs(case):
        sums, launched = case.launches.total, _launched(case)
        least = "short-kernels" if min(launched) == max(launched) else "short-kernels-at-least"
        yield fact(
            f"idle.{least}",
            operations=min(launched),
            short=sums.short_kernels / sums.kernels,
            short_ns=case.launches.short_ns,
        )


def slowed_by_stacks(case: Case) -> Fact | None:
    """Return the doubt that recording slowed the host, if it has very many Python functions."""
    marks, windows = case.prepared.trace.marks, case.prepared.windows.values()
    begun_ns = numbers(marks["start_ns"])[is_one_of(marks["kind"], "python")]
    count = sum(int(chosen_time(own).contains(begun_ns).sum()) for own in windows)
    every_ns = case.total.components.window_ns // count if count else 0
    is_much = 0 < every_ns <= limit(case, _LAUNCH_BOUND, "stacks_every_ns")
    return fact("doubt.stacks", every_ns=every_ns) if is_much else None


def fits_graphs(case: Case) -> bool:
    """Return whether steps are alike, have many short kernels, and no graph launches them."""
    launched, launches = _launched(case), case.launches
    if launches is None or len(launched) < limit(case, _LAUNCH_BOUND, "least_steps"):
        return False
    sums, most = launches.total, 1 + limit(case, _LAUNCH_BOUND, "most_unlike")
    are_alike = max(launched) <= most * min(launched)
    are_short = sums.short_kernels >= limit(case, _LAUNCH_BOUND, "least_short") * sums.kernels > 0
    has_graphs = sums.operations > most * sums.launches  # a launch of a graph starts many
    return are_alike and are_short and not has_graphs


def _launched(case: Case) -> list[int]:
    """Return the number of launches of each chosen step on each device."""
    windows = (window for device in case.devices for window in device.windows)
    return [
        window.launched
        for window in windows
        if window.used and window.step is not None and window.launched
    ]


LAUNCHING: Final = ("eager-overhead", "other-calls", LATENCY)
"""Rules whose remedy is to launch less often; others are joined to them."""
_BESIDE: Final = ("optimizer-loop", "thread-handover", "host-code")
"""Rules that have a remedy of their own if they take more time than launching itself."""

_REPLAYS: Final = re.compile("GraphLaunch")

Culprits = Mapping[str, Sequence["Culprit"]]


def joined(
    by_rule: Culprits, least_ns: float, leads: Sequence[str] = LAUNCHING
) -> dict[str, list[Culprit]]:
    """Return culprits by rule, those of launching joined under one rule, the first of `leads`.

    A launch costs an operator, its latency, a handover to another thread. A remedy that launches
    less often saves all of these, so they are told and weighed together.

    Not joined are parts below `least_ns`, launch latency after waits, which have drained the queue,
    and that of graphs. Of host code, only functions that do nothing but call operators are joined.
    """
    parts = {rule: list(by_rule.get(rule, ())) for rule in (*leads, *_BESIDE)}
    parts["host-code"] = [own for own in parts["host-code"] if only_launches(own.label)]
    parts[LATENCY] = [own for own in parts[LATENCY] if not _REPLAYS.search(own.label)]
    sums = {rule: sum(own.idle_ns for own in culprits) for rule, culprits in parts.items()}
    if 2 * sum(own.blocked_before_ns for own in parts[LATENCY]) > sums[LATENCY]:
        sums[LATENCY] = 0
    large = {rule for rule, idle_ns in sums.items() if idle_ns >= least_ns > 0}
    launch_ns = sum(sums[rule] for rule in leads if rule in large)
    # Other rules join only if they take no more time than launching.
    chosen = {rule for rule in large if rule in leads or sums[rule] <= launch_ns}
    lead = next((rule for rule in leads if rule in large), None)
    if lead is None or len(chosen) < 2:
        return {rule: list(culprits) for rule, culprits in by_rule.items()}
    together = [own for rule in (lead, *sorted(chosen - {lead})) for own in parts[rule]]
    left = {
        rule: [own for own in culprits if own not in together] for rule, culprits in by_rule.items()
    }
    return {rule: culprits for rule, culprits in {**left, lead: together}.items() if culprits}


def parts_of(rule: str, idle: IdleClass) -> dict[str, IdleClass]:
    """Return the idle time of a rule by the rules that `joined` has put together."""
    if rule not in {*LAUNCHING, UNRECORDED}:
        return {rule: idle}
    by_kind: defaultdict[str, list[Culprit]] = defaultdict(list)
    for culprit in idle.culprits:
        by_kind[culprit.kind].append(culprit)
    return {kind.replace("_", "-"): IdleClass(kind, tuple(own)) for kind, own in by_kind.items()}


def of_parts(
    case: Case,
    lead: Cause,
    parts: Mapping[str, IdleClass],
    filled: Callable[[str, IdleClass], str],
) -> Cause:
    """Return the cause `lead` of one part of launching as the cause of all parts.

    Its own edits come last: what-if drops the first edit if a recording cannot answer all. `filled`
    fills an edit with the names of idle time. Without a record of the host, no edit tells the gain.
    """
    rows = {rule: rule_of(rule) for rule in parts}
    shares = (
        fact("launching.part", kind=CLASSES[part.kind], share=share_of_window(case, part.idle_ns))
        for part in sorted(parts.values(), key=lambda part: -part.idle_ns)
    )
    optimizer = parts.get("optimizer-loop")
    label, advice = optimizer.culprits[0].label if optimizer is not None else None, lead.advice
    if label is not None and TORCH_OPTIMIZER.search(label):
        advice = fact("launching.with-optimizer", advice=advice)
    is_recorded = UNRECORDED not in parts
    return replace(
        lead,
        claim=fact("launching.claim", share=lead.share, parts=tuple(shares)),
        advice=advice,
        edits=tuple(
            filled(edit, parts[rule])
            for rule in reversed(rows)
            for edit in rows[rule].edits
            if is_recorded
        ),
        partly=tuple(edit for row in rows.values() for edit in row.partly if is_recorded),
        on_path=frozenset[str]().union(*(row.on_path for row in rows.values())),
        joins=frozenset(parts),
    )

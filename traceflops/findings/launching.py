"""Whether the host launches too slowly: its pace, kernels too short for it, graphs that fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from traceflops.attribution.culprits import IdleClass
from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, cause, limit
from traceflops.findings.finding import Cause, Gain
from traceflops.findings.rules import ON_HOST
from traceflops.table.columns import is_one_of, numbers
from traceflops.windows.records import chosen_time

LATENCY: Final = "launch-latency"
_LAUNCH_BOUND: Final = "launch-bound"
_MOSTLY: Final = 0.75
"""What is said of short gaps holds if so much of the time is in them."""
_MOST_PLACES: Final = 5
"""Of those where launches are starved, named in one sentence."""
_OFTEN: Final = 4
"""The host waits often: once for so many launches."""


def at_floor(case: Case) -> bool:
    """Return whether most launches reach the GPU as fast as they can."""
    pace = case.host_bound
    most = limit(case, LATENCY, "most_of_floor")
    return pace is not None and pace.lead_median_ns <= most * pace.floor_ns


def are_short(case: Case) -> bool:
    """Return whether kernels are shorter than what the host does for each, which takes the time."""
    replay, _ = case.replay_or_reason
    if replay is None or case.launches is None or not at_floor(case):
        return False
    sums, on_host = case.launches.total, ON_HOST - {"start_up"}
    host_ns = sum(part.ns for part in replay.critical if part.component in on_host)
    return 2 * host_ns >= replay.before_ns > 0 and 2 * sums.short_kernels >= sums.kernels > 0


def is_launching(case: Case, idle: IdleClass) -> bool:
    """Return whether PyTorch starts its operators in idle time in which nothing is recorded.

    That is nameless, and most of it in short gaps between launches that the GPU waits for.
    """
    of_torch, pace = "torch" in case.program, case.host_bound
    is_bound = pace is not None and pace.verdict == "host-bound"
    return of_torch and is_bound and idle.is_nameless and idle.short_ns >= _MOSTLY * idle.idle_ns


def of_short_kernels(case: Case, late: Cause) -> Cause:
    """Return the cause of launch latency where the host takes longer than the kernels it launches.

    Nothing replays that: what is left idle is gained at most.
    """
    assert case.launches is not None
    sums, waits = case.launches.total, sum(wait.count for wait in case.synchronisations)
    values = {
        "short_ns": case.launches.short_ns,
        "kernel_ns": sums.short_kernel_ns // sums.short_kernels,
        "every_ns": case.total.components.window_ns // sums.launches,
        "waits": waits or None,
        "launches": sums.launches,
    }
    knows = {"short", *(["waits-often"] if _OFTEN * waits >= sums.launches else [])}
    return replace(
        cause(case, LATENCY, late.share, knows=frozenset(knows | case.program)),
        name=fact(f"{LATENCY}.title-short"),
        details=(fact(f"{LATENCY}.short", **values), *late.details),
        rows=late.rows,
        where=late.where,
        edits=(),
        gain=Gain(
            0, round(late.share * case.total.components.window_ns) // case.windows_used, None
        ),
    )


def pace_facts(case: Case) -> Iterator[Fact]:
    """Give how many launches are starved and where, how far the host leads, whether graphs fit."""
    pace = case.host_bound
    if pace is None or not pace.is_bound:
        return
    yield fact("idle.starved", share=pace.starved_share, where=tuple(pace.bound_in[:_MOST_PLACES]))
    if pace.verdict == "host-bound":  # only then the median lead is short
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
    """Return that the recording slows the host, where it has very many Python functions."""
    if case.prepared is None:
        return None
    marks, windows = case.prepared.trace.marks, case.prepared.windows.values()
    begun_ns = numbers(marks["start_ns"])[is_one_of(marks["kind"], "python")]
    count = sum(int(chosen_time(own).contains(begun_ns).sum()) for own in windows)
    every_ns = case.total.components.window_ns // max(count, 1)
    is_much = 0 < every_ns <= limit(case, _LAUNCH_BOUND, "stacks_every_ns")
    return fact("doubt.stacks", every_ns=every_ns) if is_much else None


def fits_graphs(case: Case) -> bool:
    """Return whether steps are alike, have many short kernels, and no graph launches them."""
    launched, launches = _launched(case), case.launches
    if (
        len(launched) < limit(case, _LAUNCH_BOUND, "least_steps")
        or launches is None
        or not launches.total.kernels
    ):
        return False
    sums = launches.total
    return (
        max(launched) <= min(launched) * (1 + limit(case, _LAUNCH_BOUND, "most_unlike"))
        and sums.short_kernels >= limit(case, _LAUNCH_BOUND, "least_short") * sums.kernels
        # A graph starts many operations with one launch.
        and sums.operations <= sums.launches * (1 + limit(case, _LAUNCH_BOUND, "most_unlike"))
    )


def _launched(case: Case) -> list[int]:
    """Return how much each chosen step launched on each device."""
    windows = (window for device in case.devices for window in device.windows)
    return [
        window.launched
        for window in windows
        if window.used and window.step is not None and window.launched
    ]

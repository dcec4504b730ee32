"""Devices, windows, gaps and ranks as plain dicts and lists. Times are ns, unknown is null."""

from __future__ import annotations

from typing import Any, Final

from msgspec import to_builtins

from traceflops.attribution.culprits import IdleCulprits
from traceflops.ranks.who_waits import RankReport
from traceflops.reports.view.figures import fields
from traceflops.reports.view.texts import words
from traceflops.timeline.records import Account
from traceflops.windows.records import DeviceReport

_OF_A_DEVICE: Final = (
    *("device", "label", "rank", "ranks", "file", "type", "local_id", "product", "memory_bytes"),
    *("sm_count", "architecture", "partition"),
)
_OF_A_SPAN: Final = (
    *("start_ns", "end_ns", "span_ns", "busy_ns", "idle_ns", "sum_ns", "streams", "zero_length"),
    *("same_stream_overlaps", "same_stream_overlap_max_ns"),
)
_OF_A_WINDOW: Final = (
    *("role", "step", "start_ns", "end_ns"),
    *("used", "left_out", "launched", "unfinished"),
)
_OF_A_GAP: Final = (
    *("start_ns", "dur_ns", "start_up_ns", "step", "before_step"),
    *("after", "before", "call", "op"),
)


def account_object(account: Account) -> dict[str, Any]:
    """Return the time of one or several windows by component, and idle time by cause."""
    return {
        "window_ns": account.components.window_ns,
        "components_ns": account.components.parts(),
        "hidden_communication_ns": account.hidden_communication_ns,
        "idle_causes_ns": account.idle_causes.parts(),
        "launch_latency_parts_ns": account.idle_causes.launch_latency_parts(),
        **fields(account, "activities", "launched_activities", "launches", "activities_per_launch"),
    }


def device_object(device: DeviceReport) -> dict[str, Any]:
    """Return a device: its properties, its windows, the sum of those used, its longest gaps."""
    whole = device.whole
    return {
        **fields(device, *_OF_A_DEVICE),
        "chosen": account_object(device.chosen),
        "whole": {
            **fields(whole, *_OF_A_SPAN),
            "kinds": {kind: to_builtins(sums) for kind, sums in whole.kinds.items()},
            "categories": {name: to_builtins(sums) for name, sums in whole.categories.items()},
            "communication": {
                **to_builtins(whole.communication),
                "exposed_ns": whole.exposed_communication_ns,
                "hidden_ns": whole.hidden_communication_ns,
            },
            "copies": {
                direction: to_builtins(copies) for direction, copies in whole.copies.items()
            },
            "unlinked": whole.unlinked,
            "account": account_object(whole.account),
        },
        "windows": [
            {
                **fields(window, *_OF_A_WINDOW),
                "left_out": words(window.left_out) or None,
                **account_object(window.account),
            }
            for window in device.windows
        ],
        "gaps": [
            {
                **fields(gap, *_OF_A_GAP),
                "causes_ns": gap.causes.parts(),
                "launch_latency_parts_ns": gap.causes.launch_latency_parts(),
                "waited_for": gap.waited_for,
                "culprits": [
                    {"class": culprit.kind, **fields(culprit, "label", "idle_ns")}
                    for culprit in gap.culprits
                ],
                "unexplained_ns": gap.unexplained_ns,
            }
            for gap in device.gaps
        ],
    }


def culprits_object(idle: IdleCulprits, idle_ns: int) -> dict[str, Any]:
    """Return what the CPU did in idle time, of which there is `idle_ns` (not 0 with culprits)."""
    return {
        "culprits": [
            {
                "class": culprit.kind,
                **fields(culprit, "label", "idle_ns"),
                "share": culprit.idle_ns / idle_ns,
                **fields(culprit, "evidence", "gaps", "blocked_before_ns"),
            }
            for culprit in idle.culprits
        ],
        "unexplained_ns": idle.unexplained_ns,
        "histogram": list(map(to_builtins, idle.histogram)),
    }


_MOST_COLLECTIVES: Final = 20_000
"""Of more collectives, those with most waiting are listed."""


def ranks_object(ranks: RankReport) -> dict[str, Any]:
    """Return clocks, collectives, waits, rates and the late rank of a job."""
    by_wait = sorted(ranks.collectives(), key=lambda collective: -collective.wait_ns)
    in_time = sorted(by_wait[:_MOST_COLLECTIVES], key=lambda collective: collective.index)
    cycles = ranks.cycles
    by_step = zip(cycles.steps, cycles.slowdown.tolist(), cycles.own_ns.tolist(), strict=True)
    # Without a residual, the offsets of clocks have no bounds.
    clocks, numbers = ranks.alignment, ranks.records.ranks
    earliest, latest = clocks.earliest_ns.tolist(), clocks.latest_ns.tolist()
    if clocks.residual_p95_ns is None:
        earliest = latest = [None] * len(numbers)
    offsets = [
        {"rank": rank, "offset_ns": offset, "error_at_least_ns": low, "error_at_most_ns": high}
        for rank, offset, low, high in zip(
            numbers, clocks.offset_ns.tolist(), earliest, latest, strict=True
        )
    ]
    return {
        "alignment": {
            "basis": clocks.basis or None,
            **fields(clocks, "residual_median_ns", "residual_p95_ns"),
            "offsets": offsets,
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

"""The one sentence at the top: how much of the devices was used, and the largest loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from traceflops.results import Account, StepChoice, Verdict
from traceflops.words import several, time_amount

if TYPE_CHECKING:
    from traceflops.mfu.measurement import Measurement
    from traceflops.untimed import Untimed

_LOSSES = {
    "communication": "exposed communication",
    "idle": "idle time",
    "memory": "memory-bound work",
    "other": "kernels of unknown category",
    "graph": "graph launches that show no kernels",
}
"""Components that are losses by themselves."""

_COMPUTE_LOSSES = {
    "inefficiency": "slow compute kernels",
    "recompute": "recomputation",
    "overcompute": "computing for masks and padding",
}
"""Lines of the waterfall inside the compute component; known only where FLOPs are."""


def verdict(
    total: Account, steps: StepChoice, devices: int, measured: Measurement | None = None
) -> Verdict:
    """Return the largest loss of the chosen windows.

    That is whatever takes most and is not compute; where the FLOPs are known, also what compute
    loses against its peak.
    """
    if not devices:
        return Verdict("There is no device work in this trace.", None, None)
    if total.components.window_ns == 0:
        return Verdict("The chosen window has no length.", None, None)
    of = "each step" if steps.used else "the device time"
    found = _by_size(_losses(total, measured))
    inside = measured is not None and measured.waterfall is not None
    sentence = _both(found, of) if inside else _first(found, of, total)
    if measured is not None and measured.figure is not None:
        sentence = f"{measured.figure}. {sentence}"
    loss, share = found[0] if found else (None, None)
    return Verdict(sentence, loss, share)


def untimed_verdict(found: Untimed | None) -> Verdict | None:
    """Return what a trace without a timeline says in one sentence; None for any other trace."""
    if found is None:
        return None
    without = "There is no timeline in this trace, so idle time and MFU are not known"
    if found.categories.num_rows:
        return Verdict(f"{without}; there are totals by name{_most(found)}.", None, None)
    if found.launches:
        counted = several(found.counted.num_rows, "kernel")
        launches = f"{found.launches:,} launches of {counted}"
        return Verdict(f"{without}; there are counters of {launches}.", None, None)
    kinds = set(found.rows["kind"].to_pylist())
    host = "calls and marks" if len(kinds) > 1 else f"{next(iter(kinds), 'call')}s"
    return Verdict(f"There is no device work in this trace, only {host} of the host.", None, None)


def _most(found: Untimed) -> str:
    """Return which category has most of the time."""
    largest = found.categories.slice(0, 1).to_pylist()[0]
    if found.device_ns is None or largest["share"] is None:
        return ""
    kind = largest["sub"].replace("_", " ")
    return f": {time_amount(found.device_ns)} of device work, {_percent(largest['share'])} {kind}"


def _losses(total: Account, measured: Measurement | None) -> dict[str, float]:
    parts, window = total.components.parts(), total.components.window_ns
    found = {name: parts[name] / window for name in _LOSSES}
    if measured is not None and measured.waterfall is not None:
        fall = measured.waterfall
        found |= {name: float(fall.share(name) or 0) for name in _COMPUTE_LOSSES}
    return found


def _by_size(losses: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the losses that are any, the largest first."""
    found = [(name, share) for name, share in losses.items() if share > 0]
    return sorted(found, key=lambda loss: -loss[1])


def _first(found: list[tuple[str, float]], of: str, total: Account) -> str:
    """Return what there is to say where nothing is known of FLOPs."""
    if not found:
        return "All of the device time is compute."
    name, share = found[0]
    compute = total.components.compute_ns / total.components.window_ns
    return (
        f"The largest loss is {_LOSSES[name]}: {_percent(share)} of {of}; compute is "
        f"{_percent(compute)}."
    )


def _both(found: list[tuple[str, float]], of: str) -> str:
    """Return the two largest losses of a waterfall."""
    if not found:
        return "Nothing is lost: all of the device time is compute at the peak."
    words = _LOSSES | _COMPUTE_LOSSES
    name, share = found[0]
    largest = f"{words[name]} ({_percent(share)} of {of})"
    if len(found) == 1:
        return f"The largest loss is {largest}."
    name, share = found[1]
    return f"The largest losses are {largest} and {words[name]} ({_percent(share)})."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 or share == 0 else "<0.1 %"

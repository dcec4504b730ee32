"""The one sentence at the top: how much of the devices was used, and the largest loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from traceflops.findings.losses import Loss, losses
from traceflops.results import Account, StepChoice, Verdict
from traceflops.words import duration, percent, several

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.mfu.measurement import Measurement
    from traceflops.untimed import Untimed

_MOST: Final = 0.5


def verdict(
    total: Account,
    steps: StepChoice,
    devices: int,
    measured: Measurement | None = None,
    *,
    categories: pa.Table | None = None,
    on_host: bool = False,
) -> Verdict:
    """Return the largest loss of the chosen windows.

    That is whatever takes most and is not compute; where the FLOPs are known, also what compute
    loses against its peak. `categories` tell what the work is; `on_host` says that all of it is
    operators on the CPU.
    """
    if not devices:
        return Verdict("There is no device work in this trace.", None, None)
    if total.components.window_ns == 0:
        return Verdict("The chosen window has no length.", None, None)
    of = basis_of(steps)
    if on_host and (measured is None or measured.figure is None):
        return _of_host(total, "the step time" if steps.used else "the time")
    unrecorded = _unrecorded(total, of)
    found = losses(total, measured, categories) if not unrecorded else ()
    inside = measured is not None and measured.waterfall is not None
    sentence = unrecorded or (_both(found, of) if inside else _first(found, of, total))
    if measured is not None and measured.figure is not None:
        sentence = f"{measured.figure}. {sentence}"
    largest = found[0] if found else None
    return Verdict(sentence, largest.name if largest else None, largest.share if largest else None)


def basis_of(steps: StepChoice) -> str:
    """Return what shares of the chosen windows are of, in words."""
    return "the step time" if steps.used else "the device time"


def _of_host(total: Account, of: str) -> Verdict:
    """Return what there is to say of a trace in which no device did anything."""
    ran = 1 - total.components.idle_ns / total.components.window_ns
    sentence = (
        "There is no device work in this trace, only operators on the CPU: they ran for "
        f"{percent(ran)} of {of}."
    )
    return Verdict(sentence, None, None)


def _unrecorded(total: Account, of: str) -> str:
    """Return what to say where it is not known what the devices did most of the time, else ""."""
    share = total.idle_causes.unrecorded_ns / total.components.window_ns
    if share <= _MOST:
        return ""
    return (
        f"What the GPU did for {percent(share)} of {of} is unknown: it ran or waited for earlier "
        "work that is not in the trace."
    )


def missing_records_verdict(launches: int, how: str) -> Verdict | None:
    """Return what to say of launch calls without any record of a device; None without them."""
    if not launches:
        return None
    calls = several(launches, "launch call")
    sentence = (
        f"GPU records are missing: the trace has {calls} but no record of what ran on the GPU. "
        f"To record it: {how}."
    )
    return Verdict(sentence, None, None)


def jobs_verdict(count: int) -> Verdict:
    """Return what to say of files of several jobs: a figure of all would be of none."""
    return Verdict(f"These files are of {count} jobs; choose one with --job N.", None, None)


def untimed_verdict(found: Untimed | None) -> Verdict | None:
    """Return what a trace without a timeline says in one sentence; None for any other trace."""
    if found is None:
        return None
    without = "There is no timeline in this trace, so idle time and MFU are not known"
    if found.categories.num_rows:
        return Verdict(f"{without}; there are totals by name{_most(found)}.", None, None)
    if found.launches:
        counted = several(found.counted.num_rows, "kernel")
        noun = "launch" if found.launches == 1 else "launches"
        launches = f"{found.launches:,} {noun} of {counted}"
        return Verdict(f"{without}; there are counters of {launches}.", None, None)
    kinds = set(found.rows["kind"].to_pylist())
    if "gpu_mark" in kinds:
        return Verdict(
            "There are no kernels in this trace, only ranges as they are seen on the device.",
            None,
            None,
        )
    host = "calls and marks" if len(kinds) > 1 else f"{next(iter(kinds), 'call')}s"
    return Verdict(f"There is no device work in this trace, only {host} of the host.", None, None)


def _most(found: Untimed) -> str:
    """Return which category has most of the time."""
    largest = found.categories.slice(0, 1).to_pylist()[0]
    if found.device_ns is None or largest["share"] is None:
        return ""
    kind = largest["sub"].replace("_", " ")
    return f": {duration(found.device_ns)} of device work, {percent(largest['share'])} {kind}"


def _first(found: Sequence[Loss], of: str, total: Account) -> str:
    """Return what there is to say where nothing is known of FLOPs."""
    if not found:
        return "All of the device time is compute."
    compute = total.components.compute_ns / total.components.window_ns
    return (
        f"The largest loss is {found[0].words}: {percent(found[0].share)} of {of}; compute is "
        f"{percent(compute)}."
    )


def _both(found: Sequence[Loss], of: str) -> str:
    """Return the two largest losses of a waterfall."""
    if not found:
        return "Nothing is lost: all of the device time is compute at the peak."
    largest = f"{found[0].words} ({percent(found[0].share)} of {of})"
    if len(found) == 1:
        return f"The largest loss is {largest}."
    second = f"{found[1].words} ({percent(found[1].share)})"
    return f"The largest losses are {largest} and {second}."

"""The sentences at the top: how much of the devices was used, what is lost, what is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.findings.finding import WORTH_SAYING
from traceflops.findings.losses import Loss, losses
from traceflops.mfu.executed.coverage import TOO_LITTLE
from traceflops.results import Account, StepChoice, Verdict
from traceflops.words import capitalized, duration, percent, several

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.launchcalls import LaunchRecords
    from traceflops.mfu.measurement import Measurement
    from traceflops.untimed import Untimed

_MOST: Final = 0.5
_NEARLY_ALL: Final = 0.9
"""From this share of the busy time on, what is not judged stands for all of it."""

_ON_CPU: Final = {"call": "API calls", "mark": "annotations"}
_WHY_NOT_JUDGED: Final = {
    "other": "{its} kernels are uncategorized",
    "graph": "The trace lacks the kernels of graph launches",
}

_RECORDS: Final = {
    "missing": "GPU records are missing: the trace has {calls} but no record of what ran on the "
    "GPU. To record it: {how}.",
    "incomplete": "GPU records are incomplete: no device record for {found.lost:,} of {calls}, so "
    "idle time and losses are unknown.",
    "capture": "This trace is a graph capture: {found.captured:,} of {every} were captured, not "
    "run. Analyze the trace that launches the graph, with this one as --pair.",
}
"""What to say of a trace by the state of its launch calls, where nothing can be judged."""


def verdict(
    total: Account,
    steps: StepChoice,
    devices: int,
    measured: Measurement | None = None,
    *,
    categories: pa.Table | None = None,
    on_host: bool = False,
    lacks_copies: bool = False,
) -> Verdict:
    """Return what the chosen windows lose most time to, and what cannot be judged.

    That is what takes most and is not compute; where the FLOPs are known, also what compute loses
    against its peak. `categories` tell what the work is; `on_host` says that all of it is operators
    on the CPU, `lacks_copies` that idle time may include copies.
    """
    if not devices:
        return Verdict("This trace has no GPU operations.", None, None)
    if total.components.window_ns == 0:
        return Verdict("The selected window has zero length.", None, None)
    if on_host and (measured is None or measured.figure is None):
        return _of_host(total, "the step time" if steps.used else "the time")
    found = losses(total, measured, categories, lacks_copies=lacks_copies)
    every = [loss for loss in found if loss.share >= WORTH_SAYING]
    leading = [loss for loss in every if loss.is_judged]
    figure = f"{measured.figure}. " if measured is not None and measured.figure else ""
    if unrecorded := _unrecorded(total, basis_of(steps)):
        return Verdict(figure + unrecorded, None, None)
    if not leading:
        machine = _Machine("CPU" if on_host else "GPU", devices)
        return Verdict(figure + _nothing_lost(total, every, measured, machine), None, None)
    lost = _largest if _knows_compute(measured) else _taken
    sentences = [
        lost(leading[:2], basis_of(steps)),
        *(_not_judged(loss) for loss in every if not loss.is_judged),
        *_unknown_compute(total, measured),
    ]
    return Verdict(figure + " ".join(sentences), leading[0].name, leading[0].share)


def basis_of(steps: StepChoice) -> str:
    """Return what shares of the chosen windows are of, in words."""
    return "the step time" if steps.used else "the total time"


def _of_host(total: Account, of: str) -> Verdict:
    """Return what there is to say of a trace in which no device did anything."""
    ran = 1 - total.components.idle_ns / total.components.window_ns
    sentence = (
        f"This trace has no GPU operations, only CPU operators, which ran for {percent(ran)} of "
        f"{of}."
    )
    return Verdict(sentence, None, None)


def _unrecorded(total: Account, of: str) -> str:
    """Return what to say where it is not known what the devices did most of the time, else ""."""
    share = total.idle_causes.unrecorded_ns / total.components.window_ns
    if share <= _MOST:
        return ""
    return (
        f"What the GPU did is unknown for {percent(share)} of {of}: it ran or waited for earlier "
        "work missing from the trace."
    )


def records_verdict(found: LaunchRecords, how: str) -> Verdict | None:
    """Return what to say where too much is not recorded to judge anything; None elsewhere.

    `how` says how it would be recorded.
    """
    if found.is_judged:
        return None
    calls = several(found.calls, "launch call")
    every = several(found.calls + found.captured, "launch call")
    sentence = _RECORDS[found.state].format(found=found, calls=calls, every=every, how=how)
    return Verdict(sentence, None, None)


def jobs_verdict(count: int) -> Verdict:
    """Return what to say of files of several jobs, which have no figures in common."""
    return Verdict(f"These files are from {count} jobs; choose one with --job N.", None, None)


def untimed_verdict(untimed: Untimed | None) -> Verdict | None:
    """Return what a trace without a timeline says in one sentence; None for any other trace."""
    if untimed is None:
        return None
    without = "This trace has no timeline, so idle time and MFU are unknown. It has"
    if untimed.categories.num_rows:
        return Verdict(f"{without} totals by name{_most(untimed)}.", None, None)
    if untimed.launches:
        counted = several(untimed.counted.num_rows, "kernel")
        launches = f"{several(untimed.launches, 'launch')} of {counted}"
        return Verdict(f"{without} counters of {launches}.", None, None)
    kinds = set(untimed.rows["kind"].to_pylist())
    if "gpu_mark" in kinds:
        return Verdict("This trace has no kernels, only GPU annotations.", None, None)
    cpu = " and ".join(words for kind, words in _ON_CPU.items() if kind in kinds)
    return Verdict(f"This trace has no GPU operations, only {cpu}.", None, None)


def _most(untimed: Untimed) -> str:
    """Return which category has most of the time."""
    largest = untimed.categories.slice(0, 1).to_pylist()[0]
    if untimed.device_ns is None or largest["share"] is None:
        return ""
    kind = largest["sub"].replace("_", " ")
    return f": {duration(untimed.device_ns)} of GPU time, {percent(largest['share'])} {kind}"


@dataclass(frozen=True, slots=True)
class _Machine:
    """What did the work, and how many there are."""

    name: str
    number: int

    @property
    def is_busy(self) -> str:
        """Return that it is busy: "The GPU is busy"."""
        return f"The {self.name}{'s are' if self.number > 1 else ' is'} busy"

    @property
    def its(self) -> str:
        """Return "Its" or "Their"."""
        return "Their" if self.number > 1 else "Its"


def _knows_compute(measured: Measurement | None) -> bool:
    """Return whether compute is held against its peak."""
    return measured is not None and measured.waterfall is not None


def _largest(leading: Sequence[Loss], of: str) -> str:
    """Return the largest losses of a waterfall, two at most."""
    sized = [
        f"{loss.words} ({loss.sized('' if place else of)})" for place, loss in enumerate(leading)
    ]
    what = "loss is" if len(sized) == 1 else "losses are"
    return f"The largest {what} {' and '.join(sized)}."


def _taken(leading: Sequence[Loss], of: str) -> str:
    """Return what takes time beside compute that is not judged, two parts at most."""
    parts = [
        f"{loss.words} {loss.takes} {loss.sized('' if place else of)}"
        for place, loss in enumerate(leading)
    ]
    return f"{capitalized('; '.join(parts))}."


def _not_judged(loss: Loss) -> str:
    """Return what takes time of which nothing says whether it is lost."""
    return f"{capitalized(loss.words)} {loss.takes} {percent(loss.share)}; {loss.doubt}."


def _unknown_compute(total: Account, measured: Measurement | None) -> Iterator[str]:
    """Yield that compute is not judged, where there is enough of it."""
    share = total.components.share("compute") or 0.0
    if share >= WORTH_SAYING and not _knows_compute(measured):
        why = _why_unknown(measured)
        yield f"Compute takes {percent(share)}; {why}."


def _why_unknown(measured: Measurement | None) -> str:
    """Return what is missing to judge compute."""
    coverage = measured.executed.coverage if measured is not None else None
    return (
        "its FLOPs and efficiency are unknown"
        if (coverage or 0) < TOO_LITTLE
        else "its efficiency is unknown (no MFU)"
    )


def _nothing_lost(
    total: Account, every: Sequence[Loss], measured: Measurement | None, machine: _Machine
) -> str:
    """Return what there is to say where no loss is worth saying; some may not be judged."""
    busy = 1 - (total.components.share("idle") or 0.0)
    is_busy = f"{machine.is_busy} {percent(busy)} of the time"
    if not every and _knows_compute(measured):
        return f"{is_busy}, and no loss reaches {percent(WORTH_SAYING)}."
    work = [loss for loss in every if loss.name in _WHY_NOT_JUDGED]
    if work and work[0].share >= _NEARLY_ALL * busy:
        why = _WHY_NOT_JUDGED[work[0].name].format(its=machine.its)
        idle = (_not_judged(loss) for loss in every if loss not in work)
        return " ".join((f"{is_busy}. {why}, so efficiency is unknown.", *idle))
    rest = [*map(_not_judged, every), *_unknown_compute(total, measured)]
    return " ".join((f"{is_busy}.", *rest))

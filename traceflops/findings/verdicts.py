"""The sentences at the top: how much of the devices was used, what is lost, what is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from traceflops.devices import NOTHING_LAUNCHED
from traceflops.findings.finding import WORTH_SAYING, Verdict, severity_of
from traceflops.findings.losses import Loss
from traceflops.mfu import TOO_LITTLE
from traceflops.timeline import Account
from traceflops.units import (
    PART_NAMES,
    capitalized,
    duration,
    percent,
    several,
    some_of,
    uncapitalized,
)
from traceflops.units import exact_percent as exact_percent
from traceflops.windows import MATERIAL, StepChoice

if TYPE_CHECKING:
    from traceflops.mfu import Measurement
    from traceflops.timeline import Untimed
    from traceflops.windows import LaunchRecords

_NOT_WORKING: Final = frozenset({"idle", "communication"})
"""Losses whatever the other work is: of high severity they lead, before what cannot be judged."""

_ON_CPU: Final = {"call": "API calls", "mark": "annotations"}

_RECORDS: Final = {
    "missing": "GPU records are missing: the trace has {calls} but no record of what ran on the "
    "GPU.{how}",
    "incomplete": "GPU records are incomplete: no device record for {found.lost:,} of {calls}, so "
    "idle time and losses are unknown.{late}",
    "collectives": "Only collectives are recorded, no other kernels: how much of the time is idle, "
    "and whether work hides communication, is unknown.{late}",
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
    found: Sequence[Loss],
    on_host: bool = False,
    late_rank: str = "",
) -> Verdict:
    """Return what the chosen windows lose most time to, and what cannot be judged.

    That is what takes most and is not compute; where the FLOPs are known, also what compute loses
    against its peak. It stands first unless something that cannot be judged takes more and the GPU
    is hardly idle or communicating. `found` is the losses, the largest first; `on_host` says that
    all work is operators on the CPU; `late_rank` is the sentence on the rank or link
    that holds others up.
    """
    if not devices:
        return Verdict("This trace has no GPU operations.")
    if total.components.window_ns == 0:
        return Verdict("The selected window has zero length.")
    if on_host and (measured is None or measured.figure is None):
        nothing = measured is not None and NOTHING_LAUNCHED in measured.lacks
        return _of_host(total, "the step time" if steps.used else "the time", nothing=nothing)
    every = [one for one in found if one.share >= WORTH_SAYING]
    known = [one for one in every if not one.unknown][:2]
    is_news = any(one.name in _NOT_WORKING and severity_of(one.share) == "high" for one in known)
    unknown = _unknown(total, measured, every)
    figure = f"{measured.figure}. " if measured is not None and measured.figure else ""
    figure += f"{late_rank} " if late_rank else ""
    of = basis_of(steps)
    if known and (is_news or known[0].share >= max(unknown.values(), default=0.0)):
        is_compared = _knows_compute(measured) and not unknown
        known = [one.brief() for one in known] if late_rank else known
        lost = _with_peaks((_largest if is_compared else _taken)(known, of), known, of)
        return Verdict(figure + " ".join((lost, *unknown)), known[0].name, known[0].share)
    busy = f"The {'CPU' if on_host else 'GPU'}{' is' if devices == 1 else 's are'} busy"
    lost = _with_peaks(_taken(known, ""), known, of) if known else ""
    sentences = (f"{busy} {_busy(total, of, is_all=not (every or unknown))}.", *unknown, lost)
    return Verdict((figure + " ".join(sentences)).rstrip())


def basis_of(steps: StepChoice) -> str:
    """Return what shares of the chosen windows are of, in words."""
    return "the step time" if steps.used else "the total time"


def _of_host(total: Account, of: str, *, nothing: bool) -> Verdict:
    """Return what there is to say of a trace in which no device did anything.

    `nothing` says that calls are recorded, and that they launched nothing.
    """
    ran = 1 - total.components.idle_ns / total.components.window_ns
    if nothing:
        return Verdict(
            "The model ran on the CPU: the recorded calls start no GPU work. CPU operators ran for "
            f"{percent(ran)} of {of}."
        )
    return Verdict(
        f"This trace has no GPU operations, only CPU operators, which ran for {percent(ran)} of "
        f"{of}."
    )


def records_verdict(found: LaunchRecords, how: str, late_rank: str = "") -> Verdict | None:
    """Return what to say where too much is not recorded to judge anything; None elsewhere.

    `how` is the clause that says how it would be recorded, "" where nothing does; `late_rank` the
    sentence on the rank that holds others up, which only their recorded work tells.
    """
    if found.is_judged:
        return None
    every = several(found.calls + found.captured, "launch call")
    words = {
        "calls": found.words,
        "every": every,
        "how": f" {capitalized(how)}." if how else "",
        "late": f" {late_rank}" if late_rank else "",
    }
    return Verdict(_RECORDS[found.state].format(found=found, **words))


def lost_graphs(found: LaunchRecords, total: Account) -> str:
    """Return how many graph launches have no record, "" where their work cannot take much time."""
    is_much = total.idle_causes.unrecorded_ns > MATERIAL * total.components.window_ns
    if not (is_much and found.is_judged and found.graph.lack()):
        return ""
    lost = some_of(found.graph.lost, found.graph.calls, "graph launch", "have")
    return f"{lost} no GPU record."


def led_by(found: Verdict, figure: str | None, lack: str) -> Verdict:
    """Return a verdict that first says, after the utilisation, what the recording lacks."""
    lead = f"{figure}. " if figure and found.sentence.startswith(f"{figure}. ") else ""
    said = f"{lead}{lack} {found.sentence.removeprefix(lead)}"
    return replace(found, sentence=said) if lack else found


def jobs_verdict(count: int) -> Verdict:
    """Return what to say of files of several jobs, which have no figures in common."""
    return Verdict(f"These files are from {count} jobs; choose one with --job N.")


def untimed_verdict(untimed: Untimed | None, late_rank: str = "") -> Verdict | None:
    """Return what a trace without a timeline says; None for any other trace."""
    if untimed is None:
        return None
    without = "This trace has no timeline, so idle time and MFU are unknown. It has"
    if untimed.categories.num_rows:
        return Verdict(f"{without} totals by name{_most(untimed)}.")
    if untimed.launches:
        counted = several(untimed.counted.num_rows, "kernel")
        launches = f"{several(untimed.launches, 'launch')} of {counted}"
        return Verdict(f"{without} counters of {launches}.")
    kinds = set(untimed.rows["kind"].to_pylist())
    if "gpu_mark" in kinds:
        return Verdict(f"This trace has no kernels, only GPU annotations. {late_rank}".rstrip())
    cpu = " and ".join(words for kind, words in _ON_CPU.items() if kind in kinds)
    return Verdict(f"This trace has no GPU operations, only {cpu}.")


def _most(untimed: Untimed) -> str:
    """Return which category has most of the time."""
    largest = untimed.categories.slice(0, 1).to_pylist()[0]
    if untimed.device_ns is None or largest["share"] is None:
        return ""
    kind = largest["sub"].replace("_", " ")
    return f": {duration(untimed.device_ns)} of GPU time, {percent(largest['share'])} {kind}"


def _knows_compute(measured: Measurement | None) -> bool:
    return measured is not None and measured.waterfall is not None


def _largest(lost: Sequence[Loss], of: str) -> str:
    """Return the largest losses of a waterfall, two at most."""
    sized = [
        f"{loss.words} ({loss.glossed('' if place else of)})" for place, loss in enumerate(lost)
    ]
    what = "loss is" if len(sized) == 1 else "losses are"
    return f"The largest {what} {' and '.join(sized)}."


def _taken(lost: Sequence[Loss], of: str) -> str:
    """Return what takes time beside what is not judged, two parts at most."""
    first, *more = [
        f"{loss.taking} {loss.sized('' if place else of)}" for place, loss in enumerate(lost)
    ]
    return "; ".join((first, *map(uncapitalized, more))) + "."


def _with_peaks(sentence: str, lost: Sequence[Loss], of: str) -> str:
    """Return a sentence on losses, and one for each whose bytes are known."""
    return " ".join((sentence, *filter(None, (loss.at_peak(of) for loss in lost))))


def _unknown(
    total: Account, measured: Measurement | None, every: Sequence[Loss]
) -> dict[str, float]:
    """Return what takes time of which nothing says whether it is lost: sentences and shares."""
    found = {
        f"{one.taking} {percent(one.share)}; {one.unknown}.": one.share
        for one in every
        if one.unknown
    }
    share = total.components.share("compute") or 0.0
    if share >= WORTH_SAYING and not _knows_compute(measured):
        found[f"Compute takes {percent(share)}; {_why_unknown(measured)}."] = share
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _why_unknown(measured: Measurement | None) -> str:
    """Return what is missing to judge compute."""
    coverage = measured.executed.coverage if measured is not None else None
    if not coverage:
        return "its FLOPs and efficiency are unknown"
    if coverage < TOO_LITTLE:
        return f"FLOPs are known for only {exact_percent(coverage)} of it"
    return "its efficiency is unknown (no MFU)"


def _busy(total: Account, of: str, *, is_all: bool) -> str:
    """Return how much of the time is busy, and with what where no other sentence says that.

    `is_all` says that nothing else is worth saying.
    """
    busy = total.components.parts()
    del busy["idle"]
    window_ns, most = total.components.window_ns, max(busy, key=lambda name: busy[name])
    busy_ns = sum(busy.values())
    share = f"{percent(busy_ns / window_ns)} of {of}"
    if total.idle_causes.unrecorded_ns >= WORTH_SAYING * window_ns and busy_ns * 1000 > window_ns:
        share = f"at least {share}"
    if is_all:
        return f"{share}, and no loss reaches {percent(WORTH_SAYING)}"
    is_said = busy[most] >= WORTH_SAYING * window_ns or not busy[most]
    return share if is_said else f"{share}, mostly with {PART_NAMES[most]}"

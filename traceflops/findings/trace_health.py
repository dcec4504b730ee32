"""Rule `trace-health`: what a recording is not fit for, and how to record better.

It is told by notes, by what the trace lacks of what its profiler records, and by what the profiler
cost. What does not matter to any figure is not said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution.launch_lead import leads
from traceflops.facts import quoted
from traceflops.findings.case import limit, share_of_window
from traceflops.findings.finding import Finding
from traceflops.findings.rules import statement
from traceflops.recording.capture_gaps import missing_from
from traceflops.recording.inventory import profiler_time
from traceflops.remedies import PYTORCH, family, remedy, with_verb
from traceflops.table.columns import matching, numbers
from traceflops.units import capitalized, does, duration, percent, several
from traceflops.windows.records import chosen_time

if TYPE_CHECKING:
    from traceflops.attribution.launch_lead import Leads
    from traceflops.findings.case import Case
    from traceflops.timeline.intervals import Intervals
    from traceflops.windows.prepared import Prepared

RULE: Final = "trace-health"
_STEPS: Final = "Record five steps after two of warm-up"


@dataclass(frozen=True, slots=True)
class _Unfit:
    """A title, what the recording is unfit for, and how to record better.

    `how` is a name among the remedies, or a sentence; "" if the note says it. `of_all` says that a
    few records do not matter.
    """

    title: str
    unfit: str
    how: str
    of_all: bool = False


_LOST: Final = _Unfit(
    "Records were lost",
    "Sums are too small, and idle time may be work that was lost.",
    "all device records",
    of_all=True,
)
_CALLS: Final = _Unfit(
    "CPU calls are missing",
    "Idle time cannot be explained and gains not predicted.",
    "calls",
    of_all=True,
)
_SOME_CALLS: Final = replace(_CALLS, how="Keep the calls of all work: cut neither of the files.")
_CLOCKS: Final = _Unfit(
    "Clocks are not aligned",
    "Times of different ranks cannot be compared.",
    "Record all ranks at the same time, with synchronised clocks.",
)
_NO_WORK: Final = _Unfit(
    "GPU records are missing", "GPU times, idle time and MFU are not judged.", ""
)
_TIMELINE: Final = _Unfit(
    "There is no timeline", "Idle time, overlap and steps are unknown.", "timeline"
)
_SLOWED: Final = "The profiler slows the run"
_ALONE: Final = (
    "Record without stacks, shapes and memory events, and compare the step time with that of a "
    "run without a profiler."
)
_FIRST: Final = re.compile(r"(?<=\.) (?=[A-Z])")
"""Where the first sentence of a note ends."""
_OF_FILES: Final = re.compile(r"( \(in \d+ of \d+ files\))$")
_NONE: Final = np.empty(0, dtype=np.int64)
_RANKS: Final = _Unfit("Ranks are unclear", "Ranks cannot be compared.", "rank")
_NOTES: Final = {
    "no-device-work": _NO_WORK,
    "device-records-missing": _LOST,
    **dict.fromkeys(("work-lost", "rows-lost", "graph-launches-lost"), _LOST),
    **dict.fromkeys(
        ("input-cut", "text-cut", "tail-cut", "log-cut", "json-dropped"),
        _Unfit(
            "The file is damaged",
            "Sums are too small.",
            "Copy the file again, or let the program end before it is copied.",
        ),
    ),
    "file-not-read": _Unfit(
        "A file was not read", "Its work is in no figure.", "Copy the file again."
    ),
    **dict.fromkeys(("no-timeline", "copies-only"), _TIMELINE),
    "copies-missing": _Unfit("Copies are missing", "Idle time is not judged.", "copies"),
    "counted-while-timed": _Unfit(
        "Counters slowed the run", "Idle time and overlap are too long.", "timeline"
    ),
    "graph-capture": _Unfit(
        "This is a graph capture",
        "Nothing ran, so nothing is judged.",
        "Record steps that replay the graph, and give this file to them with --pair.",
    ),
    "graphs-opaque": _Unfit(
        "Graphs hide their kernels",
        "Their kernels have no time, category or FLOPs.",
        "kernels of graphs",
    ),
    "earlier-work-missing": _Unfit(
        "Recording began amid work", "Idle time at its start is not judged.", "first work"
    ),
    **dict.fromkeys(("no-calls", "calls-of-unknown-process"), _CALLS),
    "calls-missing": _SOME_CALLS,
    "unlinked": _Unfit("Launches are missing", "Gains are less sure.", "first work", of_all=True),
    "no-steps": _Unfit("Steps are not marked", "Start-up counts like steady work.", ""),
    "ranks-missing": _Unfit(
        "Ranks are missing",
        "Waiting for other ranks is a range.",
        "Record all ranks of the job for the same steps.",
    ),
    "rank-clash": _Unfit("Ranks overwrite each other", "Ranks cannot be compared.", "rank"),
    **dict.fromkeys(("rank-beyond-world", "rank-unknown"), _RANKS),
    **dict.fromkeys(("clocks-not-aligned", "files-of-different-times"), _CLOCKS),
    "clocks-apart": _Unfit(
        "CPU and GPU clocks disagree", "", "Record with the current version of driver and profiler."
    ),
    "device-before-launch": _Unfit(
        "CPU and GPU clocks disagree",
        "Launch latency and how far the host is ahead are not exact.",
        "Record with the current version of driver and profiler.",
        of_all=True,
    ),
    "times-too-coarse": _Unfit(
        "Times are too coarse",
        "Short gaps and kernels are not exact.",
        "Record with the current version of the profiler.",
    ),
    "python-stacks-left-out": _Unfit(
        "Python stacks were left out",
        "Which line held up the GPU is unknown.",
        "Read the file with --python-stacks.",
    ),
}
"""By code of a note; the worst first."""


_Matters = Callable[["Case"], bool]


def _no_mfu(case: Case) -> bool:
    return case.measured.mfu_range is None


def _is_torch(case: Case) -> bool:
    return _no_mfu(case) and family(case.source.format) == PYTORCH


def _is_idle(case: Case) -> bool:
    share = share_of_window(case, case.total.components.idle_ns)
    return not case.on_host and share >= limit(case, RULE, "least_idle")


_LACKS: Final[dict[str, tuple[str, _Matters, tuple[str, ...]]]] = {
    "device records": (
        _NO_WORK.title,
        lambda _: True,
        ("no-device-work",),
    ),
    "device work": (_NO_WORK.title, lambda _: True, ("no-device-work",)),
    "a timeline": (_TIMELINE.title, lambda _: True, ("no-timeline", "copies-only")),
    "runtime calls": (
        _CALLS.title,
        _is_idle,
        ("no-calls", "calls-missing", "calls-of-unknown-process"),
    ),
    "framework operators": ("Operators are missing", _is_torch, ()),
    "operator shapes": ("Operator shapes are missing", _no_mfu, ()),
    "Python stacks": ("Python stacks are missing", _is_idle, ("python-stacks-left-out",)),
}
"""What a trace may lack: a title, when that matters, and the notes that say the same."""


def trace_health(case: Case) -> Iterator[Finding]:
    """Give a finding for each thing that makes the recording unfit for a statement."""
    said = {note.code: note for note in reversed(case.notes)}
    for code, unfit in _NOTES.items():
        if (note := said.get(code)) is not None and _matters(case, unfit, note.count):
            text, files = (*_OF_FILES.split(note.text), "")[:2]
            what, rest = _FIRST.sub("\\n", text, count=1).partition("\n")[::2]
            what = f"{what.removesuffix('.')}{files}." if files else what
            is_told = not unfit.how or unfit.how.endswith(".")
            how = (unfit.how or rest) if is_told else remedy(case, unfit.how) or ""
            yield _finding(unfit.title, f"{what} {unfit.unfit}", how)
    if case.prepared is None:
        return
    missing = missing_from(case.prepared.trace)
    if case.windows_used and not case.on_host:
        yield from _coverage(case, {one.what for one in missing})
    for one in missing:
        title, matters, codes = _LACKS.get(one.what, ("", lambda _: False, ()))
        if matters(case) and not {*codes} & {*said}:
            sentence = f"The recording has no {one.what.removeprefix('a ')}: {one.cost}."
            yield _finding(title, sentence, one.remedy)
    yield from _overhead(case, case.prepared)


def _coverage(case: Case, missing: set[str]) -> Iterator[Finding]:
    """Give a finding where much of the window has no record, and one where steps are few."""
    source, steps = case.source.format, len(case.steps.used)
    nameless = (one for one in case.idle.culprits if one.kind == "host_unrecorded")
    share = share_of_window(case, sum(one.idle_ns for one in nameless if not one.label))
    if "runtime calls" not in missing and share >= limit(case, RULE, "unrecorded"):
        how = remedy(case, "stacks") or remedy(case, "annotations") or ""
        told = f"For {percent(share)} of the time neither GPU nor CPU has a record of work."
        yield _finding("Much of the window has no record", told, how)
    if 0 < steps < limit(case, RULE, "few_steps"):
        told = f"Only {several(steps, 'step')} {does(steps, 'are')} used: variation is not known."
        how = " (torch.profiler.schedule(wait=1, warmup=2, active=5))"
        is_torch = family(source) == PYTORCH
        yield _finding("Few steps are recorded", told, f"{_STEPS}{how * is_torch}.")


def _overhead(case: Case, prepared: Prepared) -> Iterator[Finding]:
    """Give a finding where the profiler itself, or what it adds to each launch, takes long."""
    chosen = {device: chosen_time(windows) for device, windows in prepared.windows.items()}
    own = profiler_time(prepared.trace, prepared.accounts, chosen)
    share = share_of_window(case, own.idle_ns)
    if share >= limit(case, RULE, "least_overhead"):
        sentence = f"The GPU is idle for {percent(share)} of the time while the profiler works."
        yield _finding(_SLOWED, sentence, _ALONE)
    calls = prepared.trace.calls
    starved = [one.call[one.is_starved] for one in _launches(prepared, chosen)]
    row = np.concatenate([*starved, _NONE])
    row = row[matching(calls["name"], lambda name: "LaunchKernel" in name)[row]]
    calls_ns = numbers(calls["dur_ns"])[row]
    usual_ns = (
        int(np.median(calls_ns)) if len(calls_ns) >= limit(case, RULE, "least_launches") else 0
    )
    if usual_ns >= limit(case, RULE, "slow_launch_ns"):
        sentence = f"Half of all launch calls take {duration(usual_ns)} or more; 10 µs is much."
        yield _finding(_SLOWED, sentence, _ALONE)


def _launches(prepared: Prepared, chosen: Mapping[int, Intervals]) -> Iterator[Leads]:
    for device, account in prepared.accounts.items():
        if account.has_calls:
            yield leads(account).within(chosen[device])


def _matters(case: Case, unfit: _Unfit, count: int | None) -> bool:
    """Return whether what a note says matters here: of all records, ranks or files."""
    if unfit is _CLOCKS:
        is_aligned = case.ranks is not None and case.ranks.alignment.basis != ""
        return len(case.devices) > 1 and not is_aligned
    if unfit is _TIMELINE:
        return not case.windows_used
    works = sum(sums.count for one in case.devices for sums in one.whole.kinds.values())
    if unfit is _LOST and not works:
        return False  # told as missing: nothing of its kind was recorded
    return not unfit.of_all or count is None or count >= limit(case, RULE, "least_records") * works


def _finding(title: str, sentence: str, how: str) -> Finding:
    advice = quoted(_sentence(how)) if how else None
    return statement(RULE, 0.0, name=quoted(title), claim=quoted(sentence), advice=advice)


def _sentence(how: str) -> str:
    """Return how to record something as a sentence; options have no verb of their own."""
    if not how or how.endswith("."):
        return how
    return f"{capitalized(with_verb(how))}."

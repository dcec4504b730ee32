"""Rule `trace-health`: what a recording is not fit for, and how to record better.

It follows from notes, from what the trace lacks of all that its profiler can record, and from what
the profiler cost. Findings are only about what matters to a figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.launch_lead import leads
from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, limit, share_of_window
from traceflops.findings.finding import Finding
from traceflops.findings.rules import statement
from traceflops.recording.inventory import profiler_time
from traceflops.remedies import PYTORCH, How, family, way_to_record
from traceflops.table.columns import matching, numbers
from traceflops.windows.prepared import SERIALIZED
from traceflops.windows.records import chosen_time

RULE: Final = "trace-health"


class _Unfit(Struct, frozen=True):
    """What a note makes a recording unfit for: its texts are `trace-health.CODE`.

    The advice is how to record the `lack`; without a lack it is a text of the code, or `by_note`
    that of the note. With `of_all`, a few records do not matter.
    """

    code: str
    lack: str | None = None
    of_all: bool = False
    by_note: bool = False


_LOST: Final = _Unfit("records-lost", "all device records", of_all=True)
_CALLS: Final = _Unfit("no-calls", "calls", of_all=True)
_CLOCKS: Final = _Unfit("clocks-not-aligned")
_TIMELINE: Final = _Unfit("no-timeline", "timeline")
_RANKS: Final = _Unfit("rank-unclear", "rank")
_NO_CALLS: Final = ("no-calls", "calls-of-unknown-process")
_NONE: Final = np.empty(0, dtype=np.int64)
_NOTES: Final = {
    "no-device-work": _Unfit("no-device-work", "device work", by_note=True),
    "device-records-missing": _LOST,
    **dict.fromkeys(("work-lost", "rows-lost", "graph-launches-lost"), _LOST),
    "steps-lossy": _Unfit("steps-lossy", "all device records"),
    **dict.fromkeys(
        ("input-cut", "text-cut", "tail-cut", "log-cut", "json-dropped"), _Unfit("file-damaged")
    ),
    "file-not-read": _Unfit("file-not-read"),
    **dict.fromkeys(("no-timeline", "copies-only"), _TIMELINE),
    "copies-missing": _Unfit("copies-missing", "copies"),
    **dict.fromkeys(SERIALIZED, _Unfit("counted-while-timed", "timeline")),
    "graph-capture": _Unfit("graph-capture"),
    "graphs-opaque": _Unfit("graphs-opaque", "kernels of graphs"),
    "earlier-work-missing": _Unfit("earlier-work-missing", "first work"),
    "late-starts": _Unfit("late-starts"),
    **dict.fromkeys(_NO_CALLS, _CALLS),
    "calls-missing": _Unfit("calls-cut", of_all=True),
    "unlinked": _Unfit("unlinked", "first work", of_all=True),
    "no-steps": _Unfit("no-steps", by_note=True),
    "ranks-missing": _Unfit("ranks-missing"),
    "rank-clash": _Unfit("rank-clash", "rank"),
    **dict.fromkeys(("rank-beyond-world", "rank-unknown"), _RANKS),
    **dict.fromkeys(("clocks-not-aligned", "files-of-different-times"), _CLOCKS),
    "clocks-apart": _Unfit("clocks-apart"),
    "device-before-launch": _Unfit("device-before-launch", of_all=True),
    "times-too-coarse": _Unfit("times-too-coarse"),
    "python-stacks-left-out": _Unfit("python-stacks-left-out"),
}
"""By code of a note, the worst first."""
_ALONE: Final = fact(f"{RULE}.profiler.remedy")


class _Lack(Struct, frozen=True):
    """Something that a trace lacks: the code of its title, when it matters, notes on the same."""

    code: str
    matters: str
    notes: frozenset[str] = frozenset()


_LACKS: Final[Mapping[str, _Lack]] = {
    **dict.fromkeys(
        ("device-records", "device-work"),
        _Lack("no-device-work", "always", frozenset({"no-device-work"})),
    ),
    "timeline": _Lack("no-timeline", "always", frozenset({"no-timeline", "copies-only"})),
    **dict.fromkeys(
        ("calls", "calls-but-moments"),
        _Lack("no-calls", "idle", frozenset({*_NO_CALLS, "calls-missing"})),
    ),
    "operators": _Lack("operators", "no MFU of PyTorch"),
    "shapes": _Lack("shapes", "no MFU"),
    "stacks": _Lack("stacks", "idle", frozenset({"python-stacks-left-out"})),
}
"""By code of what a trace may lack: MFU needs operators and shapes, idle time calls and stacks."""


def trace_health(case: Case) -> Iterator[Finding]:
    """Give a finding for each thing that makes the recording unfit for a statement."""
    notes = {note.code: note for note in reversed(case.notes)}  # the first note of each code
    for code, unfit in _NOTES.items():
        if (note := notes.get(code)) is not None and _matters(case, unfit, note.count):
            # Without steps, start-up may distort figures: not if it is left out anyway.
            is_harmless = code == "no-steps" and case.steps.after_start_up
            claim = fact(
                f"{RULE}.says",
                note=code,
                what=note.statement,
                scope=note.scope or None,
                unfit=None if is_harmless else fact(f"{RULE}.{unfit.code}.unfit"),
            )
            how = way_to_record(case, unfit.lack) if unfit.lack else None
            if unfit.by_note:
                option = how.text if how else None
                as_noted = fact(f"{RULE}.as-noted", advice=note.advice, option=option)
                advice = as_noted if note.advice else None
            else:
                advice = _record(how) if unfit.lack else fact(f"{RULE}.{unfit.code}.remedy")
            yield _finding(unfit.code, claim, advice)
    if not case.has_events:
        return
    if case.windows_used and not case.on_host:
        yield from _coverage(case, {lack.code for lack in case.missing})
    idle, has_mfu = case.total.components.idle_ns, case.measured.mfu_range is not None
    is_idle = share_of_window(case, idle) >= limit(case, RULE, "least_idle")
    matters = {
        "always": True,
        "idle": is_idle and not case.on_host,
        "no MFU": not has_mfu,
        "no MFU of PyTorch": not has_mfu and family(case.source.format) == PYTORCH,
    }
    for lack in case.missing:
        row = _LACKS.get(lack.code)
        if row is None or row.notes & {*notes}:  # a note has a finding on it already
            continue
        if matters[row.matters]:
            what, cost = (fact(f"lack.{lack.code}.{part}") for part in ("what", "cost"))
            claim = fact(f"{RULE}.lacks", lack=lack.code, what=what, cost=cost)
            yield _finding(row.code, claim, _record(lack.how))
    yield from _overhead(case)


def _record(how: How | None) -> Fact | None:
    """Return the advice to record something, None if it is unknown how."""
    if how is None or not how.text:
        return None
    return fact(f"{RULE}.record", how=how.clause, option=how.text)


def _coverage(case: Case, missing: set[str]) -> Iterator[Finding]:
    """Give findings if much idle time has no record, or steps are few.

    `missing` are the codes of what the trace lacks.
    """
    steps = len(case.steps.used)
    nameless_ns = sum(
        culprit.idle_ns
        for culprit in case.idle.culprits
        if culprit.kind == "host_unrecorded" and not culprit.label
    )
    share = share_of_window(case, nameless_ns)
    lacks_calls = missing & {"calls", "calls-but-moments"}  # these have a finding of their own
    if not lacks_calls and share >= limit(case, RULE, "unrecorded"):
        ways = (_record(way_to_record(case, lack)) for lack in ("stacks", "annotations"))
        advice = next(filter(None, ways), None)
        yield _finding("unrecorded", fact(f"{RULE}.unrecorded.claim", share=share), advice)
    if 0 < steps < limit(case, RULE, "few_steps"):  # no steps at all are a doubt of each gain
        of_torch = "-torch" if family(case.source.format) == PYTORCH else ""
        claim = fact(f"{RULE}.few-steps.claim", steps=steps)
        yield _finding("few-steps", claim, fact(f"{RULE}.few-steps.remedy{of_torch}"))


def _overhead(case: Case) -> Iterator[Finding]:
    """Give a finding if the profiler itself, or what it adds to each launch, takes long."""
    prepared = case.prepared
    chosen = {device: chosen_time(windows) for device, windows in prepared.windows.items()}
    own = profiler_time(prepared.trace, prepared.accounts, chosen)
    share = share_of_window(case, own.idle_ns)
    if share >= limit(case, RULE, "least_overhead"):
        yield _finding("profiler", fact(f"{RULE}.profiler.claim-idle", share=share), _ALONE)
    # Only launches for which the GPU waits: others may be long because the queue is full.
    calls = prepared.trace.calls
    starved = [_NONE]
    for device, account in prepared.accounts.items():
        if account.has_calls:
            launches = leads(account)
            launches = launches.only(chosen[device].contains(launches.start_ns))
            starved.append(launches.call[launches.is_starved])
    row = np.concatenate(starved)
    row = row[matching(calls["name"], lambda name: "LaunchKernel" in name)[row]]
    calls_ns = numbers(calls["dur_ns"])[row]
    if len(calls_ns) < limit(case, RULE, "least_launches"):
        return
    usual_ns = int(np.median(calls_ns))
    if usual_ns >= limit(case, RULE, "slow_launch_ns"):
        yield _finding("profiler", fact(f"{RULE}.profiler.claim-calls", usual_ns=usual_ns), _ALONE)


def _matters(case: Case, unfit: _Unfit, count: int | None) -> bool:
    """Return whether a note matters here; `count` is how many records it is about, if known."""
    if unfit is _CLOCKS:  # clocks matter only between devices; ranks may be aligned without them
        return len(case.devices) > 1 and not case.ranks.alignment.basis
    if unfit is _TIMELINE:
        return not case.windows_used
    works = sum(sums.count for device in case.devices for sums in device.whole.kinds.values())
    if unfit is _LOST and not works:
        return False  # without any work, other findings tell that it is missing
    return not unfit.of_all or count is None or count >= limit(case, RULE, "least_records") * works


def _finding(code: str, claim: Fact, advice: Fact | None) -> Finding:
    return statement(RULE, 0.0, name=fact(f"{RULE}.{code}.title"), claim=claim, advice=advice)

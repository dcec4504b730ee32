"""Reads what a command is given: traces, summaries of them, the recording that is their pair."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceflops.cli.printing import watching
from traceflops.errors import InputError, UsageError

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.cli.options import Asked, ReadingOptions
    from traceflops.table import Trace

_HEAD_BYTES: Final = 4096


def read_trace(traces: list[str], reading: ReadingOptions) -> Trace:
    """Return the trace in the given files, with progress on a terminal."""
    from traceflops.parsers import read

    with watching() as watch:
        return read(
            traces,
            watch=watch,
            jobs=reading.jobs,
            python_stacks=reading.python_stacks,
            strict=reading.strict,
            limits=not reading.no_limits,
        )


def read_job(traces: list[str], reading: ReadingOptions, job: int | None) -> Trace:
    """Return the chosen job of the files, all of them where none is chosen."""
    from traceflops.devices import of_job

    return of_job(read_trace(traces, reading), job)


def read_and_analyze(traces: list[str], asked: Asked, *, brief: bool = False) -> Analysis:
    """Return the analysis that the options ask for; `brief` is what a summary in a terminal shows.

    It may lack all else.
    """
    from traceflops.analysis import with_finding_rules
    from traceflops.findings import read_finding_rules

    redact = asked.privacy.redact
    rules = read_finding_rules(asked.finding_rules, redact=redact)  # before a large file is read
    return with_finding_rules(_analyzed(traces, asked, brief=brief), rules)


def _analyzed(traces: list[str], asked: Asked, *, brief: bool) -> Analysis:
    asked.privacy.check()
    selection, peaks = asked.question.selection(), asked.rates.peaks()
    from traceflops.analysis import analyze

    check_pair(asked.pair, traces)
    from traceflops.cli.parts import analysis_of_many, analysis_of_parts

    if asked.dask is not None or holds_summaries(traces):
        return analysis_of_parts(traces, asked)
    if analysis := analysis_of_many(traces, asked, brief=brief):
        return analysis
    trace = read_trace(traces, asked.reading)
    return analyze(
        trace,
        selection,
        rules=asked.rules,
        include_environment=asked.privacy.include_environment,
        redact=asked.privacy.redact,
        peaks=peaks,
        pair=read_pair(asked.pair, traces, trace, asked.reading),
    )


def holds_summaries(traces: list[str]) -> bool:
    """Return whether the first file that is named, or in the folder that is, is a summary."""
    from traceflops.parsers.io import files_behind, is_remote, open_file

    is_here = os.path.isfile(traces[0]) or os.path.isdir(traces[0])
    if not is_here and not is_remote(traces[0]):  # a pipe is read but once
        return False
    first = next(files_behind(traces[0]), None)
    try:
        with open_file(first or "") as file:
            head = file.read(_HEAD_BYTES)
    except (InputError, OSError):
        return False
    if not head.startswith(b"ARROW1"):
        return False
    from traceflops.analysis import is_summary

    return is_summary(head)


def check_pair(pair: list[str] | None, traces: list[str]) -> None:
    """Refuse a pair that is the trace itself, before either is read."""
    places = [Path(trace).resolve() for trace in traces if trace != "-"]
    for one in pair or []:
        if one in traces or (one != "-" and Path(one).resolve() in places):
            what = "standard input" if one == "-" else one
            raise UsageError(
                f"--pair names the same trace: {what}", "give another recording of the same program"
            )


def read_pair(
    pair: list[str] | None, traces: list[str], trace: Trace, reading: ReadingOptions
) -> Trace | None:
    """Return the paired recording, whose FLOPs the launches get: the one that is asked for.

    Else the captures of graphs that the trace replays, where they lie beside it, or None.
    """
    if pair:
        return read_trace(pair, reading)
    found = capture_beside(traces)
    if found is None or trace.jobs:
        return None
    from traceflops.attribution import has_replays
    from traceflops.mfu import FOUND_PAIR

    if not has_replays(trace):
        return None
    try:
        capture = read_trace([str(found)], reading)
    except InputError:  # a folder of something else
        return None
    return replace(capture, notes=(*capture.notes, FOUND_PAIR))


def capture_beside(traces: list[str]) -> Path | None:
    """Return the folder `capture_traces` beside the only trace, None where there is none."""
    if len(traces) != 1 or not Path(traces[0]).is_file():
        return None
    folder = Path(traces[0]).parent / "capture_traces"
    return folder if folder.is_dir() and any(folder.iterdir()) else None

"""Reads what a command is given: traces, summaries of them, the recording that is their pair."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traceflops.cli.printing import watching
from traceflops.errors import InputError, UsageError

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.cli.options import Asked, ReadingOptions
    from traceflops.table import Trace

SUFFIX: Final = ".summary"
_HEAD_BYTES: Final = 4096
_SCHEMA: Final = re.compile(rb'\s*\{\s*"schema"\s*:\s*"(traceflops\.[a-z-]+/\d+)"')


def read_trace(traces: list[str], reading: ReadingOptions) -> Trace:
    """Return the trace in the given files, with progress on a terminal."""
    from traceflops.parsers import read

    with watching() as watch:
        return read(
            traces,
            watch=watch,
            memory=reading.memory or (),
            gpu_samples=reading.gpu_samples or (),
            zone=reading.zone,
            **reading_words(reading),
        )


def reading_words(reading: ReadingOptions) -> dict[str, Any]:
    """Return the options of reading as `read` calls them."""
    return {
        "jobs": reading.jobs,
        "python_stacks": reading.python_stacks,
        "strict": reading.strict,
        "limits": not reading.no_limits,
    }


def read_job(traces: list[str], reading: ReadingOptions, job: int | None) -> Trace:
    """Return the chosen job of the files, all of them where none is chosen."""
    from traceflops.devices import of_job

    return of_job(read_trace(traces, reading), job)


def read_and_analyze(traces: list[str], asked: Asked, *, brief: bool = False) -> Analysis:
    """Return the analysis that the options ask for; `brief` is what a summary in a terminal shows.

    It may lack all else.
    """
    if asked.finding_rules is None:
        return _analyzed(traces, asked, brief=brief)
    from traceflops.findings import read_finding_rules

    redact = asked.privacy.redact
    rules = read_finding_rules(asked.finding_rules, redact=redact)  # before a large file is read
    analysis = _analyzed(traces, asked, brief=brief)
    from traceflops.analysis import with_finding_rules

    return with_finding_rules(analysis, rules)


def _analyzed(traces: list[str], asked: Asked, *, brief: bool) -> Analysis:
    asked.privacy.check()
    _check_no_results(traces)
    selection, peaks = asked.question.selection(), asked.rates.peaks()
    check_pair(asked.pair, traces)
    from traceflops.cli.parts import analysis_of_many, analysis_of_parts

    summaries = summaries_in(traces)
    if asked.dask is not None or summaries:
        return analysis_of_parts(traces, summaries, asked)
    if analysis := analysis_of_many(traces, asked, brief=brief):
        return analysis
    from traceflops.analysis import analyze

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


def schema_of(name: str) -> str | None:
    """Return the schema of a file that traceflops wrote as JSON, None of other files."""
    if not os.path.isfile(name):
        return None
    with open(name, "rb") as file:
        found = _SCHEMA.match(file.read(_HEAD_BYTES))
    return found[1].decode() if found is not None else None


def _check_no_results(traces: list[str]) -> None:
    """Refuse what traceflops wrote in place of a recording."""
    for one in traces:
        if (schema := schema_of(one)) is not None:
            from traceflops.comparison import REPORT

            hint = "give the recording; compare and check --baseline also read one report"
            if schema != REPORT:
                hint = "give the recording that it was made from"
            raise InputError(f"a result of traceflops, no recording: {one} ({schema})", hint)


def summaries_in(traces: list[str]) -> list[str]:
    """Return the files that are summaries, of those that are named or in folders that are."""
    from traceflops.parsers.io import files_behind

    return [file for trace in traces for file in files_behind(trace) if _is_summary(file)]


def _is_summary(name: str) -> bool:
    """Return whether a file is a summary; to look into each of a store would take long."""
    from traceflops.parsers.io import is_remote, open_file

    if not (name.endswith(SUFFIX) if is_remote(name) else os.path.isfile(name)):
        return False  # a pipe is read but once
    try:
        with open_file(name) as file:
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

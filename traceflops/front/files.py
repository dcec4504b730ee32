"""One analysis of files: traces, summaries of traces, and the recording that is their pair."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from traceflops.analysis.recipe import analyze
from traceflops.analysis.result import Analysis, with_finding_rules
from traceflops.analysis.summary_files import is_summary
from traceflops.comparison.report_side import REPORT
from traceflops.errors import InputError, UsageError
from traceflops.findings.user_rules import read_finding_rules
from traceflops.front.reduction import Request, analysis_of_many, analysis_of_parts
from traceflops.mfu.counted.counter_flops import FOUND_PAIR
from traceflops.parsers.io.places import files_behind, open_file
from traceflops.parsers.io.remote import is_remote
from traceflops.parsers.reading import read
from traceflops.privacy.environment import check_privacy
from traceflops.table.trace import Trace
from traceflops.windows.device_records import graph_launches

SUMMARY_SUFFIX: Final = ".summary"
_HEAD_BYTES: Final = 4096
_SCHEMA: Final = re.compile(rb'\s*\{\s*"schema"\s*:\s*"(traceflops\.[a-z-]+/\d+)"')
_CAPTURES: Final = "capture_traces"
"""Where serving engines write the traces of graph captures, beside the trace of the replays."""
Reader = Callable[[Sequence[str]], Trace]


def analyze_files(
    paths: Sequence[str], request: Request, read_files: Reader | None = None, *, brief: bool = False
) -> Analysis:
    """Return the analysis of files, folders or stores; `read_files` replaces `read`.

    Summaries are added up. So are many large files: each is reduced to a summary in a process of
    its own. `brief`: only a summary in the terminal is shown, so reducing pays earlier. Raises
    InputError if nothing can be read, UsageError for options that do not fit.
    """
    read_input: Reader = read_files or partial(read, **request.reading)
    # Mistakes in options are reported before a large file is read.
    rules = read_finding_rules(request.finding_rules, redact=request.redact)
    check_privacy(request.include_environment, request.redact)
    for path in paths:
        if (schema := schema_in(path)) is not None:
            hint = "give the recording; compare and check --baseline also read one report"
            if schema != REPORT:
                hint = "give the recording that it was made from"
            raise InputError(f"a result of traceflops, no recording: {path} ({schema})", hint)
    check_pair(request.pair, paths)
    summaries = [file for path in paths for file in files_behind(path) if _is_summary_file(file)]
    if request.dask is not None or summaries:
        return with_finding_rules(analysis_of_parts(paths, summaries, request), rules)
    if (reduced := analysis_of_many(paths, request, brief=brief)) is not None:
        return with_finding_rules(reduced, rules)
    trace = read_input(paths)
    return analyze_trace(trace, request, read_pair(request.pair, paths, trace, read_input))


def analyze_trace(trace: Trace, request: Request, pair: Trace | None) -> Analysis:
    """Return the analysis of a trace that has been read."""
    return analyze(
        trace,
        request.selection,
        rules=request.rules,
        include_environment=request.include_environment,
        redact=request.redact,
        peaks=request.peaks,
        pair=pair,
        finding_rules=request.finding_rules,
    )


def schema_in(path: str) -> str | None:
    """Return the schema of a JSON file that traceflops wrote, None for other files."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        match = _SCHEMA.match(file.read(_HEAD_BYTES))
    return match[1].decode() if match is not None else None


def _is_summary_file(path: str) -> bool:
    """Return whether a file is a summary: by its name in a store, else by its first bytes."""
    # To open each file of a store takes long; a pipe can be read only once.
    may_be_summary = path.endswith(SUMMARY_SUFFIX) if is_remote(path) else os.path.isfile(path)
    if not may_be_summary:
        return False
    try:
        with open_file(path) as file:
            return is_summary(file.read(_HEAD_BYTES))
    except (InputError, OSError):
        return False


def check_pair(pair: Trace | Sequence[str] | None, paths: Sequence[str]) -> None:
    """Raise UsageError if a pair is the trace itself, before either is read."""
    if isinstance(pair, Trace):
        return
    resolved = [Path(path).resolve() for path in paths if path != "-"]
    for path in pair or ():
        if path in paths or (path != "-" and Path(path).resolve() in resolved):
            name = "standard input" if path == "-" else path
            raise UsageError(
                f"--pair names the same trace: {name}", "give another recording of the same program"
            )


def read_pair(
    pair: Trace | Sequence[str] | None, paths: Sequence[str], trace: Trace, read_files: Reader
) -> Trace | None:
    """Return the recording from which the launches of `trace` get FLOPs, or None.

    If no `pair` is given, it is that of the capture of graphs, if the trace replays graphs and a
    folder of captures lies beside it.
    """
    if isinstance(pair, Trace):
        return pair
    if pair:
        return read_files(pair)
    captures = captures_beside(paths)
    # Of several jobs, nothing says whose graphs were captured.
    if captures is None or trace.jobs or not graph_launches(trace).any():
        return None
    try:
        capture = read_files([str(captures)])
    except InputError:  # a folder of something else
        return None
    return replace(capture, notes=(*capture.notes, FOUND_PAIR))


def captures_beside(paths: Sequence[str]) -> Path | None:
    """Return the folder `capture_traces` beside the only trace, None if it is missing or empty."""
    if len(paths) != 1 or not Path(paths[0]).is_file():
        return None
    folder = Path(paths[0]).parent / _CAPTURES
    return folder if folder.is_dir() and any(folder.iterdir()) else None

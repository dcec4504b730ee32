"""One analysis of files: traces, summaries of traces, and the recording that is their pair."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import index
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from traceflops.analysis import recipe
from traceflops.analysis.result import Analysis, with_finding_rules
from traceflops.analysis.summary_files import is_summary
from traceflops.devices.jobs import of_job
from traceflops.errors import InputError, UsageError
from traceflops.findings.user_rules import read_finding_rules
from traceflops.front.reduction import Request, analysis_of_many, analysis_of_parts
from traceflops.mfu.budget import FROM_THE_TRACE, PeakOptions
from traceflops.mfu.counted.counter_flops import FOUND_PAIR
from traceflops.parsers.io.places import files_behind, open_file
from traceflops.parsers.io.remote import is_remote
from traceflops.parsers.reading import Paths, read
from traceflops.privacy.environment import check_privacy, redacted
from traceflops.privacy.placeholders import Placeholders
from traceflops.privacy.redact import Redaction
from traceflops.recording.inventory import Inventory, inventory_of
from traceflops.table.patterns import GRAPH_LAUNCH, started
from traceflops.table.schema import TABLES, arrow_schema
from traceflops.table.trace import Trace
from traceflops.windows.chosen_runs import restrict
from traceflops.windows.selection import Selection, parse_duration, parse_numbers, parse_steps

SUMMARY_SUFFIX: Final = ".summary"
_HEAD_BYTES: Final = 4096
_SCHEMA: Final = re.compile(rb'\s*\{\s*"schema"\s*:\s*"(traceflops\.[a-z-]+/\d+)"')
_CAPTURES: Final = "capture_traces"
"""Where serving engines write the traces of graph captures, beside the trace of the replays."""
_PART: Final = "give a Selection, or steps, ranks, ..."
_PEAKS: Final = "give peaks, or device, peak_tflops, ..."
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
            from traceflops.comparison.report_side import REPORT

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
    return recipe.analyze(
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
    if path.endswith(SUMMARY_SUFFIX) if is_remote(path) else os.path.isfile(path):
        with suppress(InputError, OSError), open_file(path) as file:
            return is_summary(file.read(_HEAD_BYTES))
    return False


def check_pair(pair: Trace | Sequence[str] | None, paths: Sequence[str]) -> None:
    """Raise UsageError if a pair is the trace itself, before either is read."""
    if isinstance(pair, Trace):
        return
    resolved = [Path(path).resolve() for path in paths if path != "-"]
    for path in pair or ():
        if path in paths or (path != "-" and Path(path).resolve() in resolved):
            name = "standard input" if path == "-" else path
            problem = f"--pair names the same trace: {name}"
            raise UsageError(problem, "give another recording of the same program")


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
    if captures is None or trace.jobs or not started(trace.calls, GRAPH_LAUNCH).any():
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


# `analyze` as it is called from Python takes the words of the command line:
# tf.analyze("ranks/", steps="10:20", ranks=0, device="h100-sxm") is what
# traceflops summary ranks/ --steps 10:20 --ranks 0 --device h100-sxm analyses.
_T = TypeVar("_T")
Steps = str | int | tuple[int | None, int | None]
Numbers = str | int | Iterable[int]


def analyze(
    recording: Trace | Paths,
    selection: Selection | None = None,
    *,
    steps: Steps | None = None,
    ranks: Numbers | None = None,
    gpus: Numbers | None = None,
    from_: str | int | None = None,
    to: str | int | None = None,
    step_mark: str | None = None,
    run: int | None = None,
    job: int | None = None,
    device: str | None = None,
    peak_tflops: float | None = None,
    link_gb_s: float | None = None,
    peaks: PeakOptions | None = None,
    pair: Trace | Paths | None = None,
    rules: str | Path | None = None,
    finding_rules: str | Path | None = None,
    include_environment: bool = False,
    redact: bool = False,
) -> Analysis:
    """Return where the time of a recording went and how much of its devices was used.

    `recording` is a Trace, a path (file, folder, archive or store) or several paths, as `read`
    takes them, also of summaries by `traceflops reduce`. As in a report, 64 files or more with 512
    MB of text are reduced to summaries when they are read, and captures of graphs in
    `capture_traces/` beside a trace are its pair.

    The part to analyse is either a Selection or in words: `steps` as "10:20" (both included), 10 or
    (10, 20); `ranks` and `gpus` as "0,2,4-7", 0 or [0, 2]; `from_` and `to` as "200ms" or ns from
    the first GPU operation; `step_mark`, `run` and `job` as in the CLI. `device` is an id or name
    from `traceflops devices`, `peak_tflops` a dense rate for all data types, `link_gb_s` what a
    link carries in one direction. `pair` is another recording of the same program that provides
    FLOPs. `rules` and `finding_rules` are files. Host and user names and folders are shortened
    unless `include_environment` is set; with `redact` names are replaced.

    Raises InputError where nothing can be read, and UsageError for words that cannot be meant, a
    selection that is empty, or a pair without FLOPs.
    """
    numbers = _numbers("ranks", ranks), _numbers("gpus", gpus)
    times = _duration("from_", from_), _duration("to", to)
    in_words = Selection(_steps(steps), *numbers, *times, step_mark, run, job)
    request = Request(
        selection=_either(selection, in_words, Selection(), _PART),
        peaks=_either(peaks, PeakOptions(device, peak_tflops, link_gb_s), FROM_THE_TRACE, _PEAKS),
        pair=pair if isinstance(pair, Trace) else _as_strings(pair),
        rules=None if rules is None else Path(rules),
        finding_rules=None if finding_rules is None else Path(finding_rules),
        include_environment=include_environment,
        redact=redact,
    )
    if isinstance(recording, Trace):
        return analyze_trace(recording, request, read_pair(request.pair, (), recording, read))
    return analyze_files(_as_strings(recording), request)


def inventory(
    recording: Trace | Paths,
    selection: Selection | None = None,
    *,
    steps: Steps | None = None,
    ranks: Numbers | None = None,
    job: int | None = None,
    include_environment: bool = False,
    redact: bool = False,
) -> Inventory:
    """Return what the selected part of a recording contains and lacks; options as of `analyze`."""
    in_words = Selection(_steps(steps), _numbers("ranks", ranks), job=job)
    asked = _either(selection, in_words, Selection(), _PART)
    trace = of_job(recording if isinstance(recording, Trace) else read(recording), asked.job)
    names = Placeholders() if redact else None

    def shown(whole: Trace, part: Selection) -> tuple[Trace, str | None]:
        """Return the selected part as it may be shown, and the expression for its step marks."""
        kept = restrict(whole if include_environment else redacted(whole), part)
        if names is None:
            return kept, part.step_mark
        # Redaction renames step marks to "step N", so the user's expression fits no longer.
        return Redaction(names, part.step_mark).trace(kept), None

    jobs = recipe.listed_jobs(
        trace, trace.job, include_environment=include_environment, placeholders=names
    )
    return replace(inventory_of(trace, asked, shown), jobs=jobs)


def schema(analysis: Analysis | None = None) -> pa.Table:
    """Return the columns of all tables of an analysis, or of recordings, a row each."""
    tables = {name: arrow_schema(name) for name in TABLES}
    if analysis is not None:
        tables = {name: table.schema for name, table in analysis.tables.sources.items()}
    rows = []
    for name, columns in tables.items():
        for field in columns:
            row = {"table": name, "column": field.name, "type": _type(field.type)}
            for key in ("unit", "meaning"):
                row[key] = bytes((field.metadata or {}).get(key.encode(), b"")).decode()
            rows.append(row)
    return pa.Table.from_pylist(rows)


def _type(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"{_type(kind.value_type)}[{kind.list_size}]"
    return "text" if pa.types.is_dictionary(kind) or pa.types.is_string(kind) else str(kind)


def _either(given: _T | None, in_words: _T, nothing: _T, hint: str) -> _T:
    """Return `given`, else `in_words`. Raises UsageError if both are there (not `nothing`)."""
    if given is not None and in_words != nothing:
        raise UsageError(f"{type(in_words).__name__} is given, and in words, too", hint)
    return in_words if given is None else given


def _as_strings(paths: Paths | None) -> list[str]:
    if paths is None:
        return []
    return [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def _steps(steps: Steps | None) -> tuple[int | None, int | None] | None:
    """Return the first and the last step, None for an open end, or None for all steps."""
    if isinstance(steps, str):
        return parse_steps(steps)
    if steps is None or isinstance(steps, int):
        return steps if steps is None else (steps, steps)
    try:
        first, last = (None if step is None else index(step) for step in steps)
    except (TypeError, ValueError):
        hint = 'give "10:20", 10 or (10, 20)'
        raise UsageError(f"not a range of steps: {steps!r}", hint) from None
    return first, last


def _duration(name: str, time: str | int | None) -> int | None:
    """Return a time in ns; `name` is the parameter's, for errors."""
    return parse_duration(name, time) if isinstance(time, str) else time


def _numbers(name: str, numbers: Numbers | None) -> frozenset[int] | None:
    """Return numbers as a set, None for all; `name` is the parameter's, for errors."""
    if isinstance(numbers, str):
        return parse_numbers(name, numbers)
    if numbers is None:
        return None
    try:
        return frozenset(map(index, (numbers,) if isinstance(numbers, int) else numbers))
    except TypeError:
        hint = 'give "0,2,4-7", 0 or [0, 2]'
        raise UsageError(f"{name} are no numbers: {numbers!r}", hint) from None

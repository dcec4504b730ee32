"""`analyze` as it is called from Python: takes paths or a trace, and the words of the command line.

`tf.analyze("ranks/", steps="10:20", ranks=0, device="h100-sxm")` is what
`traceflops summary ranks/ --steps 10:20 --ranks 0 --device h100-sxm` analyses.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from traceflops.analysis.result import Analysis
from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.matching import chosen
from traceflops.errors import UsageError
from traceflops.front.files import analyze_files, analyze_trace
from traceflops.front.reduction import Request
from traceflops.mfu.budget import FROM_THE_TRACE, PeakOptions
from traceflops.parsers.reading import Paths, read
from traceflops.table.schema import TABLES, arrow_schema
from traceflops.table.trace import Trace
from traceflops.windows.selection import Selection, parse_duration, parse_numbers, parse_steps

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
    takes them; files may be summaries by `traceflops reduce`, too. As in a report, 64 files or more
    with 512 MB of text are reduced to summaries when they are read, and captures of graphs in
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
    parts = _steps(steps), _numbers("ranks", ranks), _numbers("gpus", gpus)
    times = _time("from_", from_), _time("to", to)
    in_words = Selection(*parts, *times, step_mark, run, job)
    rates = PeakOptions(device, peak_tflops, link_gb_s)
    chosen(device, peak_tflops, SeenDevice(None))  # raises for a bad name, before a file is read
    request = Request(
        _either(selection, in_words, Selection(), "give a Selection, or steps, ranks, ..."),
        _either(peaks, rates, FROM_THE_TRACE, "give peaks, or device, peak_tflops, ..."),
        pair if isinstance(pair, Trace) else _as_strings(pair),
        None if rules is None else Path(rules),
        None if finding_rules is None else Path(finding_rules),
        include_environment,
        redact,
    )
    if not isinstance(recording, Trace):
        return analyze_files(_as_strings(recording), request)
    paired = pair if isinstance(pair, Trace) else read(pair) if pair else None
    return analyze_trace(recording, request, paired)


def schema(analysis: Analysis | None = None) -> pa.Table:
    """Return all tables and columns, a row each: `table`, `column`, `type`, `unit`, `meaning`.

    Those of an analysis include what was found about activities; without one, those of a recording.
    """
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
    if isinstance(steps, int):
        return steps, steps
    if steps is None:
        return None
    try:
        first, last = (None if step is None else index(step) for step in steps)
    except (TypeError, ValueError):
        raise UsageError(
            f"not a range of steps: {steps!r}", 'give "10:20", 10 or (10, 20)'
        ) from None
    return first, last


def _numbers(name: str, numbers: Numbers | None) -> frozenset[int] | None:
    """Return numbers as a set, None for all; `name` is the parameter's, for errors."""
    if isinstance(numbers, str):
        return parse_numbers(name, numbers)
    if numbers is None:
        return None
    try:
        return frozenset(map(index, (numbers,) if isinstance(numbers, int) else numbers))
    except TypeError:
        raise UsageError(
            f"{name} are no numbers: {numbers!r}", 'give "0,2,4-7", 0 or [0, 2]'
        ) from None


def _time(name: str, time: str | int | None) -> int | None:
    return parse_duration(name, time) if isinstance(time, str) else time

"""`analyze` as it is called from Python: paths as well as traces, words of the CLI.

`tf.analyze("ranks/", steps="10:20", ranks=0, device="h100-sxm")` is what
`traceflops summary ranks/ --steps 10:20 --ranks 0 --device h100-sxm` analyses.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from traceflops.analysis import analyze as analyze_trace
from traceflops.devices import SeenDevice, chosen
from traceflops.errors import UsageError
from traceflops.mfu import PeakOptions
from traceflops.parsers import Paths, read
from traceflops.table import TABLES, Trace, arrow_schema
from traceflops.windows import Selection, parse_duration, parse_numbers, parse_steps

if TYPE_CHECKING:
    from traceflops.analysis import Analysis

_Asked = TypeVar("_Asked")
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
    takes them. The part to analyse is either a Selection or in words: `steps` as "10:20" (both
    included), 10 or (10, 20); `ranks` and `gpus` as "0,2,4-7", 0 or [0, 2]; `from_` and `to` as
    "200ms" or ns from the first GPU operation; `step_mark`, `run` and `job` as in the CLI. `device`
    is an id or name from `traceflops devices`, `peak_tflops` a dense rate for all data types,
    `link_gb_s` what a link carries in one direction. `pair` is another recording of the same
    program that tells FLOPs. `rules` and `finding_rules` are files. Host and user names and folders
    are shortened unless `include_environment` is set; with `redact` names are replaced.

    Raises InputError where nothing can be read, and UsageError for words that cannot be meant, a
    selection that is empty, or a pair that tells nothing.
    """
    asked = Selection(
        _steps(steps),
        _numbers("ranks", ranks),
        _numbers("gpus", gpus),
        _time("from_", from_),
        _time("to", to),
        step_mark,
        run,
        job,
    )
    rates = PeakOptions(device, peak_tflops, link_gb_s)
    chosen(device, peak_tflops, SeenDevice(None))  # before a large file is read in vain
    return analyze_trace(
        _trace(recording),
        _one_of(selection, asked, Selection(), "give a Selection, or steps, ranks, ..."),
        rules=_path(rules),
        include_environment=include_environment,
        peaks=_one_of(peaks, rates, PeakOptions(), "give peaks, or device, peak_tflops, ..."),
        pair=None if pair is None else _trace(pair),
        redact=redact,
        finding_rules=_path(finding_rules),
    )


def schema(analysis: Analysis | None = None) -> pa.Table:
    """Return all tables and columns, a row each: `table`, `column`, `type`, `unit`, `meaning`.

    Of an analysis those that it has, with what was found out about activities; else those of a
    recording.
    """
    tables = {name: arrow_schema(name) for name in TABLES}
    if analysis is not None:
        tables = {name: one.schema for name, one in analysis.tables.sources.items()}
    rows = [
        {
            "table": name,
            "column": field.name,
            "type": _type(field.type),
            "unit": _said(field, b"unit"),
            "meaning": _said(field, b"meaning"),
        }
        for name, columns in tables.items()
        for field in columns
    ]
    return pa.Table.from_pylist(rows)


def _type(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"{_type(kind.value_type)}[{kind.list_size}]"
    return "text" if pa.types.is_dictionary(kind) or pa.types.is_string(kind) else str(kind)


def _said(field: pa.Field, key: bytes) -> str:
    return bytes((field.metadata or {}).get(key, b"")).decode()


def _one_of(given: _Asked | None, asked: _Asked, nothing: _Asked, hint: str) -> _Asked:
    """Return what is given, or asked for in words. Raises UsageError where it is both."""
    if given is not None and asked != nothing:
        raise UsageError(f"{type(asked).__name__} is given, and in words, too", hint)
    return asked if given is None else given


def _trace(recording: Trace | Paths) -> Trace:
    return recording if isinstance(recording, Trace) else read(recording)


def _path(file: str | Path | None) -> Path | None:
    return None if file is None else Path(file)


def _steps(steps: Steps | None) -> tuple[int | None, int | None] | None:
    if isinstance(steps, str):
        return parse_steps(steps)
    if isinstance(steps, int):
        return steps, steps
    if steps is None:
        return None
    try:
        first, last = (None if one is None else index(one) for one in steps)
    except (TypeError, ValueError):
        raise UsageError(
            f"not a range of steps: {steps!r}", 'give "10:20", 10 or (10, 20)'
        ) from None
    return first, last


def _numbers(name: str, numbers: Numbers | None) -> frozenset[int] | None:
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

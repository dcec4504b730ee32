"""`traceflops query`: SQL over the tables of a trace, or which tables and columns there are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from traceflops.cli.common import ended_at_once, say, say_object
from traceflops.cli.options import AnalysisOptions, Brief, argument, option
from traceflops.errors import UsageError
from traceflops.units import several

if TYPE_CHECKING:
    import pyarrow as pa

EXAMPLES = (
    'traceflops query trace.json.gz "select name, sum(dur_ns) ns from activities group by 1"',
    'traceflops query ranks/ "select rank, step, top from activities" --format csv',
    "traceflops query trace.json.gz",
)
FORMATS: Final = ("table", "csv", "json")
_MOST_ROWS, _WIDEST = 1_000, 80


def query(
    traces: list[str] = argument(
        "TRACE... [SQL]",
        "Trace files, a folder of them, or - for standard input; then the query. Without "
        "one the tables and their columns are listed.",
    ),
    *,
    format_: str = option(
        "FORMAT", f"How rows are printed: {', '.join(FORMATS)}.", "--format", default=FORMATS[0]
    ),
    brief: Brief = False,
    asked: AnalysisOptions,
) -> None:
    """Answer a question in SQL over the tables of a trace. Needs traceflops[sql]."""
    if format_ not in FORMATS:
        raise UsageError(f"no such format: {format_}", f"choose one of {', '.join(FORMATS)}")
    # The last argument is SQL if it has several words and is no file.
    *files, last = traces
    sql = last if len(last.split()) > 1 and not os.path.exists(last) else None
    if sql is not None and not files:
        raise UsageError("no trace is given", 'write traceflops query TRACE "select …"')
    analysis = asked.analyze(files if sql is not None else traces)
    from traceflops.reports.json.brief import QUERY_SCHEMA, query_object

    if sql is not None and brief:
        with ended_at_once():
            say_object(query_object(analysis, sql), brief=True)
        return
    if sql is None:
        from traceflops.front.files import schema

        rows = schema(analysis)
    else:
        with ended_at_once():
            rows = analysis.sql(sql)
    if format_ == "json" or brief:
        count = rows.num_rows
        content = {"schema": QUERY_SCHEMA, "row_count": count, "rows": rows.to_pylist()}
        say_object(content, brief=brief)
    elif format_ == "csv":
        from traceflops.reports.tables import csv_of

        say(csv_of(rows).decode().rstrip("\n"))
    else:
        say("\n".join(_lines(rows)))


def _lines(rows: pa.Table) -> Iterator[str]:
    """Yield the lines of a table: numbers aligned right, long texts cut in the middle."""
    from pyarrow import types

    from traceflops.reports.view.figures import shorten_middle, visible

    def cell(value: object) -> str:
        if value is None:
            return ""
        text = f"{value:,}" if type(value) in {int, float} else visible(str(value))
        return shorten_middle(text, _WIDEST)

    columns = [
        [visible(name), *map(cell, column.to_pylist())]
        for name, column in zip(rows.column_names, rows.slice(0, _MOST_ROWS).columns, strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    are_numbers = [types.is_integer(t) or types.is_floating(t) for t in rows.schema.types]
    pads = [str.rjust if is_number else str.ljust for is_number in are_numbers]
    for line in zip(*columns, strict=True):
        cells = zip(pads, line, widths, strict=True)
        yield "  ".join(pad(text, width) for pad, text, width in cells).rstrip()
    if rows.num_rows > _MOST_ROWS:
        yield f"… {several(rows.num_rows - _MOST_ROWS, 'more row')}; all with --format csv or json"

"""`traceflops export`: the tables of a trace as Parquet, Arrow IPC or CSV."""

from __future__ import annotations

from typing import Annotated

import typer

from traceflops.cli.common import failures, path_of, read_trace
from traceflops.cli.options import (
    AS_USUAL,
    EVERYTHING,
    WITHOUT_IDENTITY,
    Force,
    Json,
    Privacy,
    Question,
    Reading,
    Rules,
    Traces,
    grouped,
)
from traceflops.cli.printing import say, say_object

EXAMPLES = (
    "traceflops export trace.json.gz -o tables/",
    "traceflops export trace.json.gz --table activities --format csv -o tables/",
)


@grouped
def export(
    traces: Traces,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FOLDER", help="Folder to write to; made if needed."
        ),
    ],
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Table to write; may be given several times. Default: all."
        ),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="parquet, arrow or csv.")
    ] = "parquet",
    force: Force = False,
    json: Json = False,
    question: Question = EVERYTHING,
    rules: Rules = None,
    privacy: Privacy = WITHOUT_IDENTITY,
    reading: Reading = AS_USUAL,
) -> None:
    """Write the tables of a trace, activities with their category, call and op."""
    with failures(reading, privacy):
        privacy.check()
        selection = question.selection()
        from traceflops.reports.tables import check_request, export_tables
        from traceflops.sharing.privacy import redacted
        from traceflops.sharing.redact import Redaction
        from traceflops.windows.restrict import restrict

        folder = path_of(output)
        check_request(folder, table, format_, force=force)
        trace = read_trace(traces, reading)
        known = trace if privacy.include_environment else redacted(trace)
        shown = restrict(known, selection)
        names = privacy.placeholders()
        redaction = Redaction(names, selection.step_mark) if names is not None else None
        written = []
        for path, rows in export_tables(shown, folder, table, format_, rules, redaction):
            written.append({"table": path.stem, "path": str(path), "rows": rows})
            if not json:
                say(f"{path}  {rows:,} rows")
        if json:
            say_object({"schema": "traceflops.export/1", "files": written})

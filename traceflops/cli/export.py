"""`traceflops export`: the tables of a trace as Parquet, Arrow IPC or CSV."""

from __future__ import annotations

from traceflops.cli.common import failures, keep_apart, path_of, spare_inputs
from traceflops.cli.options import (
    REQUIRED,
    Force,
    Json,
    Privacy,
    Question,
    ReadingOptions,
    Rules,
    Traces,
    option,
)
from traceflops.cli.printing import say, say_object
from traceflops.units import several

EXAMPLES = (
    "traceflops export trace.json.gz -o tables/",
    "traceflops export trace.json.gz --table activities --format csv -o tables/",
)


def export(
    traces: Traces,
    *,
    output: str = option(
        "FOLDER", "Folder to write to; created if missing.", "-o", "--output", default=REQUIRED
    ),
    table: list[str] | None = option("NAME", "Table to write; may be repeated. Default: all."),
    format_: str = option(
        "FORMAT", "File format: parquet, arrow or csv.", "--format", default="parquet"
    ),
    force: Force = False,
    json: Json = False,
    question: Question,
    rules: Rules = None,
    privacy: Privacy,
    reading: ReadingOptions,
) -> None:
    """Write the tables of a trace as Parquet, Arrow or CSV.

    GPU operations are written with category, launch call and operator.
    """
    with failures(reading, privacy):
        privacy.check()
        selection = question.selection()
        from traceflops.privacy.redact import Redaction
        from traceflops.reports.tables import check_request, export_tables, table_files
        from traceflops.table.schema import TABLES

        folder = path_of(output)
        spare_inputs(table_files(folder, table or TABLES, format_), [*traces, rules])
        keep_apart(folder, traces, f".{format_}")
        check_request(folder, table, format_, force=force)
        shown = privacy.shown(reading.read_job(traces, selection.job), selection)
        names = privacy.placeholders()
        redaction = Redaction(names, selection.step_mark) if names is not None else None
        rows = export_tables(shown, folder, table, format_, rules, redaction)
        files = [{"table": path.stem, "path": str(path), "rows": n} for path, n in rows.items()]
        if json:
            say_object({"schema": "traceflops.export/1", "files": files})
        else:
            say("\n".join(f"{path}  {several(count, 'row')}" for path, count in rows.items()))

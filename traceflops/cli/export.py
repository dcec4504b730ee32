"""`traceflops export`: the tables of a trace as Parquet, Arrow IPC or CSV."""

from __future__ import annotations

from traceflops.characters import visible
from traceflops.cli import options
from traceflops.cli.common import keep_apart, path_of, say, say_object, spare_inputs
from traceflops.units import several

EXAMPLES = (
    "traceflops export trace.json.gz -o tables/",
    "traceflops export trace.json.gz --table activities --format csv -o tables/",
)


def export(
    traces: options.Traces,
    *,
    output: str = options.option(
        "FOLDER", "Folder to write to; created if missing.", *options.TO, default=options.REQUIRED
    ),
    table: list[str] | None = options.option(
        "NAME", "Table to write; may be repeated. Default: all."
    ),
    format_: str = options.option(
        "FORMAT", "File format: parquet, arrow or csv.", "--format", default="parquet"
    ),
    force: options.Force = False,
    json: options.Json = False,
    rules: options.Rules = None,
    asked: options.TraceOptions,
) -> None:
    """Write the tables of a trace as Parquet, Arrow or CSV.

    GPU operations are written with category, launch call and operator.
    """
    step_mark = asked.selection().step_mark
    from traceflops.privacy.redact import Redaction
    from traceflops.reports.tables import check_request, export_tables, table_files
    from traceflops.table.schema import TABLES

    folder = path_of(output)
    spare_inputs(table_files(folder, table or TABLES, format_), [*traces, rules])
    keep_apart(folder, traces, f".{format_}")
    check_request(folder, table, format_, force=force)
    names = asked.privacy.placeholders()
    redaction = Redaction(names, step_mark) if names is not None else None
    rows = export_tables(asked.read(traces), folder, table, format_, rules, redaction)
    files = [{"table": path.stem, "path": str(path), "rows": n} for path, n in rows.items()]
    if json:
        say_object({"schema": "traceflops.export/1", "files": files})
    else:
        say("\n".join(f"{visible(str(p))}  {several(count, 'row')}" for p, count in rows.items()))

"""Tables in a folder as Parquet, Arrow IPC or CSV: of a trace, and of a report.

Those of a report are the rows of its JSON, flat.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from traceflops.analysis.result import Analysis
from traceflops.attribution.charged import USUAL
from traceflops.categories.activities import categorise
from traceflops.categories.classify import load
from traceflops.characters import is_visible
from traceflops.errors import UsageError
from traceflops.privacy.redact import Redaction
from traceflops.reports.files import MARK, check_replaced, is_ours, write_together
from traceflops.table.columns import (
    IntArray,
    codes,
    dictionary_column,
    merged_column,
    names,
    number_column,
    pack_validity,
    text_column,
    validity,
)
from traceflops.table.links import link
from traceflops.table.packed import described
from traceflops.table.schema import TABLES
from traceflops.table.trace import Trace

_FORMULA = tuple("=+-@\t\r\uff0b\uff0d\uff1d\uff20")
"""Signs with which a formula begins, also as wide ones, which some spreadsheets take for them."""

Row = Mapping[str, Any]

_WHOLE: Final = ("_ns", "bytes", "count", "rank", "step", "launches", "activities", "counted")
_REAL: Final = ("share", "_per_ns", "flops", "intensity", "mfu_without", "activities_per_launch")
_YES_NO: Final = {True: "yes", False: "no"}
_OF_A_JOB: Final = frozenset({"window_ns", "components_ns"})


def _parquet(table: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(_marked(_with_plain_lists(table)), sink, compression="zstd")
    return sink.getvalue()


def _with_plain_lists(table: pa.Table) -> pa.Table:
    """Return a table without lists of fixed size: before version 25, Arrow writes no null there."""
    for place, field in enumerate(table.schema):
        if pa.types.is_fixed_size_list(field.type):
            plain, chunks = pa.list_(field.type.value_type), []
            for lists in table.column(place).chunks:
                valid = validity(lists)  # None: every list is valid
                items = np.full(len(lists), field.type.list_size) * (
                    True if valid is None else valid
                )
                ends = np.concatenate(([0], np.cumsum(items))).astype(np.int32)
                bitmap, nulls = pack_validity(valid)
                buffers, values = [bitmap, pa.py_buffer(ends)], [lists.flatten()]
                chunk = pa.Array.from_buffers(plain, len(lists), buffers, nulls, children=values)
                chunks.append(chunk)
            column = pa.chunked_array(chunks, type=plain)
            table = table.set_column(place, field.with_type(plain), column)
    return table


def _arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    marked = _marked(table)
    with pa.ipc.new_file(sink, marked.schema) as writer:
        writer.write_table(marked)
    return sink.getvalue()


def _marked(table: pa.Table) -> pa.Table:
    """Return a table that says in its file who wrote it."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), b"writer": MARK})


def csv_of(table: pa.Table) -> bytes:
    """Return a table as CSV that no spreadsheet calculates and no terminal obeys.

    Numbers stay as they are; all else, times too, is text. Triples are "x y z".
    """
    from pyarrow import csv

    columns = []
    for column in table.columns:
        kind = column.type
        if pa.types.is_fixed_size_list(kind):
            triples = column.to_pylist()
            column = pa.array([None if t is None else " ".join(map(str, t)) for t in triples])
        elif pa.types.is_dictionary(kind):
            texts = [_inert(text) for text in names(column)]
            column = dictionary_column(codes(column), texts).dictionary_decode()
        elif pa.types.is_temporal(kind) or not (
            pa.types.is_decimal(kind) or pa.types.is_primitive(kind)
        ):
            values = column.to_pylist()
            column = text_column([None if one is None else _inert(str(one)) for one in values])
        columns.append(column)
    sink = io.BytesIO()
    csv.write_csv(pa.Table.from_arrays(columns, names=[*map(_inert, table.column_names)]), sink)
    return sink.getvalue()


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": csv_of,
}
"""What writes a table, by the name of the format, which is also the suffix of the file."""


def check_request(folder: Path, tables: Sequence[str] | None, format_: str, *, force: bool) -> None:
    """Refuse unknown tables and formats and, unless forced, files of somebody else."""
    unknown = [name for name in tables or () if name not in TABLES]
    if unknown:
        raise UsageError(f"no such table: {unknown[0]}", f"choose from {', '.join(TABLES)}")
    check_folder(folder, tables or TABLES, format_, force=force)


def check_folder(folder: Path, names: Iterable[str], format_: str, *, force: bool) -> None:
    """Refuse unknown formats, what is no folder and, unless forced, files of somebody else."""
    if format_ not in FORMATS:
        raise UsageError(f"no such format: {format_}", f"choose one of {', '.join(FORMATS)}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"not a folder: {folder}", "give the name of a folder with -o")
    for target in table_files(folder, names, format_) if folder.exists() else ():
        check_replaced(target, force=force)


def table_files(folder: Path, names: Iterable[str], format_: str) -> list[Path]:
    """Return the files that tables are written to."""
    return [folder / f"{name}.{format_}" for name in names]


def export_tables(
    trace: Trace,
    folder: Path,
    tables: Sequence[str] | None,
    format_: str,
    rules: Path | None = None,
    redaction: Redaction | None = None,
) -> dict[Path, int]:
    """Write each table to its file, all or none; return the number of rows by path.

    The activities carry more columns: `top`, `sub` and `rule` of their category, `call` and `op`,
    the rows of the other tables that caused them. `redaction` takes names out of all of it.
    """
    shown = redaction.trace(trace) if redaction is not None else trace
    rows: dict[Path, int] = {}

    def files() -> Iterator[tuple[Path, Iterable[bytes]]]:
        """Yield each path with its bytes, made only when it is written; fill `rows` on the way."""
        for name in dict.fromkeys(tables or TABLES):
            table = shown.table(name)
            if name == "activities":
                table = _enriched(table, trace, rules, redaction)
            path = folder / f"{name}.{format_}"
            rows[path] = table.num_rows
            if shown.job is not None or not shown.jobs:  # several jobs are not read back as one
                table = described(table, name, shown)
            yield path, (FORMATS[format_](table),)

    with folder_for_tables(folder):
        write_together(files())
    return rows


@contextmanager
def folder_for_tables(folder: Path) -> Iterator[None]:
    """Make a folder, or raise UsageError; it goes again where nothing could be written to it."""
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder: {folder} ({error.strerror})", "choose another place with -o"
        ) from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # one that holds something stays
            for one in made:
                one.rmdir()
        raise


def _enriched(
    table: pa.Table, trace: Trace, rules: Path | None, redaction: Redaction | None
) -> pa.Table:
    """Return the activities of a trace, as they are shown, with what was found out about each."""
    links = link(trace)
    categorised = categorise(trace, links, load(rules))
    categories, category = categorised.categories, categorised.category
    rule_names = list(map(redaction.rule, categorised.rules)) if redaction else categorised.rules
    added = {
        "top": merged_column(category, [c.top for c in categories]),
        "sub": merged_column(category, [c.sub for c in categories]),
        "rule": dictionary_column(categorised.rule, rule_names),
        "call": _row_column(links.call_of_activity),
        "op": _row_column(links.op_of_activity),
    }
    for name, column in added.items():
        table = table.append_column(name, column)
    return table


def _row_column(rows: IntArray) -> pa.Array:
    return number_column(np.maximum(rows, 0), pa.int64(), rows >= 0)


def _inert(text: str) -> str:
    """Return a text that no spreadsheet calculates and no terminal obeys."""
    shown = text if is_visible(text) else "".join(c if is_visible(c) else " " for c in text)
    # Some spreadsheets take spaces before a formula away.
    behind_spaces = shown[:1] == " " and shown.lstrip().startswith(_FORMULA)
    return f"'{shown}" if text.startswith(_FORMULA) or behind_spaces else shown


REPORT_TABLES: Final = (
    *("findings", "waterfall", "ledger", "steps", "categories", "kernels", "charged"),
    *("kernel_work", "operator_work", "modules", "devices", "gaps", "memory", "totals"),
    *("jobs", "notes"),
)
"""The tables of a folder; one without rows is not written."""


def _report_rows(report: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of each of REPORT_TABLES, from a report as JSON."""
    utilisation, devices, kernels = report["utilisation"], report["devices"], report["kernels"]
    fall = utilisation["waterfall"] or {"lines": ()}
    # Not cells of a device's row: the first two are tables of their own, `chosen` is spread out.
    inner = ("windows", "gaps", "whole", "chosen")

    def without(row: Row, *names: str) -> Row:
        return {name: value for name, value in row.items() if name not in names}

    def of_devices(name: str) -> list[Row]:
        return [{"device": device["label"], **row} for device in devices for row in device[name]]

    def series(row: Row) -> Row:
        # Its values by step fit in no cell.
        kinds = {kind: without(row[kind] or {}, "steps") for kind in ("allocated", "reserved")}
        return {**row, **kinds}

    return {
        "findings": report["findings"],
        "waterfall": [{**line, "unit": fall["unit"]} for line in fall["lines"]],
        "ledger": utilisation["ledger"],
        "steps": of_devices("windows"),
        "categories": report["categories"],
        "kernels": [without(kernel, "charged") for kernel in kernels],
        "charged": [
            {"name": kernel["name"], **USUAL, **row}
            for kernel in kernels
            for row in kernel["charged"]
        ],
        "kernel_work": utilisation["kernels"],
        "operator_work": utilisation["ops"],
        "modules": report["modules"],
        "devices": [{**without(device, *inner), **device["chosen"]} for device in devices],
        "gaps": of_devices("gaps"),
        "memory": list(map(series, report["memory"])),
        "totals": (report["untimed"] or {"rows": []})["rows"],
        "jobs": [
            {**without(job, "total"), **{k: v for k, v in total.items() if k in _OF_A_JOB}}
            for job in report["jobs"]
            for total in (job["total"] or {},)
        ],
        "notes": report["notes"],
    }


def save_tables(analysis: Analysis, folder: Path, format_: str) -> list[Path]:
    """Write the tables that have rows, all or none; remove earlier ones; return the paths."""
    from traceflops.reports.json.report import report_object

    written = {}
    for name, found in _report_rows(report_object(analysis)).items():
        rows = [dict(_flat(row)) for row in found]
        if rows:
            heads = dict.fromkeys(name for row in rows for name in row)
            columns = [_column(head, [row.get(head) for row in rows]) for head in heads]
            written[folder / f"{name}.{format_}"] = (
                FORMATS[format_](pa.Table.from_arrays(columns, names=list(heads))),
            )
    with folder_for_tables(folder):
        write_together(written.items())
        for stale in set(table_files(folder, REPORT_TABLES, format_)) - set(written):
            if is_ours(stale):
                stale.unlink()
    return list(written)


def _flat(row: Row) -> Iterator[tuple[str, Any]]:
    """Give the cells of a row; of `components_ns` there is a cell `compute_ns`, and so on."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            stem, _, unit = key.rpartition("_") if key.endswith("_ns") else (key, "", "")
            for name, inner in value.items():
                yield (f"{name}_{unit}" if unit else f"{stem}_{name}"), inner
        elif isinstance(value, list | tuple):
            yield key, ", ".join(map(str, value))
        elif isinstance(value, msgspec.Raw):
            yield key, float(bytes(value))  # the exact number is in the column `..._text`
        else:
            yield key, value


def _column(name: str, values: Sequence[Any]) -> pa.Array:
    """Return a column; one without any value has the type that its name says."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        kinds = {int} if name.endswith(_WHOLE) else {float} if name.endswith(_REAL) else {str}
    if kinds == {bool}:  # beside numbers, truth is 0 or 1
        return text_column([None if value is None else _YES_NO[value] for value in values])
    if not kinds <= {bool, int, float}:
        return text_column([None if value is None else str(value) for value in values])
    known = np.array([value is not None for value in values], dtype=np.bool_)
    plain = np.array([0 if value is None else value for value in values])
    return number_column(plain, pa.float64() if float in kinds else pa.int64(), known)

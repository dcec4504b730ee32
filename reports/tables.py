"""Writes the tables of a trace or of a report to a folder, as Parquet, Arrow IPC or CSV.

The tables of a report are the rows of its JSON, flattened.
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
    string_column,
    text_column,
    validity,
)
from traceflops.table.links import link
from traceflops.table.packed import described
from traceflops.table.schema import TABLES
from traceflops.table.trace import Trace

_FORMULA = tuple("=+-@\t\r\uff0b\uff0d\uff1d\uff20")
"""Characters that begin a formula; some spreadsheets also accept the full-width forms."""

Row = Mapping[str, Any]

_WHOLE: Final = ("_ns", "bytes", "count", "rank", "step", "launches", "activities", "counted")
_REAL: Final = ("share", "_per_ns", "flops", "intensity", "mfu_without", "activities_per_launch")
"""Ends of the names of columns with integers, and with other numbers."""
_YES_NO: Final = {True: "yes", False: "no"}
_OF_A_JOB: Final = frozenset({"window_ns", "components_ns"})


def _parquet(table: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(_marked(_with_plain_lists(table)), sink, compression="zstd")
    return sink.getvalue()


def _with_plain_lists(table: pa.Table) -> pa.Table:
    """Return a table without fixed-size lists: Arrow before 25 cannot write nulls in them."""
    for index, field in enumerate(table.schema):
        if pa.types.is_fixed_size_list(field.type):
            plain_type, chunks = pa.list_(field.type.value_type), []
            for lists in table.column(index).chunks:
                is_valid = validity(lists)  # None: every list is valid
                lengths = np.full(len(lists), field.type.list_size)
                lengths = lengths if is_valid is None else lengths * is_valid
                offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
                bitmap, nulls = pack_validity(is_valid)
                buffers, items = [bitmap, pa.py_buffer(offsets)], [lists.flatten()]
                chunk = pa.Array.from_buffers(
                    plain_type, len(lists), buffers, nulls, children=items
                )
                chunks.append(chunk)
            column = pa.chunked_array(chunks, type=plain_type)
            table = table.set_column(index, field.with_type(plain_type), column)
    return table


def _arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    marked = _marked(table)
    with pa.ipc.new_file(sink, marked.schema) as writer:
        writer.write_table(marked)
    return sink.getvalue()


def _marked(table: pa.Table) -> pa.Table:
    """Return a table whose metadata has our mark, by which `files.is_ours` recognises its file."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), b"writer": MARK})


def csv_of(table: pa.Table) -> bytes:
    """Return a table as CSV without formulas for spreadsheets and control characters.

    Numbers are unchanged; all else, also times, is text. Triples are "x y z".
    """
    from pyarrow import csv

    columns = list(map(_csv_column, table.columns))
    sink = io.BytesIO()
    csv.write_csv(pa.Table.from_arrays(columns, names=[*map(_inert, table.column_names)]), sink)
    return sink.getvalue()


def _csv_column(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column as numbers or harmless texts."""
    type_ = column.type
    if pa.types.is_fixed_size_list(type_):
        triples = column.to_pylist()
        return string_column([None if t is None else " ".join(map(str, t)) for t in triples])
    if pa.types.is_dictionary(type_):
        texts = [_inert(text) for text in names(column)]
        return dictionary_column(codes(column), texts).dictionary_decode()
    is_fixed_width = pa.types.is_decimal(type_) or pa.types.is_primitive(type_)
    if is_fixed_width and not pa.types.is_temporal(type_):
        return column
    values = column.to_pylist()
    return text_column([None if value is None else _inert(str(value)) for value in values])


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": csv_of,
}
"""Functions that encode a table, by the name of the format, which is also the suffix."""


def check_request(folder: Path, tables: Sequence[str] | None, format_: str, *, force: bool) -> None:
    """Raise UsageError for unknown tables and formats and, unless forced, files not by us."""
    unknown = [name for name in tables or () if name not in TABLES]
    if unknown:
        raise UsageError(f"no such table: {unknown[0]}", f"choose from {', '.join(TABLES)}")
    check_folder(folder, tables or TABLES, format_, force=force)


def check_folder(folder: Path, names: Iterable[str], format_: str, *, force: bool) -> None:
    """Raise UsageError for unknown formats, no folder and, unless forced, files not by us."""
    if format_ not in FORMATS:
        raise UsageError(f"no such format: {format_}", f"choose one of {', '.join(FORMATS)}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"not a folder: {folder}", "give the name of a folder with -o")
    for target in table_files(folder, names, format_) if folder.exists() else ():
        check_replaced(target, force=force)


def table_files(folder: Path, names: Iterable[str], format_: str) -> list[Path]:
    """Return the paths of the files of tables."""
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

    Activities get further columns: `top`, `sub` and `rule` of their category, and `call` and `op`,
    the rows of those tables that caused them. `redaction` replaces names in all tables.
    """
    shown = redaction.trace(trace) if redaction is not None else trace
    rows: dict[Path, int] = {}

    def files() -> Iterator[tuple[Path, Iterable[bytes]]]:
        """Yield each path with its bytes, one table at a time; fill `rows`."""
        for name in dict.fromkeys(tables or TABLES):
            table = shown.table(name)
            if name == "activities":
                table = _enriched(table, trace, rules, redaction)
            path = folder / f"{name}.{format_}"
            rows[path] = table.num_rows
            if shown.job is not None or not shown.jobs:  # several jobs cannot be read back as one
                table = described(table, name, shown)
            yield path, (FORMATS[format_](table),)

    with folder_for_tables(folder):
        write_together(files())
    return rows


@contextmanager
def folder_for_tables(folder: Path) -> Iterator[None]:
    """Make a folder, or raise UsageError; remove it again if writing to it fails."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder: {folder} ({error.strerror})", "choose another place with -o"
        ) from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # a folder that is not empty stays
            for path in new:
                path.rmdir()
        raise


def _enriched(
    table: pa.Table, trace: Trace, rules: Path | None, redaction: Redaction | None
) -> pa.Table:
    """Return the activities with their categories and the rows of what caused them."""
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
    """Return a text that is no formula for spreadsheets and has no control characters."""
    shown = text if is_visible(text) else "".join(c if is_visible(c) else " " for c in text)
    # Some spreadsheets remove the spaces before a formula.
    is_after_spaces = shown[:1] == " " and shown.lstrip().startswith(_FORMULA)
    return f"'{shown}" if text.startswith(_FORMULA) or is_after_spaces else shown


REPORT_TABLES: Final = (
    *("findings", "waterfall", "ledger", "steps", "categories", "kernels", "charged"),
    *("kernel_work", "operator_work", "modules", "devices", "gaps", "memory", "totals"),
    *("jobs", "notes"),
)
"""The tables of a report; those without rows are not written."""


def _report_rows(report: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of each of REPORT_TABLES, from a report as JSON."""
    utilisation, devices, kernels = report["utilisation"], report["devices"], report["kernels"]
    fall = utilisation["waterfall"] or {"lines": ()}
    # Fields of a device that are no cells: two are tables of their own; `chosen` becomes several.
    inner = ("windows", "gaps", "whole", "chosen")

    def without(row: Row, *names: str) -> Row:
        return {name: value for name, value in row.items() if name not in names}

    def of_devices(name: str) -> list[Row]:
        return [{"device": device["label"], **row} for device in devices for row in device[name]]

    def memory(row: Row) -> Row:
        # The values of each step do not fit into a cell.
        series = {kind: without(row[kind] or {}, "steps") for kind in ("allocated", "reserved")}
        return {**row, **series}

    def job_row(job: Row) -> Row:
        total = {k: v for k, v in (job["total"] or {}).items() if k in _OF_A_JOB}
        return {**without(job, "total"), **total}

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
        "memory": list(map(memory, report["memory"])),
        "totals": (report["untimed"] or {"rows": []})["rows"],
        "jobs": list(map(job_row, report["jobs"])),
        "notes": report["notes"],
    }


def save_tables(analysis: Analysis, folder: Path, format_: str) -> list[Path]:
    """Write the tables that have rows, all or none; remove stale ones; return the paths."""
    from traceflops.reports.json.report import report_object

    written = {}
    for name, nested_rows in _report_rows(report_object(analysis)).items():
        rows = [dict(_flat(row)) for row in nested_rows]
        if rows:
            heads = dict.fromkeys(head for row in rows for head in row)
            columns = [_column(head, [row.get(head) for row in rows]) for head in heads]
            table = pa.Table.from_arrays(columns, names=list(heads))
            written[folder / f"{name}.{format_}"] = (FORMATS[format_](table),)
    with folder_for_tables(folder):
        write_together(written.items())
        for stale in set(table_files(folder, REPORT_TABLES, format_)) - set(written):
            if is_ours(stale):
                stale.unlink()
    return list(written)


def _flat(row: Row) -> Iterator[tuple[str, Any]]:
    """Yield the cells of a row by name.

    Objects become cells of their own: `components_ns` becomes `compute_ns` and so on, `allocated`
    becomes `allocated_peak` and so on.
    """
    for key, value in row.items():
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield (f"{name}_ns" if key.endswith("_ns") else f"{key}_{name}"), inner
        elif isinstance(value, list | tuple):
            yield key, ", ".join(map(str, value))
        elif isinstance(value, msgspec.Raw):
            yield key, float(bytes(value))  # the exact number is in the column `..._text`
        else:
            yield key, value


def _column(name: str, values: Sequence[Any]) -> pa.Array:
    """Return a column; the name decides the type if there is no value."""
    types: set[type] = {type(value) for value in values if value is not None}
    if not types:
        types = {int} if name.endswith(_WHOLE) else {float} if name.endswith(_REAL) else {str}
    if types == {bool}:
        return text_column([None if value is None else _YES_NO[value] for value in values])
    if not types <= {bool, int, float}:
        return text_column([None if value is None else str(value) for value in values])
    # Booleans among numbers are 0 and 1.
    is_known = np.array([value is not None for value in values], dtype=np.bool_)
    filled = np.array([0 if value is None else value for value in values])
    return number_column(filled, pa.float64() if float in types else pa.int64(), is_known)

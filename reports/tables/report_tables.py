"""The report as tables in a folder: the rows of its JSON, flat, as CSV, Parquet or Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from traceflops.reports.files import is_ours, write_together
from traceflops.reports.json import report_object
from traceflops.reports.tables.trace_tables import FORMATS, folder_for_tables, table_files
from traceflops.table import Names, dictionary_column, number_column

if TYPE_CHECKING:
    from traceflops.analysis import Analysis

Row = Mapping[str, Any]
_Report = Mapping[str, Any]

_WHOLE: Final = ("_ns", "bytes", "count", "rank", "step", "launches", "activities", "counted")
_REAL: Final = ("share", "_per_ns", "flops", "intensity", "mfu_without", "activities_per_launch")

_YES_NO: Final = {True: "yes", False: "no"}


_OF_A_JOB: Final = frozenset({"window_ns", "components_ns"})


def _windows(report: _Report) -> Iterator[Row]:
    for device in report["devices"]:
        yield from ({"device": device["label"], **window} for window in device["windows"])


def _gaps(report: _Report) -> Iterator[Row]:
    for device in report["devices"]:
        yield from ({"device": device["label"], **gap} for gap in device["gaps"])


def _devices(report: _Report) -> Iterator[Row]:
    for device in report["devices"]:
        kept = {k: v for k, v in device.items() if k not in ("windows", "gaps", "whole", "chosen")}
        yield {**kept, **device["chosen"]}


def _jobs(report: _Report) -> Iterator[Row]:
    for job in report["jobs"]:
        plain = {key: value for key, value in job.items() if key != "total"}
        total = job["total"] or {}
        yield {**plain, **{key: total[key] for key in total if key in _OF_A_JOB}}


def _waterfall(report: _Report) -> Iterable[Row]:
    fall = report["utilisation"]["waterfall"]
    return [] if fall is None else [{**line, "unit": fall["unit"]} for line in fall["lines"]]


def _memory(report: _Report) -> Iterator[Row]:
    for row in report["memory"]:
        kinds = {kind: row[kind] or {} for kind in ("allocated", "reserved")}
        series = {k: {n: v for n, v in one.items() if n != "steps"} for k, one in kinds.items()}
        yield {**row, **series}


def _of_untimed(name: str) -> Callable[[_Report], Iterable[Row]]:
    def rows(report: _Report) -> Iterable[Row]:
        found = report["untimed"]
        return [] if found is None else found[name]

    return rows


TABLES: Final[Mapping[str, Callable[[_Report], Iterable[Row]]]] = {
    "findings": lambda report: report["findings"],
    "waterfall": _waterfall,
    "ledger": lambda report: report["utilisation"]["ledger"],
    "steps": _windows,
    "categories": lambda report: report["categories"],
    "kernels": lambda report: report["kernels"],
    "kernel_work": lambda report: report["utilisation"]["kernels"],
    "operator_work": lambda report: report["utilisation"]["ops"],
    "devices": _devices,
    "gaps": _gaps,
    "memory": _memory,
    "totals": _of_untimed("rows"),
    "jobs": _jobs,
    "notes": lambda report: report["notes"],
}
"""The tables of a folder; one without rows is not written."""


def save_tables(analysis: Analysis, folder: Path, format_: str) -> list[Path]:
    """Write the tables that have rows, all or none; return their paths.

    Tables of an earlier report that have no rows now are removed.
    """
    report, written = report_object(analysis), {}
    for name, rows_of in TABLES.items():
        rows = [dict(_flat(row)) for row in rows_of(report)]
        if rows:
            written[folder / f"{name}.{format_}"] = (FORMATS[format_](_table(rows)),)
    with folder_for_tables(folder):
        write_together(written.items())
        for stale in set(table_files(folder, TABLES, format_)) - set(written):
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


def _table(rows: Sequence[Row]) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [_column(name, [row.get(name) for row in rows]) for name in names]
    return pa.Table.from_arrays(columns, names=list(names))


def _column(name: str, values: Sequence[Any]) -> pa.Array:
    """Return a column; one without any value has the type that its name says."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        kinds = {int} if name.endswith(_WHOLE) else {float} if name.endswith(_REAL) else {str}
    if kinds == {bool}:
        return _texts([None if value is None else _YES_NO[value] for value in values])
    if not kinds <= {bool, int, float}:
        return _texts([None if value is None else str(value) for value in values])
    known = np.array([value is not None for value in values], dtype=np.bool_)
    plain = np.array([0 if value is None else value for value in values])
    return number_column(plain, pa.float64() if float in kinds else pa.int64(), known)


def _texts(values: Sequence[str | None]) -> pa.Array:
    interned = Names()
    found = np.array([-1 if text is None else interned[text] for text in values], dtype=np.int64)
    return dictionary_column(found, list(interned))

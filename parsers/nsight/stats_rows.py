"""Adds rows of the reports of `nsys stats` to the tables of a trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from traceflops.parsers.io.csv_cells import Cells, Column, Texts, finest, step_of
from traceflops.parsers.nsight.stats_layouts import Report, StatsTable
from traceflops.parsers.shared.sinks import at_least, direction_named
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, LIMIT_NS, Array, BoolArray, IntArray, Names, count_true
from traceflops.table.grouping import group_rows

UNNAMED_RANGE: Final = "(unnamed range)"
_OPERATION: Final = re.compile(r"\[(?:CUDA|Unified) .*\]|\[.*(?:memcpy|memset).*\]", re.I)
_UNIFIED: Final = re.compile(r"\bunified\b", re.I)
_UNNAMED: Final = "(unnamed)"
_CUDA_CALL: Final = re.compile(r"^_{0,2}cu(?:da)?[A-Z]")
_SIZES: Final = re.compile(r"-?\d+")
_CATEGORIES: Final = {
    "CUDA_API": "call",
    "CUDA_KERNEL": "kernel",
    "KERNEL": "kernel",
    "MEMORY_OPER": "memcpy",
}
_NUMBERS: Final = {
    "process": ("pid", 0),
    "thread": ("thread", 0),
    "stream": ("stream", ABSENT),
    "correlation": ("correlation", 1),
    "registers_per_thread": ("registers", 1),
    "count": ("count", ABSENT),
    "error_code": ("error", ABSENT),
}
"""By column of a trace: the role of the column in the report, and the smallest valid number."""


class ReportPart(Struct):
    """The rows of one report in one file, of the profile that the file names.

    In its tables, the column `process` has process ids, and `device` has codes of `devices`, the
    report's texts for devices. `odd` counts by the code of a note, `rows` all rows of the report.
    `ranks` are pairs (process id, rank); `resolution_ns` is the step to which times are rounded.
    """

    report: Report
    profile: str = ""
    tables: dict[str, TableBuilder] = field(default_factory=dict)
    devices: Names = field(default_factory=Names)
    odd: Counter[str] = field(default_factory=Counter)
    ranks: set[tuple[int, int]] = field(default_factory=set)
    rows: int = 0
    resolution_ns: int | None = None

    def __getitem__(self, name: str) -> TableBuilder:
        """Return the builder of a table."""
        if name not in self.tables:
            self.tables[name] = TableBuilder(name)
        return self.tables[name]

    def absorb(self, other: ReportPart) -> None:
        """Append the rows of another part of the same report, whose tables are moved here."""
        codes = self.devices.codes(other.devices)
        for name, table in other.tables.items():
            for _, columns in table.pieces:
                if name == "activities":
                    columns["device"] = codes[columns["device"]].astype(np.int64)
            self[name].absorb(table)
        self.ranks |= other.ranks
        self.odd.update(other.odd)
        self.rows += other.rows
        self.resolution_ns = finest(self.resolution_ns, other.resolution_ns)


def texts_of(cells: Cells, role: str) -> tuple[list[str], IntArray]:
    """Return the distinct texts of a column, and per row the index of its text."""
    names = Names()
    codes = np.asarray(cells.codes(role, names, ""), np.int64)
    return list(names), codes


def sizes_in(text: str) -> list[int]:
    """Return the numbers in a text such as (224, 1, 1)."""
    return [int(part) for part in _SIZES.findall(text[:100]) if len(part) < 11]


def triple(text: str) -> tuple[int, int, int]:
    """Return the three positive sizes in a text such as (224, 1, 1), else three times ABSENT."""
    sizes = sizes_in(text)
    return (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 and min(sizes) > 0 else (ABSENT,) * 3


def add_rows(cells: Cells, table: StatsTable, part: ReportPart) -> None:
    """Add rows of a report to the tables of `part`; rows by nested range are only counted."""
    part.rows += cells.count
    if table.without_unit:
        part.odd["no-unit"] += cells.count
    if table.report.records == "sizes" and "size" not in table.scales:
        part.odd["sizes-without-unit"] += cells.count
    if table.report.records == "nested":
        part.odd["nested-sums"] += cells.count
    else:
        _ADDERS[table.report.records](_Rows(cells, table.scales, part))


class _Rows(NamedTuple):
    """Some rows of a report, to be added to `part`; `scales` are ns or bytes per unit, by role."""

    cells: Cells
    scales: Mapping[str, int]
    part: ReportPart

    def only(self, rows: BoolArray | IntArray) -> _Rows:
        return _Rows(self.cells.only(rows), self.scales, self.part)

    def timed(self, start: str = "start", duration: str = "duration") -> _Rows:
        """Return the rows with a valid start, with `start_ns` and `dur_ns`; count odd ones.

        `start` and `duration` are the roles of the columns. A row without a duration lasts 0 ns.
        """
        start_ns, length_ns, odd = self.amount(start), self.amount(duration), self.part.odd
        has_start, has_length = start_ns != ABSENT, length_ns != ABSENT
        odd["no-time"] += count_true(~has_start)
        odd["no-duration"] += count_true(has_start & ~has_length)
        odd["negative-duration"] += count_true(has_start & has_length & (length_ns < 0))
        times = {"start_ns": start_ns, "dur_ns": np.maximum(length_ns, 0)}
        cells = Cells(self.cells.count, {**self.cells.columns, **times})
        return _Rows(cells.only(has_start), self.scales, self.part)

    def amount(self, role: str) -> IntArray:
        """Return a column in ns or bytes, ABSENT for empty, odd and too large cells.

        Decimals are converted by doubles, which are exact to 1 ns below 26 days.
        """
        column: Column | None = self.cells.columns.get(role)
        if column is None or isinstance(column, Texts):
            return np.full(self.cells.count, ABSENT, np.int64)
        if column.dtype.kind == "i":  # only columns in ns or bytes are read as integers
            fits = (column > -LIMIT_NS) & (column < LIMIT_NS)
            self.part.odd["beyond"] += count_true(~fits & (column != ABSENT))
            return np.where(fits, column, ABSENT)
        scale = self.scales.get(role, 1)
        if role == "start":
            # The starts tell to which step all times of the report are rounded.
            self.part.resolution_ns = finest(self.part.resolution_ns, step_of(column, scale))
        scaled = column * float(scale)
        fits = np.isfinite(scaled) & (np.abs(scaled) < LIMIT_NS)
        self.part.odd["beyond"] += count_true(~fits & np.isfinite(column))
        return np.where(fits, np.rint(np.where(fits, scaled, 0.0)).astype(np.int64), ABSENT)

    def add(self, table_name: str, /, **more: Array | int) -> None:
        """Append the rows to a table: the columns that all reports share, and `more` columns."""
        table, cells = self.part[table_name], self.cells
        columns: dict[str, Array | int] = {
            column: at_least(least, cells.numbers(role))
            for column, (role, least) in _NUMBERS.items()
            if column in table.types
        }
        columns |= {name: cells.numbers(name) for name in ("start_ns", "dur_ns") if cells.has(name)}
        for what in ("grid", "block") if "grid" in table.types else ():
            # The sizes are in three columns, or in a text such as `8   1   1`.
            axes = [f"{what}_{axis}" for axis in "xyz"]
            if all(map(cells.has, axes)):
                sizes = [at_least(1, cells.numbers(axis)) for axis in axes]
                columns[what] = np.stack(sizes, axis=1)
            elif cells.has(what):
                texts, code = texts_of(cells, what)
                columns[what] = np.array([*map(triple, texts)], np.int64).reshape(-1, 3)[code]
        if table_name == "activities":
            columns["device"] = np.asarray(cells.codes("device", self.part.devices, ""), np.int64)
        if "name" not in more:
            columns["name"] = cells.codes("name", table.names["name"], _UNNAMED)
        table.add(cells.count, **(columns | more))


def _kind_of(name: str) -> str:
    """Return the kind of the device work with this name: kernel, memcpy or memset."""
    if not _OPERATION.fullmatch(name):
        return "kernel"
    return "memset" if "memset" in name.lower() else "memcpy"


def _add_activities(rows: _Rows) -> None:
    """Add kernels, copies and fills; the name tells the kind.

    The name of a copy, such as [CUDA memcpy Host-to-Device], tells its direction. If the driver
    made the copy for unified memory, its direction begins with `migration`, as in databases.
    """
    timed = rows.timed()
    names = timed.part["activities"].names
    texts, text = texts_of(timed.cells, "name")
    kinds, directions = [], []  # codes by text
    for name in texts:
        kind = _kind_of(name)
        direction = direction_named(name) if kind == "memcpy" else None
        if kind == "memcpy" and _UNIFIED.search(name):
            direction = "migration" if direction is None else f"migration {direction}"
        kinds.append(names["kind"][kind])
        directions.append(-1 if direction is None else names["direction"][direction])
    bytes_ = timed.amount("bytes")
    if timed.scales.get("bytes", 1) > 1:
        timed.part.odd["sizes-rounded"] += count_true(bytes_ != ABSENT)
        bytes_ = np.where(bytes_ == 0, ABSENT, bytes_)  # 0 is a size that is rounded down
    kind_of_row = np.array(kinds, np.int32)[text]
    direction_of_row = np.array(directions, np.int32)[text]
    timed.add("activities", kind=kind_of_row, direction=direction_of_row, bytes=bytes_)


def _add_launches(rows: _Rows) -> None:
    """Add kernels and the calls that launched them; a row has one of each.

    Rows with equal start of the call, process and thread share a call. Make up correlation ids.
    """
    kernels, calls = rows.timed(), rows.timed("call_start", "call_duration")
    activities = rows.part["activities"]
    key = [kernels.amount("call_start"), *map(kernels.cells.numbers, ("pid", "thread"))]
    call, first_row = group_rows(key)
    correlation = call + activities.count + 1  # above those of earlier blocks, from 1
    kernels.add("activities", kind=activities.names["kind"]["kernel"], correlation=correlation)
    # If all rows have both times, row i of `calls` belongs to row i of `kernels`.
    if calls.cells.count == kernels.cells.count:
        _add_cuda_calls(calls.only(first_row), "call", correlation=correlation[first_row])


def _add_calls(rows: _Rows) -> None:
    names, code = texts_of(rows.cells, "name")
    is_cuda = np.array([_CUDA_CALL.match(name) is not None for name in names], np.bool_)[code]
    rows.part.odd["other-calls"] += count_true(~is_cuda)
    _add_cuda_calls(rows.only(is_cuda).timed(), "name")


def _add_cuda_calls(rows: _Rows, role: str, **more: Array) -> None:
    """Add CUDA calls with the names in the column `role`; `more` are further columns."""
    names = rows.part["calls"].names
    texts, code = texts_of(rows.cells, role)
    api = names["api"].codes("runtime" if t.startswith("cuda") else "driver" for t in texts)[code]
    rows.add("calls", name=rows.cells.codes(role, names["name"], _UNNAMED), api=api, **more)


def _add_marks(rows: _Rows) -> None:
    """Add ranges, on the GPU if the report projects them there; keep the ranks of processes."""
    timed = rows.timed()
    if timed.cells.has("rank"):
        pids, ranks = (timed.cells.numbers(role) for role in ("pid", "rank"))
        _, first = group_rows([pids, ranks])
        timed.part.ranks |= set(zip(pids[first].tolist(), ranks[first].tolist(), strict=True))
    names = timed.part["marks"].names
    is_projected = timed.part.report.name == "nvtx_gpu_proj_trace"
    kind = names["kind"]["gpu_annotation" if is_projected else "annotation"]
    timed.add("marks", kind=kind, name=_range_codes(timed, names["name"]))


def _range_codes(rows: _Rows, names: Names) -> Array:
    """Return the codes in `names` of range names, without the colon of those without a domain."""
    texts, code = texts_of(rows.cells, "name")
    return names.codes(text.removeprefix(":") or UNNAMED_RANGE for text in texts)[code]


def _total_kinds(rows: _Rows) -> Array:
    """Return the kind of each total by report, category or name; "" for calls not of CUDA."""
    report = rows.part.report
    names, name = texts_of(rows.cells, "name")
    if report.kind == "call":
        kind_of_name = ["call" if _CUDA_CALL.match(text) else "" for text in names]
    elif report.kind in ("memcpy", ""):
        kind_of_name = [_kind_of(text) for text in names]
    else:
        kind_of_name = [report.kind] * len(names)
    by_name = np.array(kind_of_name, object)[name]
    if report.kind or not rows.cells.has("category"):
        return by_name
    categories, category = texts_of(rows.cells, "category")
    kind_of_category = [_CATEGORIES.get(text.upper(), "") for text in categories]
    by_category = np.array(kind_of_category, object)[category]
    # The category of memory operations is of copies and fills: the name tells which.
    return np.where(by_category == "memcpy", by_name, by_category)


def _add_totals(rows: _Rows) -> None:
    """Add sums by name. Sums of calls that are not CUDA's are only counted."""
    part, report, kinds = rows.part, rows.part.report, _total_kinds(rows)
    is_other = kinds == ""
    if is_other.any():
        counts = at_least(1, rows.only(is_other).cells.numbers("count"))
        # An unknown count is at least 1; a limit keeps damaged ones from overflowing the sum.
        counts = np.where(counts == ABSENT, 1, np.minimum(counts, 2**40))
        part.odd["other-calls"] += int(counts.sum())
    totals, kinds = rows.only(~is_other), kinds[~is_other]
    columns = {"total": "total_ns"}
    if report.records == "sizes":
        columns = {"size": "bytes"}
    elif "total range time" not in report.needs:  # min and max there are of projected times
        columns |= {"shortest": "min_ns", "longest": "max_ns"}
    values: dict[str, Array] = {column: totals.amount(role) for role, column in columns.items()}
    if "bytes" in values and totals.scales.get("size", 1) > 1:
        values["bytes"] = np.where(values["bytes"] == 0, ABSENT, values["bytes"])  # rounded down
    names = part["totals"].names
    if report.kind in ("mark", "gpu_mark"):
        values["name"] = _range_codes(totals, names["name"])
    totals.add("totals", kind=names["kind"].codes(kinds.tolist()), **values)


_ADDERS: Final = {
    "activities": _add_activities,
    "launches": _add_launches,
    "calls": _add_calls,
    "marks": _add_marks,
    "totals": _add_totals,
    "sizes": _add_totals,
}

"""Rows of the reports of `nsys stats` as rows of the tables of a trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.parsers.io import Column, Cut, Texts, finest, step_of
from traceflops.parsers.nsight.stats_layouts import Report, StatsTable
from traceflops.parsers.shared import at_least, way_named
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names, TableBuilder, group_rows

UNNAMED_RANGE: Final = "(unnamed range)"
_OPERATION: Final = re.compile(r"\[(?:CUDA|Unified) .*\]|\[.*(?:memcpy|memset).*\]", re.I)
_MIGRATION: Final = "migration"
_UNIFIED: Final = re.compile(r"\bunified\b", re.I)
_UNNAMED: Final = "(unnamed)"
_LIMIT_NS: Final = 2**61
_MOST_CALLS: Final = 2**40
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
}
"""By column its role, and the least number that is one."""


def kind_of(name: str) -> str:
    """Return kernel, memcpy or memset: what has this name on the device."""
    if not _OPERATION.fullmatch(name):
        return "kernel"
    return "memset" if "memset" in name.lower() else "memcpy"


def direction_of(name: str) -> str | None:
    """Return the direction of a copy by its name, such as [CUDA memcpy Host-to-Device].

    As in databases, those that the driver made for unified memory begin with `migration`.
    """
    if kind_of(name) != "memcpy":
        return None
    way = way_named(name)
    if _UNIFIED.search(name) is None:
        return way
    return _MIGRATION if way is None else f"{_MIGRATION} {way}"


@dataclass(slots=True)
class ReportPart:
    """The rows of one report in one file, of a profile as the file names it.

    The column `process` of its tables holds process ids, `device` places in `devices`, the texts by
    which the report names them. `ranks` are process ids with a rank that each is said to be.
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
        """Return the collector of a table."""
        if name not in self.tables:
            self.tables[name] = TableBuilder(name)
        return self.tables[name]

    def absorb(self, other: ReportPart) -> None:
        """Append the rows of another table of the same report."""
        places = self.devices.codes(other.devices)
        for name, table in other.tables.items():
            for _, columns in table.pieces:
                if name == "activities":
                    columns["device"] = places[columns["device"]].astype(np.int64)
            self[name].absorb(table)
        self.ranks |= other.ranks
        self.odd.update(other.odd)
        self.rows += other.rows
        self.resolution_ns = finest(self.resolution_ns, other.resolution_ns)


def add_rows(cut: Cut, table: StatsTable, part: ReportPart) -> None:
    """Add rows of a report."""
    part.rows += cut.count
    if table.without_unit:
        part.odd["no-unit"] += cut.count
    if table.report.records == "sizes" and "size" not in table.scales:
        part.odd["sizes-without-unit"] += cut.count
    _ADDERS[table.report.records](_Rows(cut, table.scales, part))


class _Rows:
    """Some rows with their columns in ns and bytes."""

    def __init__(self, cut: Cut, scales: Mapping[str, int], part: ReportPart) -> None:
        self.cut, self.scales, self.part = cut, scales, part

    def only(self, rows: BoolArray | IntArray) -> _Rows:
        return _Rows(self.cut.only(rows), self.scales, self.part)

    def timed(self, start: str = "start", duration: str = "duration") -> _Rows:
        """Return the rows that have a time, with `start_ns` and `dur_ns`; odd ones are counted."""
        begin, length, odd = self.amount(start), self.amount(duration), self.part.odd
        known = begin != ABSENT
        odd["no-time"] += int(np.count_nonzero(~known))
        odd["no-duration"] += int(np.count_nonzero(known & (length == ABSENT)))
        odd["negative-duration"] += int(np.count_nonzero(known & (length < 0) & (length != ABSENT)))
        times = {"start_ns": begin, "dur_ns": np.maximum(length, 0)}
        cut = Cut(self.cut.count, {**self.cut.columns, **times})
        return _Rows(cut.only(known), self.scales, self.part)

    def amount(self, role: str) -> IntArray:
        """Return ns or bytes; ABSENT where there are none.

        A number with decimals is scaled as a double and rounded: exact to the ns below 26 days.
        """
        column: Column | None = self.cut.columns.get(role)
        if column is None or isinstance(column, Texts):
            return np.full(self.cut.count, ABSENT, np.int64)
        if column.dtype.kind == "i":
            fits = (column > -_LIMIT_NS) & (column < _LIMIT_NS)
            self.part.odd["beyond"] += int(np.count_nonzero(~fits & (column != ABSENT)))
            return np.where(fits, column, ABSENT)
        scale = self.scales.get(role, 1)
        if role == "start":
            self.part.resolution_ns = finest(self.part.resolution_ns, step_of(column, scale))
        scaled = column * float(scale)
        known = np.isfinite(scaled) & (np.abs(scaled) < _LIMIT_NS)
        self.part.odd["beyond"] += int(np.count_nonzero(~known & np.isfinite(column)))
        return np.where(known, np.rint(np.where(known, scaled, 0.0)).astype(np.int64), ABSENT)

    def texts(self, role: str = "name") -> tuple[list[str], IntArray]:
        return texts_of(self.cut, role)

    def add(self, into: str, /, **own: Array | int) -> None:
        """Append the rows to a table, with the columns that are filled alike in all tables."""
        table, part = self.part[into], self.part
        columns: dict[str, Array | int] = {
            column: at_least(least, self.cut.numbers(role))
            for column, (role, least) in _NUMBERS.items()
            if column in table.types
        }
        columns |= {n: self.cut.numbers(n) for n in ("start_ns", "dur_ns") if self.cut.has(n)}
        for axes in ("grid", "block"):
            if axes in table.types and (sizes := self._triples(axes)) is not None:
                columns[axes] = sizes
        if into == "activities":
            columns["device"] = np.asarray(self.cut.codes("device", part.devices, ""), np.int64)
        if "name" not in own:
            columns["name"] = self.cut.codes("name", table.names["name"], _UNNAMED)
        table.add(self.cut.count, **(columns | own))

    def _triples(self, role: str) -> Array | None:
        """Return three sizes by axis, from columns of their own or a text such as `8   1   1`."""
        if all(self.cut.has(f"{role}_{axis}") for axis in "xyz"):
            axes = [at_least(1, self.cut.numbers(f"{role}_{axis}")) for axis in "xyz"]
            return np.stack(axes, axis=1)
        if not self.cut.has(role):
            return None
        texts, codes = self.texts(role)
        return np.array([triple(text) for text in texts], np.int64).reshape(-1, 3)[codes]


def texts_of(cut: Cut, role: str) -> tuple[list[str], IntArray]:
    """Return the distinct texts of a column, and the place of each row among them."""
    names = Names()
    codes = np.asarray(cut.codes(role, names, ""), np.int64)
    return list(names), codes


def sizes_in(text: str) -> list[int]:
    """Return the numbers in a text such as (224, 1, 1)."""
    return [int(part) for part in _SIZES.findall(text[:100]) if len(part) < 11]


def triple(text: str) -> tuple[int, int, int]:
    """Return sizes by axis; ABSENT where there are not three."""
    sizes = sizes_in(text)
    return (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 and min(sizes) > 0 else (ABSENT,) * 3


def _add_activities(rows: _Rows) -> None:
    rows = rows.timed()
    table, part = rows.part["activities"], rows.part
    texts, text = rows.texts()
    kinds = table.names["kind"].codes(map(kind_of, texts))
    directions = table.names["direction"]
    ways = [-1 if way is None else directions[way] for way in map(direction_of, texts)]
    bytes_ = rows.amount("bytes")
    if rows.scales.get("bytes", 1) > 1:
        part.odd["sizes-rounded"] += int(np.count_nonzero(bytes_ != ABSENT))
        bytes_ = np.where(bytes_ == 0, ABSENT, bytes_)  # less than the column shows
    rows.add("activities", kind=kinds[text], bytes=bytes_, direction=np.array(ways, np.int32)[text])


def _add_launches(rows: _Rows) -> None:
    """Add kernels with the calls that launched them; those of one call share a number."""
    kernels, calls = rows.timed(), rows.timed("call_start", "call_duration")
    table, first = rows.part["activities"], rows.part["activities"].count
    key = [kernels.amount("call_start"), *map(kernels.cut.numbers, ("pid", "thread"))]
    group, one = group_rows(key)
    launch = group + first + 1
    kernels.add("activities", kind=table.names["kind"]["kernel"], correlation=launch)
    if calls.cut.count == kernels.cut.count:
        calls = calls.only(one)
        _add_calls_of(calls, "call", correlation=launch[one])


def _add_calls(rows: _Rows) -> None:
    names, code = rows.texts()
    is_cuda = np.array([_CUDA_CALL.match(name) is not None for name in names], np.bool_)[code]
    rows.part.odd["other-calls"] += int(np.count_nonzero(~is_cuda))
    _add_calls_of(rows.only(is_cuda).timed(), "name")


def _add_calls_of(rows: _Rows, role: str, **own: Array) -> None:
    names = rows.part["calls"].names
    texts, code = rows.texts(role)
    api = names["api"].codes("runtime" if t.startswith("cuda") else "driver" for t in texts)[code]
    rows.add("calls", name=rows.cut.codes(role, names["name"], _UNNAMED), api=api, **own)


def _add_marks(rows: _Rows) -> None:
    is_projected = rows.part.report.name == "nvtx_gpu_proj_trace"
    rows = rows.timed()
    if rows.cut.has("rank"):
        pids, ranks = (rows.cut.numbers(role) for role in ("pid", "rank"))
        _, first = group_rows([pids, ranks])
        rows.part.ranks |= {(int(pids[row]), int(ranks[row])) for row in first.tolist()}
    names = rows.part["marks"].names
    kind = names["kind"]["gpu_annotation" if is_projected else "annotation"]
    rows.add("marks", kind=kind, name=_ranges(rows, names["name"]))


def _ranges(rows: _Rows, names: Names) -> Array:
    """Return the names of ranges as databases have them: those of no domain begin with a colon."""
    texts, text = rows.texts()
    return names.codes(a_text.removeprefix(":") or UNNAMED_RANGE for a_text in texts)[text]


def _add_totals(rows: _Rows) -> None:
    part, report, names = rows.part, rows.part.report, rows.part["totals"].names
    kinds = _kinds(rows)
    others = kinds == ""
    part.odd["other-calls"] += _calls_in(rows.only(others)) if others.any() else 0
    rows, kinds = rows.only(~others), kinds[~others]
    own = {column: rows.amount(role) for role, column in _sums(report).items()}
    if report.kind in ("mark", "gpu_mark"):
        own["name"] = _ranges(rows, names["name"])
    rows.add("totals", kind=names["kind"].codes(kinds.tolist()), **own)


def _calls_in(rows: _Rows) -> int:
    """Return how many calls some sums are of; rows without a number of calls are one each."""
    counts = at_least(1, rows.cut.numbers("count"))
    return int(np.where(counts == ABSENT, 1, np.minimum(counts, _MOST_CALLS)).sum())


def _sums(report: Report) -> Mapping[str, str]:
    """Return the columns that the sums of a report fill, by role."""
    if report.records == "sizes":
        return {"size": "bytes"}
    shortest = {"shortest": "min_ns", "longest": "max_ns"}
    return {"total": "total_ns", **({} if "total range time" in report.needs else shortest)}


def _kinds(rows: _Rows) -> Array:
    """Return the kind of each row; empty for calls of other interfaces than CUDA's."""
    kind, (names, name) = rows.part.report.kind, rows.texts()
    if kind == "call":
        of_name = ["call" if _CUDA_CALL.match(text) else "" for text in names]
    else:
        of_name = [kind_of(text) if kind in ("memcpy", "") else kind for text in names]
    kinds = np.array(of_name, dtype=object)[name]
    if kind or not rows.cut.has("category"):
        return kinds
    categories, category = rows.texts("category")
    own = np.array(
        [_CATEGORIES.get(a_category.upper(), "") for a_category in categories], dtype=object
    )[category]
    return np.where(own == "memcpy", kinds, own)


def _add_nothing(rows: _Rows) -> None:
    rows.part.odd["nested-sums"] += rows.cut.count


_ADDERS: Final = {
    "activities": _add_activities,
    "launches": _add_launches,
    "calls": _add_calls,
    "marks": _add_marks,
    "totals": _add_totals,
    "sizes": _add_totals,
    "nested": _add_nothing,
}

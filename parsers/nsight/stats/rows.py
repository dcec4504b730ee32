"""Rows of the reports of `nsys stats` as rows of the tables of a trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.parsers.io import Column, Texts, finest, step_of
from traceflops.parsers.nsight.stats.layouts import Report, StatsTable
from traceflops.parsers.shared import Cut, compact
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names, TableBuilder

UNNAMED_RANGE: Final = "(unnamed range)"
_OPERATION: Final = re.compile(r"\[(?:CUDA|Unified) .*\]|\[.*(?:memcpy|memset).*\]", re.I)
_ENDS: Final = {"h": "H", "d": "D", "p": "P", "a": "D"}
_WAY: Final = re.compile(
    r"\b(host|device|peer|array|[HDPA])[- ]?to[- ]?(host|device|peer|array|[HDPA])\b", re.I
)
_PEER: Final = re.compile(r"\bP2P\b|peer", re.I)
_MIGRATION: Final = "migration"
_UNIFIED: Final = re.compile(r"\bunified\b", re.I)


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
    way = _way(name)
    if _UNIFIED.search(name) is None:
        return way
    return _MIGRATION if way is None else f"{_MIGRATION} {way}"


def _way(name: str) -> str | None:
    found = _WAY.search(name)
    if found is None:
        return "PtoP" if _PEER.search(name) else None
    ends = [_ENDS[end[0].lower()] for end in found.groups()]
    return "PtoP" if "P" in ends else f"{ends[0]}to{ends[1]}"


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


@dataclass(slots=True)
class ReportPart:
    """The rows of one report in one file, of a profile as the file names it.

    The column `process` of its tables holds process ids, `device` places in `devices`, the texts by
    which the report names them. `ranks` are those that a process id is said to be.
    """

    report: Report
    profile: str = ""
    tables: dict[str, TableBuilder] = field(default_factory=dict)
    devices: Names = field(default_factory=Names)
    odd: Counter[str] = field(default_factory=Counter)
    ranks: dict[int, set[int]] = field(default_factory=dict)
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
        for pid, ranks in other.ranks.items():
            self.ranks.setdefault(pid, set()).update(ranks)
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

    def has(self, role: str) -> bool:
        return self.cut.has(role)

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

    def count(self, role: str, least: int = 0) -> IntArray:
        """Return whole numbers of at least so much; ABSENT for others."""
        values = self.cut.numbers(role)
        return np.where(values >= least, values, ABSENT)

    def texts(self, role: str) -> tuple[list[str], IntArray]:
        """Return the distinct texts of a column and the place of each row among them."""
        names = Names()
        codes = np.asarray(self.cut.codes(role, names, ""), np.int64)
        return list(names), codes

    def triples(self, role: str) -> Array | None:
        """Return three sizes by axis, from columns of their own or a text such as `8   1   1`."""
        if all(self.has(f"{role}_{axis}") for axis in "xyz"):
            return np.stack([self.count(f"{role}_{axis}", 1) for axis in "xyz"], axis=1)
        if not self.has(role):
            return None
        texts, codes = self.texts(role)
        sizes = np.array([triple(text) for text in texts], np.int64).reshape(-1, 3)
        return sizes[codes]


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


def _timed(rows: _Rows, start: str, duration: str) -> tuple[_Rows, IntArray, IntArray]:
    """Return the rows that have a time, their starts and durations; what is odd is counted."""
    begin, length, odd = rows.amount(start), rows.amount(duration), rows.part.odd
    known = begin != ABSENT
    if not known.all():
        odd["no-time"] += int(np.count_nonzero(~known))
        rows, begin, length = rows.only(known), begin[known], length[known]
    odd["no-duration"] += int(np.count_nonzero(length == ABSENT))
    odd["negative-duration"] += int(np.count_nonzero((length < 0) & (length != ABSENT)))
    return rows, begin, np.maximum(length, 0)


def _add_activities(rows: _Rows) -> None:
    rows, start, length = _timed(rows, "start", "duration")
    table, part = rows.part["activities"], rows.part
    texts, text = rows.texts("name")
    ways = [direction_of(name) for name in texts]
    directions = table.names["direction"]
    way = np.array([-1 if one is None else directions[one] for one in ways], np.int32)
    kinds = table.names["kind"].codes(kind_of(name) for name in texts)
    sizes = {name: rows.triples(name) for name in ("grid", "block")}
    bytes_ = rows.amount("bytes")
    if rows.scales.get("bytes", 1) > 1:
        part.odd["sizes-rounded"] += int(np.count_nonzero(bytes_ != ABSENT))
        bytes_ = np.where(bytes_ == 0, ABSENT, bytes_)  # less than the column shows
    table.add(
        rows.cut.count,
        process=ABSENT,
        device=np.asarray(rows.cut.codes("device", part.devices, ""), np.int64),
        stream=compact(rows.cut.numbers("stream")),
        kind=kinds[text],
        name=rows.cut.codes("name", table.names["name"], _UNNAMED),
        start_ns=start,
        dur_ns=length,
        correlation=rows.count("correlation", 1),
        bytes=bytes_,
        direction=way[text],
        registers_per_thread=rows.count("registers", 1),
        **{name: each for name, each in sizes.items() if each is not None},
    )


def _add_launches(rows: _Rows) -> None:
    """Add kernels with the calls that launched them; those of one call share a number."""
    kernels, start, length = _timed(rows, "start", "duration")
    calls, call_start, call_length = _timed(rows, "call_start", "call_duration")
    part = rows.part
    first = part["activities"].count
    key = np.stack([kernels.amount("call_start"), kernels.count("pid"), kernels.count("thread")])
    _, launch = np.unique(key, axis=1, return_inverse=True)
    launch = launch.reshape(-1).astype(np.int64) + first + 1
    table = part["activities"]
    sizes = {name: kernels.triples(name) for name in ("grid", "block")}
    table.add(
        kernels.cut.count,
        process=kernels.count("pid"),
        device=np.asarray(kernels.cut.codes("device", part.devices, ""), np.int64),
        kind=table.names["kind"]["kernel"],
        name=kernels.cut.codes("name", table.names["name"], _UNNAMED),
        start_ns=start,
        dur_ns=length,
        correlation=launch,
        **{name: each for name, each in sizes.items() if each is not None},
    )
    if calls.cut.count != kernels.cut.count:
        return
    _, one = np.unique(launch, return_index=True)
    calls = calls.only(one)
    table = part["calls"]
    table.add(
        calls.cut.count,
        process=calls.count("pid"),
        thread=calls.count("thread"),
        name=calls.cut.codes("call", table.names["name"], _UNNAMED),
        start_ns=call_start[one],
        dur_ns=call_length[one],
        correlation=launch[one],
        api=_apis(calls, "call", table.names["api"]),
    )


def _add_calls(rows: _Rows) -> None:
    names, code = rows.texts("name")
    is_cuda = np.array([_CUDA_CALL.match(name) is not None for name in names], np.bool_)[code]
    rows.part.odd["other-calls"] += int(np.count_nonzero(~is_cuda))
    rows, start, length = _timed(rows.only(is_cuda), "start", "duration")
    table = rows.part["calls"]
    table.add(
        rows.cut.count,
        process=rows.count("pid"),
        thread=rows.count("thread"),
        name=rows.cut.codes("name", table.names["name"], _UNNAMED),
        start_ns=start,
        dur_ns=length,
        correlation=rows.count("correlation", 1),
        api=_apis(rows, "name", table.names["api"]),
    )


def _apis(rows: _Rows, role: str, names: Names) -> Array:
    texts, code = rows.texts(role)
    return names.codes("runtime" if t.startswith("cuda") else "driver" for t in texts)[code]


def _add_marks(rows: _Rows) -> None:
    is_projected = rows.part.report.name == "nvtx_gpu_proj_trace"
    rows, start, length = _timed(rows, "start", "duration")
    if rows.has("rank"):
        pairs = np.stack([rows.count("pid"), rows.count("rank")])
        for pid, rank in np.unique(pairs, axis=1).T.tolist():
            rows.part.ranks.setdefault(pid, set()).add(rank)
    table = rows.part["marks"]
    table.add(
        rows.cut.count,
        process=rows.count("pid"),
        thread=rows.count("thread"),
        kind=table.names["kind"]["gpu_annotation" if is_projected else "annotation"],
        name=_ranges(rows, table),
        start_ns=start,
        dur_ns=length,
    )


def _ranges(rows: _Rows, table: TableBuilder) -> Array:
    """Return the names of ranges as databases have them: those of no domain begin with a colon."""
    texts, text = rows.texts("name")
    return table.names["name"].codes(one.removeprefix(":") or UNNAMED_RANGE for one in texts)[text]


def _add_totals(rows: _Rows) -> None:
    part = rows.part
    texts, text = rows.texts("name")
    kinds = _kinds(rows, texts, text)
    others = kinds == ""
    part.odd["other-calls"] += _calls_in(rows.only(others)) if others.any() else 0
    rows, kinds = rows.only(~others), kinds[~others]
    if not rows.cut.count:
        return
    table = part["totals"]
    codes = np.array([table.names["kind"][kind] for kind in kinds.tolist()], np.int32)
    is_range = part.report.kind in ("mark", "gpu_mark")
    sizes = {name: rows.triples(name) for name in ("grid", "block")}
    table.add(
        rows.cut.count,
        process=ABSENT,
        kind=codes,
        name=_ranges(rows, table)
        if is_range
        else rows.cut.codes("name", table.names["name"], _UNNAMED),
        count=rows.cut.numbers("count"),
        **{column: rows.amount(r) for r, column in _sums(part.report).items()},
        **{name: each for name, each in sizes.items() if each is not None},
    )


def _calls_in(rows: _Rows) -> int:
    """Return how many calls some sums are of; rows without a number of calls are one each."""
    counts = rows.count("count", 1)
    return int(np.where(counts == ABSENT, 1, np.minimum(counts, _MOST_CALLS)).sum())


def _sums(report: Report) -> Mapping[str, str]:
    """Return the columns that the sums of a report fill, by role."""
    if report.records == "sizes":
        return {"size": "bytes"}
    shortest = {"shortest": "min_ns", "longest": "max_ns"}
    return {"total": "total_ns", **({} if "total range time" in report.needs else shortest)}


def _kinds(rows: _Rows, names: list[str], name: IntArray) -> Array:
    """Return the kind of each row; empty for calls of other interfaces than CUDA's."""
    kind = rows.part.report.kind
    if kind == "call":
        of_name = ["call" if _CUDA_CALL.match(text) else "" for text in names]
    elif kind in ("memcpy", ""):
        of_name = [kind_of(text) for text in names]
    else:
        of_name = [kind] * len(names)
    found = np.array(of_name, dtype=object)[name]
    if not kind and rows.has("category"):
        categories, category = rows.texts("category")
        told = np.array([_CATEGORIES.get(one.upper(), "") for one in categories], dtype=object)
        own = told[category]
        is_memory = own == "memcpy"
        found = np.where(is_memory, found, own)
    return found


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

"""The reports of `nsys stats`: which one a header is of, and which of its columns are read.

The unit of a column stands behind its name in brackets and changes with options and releases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from traceflops.parsers.io import Field, Kind, Plan

_UNIT: Final = re.compile(r"^(.*?)\(([^()]*)\)$")

TIME_UNITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("ns", "nsec", "nsecond", "nanoseconds"), 0),
    **dict.fromkeys(("us", "usec", "usecond", "µs", "μs"), 3),
    **dict.fromkeys(("ms", "msec", "msecond"), 6),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 9),
}
"""Spellings of times, as powers of ten of 1 ns."""
_BYTE_UNITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    **{f"{prefix}b": 1_000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1_024**power for power, prefix in enumerate("kmgt", 1)},
}


@dataclass(frozen=True, slots=True)
class Report:
    """One report: its name, the columns that make it (with | between them), what its rows are.

    `kind` is what its sums are of; empty where each row says it.
    """

    name: str
    needs: str
    records: str
    kind: str = ""


REPORTS: Final = (
    Report("cuda_kern_exec_trace", "kernel start|kernel dur|kernel name", "launches"),
    Report("cuda_gpu_trace", "start|duration|strm|name", "activities"),
    Report("cuda_api_trace", "start|duration|name|corrid", "calls"),
    Report("nvtx_gpu_proj_trace", "name|projected start|projected duration", "marks"),
    Report("nvtx_pushpop_trace", "start|duration|name|lvl", "marks"),
    Report("nvtx_startend_trace", "start|duration|name|rangeid", "marks"),
    Report("nvtx_gpu_proj_sum", "range|total proj time", "totals", "gpu_mark"),
    Report("nvtx_gpu_proj_sum", "range|total range time", "totals", "mark"),
    Report("nvtx_kern_sum", "nvtx range|kernel name", "nested"),
    Report("nvtx_sum", "total time|instances|style|range", "totals", "mark"),
    Report("nvtx_pushpop_sum", "total time|instances|range", "totals", "mark"),
    Report("cuda_kern_exec_sum", "count|kernel name|kmin", "totals", "kernel"),
    Report("cuda_api_gpu_sum", "total time|category|operation", "totals"),
    Report("cuda_gpu_mem_time_sum", "total time|operation", "totals", "memcpy"),
    Report("cuda_gpu_mem_size_sum", "total|operation", "sizes", "memcpy"),
    Report("cuda_api_sum", "total time|num calls|name", "totals", "call"),
    Report("cuda_gpu_kern_gb_sum", "total time|instances|name|gridxyz", "totals", "kernel"),
    Report("cuda_gpu_kern_sum", "total time|instances|name", "totals", "kernel"),
)
"""In the order in which a header is asked whether it is theirs: those with more columns first."""

ROLES: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("start", ("kernel start", "start", "projected start"), "time"),
    ("duration", ("kernel dur", "duration", "projected duration"), "time"),
    ("call_start", ("api start",), "time"),
    ("call_duration", ("api dur",), "time"),
    ("call", ("api function", "api name"), "text"),
    ("total", ("total time", "total proj time", "total range time"), "time"),
    ("size", ("total",), "size"),
    (
        "count",
        ("instances", "num calls", "count", "operations", "range instances", "calls"),
        "integer",
    ),
    ("shortest", ("min", "minimum", "kmin", "proj min"), "time"),
    ("longest", ("max", "maximum", "kmax", "proj max"), "time"),
    ("name", ("kernel name", "name", "range", "operation"), "text"),
    ("category", ("category",), "text"),
    ("correlation", ("corrid",), "integer"),
    *((f"grid_{axis}", (f"grd{axis}",), "integer") for axis in "xyz"),
    *((f"block_{axis}", (f"blk{axis}",), "integer") for axis in "xyz"),
    ("grid", ("gridxyz",), "text"),
    ("block", ("blockxyz",), "text"),
    ("registers", ("reg/trd",), "integer"),
    ("bytes", ("bytes",), "size"),
    ("device", ("device", "devid"), "text"),
    ("stream", ("strm",), "integer"),
    ("pid", ("pid",), "integer"),
    ("thread", ("tid",), "integer"),
    ("rank", ("rank",), "integer"),
)
"""Each role, the columns that have it, the best first, and what its cells are."""

_TWINS: Final = {
    **dict.fromkeys(("nvtx_startend_sum", "nvtxsssum"), ("nvtx_pushpop_sum", "nvtx_startend_sum")),
    **dict.fromkeys(("osrt_sum", "osrtsum"), ("cuda_api_sum", "osrt_sum")),
}
"""What a report is called: the one that it looks like, and the one that it is."""
_MOST_COLUMNS: Final = 200


def _named(column: str) -> tuple[str, str | None]:
    """Return what a column is called and its unit, both in small letters."""
    match = _UNIT.match(column.strip())
    word, unit = (match[1], match[2]) if match else (column, None)
    return " ".join(word.lower().split()), None if unit is None else unit.strip().lower()


_IN_TITLE: Final = re.compile(r"\((?:by )?\w+ in (\w+)\)", re.I)
"""A unit as it stands in a title: `(by size in KiB)`."""


def unit_in_title(line: str) -> str | None:
    """Return the unit that a title says the columns below it have; None where it says none."""
    found = _IN_TITLE.search(line)
    unit = found[1].lower() if found else ""
    return unit if unit in TIME_UNITS or unit in _BYTE_UNITS else None


def with_unit(names: Sequence[str], unit: str | None) -> list[str]:
    """Return the names of columns, each with the unit of their title that has none of its own."""
    kind = "time" if unit in TIME_UNITS else "size" if unit in _BYTE_UNITS else ""
    words = {word for _, spellings, of in ROLES if of == kind for word in spellings}
    return [f"{name} ({unit})" if name.strip().lower() in words else name for name in names]


def report_named(report: Report, name: str) -> Report:
    """Return a report under the name that it is given, where several have its columns."""
    like, own = _TWINS.get(name, ("", ""))
    return replace(report, name=own) if report.name == like else report


@dataclass(frozen=True, slots=True)
class StatsTable:
    """A report as it stands in a file: how many ns or bytes the unit of each role is.

    `without_unit` says that times have none: they are ns then.
    """

    report: Report
    scales: Mapping[str, int]
    without_unit: bool


class StatsTables:
    """The reports of `nsys stats`, as the reader of CSV asks for them."""

    beginnings: Final = frozenset(
        {"Time", "Star", "Name", "Rang", "NVTX", "Tota", "API ", "Coun", "PID,", 'PID"'}
    )

    def of_header(self, names: Sequence[str]) -> Plan | None:
        """Return what to read of the report with this header; None if it is none."""
        if not 3 <= len(names) <= _MOST_COLUMNS:
            return None
        columns = [_named(name) for name in names]
        words = [word for word, _ in columns]
        report = next((one for one in REPORTS if {*one.needs.split("|")} <= {*words}), None)
        if report is None:
            return None
        fields: dict[str, Field] = {}
        scales: dict[str, int] = {}
        without = False
        for role, spellings, kind in ROLES:
            word = next((spelling for spelling in spellings if spelling in words), None)
            if word is None:
                continue
            place = words.index(word)
            unit = columns[place][1]
            scale = _scale(kind, unit)
            if scale is None or (kind == "time" and report.records == "sizes"):
                continue
            without |= kind == "time" and unit is None
            integer: Kind = "integer" if scale == 1 else "number"
            fields[role] = Field(place, "text" if kind == "text" else integer)
            scales[role] = scale
        if "name" not in fields:
            return None
        free = fields["name"].place
        return Plan(len(names), fields, free, StatsTable(report, scales, without))

    def of_row(self, row: Sequence[str]) -> Plan | None:
        """Return nothing: reports always have a header."""
        return None


STATS_TABLES: Final = StatsTables()


def _scale(kind: str, unit: str | None) -> int | None:
    """Return how many ns or bytes a unit is; None for one that is not known."""
    if kind == "time" and unit is not None:
        return 10 ** TIME_UNITS[unit] if unit in TIME_UNITS else None
    return _BYTE_UNITS.get(unit or "") if kind == "size" else 1

"""The reports of `nsys stats`: which one a CSV header belongs to, and which columns are read.

The unit of a column is in brackets after its name; it depends on options and releases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from traceflops.parsers.io.csv_cells import Field, Kind
from traceflops.parsers.io.csv_text import Plan, Tables

TIME_UNITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("ns", "nsec", "nsecond", "nanoseconds"), 0),
    **dict.fromkeys(("us", "usec", "usecond", "µs", "μs"), 3),
    **dict.fromkeys(("ms", "msec", "msecond"), 6),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 9),
}
"""Spellings of units of time, as powers of ten of 1 ns."""
_BYTE_UNITS: Final[Mapping[str | None, int]] = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    **{f"{prefix}b": 1_000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1_024**power for power, prefix in enumerate("kmgt", 1)},
}
_SCALES: Final[Mapping[str, Mapping[str | None, int]]] = {
    "time": {None: 1, **{unit: 10**power for unit, power in TIME_UNITS.items()}},
    "size": _BYTE_UNITS,
}
"""By kind of column: ns (or bytes) per unit. Times without a unit are in ns, sizes are unknown."""


class Report(NamedTuple):
    """A report: its name, the columns that identify it (separated by |), what its rows are.

    `kind` is the kind of its totals, "" if rows differ in kind.
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
    Report("cuda_gpu_mem_time_sum", "total time|operations|name", "totals", "memcpy"),
    Report("cuda_gpu_mem_size_sum", "total|operation", "sizes", "memcpy"),
    Report("cuda_gpu_mem_size_sum", "total|operations|name", "sizes", "memcpy"),
    Report("cuda_api_sum", "total time|num calls|name", "totals", "call"),
    Report("cuda_api_sum", "total time|calls|name", "totals", "call"),
    Report("cuda_gpu_kern_gb_sum", "total time|instances|name|gridxyz", "totals", "kernel"),
    Report("cuda_gpu_kern_sum", "total time|instances|name", "totals", "kernel"),
)
"""The first report whose columns are all in a header counts: those with more columns come first."""
_ROLES: Final[tuple[tuple[str, str, str], ...]] = (
    ("start", "time", "kernel start|start|projected start"),
    ("duration", "time", "kernel dur|duration|projected duration"),
    ("call_start", "time", "api start"),
    ("call_duration", "time", "api dur"),
    ("call", "text", "api function|api name"),
    ("total", "time", "total time|total proj time|total range time"),
    ("size", "size", "total"),
    ("count", "integer", "instances|num calls|count|operations|range instances|calls"),
    ("shortest", "time", "min|minimum|kmin|proj min"),
    ("longest", "time", "max|maximum|kmax|proj max"),
    ("name", "text", "kernel name|name|range|operation"),
    ("category", "text", "category"),
    ("correlation", "integer", "corrid"),
    *((f"grid_{axis}", "integer", f"grd{axis}") for axis in "xyz"),
    *((f"block_{axis}", "integer", f"blk{axis}") for axis in "xyz"),
    ("grid", "text", "gridxyz"),
    ("block", "text", "blockxyz"),
    ("registers", "integer", "reg/trd"),
    ("bytes", "size", "bytes"),
    ("device", "text", "device|devid"),
    ("stream", "integer", "strm"),
    ("pid", "integer", "pid"),
    ("thread", "integer", "tid"),
    ("rank", "integer", "rank"),
    ("error", "integer", "result"),
)
"""Roles, the kind of their cells, and the titles of their columns (separated by |), best first."""
_TWINS: Final = {
    **dict.fromkeys(("nvtx_startend_sum", "nvtxsssum"), ("nvtx_pushpop_sum", "nvtx_startend_sum")),
    **dict.fromkeys(("osrt_sum", "osrtsum"), ("cuda_api_sum", "osrt_sum")),
}
"""Old and new names of reports that look like another one: that other report, and the new name."""
_LEAST_COLUMNS, _MOST_COLUMNS = 3, 200
"""No report has fewer columns, or more."""
_UNIT: Final = re.compile(r"^(.*?)\(([^()]*)\)$")
_IN_TITLE: Final = re.compile(r"(?:\((?:by )?\w+ in |Statistics \()(\w+)\)", re.I)
"""A unit in a title: `(by size in KiB)`, `Statistics (KiB)` in 2019."""


def unit_in_title(line: str) -> str | None:
    """Return the unit that a title states for the columns below it, None if it states none."""
    match = _IN_TITLE.search(line)
    unit = match[1].lower() if match else ""
    return unit if unit in TIME_UNITS or unit in _BYTE_UNITS else None


def with_unit(names: Sequence[str], unit: str | None) -> list[str]:
    """Return column names; those of times (or sizes) without a unit get the title's `unit`."""
    unit_kind = "time" if unit in TIME_UNITS else "size" if unit in _BYTE_UNITS else ""
    spellings = (columns for _, kind, columns in _ROLES if kind == unit_kind)
    takes_unit = {column for columns in spellings for column in columns.split("|")}
    return [f"{name} ({unit})" if name.strip().lower() in takes_unit else name for name in names]


def report_named(report: Report, name: str) -> Report:
    """Return the report, renamed if its `name` in the file shows that it is a twin (_TWINS)."""
    twin, right_name = _TWINS.get(name, ("", ""))
    return report._replace(name=right_name) if report.name == twin else report


class StatsTable(NamedTuple):
    """A report as it is in a file. `scales` are ns or bytes per unit, by role of the column.

    `without_unit`: a time column names no unit and is taken to be in ns.
    """

    report: Report
    scales: Mapping[str, int]
    without_unit: bool


def _report_of(names: Sequence[str]) -> Plan | None:
    """Return which columns to read of the report with this header; None if it is no report."""
    if not _LEAST_COLUMNS <= len(names) <= _MOST_COLUMNS:
        return None
    titles: list[str] = []  # without the unit
    units: list[str | None] = []
    for name in names:
        match = _UNIT.match(name.strip())
        titles.append(" ".join((match[1] if match else name).lower().split()))
        units.append(match[2].strip().lower() if match else None)
    report = next((r for r in REPORTS if {*r.needs.split("|")} <= {*titles}), None)
    if report is None:
        return None
    fields: dict[str, Field] = {}
    scales: dict[str, int] = {}
    without_unit = False
    for role, kind, spellings in _ROLES:
        columns = [titles.index(title) for title in spellings.split("|") if title in titles]
        # In a report of sizes, min and max are sizes, and no times.
        if not columns or (kind == "time" and report.records == "sizes"):
            continue
        column = columns[0]
        scale = _SCALES[kind].get(units[column]) if kind in _SCALES else 1
        if scale is None:  # an unknown unit, or none where one is needed
            continue
        without_unit |= kind == "time" and units[column] is None
        numeric: Kind = "integer" if scale == 1 else "number"  # ns and bytes have no decimals
        fields[role] = Field(column, "text" if kind == "text" else numeric)
        scales[role] = scale
    if "name" not in fields:
        return None
    table = StatsTable(report, scales, without_unit)
    return Plan(len(names), fields, fields["name"].place, table)


STATS_TABLES: Final = Tables(
    frozenset({"Time", "Star", "Name", "Rang", "NVTX", "Tota", "API ", "Coun", "PID,", 'PID"'}),
    _report_of,
)

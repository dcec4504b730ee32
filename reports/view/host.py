"""Tables of what the host did: launches, operators, memory operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from traceflops.analysis.result import Analysis
from traceflops.attribution.host_calls import MemoryOperation
from traceflops.attribution.launch_lead import LaunchSums
from traceflops.findings.copy_sizes import are_small
from traceflops.reports.view.figures import bandwidth, count, duration, percent, ratio, size
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Cell, Column, Name, ReportTable, table_of
from traceflops.reports.view.wording import basis
from traceflops.units import capitalized

_NAME: Final = 90
_WORDS: Final = {"memcpy": "copy", "memset": "fill"}


def host_tables(analysis: Analysis, most: int) -> Iterator[tuple[str, ReportTable]]:
    """Yield the tables of what the host did, each after its title, with at most `most` rows."""

    def operation(row: MemoryOperation) -> Cell:
        """Return "Copy HtoD (pinned)" or "Fill"; for an allocation, the name of its call."""
        if row.kind == "call":
            return Name(row.name)
        memory = f"({row.memory})" if row.memory else ""
        return " ".join(filter(None, (capitalized(_WORDS[row.kind]), row.name, memory)))

    def rate(row: MemoryOperation) -> str:
        """Return the bytes per time, a dash for small operations: they take as long as a launch."""
        is_known = row.bytes_per_ns and not are_small(row.bytes, row.count)
        return bandwidth(row.bytes_per_ns if is_known else None)

    yield "Launches", _launches(analysis, most)
    yield "CPU time by operator", host_operators_table(analysis, most)
    columns = (
        Column("Operation", operation),
        Column.number("Count", lambda row: count(row.count)),
        Column.number("Total time", lambda row: duration(row.sum_ns)),
        Column.number("Bytes", lambda row: size(row.bytes)),
        Column.number("Largest", lambda row: size(row.largest_bytes)),
        Column.number("Rate", rate),
    )
    rows = analysis.memory_operations
    yield "Copies, fills and allocations", table_of(columns, rows[:most], len(rows))


class _LaunchRow(NamedTuple):
    """The launches of a device, or of all, in its used windows."""

    label: str
    sums: LaunchSums
    windows: int


def _launches(analysis: Analysis, most: int) -> ReportTable:
    """Return the launches of each device, after those of all devices if there are several."""
    launches = analysis.launches
    if launches is None:
        return table_of((), ())
    rows = []
    for device in analysis.devices:
        if device.device in launches.devices:
            windows = sum(window.used for window in device.windows)
            rows.append(_LaunchRow(device.label, launches.devices[device.device], windows))
    if len(rows) > 1:
        rows.insert(0, _LaunchRow("all", launches.total, analysis.windows_used))

    per_step = Column.number(
        "Per step", lambda row: count(round(row.sums.launches / max(row.windows, 1)))
    )
    columns = (
        Column("GPU", lambda row: row.label),
        Column.number("Launch calls", lambda row: count(row.sums.launches)),
        *([per_step] if analysis.steps.used else ()),
        Column.number(
            "Operations per call",
            lambda row: ratio(
                row.sums.operations / row.sums.launches if row.sums.launches else None
            ),
        ),
        Column.number("Time in calls", lambda row: duration(row.sums.call_ns)),
        Column.number("Long calls", lambda row: count(row.sums.long_calls)),
        Column.number("Late starts", lambda row: count(row.sums.late_starts)),
        Column.number("Kernels", lambda row: count(row.sums.kernels)),
        Column.number("Short kernels", lambda r: _share(r.sums.short_kernels, r.sums.kernels)),
    )
    remark = (
        f"Long calls: above 20 µs. Late starts: on an idle GPU, later than an ordinary launch. "
        f"Short kernels: below {duration(launches.short_ns)}."
    )
    return table_of(columns, rows[:most], len(rows), remark)


def _share(part: int, total: int) -> str:
    return percent(part / total if total else None)


def host_operators_table(analysis: Analysis, most: int) -> ReportTable:
    """Return the operators of threads that launch GPU work; all figures are means per window."""
    window_ns, mean = analysis.components.window_ns, analysis.mean_ns
    rows = analysis.host_operators
    names = [row.name for row in rows]
    label = dict(zip(names, short_labels(names, _NAME), strict=True))

    columns = (
        Column("Operator", lambda row: Name(label[row.name])),
        Column.number("Count", lambda row: count(round(mean(row.count)))),
        Column.number("Self", lambda row: duration(mean(row.self_ns))),
        Column.number("Share", lambda row: _share(row.self_ns, window_ns)),
        Column.number(
            "Total", lambda row: duration(None if row.total_ns is None else mean(row.total_ns))
        ),
    )
    remark = f"Threads that launch GPU work. {basis(analysis)}."
    return table_of(columns, rows[:most], len(rows), remark)

"""Samples of GPUs as a table: clocks, power, temperature, and why clocks were low."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from traceflops.analysis.result import Analysis
from traceflops.devices.gpu_samples import Sampled
from traceflops.gpu_samples import GpuSamples
from traceflops.reports.view.figures import UNKNOWN, count, size
from traceflops.reports.view.tables import Column, ReportTable, known_columns, table_of

THROTTLED_BY: Final = "Throttled by"
_MOST: Final = 32
_REMARK: Final = (
    "Clock: mean while the GPU works. Busy, memory clock and power: means; temperature and memory: "
    "the most."
)


def gpu_samples_table(analysis: Analysis, title: str = "GPU") -> ReportTable:
    """Return a row per sampled GPU under `title`, the slowest clock first, with known columns."""
    rows = sorted(analysis.gpu_samples, key=lambda row: row.clock_mhz or inf)
    labels = {device.device: device.label for device in analysis.devices}
    if not labels:  # samples without GPU work
        local_ids = analysis.prepared.trace.devices["local_id"].to_pylist()
        labels = {device: f"GPU {local_id}" for device, local_id in enumerate(local_ids)}
    # `clock_mhz` is the mean while the GPU is busy, which is unknown without GPU work.
    knows_clock = any(row.clock_mhz is not None for row in rows)
    numbers = _NUMBERS if knows_clock else _NUMBERS | {"Highest clock": _HIGHEST}
    columns = (
        Column(title, lambda row: labels[row.device]),
        *(Column.number(head, cell) for head, cell in numbers.items()),
        Column(THROTTLED_BY, lambda row: row.reason_words or UNKNOWN),
    )
    return table_of(known_columns(columns, rows), rows[:_MOST], len(rows), _REMARK)


def _figure(counter: str, statistic: str, unit: str) -> Callable[[GpuSamples], str]:
    """Return a function that prints a statistic of a counter, "mean" or "most"; see `_words`."""
    return lambda row: _words(getattr(row.values.get(counter), statistic, None), unit)


def _words(value: float | None, unit: str) -> str:
    """Return a value with its unit; without a unit it is a number of bytes."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f} {unit}" if unit else size(int(value), binary=True)


_NUMBERS: Final[dict[str, Callable[[GpuSamples], str]]] = {
    "Samples": lambda row: count(row.count),
    "Busy": _figure(Sampled.UTILISATION, "mean", "%"),
    "Clock": lambda row: _words(row.clock_mhz, "MHz"),
    "Maximum": lambda row: _words(row.max_clock_mhz, "MHz"),
    "Memory clock": _figure(Sampled.MEMORY_CLOCK, "mean", "MHz"),
    "Power": _figure(Sampled.POWER, "mean", "W"),
    "Limit": _figure(Sampled.POWER_LIMIT, "most", "W"),
    "Temperature": _figure(Sampled.TEMPERATURE, "most", "°C"),
    "Memory": _figure(Sampled.MEMORY_USED, "most", ""),
}
_HIGHEST: Final = _figure(Sampled.SM_CLOCK, "most", "MHz")

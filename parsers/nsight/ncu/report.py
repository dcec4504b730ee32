"""Reads binary reports of Nsight Compute through NVIDIA's own package, which is not part of this.

The package is only looked for where such a report is given.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from traceflops.errors import InputError
from traceflops.parsers.io import ByteSource
from traceflops.parsers.nsight.ncu.pages import NcuFile, NcuPage, Page, fill_sizes
from traceflops.parsers.nsight.ncu.trace import runs, trace_of, with_values
from traceflops.parsers.nsight.ncu.values import unit_of
from traceflops.table import Trace

_PACKAGE: Final = "ncu_report"
_CAPABILITY: Final = tuple(f"device__attribute_compute_capability_{x}" for x in ("major", "minor"))


def has_package() -> bool:
    """Return whether NVIDIA's package is installed."""
    try:
        return importlib.util.find_spec(_PACKAGE) is not None
    except (ImportError, ValueError):
        return False


def read_report(source: ByteSource) -> Trace:
    """Return the counters in a report. Raises InputError where the package cannot read it."""
    page = NcuPage(source, Page("report", {}))
    file = NcuFile(source, [page])
    try:
        package: Any = importlib.import_module(_PACKAGE)
        for number, action in enumerate(_actions(package.load_report(str(source.path)))):
            _add_metrics(number, action, page)
    except InputError:
        raise
    except Exception as error:  # the package is not ours: it may raise anything
        reason = " ".join(str(error).split())[:120]
        raise InputError(
            f"NVIDIA's ncu_report package cannot read: {source.label} ({reason})",
            f"export it: ncu --import {source.label} --csv --page raw > kernels.csv",
        ) from None
    fill_sizes(page.table)
    return trace_of(runs([with_values(file)])[0])


def _actions(report: Any) -> Iterator[Any]:
    """Yield the profiled kernels of a report, in order."""
    for at in range(report.num_ranges()):
        part = report.range_by_idx(at)
        for place in range(part.num_actions()):
            yield part.action_by_idx(place)


def _add_metrics(number: int, action: Any, page: NcuPage) -> None:
    """Add the metrics of a kernel."""
    counters, values = [], []
    capability: dict[str, str] = {}
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        value = _number(metric)
        if value is None:
            page.odd["no-number"] += 1
            continue
        if name in _CAPABILITY:
            capability[name] = str(int(value))
        counters.append(page.table.names["counter"][name])
        values.append(value * 10.0 ** unit_of(str(metric.unit() or "")).power)
    page.rows["kernels"] += 1
    page.table.add(
        len(values),
        process=0,
        device=page.devices[f"0|{'.'.join(capability.get(name, '') for name in _CAPABILITY)}"],
        name=page.table.names["name"][str(action.name())],
        dispatch=number,
        counter=np.array(counters, np.int32),
        value=np.array(values, np.float64),
    )


def _number(metric: Any) -> float | None:
    try:
        value = float(metric.as_double())
    except (TypeError, ValueError, RuntimeError):
        return None
    return value if np.isfinite(value) else None

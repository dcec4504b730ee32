"""Reads binary reports of Nsight Compute through NVIDIA's own package, which is not part of this.

The package is only looked for where such a report is given.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import ByteSource
from traceflops.parsers.nsight.ncu.plans import Page
from traceflops.parsers.nsight.ncu.read import NcuFile, NcuPage, fill_sizes
from traceflops.parsers.nsight.ncu.runs import runs
from traceflops.parsers.nsight.ncu.trace import trace_of, with_values
from traceflops.parsers.nsight.ncu.values import unit_of
from traceflops.parsers.shared import Format, Reading
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
    page = NcuPage(source, Page("raw", "report", {}))
    file = NcuFile(source, [page])
    try:
        package: Any = importlib.import_module(_PACKAGE)
        for number, action in enumerate(_actions(package.load_report(str(source.path)))):
            _add(number, action, page)
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


def _add(number: int, action: Any, page: NcuPage) -> None:
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


# Binary reports of Nsight: what they are, and the command that makes something readable of them.
#
# A report of Nsight Compute is read where NVIDIA's own package for that (ncu_report) is installed.


_NSYS: Final = b"NVIDIA Tegra Profiler Report"


_NCU: Final = b"NVR\x00"


_VERSION: Final = re.compile(rb"[\x00-\x20]{0,16}([0-9][0-9A-Za-z@.\-]{1,60})")


_YEAR: Final = re.compile(r"^(20\d\d)@(\d{1,2})@(\d)")


def _refuse_nsys(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    """Raise NotATrace with the command that exports a report of Nsight Systems."""
    source = sources[0]
    version = _version(source.head(256))
    by = f", written by {version}" if version else ""
    raise NotATrace(
        f"{_place(source)} is a binary Nsight Systems report (.nsys-rep, .qdrep{by})",
        "export it with the same or a newer nsys: nsys export --type sqlite --include-json=true "
        f"{_argument(source, 'REPORT.nsys-rep')} (since 2024.6 also --type parquetdir, better for "
        "very large reports)",
    )


def _version(head: bytes) -> str | None:
    """Return the version behind the magic words, None where it cannot be told."""
    found = _VERSION.match(head, len(_NSYS))
    if found is None:
        return None
    text = found[1].decode()
    year = _YEAR.match(text)
    return f"Nsight Systems {year[1]}.{year[2]}.{year[3]}" if year else f"format {text.rstrip('.')}"


def _read_ncu(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    from traceflops.parsers.nsight.ncu.report import has_package, read_report

    for source in sources:
        if source.path is None or not has_package():
            raise _ncu_refused(source)
    return [read_report(source) for source in sources]


def _ncu_refused(source: ByteSource) -> NotATrace:
    return NotATrace(
        f"{_place(source)} is a binary Nsight Compute report (.ncu-rep)",
        f"export it: ncu --import {_argument(source, 'REPORT.ncu-rep')} --csv --page raw > "
        "kernels.csv; or install NVIDIA's ncu_report package to read it directly",
    )


def _place(source: ByteSource) -> str:
    return str(source.path or source.label)


def _argument(source: ByteSource, otherwise: str) -> str:
    """Return the file as a command takes it; what came from standard input is none."""
    return otherwise if source.path is None else shlex.quote(str(source.path))


NSYS_REPORT: Final = Format("nsys report", lambda head: head.startswith(_NSYS), _refuse_nsys)


NCU_REPORT: Final = Format("ncu report", lambda head: head.startswith(_NCU), _read_ncu)

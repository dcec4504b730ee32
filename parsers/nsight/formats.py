"""Nsight's files, recognised by their first bytes. Readers are loaded when they are needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Trace

_ARROW: Final = (b"ARROW1\x00\x00", b"\xff\xff\xff\xff")
_NO_TABLE: Final = (b"{", b"[", b"<")
_SIGN: Final = re.compile(
    rb"Time ?\(%\)|(?:Start|Duration|Projected Start|Kernel Start|KAvg"
    rb"|Total(?:(?: Proj| Range)? Time)?) ?\((?:ns|us|ms|s|[num]?sec|[kmgt]?i?b)\)"
    rb"|CorrId|Total Time|Operations|Projected Start",
    re.I,
)
_NSYS: Final = b"NVIDIA Tegra Profiler Report"
_NCU: Final = b"NVR\x00"


def _is_ncu(head: bytes) -> bool:
    if head.startswith(_NCU):
        return True
    if b"Kernel Name" not in head or head.lstrip()[:1] in _NO_TABLE:
        return False
    from traceflops.parsers.nsight.ncu_pages import NCU_TABLES
    from traceflops.parsers.nsight.stats_text import first_header

    return first_header(head, NCU_TABLES) is not None


def _read_ncu(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    from traceflops.parsers.nsight.ncu_trace import read_pages

    return read_pages(sources)


def _is_stats(head: bytes) -> bool:
    if head.lstrip()[:1] in _NO_TABLE or _SIGN.search(head) is None:
        return False
    from traceflops.parsers.nsight.stats_layouts import STATS_TABLES
    from traceflops.parsers.nsight.stats_text import Console, first_header

    has_csv = first_header(head, STATS_TABLES) is not None
    return has_csv or any(Console(STATS_TABLES).rows(head))


def _read_stats(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    from traceflops.parsers.nsight.stats_trace import read_reports

    return read_reports(sources)


def _read_tables(format_: str, sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    from traceflops.parsers.nsight.nsys.read import read_tables

    return read_tables(sources, format_)


def _read_nsys_report(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    from traceflops.parsers.nsight.nsys.read import read_raw

    return [read_raw(source) for source in sources]


NSYS_REPORT: Final = Format("nsys report", lambda head: head.startswith(_NSYS), _read_nsys_report)
NCU: Final = Format("Nsight Compute", _is_ncu, _read_ncu, gathers=True)
NSYS_STATS: Final = Format("nsys stats", _is_stats, _read_stats, gathers=True)
NSYS_ARROW: Final = Format(
    "Arrow", lambda head: head.startswith(_ARROW), partial(_read_tables, "Arrow"), gathers=True
)
NSYS_PARQUET: Final = Format(
    "Parquet",
    lambda head: head.startswith(b"PAR1"),
    partial(_read_tables, "Parquet"),
    gathers=True,
)

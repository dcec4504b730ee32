"""Nsight's files, recognised by their first bytes. Readers are loaded when they are needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Trace

_ARROW: Final = (b"ARROW1\x00\x00", b"\xff\xff\xff\xff")
_NO_TABLE: Final = re.compile(rb"\s*(?:[{<]|\[(?!\d{1,4}/\d{1,4}\]))")
"""How JSON and HTML begin; `[3/8] Executing ...` is progress that nsys prints before a table."""
_SIGN: Final = re.compile(
    rb"time ?\(%\)|(?:start|duration|kavg|total(?: proj| range)?(?: time)?)"
    rb" ?\((?:ns|us|ms|s|[num]?sec|[kmgt]?i?b)\)|corrid|total time|operations|projected start"
)
_UNIT: Final = re.compile(rb"\((?:%|[num]?s(?:ec)?|[kmgt]?i?b)\)")
_WORDS: Final = (b"corrid", b"total time", b"operations", b"projected start")
"""What each match of _SIGN ends with or is: found much faster than _SIGN."""
_NSYS: Final = b"NVIDIA Tegra Profiler Report"


def _is_ncu(head: bytes) -> bool:
    """Return whether a file is a report of ncu, CSV of its pages, or what it prints."""
    if head.startswith(b"NVR\x00"):
        return True
    if b"\n    Section: " in head:
        from traceflops.parsers.nsight.ncu_console import is_console

        if is_console(head):
            return True
    if b"Kernel Name" not in head or _NO_TABLE.match(head):  # JSON or HTML
        return False
    from traceflops.parsers.nsight.ncu_pages import NCU_TABLES
    from traceflops.parsers.nsight.stats_text import first_header

    return first_header(head, NCU_TABLES) is not None


def _is_stats(head: bytes) -> bool:
    """Return whether a file has a table of nsys stats, as CSV or as printed on a console."""
    lower = head.lower()
    if _UNIT.search(lower) is None and not any(word in lower for word in _WORDS):
        return False
    if _SIGN.search(lower) is None:
        return False
    from traceflops.parsers.nsight.stats_layouts import STATS_TABLES
    from traceflops.parsers.nsight.stats_text import Console, first_header, json_header

    if (of_json := json_header(head)) or _NO_TABLE.match(head):
        return first_header(of_json, STATS_TABLES) is not None
    has_csv = first_header(head, STATS_TABLES) is not None
    return has_csv or any(Console(STATS_TABLES).rows(head))


def _read(format_: str, sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    """Return the traces in files of the format with the name `format_`. Imports its reader."""
    if format_ == "Nsight Compute":
        from traceflops.parsers.nsight.ncu_trace import read_pages

        return read_pages(sources)
    if format_ == "nsys stats":
        from traceflops.parsers.nsight.stats_trace import read_reports

        return read_reports(sources)
    from traceflops.parsers.nsight.nsys.read import read_raw, read_tables

    if format_ == "nsys report":
        return [read_raw(source) for source in sources]
    return read_tables(sources, format_)


def _format(name: str, is_kind: Callable[[bytes], bool], *, gathers: bool = True) -> Format:
    return Format(name, is_kind, partial(_read, name), gathers=gathers)


NSYS_REPORT: Final = _format("nsys report", lambda head: head.startswith(_NSYS), gathers=False)
NCU: Final = _format("Nsight Compute", _is_ncu)
NSYS_STATS: Final = _format("nsys stats", _is_stats)
NSYS_ARROW: Final = _format("Arrow", lambda head: head.startswith(_ARROW))
NSYS_PARQUET: Final = _format("Parquet", lambda head: head.startswith(b"PAR1"))

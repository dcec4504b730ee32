"""Reports of `nsys stats`: CSV, and what it prints on the console."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Trace

_SIGN: Final = re.compile(
    rb"Time ?\(%\)|(?:Start|Duration|Projected Start|Kernel Start|KAvg"
    rb"|Total(?:(?: Proj| Range)? Time)?) ?\((?:ns|us|ms|s|[num]?sec|[kmgt]?i?b)\)"
    rb"|CorrId|Total Time|Operations|Projected Start",
    re.I,
)


def _recognises(head: bytes) -> bool:
    if _SIGN.search(head) is None or head.lstrip()[:1] in (b"{", b"[", b"<"):
        return False
    from traceflops.parsers.nsight.stats.console import console_header
    from traceflops.parsers.nsight.stats.plans import STATS_TABLES
    from traceflops.parsers.nsight.stats.text import first_header

    has_csv = first_header(head, STATS_TABLES) is not None
    return has_csv or console_header(head, STATS_TABLES) is not None


def _read(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    from traceflops.parsers.nsight.stats.set import read_reports

    return read_reports(sources)


NSYS_STATS: Final = Format("nsys stats", _recognises, _read, gathers=True)

"""CSV of Nsight Compute: the details page and the raw page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Trace


def _recognises(head: bytes) -> bool:
    if b"Kernel Name" not in head or head.lstrip()[:1] in (b"{", b"[", b"<"):
        return False
    from traceflops.parsers.nsight.ncu.plans import NCU_TABLES
    from traceflops.parsers.nsight.stats.text import first_header

    return first_header(head, NCU_TABLES) is not None


def _read(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    from traceflops.parsers.nsight.ncu.trace import read_pages

    return read_pages(sources)


NCU_CSV: Final = Format("ncu CSV", _recognises, _read, gathers=True)

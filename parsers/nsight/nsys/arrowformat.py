"""Arrow files of Nsight Systems: the tables of a report, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceflops.parsers.formats import Format, Reading
from traceflops.parsers.inputs import ByteSource
from traceflops.trace import Trace

_STARTS: Final = (b"ARROW1\x00\x00", b"\xff\xff\xff\xff")


def _read(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    from traceflops.parsers.nsight.nsys.tablefiles import read_arrow_tables

    return read_arrow_tables(sources)


NSYS_ARROW: Final = Format("Arrow", lambda head: head.startswith(_STARTS), _read, gathers=True)

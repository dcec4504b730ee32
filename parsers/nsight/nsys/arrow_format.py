"""Arrow files of Nsight Systems: the tables of a report, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Trace

_STARTS: Final = (b"ARROW1\x00\x00", b"\xff\xff\xff\xff")


def _read(sources: Sequence[ByteSource], _: Reading) -> list[Trace]:
    from traceflops.parsers.nsight.nsys.table_files import read_arrow_tables

    return read_arrow_tables(sources)


NSYS_ARROW: Final = Format("Arrow", lambda head: head.startswith(_STARTS), _read, gathers=True)

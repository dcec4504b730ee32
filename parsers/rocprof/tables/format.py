"""rocprof's tables of comma-separated values, of all its generations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Trace

_OTHER_TEXT: Final = re.compile(rb"\s*[\[{<]")


def _recognises(head: bytes) -> bool:
    if _OTHER_TEXT.match(head) or (b"," not in head and b";" not in head and b"\t" not in head):
        return False
    from traceflops.parsers.rocprof.tables.plans import table_in

    return table_in(head) is not None


def _read(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    from traceflops.parsers.rocprof.tables.set import read_tables

    return read_tables(sources)


ROCPROF_TABLES: Final = Format("rocprof CSV", _recognises, _read, gathers=True)

"""The formats of rocprof's files, recognised by their first bytes; readers load when needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Trace

_OTHER_TEXT: Final = re.compile(rb"\s*[\[{<]")
_V1_START: Final = re.compile(rb'\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}')
_NO_TEXT: Final = re.compile(rb"[\s\S]{0,256}?[\x00\x80-\xff]")
_V3_START: Final = re.compile(rb'\s*\{[^{}\[\]]*?"rocprofiler-sdk-tool"\s*:')


def _is_table(head: bytes) -> bool:
    """Return whether a file with the first bytes `head` is a table of rocprof."""
    # JSON, XML or text without separators: not worth loading the reader of tables.
    if _OTHER_TEXT.match(head) or (b"," not in head and b";" not in head and b"\t" not in head):
        return False
    from traceflops.parsers.io.csv_text import find_start
    from traceflops.parsers.rocprof.layouts import ROCPROF_TABLES

    return find_start(head, ROCPROF_TABLES) is not None


def _is_perfetto(head: bytes) -> bool:
    """Return whether a file with the first bytes `head` is a protobuf message of packets.

    Packets are messages in field 1, whose key is the byte of a line break: text is excluded first.
    """
    if not head.startswith(b"\n") or _NO_TEXT.match(head) is None:
        return False
    from traceflops.parsers.io.messages import fields, last_fields, varint

    try:
        size, begin = varint(head, 1)
        packet = head[begin : begin + size]
        # `fields` raises for damage; last_fields accepts a packet that `head` cuts off.
        return bool(list(fields(packet)) if len(packet) == size else last_fields(packet))
    except ValueError:
        return False


def _read(format_: str, sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    """Return the traces in files of the format with this name; loads its reader."""
    if format_ == "rocprof CSV":
        from traceflops.parsers.rocprof.tables.read import read_tables

        return read_tables(sources)
    if format_ == "rocprofv3 JSON":
        from traceflops.parsers.rocprof.v3json_run import read_runs

        return read_runs(sources, reading)
    if format_ == "Perfetto":
        from traceflops.parsers.rocprof.perfetto_trace import read_perfetto

        return [read_perfetto(source) for source in sources]
    from traceflops.parsers.rocprof.v1_read import read_v1_json

    for source in sources:
        reading.pool.expect(source.expected_text_bytes)
    return [read_v1_json(source, reading.pool) for source in sources]


def _format(name: str, is_kind: Callable[[bytes], bool], *, gathers: bool = False) -> Format:
    return Format(name, is_kind, partial(_read, name), gathers=gathers)


ROCPROF_TABLES: Final = _format("rocprof CSV", _is_table, gathers=True)
ROCPROF_V1_JSON: Final = _format("rocprof (v1) JSON", lambda head: bool(_V1_START.match(head)))
"""Recognised by the empty event at the start of its list, which no other tool writes."""
ROCPROF_JSON: Final = _format(
    "rocprofv3 JSON", lambda head: bool(_V3_START.match(head)), gathers=True
)
ROCPROF_PERFETTO: Final = _format("Perfetto", _is_perfetto)

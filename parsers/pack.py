"""Reads packs: recordings that were read before, as `traceflops pack` keeps them."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import arrow_files
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.parsers.shared.sanity_checks import plausible
from traceflops.table import packed
from traceflops.table.schema import arrow_schema
from traceflops.table.trace import Trace

_GENERATOR: Final = b'name="generator" content="traceflops '
_IN_PAGE: Final = re.compile(rf'id="{packed.PAGE_PACK}">([^<]*)</script>'.encode())
_MOST_BYTES: Final = 1 << 25  # a page has a few million bytes at most; this is more
_END_BYTES: Final = 100  # the closing tag of a whole page is within so many bytes of its end
_UNFIT: Final = (*arrow_files.ARROW_UNREADABLE, msgspec.MsgspecError, RecursionError)
_NOTES: Final = NoteTable(
    dropped={
        "input-cut": "The pack is cut off or damaged: {count} of its recordings could be read.",
        "tables-damaged": "{count} of the exported tables [is|are] damaged and left out: {listed}.",
    }
)
TRACEFLOPS_PACK: Final = Format(
    "pack",
    lambda head: head.startswith(b"\xff\xff\xff\xff") and packed.PACK.encode() in head,
    lambda sources, _: [trace for source in sources for trace in traces_in(source)],
    is_checked=True,
)


def traces_in(source: ByteSource) -> list[Trace]:
    """Return the whole traces in a pack, with a note on damaged ones. Raises InputError if none."""
    try:
        schema = pa.ipc.open_stream(pa.BufferReader(source.head())).schema
    except _UNFIT as error:
        raise arrow_files.damaged_arrow(source, error, "pack") from None
    _check_version(source, schema)
    traces: list[Trace] = []
    is_damaged = False
    for parts in _parts(source):
        if parts is None:
            is_damaged = True
            continue
        try:
            traces.append(packed.trace_of(parts))
        except _UNFIT:
            is_damaged = True
    if not traces:
        raise InputError(f"nothing in the pack is whole: {source.label}", "copy it again")
    if is_damaged:
        lost = replace(_NOTES.note("input-cut", len(traces)), file=source.label)
        traces[0] = replace(traces[0], notes=(lost, *traces[0].notes))
    return traces


def _pack_in(source: ByteSource) -> ByteSource:
    """Return the pack that an HTML report embeds as base64. Raises InputError if it has none."""
    page = source.head(_MOST_BYTES)
    pack = _IN_PAGE.search(page)
    if pack is None and b"</html>" not in page[-_END_BYTES:]:
        raise InputError(f"the report is cut off: {source.label}", "copy it again")
    if pack is None:
        raise NotATrace(
            f"{source.label} is a report that holds no recording",
            "give the recording; the end of the page has its name",
        )
    try:
        content = base64.b64decode(pack[1], validate=True)
    except ValueError:
        raise InputError(
            f"the recording in the report is damaged: {source.label}", "copy it again"
        ) from None
    return ByteSource(source.name, lambda: io.BytesIO(content), label=source.label)


TRACEFLOPS_PAGE: Final = Format(
    "page",
    lambda head: head[:15].lower() == b"<!doctype html>" and _GENERATOR in head,
    lambda sources, _: [trace for source in sources for trace in traces_in(_pack_in(source))],
    is_checked=True,
)


def or_exported(format_: Format, opened: Callable[[ByteSource], arrow_files.ArrowTable]) -> Format:
    """Return `format_`, extended to the tables of `traceflops export`, which `opened` opens."""

    def read(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
        """Return one trace per exported folder, then the traces that `format_` reads."""
        folders: dict[str, list[tuple[packed.Head, arrow_files.ArrowTable]]] = {}
        others: list[ByteSource] = []
        for source in sources:
            try:
                table = opened(source)
                head = packed.described_head(table.schema)
            except (InputError, *_UNFIT):
                head = None
            if head is None:  # without traceflops metadata: not an exported table
                others.append(source)
            else:
                _check_version(source, table.schema)
                folders.setdefault(source.folder, []).append((head, table))
        traces = [_of_tables(tables) for tables in folders.values()]
        try:
            other_traces = format_.read(others, reading) if others else []
        except InputError:
            if not traces:
                raise
            # The exported tables can be used without the others: only note these.
            return [_without(traces[0], others), *traces[1:]]
        # Exported tables were checked when they were put together.
        return [*traces, *map(plausible, other_traces)]

    return replace(format_, read=read, is_checked=True)


def _of_tables(tables: Sequence[tuple[packed.Head, arrow_files.ArrowTable]]) -> Trace:
    """Return the trace of tables; damaged ones give a note, or an InputError if they are needed."""
    kept: dict[str, pa.Table] = {}
    lost: list[ByteSource] = []
    for head, table in tables:
        # An exported file has one table; the name "" makes `arrow_schema` refuse others.
        name = head.tables[0] if len(head.tables) == 1 else ""
        try:
            columns = arrow_schema(name).names
            schema = pa.schema([field for field in table.schema if field.name in columns])
            kept[name] = pa.Table.from_batches(table.batches(columns), schema)
        except _UNFIT:
            lost.append(table.source)
    first_head, first_table = tables[0]
    try:
        trace = packed.trace_of_tables(first_head, kept)
    except _UNFIT:
        raise InputError(
            f"the tables of a trace are not complete: {first_table.source.label}",
            "give the folder with all tables that traceflops export wrote, or export again",
        ) from None
    return _without(trace, lost) if lost else trace


def _without(trace: Trace, lost: Sequence[ByteSource]) -> Trace:
    """Return a trace with a note that lists the tables that could not be read."""
    listed = ", ".join(source.label for source in lost)
    return replace(
        trace, notes=(_NOTES.note("tables-damaged", len(lost), listed=listed), *trace.notes)
    )


def _check_version(source: ByteSource, schema: pa.Schema) -> None:
    """Raise InputError if the schema names no pack version or one newer than this program's."""
    try:
        version = int((schema.metadata or {})[packed.PACK.encode()])
    except _UNFIT as error:
        raise arrow_files.damaged_arrow(source, error, "pack") from None
    if version > packed.VERSION:
        raise InputError(
            f"a pack of a newer traceflops: {source.label} (version {version}, this one reads up "
            f"to {packed.VERSION})",
            "update traceflops, or pack the recording again with this version",
        )


def _parts(source: ByteSource) -> Iterator[list[packed.Part] | None]:
    """Yield the decompressed parts of each trace; yield None and stop at the first damage.

    Each row of the pack is one part. The last part of a trace has no `more` in its head.
    """
    parts: list[packed.Part] = []
    try:
        for batch in arrow_files.open_arrow(source, several=True).batches(packed.PARTS.names):
            for row in batch.to_pylist():
                if packed.checksum(row["head"], row["data"]) != row["crc32"]:
                    raise ValueError("the checksum does not fit")
                head = packed.head_of(row["head"])
                if head.bytes < 0:
                    raise ValueError("less than no bytes")
                source.refuse_expansion(head.bytes)
                plain = pa.Codec("zstd").decompress(row["data"], head.bytes, asbytes=True)
                stream = pa.BufferReader(plain)
                for _ in head.tables:  # each is a stream of its own
                    arrow_files.refuse_packed(stream, source)
                parts.append(packed.Part(head, plain))
                if not head.more:
                    yield parts
                    parts = []
    except _UNFIT:
        yield None
        return
    if parts:  # the pack ends within a trace
        yield None

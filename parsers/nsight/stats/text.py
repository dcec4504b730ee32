"""What `nsys stats` prints, made into plain CSV: without its messages, console tables as rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from traceflops.parsers.io import Bytes, ByteSource, Tables, header_in, line_starts
from traceflops.parsers.nsight.stats.console import Console

_MESSAGES: Final = re.compile(
    rb"(?:Processing \[|Generating |NOTICE: |NOTE: |WARNING: |ERROR: |SKIPPED: |Exporting \["
    rb"|Running \[|Using \S+ for SQL|Try |\s+It is assumed|\s+Consider using|\[\d+/\d+\]"
    rb"|\s*\*\* |==\w+==|Report |\s*\Z"
    rb"|\s*(?:CUDA (?:API|Kernel|Memory)|NVTX|Operating System) [^,;\t]*\Z)"
)
_BEGINNINGS: Final = (
    *(b"Proc", b"Gene", b"NOTI", b"NOTE", b"WARN", b"ERRO", b"SKIP", b"Expo", b"Runn", b"Usin"),
    *(b"Try ", b"Repo", b"    ", b" ** ", b"** C", b"** N", b"** O", b"==PR", b"==WA", b"==ER"),
    *(b"CUDA", b"NVTX", b"Oper", b"[1/1", b"[1/2", b"[2/2"),
)
_MARKED: Final = (b"==PR", b"==WA", b"==ER", b"==LO", b"==IN")
_MARKED_LINE: Final = re.compile(rb"==[A-Z]+==")
_NUMBER_CELL: Final = re.compile(rb'(?:^|[,;\t])"?-?\d[\d.]*"?(?=[,;\t\r\n]|\Z)')
_SEPARATORS: Final = (",", ";", "\t")
_LOOKED_AT: Final = 400
"""So many lines are looked at for the first header."""

_LEAST_BYTES: Final = 1 << 17

Filter = Callable[[ByteSource], Iterator[bytes]]


class Filtered(ByteSource):
    """A source of which something else is read than what it holds: `filter` makes it."""

    __slots__ = ("_filter", "_inner")

    def __init__(self, inner: ByteSource, filter_: Filter) -> None:
        super().__init__(inner.name, inner.opener, inner.stored_bytes, inner.path, inner.folder)
        self._inner, self._filter = inner, filter_

    def blocks(self) -> Iterator[bytes]:
        """Yield what the filter makes of the content."""
        yield from self._filter(self._inner)
        self.cut = self._inner.cut


def from_header(source: ByteSource, tables: Tables) -> Filtered:
    """Return the source from its first header on, without messages such as ==PROF==."""
    return Filtered(source, lambda inner: _from_header(inner, tables))


def _from_header(source: ByteSource, tables: Tables) -> Iterator[bytes]:
    blocks = whole_lines(source)
    first = next(blocks, b"").removeprefix(b"\xef\xbb\xbf")
    at = first_header(first, tables)
    yield without_messages(first if at is None else first[at:], _MARKED, _MARKED_LINE)
    for block in blocks:
        yield without_messages(block, _MARKED, _MARKED_LINE)


def whole_lines(source: ByteSource) -> Iterator[bytes]:
    """Yield the content in blocks of whole lines; the last may lack its end."""
    rest = b""
    for block in source.blocks():
        block = rest + block
        stop = block.rfind(b"\n") + 1
        if stop:
            yield block[:stop]
        rest = block[stop:]
        if len(rest) > 8 << 20:  # no line of a table is so long
            yield rest
            rest = b""
    if rest:
        yield rest


def plain_tables(blocks: Iterator[bytes], tables: Tables, console: Console) -> Iterator[bytes]:
    """Yield blocks of whole lines as CSV that has nothing but tables."""
    first = _beginning(blocks)
    if b"\r" in first and b"\n" not in first:
        first = first.replace(b"\r", b"\n")
    at = first_header(first, tables)
    if at is None:
        yield from console.rows(first)
        for block in blocks:
            yield from console.rows(block)
        return
    console.title = ""
    yield without_messages(first[at:], _BEGINNINGS, _MESSAGES)
    for block in blocks:
        yield without_messages(block, _BEGINNINGS, _MESSAGES)


def _beginning(blocks: Iterator[bytes]) -> bytes:
    """Return so many blocks that a header is among them where there is one."""
    found = b""
    for block in blocks:
        found += block
        if len(found) >= _LEAST_BYTES:
            break
    return found


def first_header(text: bytes, tables: Tables) -> int | None:
    """Return where the first header of CSV begins, None where there is none."""
    begin = 0
    for line in text.split(b"\n", _LOOKED_AT)[:_LOOKED_AT]:
        if any(mark.encode() in line for mark in _SEPARATORS):
            found = header_in(line.removesuffix(b"\r"), tables, _SEPARATORS, 0)
            if found is not None:
                return begin
        begin += len(line) + 1
    return None


def without_messages(
    text: bytes, beginnings: Sequence[bytes], messages: re.Pattern[bytes]
) -> bytes:
    """Return lines without those that are messages, by their first four bytes and a pattern."""
    data: Bytes = np.frombuffer(text, np.uint8)
    if not len(data):
        return text
    padded = np.append(data, np.frombuffer(b"\n\0\0\0", np.uint8))
    starts = line_starts(data if text.endswith(b"\n") else padded[: len(data) + 1])
    key = np.zeros(len(starts), np.int64)
    for place in range(4):
        key = key << 8 | padded[starts + place]
    wanted = np.isin(key, [int.from_bytes(one, "big") for one in beginnings])
    ends = np.append(starts[1:], len(text))
    parts, at = [], 0
    for line in np.flatnonzero(wanted).tolist():
        begin, end = int(starts[line]), int(ends[line])
        if messages.match(text, begin, end) and not is_row(text[begin:end]):
            parts.append(text[at:begin])
            at = end
    return b"".join([*parts, text[at:]]) if at else text


def is_row(line: bytes) -> bool:
    """Return whether a line is a row of a table, whatever its first cell reads: it has numbers."""
    return len(list(islice(_NUMBER_CELL.finditer(line), 2))) == 2

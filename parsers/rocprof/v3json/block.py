"""The text of many records of one kind into columns: what is done block by block."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.io import UNDECODABLE, mended
from traceflops.parsers.rocprof.v3json.records import KINDS, Columns
from traceflops.table import Array

_RAW: Final = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(slots=True)
class RecordBlock:
    """What a block gives: `records` of which `unreadable` are left out of everything else.

    `texts` and `kept` have one value per record or are empty; `mended` counts repairs by kind.
    """

    records: int
    columns: Columns = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    unreadable: int = 0
    mended: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        """How many rows the columns have."""
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def slim(self) -> None:
        """Hold one value of columns that have the same in all rows."""
        for name, column in self.columns.items():
            if len(column) and (column == column[0]).all():
                self.columns[name] = np.broadcast_to(column[0].copy(), column.shape)


class RecordReader:
    """Reads blocks of records of one kind; this is what a process that helps is given."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def check(self, text: bytes) -> int | None:
        """Return how many records a JSON list holds, None where it cannot be decoded."""
        try:
            return len(_RAW.decode(text))
        except UNDECODABLE:
            return None

    def read(self, text: bytes | memoryview) -> RecordBlock | None:
        """Return what a JSON list of records gives, None where it is no such list."""
        try:
            records = _decoder(self._kind, True).decode(text)
            return self._block(records, RecordBlock(len(records)))
        except UNDECODABLE:
            pass
        try:
            return self._one_by_one(_RAW.decode(text))
        except UNDECODABLE:
            return None

    def _one_by_one(self, texts: list[msgspec.Raw]) -> RecordBlock:
        """Return what is readable of records that somebody else wrote, or that are damaged."""
        decoder = _decoder(self._kind, False)
        block, records = RecordBlock(len(texts)), []
        for text in texts:
            done: list[str] = []
            # The decoder looks closely only at the fields that it builds: it may fail only here.
            for words, candidate in chain([("", bytes(text))], mended(bytes(text))):
                done.append(words)
                try:
                    records += decoder.decode(b"[" + candidate + b"]")
                    block.mended.update(filter(None, done))
                    break
                except UNDECODABLE:
                    continue
            else:
                block.unreadable += 1
        return self._block(records, block)

    def _block(self, records: list[Any], block: RecordBlock) -> RecordBlock:
        kind = KINDS[self._kind]
        block.columns = {n: narrow(column) for n, column in kind.columns(records).items()}
        block.texts, block.kept = kind.texts(records), kind.kept(records)
        return block


@cache
def _decoder(kind: str, strict: bool) -> msgspec.json.Decoder[list[Any]]:
    """Return the decoder of a list of records; one that is not strict reads numbers from texts."""
    list_type: Any = list.__class_getitem__(KINDS[kind].record)
    return msgspec.json.Decoder(list_type, strict=strict)


def narrow(values: Array) -> Array:
    """Return integers in half the memory where they fit; they wait there until all are read."""
    if values.dtype != np.int64 or not values.size:
        return values
    fits = int(values.min()) >= -(2**31) and int(values.max()) < 2**31
    return values.astype(np.int32) if fits else values

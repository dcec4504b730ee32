"""Names that the records of rocprofv3's JSON give by number: kernels, counters, messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np

from traceflops.parsers.io.databases.lookup import Lookup, TextsById, by_distinct
from traceflops.parsers.rocprof.v3json.block import RecordBlock
from traceflops.table.columns import IntArray
from traceflops.table.rows import ABSENT, Array, Names


def texts_of(blocks: Sequence[RecordBlock], key: str) -> TextsById:
    """Return the texts of a list by the numbers in one of its columns."""
    return TextsById(column_of(blocks, key), [text for block in blocks for text in block.texts])


def column_of(blocks: Sequence[RecordBlock], name: str) -> IntArray:
    """Return a column of all blocks of a list."""
    columns = [block.columns[name].astype(np.int64) for block in blocks]
    return np.concatenate(columns) if columns else np.empty(0, dtype=np.int64)


class NamesByNumber:
    """Texts by their numbers; one without a text is called by its number.

    `unknown` has the place of the number in it. `missing` are the numbers that were asked for and
    have no text.
    """

    def __init__(self, texts: TextsById, unknown: str) -> None:
        self.texts = texts
        self.missing: set[int] = set()
        self._unknown = unknown

    def codes(self, numbers: Array, names: Names) -> Array:
        """Return the codes that the texts of numbers have among names."""
        wide = numbers.astype(np.int64)
        codes = self.texts.coder(names, None)(wide)
        missing = codes < 0
        if missing.any():
            self.missing.update(np.unique(wide[missing]).tolist())
            codes[missing] = by_distinct(wide[missing], lambda one, _: names[self._called(one)])
        return codes

    def _called(self, number: int) -> str:
        return self._unknown.format("without a number" if number == ABSENT else number)


class Kernels(NamesByNumber):
    """The kernels that a process had loaded, by their numbers."""

    def __init__(self, blocks: Sequence[RecordBlock]) -> None:
        super().__init__(texts_of(blocks, "kernel"), "(unknown kernel {})")
        ids, registers = column_of(blocks, "kernel"), column_of(blocks, "registers")
        self._registers = Lookup(ids, np.where(registers > 0, registers, ABSENT))
        self._clashing = _clashing(ids, self.texts.texts)

    def registers(self, kernels: Array) -> IntArray:
        """Return the registers of kernels."""
        return self._registers(kernels.astype(np.int64))

    def clashes(self, kernels: Array) -> int:
        """Return of how many launches the kernel's number stands for two names."""
        return int(np.count_nonzero(np.isin(kernels, self._clashing)))


def _clashing(ids: IntArray, texts: Sequence[str | None]) -> IntArray:
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    pairs = zip(order[same].tolist(), order[same + 1].tolist(), strict=True)
    differ = [texts[first] != texts[second] for first, second in pairs]
    return np.array(list(compress(ids[order[same]].tolist(), differ)), dtype=np.int64)

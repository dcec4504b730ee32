"""Reads one CSV of rocprof into the rows of its processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from traceflops.parsers.io import TEXT_BLOCK_BYTES, ByteSource, Column, CsvBlock, CsvText, Texts
from traceflops.parsers.rocprof.tables.counts import add_counters, add_wide
from traceflops.parsers.rocprof.tables.host import Pushes, add_calls, add_scratch
from traceflops.parsers.rocprof.tables.plans import ROCPROF_TABLES, RocprofTable
from traceflops.parsers.rocprof.tables.totals import add_totals
from traceflops.parsers.rocprof.tables.work import (
    add_copies,
    add_graphs,
    add_kernels,
    add_operations,
)
from traceflops.parsers.shared import Cut, ProcessPart, TableFile, Tally

_MOST_AGENTS: Final = 4_096
_ADDERS: Final[dict[str, Callable[[Cut, ProcessPart, Tally], None]]] = {
    "kernels": add_kernels,
    "copies": add_copies,
    "graphs": add_graphs,
    "operations": add_operations,
    "calls": add_calls,
    "scratch": add_scratch,
    "counters": add_counters,
}
_TIMES: Final = ("start", "end", "dispatched", "completed")
_ASCENDING: Final = (("start", "end"), ("end", "completed"))
_UNCOUNTED: Final = ("calls", "agents", "system")
"""Tables whose rows are counted by what they are, or are no records."""


def read_table(source: ByteSource, block_bytes: int = TEXT_BLOCK_BYTES) -> TableFile:
    """Return what a file says; no layout where it is none of rocprof's tables after all."""
    text = CsvText(source, ROCPROF_TABLES, block_bytes)
    file = TableFile(source, damage=text.damage)
    pushes = Pushes()
    for block in text:
        _take(block, file, pushes)
    if text.plan is not None:
        _note_layout(file, text.plan.what)
    pushes.finish(file.tally)
    _leave_out_means(file)
    return file


def _leave_out_means(file: TableFile) -> None:
    """Leave out times beside counters that are no whole numbers: means over several passes."""
    bad = file.damage.bad_cells
    if file.kinds == {"wide"} and (bad["start"] or bad["end"]):
        for part in file.parts.values():
            part.beside = None
        for role in _TIMES:
            del bad[role]


def _note_layout(file: TableFile, table: RocprofTable) -> None:
    if table.layout not in file.layouts:
        file.layouts.append(table.layout)
    file.kinds.add(table.what)


def _take(block: CsvBlock, file: TableFile, pushes: Pushes) -> None:
    """Add the rows of a block to those of the file."""
    table: RocprofTable = block.plan.what
    _note_layout(file, table)
    if table.what == "agents":
        file.agents += _records(block, _MOST_AGENTS - len(file.agents))
        return
    if table.what == "system":
        file.system = file.system or _records(block, 1)[0]
        return
    if block.last_is_open and _is_cut(block):
        file.damage.cut_bytes = 0
        block = _without_last(block)
    if table.what not in _UNCOUNTED:
        file.tally.events[table.layout.name] += block.rows
    for part, cut in file.cuts(block):
        part.section = file.damage.repeated_headers
        _add(table, cut, part, file, pushes)


def _add(table: RocprofTable, cut: Cut, part: ProcessPart, file: TableFile, pushes: Pushes) -> None:
    """Add rows of one process."""
    if table.what == "wide":
        add_wide(cut, part, table.counters)
        if cut.has("start"):
            beside = part.times_beside()
            add_kernels(cut, beside.part, beside.tally)
    elif table.what == "totals":
        add_totals(cut, part, file.source.label)
    elif table.what == "pushes":
        pushes.add(cut, part, file.tally)
    elif table.what == "events":
        part.records += cut.count
    elif table.what in _ADDERS:
        _ADDERS[table.what](cut, part, file.tally)


def _records(block: CsvBlock, most: int) -> list[dict[str, str]]:
    """Return the first rows of a small table as texts by the names of its columns."""
    names = list(block.columns)
    first = Cut(block.rows, block.columns).only(np.arange(min(block.rows, most)))
    columns = (list(_texts(first.columns[name])) for name in names)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _texts(column: Column) -> Iterator[str]:
    if isinstance(column, Texts):
        for code in column.codes.tolist():
            yield column.values[code]


def _is_cut(block: CsvBlock) -> bool:
    """Return whether the last row ends before it starts, as one does whose last digits are lost."""
    return any(_falls(block.columns.get(one), block.columns.get(two)) for one, two in _ASCENDING)


def _falls(first: Column | None, second: Column | None) -> bool:
    """Return whether the later time of the last row is before the earlier one."""
    if first is None or second is None or isinstance(first, Texts) or isinstance(second, Texts):
        return False
    return bool(0 <= second[-1] < first[-1])


def _without_last(block: CsvBlock) -> CsvBlock:
    kept = Cut(block.rows, block.columns).only(np.arange(block.rows - 1))
    return CsvBlock(block.plan, kept.count, kept.columns, last_is_open=False)

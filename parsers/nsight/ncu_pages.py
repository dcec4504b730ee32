"""Reads a CSV file of Nsight Compute, page by page, into counters of kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from traceflops.parsers.io import (
    TEXT_BLOCK_BYTES,
    ByteSource,
    CsvBlock,
    CsvText,
    Cut,
    Damage,
    Texts,
)
from traceflops.parsers.nsight.ncu_layouts import NCU_TABLES, Page
from traceflops.parsers.nsight.ncu_rules import KINDS, SPEEDUP_KINDS, one_of, shares
from traceflops.parsers.nsight.ncu_values import Marks, unit_of, values_of
from traceflops.parsers.nsight.stats_rows import sizes_in, texts_of, triple
from traceflops.parsers.nsight.stats_text import from_header
from traceflops.parsers.shared import chosen
from traceflops.table import (
    ABSENT,
    Array,
    IntArray,
    Names,
    TableBuilder,
    compact,
    group_rows,
    ranked,
)

UNNAMED: Final = "(unnamed kernel)"
_OWN_METRICS: Final = "Command line profiler metrics"
_MOST_HOSTS: Final = 100
_MOST_PAGES: Final = 100
FACTS: Final = ("device__attribute_display_name", "device__attribute_multiprocessor_count")
_GRIDS: Final = ("Launch Statistics|Grid Size|", "launch__grid_size")
_BLOCKS: Final = ("Launch Statistics|Block Size|", "launch__block_size")


@dataclass(slots=True)
class NcuPage:
    """What one page says. In the column `device` stand places in `devices`: (number, CC).

    `values` are those of the column `value`, read with the point for decimals and with the comma
    until it is known which it is, and `odd_either_way` what is odd then; `speedups` are as printed.
    `repetition` is its pass, `processes` are by process id what is one process in every pass; both
    are known at the end.
    """

    source: ByteSource
    page: Page
    table: TableBuilder = field(default_factory=lambda: TableBuilder("kernel_counters"))
    rules: TableBuilder = field(default_factory=lambda: TableBuilder("kernel_rules"))
    values: list[Array] = field(default_factory=list)
    speedups: list[str] = field(default_factory=list)
    odd_either_way: tuple[Counter[str], Counter[str]] = field(
        default_factory=lambda: (Counter(), Counter())
    )
    devices: Names = field(default_factory=Names)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    units: dict[str, str] = field(default_factory=dict)
    repetition: int = 0
    processes: dict[int, int] = field(default_factory=dict)

    def add(self, values: Array, **columns: Array | int) -> None:
        """Add values, one column for each decimal mark, where one of the two is a number."""
        known = np.isfinite(values).any(axis=0)
        count = int(np.count_nonzero(known))
        if not count:
            return
        same = np.array_equal(values[0], values[1], equal_nan=True)
        self.values.append(values[: 2 - same, known])
        cut = {n: c if np.ndim(c) == 0 else np.asarray(c)[known] for n, c in columns.items()}
        self.table.add(count, value=values[0][known], **cut)


@dataclass(slots=True)
class NcuFile:
    """What a file says: its pages in order, facts of the recording, what is odd about its text."""

    source: ByteSource
    pages: list[NcuPage] = field(default_factory=list)
    hosts: Names = field(default_factory=Names)
    damage: Damage = field(default_factory=Damage)
    marks: Marks = field(default_factory=Marks)
    facts: dict[str, str] = field(default_factory=dict)


def read_ncu(source: ByteSource, block_bytes: int = TEXT_BLOCK_BYTES) -> NcuFile:
    """Return what a file says; no page where it is none after all."""
    text = CsvText(from_header(source, NCU_TABLES), NCU_TABLES, block_bytes)
    file = NcuFile(source, damage=text.damage)
    plan = None
    for block in text:
        if block.plan is not plan:
            plan = block.plan
            _begin(file, plan.what)
        _take(block, file)
    if not file.pages and text.plan is not None:
        _begin(file, text.plan.what)
    file.damage.repeated_headers = 0  # each header begins a page of its own
    for page in file.pages:
        _settle(page, file.marks)
        fill_sizes(page.table)
    return file


def _begin(file: NcuFile, page: Page) -> NcuPage:
    """Begin another page; of very many the last one goes on."""
    if len(file.pages) < _MOST_PAGES:
        file.pages.append(NcuPage(file.source, page))
    return file.pages[-1]


def _settle(page: NcuPage, marks: Marks) -> None:
    """Take the values as they read with the file's decimal mark; those that are none are left."""
    page.odd += page.odd_either_way[marks.comma]
    if page.table.count:
        values = np.concatenate([piece[-1 if marks.comma else 0] for piece in page.values])
        page.table.replace("value", values)
        page.table = chosen(page.table, np.isfinite(values))
        page.table.join()
    if page.speedups:
        page.rules.replace("speedup_share", shares(page.speedups, comma=marks.comma))


def _take(block: CsvBlock, file: NcuFile) -> None:
    cut = Cut(block.rows, block.columns)
    hosts, host = texts_of(cut, "host")
    for code in np.unique(host).tolist()[:_MOST_HOSTS]:
        file.hosts[hosts[code]]
    if block.plan.what.metrics:
        _take_raw(cut, file)
    else:
        _add_details(cut, file.pages[-1], file.marks)


def _add_details(cut: Cut, page: NcuPage, marks: Marks) -> None:
    """Add metrics that stand in a row each, and rules, which stand in rows without one."""
    labels, label = texts_of(cut, "label")
    is_metric = np.array([bool(text.strip()) for text in labels], np.bool_)[label]
    page.rows["rules"] += int(np.count_nonzero(~is_metric))
    page.rows["metrics"] += int(np.count_nonzero(is_metric))
    _add_rules(cut.only(~is_metric), page)
    cut = cut.only(is_metric)
    if not cut.count:
        return
    labels, label = texts_of(cut, "label")
    sections, section = texts_of(cut, "section")
    units, unit = texts_of(cut, "unit")
    kind, first = group_rows([section, label, unit])
    kinds = [(sections[section[at]], labels[label[at]], units[unit[at]]) for at in first.tolist()]
    named = [(counter_name(*a_kind), a_kind[2]) for a_kind in kinds]
    counters = page.table.names["counter"].codes(name for name, _ in named)
    page.add(
        values_of(*texts_of(cut, "value"), named, kind, page.odd_either_way, marks),
        **_launch(cut, page),
        counter=counters[kind],
    )


def _add_rules(cut: Cut, page: NcuPage) -> None:
    """Add what rules say."""
    if not cut.count or not cut.has("rule"):
        return
    launch, names = _launch(cut, page), page.rules.names
    kinds, kind = texts_of(cut, "kind")
    words, word = texts_of(cut, "speedup_kind")
    speedups, speedup = texts_of(cut, "speedup")
    page.speedups += [speedups[one] for one in speedup.tolist()]
    page.rules.add(
        cut.count,
        **{name: launch[name] for name in ("process", "device", "dispatch")},
        name=cut.codes("name", names["name"], UNNAMED),
        **{role: cut.codes(role, names[role]) for role in ("section", "rule", "text")},
        kind=_known(kinds, KINDS, names["kind"])[kind],
        speedup_kind=_known(words, SPEEDUP_KINDS, names["speedup_kind"])[word],
    )


def _known(texts: Sequence[str], words: Sequence[str], names: Names) -> Array:
    """Return the codes of texts that are among some words, -1 for others."""
    found = (one_of(words, text) for text in texts)
    return np.array([-1 if word is None else names[word] for word in found], np.int32)


def counter_name(section: str, label: str, unit: str) -> str:
    """Return the name of a counter: of a metric its own, else section, label and base unit.

    The same label stands in several sections for different things.
    """
    label = label.strip()
    if "__" in label or section == _OWN_METRICS:
        return label
    return f"{section.strip()}|{label}|{unit_of(unit).base}"


def _take_raw(cut: Cut, file: NcuFile) -> None:
    """Add rows of a raw page; a row without kernel holds the units of those behind it."""
    names, name = texts_of(cut, "name")
    is_kernel = np.array([bool(text.strip()) for text in names], np.bool_)[name]
    is_kernel |= cut.numbers("id") != ABSENT
    kernels, units = np.flatnonzero(is_kernel), np.flatnonzero(~is_kernel)
    row_of_units = np.append(-1, units)[np.searchsorted(units, kernels)]
    edges = [0, *np.searchsorted(kernels, units).tolist(), len(kernels)]
    stretches = [(file.pages[-1], 0)]
    for at, (begin, end) in enumerate(pairwise(edges)):
        if at:  # one row of units before each stretch of kernels but the first
            page = file.pages[-1]
            if page.rows["units"] or page.rows["kernels"]:
                page = _begin(file, page.page)
            page.rows["units"] += 1
            if page is not stretches[-1][0]:
                stretches.append((page, begin))
        file.pages[-1].rows["kernels"] += end - begin
    ends = [*(begin for _, begin in stretches[1:]), len(kernels)]
    for (page, begin), end in zip(stretches, ends, strict=True):
        if end > begin:
            _add_raw(cut, kernels[begin:end], row_of_units[begin:end], page, file.marks)
    if len(units):
        page = file.pages[-1]
        page.units = {r: _units(cut, r, units[-1:], "")[0][0] for r in page.page.metrics}


def _add_raw(
    block: Cut, rows: IntArray, row_of_units: IntArray, page: NcuPage, marks: Marks
) -> None:
    """Add metrics that stand in a column each, with the units in their rows of the block."""
    cut = block.only(rows)
    launch = _launch(cut, page)
    texts: list[str] = []
    units: list[tuple[str, str]] = []
    text_of, unit_of_row, counters = [], [], []
    for role, metric in page.page.metrics.items():
        mine, text = texts_of(cut, role)
        if metric in FACTS:
            _note_facts(page, metric, [mine[one] for one in text.tolist()], launch["device"])
        own, unit = _units(block, role, row_of_units, page.units.get(role, ""))
        text_of.append(text + len(texts))
        unit_of_row.append(unit + len(units))
        texts += mine
        units += [(metric, one) for one in own]
        counters.append(page.table.names["counter"][metric])
    every = np.tile(np.arange(cut.count), len(counters))
    text, unit = np.concatenate(text_of), np.concatenate(unit_of_row)
    page.add(
        values_of(texts, text, units, unit, page.odd_either_way, marks),
        **{n: c if np.ndim(c) == 0 else np.asarray(c)[every] for n, c in launch.items()},
        counter=np.repeat(np.array(counters, np.int32), cut.count),
    )


def _units(
    block: Cut, role: str, row_of_units: IntArray, before: str
) -> tuple[list[str], IntArray]:
    """Return the distinct units of a column and which each row has: with -1 the one `before`."""
    column = block.columns.get(role)
    if not isinstance(column, Texts):
        return [before], np.zeros(len(row_of_units), np.int64)
    code = np.where(row_of_units < 0, -1, column.codes[row_of_units])
    distinct, unit = ranked(code)
    return [before if one < 0 else column.values[one] for one in distinct.tolist()], unit


def _note_facts(page: NcuPage, metric: str, texts: Sequence[str], device: Array | int) -> None:
    """Keep what the first row of each device says of it."""
    names = list(page.devices)
    for number, at in zip(*np.unique(device, return_index=True), strict=True):
        page.facts.setdefault(names[number], {}).setdefault(metric, texts[at].strip())


def _launch(cut: Cut, page: NcuPage) -> dict[str, Array | int]:
    """Return the columns that say of which launch a row is; `process` holds process ids."""
    sizes = [texts_of(cut, role) for role in ("grid", "block")]
    grid_size, block_size = (np.array([*map(product, t), 0], np.int64)[at] for t, at in sizes)
    grid, block = (np.array([*map(triple, t)], np.int64).reshape(-1, 3)[at] for t, at in sizes)
    known = (grid_size > 0) & (block_size > 0)
    known &= grid_size.astype(np.float64) * block_size < 2.0**62
    return {
        "process": compact(cut.numbers("pid")),
        "device": _devices(cut, page.devices),
        "name": cut.codes("name", page.table.names["name"], UNNAMED),
        "dispatch": compact(cut.numbers("id")),
        "threads": np.where(known, grid_size * np.where(known, block_size, 1), ABSENT),
        "block_threads": np.where(block_size > 0, block_size, ABSENT),
        "grid": grid,
        "block": block,
    }


def _devices(cut: Cut, names: Names) -> Array:
    numbers, number = texts_of(cut, "device")
    capabilities, capability = texts_of(cut, "cc")
    pair, first = group_rows([number, capability])
    codes = [f"{numbers[number[at]]}|{capabilities[capability[at]]}" for at in first.tolist()]
    return names.codes(codes)[pair]


def product(text: str) -> int:
    """Return the product of sizes such as (224, 1, 1); -1 where there are none."""
    sizes = sizes_in(text)
    total = math.prod(sizes)
    return total if 0 < len(sizes) <= 3 and 0 < total < 2**62 else -1


def fill_sizes(table: TableBuilder) -> None:
    """Fill in the sizes of launches that stand among the counters only, as in old pages."""
    threads = table.column("threads")
    lacking = threads == ABSENT
    if not lacking.any():
        return
    launch, _ = group_rows([table.column("process"), table.column("dispatch")])
    grid, block = (_of_launch(table, launch, names) for names in (_GRIDS, _BLOCKS))
    known = lacking & (grid > 0) & (block > 0)
    table.replace("threads", np.where(known, grid * block, threads))
    own = table.column("block_threads")
    table.replace("block_threads", np.where((own == ABSENT) & (block > 0), block, own))


def _of_launch(table: TableBuilder, launch: IntArray, wanted: Iterable[str]) -> IntArray:
    """Return, per row, the value of a counter of its launch; 0 where it has none."""
    names = table.names["counter"]
    codes = [code for name, code in names.items() if name.startswith(tuple(wanted))]
    rows = np.isin(table.column("counter"), codes)
    by_launch = np.zeros(int(launch.max(initial=0)) + 1)
    value = table.column("value")
    usable = rows & (value > 0) & (value < 2**31)
    by_launch[launch[usable]] = value[usable]
    return by_launch[launch].astype(np.int64)

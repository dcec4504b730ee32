"""Reads a CSV file of Nsight Compute, page by page, into counters of kernels."""

from __future__ import annotations

import re
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
from traceflops.parsers.nsight.ncu.plans import NCU_TABLES, Page
from traceflops.parsers.nsight.ncu.values import Marks, Values, unit_of, values_of
from traceflops.parsers.nsight.stats.text import from_header
from traceflops.parsers.shared import chosen
from traceflops.table import (
    ABSENT,
    Array,
    BoolArray,
    IntArray,
    Names,
    TableBuilder,
    compact,
    joint_codes,
    ranked,
)

_UNNAMED: Final = "(unnamed kernel)"
_OWN_METRICS: Final = "Command line profiler metrics"
_MOST_HOSTS: Final = 100
_MOST_PAGES: Final = 100
_FACTS: Final = ("device__attribute_display_name", "device__attribute_multiprocessor_count")


@dataclass(slots=True)
class NcuPage:
    """What one page says. In the column `device` stand places in `devices`: (number, CC).

    `values` are those of the column `value`, read with either decimal mark until it is known.
    """

    source: ByteSource
    page: Page
    table: TableBuilder = field(default_factory=lambda: TableBuilder("kernel_counters"))
    values: Values = field(default_factory=Values)
    devices: Names = field(default_factory=Names)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    units: dict[str, str] = field(default_factory=dict)

    def add(self, values: Array, **columns: Array | int) -> None:
        """Add values, one column for each decimal mark, where one of the two is a number."""
        known = np.isfinite(values).any(axis=0)
        count = int(np.count_nonzero(known))
        if not count:
            return
        self.values.add(values[:, known])
        cut = {n: c if np.ndim(c) == 0 else np.asarray(c)[known] for n, c in columns.items()}
        self.table.add(count, value=values[0][known], **cut)


@dataclass(slots=True)
class NcuFile:
    """What a file says: its pages in order, and what is odd about its text."""

    source: ByteSource
    pages: list[NcuPage] = field(default_factory=list)
    hosts: Names = field(default_factory=Names)
    damage: Damage = field(default_factory=Damage)
    marks: Marks = field(default_factory=Marks)


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
    values, odd = page.values.read(comma=marks.comma)
    page.odd += odd
    if page.table.count:
        page.table.replace("value", values)
        page.table = chosen(page.table, np.isfinite(values))
        page.table.join()


def _take(block: CsvBlock, file: NcuFile) -> None:
    cut = Cut(block.rows, block.columns)
    hosts, host = _texts(cut, "host")
    for code in np.unique(host).tolist()[:_MOST_HOSTS]:
        file.hosts[hosts[code]]
    if block.plan.what.name == "raw":
        _take_raw(cut, file)
    else:
        _add_details(cut, file.pages[-1], file.marks)


def _texts(cut: Cut, role: str) -> tuple[list[str], IntArray]:
    """Return the distinct texts of a column, and the place of each row among them."""
    names = Names()
    codes = np.asarray(cut.codes(role, names, ""), np.int64)
    return list(names), codes


def _add_details(cut: Cut, page: NcuPage, marks: Marks) -> None:
    """Add metrics that stand in a row each; rows of rules have none."""
    labels, label = _texts(cut, "label")
    is_metric = np.array([bool(text.strip()) for text in labels], np.bool_)[label]
    page.rows["rules"] += int(np.count_nonzero(~is_metric))
    page.rows["metrics"] += int(np.count_nonzero(is_metric))
    cut = cut.only(is_metric)
    if not cut.count:
        return
    labels, label = _texts(cut, "label")
    sections, section = _texts(cut, "section")
    units, unit = _texts(cut, "unit")
    _, first, kind = np.unique(
        joint_codes(joint_codes(section, label), unit), return_index=True, return_inverse=True
    )
    named = [
        counter_name(sections[section[at]], labels[label[at]], units[unit[at]])
        for at in first.tolist()
    ]
    names = page.table.names["counter"]
    counters = np.array([names[one] for one in named], np.int32)
    told = [(name, units[unit[at]]) for name, at in zip(named, first.tolist(), strict=True)]
    page.add(
        values_of(*_texts(cut, "value"), told, kind.reshape(-1), page.values, marks),
        **_launch(cut, page),
        counter=counters[kind],
    )


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
    names, name = _texts(cut, "name")
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
        page.units = {role: _cell(cut, role, int(units[-1])) for role in page.page.metrics}


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
        mine, text = _texts(cut, role)
        if metric in _FACTS:
            _note_facts(
                page, metric, [mine[one] for one in text.tolist()], np.asarray(launch["device"])
            )
        found, unit = _units(block, role, row_of_units, page.units.get(role, ""))
        text_of.append(text + len(texts))
        unit_of_row.append(unit + len(units))
        texts += mine
        units += [(metric, one) for one in found]
        counters.append(page.table.names["counter"][metric])
    every = np.tile(np.arange(cut.count), len(counters))
    page.add(
        values_of(
            *(texts, np.concatenate(text_of), units, np.concatenate(unit_of_row)),
            *(page.values, marks),
        ),
        **{
            name: column if np.ndim(column) == 0 else np.asarray(column)[every]
            for name, column in launch.items()
        },
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


def _note_facts(page: NcuPage, metric: str, texts: Sequence[str], device: Array) -> None:
    """Keep what the first row of each device says of it."""
    names = list(page.devices)
    for number, at in zip(*np.unique(device, return_index=True), strict=True):
        page.facts.setdefault(names[number], {}).setdefault(metric, texts[at].strip())


def _cell(cut: Cut, role: str, row: int) -> str:
    column = cut.columns.get(role)
    return column.values[column.codes[row]] if isinstance(column, Texts) else ""


def _launch(cut: Cut, page: NcuPage) -> dict[str, Array | int]:
    """Return the columns that say of which launch a row is; `process` holds process ids."""
    (grids, grid), (blocks, block) = (_texts(cut, role) for role in ("grid", "block"))
    grid_size, block_size = (
        np.array([product(one) for one in texts] or [0], np.int64)[text]
        for texts, text in ((grids, grid), (blocks, block))
    )
    known = (grid_size > 0) & (block_size > 0)
    known &= grid_size.astype(np.float64) * block_size < 2.0**62
    return {
        "process": compact(cut.numbers("pid")),
        "device": _devices(cut, page.devices),
        "name": cut.codes("name", page.table.names["name"], _UNNAMED),
        "dispatch": compact(cut.numbers("id")),
        "threads": np.where(known, grid_size * np.where(known, block_size, 1), ABSENT),
        "block_threads": np.where(block_size > 0, block_size, ABSENT),
        "grid": np.array([triple(one) for one in grids], np.int64).reshape(-1, 3)[grid],
        "block": np.array([triple(one) for one in blocks], np.int64).reshape(-1, 3)[block],
    }


def _devices(cut: Cut, names: Names) -> Array:
    numbers, number = _texts(cut, "device")
    capabilities, capability = _texts(cut, "cc")
    _, first, pair = np.unique(
        joint_codes(number, capability), return_index=True, return_inverse=True
    )
    codes = [f"{numbers[number[at]]}|{capabilities[capability[at]]}" for at in first.tolist()]
    return names.codes(codes)[pair.reshape(-1)]


_SIZES: Final = re.compile(r"\d{1,10}")
_UNKNOWN: Final = (ABSENT,) * 3


def product(text: str) -> int:
    """Return the product of sizes such as (224, 1, 1); -1 where there are none."""
    sizes = [int(one) for one in _SIZES.findall(text[:100])]
    found = 1
    for size in sizes:
        found *= size
    return found if sizes and len(sizes) <= 3 and 0 < found < 2**62 else -1


def triple(text: str) -> tuple[int, int, int]:
    """Return sizes by axis; ABSENT where there are not three."""
    sizes = [int(one) for one in _SIZES.findall(text[:100])]
    if len(sizes) != 3 or not all(0 < size < 2**31 for size in sizes):
        return _UNKNOWN
    return sizes[0], sizes[1], sizes[2]


_GRIDS: Final = ("Launch Statistics|Grid Size|", "launch__grid_size")
_BLOCKS: Final = ("Launch Statistics|Block Size|", "launch__block_size")


def fill_sizes(table: TableBuilder) -> None:
    """Fill in the sizes of launches that stand among the counters only, as in old pages."""
    threads = table.column("threads")
    lacking = threads == ABSENT
    if not lacking.any():
        return
    launch = joint_codes(table.column("process"), table.column("dispatch"))
    launch = np.unique(launch, return_inverse=True)[1].reshape(-1)
    grid, block = (_of_launch(table, launch, names) for names in (_GRIDS, _BLOCKS))
    known = lacking & (grid > 0) & (block > 0)
    table.replace("threads", np.where(known, grid * block, threads))
    own = table.column("block_threads")
    table.replace("block_threads", np.where((own == ABSENT) & (block > 0), block, own))


def _of_launch(table: TableBuilder, launch: IntArray, wanted: Iterable[str]) -> IntArray:
    """Return, per row, the value of a counter of its launch; 0 where it has none."""
    names = table.names["counter"]
    codes = [code for name, code in names.items() if name.startswith(tuple(wanted))]
    rows: BoolArray = np.isin(table.column("counter"), codes)
    found = np.zeros(int(launch.max(initial=0)) + 1)
    value = table.column("value")
    usable = rows & (value > 0) & (value < 2**31)
    found[launch[usable]] = value[usable]
    return found[launch].astype(np.int64)

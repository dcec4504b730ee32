"""Reads a CSV page of Nsight Compute into counters of kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.builder import TableBuilder
from traceflops.columns import BoolArray, IntArray
from traceflops.groups import joint_codes
from traceflops.parsers.csvfiles.cells import Texts
from traceflops.parsers.csvfiles.parts import Cut, compact
from traceflops.parsers.csvfiles.text import BLOCK_BYTES, Block, CsvText, Damage
from traceflops.parsers.inputs import ByteSource
from traceflops.parsers.nsight.ncu.plans import NCU_TABLES, Page
from traceflops.parsers.nsight.ncu.units import unit_of, value_of
from traceflops.parsers.nsight.stats.text import clear_mark, from_header
from traceflops.rows import ABSENT, Array, Names

_UNNAMED: Final = "(a kernel without a name)"
_OWN_METRICS: Final = "Command line profiler metrics"
_SIZES: Final = re.compile(r"\d{1,10}")
_MOST_HOSTS: Final = 100
_FACTS: Final = ("device__attribute_display_name", "device__attribute_multiprocessor_count")


@dataclass(slots=True)
class NcuFile:
    """What a page says. In the column `device` stand places in `devices`: (number, CC)."""

    source: ByteSource
    table: TableBuilder = field(default_factory=lambda: TableBuilder("kernel_counters"))
    devices: Names = field(default_factory=Names)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    hosts: Names = field(default_factory=Names)
    pages: dict[str, Page] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    damage: Damage = field(default_factory=Damage)
    comma: bool | None = None
    units: dict[str, str] = field(default_factory=dict)


def read_ncu(source: ByteSource, block_bytes: int = BLOCK_BYTES) -> NcuFile:
    """Return what a file says; no page where it is none after all."""
    text = CsvText(from_header(source, NCU_TABLES), NCU_TABLES, block_bytes)
    file = NcuFile(source, damage=text.damage)
    for block in text:
        _take(block, file)
    if text.plan is not None:
        file.pages.setdefault(text.plan.what.layout, text.plan.what)
    fill_sizes(file.table)
    return file


def _take(block: Block, file: NcuFile) -> None:
    page: Page = block.plan.what
    file.pages.setdefault(page.layout, page)
    cut = Cut(block.rows, block.columns)
    for code in np.unique(_texts(cut, "host")[1]).tolist()[:_MOST_HOSTS]:
        file.hosts[_texts(cut, "host")[0][code]]
    _tell_decimal_mark(file, cut, page)
    if page.name == "raw":
        _add_raw(cut, page, file)
    else:
        _add_details(cut, file)


def _texts(cut: Cut, role: str) -> tuple[list[str], IntArray]:
    """Return the distinct texts of a column, and the place of each row among them."""
    names = Names()
    codes = np.asarray(cut.codes(role, names, ""), np.int64)
    return list(names), codes


def _tell_decimal_mark(file: NcuFile, cut: Cut, page: Page) -> None:
    """Find out from numbers of which it is clear whether a comma is the decimal mark."""
    if file.comma is not None:
        return
    for role in page.metrics or ("value",):
        column = cut.columns.get(role)
        marks = (clear_mark(t.strip()) for t in column.values) if isinstance(column, Texts) else ()
        told = next((mark for mark in marks if mark is not None), None)
        if told is not None:
            file.comma = told == ","
            return


def _add_details(cut: Cut, file: NcuFile) -> None:
    """Add metrics that stand in a row each; rows of rules have none."""
    labels, label = _texts(cut, "label")
    is_metric = np.array([bool(text.strip()) for text in labels], np.bool_)[label]
    file.rows["rules"] += int(np.count_nonzero(~is_metric))
    file.rows["metrics"] += int(np.count_nonzero(is_metric))
    cut = cut.only(is_metric)
    if not cut.count:
        return
    labels, label = _texts(cut, "label")
    sections, section = _texts(cut, "section")
    units, unit = _texts(cut, "unit")
    texts, text = _texts(cut, "value")
    _, first, kind = np.unique(
        joint_codes(joint_codes(section, label), unit), return_index=True, return_inverse=True
    )
    names = file.table.names["counter"]
    counters = np.array(
        [
            names[counter_name(sections[section[at]], labels[label[at]], units[unit[at]])]
            for at in first.tolist()
        ],
        np.int32,
    )
    value = _values(texts, text, units, unit, file)
    known = np.isfinite(value)
    file.table.add(
        int(np.count_nonzero(known)),
        **_launch(cut.only(known), file),
        counter=counters[kind][known],
        value=value[known],
    )


def counter_name(section: str, label: str, unit: str) -> str:
    """Return the name of a counter: of a metric its own, else section, label and base unit.

    The same label stands in several sections for different things.
    """
    label = label.strip()
    if "__" in label or section == _OWN_METRICS:
        return label
    return f"{section.strip()}|{label}|{unit_of(unit).base}"


def _values(
    texts: list[str], text: IntArray, units: list[str], unit: IntArray, file: NcuFile
) -> Array:
    """Return values in base units, NaN for what is no number; what those are is counted."""
    pairs, place, times = np.unique(
        joint_codes(text, unit), return_inverse=True, return_counts=True
    )
    width = int(unit.max(initial=0)) + 1
    found = np.full(len(pairs), np.nan)
    for at, pair in enumerate(pairs.tolist()):
        what, value = value_of(texts[pair // width], comma=bool(file.comma))
        power = unit_of(units[pair % width]).power
        if value is None:
            file.odd[what] += int(times[at])
        else:
            found[at] = float(value.scaleb(power))
            file.odd["scaled"] += int(times[at]) if power and value else 0
    return found[place.reshape(-1)]


def _add_raw(cut: Cut, page: Page, file: NcuFile) -> None:
    """Add metrics that stand in a column each; the row without kernel holds their units."""
    names, name = _texts(cut, "name")
    is_kernel = np.array([bool(text.strip()) for text in names], np.bool_)[name]
    is_kernel |= cut.numbers("id") != ABSENT
    for row in np.flatnonzero(~is_kernel).tolist()[:1]:
        file.units = {role: _cell(cut, role, row) for role in page.metrics}
    file.rows["units"] += int(np.count_nonzero(~is_kernel))
    cut = cut.only(is_kernel)
    file.rows["kernels"] += cut.count
    if not cut.count:
        return
    launch = _launch(cut, file)
    for role, metric in page.metrics.items():
        texts, text = _texts(cut, role)
        if metric in _FACTS:
            _note_fact(file, metric, texts[text[0]], int(np.asarray(launch["device"]).flat[0]))
        unit = np.zeros(cut.count, np.int64)
        value = _values(texts, text, [file.units.get(role, "")], unit, file)
        known = np.isfinite(value)
        file.table.add(
            int(np.count_nonzero(known)),
            **{n: c if np.ndim(c) == 0 else np.asarray(c)[known] for n, c in launch.items()},
            counter=file.table.names["counter"][metric],
            value=value[known],
        )


def _note_fact(file: NcuFile, metric: str, text: str, device: int) -> None:
    file.facts.setdefault(list(file.devices)[device], {}).setdefault(metric, text.strip())


def _cell(cut: Cut, role: str, row: int) -> str:
    column = cut.columns.get(role)
    return column.values[column.codes[row]] if isinstance(column, Texts) else ""


def _launch(cut: Cut, file: NcuFile) -> dict[str, Array | int]:
    """Return the columns that say of which launch a row is; `process` holds process ids."""
    grid, block = (_products(cut, role) for role in ("grid", "block"))
    known = (grid > 0) & (block > 0) & (grid.astype(np.float64) * block < 2.0**62)
    return {
        "process": compact(cut.numbers("pid")),
        "device": _devices(cut, file.devices),
        "name": cut.codes("name", file.table.names["name"], _UNNAMED),
        "dispatch": compact(cut.numbers("id")),
        "threads": np.where(known, grid * np.where(known, block, 1), ABSENT),
        "block_threads": np.where(block > 0, block, ABSENT),
    }


def _products(cut: Cut, role: str) -> IntArray:
    texts, text = _texts(cut, role)
    return np.array([_product(one) for one in texts] or [0], np.int64)[text]


def _product(text: str) -> int:
    """Return the product of sizes such as (224, 1, 1); -1 where there are none."""
    sizes = [int(one) for one in _SIZES.findall(text[:100])]
    product = 1
    for size in sizes:
        product *= size
    return product if sizes and len(sizes) <= 3 and 0 < product < 2**62 else -1


def _devices(cut: Cut, names: Names) -> Array:
    numbers, number = _texts(cut, "device")
    capabilities, capability = _texts(cut, "cc")
    _, first, pair = np.unique(
        joint_codes(number, capability), return_index=True, return_inverse=True
    )
    codes = [f"{numbers[number[at]]}|{capabilities[capability[at]]}" for at in first.tolist()]
    return names.codes(codes)[pair]


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

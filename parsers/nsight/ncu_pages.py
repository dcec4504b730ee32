"""Reads a CSV file of Nsight Compute, page by page, into counters of kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from traceflops.parsers.io.csv_cells import Cells, Field, Kind
from traceflops.parsers.io.csv_lines import Damage
from traceflops.parsers.io.csv_text import TEXT_BLOCK_BYTES, CsvText, Plan, Tables
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.nsight.ncu_console import PIPES, busiest_pipes, console_rows, is_console
from traceflops.parsers.nsight.ncu_values import Marks, plain_numbers, unit_of, values_of
from traceflops.parsers.nsight.stats_rows import sizes_in, texts_of, triple
from traceflops.parsers.nsight.stats_text import Filtered, from_header
from traceflops.parsers.shared.trace_builder import chosen
from traceflops.table.builder import TableBuilder, compact
from traceflops.table.columns import (
    ABSENT,
    Array,
    IntArray,
    Names,
    count_true,
    narrow,
    string_column,
)
from traceflops.table.grouping import distinct, group_rows

_LEAST_COLUMNS, _MOST_COLUMNS = 4, 20_000
"""Every page has several columns that describe the launch; a raw page has one per metric, too."""
_ROLES: Final[Mapping[str, tuple[str, Kind]]] = {
    "id": ("id", "integer"),
    "pid": ("process id", "integer"),
    "name": ("kernel name", "text"),
    "host": ("host name", "text"),
    "grid": ("grid size", "text"),
    "block": ("block size", "text"),
    "device": ("device", "text"),
    "cc": ("cc", "text"),
}
"""By role: the column's title in lower case, and the kind of its cells."""
_METRIC: Final[Mapping[str, tuple[str, Kind]]] = {
    "section": ("section name", "text"),
    "label": ("metric name", "text"),
    "unit": ("metric unit", "text"),
    "value": ("metric value", "text"),
    "rule": ("rule name", "text"),
    "kind": ("rule type", "text"),
    "text": ("rule description", "text"),
    "speedup_kind": ("estimated speedup type", "text"),
    "speedup": ("estimated speedup", "text"),
}
_LAYOUTS: Final = (
    ("rule name", "details with rules (2023 and later)"),
    ("body item label", "full details"),
    ("kernel time", "details (2020)"),
)
"""A column that only one layout of details pages has, and the name of that layout."""
TOO_MANY: Final = 2**62
"""A thread count from here on is treated as unknown: sums of them would overflow 64 bits."""
_MOST_SIZE: Final = 2**31
"""The product of two sizes below this fits into 64 bits."""
UNNAMED: Final = "(unnamed kernel)"
FACTS: Final = ("device__attribute_display_name", "device__attribute_multiprocessor_count")
RULE_KINDS: Final = ("INF", "WRN", "ERR", "OPT")
"""Kinds of a rule's message as CSV prints them; a binary report stores the position, from 1."""
SPEEDUP_KINDS: Final = ("local", "global")
"""What an estimated speed-up refers to; a binary report stores the position, from 1."""
_MOST_HOSTS, _MOST_PAGES = 100, 100
_GRIDS: Final = ("Launch Statistics|Grid Size|", "launch__grid_size")
_BLOCKS: Final = ("Launch Statistics|Block Size|", "launch__block_size")


def _page_of(names: Sequence[str]) -> Plan | None:
    """Return which columns to read of a page with the header `names`; None if it is not ncu's.

    `what` of the plan holds the layout and, for a raw page, the metric name of each metric role.
    """
    if not _LEAST_COLUMNS <= len(names) <= _MOST_COLUMNS:
        return None
    titles = [name.strip().lower() for name in names]
    if "id" not in titles or "kernel name" not in titles:
        return None
    is_details = "metric name" in titles and "metric value" in titles
    roles = {**_ROLES, **_METRIC} if is_details else _ROLES
    fields = {r: Field(titles.index(t), kind) for r, (t, kind) in roles.items() if t in titles}
    free_column = fields["name"].place  # kernel names may contain the separator
    if is_details:
        layout = next((text for title, text in _LAYOUTS if title in titles), "details (2022)")
        # Rows without a rule may end with the value, before the columns of rules.
        least = fields["value"].place + 1
        shortest_row = least if least < len(names) else None
        return Plan(len(names), fields, free_column, (layout, {}), shortest_row)
    # Names of metrics, and of nothing else, contain two underscores.
    places = {f"metric {place}": place for place, name in enumerate(names) if "__" in name}
    if not places:
        return None
    fields |= {role: Field(place, "text") for role, place in places.items()}
    metrics = {role: names[place].strip() for role, place in places.items()}
    return Plan(len(names), fields, free_column, ("raw page", metrics))


NCU_TABLES: Final = Tables(
    frozenset({'ID",', 'ID,"', "ID,P", "ID,K", 'ID";', "ID;P", "ID\tP"}), _page_of
)


class NcuPage(Struct):
    """One table of ncu's output: a row per metric (details page) or per kernel (raw page).

    `metrics` maps the column roles of a raw page to metric names, `units` to their units. The
    tables' column `device` holds codes of `devices` ("number|compute capability"), the keys of
    `facts`. `rows` counts rows by kind, `odd` counts odd cells by the code of their note.

    `printed` holds the arguments of `values_of` for each piece added to `table`, and `speedups` the
    printed percentages of `rules`: both wait until the file's decimal mark is known. `ncu_trace`
    sets `repetition` (the pass of the page) and `processes` (process id -> number, in all passes).
    """

    source: ByteSource
    layout: str
    metrics: Mapping[str, str]
    table: TableBuilder = field(default_factory=lambda: TableBuilder("kernel_counters"))
    rules: TableBuilder = field(default_factory=lambda: TableBuilder("kernel_rules"))
    printed: list[tuple[pa.Array, IntArray, Sequence[tuple[str, str]], IntArray]] = field(
        default_factory=list
    )
    speedups: list[str] = field(default_factory=list)
    devices: Names = field(default_factory=Names)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    units: dict[str, str] = field(default_factory=dict)
    repetition: int = 0
    processes: dict[int, int] = field(default_factory=dict)


class NcuFile(Struct):
    """The content of a file: its pages in order, host names, text damage, decimal marks, facts."""

    source: ByteSource
    pages: list[NcuPage] = field(default_factory=list)
    hosts: Names = field(default_factory=Names)
    damage: Damage = field(default_factory=Damage)
    marks: Marks = field(default_factory=Marks)
    facts: dict[str, str] = field(default_factory=dict)

    def begin(self, layout: str, metrics: Mapping[str, str]) -> NcuPage:
        """Return a new page, appended to `pages`; after _MOST_PAGES, the last page again."""
        if len(self.pages) < _MOST_PAGES:
            self.pages.append(NcuPage(self.source, layout, metrics))
        return self.pages[-1]


def read_ncu(source: ByteSource, block_bytes: int = TEXT_BLOCK_BYTES) -> NcuFile:
    """Return the content of CSV or printed text; without pages if it turns out not to be ncu's."""
    is_printed = is_console(source.head())
    rows = Filtered(source, console_rows) if is_printed else from_header(source, NCU_TABLES)
    text = CsvText(rows, NCU_TABLES, block_bytes)
    file = NcuFile(source, damage=text.damage)
    plan = None
    for block in text:
        if block.plan is not plan:  # another header: another page
            plan = block.plan
            file.begin(*plan.what)
        hosts, host_code = texts_of(block.cells, "host")
        for code in distinct(host_code).tolist()[:_MOST_HOSTS]:
            file.hosts[hosts[code]]  # the look-up adds the name
        (_add_raw_rows if file.pages[-1].metrics else _add_details)(block.cells, file)
    if not file.pages and text.plan is not None:  # a header without rows is a page, too
        file.begin(*text.plan.what)
    file.damage.repeated_headers = 0  # each header begins a page of its own
    for page in file.pages:
        _convert(page, comma=file.marks.comma)
        fill_sizes(page.table)
    return file


def _convert(page: NcuPage, *, comma: bool) -> None:
    """Convert the printed values and speed-ups of a page; rows without a finite value go."""
    if page.table.count:
        pieces = [
            values_of(texts.to_pylist(), text, counters, counter, page.odd, comma=comma)
            for texts, text, counters, counter in page.printed
        ]
        page.printed.clear()
        values = np.concatenate(pieces)
        page.table.replace("value", values)
        page.table = chosen(page.table, np.isfinite(values))
        page.table.join()
    if page.speedups:
        percents = plain_numbers(page.speedups, comma=comma)[0].to_pylist()
        shares = [np.nan if text is None else float(f"{text}e-2") for text in percents]
        page.rules.replace("speedup_share", np.array(shares, np.float64))


def _add_details(cells: Cells, file: NcuFile) -> None:
    """Add rows of a details page: a row with a metric label is a metric, any other is a rule."""
    page = file.pages[-1]
    labels, label = texts_of(cells, "label")
    is_metric = np.array([bool(text.strip()) for text in labels], np.bool_)[label]
    page.rows["rules"] += count_true(~is_metric)
    page.rows["metrics"] += count_true(is_metric)
    rules = cells.only(~is_metric)
    if rules.count and rules.has("rule"):
        _add_rules(rules, page)
        _add_pipes(rules, file)
    metrics = cells.only(is_metric)
    if not metrics.count:
        return
    # Each counter is a distinct (section, label, unit): name it once, at its first row.
    labels, label = texts_of(metrics, "label")
    sections, section = texts_of(metrics, "section")
    units, unit = texts_of(metrics, "unit")
    counter, first = group_rows([section, label, unit])
    name_units = []
    for row in first.tolist():
        name, section_name, unit_text = labels[label[row]], sections[section[row]], units[unit[row]]
        name = name.strip()
        if "__" not in name and section_name != "Command line profiler metrics":
            # A label, not a metric's name: it means different things in different sections.
            name = f"{section_name.strip()}|{name}|{unit_of(unit_text).base}"
        name_units.append((name, unit_text))
    codes = page.table.names["counter"].codes(name for name, _ in name_units)
    texts, text = texts_of(metrics, "value")
    file.marks.see(texts)
    page.printed.append((string_column(texts), narrow(text), name_units, narrow(counter)))
    page.table.add(metrics.count, **_launch(metrics, page), counter=codes[counter])


def _add_rules(rules: Cells, page: NcuPage) -> None:
    """Add rows of rules to a page; `_convert` turns their printed speed-ups into shares later."""
    launch, names = _launch(rules, page), page.rules.names
    speedups, speedup = texts_of(rules, "speedup")
    page.speedups += [speedups[code] for code in speedup.tolist()]
    kinds = {}  # in the spelling of RULE_KINDS and SPEEDUP_KINDS; other words are null
    for role, words in (("kind", RULE_KINDS), ("speedup_kind", SPEEDUP_KINDS)):
        spelling = {word.casefold(): word for word in words}
        texts, code = texts_of(rules, role)
        known_words = (spelling.get(text.strip().casefold()) for text in texts)
        codes = [-1 if word is None else names[role][word] for word in known_words]
        kinds[role] = np.array(codes, np.int32)[code]
    page.rules.add(
        rules.count,
        **{name: launch[name] for name in ("process", "device", "dispatch")},
        name=rules.codes("name", names["name"], UNNAMED),
        **{role: rules.codes(role, names[role]) for role in ("section", "rule", "text")},
        **kinds,
    )


def _add_pipes(rules: Cells, file: NcuFile) -> None:
    """Add the shares of the busiest pipes as metrics: only messages of rules state them."""
    texts, text = texts_of(rules, "text")
    pipes, page = [busiest_pipes(message) for message in texts], file.pages[-1]
    found = [(row, *of) for row, code in enumerate(text.tolist()) for of in pipes[code].items()]
    if not found:
        return
    rows, names, shares = zip(*found, strict=True)
    counters, index = [(f"{PIPES}|{name}|%", "%") for name in names], narrow(np.arange(len(found)))
    file.marks.see(shares)
    page.printed.append((string_column(shares), index, counters, index))
    codes = page.table.names["counter"].codes(name for name, _ in counters)
    page.table.add(len(found), **_launch(rules.only(np.array(rows)), page), counter=codes)


def _add_raw_rows(cells: Cells, file: NcuFile) -> None:
    """Add rows of a raw page: a row per kernel, with a metric in each of many columns.

    A row without a kernel holds the units of the rows below; all but the first begin a new page.
    """
    names, name = texts_of(cells, "name")
    is_kernel = np.array([bool(text.strip()) for text in names], np.bool_)[name]
    is_kernel |= cells.numbers("id") != ABSENT
    units_rows = np.flatnonzero(~is_kernel).tolist()
    page = file.pages[-1]
    # The first stretch of kernels continues an earlier block of cells: it has no units row (-1).
    for units_row, end in pairwise([-1, *units_rows, cells.count]):
        if units_row >= 0:
            if page.rows["units"] or page.rows["kernels"]:
                page = file.begin(page.layout, page.metrics)
            page.rows["units"] += 1
            row = cells.only(np.array([units_row]))
            page.units = {role: texts_of(row, role)[0][0] for role in page.metrics}
        kernels = np.arange(units_row + 1, end)
        page.rows["kernels"] += len(kernels)
        if len(kernels):
            _add_kernels(cells.only(kernels), page, file.marks)


def _add_kernels(cells: Cells, page: NcuPage, marks: Marks) -> None:
    """Add a row per metric and kernel from `cells` (a row per kernel), in the units of the page."""
    launch, metrics = _launch(cells, page), page.metrics
    all_texts: list[str] = []  # the distinct texts of each metric, one metric after the other
    text_indices = []  # per metric, the index in `all_texts` of each kernel's value
    for role, metric in metrics.items():
        texts, text = texts_of(cells, role)
        if metric in FACTS:  # a fact of the device: take it from the first row of each device
            devices = list(page.devices)
            for code, row in zip(*np.unique(launch["device"], return_index=True), strict=True):
                facts = page.facts.setdefault(devices[code], {})
                facts.setdefault(metric, texts[text[row]].strip())
        text_indices.append(text + len(all_texts))
        all_texts += texts
    marks.see(all_texts)
    counters = [(metric, page.units.get(role, "")) for role, metric in metrics.items()]
    # New rows go metric by metric: all kernels of the first one, then all of the second one.
    counter, kernel = np.divmod(np.arange(len(counters) * cells.count), cells.count)
    codes = page.table.names["counter"].codes(metrics.values())
    text = narrow(np.concatenate(text_indices))
    page.printed.append((string_column(all_texts), text, counters, narrow(counter)))
    columns = {n: c if np.ndim(c) == 0 else np.asarray(c)[kernel] for n, c in launch.items()}
    page.table.add(len(kernel), **columns, counter=codes[counter])


def _launch(cells: Cells, page: NcuPage) -> dict[str, Array | int]:
    """Return the columns of each row's launch: process id, device, kernel, number, sizes."""
    products, axes = [], []
    for texts, code in (texts_of(cells, role) for role in ("grid", "block")):
        # Up to three sizes, such as (224, 1, 1). The product is -1 if there are none or too large.
        sizes = [sizes_in(text) for text in texts]
        totals = [math.prod(axis_sizes) if 0 < len(axis_sizes) <= 3 else -1 for axis_sizes in sizes]
        totals = [total if 0 < total < TOO_MANY else -1 for total in totals]
        products.append(np.array(totals, np.int64)[code])
        axes.append(np.array([*map(triple, texts)], np.int64).reshape(-1, 3)[code])
    blocks, block_threads = products
    are_known = (blocks > 0) & (block_threads > 0)
    are_known &= blocks.astype(np.float64) * block_threads < TOO_MANY  # float: int64 may overflow
    # Devices are pairs of a number and a compute capability.
    numbers, number = texts_of(cells, "device")
    capabilities, capability = texts_of(cells, "cc")
    device, first = group_rows([number, capability])
    devices = [f"{numbers[number[row]]}|{capabilities[capability[row]]}" for row in first.tolist()]
    return {
        "process": compact(cells.numbers("pid")),
        "device": page.devices.codes(devices)[device],
        "name": cells.codes("name", page.table.names["name"], UNNAMED),
        "dispatch": compact(cells.numbers("id")),
        "threads": np.where(are_known, blocks * np.where(are_known, block_threads, 1), ABSENT),
        "block_threads": np.where(block_threads > 0, block_threads, ABSENT),
        "grid": axes[0],
        "block": axes[1],
    }


def fill_sizes(table: TableBuilder) -> None:
    """Fill in the thread counts of launches from counters, in place: old pages have only these."""
    threads, block_threads = table.column("threads"), table.column("block_threads")
    lacks_threads = threads == ABSENT
    if not lacks_threads.any():
        return
    launch, _ = group_rows([table.column("process"), table.column("dispatch")])
    names, value = table.names["counter"], table.column("value")
    sizes = []
    for counters in (_GRIDS, _BLOCKS):
        codes = [code for name, code in names.items() if name.startswith(counters)]
        is_size = np.isin(table.column("counter"), codes) & (value > 0) & (value < _MOST_SIZE)
        size_of_launch = np.zeros(int(launch.max(initial=0)) + 1)  # 0: no such counter
        size_of_launch[launch[is_size]] = value[is_size]
        sizes.append(size_of_launch[launch].astype(np.int64))
    grid, block = sizes
    has_sizes = lacks_threads & (grid > 0) & (block > 0)
    table.replace("threads", np.where(has_sizes, grid * block, threads))
    is_new = (block_threads == ABSENT) & (block > 0)
    table.replace("block_threads", np.where(is_new, block, block_threads))

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
from traceflops.parsers.nsight.ncu_values import Marks, plain_numbers, unit_of, values_of
from traceflops.parsers.nsight.stats_rows import sizes_in, texts_of, triple
from traceflops.parsers.nsight.stats_text import from_header
from traceflops.parsers.shared.trace_builder import chosen
from traceflops.table.builder import TableBuilder, compact
from traceflops.table.columns import ABSENT, Array, IntArray, Names, count_true, narrow
from traceflops.table.grouping import distinct, group_rows

_LEAST_COLUMNS, _MOST_COLUMNS = 4, 20_000
"""Pages have columns of launches and of metrics; a raw page has a column per metric."""
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
"""Each role, the column that has it, and the kind of its cells."""
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
"""Layouts of pages with a row per metric, each by a column that only this layout has."""
TOO_MANY: Final = 2**62
"""So many threads do not safely fit into 64 bits."""
_MOST_SIZE: Final = 2**31
"""The product of two smaller sizes fits into 64 bits."""
UNNAMED: Final = "(unnamed kernel)"
FACTS: Final = ("device__attribute_display_name", "device__attribute_multiprocessor_count")
RULE_KINDS: Final = ("INF", "WRN", "ERR", "OPT")
"""Kinds of a rule's message, as pages print them; reports have their number, from 1."""
SPEEDUP_KINDS: Final = ("local", "global")
"""What an estimated speed-up refers to; reports have its number, from 1."""
_MOST_HOSTS, _MOST_PAGES = 100, 100
_GRIDS: Final = ("Launch Statistics|Grid Size|", "launch__grid_size")
_BLOCKS: Final = ("Launch Statistics|Block Size|", "launch__block_size")


def _page_of(names: Sequence[str]) -> Plan | None:
    """Return which columns to read of the page with this header; None if it is no page of ncu."""
    if not _LEAST_COLUMNS <= len(names) <= _MOST_COLUMNS:
        return None
    words = [name.strip().lower() for name in names]
    if "id" not in words or "kernel name" not in words:
        return None
    is_details = "metric name" in words and "metric value" in words
    roles = {**_ROLES, **(_METRIC if is_details else {})}
    fields = {r: Field(words.index(w), kind) for r, (w, kind) in roles.items() if w in words}
    if is_details:
        # Rows may be shorter, without the columns of rules that follow the value.
        least = fields["value"].place + 1
        layout = next((text for word, text in _LAYOUTS if word in words), "details (2022)")
        page: tuple[str, Mapping[str, str]] = (layout, {})
    else:
        least = len(names)
        # Names of metrics, and of nothing else, contain two underscores.
        places = {f"metric {n}": n for n, name in enumerate(names) if "__" in name}
        if not places:
            return None
        fields |= {role: Field(place, "text") for role, place in places.items()}
        page = ("raw page", {role: names[n].strip() for role, n in places.items()})
    shorter = least if least < len(names) else None
    return Plan(len(names), fields, fields["name"].place, page, shorter)


NCU_TABLES: Final = Tables(
    frozenset({'ID",', 'ID,"', "ID,P", "ID,K", 'ID";', "ID;P", "ID\tP"}), _page_of
)


class NcuPage(Struct):
    """A page, with a row per metric (details) or a row per kernel (raw).

    `metrics` are the names of the metrics of a raw page, by the roles of their columns. The column
    `device` of the tables has codes of `devices`: "number|CC"; `facts` are by device.

    `printed` has arguments of `values_of` for each piece of the rows: values are converted when
    the decimal mark of the file is known; so are `speedups`. `ncu_trace` sets `repetition`, the
    pass of the page, and `processes`: numbers, by process id, that are the same in all passes.
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
    """The content of a file: its pages in order, facts of the recording, damage of its text."""

    source: ByteSource
    pages: list[NcuPage] = field(default_factory=list)
    hosts: Names = field(default_factory=Names)
    damage: Damage = field(default_factory=Damage)
    marks: Marks = field(default_factory=Marks)
    facts: dict[str, str] = field(default_factory=dict)

    def begin(self, layout: str, metrics: Mapping[str, str]) -> NcuPage:
        """Begin a new page and return it; beyond _MOST_PAGES return the last one again."""
        if len(self.pages) < _MOST_PAGES:
            self.pages.append(NcuPage(self.source, layout, metrics))
        return self.pages[-1]


def read_ncu(source: ByteSource, block_bytes: int = TEXT_BLOCK_BYTES) -> NcuFile:
    """Return the content of a file; it has no pages if it turns out to be no file of ncu."""
    text = CsvText(from_header(source, NCU_TABLES), NCU_TABLES, block_bytes)
    file = NcuFile(source, damage=text.damage)
    plan = None
    for block in text:
        if block.plan is not plan:
            plan = block.plan
            file.begin(*plan.what)
        hosts, host = texts_of(block.cells, "host")
        for code in distinct(host).tolist()[:_MOST_HOSTS]:
            file.hosts[hosts[code]]  # adds it
        (_add_raw_rows if file.pages[-1].metrics else _add_details)(block.cells, file)
    if not file.pages and text.plan is not None:  # a header without rows is a page, too
        file.begin(*text.plan.what)
    file.damage.repeated_headers = 0  # each header begins a page of its own
    # Now that the decimal mark is known, convert what is printed.
    for page in file.pages:
        comma = file.marks.comma
        if page.table.count:
            read = [
                values_of(texts.to_pylist(), text, counters, counter, page.odd, comma=comma)
                for texts, text, counters, counter in page.printed
            ]
            page.printed.clear()
            values = np.concatenate(read)
            page.table.replace("value", values)
            page.table = chosen(page.table, np.isfinite(values))
            page.table.join()
        if page.speedups:
            percents = plain_numbers(page.speedups, comma=comma)[0].to_pylist()
            shares = [np.nan if text is None else float(f"{text}e-2") for text in percents]
            page.rules.replace("speedup_share", np.array(shares, np.float64))
        fill_sizes(page.table)
    return file


def _add_details(cells: Cells, file: NcuFile) -> None:
    """Add rows of a page of details: metrics, one per row, and rules, in rows without a metric."""
    page = file.pages[-1]
    labels, label = texts_of(cells, "label")
    is_metric = np.array([bool(text.strip()) for text in labels], np.bool_)[label]
    page.rows["rules"] += count_true(~is_metric)
    page.rows["metrics"] += count_true(is_metric)
    rules = cells.only(~is_metric)
    if rules.count and rules.has("rule"):
        _add_rules(rules, page)
    cells = cells.only(is_metric)
    if not cells.count:
        return
    labels, label = texts_of(cells, "label")
    sections, section = texts_of(cells, "section")
    units, unit = texts_of(cells, "unit")
    metric, first = group_rows([section, label, unit])
    named = []
    for row in first.tolist():
        name, printed = labels[label[row]].strip(), units[unit[row]]
        if "__" not in name and sections[section[row]] != "Command line profiler metrics":
            # A label, not a metric's name: it means different things in different sections.
            name = f"{sections[section[row]].strip()}|{name}|{unit_of(printed).base}"
        named.append((name, printed))
    counters = page.table.names["counter"].codes(name for name, _ in named)
    texts, text = texts_of(cells, "value")
    file.marks.see(texts)
    page.printed.append((pa.array(texts), narrow(text), named, narrow(metric)))
    page.table.add(cells.count, **_launch(cells, page), counter=counters[metric])


def _add_rules(rules: Cells, page: NcuPage) -> None:
    """Add rows of rules to a page; their speed-ups stay texts for now."""
    launch, names = _launch(rules, page), page.rules.names
    speedups, speedup = texts_of(rules, "speedup")
    page.speedups += [speedups[code] for code in speedup.tolist()]
    kinds = {}  # in the spelling of RULE_KINDS and SPEEDUP_KINDS; others are null
    for role, words in (("kind", RULE_KINDS), ("speedup_kind", SPEEDUP_KINDS)):
        spelling = {word.casefold(): word for word in words}
        texts, code = texts_of(rules, role)
        printed = (spelling.get(text.strip().casefold()) for text in texts)
        codes = [-1 if word is None else names[role][word] for word in printed]
        kinds[role] = np.array(codes, np.int32)[code]
    page.rules.add(
        rules.count,
        **{name: launch[name] for name in ("process", "device", "dispatch")},
        name=rules.codes("name", names["name"], UNNAMED),
        **{role: rules.codes(role, names[role]) for role in ("section", "rule", "text")},
        **kinds,
    )


def _add_raw_rows(cells: Cells, file: NcuFile) -> None:
    """Add rows of a raw page, with a metric in each of many columns.

    A row without a kernel has the units of the rows after it; all but a first one begin a page.
    """
    names, name = texts_of(cells, "name")
    is_kernel = np.array([bool(text.strip()) for text in names], np.bool_)[name]
    is_kernel |= cells.numbers("id") != ABSENT
    units, page = np.flatnonzero(~is_kernel).tolist(), file.pages[-1]
    for begin, end in pairwise([-1, *units, cells.count]):
        if begin >= 0:
            if page.rows["units"] or page.rows["kernels"]:
                page = file.begin(page.layout, page.metrics)
            page.rows["units"] += 1
            row = cells.only(np.array([begin]))
            page.units = {role: texts_of(row, role)[0][0] for role in page.metrics}
        page.rows["kernels"] += end - begin - 1
        if end - begin > 1:
            _add_kernels(cells.only(np.arange(begin + 1, end)), page, file.marks)


def _add_kernels(cells: Cells, page: NcuPage, marks: Marks) -> None:
    """Add the metrics of kernels (a row per kernel), in the units of the page."""
    launch, metrics = _launch(cells, page), page.metrics
    texts: list[str] = []  # those of all metrics, one metric after the other
    text_of = []
    for role, metric in metrics.items():
        own_texts, text = texts_of(cells, role)
        if metric in FACTS:  # the first row of each device counts
            devices = list(page.devices)
            for code, row in zip(*np.unique(launch["device"], return_index=True), strict=True):
                facts = page.facts.setdefault(devices[code], {})
                facts.setdefault(metric, own_texts[text[row]].strip())
        text_of.append(text + len(texts))
        texts += own_texts
    marks.see(texts)
    counters = [(metric, page.units.get(role, "")) for role, metric in metrics.items()]
    counter, row = np.divmod(np.arange(len(counters) * cells.count), cells.count)
    codes = page.table.names["counter"].codes(metrics.values())
    text = narrow(np.concatenate(text_of))
    page.printed.append((pa.array(texts), text, counters, narrow(counter)))
    page.table.add(
        len(row),
        **{n: c if np.ndim(c) == 0 else np.asarray(c)[row] for n, c in launch.items()},
        counter=codes[counter],
    )


def _launch(cells: Cells, page: NcuPage) -> dict[str, Array | int]:
    """Return the columns of each row's launch: process id, device, kernel, number, sizes."""
    products, axes = [], []
    for texts, code in (texts_of(cells, role) for role in ("grid", "block")):
        # Sizes such as (224, 1, 1), or fewer than three; the total is -1 without any.
        sizes = [sizes_in(text) for text in texts]
        totals = [math.prod(s) if 0 < len(s) <= 3 else -1 for s in sizes]
        totals = [total if 0 < total < TOO_MANY else -1 for total in totals]
        products.append(np.array([*totals, 0], np.int64)[code])  # the last: for no text
        axes.append(np.array([*map(triple, texts)], np.int64).reshape(-1, 3)[code])
    blocks, threads = products
    fits = (blocks > 0) & (threads > 0) & (blocks.astype(np.float64) * threads < TOO_MANY)
    numbers, number = texts_of(cells, "device")
    capabilities, capability = texts_of(cells, "cc")
    pair, first = group_rows([number, capability])
    devices = [f"{numbers[number[row]]}|{capabilities[capability[row]]}" for row in first.tolist()]
    return {
        "process": compact(cells.numbers("pid")),
        "device": page.devices.codes(devices)[pair],
        "name": cells.codes("name", page.table.names["name"], UNNAMED),
        "dispatch": compact(cells.numbers("id")),
        "threads": np.where(fits, blocks * np.where(fits, threads, 1), ABSENT),
        "block_threads": np.where(threads > 0, threads, ABSENT),
        "grid": axes[0],
        "block": axes[1],
    }


def fill_sizes(table: TableBuilder) -> None:
    """Fill in, in place, the sizes of launches that old pages have only among the counters."""
    threads, block_threads = table.column("threads"), table.column("block_threads")
    lacking = threads == ABSENT
    if not lacking.any():
        return
    launch, _ = group_rows([table.column("process"), table.column("dispatch")])
    names, value = table.names["counter"], table.column("value")
    sizes = []
    for counters in (_GRIDS, _BLOCKS):  # for each row the value of its launch; 0 without one
        codes = [code for name, code in names.items() if name.startswith(counters)]
        usable = np.isin(table.column("counter"), codes) & (value > 0) & (value < _MOST_SIZE)
        by_launch = np.zeros(int(launch.max(initial=0)) + 1)
        by_launch[launch[usable]] = value[usable]
        sizes.append(by_launch[launch].astype(np.int64))
    grid, block = sizes
    fits = lacking & (grid > 0) & (block > 0)
    table.replace("threads", np.where(fits, grid * block, threads))
    is_new = (block_threads == ABSENT) & (block > 0)
    table.replace("block_threads", np.where(is_new, block, block_threads))

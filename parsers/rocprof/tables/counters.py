"""Hardware counters of launches in rocprof's CSV, without repeats; sums of durations by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.parsers.io.csv_cells import Cells, Texts
from traceflops.parsers.rocprof.tables.parts import COUNTERS, ProcessPart
from traceflops.parsers.rocprof.tables.work import ids
from traceflops.parsers.rocprof.v1_events import BARRIER_NAME
from traceflops.parsers.shared.sinks import UNNAMED_KERNEL
from traceflops.parsers.shared.trace_builder import chosen
from traceflops.table.builder import TableBuilder, compact
from traceflops.table.columns import ABSENT, Array, IntArray, Names, count_true
from traceflops.table.grouping import group_rows

_KEYS: Final = ("process", "repetition", "dispatch", "name", "counter")
_MOST_HEADERS: Final = 1 << 20
"""More headers than a file can have, since a text is read only up to its 1000th header."""
_LARGEST_EXACT: Final = 2.0**53  # larger times in ns are not exact as doubles


def takes_largest(counter: str) -> bool:
    """Return whether all instances of a counter count the whole chip: the largest is its value."""
    return counter.startswith("GRBM")


def add_counters(cells: Cells, part: ProcessPart) -> None:
    """Add the rows of a table with one counter per row; rows without a value are only counted."""
    value = cells.columns["value"]
    assert not isinstance(value, Texts)
    is_value = np.isfinite(value)
    part.file.odd["no-value"] += count_true(~is_value)
    cells = cells.only(is_value)
    if cells.count:
        names = part[COUNTERS].names["counter"]
        counter = cells.codes("counter", names, "(unnamed)")
        columns = _launch(cells, part) | {"repetition": cells["replay"], "counter": counter}
        _add(cells, part, columns | {"value": value[is_value]})


def add_wide(cells: Cells, part: ProcessPart, counters: Mapping[str, tuple[str, ...]]) -> None:
    """Add the rows of a wide table; `counters` names the columns of each counter's instances."""
    part.is_wide = True
    launch, names = _launch(cells, part), part[COUNTERS].names["counter"]
    for counter, columns_of_counter in counters.items():
        instances = np.stack([np.asarray(cells.columns[name]) for name in columns_of_counter])
        is_value = np.isfinite(instances)
        if takes_largest(counter):
            value = np.where(is_value, instances, -np.inf).max(axis=0)
        else:
            value = np.where(is_value, instances, 0.0).sum(axis=0)
        rows = is_value.any(axis=0)
        columns = {name: column[rows] for name, column in launch.items()}
        _add(cells.only(rows), part, columns | {"counter": names[counter], "value": value[rows]})


def _launch(cells: Cells, part: ProcessPart) -> dict[str, Array]:
    """Return the columns of the table of counters that describe the launch of each row."""
    threads, block = cells["threads"], cells["block_threads"]
    # The duration in ns of the counted kernel, ABSENT if its times are not exact.
    dur_ns = np.full(cells.count, ABSENT, np.int64)
    begin, end = (cells.columns.get(role) for role in ("counted_from", "counted_to"))
    if isinstance(begin, np.ndarray) and isinstance(end, np.ndarray):
        is_exact = (begin > 0) & (end > begin) & (end < _LARGEST_EXACT)
        dur_ns[is_exact] = np.rint(end[is_exact] - begin[is_exact])
    # Only rocprof v1 writes when a kernel was dispatched; there its number is the correlation, too.
    is_v1 = cells.has("dispatched")
    return {
        "device": cells.codes("agent", part.agents, ""),
        "name": cells.codes("kernel", part[COUNTERS].names["name"], UNNAMED_KERNEL),
        "dispatch": cells["dispatch"],
        "correlation": cells["dispatch"] if is_v1 else ids(cells, "correlation"),
        # A launch has threads: 0 is a size that was not recorded.
        "threads": np.where(threads > 0, threads, ABSENT),
        "block_threads": np.where(block > 0, block, ABSENT),
        "dur_ns": dur_ns,
    }


def _add(cells: Cells, part: ProcessPart, columns: Mapping[str, Array | int]) -> None:
    """Add rows of counters, if any, with columns `instance` and `headers` for `counted_once`."""
    if cells.count:
        start = cells["start"]
        part.counting.cover(start[start > 0])  # others are unknown
        table = part[COUNTERS]
        table.add(cells.count, **columns)
        headers = part.file.damage.repeated_headers
        table.pieces[-1][1].update(instance=compact(cells["instance"]), headers=headers)


def counted_once(parts: Sequence[ProcessPart], tally: Counter[str]) -> TableBuilder:
    """Return the counters of one run of a process, a row per launch and counter.

    The parts lose their counters. `tally` counts merged instances and repeated rows, by note
    code.
    """
    table = TableBuilder(COUNTERS)
    instances: list[IntArray] = []
    sections: list[IntArray] = []  # numbers the tables of all files: a header begins a table
    for number, part in enumerate(parts):
        for count, piece in part[COUNTERS].pieces:
            instances.append(np.full(count, piece.pop("instance")))
            sections.append(np.full(count, _MOST_HEADERS * number + piece.pop("headers")))
        table.absorb(part.tables.pop(COUNTERS))
    instance = np.concatenate(instances)
    group, first = group_rows([*_keys(table), instance])
    if len(first) < table.count:
        # Rows with the same keys are a repetition, except for instances without a number: these are
        # adjacent among the rows of their counter. `block` numbers the blocks of adjacent rows of
        # one launch; a row with an instance number is a block of its own.
        order = np.argsort(table.column("counter"), kind="stable")
        launch = group_rows([*_keys(table), np.concatenate(sections)])[0][order]
        adjacent = np.empty(table.count, np.int64)
        adjacent[order] = np.cumsum(np.append(0, launch[1:] != launch[:-1]))
        block = np.where(instance == ABSENT, adjacent, np.arange(table.count))
        # The first block with the same keys counts. Launches without a number may differ: keep all.
        is_kept = block == block[first[group]]
        is_kept |= table.column("dispatch") == ABSENT
        tally["counters-written-twice"] += table.count - count_true(is_kept)
        table = chosen(table, is_kept)
    elif (instance == ABSENT).all():
        return table
    table, merged = summed_instances(table)
    tally["instances-summed"] += merged
    return table


def _keys(table: TableBuilder) -> list[IntArray]:
    return [table.column(name) for name in _KEYS]


def summed_instances(table: TableBuilder) -> tuple[TableBuilder, int]:
    """Return counters with one row per launch and counter, and how many instances were merged."""
    # Launches without a number may differ: each of their rows is a group of its own.
    unnumbered = np.where(table.column("dispatch") == ABSENT, np.arange(table.count), 0)
    group, first = group_rows([*_keys(table), unnumbered])
    if len(first) == table.count:
        return table, 0
    value = table.column("value")
    largest = np.full(len(first), -np.inf)
    np.maximum.at(largest, group, value)
    takes = np.array([takes_largest(name) for name in table.names["counter"]])
    takes = takes[table.column("counter")[first]]  # per group
    merged_value = np.where(takes, largest, np.bincount(group, value))
    merged = table.count - len(first)
    out = chosen(table, np.isin(np.arange(table.count), first))
    out.replace("value", merged_value[np.argsort(first)])  # in the order of rows, not of groups
    return out, merged


DOMAIN_TOTALS: Final = "domains"
"""The table of sums of whole domains; together with sums by name they would count twice."""
_NOTHING: Final = ""  # the kind of sums that belong to no table of the trace
_UNCLEAR: Final = "?"
_BARRIER: Final = "barrier"  # a packet in which a queue waits for another: no work
_DOMAINS: Final = (
    (re.compile("KERNEL_DISPATCH|KERNELS"), "kernel"),
    (re.compile("MEMORY_COPY|MEMORY_COPIES"), "memcpy"),
    (re.compile("(?:MARKER|ROCTX)[A-Z_]*"), "mark"),
    (re.compile(r"[A-Z][A-Z0-9_]*_API(?:_EXT)?|HIP|HSA|RCCL|ROC[A-Z]+|OMPT"), "call"),
    (re.compile("MEMORY_ALLOCATIONS?|SCRATCH_MEMORY|COUNTER_COLLECTION"), _NOTHING),
)
"""How releases name whole domains."""
_MAY_BE_DOMAIN: Final = re.compile("[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
_NAMES: Final = (
    (re.compile(f"{BARRIER_NAME}$"), _BARRIER),
    (re.compile("(?:KERNEL_DISPATCH|[A-Z][A-Z0-9_]*_API(?:_EXT)?)$"), _NOTHING),
    (re.compile("MEMORY_ALLOCATION_|SCRATCH_MEMORY_"), _NOTHING),
    (
        re.compile(r"_{0,2}hip[A-Z]\w+$|hsa_\w+$|roc(?:[Dd]ec|[Jj]peg)[A-Z]\w+$|rocshmem_\w+$"),
        "call",
    ),
    (re.compile(r"p?(?:nccl|mscclp?p?)(?!Dev|Kernel)[A-Z]\w+$"), "call"),
    (re.compile("MEMORY_COPY|Copy(?:Host|Device)|hcMemcpy|async-copy"), "memcpy"),
)
"""How names of each kind begin."""
_FILES: Final = (
    ("marker|markers|roctx|marker_api", "mark"),
    (r"[a-z]+_api|hip|hsa|rccl|nccl|rocdecode|rocjpeg|rocshmem|hipfile|ompt", "call"),
    ("memory_allocations?|scratch_memory|domain", _NOTHING),
    ("memory_cop(?:y|ies)|async_copy|copy", "memcpy"),
    ("kernels?", "kernel"),
)
_FILE: Final = tuple(
    (re.compile(rf"(?:^|[^a-z])(?:{words})_(?:stats|summary|trace)(?![a-z])", re.IGNORECASE), kind)
    for words, kind in _FILES
)
"""The kind of unclear names by the name of the file."""


def _kinds_of(names: Sequence[str], file: str) -> tuple[list[str], bool]:
    """Return the kind of each name in a table of sums, and whether the names are of domains."""
    kinds = [next((kind for sign, kind in _DOMAINS if sign.fullmatch(n)), _UNCLEAR) for n in names]
    is_any_known = any(kind != _UNCLEAR for kind in kinds)
    if all(map(_MAY_BE_DOMAIN.fullmatch, names)) and is_any_known:
        return [_NOTHING if kind == _UNCLEAR else kind for kind in kinds], True
    kinds = [next((kind for sign, kind in _NAMES if sign.match(n)), _UNCLEAR) for n in names]
    # An unclear name has the kind that the file's name tells, else the kind of most names.
    most = "call" if 2 * kinds.count("call") > len(kinds) else "kernel"
    otherwise = next((kind for sign, kind in _FILE if sign.search(file)), most)
    return [otherwise if kind == _UNCLEAR else kind for kind in kinds], False


def add_totals(cells: Cells, part: ProcessPart) -> None:
    """Add sums of durations by name, or by domain, to the totals; barriers are only counted."""
    names = Names()
    name = cells.codes("name", names, "(unnamed)")
    kinds, of_domains = _kinds_of(list(names), part.file.source.label)
    count, total = cells.numbers("calls"), cells.numbers("total")
    is_barrier = np.array([kind == _BARRIER for kind in kinds], np.bool_)[name]
    part.file.odd["barriers"] += int(np.maximum(count[is_barrier], 0).sum())
    is_wanted = np.array([kind not in (_NOTHING, _BARRIER) for kind in kinds], np.bool_)[name]
    has_number = (count != ABSENT) | (total != ABSENT)
    rows = np.flatnonzero(is_wanted & has_number)
    if not len(rows):
        part.records += cells.count  # so that the process is not empty
        return
    table = part[DOMAIN_TOTALS if of_domains else "totals"]
    # Rows of kind _NOTHING ("") are not wanted: "kernel" only fills their place.
    kind_codes = table.names["kind"].codes(kind or "kernel" for kind in kinds)
    table.add(
        len(rows),
        kind=kind_codes[name[rows]],
        name=table.names["name"].codes(names)[name[rows]],
        count=count[rows],
        total_ns=total[rows],
        min_ns=cells.numbers("shortest")[rows],
        max_ns=cells.numbers("longest")[rows],
    )

"""The contents of traces without a timeline: sums by name, and launches with hardware counters.

Some sources have no time to account for: sums of records (statistics of a profiler), counters only
(launches were serialised, so their times mean nothing), or calls alone. For these there is no idle
time, no overlap, no components and no MFU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.categories.classify import Classifier
from traceflops.categories.programs import names_kernels
from traceflops.categories.rules import Category
from traceflops.remedies import command
from traceflops.table.arrays import ABSENT, IntArray
from traceflops.table.columns import (
    codes,
    is_one_of,
    names,
    number_column,
    numbers,
    take_rows,
    text_column,
    thread_columns,
)
from traceflops.table.grouping import group_rows, group_sums, groups, joint_codes, used_names
from traceflops.table.nesting import innermost_pieces
from traceflops.table.patterns import FUNCTION_WAITS, launches_no_kernel
from traceflops.table.schema import DEVICE_KINDS
from traceflops.table.trace import CUDA_END, PROGRAM_ERROR, Trace
from traceflops.timeline.intervals import Intervals

_MOST_NAMES: Final = 100_000
"""At most so many names are classified, those with most time; the others are other/other."""
_OTHER: Final = (Category("other", "other"), "too-many-names")
_FIGURES: Final = ("count", "sum_ns", "mean_ns", "min_ns", "max_ns", "bytes")
_OF_KIND: Final = {
    "memcpy": (Category("memory", "copy"), "kind-memcpy"),
    "memset": (Category("memory", "memset"), "kind-memset"),
}
_MIGRATION: Final = re.compile(r"\bunified\b", re.IGNORECASE)
"""In the names of copies that the driver of NVIDIA makes for unified memory."""
_HOST_TABLES: Final = {
    "call": "calls",
    **dict.fromkeys(("mark", "python", "gpu_mark", "system"), "marks"),
}
"""By kind, the table whose records are added up here if the source has no sums of this kind."""
_SUMS: Final = {
    "count": np.add,
    "total_ns": np.add,
    "min_ns": np.minimum,
    "max_ns": np.maximum,
    "bytes": np.add,
}
"""By column of the totals table, the function that adds up its values."""
_TOO_LARGE: Final = 2.0**62
_Decision = tuple[Category | None, str | None]  # a category and the rule that decided it


class Total(Struct, frozen=True):
    """The records of one kind and name added up; times in ns, None where unknown."""

    kind: str
    name: str
    count: int | None
    sum_ns: int | None
    min_ns: int | None
    max_ns: int | None
    bytes: int | None = None

    @property
    def side(self) -> str:
        """What its share is a share of: all device work ("device"), or all of its own kind."""
        return "device" if self.kind in DEVICE_KINDS else self.kind

    @property
    def mean_ns(self) -> int | None:
        """The mean, rounded to ns."""
        if not self.count or self.sum_ns is None:
            return None
        return (self.sum_ns + self.count // 2) // self.count


class Untimed(Struct, frozen=True):
    """Sums by name (`rows`), sums of device work by category, and kernels with counters.

    `rows`: kind, name, top, sub, rule (null for calls and marks), count, sum_ns, mean_ns, min_ns,
    max_ns, bytes (null where unknown), and the share of its side: of all device work, of all calls,
    of the time in outermost ranges, or of the own times of all Python functions. Device work comes
    first, functions that only wait last, and most time first. `categories`: top, sub, count,
    sum_ns, share. `counted`: name, top, sub, rule, launches, for kernels whose counters were read;
    `counters` are the names of these. `record` is the command line that records a timeline.
    """

    rows: pa.Table
    categories: pa.Table
    counted: pa.Table
    counters: tuple[str, ...]
    record: str | None

    @property
    def device_ns(self) -> int | None:
        """The sum of all device work, None if a part of it is unknown."""
        sums = self.categories["sum_ns"].to_pylist()
        return None if None in sums else sum(sums)

    @property
    def launches(self) -> int:
        """Number of launches whose counters were read."""
        return sum(self.counted["launches"].to_pylist())

    def of_kind(self, *kinds: str) -> pa.Table:
        """Return the rows of some kinds, most time first."""
        wanted = [kind in kinds for kind in self.rows["kind"].to_pylist()]
        return take_rows(self.rows, np.flatnonzero(wanted))


def untimed(trace: Trace, classifier: Classifier) -> Untimed | None:
    """Return the sums of a trace that has no timeline, None for any other trace."""
    if trace.activities.num_rows or trace.ops.num_rows:
        return None
    totals = _totals(trace)
    classifier = classifier.knowing(trace.source.rules, by_words=names_kernels(trace))
    counted = _counted(trace, classifier)
    if not totals and not counted.num_rows:
        return None
    decisions = _categorised(totals, classifier)
    side_ns = _side_sums(trace, totals)
    counts: dict[Category, int | None] = {}
    sums: dict[Category, int | None] = {}
    for total, (category, _) in zip(totals, decisions, strict=True):
        if category is not None:
            counts[category] = _plus(counts.get(category, 0), total.count)
            sums[category] = _plus(sums.get(category, 0), total.sum_ns)
    texts = {name: [getattr(total, name) for total in totals] for name in ("kind", "name")}
    figures = {name: [getattr(total, name) for total in totals] for name in _FIGURES}
    shares = [_share(total.sum_ns, side_ns[total.side]) for total in totals]
    rows = _table({**texts, **_texts(decisions)}, figures, shares)
    longest = sorted(sums, key=lambda c: (-(sums[c] or 0), c.top, c.sub))
    categories = _table(
        {"top": [c.top for c in longest], "sub": [c.sub for c in longest]},
        {"count": [counts[c] for c in longest], "sum_ns": [sums[c] for c in longest]},
        [_share(sums[c], side_ns.get("device")) for c in longest],
    )
    counters = tuple(sorted(used_names(trace.kernel_counters["counter"])))
    # No command records more of a program that stopped, launches no kernel, or was traced in vain.
    facts = trace.source.facts
    is_all = PROGRAM_ERROR in facts or CUDA_END in facts or launches_no_kernel(trace.calls)
    return Untimed(rows, categories, counted, counters, None if is_all else command(trace))


def _side_sums(trace: Trace, totals: Sequence[Total]) -> dict[str, int | None]:
    """Return, by side of the totals, the ns of which their shares are shares; None if unknown."""
    side_ns: dict[str, int | None] = {}
    for total in totals:
        side_ns[total.side] = _plus(side_ns.get(total.side, 0), total.sum_ns)
    # Nested ranges must count once: for ranges, the time in which any is open on its thread. The
    # times of Python functions are already their own, and those of recorded sums cannot be told.
    is_done = {*names(trace.totals["kind"]), "python"}
    kinds = {total.kind for total in totals if _HOST_TABLES.get(total.kind) == "marks"} - is_done
    for kind in kinds:
        ranges = _ranges(trace.marks, kind)
        start, thread = numbers(ranges["start_ns"], 0), group_rows(thread_columns(ranges))[0]
        end = start + numbers(ranges["dur_ns"], 0)
        open_times = (Intervals.of(start[rows], end[rows]) for _, rows in groups(thread))
        side_ns[kind] = sum(times.length_ns for times in open_times)
    return side_ns | {"domain": None}  # calls and the kernels that they launched do not add up


def _plus(sum_so_far: int | None, more: int | None) -> int | None:
    """Return the sum, None if a part of it is unknown."""
    return None if sum_so_far is None or more is None else sum_so_far + more


def _share(part: int | None, whole: int | None) -> float | None:
    """Return a share, None if unknown: ranges inside others of their name count twice."""
    return part / whole if part is not None and whole and part <= whole else None


def _totals(trace: Trace) -> list[Total]:
    """Return the sums by kind and name over all processes: device work first, most time first."""
    recorded = trace.totals
    figures = [numbers(recorded[column], ABSENT) for column in _SUMS]
    totals = [*_added_up(recorded, names(recorded["kind"]), codes(recorded["kind"]), figures)]
    kinds_summed = {total.kind for total in totals}
    for kind, table in _HOST_TABLES.items():
        records = trace.table(table)
        if kind in kinds_summed or not records.num_rows:
            continue
        if table == "marks":
            records = _ranges(records, kind)
        duration = numbers(records["dur_ns"], 0)
        if kind == "python":  # how long each function ran itself, without the functions inside it
            start, thread = numbers(records["start_ns"], 0), joint_codes(*thread_columns(records))
            row, piece_start, piece_end = innermost_pieces(thread, start, start + duration)
            duration = group_sums(row, piece_end - piece_start, len(start))
        figures = [np.ones_like(duration), duration, duration, duration]  # without bytes
        totals += _added_up(records, [kind], np.zeros_like(duration), figures)
    order = {side: index for index, side in enumerate(("device", *_HOST_TABLES))}

    def key(total: Total) -> tuple[int, bool, int, str]:
        """Order by side; functions that only wait come last, as their time is no work."""
        waits = total.kind == "python" and FUNCTION_WAITS.search(total.name) is not None
        return order.get(total.side, len(order)), waits, -(total.sum_ns or 0), total.name

    return sorted(totals, key=key)


def _ranges(marks: pa.Table, kind: str) -> pa.Table:
    """Return the ranges of a kind; waits are with calls of the system."""
    kinds = {
        "python": ("python", "module"),
        "gpu_mark": ("gpu_annotation",),
        "system": ("system", "sync"),
    }
    of_others = (*chain(*kinds.values()), "event", "sample", "off_cpu", "instant", "overhead")
    is_kind = is_one_of(marks["kind"], *kinds.get(kind, of_others))
    return take_rows(marks, np.flatnonzero(is_kind if kind in kinds else ~is_kind))


def _added_up(
    records: pa.Table, kinds: Sequence[str], kind: IntArray, figures: Sequence[IntArray]
) -> Iterator[Total]:
    """Yield the sums of records by kind and name.

    `kind` (codes of `kinds`) and `figures` (the first columns of _SUMS, ABSENT if unknown) are per
    record. A sum is None if a part of it is unknown or it may not fit in an int64.
    """
    if not records.num_rows:
        return
    labels, name = names(records["name"]), codes(records["name"])
    group, first = group_rows((kind, name))
    # group [1 0 1]: order [1 0 2], groups in that order [0 1 1], begins [0 1].
    order = np.argsort(group, kind="stable")
    begins = np.searchsorted(group[order], np.arange(len(first)))
    columns: list[list[int | None]] = []
    for combine, values in zip(_SUMS.values(), figures, strict=False):
        ordered = values[order]
        # ABSENT is the lowest of all numbers: it is the minimum of a group that has one.
        is_usable = np.minimum.reduceat(ordered, begins) != ABSENT
        is_usable &= np.abs(combine.reduceat(ordered.astype(np.float64), begins)) < _TOO_LARGE
        sums = zip(combine.reduceat(ordered, begins).tolist(), is_usable.tolist(), strict=True)
        columns.append([value if is_known else None for value, is_known in sums])
    for row, *sums_of_group in zip(first.tolist(), *columns, strict=True):
        yield Total(kinds[kind[row]], labels[name[row]], *sums_of_group)


def _categorised(totals: Sequence[Total], classifier: Classifier) -> list[_Decision]:
    """Return category and rule of each total, None for totals of the host.

    The largest totals come first: kernels after _MOST_NAMES are not worth the time to classify.
    """
    decisions: list[_Decision] = []
    for index, total in enumerate(totals):
        if total.kind not in DEVICE_KINDS:
            decisions.append((None, None))
        elif total.kind == "memcpy" and _MIGRATION.search(total.name):
            decisions.append((Category("memory", "migration"), "migration"))
        elif total.kind in _OF_KIND or index >= _MOST_NAMES:
            decisions.append(_OF_KIND.get(total.kind, _OTHER))
        else:
            decision = classifier.kernel(total.name)
            decisions.append((decision.category, decision.rule))
    return decisions


def _texts(decisions: Sequence[_Decision]) -> dict[str, list[str | None]]:
    return {
        "top": [category.top if category else None for category, _ in decisions],
        "sub": [category.sub if category else None for category, _ in decisions],
        "rule": [rule for _, rule in decisions],
    }


def _counted(trace: Trace, classifier: Classifier) -> pa.Table:
    """Return kernels with counters and their launches, most first; repetitions count once."""
    table = trace.kernel_counters
    labels, name = names(table["name"]), codes(table["name"])
    kernel = joint_codes(numbers(table["process"]), name)
    dispatch = numbers(table["dispatch"], ABSENT)
    launch = np.where(dispatch == ABSENT, numbers(table["correlation"], ABSENT), dispatch)
    # Without dispatch and correlation, the n-th row of a kernel's counter is of its n-th launch.
    # Rows sorted by kernel and counter [4 4 9 9 9] less their first rows [0 0 2 2 2]: [0 1 0 1 2].
    unnumbered = np.flatnonzero(launch == ABSENT)
    counter = joint_codes(codes(table["counter"]), numbers(table["repetition"], 0))
    group = joint_codes(kernel, counter)[unnumbered]
    order = np.argsort(group, kind="stable")
    launch[unnumbered[order]] = np.arange(len(group)) - np.searchsorted(group[order], group[order])
    _, first = group_rows((kernel, launch))
    launches = np.bincount(name[first], minlength=len(labels))
    used = [code for code in np.argsort(-launches, kind="stable").tolist() if launches[code]]
    kernels = [Total("kernel", labels[code], None, None, None, None) for code in used]
    texts = {"name": [labels[code] for code in used], **_texts(_categorised(kernels, classifier))}
    return _table(texts, {"launches": launches[used].tolist()})


def _table(
    texts: Mapping[str, Sequence[str | None]],
    figures: Mapping[str, Sequence[int | None]],
    shares: Sequence[float | None] | None = None,
) -> pa.Table:
    """Return a table of columns of texts, of integers and of shares; None becomes null."""
    columns = {name: text_column(values) for name, values in texts.items()}
    columns |= {name: _figures(values, pa.int64()) for name, values in figures.items()}
    if shares is not None:
        columns["share"] = _figures(shares, pa.float64())
    return pa.table(columns)


def _figures(values: Sequence[float | None], kind: pa.DataType) -> pa.Array:
    """Return a column of numbers, null for None."""
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    filled = np.array([value or 0 for value in values], dtype=kind.to_pandas_dtype())
    return number_column(filled, kind, valid)

"""What a trace without a timeline says: sums by name, and launches that counters were read of.

A source that summed up its records (statistics of a profiler), one that only counted (a run in
which launches were serialised, so that their times mean nothing) and one that recorded calls alone
have no time to account for: no idle time, no overlap, no components, no MFU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.categories import Category, Classifier
from traceflops.remedies import command
from traceflops.table import (
    ABSENT,
    DEVICE_KINDS,
    IntArray,
    Total,
    Trace,
    codes,
    joint_codes,
    names,
    number_column,
    numbers,
    side_sums,
    text_column,
    totals_of,
    used_names,
)

_MOST_NAMES: Final = 100_000
"""Names that are looked at, those with most time first; further ones are other/other."""
_OTHER: Final = (Category("other", "other"), "too-many-names")
_FIGURES: Final = ("count", "sum_ns", "mean_ns", "min_ns", "max_ns", "bytes")
_OF_KIND: Final = {
    "memcpy": (Category("memory", "copy"), "kind-memcpy"),
    "memset": (Category("memory", "memset"), "kind-memset"),
}
_MIGRATION: Final = re.compile(r"\bunified\b", re.IGNORECASE)
"""Copies that the driver made for unified memory, as profilers of NVIDIA name them."""
_Decided = tuple[Category | None, str | None]


@dataclass(frozen=True, slots=True)
class Untimed:
    """Sums by name (`rows`), those of device work by category, and what was counted (`counted`).

    `rows`: kind, name, top, sub, rule (null for calls and marks), count, sum_ns, mean_ns, min_ns,
    max_ns, bytes (null where a source does not say), share of all of that side: of device work, of
    calls, or of marks; device work first, the longest first. `categories`: top, sub, count, sum_ns,
    share. `counted`: name, top, sub, rule, launches, for kernels whose counters were read;
    `counters` are their names. `record` is the command line that records a timeline.
    """

    rows: pa.Table
    categories: pa.Table
    counted: pa.Table
    counters: tuple[str, ...]
    record: str | None

    @property
    def device_ns(self) -> int | None:
        """Return the sum of all device work, None where a part of it is not known."""
        sums = self.categories["sum_ns"].to_pylist()
        return None if None in sums else sum(sums)

    @property
    def launches(self) -> int:
        """Return how many launches counters were read of."""
        return sum(self.counted["launches"].to_pylist())

    def of_kind(self, *kinds: str) -> pa.Table:
        """Return the rows of some kinds, the longest first."""
        wanted = [kind in kinds for kind in self.rows["kind"].to_pylist()]
        places = number_column(np.flatnonzero(np.array(wanted, dtype=np.bool_)), pa.int64())
        return self.rows.take(places)


def untimed(trace: Trace, classifier: Classifier) -> Untimed | None:
    """Return what a trace without any timeline says; None for any other trace."""
    if trace.activities.num_rows or trace.ops.num_rows:
        return None
    totals, classifier = totals_of(trace), classifier.knowing(trace.source.rules)
    counted = _counted(trace, classifier)
    if not totals and not counted.num_rows:
        return None
    decided = _decide(totals, classifier)
    return Untimed(
        _rows(totals, decided),
        _categories(totals, decided),
        counted,
        tuple(sorted(used_names(trace.kernel_counters["counter"]))),
        command(trace),
    )


def _decide(totals: Sequence[Total], classifier: Classifier) -> list[_Decided]:
    found: list[_Decided] = []
    for at, one in enumerate(totals):
        if one.kind not in DEVICE_KINDS:
            found.append((None, None))
        elif one.kind == "memcpy" and _MIGRATION.search(one.name):
            found.append((Category("memory", "migration"), "migration"))
        elif one.kind in _OF_KIND or at >= _MOST_NAMES:
            found.append(_OF_KIND.get(one.kind, _OTHER))
        else:
            decision = classifier.kernel(one.name)
            found.append((decision.category, decision.rule))
    return found


def _rows(totals: list[Total], decided: Sequence[_Decided]) -> pa.Table:
    whole = side_sums(totals)
    texts: dict[str, Sequence[str | None]] = {
        "kind": [total.kind for total in totals],
        "name": [total.name for total in totals],
        **_category_texts(decided),
    }
    figures = {name: [getattr(total, name) for total in totals] for name in _FIGURES}
    return _table(texts, figures, [_share(total.sum_ns, whole.get(total.side)) for total in totals])


def _category_texts(decided: Sequence[_Decided]) -> dict[str, list[str | None]]:
    return {
        "top": [category.top if category else None for category, _ in decided],
        "sub": [category.sub if category else None for category, _ in decided],
        "rule": [rule for _, rule in decided],
    }


def _categories(totals: list[Total], decided: Sequence[_Decided]) -> pa.Table:
    counts: dict[Category, int | None] = {}
    sums: dict[Category, int | None] = {}
    for one, (category, _) in zip(totals, decided, strict=True):
        if category is not None:
            counts[category] = _plus(counts.get(category, 0), one.count)
            sums[category] = _plus(sums.get(category, 0), one.sum_ns)
    ranked = sorted(sums, key=lambda a_sum: (-(sums[a_sum] or 0), a_sum.top, a_sum.sub))
    whole = side_sums(totals).get("device")
    return _table(
        {"top": [one.top for one in ranked], "sub": [one.sub for one in ranked]},
        {"count": [counts[one] for one in ranked], "sum_ns": [sums[one] for one in ranked]},
        [_share(sums[one], whole) for one in ranked],
    )


def _plus(so_far: int | None, more: int | None) -> int | None:
    return None if so_far is None or more is None else so_far + more


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _counted(trace: Trace, classifier: Classifier) -> pa.Table:
    """Return how many launches of each kernel counters were read of; repetitions count once."""
    table = trace.kernel_counters
    labels, name = names(table["name"]), codes(table["name"])
    _, first = np.unique(_launch(trace), return_index=True)
    number = np.bincount(name[first], minlength=len(labels))
    used = [at for at in np.argsort(-number, kind="stable").tolist() if number[at]]
    kernels = [Total("kernel", labels[at], None, None, None, None) for at in used]
    decided = _decide(kernels, classifier)
    texts = {"name": [labels[at] for at in used], **_category_texts(decided)}
    return _table(texts, {"launches": [int(number[at]) for at in used]})


def _launch(trace: Trace) -> IntArray:
    """Return the launch that each row of the counters is of.

    It is told by the number of the dispatch, else by the correlation; without either, the n-th row
    of each counter of a kernel is of its n-th launch.
    """
    table = trace.kernel_counters
    kernel = joint_codes(numbers(table["process"]), codes(table["name"]))
    dispatch = numbers(table["dispatch"], ABSENT)
    launch = np.where(dispatch == ABSENT, numbers(table["correlation"], ABSENT), dispatch)
    nameless = np.flatnonzero(launch == ABSENT)
    repetition = joint_codes(codes(table["counter"]), numbers(table["repetition"], 0))
    launch[nameless] = _rank(joint_codes(kernel, repetition)[nameless])
    return joint_codes(kernel, launch)


def _rank(group: IntArray) -> IntArray:
    """Return how many rows of its group come before each row."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    place = np.arange(len(group))
    opens = np.append(True, ordered[1:] != ordered[:-1])[: len(group)]
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = place - np.maximum.accumulate(np.where(opens, place, 0))
    return rank


def _table(
    texts: Mapping[str, Sequence[str | None]],
    figures: Mapping[str, Sequence[int | None]],
    shares: Sequence[float | None] | None = None,
) -> pa.Table:
    arrays = {name: text_column(values) for name, values in texts.items()}
    arrays |= {name: _figures(values, pa.int64()) for name, values in figures.items()}
    if shares is not None:
        arrays["share"] = _figures(shares, pa.float64())
    return pa.Table.from_arrays(list(arrays.values()), names=list(arrays))


def _figures(values: Sequence[float | None], arrow_type: pa.DataType) -> pa.Array:
    known = np.array([value is not None for value in values], dtype=np.bool_)
    plain = np.array([value or 0 for value in values], dtype=arrow_type.to_pandas_dtype())
    return number_column(plain, arrow_type, known)

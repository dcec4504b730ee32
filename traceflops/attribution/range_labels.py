"""What ranges are called: without numbers that count steps, with those that distinguish them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.table.columns import codes, is_one_of, names, numbers
from traceflops.table.grouping import groups

if TYPE_CHECKING:
    from traceflops.table.columns import IntArray
    from traceflops.table.trace import Trace

_NUMBER: Final = re.compile(r"#?\d+")
_SEPARATORS: Final = " #:_=.,/()[]-"
_ENDING: Final = f"{_SEPARATORS}0123456789"
_PAIRS: Final = ("()", "[]", "{}", '""', "''")


def names_by_process(trace: Trace) -> Callable[[str, int], str]:
    """Return how to call a range of a process: as `range_names` of that process alone does."""
    rows = np.flatnonzero(is_one_of(trace.marks["kind"], "annotation"))
    by_process = groups(numbers(trace.marks["process"])[rows])
    known = {process: _names_of(trace, rows[own]) for process, own in by_process}
    return lambda label, process: known.get(process, {}).get(label) or numberless(label)


def range_names(trace: Trace) -> Callable[[str], str]:
    """Return how to call a range: without the numbers in which it differs from others like it.

    "IO 12" and "IO 13" are "IO"; the sizes in "moe[tokens=16]", which are the same in all, stay.
    Of one alone only a number at its end, often that of a step, is left out.
    """
    known = _names_of(trace, np.flatnonzero(is_one_of(trace.marks["kind"], "annotation")))
    return lambda label: known.get(label) or numberless(label)


def _names_of(trace: Trace, rows: IntArray) -> dict[str, str]:
    """Return what the ranges of some rows of marks are called, by their texts."""
    texts, times = names(trace.marks["name"]), Counter(codes(trace.marks["name"])[rows].tolist())
    alike: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for code in times:
        alike[tuple(_NUMBER.split(texts[code]))].append(texts[code])
    lone = {texts[code] for code, count in times.items() if count == 1}
    name_of: dict[str, str] = {}
    for labels in alike.values():
        values = zip(*map(_NUMBER.findall, labels), strict=True)
        differs = [len({*column}) > 1 for column in values]
        is_alone = len(labels) == 1 and labels[0] in lone
        for label in labels:
            name_of[label] = _begun(label) or label if is_alone else _without(label, differs)
    return name_of


def numberless(label: str) -> str:
    """Return a label without its numbers, which often count steps: "IO 12" as "IO"."""
    return _without(label, [True] * len(_NUMBER.findall(label)))


def numbered(label: str) -> str:
    """Return a pattern of the labels that are called this."""
    inner = re.escape(label).replace("N", rf"(?:N|{_NUMBER.pattern})")
    end = "(?![0-9])" if label[-1:].isdigit() else ""
    return f"{inner}{end}[{re.escape(_ENDING)}]*"


def _begun(label: str, differs: Sequence[bool] | None = None) -> str:
    """Return the part of a label before the numbers at its end, or before the first that differs.

    Other numbers that differ are N. "" where a bracket or quotation mark would be left open.
    """
    matches = [*_NUMBER.finditer(label)]
    goes = differs if differs is not None else [True] * len(matches)
    end = len(label.rstrip(_ENDING))
    cuts = (m.start() for m, it in zip(matches, goes, strict=True) if it and m.start() >= end)
    short = label[: next(cuts, 0)].rstrip(_SEPARATORS)
    # Whether each bracket and quotation mark of a text has its partner
    is_closed = all(
        short.count(opens) % 2 == 0 if opens == shuts else short.count(opens) == short.count(shuts)
        for opens, shuts in _PAIRS
    )
    if not is_closed:
        return ""
    return short if differs is None else _replaced(short, differs)


def _replaced(label: str, differs: Sequence[bool]) -> str:
    left = iter(differs)
    return _NUMBER.sub(lambda number: "N" if next(left) else number[0], label)


def _without(label: str, differs: Sequence[bool]) -> str:
    """Return a label without some of its numbers: cut before one at its end, N elsewhere."""
    return _begun(label, differs) or _replaced(label, differs)

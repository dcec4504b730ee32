"""Names of ranges without the numbers that count steps, but with those that are a size."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache
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
    """Return a function of label and process: `range_names` for the labels of that process only."""

    @cache
    def rows_of() -> dict[int, IntArray]:
        rows = np.flatnonzero(is_one_of(trace.marks["kind"], "annotation"))
        by_process = groups(numbers(trace.marks["process"])[rows])
        return {process: rows[of_process] for process, of_process in by_process}

    @cache
    def name_of(process: int) -> Callable[[str], str]:
        rows = rows_of().get(process)
        return numberless if rows is None else _names_of(trace, rows)

    return lambda label, process: name_of(process)(label)


def range_names(trace: Trace) -> Callable[[str], str]:
    """Return a function that removes from a label the numbers in which similar labels differ.

    "IO 12" and "IO 13" become "IO"; in "moe[tokens=16]" the size stays if it is the same in all. A
    label without similar ones, seen once, loses only a number at its end, which is often a step's.
    """
    return _names_of(trace, np.flatnonzero(is_one_of(trace.marks["kind"], "annotation")))


def _names_of(trace: Trace, rows: IntArray) -> Callable[[str], str]:
    """Return a function of a label of these marks; similar labels differ only in numbers.

    Names are made when they are asked for: there may be as many labels as marks.
    """
    texts, count_of = names(trace.marks["name"]), Counter(codes(trace.marks["name"])[rows].tolist())
    similar: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for code in count_of:
        similar[tuple(_NUMBER.split(texts[code]))].append(texts[code])
    times_seen = {texts[code]: count for code, count in count_of.items()}

    @cache
    def differs(between: tuple[str, ...]) -> list[bool]:
        """Return, per number between some texts, whether it differs in the labels with these."""
        values = zip(*map(_NUMBER.findall, similar[between]), strict=True)
        return [len({*column}) > 1 for column in values]

    @cache
    def name_of(label: str) -> str:
        if label not in times_seen:
            return numberless(label)
        between = tuple(_NUMBER.split(label))
        is_alone = len(similar[between]) == 1 and times_seen[label] == 1
        name = _begun(label) or label if is_alone else _without(label, differs(between))
        return name or numberless(label)

    return name_of


def numberless(label: str) -> str:
    """Return a label without its numbers, which often count steps: "IO 12" becomes "IO"."""
    return _without(label, [True] * len(_NUMBER.findall(label)))


def numbered(label: str) -> str:
    """Return an expression (RE2) of the labels that get this name; N stands for a number."""
    inner = re.escape(label).replace("N", rf"(?:N|{_NUMBER.pattern})")
    end = f"[{re.escape(_ENDING)}]*"
    # A digit after the last one would make another number of it.
    return f"{inner}(?:[{re.escape(_SEPARATORS)}]{end})?" if label[-1:].isdigit() else inner + end


def _begun(label: str, differs: Sequence[bool] | None = None) -> str:
    """Return a label cut at the first number that differs in its end of numbers and separators.

    `differs` is per number of the label, by default all differ. Numbers before the end that differ
    become N. Return "" if nothing is cut, or if that would leave a bracket or quotation mark open.
    """
    matches = [*_NUMBER.finditer(label)]
    flags = differs if differs is not None else [True] * len(matches)
    end = len(label.rstrip(_ENDING))  # only numbers and separators follow
    at_number = [m.start() for m, is_cut in zip(matches, flags, strict=True) if is_cut]
    cuts = (start for start in at_number if start >= end)
    short = label[: next(cuts, 0)].rstrip(_SEPARATORS)
    # Each bracket and quotation mark must have its partner.
    is_closed = all(
        short.count(opens) % 2 == 0 if opens == shuts else short.count(opens) == short.count(shuts)
        for opens, shuts in _PAIRS
    )
    if not is_closed:
        return ""
    return short if differs is None else _replaced(short, differs)


def _replaced(label: str, differs: Sequence[bool]) -> str:
    """Return a label with N in place of each number that differs."""
    differ = iter(differs)
    return _NUMBER.sub(lambda number: "N" if next(differ) else number[0], label)


def _without(label: str, differs: Sequence[bool]) -> str:
    """Return a label without the numbers that differ: its end is cut off, others become N."""
    return _begun(label, differs) or _replaced(label, differs)

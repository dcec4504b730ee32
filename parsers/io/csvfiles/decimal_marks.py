"""Marks in printed numbers: which is that of decimals, and which are those of thousands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

_SPACES: Final = "'\u2019\u00a0\u202f\u2009 "
_NUMBER: Final = re.compile(rf"-?\d[\d.,{_SPACES}]*")
_THREES: Final = re.compile(rf"-?\d{{1,3}}([.,{_SPACES}])\d{{3}}(?:\1\d{{3}})*")
"""A whole number in groups of three, all behind the same mark."""
_LONGEST: Final = 60


def clear_mark(cell: str) -> str | None:
    """Return the decimal mark of a number where there is no doubt about it, else None.

    A mark that stands in it twice is that of thousands, so the other one is that of decimals.
    """
    marks = [c for c in cell[:_LONGEST] if c in ".,"]
    if not marks or len(cell) > _LONGEST or not _NUMBER.fullmatch(cell):
        return None
    last = marks[-1]
    if marks.count(last) > 1:
        return ("," if last == "." else ".") if _THREES.fullmatch(cell) else None
    whole, _, rest = cell.rpartition(last)
    if len(set(marks)) == 2 or len(rest) != 3 or len(whole.lstrip("-")) > 3 or whole == "0":
        return last
    return None


def is_ambiguous(cell: str) -> bool:
    """Return whether a number is 1000 times as large when its mark is that of thousands."""
    found = _THREES.fullmatch(cell) if len(cell) <= _LONGEST else None
    return found is not None and found[1] in ".," and clear_mark(cell) is None


def decimal_mark(cells: Iterable[str]) -> str | None:
    """Return the decimal mark that most of some numbers clearly have; None where none has."""
    told = Counter(mark for cell in cells if (mark := clear_mark(cell)) is not None)
    return max(told, key=lambda mark: (told[mark], mark)) if told else None


def plain_decimal(cell: str, *, comma: bool) -> str:
    """Return a number with separators of thousands as one without, its decimal mark a point."""
    mark = "," if comma else "."
    whole, _, rest = cell.partition(mark)
    return re.sub(r"[^\d-]", "", whole) + (f".{rest}" if rest else "")


def plain_integer(cell: str) -> str | None:
    """Return a whole number that is printed in groups of three as one without; None for others."""
    cell = cell.strip()
    if len(cell) > _LONGEST or not _THREES.fullmatch(cell):
        return None
    return re.sub(r"[^\d-]", "", cell)


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, with or without marks."""
    return len(cell) <= _LONGEST and _NUMBER.fullmatch(cell) is not None

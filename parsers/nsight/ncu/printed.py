"""Numbers as they are printed, many at once; what is not printed plainly is read one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceflops.parsers.io.csvfiles.decimal_marks import clear_mark, is_ambiguous
from traceflops.parsers.nsight.ncu.units import LONGEST, What, value_of
from traceflops.table.columns import BoolArray, IntArray

WHATS: Final[tuple[What, ...]] = ("number", "none", "instances", "text")
_NUMBER, _TEXT = WHATS.index("number"), WHATS.index("text")

_DIGITS_AND_MARKS: Final = r"^-?[0-9][0-9.,]*$"
_PLAIN: Final = r"^-?[0-9]+(?:\.[0-9]+)?$"
_AMBIGUOUS: Final = r"^-?[0-9]{1,3}[.,][0-9]{3}$"
_LESS_THAN_ONE: Final = r"^0[.,]"
_CLEAR: Final = (
    "^-?[0-9]+[{mark}][0-9]*$",
    "^-?[0-9][0-9{other}]*[{other}][0-9{other}]*[{mark}][0-9]*$",
    "^-?[0-9]{{1,3}}(?:[{other}][0-9]{{3}}){{2,}}$",
)
"""Numbers with a decimal mark alone, behind marks of thousands, and with two of those alone."""


def plain_numbers(texts: Sequence[str], *, comma: bool) -> tuple[pa.Array, IntArray]:
    """Return numbers printed with a point and nothing else, null for what is none; and WHATS.

    `comma` says that the comma is the decimal mark, and not the mark of thousands.
    """
    cells = pa.array(texts, pa.string())
    if comma:
        plain = pc.replace_substring(pc.replace_substring(cells, ".", ""), ",", ".")
    else:
        plain = pc.replace_substring(cells, ",", "")
    easy = _is_easy(cells)
    is_number = easy & _matches(plain, _PLAIN)
    is_text = easy & (_array(pc.count_substring(plain, ".")) > 1)
    what = np.where(is_number, _NUMBER, _TEXT)
    found = pc.if_else(pa.array(is_number), plain, None)
    others = ~(is_number | is_text)
    if others.any():
        read = [value_of(texts[at], comma=comma) for at in np.flatnonzero(others).tolist()]
        what[others] = [WHATS.index(kind) for kind, _ in read]
        told = [None if value is None else f"{value:f}" for _, value in read]
        found = pc.replace_with_mask(found, pa.array(others), pa.array(told, pa.string()))
    return found, what


def marks_seen(texts: Sequence[str]) -> tuple[Counter[str], str]:
    """Return how many numbers clearly have which decimal mark, and one that may have any."""
    cells = pa.array(texts, pa.string())
    easy = _is_easy(cells)
    told: Counter[str] = Counter()
    unclear = easy & _matches(cells, _AMBIGUOUS) & ~_matches(cells, _LESS_THAN_ONE)
    for mark, other in (".,", ",."):
        patterns = [one.format(mark=mark, other=other) for one in _CLEAR]
        clear = easy & ~unclear & _matches(cells, "|".join(patterns))
        told[mark] += int(np.count_nonzero(clear))
    examples = [texts[at] for at in np.flatnonzero(unclear)[:1].tolist()]
    for at in np.flatnonzero(~easy).tolist():
        text = texts[at].strip()
        clearly = clear_mark(text)
        if clearly is not None:
            told[clearly] += 1
        elif is_ambiguous(text):
            examples.append(text)
    return +told, examples[0] if examples else ""


def has_marks(texts: Sequence[str]) -> bool:
    """Return whether any of some texts has a mark, so that it may be read in two ways."""
    return any("." in text or "," in text for text in texts)


def _is_easy(cells: pa.Array) -> BoolArray:
    """Return which cells are nothing but digits and marks, and no longer than a number is."""
    return _matches(cells, _DIGITS_AND_MARKS) & (_array(pc.binary_length(cells)) <= LONGEST)


def _matches(cells: pa.Array, pattern: str) -> BoolArray:
    found: BoolArray = _array(pc.match_substring_regex(cells, pattern))
    return found


def _array(values: pa.Array) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found

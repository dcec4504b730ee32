"""Regular expressions that users write, on the texts of a recording.

They are those of RE2, without look-around and back-references: the time to match grows with the
length of a text and no faster, whatever the expression and whoever wrote the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceflops.table.columns import BoolArray, string_column


def matches(pattern: str, texts: Sequence[str], *, ignore_case: bool = False) -> BoolArray:
    """Return in which texts an expression is found. Raises ValueError where it is none."""
    found = pc.match_substring_regex(string_column(texts), pattern, ignore_case=ignore_case)
    return np.array(found.to_pylist(), dtype=np.bool_)


def matched_groups(pattern: str, texts: Sequence[str]) -> list[str | None]:
    """Return what the first group of an expression matched in texts that it matches as a whole.

    That is "" where it has no group, and None for the other texts. Raises ValueError where the
    expression is none.
    """
    matches(pattern, ("",))  # alone, so that no bracket of it closes one of ours
    whole = rf"\A(?:{pattern})\z"
    is_matched = matches(whole, texts).tolist()
    mine = string_column([text for text, mine in zip(texts, is_matched, strict=True) if mine])
    try:
        groups = iter(pc.replace_substring_regex(mine, whole, r"\1").to_pylist())
    except pa.ArrowInvalid:  # it has no group
        return ["" if mine else None for mine in is_matched]
    return [next(groups) if mine else None for mine in is_matched]

"""What NVIDIA's own rules say of kernels: rows of kernel_rules, from pages and from reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.parsers.nsight.ncu_values import plain_numbers
from traceflops.parsers.shared import chosen
from traceflops.table import Array, TableBuilder, group_rows

KINDS: Final = ("INF", "WRN", "ERR", "OPT")
"""Kinds of what a rule says, as pages print them and in the order in which reports number them."""
SPEEDUP_KINDS: Final = ("local", "global")
"""Of what a speed-up is estimated, in that order."""
_LINK: Final = re.compile(r"@url:([^:@]*):([^@]*)@")
_PLACE: Final = re.compile(r"@\w+:(?:[^:@]*:)?([^:@]*)@")
"""How texts of reports hold addresses, and places in the report."""
_SAME: Final = ("process", "dispatch", "section", "rule", "text")


def one_of(words: Sequence[str], text: str) -> str | None:
    """Return a text as it stands among some words, None where it does not."""
    found = text.strip().casefold()
    return next((word for word in words if word.casefold() == found), None)


def shares(texts: Sequence[str], *, comma: bool) -> Array:
    """Return printed percentages as shares, NaN for what is none; `comma` is the decimal mark."""
    percents = plain_numbers(texts, comma=comma)[0].to_pylist()
    return np.array([np.nan if one is None else float(f"{one}e-2") for one in percents], np.float64)


def plain_text(text: str) -> str:
    """Return a text of a report as pages print it: with addresses in brackets, without places."""
    return _PLACE.sub(r"\1", _LINK.sub(r"\1 (\2)", text))


def without_repeats(rules: TableBuilder) -> TableBuilder:
    """Return the rules without those that another page says in the same words."""
    if not rules.count:
        return rules
    _, first = group_rows([rules.column(name) for name in _SAME])
    return chosen(rules, np.isin(np.arange(rules.count), first))

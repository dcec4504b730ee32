"""Which columns of a CSV page of Nsight Compute are read, decided by its header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from traceflops.parsers.io import Field, Plan

_MOST_COLUMNS: Final = 20_000
_TEXTS: Final = {
    "name": "kernel name",
    "host": "host name",
    "grid": "grid size",
    "block": "block size",
    "device": "device",
    "cc": "cc",
}
_METRIC: Final = {
    "section": "section name",
    "label": "metric name",
    "unit": "metric unit",
    "value": "metric value",
}
_NUMBERS: Final = {"id": "id", "pid": "process id"}


@dataclass(frozen=True, slots=True)
class Page:
    """A page: one row for each metric (details), or one for each kernel (raw).

    `metrics` are those of a raw page by the words of their columns.
    """

    name: Literal["details", "raw"]
    layout: str
    metrics: Mapping[str, str]


class NcuTables:
    """The pages of Nsight Compute, as the reader of CSV asks for them."""

    beginnings: Final = frozenset({'ID",', 'ID,"', "ID,P", "ID,K", 'ID";', "ID;P", "ID\tP"})

    def of_header(self, names: Sequence[str]) -> Plan | None:
        """Return what to read of the page with this header; None if it is none."""
        if not 4 <= len(names) <= _MOST_COLUMNS:
            return None
        words = [name.strip().lower() for name in names]
        if "id" not in words or "kernel name" not in words:
            return None
        fields = {r: Field(words.index(w), "integer") for r, w in _NUMBERS.items() if w in words}
        fields |= {r: Field(words.index(w), "text") for r, w in _TEXTS.items() if w in words}
        if "metric name" in words and "metric value" in words:
            fields |= {r: Field(words.index(w), "text") for r, w in _METRIC.items() if w in words}
            least = fields["value"].place + 1
            page = Page("details", _layout(words), {})
        else:
            metrics = {f"metric {at}": n.strip() for at, n in enumerate(names) if "__" in n}
            if not metrics:
                return None
            fields |= {word: Field(int(word[7:]), "text") for word in metrics}
            least = len(names)
            page = Page("raw", "raw page", metrics)
        shorter = least if least < len(names) else None
        return Plan(len(names), fields, fields["name"].place, page, shorter)

    def of_row(self, row: Sequence[str]) -> Plan | None:
        """Return nothing: pages always have a header."""
        return None


NCU_TABLES: Final = NcuTables()


def _layout(words: Sequence[str]) -> str:
    """Return which release writes such a page."""
    if "rule name" in words:
        return "details with rules (2023 and later)"
    if "body item label" in words:
        return "full details"
    return "details (2020)" if "kernel time" in words else "details (2022)"

"""The pages of Nsight Compute as CSV, by their headers: which columns say what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from traceflops.parsers.io import Field, Kind, Plan

_MOST_COLUMNS: Final = 20_000
_ROLES: Final[Mapping[str, tuple[str, Kind]]] = {
    "id": ("id", "integer"),
    "pid": ("process id", "integer"),
    "name": ("kernel name", "text"),
    "host": ("host name", "text"),
    "grid": ("grid size", "text"),
    "block": ("block size", "text"),
    "device": ("device", "text"),
    "cc": ("cc", "text"),
}
"""Each role, the column that has it, and what its cells are."""
_METRIC: Final[Mapping[str, tuple[str, Kind]]] = {
    "section": ("section name", "text"),
    "label": ("metric name", "text"),
    "unit": ("metric unit", "text"),
    "value": ("metric value", "text"),
    "rule": ("rule name", "text"),
    "kind": ("rule type", "text"),
    "text": ("rule description", "text"),
    "speedup_kind": ("estimated speedup type", "text"),
    "speedup": ("estimated speedup", "text"),
}


@dataclass(frozen=True, slots=True)
class Page:
    """A page: one row for each metric (details), or one for each kernel (raw).

    `metrics` are those of a raw page by the words of their columns.
    """

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
        is_details = "metric name" in words and "metric value" in words
        roles = {**_ROLES, **(_METRIC if is_details else {})}
        fields = {r: Field(words.index(w), kind) for r, (w, kind) in roles.items() if w in words}
        least, page = len(names), Page(_layout(words), {})
        if is_details:
            least = fields["value"].place + 1
        else:
            metrics = {f"metric {at}": n.strip() for at, n in enumerate(names) if "__" in n}
            if not metrics:
                return None
            fields |= {word: Field(int(word[7:]), "text") for word in metrics}
            page = Page("raw page", metrics)
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

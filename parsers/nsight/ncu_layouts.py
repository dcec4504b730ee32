"""The pages of Nsight Compute as CSV, by their headers: which columns are read."""

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
"""Each role, the column that has it, and the kind of its cells."""
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
_LAYOUTS: Final = (
    ("rule name", "details with rules (2023 and later)"),
    ("body item label", "full details"),
    ("kernel time", "details (2020)"),
)
"""By a column that only it has, the layout of a page with a row for each metric."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: one row for each metric (details), or one for each kernel (raw).

    `metrics` are those of a raw page by the roles of their columns.
    """

    layout: str
    metrics: Mapping[str, str]


class NcuTables:
    """The pages of Nsight Compute, as the CSV reader asks for them."""

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
        if is_details:
            # Rows may end behind the value: the columns of rules are then empty.
            least = fields["value"].place + 1
            layout = next((text for word, text in _LAYOUTS if word in words), "details (2022)")
            page = Page(layout, {})
        else:
            least = len(names)
            places = {f"metric {n}": n for n, name in enumerate(names) if "__" in name}
            if not places:
                return None
            fields |= {role: Field(place, "text") for role, place in places.items()}
            page = Page("raw page", {role: names[n].strip() for role, n in places.items()})
        shorter = least if least < len(names) else None
        return Plan(len(names), fields, fields["name"].place, page, shorter)

    def of_row(self, row: Sequence[str]) -> Plan | None:
        """Return nothing: pages always have a header."""
        return None


NCU_TABLES: Final = NcuTables()

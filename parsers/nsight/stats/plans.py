"""Which columns of a report of `nsys stats` are read, decided by its header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from traceflops.parsers.io import Field, Kind, Plan
from traceflops.parsers.nsight.stats.layouts import (
    BYTE_UNITS,
    ROLES,
    TIME_UNITS,
    Report,
    named,
    report_of,
)

_MOST_COLUMNS: Final = 200


@dataclass(frozen=True, slots=True)
class Table:
    """A report as it stands in a file: how many ns or bytes the unit of each role is.

    `without_unit` says that times have none: they are ns then.
    """

    report: Report
    scales: Mapping[str, int]
    without_unit: bool


class StatsTables:
    """The reports of `nsys stats`, as the reader of CSV asks for them."""

    beginnings: Final = frozenset(
        {"Time", "Star", "Name", "Rang", "NVTX", "Tota", "API ", "Coun", "PID,", 'PID"'}
    )

    def of_header(self, names: Sequence[str]) -> Plan | None:
        """Return what to read of the report with this header; None if it is none."""
        if not 3 <= len(names) <= _MOST_COLUMNS:
            return None
        columns = [named(name) for name in names]
        words = [word for word, _ in columns]
        report = report_of(words)
        if report is None:
            return None
        fields: dict[str, Field] = {}
        scales: dict[str, int] = {}
        without = False
        for role, spellings, kind in ROLES:
            word = next((one for one in spellings if one in words), None)
            if word is None:
                continue
            place = words.index(word)
            unit = columns[place][1]
            scale = _scale(kind, unit)
            if scale is None or (kind == "time" and report.records == "sizes"):
                continue
            without |= kind == "time" and unit is None
            fields[role] = Field(place, _cells(kind, scale))
            scales[role] = scale
        if "name" not in fields:
            return None
        free = fields["name"].place
        return Plan(len(names), fields, free, Table(report, scales, without))

    def of_row(self, row: Sequence[str]) -> Plan | None:
        """Return nothing: reports always have a header."""
        return None


STATS_TABLES: Final = StatsTables()


def _scale(kind: str, unit: str | None) -> int | None:
    """Return how many ns or bytes a unit is; None for one that is not known."""
    if kind == "time":
        return 1 if unit is None else TIME_UNITS.get(unit)
    if kind == "size":
        return None if unit is None else BYTE_UNITS.get(unit)
    return 1


def _cells(kind: str, scale: int) -> Kind:
    if kind == "text":
        return "text"
    return "integer" if scale == 1 else "number"

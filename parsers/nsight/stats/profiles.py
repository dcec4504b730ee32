"""Which tables of a file are of one profile, and which of another.

A file may hold the reports of several profiles, one after the other: runs or ranks, which are
never added up. A line before each table names its profile, or there is none; and profiles of
several folders are often called the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.parsers.nsight.stats.rows import Part
from traceflops.parsers.nsight.stats.sections import shown_profile
from traceflops.table import ABSENT, IntArray

_RECORDS: Final = ("activities", "calls", "marks")


@dataclass(slots=True)
class _Held:
    """A table of a profile, the latest start of its records and the names of its sums."""

    part: Part
    last_ns: int = ABSENT
    names: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._cover(self.part)

    def is_again(self, part: Part) -> bool:
        """Return whether a table has the same records with the same figures."""
        counts = [{n: t.count for n, t in each.tables.items()} for each in (self.part, part)]
        return counts[0] == counts[1] and _figures(self.part) == _figures(part)

    def goes_on(self, part: Part) -> bool:
        """Return whether a table is the rest: later records, or sums of further names."""
        if self.last_ns != ABSENT and (starts := _starts(part)) is not None:
            return int(np.min(starts)) >= self.last_ns
        return not self.names & _names_in(part)

    def absorb(self, part: Part) -> None:
        """Add the rest of the table."""
        self._cover(part)
        self.part.absorb(part)

    def _cover(self, part: Part) -> None:
        starts = _starts(part)
        if starts is not None:
            self.last_ns = max(self.last_ns, int(np.max(starts)))
        self.names |= _names_in(part)


@dataclass(slots=True)
class _Profile:
    name: str
    tables: dict[str, _Held] = field(default_factory=dict)

    def takes(self, part: Part) -> bool:
        """Add a table; return False where it must be of another profile."""
        held = self.tables.get(part.report.name)
        if held is None:
            self.tables[part.report.name] = _Held(part)
        elif not any(table.count for table in part.tables.values()):
            held.part.odd.update(part.odd)
        elif held.is_again(part):
            held.part.odd["table-repeated"] += 1
        elif held.goes_on(part):
            held.absorb(part)
        else:
            return False
        return True


def profiles(parts: Sequence[Part]) -> dict[str, list[Part]]:
    """Return the tables of a file by profile, whose name is empty where there is only one.

    A table that stands there again, number by number, counts once. One that goes on where another
    of its kind ends is a part of that; any other with rows of the same report is of a profile of
    its own.
    """
    named = dict.fromkeys(part.profile for part in parts if part.profile)
    only = next(iter(named)) if len(named) == 1 else ""
    found: list[_Profile] = []
    current: dict[str, _Profile] = {}
    for part in parts:
        name = part.profile or only
        if name not in current or not current[name].takes(part):
            current[name] = _Profile(name)
            current[name].takes(part)
            found.append(current[name])
    return {
        name: [held.part for held in one.tables.values()]
        for name, one in zip(_names(found), found, strict=True)
    }


def _names(found: Sequence[_Profile]) -> list[str]:
    """Return a name for each profile that no other has."""
    if len(found) < 2:
        return [""] * len(found)
    names = [shown_profile(one.name) for one in found]
    times, seen = Counter(names), Counter[str]()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(f"{name} {seen[name]}".strip() if times[name] > 1 or not name else name)
    return unique


def _figures(part: Part) -> list[bytes]:
    """Return the figures of a table, which are the same in every report of the same records."""
    return [
        table.column(column).tobytes()
        for name, table in sorted(part.tables.items())
        for column in (
            ("count", "total_ns", "bytes") if name == "totals" else ("start_ns", "dur_ns")
        )
    ]


def _starts(part: Part) -> IntArray | None:
    """Return when the records of a table begin, None where it has none."""
    table = next((part.tables[n] for n in _RECORDS if n in part.tables), None)
    return table.column("start_ns") if table is not None and table.count else None


def _names_in(part: Part) -> set[tuple[str, str]]:
    table = part.tables.get("totals")
    if table is None or not table.count:
        return set()
    kinds, names = list(table.names["kind"]), list(table.names["name"])
    pairs = np.unique(np.stack([table.column("kind"), table.column("name")]), axis=1).T
    return {(kinds[kind], names[name]) for kind, name in pairs.tolist()}

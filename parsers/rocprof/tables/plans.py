"""Which columns of a rocprof CSV are read, decided by its header, or by a row if it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from traceflops.parsers.io import Field, Plan, find_start
from traceflops.parsers.rocprof.layouts import (
    HEADLESS,
    ROLES,
    ROLES_OF,
    Headless,
    counters_in,
    free_role,
    layout_of,
    plain,
)
from traceflops.parsers.shared import V1, Layout

_WHOLE: Final = ("agents", "system")
_JOINED: Final = ('Pid"', "Pid,", "Guid", "GPU_ID", "Node_Id", "Dispatch_ID", "dispatch_id", "Name")


@dataclass(frozen=True, slots=True)
class RocprofTable:
    """What a table is: its layout, how its rows are read, and the columns of each counter in it."""

    layout: Layout
    what: str
    counters: Mapping[str, tuple[str, ...]]


class RocprofTables:
    """The tables of rocprof, as the reader of CSV asks for them."""

    beginnings: Final = frozenset({*_JOINED, *(one.columns[0] for one in HEADLESS)})

    def of_header(self, names: Sequence[str]) -> Plan | None:
        """Return what to read of the table with this header; None if it is none of rocprof's."""
        layout = layout_of(names)
        return None if layout is None else _plan(layout, names)

    def of_row(self, row: Sequence[str]) -> Plan | None:
        """Return what to read of the table without header that has this row."""
        found = next((one for one in HEADLESS if _looks_like(one, row)), None)
        return self.of_header(found.columns) if found else None


ROCPROF_TABLES: Final = RocprofTables()


def table_in(head: bytes) -> RocprofTable | None:
    """Return which table of rocprof's a text is, told by its first lines."""
    start = find_start(head, ROCPROF_TABLES)
    return start.plan.what if start else None


def _looks_like(table: Headless, row: Sequence[str]) -> bool:
    return len(row) == len(table.columns) and all(
        row[place].startswith(word) for place, word in table.begins.items()
    )


def _plan(layout: Layout, names: Sequence[str]) -> Plan:
    if layout.what in _WHOLE:
        whole = {name: Field(place, "text") for place, name in enumerate(names)}
        return Plan(len(names), whole, None, RocprofTable(layout, layout.what, {}))
    counters = counters_in(names) if layout.may_be_wide else {}
    what = "wide" if counters else layout.what
    is_timed = layout.generation == V1 and layout.what == "kernels"
    roles = "timed wide" if counters and is_timed else what
    fields = _fields(roles, [plain(name) for name in names])
    free = free_role(fields)
    words = {
        name: tuple(f"counter {place}" for place in places) for name, places in counters.items()
    }
    for name, places in counters.items():
        fields |= {
            word: Field(place, "number") for word, place in zip(words[name], places, strict=True)
        }
    place = None if free is None else fields[free].place
    return Plan(len(names), fields, place, RocprofTable(layout, what, words))


def _fields(what: str, columns: Sequence[str]) -> dict[str, Field]:
    """Return the columns with a role; of two of one name the first. One at least is read."""
    found: dict[str, Field] = {}
    for role in ROLES_OF[what]:
        spelling = next((one for one in ROLES[role].spellings if one in columns), None)
        if spelling is not None:
            found[role] = Field(columns.index(spelling), ROLES[role].kind)
    if what == "counters" and "guid" not in found and "pid" in columns:
        # rocpd convert names the column of the run's id so.
        place = columns.index("pid")
        found = {role: one for role, one in found.items() if one.place != place}
        found["guid"] = Field(place, "text")
    return found or {"row": Field(0, "text")}

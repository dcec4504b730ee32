"""Finds where a table of CSV text begins and which of its columns are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from traceflops.parsers.io.csvfiles.mend import strict_fields

Kind = Literal["integer", "number", "text"]

_SEPARATORS: Final = (",", ";", "\t")
_LINES_BEFORE_HEADER: Final = 20


@dataclass(frozen=True, slots=True)
class Field:
    """One column that is read: its place in the row, and what its cells are."""

    place: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read of a table: so many columns, and of these `fields`, by the caller's words.

    `free` is the place of the column that may hold any text; `what` is the caller's own. Rows of
    `least` fields or more may end before the last columns, which are then empty.
    """

    columns: int
    fields: Mapping[str, Field]
    free: int | None = None
    what: Any = None
    least: int | None = None


class Tables(Protocol):
    """What the caller knows of the tables that it reads."""

    @property
    def beginnings(self) -> frozenset[str]:
        """Return how headers begin, behind a quote or not: texts of four characters or more."""

    def of_header(self, names: Sequence[str]) -> Plan | None:
        """Return what to read of the table with this header; None if it is none."""

    def of_row(self, row: Sequence[str]) -> Plan | None:
        """Return what to read of the table without header that has this row; None if unknown."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where the rows of a table begin, and what they are. `header` is None where it was lost."""

    plan: Plan
    separator: str
    at: int
    header: Sequence[str] | None


def find_start(text: bytes, tables: Tables) -> Start | None:
    """Return where a table begins in the first lines of a text, by its header or else by a row."""
    lines = list(_first_lines(text))
    for _, end, line in lines:
        found = header_in(line, tables, _SEPARATORS, end)
        if found is not None:
            return found
    for begin, _, line in lines:
        for separator in _SEPARATORS:
            row = split(line, separator)
            plan = tables.of_row(row) if row else None
            if plan is not None:
                return Start(plan, separator, begin, None)
    return None


def _first_lines(text: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield where each line begins, where the next does, and the line."""
    begin = 0
    for line in text.split(b"\n", _LINES_BEFORE_HEADER)[:_LINES_BEFORE_HEADER]:
        end = begin + len(line) + 1
        if line.strip():
            yield begin, min(end, len(text)), line.removesuffix(b"\r")
        begin = end


def header_in(line: bytes, tables: Tables, separators: Sequence[str], at: int) -> Start | None:
    """Return the table whose header a line is, its rows beginning at `at`; None if it is none."""
    for separator in separators:
        names = split(line, separator)
        plan = tables.of_header(names) if names else None
        if names and plan is not None:
            return Start(plan, separator, at, names)
    return None


def split(line: bytes, separator: str) -> list[str] | None:
    """Return the cells of a line, None where its quotes are not sound."""
    found = strict_fields(line, separator.encode())
    return None if found is None else [cell.decode(errors="replace").strip() for cell in found]

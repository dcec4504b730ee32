"""What launched a kernel, in words: op, modules, shapes and types of each way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from traceflops.attribution import launchers
from traceflops.reports.page.shapes import shape_words, type_words

if TYPE_CHECKING:
    from traceflops.windows import Prepared

Key = tuple[str, str, str, str, str]
"""A row of a kernel table: name, kind, top, sub, rule."""

_KEY: Final = ("name", "kind", "top", "sub", "rule")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to launch a kernel; texts are empty where the trace does not say.

    `call` stands where no op is known. `scope_more` says how many modules the scope counts for,
    and that it is that of the forward op. With `others` it is so many ways together.
    """

    op: str
    call: str
    scope: str
    scope_more: str
    shapes: str
    dtypes: str
    count: int
    sum_ns: int
    others: int


@dataclass(frozen=True, slots=True)
class Launched:
    """The ways of each kernel, which columns any of them fills, and what a scope is.

    `rows` are those of `launchers`; a way is put into words when it is asked for.
    """

    rows: Mapping[Key, list[dict[str, Any]]]
    knows: frozenset[str]
    scope_title: str

    def number(self, key: Key) -> int:
        """Return how many ways there are to launch a kernel."""
        return len(self.rows.get(key, ()))

    def ways(self, key: Key) -> list[Way]:
        """Return the ways to launch a kernel."""
        return [_way(row) for row in self.rows.get(key, ())]


NOTHING: Final = Launched({}, frozenset(), "")


def launched(prepared: Prepared | None) -> Launched:
    """Return what launched the kernels; nothing where the events were not kept."""
    if prepared is None:
        return NOTHING
    found = launchers(prepared)
    rows: dict[Key, list[dict[str, Any]]] = {}
    for row in found.table.to_pylist():
        rows.setdefault(key_of(row), []).append(row)
    knows = frozenset(
        column for column in ("op", "call", "scope", "shapes", "dtypes") if found.knows(column)
    )
    return Launched(rows, knows, _scope_title(set(found.table["is_module"].to_pylist())))


def key_of(row: Mapping[str, Any]) -> Key:
    """Return what names a row of a kernel table."""
    name, kind, top, sub, rule = (row[column] for column in _KEY)
    return name, kind, top, sub, rule


def missing(found: Launched) -> str:
    """Return what the trace does not tell of launches, as a sentence; empty where it tells all."""
    if not found.rows:
        return ""
    if not found.knows & {"op", "call"}:
        return "The trace does not record what launched them."
    lacks = [
        text
        for column, text in (("op", "operators"), ("scope", "modules"), ("shapes", "shapes"))
        if column not in found.knows
    ]
    if not lacks:
        return ""
    *first, last = lacks
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"Not in the trace: {listed} of the launches."


def _way(row: Mapping[str, Any]) -> Way:
    return Way(
        op=row["op"] or "",
        call=row["call"] or "",
        scope=row["scope"] or "",
        scope_more=", ".join(_scope_more(row)),
        shapes=shape_words(row["shapes"] or ""),
        dtypes=type_words(row["dtypes"] or ""),
        count=row["count"],
        sum_ns=row["sum_ns"],
        others=row["others"],
    )


def _scope_more(row: Mapping[str, Any]) -> Iterator[str]:
    if (row["modules"] or 0) > 1:
        yield f"{row['modules']:,} modules"
    if row["backward"]:
        yield "backward"


def _scope_title(kinds: set[bool | None]) -> str:
    if True in kinds and False in kinds:
        return "Module or annotation"
    return "Module" if True in kinds else "Annotation"

"""Answers for programs with little room: one line of JSON of at most 8 KB, equal for equal input.

Tools for agents give them, and commands with `--brief`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import msgspec
from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.analysis.sql import first_rows
from traceflops.categories.classify import Classifier
from traceflops.errors import UsageError
from traceflops.reports.view.figures import shorten_middle, visible

QUERY_SCHEMA: Final = "traceflops.query/1"
WHY_SCHEMA: Final = "traceflops.why/1"
MOST_BYTES: Final = 8_192
MOST_ROWS: Final = 100
_QUERY_S: Final = 30
_LENGTHS: Final = (MOST_ROWS, 80, 64, 50, 40, 32, 25, 20, 16, 12, 10, 8, 6, 5, 4, 3, 2, 1, 0)
TEXTS: Final = (1_000, 160)
"""Limits of the items of lists and of the characters of texts. The first pair is taken with which
an answer fits; texts are shortened before lists."""


class Some(Struct, frozen=True):
    """The first items of a list, and how many it has (`of`, and `len`)."""

    items: Sequence[Any]
    of: int

    def __len__(self) -> int:
        return self.of

    def __getitem__(self, part: slice) -> Sequence[Any]:
        return self.items[part]


class Lines(Struct, frozen=True):
    """The lines of a text, of which those from `start` on are told, as many as fit."""

    text: str
    start: int = 0

    @property
    def items(self) -> list[str]:
        """Return the lines from `start` on, with their ends."""
        return self.text.splitlines(keepends=True)[max(self.start, 0) :]

    def __len__(self) -> int:
        return len(self.items)


_LISTS: Final = (list, tuple, Some)


def fitted(answer: dict[str, Any]) -> str:
    """Return an answer as JSON of at most MOST_BYTES. Raises UsageError if no cut is enough."""
    for most, longest in product(_LENGTHS, TEXTS):
        text = msgspec.json.encode(_cut(answer, most, longest), enc_hook=str)
        if len(text) <= MOST_BYTES:
            return text.decode()
    hint = "ask for a part of it or for fewer columns, or run the command without --brief"
    raise UsageError("the answer is too long", hint)


def has_room(answer: dict[str, Any]) -> bool:
    """Return whether an answer fits without a cut of its lists."""
    return len(msgspec.json.encode(_cut(answer, MOST_ROWS, TEXTS[0]), enc_hook=str)) <= MOST_BYTES


def _cut(value: Any, most: int, longest: int) -> Any:
    """Return a value with lists cut to `most` items and texts to `longest` characters.

    In an object with cut lists, "more" counts by key the items, or lines, that are missing. Texts
    have no control characters.
    """
    if isinstance(value, str):
        return shorten_middle(value, longest)
    if isinstance(value, Lines):
        # Lines of scripts are shorter than items. Without any, nobody could ask for the next.
        return "".join(value.items[: 2 * most or 1])
    if isinstance(value, _LISTS):
        return [_cut(item, most, longest) for item in value[:most]]
    if not isinstance(value, dict):
        return value
    cut = {visible(str(key)): _cut(item, most, longest) for key, item in value.items()}
    lengths = {
        visible(str(key)): len(item)
        for key, item in value.items()
        if isinstance(item, (*_LISTS, Lines))
    }
    told = {
        key: cut[key].splitlines() if isinstance(cut[key], str) else cut[key] for key in lengths
    }
    more = {key: left for key in lengths if (left := lengths[key] - len(told[key]))}
    return cut | {"more": more} if more else cut


def query_object(analysis: Analysis, sql: str) -> dict[str, Any]:
    """Return the first rows that a query gives, and how many there are. Raises UsageError."""
    rows, count = first_rows(analysis.tables.sources, sql, MOST_ROWS, _QUERY_S)
    return {"schema": QUERY_SCHEMA, "row_count": count, "rows": Some(rows.to_pylist(), count)}


def why_object(classifier: Classifier, name: str, *, is_op: bool = False) -> dict[str, Any]:
    """Return the category of a kernel or operator, and the rule that decided it."""
    decision = classifier.op(name) if is_op else classifier.kernel(name)
    return {
        "schema": WHY_SCHEMA,
        "name": name,
        "category": f"{decision.category.top}/{decision.category.sub}",
        "rule": decision.rule,
        "because": decision.because,
        "looked_at": decision.looked_at,
        "source": decision.source,
    }

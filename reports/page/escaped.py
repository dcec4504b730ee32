"""Texts of the page, cut by what they cost once they are escaped and not by characters alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from traceflops.reports.view import count, short_labels, shorten_middle

_MORE_BYTES: Final = {"&": 4, '"': 4, "'": 4, "<": 3, ">": 3}
"""How many bytes more than one these characters take in HTML."""
_SPARE_BYTES: Final = 200
"""So many more bytes than characters a text may take: short ones are as long as they look."""


def cost(text: str) -> int:
    """Return the bytes of a text in HTML. Raises UnicodeEncodeError for lone surrogates."""
    return len(text.encode()) + sum(more * text.count(c) for c, more in _MORE_BYTES.items())


def cut(text: str, width: int) -> str:
    """Return a text of at most `width` characters and about as many bytes; see `shorten_middle`."""
    most = width + _SPARE_BYTES
    shown = shorten_middle(text, width)
    while len(shown) > 1 and (taken := cost(shown)) > most:
        # What goes is taken to cost as much as what stays.
        shown = shorten_middle(text, max(min(len(shown) * most // taken, len(shown) - 1), 1))
    return shown


def short_names(names: Iterable[str | None], width: int) -> dict[str, str]:
    """Return what is shown of the names of one table, by name; see `short_labels` and `cut`."""
    distinct = [name for name in dict.fromkeys(names) if name]
    shown, room = short_labels(distinct, width), width
    while room > 1 and any(cost(label) > width + _SPARE_BYTES for label in shown):
        room -= max(room // 4, 1)
        shown = short_labels(distinct, room)
    return dict(zip(distinct, shown, strict=True))


def tip(text: str, width: int) -> str:
    """Return a text for a tooltip; where it is cut it says how much there is."""
    if len(text) <= width and len(shown := cut(text, width)) >= len(text):
        return shown
    length = f" ({count(len(text))} characters)"
    return f"{cut(text, max(width - len(length), 1))}{length}"

"""A section of the page: its place, what it shows of one analysis, and links to its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct, field

_AS_THEY_ARE: Final = ":,;=@/?+$!~*()"
_MOST_BYTES: Final = 200_000
"""The most that the links of one kind take together; names in them are never cut."""


class Section(Struct, frozen=True):
    """A part of the page; `name` is its id and that of its template.

    `group` is its entry in the navigation. `values` are what its template reads, `scripts` the
    script files that it needs, and `data` what they read, by the id of its element.
    """

    name: str
    group: str
    values: Mapping[str, Any]
    scripts: Sequence[str] = ()
    data: Mapping[str, bytes] = field(default_factory=dict)


def link_to(kind: str, name: str) -> str:
    """Return what follows # in the link to a row, percent-encoded."""
    return f"{kind}={quote(name, safe=_AS_THEY_ARE, errors='replace')}"


class DeepLinks:
    """The links to rows of one kind; no two rows have the same one."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._taken: set[str] = set()
        self._room = _MOST_BYTES

    def of(self, name: str) -> str:
        """Return the link to a row; "" if it is taken by another row, or no room is left."""
        link = link_to(self._kind, name)
        if not name or link in self._taken or len(link) > self._room:
            return ""
        self._room -= len(link)
        self._taken.add(link)
        return link

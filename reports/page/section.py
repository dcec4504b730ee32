"""A section of the page, and the links to its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct, field

_UNQUOTED: Final = ":,;=@/?+$!~*()"
_MOST_BYTES: Final = 200_000
"""The most bytes of all links of one kind, as names in links are never cut."""


class Section(Struct, frozen=True):
    """A section of the page; `name` is its id and the name of its template.

    `group` is its entry in the navigation. The template reads `values`. `scripts` are the script
    files that the section needs, `data` is what they read, by element id.
    """

    name: str
    group: str
    values: Mapping[str, Any]
    scripts: Sequence[str] = ()
    data: Mapping[str, bytes] = field(default_factory=dict)


def link_to(kind: str, name: str) -> str:
    """Return the link to a row without its #, percent-encoded."""
    return f"{kind}={quote(name, safe=_UNQUOTED, errors='replace')}"


class DeepLinks:
    """The links to rows of one kind; no two rows have the same one."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._taken: set[str] = set()
        self._room = _MOST_BYTES

    def of(self, name: str) -> str:
        """Return the link to a row, "" if another row has it or no room is left."""
        link = link_to(self._kind, name)
        if not name or link in self._taken or len(link) > self._room:
            return ""
        self._room -= len(link)
        self._taken.add(link)
        return link

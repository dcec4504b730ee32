"""Links to rows of the page: what follows # says of what kind a row is and what it is called."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

_AS_THEY_ARE: Final = ":,;=@/?+$!~*()"
_MOST_BYTES: Final = 200_000
"""Names are there whole, whatever their length; all together they take no more than this."""


class DeepLinks:
    """The links to rows of one kind; no two rows have the same one."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._seen: set[str] = set()
        self._room = _MOST_BYTES

    @staticmethod
    def text(kind: str, name: str) -> str:
        """Return the link to a row, in characters that need no escape in a link."""
        return f"{kind}={quote(name, safe=_AS_THEY_ARE, errors='replace')}"

    def of(self, name: str) -> str:
        """Return the link to a row; empty for a second one of a name and where no room is left."""
        link = self.text(self._kind, name)
        if not name or link in self._seen or len(link) > self._room:
            return ""
        self._room -= len(link)
        self._seen.add(link)
        return link

"""Notes as rows of a table: what a reader says under each code, with fields for what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from traceflops.table import Note, NoteKind, counted_note

Texts: TypeAlias = Mapping[str, str]

_NONE: Final[Texts] = {}
_MERGED: Final = "{n}"


class NoteTable:
    """The notes of a reader: for each kind of note the texts by their keys.

    A key is the code of the note; where a code has several texts, a word behind it tells them
    apart. A text holds `{count}` for the count of the note, other fields by their names, and
    `[one|many]` for what depends on the count. Where it has `{n}` instead, and no other field, the
    notes of several files become one (see `counted_note`).
    """

    def __init__(
        self,
        *,
        repaired: Texts = _NONE,
        dropped: Texts = _NONE,
        assumed: Texts = _NONE,
        missing: Texts = _NONE,
    ) -> None:
        self._texts = {**repaired, **dropped, **assumed, **missing}
        self._kinds: dict[str, NoteKind] = {
            **dict.fromkeys(repaired, "repaired"),
            **dict.fromkeys(dropped, "dropped"),
            **dict.fromkeys(assumed, "assumed"),
            **dict.fromkeys(missing, "missing"),
        }

    def note(self, key: str, count: int | None = None, **fields: object) -> Note:
        """Return the note of a key."""
        kind, text, code = self._kinds[key], self._texts[key], key.partition(" ")[0]
        if count is None:
            return Note(kind, code, text.format(**fields))
        counted = counted_note(kind, code, text, count)
        if _MERGED in text:
            return counted
        return Note(kind, code, counted.text.format(count=f"{count:,}", **fields), count)

    def counted(self, counts: Mapping[str, int], *keys: str) -> Iterator[Note]:
        """Give the notes of those keys that were counted; their texts need nothing else."""
        for key in keys:
            if counts.get(key):
                yield self.note(key, counts[key])

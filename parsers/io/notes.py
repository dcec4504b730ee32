"""Notes as rows of a table: the text of each code, with fields for what differs.

Also notes on files of a set that could not be read while others were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.table.trace import Note, NoteKind, Trace, counted_note, worded
from traceflops.units import listed

Texts: TypeAlias = Mapping[str, "str | tuple[str, str]"]

_NONE: Final[Texts] = {}
_MERGED: Final = "{n}"


class NoteTable:
    """The notes of a reader: for each kind of note the texts by their keys, or text and advice.

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
        kinds: Mapping[NoteKind, Texts] = {
            "repaired": repaired,
            "dropped": dropped,
            "assumed": assumed,
            "missing": missing,
        }
        self._rows = {key: (kind, row[key]) for kind, row in kinds.items() for key in row}

    def note(self, key: str, count: int | None = None, **fields: object) -> Note:
        """Return the note of a key."""
        (kind, texts), code = self._rows[key], key.partition(" ")[0]
        text, advice = (texts, "") if isinstance(texts, str) else texts
        if count is None:
            return Note(kind, code, text.format(**fields), advice=advice.format(**fields))
        if _MERGED in text:
            return replace(counted_note(kind, code, text, count), advice=advice)
        text, advice = (
            worded(each, count).format(count=f"{count:,}", **fields) for each in (text, advice)
        )
        return Note(kind, code, text, count, advice=advice)

    def counted(self, counts: Mapping[str, int], *keys: str) -> Iterator[Note]:
        """Give the notes of those keys that were counted; their texts need nothing else."""
        for key in keys:
            if counts.get(key):
                yield self.note(key, counts[key])


T = TypeVar("T")
_NOTES: Final = NoteTable(
    dropped={
        "set-aside": "{count} [file|files] in the folder skipped (damaged): {names}.",
        "not-a-trace": "{count} [file|files] in the folder skipped (unknown): {names}.",
        "file-not-read": "{name} could not be read: {reason}.",
    }
)

Failed = tuple[ByteSource, InputError]
"""A file and what is wrong with it."""


def read_each(
    sources: Iterable[ByteSource], read: Callable[[ByteSource], T], *, close: bool = False
) -> tuple[list[T], list[Failed]]:
    """Return what is read of each source, and those that cannot be read. Raises where all are."""
    done: list[T] = []
    failed: list[Failed] = []
    for source in sources:
        try:
            done.append(read(source))
        except InputError as error:
            failed.append((source, error))
        finally:
            if close:
                source.close()
    if not done:
        raise failed[0][1]
    return done, failed


def not_read(failed: Iterable[Failed]) -> list[Note]:
    """Return a note on each file that could not be read."""
    notes = []
    for source, error in failed:
        note = _NOTES.note("file-not-read", 1, name=source.label, reason=error.message)
        notes.append(replace(note, file=source.label))
    return notes


def with_notes(traces: Sequence[Trace], notes: Iterable[Note]) -> list[Trace]:
    """Return the traces, the first with these notes before its own."""
    return [replace(traces[0], notes=(*notes, *traces[0].notes)), *traces[1:]]


def with_set_aside(traces: Sequence[Trace], failed: Sequence[Failed]) -> list[Trace]:
    """Return the traces with notes on files that were not read. Raises where there is no trace."""
    if not traces:
        raise failed[0][1]
    notes = []
    for code, is_unknown in (("set-aside", False), ("not-a-trace", True)):
        names = [
            source.label for source, error in failed if isinstance(error, NotATrace) == is_unknown
        ]
        notes += [_NOTES.note(code, len(names), names=listed(names))] if names else []
    return with_notes(traces, notes)

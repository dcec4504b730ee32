"""Tables of notes, by code; reads files of a set, with notes on those that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.table.trace import Note, NoteKind, Trace, counted_note, worded
from traceflops.units import listed

Texts: TypeAlias = Mapping[str, "str | tuple[str, str]"]


class NoteTable:
    """The notes of a reader: for each kind of note the texts (or text and advice) by key.

    A key is the code of the note; if a code has several texts, a second word distinguishes them.
    In a text `{count}` is the count of the note; of `[one|many]` the count chooses one. Notes of
    several files with the same text are added up if it has only the field `{n}` (`counted_note`).
    """

    def __init__(self, **texts_by_kind: Texts) -> None:
        """Take the texts by kind of note (repaired, dropped, ...); a key has only one kind."""
        self._rows = {key: (kind, row[key]) for kind, row in texts_by_kind.items() for key in row}

    def note(self, key: str, count: int | None = None, **fields: object) -> Note:
        """Return the note of `key`; `count` and `fields` fill the fields of its texts."""
        (kind_name, texts), code = self._rows[key], key.partition(" ")[0]
        kind = cast(NoteKind, kind_name)
        text, advice = (texts, "") if isinstance(texts, str) else texts
        if count is None:
            return Note(kind, code, text.format(**fields), advice=advice.format(**fields))
        if "{n}" in text:  # keeps its wording, by which the notes of several files are merged
            return replace(counted_note(kind, code, text, count), advice=advice)
        text, advice = (
            worded(each, count).format(count=f"{count:,}", **fields) for each in (text, advice)
        )
        return Note(kind, code, text, count, advice=advice)

    def counted(self, counts: Mapping[str, int], *keys: str) -> Iterator[Note]:
        """Yield the notes of those keys whose count is not 0; their texts need no other fields."""
        for key in keys:
            if counts.get(key):
                yield self.note(key, counts[key])


def printable(name: str, longest: int = 40) -> str:
    """Return the beginning of a name that is safe in a message of one line."""
    return "".join(c if c.isprintable() else "?" for c in name[:longest])


T = TypeVar("T")
_NOTES: Final = NoteTable(
    dropped={
        "set-aside": "{count} [file|files] in the folder skipped (damaged): {names}.",
        "not-a-trace": "{count} [file|files] in the folder skipped (unknown): {names}.",
        "file-not-read": "{name} could not be read: {reason}.",
    }
)
Failed = tuple[ByteSource, InputError]
"""A file that cannot be read, and the error."""


def read_each(
    sources: Iterable[ByteSource], read: Callable[[ByteSource], T], *, close: bool = False
) -> tuple[list[T], list[Failed]]:
    """Return the results of `read`, and where it failed. Raises the first error if all failed."""
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
    """Return the traces, with `notes` before those of the first one."""
    return [replace(traces[0], notes=(*notes, *traces[0].notes)), *traces[1:]]


def with_set_aside(traces: Sequence[Trace], failed: Sequence[Failed]) -> list[Trace]:
    """Return the traces with notes on files that were not read; raise if there is no trace."""
    if not traces:
        raise failed[0][1]
    notes = []
    for code, is_unknown in (("set-aside", False), ("not-a-trace", True)):
        names = [
            source.label for source, error in failed if isinstance(error, NotATrace) == is_unknown
        ]
        notes += [_NOTES.note(code, len(names), names=listed(names))] if names else []
    return with_notes(traces, notes)

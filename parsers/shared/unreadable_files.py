"""Files of a set that could not be read while others were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import ByteSource, NoteTable
from traceflops.table import Note, Trace

T = TypeVar("T")
_MOST_NAMED: Final = 5
_NOTES: Final = NoteTable(
    dropped={
        "set-aside": "{count} [file|files] in the folder skipped (damaged): {names}.",
        "not-a-trace": "{count} [file|files] in the folder skipped (unknown): {names}.",
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
        listed = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
        notes += [_NOTES.note(code, len(names), names=listed)] if names else []
    return with_notes(traces, notes)

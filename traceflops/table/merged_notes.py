"""Notes of several files, merged: what applies to many files is printed once, with correct figures.

A note whose only figure is its count has a `wording`, the sentence without that figure: notes with
the same wording become one, with the sum of their counts. Others are listed per file.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from traceflops.table.trace import Note, worded
from traceflops.units import several

Owned: TypeAlias = tuple[Hashable, Note]
"""A file (or any key that stands for it) and a note on it."""
_MOST_ALIKE: Final = 3
"""The most notes of one code that are shown; if there are more, the first stands for all."""
_MOST_NAMED: Final = 5
"""The most files that such a note names."""


def together(notes: Iterable[Owned], total: int, noun: str = "file") -> list[Note]:
    """Return the notes of `total` files (`noun` says what else they may be), merged by code.

    Notes with the same wording become one. If more than _MOST_ALIKE of one code remain, the first
    stands for all.
    """
    by_code: dict[tuple[str, str], dict[tuple[str, str], list[Owned]]] = {}
    for owner, note in notes:
        by_text = by_code.setdefault((note.kind, note.code), {})
        key = (note.wording or note.statement, note.advice)
        by_text.setdefault(key, []).append((owner, note))
    merged = []
    for by_text in by_code.values():
        # The number of statements; a note merged before may stand for several (`alike`).
        count = sum(max(note.alike for _, note in same) for same in by_text.values())
        if count <= _MOST_ALIKE:
            merged += [_same_wording(same, total, noun) for same in by_text.values()]
        else:
            first = _first_of([owned for same in by_text.values() for owned in same], total, noun)
            merged.append(replace(first, alike=count))
    return merged


def named(note: Note) -> Note:
    """Return a note whose statement begins with the name of its file, if known."""
    return replace(note, statement=f"{note.file}: {note.statement}") if note.file else note


def _same_wording(notes: Sequence[Owned], total: int, noun: str) -> Note:
    """Return notes with the same wording as one, with the sum of their counts."""
    first = notes[0][1]
    owners, count = _owners(notes), _sum(note for _, note in notes)
    has_several = len(notes) > 1 or owners > 1
    if has_several and first.wording is not None and count is not None:
        values = tuple(sorted({value for _, note in notes for value in note.values}))
        first = replace(first, statement=worded(first.wording, count, values), values=values)
    if owners == 1:
        return replace(first, count=count)
    # Without a wording, the figure in the statement is not the sum but that of each file.
    is_count_of_each = first.wording is None and first.count is not None
    each = "same in" if is_count_of_each else "in"
    scope = f"{each} {owners:,} of {several(total, noun)}"
    return replace(first, count=count, file=None, owners=owners, scope=scope, similar="")


def _first_of(notes: Sequence[Owned], total: int, noun: str) -> Note:
    """Return the first of notes of different wording, with its file and the number of others."""
    (_, first), *others = notes
    owners, count = _owners(notes), _sum(note for _, note in notes)
    # The statement begins with the file of the first note: only the other files are listed.
    files = dict.fromkeys(note.file for _, note in others if note.file not in (None, first.file))
    named_files = [*map(str, files)][:_MOST_NAMED]
    listed = ", ".join([*named_files, "…"] if len(files) > _MOST_NAMED else named_files)
    of_files = f": {listed}" if files else ""
    total_count = f"; {count:,} total" if count is not None else ""
    similar = f"Similar in {owners - 1:,} more of {several(total, noun)}{of_files}{total_count}."
    first = replace(named(first), scope="", similar=similar)
    return replace(first, count=count, file=None, owners=owners)


def _owners(notes: Iterable[Owned]) -> int:
    """Return the number of files that have notes; a note merged before stands for several."""
    most_files: dict[Hashable, int] = {}
    for owner, note in notes:
        most_files[owner] = max(note.owners, most_files.get(owner, 0))
    return sum(most_files.values())


def _sum(notes: Iterable[Note]) -> int | None:
    """Return the sum of the counts of notes, None if no note has one."""
    counts = [note.count for note in notes if note.count is not None]
    return sum(counts) if counts else None

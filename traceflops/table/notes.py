"""Notes of several files put together: what is said of many is said once, with true figures.

A note whose only figure is its count has a `wording`, a sentence without the figure: of several
files it is said once, of all they count together. What else the files say stands for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, TypeAlias

from traceflops.table.trace import Note, NoteKind
from traceflops.units import plural, several

Owned: TypeAlias = tuple[Hashable, Note]
"""A note and what it is said of: equal for notes on the same file."""

_CHOICE: Final = re.compile(r"\[([^\[\]|]*)\|([^\[\]|]*)\]")
_MOST_ALIKE: Final = 3
"""So many notes of a code with figures of their own are shown; of more, one stands for all."""
_MOST_NAMED: Final = 5
_FROM_NAME: Final = "[Rank|Ranks] {values} [was|were] taken from file or folder names."

RANK_UNKNOWN: Final = "rank-unknown"


def rank_unknown(reason: str = "") -> str:
    """Return the wording of a note on processes of which nothing tells the rank."""
    return (
        f"The [rank|ranks] of {{n}} [process|processes] [is|are] unknown{reason}; [it is|they "
        "are] labelled by file or process ID."
    )


def rank_from_name(ranks: Iterable[int], file: str | None = None) -> Note:
    """Return the note on ranks that nothing but a name tells."""
    found = sorted(set(ranks))
    return counted_note("assumed", "rank-from-name", _FROM_NAME, len(found), file, found)


def counted_note(
    kind: NoteKind,
    code: str,
    wording: str,
    count: int,
    file: str | None = None,
    values: Sequence[int] = (),
) -> Note:
    """Return a note on so many things.

    In its wording `{n}` stands for their number, `{values}` for the values that it is about, and
    `[one|many]` for what depends on whether there is one of them.
    """
    listed = tuple(values)
    return Note(kind, code, worded(wording, count, listed), count, file, wording, listed)


def of_noun(noun: str, sentence: str) -> str:
    """Return the wording of a sentence that begins with a number of things."""
    return f"{{n}} [{noun}|{plural(noun)}] {sentence}"


def worded(wording: str, count: int, values: Sequence[int] = ()) -> str:
    """Return a sentence for a number of things."""
    chosen = _CHOICE.sub(lambda found: found[1 if count == 1 else 2], wording)
    return chosen.replace("{n}", f"{count:,}").replace("{values}", ranges(values))


def ranges(values: Iterable[int]) -> str:
    """Return numbers with those in a row put together: "0 to 3, 7"."""
    runs: list[str] = []
    for _, pairs in groupby(enumerate(sorted(set(values))), key=lambda pair: pair[1] - pair[0]):
        run = [value for _, value in pairs]
        runs += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return ", ".join(runs)


def together(notes: Iterable[Owned], total: int, noun: str = "file") -> list[Note]:
    """Return the notes on `total` files, or what `noun` calls them, in the order of their codes."""
    by_code: dict[tuple[str, str], dict[str, list[Owned]]] = {}
    for owner, note in notes:
        alike = by_code.setdefault((note.kind, note.code), {})
        alike.setdefault(note.wording or note.text, []).append((owner, note))
    found = []
    for alike in by_code.values():
        found += _of_code(list(alike.values()), total, noun)
    return found


def named(note: Note) -> Note:
    """Return a note that says in its text which file it is on, where that is known."""
    return replace(note, text=f"{note.file}: {note.text}") if note.file else note


def _of_code(same: Sequence[Sequence[Owned]], total: int, noun: str) -> list[Note]:
    """Return the notes of one code, given those together that say the same."""
    if len(same) <= _MOST_ALIKE:
        return [_said_once(notes, total, noun) for notes in same]
    return [_first_of([note for notes in same for note in notes], total, noun)]


def _said_once(notes: Sequence[Owned], total: int, noun: str) -> Note:
    """Return what several notes say in the same words."""
    first = notes[0][1]
    owners = len({owner for owner, _ in notes})
    count = _sum(note for _, note in notes)
    if len(notes) > 1 and first.wording is not None and count is not None:
        values = tuple(sorted({value for _, note in notes for value in note.values}))
        first = replace(first, text=worded(first.wording, count, values), values=values)
    if owners == 1:
        return replace(first, count=count)
    each = "in" if first.wording is not None or first.count is None else "same in"
    text = f"{first.text} ({each} {owners} of {several(total, noun)})"
    return replace(first, text=text, count=count, file=None)


def _first_of(notes: Sequence[Owned], total: int, noun: str) -> Note:
    """Return one note for many with figures of their own: the first, and that there are others."""
    (owner, first), *others = notes
    more = len({one for one, _ in others} - {owner})
    count = _sum(note for _, note in notes)
    files = dict.fromkeys(note.file for _, note in others if note.file not in (None, first.file))
    listed = [str(file) for file in files][:_MOST_NAMED]
    whose = f": {', '.join(listed)}{', …' if len(files) > len(listed) else ''}" if listed else ""
    text = (
        f"{named(first).text} (Similar in {more:,} more of "
        f"{several(total, noun)}{whose}{f'; {count:,} total' if count is not None else ''}.)"
    )
    return replace(first, text=text, count=count, file=None)


def _sum(notes: Iterable[Note]) -> int | None:
    counts = [note.count for note in notes if note.count is not None]
    return sum(counts) if counts else None

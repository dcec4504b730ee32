"""What to say of a text whose tables were read although it was damaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceflops.notes import counted_note
from traceflops.parsers.csvfiles.text import Damage
from traceflops.trace import Note, NoteKind
from traceflops.words import several

_CUT: Final = "The file ends within a row: that row is left out, and later ones are missing."
_REPAIRED: Final = (
    "{n} [row|rows] had a quote, comma or line end in a name that was not escaped: the fields "
    "before and behind it were told from the ends of the row, the rest is the name. No number "
    "depends on it."
)
_LOST: Final = "{n} [row|rows] could not be read and [was|were] left out."
_REPEATED: Final = "The header stands in it {n} more [time|times]."
_NO_HEADER: Final = (
    "The file has no header: what its columns are was told by the rows, as their tool writes them."
)


def text_notes(damage: Damage, cut: str | None) -> Iterator[Note]:
    """Give what is to be said of a text; `cut` says how its source ended too early."""
    if cut:
        text = f"{cut[0].upper()}{cut[1:]}: rows at the end are missing."
        yield Note("dropped", "input-cut", text)
    elif damage.cut_bytes is not None:
        yield Note("dropped", "text-cut", _CUT, 1)
    if damage.replaced_characters:
        text = (
            f"{several(damage.replaced_characters, 'character')} in "
            f"{several(damage.rows_with_replacements, 'row')} are no UTF-8 and became U+FFFD, the "
            f"first at byte {damage.first_bad_byte:,}."
        )
        yield Note("repaired", "invalid-utf8", text, damage.replaced_characters)
    counted: tuple[tuple[NoteKind, str, str, int], ...] = (
        ("repaired", "rows-repaired", _REPAIRED, damage.repaired_rows),
        ("dropped", "rows-lost", _LOST, damage.dropped_rows),
        ("repaired", "header-repeated", _REPEATED, damage.repeated_headers),
    )
    for kind, code, wording, count in counted:
        if count:
            yield counted_note(kind, code, wording, count)
    if damage.without_header:
        yield Note("assumed", "header-missing", _NO_HEADER)

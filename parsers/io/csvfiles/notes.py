"""What to say of a text whose tables were read although it was damaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceflops.parsers.io.csvfiles.text import Damage
from traceflops.table.notes import counted_note
from traceflops.table.trace import Note, NoteKind
from traceflops.units.words import several

_CUT: Final = "The file ends within a row. That row is ignored and later rows are missing."
_REPAIRED: Final = (
    "{n} [row has|rows have] an unescaped quote, comma or line break in a name. The name is what "
    "remains between the other fields; no number is affected."
)
_LOST: Final = "{n} unreadable [row was|rows were] skipped."
_REPEATED: Final = "The header is repeated {n} [time|times]."
_NO_HEADER: Final = "The file has no header: columns are identified from the rows."


def text_notes(damage: Damage, cut: str | None) -> Iterator[Note]:
    """Give what is to be said of a text; `cut` says how its source ended too early."""
    if cut:
        text = f"{cut[0].upper()}{cut[1:]}: rows at the end are missing."
        yield Note("dropped", "input-cut", text)
    elif damage.cut_bytes is not None:
        yield Note("dropped", "text-cut", _CUT, 1)
    if damage.replaced_characters:
        text = (
            f"Invalid UTF-8: {several(damage.replaced_characters, 'character')} in "
            f"{several(damage.rows_with_replacements, 'row')} became U+FFFD, the first at byte "
            f"{damage.first_bad_byte:,}."
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

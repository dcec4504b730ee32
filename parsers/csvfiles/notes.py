"""What to say of a text whose tables were read although it was damaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceflops.parsers.csvfiles.text import Damage
from traceflops.trace import Note
from traceflops.words import several

_CUT: Final = "The file ends within a row: that row is left out, and later ones are missing."
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
    if damage.repaired_rows:
        text = (
            f"{several(damage.repaired_rows, 'row')} had a quote, comma or line end in a name that "
            "was not escaped: the fields before and behind it were told from the ends of the row, "
            "the rest is the name. No number depends on it."
        )
        yield Note("repaired", "rows-repaired", text, damage.repaired_rows)
    if damage.dropped_rows:
        verb = "was" if damage.dropped_rows == 1 else "were"
        text = f"{several(damage.dropped_rows, 'row')} could not be read and {verb} left out."
        yield Note("dropped", "rows-lost", text, damage.dropped_rows)
    if damage.repeated_headers:
        text = f"The header stands in it {several(damage.repeated_headers, 'more time')}."
        yield Note("repaired", "header-repeated", text, damage.repeated_headers)
    if damage.without_header:
        yield Note("assumed", "header-missing", _NO_HEADER)

"""What to say of columns that hold more distinct texts than are kept."""

from __future__ import annotations

from collections.abc import Sequence

from traceflops.table.builder import BEYOND, MOST_TEXTS
from traceflops.table.trace import Note


def overflow_notes(columns: Sequence[str], file: str) -> tuple[Note, ...]:
    """Return what to say of columns that had more distinct texts than are kept."""
    if not columns:
        return ()
    text = (
        f"{', '.join(columns)}: more than {MOST_TEXTS:,} distinct texts. Later names read "
        f"{BEYOND!r}; other texts are ignored."
    )
    return (Note("dropped", "names-left-out", text, None, file),)

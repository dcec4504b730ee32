"""Files of a set that could not be read while others were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from traceflops.errors import InputError, NotATrace
from traceflops.table import Note, Trace
from traceflops.units import several

_MOST_NAMED: Final = 5

Failed = tuple[str, InputError]
"""The name of a file and what is wrong with it."""


def with_set_aside(traces: Sequence[Trace], failed: Sequence[Failed]) -> list[Trace]:
    """Return the traces with notes on files that were not read. Raises where there is no trace."""
    if not traces:
        raise failed[0][1]
    damaged = [name for name, error in failed if not isinstance(error, NotATrace)]
    others = [name for name, error in failed if isinstance(error, NotATrace)]
    notes = [
        *_notes("set-aside", damaged, "damaged"),
        *_notes("not-a-trace", others, "unknown"),
    ]
    first, *rest = traces
    return [replace(first, notes=(*notes, *first.notes)), *rest]


def _notes(code: str, names: Sequence[str], what: str) -> list[Note]:
    if not names:
        return []
    listed = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    text = f"{several(len(names), 'file')} in the folder skipped ({what}): {listed}."
    return [Note("dropped", code, text, len(names))]

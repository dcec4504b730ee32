"""Numbers for streams: one that several streams of a device have stays that of the first."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import count, filterfalse
from typing import Final, TypeVar

from traceflops.table.notes import counted_note, of_noun
from traceflops.table.trace import Note

_LARGE: Final = 1 << 60
"""Numbers beyond are no counts: behind them there may be no room in an int64."""

_Key = TypeVar("_Key", bound=Hashable)


def apart(holders: Mapping[int, Sequence[Sequence[_Key]]]) -> dict[_Key, int]:
    """Return the number of each stream of a device; the further ones of a number get free ones.

    `holders` are the streams that have each number, in the order in which they have a right to it;
    what stands together is one stream.
    """
    highest = max(holders, default=-1)
    free = filterfalse(holders.__contains__, count(highest + 1 if highest < _LARGE else 0))
    found: dict[_Key, int] = {}
    for number, streams in sorted(holders.items()):
        for place, members in enumerate(streams):
            found |= dict.fromkeys(members, next(free) if place else number)
    return found


def renumbered_note(moved: int, of_what: str) -> Note:
    """Return that streams are shown under another number than their own."""
    sentence = (
        f"of another {of_what} on the same GPU [reuses|reuse] a number; [it is|they are] "
        "renumbered."
    )
    return counted_note("assumed", "streams-renumbered", of_noun("stream", sentence), moved)

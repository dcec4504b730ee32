"""Whole events in text that is damaged somewhere: found by how they begin, proven by decoding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from traceflops.parsers.jsontext import SPACE, first_value

EVENT_START: Final = re.compile(rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:')
"""Where an object begins that may be an event."""

_PHASE: Final = re.compile(rb'"ph"\s*:')
_LOOK_BACK: Final = 256
_MOST_WORK: Final = 32
"""How often the bytes of a text are looked at, all in all, before what is nested is given up."""


def events_begun(text: bytes) -> int:
    """Return how many events there are in a text, whole or not."""
    return len(_PHASE.findall(text))


def whole_events(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the whole events of a damaged text begin and end.

    Objects inside one that is not whole are tried, too: a damaged event may have swallowed the
    next one. Those that are a value of its own, or follow one in a list, are no events.
    """
    view = memoryview(text)
    at, work = 0, _MOST_WORK * len(text)
    inside, nested_end = False, 0
    while (start := EVENT_START.search(text, at)) is not None:
        begin = start.start()
        whole, length = first_value(view[begin:])
        work -= length
        at = begin + (length if whole or work < 0 else 1)
        if not whole:
            inside = True
            continue
        before = text[max(0, begin - _LOOK_BACK) : begin].rstrip(SPACE)
        follows = nested_end and not text[nested_end:begin].strip(SPACE + b",")
        if inside and (follows or before.endswith((b"[", b":"))):
            nested_end = at
        elif _PHASE.search(text, begin, at):
            inside = False
            yield begin, at

"""Whole events in text that is damaged somewhere: found by how they begin, proven by decoding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from traceflops.parsers.io.jsonfiles.text import SPACE, UNDECODABLE, first_value

EVENT_START: Final = re.compile(rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:')
"""Where an object begins that may be an event."""

_PHASE: Final = re.compile(rb'"ph"\s*:')
_LOOK_BACK: Final = 256
_MOST_WORK: Final = 32
"""How often the bytes of a text are looked at, all in all, before what is nested is given up."""


class _Event(msgspec.Struct):
    """What every event of a profiler has; no argument of one has all of it."""

    ph: msgspec.Raw
    name: msgspec.Raw
    pid: msgspec.Raw
    tid: msgspec.Raw
    ts: msgspec.Raw


_EVENT = msgspec.json.Decoder(_Event)


def events_begun(text: bytes) -> int:
    """Return how many events there are in a text, whole or not."""
    return len(_PHASE.findall(text))


def whole_events(text: bytes, *, sound: bool = False) -> Iterator[tuple[int, int]]:
    """Yield where the whole events of a damaged text begin and end.

    Objects inside one that is not whole are tried, too: a damaged event may have swallowed the
    next one. Where they stand as its values they must have all that an event has; everywhere, if
    the text is `sound`: a value that is no event, or the beginning of one.
    """
    view = memoryview(text)
    at, work = 0, _MOST_WORK * len(text)
    inside, nested_end = False, -1
    while (start := EVENT_START.search(text, at)) is not None:
        begin = start.start()
        whole, length = first_value(view[begin:])
        work -= length
        at = begin + (length if whole or work < 0 else 1)
        if not whole:
            inside = True
            continue
        is_value = sound or (inside and _is_value(text, begin, nested_end))
        if is_value and not _has_all(view[begin:at]):
            nested_end = at
        elif _PHASE.search(text, begin, at):
            inside = False
            yield begin, at


def _is_value(text: bytes, begin: int, nested_end: int) -> bool:
    """Return whether an object stands as a value in another, or follows one in a list."""
    before = text[max(0, begin - _LOOK_BACK) : begin].rstrip(SPACE)
    follows = nested_end >= 0 and text[nested_end:begin].strip(SPACE) == b","
    return follows or before.endswith((b"[", b":"))


def _has_all(text: memoryview) -> bool:
    try:
        _EVENT.decode(text)
    except UNDECODABLE:
        return False
    return True

"""An XPlane file as planes: their lines, the events on these, and the stats of each event.

A plane is a device or the threads of a host. The schema is public (xplane.proto); fields are read
by their numbers, those alone that stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.errors import InputError
from traceflops.parsers.io import (
    Batch,
    Block,
    ByteSource,
    Columns,
    Lookup,
    Messages,
    by_distinct,
    message_text,
    signed,
    split,
)
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names

_PLANES, _HOSTS = 1, 4
_LINES, _EVENT_NAMES, _STAT_NAMES, _STATS = 3, 4, 5, 6
_NAME = 2
_KEY, _VALUE, _VALUE_NAME, _DISPLAY_NAME = 1, 2, 2, 4
_LINE_ID, _LINE_NAME, _LINE_START, _LINE_EVENTS = 1, 2, 3, 4
_EVENT_NAME, _OFFSET, _DURATION, _EVENT_STATS, _OCCURRENCES = 1, 2, 3, 4, 5
_STAT_NAME, _UNSIGNED, _SIGNED, _TEXT, _TEXT_REF = 1, 3, 4, 5, 7
_MOST_BYTES: Final = 1 << 31
"""No message of Protocol Buffers is larger."""
_MOST_PLANES: Final = 1_024
_CHUNK: Final = 1 << 18
"""So many events are taken apart at once."""
_MOST_PS: Final = 2**62
_NO_TIME: Final = -1
_NO_STAT: Final = -1


@dataclass(frozen=True, slots=True)
class Line:
    """A stream of a device, a thread of a host, or what was derived from others."""

    id: int
    name: str
    start_ns: int
    begin: IntArray
    end: IntArray


@dataclass(slots=True)
class Plane:
    """A device or a host: times count from `zero_ns`.

    `lost` counts events that could not be read, and places from which on nothing could.
    """

    name: str
    block: Block
    lines: list[Line]
    event_names: Mapping[int, str]
    stat_names: Mapping[int, str]
    _stats: Messages
    lost: int = 0
    zero_ns: int = 0
    stats: Names = field(default_factory=Names)
    stat_of: Lookup = field(init=False)

    def __post_init__(self) -> None:
        """Number the names of stats, of which several keys may have one."""
        keys = np.array([*self.stat_names], np.int64)
        codes = self.stats.codes(self.stat_names.values())
        self.stat_of = Lookup(keys, codes.astype(np.int64))

    def by_name(self, rows: Batch, give: Callable[[str], int]) -> IntArray:
        """Return what a function gives for the name of each event."""
        return by_distinct(rows["name"], lambda key, _: give(self.event_names.get(key, "")))

    def about(self) -> Stats:
        """Return what the plane says of the device, or of the recording, as of a single event."""
        return _stats_of(self, np.zeros(len(self._stats.begin), np.int64), self._stats, 1)

    def events(self) -> Iterator[Events]:
        """Give the events of all lines, so many at a time."""
        none = np.empty(0, np.int64)
        begin = np.concatenate([none, *(line.begin for line in self.lines)])
        end = np.concatenate([none, *(line.end for line in self.lines)])
        place = np.repeat(np.arange(len(self.lines)), [len(line.begin) for line in self.lines])
        zero_ns = np.array([line.start_ns - self.zero_ns for line in self.lines], np.int64)
        for at in range(0, len(begin), _CHUNK):
            some = slice(at, at + _CHUNK)
            yield self._events(Messages(self.block, begin[some], end[some]), place[some], zero_ns)

    def _events(self, events: Messages, place: IntArray, zero_ns: IntArray) -> Events:
        of_event = (_EVENT_NAME, _OFFSET, _DURATION, _OCCURRENCES)
        said = events.columns(of_event, repeated=_EVENT_STATS)
        self.lost += int(np.count_nonzero(~said.sound))
        place, count = place[said.sound], int(np.count_nonzero(said.sound))
        name, offset, dur, occurrences = (values[said.sound] for values in said.numbers.values())
        start, end = _times_ns(zero_ns[place], _or_0(offset), _or_0(dur))
        start[occurrences != ABSENT] = _NO_TIME  # sums of many events
        columns = {"line": place, "name": _or_0(name), "start": start, "end": end}
        rows = Batch(count, {**columns, "row": np.arange(count)}, {})
        owner = np.cumsum(said.sound)[said.owner] - 1
        return rows, _stats_of(self, owner, said.each, count)


@dataclass(frozen=True, slots=True)
class Stats:
    """What is known of each of some events, by the names of the plane's stats."""

    count: int
    _plane: Plane
    _owner: IntArray
    _columns: Columns
    _which: IntArray

    def numbers(self, name: str) -> IntArray:
        """Return a number of each event, ABSENT where it has none."""
        found = np.full(self.count, ABSENT)
        rows = self._rows(name)
        both = self._columns.numbers
        value = np.where(both[_UNSIGNED] != ABSENT, both[_UNSIGNED], both[_SIGNED])
        found[self._owner[rows]] = value[rows]
        return found

    def has(self, name: str) -> BoolArray:
        """Return which events have something of this name."""
        found = np.zeros(self.count, np.bool_)
        found[self._owner[self._rows(name)]] = True
        return found

    def texts(self, name: str) -> tuple[IntArray, list[str]]:
        """Return a text of each event as its place among the texts, -1 where it has none."""
        rows = np.flatnonzero(self._rows(name))
        names, plane, said = Names(), self._plane, self._columns
        spelled = plane.block.texts(said.begins[_TEXT][rows], said.ends[_TEXT][rows])
        of_text = [-1 if text is None else names[message_text(text)] for text in spelled]
        of_ref = by_distinct(
            said.numbers[_TEXT_REF][rows],
            lambda ref, _: names[plane.stat_names[ref]] if ref in plane.stat_names else -1,
        )
        found = np.full(self.count, -1)
        found[self._owner[rows]] = np.maximum(np.array(of_text, np.int64), of_ref)
        return found, list(names)

    def _rows(self, name: str) -> BoolArray:
        rows: BoolArray = self._which == self._plane.stats.get(name, _NO_STAT)
        return rows


Events = tuple[Batch, Stats]
"""Events of a plane: place of their line, key of their name, start, end; and their stats.

`row` is the place of an event among those that the stats are of.
"""


@dataclass(frozen=True, slots=True)
class Space:
    """The planes of a file, the host that it names, and whether part of it is missing."""

    planes: tuple[Plane, ...]
    host: str | None
    is_cut: bool


def space_of(source: ByteSource) -> Space:
    """Return the planes of a file. Raises InputError where it is larger than any can be."""
    pieces, size = [], 0
    for piece in source.blocks():
        pieces.append(piece)
        size += len(piece)
        if size > _MOST_BYTES:
            raise InputError(
                f"an XPlane file of more than 2 GiB: {source.label}",
                "record fewer steps: no reader of such files takes more",
            )
    data = b"".join(pieces)
    pieces.clear()
    block = Block(data)
    others: dict[int, int | slice] = {}
    begin, end, is_whole = split(data, 0, len(data), _PLANES, others)
    if len(begin) > _MOST_PLANES:
        raise InputError(f"{len(begin):,} devices in one file: {source.label}", "record it again")
    spans = zip(begin.tolist(), end.tolist(), strict=True)
    planes = tuple(_plane(data, block, at, until) for at, until in spans)
    host = _text(data, others.get(_HOSTS)) or None
    return Space(planes, host, not is_whole or source.cut is not None)


def _plane(data: bytes, block: Block, at: int, end: int) -> Plane:
    others: dict[int, int | slice] = {}
    places, lost = {}, 0
    for number in (_LINES, _EVENT_NAMES, _STAT_NAMES, _STATS):
        begins, ends, is_whole = split(data, at, end, number, others)
        places[number] = Messages(block, begins, ends)
        lost = max(lost, int(not is_whole))
    lines = []
    spans = places[_LINES].begin.tolist(), places[_LINES].end.tolist()
    for begin, until in zip(*spans, strict=True):
        line, is_whole = _line(data, begin, until)
        lines += [line] * bool(len(line.begin))
        lost += int(not is_whole)
    events, stats = (_names(places[number]) for number in (_EVENT_NAMES, _STAT_NAMES))
    name = _text(data, others.get(_NAME))
    return Plane(name, block, lines, events, stats, places[_STATS], lost)


def _line(data: bytes, at: int, end: int) -> tuple[Line, bool]:
    others: dict[int, int | slice] = {}
    begin, until, is_whole = split(data, at, end, _LINE_EVENTS, others)
    number, start = (others.get(key, 0) for key in (_LINE_ID, _LINE_START))
    start_ns = start if isinstance(start, int) and start < _MOST_PS else _NO_TIME
    name = _text(data, others.get(_LINE_NAME))
    line_id = signed(number) if isinstance(number, int) else 0
    return Line(line_id, name, start_ns, begin, until), is_whole


def _names(entries: Messages) -> dict[int, str]:
    """Return names by their keys; of a name and one for display the latter."""
    said = entries.columns((_KEY,), (_VALUE,))
    rows = said.sound & said.has(_VALUE)
    named = said.part(_VALUE, rows).columns((), (_VALUE_NAME, _DISPLAY_NAME))
    block = entries.block
    plain, shown = (
        block.texts(np.where(named.sound, named.begins[part], ABSENT), named.ends[part])
        for part in (_VALUE_NAME, _DISPLAY_NAME)
    )
    keys = _or_0(said.numbers[_KEY][rows]).tolist()
    texts = (message_text(one or other) for one, other in zip(shown, plain, strict=True))
    return dict(zip(keys, texts, strict=True))


def _stats_of(plane: Plane, owner: IntArray, stats: Messages, count: int) -> Stats:
    said = stats.columns((_STAT_NAME, _UNSIGNED, _SIGNED, _TEXT_REF), (_TEXT,))
    which = plane.stat_of(_or_0(said.numbers[_STAT_NAME]))
    return Stats(count, plane, owner, said, np.where(said.sound, which, ABSENT))


def _times_ns(line_ns: IntArray, offset: IntArray, duration: IntArray) -> tuple[IntArray, IntArray]:
    """Return start and end: both are rounded, so that what follows at once still does."""
    fits = (line_ns >= 0) & (line_ns < _MOST_PS) & (offset >= 0) & (offset < _MOST_PS)
    fits &= (duration >= 0) & (duration < _MOST_PS)
    ends = np.where(fits, offset, 0), np.where(fits, offset + duration, 0)
    start, end = (line_ns + (ps + 500) // 1000 for ps in ends)
    return np.where(fits, start, _NO_TIME), end


def _or_0(values: Array) -> IntArray:
    """Return numbers, 0 where they were left out, as writers do with it."""
    return np.where(values == ABSENT, 0, values)


def _text(data: bytes, place: int | slice | None) -> str:
    return message_text(data[place]) if isinstance(place, slice) else ""

"""Planes of an XPlane file: their lines, the events on the lines, the stats of each event.

A plane is a device or a host. The numbers below are of fields in xplane.proto (openxla/xla).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct, field

from traceflops.errors import InputError
from traceflops.parsers.io.database_query import Batch, Lookup, by_distinct
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.messages import Block, Columns, Messages, message_text, signed, split
from traceflops.table.columns import ABSENT, Array, BoolArray, IntArray, Names
from traceflops.table.grouping import groups
from traceflops.table.nesting import innermost

_PLANES, _ERRORS, _HOSTS = 1, 2, 4
_LINES, _EVENT_NAMES, _STAT_NAMES, _STATS = 3, 4, 5, 6
_NAME = 2
_KEY, _VALUE, _VALUE_NAME, _DISPLAY_NAME = 1, 2, 2, 4
_LINE_ID, _LINE_NAME, _LINE_START, _LINE_EVENTS = 1, 2, 3, 4
_EVENT_NAME, _OFFSET, _DURATION, _EVENT_STATS, _OCCURRENCES = 1, 2, 3, 4, 5
_STAT_NAME, _UNSIGNED, _SIGNED, _TEXT, _TEXT_REF = 1, 3, 4, 5, 7
_MOST_BYTES: Final = 1 << 31  # the largest message of Protocol Buffers
_MOST_PLANES: Final = 1_024
_CHUNK: Final = 1 << 18  # how many events are decoded at once
_MOST_PS: Final = 2**62
"""So much time (also in ns) is damage; the sum of two such times fits into 64 bits."""
_PS_A_NS: Final = 1_000
_NO_TIME: Final = -1
_NO_STAT: Final = -1
_ROCM_LAUNCHES: Final = re.compile(r"Host Threads/")
"""Lines of ROCm's tracer, whose thread numbers differ from those of other lines."""
_ENDLESS: Final = np.iinfo(np.int64).max
MOST_THREADS: Final = 1_024
"""More lines are not compared with all calls; a process has fewer threads."""


class Line(Struct, frozen=True):
    """A stream of a device, a thread of a host, or derived from other lines.

    `begin` and `end` are the byte offsets of its events in the file, one each per event.
    """

    id: int
    name: str
    start_ns: int
    begin: IntArray
    end: IntArray


class Plane(Struct, dict=True):
    """A device or a host. Times of its events count from `zero_ns`.

    `lost` counts unreadable events, and lists of which the rest is unreadable.
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

    @cached_property
    def stat_of(self) -> Lookup:
        """The code in `stats` of the name of each stat, by key; several keys may share a name."""
        keys = np.array([*self.stat_names], np.int64)
        codes = self.stats.codes(self.stat_names.values())
        return Lookup(keys, codes.astype(np.int64))

    def by_name(self, rows: Batch, value_of: Callable[[str], int]) -> IntArray:
        """Return `value_of` the name of each event; it is called once per distinct name."""
        return by_distinct(rows["name"], lambda key, _: value_of(self.event_names.get(key, "")))

    def about(self) -> Stats:
        """Return the stats of the plane itself, as if they were of one event."""
        return _stats_of(self, np.zeros(len(self._stats.begin), np.int64), self._stats, 1)

    def events(self) -> Iterator[Events]:
        """Yield the events of all lines in chunks (see `Events`); adds to `lost`."""
        none = np.empty(0, np.int64)
        begin = np.concatenate([none, *(line.begin for line in self.lines)])
        end = np.concatenate([none, *(line.end for line in self.lines)])
        line_of = np.repeat(np.arange(len(self.lines)), [len(line.begin) for line in self.lines])
        line_ns = np.array([line.start_ns - self.zero_ns for line in self.lines], np.int64)
        numbers = (_EVENT_NAME, _OFFSET, _DURATION, _OCCURRENCES)
        for first in range(0, len(begin), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            messages = Messages(self.block, begin[chunk], end[chunk])
            event = messages.columns(numbers, repeated=_EVENT_STATS)
            sound = event.sound
            count, line = int(np.count_nonzero(sound)), line_of[chunk][sound]
            self.lost += len(sound) - count
            name, offset_ps, dur_ps, occurrences = (
                event.numbers[number][sound] for number in numbers
            )
            offset_ps, dur_ps, zero_ns = _or_0(offset_ps), _or_0(dur_ps), line_ns[line]
            fits = (zero_ns >= 0) & (zero_ns < _MOST_PS)
            for ps in (offset_ps, dur_ps):
                fits &= (ps >= 0) & (ps < _MOST_PS)
            # Round start and end, not the duration, so that adjacent events stay adjacent.
            start, end_ns = (
                zero_ns + (np.where(fits, ps, 0) + _PS_A_NS // 2) // _PS_A_NS
                for ps in (offset_ps, offset_ps + dur_ps)
            )
            # An event with a number of occurrences is a sum of many: it has no time, either.
            start[~fits | (occurrences != ABSENT)] = _NO_TIME
            columns = {"line": line, "name": _or_0(name), "start": start, "end": end_ns}
            rows = Batch(count, {**columns, "row": np.arange(count)}, {})
            owner = np.cumsum(sound)[event.owner] - 1  # the row among the sound events
            yield rows, _stats_of(self, owner, event.each, count)

    def threads(self) -> IntArray:
        """Return the thread of each line: its id or, for lines of ROCm's launches, that of another.

        It is the line that, for most of the launches, has the shortest event around them.
        """
        thread = np.array([line.id for line in self.lines], np.int64)
        is_launch = np.array([bool(_ROCM_LAUNCHES.match(line.name)) for line in self.lines])
        # Nothing to compare launches with, no launches, or too much to compare.
        if all(is_launch) or not any(is_launch) or len(thread) > MOST_THREADS:
            return thread
        lost = self.lost
        pieces = [(rows["line"], rows["start"], rows["end"]) for rows, _ in self.events()]
        self.lost = lost  # the caller reads the events again: do not count lost ones twice
        line, start, end = map(np.concatenate, zip(*pieces, strict=True))
        # For each launch the line with the shortest event around it, -1 for none.
        calls = np.flatnonzero(is_launch[line] & (start >= 0))
        others = np.flatnonzero(~is_launch[line] & (start >= 0) & (end > start))
        shortest, nearest = np.full(len(calls), _ENDLESS), np.full(len(calls), -1, np.int64)
        none = np.zeros(len(calls), np.int64)
        for other, rows in groups(line[others]):
            begin, until = start[others[rows]], end[others[rows]]
            event = innermost(np.zeros_like(begin), begin, until, none, start[calls])
            encloses = (event >= 0) & (until[event] >= end[calls])
            length = np.where(encloses, until[event] - begin[event], _ENDLESS)
            nearer = length < shortest
            shortest[nearer], nearest[nearer] = length[nearer], other
        for launches, rows in groups(line[calls]):
            votes = nearest[rows]
            count = np.bincount(votes[votes >= 0], minlength=1)
            if 2 * count.max() > len(votes):  # most launches agree
                thread[launches] = thread[count.argmax()]
        return thread


class Stats(Struct, frozen=True):
    """The stats of `count` events. `_owner` is the event of each stat, `_which` its name's code."""

    count: int
    _plane: Plane
    _owner: IntArray
    _columns: Columns
    _which: IntArray

    def numbers(self, name: str) -> IntArray:
        """Return the stat `name` of each event as a number, ABSENT without it."""
        numbers = np.full(self.count, ABSENT)
        stats, columns = self._named(name), self._columns.numbers
        value = np.where(columns[_UNSIGNED] != ABSENT, columns[_UNSIGNED], columns[_SIGNED])
        numbers[self._owner[stats]] = value[stats]
        return numbers

    def has(self, name: str) -> BoolArray:
        """Return whether each event has a stat of this name."""
        has = np.zeros(self.count, np.bool_)
        has[self._owner[self._named(name)]] = True
        return has

    def texts(self, name: str) -> tuple[IntArray, list[str]]:
        """Return per event the index of the text of its stat `name`, or -1; and the texts."""
        stats = np.flatnonzero(self._named(name))
        names, plane, columns = Names(), self._plane, self._columns
        spelled = plane.block.texts(columns.begins[_TEXT][stats], columns.ends[_TEXT][stats])
        of_text = [-1 if text is None else names[message_text(text)] for text in spelled]
        of_ref = by_distinct(
            columns.numbers[_TEXT_REF][stats],
            lambda ref, _: names[plane.stat_names[ref]] if ref in plane.stat_names else -1,
        )
        codes = np.full(self.count, -1)
        # A stat has a text or a reference: the other is -1.
        codes[self._owner[stats]] = np.maximum(np.array(of_text, np.int64), of_ref)
        return codes, list(names)

    def _named(self, name: str) -> BoolArray:
        stats: BoolArray = self._which == self._plane.stats.get(name, _NO_STAT)
        return stats


Events = tuple[Batch, Stats]
"""Events of a plane: columns line (index), name (key), start and end in ns; and their stats.

The column `row` is the index of an event in the stats; it stays valid if events are left out.
"""


def planes_of(source: ByteSource) -> tuple[tuple[Plane, ...], str | None, str, bool]:
    """Return planes, host, last error, and whether a part lacks. Raises InputError if too large."""
    data = source.head(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InputError(
            f"an XPlane file of more than 2 GiB: {source.label}",
            "record fewer steps: no reader of such files takes more",
        )
    block = Block(data)
    others: dict[int, int | slice] = {}
    begin, end, is_whole = split(data, 0, len(data), _PLANES, others)
    if len(begin) > _MOST_PLANES:
        raise InputError(f"{len(begin):,} devices in one file: {source.label}", "record it again")
    spans = zip(begin.tolist(), end.tolist(), strict=True)
    planes = tuple(_plane(data, block, first, last) for first, last in spans)
    host = _text(data, others.get(_HOSTS)) or None
    error = _text(data, others.get(_ERRORS))
    return planes, host, error, not is_whole or source.cut is not None


def _plane(data: bytes, block: Block, begin: int, end: int) -> Plane:
    """Return the plane between two byte offsets."""
    others: dict[int, int | slice] = {}
    parts, lost = dict[int, Messages](), 0
    for number in (_LINES, _EVENT_NAMES, _STAT_NAMES, _STATS):
        begins, ends, is_whole = split(data, begin, end, number, others)
        parts[number] = Messages(block, begins, ends)
        lost = max(lost, int(not is_whole))  # if the plane is damaged, each number says so: count 1
    lines = []
    spans = parts[_LINES].begin.tolist(), parts[_LINES].end.tolist()
    for first, last in zip(*spans, strict=True):
        own: dict[int, int | slice] = {}
        begins, ends, is_whole = split(data, first, last, _LINE_EVENTS, own)
        lost += int(not is_whole)
        if len(begins):  # lines without events say nothing
            key, start = own.get(_LINE_ID, 0), own.get(_LINE_START, 0)
            start_ns = start if isinstance(start, int) and start < _MOST_PS else _NO_TIME
            line_id = signed(key) if isinstance(key, int) else 0
            lines.append(Line(line_id, _text(data, own.get(_LINE_NAME)), start_ns, begins, ends))
    events, stats = (_names(parts[number]) for number in (_EVENT_NAMES, _STAT_NAMES))
    return Plane(_text(data, others.get(_NAME)), block, lines, events, stats, parts[_STATS], lost)


def _names(entries: Messages) -> dict[int, str]:
    """Return the names of a map of metadata by key, preferring the name for display."""
    entry = entries.columns((_KEY,), (_VALUE,))
    rows = entry.sound & entry.has(_VALUE)
    value = entry.part(_VALUE, rows).columns((), (_VALUE_NAME, _DISPLAY_NAME))
    names, shown = (
        entries.block.texts(np.where(value.sound, value.begins[part], ABSENT), value.ends[part])
        for part in (_VALUE_NAME, _DISPLAY_NAME)
    )
    keys = _or_0(entry.numbers[_KEY][rows]).tolist()
    texts = (message_text(display or name) for display, name in zip(shown, names, strict=True))
    return dict(zip(keys, texts, strict=True))


def _stats_of(plane: Plane, owner: IntArray, stats: Messages, count: int) -> Stats:
    columns = stats.columns((_STAT_NAME, _UNSIGNED, _SIGNED, _TEXT_REF), (_TEXT,))
    which = plane.stat_of(_or_0(columns.numbers[_STAT_NAME]))
    return Stats(count, plane, owner, columns, np.where(columns.sound, which, ABSENT))


def _or_0(values: Array) -> IntArray:
    """Return numbers with 0 in place of ABSENT: writers leave out zeros."""
    return np.where(values == ABSENT, 0, values)


def _text(data: bytes, span: int | slice | None) -> str:
    return message_text(data[span]) if isinstance(span, slice) else ""

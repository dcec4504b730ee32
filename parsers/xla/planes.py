"""Planes of an XPlane file: their lines, the events on the lines, the stats of each event.

A plane is a device or a host, a line one of its streams or threads, a stat a named value. The
numbers below are those of fields in xplane.proto (openxla/xla).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
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
"""Times from here on (in ps or ns) are damage; the sum of two smaller ones fits into 64 bits."""
_PS_A_NS: Final = 1_000
_NO_TIME: Final = -1
_NO_STAT: Final = -1
_ROCM_LAUNCHES: Final = re.compile(r"Host Threads/")
"""Lines of launches by ROCm's tracer, whose thread numbers differ from those of other lines."""
_ENDLESS: Final = np.iinfo(np.int64).max
MOST_THREADS: Final = 1_024
"""With more lines, they are not compared with launches; a process has fewer threads."""


class Line(Struct, frozen=True):
    """A stream of a device, a thread of a host, or a line derived from others (steps, modules).

    `begin` and `end` are the byte offsets of its events in the file, one each per event.
    """

    id: int
    name: str
    start_ns: int
    begin: IntArray
    end: IntArray


class Plane(Struct, dict=True):
    """A device or a host. Times of its events count from `zero_ns`.

    Events and stats refer to their names by the keys of `event_names` and `stat_names`; `operators`
    are the keys of names of operators. `stats` are the distinct names of stats. `lost` counts
    unreadable events, and lists that are cut short.
    """

    name: str
    block: Block
    lines: list[Line]
    event_names: Mapping[int, str]
    operators: Set[int]
    stat_names: Mapping[int, str]
    _stats: Messages
    lost: int = 0
    zero_ns: int = 0
    stats: Names = field(default_factory=Names)

    @cached_property
    def stat_of(self) -> Lookup:
        """From a stat's key to the code of its name in `stats`; several keys may share a name."""
        keys = np.array([*self.stat_names], np.int64)
        codes = self.stats.codes(self.stat_names.values())
        return Lookup(keys, codes.astype(np.int64))

    def by_name(self, rows: Batch, value_of: Callable[[str], int]) -> IntArray:
        """Return `value_of(name)` of each event, called only once per distinct name."""
        return by_distinct(rows["name"], lambda key, _: value_of(self.event_names.get(key, "")))

    def are_operators(self, rows: Batch) -> BoolArray:
        """Return, per event, whether it is an operator."""
        return by_distinct(rows["name"], lambda key, _: int(key in self.operators)) > 0

    def about(self) -> Stats:
        """Return the stats of the plane itself, as if they were of one event."""
        return _stats_of(self, np.zeros(len(self._stats.begin), np.int64), self._stats, 1)

    def events(self) -> Iterator[Events]:
        """Yield the events of all lines in chunks (see `Events`); adds to `lost`."""
        empty = np.empty(0, np.int64)
        begin = np.concatenate([empty, *(line.begin for line in self.lines)])
        end = np.concatenate([empty, *(line.end for line in self.lines)])
        # Per event the index of its line: lines of 2 and 1 events -> [0 0 1].
        line_of = np.repeat(np.arange(len(self.lines)), [len(line.begin) for line in self.lines])
        line_ns = np.array([line.start_ns - self.zero_ns for line in self.lines], np.int64)
        numbers = (_EVENT_NAME, _OFFSET, _DURATION, _OCCURRENCES)
        for first in range(0, len(begin), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            messages = Messages(self.block, begin[chunk], end[chunk])
            event = messages.columns(numbers, repeated=_EVENT_STATS)
            sound = event.sound  # which messages are readable
            count = int(np.count_nonzero(sound))
            self.lost += len(sound) - count
            name, offset_ps, dur_ps, occurrences = (event.numbers[n][sound] for n in numbers)
            line = line_of[chunk][sound]
            zero_ns = line_ns[line]
            offset_ps = _or_0(offset_ps)
            dur_ps = _or_0(dur_ps)
            is_valid = np.ones(count, np.bool_)
            for time in (zero_ns, offset_ps, dur_ps):
                is_valid &= (time >= 0) & (time < _MOST_PS)
            # Round start and end, not the duration, so that adjacent events stay adjacent: those
            # at 0-1600 and 1600-2800 ps are at 0-2 and 2-3 ns.
            start_ns, end_ns = (
                zero_ns + (np.where(is_valid, ps, 0) + _PS_A_NS // 2) // _PS_A_NS
                for ps in (offset_ps, offset_ps + dur_ps)
            )
            # An event with a number of occurrences is a sum of many: it has no time, either.
            start_ns[~is_valid | (occurrences != ABSENT)] = _NO_TIME
            columns = {"line": line, "name": _or_0(name), "start": start_ns, "end": end_ns}
            rows = Batch(count, {**columns, "row": np.arange(count)}, {})
            # Per stat the row of its event among the sound ones: sound [1 0 1] -> rows [0 0 1].
            owner = np.cumsum(sound)[event.owner] - 1
            yield rows, _stats_of(self, owner, event.each, count)

    def threads(self) -> IntArray:
        """Return the thread of each line: the line's id, but for lines of ROCm's launches.

        Their ids count differently. A launch happens during a host event of the thread that makes
        it, so each launch votes for the line with the shortest event around it. A line of launches
        gets the id of the line that more than half of its launches vote for, if there is one:
        votes of 5 launches for the lines [2 2 2 7 -1] (-1: none) give it the id of line 2.
        """
        thread = np.array([line.id for line in self.lines], np.int64)
        has_launches = np.array([bool(_ROCM_LAUNCHES.match(line.name)) for line in self.lines])
        # Nothing to compare launches with, no launches, or too much to compare.
        if all(has_launches) or not any(has_launches) or len(thread) > MOST_THREADS:
            return thread
        lost = self.lost
        pieces = [(rows["line"], rows["start"], rows["end"]) for rows, _ in self.events()]
        self.lost = lost  # the caller reads the events again: do not count lost ones twice
        line, start, end = map(np.concatenate, zip(*pieces, strict=True))
        is_launch = has_launches[line]
        has_time = start >= 0
        launches = np.flatnonzero(is_launch & has_time)
        others = np.flatnonzero(~is_launch & has_time & (end > start))
        launch_spans = start[launches], end[launches]
        votes = _lines_around(*launch_spans, line[others], start[others], end[others])
        for launch_line, rows in groups(line[launches]):
            own_votes = votes[rows]
            counts = np.bincount(own_votes[own_votes >= 0], minlength=1)
            if 2 * counts.max() > len(own_votes):
                thread[launch_line] = thread[counts.argmax()]
        return thread


class Stats(Struct, frozen=True):
    """The stats of `count` events. Per stat: `_owner` is its event, `_name_code` its name."""

    count: int
    _plane: Plane
    _owner: IntArray
    _columns: Columns
    _name_code: IntArray

    def numbers(self, name: str) -> IntArray:
        """Return the stat `name` of each event as a number, ABSENT without it."""
        numbers = np.full(self.count, ABSENT)
        has_name = self._have_name(name)
        unsigned = self._columns.numbers[_UNSIGNED]
        value = np.where(unsigned != ABSENT, unsigned, self._columns.numbers[_SIGNED])
        numbers[self._owner[has_name]] = value[has_name]
        return numbers

    def has(self, name: str) -> BoolArray:
        """Return whether each event has a stat of this name."""
        has = np.zeros(self.count, np.bool_)
        has[self._owner[self._have_name(name)]] = True
        return has

    def texts(self, name: str) -> tuple[IntArray, list[str]]:
        """Return per event the index of the text of its stat `name`, or -1; and the texts."""
        # A stat contains its text, or refers to another stat whose name is its text.
        stats = np.flatnonzero(self._have_name(name))
        names, plane, columns = Names(), self._plane, self._columns
        own_texts = plane.block.texts(columns.begins[_TEXT][stats], columns.ends[_TEXT][stats])
        text_code = [-1 if text is None else names[message_text(text)] for text in own_texts]
        reference_code = by_distinct(
            columns.numbers[_TEXT_REF][stats],
            lambda key, _: names[plane.stat_names[key]] if key in plane.stat_names else -1,
        )
        # One of both codes is -1, so the larger one is that of the text.
        codes = np.full(self.count, -1)
        codes[self._owner[stats]] = np.maximum(np.array(text_code, np.int64), reference_code)
        return codes, list(names)

    def _have_name(self, name: str) -> BoolArray:
        """Return which stats have this name."""
        have_name: BoolArray = self._name_code == self._plane.stats.get(name, _NO_STAT)
        return have_name


Events = tuple[Batch, Stats]
"""Events of a plane: columns line (index), name (key), start and end in ns; and their stats.

The column `row` is the index of an event in the stats; it stays valid if events are left out.
"""


def planes_of(source: ByteSource) -> tuple[tuple[Plane, ...], str | None, str, bool]:
    """Return the planes, the host's name, the last error, and whether the file is incomplete.

    Raises InputError if the file is too large or has too many planes.
    """
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
        lost = max(lost, int(not is_whole))  # damage shows for each number: count it once
    lines = []
    spans = parts[_LINES].begin.tolist(), parts[_LINES].end.tolist()
    for first, last in zip(*spans, strict=True):
        line: dict[int, int | slice] = {}
        begins, ends, is_whole = split(data, first, last, _LINE_EVENTS, line)
        lost += int(not is_whole)
        if len(begins):  # lines without events say nothing
            key, start = line.get(_LINE_ID, 0), line.get(_LINE_START, 0)
            start_ns = start if isinstance(start, int) and start < _MOST_PS else _NO_TIME
            line_id = signed(key) if isinstance(key, int) else 0
            lines.append(Line(line_id, _text(data, line.get(_LINE_NAME)), start_ns, begins, ends))
    event_names, operators = _names(parts[_EVENT_NAMES])
    stat_names, _ = _names(parts[_STAT_NAMES])
    name = _text(data, others.get(_NAME))
    return Plane(name, block, lines, event_names, operators, stat_names, parts[_STATS], lost)


def _lines_around(
    launch_start: IntArray, launch_end: IntArray, line: IntArray, start: IntArray, end: IntArray
) -> IntArray:
    """Return, per launch, the line with the shortest event around the launch, -1 for none.

    Of each line, only the innermost event at the start of a launch is tried. A launch at 4-6 in an
    event at 0-9 of line 1 and one at 3-7 of line 2 -> line 2; if the latter ends at 5 -> line 1.
    """
    shortest_ns = np.full(len(launch_start), _ENDLESS)
    line_around = np.full(len(launch_start), -1, np.int64)
    for event_line, rows in groups(line):
        event_start, event_end = start[rows], end[rows]
        # `innermost` takes groups of events and of instants: here all are of group 0.
        group, launch_group = np.zeros_like(event_start), np.zeros_like(launch_start)
        event = innermost(group, event_start, event_end, launch_group, launch_start)
        is_around = (event >= 0) & (event_end[event] >= launch_end)
        length_ns = np.where(is_around, event_end[event] - event_start[event], _ENDLESS)
        is_shorter = length_ns < shortest_ns
        shortest_ns[is_shorter] = length_ns[is_shorter]
        line_around[is_shorter] = event_line
    return line_around


def _names(entries: Messages) -> tuple[dict[int, str], set[int]]:
    """Return names by key, from a map of metadata, and the keys of TensorFlow's operators.

    Names are display names where there are any. The name of an operator is NAME:TYPE and its
    display name TYPE, without a colon: "dense/MatMul:MatMul" and "MatMul".
    """
    entry = entries.columns((_KEY,), (_VALUE,))
    has_value = entry.sound & entry.has(_VALUE)
    value = entry.part(_VALUE, has_value).columns((), (_VALUE_NAME, _DISPLAY_NAME))
    names, display_names = (
        entries.block.texts(np.where(value.sound, value.begins[part], ABSENT), value.ends[part])
        for part in (_VALUE_NAME, _DISPLAY_NAME)
    )
    keys = _or_0(entry.numbers[_KEY][has_value]).tolist()
    texts, operators = {}, set()
    for key, full, shown in zip(keys, names, display_names, strict=True):
        texts[key] = message_text(shown or full)
        if full and shown and b":" not in shown and full.endswith(b":" + shown):
            operators.add(key)
    return texts, operators


def _stats_of(plane: Plane, owner: IntArray, stats: Messages, count: int) -> Stats:
    """Return the stats of `count` events; `owner` is the event of each message in `stats`."""
    columns = stats.columns((_STAT_NAME, _UNSIGNED, _SIGNED, _TEXT_REF), (_TEXT,))
    name_code = plane.stat_of(_or_0(columns.numbers[_STAT_NAME]))
    return Stats(count, plane, owner, columns, np.where(columns.sound, name_code, ABSENT))


def _or_0(values: Array) -> IntArray:
    """Return numbers with 0 instead of ABSENT: writers leave out zeros."""
    return np.where(values == ABSENT, 0, values)


def _text(data: bytes, span: int | slice | None) -> str:
    return message_text(data[span]) if isinstance(span, slice) else ""

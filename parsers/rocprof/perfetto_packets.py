"""The packets of a Perfetto trace as columns: events with their times, tracks, names.

The numbers below are those of the fields in Perfetto's .proto files; no other field is read, since
some contain command lines. A sequence is the packets of one writer; an era is a part of it, until
it clears its state. Ids of names, defaults and the sequence's own clocks are valid within one era.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from traceflops.parsers.io.database_query import Lookup, joined
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.messages import (
    Block,
    Columns,
    Messages,
    fields,
    last_fields,
    message_text,
    split,
)
from traceflops.parsers.rocprof.perfetto_clocks import IDS, Clocks, numbers_in
from traceflops.table.builder import BEYOND, MOST_TEXTS
from traceflops.table.columns import (
    ABSENT,
    Array,
    BoolArray,
    IntArray,
    Names,
    Rows,
    count_true,
    narrow,
)
from traceflops.table.grouping import distinct, group_rows

_PACKET: Final = 1
_CHUNK_BYTES: Final = 1 << 20
"""Bytes decoded at once; few enough that their columns fit in the cache."""
_MOST_PACKET: Final = 1 << 28
_TIME, _SEQUENCE, _FLAGS, _LOST, _CLOCK = 8, 10, 13, 42, 58
_CLOCKS, _EVENT, _INTERNED, _STATS, _PACKED, _DEFAULTS, _TRACK = 6, 11, 12, 35, 50, 59, 60
_CHUNKS_LOST: Final = (3, 18, 19)
"""Statistics of a buffer: chunks overwritten before they were read, discarded, lost by writers."""
_CATEGORY_ID, _TYPE, _NAME_ID, _ON, _INTEGER, _REAL = 3, 9, 10, 11, 30, 44
_ANNOTATION, _CATEGORY, _NAME = 4, 22, 23
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_CATEGORIES, _NAMES, _ANNOTATIONS = 1, 2, 3
_ANNOTATION_ID, _ANNOTATION_NAME, _TEXT, _VALUES = 1, 10, 6, (3, 4, 2, 7)
_MOST_WANTED: Final = 64  # the most ids that an era may define for the names of wanted annotations
TEXT: Final = 1 << 62
"""Added to the index of a text where the value of an annotation is a text, not a number."""


class Track(NamedTuple):
    """A track: its name, parent track, ids of process and thread, factor of a counter's unit."""

    name: str = ""
    parent: int | None = None
    pid: int | None = None
    tid: int | None = None
    factor: int = 1


class Packets:
    """The contents of a Perfetto trace: slices (ranges and instants) and values of counters.

    `read_bytes` is how many bytes could be read; `is_cut` says whether unreadable ones follow.
    """

    def __init__(self, source: ByteSource, wanted: Sequence[str], odd: Counter[str]) -> None:
        """Prepare to read the annotations named `wanted`; `odd` counts damage by note code."""
        self.tracks: dict[int, Track] = {}
        self.names, self.categories, self.texts = Names(), Names(), Names()
        for names in (self.names, self.categories, self.texts):
            names.most, names.beyond = MOST_TEXTS, BEYOND
        self.read_bytes = self._eras = 0
        self.is_cut = False
        self._source, self._wanted, self._odd = source, tuple(wanted), odd
        self._packets, self._events, self._slices, self._values = (Rows() for _ in range(4))
        # Pairs of `era * IDS + id` and the code of the text that the id stands for.
        self._interned: dict[int, list[tuple[int, int]]] = {_NAMES: [], _CATEGORIES: []}
        # By era, then by the id of an annotation's name: the index of the name in `wanted`.
        self._annotations: dict[int, dict[int, int]] = {}
        self._defaults: dict[int, tuple[int, int]] = {}  # by era: clock and track
        self._era_of: dict[int, int] = {}  # the current era of each sequence
        self._clocks = Clocks()
        self._parts = {
            _CLOCKS: self._clocks.add,
            _DEFAULTS: self._add_defaults,
            _INTERNED: self._add_names,
            _STATS: self._add_statistics,
            _TRACK: self._add_track,
        }

    def read(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the columns of the slices, and the columns of the values of counters.

        Both have start, end (ns, ABSENT if unknown), track, era, category; slices also a name and
        the wanted annotations, values also a value. Names and categories are codes, -1 for none.
        """
        waiting, size, needed = list[bytes](), 0, _CHUNK_BYTES
        for block in chain(self._source.blocks(), (b"",)):  # the empty block ends the input
            waiting.append(block)
            size += len(block)
            if block and size < needed:
                continue
            data = b"".join(waiting)
            begin, end, is_whole = split(data, 0, len(data), _PACKET)
            self._add(Messages(Block(data), begin, end))
            incomplete = data[int(end[-1]) if len(end) else 0 :]  # the beginning of a packet
            waiting, size = [incomplete], len(incomplete)
            self.read_bytes += len(data) - size
            self.is_cut = not is_whole
            # Try again only with twice as many bytes, so that a long packet is not scanned often.
            needed = max(_CHUNK_BYTES, 2 * size)
            if size > _MOST_PACKET:
                break
        events = self._timed(joined(self._packets).numbers)
        return self._rows(self._slices, events), self._rows(self._values, events)

    def _add(self, messages: Messages) -> None:
        """Add packets: their definitions at once, their events as columns for later."""
        numbers = (_TIME, _SEQUENCE, _FLAGS, _LOST, _CLOCK)
        packets = messages.columns(numbers, (*self._parts, _EVENT, _PACKED))
        self._odd["rows-lost"] += count_true(~packets.sound)
        self._odd["packets-packed"] += count_true(packets.has(_PACKED))
        era = self._eras_of(packets)

        # Definitions.
        for part, add in self._parts.items():
            rows = np.flatnonzero(packets.has(part) & packets.sound)
            texts = packets.block.texts(packets.begins[part][rows], packets.ends[part][rows])
            for own_era, text in zip(era[rows].tolist(), texts, strict=True):
                try:
                    add(own_era, text or b"")
                except ValueError:  # what precedes the damage is used
                    self._odd["rows-lost"] += 1

        # Events; their times, clocks and sequences are those of their packets.
        is_event = packets.has(_EVENT) & packets.sound
        packet = self._packets.count + np.flatnonzero(is_event)
        columns = {"sequence": _SEQUENCE, "time": _TIME, "clock": _CLOCK}
        columns_of_packets = {name: packets.numbers[number] for name, number in columns.items()}
        _add(self._packets, None, era=era, **columns_of_packets)
        if len(packet):
            self._add_events(packets.part(_EVENT, is_event), packet, era[is_event])

    def _eras_of(self, packets: Columns) -> IntArray:
        """Return the number of each packet's era; count packets that report dropped ones."""
        reports_loss = packets.numbers[_LOST] == 1
        sequence, flags = packets.numbers[_SEQUENCE], packets.numbers[_FLAGS]
        clears_state = (flags != ABSENT) & (flags & 1 == 1)
        # Runs of packets in one era: a run ends where the sequence changes or clears its state.
        begins_run = clears_state.copy()
        begins_run[:1] = True
        begins_run[1:] |= sequence[1:] != sequence[:-1]
        firsts, eras = np.flatnonzero(begins_run), list[int]()
        of_firsts = sequence[firsts].tolist(), clears_state[firsts].tolist()
        for first, key, is_cleared in zip(firsts, *of_firsts, strict=True):
            # Perfetto also flags the first packet of a sequence, before which none was dropped.
            reports_loss[first] &= key in self._era_of
            if is_cleared or key not in self._era_of:
                self._era_of[key] = self._eras
                self._eras += 1
            eras.append(self._era_of[key])
        self._odd["packets-dropped"] += count_true(reports_loss)
        return np.repeat(np.array(eras, np.int64), np.diff(np.append(firsts, len(sequence))))

    def _add_defaults(self, era: int, data: bytes) -> None:
        track = numbers_in(last_fields(data).get(_EVENT)).get(_ON, ABSENT)
        self._defaults[era] = (numbers_in(data).get(_CLOCK, ABSENT), track)

    def _add_names(self, era: int, data: bytes) -> None:
        """Add the ids that an era defines for names, categories and wanted annotations."""
        for kind, part in fields(data):  # of each part, field 1 is the id and field 2 the text
            text = message_text((last_fields(part) if isinstance(part, bytes) else {}).get(2))
            iid, ids = numbers_in(part).get(1, -1), self._annotations.setdefault(era, {})
            if kind == _ANNOTATIONS and text in self._wanted and len(ids) < _MOST_WANTED:
                ids[iid] = self._wanted.index(text)
            elif kind in self._interned and 0 <= iid < IDS:
                names = self.names if kind == _NAMES else self.categories
                self._interned[kind].append((era * IDS + iid, names[text]))

    def _add_statistics(self, _: int, data: bytes) -> None:
        """Count the buffers that lost packets."""
        buffers = [numbers_in(part) for kind, part in fields(data) if kind == 1]
        lost = sum(any(buffer.get(kind) for kind in _CHUNKS_LOST) for buffer in buffers)
        self._odd["packets-dropped"] += lost

    def _add_track(self, _: int, data: bytes) -> None:
        """Add a track; a track without a name replaces none that was defined before."""
        # Fields of a track: 1 uuid, 5 parent, 2, 10 or 13 name, 3 process, 4 thread, 8 counter. In
        # a process or thread 1 is the pid, in a thread 2 the tid, in a counter 4 the factor.
        parts, numbers = last_fields(data), numbers_in(data)
        process, thread, counter = (numbers_in(parts.get(part)) for part in (3, 4, 8))
        name = next((message_text(parts[part]) for part in (2, 10, 13) if part in parts), "")
        pid, uuid = process.get(1, thread.get(1)), numbers.get(1, 0)
        if name or uuid not in self.tracks:
            self.tracks[uuid] = Track(name, numbers.get(5), pid, thread.get(2), counter.get(4, 1))

    def _add_events(self, messages: Messages, packet: IntArray, era: IntArray) -> None:
        """Add events; `packet` has the row of each event in `_packets`, `era` its era."""
        numbers = (_CATEGORY_ID, _TYPE, _NAME_ID, _ON, _INTEGER)
        events = messages.columns(numbers, (_CATEGORY, _NAME), (_REAL,), _ANNOTATION)
        self._odd["rows-lost"] += count_true(~events.sound)
        kind = np.where(events.sound, events.numbers[_TYPE], ABSENT)
        row = self._events.count + np.arange(len(kind))
        columns = {"kind": kind, "track": events.numbers[_ON], "packet": packet}
        _add(self._events, None, **columns)
        category = {
            "event": row,
            "category": _codes(self.categories, events, _CATEGORY, events.sound),
            "category id": events.numbers[_CATEGORY_ID],
        }
        is_value, is_slice = kind == _COUNTER, (kind == _BEGIN) | (kind == _INSTANT)
        if is_value.any():
            real, integer = events.numbers[_REAL], events.numbers[_INTEGER]
            value = np.where(integer == ABSENT, np.nan, integer.astype(np.float64))
            # `real` holds the bits of doubles in int64.
            value = np.where(real == ABSENT, value, real.view(np.float64))
            _add(self._values, is_value, value=value, **category)
        if is_slice.any():
            name = _codes(self.names, events, _NAME, events.sound)
            ids = {"name": name, "name id": events.numbers[_NAME_ID]}
            _add(self._slices, is_slice, **category, **ids, **self._annotated(events, era))

    def _annotated(self, events: Columns, era: IntArray) -> dict[str, IntArray]:
        """Return a column per wanted annotation: per event its value, ABSENT, or TEXT + a code."""
        notes = events.each.columns((_ANNOTATION_ID, *_VALUES), (_ANNOTATION_NAME, _TEXT))
        # The index in `_wanted` of each annotation: by the id of its name, else by the name itself.
        ids = [
            (own_era * IDS + iid, index)
            for own_era in distinct(era).tolist()
            for iid, index in self._annotations.get(own_era, {}).items()
        ]
        keys, indices = np.array(ids, np.int64).reshape(-1, 2).T
        wanted = Lookup(keys, indices)(era[events.owner] * IDS + notes.numbers[_ANNOTATION_ID])
        name_begin, name_end = notes.begins[_ANNOTATION_NAME], notes.ends[_ANNOTATION_NAME]
        if (name_begin != ABSENT).any():
            names = [name.encode() for name in self._wanted]
            by_name = notes.block.known(name_begin, name_end, names)
            wanted = np.where(wanted == ABSENT, by_name, wanted)
        # The value of each: a text, else the first number of any type.
        is_wanted = notes.sound & (wanted != ABSENT)
        value = _codes(self.texts, notes, _TEXT, is_wanted)
        value[value != ABSENT] += TEXT
        for number in _VALUES:
            value = np.where(value == ABSENT, notes.numbers[number], value)
        columns = np.full((len(self._wanted), len(era)), ABSENT, np.int64)
        columns[wanted[is_wanted], events.owner[is_wanted]] = value[is_wanted]
        return dict(zip(self._wanted, columns, strict=True))

    def _timed(self, packets: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Return start and end in ns (ABSENT: unknown), track and era of all events."""
        if not self._events.count:
            return {}
        defaults = [(own_era, *values) for own_era, values in self._defaults.items()]
        eras, clocks, tracks = np.array(defaults, np.int64).reshape(-1, 3).T
        clock, packet_era = packets["clock"], packets["era"]
        clock = np.where(clock == ABSENT, Lookup(eras, clocks)(packet_era), clock)
        kind, track, packet = joined(self._events).numbers.values()
        time = self._clocks.times(packets["time"], clock, packet_era)[packet]
        era = packet_era[packet]
        track = np.where(track == ABSENT, Lookup(eras, tracks)(era), track)

        # Ranges of one track and sequence are nested: an end closes the last open begin.
        end = np.where(kind == _INSTANT, time, ABSENT)
        rows = np.flatnonzero((kind == _BEGIN) | (kind == _END))
        stack, _ = group_rows([track[rows], packets["sequence"][packet[rows]]])
        begins, ends, unpaired = _pairs(kind[rows] == _BEGIN, stack)
        end[rows[begins]] = time[rows[ends]]
        self._odd["unpaired-ends"] += unpaired
        return {"start": time, "end": end, "track": track, "era": era}

    def _rows(self, table: Rows, events: Mapping[str, IntArray]) -> dict[str, Array]:
        """Return the columns of a table and of its events; ids of names are replaced by codes."""
        rows = dict(joined(table).numbers)
        if not rows:
            return {}
        event = rows.pop("event")
        rows |= {name: values[event] for name, values in events.items()}
        for kind, what in ((_NAMES, "name"), (_CATEGORIES, "category")):
            if what in rows:
                keys, codes = np.array(self._interned[kind], np.int64).reshape(-1, 2).T
                iid = rows.pop(f"{what} id")
                key = np.where((iid < 0) | (iid >= IDS), ABSENT, rows["era"] * IDS + iid)
                code = np.where(rows[what] == ABSENT, Lookup(keys, codes)(key), rows[what])
                rows[what] = np.where(code == ABSENT, -1, code)
        return rows


def _add(table: Rows, is_wanted: BoolArray | None, /, **columns: Array) -> None:
    """Append the rows of `columns` for which `is_wanted` is true (None: all) to a table."""
    for name, values in columns.items():
        columns[name] = narrow(values if is_wanted is None else values[is_wanted])
    table.add(len(columns[name]), **columns)


def _codes(names: Names, messages: Columns, part: int, among: BoolArray) -> IntArray:
    """Return the code in `names` of the text in a field of each message, ABSENT if not `among`."""
    codes = np.full(len(among), ABSENT, np.int64)
    rows = np.flatnonzero(messages.has(part) & among)
    texts = messages.block.texts(messages.begins[part][rows], messages.ends[part][rows])
    codes[rows] = names.codes(map(message_text, texts))
    return codes


def _pairs(is_begin: BoolArray, stack: IntArray) -> tuple[IntArray, IntArray, int]:
    """Return the rows of begins, the rows of their ends, and the number of ends without a begin.

    Rows are begins or ends in file order; `stack` is the number of the stack (track and sequence)
    of each. An end closes the last open begin before it in its stack.
    """
    order = np.argsort(stack, kind="stable")
    begins, stack = is_begin[order], stack[order]
    # The depth after each row: 1 more per begin, 1 less per end, from 0 in each stack.
    step = np.where(begins, 1, -1)
    depth = np.cumsum(step)
    depth -= (depth - step)[np.searchsorted(stack, stack)]
    # An end that leads below the lowest depth so far has no begin: it does not count. `offset` is
    # larger than any change of depth, so that the running minimum starts anew in each stack.
    offset = stack * (len(stack) + 1)
    lowest = np.minimum.accumulate(np.minimum(depth, 0) - offset) + offset
    lowest_before = np.append(0, lowest[:-1])[: len(lowest)]
    lowest_before[np.flatnonzero(np.diff(stack)) + 1] = 0
    unpaired = lowest < lowest_before
    # A begin at depth n leads to level n, its end back from level n: sorted by stack and level
    # (lexsort is stable), the two are neighbors.
    level = depth - lowest + ~begins
    rows = np.flatnonzero(~unpaired)
    rows = rows[np.lexsort((level[rows], stack[rows]))]
    first, second = rows[:-1], rows[1:]
    is_pair = begins[first] & ~begins[second]
    is_pair &= (level[first] == level[second]) & (stack[first] == stack[second])
    return order[first[is_pair]], order[second[is_pair]], count_true(unpaired)

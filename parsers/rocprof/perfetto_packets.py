"""The packets of a Perfetto trace as columns: events with their times, tracks, names.

Fields are read by their numbers, those alone that stand here: others may hold command lines. Ids of
names, clocks and defaults hold until a sequence of packets is cleared: for an era.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from traceflops.parsers.io import (
    Block,
    ByteSource,
    Columns,
    Lookup,
    Messages,
    fields,
    last_fields,
    message_text,
    split,
)
from traceflops.parsers.rocprof.perfetto_times import IDS, Clocks, numbers_in, pairs
from traceflops.table import (
    ABSENT,
    BEYOND,
    MOST_TEXTS,
    Array,
    BoolArray,
    IntArray,
    Names,
    joint_codes,
    narrow,
    ranked,
)

_PACKET: Final = 1
_CHUNK_BYTES: Final = 1 << 20
"""So much is taken apart at once: its columns fit in the cache."""
_MOST_PACKET: Final = 1 << 28
_TIME, _SEQUENCE, _FLAGS, _LOST, _CLOCK = 8, 10, 13, 42, 58
_CLOCKS, _EVENT, _INTERNED, _PACKED, _DEFAULTS, _TRACK = 6, 11, 12, 50, 59, 60
_CATEGORY_ID, _TYPE, _NAME_ID, _ON, _INTEGER, _REAL = 3, 9, 10, 11, 30, 44
_ANNOTATION, _CATEGORY, _NAME = 4, 22, 23
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_CATEGORIES, _NAMES, _ANNOTATIONS = 1, 2, 3
_ANNOTATION_ID, _ANNOTATION_NAME, _TEXT, _VALUES = 1, 10, 6, (3, 4, 2, 7)
_MOST_WANTED: Final = 64
"""So many ids an era may have for the names of the annotations that are wanted."""
TEXT: Final = 1 << 62
"""An annotation that is a text has the place of it among the texts, and this added."""


class Track(NamedTuple):
    """A track as it is described: its name, the ids of process and thread, the unit's factor."""

    name: str = ""
    parent: int | None = None
    pid: int | None = None
    tid: int | None = None
    factor: int = 1


class Table:
    """Columns of numbers that arrive in pieces."""

    def __init__(self) -> None:
        self.count = 0
        self._pieces: defaultdict[str, list[Array]] = defaultdict(list)

    def add(self, rows: BoolArray, **columns: Array) -> None:
        """Append some of the rows of columns."""
        self.count += int(np.count_nonzero(rows))
        for name, values in columns.items():
            self._pieces[name].append(narrow(values[rows]))

    def take(self) -> dict[str, Array]:
        """Return the columns, which are given up one by one."""
        return {name: _wide(self._pieces.pop(name)) for name in [*self._pieces]}


class Packets:
    """What a trace holds. `slices` begin or are instants, `values` are of counters.

    Of both there are times, the ends of slices, tracks, categories, and of slices names and the
    `wanted` annotations. `read_bytes` could be read; `is_cut` says that there are more.
    """

    def __init__(self, source: ByteSource, wanted: Sequence[str], odd: Counter[str]) -> None:
        self.tracks: dict[int, Track] = {}
        self.names, self.categories, self.texts = Names(), Names(), Names()
        for names in (self.names, self.categories, self.texts):
            names.most, names.beyond = MOST_TEXTS, BEYOND
        self.read_bytes = self._eras = 0
        self.is_cut = False
        self._source, self._wanted, self._odd = source, tuple(wanted), odd
        self._packets, self._events, self._slices, self._values = (Table() for _ in range(4))
        self._interned: dict[int, list[tuple[int, int]]] = {_NAMES: [], _CATEGORIES: []}
        self._annotations: dict[int, dict[int, int]] = {}
        self._era_of: dict[int, int] = {}
        self._defaults: dict[int, tuple[int, int]] = {}
        self._clocks = Clocks()
        self._parts = {
            _CLOCKS: self._clocks.add,
            _DEFAULTS: self._add_defaults,
            _INTERNED: self._add_names,
            _TRACK: self._add_track,
        }

    def read(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the slices and the values."""
        for messages in self._chunks():
            self._add(messages)
        events = self._timed(self._packets.take())
        return self._rows(self._slices, events), self._rows(self._values, events)

    def _chunks(self) -> Iterator[Messages]:
        """Yield whole packets, some at a time."""
        waiting, size, least = list[bytes](), 0, _CHUNK_BYTES
        for block in chain(self._source.blocks(), (b"",)):
            waiting.append(block)
            size += len(block)
            if block and size < least:
                continue
            data = b"".join(waiting)
            begin, end, is_whole = split(data, 0, len(data), _PACKET)
            yield Messages(Block(data), begin, end)
            rest = data[int(end[-1]) if len(end) else 0 :]
            waiting, size = [rest], len(rest)
            self.read_bytes += len(data) - len(rest)
            self.is_cut = not is_whole
            # What is longer waits for twice as much, so that no byte is seen often.
            least = max(_CHUNK_BYTES, 2 * len(rest))
            if len(rest) > _MOST_PACKET:
                return

    def _add(self, messages: Messages) -> None:
        numbers = (_TIME, _SEQUENCE, _FLAGS, _LOST, _CLOCK)
        found = messages.columns(numbers, (*self._parts, _EVENT, _PACKED))
        self._odd["rows-lost"] += int(np.count_nonzero(~found.sound))
        self._odd["packets-packed"] += int(np.count_nonzero(found.has(_PACKED)))
        self._odd["packets-dropped"] += int(np.count_nonzero(found.numbers[_LOST] == 1))
        sequence, flags = found.numbers[_SEQUENCE], found.numbers[_FLAGS]
        era = self._eras_of(sequence, (flags != ABSENT) & (flags & 1 == 1))
        for part, add in self._parts.items():
            rows = np.flatnonzero(found.has(part) & found.sound)
            texts = found.block.texts(found.begins[part][rows], found.ends[part][rows])
            for own, text in zip(era[rows].tolist(), texts, strict=True):
                try:
                    add(own, text or b"")
                except ValueError:  # what stands before the damage is used
                    self._odd["rows-lost"] += 1
        is_event = found.has(_EVENT) & found.sound
        packet = self._packets.count + np.flatnonzero(is_event)
        columns = {"time": found.numbers[_TIME], "clock": found.numbers[_CLOCK]}
        every = np.ones(len(era), np.bool_)
        self._packets.add(every, sequence=sequence, era=era, **columns)
        if len(packet):
            self._add_events(found.part(_EVENT, is_event), packet, era[is_event])

    def _eras_of(self, sequence: IntArray, cleared: BoolArray) -> IntArray:
        """Return the era of each packet: it begins where its sequence does, or is cleared."""
        begins = cleared.copy()
        begins[:1] = True
        begins[1:] |= sequence[1:] != sequence[:-1]
        places, ids = np.flatnonzero(begins), list[int]()
        for key, is_new in zip(sequence[places].tolist(), cleared[places].tolist(), strict=True):
            if is_new or key not in self._era_of:
                self._era_of[key] = self._eras
                self._eras += 1
            ids.append(self._era_of[key])
        return np.repeat(np.array(ids, np.int64), np.diff(np.append(places, len(sequence))))

    def _add_defaults(self, era: int, data: bytes) -> None:
        track = numbers_in(last_fields(data).get(_EVENT)).get(_ON, ABSENT)
        self._defaults[era] = (numbers_in(data).get(_CLOCK, ABSENT), track)

    def _add_names(self, era: int, data: bytes) -> None:
        for kind, part in fields(data):
            said = last_fields(part) if isinstance(part, bytes) else {}
            iid, text = numbers_in(part).get(1, -1), message_text(said.get(2))
            ids = self._annotations.setdefault(era, {})
            if kind == _ANNOTATIONS and text in self._wanted and len(ids) < _MOST_WANTED:
                ids[iid] = self._wanted.index(text)
            elif kind in self._interned and 0 <= iid < IDS:
                names = self.names if kind == _NAMES else self.categories
                self._interned[kind].append((era * IDS + iid, names[text]))

    def _add_track(self, _: int, data: bytes) -> None:
        said, own = last_fields(data), numbers_in(data)
        process, thread, counter = (numbers_in(said.get(part)) for part in (3, 4, 8))
        name = next((message_text(said[part]) for part in (2, 10, 13) if part in said), "")
        pid = process.get(1, thread.get(1))
        if name or own.get(1, 0) not in self.tracks:
            track = Track(name, own.get(5), pid, thread.get(2), counter.get(4, 1))
            self.tracks[own.get(1, 0)] = track

    def _add_events(self, messages: Messages, packet: IntArray, era: IntArray) -> None:
        numbers = (_CATEGORY_ID, _TYPE, _NAME_ID, _ON, _INTEGER)
        found = messages.columns(numbers, (_CATEGORY, _NAME), (_REAL,), _ANNOTATION)
        self._odd["rows-lost"] += int(np.count_nonzero(~found.sound))
        kind = np.where(found.sound, found.numbers[_TYPE], ABSENT)
        event = self._events.count + np.arange(len(kind))
        self._events.add(found.sound | True, kind=kind, track=found.numbers[_ON], packet=packet)
        category = {
            "event": event,
            "category": _codes(self.categories, found, _CATEGORY, found.sound),
            "category id": found.numbers[_CATEGORY_ID],
        }
        is_value, is_slice = kind == _COUNTER, (kind == _BEGIN) | (kind == _INSTANT)
        if is_value.any():
            real, whole = found.numbers[_REAL], found.numbers[_INTEGER]
            value = np.where(whole == ABSENT, np.nan, whole.astype(np.float64))
            value = np.where(real == ABSENT, value, real.view(np.float64))
            self._values.add(is_value, value=value, **category)
        if is_slice.any():
            name = _codes(self.names, found, _NAME, found.sound)
            ids = {"name": name, "name id": found.numbers[_NAME_ID]}
            self._slices.add(is_slice, **category, **ids, **self._annotated(found, era))

    def _annotated(self, found: Columns, era: IntArray) -> dict[str, IntArray]:
        """Return the annotations of events that are wanted, by name."""
        said = found.each.columns((_ANNOTATION_ID, *_VALUES), (_ANNOTATION_NAME, _TEXT))
        ids = [
            (own * IDS + iid, place)
            for own in np.unique(era).tolist()
            for iid, place in self._annotations.get(own, {}).items()
        ]
        keys, places = np.array(ids, np.int64).reshape(-1, 2).T
        which = Lookup(keys, places)(era[found.owner] * IDS + said.numbers[_ANNOTATION_ID])
        spelled = said.begins[_ANNOTATION_NAME], said.ends[_ANNOTATION_NAME]
        if (spelled[0] != ABSENT).any():
            names = [name.encode() for name in self._wanted]
            which = np.where(which == ABSENT, said.block.known(*spelled, names), which)
        taken = said.sound & (which != ABSENT)
        value = _codes(self.texts, said, _TEXT, taken)
        value[value != ABSENT] += TEXT
        for number in _VALUES:
            value = np.where(value == ABSENT, said.numbers[number], value)
        values = np.full((len(self._wanted), len(era)), ABSENT, np.int64)
        values[which[taken], found.owner[taken]] = value[taken]
        return dict(zip(self._wanted, values, strict=True))

    def _timed(self, packets: dict[str, IntArray]) -> dict[str, IntArray]:
        """Return all events with their times and tracks; of what ends where that is."""
        if not self._events.count:
            return {}
        era, clock = packets["era"], packets["clock"]
        defaults = [(own, *said) for own, said in self._defaults.items()]
        eras, clocks, tracks = np.array(defaults, np.int64).reshape(-1, 3).T
        clock = np.where(clock == ABSENT, Lookup(eras, clocks)(era), clock)
        kind, track, packet = self._events.take().values()
        time, era = self._clocks.times(packets["time"], clock, era)[packet], era[packet]
        track = np.where(track == ABSENT, Lookup(eras, tracks)(era), track)
        end = np.where(kind == _INSTANT, time, ABSENT)
        rows = np.flatnonzero((kind == _BEGIN) | (kind == _END))
        sequence = packets["sequence"][packet[rows]]
        whose = ranked(joint_codes(ranked(track[rows])[1], sequence))[1]
        begins, ends, alone = pairs(kind[rows] == _BEGIN, whose)
        end[rows[begins]] = time[rows[ends]]
        self._odd["unpaired-ends"] += alone
        return {"start": time, "end": end, "track": track, "era": era}

    def _rows(self, table: Table, events: dict[str, IntArray]) -> dict[str, Array]:
        """Return rows with what their events have, and with codes of their ids."""
        rows = table.take()
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


def _wide(pieces: Sequence[Array]) -> Array:
    found = np.concatenate(pieces)
    return found if found.dtype.kind == "f" else found.astype(np.int64, copy=False)


def _codes(names: Names, found: Columns, part: int, among: BoolArray) -> IntArray:
    """Return the codes of texts that stand in some messages themselves, ABSENT for none."""
    codes = np.full(len(among), ABSENT, np.int64)
    rows = np.flatnonzero(found.has(part) & among)
    texts = found.block.texts(found.begins[part][rows], found.ends[part][rows])
    codes[rows] = names.codes(map(message_text, texts))
    return codes

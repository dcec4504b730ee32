"""Which processes and devices the rows of a report belong to.

Rows get preliminary numbers when they are read. At the end, processes are sorted by rank and id,
and the ordinals by which processes number their devices are resolved to GPUs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.devices.processes import apart
from traceflops.parsers.io.database_query import Lookup, by_distinct
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.nsight.nsys.enums import pid_of, streams_of
from traceflops.parsers.nsight.nsys.facts import Devices
from traceflops.parsers.shared.trace_builder import Gathered, ProcessFacts
from traceflops.table.builder import compact
from traceflops.table.columns import ABSENT, BoolArray, IntArray, numbers, with_column
from traceflops.table.grouping import distinct, group_rows
from traceflops.table.trace import (
    RANK_UNKNOWN,
    Note,
    Trace,
    counted_note,
    rank_from_name,
    rank_unknown,
)
from traceflops.units import several

BY_COMMUNICATOR: Final = "ranks-by-communicator"
_FORMATS: Final = "nsys-"
_NOTES: Final = NoteTable(
    assumed={
        BY_COMMUNICATOR: (
            "Ranks are assumed from NCCL's largest communicator ({ranks}); nothing else names them."
        ),
        "rank-disputed": "NCCL's largest communicator ({ranks}) gives rank {rank}, but the file "
        "name gives another. The file name counts; the communicator is taken for part of the job, "
        "whose world size is unknown.",
    }
)


class RankPlace(NamedTuple):
    """The place of a process in a communicator: its number of ranks, the rank, its id."""

    ranks: int
    rank: int
    communicator: str | None = None


class Ranks(Struct, frozen=True):
    """The ranks of processes and the world sizes of their jobs, by key, and notes on these."""

    ranks: Mapping[int, int] = field(default_factory=dict)
    worlds: Mapping[int, int] = field(default_factory=dict)
    notes: Sequence[Note] = ()


def settled(
    workers: Sequence[int],
    listed: Mapping[int, int],
    in_name: int | None,
    places: Mapping[int, RankPlace],
) -> Ranks:
    """Return the ranks of the processes that did work; `workers` are their keys.

    Ranks listed by the report come first, then the one in the file's name, then those in `places`.
    """
    own_places = {key: places[key] for key in workers if key in places}
    # The world size: that of the communicator, if all workers can be in the same one.
    size = None
    sizes = {place.ranks for place in own_places.values()}
    ids = {place.communicator for place in own_places.values()} - {None}
    ranks_differ = len({place.rank for place in own_places.values()}) == len(own_places)
    if len(sizes) == 1 and len(ids) < 2 and ranks_differ and min(sizes) >= len(workers):
        size = min(sizes)
    # The ranks, by the first source that knows any.
    ranks = {key: listed[key] for key in workers if key in listed}
    notes: list[Note] = []
    if not ranks and in_name is not None and len(workers) == 1:
        ranks = {workers[0]: in_name}
        notes = [rank_from_name([in_name])]
        place = own_places.get(workers[0])
        # In a smaller communicator the rank is another one: that is no contradiction.
        if place is not None and place.rank != in_name < place.ranks:
            in_words = several(place.ranks, "rank")
            notes.append(_NOTES.note("rank-disputed", 1, ranks=in_words, rank=place.rank))
    elif not ranks and size is not None:
        ranks = {key: place.rank for key, place in own_places.items()}
        notes = [_NOTES.note(BY_COMMUNICATOR, len(ranks), ranks=several(size, "rank"))]
    # World sizes are given only if the ranks are those in the communicator.
    agree = all(ranks.get(key) == place.rank for key, place in own_places.items())
    worlds = dict.fromkeys(own_places, size) if size is not None and agree else {}
    unknown = len(set(workers) - ranks.keys())
    if not notes and unknown and own_places and not worlds:
        notes = [_unknown_note(unknown)]  # the communicators are of parts of the job
    return Ranks(ranks, worlds, notes)


def _unknown_note(unknown: int) -> Note:
    reason = " (NCCL's communicators cover only parts of the job)"
    return counted_note("missing", RANK_UNKNOWN, rank_unknown(reason), unknown)


def without_clashes(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces of one job; remove ranks and world sizes of communicators of parts of it.

    It is of a part if two reports got the same rank, or if processes or ranks exceed its size.
    """
    reports = [trace for trace in traces if trace.source.format.startswith(_FORMATS)]
    ranks = Counter(rank for trace in reports for rank in trace.ranks if rank is not None)
    processes = sum(map(_worker_count, reports))
    clash = len(reports) > 1 and any(count > 1 for count in ranks.values())
    highest = max(ranks, default=0)
    kept = []
    for trace in traces:
        if not trace.source.format.startswith(_FORMATS):
            kept.append(trace)
            continue
        sizes = [size for size in trace.processes["world_size"].to_pylist() if size is not None]
        is_small = bool(sizes) and (min(sizes) < processes or min(sizes) <= highest)
        by_communicator = any(note.code == BY_COMMUNICATOR for note in trace.notes)
        report = trace
        if is_small or (clash and by_communicator):
            report = _without(report, "world_size")
        if by_communicator and (is_small or clash):  # its ranks are not those of the job, either
            unknown = _unknown_note(_worker_count(trace))
            notes = (
                replace(unknown, file=note.file) if note.code == BY_COMMUNICATOR else note
                for note in trace.notes
            )
            report = replace(_without(report, "rank"), notes=tuple(notes))
        kept.append(report)
    return kept


def _worker_count(trace: Trace) -> int:
    return len(distinct(numbers(trace.activities["process"])))


def _without(trace: Trace, column: str) -> Trace:
    """Return a trace with null in a column of the processes."""
    table = trace.processes
    unknown = pa.nulls(len(table), table.schema.field(column).type)
    changed = with_column(table, column, unknown)
    return replace(trace, tables={**trace.tables, "processes": changed})


_MOST: Final = 10_000
"""The most processes and devices that are distinguished; a report with more is damaged."""
_MOST_STREAMS: Final = 100_000
_NO_CONTEXT: Final = 0
"""Contexts count from 1."""
_UNKNOWN_DEVICE: Final = -1
_WITH_DEVICE: Final = ("activities", "marks", "counters")
_COLUMNS: Final = {
    "process": ("activities", "calls", "ops", "marks", "counters"),
    "device": _WITH_DEVICE,
    "stream": ("activities", "marks"),
}
"""The columns with preliminary numbers, and the tables that have each."""


def _by_rows(number: Callable[..., int], *columns: IntArray) -> IntArray:
    """Return `number(...)` of the values in each row of columns; call it once for equal rows."""
    group, first = group_rows(columns)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    return np.array([number(*row) for row in rows], np.int64)[group]


class ProcessRegistry(Struct):
    """The processes and devices of a report, by their preliminary numbers.

    A process's key is its id without the thread (`enums.processes_of`). `listed_ranks` are the
    ranks that the report lists, by key; `places` is the place of each process, by key, in the
    largest communicator that it made. `settle` sets `ranks` and how many streams were renumbered.
    """

    devices: Devices
    file: str
    host: str | None = None
    listed_ranks: Mapping[int, int] = field(default_factory=dict)
    rank_in_name: int | None = None
    places: dict[int, RankPlace] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Ranks)
    moved_streams: int = 0
    keys: dict[int, int] = field(default_factory=dict)
    """The preliminary numbers of processes by their keys."""
    _streams: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """The preliminary numbers of streams by device, context and own number."""
    _ordinals: dict[tuple[int, int], int] = field(default_factory=dict)
    """The preliminary numbers of devices by process and the number that the process has for it."""

    def processes(self, keys: IntArray) -> IntArray:
        """Return the preliminary numbers of processes by their keys; new keys get new numbers."""

        def number(key: int, _: int) -> int:
            is_full = len(self.keys) >= _MOST and key not in self.keys
            return self.keys.setdefault(ABSENT if is_full else key, len(self.keys))

        return by_distinct(keys, number)

    def have_rows(self, keys: IntArray) -> BoolArray:
        """Return which keys are of processes that already have rows."""
        return np.isin(keys, list(self.keys))

    def of_devices(self, ordinals: IntArray, processes: IntArray) -> IntArray:
        """Return the preliminary numbers of devices, given their ordinals in the processes."""

        def number(process: int, ordinal: int) -> int:
            key = process, ordinal if 0 <= ordinal < _MOST else _UNKNOWN_DEVICE
            if key not in self._ordinals and len(self._ordinals) >= _MOST:
                key = 0, _UNKNOWN_DEVICE  # one for all that are too many
            return self._ordinals.setdefault(key, len(self._ordinals))

        return _by_rows(number, processes, ordinals)

    def place(
        self, process: IntArray, ordinals: IntArray, contexts: IntArray, streams: IntArray
    ) -> dict[str, IntArray]:
        """Return device and stream; a stream is of a process and a context."""

        def number(device: int, context: int, stream: int) -> int:
            key = device, context, stream
            is_full = len(self._streams) >= _MOST_STREAMS and key not in self._streams
            if stream == ABSENT or is_full:
                return ABSENT
            return self._streams.setdefault(key, len(self._streams))

        is_context = (contexts > 0) & (contexts < (1 << 31))
        contexts = np.where(is_context, contexts, _NO_CONTEXT)
        device = self.of_devices(ordinals, process)
        return {"device": device, "stream": _by_rows(number, device, contexts, streams_of(streams))}

    def device_of_gpu(self, gpu: int) -> tuple[int, int] | None:
        """Return the first process, and its device, with rows on a GPU; None if there is none."""
        owners = self._owners
        for (process, ordinal), local in self._ordinals.items():
            if self.devices.gpu_of(pid_of(owners.get(process, ABSENT)), ordinal) == gpu:
                return process, local
        return None

    @property
    def _owners(self) -> dict[int, int]:
        """The key of each process; if there is only one, rows without one belong to it."""
        named = [key for key in self.keys if key != ABSENT]
        only = named[0] if len(named) == 1 else ABSENT
        return {local: only if key == ABSENT else key for key, local in self.keys.items()}

    def settle(self, builder: Gathered) -> None:
        """Write the final numbers of processes, devices and streams into the tables."""
        adopted = self._assign_ownerless_work(builder)
        owners = self._owners
        working: set[int] = set()
        for _, piece in builder["activities"].pieces:
            working |= set(distinct(np.atleast_1d(piece["process"])).tolist())
        keys = {owners[local] for local in working or owners}
        workers = sorted(keys - {ABSENT} or keys)  # ABSENT: work whose process is unknown
        self.ranks = settled(workers, self.listed_ranks, self.rank_in_name, self.places)
        processes = self._settled_processes(builder)
        users = {local: process for (process, _), local in self._ordinals.items()} | adopted
        owner = {local: processes.get(user, 0) for local, user in users.items()}
        devices = self._settled_devices(builder, users, owner)
        finals = (processes, devices, self._settled_streams(devices, owner))
        for (column, tables), final in zip(_COLUMNS.items(), finals, strict=True):
            number = _lookup(final)
            for piece in (piece for table in tables for _, piece in builder[table].pieces):
                if column in piece:
                    piece[column] = compact(number(np.atleast_1d(piece[column])))

    def _assign_ownerless_work(self, builder: Gathered) -> dict[int, int]:
        """Give rows without a process the only one that can have made them, in place.

        Exports of some versions leave the process of copies and fills empty. Return the process of
        each device of such rows, as preliminary numbers. Candidates have activities on a device of
        that ordinal or, if none has, on any: a launcher that only counts GPUs is no candidate.
        """
        nobody = self.keys.get(ABSENT)
        if nobody is None:
            return {}
        users: set[tuple[int, int]] = set()  # (process, device) pairs that have activities
        for count, piece in builder["activities"].pieces:
            pair = [np.broadcast_to(piece[name], count) for name in ("process", "device")]
            _, first = group_rows(pair)
            users |= set(zip(*(column[first].tolist() for column in pair), strict=True))
        by_ordinal: defaultdict[int, set[int]] = defaultdict(set)
        for (process, ordinal), local in self._ordinals.items():
            if process != nobody and (process, local) in users:
                by_ordinal[ordinal].add(process)
        workers = set().union(*by_ordinal.values())
        adopted = {}
        for (process, ordinal), local in self._ordinals.items():
            candidates = by_ordinal.get(ordinal) or workers
            if process == nobody and len(candidates) == 1:
                adopted[local] = next(iter(candidates))
        adopter_of = _lookup(adopted)
        pieces = [piece for table in _WITH_DEVICE for _, piece in builder[table].pieces]
        for piece in pieces if adopted else ():
            if "device" in piece:
                process_of_row = np.asarray(piece["process"])
                adopter = adopter_of(np.asarray(piece["device"]))
                is_adopted = (process_of_row == nobody) & (adopter != ABSENT)
                piece["process"] = compact(np.where(is_adopted, adopter, process_of_row))
        return adopted

    def _settled_processes(self, builder: Gathered) -> dict[int, int]:
        """Return the final number of each process; they are sorted by rank, then by key."""
        final: dict[int, int] = {}
        nobody, ranks = self.keys.get(ABSENT), self.ranks.ranks
        pieces = [piece for table in _COLUMNS["process"] for _, piece in builder[table].pieces]
        order = [
            (ranks.get(key, (2**62)), key == ABSENT, key, local)
            for local, key in self._owners.items()
        ]
        for _, is_nobody, key, local in sorted(order):
            has_rows = (bool(np.any(np.asarray(piece["process"]) == nobody)) for piece in pieces)
            if is_nobody and final and not any(has_rows):
                final[local] = 0  # all of its rows have found their process
            else:
                world = self.ranks.worlds.get(key)
                facts = ProcessFacts(self.file, ranks.get(key), world, self.host, pid_of(key))
                final[local] = builder.process(key, facts)
        return final

    def _settled_devices(
        self, builder: Gathered, users: Mapping[int, int], owner: Mapping[int, int]
    ) -> dict[int, int]:
        """Return the final number of each device.

        `users` and `owner` have its process, as preliminary and as final number. An unknown device
        is taken as the only one of its process, if there is only one.
        """
        keys = self._owners
        ordinals_of: defaultdict[int, set[int]] = defaultdict(set)
        for (_, ordinal), local in self._ordinals.items():
            ordinals_of[owner[local]] |= {ordinal} - {_UNKNOWN_DEVICE}
        order = []
        for (_, ordinal), local in self._ordinals.items():
            process = owner[local]
            if ordinal == _UNKNOWN_DEVICE and len(ordinals_of[process]) == 1:
                ordinal = next(iter(ordinals_of[process]))
            order.append((process, ordinal, keys.get(users[local], ABSENT), local))
        final = {}
        for process, ordinal, key, local in sorted(order):
            gpu = self.devices.gpu_of(pid_of(key), ordinal)
            facts = self.devices.facts_of(gpu, pid_of(key), ordinal)
            if gpu is None:
                final[local] = builder.device((process, ordinal), process, ordinal, facts)
            else:
                place = self.devices.places.get(gpu)
                final[local] = builder.device(("gpu", gpu), process, gpu, facts, place)
        return final

    def _settled_streams(
        self, devices: Mapping[int, int], owner: Mapping[int, int]
    ) -> dict[int, int]:
        """Return the final number of each stream, given final devices and their processes.

        Streams keep their own number, except those of a device with the same number in different
        contexts: these get other numbers, which are counted in `moved_streams`.
        """
        # Preliminary numbers, by (device, process), own number and context.
        same: defaultdict[tuple[int, int], defaultdict[int, defaultdict[int, list[int]]]]
        same = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        for (device, context, stream), local in self._streams.items():
            same[devices[device], owner[device]][stream][context].append(local)
        final: dict[int, int] = {}
        for by_stream in same.values():
            holders: dict[int, list[list[int]]] = {}
            for stream, by_context in by_stream.items():
                # Streams of an unknown context count for the first context.
                unknown = by_context.pop(_NO_CONTEXT, [])
                contexts = [by_context[context] for context in sorted(by_context)] or [[]]
                holders[stream] = [unknown + contexts[0], *contexts[1:]]
                self.moved_streams += len(contexts) - 1
            final |= apart(holders)
        return final


def _lookup(values: Mapping[int, int]) -> Lookup:
    return Lookup(*(np.array(list(side), np.int64) for side in (values, values.values())))

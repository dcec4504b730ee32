"""Which processes and devices the rows of a report belong to.

Rows get preliminary numbers when they are read. At the end, processes are sorted by rank and id,
and ordinals, the numbers that a process gives to the devices it sees, are resolved to GPUs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

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
Numbers: TypeAlias = Mapping[int, int]
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
    """A process's rank in a communicator, and the communicator's number of ranks and id."""

    ranks: int
    rank: int
    communicator: str | None = None


class Ranks(Struct, frozen=True):
    """The ranks of processes and the world sizes of their jobs, both by process key, and notes."""

    ranks: Mapping[int, int] = field(default_factory=dict)
    worlds: Mapping[int, int] = field(default_factory=dict)
    notes: Sequence[Note] = ()


def settled(
    workers: Sequence[int], listed: Numbers, in_name: int | None, places: Mapping[int, RankPlace]
) -> Ranks:
    """Return the ranks of the processes with GPU work (`workers`, their keys).

    The first source that knows any counts: `listed`, ranks that the report lists by key; `in_name`,
    the rank in the file's name; `places`, the processes' ranks in NCCL communicators, by key.
    """
    own_places = {key: places[key] for key in workers if key in places}
    # The world size is the size of the communicator if all workers can be in a single one.
    size = None
    sizes = {place.ranks for place in own_places.values()}
    ids = {place.communicator for place in own_places.values()} - {None}
    ranks_differ = len({place.rank for place in own_places.values()}) == len(own_places)
    if len(sizes) == 1 and len(ids) < 2 and ranks_differ and min(sizes) >= len(workers):
        size = min(sizes)
    ranks = {key: listed[key] for key in workers if key in listed}
    notes: list[Note] = []
    if not ranks and in_name is not None and len(workers) == 1:
        ranks = {workers[0]: in_name}
        notes = [rank_from_name([in_name])]
        place = own_places.get(workers[0])
        # A communicator too small for `in_name` covers a part of the job: no contradiction.
        if place is not None and place.rank != in_name < place.ranks:
            in_words = several(place.ranks, "rank")
            notes.append(_NOTES.note("rank-disputed", 1, ranks=in_words, rank=place.rank))
    elif not ranks and size is not None:
        ranks = {key: place.rank for key, place in own_places.items()}
        notes = [_NOTES.note(BY_COMMUNICATOR, len(ranks), ranks=several(size, "rank"))]
    # A communicator whose ranks differ from these is not that of the whole job.
    agree = all(ranks.get(key) == place.rank for key, place in own_places.items())
    worlds = dict.fromkeys(own_places, size) if size is not None and agree else {}
    unknown = len(set(workers) - ranks.keys())
    if not notes and unknown and own_places and not worlds:
        notes = [_unknown_note(unknown)]
    return Ranks(ranks, worlds, notes)


def _unknown_note(process_count: int) -> Note:
    reason = " (NCCL's communicators cover only parts of the job)"
    return counted_note("missing", RANK_UNKNOWN, rank_unknown(reason), process_count)


def without_clashes(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces of a job without ranks and world sizes that were wrongly assumed.

    They come from a communicator. It covers only a part of the job if two reports got the same
    rank, or if it is smaller than the number of processes or the highest rank.
    """
    reports = [trace for trace in traces if trace.source.format.startswith(_FORMATS)]
    rank_counts = Counter(rank for trace in reports for rank in trace.ranks if rank is not None)
    processes = sum(map(_worker_count, reports))
    ranks_clash = len(reports) > 1 and any(count > 1 for count in rank_counts.values())
    highest_rank = max(rank_counts, default=0)
    kept = []
    for trace in traces:
        report = trace
        if trace.source.format.startswith(_FORMATS):
            sizes = [size for size in trace.processes["world_size"].to_pylist() if size is not None]
            is_small = bool(sizes) and (min(sizes) < processes or min(sizes) <= highest_rank)
            by_communicator = any(note.code == BY_COMMUNICATOR for note in trace.notes)
            are_ranks_wrong = by_communicator and (is_small or ranks_clash)
            if is_small or are_ranks_wrong:
                report = _without(report, "world_size")
            if are_ranks_wrong:
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
    """Return a trace with nulls in a column of the processes."""
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
    """Return `number(...)` of each row's values, called only once for equal rows."""
    group, first_row = group_rows(columns)
    rows = zip(*(column[first_row].tolist() for column in columns), strict=True)
    return np.array([number(*row) for row in rows], np.int64)[group]


class ProcessRegistry(Struct):
    """The processes, devices and streams of a report, and their preliminary numbers.

    A process's key is its id without the thread (`enums.processes_of`). By key, `listed_ranks` has
    the ranks that the report lists, and `places` the process's rank in the largest communicator
    that it made. `settle` sets `ranks`, and `moved_streams`: how many streams were renumbered.
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
    """The preliminary numbers of devices by (process, ordinal)."""

    def processes(self, keys: IntArray) -> IntArray:
        """Return the preliminary numbers of processes with these keys; new keys get new numbers."""

        def number(key: int, _: int) -> int:
            is_full = len(self.keys) >= _MOST and key not in self.keys
            return self.keys.setdefault(ABSENT if is_full else key, len(self.keys))

        return by_distinct(keys, number)

    def have_rows(self, keys: IntArray) -> BoolArray:
        """Return which keys are of processes that already have rows."""
        return np.isin(keys, list(self.keys))

    def of_devices(self, ordinals: IntArray, processes: IntArray) -> IntArray:
        """Return the preliminary numbers of the devices with these ordinals in these processes."""

        def number(process: int, ordinal: int) -> int:
            key = process, ordinal if 0 <= ordinal < _MOST else _UNKNOWN_DEVICE
            if key not in self._ordinals and len(self._ordinals) >= _MOST:
                key = 0, _UNKNOWN_DEVICE  # all further devices share a number
            return self._ordinals.setdefault(key, len(self._ordinals))

        return _by_rows(number, processes, ordinals)

    def place(
        self, process: IntArray, ordinals: IntArray, contexts: IntArray, streams: IntArray
    ) -> dict[str, IntArray]:
        """Return the columns `device` and `stream` of rows: preliminary numbers of both."""

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
        """Return the first process with rows on a GPU, and its device there; None without any."""
        owners = self._owners
        for (process, ordinal), device in self._ordinals.items():
            if self.devices.gpu_of(pid_of(owners.get(process, ABSENT)), ordinal) == gpu:
                return process, device
        return None

    @property
    def _owners(self) -> dict[int, int]:
        """The key of each process; if only one has a key, rows without a process are its, too."""
        known = [key for key in self.keys if key != ABSENT]
        only = known[0] if len(known) == 1 else ABSENT
        return {process: only if key == ABSENT else key for key, process in self.keys.items()}

    def settle(self, builder: Gathered) -> None:
        """Replace the preliminary numbers of processes, devices and streams by the final ones."""
        adopted = self._assign_ownerless_work(builder)
        # Ranks, of the processes that have activities (or of all if none has).
        owners = self._owners
        active: set[int] = set()
        for _, piece in builder["activities"].pieces:
            active |= set(distinct(np.atleast_1d(piece["process"])).tolist())
        keys = {owners[process] for process in active or owners}
        workers = sorted(keys - {ABSENT} or keys)  # ABSENT: work whose process is unknown
        self.ranks = settled(workers, self.listed_ranks, self.rank_in_name, self.places)
        # Final numbers by preliminary ones.
        processes = self._settled_processes(builder)
        user_of = {device: process for (process, _), device in self._ordinals.items()} | adopted
        process_of = {device: processes.get(user, 0) for device, user in user_of.items()}
        devices = self._settled_devices(builder, user_of, process_of)
        finals = (processes, devices, self._settled_streams(devices, process_of))
        for (column, tables), final in zip(_COLUMNS.items(), finals, strict=True):
            final_number = _lookup(final)
            for piece in (piece for table in tables for _, piece in builder[table].pieces):
                if column in piece:
                    piece[column] = compact(final_number(np.atleast_1d(piece[column])))

    def _assign_ownerless_work(self, builder: Gathered) -> dict[int, int]:
        """Give rows without a process to the only process that can have made them, in place.

        Some versions export copies and fills without their process. The candidates are the
        processes with activities on a device of the same ordinal or, if there are none, on any
        device. Return the new process of each device of such rows, both as preliminary numbers.
        """
        ownerless = self.keys.get(ABSENT)
        if ownerless is None:
            return {}
        # Find the processes with activities on a device of each ordinal.
        users: set[tuple[int, int]] = set()  # (process, device)
        for count, piece in builder["activities"].pieces:
            pair = [np.broadcast_to(piece[name], count) for name in ("process", "device")]
            _, first_row = group_rows(pair)
            users |= set(zip(*(column[first_row].tolist() for column in pair), strict=True))
        users_of_ordinal: defaultdict[int, set[int]] = defaultdict(set)
        for (process, ordinal), device in self._ordinals.items():
            if process != ownerless and (process, device) in users:
                users_of_ordinal[ordinal].add(process)
        all_users = set().union(*users_of_ordinal.values())
        # Adopt the devices that only one of them can have used, and their rows.
        adopted = {}
        for (process, ordinal), device in self._ordinals.items():
            candidates = users_of_ordinal.get(ordinal) or all_users
            if process == ownerless and len(candidates) == 1:
                adopted[device] = next(iter(candidates))
        adopter_of = _lookup(adopted)
        pieces = [piece for table in _WITH_DEVICE for _, piece in builder[table].pieces]
        for piece in pieces if adopted else ():
            if "device" in piece:
                process_of_row = np.asarray(piece["process"])
                adopter = adopter_of(np.asarray(piece["device"]))
                is_adopted = (process_of_row == ownerless) & (adopter != ABSENT)
                piece["process"] = compact(np.where(is_adopted, adopter, process_of_row))
        return adopted

    def _settled_processes(self, builder: Gathered) -> dict[int, int]:
        """Return the final number of each process: by rank, then by key for those without one."""
        final: dict[int, int] = {}
        ownerless, ranks = self.keys.get(ABSENT), self.ranks.ranks
        pieces = [piece for table in _COLUMNS["process"] for _, piece in builder[table].pieces]
        order = [
            (ranks.get(key, 2**62), key == ABSENT, key, process)
            for process, key in self._owners.items()
        ]
        for _, is_unknown, key, process in sorted(order):
            has_rows = (bool(np.any(np.asarray(piece["process"]) == ownerless)) for piece in pieces)
            if is_unknown and final and not any(has_rows):
                final[process] = 0  # unused: all of its rows were given to other processes
            else:
                world = self.ranks.worlds.get(key)
                facts = ProcessFacts(self.file, ranks.get(key), world, self.host, pid_of(key))
                final[process] = builder.process(key, facts)
        return final

    def _settled_devices(
        self, builder: Gathered, user_of: Numbers, process_of: Numbers
    ) -> dict[int, int]:
        """Return the final number of each device by its preliminary one.

        `user_of` and `process_of` have the preliminary and the final number of its process. An
        unknown device counts as the only one of its process if the process has only one.
        """
        keys = self._owners
        ordinals_of: defaultdict[int, set[int]] = defaultdict(set)
        for (_, ordinal), device in self._ordinals.items():
            ordinals_of[process_of[device]] |= {ordinal} - {_UNKNOWN_DEVICE}
        order = []
        for (_, own_ordinal), device in self._ordinals.items():
            process, ordinal = process_of[device], own_ordinal
            if ordinal == _UNKNOWN_DEVICE and len(ordinals_of[process]) == 1:
                ordinal = next(iter(ordinals_of[process]))
            order.append((process, ordinal, keys.get(user_of[device], ABSENT), device))
        final = {}
        for process, ordinal, key, device in sorted(order):
            gpu = self.devices.gpu_of(pid_of(key), ordinal)
            facts = self.devices.facts_of(gpu, pid_of(key), ordinal)
            if gpu is None:
                final[device] = builder.device((process, ordinal), process, ordinal, facts)
            else:
                place = self.devices.places.get(gpu)
                final[device] = builder.device(("gpu", gpu), process, gpu, facts, place)
        return final

    def _settled_streams(self, devices: Numbers, process_of: Numbers) -> dict[int, int]:
        """Return the final number of each stream by its preliminary one.

        `devices` and `process_of` have the final numbers of a device and of its process. A stream
        keeps its own number; if several contexts of a device use it, only the first one keeps it,
        and `moved_streams` counts the others.
        """
        # Preliminary numbers by (device, process), then by own number, then by context.
        groups: defaultdict[tuple[int, int], defaultdict[int, defaultdict[int, list[int]]]]
        groups = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        for (device, context, number), stream in self._streams.items():
            groups[devices[device], process_of[device]][number][context].append(stream)
        final: dict[int, int] = {}
        for by_number in groups.values():
            holders: dict[int, list[list[int]]] = {}  # by own number: the streams of each context
            for number, by_context in by_number.items():
                # Streams of an unknown context count for the first context.
                unknown = by_context.pop(_NO_CONTEXT, [])
                contexts = [by_context[context] for context in sorted(by_context)] or [[]]
                holders[number] = [unknown + contexts[0], *contexts[1:]]
                self.moved_streams += len(contexts) - 1
            final |= apart(holders)
        return final


def _lookup(values: Mapping[int, int]) -> Lookup:
    return Lookup(*(np.array(list(side), np.int64) for side in (values, values.values())))

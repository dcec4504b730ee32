"""Which processes and devices the rows of a report belong to.

Rows get numbers as they come. When all are read, the processes are put in order of their ranks and
ids, and the numbers that processes have for their devices are resolved to the devices themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.devices import apart
from traceflops.parsers.io import Lookup, by_distinct
from traceflops.parsers.nsight.nsys.enums import pid_of, streams_of
from traceflops.parsers.nsight.nsys.facts import Devices
from traceflops.parsers.nsight.nsys.ranks import RankPlace, Ranks, settled
from traceflops.parsers.shared import Gathered, ProcessFacts
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    TableBuilder,
    compact,
    distinct,
    group_rows,
)

_MOST: Final = 10_000
"""So many processes and devices are told apart; a report with more has invented them."""
_MOST_STREAMS: Final = 100_000
_MOST_CONTEXTS: Final = 1 << 31
_NO_CONTEXT: Final = 0
"""Contexts count from 1."""
_NO_RANK: Final = 2**62
_UNKNOWN_DEVICE: Final = -1
_WITH_DEVICE: Final = ("activities", "marks", "counters")
_COLUMNS: Final = {
    "process": ("activities", "calls", "ops", "marks", "counters"),
    "device": _WITH_DEVICE,
    "stream": ("activities", "marks"),
}
"""The columns with numbers that rows have until the end, and the tables that have each."""


@dataclass(slots=True)
class Streams:
    """The streams of a report, by the numbers that rows have until the end.

    A stream's own number stands for one stream within a process and a context only: of two contexts
    of a process that share a GPU and a number, the later one gets a number of its own.
    """

    _known: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def numbers(self, devices: IntArray, contexts: IntArray, streams: IntArray) -> IntArray:
        """Return the numbers of streams until the end; absent where there is no stream."""
        is_context = (contexts > 0) & (contexts < _MOST_CONTEXTS)
        contexts = np.where(is_context, contexts, _NO_CONTEXT)
        return _by_rows(self._number, devices, contexts, streams_of(streams))

    def _number(self, device: int, context: int, stream: int) -> int:
        key = device, context, stream
        if stream == ABSENT or (key not in self._known and len(self._known) >= _MOST_STREAMS):
            return ABSENT
        return self._known.setdefault(key, len(self._known))

    def settled(self, owners: Mapping[int, tuple[int, int]]) -> tuple[dict[int, int], int]:
        """Return the final number of each stream, and how many have one that is not their own.

        `owners` are the final device and process of each device that rows have.
        """
        alike: defaultdict[tuple[int, int], defaultdict[int, list[tuple[int, int]]]]
        alike = defaultdict(lambda: defaultdict(list))
        for (device, context, stream), local in self._known.items():
            alike[owners[device]][stream].append((context, local))
        final: dict[int, int] = {}
        moved = 0
        for by_number in alike.values():
            holders = {number: _of_contexts(streams) for number, streams in by_number.items()}
            final |= apart(holders)
            moved += sum(len(streams) - 1 for streams in holders.values())
        return final, moved


def _of_contexts(streams: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return streams by context; those of an unknown context are of the first of them."""
    by_context: defaultdict[int, list[int]] = defaultdict(list)
    for context, local in streams:
        by_context[context].append(local)
    unknown = by_context.pop(_NO_CONTEXT, [])
    first, *others = [by_context[context] for context in sorted(by_context)] or [[]]
    return [unknown + first, *others]


def _by_rows(number: Callable[..., int], *columns: IntArray) -> IntArray:
    """Return what a function gives for each row of columns, asked once for equal ones."""
    group, first = group_rows(columns)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    return np.array([number(*row) for row in rows], dtype=np.int64)[group]


@dataclass(slots=True)
class People:
    """The processes and devices of a report, by the numbers that rows have until the end.

    `told_ranks` are those that the report itself lists, `places` those of processes in the largest
    communicator of each. `ranks` are what they make of the processes with work on a device, known
    at the end only. So is how many streams were `moved`: given another number.
    """

    devices: Devices
    file: str
    host: str | None = None
    told_ranks: Mapping[int, int] = field(default_factory=dict)
    rank_in_name: int | None = None
    places: dict[int, RankPlace] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Ranks)
    moved_streams: int = 0
    keys: dict[int, int] = field(default_factory=dict)
    """The numbers of processes by their keys."""
    _streams: Streams = field(default_factory=Streams)
    _ordinals: dict[tuple[int, int], int] = field(default_factory=dict)

    def processes(self, keys: IntArray) -> IntArray:
        """Return the numbers of processes by their keys."""
        return by_distinct(keys, lambda key, _: self._process(key))

    def known(self, keys: IntArray) -> BoolArray:
        """Return which keys are of processes that have rows already."""
        return np.isin(keys, list(self.keys))

    def of_devices(self, ordinals: IntArray, processes: IntArray) -> IntArray:
        """Return the numbers of devices by the numbers that processes have for them."""
        return _by_rows(self._device, processes, ordinals)

    def place(
        self, process: IntArray, ordinals: IntArray, contexts: IntArray, streams: IntArray
    ) -> dict[str, IntArray]:
        """Return the columns that say where rows of processes ran: device and stream."""
        device = self.of_devices(ordinals, process)
        return {"device": device, "stream": self._streams.numbers(device, contexts, streams)}

    def device_of_gpu(self, gpu: int) -> tuple[int, int] | None:
        """Return process and device, by their numbers, of rows that are of a GPU, if there are."""
        owners = self._owners
        for (process, ordinal), local in self._ordinals.items():
            if self._gpu(owners.get(process, ABSENT), ordinal) == gpu:
                return process, local
        return None

    def settle(self, gathered: Gathered) -> None:
        """Write the final numbers of processes, devices and streams into the tables."""
        adopted = _adopted(gathered, self.keys.get(ABSENT), self._ordinals)
        workers = self._workers(gathered)
        self.ranks = settled(workers, self.told_ranks, self.rank_in_name, self.places)
        users = {
            local: adopted.get(local, process) for (process, _), local in self._ordinals.items()
        }
        processes = self._settled_processes(gathered)
        owner = {local: processes.get(user, 0) for local, user in users.items()}
        devices = self._settled_devices(gathered, users, owner)
        places = {local: (devices[local], process) for local, process in owner.items()}
        streams, self.moved_streams = self._streams.settled(places)
        for (column, tables), final in zip(
            _COLUMNS.items(), (processes, devices, streams), strict=True
        ):
            for table in tables:
                _renumber(gathered[table], column, final)

    def _process(self, key: int) -> int:
        known = key in self.keys or len(self.keys) < _MOST
        return self.keys.setdefault(key if known else ABSENT, len(self.keys))

    def _device(self, process: int, ordinal: int) -> int:
        key = process, ordinal if 0 <= ordinal < _MOST else _UNKNOWN_DEVICE
        if key not in self._ordinals and len(self._ordinals) >= _MOST:
            key = 0, _UNKNOWN_DEVICE
        return self._ordinals.setdefault(key, len(self._ordinals))

    @property
    def _owners(self) -> dict[int, int]:
        """Return the key of each process by its number.

        Rows that do not say whose they are belong to the only process there is.
        """
        named = [key for key in self.keys if key != ABSENT]
        only = named[0] if len(named) == 1 else ABSENT
        return {local: only if key == ABSENT else key for key, local in self.keys.items()}

    def _gpu(self, key: int, ordinal: int) -> int | None:
        """Return the GPU that a process means by a number, if that is said."""
        return self.devices.gpu_of(pid_of(key), ordinal)

    def _workers(self, gathered: Gathered) -> tuple[int, ...]:
        """Return the processes with work on a device; all of them where there is no such work."""
        owners = self._owners
        working: set[int] = set()
        for _, piece in gathered["activities"].pieces:
            working |= set(distinct(np.atleast_1d(piece["process"])).tolist())
        keys = {owners[local] for local in working or owners}
        return tuple(sorted(keys - {ABSENT} or keys))

    def _settled_processes(self, gathered: Gathered) -> dict[int, int]:
        """Return the final number of each process; the order is that of ranks, then of ids."""
        final: dict[int, int] = {}
        nobody, ranks = self.keys.get(ABSENT), self.ranks.ranks
        owners = [
            (ranks.get(key, _NO_RANK), key == ABSENT, key, local)
            for local, key in self._owners.items()
        ]
        for _, is_nobody, key, local in sorted(owners):
            if is_nobody and final and not _has_rows(gathered, nobody):
                final[local] = 0  # all of its rows have found their process
            else:
                world = self.ranks.worlds.get(key)
                facts = ProcessFacts(self.file, ranks.get(key), world, self.host, pid_of(key))
                final[local] = gathered.process(key, facts)
        return final

    def _settled_devices(
        self, gathered: Gathered, users: Mapping[int, int], owner: Mapping[int, int]
    ) -> dict[int, int]:
        """Return the final number of each device; by it, `users` and `owner` are its process.

        Rows that do not name their device belong to the only one of their process.
        """
        keys = self._owners
        known: defaultdict[int, set[int]] = defaultdict(set)
        for (_, ordinal), local in self._ordinals.items():
            known[owner[local]] |= {ordinal} - {_UNKNOWN_DEVICE}
        places = []
        for (_, ordinal), local in self._ordinals.items():
            process = owner[local]
            if ordinal == _UNKNOWN_DEVICE and len(known[process]) == 1:
                ordinal = next(iter(known[process]))
            places.append((process, ordinal, keys.get(users[local], ABSENT), local))
        final = {}
        for process, ordinal, key, local in sorted(places):
            gpu = self._gpu(key, ordinal)
            facts = self.devices.facts_of(gpu, pid_of(key), ordinal)
            if gpu is None:
                final[local] = gathered.device((process, ordinal), process, ordinal, facts)
            else:
                place = self.devices.places.get(gpu)
                final[local] = gathered.device(("gpu", gpu), process, gpu, facts, place)
        return final


def _has_rows(gathered: Gathered, process: int | None) -> bool:
    """Return whether any row is still of a process."""
    return any(
        bool((np.asarray(piece["process"]) == process).any())
        for name in _COLUMNS["process"]
        for _, piece in gathered[name].pieces
    )


def _renumber(table: TableBuilder, column: str, final: Mapping[int, int]) -> None:
    """Replace numbers by others; a number that is none stays so."""
    new = _lookup(final)
    for _, piece in table.pieces:
        if column in piece:
            piece[column] = compact(new(np.atleast_1d(piece[column])))


def _lookup(values: Mapping[int, int]) -> Lookup:
    return Lookup(*(np.array(list(side), np.int64) for side in (values, values.values())))


def _adopted(
    gathered: Gathered, nobody: int | None, ordinals: Mapping[tuple[int, int], int]
) -> dict[int, int]:
    """Return the process of the devices that rows of no process have, where it can be but one.

    Exports of some versions leave the process of copies and fills empty: these rows become rows of
    the only process that can have made them, which is none that only calls, as a launcher that asks
    how many GPUs there are. `ordinals` are the devices by process and by the number that the
    process has for them; `nobody` stands for the process of rows that do not name it.
    """
    if nobody is None:
        return {}
    users = _users(gathered)
    by_ordinal: defaultdict[int, set[int]] = defaultdict(set)
    for (process, ordinal), local in ordinals.items():
        if process != nobody and (process, local) in users:
            by_ordinal[ordinal].add(process)
    workers = set().union(*by_ordinal.values())
    adopted = {}
    for (process, ordinal), local in ordinals.items():
        can_be = by_ordinal.get(ordinal) or workers
        if process == nobody and len(can_be) == 1:
            adopted[local] = next(iter(can_be))
    _rewrite(gathered, nobody, adopted)
    return adopted


def _users(gathered: Gathered) -> set[tuple[int, int]]:
    """Return the processes with the devices on which each did work."""
    users: set[tuple[int, int]] = set()
    for count, piece in gathered["activities"].pieces:
        pair = [np.broadcast_to(piece[name], count) for name in ("process", "device")]
        _, first = group_rows(pair)
        users |= set(zip(*(column[first].tolist() for column in pair), strict=True))
    return users


def _rewrite(gathered: Gathered, nobody: int, adopted: Mapping[int, int]) -> None:
    """Write processes into the rows of nobody, by their devices."""
    owner = _lookup(adopted)
    for name in _WITH_DEVICE if adopted else ():
        for _, piece in gathered[name].pieces:
            if "device" in piece:
                process, adopter = np.asarray(piece["process"]), owner(np.asarray(piece["device"]))
                is_found = (process == nobody) & (adopter != ABSENT)
                piece["process"] = compact(np.where(is_found, adopter, process))

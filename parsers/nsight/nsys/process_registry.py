"""Which processes and devices the rows of a report belong to.

Rows get numbers as they come. When all are read, the processes are put in order of their ranks and
ids, and the numbers that processes have for their devices are resolved to the devices themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from traceflops.devices import apart
from traceflops.parsers.io import by_distinct
from traceflops.parsers.nsight.nsys.devices import Devices
from traceflops.parsers.nsight.nsys.enums import pid_of, streams_of
from traceflops.parsers.nsight.nsys.ranks import RankPlace, Ranks, settled
from traceflops.parsers.shared import Gathered, ProcessFacts
from traceflops.table import ABSENT, IntArray, TableBuilder, compact, distinct, joint_codes

# The streams of a report: a number stands for one stream within a process and a context only.
#
# Two contexts of a process that share a GPU and a number are told apart by giving the later one a
# number of its own; the streams of several processes are told apart for all formats alike (see
# `traceflops.sharedgpus`).


_STREAMS_MOST: Final = 100_000
"""So many streams are told apart; a report with more has invented them."""


_NO_CONTEXT: Final = 0
"""Contexts count from 1."""


_STREAM_BITS: Final = 32


_STREAM: Final = (1 << _STREAM_BITS) - 1


_MOST_CONTEXTS: Final = 1 << 31


Key = tuple[int, int, int]
"""A device by the number that rows have for it, a context and the number of a stream there."""


@dataclass(slots=True)
class Streams:
    """The streams of a report, by the numbers that rows have until the end."""

    _known: dict[Key, int] = field(default_factory=dict)

    def numbers(self, devices: IntArray, contexts: IntArray, streams: IntArray) -> IntArray:
        """Return the numbers of streams until the end; absent where there is no stream."""
        own = streams_of(streams)
        context = np.where((contexts > 0) & (contexts < _MOST_CONTEXTS), contexts, _NO_CONTEXT)
        keys = np.where(own == ABSENT, ABSENT, (context << _STREAM_BITS) | own)
        if not len(keys) or (devices == devices[0]).all():
            return by_distinct(keys, partial(self._number, int(devices[0]) if len(keys) else 0))
        found = np.empty(len(keys), dtype=np.int64)
        for device in np.unique(devices).tolist():
            mine = devices == device
            found[mine] = by_distinct(keys[mine], partial(self._number, device))
        return found

    def _number(self, device: int, key: int, _: int) -> int:
        if key == ABSENT:
            return ABSENT
        known = device, key >> _STREAM_BITS, key & _STREAM
        if known not in self._known and len(self._known) >= _STREAMS_MOST:
            return ABSENT
        return self._known.setdefault(known, len(self._known))

    def settled(self, owners: Mapping[int, tuple[int, int]]) -> tuple[dict[int, int], int]:
        """Return the final number of each stream, and how many have one that is not their own.

        `owners` are the final device and process of each device that rows have.
        """
        alike: defaultdict[tuple[int, int], defaultdict[int, dict[int, list[int]]]]
        alike = defaultdict(lambda: defaultdict(dict))
        for (device, context, stream), local in self._known.items():
            alike[owners[device]][stream].setdefault(context, []).append(local)
        found: dict[int, int] = {}
        moved = 0
        for by_number in alike.values():
            holders = {number: _of_contexts(locals_) for number, locals_ in by_number.items()}
            found |= apart(holders)
            moved += sum(len(streams) - 1 for streams in holders.values())
        return found, moved


def _of_contexts(holders: Mapping[int, list[int]]) -> list[list[int]]:
    """Return the streams by context; one of an unknown context is the first of them."""
    found: list[list[int]] = []
    unknown_first = False
    for context, locals_ in sorted(holders.items()):
        if unknown_first:
            found[-1] += locals_
        else:
            found.append(list(locals_))
        unknown_first = context == _NO_CONTEXT
    return found


_MOST: Final = 10_000
"""So many processes and devices are told apart; a report with more has invented them."""
_NO_RANK: Final = 2**62
_UNKNOWN_DEVICE: Final = -1
_TABLES: Final = ("activities", "calls", "ops", "marks", "counters")
_WITH_DEVICE: Final = ("activities", "marks", "counters")
_WITH_STREAM: Final = ("activities", "marks")


@dataclass(slots=True)
class People:
    """The processes and devices of a report, by the numbers that rows have until the end.

    `told_ranks` are those that the report itself lists, `places` those of processes in the largest
    communicator of each. `ranks` are what they make, of `workers`, the processes that did work on a
    device; both are known at the end, as is how many streams were `moved`: given another number.
    """

    devices: Devices
    file: str
    host: str | None = None
    told_ranks: Mapping[int, int] = field(default_factory=dict)
    places: dict[int, RankPlace] = field(default_factory=dict)
    rank_in_name: int | None = None
    ranks: Ranks = field(default_factory=Ranks)
    workers: tuple[int, ...] = ()
    moved_streams: int = 0
    _adopted: Mapping[int, int] = field(default_factory=dict)
    _streams: Streams = field(default_factory=Streams)
    _processes: dict[int, int] = field(default_factory=dict)
    _ordinals: dict[tuple[int, int], int] = field(default_factory=dict)

    def processes(self, keys: IntArray) -> IntArray:
        """Return the numbers of processes by their keys."""
        return by_distinct(keys, lambda key, _: self._process(key))

    def known(self, keys: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which keys are of processes that have rows already."""
        return by_distinct(keys, lambda key, _: int(key in self._processes)).astype(np.bool_)

    def of_devices(self, ordinals: IntArray, processes: IntArray) -> IntArray:
        """Return the numbers of devices by the numbers that processes have for them."""
        if not len(ordinals):
            return np.empty(0, dtype=np.int64)
        found = np.empty(len(ordinals), dtype=np.int64)
        for process in np.unique(processes).tolist():
            mine = processes == process
            found[mine] = by_distinct(ordinals[mine], partial(self._device, process))
        return found

    def place(
        self, process: IntArray, ordinals: IntArray, contexts: IntArray, streams: IntArray
    ) -> dict[str, IntArray]:
        """Return the columns that say where rows of processes ran: device and stream."""
        device = self.of_devices(ordinals, process)
        return {"device": device, "stream": self._streams.numbers(device, contexts, streams)}

    def device_of_gpu(self, gpu: int) -> tuple[int, int] | None:
        """Return process and device, by their numbers, of rows that are of a GPU, if there are."""
        keys = self._owners
        for (process, ordinal), local in self._ordinals.items():
            if self._gpu(keys.get(process, ABSENT), ordinal) == gpu:
                return process, local
        return None

    @property
    def keys(self) -> dict[int, int]:
        """Return the numbers of processes by their keys."""
        return self._processes

    def settle(self, gathered: Gathered) -> None:
        """Write the final numbers of processes, devices and streams into the tables."""
        self._adopted = adopted(gathered, self._processes.get(ABSENT), self._ordinals)
        self.workers = self._workers(gathered)
        self.ranks = settled(self.workers, self.told_ranks, self.rank_in_name, self.places)
        final = self._settled_processes(gathered)
        devices = self._settled_devices(gathered, final)
        owners = {
            local: (devices[local], final.get(self._adopted.get(local, process), 0))
            for (process, _), local in self._ordinals.items()
        }
        streams, self.moved_streams = self._streams.settled(owners)
        for name in _TABLES:
            _renumber(gathered[name], "process", final)
        for name in _WITH_DEVICE:
            _renumber(gathered[name], "device", devices)
        for name in _WITH_STREAM:
            _renumber(gathered[name], "stream", streams)

    def _process(self, key: int) -> int:
        known = key in self._processes or len(self._processes) < _MOST
        return self._processes.setdefault(key if known else ABSENT, len(self._processes))

    def _device(self, process: int, ordinal: int, _: int) -> int:
        ordinal = ordinal if 0 <= ordinal < _MOST else _UNKNOWN_DEVICE
        key = process, ordinal
        if key not in self._ordinals and len(self._ordinals) >= _MOST:
            key = 0, _UNKNOWN_DEVICE
        return self._ordinals.setdefault(key, len(self._ordinals))

    @property
    def _owners(self) -> dict[int, int]:
        """Return the key of each process by its number.

        Rows that do not say whose they are belong to the only process there is.
        """
        named = [key for key in self._processes if key != ABSENT]
        only = named[0] if len(named) == 1 else ABSENT
        return {local: only if key == ABSENT else key for key, local in self._processes.items()}

    def _gpu(self, key: int, ordinal: int) -> int | None:
        """Return the GPU that a process means by a number, if that is said."""
        return self.devices.gpu_of(pid_of(key) if key != ABSENT else None, ordinal)

    def _workers(self, gathered: Gathered) -> tuple[int, ...]:
        """Return the processes with work on a device; all of them where there is no such work."""
        owners = self._owners
        found: dict[int, None] = {}
        for _, piece in gathered["activities"].pieces:
            found |= dict.fromkeys(distinct(np.atleast_1d(piece["process"])).tolist())
        keys = {owners[local] for local in found or owners}
        return tuple(sorted(keys - {ABSENT} or keys))

    def _settled_processes(self, gathered: Gathered) -> dict[int, int]:
        """Return the final number of each process; the order is that of ranks, then of ids."""
        final: dict[int, int] = {}
        nobody = self._processes.get(ABSENT)
        for local, key in sorted(self._owners.items(), key=lambda one: self._order(one[1])):
            if key == ABSENT and final and not _has_rows(gathered, nobody):
                final[local] = 0  # all of its rows have found their process
            else:
                final[local] = gathered.process(key, self._facts(key))
        return final

    def _order(self, key: int) -> tuple[int, bool, int]:
        return self.ranks.ranks.get(key, _NO_RANK), key == ABSENT, key

    def _facts(self, key: int) -> ProcessFacts:
        return ProcessFacts(
            self.file,
            rank=self.ranks.ranks.get(key),
            world_size=self.ranks.worlds.get(key),
            host=self.host,
            pid=None if key == ABSENT else pid_of(key),
        )

    def _settled_devices(self, gathered: Gathered, owner: Mapping[int, int]) -> dict[int, int]:
        keys, alone = self._owners, self._only_ordinals(owner)
        places = {
            local: (
                owner.get(process, 0),
                alone.get(owner.get(process, 0), ordinal) if ordinal < 0 else ordinal,
                keys.get(process, ABSENT),
            )
            for process, ordinal, local in self._used
        }
        final = {}
        for local, (process, ordinal, key) in sorted(places.items(), key=lambda one: one[1]):
            gpu = self._gpu(key, ordinal)
            facts = self.devices.facts_of(gpu, pid_of(key) if key != ABSENT else None, ordinal)
            identity = ("gpu", gpu) if gpu is not None else (process, ordinal)
            final[local] = gathered.device(
                identity,
                process,
                ordinal if gpu is None else gpu,
                facts,
                self.devices.places.get(gpu) if gpu is not None else None,
            )
        return final

    @property
    def _used(self) -> list[tuple[int, int, int]]:
        """Return the process, the ordinal and the number of each device that rows have."""
        return [
            (self._adopted.get(local, process), ordinal, local)
            for (process, ordinal), local in self._ordinals.items()
        ]

    def _only_ordinals(self, owner: Mapping[int, int]) -> dict[int, int]:
        """Return the number of the only device of each process that has one alone."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for process, ordinal, _ in self._used:
            if ordinal != _UNKNOWN_DEVICE:
                found[owner.get(process, 0)].add(ordinal)
        return {process: next(iter(known)) for process, known in found.items() if len(known) == 1}


def _has_rows(gathered: Gathered, process: int | None) -> bool:
    """Return whether any row is still of a process."""
    return any(
        bool((np.asarray(piece["process"]) == process).any())
        for name in _TABLES
        for _, piece in gathered[name].pieces
    )


def _renumber(table: TableBuilder, column: str, final: Mapping[int, int]) -> None:
    """Replace numbers by others; a number that is none stays so."""
    if not table.count or not any(column in piece for _, piece in table.pieces):
        return
    new = np.full(len(final) + 1, ABSENT, dtype=np.int64)
    for local, number in final.items():
        new[local] = number
    for _, piece in table.pieces:
        if column in piece:
            old = np.asarray(piece[column])
            piece[column] = compact(new[np.where(old == ABSENT, len(final), old)])


# Whose work it is that does not say so: that of the only process that can have made it.
#
# Exports of some versions leave the process of copies and fills empty. Processes that only call,
# as
# a launcher that asks how many GPUs there are, made none.


_INFER_OWNER_TABLES: Final = ("activities", "marks", "counters")


def adopted(
    gathered: Gathered, nobody: int | None, ordinals: Mapping[tuple[int, int], int]
) -> dict[int, int]:
    """Return the process of the devices that rows of no process have, where it can be but one.

    The rows become rows of that process. `ordinals` are the devices by process and by the number
    that the process has for them; `nobody` stands for the process of rows that do not name it.
    """
    if nobody is None:
        return {}
    users = _users(gathered, nobody)
    by_ordinal: dict[int, set[int]] = {}
    workers: set[int] = set()
    for (process, ordinal), local in ordinals.items():
        if process != nobody and local in users.get(process, ()):
            workers.add(process)
            by_ordinal.setdefault(ordinal, set()).add(process)
    found = {}
    for (process, ordinal), local in ordinals.items():
        can_be = by_ordinal.get(ordinal) or workers
        if process == nobody and len(can_be) == 1:
            found[local] = next(iter(can_be))
    _rewrite(gathered, nobody, found)
    return found


def _users(gathered: Gathered, nobody: int) -> dict[int, set[int]]:
    """Return the devices on which each process did work."""
    found: dict[int, set[int]] = {}
    for count, piece in gathered["activities"].pieces:
        process, device = (np.broadcast_to(piece[name], count) for name in ("process", "device"))
        named = np.flatnonzero(process != nobody)
        _, first = np.unique(joint_codes(process[named], device[named]), return_index=True)
        one = named[first]
        for user, used in zip(process[one].tolist(), device[one].tolist(), strict=True):
            found.setdefault(user, set()).add(used)
    return found


def _rewrite(gathered: Gathered, nobody: int, found: Mapping[int, int]) -> None:
    for name in _INFER_OWNER_TABLES if found else ():
        for count, piece in gathered[name].pieces:
            if "device" not in piece:
                continue
            process = np.array(np.broadcast_to(piece["process"], count))
            device = np.broadcast_to(piece["device"], count)
            mine: IntArray = np.flatnonzero(process == nobody)
            for local in distinct(device[mine]).tolist() if len(mine) else ():
                if local in found:
                    process[mine[device[mine] == local]] = found[local]
            if len(mine):
                piece["process"] = process

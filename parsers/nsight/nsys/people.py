"""Which processes and devices the rows of a report belong to.

Rows get numbers as they come. When all are read, the processes are put in order of their ranks and
ids, and the numbers that processes have for their devices are resolved to the devices themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from traceflops.builder import TableBuilder
from traceflops.columns import IntArray
from traceflops.parsers.databases.lookup import by_distinct
from traceflops.parsers.gathered import Gathered, ProcessFacts
from traceflops.parsers.nsight.nsys.devices import Devices
from traceflops.parsers.nsight.nsys.ids import pid_of
from traceflops.rows import ABSENT

_MOST: Final = 10_000
"""So many processes and devices are told apart; a report with more has invented them."""
_NO_RANK: Final = 2**62
_UNKNOWN_DEVICE: Final = -1
_TABLES: Final = ("activities", "calls", "ops", "marks", "counters")
_WITH_DEVICE: Final = ("activities", "marks", "counters")


@dataclass(slots=True)
class People:
    """The processes and devices of a report, by the numbers that rows have until the end.

    `told_ranks` are the processes whose `ranks` the report itself lists, `worlds` how many ranks
    there are in the job of each.
    """

    devices: Devices
    file: str
    host: str | None = None
    ranks: dict[int, int] = field(default_factory=dict)
    told_ranks: frozenset[int] = frozenset()
    worlds: dict[int, int] = field(default_factory=dict)
    rank_in_name: int | None = None
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

    @property
    def keys(self) -> dict[int, int]:
        """Return the numbers of processes by their keys."""
        return self._processes

    def settle(self, gathered: Gathered) -> None:
        """Write the final numbers of processes and devices into the tables."""
        final = self._settled_processes(gathered)
        owner = {local: final[local] for local in range(len(self._processes))}
        devices = self._settled_devices(gathered, owner)
        for name in _TABLES:
            _renumber(gathered[name], "process", final)
        for name in _WITH_DEVICE:
            _renumber(gathered[name], "device", devices)

    def _process(self, key: int) -> int:
        known = key in self._processes or len(self._processes) < _MOST
        return self._processes.setdefault(key if known else ABSENT, len(self._processes))

    def _device(self, process: int, ordinal: int, _: int) -> int:
        ordinal = ordinal if 0 <= ordinal < _MOST else _UNKNOWN_DEVICE
        key = process, ordinal
        if key not in self._ordinals and len(self._ordinals) >= _MOST:
            key = 0, _UNKNOWN_DEVICE
        return self._ordinals.setdefault(key, len(self._ordinals))

    def _settled_processes(self, gathered: Gathered) -> dict[int, int]:
        """Return the final number of each process; the order is that of ranks, then of ids."""
        named = [key for key in self._processes if key != ABSENT]
        only = named[0] if len(named) == 1 else None
        # Rows that do not say whose they are belong to the only process there is.
        final = {}
        for key in sorted(self._processes, key=lambda key: (self._rank(key), key == ABSENT, key)):
            shared = only if key == ABSENT and only is not None else key
            final[self._processes[key]] = gathered.process(shared, self._facts(shared))
        return final

    def _rank(self, key: int) -> int:
        return self.ranks.get(key, _NO_RANK)

    def _facts(self, key: int) -> ProcessFacts:
        alone = len([one for one in self._processes if one != ABSENT]) <= 1
        from_name = self.rank_in_name if alone else None
        return ProcessFacts(
            self.file,
            rank=self.ranks.get(key, from_name),
            world_size=self.worlds.get(key),
            host=self.host,
            pid=None if key == ABSENT else pid_of(key),
        )

    def _settled_devices(self, gathered: Gathered, owner: Mapping[int, int]) -> dict[int, int]:
        key_of = {local: key for key, local in self._processes.items()}
        places = {
            local: (owner.get(process, 0), ordinal, key_of.get(process, ABSENT))
            for (process, ordinal), local in self._ordinals.items()
        }
        final = {}
        for local, (process, ordinal, key) in sorted(places.items(), key=lambda one: one[1]):
            pid = pid_of(key) if key != ABSENT else None
            gpu = self.devices.gpu_of(pid, ordinal)
            facts = self.devices.facts_of(pid, ordinal)
            identity = ("gpu", gpu) if gpu is not None else (process, ordinal)
            final[local] = gathered.device(
                identity, process, ordinal if gpu is None else gpu, facts
            )
        return final


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
            piece[column] = new[np.where(old == ABSENT, len(final), old)]

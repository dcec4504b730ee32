"""Finds the rank of each event in a file into which a tool merged several ranks.

Such tools write the rank into the arguments of events, or into the `pid` of events, which is a
process or a device: they add a multiple of a power of ten (100000003 is device 3 of rank 1), or
write a label before the number (`[TP01] 3`) or instead of it (`rank 1`). The pid and rank that an
event names are called its owner. Ids may repeat, so every rank becomes a process.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from traceflops.parsers.pytorch.values import as_text, trailing_integer
from traceflops.parsers.shared.trace_builder import renumber_devices
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, Array, IntArray, Names
from traceflops.table.grouping import distinct

_LABEL: Final = re.compile(r"(.{0,200}\d.{0,200})\s-?\d+")
_MOST_RANKS: Final = 1_000_000
_MOST_PROCESSES: Final = 4_096
_SHIFTS: Final[tuple[int, ...]] = tuple(10**power for power in range(15, 4, -1))
"""The powers of ten whose multiples a tool may add to numbers, the largest first."""

_HOST: Final = ("calls", "ops")
_DEVICES: Final = 2**32
"""More than there are devices: `process * _DEVICES + device` is one number for both."""


class Owner(NamedTuple):
    """The owner of an event: its rank and the numbers of its label, None without, and its pid."""

    rank: int | None
    label: tuple[int, ...] | None
    pid: int


def owner_codes(names: Names, pids: Sequence[Any], ranks: IntArray | None) -> Array | int:
    """Return the code in `names` of each event's owner, or one for all; `ranks` < 0: unknown."""
    has_ranks = ranks is not None and bool((ranks >= 0).any())
    if pids and not has_ranks and pids.count(pids[0]) == len(pids):
        return names[_owner_text(pids[0])]
    hashable: Sequence[Any] = pids
    if not {list, dict}.isdisjoint(map(type, pids)):  # these cannot be keys of a dict
        hashable = [as_text(pid) if isinstance(pid, list | dict) else pid for pid in pids]
    if ranks is None or not has_ranks:
        code_of_pid = {pid: names[_owner_text(pid)] for pid in dict.fromkeys(hashable)}
        return np.fromiter(map(code_of_pid.__getitem__, hashable), np.int32, len(pids))
    owners = [*zip(hashable, ranks.tolist(), strict=True)]
    code_of_owner = {owner: names[_owner_text(*owner)] for owner in dict.fromkeys(owners)}
    return np.fromiter(map(code_of_owner.__getitem__, owners), np.int32, len(pids))


def _owner_text(pid: Any, rank: int = -1) -> str:
    """Return an owner as "rank|numbers of its label|pid": pid "[TP01] 3" of rank 2 is "2|01|3"."""
    text = pid if isinstance(pid, str) and not pid.isdigit() else ""
    labelled = _LABEL.fullmatch(text)
    # Ranks have few digits; 9 of them keep the numbers of any text small.
    label = ".".join(number[:9] for number in re.findall(r"\d+", labelled[1] if labelled else text))
    return f"{rank if 0 <= rank < _MOST_RANKS else ''}|{label}|{trailing_integer(pid)}"


Tables: TypeAlias = Mapping[str, TableBuilder]
Owners: TypeAlias = Mapping[str, Owner]


def split_ranks(tables: Tables, rank: int | None) -> list[tuple[int | None, int | None]]:
    """Replace, in place, the codes of owners in all tables by the numbers of processes.

    Return rank and pid of each process, None if unknown. `rank` is that of a file of one rank.

    1. If events tell ranks, a process is a rank.
    2. If they tell none and the file has no device work, a process is a pid, of unknown rank.
    3. Else all events are in one process; also with more than 4,096, which are not real.
    """
    owners: dict[str, Owner] = {}
    for text in (text for table in tables.values() for text in table.names["process"]):
        rank_text, label, pid = text.split("|")  # as `owner_codes` wrote it
        label_numbers = tuple(map(int, label.split("."))) if label else None
        owners[text] = Owner(int(rank_text) if rank_text else None, label_numbers, int(pid))
    # Owners with the same key are one process. Keys are () if nothing tells any.
    shift = _device_shift([owners[text].pid for text in tables["activities"].names["process"]])
    keys = _rank_keys(tables, owners, shift)
    tells_ranks = any(keys.values())
    by_pid = not tells_ranks and not tables["activities"].count
    if by_pid:
        keys = _process_keys(tables, owners)
    distinct_keys = sorted(set(keys.values()))
    if len(distinct_keys) > _MOST_PROCESSES:
        tells_ranks, distinct_keys = False, [()]
    several = len(distinct_keys) > 1
    process_of_key = {key: number for number, key in enumerate(distinct_keys)}
    process_of = {text: process_of_key[keys[text]] if several else 0 for text in owners}
    pids = _common_pids(tables, owners, process_of, shift if several else 0)
    for table in tables.values():
        numbers = np.array([process_of[text] for text in table.names["process"]], dtype=np.int32)
        table.replace("process", numbers[table.column("process")])
    if several and shift:  # the tool added its multiples to devices, too: 100000003 -> 3
        device = tables["activities"].column("device")
        tables["activities"].replace("device", np.where(device < 0, device, device % shift))
    ranks: list[int | None] = [rank]
    if tells_ranks:
        ranks = _rank_numbers(distinct_keys)
    elif by_pid and several:
        ranks = [None] * len(distinct_keys)
    return [(own_rank, pids.get(process)) for process, own_rank in enumerate(ranks)]


def _device_shift(pids: Sequence[int]) -> int:
    """Return the power of ten whose multiples a tool added to device numbers, 0 if none.

    Pids 3 and 100000003 are device 3 of ranks 0 and 1: the power is 10**8.
    """
    pids = [pid for pid in pids if pid >= 0]
    for power in _SHIFTS:
        devices = [pid % power for pid in pids]
        ranks = {pid // power for pid in pids}
        if len(ranks) > 1 and max(devices) < 1_024:
            return power
    return 0


def _common_pids(
    tables: Tables, owners: Owners, process_of: Mapping[str, int], shift: int
) -> dict[int, int]:
    """Return the pid of most host events of each process, without multiples of `shift`."""
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for name in _HOST:
        texts = list(tables[name].names["process"])
        rows = np.bincount(tables[name].column("process"), minlength=len(texts))
        for text, count in zip(texts, rows.tolist(), strict=True):
            pid = owners[text].pid
            if pid != ABSENT:
                counts[process_of[text]][pid % shift if shift else pid] += count
    return {process: pids.most_common(1)[0][0] for process, pids in counts.items()}


def _rank_keys(tables: Tables, owners: Owners, shift: int) -> dict[str, tuple[int, ...]]:
    """Return a key per owner: numbers that are equal for owners of the same rank.

    One kind of numbers is used for all owners, the first that the file has:
    1. The ranks in arguments. An owner without one gets that of other events with its pid.
    2. The labels, if GPUs have several and host events have all of these.
    3. The multiples of `shift` in pids: pid 100000003 with shift 10**8 has the key (1,).
    An owner without a number of this kind gets the smallest key, () if no owner has one.
    """
    host_labels = {owners[text].label for name in _HOST for text in tables[name].names["process"]}
    gpu_labels = {owners[text].label for text in tables["activities"].names["process"]}
    rank_of_pid = {owner.pid: owner.rank for owner in owners.values() if owner.rank is not None}
    keys: dict[str, tuple[int, ...] | None] = {}
    for text, owner in owners.items():
        if rank_of_pid:
            rank = rank_of_pid.get(owner.pid) if owner.rank is None else owner.rank
            keys[text] = None if rank is None else (rank,)
        elif len(gpu_labels) > 1 and gpu_labels <= host_labels:
            keys[text] = owner.label
        else:
            keys[text] = (owner.pid // shift,) if shift and owner.pid >= 0 else None
    first_key = min((key for key in keys.values() if key is not None), default=())
    return {text: first_key if key is None else key for text, key in keys.items()}


def _process_keys(tables: Tables, owners: Owners) -> dict[str, tuple[int, ...]]:
    """Return (pid,) as the key of each owner, without operators that of the most frequent pid."""
    counts = Counter[int]()
    texts = [*tables["ops"].names["process"]]
    rows = np.bincount(tables["ops"].column("process"), minlength=len(texts)).tolist()
    for text, count in zip(texts, rows, strict=True):
        counts[owners[text].pid] += count
    del counts[ABSENT]
    key_of_pid = {pid: (pid,) for pid, count in counts.most_common() if count}
    most_frequent = next(iter(key_of_pid.values()), ())
    return {text: key_of_pid.get(owner.pid, most_frequent) for text, owner in owners.items()}


def _rank_numbers(keys: Sequence[tuple[int, ...]]) -> list[int | None]:
    """Return the rank of each key: the number at the only position where the keys differ.

    Keys (0, 4) and (0, 5) are ranks 4 and 5. A single key is the rank of its first number. Keys
    (0, 4) and (1, 5) differ at two positions: ranks are unknown (None), as with unequal lengths.
    """
    if len({len(key) for key in keys}) > 1:
        return [None] * len(keys)
    differing = [i for i, values in enumerate(zip(*keys, strict=True)) if len(set(values)) > 1]
    if len(differing) > 1:
        return [None] * len(keys)
    index = differing[0] if differing else 0
    return [key[index] for key in keys]


def number_devices(tables: Tables, several: bool) -> list[tuple[int, int]]:
    """Replace, in place, the file's device numbers by those of the trace.

    Return (process, number in the file) of each. If `several` processes have a number, it is
    several devices.
    """
    activities = tables["activities"]
    local = activities.column("device")
    # Work without a device is on the unknown device -1; rows of other tables may have none.
    activities.replace("device", np.where(local == ABSENT, -1, local))
    with_devices = [tables[name] for name in ("activities", "marks", "counters")]
    for table in with_devices if several else ():
        device, process = table.column("device"), table.column("process")
        # Process 1, device 3 -> 1 * _DEVICES + 4; the unknown device -1 -> 1 * _DEVICES + 0.
        # % keeps impossible numbers from changing the process.
        key = process * _DEVICES + (device + 1) % _DEVICES
        table.replace("device", np.where(device == ABSENT, ABSENT, key))
    used = distinct(activities.column("device"))
    for table in with_devices:
        renumber_devices(table, used)
    if several:
        return [(key // _DEVICES, key % _DEVICES - 1) for key in used.tolist()]
    return [(0, device) for device in used.tolist()]

"""Finds the rank of each event in a file into which a tool merged several ranks.

Such tools write the rank into the arguments of events, add a multiple of a power of ten to the
numbers of processes and devices (100000003 is device 3 of rank 1), or write a label before them
(`[TP01] 3`) or instead of them (`rank 1`). Ids may repeat, so every rank becomes a process.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from traceflops.parsers.pytorch.values import as_text, trailing_integer
from traceflops.parsers.shared.trace_builder import renumber_devices
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, Array, IntArray, Names
from traceflops.table.grouping import distinct

_LABEL: Final = re.compile(r"(.{0,200}\d.{0,200})\s-?\d+")
_MOST_RANKS: Final = 1_000_000
_SHIFTS: Final[tuple[int, ...]] = tuple(10**power for power in range(15, 4, -1))
"""The powers of ten whose multiples a tool may add to numbers, the largest first."""
_HOST: Final = ("calls", "ops")
_DEVICES: Final = 2**32
"""More than there are devices: `process * _DEVICES + device` is one number for both."""


class Owner(NamedTuple):
    """The owner that an event names: its rank and label (numbers), None without, and the pid."""

    rank: int | None
    label: tuple[int, ...] | None
    pid: int


def owner_codes(names: Names, pids: Sequence[Any], ranks: IntArray | None) -> Array | int:
    """Return the code of the owner of each event, one code if all have the same."""
    is_ranked = ranks is not None and bool((ranks >= 0).any())
    if pids and not is_ranked and pids.count(pids[0]) == len(pids):
        return names[_owner_text(pids[0])]
    if not {list, dict}.isdisjoint(map(type, pids)):  # they cannot be keys of a dict
        pids = [as_text(pid) if isinstance(pid, list | dict) else pid for pid in pids]
    keys = [*zip(pids, ranks.tolist(), strict=True)] if ranks is not None and is_ranked else pids
    code = {
        key: names[_owner_text(*key) if is_ranked else _owner_text(key)]
        for key in dict.fromkeys(keys)
    }
    return np.fromiter(map(code.__getitem__, keys), np.int32, len(keys))


def _owner_text(pid: Any, rank: int = -1) -> str:
    """Return the text "rank|numbers of the label|pid" for the owner of an event."""
    text = pid if isinstance(pid, str) and not pid.isdigit() else ""
    labelled = _LABEL.fullmatch(text)
    # Ranks have few digits; 9 of them keep the numbers of any text small.
    label = ".".join(number[:9] for number in re.findall(r"\d+", labelled[1] if labelled else text))
    return f"{rank if 0 <= rank < _MOST_RANKS else ''}|{label}|{trailing_integer(pid)}"


def split_ranks(
    tables: Mapping[str, TableBuilder], rank: int | None
) -> list[tuple[int | None, int | None]]:
    """Replace, in place, the codes of owners in all tables by the numbers of processes.

    Return rank and pid of each process, None if unknown. `rank` is that of a file of one rank.
    """
    owners: dict[str, Owner] = {}
    for text in (text for table in tables.values() for text in table.names["process"]):
        own_rank, label, process_id = text.split("|")  # as `owner_codes` wrote it
        numbers_of_label = tuple(map(int, label.split("."))) if label else None
        owners[text] = Owner(int(own_rank) if own_rank else None, numbers_of_label, int(process_id))
    # The power of ten whose multiples were added to the numbers of devices, 0 if none.
    pids_of_gpus = [owners[text].pid for text in tables["activities"].names["process"]]
    devices = np.array([pid for pid in pids_of_gpus if pid >= 0], np.int64)
    shifts = (power for power in _SHIFTS if (devices % power < 1_024).all())
    shift = next((power for power in shifts if len(distinct(devices // power)) > 1), 0)
    keys = _rank_keys(tables, owners, shift)
    if by_pid := not any(keys.values()) and not tables["activities"].count:
        keys = _process_keys(tables, owners)
    ranks = sorted(set(keys.values()))
    several = 1 < len(ranks) <= 4_096  # more ranks are not real: one process
    # Each owner's process: the index of its rank, or 0 if the file is of one process.
    index = {key: n for n, key in enumerate(ranks)}
    number = {text: index[keys[text]] if several else 0 for text in owners}
    # The pid of a process is that of most of its host events, without what the tool added.
    own_shift = shift if several else 0
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for name in _HOST:
        texts = list(tables[name].names["process"])
        rows = np.bincount(tables[name].column("process"), minlength=len(texts))
        for text, count in zip(texts, rows.tolist(), strict=True):
            pid = owners[text].pid
            if pid != ABSENT:
                counts[number[text]][pid % own_shift if own_shift else pid] += count
    pids = {number: pids.most_common(1)[0][0] for number, pids in counts.items()}
    for table in tables.values():
        numbers = np.array([number[text] for text in table.names["process"]], dtype=np.int32)
        for _, piece in table.pieces:
            code = piece["process"]
            piece["process"] = int(numbers[0]) if len(set(number.values())) == 1 else numbers[code]
    if several and shift:  # the tool added its multiples to devices, too
        device = tables["activities"].column("device")
        tables["activities"].replace("device", np.where(device < 0, device, device % shift))
    # The key () is that of a file in which no owner tells a rank.
    rank_numbers = _rank_numbers(ranks) if several or ranks[:1] > [()] else [rank]
    if by_pid:
        rank_numbers = [None] * len(ranks) if several else [rank]
    return [(rank, pids.get(number)) for number, rank in enumerate(rank_numbers)]


def _rank_keys(
    tables: Mapping[str, TableBuilder], owners: Mapping[str, Owner], shift: int
) -> dict[str, tuple[int, ...]]:
    """Return, for each owner, numbers that are equal for owners of the same rank.

    All numbers of a file are of one kind. If any event has a rank in its arguments, they are these
    ranks: that of the owner, else that of other events with its pid. Else they are the labels, if
    these distinguish GPUs and host events have the same ones. Else they are the multiple of `shift`
    that the tool added to the pid. An owner without a number of this kind gets the smallest one.
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


def _process_keys(
    tables: Mapping[str, TableBuilder], owners: Mapping[str, Owner]
) -> dict[str, tuple[int, ...]]:
    """Return each owner's pid, or that of most operators; without GPUs each CPU is a device."""
    operators, counts = tables["ops"], Counter[int]()
    texts = [*operators.names["process"]]
    rows = np.bincount(operators.column("process"), minlength=len(texts)).tolist()
    for text, count in zip(texts, rows, strict=True):
        counts[owners[text].pid] += count
    del counts[ABSENT]
    key_of = {pid: (pid,) for pid, count in counts.most_common() if count}
    most = next(iter(key_of.values()), ())
    return {text: key_of.get(own.pid, most) for text, own in owners.items()}


def _rank_numbers(keys: Sequence[tuple[int, ...]]) -> list[int | None]:
    """Return the rank of each key: the number at the only position where keys differ.

    Of a single key it is the first number. If keys differ at several positions, or in length, ranks
    are unknown (None).
    """
    if len({len(key) for key in keys}) > 1:
        return [None] * len(keys)
    differs = [i for i, values in enumerate(zip(*keys, strict=True)) if len(set(values)) > 1]
    index = differs[0] if len(differs) == 1 else 0
    return [key[index] if len(differs) < 2 else None for key in keys]


def number_devices(tables: Mapping[str, TableBuilder], several: bool) -> list[tuple[int, int]]:
    """Replace, in place, the file's device numbers by those of the trace.

    Return process and number in the file of each. `several`: the file is of several processes,
    and equal numbers of two processes are different devices.
    """
    activities = tables["activities"]
    local = activities.column("device")
    # Device work without a device is on one device, unknown; other rows may have none.
    activities.replace("device", np.where(local == ABSENT, -1, local))
    with_devices = [tables[name] for name in ("activities", "marks", "counters")]
    for table in with_devices if several else ():
        device, process = table.column("device"), table.column("process")
        # + 1, since an unknown device is -1; % keeps impossible numbers apart from the process.
        key = process * _DEVICES + (device + 1) % _DEVICES
        table.replace("device", np.where(device == ABSENT, ABSENT, key))
    used = distinct(activities.column("device"))
    for table in with_devices:
        renumber_devices(table, used)
    if several:
        return [(key // _DEVICES, key % _DEVICES - 1) for key in used.tolist()]
    return [(0, device) for device in used.tolist()]

"""What the kernels of collectives moved: kind, ranks, bytes, time and how much of it is exposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    group_rows,
    groups,
    is_one_of,
    joint_codes,
    names,
    numbers,
)
from traceflops.timeline import DeviceAccount, LinkedTrace, Window, is_top
from traceflops.windows import InWindows, chosen_activities, chosen_time

_SIZES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("byte", "char", "bool"), 1),
    **dict.fromkeys(("short", "half", "bfloat16", "uint16"), 2),
    **dict.fromkeys(("int", "float", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("long", "double", "uint64", "complexfloat"), 8),
    "complexdouble": 16,
}
"""Bytes of an element by the name of its type in lower case."""
_EIGHT_BITS: Final = "float8_"
_ONE_SIDE_TELLS: Final = frozenset({"broadcast", "reduce", "send", "recv"})
"""Collectives that put in as much as they get out, on the ranks that do both."""


@dataclass(frozen=True, slots=True)
class Collective:
    """Kernels of one kind of collective among so many ranks, in the chosen windows.

    `sum_ns` is their time inside the windows and `exposed_ns` the part in which nothing else ran
    on their device; collectives that run at the same time count each. `bytes` are those of the
    messages of `sized` of them, whose durations are `sized_ns`. Unknown is None.
    """

    collective: str | None
    ranks: int | None
    count: int
    sum_ns: int
    exposed_ns: int
    sized: int
    bytes: int | None
    sized_ns: int

    @property
    def bytes_per_ns(self) -> float | None:
        """Return bytes of messages by the time of their kernels: GB/s as NCCL counts (algbw)."""
        return self.bytes / self.sized_ns if self.bytes is not None and self.sized_ns else None


def collective_work(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    windows: Mapping[int, tuple[Window, ...]],
) -> tuple[Collective, ...]:
    """Return a row per kind of collective and number of ranks, the longest first.

    Of kernels in the chosen windows; empty where of none the trace says which collective it ran.
    """
    chosen = _kernels(linked, chosen_activities(accounts, windows))
    activities = linked.trace.activities
    kind = codes(activities["collective"])[chosen.row]
    if not (kind >= 0).any():
        return ()
    ranks = numbers(activities["collective_group_size"], ABSENT)[chosen.row]
    exposed = _exposed(linked, accounts, windows, chosen.row)
    size = message_bytes(linked, chosen.row)
    whole = linked.whole.whole_ns[chosen.row]
    sized = (size != ABSENT) & (chosen.starts_inside == 1)
    labels = names(activities["collective"])
    group, first = group_rows((kind, ranks))
    rows = []
    for one, (_, mine) in zip(first.tolist(), groups(group), strict=True):
        known = mine[sized[mine]]
        rows.append(
            Collective(
                collective=labels[int(kind[one])] if kind[one] >= 0 else None,
                ranks=int(ranks[one]) if ranks[one] > 0 else None,
                count=int(chosen.starts_inside[mine].sum()),
                sum_ns=int(chosen.inside_ns[mine].sum()),
                exposed_ns=int(exposed[mine].sum()),
                sized=len(known),
                bytes=sum(size[known].tolist()) if len(known) else None,
                sized_ns=int(whole[known].sum()),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.sum_ns, row.collective or "", row.ranks or 0)))


def _kernels(linked: LinkedTrace, chosen: InWindows) -> InWindows:
    """Return the kernels that communicate, of the activities of the chosen windows."""
    activities = linked.trace.activities
    rows = chosen.row
    mine = is_one_of(activities["kind"], "kernel")[rows]
    mine &= is_top(linked.categorised, "communication", rows)
    return InWindows(rows[mine], chosen.inside_ns[mine], chosen.starts_inside[mine])


def _exposed(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    windows: Mapping[int, tuple[Window, ...]],
    rows: IntArray,
) -> IntArray:
    """Return for how much of each kernel, in the windows, its device did nothing else."""
    activities = linked.trace.activities
    device = numbers(activities["device"])[rows]
    start = numbers(activities["start_ns"])[rows]
    end = start + numbers(activities["dur_ns"])[rows]
    found = np.zeros(len(rows), dtype=np.int64)
    for one, account in accounts.items():
        mine = device == one
        alone = account.timeline.parts["communication"].intersect(chosen_time(windows[one]))
        found[mine] = alone.length_within(start[mine], end[mine])
    return found


def message_bytes(linked: LinkedTrace, rows: IntArray) -> IntArray:
    """Return the bytes of each message: the larger of what a rank puts in and gets out."""
    activities = linked.trace.activities
    put, get = (
        numbers(activities[f"collective_{way}_elements"], ABSENT)[rows] for way in ("in", "out")
    )
    one_tells = is_one_of(activities["collective"], *_ONE_SIDE_TELLS)[rows]
    elements = np.where((put >= 0) & (get >= 0) | one_tells, np.maximum(put, get), ABSENT)
    widths = [_width(name) for name in names(activities["collective_dtype"])]
    width = np.array([*widths, 0], dtype=np.int64)[codes(activities["collective_dtype"])[rows]]
    known = (elements >= 0) & (elements < 2**58) & (width > 0) & ~_shared(linked, rows)
    return np.where(known, np.where(known, elements, 0) * width, ABSENT)


def _width(data_type: str) -> int:
    """Return the bytes of an element, 0 for a type that is not known."""
    name = data_type.lower()
    return 1 if name.startswith(_EIGHT_BITS) else _SIZES.get(name, 0)


def _shared(linked: LinkedTrace, rows: IntArray) -> BoolArray:
    """Return which kernels an op launched several of: how much each moved is not known."""
    activities = linked.trace.activities
    op = numbers(activities["external_id"], ABSENT)[rows]
    key = joint_codes(numbers(activities["process"])[rows], op)
    _, place, counts = np.unique(key, return_inverse=True, return_counts=True)
    return np.asarray((op != ABSENT) & (counts[place] > 1))

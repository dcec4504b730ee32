"""How fast collectives are, over their transfer alone, against the links and against their like.

Rates are GB/s, which is bytes per ns. A group is slow where its bus bandwidth is far below that of
groups of the same kind, size of message, number of ranks and distances between ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.waits import Waits
from traceflops.table.columns import FloatArray, IntArray, numbers
from traceflops.table.grouping import group_rows, groups

if TYPE_CHECKING:
    from traceflops.mfu.budget import DevicePeaks
    from traceflops.windows.prepared import Prepared

_BUS: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Bus bandwidth by algorithm bandwidth is so often (n - 1) / n, as nccl-tests has it; else 1."""
_UNEVEN: Final = KINDS.index("all_to_all")
_PAIRS: Final = "send_recv"
_SLOW: Final = 0.75
"""Below so much of the median of its like a group is slow."""
_CALLS: Final = 3
_ERRORS: Final = 4
"""A transfer of fewer errors of the clocks tells nothing."""


class Links(Struct, frozen=True):
    """What the links of a device carry in one direction, GB/s: as given, or by device.

    `node` tells devices of different nodes apart, 0 where that is not known.
    """

    given: float | None = None
    of_device: Mapping[int, float] = field(default_factory=dict)
    node: Mapping[int, int] = field(default_factory=dict)

    def peak(self, devices: Sequence[int]) -> float | None:
        """Return the peak of the bus bandwidth among some devices, None where it is not known.

        How many of its links lead from one device to another is not in the table, nor what the
        network carries.
        """
        if self.given:
            return self.given
        is_inside = len({self.node.get(device) for device in devices}) == 1 and len(devices) > 2
        if not is_inside or not self.of_device.keys() >= set(devices):
            return None
        return min(self.of_device[device] for device in devices)


class LinkRate(Struct, frozen=True):
    """The bandwidth of collectives of one kind, group and size over their transfer alone.

    `role` is as of a `MatchedCollective`. `members` are the ranks, the sender before the receiver;
    `bytes` is the median where sizes are uneven. `bus` is the rate of the links as nccl-tests
    defines it. `slowest` and `fastest` are the 5th and 95th percentile over the calls of `bus`.
    `of_peak` is `bus` as a share of `peak`. `usual` is the median `bus` of the groups of this kind
    and size, where this one is `slow`; then all its calls took `lost_ns` longer than at that rate.
    """

    kind: str
    group: str
    role: str | None
    ranks: int
    members: tuple[int, ...]
    bytes: int
    count: int
    algorithm: float
    bus: float
    slowest: float
    fastest: float
    peak: float | None
    of_peak: float | None
    slow: bool = False
    usual: float | None = None
    lost_ns: int = 0


def links_of(prepared: Prepared, peaks: Iterable[DevicePeaks], given: float | None) -> Links:
    """Return the peaks of the devices' links in one direction, and their nodes."""
    of_device = {}
    for device in peaks:
        spec = device.match.spec if device.match.confirmed else None
        if spec is not None and spec.link is not None:
            of_device[device.device] = float(spec.link) / 2
        elif spec is not None and spec.host_link is not None:
            of_device[device.device] = float(spec.host_link.bandwidth)
    devices, processes = prepared.trace.devices, prepared.trace.processes
    hosts = processes["host"].to_pylist()
    names = [hosts[process] for process in numbers(devices["process"]).tolist()]
    if None not in names:
        number = {name: number for number, name in enumerate(dict.fromkeys(names))}
        node = {device: number[name] for device, name in enumerate(names)}
        return Links(given, of_device, node)
    # Without hosts a node is how many devices before one have its number: ranks that each see one
    # device alone, with number 0, count as of several nodes.
    turn: defaultdict[int, count[int]] = defaultdict(count)
    local_ids = devices["local_id"].to_pylist()
    return Links(given, of_device, {row: next(turn[id_]) for row, id_ in enumerate(local_ids)})


def link_rates(records: CommRecords, waits: Waits, links: Links, error_ns: int) -> list[LinkRate]:
    """Return the bandwidths by kind, group and size, those that moved most first.

    Those far below their like are marked so: ranks of one dimension have one stride. `error_ns` is
    by how much the clocks of ranks may be apart.
    """
    size = waits.largest(records.bytes)
    spent = waits.until_ns - waits.from_ns
    rated = np.flatnonzero((size > 0) & (spent > 0))
    row = waits.row[waits.first[rated]]
    is_pair, is_send = records.is_pair[row], records.kind[row] == KINDS.index("send")
    place, peer = records.place[row], records.peer[row]
    receiver = np.where(is_pair, np.where(is_send, peer, place), -1)
    ends = np.where(is_pair, place + peer, -1)
    kind = np.where(is_pair, KINDS.index(_PAIRS), records.kind[row])
    uneven = records.kind[row] == _UNEVEN
    sized = np.where(uneven, -np.frexp(size[rated].astype(np.float64))[1], size[rated])
    number, _ = group_rows((kind, records.group[row], receiver, ends, sized))
    rates = []
    for _, calls in groups(number):
        rows, to = rated[calls], int(receiver[calls[0]])
        first = int(rows[0])
        places = records.place[waits.row[waits.first[first] : waits.final[first] + 1]].tolist()
        places.sort(key=lambda place, to=to: place == to if to >= 0 else place)
        rates.append(_rate(records, int(row[calls[0]]), places, size[rows], spent[rows], links))
    rates.sort(key=lambda rate: -rate.bytes * rate.count)

    def likeness(rate: LinkRate) -> tuple[object, ...]:
        """Return the key that comparable rates share: kind, strides and size."""
        strides = tuple(np.diff(sorted(rate.members)).tolist())
        is_uneven = rate.kind == KINDS[_UNEVEN]
        return rate.kind, strides, rate.bytes.bit_length() if is_uneven else rate.bytes

    alike: defaultdict[tuple[object, ...], list[LinkRate]] = defaultdict(list)
    for rate in rates:
        alike[likeness(rate)].append(rate)
    compared = []
    for rate in rates:
        others = [other.bus for other in alike[likeness(rate)] if other is not rate]
        usual = float(np.median(others)) if others else 0.0
        is_told = rate.count >= _CALLS and rate.bytes / rate.algorithm >= _ERRORS * error_ns
        if is_told and rate.bus < _SLOW * usual and rate.fastest < usual:
            lost = rate.count * rate.bytes / rate.algorithm * (1 - rate.bus / usual)
            rate = replace(rate, slow=True, usual=usual, lost_ns=round(lost))
        compared.append(rate)
    return compared


def needed_ns(records: CommRecords, row: IntArray, links: Links) -> IntArray | None:
    """Return how long some kernels must take at the peak of their links, None where not known."""
    of_place = [links.of_device.get(device, 0.0) for device in records.devices]
    peak = np.array(of_place)[records.place[row]]
    if not len(row) or not peak.all() or (records.bytes[row] <= 0).any():
        return None
    return np.asarray(bus_bytes(records, row) / peak).astype(np.int64)


def bus_bytes(records: CommRecords, row: IntArray) -> FloatArray:
    """Return how many bytes the links carry for some kernels, as nccl-tests counts them."""
    many = np.array([group.size or 2 for group in records.groups])[records.group[row]]
    factor = np.array([*(_BUS.get(kind, 0) for kind in KINDS), 0])[records.kind[row]]
    factor = np.where(factor > 0, factor * (many - 1) / many, 1.0)
    return np.asarray(records.bytes[row] * factor)


class Fastest(Struct, frozen=True):
    """How fast the fastest of equal collectives are: `part` of the time of all if all were so.

    `bytes` is the size that takes most time, `rate` what the links carry for its fastest, GB/s.
    """

    part: float
    bytes: int
    rate: float

    @classmethod
    def of(cls, records: CommRecords, row: IntArray) -> Fastest | None:
        """Return the fastest of some kernels of one kind; None if few are of equal size."""
        size, took_ns = records.bytes[row], records.dur_ns[row]
        group, first = group_rows((size,))
        count, sums = np.bincount(group), np.bincount(group, took_ns)
        least = np.full(len(count), np.iinfo(np.int64).max)
        np.minimum.at(least, group, took_ns)
        repeated = (size[first] > 0) & (count >= _CALLS) & (least > 0)
        if 2 * sums[repeated].sum() <= sums.sum():
            return None
        most = int(np.argmax(np.where(repeated, sums, 0)))
        part = (count * least)[repeated].sum() / sums[repeated].sum()
        carried = bus_bytes(records, row[first[most : most + 1]])[0]
        return cls(float(part), int(size[first][most]), float(carried / least[most]))


def kind_name(records: CommRecords, row: int) -> str:
    """Return the kind of the collective that a record is of; a send and its receive are one."""
    place = int(records.kind[row])
    if records.is_pair[row]:
        return _PAIRS
    return KINDS[place] if place >= 0 else "unknown"


def _rate(
    records: CommRecords,
    row: int,
    places: Sequence[int],
    size: IntArray,
    spent: IntArray,
    links: Links,
) -> LinkRate:
    """Return the rate of calls alike: `size` in bytes and `spent` in ns are by call."""
    rate: npt.NDArray[np.float64] = size / spent
    kind, many = kind_name(records, row), len(places)
    group = records.groups[int(records.group[row])]
    factor = _BUS[kind] * (many - 1) / many if kind in _BUS else 1.0
    slowest, bus, fastest = (np.quantile(rate, [0.05, 0.5, 0.95]) * factor).tolist()
    peak = links.peak([records.devices[place] for place in places])
    return LinkRate(
        kind=kind,
        group=group.name,
        role=None if kind == _PAIRS else group.role,
        ranks=many,
        members=tuple(records.ranks[place] for place in places),
        bytes=int(np.median(size)),
        count=len(size),
        algorithm=float(size.sum() / spent.sum()),
        bus=bus,
        slowest=slowest,
        fastest=fastest,
        peak=peak,
        of_peak=bus / peak if peak else None,
    )

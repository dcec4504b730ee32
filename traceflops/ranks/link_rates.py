"""How fast collectives are, over their transfer alone, against the links and against their like.

Rates are GB/s, which is bytes per ns. A group is slow where its bus bandwidth is far below that of
groups of the same kind, size of message, number of ranks and distances between ranks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.mfu.budget import DevicePeaks
from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.waits import Waits
from traceflops.table.columns import FloatArray, IntArray, numbers
from traceflops.table.grouping import group_least, group_rows, groups, ranked
from traceflops.windows.prepared import Prepared

_BUS: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Bus by algorithm bandwidth is this factor times (n - 1) / n for n ranks (nccl-tests), else 1."""
_UNEVEN: Final = KINDS.index("all_to_all")
_PAIRS: Final = "send_recv"
_SLOW: Final = 0.75  # a group is slow below this share of the median of comparable groups
_CALLS: Final = 3  # groups with fewer calls are not compared
_ERRORS: Final = 4  # nor are transfers shorter than so many errors of the clocks


class Links(Struct, frozen=True):
    """What the links of a device carry in one direction, GB/s: as given by the user, or by device.

    `node` has the number of each device's node; it may be empty.
    """

    given: float | None = None
    of_device: Mapping[int, float] = field(default_factory=dict)
    node: Mapping[int, int] = field(default_factory=dict)

    def peak(self, devices: Sequence[int]) -> float | None:
        """Return the peak of the bus bandwidth among some devices, None where it is not known.

        It is known only inside one node, since nothing tells what the network carries; and for more
        than two devices, since nothing tells how many of its links a device has to each other one.
        """
        if self.given:
            return self.given
        nodes = {self.node.get(device) for device in devices}
        is_known = self.of_device.keys() >= set(devices)
        if len(nodes) != 1 or len(devices) <= 2 or not is_known:
            return None
        return min(self.of_device[device] for device in devices)


class LinkRate(Struct, frozen=True):
    """The bandwidth of collectives of one kind, group and size during their transfer, GB/s.

    `role` is what the group is for (dp, tp, ...). `members` are the ranks; a sender stands before
    its receiver. `bytes` is the size of the message, the median if sizes differ. `algorithm` is
    message size by time, `bus` the rate of the links as nccl-tests defines it; `slowest` and
    `fastest` are its 5th and 95th percentile over the calls. `of_peak` is `bus / peak`.

    A `slow` rate is far below `usual`, the median `bus` of comparable groups. All calls together
    then took `lost_ns` longer than at that rate.
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
    """Return the links of devices: `given` or their peaks in one direction, and their nodes."""
    of_device = {}
    for device in peaks:
        spec = device.match.spec if device.match.confirmed else None
        if spec is not None and spec.link is not None:
            of_device[device.device] = float(spec.link) / 2  # the table has both directions
        elif spec is not None and spec.host_link is not None:
            # GPUs without links to each other use the host's, whose table has one direction.
            of_device[device.device] = float(spec.host_link.bandwidth)
    devices, processes = prepared.trace.devices, prepared.trace.processes
    hosts = processes["host"].to_pylist()
    names = [hosts[process] for process in numbers(devices["process"]).tolist()]
    if None not in names:
        number = {name: number for number, name in enumerate(dict.fromkeys(names))}
        node = {device: number[name] for device, name in enumerate(names)}
        return Links(given, of_device, node)
    # Without hosts, a local id that occurs again begins a new node: ids [0 1 0 1] are on nodes
    # [0 0 1 1]. So ranks that each see one device, number 0, are on several nodes.
    seen: Counter[int | None] = Counter()
    node = {}
    for row, local_id in enumerate(devices["local_id"].to_pylist()):
        node[row] = seen[local_id]
        seen[local_id] += 1
    return Links(given, of_device, node)


def link_rates(records: CommRecords, waits: Waits, links: Links, error_ns: int) -> list[LinkRate]:
    """Return a rate per kind, group and size of collectives, those that moved most bytes first.

    Those far below comparable groups are marked as slow. `error_ns` is the error of rank clocks.
    """
    size = waits.largest(records.bytes)
    transfer_ns = waits.until_ns - waits.from_ns
    rated = np.flatnonzero((size > 0) & (transfer_ns > 0))
    size, transfer_ns = size[rated], transfer_ns[rated]
    row = waits.row[waits.first[rated]]  # a record of each rated collective
    kind, place, peer = records.kind[row], records.place[row], records.peer[row]
    # A send and its receive are one kind, with a rate for each sender and receiver; the collectives
    # of all ranks have neither (-1). A send has place 2 and peer 0, its receive place 0 and peer 2.
    is_pair = records.is_pair[row]
    is_send = kind == KINDS.index("send")
    sender = np.where(is_pair, np.where(is_send, place, peer), -1)
    receiver = np.where(is_pair, np.where(is_send, peer, place), -1)
    kind_of_rate = np.where(is_pair, KINDS.index(_PAIRS), kind)
    # Sizes of all-to-alls vary: those of one power of two have one rate (600 and 1,000 bytes: -10).
    exponent = np.frexp(size.astype(np.float64))[1]
    size_of_rate = np.where(kind == _UNEVEN, -exponent, size)
    keys = (kind_of_rate, records.group[row], receiver, sender, size_of_rate)
    rates = []
    for _, calls in groups(group_rows(keys)[0]):
        call = calls[0]
        first, final = waits.first[rated[call]], waits.final[rated[call]]
        places = sorted(records.place[waits.row[first : final + 1]].tolist())
        if is_pair[call]:
            places = [int(sender[call]), int(receiver[call])]
        rates.append(_rate(records, int(row[call]), places, size[calls], transfer_ns[calls], links))
    rates.sort(key=lambda rate: -rate.bytes * rate.count)
    return _compared(rates, error_ns)


def _compared(rates: Sequence[LinkRate], error_ns: int) -> list[LinkRate]:
    """Return the rates, those far below the median of comparable ones marked as slow.

    Comparable are rates of one kind, size and distances between ranks. Few calls, or calls hardly
    longer than the error of the clocks, are not judged.
    """
    alike: defaultdict[tuple[object, ...], list[LinkRate]] = defaultdict(list)
    for rate in rates:
        alike[_likeness(rate)].append(rate)
    compared = []
    for rate in rates:
        others = [other.bus for other in alike[_likeness(rate)] if other is not rate]
        usual = float(np.median(others)) if others else 0.0
        call_ns = rate.bytes / rate.algorithm
        is_judged = rate.count >= _CALLS and call_ns >= _ERRORS * error_ns
        # If its fastest calls reach the usual rate, its links do: then some calls are disturbed.
        if is_judged and rate.bus < _SLOW * usual and rate.fastest < usual:
            # The time of all calls, and the share of it that they would save at the usual rate.
            lost = rate.count * rate.bytes / rate.algorithm * (1 - rate.bus / usual)
            rate = replace(rate, slow=True, usual=usual, lost_ns=round(lost))
        compared.append(rate)
    return compared


def _likeness(rate: LinkRate) -> tuple[object, ...]:
    """Return what comparable rates share: kind, distances between ranks (2, 4, 6: 2, 2), size."""
    strides = tuple(np.diff(sorted(rate.members)).tolist())
    # Sizes of all-to-alls vary, so those of one power of two are alike.
    is_uneven = rate.kind == KINDS[_UNEVEN]
    return rate.kind, strides, rate.bytes.bit_length() if is_uneven else rate.bytes


def needed_ns(records: CommRecords, row: IntArray, links: Links) -> IntArray | None:
    """Return how long each kernel takes at the peak of its links, None if one is not known."""
    of_place = [links.of_device.get(device, 0.0) for device in records.devices]
    peak = np.array(of_place)[records.place[row]]
    if not len(row) or not peak.all() or (records.bytes[row] <= 0).any():
        return None
    return np.asarray(bus_bytes(records, row) / peak).astype(np.int64)


def bus_bytes(records: CommRecords, row: IntArray) -> FloatArray:
    """Return the bytes that the links carry for each kernel: nccl-tests' factor by its size."""
    many = np.array([group.size or 2 for group in records.groups])[records.group[row]]
    factor = np.array([*(_BUS.get(kind, 0) for kind in KINDS), 0])[records.kind[row]]
    factor = np.where(factor > 0, factor * (many - 1) / many, 1.0)
    return np.asarray(records.bytes[row] * factor)


class Fastest(Struct, frozen=True):
    """What time would be left if all equal collectives were as fast as the fastest of them.

    `part` is the time they would then take, as a share of what they take. `bytes` is the size that
    takes most time, `least_ns` the time of its fastest call, `rate` the bus bandwidth then, GB/s.
    """

    part: float
    bytes: int
    least_ns: int
    rate: float

    @classmethod
    def of(cls, records: CommRecords, row: IntArray) -> Fastest | None:
        """Return what kernels of one kind would take if all were as fast as the fastest.

        Calls are compared by size. None if most time is of rare sizes (of fewer than _CALLS calls).
        """
        size, took_ns = records.bytes[row], records.dur_ns[row]
        sizes, call_size = ranked(size)
        # Per size: the number of calls, their time in all, and that of the fastest.
        count, sum_ns = np.bincount(call_size), np.bincount(call_size, took_ns)
        least_ns = group_least(call_size, took_ns, len(sizes))
        is_compared = (sizes > 0) & (count >= _CALLS) & (least_ns > 0)
        if 2 * sum_ns[is_compared].sum() <= sum_ns.sum():
            return None
        part = (count * least_ns)[is_compared].sum() / sum_ns[is_compared].sum()
        main = int(np.argmax(np.where(is_compared, sum_ns, 0)))  # the size with most time
        first_call = row[call_size == main][:1]
        main_ns = int(least_ns[main])
        rate = float(bus_bytes(records, first_call)[0] / main_ns)
        return cls(float(part), int(sizes[main]), main_ns, rate)


def kind_name(records: CommRecords, row: int) -> str:
    """Return the kind of the collective of a record; a send and its receive are "send_recv"."""
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
    """Return the rate of some calls of one kind, group and size; `row` is a record of one of them.

    `places` are those of its ranks; `size` in bytes and `spent` in ns are per call.
    """
    rate: FloatArray = size / spent
    kind, many = kind_name(records, row), len(places)
    group = records.groups[int(records.group[row])]
    factor = _BUS[kind] * (many - 1) / many if kind in _BUS else 1.0
    # Quantiles, so that a single odd call is neither the slowest nor the fastest.
    slowest, bus, fastest = (np.quantile(rate, [0.05, 0.5, 0.95]) * factor).tolist()
    peak = links.peak([records.devices[place] for place in places])
    return LinkRate(
        kind=kind,
        group=group.name,
        # Sends are between two ranks of the group: what the group is for does not tell their links.
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

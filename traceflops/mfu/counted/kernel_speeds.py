"""How near counted kernels came to the limits of their device, and what held them back.

These are shares of peaks, the occupancy and what limits it, and why warps wait: for NVIDIA's
devices as Nsight Compute states them, for AMD's by the busy cycles of the parts of CUs
(`speed_of_light.toml` in devices).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.devices import counter_formulas as counters
from traceflops.mfu.counted.launches import KernelRule
from traceflops.mfu.counted.same_launches import CountedLaunches
from traceflops.table.columns import UNKNOWN_SIZE, FloatArray, IntArray
from traceflops.table.grouping import group_rows
from traceflops.table.trace import Note, note_of

ROOFS: Final = {
    "sm": "SM",
    "memory": "memory system",
    "l1": "L1",
    "l2": "L2",
    "dram": "DRAM",
    "matrix": "MFMA",
    "vector": "VALU",
    "lds": "LDS",
}
"""Throughputs and what they are called, in the order in which they are shown."""
COMPUTING: Final = frozenset({"sm", "matrix", "vector"})
_MOVING: Final = frozenset({"memory", "dram"})
"""The nearest roof is known if throughputs of both sets are."""
_NEAREST: Final = 0.9  # from this share on, no unknown throughput can be much nearer to its roof
_MOST: Final = 1.05  # the largest possible share, given rounding and counters of several passes
_ACTIVE_ONLY: Final = "l1"
"""The throughput that is a share of the time in which SMs are active, not of all the time."""
_SAME: Final = 0.005  # shares closer than this are equal: reports print them rounded
_ALL: Final = 0.995  # an occupancy from here on is full
_ISSUING: Final = "selected"  # the "stall reason" of warps that issue an instruction
_ACTIVE_CYCLES: Final = "GRBM_GUI_ACTIVE"
_OCCUPANCY: Final = ("achieved_occupancy", "theoretical_occupancy", "active", "busiest")
_SHARES: Final = (*_OCCUPANCY, *ROOFS)
_PLAIN: Final = ("lanes", "excess", "local", "atomics", "host", "slice", "asked")
_OTHERS: Final = (*_PLAIN, "waves", "shared_bytes", "spills", "debug", "l2.sectors", "instructions")
_WARP: Final = 32
_PIPE: Final = "pipe."
_FLOATS: Final = frozenset({"pipe.fma", "pipe.fmaheavy", "pipe.fp64", "pipe.fp16"})
_NEARLY: Final = 0.9  # pipes that are so near to the busiest are to be relieved, too
_LONGEST_NS: Final = 2.0**62
_BOUND: Final = 0.8  # from this share of DRAM's peak on, only moving less helps
_ASKED: Final = 0.9  # from this share on, bytes that were not asked for are few
_DIGITS: Final = 12  # so many digits hide rounding errors of floats: 2.0000000000000004 is 2


class KernelSpeed(Struct, frozen=True):
    """The counted launches of one kernel in one size, compared with the limits of their device.

    Shares are 0 to 1: means over launches, weighted by time. Values that were not counted for all
    launches are None, or missing in `throughputs`: shares of a peak, by the keys of ROOFS.
    `duration_ns` is the sum of serialized times, mostly at locked clocks. `active` is the share of
    the time in which the average SM or CU had work. `limiters` are the resources that leave no room
    for more blocks on an SM; empty if the occupancy can be full. `waves` is how often the grid
    fills all SMs. `stalls` are (reason why warps wait, share of a warp's cycles), the largest
    first. `pipe` is the pipe that is as busy as the SMs, `other_pipe` one that is nearly as busy,
    with its share. `uses_tensor`: tensor cores were counted as busy. `floats` is the share of the
    peak of the busiest pipe of FP32, FP64 or FP16. `lanes` is how many of 32 threads take part in
    an instruction, `excess` the share of sectors that coalesced accesses would not move,
    `shared_bytes` are of a block, `spills` accesses to local memory. `is_debug`: built for the
    debugger. `local` is the share of local memory in what SMs read from L2, `atomics` theirs in all
    that SMs access there, `host` that of the host's memory in what L2 takes in, `slice` the
    throughput of L2's busiest slice, `busiest` the share of the time in which the busiest SM had
    work. `asked` are the bytes that coalesced accesses would take, by those that DRAM moves.
    `idle_instructions` are those of a warp if SMs access nothing in L2. `part` is the share of the
    time of all launches that follows from other counters if no times were counted. `rules` are the
    profiler's.
    """

    name: str
    launches: int
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    duration_ns: int | None
    throughputs: Mapping[str, float]
    active: float | None
    achieved_occupancy: float | None
    theoretical_occupancy: float | None
    limiters: tuple[str, ...]
    registers: int | None
    waves: float | None
    stalls: tuple[tuple[str, float], ...]
    pipe: str | None = None
    other_pipe: tuple[str, float] | None = None
    uses_tensor: bool = False
    floats: float | None = None
    lanes: float | None = None
    excess: float | None = None
    shared_bytes: int | None = None
    spills: int | None = None
    is_debug: bool = False
    local: float | None = None
    atomics: float | None = None
    host: float | None = None
    slice: float | None = None
    asked: float | None = None
    busiest: float | None = None
    idle_instructions: float | None = None
    part: float | None = None
    rules: tuple[KernelRule, ...] = ()

    @property
    def is_small(self) -> bool:
        """Return whether the grid has too few blocks to fill the device once."""
        return self.waves is not None and self.waves < 1

    @property
    def moves_no_more(self) -> bool:
        """Return whether DRAM is at its roof by no more than what coalesced accesses take."""
        roof, share = self.roof or ("", 0.0)
        return roof == "dram" and share >= _BOUND and (self.asked or 0.0) >= _ASKED

    @property
    def has_more_blocks(self) -> bool:
        """Return whether the grid may have blocks for a higher occupancy."""
        return self.waves is None or self.waves > 1

    @property
    def pipes(self) -> tuple[str, ...]:
        """Return the pipes that limit the SMs, the busiest first."""
        others = self.other_pipe[:1] if self.other_pipe else ()
        return (self.pipe, *others) if self.pipe else ()

    @property
    def shares(self) -> dict[str, float]:
        """Return the throughputs as shares of all time; L1's of active time if `active` is None."""
        active = {_ACTIVE_ONLY: 1.0 if self.active is None else self.active}
        return {name: share * active.get(name, 1.0) for name, share in self.throughputs.items()}

    @property
    def roof(self) -> tuple[str, float] | None:
        """Return the nearest roof and the share of it that was reached, None if unknown."""
        shares = self.shares
        if self.active is None:
            shares.pop(_ACTIVE_ONLY, None)  # a share of active time, whose length is unknown
        # One share of computing and one of moving must be known, unless one is very near its roof.
        has_both = COMPUTING & shares.keys() and _MOVING & shares.keys()
        if not has_both and max(shares.values(), default=0.0) < _NEAREST:
            return None
        # If a part of the memory system is as busy as all of it, name the part.
        parts = {name: shares[name] for name in ROOFS if name in shares and name != "memory"}
        best = max(parts, key=lambda name: parts[name], default="memory")
        if shares[best] + _SAME < shares.get("memory", 0.0):
            best = "memory"
        return best, shares[best]


def kernel_speeds(
    counted: CountedLaunches,
    families: Sequence[counters.Family | None],
    family: IntArray,
    units: IntArray,
    rules: Sequence[tuple[KernelRule, ...]] = (),
) -> tuple[tuple[KernelSpeed, ...], tuple[Note, ...]]:
    """Return a row per kernel and size, the longest time (else most cycles) first; and notes.

    By launch: `family` is the index in `families` of its device's family, `units` the CUs of the
    device (0: unknown), `rules` the messages of the profiler's rules.
    """
    values = counters.quantities_in(counted.values)
    # AMD's devices: the shares of active time in which parts of CUs were busy.
    active_cycles = counted.values.get(_ACTIVE_CYCLES, np.zeros(counted.launches.count))
    ids = [hardware.id if hardware is not None else "" for hardware in families]
    for part in counters.speed_table().cycles:
        if part.counter in counted.values:
            per_unit = np.array([part.families.get(family_id, 0) for family_id in ids])[family]
            capacity = np.where(units > 0, active_cycles * units * per_unit, 0.0)
            share = counters.ratio(counted.values[part.counter] * part.factor, capacity)
            if not np.isnan(share).all():
                values[part.id] = share
    # Shares above 1 are impossible: drop them, with a note.
    impossible = 0
    for name in _SHARES:
        if name in values:
            is_wrong = values[name] > _MOST
            impossible += int(np.count_nonzero(is_wrong))
            values[name] = np.where(is_wrong, np.nan, values[name])
    groups = _Groups(counted, values, rules, units)
    # If no durations were counted, other counters may tell each group's part of all time.
    launch_times = _relative_times(active_cycles, values)
    times = groups.sums(np.nan_to_num(launch_times))
    tells_parts = "duration" not in values and bool((launch_times > 0).all())
    parts = (times / times.sum()).tolist() if tells_parts else [None] * len(times)
    rows = []
    for row, group_time, part in zip(groups.rows(), times.tolist(), parts, strict=True):
        is_timed = row.duration_ns is not None or row.achieved_occupancy is not None
        # Leave out groups without any figure on speed: other counters were read.
        if row.throughputs or row.stalls or row.rules or is_timed:
            sort_key = (-(row.duration_ns or 0), -group_time, row.name)
            rows.append((sort_key, replace(row, part=part)))
    rows.sort(key=itemgetter(0))
    notes = (note_of("dropped", "shares-impossible", count=impossible),) if impossible else ()
    return tuple(row for _, row in rows), notes


def _relative_times(active: FloatArray, values: Mapping[str, FloatArray]) -> FloatArray:
    """Return times of launches in a common unit, by cycles, or by bytes and throughput of DRAM."""
    if active.any():
        return active
    if "elapsed_cycles" in values:
        return values["elapsed_cycles"]
    if {"dram", "dram.bytes"} <= values.keys():
        return counters.ratio(values["dram.bytes"], values["dram"])
    return active


class _Groups:
    """The launches of one kernel, device and size together, and means over them."""

    def __init__(
        self,
        counted: CountedLaunches,
        values: Mapping[str, FloatArray],
        rules: Sequence[tuple[KernelRule, ...]],
        units: IntArray,
    ) -> None:
        """Group launches; `units` are the SMs or CUs of their devices (0: unknown), by launch."""
        launches = counted.launches
        sizes = (launches.threads, launches.block, *launches.grid_axes.T, *launches.block_axes.T)
        self.counted, self.values, self.units = counted, values, units
        self.group, self.first = group_rows([launches.name, counted.device, *sizes])
        # The messages of rules on each group, each message once. A rule may have several messages
        # on one launch: the n-th ones of all launches count as the same message. Of two launches
        # with the messages A A B and A B: A (n = 0) twice, A (n = 1) once, B (n = 0) twice.
        messages: list[dict[tuple[object, ...], KernelRule]] = [{} for _ in self.first]
        for group, of_launch in zip(self.group.tolist() if rules else (), rules, strict=True):
            times_seen: Counter[tuple[object, ...]] = Counter()
            for rule in of_launch:
                subject = (rule.section, rule.rule, rule.kind)
                key = (*subject, times_seen[subject])
                times_seen[subject] += 1
                earlier = messages[group].get(key, replace(rule, launches=0))
                largest = max(earlier, rule, key=KernelRule.estimate)
                messages[group][key] = replace(largest, launches=earlier.launches + 1)
        self.rules = [
            tuple(sorted(m.values(), key=KernelRule.estimate, reverse=True)) for m in messages
        ]
        self.sizes = np.bincount(self.group, minlength=len(self.first))
        duration = values.get("duration", np.full(launches.count, np.nan))
        # Drop impossible durations, so that all sums fit an int64.
        duration = np.where(duration < _LONGEST_NS / max(launches.count, 1), duration, np.nan)
        self.duration_ns = self.sums(np.rint(duration))
        # Means are weighted by duration; in groups without one, all launches count alike.
        is_timed = self.duration_ns[self.group] > 0
        self.weight = np.where(is_timed, duration, 1.0)

    def rows(self) -> Iterator[KernelSpeed]:
        """Yield the groups in the order of their first launches."""
        total = self.sums(self.weight)
        means = {name: self.sums(v * self.weight) / total for name, v in self.values.items()}
        limits = {name: value for name, value in means.items() if name.startswith(counters.LIMIT)}
        stalls, launches = self._stalls(), self.counted.launches
        # Registers are known if all launches of a group have the same number.
        value = self.values.get("registers", np.full(launches.count, np.nan))
        registers = value[self.first]
        differs = value != registers[self.group]  # so does NaN, from itself
        registers = np.where(self.sums(differs.astype(np.float64)) > 0, np.nan, registers)
        for group, launch in enumerate(self.first.tolist()):
            own = {name: _known(means, name, group) for name in (*_SHARES, *_OTHERS)}
            waiting = [(reason, float(share[group])) for reason, share in stalls.items()]
            waiting = [(reason, share) for reason, share in waiting if 0 < share <= _MOST]
            pipe, other_pipe = _pipes(means, group)
            yield KernelSpeed(
                name=launches.names[int(launches.name[launch])],
                launches=int(self.sizes[group]),
                grid=_axes(launches.grid_axes[launch]),
                block=_axes(launches.block_axes[launch]),
                duration_ns=_whole(self.duration_ns[group]),
                throughputs={name: share for name in ROOFS if (share := own[name]) is not None},
                **{name: own[name] for name in (*_OCCUPANCY, *_PLAIN)},  # fields of these names
                limiters=_limiters(own, limits, group),
                registers=_whole(registers[group]),
                waves=self._waves(own["waves"], limits, group),
                stalls=tuple(sorted(waiting, key=lambda stall: (-stall[1], stall[0]))),
                pipe=pipe,
                other_pipe=other_pipe,
                uses_tensor=bool(_known(means, f"{_PIPE}tensor", group)),
                floats=max(
                    (_known(means, name, group) or 0.0 for name in _FLOATS & means.keys()),
                    default=None,
                ),
                shared_bytes=_whole(own["shared_bytes"]),
                spills=_whole(own["spills"]),
                is_debug=bool(own["debug"]),
                idle_instructions=self._idle_instructions(own, launch),
                rules=self.rules[group],
            )

    def _waves(
        self, counted: float | None, limits: Mapping[str, FloatArray], group: int
    ) -> float | None:
        """Return how often the grid fills all SMs: as counted, by sizes, or by a rule's message."""
        if counted is not None:
            return counted
        launch, launches = self.first[group], self.counted.launches
        threads, block, units = launches.threads[launch], launches.block[launch], self.units[launch]
        fitting = (_known(limits, name, group) for name in limits)  # blocks that fit on an SM
        capacity = units * min(filter(None, fitting), default=0.0)
        if threads > 0 and block > 0 and capacity > 0:
            return round(float(threads / block / capacity), _DIGITS)
        matches = (counters.FULL_WAVES.search(rule.text) for rule in self.rules[group])
        return next((float(match[1]) for match in matches if match), None)

    def _idle_instructions(self, own: Mapping[str, float | None], launch: int) -> float | None:
        """Return how many instructions a warp executes, if its kernel accesses no memory."""
        launches, executed = self.counted.launches, own["instructions"]
        threads, block = int(launches.threads[launch]), int(launches.block[launch])
        if executed is None or own["l2.sectors"] != 0 or threads <= 0 or block <= 0:
            return None
        return executed / (threads / block * -(-block // _WARP))

    def sums(self, value: FloatArray) -> FloatArray:
        """Return the sum of each group, NaN if one value is not known."""
        return np.bincount(self.group, value, len(self.first)).astype(np.float64)

    def _stalls(self) -> dict[str, FloatArray]:
        """Return, by reason to wait, its share of a warp's cycles in each group."""
        values = self.counted.values.items()
        # Profilers spell these counters in several ways: the first one with a counter is used.
        for spelling in counters.speed_table().stalls:
            reasons = {name: spelling.reason(name) for name, _ in values}
            waits = {reason: v for name, v in values if (reason := reasons[name]) is not None}
            if not waits:
                continue
            total = self.values.get(spelling.total) if spelling.total is not None else None
            if total is None and _ISSUING in waits:  # then the reasons cover all cycles
                total = np.sum(list(waits.values()), axis=0)
            if total is None:
                return {}
            is_enough = self.sums(total) >= spelling.least  # shares of fewer would be noise
            cycles = np.where(is_enough, self.sums(total * self.weight), np.nan)
            waits.pop(_ISSUING, None)
            sums = {reason: self.sums(wait * self.weight) for reason, wait in waits.items()}
            return {reason: counters.ratio(wait, cycles) for reason, wait in sums.items()}
        return {}


def _limiters(
    own: Mapping[str, float | None], limits: Mapping[str, FloatArray], group: int
) -> tuple[str, ...]:
    """Return the resources that allow the fewest blocks on an SM; none if the occupancy is full.

    `own` are the means of the group, `limits` the blocks that fit, by resource and group.
    """
    theoretical = own["theoretical_occupancy"]
    if theoretical is None or theoretical >= _ALL:
        return ()
    fitting = {name.removeprefix(counters.LIMIT): blocks[group] for name, blocks in limits.items()}
    least = min((blocks for blocks in fitting.values() if not np.isnan(blocks)), default=np.nan)
    if own["shared_bytes"] == 0:  # a kernel without shared memory is not limited by it
        fitting.pop("shared memory", None)
    return tuple(name for name, blocks in fitting.items() if blocks == least)


def _pipes(
    means: Mapping[str, FloatArray], group: int
) -> tuple[str | None, tuple[str, float] | None]:
    """Return a group's busiest pipe, and another that is nearly as busy, with its share.

    Both are None if the busiest pipe is not as busy as the SMs.
    """
    own = {name: _known(means, name, group) for name in means if name.startswith(_PIPE)}
    pipes = {name.removeprefix(_PIPE): share for name, share in own.items() if share is not None}
    busy = _known(means, "sm", group)
    if not pipes or not busy:
        return None, None
    best, *others = sorted(pipes, key=lambda name: -pipes[name])
    if abs(pipes[best] - busy) > _SAME * busy:
        return None, None
    # A part of a pipe has a name that begins alike.
    near = [o for o in others if pipes[o] >= _NEARLY * busy and not o.startswith(best)]
    return best, (near[0], pipes[near[0]]) if near else None


def _known(means: Mapping[str, FloatArray], name: str, group: int) -> float | None:
    value = float(means[name][group]) if name in means else np.nan
    return None if np.isnan(value) else round(value, _DIGITS)


def _whole(value: float | None) -> int | None:
    return None if value is None or np.isnan(value) else round(value)


def _axes(sides: IntArray) -> tuple[int, ...] | None:
    return None if (sides == UNKNOWN_SIZE).any() else tuple(sides.tolist())

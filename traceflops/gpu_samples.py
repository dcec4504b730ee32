"""What was sampled of GPUs: clocks, power, temperature, utilisation, and why clocks were low.

It is told by the counters alone, whoever recorded them. What counts is the time in which a GPU
works: by the timeline where there is one, else by its utilisation, else by the reason "idle".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.devices import THROTTLE_BITS, Sampled, sampled_over_ns
from traceflops.table import (
    BoolArray,
    FloatArray,
    IntArray,
    codes,
    floats,
    groups,
    names,
    numbers,
)
from traceflops.timeline import Intervals
from traceflops.units import percent

if TYPE_CHECKING:
    from traceflops.windows import Prepared

_MEASURED: Final = (
    *(Sampled.POWER, Sampled.POWER_LIMIT, Sampled.TEMPERATURE),
    *(Sampled.MEMORY_CLOCK, Sampled.MEMORY_USED, Sampled.UTILISATION, Sampled.SM_CLOCK),
)
_ALL: Final = frozenset({Sampled.MAX_SM_CLOCK, Sampled.THROTTLE, *_MEASURED})
_LARGEST: Final = 2.0**53
_Series = tuple[IntArray, FloatArray]
_IDLE: Final = 0x1
"""No reason for a lower clock of a GPU that works."""
_HALF: Final = 0.5
_NOTHING: Final[_Series] = (np.empty(0, np.int64), np.empty(0))


@dataclass(frozen=True, slots=True)
class Range:
    """The mean and the largest of some values."""

    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class GpuSamples:
    """What was sampled of a GPU in the chosen time; `device` is the row of the devices table.

    `busy` of the `count` samples of its clock (without these: of what was sampled most often) are
    of time in which it works. Of these are
    `clock_mhz` and `reasons`: shares of them by the bits of THROTTLE_BITS, None where none was
    sampled. `max_clock_mhz` is what it could run at. `slow_ns` is when it was below that for a
    reason, first and last. `values` are what else was sampled, by the names of the counters.
    """

    device: int
    count: int
    busy: int
    clock_mhz: float | None
    max_clock_mhz: float | None
    reasons: Mapping[int, float] | None
    slow_ns: tuple[int, int] | None
    values: Mapping[str, Range] = field(default_factory=dict)

    @property
    def below(self) -> float | None:
        """Return how far the clock is below its maximum, as a share of it; None if unknown."""
        if self.clock_mhz is None or not self.max_clock_mhz:
            return None
        return 1 - self.clock_mhz / self.max_clock_mhz

    @property
    def reason_words(self) -> str:
        """Return the reasons in words, that of most samples first, "" for none."""
        known = sorted((self.reasons or {}).items(), key=lambda one: (-one[1], one[0]))
        shares = (f" in {percent(share)} of the samples" * (share < 1) for _, share in known)
        return ", ".join(THROTTLE_BITS[bit] + s for (bit, _), s in zip(known, shares, strict=True))


def gpu_samples(prepared: Prepared) -> tuple[GpuSamples, ...]:
    """Return what was sampled of each GPU, in the order of the devices table."""
    table = prepared.trace.counters
    labels, time_ns = names(table["name"]), numbers(table["time_ns"])
    value, device, code = floats(table["value"]), numbers(table["device"]), codes(table["name"])
    is_sampled = np.isin(code, [at for at, label in enumerate(labels) if label in _ALL])
    rows = np.flatnonzero(is_sampled & (value >= 0) & (value < _LARGEST))
    rows = rows[np.argsort(time_ns[rows], kind="stable")]
    found = []
    for gpu, mine in groups(device[rows]):
        if gpu in prepared.accounts or (gpu >= 0 and not prepared.accounts):
            own = {labels[name]: rows[mine[at]] for name, at in groups(code[rows[mine]])}
            series = {name: (time_ns[at], value[at]) for name, at in own.items()}
            found.append(_of_device(prepared, gpu, series))
    return tuple(found)


def _of_device(prepared: Prepared, device: int, series: Mapping[str, _Series]) -> GpuSamples:
    series = dict(_chosen(prepared, device, series))
    (at, clock), (when, mask), (_, most) = (
        series.get(name, _NOTHING)
        for name in (Sampled.SM_CLOCK, Sampled.THROTTLE, Sampled.MAX_SM_CLOCK)
    )
    busy, judged = (_works(prepared, device, series, times) for times in (at, when))
    hz = prepared.trace.devices["clock_hz"][device].as_py()
    reasons = mask[judged].astype(np.int64) & ~_IDLE
    slow = when[judged][reasons != 0]
    bits = THROTTLE_BITS if len(reasons) else ()
    shares = {bit: float((reasons & bit != 0).mean()) for bit in bits}
    return GpuSamples(
        device=device,
        count=len(at) or max((len(one) for one, _ in series.values()), default=0),
        busy=int(busy.sum()),
        clock_mhz=float(clock[busy].mean()) if busy.any() else None,
        max_clock_mhz=float(most.max()) if len(most) else hz and hz / 1e6,
        reasons={bit: share for bit, share in shares.items() if share} if shares else None,
        slow_ns=(int(slow[0]), int(slow[-1])) if len(slow) else None,
        values={
            name: Range(float(series[name][1].mean()), float(series[name][1].max()))
            for name in _MEASURED
            if name in series
        },
    )


def _chosen(
    prepared: Prepared, device: int, series: Mapping[str, _Series]
) -> Iterator[tuple[str, _Series]]:
    """Give the samples in the chosen windows, of a device without work all."""
    used = [one for one in prepared.windows.get(device, ()) if one.used]
    begin, end = (used[0].start_ns, used[-1].end_ns) if used else (-(2**62), 2**62)
    for name, (at_ns, value) in series.items():
        inside = (at_ns >= begin) & (at_ns <= end)
        if inside.any():
            yield name, (at_ns[inside], value[inside])


def _works(
    prepared: Prepared, device: int, series: Mapping[str, _Series], at_ns: IntArray
) -> BoolArray:
    """Return at which times a GPU works: for half of the time before, else by what was sampled."""
    if device in prepared.accounts:
        rows, over = prepared.accounts[device].rows, sampled_over_ns(at_ns)
        work = Intervals.of(rows.start_ns, rows.end_ns)
        return work.length_within(at_ns - over, at_ns) >= _HALF * over
    told_ns, busy = series.get(Sampled.UTILISATION) or _by_reasons(series)
    place = np.searchsorted(told_ns, at_ns, side="right") - 1
    return np.asarray((place >= 0) & (np.append(busy, 0)[place] >= 100 * _HALF))


def _by_reasons(series: Mapping[str, _Series]) -> _Series:
    """Return utilisation as far as reasons tell it: 0 where that is idle; some tools tell none."""
    at_ns, mask = series.get(Sampled.THROTTLE, _NOTHING)
    idle = (mask.astype(np.int64) & _IDLE) != 0
    return (at_ns, 100.0 * ~idle) if idle.any() else _NOTHING

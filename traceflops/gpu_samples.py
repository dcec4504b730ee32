"""What was sampled of GPUs: clocks, power, temperature, utilisation, and why clocks were low.

counters of the trace, whoever recorded them
|  of each GPU, in the chosen windows: a series of times and values by counter
|  samples of time in which it works, by the timeline where there is one, else by its
v  utilisation, else by the reason "idle"
GpuSamples    mean clock, reasons for low clocks, ranges of the others
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct, field

from traceflops.devices.gpu_samples import THROTTLE_BITS, Sampled, sampled_over_ns
from traceflops.table.columns import BoolArray, FloatArray, IntArray, codes, floats, names, numbers
from traceflops.table.grouping import groups
from traceflops.timeline.intervals import Intervals
from traceflops.units import percent
from traceflops.windows.prepared import Prepared

_MEASURED: Final = (
    *(Sampled.POWER, Sampled.POWER_LIMIT, Sampled.TEMPERATURE),
    *(Sampled.MEMORY_CLOCK, Sampled.MEMORY_USED, Sampled.UTILISATION, Sampled.SM_CLOCK),
)
_ALL: Final = frozenset({Sampled.MAX_SM_CLOCK, Sampled.THROTTLE, *_MEASURED})
_LARGEST: Final = 2.0**53
_Series = tuple[IntArray, FloatArray]
_IDLE: Final = 0x1  # no reason for a lower clock of a GPU that works
_HALF: Final = 0.5
_NOTHING: Final[_Series] = (np.empty(0, np.int64), np.empty(0))


class Range(Struct, frozen=True):
    """The mean and the largest of some values."""

    mean: float
    most: float


class GpuSamples(Struct, frozen=True):
    """What was sampled of a GPU in the chosen time; `device` is the row of the devices table.

    `count` is the number of samples of its clock (without these: of what was sampled most often),
    `busy` of which are of time in which it works. `clock_mhz` is the mean over these, `reasons` the
    shares of them by the bits of THROTTLE_BITS, None where none was sampled. `max_clock_mhz` is
    what it could run at. `slow_ns` is when it was below that for a reason, first and last. `values`
    are the other counters, by name.
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
        shares = sorted((self.reasons or {}).items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(
            THROTTLE_BITS[bit] + f" in {percent(share)} of the samples" * (share < 1)
            for bit, share in shares
        )


def gpu_samples(prepared: Prepared) -> tuple[GpuSamples, ...]:
    """Return what was sampled of each GPU, in the order of the devices table."""
    table = prepared.trace.counters
    labels, time_ns = names(table["name"]), numbers(table["time_ns"])
    value, device, code = floats(table["value"]), numbers(table["device"]), codes(table["name"])
    is_sampled = np.isin(code, [number for number, label in enumerate(labels) if label in _ALL])
    rows = np.flatnonzero(is_sampled & (value >= 0) & (value < _LARGEST))  # others are errors
    rows = rows[np.argsort(time_ns[rows], kind="stable")]
    samples = []
    for gpu, of_gpu in groups(device[rows]):
        # Accounts are of the chosen devices that worked; if none did, show all.
        if gpu in prepared.accounts or (gpu >= 0 and not prepared.accounts):
            used = [window for window in prepared.windows.get(gpu, ()) if window.used]
            series = {}
            for number, of_counter in groups(code[rows[of_gpu]]):
                row = rows[of_gpu[of_counter]]
                if used:  # of a device without work all samples count
                    inside = (time_ns[row] >= used[0].start_ns) & (time_ns[row] <= used[-1].end_ns)
                    row = row[inside]
                if len(row):
                    series[labels[number]] = (time_ns[row], value[row])
            samples.append(_of_device(prepared, gpu, series))
    return tuple(samples)


def _of_device(prepared: Prepared, device: int, series: Mapping[str, _Series]) -> GpuSamples:
    """Return what series of samples say of a device; each is of times and values, in order."""
    (clock_ns, clock), (mask_ns, mask), (_, most) = (
        series.get(name, _NOTHING)
        for name in (Sampled.SM_CLOCK, Sampled.THROTTLE, Sampled.MAX_SM_CLOCK)
    )
    busy, judged = (_works(prepared, device, series, times) for times in (clock_ns, mask_ns))
    hz = prepared.trace.devices["clock_hz"][device].as_py()
    # Reasons count only where the GPU works; idleness is then none.
    reasons = mask[judged].astype(np.int64) & ~_IDLE
    slow_ns = mask_ns[judged][reasons != 0]
    bits = THROTTLE_BITS if len(reasons) else ()  # without any sample, reasons are not known
    shares = {bit: float((reasons & bit != 0).mean()) for bit in bits}
    return GpuSamples(
        device=device,
        count=len(clock_ns) or max((len(times) for times, _ in series.values()), default=0),
        busy=int(busy.sum()),
        clock_mhz=float(clock[busy].mean()) if busy.any() else None,
        max_clock_mhz=float(most.max()) if len(most) else hz and hz / 1e6,
        reasons={bit: share for bit, share in shares.items() if share} if shares else None,
        slow_ns=(int(slow_ns[0]), int(slow_ns[-1])) if len(slow_ns) else None,
        values={
            name: Range(float(series[name][1].mean()), float(series[name][1].max()))
            for name in _MEASURED
            if name in series
        },
    )


def _works(
    prepared: Prepared, device: int, series: Mapping[str, _Series], time_ns: IntArray
) -> BoolArray:
    """Return at which times a GPU works: for half of the time before, else by what was sampled."""
    if device in prepared.accounts:
        rows, over = prepared.accounts[device].rows, sampled_over_ns(time_ns)
        work = Intervals.of(rows.start_ns, rows.end_ns)
        return work.length_within(time_ns - over, time_ns) >= _HALF * over
    told_ns, percents = series.get(Sampled.UTILISATION, _NOTHING)
    if Sampled.UTILISATION not in series:
        # Not idle, by the reasons, is 100 %; tools that never give the reason "idle" say nothing.
        mask_ns, mask = series.get(Sampled.THROTTLE, _NOTHING)
        idle = (mask.astype(np.int64) & _IDLE) != 0
        if idle.any():
            told_ns, percents = mask_ns, 100.0 * ~idle
    last = np.searchsorted(told_ns, time_ns, side="right") - 1
    return np.asarray((last >= 0) & (np.append(percents, 0)[last] >= 100 * _HALF))

"""What was sampled of GPUs: clocks, power, temperature, utilisation, and why clocks were low.

counters of the trace, from any tool
|  per GPU and counter, in the chosen windows: a series of times and values
|  busy samples: the GPU works then, by the timeline if there is one, else by its utilisation,
v  else by the reason "idle" for a low clock
GpuSamples    mean clock, reasons for low clocks, ranges of the other counters
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

    `count` is the number of samples of its clock (without these: of what was sampled most often);
    the GPU works at `busy` of them. `clock_mhz` is the mean over the busy ones. `reasons` are the
    shares of busy samples with each bit of THROTTLE_BITS, None if none was sampled. `max_clock_mhz`
    is the highest clock of the GPU. `slow_ns` is when it first and last was below that for a
    reason. `values` are the other counters, by name.
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
        """Return how far the clock is below its maximum, as a share of the latter, if known."""
        if self.clock_mhz is None or not self.max_clock_mhz:
            return None
        return 1 - self.clock_mhz / self.max_clock_mhz

    @property
    def reason_words(self) -> str:
        """Return the reasons in words, the most frequent first, "" for none."""
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
    """Return the figures of a device from its series: (times, values) by counter, in order."""
    clock_ns, clock_mhz = series.get(Sampled.SM_CLOCK, _NOTHING)
    mask_ns, mask = series.get(Sampled.THROTTLE, _NOTHING)
    _, max_mhz = series.get(Sampled.MAX_SM_CLOCK, _NOTHING)
    is_busy = _works(prepared, device, series, clock_ns)
    rated_hz = prepared.trace.devices["clock_hz"][device].as_py()
    # Reasons count only while the GPU works, and then "idle" is no reason.
    mask_is_busy = _works(prepared, device, series, mask_ns)
    reasons = mask[mask_is_busy].astype(np.int64) & ~_IDLE
    slow_ns = mask_ns[mask_is_busy][reasons != 0]
    bits = THROTTLE_BITS if len(reasons) else ()  # without any sample, reasons are not known
    shares = {bit: float((reasons & bit != 0).mean()) for bit in bits}
    return GpuSamples(
        device=device,
        count=len(clock_ns) or max((len(times) for times, _ in series.values()), default=0),
        busy=int(is_busy.sum()),
        clock_mhz=float(clock_mhz[is_busy].mean()) if is_busy.any() else None,
        max_clock_mhz=float(max_mhz.max()) if len(max_mhz) else rated_hz and rated_hz / 1e6,
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
    """Return, per time, whether the GPU works: by its timeline, for half of the time before.

    Without a timeline, by the last sample of its utilisation, or of the reason "idle".
    """
    if device in prepared.accounts:
        rows, over_ns = prepared.accounts[device].rows, sampled_over_ns(time_ns)
        work = Intervals.of(rows.start_ns, rows.end_ns)
        return work.length_within(time_ns - over_ns, time_ns) >= _HALF * over_ns
    sampled_ns, percents = series.get(Sampled.UTILISATION, _NOTHING)
    if Sampled.UTILISATION not in series:
        # Not idle, by the reasons, is 100 %; tools that never give the reason "idle" say nothing.
        mask_ns, mask = series.get(Sampled.THROTTLE, _NOTHING)
        is_idle = (mask.astype(np.int64) & _IDLE) != 0
        if is_idle.any():
            sampled_ns, percents = mask_ns, 100.0 * ~is_idle
    last = np.searchsorted(sampled_ns, time_ns, side="right") - 1
    percent_then = np.append(percents, 0)[last]  # 0 before the first sample (-1)
    return np.asarray((last >= 0) & (percent_then >= 100 * _HALF))

"""The peak that a description is held against in a trace: of its devices, for one data type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from traceflops.devices import GIVE_PEAK, DeviceSpec, MissingInput, without_rates, without_times
from traceflops.flops import Peak, PeakChoice, plain_dtype
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.trace_peaks import DevicePeaks
from traceflops.mfu.traced.executed import Executed
from traceflops.remedies import remedy
from traceflops.windows import Prepared

NEARLY_ALL: Final = Fraction(95, 100)
"""From so much of the counted FLOPs on, a data type stands for all."""

NAME_ONE: Final = "set --dtype TYPE (bf16, fp16, fp8, tf32, ...) or --peak TFLOPS"


def peak_in_trace(
    measured: Measurement, prepared: Prepared, dtype: str | None = None
) -> PeakChoice:
    """Return the peak of one device of the trace, the mean by time where they differ.

    The data type is the one named, else that of the products counted in the trace.
    """
    plain = plain_dtype(dtype) if dtype is not None else main_type(measured.executed)
    devices = measured.devices
    if (lack := _unknown(measured, prepared)) is not None:
        return PeakChoice(None, None, plain, lack.problem, lack.remedy)
    spec = _one_spec(devices)
    if any(one.given for one in devices):
        rates = {one.device: max(one.rates.values()) for one in devices}
        label = "given" if dtype is None else f"{plain} given"
        return PeakChoice(_mean(rates, prepared, label), spec, plain)
    if plain is None:
        return PeakChoice(None, spec, None, _no_type(measured.executed), NAME_ONE)
    known = {
        device.device: rate for device in devices if (rate := device.rates.get(plain)) is not None
    }
    if len(known) < len(devices):
        product = next(one.product for one in devices if one.device not in known)
        problem = f"the dense {plain[:20]} rate of {product} is unknown"
        return PeakChoice(None, spec, plain, problem, GIVE_PEAK)
    return PeakChoice(_mean(known, prepared, f"{plain} dense"), spec, plain)


def _unknown(measured: Measurement, prepared: Prepared) -> MissingInput | None:
    """Return what is not known of the devices."""
    kinds = prepared.trace.devices["type"].to_pylist()
    if all(kinds[device.device] == "cpu" for device in measured.devices):
        how = remedy(prepared.trace.source.format, "device work")
        return without_times(prepared.trace, how)
    strange = next((one for one in measured.devices if not one.rates), None)
    return without_rates(strange.match.explanation) if strange is not None else None


def main_type(done: Executed) -> str | None:
    """Return the data type of nearly all counted FLOPs, None where there is no such."""
    sums = _by_type(done)
    total = sum(sums.values())
    return next((one for one, flops in sums.items() if flops >= NEARLY_ALL * total > 0), None)


def _by_type(done: Executed) -> dict[str, int]:
    sums: dict[str, int] = {}
    for cell in done.select():
        sums[cell.dtype] = sums.get(cell.dtype, 0) + cell.flops
    return sums


def _no_type(done: Executed) -> str:
    types = sorted(one for one, flops in _by_type(done).items() if flops)
    if not types:
        return "the data type of the products is unknown"
    return f"products have several data types ({', '.join(types)})"


def _one_spec(devices: Sequence[DevicePeaks]) -> DeviceSpec | None:
    specs = {
        device.match.spec.id: device.match.spec
        for device in devices
        if device.match.spec is not None
    }
    return next(iter(specs.values())) if len(specs) == 1 else None


def _mean(rates: Mapping[int, int], prepared: Prepared, label: str) -> Peak:
    """Return the mean rate, each device by the time of its chosen windows."""
    if len(set(rates.values())) == 1:
        return Peak(Fraction(next(iter(rates.values()))), label)
    times = {one: sum(w.dur_ns for w in prepared.windows[one] if w.used) for one in rates}
    total = sum(times.values())
    if not total:
        return Peak(Fraction(sum(rates.values()), len(rates)), label)
    weighed = sum(rate * times[one] for one, rate in rates.items())
    return Peak(Fraction(weighed, total), f"{label}, average over GPUs,")

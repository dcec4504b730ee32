"""How much of a job a trace shows: devices of the job, windows of its steps, one peak for all."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from msgspec import Struct

from traceflops.devices.missing_input import GIVE_PEAK, MissingInput, without_times
from traceflops.facts import Fact, fact
from traceflops.flops.analytic.rates import Peak
from traceflops.flops.analytic.run_utilisation import PeakChoice, plain_dtype
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.executed import Executed
from traceflops.remedies import advice
from traceflops.table.columns import numbers
from traceflops.table.grouping import distinct
from traceflops.windows.prepared import Prepared
from traceflops.windows.steps import find_marked_steps

NS_PER_S: Final = 10**9
NEARLY_ALL: Final = Fraction(95, 100)
"""A data type with at least this share of the counted FLOPs stands for all of them."""


class JobSize(Struct, frozen=True):
    """The devices of the whole job, and how much of it is in the chosen windows.

    `told_by` is the source of `devices`; `shown` of them are in the trace. `windows` is the number
    of step windows, one per device and step, and `window_ns` their total length; `host_ns` is the
    length of the host's markers of these steps, or None. `is_range` is whether a time range was
    selected, `how` the advice for marking steps.
    """

    devices: int
    told_by: Fact
    shown: int
    windows: int
    window_ns: int
    host_ns: int | None
    is_range: bool
    how: str = ""

    @property
    def lack(self) -> MissingInput | None:
        """Return why a described step cannot be compared, None if the trace shows steps."""
        if self.windows:
            return None
        if self.is_range:
            return MissingInput(fact("missing.time-range"), fact("missing.select-steps"))
        return MissingInput(fact("missing.no-steps"), fact("missing.mark-steps", how=self.how))

    @property
    def seconds(self) -> Fraction | None:
        """Return the mean length of a step's window on a device; None without steps."""
        if not self.windows or not self.window_ns:
            return None
        return Fraction(self.window_ns, self.windows * NS_PER_S)

    @property
    def note(self) -> Fact:
        """Return a fact on the assumed number of devices and its source."""
        some = self.shown if self.shown != self.devices else None
        return fact("job-size.assumed", devices=self.devices, by=self.told_by, shown=some)


def job_size(prepared: Prepared, gpus: int | None = None) -> JobSize:
    """Return the size of the job: `gpus` where the user gives it, else what the trace says."""
    trace = prepared.trace
    sizes = [size for size in trace.processes["world_size"].to_pylist() if size]
    # Devices with activities, chosen or not. Several runs on one GPU count as one device.
    busy = distinct(numbers(trace.activities["device"])).tolist()
    working = len({trace.runs[device][0] for device in busy} if trace.runs else busy)
    devices, told_by = working, fact("job-size.trace")
    if gpus is not None:
        devices, told_by = gpus, fact("job-size.option")
    elif sizes:
        devices, told_by = max(*sizes, working), fact("job-size.world-size")
    used = [w for windows in prepared.windows.values() for w in windows if w.used]
    steps = [window for window in used if window.role == "step"]
    return JobSize(
        devices=max(devices, 1),
        told_by=told_by,
        shown=len(prepared.windows),
        windows=len(steps),
        window_ns=sum(window.dur_ns for window in steps),
        host_ns=host_time(prepared) if steps else None,
        is_range=prepared.selection.is_time_range,
        how=advice(trace, "steps"),
    )


def host_time(prepared: Prepared) -> int | None:
    """Return the total length of the host's markers of the chosen steps in ns, else None."""
    marked = find_marked_steps(prepared.trace, prepared.selection.step_mark)
    if marked is None or prepared.plan.choice.source != marked.source:  # steps without markers
        return None
    process = numbers(prepared.trace.devices["process"])
    total = 0
    for device, windows in prepared.windows.items():
        chosen = [window.step for window in windows if window.used and window.role == "step"]
        if not chosen:
            continue
        if (steps := marked.by_process.get(int(process[device]))) is None:
            return None
        step_numbers = prepared.plan.layout.numbers[device].tolist()
        times = dict(zip(step_numbers, (steps.end_ns - steps.start_ns).tolist(), strict=True))
        if any(step not in times for step in chosen):  # the host marked only some of them
            return None
        total += sum(times[step] for step in chosen if step is not None)
    return total or None


def peak_in_trace(measured: Measurement, prepared: Prepared, dtype: str | None) -> PeakChoice:
    """Return the peak of one device of the trace, or why there is none.

    If peaks differ between devices, the peak is their mean weighted by chosen time. The data type
    is `dtype`, else that of nearly all products counted in the trace.
    """
    plain = plain_dtype(dtype) if dtype is not None else main_type(measured.executed)
    devices, kinds = measured.devices, prepared.trace.devices["type"].to_pylist()
    lack = None
    if all(kinds[device.device] == "cpu" for device in devices):
        lack = without_times(prepared.trace, advice(prepared.trace, "device work"))
    elif (unknown := next((d for d in devices if not d.rates), None)) is not None:
        lack = unknown.match.lack
    if lack is not None:
        return PeakChoice(None, None, plain, lack)
    specs = {d.match.spec.id: d.match.spec for d in devices if d.match.spec is not None}
    spec = next(iter(specs.values())) if len(specs) == 1 else None
    # The rate of each device: given by the user (the same for all types), else of the data type.
    label = f"{plain} dense"
    if any(device.given for device in devices):
        rates = {device.device: max(device.rates.values()) for device in devices}
        label = "given" if dtype is None else f"{plain} given"
    elif plain is None:
        types = tuple(sorted(measured.executed.dtypes))
        what = fact("missing.several-dtypes", types=types) if types else fact("missing.no-dtype")
        return PeakChoice(None, spec, None, MissingInput(what, fact("missing.name-dtype")))
    else:
        rates = {d.device: rate for d in devices if (rate := d.rates.get(plain)) is not None}
    if len(rates) < len(devices):
        product = next(device.product for device in devices if device.device not in rates)
        what = fact("missing.device-rate", dtype=(plain or "")[:20], device=product)
        return PeakChoice(None, spec, plain, MissingInput(what, GIVE_PEAK))
    if len(set(rates.values())) == 1:
        return PeakChoice(Peak(Fraction(max(rates.values())), label), spec, plain)
    times = {n: sum(w.dur_ns for w in prepared.windows[n] if w.used) for n in rates}
    total = sum(times.values())
    weights = times if total else dict.fromkeys(rates, 1)  # no chosen time: equal weights
    mean = Fraction(sum(rate * weights[n] for n, rate in rates.items()), sum(weights.values()))
    label = f"{label}, average over GPUs," if total else label
    return PeakChoice(Peak(mean, label), spec, plain)


def main_type(done: Executed) -> str | None:
    """Return the data type of nearly all counted FLOPs, None if they are of several types."""
    sums = done.flops_by_type
    nearly_all = NEARLY_ALL * sums.total()
    return next((dtype for dtype, flops in sums.items() if flops >= nearly_all), None)

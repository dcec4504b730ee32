"""How much of a job a trace shows: devices of the job, and windows of steps on those shown."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from traceflops.devices import MissingInput
from traceflops.remedies import remedy
from traceflops.table import distinct, numbers
from traceflops.units import several
from traceflops.windows import Prepared, find_marked_steps

NS_PER_S: Final = 10**9

NOT_STEPS: Final = MissingInput(
    "descriptions cover whole steps, but a time range is selected",
    "select steps with --steps instead of --from and --to",
)


@dataclass(frozen=True, slots=True)
class JobSize:
    """The devices of the whole job, and what of them is in the chosen windows.

    `told_by` says where `devices` is from. `known` are counts that the trace itself gives: the
    devices that did something, which is the least there are, and its world size. `windows` counts
    step windows, one per device and step; `window_ns` is their time added up, `host_ns`
    that of the host's markers of the same steps. `format` is that of the trace.
    """

    devices: int
    told_by: str
    known: tuple[int, ...]
    shown: int
    windows: int
    window_ns: int
    host_ns: int | None
    is_range: bool
    format: str = ""

    @property
    def lack(self) -> MissingInput | None:
        """Return why a description of a step has nothing to be compared with."""
        if self.windows:
            return None
        return NOT_STEPS if self.is_range else _no_steps(self.format)

    @property
    def seconds(self) -> Fraction | None:
        """Return the mean length of a step's window on a device; None without steps."""
        if not self.windows or not self.window_ns:
            return None
        return Fraction(self.window_ns, self.windows * NS_PER_S)

    @property
    def note(self) -> str:
        """Return how many devices were reckoned with, and why."""
        text = f"Assumed job size: {_devices(self.devices)} ({self.told_by}"
        if self.shown != self.devices:
            text += f"; {self.shown:,} shown"
        return f"{text})."


def job_size(prepared: Prepared, gpus: int | None = None) -> JobSize:
    """Return the size of the job: `gpus` where the user gives it, else what the trace says."""
    world, working = _world_size(prepared), _working(prepared)
    devices, told_by = working, "as in the trace"
    if gpus is not None:
        devices, told_by = gpus, "from --gpus"
    elif world is not None:
        devices, told_by = max(world, working), "world size in the trace"
    used = [w for windows in prepared.windows.values() for w in windows if w.used]
    steps = [window for window in used if window.role == "step"]
    return JobSize(
        devices=max(devices, 1),
        told_by=told_by,
        known=tuple(sorted({working, max(world or 0, working)} - {0})),
        shown=len(prepared.windows),
        windows=len(steps),
        window_ns=sum(window.dur_ns for window in steps),
        host_ns=host_time(prepared) if steps else None,
        is_range=prepared.selection.is_time_range,
        format=prepared.trace.source.format,
    )


def _no_steps(format_: str) -> MissingInput:
    how = remedy(format_, "steps")
    return MissingInput(
        "the trace has no steps, and a description covers one step",
        f"{how} when recording, or name step annotations with --step-mark",
    )


def _world_size(prepared: Prepared) -> int | None:
    sizes = [size for size in prepared.trace.processes["world_size"].to_pylist() if size]
    return max(sizes) if sizes else None


def _working(prepared: Prepared) -> int:
    """Return how many devices did something, chosen or not; all runs of a GPU are of one."""
    trace = prepared.trace
    devices = distinct(numbers(trace.activities["device"])).tolist()
    return len({trace.runs[device][0] for device in devices} if trace.runs else devices)


def _devices(number: int) -> str:
    return several(number, "device")


# The time of steps by the host's own markers, beside that of the devices' windows.


def host_time(prepared: Prepared) -> int | None:
    """Return the host's time in the markers of the chosen step windows, in ns.

    A step counts once per device, as its windows do. None where the host marked no steps, or not
    all of those that were chosen.
    """
    marked = find_marked_steps(prepared.trace, prepared.selection.step_mark)
    if marked is None or prepared.plan.choice.source != marked.source:
        return None
    process = numbers(prepared.trace.devices["process"])
    total = 0
    for device, windows in prepared.windows.items():
        steps = marked.by_process.get(int(process[device]))
        chosen = [window.step for window in windows if window.used and window.role == "step"]
        if steps is None and chosen:
            return None
        if steps is None:
            continue
        named = prepared.plan.layout.numbers[device].tolist()
        times = dict(zip(named, (steps.end_ns - steps.start_ns).tolist(), strict=True))
        if any(step not in times for step in chosen):
            return None
        total += sum(times[step] for step in chosen if step is not None)
    return total or None

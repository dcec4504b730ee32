"""What is in a trace, what is missing, and what the missing parts cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traceflops.columns import codes, names, numbers
from traceflops.errors import UsageError
from traceflops.schema import TABLES
from traceflops.steps import find_marked_steps
from traceflops.trace import Note, Source, Trace


@dataclass(frozen=True, slots=True)
class Missing:
    """Something the trace does not have, what that costs, and how to record it."""

    what: str
    cost: str
    remedy: str


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One device: properties as the trace gives them, None where it does not."""

    rank: int | None
    file: str
    type: str
    local_id: int
    product: str | None
    memory_bytes: int | None
    sm_count: int | None
    activities: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is in a trace. `rows` are the rows of each table, `steps` the marked steps' numbers."""

    source: Source
    ranks: tuple[int | None, ...]
    world_size: int | None
    devices: tuple[DeviceEntry, ...]
    rows: dict[str, int]
    steps: tuple[int, ...]
    steps_text: str
    missing: tuple[Missing, ...]
    notes: tuple[Note, ...]


def take_inventory(trace: Trace, step_mark: str | None = None) -> Inventory:
    """Return what is in the trace."""
    found = find_marked_steps(trace, step_mark)
    if found is None and step_mark is not None:
        raise UsageError(
            f"no mark matches --step-mark {step_mark!r}",
            "traceflops export --table marks lists them",
        )
    steps = sorted({int(n) for s in found.by_process.values() for n in s.number}) if found else []
    sizes = [size for size in trace.processes["world_size"].to_pylist() if size is not None]
    return Inventory(
        source=trace.source,
        ranks=trace.ranks,
        world_size=max(sizes) if sizes else None,
        devices=tuple(_devices(trace)),
        rows={name: trace.table(name).num_rows for name in TABLES},
        steps=tuple(steps),
        steps_text=found.text if found else "no step markers",
        missing=tuple(missing for test, missing in _CHECKS if test(trace)),
        notes=trace.notes,
    )


def _devices(trace: Trace) -> list[DeviceEntry]:
    processes = trace.processes.to_pylist()
    counts = np.bincount(numbers(trace.activities["device"]), minlength=trace.devices.num_rows)
    return [
        DeviceEntry(
            rank=processes[row["process"]]["rank"],
            file=processes[row["process"]]["file"],
            type=row["type"],
            local_id=row["local_id"],
            product=row["product"],
            memory_bytes=row["memory_bytes"],
            sm_count=row["sm_count"],
            activities=int(counts[row["device"]]),
        )
        for row in trace.devices.to_pylist()
    ]


def _empty(table: str) -> Callable[[Trace], bool]:
    return lambda trace: trace.table(table).num_rows == 0


def _all_null(table: str, column: str) -> Callable[[Trace], bool]:
    def test(trace: Trace) -> bool:
        values = trace.table(table)[column]
        return len(values) > 0 and values.null_count == len(values)

    return test


def _no_marks(*kinds: str) -> Callable[[Trace], bool]:
    def test(trace: Trace) -> bool:
        marks = trace.marks
        wanted = [k for k, kind in enumerate(names(marks["kind"])) if kind in kinds]
        return not any((codes(marks["kind"]) == k).any() for k in wanted)

    return test


def _no_steps(trace: Trace) -> bool:
    return find_marked_steps(trace, None) is None


_CHECKS: tuple[tuple[Callable[[Trace], bool], Missing], ...] = (
    (
        _empty("activities"),
        Missing(
            "device work",
            "only the CPU part can be shown; no GPU times, no MFU",
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        ),
    ),
    (
        _empty("calls"),
        Missing(
            "runtime calls",
            "idle time cannot be split by cause; work cannot be linked to steps or ops",
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        ),
    ),
    (
        _empty("ops"),
        Missing(
            "framework operators",
            "kernels cannot be traced back to the code; no FLOPs from shapes",
            "activities=[ProfilerActivity.CPU, ...]",
        ),
    ),
    (
        _all_null("ops", "input_dims"),
        Missing(
            "shapes of operators",
            "executed FLOPs cannot be counted; MFU needs a model description",
            "record_shapes=True",
        ),
    ),
    (
        _no_steps,
        Missing(
            "step markers",
            "steps are inferred from repetition, or the whole span is one window",
            "call prof.step() once per iteration",
        ),
    ),
    (
        _no_marks("python", "module"),
        Missing(
            "python stacks",
            "which module or line launched a kernel is unknown",
            "with_stack=True (large traces)",
        ),
    ),
    (
        _all_null("devices", "product"),
        Missing(
            "device properties",
            "the device's peak is unknown, and so is MFU unless you name the device",
            "name the device when MFU is asked for",
        ),
    ),
    (
        _all_null("processes", "rank"),
        Missing(
            "rank",
            "ranks are told apart by file name only",
            "initialise torch.distributed before profiling, or put rankN in the file name",
        ),
    ),
    (
        _empty("counters"),
        Missing(
            "memory events",
            "no memory use over time",
            "profile_memory=True",
        ),
    ),
)

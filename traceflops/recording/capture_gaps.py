"""What a trace does not have, and how its tool would have recorded it."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from traceflops.categories.programs import of_ml, of_pytorch
from traceflops.devices.counter_formulas import family_of
from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.matching import match
from traceflops.devices.side_records import SIDE_FORMATS
from traceflops.remedies import How, command, way_to_record
from traceflops.table.columns import ABSENT, is_one_of, matching, numbers
from traceflops.table.patterns import launches_no_kernel
from traceflops.table.trace import CUDA_TRACE, PROGRAM_ERROR, Trace
from traceflops.timeline.host_work import lacks_copies
from traceflops.windows.device_records import launch_calls
from traceflops.windows.steps import find_marked_steps

_OF_COLLECTIVES: Final = re.compile("[nr]ccl", re.IGNORECASE)
_TRACED: Final = How(
    "CUDA was traced but recorded nothing: profile the process that uses the GPU, while it does",
    is_clause=True,
)
_FIRST: Final = ("device records", "device work", "copies")
_OF_CUDA: Final = ("device work", "calls")  # what tracing of CUDA records
_RECORDED: Final = {*_FIRST, "timeline", "calls", "steps", "collectives"}
"""What the command for everything records."""


class Missing(Struct, frozen=True):
    """Something the trace lacks: its code (texts `missing.CODE.what`, `.cost`), how to get it."""

    code: str
    how: How


def missing_from(trace: Trace) -> tuple[Missing, ...]:
    """Return what the trace lacks although its tool can record it."""
    if trace.source.format in SIDE_FORMATS:  # made beside a trace, which has the rest
        return ()
    did_nothing = _did_nothing(trace)
    missing = []
    for code, lack in _lacks(trace).items():
        how = way_to_record(trace, lack)
        if lack == "kernel counters" and how is not None and (options := _counting(trace)):
            how = How(options)
        if lack in _OF_CUDA and did_nothing:
            # Said of the device work only: without work there are no calls. An error of the program
            # explains it already.
            is_explained = PROGRAM_ERROR in trace.source.facts
            how = _TRACED if lack == "device work" and not is_explained else None
        if how is not None:
            missing.append(Missing(code, how))
    return tuple(missing)


def _lacks(trace: Trace) -> dict[str, str]:
    """Return what the trace lacks, in the order of reports: by code, its name in the remedies."""
    work, calls, ops = trace.activities, trace.calls, trace.ops
    is_untimed = bool(trace.totals.num_rows or trace.kernel_counters.num_rows)
    is_empty, launches = not work.num_rows and not is_untimed, launch_calls(trace)
    sizes = numbers(work["bytes"], ABSENT)[is_one_of(work["kind"], "memcpy")]
    devices, ranks = trace.devices.to_pylist(), trace.processes["rank"]
    is_lacking = {
        "device-records": is_empty and launches > 0,
        # The trace tells neither that work was launched nor that none was.
        "device-work": is_empty and launches <= 0 and not launches_no_kernel(calls),
        "timeline": not work.num_rows and is_untimed,
        "copies": lacks_copies(trace),
        "sizes-of-copies": len(sizes) > 0 and (sizes == ABSENT).all(),
        "calls": not calls.num_rows,
        # Calls are only the moments at which work was queued.
        "calls-but-moments": calls.num_rows and is_one_of(calls["name"], "dispatch").all(),
        # Kernels ran collectives, and no activity says which.
        "collectives": work["collective"].null_count == work.num_rows
        and matching(work["name"], _OF_COLLECTIVES.search).any(),
        "operators": not ops.num_rows and of_pytorch(trace),
        "shapes": ops.num_rows and ops["input_dims"].null_count == ops.num_rows,
        "kernel-counters": not trace.kernel_counters.num_rows,
        "steps": find_marked_steps(trace, None) is None and of_ml(trace),
        "stacks": not is_one_of(trace.marks["kind"], "python", "module").any(),
        # No device has a name or properties that tell its model.
        "device": devices
        and not any(row["product"] or match(SeenDevice.of(row)).row for row in devices),
        "rank": len(ranks) and ranks.null_count == len(ranks),
        "memory": not trace.counters.num_rows,
    }
    codes = (code for code, lacks_it in is_lacking.items() if lacks_it)
    return {code: code.removesuffix("-but-moments").replace("-", " ") for code in codes}


def how_to_record(trace: Trace) -> str | None:
    """Return the command line that records what the trace has and lacks, None if none helps."""
    if _did_nothing(trace):
        return None  # the same command would record as little again
    return command(trace) if _RECORDED.intersection(_lacks(trace).values()) else None


def _did_nothing(trace: Trace) -> bool:
    """Return whether the process did no work, which another command would not change."""
    facts, has_work = trace.source.facts, trace.activities.num_rows > 0
    is_known = facts.get(CUDA_TRACE) == "true" or PROGRAM_ERROR in facts
    return not has_work and (is_known or launches_no_kernel(trace.calls))


def _counting(trace: Trace) -> str | None:
    """Return options that record counters of the devices, None if these are not of one family."""
    families = {family_of(device) for device in trace.devices["architecture"].to_pylist()}
    family = families.pop() if len(families) == 1 else None
    if family is None:
        return None
    options = ", ".join(family.options)
    runs = "in a separate run" if len(family.passes) == 1 else "each in a separate run"
    caveat = "" if family.counts_matrix_work else f"; {family.hardware} counts no matrix work"
    return f"{options} ({runs}{caveat})"

"""What a trace does not have, and how its tool would have recorded it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from traceflops.categories.programs import of_ml, of_pytorch
from traceflops.devices.counter_formulas import family_of
from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.matching import match
from traceflops.devices.side_records import SIDE_FORMATS
from traceflops.remedies import How, command, way_to_record
from traceflops.table.columns import ABSENT, is_one_of, matching, numbers
from traceflops.table.patterns import launches_nothing
from traceflops.table.trace import CUDA_TRACE, PROGRAM_ERROR, Trace
from traceflops.timeline.host_work import lacks_copies
from traceflops.windows.device_records import launch_calls
from traceflops.windows.steps import find_marked_steps

_QUEUED: Final = "dispatch"
"""The name of a call that only marks when a kernel was put into its queue."""
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
        if how is not None and lack == "kernel counters" and (options := _counting(trace)):
            how = How(options)
        if lack in _OF_CUDA and did_nothing:  # told once: without work there are no calls
            is_told = lack != "device work" or PROGRAM_ERROR in trace.source.facts
            how = None if is_told else _TRACED
        if how is not None:
            missing.append(Missing(code, how))
    return tuple(missing)


def _lacks(trace: Trace) -> dict[str, str]:
    """Return what the trace lacks: by its code, what it is called among the remedies."""
    codes = [code for code, is_lacking in _CHECKS.items() if is_lacking(trace)]
    return {code: code.removesuffix("-but-moments").replace("-", " ") for code in codes}


def how_to_record(trace: Trace) -> str | None:
    """Return the command line that records what the trace has and lacks, None if none helps."""
    if _did_nothing(trace):
        return None  # the same command would record as little again
    return command(trace) if _RECORDED.intersection(_lacks(trace).values()) else None


def _did_nothing(trace: Trace) -> bool:
    """Return whether the process did no work, which another command would not change."""
    facts = trace.source.facts
    return _no_work(trace) and (facts.get(CUDA_TRACE) == "true" or PROGRAM_ERROR in facts)


def _counting(trace: Trace) -> str | None:
    """Return options that record counters of the devices, None if these are not of one family."""
    families = {family_of(device) for device in trace.devices["architecture"].to_pylist()}
    family = families.pop() if len(families) == 1 else None
    if family is None:
        return None
    runs = ", ".join(family.options)
    without = "" if family.counts_matrix_work else f"; {family.hardware} counts no matrix work"
    each = "in a separate run" if len(family.passes) == 1 else "each in a separate run"
    return f"{runs} ({each}{without})"


def _all_null(table: str, column: str) -> Callable[[Trace], bool]:
    """Return a test for whether a table has rows, but none with a value in the column."""

    def test(trace: Trace) -> bool:
        values = trace.table(table)[column]
        return len(values) > 0 and values.null_count == len(values)

    return test


def _no_models(trace: Trace) -> bool:
    """Return whether there are devices, and none has a name or properties that tell its model."""
    rows = trace.devices.to_pylist()
    named = any(row["product"] or match(SeenDevice.of(row)).row for row in rows)
    return bool(rows) and not named


def _no_work(trace: Trace) -> bool:
    return not trace.activities.num_rows


def _is_untimed(trace: Trace) -> bool:
    return bool(trace.totals.num_rows or trace.kernel_counters.num_rows)


def _no_collectives(trace: Trace) -> bool:
    """Return whether kernels ran collectives, and no activity says which."""

    def runs_one(name: str) -> bool:
        text = name.lower()  # ten times as fast as a regular expression
        return "nccl" in text or "rccl" in text

    kinds = trace.activities["collective"]
    is_silent = kinds.null_count == len(kinds)
    return is_silent and bool(matching(trace.activities["name"], runs_one).any())


def _no_device_work(trace: Trace) -> bool:
    """Return whether the trace tells neither that work was launched nor that none was."""
    has_calls = launch_calls(trace) > 0 or launches_nothing(trace.calls)
    return _no_work(trace) and not _is_untimed(trace) and not has_calls


def _no_sizes(trace: Trace) -> bool:
    copies = is_one_of(trace.activities["kind"], "memcpy")
    sizes = numbers(trace.activities["bytes"], ABSENT)[copies]
    return len(sizes) > 0 and bool((sizes == ABSENT).all())


def _has_only_moments(trace: Trace) -> bool:
    """Return whether calls are recorded only as the moments at which work was queued."""
    return trace.calls.num_rows > 0 and bool(is_one_of(trace.calls["name"], _QUEUED).all())


_CHECKS: Final[Mapping[str, Callable[[Trace], bool]]] = {
    "device-records": lambda trace: (
        _no_work(trace) and not _is_untimed(trace) and launch_calls(trace) > 0
    ),
    "device-work": _no_device_work,
    "timeline": lambda trace: _no_work(trace) and _is_untimed(trace),
    "copies": lacks_copies,
    "sizes-of-copies": _no_sizes,
    "calls": lambda trace: not trace.calls.num_rows,
    "calls-but-moments": _has_only_moments,
    "collectives": _no_collectives,
    "operators": lambda trace: not trace.ops.num_rows and of_pytorch(trace),
    "shapes": _all_null("ops", "input_dims"),
    "kernel-counters": lambda trace: not trace.kernel_counters.num_rows,
    "steps": lambda trace: find_marked_steps(trace, None) is None and of_ml(trace),
    "stacks": lambda trace: not is_one_of(trace.marks["kind"], "python", "module").any(),
    "device": _no_models,
    "rank": _all_null("processes", "rank"),
    "memory": lambda trace: not trace.counters.num_rows,
}
"""Tests for what a trace may lack, by its code, in the order in which it is reported."""

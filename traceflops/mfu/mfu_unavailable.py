"""Why a trace has no utilisation; the first reason says most."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from traceflops.attribution import UNKNOWN_TYPE
from traceflops.devices import (
    NEXT_TIME,
    NO_MATRIX_WORK,
    PAIR,
    MissingInput,
    counters_alone,
    counters_incomplete,
    other_counters,
    shown,
    without_rates,
    without_shapes,
    without_times,
)
from traceflops.flops import TF32_OR_FP32, Waterfall
from traceflops.mfu.budget import DevicePeaks
from traceflops.mfu.traced.coverage import ENOUGH, TOO_LITTLE
from traceflops.mfu.traced.executed import Executed
from traceflops.remedies import NSIGHT, ROCPROF, family, remedy
from traceflops.table import Note
from traceflops.units import exact_percent
from traceflops.windows import Prepared

_UNTOLD_TYPES: Final = {
    TF32_OR_FP32: "kernel names do not say whether float products ran as TF32 or FP32",
    UNKNOWN_TYPE: "the data type of some products is unknown",
}
WHY_UNKNOWN: Final = {
    "no-op": "launching operator unknown",
    "no-modelled-op": "its operator is not supported yet",
    "ambiguous": "equal launches did different work in the other run",
    "uncounted": "its FLOPs are unknown in the other run too",
    "absent": "the other run has no launch with its name and size",
    "not-modelled": "its operator is not supported yet",
    "no-shapes": "the shapes of its operator were not recorded",
    "odd-shapes": "the recorded shapes do not fit its operator",
    "no-values": "values that its operator needs, such as stride and padding, were not recorded",
    "not-in-trace": "no profiler records what its FLOPs depend on",
    "children": "the shapes of its operator are not enough",
    "too-large": "its operation count is implausibly large",
}
_CAPTURE: Final = MissingInput(
    "captured kernels did not run",
    "give this trace as --pair to the trace that launches the graph",
)
_OTHER_STEPS: Final = "select other steps with --steps"
LIKELY: Final = (
    "likely: the peak of another GPU or partition (traceflops devices --trace FILE) "
    "or of another data type, or wrong clocks"
)
_TOOLS: Final = {ROCPROF: "rocprof", NSIGHT: "Nsight"}
"""Tools that record no operators."""


def why_no_figure(
    prepared: Prepared, done: Executed, devices: tuple[DevicePeaks, ...]
) -> Iterator[MissingInput]:
    """Yield what keeps the figures back; the first says most."""
    kinds = prepared.trace.devices["type"].to_pylist()
    if all(kinds[device.device] == "cpu" for device in devices):
        yield _without_devices(prepared, done)
        return
    if not prepared.launch_records.is_judged:
        how = remedy(prepared.trace.source.format, "all device records") or NEXT_TIME
        lost = MissingInput("GPU records are incomplete", how)
        yield _CAPTURE if prepared.launch_records.state == "capture" else lost
        return
    if not done.executed_flops:
        yield _nothing_counted(prepared, done)
        return
    coverage = done.coverage
    if coverage is None or coverage < TOO_LITTLE:
        known = exact_percent(coverage or Fraction(0))
        problem = f"only {known} of the compute time has known FLOPs, too little for an MFU"
        yield MissingInput(problem, _largest_unknown(done))
        return
    yield from _without_peak(done, devices)


def unknown_flops(done: Executed, fall: Waterfall | None) -> Iterator[Note]:
    """Yield which kernels make a range of the figure, where too few FLOPs are known for one."""
    if fall is None or done.coverage is None or fall.known_share >= ENOUGH:
        return
    text = (
        f"Compute kernels with {exact_percent(1 - done.coverage)} of the compute time have "
        f"unknown FLOPs. At peak they would do {exact_percent(1 - fall.known_share)} of all "
        f"FLOPs, so the figure is a range; {_largest_unknown(done)}."
    )
    yield Note("missing", "flops-unknown", text)


def impossible(fall: Waterfall, devices: tuple[DevicePeaks, ...]) -> MissingInput:
    """Return that figures contradict each other; first that a device does, if the user chose it."""
    problem = f"the figures are inconsistent: {fall.errors[0]}"
    against = next((one.match.contradicts for one in devices if one.match.contradicts), "")
    return MissingInput(f"{against}; {problem}" if against else problem, LIKELY)


def _without_devices(prepared: Prepared, done: Executed) -> MissingInput:
    counted = sum(row.launches for row in done.work.counted) if done.work is not None else 0
    trace = prepared.trace
    if counted and not trace.activities.num_rows and not trace.totals.num_rows:
        return counters_alone(counted)
    how = remedy(prepared.trace.source.format, "device work")
    return without_times(prepared.trace, how)


def _nothing_counted(prepared: Prepared, done: Executed) -> MissingInput:
    ops = prepared.trace.ops
    if done.work is not None and (lack := _nothing_told(done)) is not None:
        return lack
    if not ops.num_rows:
        return _without_ops(prepared)
    if ops["input_dims"].null_count == ops.num_rows:
        how = remedy(prepared.trace.source.format, "shapes")
        problem = "the operators have no shapes, so FLOPs are unknown"
        return MissingInput(problem, f"record with {how} next time" if how else NEXT_TIME)
    if done.outside.unattributed:
        return MissingInput("no compute kernel has known FLOPs", _largest_unknown(done))
    others = len(prepared.plan.choice.seen) > len(prepared.plan.choice.used)
    return MissingInput(
        "no operator with matrix work was executed", _OTHER_STEPS if others else PAIR
    )


def _nothing_told(done: Executed) -> MissingInput | None:
    """Return why counters or a paired run tell no FLOPs, None where they were not asked."""
    work = done.work
    if work is None or not work.joins:
        return None
    if any(join.known for join in work.joins):
        return NO_MATRIX_WORK
    told = any(row.flops is not None for row in work.counted)
    if work.counted and not told and not any(join.origin == "pair" for join in work.joins):
        if not any(row.by_type[one] is not None for row in work.counted for one in row.by_type):
            return other_counters(work.families)
        return counters_incomplete(work.families, work.missing)
    return MissingInput("no compute kernel has known FLOPs", _largest_unknown(done))


def _without_ops(prepared: Prepared) -> MissingInput:
    tool = _TOOLS.get(family(prepared.trace.source.format))
    if tool is None:
        return MissingInput("the trace has no operators, so FLOPs are unknown", NEXT_TIME)
    from traceflops.devices import family_of

    named = prepared.trace.devices["architecture"].to_pylist()
    return without_shapes(tool, [family_of(one) for one in named])


def _largest_unknown(done: Executed) -> str:
    """Return of which kernels most time has no FLOPs; what else gives an MFU if none is known."""
    for one in done.outside.unattributed[:1]:
        why = WHY_UNKNOWN.get(one.why, one.why)
        return f"most time without known FLOPs is in {shown(one.kernel)} ({why})"
    return PAIR


def _without_peak(done: Executed, devices: tuple[DevicePeaks, ...]) -> Iterator[MissingInput]:
    """Yield a lack per device whose rate for a counted data type is not known, each once."""
    problems: dict[str, None] = {}
    for device in devices:
        for dtype in sorted(done.dtypes - device.rates.keys()):
            problem = _UNTOLD_TYPES.get(dtype) if device.rates else None
            problems[problem or device.match.why_no_peak(dtype) or device.match.explanation] = None
    yield from map(without_rates, problems)

"""What a report says of utilisation and of kernels, as plain dicts and lists."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from traceflops.attribution.charged import OF_KERNEL, USUAL
from traceflops.devices.gpu_samples import THROTTLE_BITS
from traceflops.flops.mfu_waterfall import Waterfall
from traceflops.mfu.budget import DevicePeaks, ShareRange
from traceflops.mfu.counted.counter_work import CountedKernel
from traceflops.mfu.counted.kernel_speeds import KernelSpeed
from traceflops.mfu.inference import Inference, PhaseUse
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.executed import Executed
from traceflops.mfu.traced.work_tables import KernelRow, OpRow
from traceflops.reports.view.figures import as_float, fields, flop_count
from traceflops.reports.view.utilisation import roof, roofline, share_of_bandwidth, share_of_link

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.mfu.counted.joins import CrossCheck, Join, MeasuredWork


def measured_object(measured: Measurement) -> dict[str, Any]:
    """Return a measurement. Shares are 0 to 1, times ns, unknown is null."""
    done = measured.executed
    counted = done.executed_flops > 0
    split = counted and (done.model_flops > 0 or not done.unsplit_flops)
    return {
        **share_object("mfu", measured.mfu, measured.mfu_range),
        **share_object("hfu", measured.hfu, measured.hfu_range),
        **share_object("busy_mfu", measured.busy_mfu, measured.busy_range),
        "basis": measured.basis if measured.waterfall is not None else None,
        "coverage": as_float(done.coverage),
        "unattributed_ns": done.unattributed_ns,
        **flop_count("model_flops", done.model_flops if split else None),
        **flop_count("model_flops_at_least", done.model_at_least if split else None),
        **flop_count("executed_flops", done.executed_flops if counted else None),
        **flop_count("executed_flops_at_least", done.executed_at_least if counted else None),
        **flop_count("unsplit_flops", done.unsplit_flops if counted else None),
        **flop_count("vector_flops", done.outside.vector_flops),
        "sources": list(measured.sources),
        **_by_recordings(done.work),
        "lacks": [fields(lack, "problem", "remedy") for lack in measured.lacks],
        "peaks": [_peak(device) for device in measured.devices],
        "waterfall": waterfall_object(measured.waterfall)
        if measured.waterfall is not None
        else None,
        "ledger": _ledger(done),
        "open_lines": [
            {
                "line": a_range.line,
                **flop_count("at_least", a_range.at_least),
                **flop_count("at_most", a_range.at_most),
            }
            for a_range in done.ranges()
        ],
        "inference": _inference(measured.inference) if measured.inference is not None else None,
        "needed_time": {
            name: {**asdict(time), "excess_ns": time.excess_ns}
            for name, time in (
                ("memory", measured.roofs.memory),
                ("compute", measured.roofs.compute),
            )
        },
        **_outside(measured),
        **_tables(measured),
    }


def _by_recordings(work: MeasuredWork | None) -> dict[str, Any]:
    """Return what counters and a second recording tell."""
    if work is None:
        return {"joins": [], "cross_check": None, "counted_kernels": [], "speed_of_light": []}
    return {
        "joins": [_join(join) for join in work.joins],
        "cross_check": _check(work.check) if work.check is not None else None,
        "counted_kernels": [_counted(one) for one in work.counted],
        "speed_of_light": [_speed(one) for one in work.speeds],
    }


def _join(join: Join) -> dict[str, Any]:
    return {
        **fields(join, "origin", "file", "launches", "known", "share"),
        "parts": [fields(part, "how", "launches", "time_ns") for part in join.parts],
    }


def _check(one: CrossCheck) -> dict[str, Any]:
    return {
        "launches": one.launches,
        **flop_count("by_counters", one.counted),
        **flop_count("by_shapes_at_least", one.least),
        **flop_count("by_shapes_at_most", one.most),
        "difference": as_float(one.difference),
        "kernel": one.kernel,
    }


def share_object(name: str, share: Fraction | None, bounds: ShareRange | None) -> dict[str, Any]:
    """Return a share with its bounds."""
    return {
        name: as_float(share),
        f"{name}_at_least": as_float(bounds.least) if bounds is not None else None,
        f"{name}_at_most": as_float(bounds.most) if bounds is not None else None,
    }


def _counted(row: CountedKernel) -> dict[str, Any]:
    return {
        "name": row.name,
        "launches": row.launches,
        **flop_count("flops", row.flops),
        "flops_by_type": dict(row.by_type),
        **flop_count("vector_flops", row.vector),
        "read_bytes": row.read,
        "written_bytes": row.written,
        "matrix_busy": as_float(row.busy),
    }


def _speed(row: KernelSpeed) -> dict[str, Any]:
    roof, share = row.roof or (None, None)
    return {
        **fields(row, "name", "launches", "grid", "block", "duration_ns"),
        "throughputs": dict(row.throughputs),
        "nearest_roof": roof,
        "nearest_roof_share": share,
        **fields(row, "active", "achieved_occupancy", "theoretical_occupancy", "limiters"),
        "registers_per_thread": row.registers,
        "waves_per_sm": row.waves,
        "stalls": [{"reason": reason, "share": share} for reason, share in row.stalls],
        "rules": [asdict(rule) for rule in row.rules],
    }


def _ledger(done: Executed) -> list[dict[str, Any]]:
    """Return the lines; `flops` is the upper of two bounds where a count lies between them."""
    least: Counter[str] = Counter()
    for cell in done.select():
        least[cell.line] += cell.at_least
    return [
        {
            "line": line.name,
            **flop_count("flops", line.flops),
            **flop_count("flops_at_least", least[line.name]),
        }
        for line in done.ledger().lines
    ]


def _inference(inference: Inference) -> dict[str, Any]:
    phases = [_phase(phase) for phase in inference.phases]
    return {**fields(inference, "rule", "outside_ns"), "phases": phases}


def _phase(phase: PhaseUse) -> dict[str, Any]:
    return {
        "kind": phase.kind,
        "rules": [{"rule": rule, "passes": passes} for rule, passes in phase.rules],
        **fields(phase, "passes", "sequences", "queries", "keys", "time_ns"),
        **flop_count("flops", phase.flops),
        "weight_bytes": phase.moved.weights,
        "cache_bytes": phase.moved.cache,
        "min_bytes": phase.moved.total,
        "possible_bytes": phase.possible,
        "bytes_coverage": as_float(phase.coverage),
        "mbu": as_float(phase.mbu),
    }


def _outside(measured: Measurement) -> dict[str, Any]:
    return {
        "not_executed": [
            {**fields(row, "why", "op", "count"), **flop_count("flops", row.flops)}
            for row in measured.executed.outside.not_counted
        ],
        "unattributed": [
            fields(row, "kernel", "why", "count", "sum_ns")
            for row in measured.executed.outside.unattributed
        ],
    }


def _tables(measured: Measurement) -> dict[str, Any]:
    return {
        "kernels": [
            {
                **fields(row, "name", "count", "sum_ns", "counted", "basis"),
                **flop_count("vector_flops", row.vector_flops),
                **_work(measured, row),
            }
            for row in measured.kernels
        ],
        "ops": [
            {**fields(row, "name", "count", "launches"), **_work(measured, row)}
            for row in measured.ops
        ],
    }


def _peak(one: DevicePeaks) -> dict[str, Any]:
    spec = one.match.spec
    return {
        "device": one.device,
        "id": spec.id if spec is not None else None,
        "product": one.product,
        "confirmed": one.match.confirmed,
        "explanation": one.match.explanation,
        "given": one.given,
        "flop_per_ns": dict(one.rates),
        "bytes_per_ns": one.bandwidth,
        "host_link": one.match.host_link.name if one.match.host_link is not None else None,
        "host_link_bytes_per_ns": as_float(one.host_bandwidth),
        "source": spec.source if spec is not None else None,
    }


def waterfall_object(fall: Waterfall) -> dict[str, Any]:
    """Return a waterfall: its budget, and its lines that sum to it."""
    return {
        "unit": fall.unit,
        "dtypes": list(fall.dtypes),
        **flop_count("budget", fall.budget),
        "lines": [
            {
                "line": line.name,
                **flop_count("amount", line.amount),
                "share": as_float(fall.share(line.name)),
            }
            for line in fall.lines
        ],
    }


def _work(measured: Measurement, row: KernelRow | OpRow) -> dict[str, Any]:
    work, bound = row.measured, roofline(measured, row.measured, row)
    peak, _ = roof(measured, row.dtypes)
    return {
        **flop_count("flops", work.flops),
        **flop_count("flops_at_least", work.at_least),
        **fields(work, "min_bytes", "time_ns"),
        "flop_per_ns": as_float(work.flops_per_ns),
        **fields(work, "bytes_per_ns", "intensity"),
        "share_of_peak": as_float(work.share_of_peak(peak)),
        "share_of_bandwidth": as_float(share_of_bandwidth(measured, row)),
        "share_of_link": as_float(share_of_link(measured, row)),
        "path": row.path,
        "bound": bound.bound if bound is not None else None,
        "bound_by": bound.basis if bound is not None else None,
    }


def kernel_objects(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the kernels, each with the time that it was charged, also by what launched it."""
    known, charged = analysis.charged, defaultdict(list)
    for one in known or ():
        row = {k: v for k, v in asdict(one).items() if k not in USUAL or v != USUAL[k]}
        charged[tuple(row.pop(name) for name in OF_KERNEL)].append(row)
    kernels: list[dict[str, Any]] = analysis.kernels.to_pylist()
    for kernel in kernels:
        mine = charged[tuple(kernel[name] for name in OF_KERNEL)]
        kernel["charged_ns"] = None if known is None else sum(one["charged_ns"] for one in mine)
        kernel["charged"] = mine
    return kernels


def sampled_objects(analysis: Analysis) -> list[dict[str, Any]]:
    """Return what was sampled of each GPU: clocks while it works, reasons, and all else."""
    prepared = analysis.prepared
    local = prepared.trace.devices["local_id"].to_pylist() if prepared else []
    return [
        {
            "device": one.device,
            "local_id": local[one.device],
            "samples": one.count,
            "busy_samples": one.busy,
            **fields(one, "clock_mhz", "max_clock_mhz"),
            "reasons": one.reasons and {THROTTLE_BITS[bit]: s for bit, s in one.reasons.items()},
            **dict(zip(("slow_start_ns", "slow_end_ns"), one.slow_ns or (None, None), strict=True)),
            "values": {
                name.removeprefix("gpu."): asdict(value) for name, value in one.values.items()
            },
        }
        for one in analysis.gpu_samples
    ]

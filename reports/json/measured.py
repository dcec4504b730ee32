"""Utilisation, kernels and GPU samples as plain dicts and lists.

Shares are 0 to 1, times ns, unknown is null. FLOPs are given twice: as a number and, with `_text`,
exactly.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from msgspec import to_builtins

from traceflops.analysis.result import Analysis
from traceflops.attribution.charged import OF_KERNEL, USUAL
from traceflops.devices.gpu_samples import THROTTLE_BITS
from traceflops.flops.mfu_waterfall import Waterfall
from traceflops.mfu.budget import DevicePeaks, ShareRange
from traceflops.mfu.counted.counter_work import CountedKernel
from traceflops.mfu.counted.joins import MeasuredWork
from traceflops.mfu.counted.kernel_speeds import KernelSpeed
from traceflops.mfu.inference import Inference
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.executed import Executed
from traceflops.mfu.traced.work_tables import KernelRow, OpRow
from traceflops.reports.view.figures import as_float, fields, flop_count
from traceflops.reports.view.texts import words
from traceflops.reports.view.utilisation import roof, roofline, share_of_bandwidth, share_of_link


def measured_object(measured: Measurement) -> dict[str, Any]:
    """Return the utilisation of a trace; model FLOPs are null if none are known to be such."""
    executed, outside, roofs = measured.executed, measured.executed.outside, measured.roofs
    counted = executed.executed_flops > 0
    split = counted and (executed.model_flops > 0 or not executed.unsplit_flops)
    fall, inference = measured.waterfall, measured.inference
    return {
        **share_object("mfu", measured.mfu, measured.mfu_range),
        **share_object("hfu", measured.hfu, measured.hfu_range),
        **share_object("busy_mfu", measured.busy_mfu, measured.busy_range),
        "basis": measured.basis if fall is not None else None,
        "coverage": as_float(executed.coverage),
        "unattributed_ns": sum(time.uncounted_ns for time in executed.times if time.used),
        **flop_count("model_flops", executed.model_flops if split else None),
        **flop_count("model_flops_at_least", executed.model_at_least if split else None),
        **flop_count("executed_flops", executed.executed_flops if counted else None),
        **flop_count("executed_flops_at_least", executed.executed_at_least if counted else None),
        **flop_count("unsplit_flops", executed.unsplit_flops if counted else None),
        **flop_count("vector_flops", outside.vector_flops),
        "sources": list(measured.sources),
        **_by_recordings(executed.work),
        "lacks": [fields(lack, "problem", "remedy") for lack in measured.lacks],
        "peaks": [_peak(device) for device in measured.devices],
        "waterfall": waterfall_object(fall) if fall is not None else None,
        "ledger": _ledger(executed),
        "inference": _inference(inference) if inference is not None else None,
        "needed_time": {
            name: {**to_builtins(time), "excess_ns": time.excess_ns}
            for name, time in (("memory", roofs.memory), ("compute", roofs.compute))
        },
        "not_executed": [
            {**fields(row, "why", "op", "count"), **flop_count("flops", row.flops)}
            for row in outside.not_counted
        ],
        "unattributed": [
            fields(row, "kernel", "why", "count", "sum_ns") for row in outside.unattributed
        ],
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


def share_object(name: str, share: Fraction | None, bounds: ShareRange | None) -> dict[str, Any]:
    """Return a share as `name`, with its bounds `name_at_least` and `name_at_most`."""
    return {
        name: as_float(share),
        f"{name}_at_least": as_float(bounds.least) if bounds is not None else None,
        f"{name}_at_most": as_float(bounds.most) if bounds is not None else None,
    }


def waterfall_object(fall: Waterfall) -> dict[str, Any]:
    """Return an MFU waterfall: its budget, and the lines that add up to it."""
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


def _by_recordings(work: MeasuredWork | None) -> dict[str, Any]:
    """Return what other recordings measured: FLOPs, their agreement, counters, speeds."""
    if work is None:
        return {"joins": [], "cross_check": None, "counted_kernels": [], "speed_of_light": []}
    check = work.check
    return {
        "joins": [
            {
                **fields(join, "origin", "file", "launches", "known", "share"),
                "parts": [fields(part, "how", "launches", "time_ns") for part in join.parts],
            }
            for join in work.joins
        ],
        "cross_check": check
        and {
            "launches": check.launches,
            **flop_count("by_counters", check.counted),
            **flop_count("by_shapes_at_least", check.least),
            **flop_count("by_shapes_at_most", check.most),
            "difference": as_float(check.difference),
            "kernel": check.kernel,
        },
        "counted_kernels": [_counted(kernel, work.bandwidth) for kernel in work.counted],
        "speed_of_light": [_speed(speed) for speed in work.speeds],
    }


def _counted(kernel: CountedKernel, bandwidth: int | None) -> dict[str, Any]:
    """Return the counted work of a kernel; `bandwidth` is the memory's, in bytes per ns."""
    rate = kernel.bytes_per_ns
    return {
        **fields(kernel, "name", "launches"),
        **flop_count("flops", kernel.flops),
        "flops_by_type": dict(kernel.by_type),
        **flop_count("vector_flops", kernel.vector),
        "read_bytes": kernel.read,
        "written_bytes": kernel.written,
        **fields(kernel, "time_ns", "bytes_per_ns"),
        "share_of_bandwidth": float(rate / bandwidth) if rate is not None and bandwidth else None,
        "matrix_busy": as_float(kernel.busy),
        "counters": dict(kernel.counters),
    }


def _speed(speed: KernelSpeed) -> dict[str, Any]:
    """Return how near a counted kernel is to the limits of its device."""
    return {
        **fields(speed, "name", "launches", "grid", "block", "duration_ns"),
        "throughputs": dict(speed.throughputs),
        "nearest_roof": speed.roof[0] if speed.roof else None,
        "nearest_roof_share": speed.roof[1] if speed.roof else None,
        **fields(speed, "active", "achieved_occupancy", "theoretical_occupancy", "limiters"),
        "registers_per_thread": speed.registers,
        "waves_per_sm": speed.waves,
        "stalls": [{"reason": reason, "share": share} for reason, share in speed.stalls],
        **fields(speed, "pipe", "lanes"),
        "excess_sectors": speed.excess,
        "shared_bytes_per_block": speed.shared_bytes,
        "rules": list(map(to_builtins, speed.rules)),
    }


def _peak(device: DevicePeaks) -> dict[str, Any]:
    """Return the peaks of a device, and how it was recognised."""
    match, spec = device.match, device.match.spec
    return {
        "device": device.device,
        "id": spec.id if spec is not None else None,
        "product": device.product,
        **fields(match, "confirmed", "explanation"),
        "given": device.given,
        "flop_per_ns": dict(device.rates),
        "bytes_per_ns": device.bandwidth,
        "host_link": match.host_link.name if match.host_link is not None else None,
        "host_link_bytes_per_ns": as_float(device.host_bandwidth),
        "source": spec.source if spec is not None else None,
    }


def _ledger(executed: Executed) -> list[dict[str, Any]]:
    """Return the FLOPs line by line; `flops` is an upper bound if they are not exact."""
    at_least: Counter[str] = Counter()
    for cell in executed.used_cells:
        at_least[cell.line] += cell.at_least
    return [
        {
            "line": line.name,
            **flop_count("flops", line.flops),
            **flop_count("flops_at_least", at_least[line.name]),
        }
        for line in executed.ledger().lines
    ]


def _inference(inference: Inference) -> dict[str, Any]:
    """Return the passes of inference by kind."""
    return {
        "rule": words(inference.rule),
        "outside_ns": inference.outside_ns,
        "phases": [
            {
                "kind": phase.kind,
                "rules": [{"rule": words(rule), "passes": passes} for rule, passes in phase.rules],
                **fields(phase, "passes", "sequences", "queries", "keys", "time_ns"),
                **flop_count("flops", phase.flops),
                "weight_bytes": phase.moved.weights,
                "cache_bytes": phase.moved.cache,
                "min_bytes": phase.moved.total,
                "possible_bytes": phase.possible,
                "bytes_coverage": as_float(phase.coverage),
                "mbu": as_float(phase.mbu),
            }
            for phase in inference.phases
        ],
    }


def _work(measured: Measurement, row: KernelRow | OpRow) -> dict[str, Any]:
    """Return the FLOPs, bytes and rates of a kernel or an operator, and what bounds it."""
    work, bound = row.measured, roofline(measured, row)
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
    """Return the kernels, each with the time charged to it, in total and by what launched it."""
    by_kernel = defaultdict(list)
    for charged in analysis.charged or ():
        # There may be thousands of rows: leave out fields with their usual value.
        row = {k: v for k, v in to_builtins(charged).items() if k not in USUAL or v != USUAL[k]}
        by_kernel[tuple(row.pop(name) for name in OF_KERNEL)].append(row)
    kernels: list[dict[str, Any]] = analysis.kernels.to_pylist()
    for kernel in kernels:
        rows = by_kernel[tuple(kernel[name] for name in OF_KERNEL)]
        is_known = analysis.charged is not None
        kernel["charged_ns"] = sum(row["charged_ns"] for row in rows) if is_known else None
        kernel["charged"] = rows
    return kernels


def sampled_objects(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """Yield the samples of each GPU: clocks under load, reasons for low clocks, other values."""
    local_ids = analysis.prepared.trace.devices["local_id"].to_pylist()
    for gpu in analysis.gpu_samples:
        start_ns, end_ns = gpu.slow_ns or (None, None)
        reasons = None
        if gpu.reasons is not None:
            reasons = {THROTTLE_BITS[bit]: share for bit, share in gpu.reasons.items()}
        yield {
            "device": gpu.device,
            "local_id": local_ids[gpu.device],
            "samples": gpu.count,
            "busy_samples": gpu.busy,
            **fields(gpu, "clock_mhz", "max_clock_mhz"),
            "reasons": reasons,
            "slow_start_ns": start_ns,
            "slow_end_ns": end_ns,
            "values": {
                name.removeprefix("gpu."): to_builtins(value) for name, value in gpu.values.items()
            },
        }

"""What a trace says of utilisation, as plain dicts and lists: `utilisation` of a report."""

from __future__ import annotations

from typing import Any

from traceflops.mfu.inference import Inference, PhaseUse
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.tracepeaks import DevicePeaks
from traceflops.mfu.waterfall import Waterfall
from traceflops.mfu.worktables import KernelRow, OpRow
from traceflops.reports.counts import as_float, flop_count
from traceflops.reports.measured import roof, roofline


def measured_object(found: Measurement) -> dict[str, Any]:
    """Return a measurement. Shares are 0 to 1, times ns, unknown is null."""
    done = found.executed
    counted = done.executed_flops > 0
    return {
        "mfu": as_float(found.mfu),
        "mfu_at_least": as_float(found.least),
        "mfu_at_most": as_float(found.most),
        "hfu": as_float(found.hfu),
        "busy_mfu": as_float(found.busy_mfu),
        "basis": found.basis if found.waterfall is not None else None,
        "coverage": as_float(done.coverage),
        "unattributed_ns": done.unattributed_ns,
        **flop_count("model_flops", done.model_flops if counted else None),
        **flop_count("executed_flops", done.executed_flops if counted else None),
        **flop_count("executed_flops_at_least", done.executed_at_least if counted else None),
        **flop_count("vector_flops", done.outside.vector_flops),
        "lacks": [{"problem": one.problem, "remedy": one.remedy} for one in found.lacks],
        "peaks": [_peak(one) for one in found.devices],
        "waterfall": waterfall_object(found.waterfall) if found.waterfall is not None else None,
        "ledger": [
            {"line": line.name, **flop_count("flops", line.flops)} for line in done.ledger().lines
        ],
        "open_lines": [
            {
                "line": one.line,
                **flop_count("at_least", one.at_least),
                **flop_count("at_most", one.at_most),
            }
            for one in done.ranges()
        ],
        "inference": _inference(found.inference) if found.inference is not None else None,
        **_outside(found),
        **_tables(found),
    }


def _inference(found: Inference) -> dict[str, Any]:
    return {
        "rule": found.rule,
        "outside_ns": found.outside_ns,
        "phases": [_phase(one) for one in found.phases],
    }


def _phase(one: PhaseUse) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "rules": [{"rule": rule, "passes": passes} for rule, passes in one.rules],
        "passes": one.passes,
        "sequences": one.sequences,
        "queries": one.queries,
        "keys": one.keys,
        "time_ns": one.time_ns,
        **flop_count("flops", one.flops),
        "weight_bytes": one.moved.weights,
        "cache_bytes": one.moved.cache,
        "min_bytes": one.moved.total,
        "possible_bytes": one.possible,
        "bytes_coverage": as_float(one.coverage),
        "mbu": as_float(one.mbu),
    }


def _outside(found: Measurement) -> dict[str, Any]:
    return {
        "not_executed": [
            {"why": one.why, "op": one.op, "count": one.count, **flop_count("flops", one.flops)}
            for one in found.executed.outside.not_counted
        ],
        "unattributed": [
            {"kernel": one.kernel, "why": one.why, "count": one.count, "sum_ns": one.sum_ns}
            for one in found.executed.outside.unattributed
        ],
    }


def _tables(found: Measurement) -> dict[str, Any]:
    return {
        "kernels": [
            {
                "name": row.name,
                "count": row.count,
                "sum_ns": row.sum_ns,
                "counted": row.counted,
                **_work(found, row),
            }
            for row in found.kernels
        ],
        "ops": [
            {
                "name": row.name,
                "count": row.count,
                "launches": row.launches,
                **_work(found, row),
            }
            for row in found.ops
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


def _work(found: Measurement, row: KernelRow | OpRow) -> dict[str, Any]:
    work, bound = row.measured, roofline(found, row.measured, row)
    peak, bandwidth = roof(found, row.dtypes)
    return {
        **flop_count("flops", work.flops),
        "min_bytes": work.min_bytes,
        "time_ns": work.time_ns,
        "flop_per_ns": as_float(work.flops_per_ns),
        "bytes_per_ns": as_float(work.bytes_per_ns),
        "intensity": as_float(work.intensity),
        "share_of_peak": as_float(work.share_of_peak(peak)),
        "share_of_bandwidth": as_float(work.share_of_bandwidth(bandwidth)),
        "bound": bound.bound if bound is not None else None,
        "bound_by": bound.basis if bound is not None else None,
    }

"""What a trace says of memory, as plain dicts and lists: `memory` of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceflops.memory.usage import MemoryUse, Series, memory_use

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis


def memory_object(analysis: Analysis) -> list[dict[str, Any]]:
    """Return a row per device and host that the trace tells of; sizes are bytes, times ns."""
    return [_use(one) for one in memory_use(analysis.prepared)] if analysis.prepared else []


def _use(one: MemoryUse) -> dict[str, Any]:
    return {
        "rank": one.rank,
        "file": one.file,
        "device": one.device,
        "on_host": one.on_host,
        "is_total": one.is_total,
        "device_bytes": one.device_bytes,
        "share_of_device": one.share_of_device,
        "spare_at_peak_bytes": one.unused_at_peak,
        "allocated": _series(one.allocated),
        "reserved": _series(one.reserved) if one.reserved is not None else None,
    }


def _series(one: Series) -> dict[str, Any]:
    return {
        "changes": one.curve.changes,
        "first_bytes": one.first,
        "last_bytes": one.last,
        "peak_bytes": one.peak,
        "peak_ns": one.peak_ns,
        "peak_step": one.peak_step,
        "growth_bytes": one.growth,
        "steps": [
            {"step": each.step, "most_bytes": each.most, "at_end_bytes": each.at_end}
            for each in one.steps
        ],
    }

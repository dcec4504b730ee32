"""What a report says of a simulated run, as far as a format carries it: the figures to compare."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import traceflops as tf
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.records import Run
from traceflops.timeline.records import Account, IdleCauses, Window
from traceflops.windows.records import DeviceReport

RICH: Final[dict[str, Any]] = {
    "seed": 5,
    "steps": 5,
    "first_step": 3,
    "layers": 1,
    "vocab": 2048,
    "lead_in": True,
    "copy_stream": True,
    "sync_each_step": True,
    "zero_length_kernels": True,
    "data_stall_steps": (5,),
    "data_stall_ns": 900_000,
    "clock_skew_ns": 12_345,
}
"""A run with a bit of everything."""
TWO_RANKS: Final[dict[str, Any]] = {"ranks": 2, "straggler_rank": 1, "straggler_percent": 120}


class Held(Protocol):
    """What a format has a place for: bytes, links of work to calls, and facts of the GPU."""

    @property
    def bytes(self) -> bool: ...
    @property
    def links(self) -> bool: ...
    @property
    def product(self) -> bool: ...
    @property
    def memory(self) -> bool: ...


@lru_cache(maxsize=16)
def pytorch_report(run: Run) -> tf.Analysis:
    """Return the analysis of a run that was written by the PyTorch profiler."""
    with TemporaryDirectory() as folder:
        write_pytorch(run, Path(folder), KinetoOptions(compression="none"))
        return tf.analyze(tf.read(folder))


@dataclass(frozen=True)
class Figures:
    """Takes every figure that a format carries; `streams` are told of all work or not compared."""

    carries: Held
    streams: bool

    def of(self, analysis: tf.Analysis) -> dict[str, Any]:
        """Return the figures of a report, times from each device's start."""
        return {
            "steps": (analysis.steps.source, analysis.steps.seen, analysis.steps.used),
            "typical": analysis.steps.typical_ns,
            "total": self.account(analysis.total),
            "devices": [self.device(one) for one in in_order(analysis)],
            "kernels": kernels(analysis),
            "categories": {
                (row["top"], row["sub"]): (row["count"], row["sum_ns"])
                for row in analysis.categories.to_pylist()
            },
            "verdict": (analysis.verdict.loss, analysis.verdict.share),
        }

    def device(self, one: DeviceReport) -> dict[str, Any]:
        """Return the figures of a device."""
        whole, carries = one.whole, self.carries
        overlaps = whole.same_stream_overlaps, whole.same_stream_overlap_max_ns
        return {
            "span": (whole.span_ns, whole.busy_ns, whole.sum_ns, whole.zero_length),
            "kinds": whole.kinds,
            "categories": whole.categories,
            "communication": whole.communication,
            "exposed": (whole.exposed_communication_ns, whole.hidden_communication_ns),
            "copies": {
                way: (copies.count, copies.sum_ns, copies.bytes if carries.bytes else None)
                for way, copies in whole.copies.items()
            },
            "unlinked": whole.unlinked if carries.links else None,
            "whole": self.account(whole.account),
            "windows": [self.window(w, whole.start_ns) for w in one.windows],
            "chosen": self.account(one.chosen),
            "streams": (whole.streams, overlaps) if self.streams else None,
            "product": (one.product, one.sm_count) if carries.product else None,
            "memory": one.memory_bytes if carries.memory else None,
        }

    def window(self, one: Window, zero_ns: int) -> dict[str, Any]:
        """Return the figures of a window."""
        return {
            "which": (one.role, one.step, one.used, one.left_out, one.launched, one.unfinished),
            "bounds": (one.start_ns - zero_ns, one.end_ns - zero_ns),
            "account": self.account(one.account),
        }

    def account(self, one: Account) -> dict[str, Any]:
        """Return the figures of an account."""
        return {
            "components": one.components.parts(),
            "hidden": one.hidden_communication_ns,
            "idle": self.idle(one.idle_causes),
            "activities": one.activities,
            "launched": ((one.launched_activities, one.launches) if self.carries.links else None),
        }

    def idle(self, causes: IdleCauses) -> dict[str, int]:
        """Return idle time by cause; what waited is not told apart where streams are not."""
        parts = causes.parts()
        if self.streams:
            return parts
        waited = parts.pop("queued") + parts.pop("launch_latency")
        return parts | {"waited": waited}


def waits_on(analysis: tf.Analysis) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Return who idle time is due to; names of work, which differ between formats, left out."""
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    for one in analysis.idle.culprits:
        key = one.kind, "" if one.kind in ("device_wait", "graph_gaps") else one.label
        idle_ns, gaps, blocked_ns = sums.get(key, (0, 0, 0))
        sums[key] = idle_ns + one.idle_ns, gaps + one.gaps, blocked_ns + one.blocked_before_ns
    return sums


def in_order(analysis: tf.Analysis) -> list[DeviceReport]:
    """Return the devices by rank where it is known, else by the process's place."""
    return sorted(analysis.devices, key=lambda one: (one.rank or 0, one.process))


def kernels(analysis: tf.Analysis) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Return count and times by name; copies and fills go by other names in other formats."""
    found: dict[tuple[str, ...], tuple[int, ...]] = {}
    for row in analysis.kernels.to_pylist():
        name = row["name"] if row["kind"] == "kernel" else ""
        key = (name, row["kind"], row["top"], row["sub"])
        figure: tuple[int, ...] = (row["count"], row["sum_ns"])
        if row["kind"] == "kernel":
            figure += (row["mean_ns"], row["min_ns"], row["max_ns"])
            assert key not in found
        before = found.get(key, (0,) * len(figure))
        found[key] = tuple(a + b for a, b in zip(before, figure, strict=True))
    return found


def differences(found: Any, expected: Any, at: str = "") -> list[str]:
    """Return where two figures differ, one line each."""
    if found == expected:
        return []
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = sorted(found.keys() | expected.keys(), key=str)
        pairs = [(key, found.get(key), expected.get(key)) for key in keys]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(place, *pair) for place, pair in enumerate(zip(found, expected, strict=True))]
    else:
        return [f"{at}: {found} instead of {expected}"]
    return [line for key, a, b in pairs for line in differences(a, b, f"{at}.{key}")]

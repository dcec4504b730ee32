"""What a report says of a simulated run, as far as a format carries it: the figures to compare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import traceflops as tf
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_options import KinetoOptions
from sample_traces.records import Run
from sample_traces.rocprof.carries import Carries
from sample_traces.rocprof.formats import WRITERS
from sample_traces.rocprof.options import RocprofOptions
from traceflops.results import Account, DeviceReport, IdleCauses, Window

DEFAULT = RocprofOptions()


def rocprof_report(name: str, run: Run, options: RocprofOptions = DEFAULT) -> tf.Analysis:
    """Return the analysis of a run that was written in one of rocprof's formats."""
    with TemporaryDirectory() as folder:
        WRITERS[name](run, Path(folder), options)
        return tf.analyze(tf.read(folder))


def pytorch_report(run: Run) -> tf.Analysis:
    """Return the analysis of a run that was written by the PyTorch profiler."""
    with TemporaryDirectory() as folder:
        write_pytorch(run, Path(folder), KinetoOptions(compression="none"))
        return tf.analyze(tf.read(folder))


def figures(analysis: tf.Analysis, carries: Carries, run: Run) -> dict[str, Any]:
    """Return every figure of a report that a format carries, times from each device's start."""
    return _Figures(carries, all_in_streams(carries, run)).of(analysis)


def all_in_streams(carries: Carries, run: Run) -> bool:
    """Return whether the format says of all work of a run in which stream it stood."""
    works = (one.work for rank in run.ranks for one in rank.activities)
    return carries.streams and not (carries.copies and any(w.kind == "memcpy" for w in works))


@dataclass(frozen=True)
class _Figures:
    carries: Carries
    streams: bool

    def of(self, analysis: tf.Analysis) -> dict[str, Any]:
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
        return {
            "which": (one.role, one.step, one.used, one.left_out, one.launched, one.unfinished),
            "bounds": (one.start_ns - zero_ns, one.end_ns - zero_ns),
            "account": self.account(one.account),
        }

    def account(self, one: Account) -> dict[str, Any]:
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

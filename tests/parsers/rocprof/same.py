"""What a report says of a run that was written in one of rocprof's formats."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import traceflops as tf
from sample_traces.records import Run
from sample_traces.rocprof.formats import WRITERS, Carries
from sample_traces.rocprof.options import RocprofOptions
from tests.parsers.figures import Figures, differences, in_order, pytorch_report

__all__ = [
    "all_in_streams",
    "differences",
    "figures",
    "in_order",
    "pytorch_report",
    "rocprof_report",
]

DEFAULT = RocprofOptions()


def rocprof_report(name: str, run: Run, options: RocprofOptions = DEFAULT) -> tf.Analysis:
    """Return the analysis of a run that was written in one of rocprof's formats."""
    with TemporaryDirectory() as folder:
        WRITERS[name](run, Path(folder), options)
        return tf.analyze(tf.read(folder))


def figures(analysis: tf.Analysis, carries: Carries, run: Run) -> dict[str, Any]:
    """Return every figure of a report that a format carries, times from each device's start."""
    return Figures(carries, all_in_streams(carries, run)).of(analysis)


def all_in_streams(carries: Carries, run: Run) -> bool:
    """Return whether the format says of all work of a run in which stream it stood."""
    works = (one.work for rank in run.ranks for one in rank.activities)
    return carries.streams and not (carries.copies and any(w.kind == "memcpy" for w in works))

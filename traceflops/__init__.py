"""Offline reports from profiler traces.

    import traceflops as tf
    trace = tf.read("trace.json.gz")
    analysis = tf.analyze(trace)

Names are loaded when they are first used, so that `traceflops --help` stays fast.
"""

from __future__ import annotations

from pathlib import Path as _Path
from typing import TYPE_CHECKING

from traceflops._version import __version__
from traceflops.faces import lazy

_here = _Path(__file__).resolve().parent
if not (_here / "parsers").is_dir():  # a source checkout: the sub-packages lie beside this folder
    __path__.append(str(_here.parent))

if TYPE_CHECKING:
    from traceflops.analysis.recipe import what_if
    from traceflops.analysis.result import Analysis
    from traceflops.comparison.result import Comparison, compare
    from traceflops.errors import InputError, TraceflopsError, UsageError
    from traceflops.front.files import analyze, schema
    from traceflops.parsers.reading import read
    from traceflops.recording.recorder import record
    from traceflops.table.trace import Note, Source, Trace
    from traceflops.timeline.intervals import Intervals
    from traceflops.windows.selection import Selection

_HOMES = {
    "Analysis": "traceflops.analysis.result",
    "Comparison": "traceflops.comparison.result",
    "InputError": "traceflops.errors",
    "Intervals": "traceflops.timeline.intervals",
    "Note": "traceflops.table.trace",
    "Selection": "traceflops.windows.selection",
    "Source": "traceflops.table.trace",
    "Trace": "traceflops.table.trace",
    "TraceflopsError": "traceflops.errors",
    "UsageError": "traceflops.errors",
    "analyze": "traceflops.front.files",
    "compare": "traceflops.comparison.result",
    "read": "traceflops.parsers.reading",
    "record": "traceflops.recording.recorder",
    "schema": "traceflops.front.files",
    "what_if": "traceflops.analysis.recipe",
}
if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, _HOMES)

__all__ = [
    "Analysis",
    "Comparison",
    "InputError",
    "Intervals",
    "Note",
    "Selection",
    "Source",
    "Trace",
    "TraceflopsError",
    "UsageError",
    "__version__",
    "analyze",
    "compare",
    "read",
    "record",
    "schema",
    "what_if",
]


def __dir__() -> list[str]:
    return __all__

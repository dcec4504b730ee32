"""Offline reports from profiler traces.

    import traceflops as tf
    trace = tf.read("trace.json.gz")
    analysis = tf.analyze(trace)

Names are loaded when they are first used, so that `traceflops --help` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING

from traceflops._version import __version__

_here = _Path(__file__).resolve().parent
if not (_here / "parsers").is_dir():  # a source checkout: the sub-packages lie beside this folder
    __path__.append(str(_here.parent))

if TYPE_CHECKING:
    from traceflops.analysis.recipe import analyze
    from traceflops.analysis.result import Analysis
    from traceflops.errors import InputError, TraceflopsError, UsageError
    from traceflops.parsers import read
    from traceflops.table.trace import Note, Source, Trace
    from traceflops.timeline.intervals import Intervals
    from traceflops.windows.selection import Selection

_HOMES = {
    "Analysis": "traceflops.analysis.result",
    "InputError": "traceflops.errors",
    "Intervals": "traceflops.timeline.intervals",
    "Note": "traceflops.table.trace",
    "Selection": "traceflops.windows.selection",
    "Source": "traceflops.table.trace",
    "Trace": "traceflops.table.trace",
    "TraceflopsError": "traceflops.errors",
    "UsageError": "traceflops.errors",
    "analyze": "traceflops.analysis.recipe",
    "read": "traceflops.parsers",
}

__all__ = [
    "Analysis",
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
    "read",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'traceflops' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

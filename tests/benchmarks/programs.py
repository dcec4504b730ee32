"""The commands that are measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

_FLOOR = """
import sys, msgspec
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
class Trace(msgspec.Struct):
    traceEvents: list[Event]
msgspec.json.decode(open(sys.argv[1], "rb").read(), type=Trace)
"""
_GUNZIP = """
import sys, zlib
member = zlib.decompressobj(wbits=31)
with open(sys.argv[1], "rb") as file:
    while block := file.read(1 << 20):
        member.decompress(block)
"""
_READ = "import sys, traceflops; print(traceflops.read(sys.argv[1], jobs=int(sys.argv[2])))"
_ANALYZE = """
import json, sys, time
import traceflops, traceflops.parsers, traceflops.analysis.recipe
began = time.process_time()
trace = traceflops.read(sys.argv[1], jobs=1)
read = time.process_time()
traceflops.analyze(trace).findings
print(json.dumps({"read_s": read - began, "analyze_s": time.process_time() - read}))
"""


def cores() -> int:
    """Return how many cores this process may use."""
    available = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available else os.cpu_count() or 1


def floor(trace: Path) -> list[str]:
    """Decode the text into structs of two fields and build nothing else."""
    return [sys.executable, "-c", _FLOOR, str(trace)]


def gunzip(trace: Path) -> list[str]:
    """Decompress and throw the text away."""
    return [sys.executable, "-c", _GUNZIP, str(trace)]


def start() -> list[str]:
    """Start Python and import the readers."""
    return [sys.executable, "-c", "import traceflops.parsers"]


def libraries() -> list[str]:
    """Start Python and import the libraries that every command on a trace needs."""
    return [sys.executable, "-c", "import numpy, pyarrow"]


def show_help() -> list[str]:
    """Run `traceflops --help`."""
    return [sys.executable, "-m", "traceflops", "--help"]


def read(trace: Path, jobs: int) -> list[str]:
    """Read into Arrow tables."""
    return [sys.executable, "-c", _READ, str(trace), str(jobs)]


def analyze(trace: Path) -> list[str]:
    """Read and analyse, with findings; print the CPU seconds of each as JSON."""
    return [sys.executable, "-c", _ANALYZE, str(trace)]


def summary(trace: Path, jobs: int) -> list[str]:
    """Run `traceflops summary`."""
    return [sys.executable, "-m", "traceflops", "summary", "--jobs", str(jobs), str(trace)]


def report(trace: Path, jobs: int) -> list[str]:
    """Run `traceflops report`; the page lies beside the trace."""
    page = trace.parent / "benchmark.report.html"
    options = ["-q", "-f", "--jobs", str(jobs), "-o", str(page)]
    return [sys.executable, "-m", "traceflops", "report", *options, str(trace)]


def packed(trace: Path) -> Path:
    """Return where the pack of a trace lies."""
    return trace.with_suffix(".tfpack")


def pack(trace: Path) -> list[str]:
    """Run `traceflops pack`; the pack lies beside the trace."""
    options = ["-f", "-o", str(packed(trace))]
    return [sys.executable, "-m", "traceflops", "pack", *options, str(trace)]


CASES: Final[dict[str, Callable[[Path, int], list[str]]]] = {
    "read into Arrow": read,
    "summary": summary,
    "report": report,
}
"""What is measured of a trace, given how many processes read it."""

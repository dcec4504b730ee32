"""`--pair`: another recording of the same program, whose FLOPs the launches of a trace get."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceflops.cli.common import read_trace
from traceflops.errors import UsageError

if TYPE_CHECKING:
    from traceflops.cli.options import Reading
    from traceflops.trace import Trace

Pair = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help=(
            "Another recording of the same program that provides FLOPs: a PyTorch trace with "
            "shapes, or counters (rocprofv3 --pmc, ncu CSV). Times are from TRACE."
        ),
    ),
]


def check_pair(pair: str | None, traces: list[str]) -> None:
    """Refuse a pair that is the trace itself, before either is read."""
    if pair is None:
        return
    if pair in traces or (pair != "-" and Path(pair).resolve() in map(_resolved, traces)):
        what = "standard input" if pair == "-" else pair
        raise UsageError(
            f"--pair names the same trace: {what}", "give another recording of the same program"
        )


def read_pair(pair: str | None, reading: Reading) -> Trace | None:
    """Return the paired recording, None where none is asked for."""
    return read_trace([pair], reading) if pair is not None else None


def _resolved(trace: str) -> Path | None:
    return Path(trace).resolve() if trace != "-" else None

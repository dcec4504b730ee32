"""What a rocprof run is asked to record."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Markers = Literal["none", "steps", "all"]
NameForm = Literal["demangled", "truncated", "mangled"]


class RocprofOptions(Struct, frozen=True):
    """What is recorded beside kernels, as far as the format has a place for it."""

    calls: bool = True
    """HIP runtime calls (--hip-trace)."""
    copies: bool = True
    """Copies by the copy engines (--memory-copy-trace)."""
    markers: Markers = "steps"
    """ROCTX ranges (--marker-trace): none, one per step, or every annotation of the program."""
    collectives: bool = False
    """Calls of RCCL (--rccl-trace)."""
    counters: bool = False
    """Hardware counters of every kernel (--pmc)."""
    times: bool = True
    """A timeline of kernels; without it only what kernels and counters there were (databases of
    rocprofv3 have the times of a run that counted all the same)."""
    names: NameForm = "demangled"
    """Form of kernel names, where the generation leaves a choice."""
    uptime_ns: int = 1_520_113_899_000_000
    """Time since the machine was started when the run began; rocprof's clock."""
    host: str = "sim-node-0"

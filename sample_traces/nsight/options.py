"""What a recording with Nsight Systems is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Markers = Literal["none", "steps", "all"]
Nccl = Literal["none", "ranges", "payloads"]


@dataclass(frozen=True, slots=True)
class NsightOptions:
    """What is recorded beside device work, as far as the format has a place for it."""

    calls: bool = True
    """Calls of the runtime and the driver, and waits (--trace=cuda has them always)."""
    markers: Markers = "steps"
    """NVTX ranges: none, one per step, or every annotation of the program."""
    ops: bool = False
    """Operators with the sizes of their inputs (torch.autograd.profiler.emit_nvtx)."""
    nccl: Nccl = "none"
    """Ranges that NCCL makes in a domain of its own, maybe with their payloads
    (nsys export --include-json=true)."""
    driver_calls: bool = False
    """Launches by the runtime contain one by the driver that has the same correlation id."""
    lead_ns: int = 2_500_000_000
    """From the start of the session to that of the run; below 0 times may be negative."""
    host: str = "sim-node-0"

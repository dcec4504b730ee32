"""How a PyTorch profiler trace is to be written: the variants that exist in the wild."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class KinetoOptions:
    """One variant of the format; the defaults are what torch 2.x writes on CUDA."""

    style: Literal["pretty", "compact", "list"] = "pretty"
    """Layout by Kineto's own writer, re-saved by a JSON library, or bare events without header."""
    metadata: Literal["before", "after"] = "before"
    """Where the header keys stand relative to the events."""
    times: Literal["base", "absolute"] = "base"
    """Three decimals after a base, or Unix time in whole microseconds: both rounded down."""
    ids: Literal["number", "string"] = "number"
    legacy: bool = False
    """Categories, thread names and keys of 2021."""
    flows: bool = True
    python_functions: bool = False
    memory: bool = False
    gpu_annotations: bool = True
    cuda_sync: bool = False
    shapes: bool = True
    rank_metadata: bool = True
    duplicates: bool = False
    """Every device event stands in the file twice, as after a careless merge."""
    device_offset: int = 0
    """Added to the device number of events: ROCm counts the CPU sockets first."""
    base_unix_ns: int | None = None
    """Base of the times; None rounds down as Kineto does."""
    compression: Literal["none", "gzip", "zip"] = "gzip"

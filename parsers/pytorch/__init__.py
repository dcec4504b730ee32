"""The PyTorch profiler's traces (Kineto JSON)."""

from __future__ import annotations

from traceflops.parsers.pytorch.reader import read_pytorch

__all__ = ["read_pytorch"]

"""Readers of what XLA's profiler writes: XPlane files of JAX, TensorFlow and PyTorch/XLA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.parsers.xla.read import XPLANE, XPLANE_HEAD
else:
    __getattr__ = lazy(__name__, __file__)

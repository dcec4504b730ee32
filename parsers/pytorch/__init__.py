"""Readers of what the PyTorch profiler writes: Chrome traces of Kineto."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.parsers.pytorch.reader import PYTORCH
    from traceflops.parsers.pytorch.values import as_text, integer, integers, typed_integers
else:
    __getattr__ = lazy(__name__, __file__)

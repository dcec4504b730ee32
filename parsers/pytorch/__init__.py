"""Readers of what PyTorch writes: Chrome traces of Kineto and memory snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.parsers.pytorch.reader import PYTORCH
    from traceflops.parsers.pytorch.snapshot import SNAPSHOT
    from traceflops.parsers.pytorch.values import as_text, integer, integers, typed_integers
else:
    __getattr__ = lazy(__name__, __file__)

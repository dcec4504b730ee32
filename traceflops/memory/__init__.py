"""Memory of devices over time.

Takes a Prepared trace; gives per device and kind a curve in bytes, its peak and that of each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.memory.usage import Curve, MemoryUse, Series, memory_use
else:
    __getattr__ = lazy(__name__, __file__)

"""Memory over time: what was allocated and reserved, when most, and who held it.

Takes a prepared trace; gives a MemoryUse per device and host, and the holders at its peak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.memory.at_peak import BETWEEN, Holder, holders
    from traceflops.memory.usage import (
        MOST_POINTS,
        Curve,
        MemoryUse,
        Series,
        StepFinder,
        StepUse,
        fullest_gpu,
        memory_use,
    )
else:
    __getattr__ = lazy(__name__, __file__)

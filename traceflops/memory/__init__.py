r"""Memory over time: what was allocated and reserved, when most, and who held it.

counters of a trace:  time, device, change, allocated, reserved, address, stack
    |  by process and device, or host (AllocationRows)
    v
Series             allocated   ____/~~~~\__/~~\___   peak, curve, most and last of each step
                   reserved    __/~~~~~~~~~~~~~~~~
    |
    v
MemoryUse          one per device and host of a process, bytes
    |  holders(): blocks that are held at the peak
    v
Holder             operator and modules that allocated them, or the frames of a snapshot
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

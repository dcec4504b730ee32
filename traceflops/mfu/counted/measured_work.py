"""What counters and a paired run tell of each activity, as columns by its row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.devices import Family
from traceflops.mfu.counted.counted_kernels import CountedKernel
from traceflops.mfu.counted.cross_check import CrossCheck
from traceflops.mfu.counted.joins import Join
from traceflops.mfu.counted.kernel_matching import HOW
from traceflops.mfu.counted.launch_work import Kind, Origin
from traceflops.table import IntArray, Note

_COUNTED_AT: Final = {"rocprofv3": "the fabric", "ncu": "the memory"}


ORIGINS: Final[tuple[Origin, ...]] = ("counters", "pair")


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """What counters and a paired run tell of each activity; UNKNOWN where they do not.

    `kind` is a place in `kinds`, and UNKNOWN for kernels whose FLOPs an op's shapes tell. `size`
    are bytes, `vector` FLOPs of vector units. `how` is a place in HOW, -1 for what is no launch,
    `origin` one in ORIGINS, -1 where nothing is known. `counted` are the kernels of counted runs,
    with or without times here; `families` and `missing` say of what hardware, and which counters
    a total of their FLOPs would need besides.
    """

    kind: IntArray
    kinds: tuple[Kind, ...]
    size: IntArray
    vector: IntArray
    how: IntArray
    origin: IntArray
    joins: tuple[Join, ...]
    counted: tuple[CountedKernel, ...]
    families: tuple[Family | None, ...]
    missing: tuple[str, ...]
    check: CrossCheck | None
    notes: tuple[Note, ...] = field(repr=False)

    @property
    def bytes_at(self) -> str:
        """Return where the bytes were counted: the memory of NVIDIA's devices, AMD's fabric."""
        tools = {one.tool for one in self.families if one is not None}
        places = [word for tool, word in _COUNTED_AT.items() if tool in tools]
        return " or ".join(places) or _COUNTED_AT["rocprofv3"]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the words that `how` are places in."""
        return HOW

    def columns(self) -> Iterator[tuple[str, str, IntArray, IntArray]]:
        """Yield each line and data type with its FLOPs by kind, the most and the least."""
        count = len(self.kinds)
        found: dict[tuple[str, str], tuple[IntArray, IntArray]] = {}
        for place, kind in enumerate(self.kinds):
            for part in kind:
                key = (part.line, part.dtype)
                if key not in found:
                    found[key] = (np.zeros(count, np.int64), np.zeros(count, np.int64))
                found[key][0][place] += part.flops
                found[key][1][place] += part.at_least
        for (line, dtype), (most, least) in found.items():
            yield line, dtype, most, least

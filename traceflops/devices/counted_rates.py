"""Counters that were recorded per cycle or per second, as sums over a launch.

Sets of Nsight Compute hold many counters only so: times cycles per second and the duration that
was measured with them they are counts again. They are rounded as they were printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

SUM: Final = ".sum"
DURATION: Final = "gpu__time_duration.sum"
"""In ns, as all times are."""
CLOCKS: Final = ("smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second")
_PER_SECOND, _PER_CYCLE = ".per_second", ".per_cycle_elapsed"
_NS_PER_S: Final = 1e9


def rates_of(counter: str) -> Iterator[str]:
    """Yield what a counter's sum can be told from."""
    if counter.endswith(SUM):
        yield from (counter + _PER_SECOND, counter + _PER_CYCLE, DURATION, *CLOCKS)


def with_sums(values: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return counters with the sums that follow from rates, where the sums were not read."""
    found = dict(values)
    seconds = values[DURATION] / _NS_PER_S if DURATION in values else None
    if seconds is None:
        return found
    clock = next((values[name] for name in CLOCKS if name in values), None)
    for name, rate in values.items():
        if name.endswith(SUM + _PER_SECOND):
            _fill(found, name.removesuffix(_PER_SECOND), rate * seconds)
        elif name.endswith(SUM + _PER_CYCLE) and clock is not None:
            _fill(found, name.removesuffix(_PER_CYCLE), rate * clock * seconds)
    return found


def _fill(found: dict[str, FloatArray], name: str, told: FloatArray) -> None:
    own = found.get(name)
    found[name] = told if own is None else np.where(np.isnan(own), told, own)

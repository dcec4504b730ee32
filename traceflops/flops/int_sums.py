"""Sums of counts that may exceed an int64, exactly."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.table.columns import IntArray

_HALF: Final = 32
_LOW: Final = (1 << _HALF) - 1


def exact_sums(group: IntArray, values: IntArray, groups: int) -> list[int]:
    """Return the sum of the values of each group as Python integers.

    `group` holds places below `groups`, `values` counts from 0 to 2^63 - 1. Both halves of the
    numbers are added apart, so that neither sum can wrap for fewer than 2^31 values.
    """
    high, low = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    np.add.at(high, group, values >> _HALF)
    np.add.at(low, group, values & _LOW)
    return [
        (upper << _HALF) + lower for upper, lower in zip(high.tolist(), low.tolist(), strict=True)
    ]


def exact_sum(values: IntArray) -> int:
    """Return the sum of counts as a Python integer."""
    return exact_sums(np.zeros(len(values), dtype=np.int64), values, 1)[0]

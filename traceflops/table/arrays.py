"""Types of numpy arrays, and the number that stands for a missing value in them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
WholeArray = npt.NDArray[np.signedinteger[Any]]
SmallArray = npt.NDArray[np.int8]
"""Indices into a small table, one for each of millions of rows, so that every byte counts."""
ABSENT: Final = -(2**63)
"""Stands for a missing integer in an int64 column."""

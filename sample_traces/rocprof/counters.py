"""Hardware counters of a kernel, such as follow from what the simulator knows of it."""

from __future__ import annotations

from typing import Final

from sample_traces.config import Dtype
from sample_traces.records import Work

FLOPS_PER_MOP: Final = 512
_SMALLEST_REQUEST: Final = 32
_MATRIX: Final[dict[Dtype, str]] = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
_MATRIX_TYPES: Final = ("F16", "BF16", "F32", "F64", "F8")
_VECTOR: Final = tuple(
    f"SQ_INSTS_VALU_{what}_{type_}"
    for type_ in ("F16", "F32", "F64")
    for what in ("ADD", "MUL", "TRANS", "FMA")
)


def counters_of(work: Work, dtype: Dtype) -> dict[str, int]:
    """Return operations and requests to memory by the names that gfx942 has for them.

    All operations are those of matrix units, as in the simulator's own count.
    """
    units = -(-work.bytes // _SMALLEST_REQUEST)
    writes = units // 6
    wide, rest = divmod(units - 2 * writes, 4)
    middle, narrow = divmod(rest, 2)
    matrix = {f"SQ_INSTS_VALU_MFMA_MOPS_{type_}": 0 for type_ in _MATRIX_TYPES}
    matrix[f"SQ_INSTS_VALU_MFMA_MOPS_{_MATRIX[dtype]}"] = counted_flops(work) // FLOPS_PER_MOP
    return {
        **matrix,
        **dict.fromkeys(_VECTOR, 0),
        "TCC_BUBBLE_sum": wide,
        "TCC_EA0_RDREQ_sum": wide + middle + narrow,
        "TCC_EA0_RDREQ_32B_sum": narrow,
        "TCC_EA0_WRREQ_sum": writes,
        "TCC_EA0_WRREQ_64B_sum": writes,
    }


def counted_flops(work: Work) -> int:
    """Return the FLOPs that the counters say: rounded to whole matrix operations."""
    return (work.flops + FLOPS_PER_MOP // 2) // FLOPS_PER_MOP * FLOPS_PER_MOP


def counted_bytes(work: Work) -> int:
    """Return the bytes that the counters say: rounded up to whole requests."""
    return -(-work.bytes // _SMALLEST_REQUEST) * _SMALLEST_REQUEST


def instances(name: str, value: int, dies: int) -> list[int]:
    """Return a counter's value on each die; a sum over the device is one value already."""
    if name.endswith("_sum"):
        return [value]
    share, rest = divmod(value, dies)
    return [share + (place < rest) for place in range(dies)]

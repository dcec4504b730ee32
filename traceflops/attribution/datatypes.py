"""The data type of every matrix product; for float operands, whether kernels used TF32 or FP32."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from traceflops.attribution.op_kernels import Attribution
from traceflops.flops.ops.arguments import TF32_OR_FP32
from traceflops.flops.ops.work import Work
from traceflops.table.columns import IntArray, codes, names, numbers
from traceflops.table.grouping import ranked
from traceflops.windows.prepared import Prepared

UNKNOWN_TYPE: Final = "unknown"
"""The data type of a product if those of its operands are not recorded, or differ."""
LONGEST_NAME: Final = 4096
FP32: Final = "fp32"
_ALWAYS: Final = (TF32_OR_FP32, FP32, UNKNOWN_TYPE)
_FIRST_WITH_TF32: Final = 8  # major compute capability of Ampere
_WARP: Final = 32
"""Threads per warp on NVIDIA devices, the only ones whose compute capability tells of TF32."""
_FLOAT_KERNELS: Final[tuple[tuple[str, str], ...]] = (
    ("tf32", r"tf32|xf32"),
    # Tensor-core instructions of shape 16 x 8 x 8 and 16 x 8 x 4 on float operands.
    ("tf32", r"s1688gemm|s1684gemm|s1688fprop|s1688dgrad|s1688wgrad|tensorop_s1688"),
    # Tensile: single precision through the units of reduced precision, and plainly.
    ("tf32", r"^cijk_.*_s_mx_"),
    ("fp32", r"^cijk_.*_(?:s_b|sb)(?:_|$)"),
    ("fp32", r"sgemm|scudnn|simt_s|f32f32_f32f32_f32|ffma"),
    ("fp32", r"gemv|gemmk1|dot_kernel"),
)
"""Rules in order: the data type, and a pattern in the lower-case name."""
_OPERANDS: Final[tuple[tuple[str | None, str], ...]] = (
    # Operands of four or six bits beside eight: the name does not tell which rate applies.
    (None, r"e2m1|e2m3|e3m2|fp4|fp6"),
    # nvJet codes its operands by letters: q and r are FP8, t is bfloat16, h is half precision.
    ("fp8", r"e4m3|e5m2|float8|fp8|nvjet(?:_sm\d+)?_[qr][qr]"),
    ("int8", r"i8i8|s8s8|imma|int8|i8816gemm|i16832gemm"),
    ("fp64", r"f64f64|dgemm|d884gemm|<(?:int, )*double\b"),
    ("tf32", r"tf32|xf32"),
    ("bf16", r"bf16|bfloat16|nvjet(?:_sm\d+)?_t[a-z]"),
    ("fp16", r"(?<!b)f16|fp16|half|hgemm|_h(?:884|1688|16816)gemm|nvjet(?:_sm\d+)?_h[a-z]"),
    ("tf32", r"s1688gemm|s1684gemm|s1688fprop|s1688dgrad|s1688wgrad|tensorop_s1688"),
    # Attention of CUTLASS multiplies floats on tensor cores if the GPU has TF32, in three parts.
    (TF32_OR_FP32, r"fmha_cutlass[fb]_f32"),
    ("fp32", r"sgemm|scudnn|simt_s|f32f32_f32f32_f32|ffma|<(?:int, )*float\b"),
)
"""The same if the types of the operands are not recorded; None: the name has several types."""


def float_type(kernel: str) -> str:
    """Return `tf32` or `fp32` from the name of a kernel with float operands.

    If the name does not say, return TF32_OR_FP32: their peaks differ by a factor of eight, so it is
    not guessed.
    """
    return _first(_FLOAT_KERNELS, kernel) or TF32_OR_FP32


def operand_type(kernel: str) -> str:
    """Return the data type of a product from its kernel's name alone, UNKNOWN_TYPE if unclear.

    A name with both bfloat16 and FP8 means FP8 operands.
    """
    return _first(_OPERANDS, kernel) or UNKNOWN_TYPE


def _first(rules: Sequence[tuple[str | None, str]], kernel: str) -> str | None:
    """Return the data type of the first rule whose pattern is in the kernel's name, if any."""
    text = kernel[:LONGEST_NAME].lower()
    return next((dtype for dtype, pattern in rules if re.search(pattern, text)), None)


def without_tf32(device: Mapping[str, Any]) -> bool:
    """Return whether a row of the devices table is certainly a device without TF32."""
    if device["type"] == "cpu":
        return True
    major = device["compute_major"]
    return device["warp_size"] == _WARP and major is not None and major < _FIRST_WITH_TF32


def types_of_ops(prepared: Prepared, attribution: Attribution) -> tuple[IntArray, list[str]]:
    """Return the data type of each op's product as a code per op, and the types by code.

    1. The type that the trace records for the operands.
    2. If it records none, as in ranges of emit_nvtx: the name of the op's main kernel tells it.
    3. Float operands (TF32_OR_FP32) are FP32 if the device has no TF32.
    4. Else the name of any kernel of the op tells; of several that tell, the last one decides.
    """
    trace, work, main = prepared.trace, attribution.work, attribution.main
    recorded = [
        (op_work.dtype if isinstance(op_work, Work) else None) or UNKNOWN_TYPE
        for op_work in work.works
    ]
    # Only names of kernels that ops launched are looked at: per `owned` row an index, `kernel`.
    labels, owned = names(trace.activities["name"]), np.flatnonzero(attribution.owner >= 0)
    used, kernel = ranked(codes(trace.activities["name"])[owned])
    kernels = [labels[code] for code in used.tolist()]
    as_float, by_name = [*map(float_type, kernels)], [*map(operand_type, kernels)]
    types = list(dict.fromkeys([*recorded, *as_float, *by_name, *_ALWAYS]))
    code_of = {name: code for code, name in enumerate(types)}
    # As codes: the recorded type by distinct work, and the types by kernel name.
    dtype_of_work, float_code, name_code = (
        np.array([code_of[name] for name in column], dtype=np.int64)
        for column in (recorded, as_float, by_name)
    )
    dtype = dtype_of_work[work.place]  # rule 1
    is_untyped = (codes(trace.ops["input_types"]) < 0) & (dtype == code_of[UNKNOWN_TYPE])
    rows = np.flatnonzero(is_untyped & (main >= 0))
    dtype[rows] = name_code[kernel[np.searchsorted(owned, main[rows])]]  # rule 2
    # Rules 4 and 3: of values assigned to one op, the last one stays.
    float_type_of_op = np.full(len(dtype), code_of[TF32_OR_FP32])
    of_kernel = float_code[kernel]
    tells = of_kernel != code_of[TF32_OR_FP32]
    float_type_of_op[attribution.owner[owned[tells]]] = of_kernel[tells]
    lacks_tf32 = np.array([without_tf32(row) for row in trace.devices.to_pylist()], dtype=np.bool_)
    rows = np.flatnonzero((dtype == code_of[TF32_OR_FP32]) & (main >= 0))
    device = numbers(trace.activities["device"])[main[rows]]
    dtype[rows] = np.where(lacks_tf32[device], code_of[FP32], float_type_of_op[rows])
    return dtype, types

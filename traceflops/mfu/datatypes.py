"""The data type of every product; whether float operands were TF32 or FP32 kernel names tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from traceflops.columns import IntArray, codes, names, numbers
from traceflops.mfu.attribution import Attribution
from traceflops.mfu.ops import Work
from traceflops.mfu.ops.types import TF32_OR_FP32
from traceflops.prepare import Prepared
from traceflops.trace import Trace

UNKNOWN_TYPE: Final = "unknown"
"""Operands whose types are not recorded, or differ."""


LONGEST_NAME: Final = 4096

FP32: Final = "fp32"

_FIRST_WITH_TF32: Final = 8
"""Major compute capability of Ampere."""

_WARP: Final = 32
"""Threads that run together on NVIDIA devices, whose compute capability is meant."""

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
"""Rules in order: the data type, and what the name in lower case holds."""

_COMPILED: Final = tuple((dtype, re.compile(pattern)) for dtype, pattern in _FLOAT_KERNELS)


def float_type(kernel: str) -> str:
    """Return `tf32` or `fp32` by the name of a kernel with float operands; both where it is mute.

    Unknown is `tf32-or-fp32`: the peaks of the two differ by up to eight times.
    """
    text = kernel[:LONGEST_NAME].lower()
    return next((dtype for dtype, name in _COMPILED if name.search(text)), TF32_OR_FP32)


def without_tf32(device: Mapping[str, Any]) -> bool:
    """Return whether a row of the devices table is surely of a device without TF32."""
    if device["type"] == "cpu":
        return True
    major = device["compute_major"]
    return device["warp_size"] == _WARP and major is not None and major < _FIRST_WITH_TF32


def types_of_ops(prepared: Prepared, attribution: Attribution) -> tuple[IntArray, list[str]]:
    """Return, per op, the place of the data type of its product, and the types.

    Float operands are FP32 where the device has no TF32; elsewhere the kernel's name tells.
    """
    trace, work = prepared.trace, attribution.work
    own = [(one.dtype if isinstance(one, Work) else None) or UNKNOWN_TYPE for one in work.works]
    by_name = [float_type(label) for label in names(trace.activities["name"])]
    types = list(dict.fromkeys([*own, *by_name, TF32_OR_FP32, FP32]))
    place = {name: number for number, name in enumerate(types)}
    found = np.array([place[one] for one in own], dtype=np.int64)[work.place]
    open_ops = np.flatnonzero((found == place[TF32_OR_FP32]) & (attribution.main >= 0))
    main = attribution.main[open_ops]
    told = np.array([place[one] for one in by_name], dtype=np.int64)
    told_of = _told(trace, attribution, told, place[TF32_OR_FP32])
    single = np.array([without_tf32(row) for row in trace.devices.to_pylist()], dtype=np.bool_)
    device = numbers(trace.activities["device"])[main]
    found[open_ops] = np.where(single[device], place[FP32], told_of[open_ops])
    return found, types


def _told(trace: Trace, attribution: Attribution, told: IntArray, mute: int) -> IntArray:
    """Return, per op, the type that one of its kernels tells, `mute` where none does."""
    found = np.full(trace.ops.num_rows, mute, dtype=np.int64)
    by_kernel = told[codes(trace.activities["name"])]
    rows = np.flatnonzero((attribution.owner >= 0) & (by_kernel != mute))
    found[attribution.owner[rows]] = by_kernel[rows]
    return found

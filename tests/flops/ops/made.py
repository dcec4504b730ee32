"""Ops as the profiler records them, made by hand, and their work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.build import table_of
from traceflops.flops.ops.count import count_ops
from traceflops.flops.ops.work import Core, Correlation, Product, Unknown, Work

BF16 = "c10::BFloat16"
HALF = "c10::Half"
FP8 = "c10::Float8_e4m3fn"
FP4 = "c10::Float4_e2m1fn_x2"


def op(
    name: str,
    dims: Any,
    types: str | Sequence[str] | None = None,
    values: Sequence[object] | None = None,
    strides: Any = None,
    **columns: Any,
) -> dict[str, Any]:
    """Return a row of the table of ops; one type is that of every argument with dimensions.

    Values are written as the profiler writes them: None and tensors as empty text.
    """
    if isinstance(types, str):
        types = [types if shape else "" for shape in dims]
    texts = None if values is None else ["" if v is None else str(v) for v in values]
    recorded = {
        "input_dims": dims,
        "input_types": types,
        "input_strides": strides,
        "concrete_inputs": texts,
    }
    return {
        "name": name if "::" in name or name[0].isupper() else f"aten::{name}",
        "start_ns": 0,
        "dur_ns": 1,
        **{key: json.dumps(value) for key, value in recorded.items() if value is not None},
        **columns,
    }


def result_of(*args: Any, **columns: Any) -> Work | Unknown:
    """Return what is known of the work of one op."""
    counted = count_ops(table_of("ops", [op(*args, **columns)]))
    return counted.works[int(counted.place[0])]


def work_of(*args: Any, **columns: Any) -> Work:
    """Return the work of one op, which is known."""
    work = result_of(*args, **columns)
    assert isinstance(work, Work), work
    return work


def why_unknown(*args: Any, **columns: Any) -> str:
    """Return the reason why the work of one op is not known."""
    unknown = result_of(*args, **columns)
    assert isinstance(unknown, Unknown), unknown
    return unknown.reason


def parts(work: Work) -> dict[str, int]:
    """Return the FLOPs by part."""
    return {part.name: part.flops for part in work.parts}


def product(work: Work) -> Product:
    """Return the sizes of a matrix product."""
    assert isinstance(work.signature, Product)
    return work.signature


def core(work: Work) -> Core:
    """Return the sizes of an attention core."""
    assert isinstance(work.signature, Core)
    return work.signature


def correlation(work: Work) -> Correlation:
    """Return the sizes of a convolution."""
    assert isinstance(work.signature, Correlation)
    return work.signature

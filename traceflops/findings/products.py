"""Rules on matrix products: misaligned dimensions, a part of the GPU idle, split-K, data types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceflops.attribution.datatypes import operand_type
from traceflops.findings.case import limit
from traceflops.findings.finding import Cause
from traceflops.findings.kernel_facts import KernelFacts, kernel_cause
from traceflops.flops.ops.work import Product, Work
from traceflops.table.columns import BoolArray, axes, names, numbers, product_of

_PRODUCTS: Final = ("compute/gemm", "compute/convolution", "compute/attention")
_ALIGN: Final = {"fp16": 8, "bf16": 8, "fp8": 16, "int8": 16, "tf32": 4}
"""Elements that a row must be a multiple of, by data type: 16 bytes, what tensor cores load."""
_PADDED: Final = 64
_UNALIGNED_KERNEL: Final = re.compile(r"_align([124])\b")
_SPLIT: Final = re.compile(r"split_?k_?reduc|splitKreduce|reduceSplitK|PostGSU", re.IGNORECASE)
_HALF: Final = ("bf16", "fp16")
_SINGLE: Final = ("fp32", "tf32", "tf32-or-fp32")
_REGISTERS, _SHARED_BYTES = 65_536, 233_472
"""Of one multiprocessor: all have so many registers, none has more shared memory."""


def product_rules(facts: KernelFacts) -> Iterator[Cause]:
    """Yield what is wrong with the products of the chosen windows."""
    product = facts.is_sub(*_PRODUCTS)
    if not product.any():
        return
    yield from _misaligned(facts, product)
    yield from _partly_filled(facts, product)
    split = product & facts.named(_SPLIT.search)
    yield from kernel_cause(facts, "split-k", split, np.zeros(len(split)))
    yield from _precision(facts, product & ~facts.in_phase("optimizer"))


def _misaligned(facts: KernelFacts, product: BoolArray) -> Iterator[Cause]:
    padding = facts.of_works(_padding, 1.0)
    weight_gradient = facts.in_phase("backward") & ~facts.named(_UNALIGNED_KERNEL.search)
    padding = np.where(weight_gradient, facts.of_works(_sure_padding, 1.0), padding)
    told_by_name = facts.named(_is_unaligned_16) & (facts.product < 0)
    least = padding * facts.roof_ns / limit(facts.case, "kernel-faults", "most_reached")
    kept = np.where(
        told_by_name, limit(facts.case, "misaligned-product", "kept"), least / facts.product_ns
    )
    told = (padding > 1) & facts.is_slow & ~facts.is_type("fp32")
    yield from kernel_cause(facts, "misaligned-product", product & (told | told_by_name), kept)


def _is_unaligned_16(name: str) -> bool:
    """Return whether a kernel of 16-bit numbers loads less than 16 bytes at a time."""
    return _UNALIGNED_KERNEL.search(name) is not None and operand_type(name) in _HALF


def _padding(work: Work) -> float:
    """Return how many times the FLOPs of a product are if misaligned dimensions are padded."""
    one = work.signature
    if not isinstance(one, Product) or not one.flops:
        return 1.0
    rows = {one.k} if one.left == "row" or one.left is None else {one.m}
    rows |= {one.n} if one.right == "row" or one.right is None else {one.k}
    return _padded(work, rows | {one.n})


def _sure_padding(work: Work) -> float:
    """Return the same without K where strides do not tell that its rows are along it.

    In the gradient of a weight K counts tokens, which are no length of a row.
    """
    one = work.signature
    if not isinstance(one, Product) or not one.flops or one.left is not None:
        return _padding(work)
    return _padded(work, {one.n})


def _padded(work: Work, rows: set[int]) -> float:
    align = _ALIGN.get(work.dtype or "", _ALIGN["tf32"] if work.dtype in _SINGLE else 1)
    wrong = [size for size in rows if size % align and size > 1]
    return float(np.prod([-(-size // _PADDED) * _PADDED / size for size in wrong] or [1.0]))


def _partly_filled(facts: KernelFacts, product: BoolArray) -> Iterator[Cause]:
    """Yield a cause of kernels whose blocks leave multiprocessors idle for sure.

    That is where there are fewer blocks than multiprocessors, or where only one block fits on each
    and the last wave is not full. Kernels near the peaks are as fast as they can be.
    """
    activities, devices = facts.prepared.trace.activities, facts.prepared.trace.devices
    row = facts.row
    units = numbers(devices["sm_count"])[numbers(activities["device"])[row]]
    blocks = product_of(axes(activities["grid"]))[row]
    threads = product_of(axes(activities["block"]))[row]
    registers = numbers(activities["registers_per_thread"], 0)[row] * np.maximum(threads, 0)
    alone = 2 * registers > _REGISTERS
    alone |= 2 * numbers(activities["shared_memory_bytes"], 0)[row] > _SHARED_BYTES
    known = product & (units > 0) & (blocks > 0)
    waves = np.where(known, blocks / np.maximum(units, 1), 1.0)
    filled = np.where(alone | (waves < 1), waves / np.ceil(waves), 1.0)
    least = facts.roof_ns / limit(facts.case, "kernel-faults", "most_reached") / facts.product_ns
    shortest = limit(facts.case, "unfilled-gpu", "least_kernel_ns") / np.maximum(facts.ns, 1)
    kept = np.maximum.reduce([filled, least, shortest])
    mine = known & facts.is_slow & (filled < limit(facts.case, "unfilled-gpu", "most_filled"))
    yield from kernel_cause(facts, "unfilled-gpu", mine, kept)


def _precision(facts: KernelFacts, product: BoolArray) -> Iterator[Cause]:
    """Yield whether a faster data type would do; of FP32 and TF32 only the first that holds."""
    by_name = [operand_type(name) for name in names(facts.prepared.trace.activities["name"])]
    told = np.array(by_name)[facts.name]
    silent = facts.product < 0

    def of(*types: str) -> BoolArray:
        return product & (facts.is_type(*types) | silent & np.isin(told, types))

    is_torch = "torch" in facts.case.program
    slow_rate = limit(facts.case, "double-precision", "slow_rate")
    if is_torch or facts.rate("fp64") < facts.rate("fp32") * slow_rate:
        yield from _faster(facts, "double-precision", of("fp64"), "fp64", "fp32")
    single = list(_faster(facts, "tf32-off", of("fp32"), "fp32", "tf32"))
    yield from single
    half = next((one for one in _HALF if facts.rate(one)), "")
    of_half = of(*_HALF, "fp8", "int8")
    most = limit(facts.case, "single-precision", "most_others") * facts.ns[product].sum()
    if half and facts.ns[of_half].sum() < most and not single and is_torch:
        yield from _faster(facts, "single-precision", of(*_SINGLE), "fp32", half)


_BYTES: Final = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


def _faster(
    facts: KernelFacts, rule: str, mine: BoolArray, slow: str, fast: str
) -> Iterator[Cause]:
    """Yield a cause of products that need less time in another data type."""
    rate = facts.rate(fast)
    if not rate or facts.rate(slow) >= rate:
        return
    size = _BYTES[fast] / _BYTES[slow]
    before = facts.roof_ns
    after = np.maximum(facts.flops / rate, size * facts.bytes_ns)
    of_bytes = max(size, facts.rate(slow) / rate)
    kept = np.divide(after, before, out=np.full(len(before), of_bytes), where=before > 0)
    knows = frozenset({"fp16-only"} if fast == "fp16" else ())
    yield from kernel_cause(facts, rule, mine & (kept < 1), kept, knows=knows)

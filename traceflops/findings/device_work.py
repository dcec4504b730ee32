"""Rules of work on the GPU: kernels far below bandwidth or matrix rate; products of odd shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.datatypes import operand_type
from traceflops.characters import kernel_name
from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.finding import MOST_ROWS, Cause, Row, Where, row_name
from traceflops.findings.kernel_facts import (
    PRODUCTS,
    KernelFacts,
    kernel_cause,
    largest_of,
    rows_of,
    takes_enough,
)
from traceflops.findings.launch_geometry import small_grids
from traceflops.findings.memory_kernels import loss_softmax, memory_rules
from traceflops.findings.precision import HALF, SINGLE, precision_rules
from traceflops.findings.training_mode import training_mode
from traceflops.flops.ops.work import Product, Work
from traceflops.memory.usage import memory_use
from traceflops.mfu.traced.work_tables import KernelRow
from traceflops.timeline.device_span import is_top

KERNELS: Final = frozenset({"compute", "memory"})
"""Components of the critical path whose parts are named after kernels."""
_MOST_EDITS: Final = 20

_Reached = tuple["KernelRow", float]
"""Kernels of one name, and the part of their roof that they reach."""


class _Roof(Struct, frozen=True):
    """A rule on kernels of the subcategories `subs` that run far below their roof.

    Without `subs` it is about all that no other rule names. `limits` is the rule with thresholds.
    """

    rule: str
    component: str
    limits: str
    subs: frozenset[str] = frozenset()


_BANDWIDTH: Final = "memory-bandwidth"
_COUNTED: Final = 0.8  # launches with so much of the time stand for all of their name
_ROOFS: Final = (
    _Roof("softmax-bandwidth", "memory", _BANDWIDTH, frozenset({"softmax"})),
    _Roof("norm-bandwidth", "memory", _BANDWIDTH, frozenset({"norm", "fused_norm"})),
    _Roof(_BANDWIDTH, "memory", _BANDWIDTH),
    _Roof("attention-rate", "compute", "attention-rate", frozenset({"attention"})),
    _Roof("convolution-rate", "compute", "matrix-rate", frozenset({"convolution"})),
    _Roof("matrix-rate", "compute", "matrix-rate"),
)
_NAMED_SUBS: Final = frozenset(sub for roof in _ROOFS for sub in roof.subs)
_FUSED_NORM: Final = re.compile(r"layer_?norm|rms_?norm|GammaBeta|RowwiseMoments", re.IGNORECASE)
"""Kernels of functions that normalise in one launch already."""
_IN_ORDER: Final = re.compile(r"(?<!un)vectorized_elementwise_kernel")


def _far_below_roof(
    case: Case, facts: KernelFacts | None, roof: _Roof, left: Mapping[str, float]
) -> Iterator[Cause]:
    """Yield at most one cause: kernels far below their `roof`, if they take enough of the time.

    `left` is, by kernel name, the share of its time that remains after the edits of other causes.
    Kernels whose distance to the roof these causes explain are left out of the share.
    """
    good = limit(case, roof.limits, "good")
    below = _below(case, roof)
    # Other causes explain a kernel if their edits gain at least half of its distance to good.
    explained = [
        (row, part)
        for row, part in below
        if 2 * (1 - left.get(kernel_name(row.name), 1.0)) >= 1 - part / good
    ]
    chosen = [pair for pair in below if pair not in explained][:_MOST_EDITS]
    time_ns = sum(row.sum_ns for row, _ in chosen)
    share = share_of_window(case, time_ns)
    if share < limit(case, roof.limits, "least_share"):
        return
    details: tuple[Fact, ...] = ()
    where = Where()
    if facts is not None:
        is_chosen = facts.named({row.name for row, _ in chosen}.__contains__)
        chosen_ns = np.where(is_chosen, facts.ns, 0.0)
        if chosen_ns.any():
            largest, where = largest_of(facts, chosen_ns)
            details = (largest,)
    # Launches whose FLOPs or bytes are unknown may be as poor as others of their category.
    poor_of = {row.category: part for row, part in reversed(chosen)}
    alike = [
        (row, poor_of[row.category])
        for row in case.measured.kernels
        if row.category in poor_of and row.counted < row.count
    ]
    doubts = [fact("doubt.unknown-needs")] * bool(alike)
    doubts += [fact("doubt.explained")] * bool(explained)
    yield cause(
        case,
        roof.rule,
        share,
        {"reached": sum(part * row.sum_ns for row, part in chosen) / time_ns, "good": good},
        details,
        _why_slow(case, chosen, time_ns),
        rows=tuple(Row(row_name(row.name), row.sum_ns, row.count) for row, _ in chosen[:MOST_ROWS]),
        where=where,
        edits=_as_if((*chosen, *alike, *explained), limit(case, roof.limits, "best")),
        partly=_as_if(chosen, good),
        doubts=tuple(doubts),
        kernels={kernel_name(row.name): part / good for row, part in chosen},
    )


def _below(case: Case, roof: _Roof) -> list[_Reached]:
    """Return the kernels of a roof that reach less than its `poor` part, the largest losses first.

    Very short kernels are left out: their launch limits them.
    """
    poor, good = (limit(case, roof.limits, name) for name in ("poor", "good"))
    least_ns = limit(case, _BANDWIDTH, "least_ns")
    below: list[_Reached] = []
    for row in case.measured.kernels:
        top, sub = row.category.top, row.category.sub
        is_of_roof = sub in roof.subs if roof.subs else sub not in _NAMED_SUBS
        if is_of_roof and top == roof.component and row.sum_ns >= least_ns * row.count:
            part = reached(case, row)
            if 0 < part < poor:  # 0: unknown
                below.append((row, part))
    return sorted(below, key=lambda pair: -pair[0].sum_ns * (1 - pair[1] / good))


def _why_slow(case: Case, chosen: Sequence[_Reached], time_ns: int) -> frozenset[str]:
    """Return what holds for kernels with most of the time, as facts that choose the remedy.

    "fused-norm": they normalise in one launch. "slow-gpu": they are very slow although they read
    and write large tensors in order, so no better kernel would help.
    """
    slow, large = (limit(case, _BANDWIDTH, name) for name in ("slow_gpu", "large_mb"))
    fused_norm_ns = in_order_ns = 0
    for row, part in chosen:
        fused_norm_ns += row.sum_ns if _FUSED_NORM.search(row.name) else 0
        is_large = (row.measured.min_bytes or 0) >= large * 1_000_000 * row.count
        in_order_ns += row.sum_ns if part < slow and is_large and _IN_ORDER.search(row.name) else 0
    sums = {"fused-norm": fused_norm_ns, "slow-gpu": in_order_ns}
    return frozenset(name for name, ns in sums.items() if 2 * ns > time_ns)


def _as_if(chosen: Sequence[_Reached], reached: float) -> tuple[str, ...]:
    """Return the edits with which kernels reach the part `reached` of their roof."""
    return tuple(
        rf"kernel:^{re.escape(row.name)}(\.kd)?$*{part / reached:.4f}" for row, part in chosen
    )


def reached(case: Case, row: KernelRow) -> float:
    """Return the part of their roof that kernels of one name reach, 0 if it is not known of most.

    The roof is the longer of the times that their FLOPs and bytes need at the peaks of a device;
    of several devices, that of the slowest one. If nearly all of their time is of launches with
    known FLOPs and bytes, these stand for all.
    """
    most_ns = 0.0
    flops, size = row.measured.flops, row.measured.min_bytes
    for device in case.measured.devices:
        rate = device.rates.get(row.dtypes[0]) if len(row.dtypes) == 1 else None
        of_flops = flops / rate if flops and rate else 0.0
        bandwidth = device.bandwidth if row.path == "memory" else None
        of_bytes = size / bandwidth if size and bandwidth else 0.0
        # Bytes may limit compute kernels as well, so both must be known of them.
        is_known = row.category.top != "compute" or (of_flops and size)
        need_ns = max(of_flops, of_bytes) if is_known else 0.0
        if not need_ns:
            return 0.0
        most_ns = max(most_ns, need_ns)
    counted_ns = row.sum_ns if row.counted >= row.count else row.measured.time_ns
    return most_ns / counted_ns if counted_ns > 0 and counted_ns >= _COUNTED * row.sum_ns else 0.0


def kernel_rules(case: Case) -> Iterator[Cause]:
    """Yield what is wrong with the kernels of the chosen windows.

    A kernel is only called slow if no rule tells why it is slow.
    """
    left: dict[str, float] = {}
    facts: KernelFacts | None = KernelFacts(case)
    owners = case.measured.executed.attribution.owner
    if len(owners) != case.prepared.trace.activities.num_rows:
        facts = None  # FLOPs were measured on another recording: its rows are not these
    if facts is not None:
        for rule in _RULES:
            for rule_cause in rule(facts):
                left |= {
                    name: min(kept, left.get(name, 1.0))
                    for name, kept in rule_cause.kernels.items()
                }
                yield rule_cause
    for roof in _ROOFS:
        yield from _far_below_roof(case, facts, roof, left)


def _recompute(facts: KernelFacts) -> Iterator[Cause]:
    """Yield a cause if recomputing forward work takes enough time, communication apart."""
    communicates = is_top(facts.prepared.linked.categorised, "communication", facts.row)
    recompute_ns = np.where(facts.in_phase("recompute") & ~communicates, facts.ns, 0.0)
    share = share_of_window(facts.case, int(recompute_ns.sum()))
    if not takes_enough(facts.case, share):
        return
    used = [use.share_of_device for use in memory_use(facts.prepared)]
    most = max((share for share in used if share is not None), default=None)
    # Without recomputing, activations are kept: there may be no memory left for them.
    may_be_full = most is None or most > limit(facts.case, "recompute", "most_memory")
    free = fact("recompute.room", free=1 - most) if most is not None else None
    room = free or fact("recompute.room-unknown")
    largest, where = largest_of(facts, recompute_ns)
    yield cause(
        facts.case,
        "recompute",
        share,
        details=(largest, room),
        rows=rows_of(facts, recompute_ns),
        where=where,
        doubts=(fact("doubt.memory-missing"),) * may_be_full,
    )


_ALIGN: Final = {"fp16": 8, "bf16": 8, "fp8": 16, "int8": 16, "tf32": 4}
"""The length of a row must be a multiple of 16 bytes, which tensor cores load: as elements."""
_PADDED: Final = 64  # tensor cores compute padded dimensions, of a multiple of so many elements
_UNALIGNED_KERNEL: Final = re.compile(r"_align([124])\b")


def product_rules(facts: KernelFacts) -> Iterator[Cause]:
    """Yield what is wrong with the products of the chosen windows."""
    product = facts.is_sub(*PRODUCTS)
    if not product.any():
        return
    is_unaligned = facts.named(_UNALIGNED_KERNEL.search)
    # In the gradient of a weight K counts tokens: it is a sign only if the kernel's name is one.
    may_be_gradient = facts.in_phase("backward") & ~is_unaligned
    sure_padding = facts.of_works(partial(_padding, only_sure=True), 1.0)
    padding = np.where(may_be_gradient, sure_padding, facts.of_works(_padding, 1.0))
    # FP32 without tensor cores needs no alignment.
    is_slow = facts.roof_ns < limit(facts.case, "matrix-rate", "good") * facts.product_ns
    is_padded = (padding > 1) & (facts.roof_ns > 0) & is_slow & ~facts.is_type("fp32")
    # Without an op, the name alone tells that 16-bit numbers are loaded in less than 16 bytes.
    is_half = facts.named(lambda name: operand_type(name) in HALF)
    told_by_name = is_unaligned & is_half & (facts.product < 0)
    least_ns = padding * facts.roof_ns / limit(facts.case, "kernel-faults", "most_reached")
    kept = np.where(
        told_by_name, limit(facts.case, "misaligned-product", "kept"), least_ns / facts.product_ns
    )
    yield from kernel_cause(facts, "misaligned-product", product & (is_padded | told_by_name), kept)
    yield from precision_rules(facts, product & ~facts.in_phase("optimizer"))


def _padding(work: Work, *, only_sure: bool = False) -> float:
    """Return how many times the FLOPs of a product grow if misaligned dimensions are padded.

    These are N and the lengths of the operands' rows in memory, by their strides if known. With
    `only_sure` and without strides it is N alone: K may count tokens, which are no row's length.
    """
    signature = work.signature
    if not isinstance(signature, Product) or not signature.flops:
        return 1.0
    lengths = {signature.n}
    if signature.left is not None or not only_sure:
        lengths.add(signature.m if signature.left not in ("row", None) else signature.k)
        lengths.add(signature.k if signature.right not in ("row", None) else signature.n)
    align = _ALIGN.get(work.dtype or "", _ALIGN["tf32"] if work.dtype in SINGLE else 1)
    wrong = [size for size in lengths if size % align and size > 1]
    return float(np.prod([-(-size // _PADDED) * _PADDED / size for size in wrong] or [1.0]))


_RULES: Final = (
    *(product_rules, small_grids, memory_rules, loss_softmax, training_mode, _recompute),
)

"""Rule `main-kernel`: the kernel, or the kernels of one name, with much of the time."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.categories.classify import clean
from traceflops.categories.kernel_names import without_return_type
from traceflops.categories.programs import is_of_library, is_of_tensorrt, may_be_own
from traceflops.characters import kernel_name
from traceflops.devices.device_facts import SeenDevice
from traceflops.facts import Fact, Value
from traceflops.findings.decode import weight_bits
from traceflops.findings.finding import Finding, Row, function_of, short_name
from traceflops.findings.kernel_facts import OF_VECTORS, PRODUCTS
from traceflops.findings.kernel_signs import falling, slower_doubles
from traceflops.findings.launch_geometry import LaunchShape, full_grids, launch_shape
from traceflops.findings.losses import Loss
from traceflops.findings.rules import advice_of, statement
from traceflops.mfu.budget import DevicePeaks
from traceflops.mfu.serving_passes import Serving
from traceflops.remedies import advice
from traceflops.table.columns import codes, matching, names, numbers
from traceflops.table.grouping import group_most
from traceflops.table.trace import Trace
from traceflops.timeline.records import Account

MAIN_KERNEL: Final = "main-kernel"
_KINDS: Final = ("compute", "other")
"""Kinds of work of which one kernel may be the main part of a program."""
_MEMORY, _GRAPH = "memory", "graph"
_NARROW_BITS: Final = 8  # weights of so few bits are quantized: lower precision is no advice
_FEW_TOKENS: Final = 64
"""With so few tokens per pass, reading the weights takes longer than computing with them."""
_FAMILY: Final = re.compile(r"_*[a-z]+(?:_[a-z]+)+(?![a-z0-9])")
"""The words with which names of variants begin: `_matmul_ogs` of `_matmul_ogs_NNT_16x128`."""
_OF_LIBRARIES: Final = re.compile(
    r"\d+x\d+|cutlass|\bck::|mul_mat_[qfv]|blas|gemmk1_|gemm\w*_lds\d|magma_", re.IGNORECASE
)
"""GEMMs of libraries: those named by their tiles, those of templates of CUTLASS and Composable
Kernel, and of ggml, cuBLAS, rocBLAS and MAGMA."""
_OF_INTEGERS: Final = re.compile(r" ?(?:(?:const|unsigned) )?(?:int|long|short)\b")
"""A parameter of a type that no BLAS library multiplies."""
_ALONE: Final = 0.95
"""The share of a family's time from which on one function stands for it."""
_CUT_OFF: Final = "_"
"""A name that ends so was cut short when it was recorded, and may stand for many kernels."""
_TENSORRT, _TORCH = "tensorrt", "torch"
_LOWER: Final = {"INT8": (6, 1), "FP8": (8, 9)}
"""Types of lower precision, and the compute capability from which on TensorRT uses them."""
_EXPERTS: Final = re.compile(
    r"fused_?moe(?:::\w+|_\w+)?|moe_?(?:fc_?|stage\d_?)?gemm|moe_wna16", re.IGNORECASE
)
"""Kernels that multiply by the weights of experts: of TensorRT-LLM, vLLM, AITER and others."""
_OF_EXPERTS, _MOST_NAMES = "experts", 2
_NEARLY_ALL, _FEW_LAUNCHES = 0.9, 0.5
"""So few launches that take so much of a kernel's time are told: the mean says little of them."""
_REGISTERS: Final = "registers_per_thread"
_MOST_REGISTERS: Final = 256
"""The most that a thread can have on AMD, without those that accumulate."""


class Kernels(Struct, frozen=True):
    """The kernels of a program, and what tells which of them is worth a look.

    `limits` are the thresholds of MAIN_KERNEL.
    """

    table: pa.Table
    total: Account
    losses: Sequence[Loss]
    program: frozenset[str]
    trace: Trace
    limits: Mapping[str, float]
    devices: Sequence[DevicePeaks] = ()

    def rows(self, top: str) -> list[dict[str, Any]]:
        """Return the rows of one kind of work."""
        return [row for row in self.table.to_pylist() if row["top"] == top]


class _Family(Struct, frozen=True):
    """Kernels of one kind of work (`top`) that count as one, and whether TensorRT chose them.

    `whole_share` of the time is that of their launches, also of those that overlap: too large if
    they do. `share` is at most that of their kind of work.
    """

    name: str
    rows: list[dict[str, Any]]
    top: str
    is_engine: bool
    whole_share: float
    share: float

    @property
    def count(self) -> int:
        """Return the number of launches."""
        return sum(row["count"] for row in self.rows)

    @property
    def largest(self) -> dict[str, Any]:
        """Return the row of the kernel with the most time."""
        return max(self.rows, key=lambda row: row["sum_ns"])


def main_kernel_findings(kernels: Kernels, serving: Serving, of: Fact) -> Iterator[Finding]:
    """Give a finding if one of several kernels leads the largest kind of work, with much time.

    `of` is what shares are of.
    """
    yield from _whole_graphs(kernels)
    family = _leading(kernels)
    if family is not None:
        yield _told(kernels, family, _decoded(serving), of)


def _leading(kernels: Kernels) -> _Family | None:
    """Return the kernels that lead the largest kind of work, if they take much and may gain."""
    components, limits = kernels.total.components, kernels.limits
    shares = {kind: components.share(kind) or 0.0 for kind in (*_KINDS, _MEMORY)}
    top = max(shares, key=lambda kind: shares[kind])
    rows = kernels.rows(top)
    is_leading = shares[top] >= limits["least_share"] and kernels.table.num_rows > 1
    if not is_leading or not _may_gain(kernels, top, rows):
        return None
    of_engine = _of_engine(rows, kernels.program)
    name, variants = _largest_family(rows, of_engine, by_whole_name=top == _MEMORY)
    share = _sum_ns(variants) / components.window_ns
    is_engine = max(variants, key=lambda row: row["sum_ns"])["name"] in of_engine
    family = _Family(name, variants, top, is_engine, share, min(share, shares[top]))
    is_cut_off = short_name(name).endswith(_CUT_OFF)
    is_small = family.share < limits["least_share"] or is_cut_off
    return None if is_small or _is_launch_bound(kernels, family) else family


def _told(kernels: Kernels, family: _Family, tokens: int, of: Fact) -> Finding:
    """Return the finding on leading kernels; `tokens` are those of a decode pass."""
    trace, limits, variants = kernels.trace, kernels.limits, family.rows
    largest, sub, time_ns = family.largest, variants[0]["sub"], _sum_ns(variants)
    name, mean_ns = short_name(family.name), time_ns // max(family.count, 1)
    shape = _common_shape(trace, variants, f"{family.top}/{sub}")
    knows = {*kernels.program, *_known_of_launches(shape, mean_ns, limits)}
    knows -= set() if family.is_engine else {_TENSORRT}
    if family.top == "compute":
        knows |= {family.top, sub, *known_of_compute(largest["name"], sub, tokens)}
    window_ns = kernels.total.components.window_ns
    values: dict[str, Value] = {
        "name": name,
        **shape.told(),
        "spare": shape.spare,
        "of": of,
        "tokens": tokens,
        "share": family.share,
        "up_to": Fact(f"{MAIN_KERNEL}.up-to") if family.whole_share > family.share else None,
        "kernels": len(variants),
        "launches": family.count,
        "mean_ns": mean_ns,
        **_longest(trace, variants),
        "largest": min(largest["sum_ns"] / window_ns, family.share),
        **_scratch(trace, variants, limits["least_scratch"]),
        **(_of_build(trace, variants, limits["many_blocks"]) if family.is_engine else {}),
    }
    if shape.blocks is not None and (course := falling(trace, variants[0]["name"], limits)):
        values |= {"course": course, "last_ns": course.values["last_ns"]}
        knows |= {"falling"}
    if times := slower_doubles(largest["name"], kernels.devices):
        values["times"] = round(times)
        knows |= {"slow-doubles"} if times >= limits["slow_doubles"] else set()
    knows |= {"scratch"} if "scratch" in values else set()
    knows |= {"spills"} if values.get("registers") else set()
    of_family = "" if len(variants) == 1 else "-tensorrt" if family.is_engine else "-family"
    if family.name == _OF_EXPERTS:
        of_family, knows = f"-{_OF_EXPERTS}", knows | {_OF_EXPERTS}
        values["names"] = _names_of_experts(variants)
        name = short_name(largest["name"])
    return statement(
        MAIN_KERNEL,
        family.share,
        values,
        name=Fact(f"{MAIN_KERNEL}.title{of_family}", values),
        claim=Fact(f"{MAIN_KERNEL}.claim{of_family}", values),
        advice=advice_of(MAIN_KERNEL, frozenset(knows), values),
        rows=(Row(name, time_ns),),
    )


def _longest(trace: Trace, variants: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    """Return how few launches of a single kernel take nearly all of its time, and their share.

    Nothing if these are more than half, or if the launches of the trace are not those of the
    chosen windows.
    """
    own = {row["name"] for row in variants}
    is_own = matching(trace.activities["name"], lambda text: kernel_name(text) in own)
    took_ns = np.sort(numbers(trace.activities["dur_ns"], 0)[is_own])[::-1]
    is_all = len(took_ns) == sum(row["count"] for row in variants)
    if len(own) > 1 or not is_all or not took_ns.sum():
        return {}
    parts = np.cumsum(took_ns) / took_ns.sum()
    most = int(np.searchsorted(parts, _NEARLY_ALL)) + 1
    is_few = most <= _FEW_LAUNCHES * len(took_ns)
    return {"longest": most, "of_longest": float(parts[most - 1])} if is_few else {}


def _names_of_experts(variants: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the parts of names by which kernels are known to multiply by weights of experts."""
    matched = (_EXPERTS.search(row["name"]) for row in variants)
    return tuple(dict.fromkeys(match[0] for match in matched if match))[:_MOST_NAMES]


def _is_launch_bound(kernels: Kernels, family: _Family) -> bool:
    """Return whether launching limits short kernels: the GPU is often idle."""
    limits, idle_share = kernels.limits, kernels.total.components.share("idle") or 0.0
    is_short = _sum_ns(family.rows) < limits["least_ns"] * family.count
    return is_short and idle_share > limits["most_idle"]


def _decoded(serving: Serving) -> int:
    """Return the tokens of a decode pass if all passes are of decode, else 0."""
    if [kind.kind for kind in serving.kinds] != ["decode"]:
        return 0
    return (serving.kinds[0].tokens or 0) // serving.kinds[0].passes


def _common_shape(trace: Trace, variants: Sequence[Mapping[str, Any]], kind: str) -> LaunchShape:
    """Return what the launches of a single kernel have in common, nothing of several kernels.

    Products leave room on purpose: only few blocks are told of them.
    """
    shape = launch_shape(trace, variants[0]["name"]) if len(variants) == 1 else LaunchShape()
    if kind not in PRODUCTS:
        return shape
    return LaunchShape(shape.blocks) if shape.is_few else LaunchShape()


def _scratch(trace: Trace, variants: Sequence[Mapping[str, Any]], least: float) -> dict[str, Value]:
    """Return the kernel of most scratch memory per thread, if that is much and it takes much time.

    Any is much if a thread has all the registers it can have: they spill. The kernel's name is
    given if there are other kernels.
    """
    most_ns = max(row["sum_ns"] for row in variants)
    main = {row["name"] for row in variants if 2 * row["sum_ns"] >= most_ns}
    table, scratch, full = trace.activities, Counter[str](), Counter[str]()
    held, registers = (numbers(table[name], 0) for name in ("scratch_bytes", _REGISTERS))
    spilled = np.where((held > 0) & (registers >= _MOST_REGISTERS), registers, 0)
    held = np.where((held >= least) | (spilled > 0), held, 0)
    code, count = codes(table["name"]), len(names(table["name"]))
    by_code = (group_most(code, column, count).tolist() for column in (held, spilled))
    for text, size, most in zip(names(table["name"]), *by_code, strict=True):
        if (name := kernel_name(text)) in main:
            scratch[name], full[name] = max(size, scratch[name]), max(most, full[name])
    largest = max(scratch, key=scratch.__getitem__, default="")
    if not scratch[largest]:
        return {}
    whose = short_name(largest) if len(variants) > 1 else None
    return {"scratch": scratch[largest], "scratch_of": whose, "registers": full[largest] or None}


def _known_of_launches(
    shape: LaunchShape, mean_ns: int, limits: Mapping[str, float]
) -> Iterator[str]:
    """Yield facts that choose a remedy, by the length and shape of a kernel's launches."""
    if mean_ns >= limits["long_ns"]:
        yield "long"
    if mean_ns < limits["least_ns"]:
        yield "short"
    if shape.warps_share < limits["few_warps"]:
        yield from (limiter.replace(" ", "-") for limiter in shape.limiters)
    elif shape.spare is not None:
        yield "spare"


def _whole_graphs(kernels: Kernels) -> Iterator[Finding]:
    """Give a finding if graphs that are recorded as a whole are most of the GPU work.

    Its remedy is to record their kernels: without a way to do that, no finding is given.
    """
    loss = next((loss for loss in kernels.losses if loss.name == _GRAPH), None)
    components = kernels.total.components
    busy_ns = components.window_ns - components.idle_ns - components.start_up_ns
    is_most = 2 * components.graph_ns > busy_ns
    if loss is None or not is_most or loss.share < kernels.limits["least_share"]:
        return
    rows = kernels.rows(_GRAPH)
    if rows and (how := advice(kernels.trace, "kernels of graphs")):
        largest, values = max(rows, key=lambda row: row["sum_ns"]), dict[str, Value](how=how)
        yield statement(
            MAIN_KERNEL,
            loss.share,
            name=Fact(f"{MAIN_KERNEL}.title-graphs"),
            claim=loss.unjudged(),
            advice=advice_of(MAIN_KERNEL, kernels.program | {"whole-graphs"}, values),
            rows=(Row(short_name(largest["name"]), largest["sum_ns"]),),
        )


def _of_engine(rows: Sequence[dict[str, Any]], program: frozenset[str]) -> frozenset[str]:
    """Return the names of kernels that TensorRT chose: all, or with PyTorch those it has named."""
    if _TENSORRT not in program:
        return frozenset()
    kernels = (row["name"] for row in rows if row["top"] == "compute")
    return frozenset(name for name in kernels if _TORCH not in program or is_of_tensorrt(name))


def _of_build(
    trace: Trace, variants: Sequence[dict[str, Any]], many_blocks: float
) -> dict[str, Value]:
    """Return values on what another build of an engine may use: lower types, larger batches."""
    devices = [SeenDevice.of(row).compute for row in trace.devices.to_pylist()]
    lower = [name for name, least in _LOWER.items() if all(has and has >= least for has in devices)]
    full = full_grids(trace, {row["name"] for row in variants}, many_blocks)
    batches = None if full is not None else Fact(f"{MAIN_KERNEL}.batches")
    return {"types": tuple(lower) or None, "batches": batches, "full": full}


def _largest_family(
    rows: Sequence[dict[str, Any]], of_engine: frozenset[str], *, by_whole_name: bool
) -> tuple[str, list[dict[str, Any]]]:
    """Return the family of kernels with the most time: its name, and the rows of its kernels.

    A family has one category, and names that begin with the same words or, with `by_whole_name`,
    are equal. Products of experts are one family, and so are, per category, kernels that TensorRT
    chose (`of_engine`). A function with nearly all of its family's time stands for it.
    """
    families: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        words = _FAMILY.match(without_return_type(clean(row["name"])))
        name = words[0] if words else function_of(row["name"])
        name = row["name"] if by_whole_name else name
        is_of_experts = row["sub"] == "gemm" and _EXPERTS.search(row["name"])
        name = _OF_EXPERTS if is_of_experts else name
        name = row["sub"] if row["name"] in of_engine else name
        families[name, row["sub"]].append(row)
    (family, kind), variants = max(families.items(), key=lambda item: _sum_ns(item[1]))
    largest = max(variants, key=lambda row: row["sum_ns"])
    if largest["sum_ns"] >= _ALONE * _sum_ns(variants) and family not in (_OF_EXPERTS, kind):
        own = function_of(largest["name"])
        variants = [row for row in variants if function_of(row["name"]) == own]
    if len(variants) == 1 and not by_whole_name and family != _OF_EXPERTS:
        family = function_of(variants[0]["name"])
    return family, variants


def _sum_ns(rows: Sequence[dict[str, Any]]) -> int:
    return sum(row["sum_ns"] for row in rows)


def _may_gain(kernels: Kernels, top: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether kernels of a kind (`top`) may be worth making faster.

    Compute kernels are if they may be far below the peak: FLOPs are unknown, or half of the time is
    lost. A memory kernel is if it has nearly all of the time, or much of it and is the program's
    own, and its bytes' time is unknown.
    """
    components = kernels.total.components
    losses_by_name = {loss.name: loss for loss in kernels.losses}
    if top == _MEMORY:
        own = (row for row in rows if row["kind"] == "kernel")
        longest = max(own, key=lambda row: row["sum_ns"], default=None)
        if longest is None or losses_by_name[_MEMORY].needed is not None:
            return False
        least = "least_share" if may_be_own(longest["name"]) else "nearly_all"
        return bool(longest["sum_ns"] >= kernels.limits[least] * components.window_ns)
    compute = components.share("compute") or 0.0
    inefficiency = losses_by_name.get("inefficiency")
    lost = inefficiency.share if inefficiency is not None else compute
    return top != "compute" or 2 * lost >= compute


def known_of_compute(name: str, sub: str, tokens: int) -> Iterator[str]:
    """Give facts that choose the remedy of a compute kernel, by its name and `tokens` per pass."""
    if 0 < tokens <= _FEW_TOKENS:
        yield "few-tokens"
    if sub == "gemm" and OF_VECTORS.search(name):
        yield "vector"
    elif sub == "gemm" and not (is_of_library(name) or _OF_LIBRARIES.search(name)):
        parameters = name.rpartition("(")[2].split(",")
        yield from () if all(map(_OF_INTEGERS.match, parameters)) else ("written",)
    if weight_bits(name) <= _NARROW_BITS:
        yield "narrow"

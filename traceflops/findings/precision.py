"""Rules of products for which a faster data type would do: TF32, 16 bits, FP32 instead of FP64."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from traceflops.attribution.datatypes import FP32, operand_type, without_tf32
from traceflops.categories.programs import are_of_training
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, limit, share_of_window
from traceflops.findings.finding import WORTH_SAYING, Cause, Finding, severity_of
from traceflops.findings.kernel_facts import OF_VECTORS, KernelFacts, kernel_cause
from traceflops.findings.rules import advice_of, statement
from traceflops.flops.ops.arguments import TF32_OR_FP32
from traceflops.table.columns import BoolArray, matching, names

HALF: Final = ("bf16", "fp16")
_NARROW: Final = (*HALF, "fp8", "int8")
SINGLE: Final = (FP32, "tf32", TF32_OR_FP32)
_BYTES: Final = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_KINDS: Final = ("gemm", "convolution", "attention")
_HAS_TF32: Final = re.compile(r"\bampere_|(?:\bsm|cutlass_)(?:[89]\d|1\d\d)_")
"""Names of kernels that only GPUs with TF32 run."""
_FP32_COLLECTIVE: Final = re.compile(r"nccl\w*_(?:f32|float)(?![a-z0-9])", re.IGNORECASE)
_OF_SHARDS: Final = re.compile(r"nccl\w*reduce_?scatter", re.IGNORECASE)
"""Names of NCCL's kernels: those that add up FP32, and those that add up for sharded parameters."""
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}
_LEAST_TOLD: Final = 0.02  # kinds of products with a smaller share of the time of all are left out


def precision_rules(facts: KernelFacts, product: BoolArray) -> Iterator[Cause]:
    """Yield causes of products in a slow data type; `product` is a mask of kernels.

    Rule single-precision is tried only if tf32-off does not hold: TF32 is the easier remedy.
    """
    by_name = [operand_type(name) for name in names(facts.prepared.trace.activities["name"])]
    type_by_name = np.array(by_name)[facts.name]
    has_no_op = facts.product < 0  # then only the name tells the type

    def of(*types: str) -> BoolArray:
        """Return which kernels are products of operands of these types."""
        is_named_so = has_no_op & np.isin(type_by_name, types)
        return product & (facts.is_type(*types) | is_named_so)

    # Programs other than PyTorch may need FP64: it is told only if the GPU is slow at it.
    is_torch = "torch" in facts.case.program
    slow_rate = limit(facts.case, "double-precision", "slow_rate")
    if is_torch or facts.rate("fp64") < facts.rate("fp32") * slow_rate:
        yield from _faster(facts, "double-precision", {"fp64": of("fp64")}, "fp32")
    single = list(_faster(facts, "tf32-off", {"fp32": of("fp32")}, "tf32"))
    yield from single
    half = next((name for name in HALF if facts.rate(name)), "")
    of_half = of(*_NARROW)
    # If other products are in 16 bits already, these are likely in FP32 on purpose.
    most = limit(facts.case, "single-precision", "most_others") * facts.ns[product].sum()
    if half and facts.ns[of_half].sum() < most and not single and is_torch:
        yield from _faster(facts, "single-precision", {name: of(name) for name in SINGLE}, half)


def totals_in_single(case: Case) -> Iterator[Finding]:
    """Yield a finding if products in FP32 or TF32 take long in a recording without a timeline.

    Such a recording has only the total time per kernel name. The names tell the data type, and
    whether the GPU has TF32. As in timelines, TF32 is told only if hardly anything is in 16 bits.
    """
    rows = case.untimed.rows.to_pylist() if case.untimed is not None else ()
    rows = [row for row in rows if row["share"] and row["sub"] in _KINDS]
    of_type: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        of_type.setdefault(operand_type(row["name"]), []).append(row)
    in_fp32 = [row for row in of_type.get(FP32, ()) if _HAS_TF32.search(row["name"])]
    if severity_of(_share(in_fp32)) is not None:
        yield _of_totals(case, "tf32-off", in_fp32)
        return
    in_tf32 = of_type.get("tf32", [])
    in_half = [row for name in _NARROW for row in of_type.get(name, ())]
    most = limit(case, "single-precision", "most_others") * _share(rows)
    is_judged = severity_of(_share(in_tf32)) is not None and _share(in_half) < most
    if is_judged and "torch" in case.program:
        yield _of_totals(case, "single-precision", in_tf32)


def _share(rows: Iterable[Mapping[str, Any]]) -> float:
    return float(sum(row["share"] for row in rows))


def _of_totals(case: Case, rule: str, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Return the finding of a rule on products, by their totals."""
    kinds = tuple(dict.fromkeys(row["sub"] for row in rows))
    products = tuple(fact(f"products.{kind}") for kind in kinds)
    values: dict[str, Value] = {
        "first": products[0],
        "many": _many(kinds),
        "types": "TF32",
        "products": products,
        "parts": (fact("products.typed", products=products, types="TF32"),),
    }
    all_rows = case.untimed.of_kind("kernel").to_pylist() if case.untimed is not None else ()
    shares = {row["name"]: row["share"] or 0.0 for row in all_rows}
    values |= _collectives(shares, "bf16", trains=are_of_training(shares))  # with TF32 there is it
    return statement(rule, _share(rows), values, advice=advice_of(rule, case.program, values))


def _collectives(shares: Mapping[str, float], half: str, *, trains: bool) -> dict[str, Value]:
    """Return how long collectives add up FP32, if that is much, and how they do so in `half`.

    `shares` of the time are by name. Automatic mixed precision leaves parameters and gradients as
    they are. Where nothing `trains`, collectives are of activations, which it changes.
    """
    in_fp32 = {name: part for name, part in shares.items() if _FP32_COLLECTIVE.search(name)}
    share = min(sum(in_fp32.values()), 1.0)  # they may overlap
    way = "fsdp" if any(map(_OF_SHARDS.search, in_fp32)) else "ddp"
    code = f"single-precision.collectives-{way}"
    told = fact(code, share=share, half=half, dtype=_DTYPES[half])
    return {"collectives": told if trains and share >= WORTH_SAYING else None}


def _many(kinds: Sequence[str]) -> int:
    """Return 1 for a singular verb after the first kind of products, else 2.

    Titles name only the first kind: "Attention runs in FP32", "GEMMs run in FP32".
    """
    return 1 if kinds[:1] == ("attention",) else 2


def _faster(
    facts: KernelFacts, rule: str, by_type: dict[str, BoolArray], fast: str
) -> Iterator[Cause]:
    """Yield a cause of products that need less time in another data type, `fast`.

    `by_type` has a mask of kernels per data type, the type with the least rate first.
    """
    rate, slow = facts.rate(fast), next(iter(by_type))
    if not rate or facts.rate(slow) >= rate:
        return
    # Per kernel, the part of its time that is left: by its roofline, before and after the change;
    # with unknown FLOPs, by the rates, if fewer bytes help as well. Bytes limit vector products.
    size_ratio, is_known = _BYTES[fast] / _BYTES[slow], facts.roof_ns > 0
    after_ns = np.maximum(facts.flops / rate, size_ratio * facts.bytes_ns)
    by_rate, is_vector = np.ones(len(after_ns)), facts.named(OF_VECTORS.search)
    for name, mask in by_type.items() if size_ratio < 1 else ():
        rate_ratio = facts.rate(name) / rate or 1.0
        by_rate[mask] = np.where(is_vector[mask], size_ratio, rate_ratio)
    kept = np.divide(after_ns, facts.roof_ns, out=by_rate, where=is_known)
    knows = {"fp16-only"} if fast == "fp16" else set[str]()
    of_types = {name: mask & (kept < 1) for name, mask in by_type.items()}
    rows = np.logical_or.reduce([*of_types.values()])
    kinds = _large_kinds(facts, rows)
    rows = np.logical_or.reduce([*kinds.values()]) if kinds else rows
    values = _named(facts, kinds, of_types)
    if values["types"] == "FP32" and facts.rate(FP32) < facts.rate("tf32"):
        knows.add("has-tf32")
    memory = facts.case.total.components.share("memory") or 0.0
    if fast in HALF:
        values |= {"memory": memory} if severity_of(memory) == "high" else {}
        kernels = facts.case.measured.kernels
        shares = {one.name: share_of_window(facts.case, one.sum_ns) for one in kernels}
        values |= _collectives(shares, fast, trains="trains" in facts.case.program)
    yield from kernel_cause(facts, rule, rows, kept, (), frozenset(knows), values)


def _large_kinds(facts: KernelFacts, rows: BoolArray) -> dict[str, BoolArray]:
    """Return a mask of kernels per kind of products, most time first; `rows` has all products.

    Kinds that take little time are left out: a sentence names all of what its share is of.
    """
    # Convolutions launch kernels that are named as GEMMs.
    ops = facts.prepared.trace.ops["name"]
    convolves = facts.by_op(matching(ops, lambda name: "convolution" in name))
    of_kind = {sub: facts.is_sub(f"compute/{sub}") & ~convolves for sub in _KINDS}
    of_kind["convolution"] |= convolves
    kinds = {sub: rows & mask for sub, mask in of_kind.items()}
    times = {sub: int(facts.ns[mask].sum()) for sub, mask in kinds.items()}
    least_ns = max(_LEAST_TOLD * sum(times.values()), 1)
    return {
        sub: kinds[sub]
        for sub in sorted(times, key=lambda sub: -times[sub])
        if times[sub] >= least_ns
    }


def _named(
    facts: KernelFacts, kinds: dict[str, BoolArray], of_types: dict[str, BoolArray]
) -> dict[str, Value]:
    """Return values of texts on products: their kinds, most time first, and their data types.

    `kinds` has a mask of kernels per kind, `of_types` one per data type.
    """
    has_no_tf32 = all(map(without_tf32, facts.prepared.trace.devices.to_pylist()))
    by_word: dict[str, list[Fact]] = {}
    for sub, rows in kinds.items():
        types = {name for name, mask in of_types.items() if (mask & rows).any()}
        if types == {"fp64"}:
            word = "FP64"
        elif types == {FP32} or has_no_tf32:
            word = "FP32"
        else:
            word = "TF32" if types == {"tf32"} else "FP32 or TF32"
        by_word.setdefault(word, []).append(fact(f"products.{sub}"))
    products = [product for kinds in by_word.values() for product in kinds]
    return {
        "first": next(iter(products), None),
        "many": _many(tuple(kinds)),
        "types": next(iter(by_word), None),
        "products": tuple(products),
        "parts": tuple(
            fact("products.typed", products=tuple(kinds), types=word)
            for word, kinds in by_word.items()
        ),
    }

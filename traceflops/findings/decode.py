"""Rules of serving: what limits decode passes, what lies between passes, and what delays them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from statistics import median_low
from typing import Final

from traceflops.attribution.datatypes import UNKNOWN_TYPE, operand_type
from traceflops.facts import fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.finding import MOST_ROWS, Cause, Gain, Row, short_name
from traceflops.mfu.inference import PhaseUse
from traceflops.mfu.traced.work_tables import KernelRow
from traceflops.units import several

_WIDE: Final = frozenset({"bf16", "fp16"})
"""Data types of products whose weights 8 bits would halve."""
_NARROW: Final = frozenset({"fp8", "int8"})
_BITS: Final = (
    (4, re.compile(r"fp4|e2m1|int4|uint4|w4a|awq|gptq|marlin|q4_", re.IGNORECASE)),
    (8, re.compile(r"fp8|e4m3|e5m2|float8|int8|w8a|i8i8|q8_|mul_mat_(vec_)?q\b", re.IGNORECASE)),
)
"""Most bits of a weight, by words in the names of kernels."""
_UNTOLD_BITS: Final = 16
_UNTOLD_TYPE: Final = "bf16"
"""What is assumed of weights and of computing if the name of the kernel tells nothing."""
_FP4: Final = re.compile(r"fp4|e2m1", re.IGNORECASE)
_FP4_BY_FP4: Final = re.compile(
    r"_VSI(S[0-9A-Z]*_)\1|_VS<((?=[\w:]*?e2m1)[\w:]+), ?\2|mxf4|w4a4"
    r"|fp4_?(x_?)?fp4|e2m1_?(x_?)?e2m1",
    re.IGNORECASE,
)
"""Products of two operands of FP4; S_ in a mangled name is a type that was named before."""
_WIDE_INPUTS: Final = re.compile(r"a16|awq|gptq|marlin", re.IGNORECASE)
_OF_EXPERTS: Final = re.compile(r"moe|expert|grouped_gemm", re.IGNORECASE)


def decode(case: Case) -> Iterator[Cause]:
    """Give causes in the passes of a serving engine."""
    yield from _weights(case)
    yield from _few_tokens(case)
    yield from _between(case)
    yield from _mixed(case)


def _weights(case: Case) -> Iterator[Cause]:
    """Give a cause if decode passes read 16-bit weights about as fast as memory can."""
    phase = _decode(case)
    mbu = phase.mbu if phase is not None else None
    if mbu is None or mbu < limit(case, "decode-weights", "near"):
        return
    products = _products(case)
    share = share_of_window(case, sum(row.sum_ns for row in products))
    wide = [row for row in products if row.dtypes and _WIDE.issuperset(row.dtypes)]
    is_wide = 2 * sum(row.sum_ns for row in wide) > sum(row.sum_ns for row in products)
    if not is_wide or share < limit(case, "decode-weights", "least_share"):
        return
    yield cause(case, "decode-weights", share, {"mbu": float(mbu)}, rows=_rows(wide))


def _decode(case: Case) -> PhaseUse | None:
    """Return the decode passes if they take nearly all of the time, else None."""
    inference = case.measured.inference
    phase = inference.phase("decode") if inference is not None else None
    share = share_of_window(case, phase.time_ns) if phase is not None else 0.0
    return phase if share >= limit(case, "decode-passes", "least_share") else None


def _rows(kernels: Sequence[KernelRow]) -> tuple[Row, ...]:
    """Return the first of these kernels as rows of evidence."""
    return tuple(
        Row(short_name(kernel.name), kernel.sum_ns, kernel.count) for kernel in kernels[:MOST_ROWS]
    )


def _few_tokens(case: Case) -> Iterator[Cause]:
    """Give a cause if decode passes compute too few tokens for the weights they read.

    Tokens are enough if computing takes as long as reading the weights: a weight has bits / 8
    bytes, and costs 2 FLOPs per token. Unknown data types are taken as bfloat16, and not told. Of
    several kinds of GPUs, the one that needs the fewest tokens counts.
    """
    phase, products = _decode(case), _products(case)
    times: Counter[tuple[int, str]] = Counter()
    for row in products:
        times[weight_bits(row.name), _computes_in(row.name)] += row.sum_ns
    bits, dtype = times.most_common(1)[0][0] if times else (_UNTOLD_BITS, _UNTOLD_TYPE)
    devices = [gpu for gpu in case.measured.devices if gpu.bandwidth and "bf16" in gpu.rates]
    is_known = all(dtype in gpu.rates for gpu in devices)
    # Tokens until computing takes as long as reading: FLOPs per byte * bytes per weight / 2
    enough = [
        gpu.rates[dtype if is_known else _UNTOLD_TYPE] / gpu.bandwidth * bits / 16
        for gpu in devices
        if gpu.bandwidth
    ]
    if phase is None or not enough or not phase.queries:
        return
    tokens = phase.queries / phase.passes
    share = share_of_window(case, sum(row.sum_ns for row in products))
    few = tokens < min(enough) * limit(case, "decode-batch", "most_of_ridge")
    if not few or share < limit(case, "decode-batch", "least_share"):
        return
    # 16 bits may be an assumption: it is not told if other kernels have narrow weights.
    has_narrow = any(
        row.category.sub == "quantize" or weight_bits(row.name) < _UNTOLD_BITS
        for row in case.measured.kernels
    )
    is_sure = (bits < _UNTOLD_BITS and is_known) or not has_narrow
    has_experts = any(_OF_EXPERTS.search(row.name) for row in products)
    values = {
        "tokens": float(tokens),
        "bits": bits if is_sure else None,
        "many": several(round(min(enough)), "token") if is_sure else "many tokens",
        "effect": fact(f"decode-batch.{'experts' if has_experts else 'cheap'}"),
    }
    passes = case.serving.passes  # none without annotations of an engine
    is_one = bool(passes) and all(one_pass.batch == 1 for one_pass in passes)
    knows = frozenset({"one-request"} if is_one else ())
    yield cause(case, "decode-batch", share, values, knows=knows, rows=_rows(products))


def _products(case: Case) -> list[KernelRow]:
    return [row for row in case.measured.kernels if row.category.sub == "gemm"]


def weight_bits(kernel: str) -> int:
    """Return how many bits the weights of a product have, by the name of its kernel."""
    return next((bits for bits, named in _BITS if named.search(kernel)), _UNTOLD_BITS)


def _computes_in(kernel: str) -> str:
    """Return the data type in which a product computes, by its name; bfloat16 if it tells none.

    The result is UNKNOWN_TYPE if the name does not tell whether both operands are FP4.
    """
    if _FP4_BY_FP4.search(kernel):
        return "fp4"
    if _WIDE_INPUTS.search(kernel):
        return _UNTOLD_TYPE
    if _FP4.search(kernel):
        return UNKNOWN_TYPE
    dtype = operand_type(kernel)
    return dtype if dtype in _NARROW else _UNTOLD_TYPE


def _between(case: Case) -> Iterator[Cause]:
    """Give a cause if the GPU is idle for long from one pass to the next.

    Overlapping this work with passes gains all of the idle time at best, and about half at least.
    """
    kinds = [kind for kind in case.serving.kinds if kind.followed]
    gaps, passes = sum(kind.followed for kind in kinds), len(case.serving.passes)
    # The last pass has no gap after it: it is given the mean of the others.
    idle_ns = sum(kind.between_ns for kind in kinds) * passes // max(gaps, 1) // case.windows_used
    share = share_of_window(case, idle_ns * case.windows_used)
    if share < limit(case, "between-passes", "least_share"):
        return
    worst = max(kinds, key=lambda kind: kind.between_ns)
    times: Counter[str] = Counter()
    for culprit in (culprit for kind in kinds for culprit in kind.waits.culprits if culprit.label):
        times[short_name(culprit.label)] += culprit.idle_ns
    named = times.most_common(MOST_ROWS)
    kind = fact("between-passes.after", kind=worst.kind) if worst.kind else None
    yield cause(
        case,
        "between-passes",
        share,
        {
            "each_ns": worst.between_ns // worst.followed,
            "after": kind or fact("between-passes.after-any"),
        },
        tuple(fact("part.largest", name=name) for name, _ in named[:1]),
        rows=tuple(Row(name, time_ns) for name, time_ns in named),
        gain=Gain(idle_ns // 2, idle_ns, None),
    )


def _mixed(case: Case) -> Iterator[Cause]:
    """Give a cause if passes that read prompts delay the tokens of requests that generate.

    Such are mixed passes or, without any, prefill passes before a decode pass that has more
    sequences than they read: the other sequences had to wait.
    """
    rule, passes = "mixed-passes", case.serving.passes
    kinds = {kind.kind: kind for kind in case.serving.kinds}
    decode, is_mixed = kinds.get("decode"), "mixed" in kinds
    slow = [one_pass for one_pass in passes if one_pass.kind == "mixed"]
    by_kind = groupby(passes, key=lambda one_pass: (one_pass.device, one_pass.kind))
    runs = [(key, [*run]) for key, run in by_kind] if not is_mixed else []
    for ((device, kind), prefills), (next_key, decodes) in pairwise(runs):
        read = [prefill.batch for prefill in prefills if prefill.batch is not None]
        waiting = (decodes[0].batch or 0) - sum(read)
        are_known = len(read) == len(prefills)
        if kind == "prefill" and next_key == (device, "decode") and waiting > 0 and are_known:
            slow += prefills
    if decode is None or not slow or decode.passes < limit(case, rule, "least_passes"):
        return
    slow_ns = [one_pass.duration_ns for one_pass in slow]
    share, usual_ns = share_of_window(case, sum(slow_ns)), median_low(slow_ns)
    is_slow = usual_ns >= limit(case, rule, "times") * decode.p50_ns
    if not is_slow or share < limit(case, rule, "least_share"):
        return
    # A mixed pass also generates, which a decode pass would do instead; a prefill pass does not.
    plain_ns = decode.p50_ns * len(slow) if is_mixed else 0
    more_ns = max(sum(slow_ns) - plain_ns, 0)
    kind = "mixed" if is_mixed else "prefill"
    yield cause(
        case,
        rule,
        share,
        {"kind": kind, "slow_ns": usual_ns, "decode_ns": decode.p50_ns, "passes": len(slow)},
        rows=(Row(several(len(slow), f"{kind} pass"), sum(slow_ns), len(slow)),),
        gain=Gain(0, more_ns // case.windows_used, None),
    )

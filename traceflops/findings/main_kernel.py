"""Rule `main-kernel`: which kernel has most of the time, and what to do about it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from traceflops.categories import of_ml, without_return_type
from traceflops.characters import kernel_name
from traceflops.findings.case import gpus_of
from traceflops.findings.decode import weight_bits
from traceflops.findings.finding import Finding, Row, severity_of, short_name
from traceflops.units import percent

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.findings.losses import Loss
    from traceflops.mfu import Serving
    from traceflops.table import Trace
    from traceflops.timeline import Account

MAIN_KERNEL: Final = "main-kernel"
_BATCHES: Final = "Try larger batches, {precision}or a library tuned for its shapes."
_REMEDIES: Final = {
    "gemm": "Tune it for its shapes, or try another library.",
    "vector": "It reads a matrix for one vector: batch several, so that one reading serves all.",
    "attention": "Try a newer fused kernel for it.",
}
"""What to do, by category."""
_ANY: Final = "Speed up or replace this kernel first."
_COUNTED_BY: Final = {
    "amd": ": profile it with rocprof-compute",
    "nvidia": ": profile it with Nsight Compute (ncu --set full)",
    "": ": profile it with Nsight Compute (ncu --set full) or rocprof-compute",
}
"""What tells why a kernel is slow, by who made the GPU."""
_KINDS: Final = ("compute", "other")
"""Kinds of work of which one kernel may be the program; of `other` nothing else is known."""
_DECODE: Final = (
    "A decode pass of {tokens:,} tokens is limited by reading weights: batch more requests, "
    "{quantize}or tune this kernel."
)
_NARROW_BITS: Final = 8
"""Weights of so few bits are quantized: lower precision is no advice."""
_FEW_TOKENS: Final = 64
"""So many tokens per pass are too few to keep the arithmetic of weights busy."""
_FAMILY: Final = re.compile(r"_*[a-z]+(?:_[a-z]+)+(?![a-z0-9])")
"""The words with which names of variants begin: `_matmul_ogs` of `_matmul_ogs_NNT_16x128`."""
_OF_VECTORS: Final = re.compile(r"gemv|mat_?vec|mul_?vec", re.IGNORECASE)
_FUNCTION: Final = re.compile(r"(?:void )?([^<(\[]+)")


def main_kernel_findings(
    kernels: pa.Table,
    total: Account,
    found: Sequence[Loss],
    serving: Serving,
    of: str,
    trace: Trace,
) -> Iterator[Finding]:
    """Give a finding where one kernel has most of a kind of work, which has most of the time.

    Of compute only where it may be far below peak: where its FLOPs are not known, or more than half
    of it is lost.
    """
    shares = {kind: total.components.share(kind) or 0.0 for kind in _KINDS}
    top = max(_KINDS, key=lambda kind: shares[kind])
    lost = {loss.name: loss.share for loss in found}.get("inefficiency", shares["compute"])
    rows = [row for row in kernels.to_pylist() if row["top"] == top]
    known = top == "compute" and 2 * lost < shares["compute"]
    if 2 * shares[top] <= 1 or known or len(rows) < 2:
        return
    times: Counter[tuple[str, str]] = Counter()
    for row in rows:
        times[_family(row["name"]), row["sub"]] += row["sum_ns"]
    [((name, sub), time_ns)] = times.most_common(1)
    variant = next(row["name"] for row in rows if _family(row["name"]) == name)
    whole = time_ns / total.components.window_ns
    share = min(whole, shares[top])
    severity = severity_of(share)
    if severity is not None and 2 * time_ns >= times.total():
        unknown = f"What limits it is unknown{_COUNTED_BY.get(gpus_of(trace), '')}."
        do = _remedy(variant, sub, serving, of_ml(trace)) if top == "compute" else unknown
        told = (Row(name, time_ns),)
        most = "up to " if whole > share else ""  # its launches overlap
        said = f"{name} takes {most}{percent(share)} of {of}. {do}"
        yield Finding(MAIN_KERNEL, severity, said, share, None, ("kernels",), remedy=do, rows=told)


def _family(name: str) -> str:
    """Return what the variants of a kernel are called."""
    name = without_return_type(kernel_name(name))
    words = _FAMILY.match(name) or _FUNCTION.match(name)
    return short_name((words[words.lastindex or 0] if words else name).strip())


def _remedy(name: str, sub: str, serving: Serving, has_batches: bool) -> str:
    """Return what to do; a decode pass of few tokens reads the weights for these only."""
    passes = {kind.kind: kind for kind in serving.kinds}
    decode = passes.get("decode") if len(passes) == 1 else None
    tokens = (decode.tokens or 0) // decode.passes if decode is not None else 0
    is_wide = weight_bits(name) > _NARROW_BITS
    if sub == "gemm" and 0 < tokens <= _FEW_TOKENS:
        return _DECODE.format(tokens=tokens, quantize="quantize, " * is_wide)
    is_vector = sub == "gemm" and _OF_VECTORS.search(name)
    if sub == "gemm" and has_batches and not is_vector:
        return _BATCHES.format(precision="lower precision, " * is_wide)
    return _REMEDIES.get("vector" if is_vector else sub, _ANY)

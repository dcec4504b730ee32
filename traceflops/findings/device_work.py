"""Rules of work on the GPU: kernels far below bandwidth or matrix rate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.characters import kernel_name
from traceflops.findings.case import is_amd, limit, share_of_window
from traceflops.findings.finding import Candidate, Owner, Row, Where, row_name
from traceflops.findings.kernel_facts import KernelFacts, largest_of, rows_of
from traceflops.findings.memory_kernels import memory_rules
from traceflops.findings.products import product_rules
from traceflops.memory import memory_use
from traceflops.units import percent, time_share

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.mfu import KernelRow

_NOT_AGAIN: Final = (
    "Turn activation checkpointing off, or checkpoint only as much as memory needs: fewer blocks, "
    "or cheap operators alone (torch.utils.checkpoint.create_selective_checkpoint_contexts)."
)
KERNELS: Final = frozenset({"compute", "memory"})
"""Components of the critical path whose parts are named after kernels."""
_MOST_ROWS, _MOST_EDITS = 3, 20


@dataclass(frozen=True, slots=True)
class _Far:
    """A rule on kernels of some categories far below what the device can do; none: all others.

    Kernels whose names match `used` come from what the remedy names: for them it is `instead`.
    """

    rule: str
    component: str
    title: str
    roof: str
    owner: Owner
    remedy: str
    limits: str
    subs: frozenset[str] = frozenset()
    on_amd: str = ""
    used: str = "$^"
    instead: str = ""


_BYTES: Final = ("what bandwidth allows", "framework")
_BANDWIDTH: Final = (
    _Far(
        "softmax-bandwidth",
        "memory",
        "Softmax is far below bandwidth",
        *_BYTES,
        "Use F.scaled_dot_product_attention for attention and F.cross_entropy for the loss; "
        "torch.compile fuses what is left with its neighbours.",
        "memory-bandwidth",
        frozenset({"softmax"}),
    ),
    _Far(
        "norm-bandwidth",
        "memory",
        "Normalisation is far below bandwidth",
        *_BYTES,
        "Use F.layer_norm and F.rms_norm on contiguous tensors, and channels_last for batch norm; "
        "torch.compile fuses them with their neighbours.",
        "memory-bandwidth",
        frozenset({"norm", "fused_norm"}),
        used=r"layer_?norm|rms_?norm|GammaBeta|RowwiseMoments",
        instead="Keep the tensors contiguous; torch.compile fuses these kernels with others.",
    ),
    _Far(
        "memory-bandwidth",
        "memory",
        "Memory kernels are far below bandwidth",
        *_BYTES,
        "Fuse them, for example with torch.compile; make their tensors contiguous and large "
        "enough.",
        "memory-bandwidth",
    ),
)
_OF_RATE: Final = ("what rate and bandwidth allow", "library")
_RATES: Final = (
    _Far(
        "attention-rate",
        "compute",
        "Attention is far below the peak rate",
        *_OF_RATE,
        "Use a newer attention kernel (FlashAttention-3, or F.scaled_dot_product_attention inside "
        "sdpa_kernel(SDPBackend.CUDNN_ATTENTION)).",
        "attention-rate",
        frozenset({"attention"}),
        "Try another attention kernel, such as flash-attn with its Composable Kernel or Triton "
        "backend (AITER).",
    ),
    _Far(
        "convolution-rate",
        "compute",
        "Convolutions are far below the peak rate",
        *_OF_RATE,
        "Set torch.backends.cudnn.benchmark = True, which lets cuDNN or MIOpen choose the fastest "
        "kernel, and use torch.channels_last; a larger batch makes small convolutions larger.",
        "matrix-rate",
        frozenset({"convolution"}),
    ),
    _Far(
        "matrix-rate",
        "compute",
        "Matrix products are far below the peak rate",
        *_OF_RATE,
        'Update the BLAS library or let torch.compile(mode="max-autotune") choose kernels; give '
        "small products more rows by a larger batch.",
        "matrix-rate",
        frozenset(),
        "Update hipBLASLt, or let PYTORCH_TUNABLEOP_ENABLED=1 or "
        'torch.compile(mode="max-autotune") choose kernels; give small products more rows by a '
        "larger batch.",
    ),
)
_KINDS: Final = frozenset(sub for one in (*_BANDWIDTH, *_RATES) for sub in one.subs)


def _far_from_peaks(
    case: Case, facts: KernelFacts | None, told: Mapping[str, float]
) -> Iterator[Candidate]:
    """Give a candidate per kind of kernels far below bandwidth or rate.

    `told` is what other rules leave of kernels by name: what they explain to half is none.
    """
    for kind in (*_BANDWIDTH, *_RATES):
        yield from _far(case, facts, kind, told)


def _far(
    case: Case, facts: KernelFacts | None, kind: _Far, told: Mapping[str, float]
) -> Iterator[Candidate]:
    poor, good = (limit(case, kind.limits, name) for name in ("poor", "good"))
    reached = [
        (row, part)
        for row in case.measured.kernels
        if _is_of(row, kind) and 0 < (part := _reached(case, row)) < poor
    ]
    reached.sort(key=lambda one: -one[0].sum_ns * (1 - one[1] / good))
    explained = [
        (row, part)
        for row, part in reached
        if 2 * (1 - told.get(kernel_name(row.name), 1.0)) >= 1 - part / good
    ]
    chosen = [one for one in reached if one not in explained][:_MOST_EDITS]
    time_ns = sum(row.sum_ns for row, _ in chosen)
    share = share_of_window(case, time_ns)
    if share < limit(case, kind.limits, "least_share"):
        return
    largest, where = _largest(facts, {row.name for row, _ in chosen}) if facts else ("", Where())
    mean = sum(part * row.sum_ns for row, part in chosen) / time_ns
    alike = tuple(_alike(case, chosen))
    yield Candidate(
        rule=kind.rule,
        title=kind.title,
        sentence=(
            f"Kernels with {time_share(share)} of the time reach {percent(mean)} of {kind.roof}; "
            f"the gain assumes {percent(good)} and more.{largest}"
        ),
        share=share,
        owner=kind.owner,
        remedy=_remedy(case, kind, [row for row, _ in chosen]),
        evidence=("kernels", "roofline"),
        rows=tuple(_row(row) for row, _ in chosen[:_MOST_ROWS]),
        where=where,
        edits=_as_if((*chosen, *alike, *explained), limit(case, kind.limits, "best")),
        partly=_as_if(chosen, good),
        doubts=(
            *("what some kernels need is unknown",) * bool(alike),
            *("another finding tells why some kernels are slow",) * bool(explained),
        ),
        on_path=frozenset({kind.component}),
        kernels={kernel_name(row.name): part / good for row, part in chosen},
    )


def _remedy(case: Case, kind: _Far, chosen: Sequence[KernelRow]) -> str:
    """Return what to do, without what most of the kernels come from already."""
    times = Counter[bool]()
    for row in chosen:
        times[re.search(kind.used, row.name, re.IGNORECASE) is not None] += row.sum_ns
    usual = kind.on_amd if kind.on_amd and is_amd(case) else kind.remedy
    return kind.instead if times[True] > times[False] else usual


def _largest(facts: KernelFacts, kernels: set[str]) -> tuple[str, Where]:
    """Return what of some kernels takes most time, as a sentence, and its module."""
    time = np.where(facts.named(kernels.__contains__), facts.ns, 0.0)
    largest, where = largest_of(facts, time) if time.any() else ("", Where())
    return f" Largest part: {largest}." if largest else "", where


def _is_of(row: KernelRow, kind: _Far) -> bool:
    top, sub = row.category.top, row.category.sub
    return top == kind.component and (sub in kind.subs or (not kind.subs and sub not in _KINDS))


def _alike(
    case: Case, chosen: Sequence[tuple[KernelRow, float]]
) -> Iterator[tuple[KernelRow, float]]:
    """Yield kernels with unknown needs, as poor as those of their category may be."""
    parts = {row.category: part for row, part in reversed(chosen)}
    for row in case.measured.kernels:
        if row.category in parts and row.counted < row.count:
            yield row, parts[row.category]


def _as_if(chosen: Sequence[tuple[KernelRow, float]], reached: float) -> tuple[str, ...]:
    """Return the edits with which kernels reach a part of what they could."""
    return tuple(
        rf"kernel:^{re.escape(row.name)}(\.kd)?$*{part / reached:.4f}" for row, part in chosen
    )


def _reached(case: Case, row: KernelRow) -> float:
    """Return how much of the roof kernels reach, 0 where that is not known of all of them."""
    devices = case.measured.devices
    needs = [
        time for device in devices if (time := _needed_ns(row, device.rates, device.bandwidth))
    ]
    if len(needs) < len(devices) or not needs or row.counted < row.count or not row.sum_ns:
        return 0.0
    return max(needs) / row.sum_ns


def _needed_ns(row: KernelRow, rates: Mapping[str, int], bandwidth: int | None) -> float:
    rate = rates.get(row.dtypes[0]) if len(row.dtypes) == 1 else None
    flops, size = row.measured.flops, row.measured.min_bytes
    of_flops = flops / rate if flops and rate else 0.0
    if row.category.top == "compute" and not (of_flops and size):  # it may wait for its bytes
        return 0.0
    of_bytes = size / bandwidth if size and bandwidth and row.path == "memory" else 0.0
    return max(of_flops, of_bytes)


def _row(row: KernelRow) -> Row:
    return Row(row_name(row.name), row.sum_ns, row.count)


def kernel_rules(case: Case) -> Iterator[Candidate]:
    """Yield what is wrong with the kernels of the chosen windows.

    Kernels for which a rule tells why they are slow are not called slow besides.
    """
    told: dict[str, float] = {}
    facts = KernelFacts(case, case.prepared) if case.prepared is not None else None
    owners = case.measured.executed.attribution.owner
    if facts is not None and len(owners) != facts.prepared.trace.activities.num_rows:
        facts = None  # measured elsewhere
    if facts is not None:
        for rule in (product_rules, memory_rules, _recompute):
            for one in rule(facts):
                told |= {name: min(left, told.get(name, 1.0)) for name, left in one.kernels.items()}
                yield one
    yield from _far_from_peaks(case, facts, told)


def _recompute(facts: KernelFacts) -> Iterator[Candidate]:
    """Yield a candidate where computing forward work again takes enough time."""
    time = np.where(facts.in_phase("recompute"), facts.ns, 0.0)
    share = share_of_window(facts.case, int(time.sum()))
    if share < limit(facts.case, "kernel-faults", "least_share"):
        return
    used = [one.share_of_device for one in memory_use(facts.prepared)]
    most = max((one for one in used if one is not None), default=None)
    room = "was not recorded" if most is None else f"is {percent(1 - most)} of the memory"
    is_full = most is None or most > limit(facts.case, "recompute", "most_memory")
    largest, where = largest_of(facts, time)
    yield Candidate(
        rule="recompute",
        title="Activations are computed again",
        sentence=(
            f"Computing forward work again takes {time_share(share)} of the time; largest part: "
            f"{largest}. What is free for activations {room}."
        ),
        share=share,
        owner="yours",
        remedy=_NOT_AGAIN,
        evidence=("categories", "memory"),
        rows=rows_of(facts, time),
        where=where,
        edits=("recompute=off",),
        on_path=frozenset({"compute", "memory", "eager_overhead"}),
        doubts=("the memory for activations may be missing",) * is_full,
    )

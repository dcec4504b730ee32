"""Rules of work on the GPU: exposed communication, kernels far below bandwidth or matrix rate."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.findings.case import limit, share_of_window
from traceflops.findings.finding import Candidate, Owner, Row
from traceflops.findings.late_rank import slow_rank_edits
from traceflops.remedies import PYTORCH, family
from traceflops.units import percent

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.mfu import KernelRow

_MOST_ROWS, _MOST_EDITS, _LONGEST_NAME = 3, 20, 160
_OVERLAP: Final = (
    "Overlap it with the backward pass: DistributedDataParallel with smaller bucket_cap_mb and "
    "gradient_as_bucket_view=True, or FSDP with backward_prefetch=BackwardPrefetch.BACKWARD_PRE."
)


def exposed_communication(case: Case) -> Iterator[Candidate]:
    """Give a candidate where collectives run while nothing else does."""
    share = case.total.components.share("communication") or 0.0
    if share < limit("exposed-communication", "least_share"):
        return
    is_torch = family(case.source.format) == PYTORCH
    found = [row for row in case.measured.kernels if row.category.top == "communication"]
    yield Candidate(
        rule="exposed-communication",
        title="Communication is not hidden",
        sentence=f"Only communication runs for {percent(share)} of the time.",
        share=share,
        owner="framework",
        remedy=_OVERLAP if is_torch else "Start communication earlier, beside independent work.",
        evidence=("communication", "timeline", "categories"),
        rows=tuple(map(_row, found[:_MOST_ROWS])),
        edits=("communication=hidden",),
        on_path=frozenset({"communication"}),
        frees=True,
        partly=("communication*1",),
        after=slow_rank_edits(case.ranks),
        doubts=("there may be nothing to hide some of it under",),
    )


@dataclass(frozen=True, slots=True)
class _Far:
    """A rule on kernels far below what the device can do."""

    rule: str
    component: str
    title: str
    roof: str
    owner: Owner
    remedy: str


_BANDWIDTH: Final = _Far(
    "memory-bandwidth",
    "memory",
    "Memory kernels are far below bandwidth",
    "what bandwidth allows",
    "framework",
    "Fuse them, for example with torch.compile; make their tensors contiguous and large enough.",
)
_RATE: Final = _Far(
    "matrix-rate",
    "compute",
    "Matrix products are far below the peak rate",
    "what rate and bandwidth allow",
    "library",
    "Pad dimensions to multiples of 64 and use bfloat16; update the BLAS library or let "
    'torch.compile(mode="max-autotune") choose kernels.',
)


def memory_bandwidth(case: Case) -> Iterator[Candidate]:
    """Give a candidate where memory kernels are far below the bandwidth."""
    yield from _far(case, _BANDWIDTH)


def matrix_rate(case: Case) -> Iterator[Candidate]:
    """Give a candidate where compute kernels are far below the rate of their type."""
    yield from _far(case, _RATE)


def _far(case: Case, kind: _Far) -> Iterator[Candidate]:
    poor, good = (limit(kind.rule, name) for name in ("poor", "good"))
    reached = [
        (row, part)
        for row in case.measured.kernels
        if row.category.top == kind.component and 0 < (part := _reached(case, row)) < poor
    ]
    reached.sort(key=lambda one: -one[0].sum_ns * (1 - one[1] / good))
    chosen = reached[:_MOST_EDITS]
    time_ns = sum(row.sum_ns for row, _ in chosen[:_MOST_ROWS])
    share = share_of_window(case, time_ns)
    if share < limit(kind.rule, "least_share"):
        return
    mean = sum(part * row.sum_ns for row, part in chosen) / time_ns
    alike = tuple(_alike(case, chosen))
    yield Candidate(
        rule=kind.rule,
        title=kind.title,
        sentence=(
            f"Kernels with {percent(share)} of the time reach {percent(mean)} of {kind.roof}; the "
            f"gain assumes {percent(good)} and more."
        ),
        share=share,
        owner=kind.owner,
        remedy=kind.remedy,
        evidence=("kernels", "roofline"),
        rows=tuple(_row(row) for row, _ in chosen[:_MOST_ROWS]),
        edits=_as_if((*chosen, *alike), limit(kind.rule, "best")),
        partly=_as_if(chosen, good),
        doubts=("what some kernels need is unknown",) * bool(alike),
        on_path=frozenset({kind.component}),
    )


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
    if row.category.top == "compute" and not of_flops:
        return 0.0
    of_bytes = size / bandwidth if size and bandwidth and row.path == "memory" else 0.0
    return max(of_flops, of_bytes)


def _row(row: KernelRow) -> Row:
    name = row.name if len(row.name) <= _LONGEST_NAME else f"{row.name[: _LONGEST_NAME - 1]}…"
    return Row(name, row.sum_ns, row.count)

"""How much of a run got its FLOPs from another recording, and in which way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from traceflops.mfu.counted.kernel_matching import HOW, KNOWN, How, Matched, match
from traceflops.mfu.counted.launch_work import LaunchWork, Origin, flops_of
from traceflops.mfu.counted.launches import UNKNOWN_SIZE, Launches, axes, product_of
from traceflops.table import ABSENT, BoolArray, IntArray, Note, codes, exact_sum, names, numbers
from traceflops.units import decimal, exact_percent
from traceflops.windows import Prepared


@dataclass(frozen=True, slots=True)
class JoinedPart:
    """Launches that were joined in one way, or could not be; the time of them added up, in ns."""

    how: How
    launches: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Join:
    """The compute kernels of the chosen windows, by how another recording tells their FLOPs.

    `file` is the recording, None for the trace's own counters.
    """

    origin: Origin
    file: str | None
    parts: tuple[JoinedPart, ...]

    @property
    def launches(self) -> int:
        """Return all of them."""
        return sum(part.launches for part in self.parts)

    @property
    def known(self) -> int:
        """Return those whose FLOPs are known."""
        return sum(part.launches for part in self.parts if part.how in KNOWN)

    @property
    def share(self) -> Fraction | None:
        """Return the share of their time with known FLOPs, None without any time."""
        total = sum(part.time_ns for part in self.parts)
        known = sum(part.time_ns for part in self.parts if part.how in KNOWN)
        return Fraction(known, total) if total else None

    def count(self, *how: How) -> int:
        """Return the launches that were joined in one of these ways."""
        return sum(part.launches for part in self.parts if part.how in how)


def join_of(
    origin: Origin, file: str | None, matched: Matched, wanted: BoolArray, dur_ns: IntArray
) -> Join:
    """Return the summary of wanted launches; the columns are by launch."""
    parts = []
    for place, how in enumerate(HOW):
        rows = wanted & (matched.how == place)
        launches = int(np.count_nonzero(rows))
        if launches:
            parts.append(JoinedPart(how, launches, exact_sum(dur_ns[rows])))
    return Join(origin, file, tuple(parts))


# What another recording tells of sums by name: how often a kernel ran, times its FLOPs.


def summed_notes(prepared: Prepared, works: Iterable[LaunchWork]) -> Iterator[Note]:
    """Yield the FLOPs of a trace that has sums and no timeline, as other recordings tell them."""
    if prepared.trace.activities.num_rows:
        return
    summed = _summed(prepared)
    if summed is None:
        return
    launches, times, total_ns = summed
    for work in works:
        found = match(launches, work)
        exact = [all(part.flops == part.at_least for part in kind) for kind in found.kinds]
        known = np.array([*exact, False], dtype=np.bool_)[found.kind] & (times != ABSENT)
        known &= found.has("order", "alike")
        if not known.any():
            yield Note("missing", "sums-not-told", _NOTHING)
            continue
        flops = flops_of(found.kinds)[found.kind[known]].tolist()
        done = sum(one * count for one, count in zip(flops, times[known].tolist(), strict=True))
        share = Fraction(sum(total_ns[known].tolist()), max(1, sum(total_ns.tolist())))
        text = (
            "According to the pair, the kernels of these sums executed "
            f"{_flops(done)} (launches x FLOPs per launch; {exact_percent(share)} of kernel "
            "time). Without a timeline there is no MFU or HFU."
        )
        yield Note("assumed", "sums-told", text, int(times[known].sum()))


def _summed(prepared: Prepared) -> tuple[Launches, IntArray, IntArray] | None:
    """Return each sum of kernels as one launch, how many it stands for, and their time."""
    table = prepared.trace.totals
    kinds = names(table["kind"]) if table.num_rows else []
    if "kernel" not in kinds:
        return None
    rows = np.flatnonzero(codes(table["kind"]) == kinds.index("kernel"))
    grid, block = (axes(table[name])[rows] for name in ("grid", "block"))
    grids, blocks = product_of(grid), product_of(block)
    known = (grids > 0) & (blocks > 0)
    nothing = np.full(len(rows), -1, dtype=np.int64)
    launches = Launches(
        row=rows,
        process=np.zeros(len(rows), dtype=np.int64),
        name=codes(table["name"])[rows],
        names=names(table["name"]),
        threads=np.where(known, grids * blocks, UNKNOWN_SIZE),
        block=blocks,
        grid=grids,
        grid_axes=grid,
        block_axes=block,
        window=nothing,
        used=np.ones(len(rows), dtype=np.bool_),
        ranks={},
    )
    counts = numbers(table["count"], ABSENT)[rows]
    return launches, counts, np.maximum(numbers(table["total_ns"], 0)[rows], 0)


def _flops(number: int) -> str:
    scale, unit = next((one for one in _SCALES if number >= one[0]), _SCALES[-1])
    return f"{decimal(Fraction(number, scale), 1)} {unit}"


_SCALES: Final = ((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"))


_NOTHING: Final = (
    "The pair gives no FLOPs for these sums: kernel names and sizes do not match, or "
    "equal launches did different work."
)

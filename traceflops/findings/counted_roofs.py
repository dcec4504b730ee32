"""How near a counted kernel is to its roofs, what it wastes, and what relieves its nearest roof."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, limit
from traceflops.findings.counted_estimates import (
    COUNTED_KERNEL,
    computes_most,
    counted_fact,
    is_on_tensor_cores,
    pipes_fact,
)
from traceflops.mfu.counted.kernel_speeds import COMPUTING, ROOFS, KernelSpeed

WARP: Final = 32
"""Threads of a warp of NVIDIA's devices."""
_BUSY: Final = frozenset({"matrix", "vector", "lds"})
"""Throughputs that are shares of cycles in which units are busy."""
_OF_KINDS: Final = frozenset(
    {("product", "sm"), ("product", "vector"), ("once", "dram"), ("passes", "dram")}
)
"""Kinds of kernels and roofs with a remedy of their own."""
_OF_PIPES: Final = frozenset({"fp64", "tensor", "alu", "xu", "lsu", "adu"})
"""Pipes with a remedy of their own."""
_ALSO: Final = ("sm", "dram")
"""Roofs that are told beside a nearer one, since both must be relieved."""
_CONFLICTS: Final = re.compile(r"(\d+(?:\.\d+)?) ?- ?way bank conflict")


def roofs(speed: KernelSpeed, near: float) -> Iterator[Fact]:
    """Give the share of the nearest roof, of `_ALSO` from `near` on; all if none is the nearest."""
    shares = speed.shares
    if speed.roof is not None:
        also = {name: shares[name] for name in _ALSO if shares.get(name, 0.0) >= near}
        shares = {**dict([speed.roof]), **also}
    for name, share in shares.items():
        pipe = pipes_fact(speed) if name == "sm" and speed.pipe else None
        yield counted_fact(
            "busy" if name in _BUSY else "roof", roof=ROOFS[name], share=share, pipe=pipe
        )


def wasted_by(case: Case, speed: KernelSpeed) -> Iterator[Fact]:
    """Give what a kernel wastes: idle lanes and SMs, sectors that no thread reads, conflicts."""
    # Idle lanes matter only to a kernel that computing limits.
    is_computing = speed.roof is not None and speed.roof[0] in COMPUTING
    if is_computing and speed.lanes and speed.lanes < limit(case, COUNTED_KERNEL, "lanes") * WARP:
        yield counted_fact("lanes", lanes=speed.lanes, warp=WARP)
    idle = idle_sms(speed, limit(case, COUNTED_KERNEL, "uneven"))
    # The start and end of a very short launch leave SMs idle, whatever its blocks do.
    is_long = (speed.duration_ns or 0) >= limit(case, "small-grid", "least_ns") * speed.launches
    is_full = speed.roof is not None and speed.roof[1] >= limit(case, COUNTED_KERNEL, "near")
    yield from [idle] if idle is not None and is_long and not is_full else ()
    is_excess = (speed.excess or 0.0) >= limit(case, COUNTED_KERNEL, "excess")
    is_idle = computes_most(speed, partial(limit, case, COUNTED_KERNEL))
    if is_excess and not (speed.moves_no_more or is_idle):
        yield counted_fact("excess", share=speed.excess)
    ways = [
        float(match[1])
        for rule in speed.rules
        if (rule.speedup_share or 0.0) >= limit(case, COUNTED_KERNEL, "conflicts")
        and (match := _CONFLICTS.search(rule.text))
    ]
    if ways:
        yield counted_fact("conflicts", ways=max(ways))


def idle_sms(speed: KernelSpeed, least: float) -> Fact | None:
    """Return how long SMs or CUs have work if a grid that fills them leaves them idle, else None.

    It does if the average one has work for less than `least` of the time.
    """
    if speed.active is None or speed.active >= least or (speed.waves or 0.0) < 1:
        return None
    units = "cu" if "vector" in speed.throughputs else "sm"
    return counted_fact(f"active-{units}", share=speed.active, most=None)


def relief_of(speed: KernelSpeed, kind: str, wasted: Sequence[Fact]) -> Fact | None:
    """Return how to take work from the unit that is nearest its peak, None if that is unknown."""
    if speed.roof is None:
        return None
    roof, _ = speed.roof
    if roof not in COMPUTING and any(waste.code.endswith(".excess") for waste in wasted):
        return counted_fact("remedy.coalesce")
    parts = tuple(counted_fact(f"remedy.pipe.{pipe}") for pipe in speed.pipes if pipe in _OF_PIPES)
    if roof == "sm" and parts:
        return parts[0] if len(parts) == 1 else fact("joined", parts=parts)
    if roof == "l1" and speed.shared_bytes == 0:
        return counted_fact("remedy.unshared.l1")
    has_own = (kind, roof) in _OF_KINDS and not (roof == "sm" and is_on_tensor_cores(speed))
    return counted_fact(f"remedy.{kind}.{roof}" if has_own else f"remedy.roof.{roof}")

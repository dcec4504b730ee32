"""Rule `low-clock`: GPUs that work at a clock below their maximum, or below that of the others.

What was sampled of clocks beside a recording also says why a rank is late (`clocks_of_late`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import cause, limit, share_of_window
from traceflops.findings.finding import Cause, Verdict, Where
from traceflops.findings.rules import advice_of

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.gpu_samples import GpuSamples
    from traceflops.ranks.slow_rank import SlowRank
    from traceflops.table.trace import Trace

RULE: Final = "low-clock"
_REASONS: Final = {"thermal": 0x20 | 0x40 | 1 << 17, "supply": 0x80 | 0x8, "power": 0x4 | 1 << 16}
"""Bits of the reasons why a clock is low."""


def low_clocks(case: Case) -> Iterator[Cause]:
    """Give a cause where GPUs work far below their clocks; late ranks have their own."""
    slow = case.ranks.slow if case.ranks is not None else None
    late = slow.ranks if slow is not None and slow.cause == "slow_clock" else ()
    of = {one.device: one for one in case.devices if one.rank not in late}
    low = [one for one in case.gpu_samples if one.device in of and _is_low(case, one)]
    if not low:
        return
    worst = max(low, key=lambda one: one.below or 0.0)
    device = of[worst.device]
    lost_ns = sum(of[one.device].chosen.components.compute_ns * (one.below or 0.0) for one in low)
    is_all, factor = len(low) == len(case.devices), f"{1 - (worst.below or 0.0):.4f}"
    ranks = (of[one.device].rank for one in low)
    faster = tuple(f"rank {rank}=median" for rank in ranks if rank is not None)
    at_times = max((worst.reasons or {}).values(), default=1.0) < 1
    start_ns, end_ns = worst.slow_ns if at_times and worst.slow_ns else (None, None)
    yield cause(
        case,
        RULE,
        share_of_window(case, round(lost_ns)),
        {"whose": fact("low-clock.the-gpu") if len(case.devices) == 1 else device.label}
        | _values(worst),
        (fact("low-clock.several", count=len(low), all=len(case.devices)),) * (len(low) > 1),
        _reasons(worst),
        where=Where(rank=None if is_all else device.rank, start_ns=start_ns, end_ns=end_ns),
        edits=(f"kernel:^compute/*{factor}",) if is_all else faster,
        partly=(f"kernel:^compute/(gemm|convolution)$*{factor}",) if is_all else (),
        on_path=frozenset({"compute"}) if is_all else frozenset(),
    )


def samples_verdict(sampled: Sequence[GpuSamples], trace: Trace) -> Verdict | None:
    """Return what to say of samples without a recording; None where there are none."""
    if not sampled:
        return None
    slowest = max(sampled, key=lambda gpu: gpu.below or 0.0)
    parts = [fact("samples.alone", count=len(sampled))]
    if slowest.below:
        number = trace.devices["local_id"][slowest.device].as_py()
        code = "samples.slowest" if len(sampled) > 1 else "samples.only"
        parts.append(fact(code, number=number, **_values(slowest)))
    return Verdict(tuple(parts), "samples")


def clocks_of_late(case: Case, slow: SlowRank) -> tuple[Fact | None, Fact | None]:
    """Return what samples say of the clock of a late rank and of others, and the remedy, or None.

    It may be as high as theirs: then its kernels are slow for another reason.
    """
    of = {device.device: device.rank for device in case.devices}
    known = [gpu for gpu in case.gpu_samples if _is_known(case, gpu)]
    own = next((gpu for gpu in known if of.get(gpu.device) == slow.rank), None)
    late = {None, *slow.ranks}
    others = [gpu.clock_mhz or 0.0 for gpu in known if of.get(gpu.device) not in late]
    if own is None or not others or own.clock_mhz is None:
        return None, None
    usual = float(np.median(others))
    rank = slow.rank if len(slow.ranks) > 1 else None
    whose = fact("low-clock.its") if rank is None else fact("low-clock.of-rank", rank=rank)
    if own.clock_mhz > usual * (1 - limit(case, RULE, "least_apart")):
        return fact("low-clock.no-lower", whose=whose, mhz=own.clock_mhz), None
    lower = fact("low-clock.lower", usual=usual, **(_values(own) | {"whose": whose}))
    return lower, advice_of(RULE, case.program | _reasons(own))


def _is_known(case: Case, gpu: GpuSamples) -> bool:
    return gpu.busy >= limit(case, RULE, "least_samples")


def _is_low(case: Case, gpu: GpuSamples) -> bool:
    below = gpu.below
    return _is_known(case, gpu) and below is not None and below >= limit(case, RULE, "least_below")


def _values(gpu: GpuSamples) -> dict[str, Value]:
    """Return how low a clock is and why."""
    assert gpu.clock_mhz is not None
    return {"mhz": gpu.clock_mhz, "below": gpu.below or None, "reason": gpu.reason_words}


def _reasons(gpu: GpuSamples) -> frozenset[str]:
    """Return the kind of reason of most samples, nothing without any."""

    def share(name: str) -> float:
        shares = (part for bit, part in (gpu.reasons or {}).items() if bit & _REASONS[name])
        return max(shares, default=0.0)

    largest = max(_REASONS, key=share)
    return frozenset({largest} if share(largest) else ())

"""Rule `low-clock`: GPUs that work at a clock below their maximum, or below that of the others.

What was sampled of clocks beside a recording also says why a rank is late (`clocks_of_late`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.findings.case import is_amd, limit, share_of_window
from traceflops.findings.finding import Candidate, Verdict, Where
from traceflops.units import percent, several

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.gpu_samples import GpuSamples
    from traceflops.ranks import SlowRank
    from traceflops.table import Trace

RULE: Final = "low-clock"
_AWAY: Final = "leave the node out until then."
_COOL: Final = f"Improve the cooling of that GPU: airflow, dust, temperature of the room; {_AWAY}"
_SUPPLY: Final = f"Check the power supply and the cables of that GPU; {_AWAY}"
_MORE: Final = "where the machine allows it, and compare it with that of other GPUs."
_REMEDIES: Final = (
    (0x20 | 0x40 | 1 << 17, _COOL, _COOL),
    (0x80 | 0x8, _SUPPLY, _SUPPLY),
    (
        0x4 | 1 << 16,
        f"Raise the power limit (nvidia-smi -pl WATTS) {_MORE}",
        f"Raise the power cap (amd-smi set --power-cap WATTS) {_MORE}",
    ),
    (
        0,
        "Release the clocks: nvidia-smi -rac and -rgc.",
        "Release the clocks: amd-smi reset --clocks.",
    ),
)
"""What to do, by bits of reasons: for GPUs of NVIDIA, and of AMD; the last without any of them."""


def low_clocks(case: Case) -> Iterator[Candidate]:
    """Give a candidate where GPUs work far below their clocks; late ranks have their own."""
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
    whose = "the GPU" if len(case.devices) == 1 else device.label
    more = f" {several(len(low), 'GPU')} of {len(case.devices)} are low." if len(low) > 1 else ""
    faster = tuple(f"rank {rank}=median" for rank in ranks if rank is not None)
    at_times = max((worst.reasons or {}).values(), default=1.0) < 1
    start_ns, end_ns = worst.slow_ns if at_times and worst.slow_ns else (None, None)
    yield Candidate(
        rule=RULE,
        title="The GPU clock is low",
        sentence=f"The clock of {whose} {_words(worst)}.{more}",
        share=share_of_window(case, round(lost_ns)),
        owner="cluster",
        remedy=_remedy(case, worst),
        evidence=("clocks",),
        where=Where(rank=None if is_all else device.rank, start_ns=start_ns, end_ns=end_ns),
        edits=(f"kernel:^compute/*{factor}",) if is_all else faster,
        partly=(f"kernel:^compute/(gemm|convolution)$*{factor}",) if is_all else (),
        on_path=frozenset({"compute"}) if is_all else frozenset(),
        doubts=("kernels that memory limits gain less from a higher clock",),
    )


def samples_verdict(sampled: Sequence[GpuSamples], trace: Trace) -> Verdict | None:
    """Return what to say of samples without a recording; None where there are none."""
    if not sampled:
        return None
    slowest = max(sampled, key=lambda one: one.below or 0.0)
    who, number = several(len(sampled), "GPU"), trace.devices["local_id"][slowest.device]
    whose = f"of GPU {number}, the slowest, " * (len(sampled) > 1)
    said = f" The clock {whose}{_words(slowest)}." if slowest.below else ""
    return Verdict(f"Clocks and power of {who}, without a recording.{said}")


def clocks_of_late(case: Case, slow: SlowRank) -> tuple[str, str]:
    """Return what samples say of the clock of a late rank and of others, and the remedy; else "".

    It may be as high as theirs: then its kernels are slow for another reason.
    """
    of = {one.device: one.rank for one in case.devices}
    known = [one for one in case.gpu_samples if _is_known(case, one)]
    own = next((one for one in known if of.get(one.device) == slow.rank), None)
    late = {None, *slow.ranks}
    others = [one.clock_mhz or 0.0 for one in known if of.get(one.device) not in late]
    if own is None or not others or own.clock_mhz is None:
        return "", ""
    usual = float(np.median(others))
    whose = "Its clock" if len(slow.ranks) == 1 else f"The clock of rank {slow.rank}"
    if own.clock_mhz > usual * (1 - limit(case, RULE, "least_apart")):
        return f"{whose} is no lower than theirs: {_mhz(own.clock_mhz)} while it works.", ""
    return f"{whose} {_words(own)}; the others run at {_mhz(usual)}.", _remedy(case, own)


def _is_known(case: Case, one: GpuSamples) -> bool:
    return one.busy >= limit(case, RULE, "least_samples")


def _is_low(case: Case, one: GpuSamples) -> bool:
    below = one.below
    return _is_known(case, one) and below is not None and below >= limit(case, RULE, "least_below")


def _words(one: GpuSamples) -> str:
    """Return how low a clock is and why, as what follows it."""
    assert one.clock_mhz is not None
    below = f", {percent(one.below)} below its maximum" if one.below else ""
    reason = f" ({one.reason_words})" if one.reason_words else ""
    return f"is {_mhz(one.clock_mhz)} while it works{below}{reason}"


def _remedy(case: Case, one: GpuSamples) -> str:
    """Return what to do about the reason of most samples."""

    def share(mask: int) -> float:
        return max((part for bit, part in (one.reasons or {}).items() if bit & mask), default=0.0)

    _, nvidia, amd = max(_REMEDIES[:-1], key=lambda row: share(row[0]))
    if not any(share(mask) for mask, *_ in _REMEDIES):
        _, nvidia, amd = _REMEDIES[-1]
    return amd if is_amd(case) else nvidia


def _mhz(clock: float) -> str:
    return f"{clock:,.0f} MHz"

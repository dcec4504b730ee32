"""The waterfall of a trace whose FLOPs are known from a description alone.

Useful work, recomputation and what else is executed are those of the description; the rest of the
compute time is inefficiency, because no kernel's own FLOPs are known.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import lcm

from traceflops.devices.missing_input import Lack
from traceflops.flops.analytic.run_utilisation import Utilisation
from traceflops.flops.mfu_waterfall import FAMILIES, DeviceBudget, Portion, Waterfall, waterfall
from traceflops.mfu.checked.job_size import JobSize
from traceflops.timeline.records import Components, Window
from traceflops.windows.prepared import Prepared

DESCRIBED = "described"
"""Stands for the one data type that a description has."""

TOO_MUCH = Lack(
    "the described work would run compute kernels above peak",
    "check the description, the peak, and whether the trace has the kernels of all its GPUs",
)


def described_fall(
    described: Utilisation, prepared: Prepared, job: JobSize
) -> tuple[Waterfall | None, tuple[Lack, ...]]:
    """Return the split of the budget by a description; or why its work does not fit in."""
    peak = described.choice.peak
    if peak is None or not job.windows:
        return None, ()
    families = {name: _share(described, job, name) for name in FAMILIES}
    # FLOPs per device and window, and the peak, may be fractions: then the unit is smaller.
    scale = lcm(peak.flops_per_ns.denominator, *(one.denominator for one in families.values()))
    budgets = [
        _budget(windows, families, peak.flops_per_ns, scale)
        for windows in prepared.windows.values()
    ]
    fall = waterfall(budgets, DESCRIBED)
    dtypes = (described.choice.dtype,) if described.choice.dtype is not None else ()
    unit = fall.unit if scale == 1 else f"1/{scale} FLOP"
    if fall.errors:
        return None, (TOO_MUCH,)
    return replace(fall, dtypes=dtypes, unit=unit), ()


def _share(described: Utilisation, job: JobSize, family: str) -> Fraction:
    """Return the FLOPs of one family that fall to one window of one device."""
    ledger = described.work.ledger
    flops = ledger.total(family) + (ledger.total("convention") if family == "model" else 0)
    return Fraction(flops) / job.devices


def _budget(
    windows: tuple[Window, ...], families: dict[str, Fraction], peak: Fraction, scale: int
) -> DeviceBudget:
    used = [window for window in windows if window.used]
    components = sum((window.account.components for window in used), Components())
    work = tuple(
        Portion(name, "compute", DESCRIBED, int(flops * scale * len(used)))
        for name, flops in families.items()
        if flops
    )
    return DeviceBudget(components.parts(), 0, work, {DESCRIBED: int(peak * scale)})

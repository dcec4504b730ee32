"""What to say of a host that launches too slowly: how far it is ahead, where, and if graphs fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceflops.findings.case import limit
from traceflops.units import capitalized, duration, listed, percent, several

if TYPE_CHECKING:
    from traceflops.findings.case import Case

_RULE: Final = "launch-bound"
GRAPHS: Final = (
    'Replay the step as a CUDA graph: torch.compile(mode="reduce-overhead") or '
    "torch.cuda.make_graphed_callables()."
)
UNLIKE: Final = (
    "Join kernels with torch.compile, and give each launch more work, for example by a larger "
    "batch. Graphs need the same launches and shapes in each step."
)


def pace_words(case: Case) -> str:
    """Return how many launches are starved and the phases that are worst, "" where it keeps up."""
    pace = case.host_bound
    if pace is None or not pace.is_bound:
        return ""
    where = f", most in {listed(pace.bound_in, between=' and ')}" if pace.bound_in else ""
    starved = f" {capitalized(percent(pace.starved_share))} of launches come when the GPU has no "
    lead = ""
    if pace.verdict == "host-bound":
        lead = f" Half of all work starts within {duration(pace.lead_median_ns)} of its launch."
    return f"{starved}work{where}.{lead}{_short(case)}"


def _short(case: Case) -> str:
    """Return how many kernels are short and how many launches a step has, if graphs would fit."""
    if case.launches is None or not fits_graphs(case):
        return ""
    sums = case.launches.total
    short = percent(sums.short_kernels / sums.kernels)
    least, most = min(_launched(case)), max(_launched(case))
    each = f"{'at least ' if least < most else ''}{several(least, 'operation')}"
    return (
        f" Each step launches {each}, none by a graph; {short} of kernels take less than "
        f"{duration(case.launches.short_ns)}."
    )


def fits_graphs(case: Case) -> bool:
    """Return whether steps are alike, have many short kernels, and no graph launches them."""
    launched, launches = _launched(case), case.launches
    if (
        len(launched) < limit(case, _RULE, "least_steps")
        or launches is None
        or not launches.total.kernels
    ):
        return False
    sums = launches.total
    return (
        max(launched) <= min(launched) * (1 + limit(case, _RULE, "most_unlike"))
        and sums.short_kernels >= limit(case, _RULE, "least_short") * sums.kernels
        and sums.operations <= sums.launches * (1 + limit(case, _RULE, "most_unlike"))
    )


def _launched(case: Case) -> list[int]:
    """Return how much each chosen step launched on each device."""
    windows = (window for device in case.devices for window in device.windows)
    return [one.launched for one in windows if one.used and one.step is not None and one.launched]

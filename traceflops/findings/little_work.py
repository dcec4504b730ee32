"""A recording of hardly any GPU work: what it takes to start, and nothing of how a program runs.

    |<--------------- recorded --------------->|
    |-------- start-up --------|GPU|---------- |      # milliseconds, and busy for less

Copies, idle time and launches in such a window are those of a beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceflops.attribution.host_calls import outside_gpu_work
from traceflops.facts import Fact, fact
from traceflops.findings.rules import thresholds
from traceflops.timeline.intervals import Intervals
from traceflops.windows.selection import Selection

if TYPE_CHECKING:
    from traceflops.windows.prepared import Prepared

_SEVERAL: Final = 2


def little_work(prepared: Prepared) -> tuple[Fact, ...]:
    """Return that a recording holds too little GPU work to judge, and what to record instead.

    Nothing where it has steps, where a part of it is chosen, or where there is more. A single step
    that GPUs run far apart in time is none.
    """
    if prepared.selection != Selection() or prepared.on_host:
        return ()
    if prepared.plan.choice.used:
        return _apart(prepared)
    limits, spans_ns, busy_ns = thresholds()["little-work"], [0], [0]
    for account in prepared.accounts.values():
        first_ns, end_ns = account.rows.span
        spans_ns.append(end_ns - first_ns)
        busy_ns.append(Intervals.of(account.rows.start_ns, account.rows.end_ns).length_ns)
    if max(spans_ns) > limits["most_window_ns"] or max(busy_ns) > limits["most_busy_ns"]:
        return ()
    rest = outside_gpu_work(prepared)
    if rest is None or max(busy_ns) > limits["most_share"] * rest.recorded_ns:
        return ()
    outside_ns = rest.before_ns + rest.after_ns
    if outside_ns < max(limits["least_outside"] * rest.recorded_ns, 1):
        return ()
    is_before = 2 * rest.before_ns >= rest.recorded_ns
    code = "after-start-up" if is_before else "of-recording"
    values = {"busy_ns": max(busy_ns), "window_ns": max(spans_ns)}
    times = {"before_ns": rest.before_ns, "recorded_ns": rest.recorded_ns}
    return fact(f"little-work.{code}", **values, **times), fact("little-work.record")


def _apart(prepared: Prepared) -> tuple[Fact, ...]:
    """Return that GPUs of one process run the only step at times that lie far apart, if they do."""
    spans = [
        (window.start_ns, window.end_ns)
        for windows in prepared.windows.values()
        for window in windows
        if window.used
    ]
    processes = set(prepared.trace.devices["process"].to_pylist())
    if len(prepared.plan.choice.used) > 1 or len(spans) < _SEVERAL or len(processes) > 1:
        return ()
    starts_ns, ends_ns = zip(*sorted(spans), strict=True)
    apart_ns = [start - end for start, end in zip(starts_ns[1:], ends_ns[:-1], strict=True)]
    if min(apart_ns) <= max(end - start for start, end in spans):
        return ()
    far = fact("little-work.apart", count=len(spans), apart_ns=min(apart_ns))
    return far, fact("little-work.record")

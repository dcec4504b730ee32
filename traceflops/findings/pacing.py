"""Loops that keep a rate of their own: frames of a video, a control loop with a timer.

    begins     |     |      |    |     |     |       one late: the next still in time
    clock      |     |     |     |     |     |

What such a loop waits for is not lost: faster work makes its waits longer.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import numpy as np
from msgspec.structs import replace

from traceflops.attribution.culprits import IdleClass
from traceflops.facts import fact
from traceflops.findings.case import Case
from traceflops.findings.finding import Cause

_LEAST_STEPS: Final = 32
_STEADY: Final = 0.1
"""Periods deviate from their mean by at most this share of it (standard deviation)."""
_WAITS: Final = 0.1  # least share of the time in which the GPU waits for the clock
_STEPS: Final = 8
_DRIFT: Final = 1.5
"""So many steps together deviate at most this many times as much as one; sqrt(8) without a clock,
at most sqrt(2) with one."""
_POLLS: Final = re.compile(r"p?poll|epoll_p?wait2?|p?select")


def period_ns(case: Case, *, sleeps: bool = False) -> int | None:
    """Return the time from the beginning of a step to that of the next, None if it is not fixed.

    In a loop that `sleeps` a fixed time per step, lateness may add up.
    """
    total = case.total.components
    if len(case.devices) != 1 or total.idle_ns < _WAITS * total.window_ns:
        return None
    used = [window for window in case.devices[0].windows if window.used and window.step is not None]
    if len(used) < _LEAST_STEPS:
        return None
    start_ns = np.array([window.start_ns for window in used])
    step = np.array([window.step for window in used])
    single_ns, several_ns = (
        (start_ns[n:] - start_ns[:-n]) / (step[n:] - step[:-n]) * n for n in (1, _STEPS)
    )
    mean_ns, deviation_ns = max(single_ns.mean(), 1.0), single_ns.std()
    adds_up = several_ns.std() > _DRIFT * deviation_ns and not sleeps
    return None if adds_up or deviation_ns > _STEADY * mean_ns else round(mean_ns)


def as_paced(case: Case, cause: Cause, idle: IdleClass, knows: Collection[str]) -> Cause:
    """Return a cause as what a loop of a fixed rate waits for its next turn, if it is that."""
    sleeps = cause.rule == "own-sleep"
    polls = cause.rule == "external-wait" and _POLLS.fullmatch(idle.culprits[0].label)
    is_off = cause.rule == "host-unrecorded" and "off-cpu" in knows
    each_ns = period_ns(case, sleeps=sleeps) if sleeps or polls or is_off else None
    if each_ns is None:
        return cause
    own = "-sleeps" if sleeps else ""
    values = {"share": cause.share, "period_ns": each_ns, "rate": 1e9 / each_ns}
    return replace(
        cause,
        name=fact("paced.title"),
        claim=fact(f"paced.claim{own}", **values),
        advice=fact(f"paced.advice{own}"),
        edits=(),
        partly=(),
        on_path=frozenset(),
        doubts=(fact("doubt.pace"),),
    )

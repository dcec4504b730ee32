"""Rule `start-up`: what the program does once is no part of what it does again and again."""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec.structs import replace

from traceflops.facts import Value, fact
from traceflops.findings.case import Case
from traceflops.findings.finding import WORTH_SAYING, Finding
from traceflops.findings.rules import advice_of, statement
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Components
from traceflops.timeline.start_up import KINDS
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time
from traceflops.windows.repetition import FEWEST_ROUNDS
from traceflops.windows.started_up import BEFORE_WORK, set_up, upload

START_UP: Final = "start-up"
_HARDLY: Final = 0.01
"""A GPU that works for a smaller share of the time has hardly begun."""


def start_up(case: Case) -> Finding | None:
    """Return how much of the time is start-up and what most of it is, None if it is little.

    The time is that of the chosen windows, and of those that are left out as start-up.
    """
    chosen, before = case.total.components, _left_out(case)
    whole, (set_up_ns, uploads_ns) = chosen + before, _set_up_ns(case.prepared)
    once_ns = whole.start_up_ns + set_up_ns
    share = once_ns / max(whole.window_ns, 1)
    if share < WORTH_SAYING:
        return None
    busy_ns = whole.window_ns - whole.start_up_ns - whole.idle_ns
    beside_ns = before.window_ns - before.start_up_ns - set_up_ns
    is_hardly = busy_ns < _HARDLY * whole.window_ns and not before.window_ns
    is_beside = beside_ns >= _HARDLY * whole.window_ns
    basis = "step" if case.steps.used else "span" if before.window_ns else "window"
    # Busy time is told if it is hardly any, other work only if windows are left out before it.
    values: dict[str, Value] = {
        "busy_ns": round(busy_ns / case.windows_used) if is_hardly else None,
        "time_ns": round(once_ns / case.windows_used),
        "window_ns": round(whole.window_ns / case.windows_used),
        "rest_ns": round(chosen.window_ns / case.windows_used) if before.window_ns else None,
        "beside_ns": round(beside_ns / case.windows_used) if is_beside else None,
        "what": fact(f"{START_UP}.{basis}"),
        "kind": fact(f"{START_UP}.upload")
        if 2 * uploads_ns > once_ns
        else main_kind(case.prepared),
    }
    repeats = "-only" if _repeats(case) else ""
    again = fact(f"{START_UP}.remedy.again{repeats}") if before.window_ns else None
    return statement(START_UP, share, values, advice=again or advice_of(START_UP, case.program))


def _set_up_ns(prepared: Prepared | None) -> tuple[int, int]:
    """Return the time left out of work done once, and of that what uploads data, in ns.

    Both are beside known start-up.
    """
    total_ns = uploads_ns = 0
    for device, account in prepared.accounts.items() if prepared is not None else ():
        assert prepared is not None
        for window in prepared.windows[device]:
            if window.left_out == BEFORE_WORK:
                left_out = Intervals.one(window.start_ns, window.end_ns).subtract(account.start_up)
                total_ns += set_up(prepared.linked, account).intersect(left_out).length_ns
                uploads_ns += upload(prepared.linked, account).intersect(left_out).length_ns
    return total_ns, uploads_ns


def _repeats(case: Case) -> bool:
    """Return whether most of the work after start-up is of kernels that run several times."""
    rows = case.measured.kernels
    often_ns = sum(row.sum_ns for row in rows if row.count >= FEWEST_ROUNDS * case.windows_used)
    return 2 * often_ns > sum(row.sum_ns for row in rows)


def kept(case: Case) -> float:
    """Return the share of the time that is not left out as start-up."""
    window_ns = case.total.components.window_ns
    return window_ns / max(window_ns + _left_out(case).window_ns, 1)


def _left_out(case: Case) -> Components:
    """Return the time of windows that are left out as start-up."""
    windows = (window for device in case.devices for window in device.windows)
    left_out = (window.account.components for window in windows if window.left_out == BEFORE_WORK)
    return sum(left_out, Components())


def main_kind(prepared: Prepared | None) -> str | None:
    """Return what most of the start-up is, in words; None if it is of several kinds."""
    by_kind = Counter[str]()
    for device, account in prepared.accounts.items() if prepared is not None else ():
        assert prepared is not None
        # Windows that are left out as start-up count as chosen here.
        windows = (
            replace(window, used=window.used or window.left_out == BEFORE_WORK)
            for window in prepared.windows[device]
        )
        chosen = chosen_time(tuple(windows))
        for kind, times in account.start_up_by_kind.items():
            by_kind[kind] += times.intersect(chosen).length_ns
    [(kind, most_ns)] = by_kind.most_common(1) or [("", 0)]
    return KINDS[kind] if 2 * most_ns > by_kind.total() else None

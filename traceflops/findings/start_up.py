"""Rule `start-up`: what the program does once is no part of what it does again and again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from traceflops.facts import Value, fact
from traceflops.findings.case import share_of_window
from traceflops.findings.finding import WORTH_SAYING, Finding
from traceflops.findings.rules import advice_of, statement
from traceflops.timeline.start_up import KINDS
from traceflops.windows.records import chosen_time

if TYPE_CHECKING:
    from traceflops.findings.case import Case

_RULE: Final = "start-up"
_HARDLY: Final = 0.01
"""A GPU that works for a smaller share of the time has hardly begun."""


def start_up(case: Case) -> Finding | None:
    """Return how much of the chosen windows is start-up and what most of it is, if it is much."""
    components = case.total.components
    share = share_of_window(case, components.start_up_ns)
    if share < WORTH_SAYING:
        return None
    by_kind, prepared = Counter[str](), case.prepared
    for device, account in prepared.accounts.items() if prepared is not None else ():
        assert prepared is not None
        chosen = chosen_time(prepared.windows[device])
        for kind, times in account.start_up_by_kind.items():
            by_kind[kind] += times.intersect(chosen).length_ns
    [(kind, most_ns)] = by_kind.most_common(1) or [("", 0)]
    busy_ns = components.window_ns - components.start_up_ns - components.idle_ns
    values: dict[str, Value] = {
        "busy_ns": round(busy_ns / case.windows_used)
        if share_of_window(case, busy_ns) < _HARDLY
        else None,
        "time_ns": round(components.start_up_ns / case.windows_used),
        "window_ns": round(components.window_ns / case.windows_used),
        "what": fact(f"{_RULE}.step" if case.steps.used else f"{_RULE}.window"),
        "kind": KINDS[kind] if 2 * most_ns > components.start_up_ns else None,
    }
    return statement(_RULE, share, values, advice=advice_of(_RULE, case.program))

"""Rule `start-up`: the time of what a program does once, apart from what it does again."""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec.structs import replace

from traceflops.facts import Fact, Value, fact
from traceflops.findings.autotuning import trials
from traceflops.findings.case import Case
from traceflops.findings.finding import WORTH_SAYING, Finding, function_of, short_name
from traceflops.findings.rules import advice_of, statement
from traceflops.timeline.intervals import NEVER, Intervals
from traceflops.timeline.records import Components
from traceflops.timeline.start_up import KINDS
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time
from traceflops.windows.repetition import FEWEST_ROUNDS
from traceflops.windows.started_up import BEFORE_WORK, made_once, set_up, upload

START_UP: Final = "start-up"
ONCE: Final = "start-up.remedy.once"  # the code of the advice if a kernel makes the data of a loop
_MANY: Final = 20  # so often kernels run that no more rounds are needed beside start-up
_HARDLY: Final = 0.01  # a GPU that works for a smaller share of the time has hardly begun


def start_up(case: Case) -> Finding | None:
    """Return a finding on the share of start-up and what most of it is, None if it is little.

    The share is of the chosen windows and of those that are left out as start-up.
    """
    chosen, before = case.total.components, _left_out(case)
    whole, set_up_ns, uploads_ns = chosen + before, 0, 0
    # Work done once in windows that are left out, beside known start-up
    prepared = case.prepared
    for device, account in prepared.accounts.items():
        for window in prepared.windows[device]:
            if window.left_out == BEFORE_WORK:
                left_out = Intervals.one(window.start_ns, window.end_ns).subtract(account.start_up)
                set_up_ns += set_up(prepared.linked, account).intersect(left_out).length_ns
                uploads_ns += upload(prepared.linked, account).intersect(left_out).length_ns
    once_ns = whole.start_up_ns + set_up_ns
    share = once_ns / max(whole.window_ns, 1)
    measured = case.steps.measured
    if share < WORTH_SAYING and not measured:
        return None
    # Busy time is told if it is hardly any; chosen time and other work if windows are left out.
    busy_ns = whole.window_ns - whole.start_up_ns - whole.idle_ns
    beside_ns = before.window_ns - before.start_up_ns - set_up_ns
    is_hardly = busy_ns < _HARDLY * whole.window_ns and not before.window_ns
    rest_name = "rest_ns" if case.steps.after_start_up else "kernels_ns"
    chosen_name, beside_name = ("measured_ns", "warm_ns") if measured else (rest_name, "beside_ns")
    is_beside = beside_ns >= _HARDLY * whole.window_ns
    basis = "step" if case.steps.used else "span" if before.window_ns else "window"
    kind: Fact | str | None = main_kind(prepared)
    made = _made_once(prepared)
    loads = 2 * uploads_ns > once_ns
    makes = not loads and 2 * made.total() > once_ns
    if loads:
        kind = fact(f"{START_UP}.upload")
    elif makes:
        kind = fact(f"{START_UP}.once", name=max(made, key=made.__getitem__))
    values: dict[str, Value] = {
        "busy_ns": round(busy_ns / case.windows_used) if is_hardly else None,
        "time_ns": round(once_ns / case.windows_used),
        "window_ns": round(whole.window_ns / case.windows_used),
        "range": measured,
        chosen_name: round(chosen.window_ns / case.windows_used) if before.window_ns else None,
        beside_name: round(beside_ns / case.windows_used) if is_beside or measured else None,
        "what": fact(f"{START_UP}.{basis}"),
        "kind": kind,
        "trials": trials(prepared),
    }
    advice = None if measured else _advice(case, kind, loops=bool(before.window_ns), made=makes)
    found = statement(START_UP, share, values, advice=advice)
    of_range = fact(f"{START_UP}.claim-range", **values)
    return found if share >= WORTH_SAYING else replace(found, claim=of_range)


def _advice(case: Case, kind: Fact | str | None, *, loops: bool, made: bool) -> Fact | None:
    """Return how to record without start-up, mostly of `kind`.

    `loops`: windows are left out, so a loop follows; `made`: kernels that run once are most of it.
    """
    if kind == KINDS["children"]:
        return advice_of(START_UP, case.program | {"children"})
    if loops and made:
        return fact(ONCE)
    # Most of the work after start-up may be of kernels that run several times.
    rows = case.measured.kernels
    least = (FEWEST_ROUNDS if loops else _MANY) * case.windows_used
    often_ns = sum(row.sum_ns for row in rows if row.count >= least)
    repeats = "-only" if 2 * often_ns > sum(row.sum_ns for row in rows) else ""
    return fact(f"{START_UP}.remedy.{'again' if loops else 'warm-up'}{repeats}")


def _made_once(prepared: Prepared) -> Counter[str]:
    """Return the time by name of kernels that run once, before a loop, as far as it is left out."""
    made = Counter[str]()
    for device, account in prepared.accounts.items():
        rows, labels = account.rows, prepared.trace.activities["name"]
        left_out = [own for own in prepared.windows[device] if own.left_out == BEFORE_WORK]
        end_ns = max((own.end_ns for own in left_out), default=NEVER)
        for place in made_once(account):
            if rows.end_ns[place] <= end_ns:
                name = short_name(function_of(labels[int(rows.row[place])].as_py() or ""))
                made[name] += int(rows.end_ns[place] - rows.start_ns[place])
    return made


def kept(case: Case) -> float:
    """Return the share of the time that is not left out as start-up."""
    window_ns = case.total.components.window_ns
    return window_ns / max(window_ns + _left_out(case).window_ns, 1)


def runs_once(case: Case) -> bool:
    """Return whether no kernel repeats: then most of what the host does is for the first time."""
    most = max((row.count for row in case.measured.kernels), default=0)
    return not case.steps.used and most < FEWEST_ROUNDS * len(case.devices)


def _left_out(case: Case) -> Components:
    """Return the time of windows that are left out as start-up."""
    windows = (window for device in case.devices for window in device.windows)
    left_out = (window.account.components for window in windows if window.left_out == BEFORE_WORK)
    return sum(left_out, Components())


def main_kind(prepared: Prepared) -> str | None:
    """Return the kind of most of the start-up in words, None if no kind is most of it."""
    by_kind = Counter[str]()
    for device, account in prepared.accounts.items():
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

"""Rule `host-waits`: calls in which the host waits long, even while the GPU works.

Of `host-code`: whether the host is held up wherever it happens to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceflops.attribution.culprits import IdleClass
from traceflops.attribution.host_calls import memory_operations
from traceflops.characters import function_name
from traceflops.facts import Value, fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.copy_sizes import small_copies
from traceflops.findings.device_memory import reads_back
from traceflops.findings.finding import MOST_ROWS, Cause, Row, Where, row_name
from traceflops.findings.rules import advice_of, rule_of
from traceflops.table.columns import codes, is_one_of, matching, numbers, thread_columns
from traceflops.table.grouping import group_sums, groups, shared_codes
from traceflops.table.patterns import FREES

WAITING: Final = ("sync-call", "blocking-copy")  # rules of idle time in which the host waits
_FRAME: Final = re.compile(r"(<[\w .-]+>|\S+)\((\d+)\): (<[\w :]+>(?!\S)|\S*)")
"""A frame of Python: its file, line and function."""
_STARTS: Final = re.compile(r"v?fork|posix_spawnp?|popen|clone3?")
"""Calls of the system that start a process."""
_HARDLY: Final = 0.005
"""If the GPU is idle after waits for a smaller share of the time, it had more work queued."""


def host_waits(case: Case) -> Iterator[Cause]:
    """Give a cause if the host waits long in each step, even while the GPU works."""
    steps = case.windows_used if len(case.steps.used) > 1 else 0
    waits = [wait for wait in case.synchronisations if wait.count >= steps > 0]
    # Without the call that waits longest, the next one would wait: only that call is told. It is
    # replayed together with calls that free memory, which also wait.
    waits = [wait for wait in waits if wait.call == waits[0].call]
    blocked_ns = sum(wait.blocked_ns for wait in waits)
    share = share_of_window(case, blocked_ns)
    after = share_of_window(case, sum(wait.idle_after_ns for wait in waits))
    if not waits or share < limit(case, "idle-cause", "least_share") or after < _HARDLY:
        return
    rows = tuple(
        Row(
            row_name(f"{wait.call} in {wait.site}" if wait.site else wait.call),
            wait.blocked_ns,
            wait.count,
        )
        for wait in waits[:MOST_ROWS]
    )
    site_ns = sum(wait.blocked_ns for wait in waits if wait.site == waits[0].site)
    frees = [
        call.name
        for call in memory_operations(case.prepared)
        if call.kind == "call" and call.count >= steps and FREES.fullmatch(call.name)
    ]
    calls = "|".join(dict.fromkeys(re.escape(name) for name in (waits[0].call, *frees)))
    label, part = function_name(rows[0].name), share_of_window(case, rows[0].time_ns)
    # The remedy is that of the rule for idle time in such calls.
    is_copying = "Memcpy" in waits[0].call
    rule = "blocking-copy" if is_copying else "sync-call"
    usual = fact("sentence", text=fact(f"idle.remedy.{rule.replace('-', '_')}"))
    knows, values = small_copies(case, by_calls=True) if is_copying else (set[str](), {})
    knows |= {"reads"} if reads_back(case) else set()
    yield cause(
        case,
        "host-waits",
        share,
        details=(
            fact("part.largest", name=label, part=part),
            *((fact("host-waits.frees", call=frees[0]),) if frees else ()),
        ),
        advice=advice_of(rule, case.program | knows, values) or usual,
        rows=rows,
        where=frame_of(waits[0].site) if 2 * site_ns >= blocked_ns else Where(),
        edits=tuple(edit.replace("{calls}", calls) for edit in rule_of("host-waits").edits),
        direct_ns=sum(wait.idle_after_ns for wait in waits),
    )


def frame_of(name: str) -> Where:
    """Return the file, line and function with which a name begins, if it is a Python frame."""
    match = _FRAME.match(name)
    return Where(match[1], int(match[2]), match[3]) if match else Where()


def stalls(case: Case) -> dict[str, Value]:
    """Return how many operators stall, of how many names and how long; empty if few or alike.

        aten::view |   aten::mm |      aten::view |###########|      aten::mm |

    An operator stalls if it takes, without those inside it, far longer than the median of its name.
    If stalls are of many names, none has most of their time. First calls may load code.
    """
    ops, parent = case.prepared.trace.ops, case.prepared.linked.op_tree.parent
    name, start_ns, dur_ns = codes(ops["name"]), numbers(ops["start_ns"]), numbers(ops["dur_ns"])
    process = numbers(ops["process"])
    own_ns = dur_ns - group_sums(parent, dur_ns, len(dur_ns))
    is_chosen = np.zeros(len(name), dtype=np.bool_)
    for number, windows in case.prepared.windows_of_process.items():
        is_chosen |= (process == number) & windows.contains(start_ns)
    least_ns, times, calls, least_names, most_share = (
        limit(case, "host-code", f"stall_{limited}")
        for limited in ("ns", "times", "calls", "names", "share")
    )
    stalled, first_ns = dict[int, tuple[int, int]](), 0
    for code, rows in groups(name):
        chosen = rows[is_chosen[rows]]
        if len(chosen) < calls or own_ns[chosen].max() < least_ns:
            continue
        is_long = own_ns[chosen] >= max(least_ns, times * np.median(own_ns[chosen]))
        if is_long.any():
            long = chosen[is_long]
            stalled[code] = len(long), int(own_ns[long].sum())
            first = rows[np.argmin(start_ns[rows])]
            first_ns += int(own_ns[first]) if first in long else 0
    count, all_ns = (sum(column) for column in zip((0, 0), *stalled.values(), strict=True))
    is_spread = max((ns for _, ns in stalled.values()), default=0) <= most_share * all_ns
    are_first = 2 * first_ns > all_ns
    is_much = 2 * all_ns >= case.total.components.idle_ns
    if len(stalled) < least_names or not (is_spread and is_much) or are_first:
        return {}
    return {"stalls": count, "names": len(stalled), "stalled_ns": all_ns, "least_ns": int(least_ns)}


def started_processes(case: Case, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return {"processes"} if one read takes most idle time, after the thread started processes.

    Nothing if the thread called the GPU since it started them: then they may work beside it.
    """
    marks, calls = case.prepared.trace.marks, case.prepared.trace.calls
    name = next(iter(idle.culprits[0].evidence), "")
    is_system = is_one_of(marks["kind"], "system")
    reads = np.flatnonzero(is_system & is_one_of(marks["name"], name))
    start_ns, dur_ns = (numbers(marks[column]) for column in ("start_ns", "dur_ns"))
    if not len(reads) or 2 * dur_ns[reads].max() <= idle.idle_ns:
        return set(), {}
    longest = reads[dur_ns[reads].argmax()]
    of_mark, of_call = shared_codes(thread_columns(marks), thread_columns(calls))
    called_ns = numbers(calls["start_ns"])[of_call == of_mark[longest]]
    since_ns = called_ns[called_ns < start_ns[longest]].max(initial=-1)
    forks = is_system & matching(marks["name"], _STARTS.fullmatch) & (of_mark == of_mark[longest])
    count = int((forks & (start_ns > since_ns) & (start_ns < start_ns[longest])).sum())
    if not count:
        return set(), {}
    return {"processes"}, {"call": name, "longest_ns": int(dur_ns[longest]), "processes": count}

"""Rule `host-waits`: calls in which the host waits long, even if the GPU works meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from traceflops.attribution.culprits import IdleClass
from traceflops.attribution.host_calls import memory_operations
from traceflops.characters import function_name
from traceflops.facts import fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.copy_sizes import small_copies
from traceflops.findings.device_memory import LAUNCHING_CLASSES, reads_back
from traceflops.findings.finding import MOST_ROWS, Cause, Row, Where, row_name
from traceflops.findings.rules import advice_of, rule_of
from traceflops.table.patterns import FREES

WAITING: Final = ("sync-call", "blocking-copy")
"""Rules of classes of idle time in which the host waits."""
_FRAME: Final = re.compile(r"(<[\w .-]+>|\S+)\((\d+)\): (<[\w :]+>(?!\S)|\S*)")
_HARDLY: Final = 0.005
"""Share of the time for which the GPU must be idle behind waits; else more was queued."""


def host_waits(case: Case) -> Iterator[Cause]:
    """Give a cause where the host waits long in each step, even if the GPU works meanwhile."""
    steps = case.windows_used if len(case.steps.used) > 1 else 0
    waits = [wait for wait in case.synchronisations if wait.count >= steps > 0]
    # Where one call waits, another behind it waits as well: only the first is told, and replayed
    # with those that free memory.
    waits = [wait for wait in waits if wait.call == waits[0].call]
    blocked_ns = sum(wait.blocked_ns for wait in waits)
    share = share_of_window(case, blocked_ns)
    after = share_of_window(case, sum(wait.idle_after_ns for wait in waits))
    if not waits or share < limit(case, "idle-cause", "least_share") or after < _HARDLY:
        return
    synchronises, copies = WAITING
    waiting = copies if "Memcpy" in waits[0].call else synchronises
    rows = tuple(
        Row(
            row_name(f"{wait.call} in {wait.site}" if wait.site else wait.call),
            wait.blocked_ns,
            wait.count,
        )
        for wait in waits[:MOST_ROWS]
    )
    site_ns = sum(wait.blocked_ns for wait in waits if wait.site == waits[0].site)
    operations = memory_operations(case.prepared) if case.prepared is not None else ()
    frees = [
        one.name
        for one in operations
        if one.kind == "call" and one.count >= steps and FREES.fullmatch(one.name)
    ]
    calls = "|".join(dict.fromkeys(re.escape(name) for name in (waits[0].call, *frees)))
    label, part = function_name(rows[0].name), share_of_window(case, rows[0].time_ns)
    usual = fact("sentence", text=fact(f"idle.remedy.{waiting.replace('-', '_')}"))
    is_copying = waiting == "blocking-copy"
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
        advice=advice_of(waiting, case.program | knows, values) or usual,
        rows=rows,
        where=frame_of(waits[0].site) if 2 * site_ns >= blocked_ns else Where(),
        edits=tuple(edit.replace("{calls}", calls) for edit in rule_of("host-waits").edits),
        direct_ns=sum(wait.idle_after_ns for wait in waits),
    )


def after_waits(case: Case, idle: IdleClass) -> int:
    """Return the idle time that the waits of a class cost: until the host is ahead again.

    Behind copies, of which the host needs the values, that is no more than launching takes.
    """
    calls = {name for culprit in idle.culprits for name in culprit.evidence[:1]}
    after = (wait.idle_after_ns for wait in case.synchronisations if wait.call in calls)
    after_ns = max(sum(after) - idle.idle_ns, 0)
    if idle.kind == "blocking_copy" and reads_back(case):
        behind = (one.idle_ns for one in case.idle.by_class() if one.kind in LAUNCHING_CLASSES)
        after_ns = min(after_ns, sum(behind))
    return idle.idle_ns + after_ns


def frame_of(name: str) -> Where:
    """Return the file, line and function that a name begins with."""
    match = _FRAME.match(name)
    return Where(match[1], int(match[2]), match[3]) if match else Where()

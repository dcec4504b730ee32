"""Rule `host-waits`: calls in which the host waits long, even while the GPU works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from traceflops.attribution.host_calls import memory_operations
from traceflops.characters import function_name
from traceflops.facts import fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.copy_sizes import small_copies
from traceflops.findings.device_memory import reads_back
from traceflops.findings.finding import MOST_ROWS, Cause, Row, Where, row_name
from traceflops.findings.rules import advice_of, rule_of
from traceflops.table.patterns import FREES

WAITING: Final = ("sync-call", "blocking-copy")  # rules of idle time in which the host waits
_FRAME: Final = re.compile(r"(<[\w .-]+>|\S+)\((\d+)\): (<[\w :]+>(?!\S)|\S*)")
"""A frame of Python: its file, line and function."""
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

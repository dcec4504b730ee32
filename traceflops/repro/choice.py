"""Which recorded work a script repeats: that of a finding, a kernel or an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceflops.analysis.result import Analysis
from traceflops.errors import UsageError
from traceflops.findings.finding import Finding, row_name
from traceflops.repro.calls import Call, calls
from traceflops.repro.transfers import Copy, Exchange, copies, exchanges

Work = Call | Copy | Exchange

_REASONS: Final = {
    "no-operator": "no operator is recorded around their launch",
    "not-torch": "they are launched by an extension or by generated code",
    "no-shapes": "the shapes of its inputs were not recorded",
    "unread-argument": "the value of an argument was not recorded",
    "unknown-type": "the type of a tensor was not recorded",
}
_REMEDIES: Final = {
    "no-shapes": "record with record_shapes=True",
    "unread-argument": "record with PyTorch 2.1 or newer and record_shapes=True",
}
_OTHER: Final = "choose another with --kernel or --op; traceflops summary lists them"


def chosen_work(
    analysis: Analysis, finding: int | None, kernel: str | None, op: str | None
) -> Work:
    """Return the work with the most time that is asked for; without a question, of all.

    Raises UsageError if there is none, or if none of it can be repeated.
    """
    if not analysis.has_events:
        raise UsageError("a summary has no single calls to repeat", "give the trace itself")
    works: list[Work] = [*calls(analysis), *copies(analysis), *exchanges(analysis)]
    works.sort(key=lambda work: -work.sum_ns)
    if finding is not None:
        row_names = _rows_of(analysis.findings, finding)
        asked = [work for work in works if _is_of(work, row_names)]
        what = f"finding {finding} is about no kernel, operator, copy or collective"
    elif kernel is not None:
        asked = [work for work in works if any(kernel in name for name in work.kernels)]
        what = f"no kernel in the chosen steps has {kernel!r} in its name"
    elif op is not None:
        asked = [work for work in works if isinstance(work, Call) and _is_named(work, op)]
        what = f"no operator {op!r} launched kernels in the chosen steps"
    else:
        asked, what = works, "no kernel was recorded in the chosen steps"
    if not asked:
        raise UsageError(f"{what}, so there is nothing to repeat", _OTHER)
    repeatable = [work for work in asked if not isinstance(work, Call) or work.refused is None]
    if repeatable:
        return repeatable[0]
    largest = asked[0]
    reason = largest.refused if isinstance(largest, Call) else None
    name = (largest.op if isinstance(largest, Call) else None) or largest.kernels[0]
    raise UsageError(
        f"{name} cannot be repeated: {_REASONS[reason or 'no-operator']}",
        _REMEDIES.get(reason or "", _OTHER),
    )


def name_of(work: Work) -> str:
    """Return what a script of some work is called after."""
    if isinstance(work, Copy):
        return f"copy {work.direction}"
    return (work.op or work.kernels[0]) if isinstance(work, Call) else work.collective


def _rows_of(findings: Sequence[Finding], number: int) -> set[str]:
    """Return the names in the rows of evidence of a finding; the first is number 1."""
    if not 1 <= number <= len(findings):
        raise UsageError(
            f"there is no finding {number}",
            f"choose one of 1 to {len(findings)}" if findings else "this recording has none",
        )
    return {row.name for row in findings[number - 1].rows}


def _is_of(work: Work, row_names: set[str]) -> bool:
    op = work.op if isinstance(work, Call) else None
    return op in row_names or any(row_name(kernel) in row_names for kernel in work.kernels)


def _is_named(call: Call, op: str) -> bool:
    return call.op in (op, f"aten::{op}")

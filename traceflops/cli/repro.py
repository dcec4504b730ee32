"""`traceflops repro`: a script that does the slow thing of a recording alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from traceflops.cli.common import path_of, say, spare_inputs
from traceflops.cli.options import TO, AnalysisOptions, Force, Text, argument, option
from traceflops.errors import InputError, UsageError

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.findings.finding import Finding
    from traceflops.repro.calls import Call
    from traceflops.repro.transfers import Work

EXAMPLES = (
    "traceflops repro trace.json.gz",
    "traceflops repro trace.json.gz --kernel softmax -o slow.py",
    "traceflops repro trace.json.gz --op aten::linear",
)
_LONGEST: Final = 60
_NUMBER: Final = re.compile(r"[0-9]{1,6}")
_REASONS: Final = {
    "no-operator": "no operator is recorded around its launch",
    "not-torch": "it is of an extension, or generated code",
    "no-shapes": "the shapes of its inputs were not recorded",
    "unread-argument": "the value of an argument was not recorded",
    "unknown-type": "the type of a tensor was not recorded",
    "no-collective": "PyTorch has no single call of it",
}
_REMEDIES: Final = {
    "no-shapes": "record with record_shapes=True",
    "unread-argument": "record with PyTorch 2.1 or newer and record_shapes=True",
}
_OTHER: Final = "choose another with --kernel or --op; traceflops summary lists them"


def repro(
    trace: str = argument("TRACE", "Trace file, a folder of them, or - for standard input."),
    *,
    finding: Text = option("N", "What finding N is about; 1 is the first."),
    kernel: Text = option("NAME", "The kernel with this name, or this part of it."),
    op: Text = option("NAME", "The operator of this name, such as aten::linear."),
    output: Text = option("FILE", "File to write. Default: repro_NAME.py in this folder.", *TO),
    force: Force = False,
    asked: AnalysisOptions,
) -> None:
    """Write a script that repeats one recorded operator, copy or collective, and times it.

    By default it is the one with the most time. The script needs only PyTorch; values are random.
    """
    if sum(choice is not None for choice in (finding, kernel, op)) > 1:
        raise UsageError("--finding, --kernel and --op exclude each other", "give one of them")
    if finding is not None and not _NUMBER.fullmatch(finding):
        raise UsageError(
            f"not a number of a finding: {finding[:_LONGEST]!r}", "such as --finding 1"
        )
    number = int(finding) if finding is not None else None
    from traceflops.reports.files import check_replaced, write_pieces
    from traceflops.reports.scripts.scripts import script

    analysis = asked.analyze([trace])
    work = chosen_work(analysis, number, kernel, op)
    name = re.sub(r"[^a-z0-9]+", "_", name_of(work).removeprefix("aten::").lower())[:_LONGEST]
    target = path_of(output if output is not None else f"repro_{name.strip('_')}.py")
    spare_inputs([target], [trace])
    check_replaced(target, force=force)
    write_pieces(target, [script(work, analysis, target.name).encode()])
    say(f"{target}  {name_of(work)}")


def chosen_work(
    analysis: Analysis, finding: int | None, kernel: str | None, op: str | None
) -> Work:
    """Return the work with the most time that is asked for; without a question, of all.

    Raises UsageError if the choice names nothing, InputError if nothing of it can be repeated.
    """
    from traceflops.repro.calls import Call, calls
    from traceflops.repro.transfers import copies, exchanges

    if not analysis.has_events:
        raise InputError("a summary has no single calls to repeat", "give the trace itself")
    works: list[Work] = [*calls(analysis), *copies(analysis), *exchanges(analysis)]
    works.sort(key=lambda work: -work.sum_ns)
    if finding is not None:
        row_names = _rows_of(analysis.findings, finding)
        asked = [work for work in works if _is_of(work, row_names)]
        what = f"finding {finding} is about no kernel, operator, copy or collective"
    elif kernel is not None:
        asked = [
            work for work in works if any(kernel.lower() in name.lower() for name in work.kernels)
        ]
        what = f"no kernel in the chosen steps has {kernel!r} in its name"
    elif op is not None:
        asked = [work for work in works if isinstance(work, Call) and _is_named(work, op)]
        what = f"no operator {op!r} launched kernels in the chosen steps"
    elif not works:
        hint = "record with a profiler of operators, such as PyTorch's"
        raise InputError("no kernel was recorded in the chosen steps: nothing to repeat", hint)
    else:
        asked, what = works, ""
    if not asked:
        raise UsageError(f"{what}, so there is nothing to repeat", _OTHER)
    largest = asked[0]
    chosen = next((work for work in asked if not _refusal(work)), None)
    if chosen is None:
        raise InputError(_refusal(largest), _REMEDIES.get(largest.refused or "", _OTHER))
    if chosen is not largest:
        say(f"The longest, {_refusal(largest)}.")
    return chosen


def _refusal(work: Work) -> str:
    """Return why some work cannot be repeated, "" if it can."""
    from traceflops.findings.finding import short_name

    name = short_name(work.op or work.kernels[0])
    return f"{name} cannot be repeated: {_REASONS[work.refused]}" if work.refused else ""


def name_of(work: Work) -> str:
    """Return what a script of some work is called after."""
    from traceflops.repro.calls import Call
    from traceflops.repro.transfers import Copy

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
    from traceflops.findings.finding import row_name

    return work.op in row_names or any(row_name(kernel) in row_names for kernel in work.kernels)


def _is_named(call: Call, op: str) -> bool:
    return call.op in (op, f"aten::{op}")

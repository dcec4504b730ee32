"""Which recorded work a script repeats, and the script with what is said of it.

A finding is about kernels, operators, copies or collectives that its evidence names, about data
that steps wait for, or about launching. If it is about none of these, the next that is counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from traceflops.analysis.result import Analysis
from traceflops.errors import InputError, UsageError
from traceflops.findings.finding import Finding, ids_of, row_name, short_name
from traceflops.findings.rules import all_rules
from traceflops.reports.scripts.scripts import Work, script
from traceflops.repro.calls import Call, calls
from traceflops.repro.chains import Chain, Loading, chain, loading
from traceflops.repro.transfers import Copy, Exchange, copies, exchanges

SCHEMA: Final = "traceflops.repro/1"
_LONGEST: Final = 60
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
_OF_LAUNCHING: Final = frozenset({"fusable-kernels", "optimizer-loop"})
"""Rules whose remedy is one launch for many operators, besides those of this class of reports."""
_LAUNCHING, _DATA = "launch-bound", "data-input"
_TRANSFERS: Final = {"copies": Copy, "communication": Exchange}
"""Classes of reports, of these with the transfers that they are about."""


def choice(
    analysis: Analysis,
    finding: str | None = None,
    kernel: str | None = None,
    op: str | None = None,
    file: str | None = None,
) -> dict[str, Any]:
    """Return a script named `file`, what it repeats, and what is to be said of the choice.

    Raises UsageError if the choice names nothing, InputError if nothing of it can be repeated.
    """
    work, note = chosen_work(analysis, finding, kernel, op)
    name = re.sub(r"[^a-z0-9]+", "_", name_of(work).removeprefix("aten::").lower())[:_LONGEST]
    file = file or f"repro_{name.strip('_')}.py"
    text = script(work, analysis, file)
    return {"schema": SCHEMA, "file": file, "about": name_of(work), "note": note, "script": text}


def chosen_work(
    analysis: Analysis,
    finding: str | None = None,
    kernel: str | None = None,
    op: str | None = None,
) -> tuple[Work, str]:
    """Return the work with the most time that is asked for, without a question of all, and a note.

    The note says what was asked for and cannot be repeated, "" if nothing. Raises as `choice`.
    """
    if sum(asked is not None for asked in (finding, kernel, op)) > 1:
        raise UsageError("--finding, --kernel and --op exclude each other", "give one of them")
    if not analysis.has_events:
        raise InputError("a summary has no single calls to repeat", "give the trace itself")
    if finding is not None:
        return _of_findings(analysis, finding)
    works = _works(analysis)
    if kernel is not None:
        asked = [
            work for work in works if any(kernel.lower() in name.lower() for name in work.kernels)
        ]
        what = f"no kernel in the chosen steps has {kernel[:_LONGEST]!r} in its name"
    elif op is not None:
        asked = [work for work in works if isinstance(work, Call) and _is_named(work, op)]
        what = f"no operator {op[:_LONGEST]!r} launched kernels in the chosen steps"
    elif not works:
        hint = "record with a profiler of operators, such as PyTorch's"
        raise InputError("no kernel was recorded in the chosen steps: nothing to repeat", hint)
    else:
        asked, what = works, ""
    if not asked:
        raise UsageError(f"{what}, so there is nothing to repeat", _OTHER)
    chosen = next((work for work in asked if not work.refused), None)
    if chosen is None:
        raise InputError(_refusal(asked[0]), _REMEDIES.get(asked[0].refused or "", _OTHER))
    return chosen, f"The longest, {_refusal(asked[0])}." if chosen is not asked[0] else ""


def _works(analysis: Analysis) -> list[Work]:
    works: list[Work] = [*calls(analysis), *copies(analysis), *exchanges(analysis)]
    return sorted(works, key=lambda work: -work.sum_ns)


def _of_findings(analysis: Analysis, asked: str) -> tuple[Work, str]:
    """Return what a finding (by id, or number from 1) is about, else the first that can be."""
    findings, ids = analysis.findings, ids_of(analysis.findings)
    numbers = {str(at + 1): at for at in range(len(ids))} | {id_: at for at, id_ in enumerate(ids)}
    if asked not in numbers:
        hint = f"choose one of 1 to {len(ids)}, or {', '.join(ids)}"
        raise UsageError(
            f"there is no finding {asked[:_LONGEST]}", hint if ids else "this recording has none"
        )
    first, works = numbers[asked], _works(analysis)
    refusals = []
    for at in (first, *(other for other in range(len(ids)) if other != first)):
        about = _about(analysis, findings[at], works)
        work = next((one for one in about if not one.refused), None)
        refusals += [_refusal(one) for one in about[:1] if at == first and one.refused]
        if work is not None and at == first:
            return work, f"The longest, {refusals[0]}." if refusals else ""
        if work is not None:
            why = (*refusals, f"Finding {asked} is about nothing that a script can repeat")[0]
            return work, f"{why}; finding {at + 1} ({ids[at]}) can be, and is."
    why = (*refusals, f"neither finding {asked} nor another is about what a script can repeat")[0]
    longest = next((work for work in works if not work.refused), None)
    if longest is None:
        raise InputError(why, _OTHER)
    return longest, f"Of what can be repeated, this takes the most time: {why}."


def _about(analysis: Analysis, finding: Finding, works: Sequence[Work]) -> list[Work]:
    """Return the work that a finding is about, the best to repeat first."""
    row = all_rules().rules.get(finding.rule)
    headline = row.headline if row is not None else None
    made: Work | None = None
    if headline == _LAUNCHING or finding.rule in _OF_LAUNCHING:
        made = chain(analysis)
    elif headline == _DATA:
        made = loading(analysis, finding)
    if made is not None:
        return [made]
    rows = {row.name for row in finding.rows}
    of_rows = [work for work in works if _is_of(work, rows)]
    kind = _TRANSFERS.get(headline or "")
    return of_rows or [work for work in works if kind is not None and isinstance(work, kind)]


def _refusal(work: Work) -> str:
    """Return why some work cannot be repeated, "" if it can."""
    if not work.refused:
        return ""
    name = short_name(work.op or work.kernels[0])
    return f"{name} cannot be repeated: {_REASONS[work.refused]}"


def name_of(work: Work) -> str:
    """Return what a script of some work is called after."""
    match work:
        case Copy():
            return f"copy {work.direction}"
        case Chain():
            return "launching"
        case Loading():
            return "data loader"
        case Call():
            return work.op or work.kernels[0]
    return work.collective


def _is_of(work: Work, row_names: set[str]) -> bool:
    return work.op in row_names or any(row_name(kernel) in row_names for kernel in work.kernels)


def _is_named(call: Call, op: str) -> bool:
    return call.op in (op, f"aten::{op}")

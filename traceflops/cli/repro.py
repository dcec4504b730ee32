"""`traceflops repro`: a script that does the slow thing of a recording alone."""

from __future__ import annotations

import re

from traceflops.cli.common import path_of, spare_inputs
from traceflops.cli.options import TO, AnalysisOptions, Force, Text, argument, option
from traceflops.cli.printing import say
from traceflops.errors import UsageError

EXAMPLES = (
    "traceflops repro trace.json.gz",
    "traceflops repro trace.json.gz --finding 2 -o slow.py",
    "traceflops repro trace.json.gz --op aten::linear",
)
_LONGEST = 60


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
    number = int(finding) if finding is not None and finding.isdecimal() else None
    if finding is not None and number is None:
        raise UsageError(f"not a number of a finding: {finding}", "such as --finding 1")
    from traceflops.reports.files import check_replaced, write_pieces
    from traceflops.reports.scripts.scripts import script
    from traceflops.repro.choice import chosen_work, name_of

    analysis = asked.analyze([trace])
    work = chosen_work(analysis, number, kernel, op)
    name = re.sub(r"[^a-z0-9]+", "_", name_of(work).removeprefix("aten::").lower())[:_LONGEST]
    target = path_of(output if output is not None else f"repro_{name.strip('_')}.py")
    spare_inputs([target], [trace])
    check_replaced(target, force=force)
    write_pieces(target, [script(work, analysis, target.name).encode()])
    say(f"{target}  {name_of(work)}")

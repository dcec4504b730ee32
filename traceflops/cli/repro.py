"""`traceflops repro`: a script that does the slow thing of a recording alone."""

from __future__ import annotations

from traceflops.cli.common import path_of, say, say_object, spare_inputs
from traceflops.cli.options import TO, AnalysisOptions, Brief, Force, Text, argument, option
from traceflops.errors import UsageError

EXAMPLES = (
    "traceflops repro trace.json.gz",
    "traceflops repro trace.json.gz --finding 1",
    "traceflops repro trace.json.gz --kernel softmax -o slow.py",
    "traceflops repro trace.json.gz --op aten::linear",
)


def repro(
    trace: str = argument("TRACE", "Trace file, a folder of them, or - for standard input."),
    *,
    finding: Text = option("N", "What a finding is about: its number, 1 the first, or id."),
    kernel: Text = option("NAME", "The kernel with this name, or this part of it."),
    op: Text = option("NAME", "The operator of this name, such as aten::linear."),
    output: Text = option("FILE", "File to write. Default: repro_NAME.py in this folder.", *TO),
    force: Force = False,
    brief: Brief = False,
    asked: AnalysisOptions,
) -> None:
    """Write a script that does a recorded slow thing alone, and times it.

    That is an operator, copy or collective, launching many, or waiting for data. By default it is
    the one with the most time. The script needs only PyTorch; values are random.
    """
    if brief and output is not None:
        raise UsageError("--brief prints the script and writes none", "leave -o out")
    from traceflops.reports.files import check_replaced, write_pieces
    from traceflops.reports.json.brief import Lines
    from traceflops.reports.scripts.choice import choice

    named = path_of(output) if output is not None else None
    found = choice(
        asked.analyze([trace]), finding, kernel, op, named.name if named is not None else None
    )
    if brief:
        say_object(found | {"script": Lines(found["script"])}, brief=True)
        return
    target = named or path_of(found["file"])
    spare_inputs([target], [trace])
    check_replaced(target, force=force)
    write_pieces(target, [found["script"].encode()])
    if found["note"]:
        say(found["note"])
    say(f"{target}  {found['about']}")

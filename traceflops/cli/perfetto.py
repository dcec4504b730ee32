"""`traceflops perfetto`: the trace, of whatever format, for the Perfetto UI."""

from __future__ import annotations

from traceflops.characters import visible
from traceflops.cli.common import keep_apart, path_of, say, spare_inputs, stem_of
from traceflops.cli.options import TO, Force, Rules, Text, TraceOptions, Traces, option

EXAMPLES = (
    "traceflops perfetto trace.json.gz",
    "traceflops perfetto ranks/ --from 1s --to 2s -o job.perfetto.json.gz",
)
SUFFIX = ".perfetto.json.gz"


def perfetto(
    traces: Traces,
    *,
    output: Text = option(
        "FILE",
        f"File to write: .json or .json.gz. Default: the trace's name with {SUFFIX}, in "
        "this folder.",
        *TO,
    ),
    force: Force = False,
    rules: Rules = None,
    asked: TraceOptions,
) -> None:
    """Write a trace for the Perfetto UI, annotated.

    Findings, steps, components and categories are tracks. Open the file at ui.perfetto.dev
    or in chrome://tracing; traceflops sends nothing there.
    """
    step_mark = asked.selection().step_mark
    from traceflops.analysis.preparation import prepare
    from traceflops.analysis.recipe import analysis_of
    from traceflops.devices.jobs import check_decided
    from traceflops.reports.files import check_replaced, write_pieces
    from traceflops.reports.perfetto import check_suffix, render_perfetto
    from traceflops.windows.selection import Selection

    target = path_of(output if output is not None else stem_of(traces) + SUFFIX)
    check_suffix(target)
    spare_inputs([target], [*traces, rules])
    keep_apart(target.parent, traces)
    check_replaced(target, force=force)
    trace = asked.read(traces)
    check_decided(trace, "a timeline")
    prepared = prepare(
        trace,
        Selection(step_mark=step_mark),
        rules=rules,
        include_environment=True,  # `asked.read` has removed it unless it is to stay
        placeholders=asked.privacy.placeholders(),
    )
    packed = target.suffix.lower() != ".json"
    findings = analysis_of(prepared).findings
    write_pieces(target, render_perfetto(prepared, findings, packed=packed))
    say(f"{visible(str(target))}  open it at ui.perfetto.dev or in chrome://tracing")

"""`traceflops pack`: recordings as one small file that every command reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from traceflops.cli.common import failures, path_of, spare_inputs, stem_of
from traceflops.cli.options import (
    Force,
    Privacy,
    Question,
    ReadingOptions,
    Text,
    Traces,
    option,
    typed,
)
from traceflops.cli.printing import say, watching
from traceflops.errors import UsageError
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.table.trace import Trace

EXAMPLES = (
    "traceflops pack trace.json.gz",
    "traceflops pack ranks/ -o job.tfpack",
    "traceflops pack ranks/ --steps 10:12 --without python-stacks --redact -o job.tfpack",
)
SUFFIX = ".tfpack"


def pack(
    traces: Traces,
    *,
    output: Text = option(
        "FILE",
        f"File to write. Default: the trace's name with {SUFFIX}, in this folder.",
        "-o",
        "--output",
    ),
    without: Text = option("LIST", "Leave out: python-stacks, host (operators and calls)."),
    force: Force = False,
    question: Question,
    privacy: Privacy,
    reading: ReadingOptions,
) -> None:
    """Write traces into one small file that every command reads.

    It holds all that was read. Host names, user names and folders are left out, as in reports.
    """
    with failures(reading, privacy):
        privacy.check()
        from traceflops.parsers.reading import file_hashes
        from traceflops.reports.files import check_replaced
        from traceflops.reports.packs import left_out, parse_left_out, with_hashes, write_pack
        from traceflops.reports.view.figures import size

        names = parse_left_out(without)
        target = path_of(output if output is not None else stem_of(traces) + SUFFIX)
        spare_inputs([target], traces)
        check_replaced(target, force=force)
        hashes = {} if privacy.redact else file_hashes(traces)
        parts = _parts(traces, question, privacy, reading)
        count = write_pack(
            (left_out(with_hashes(trace, hashes), names) for trace in parts),
            target,
            include_environment=privacy.include_environment,
        )
        say(f"{target}  {several(count, 'recording')}, {size(target.stat().st_size)}")


def _parts(
    traces: list[str], question: Question, privacy: Privacy, reading: ReadingOptions
) -> Iterable[Trace]:
    """Yield the traces one by one as they are read, or a single trace of all.

    A single one is needed to select a part, to redact, and to join other files.
    """
    is_chosen = any(value is not None for value in typed(question).values())
    if not (privacy.redact or is_chosen or reading.memory or reading.gpu_samples):
        from traceflops.parsers.reading import read_apart

        with watching() as watch:
            yield from read_apart(
                traces,
                watch=watch,
                jobs=reading.jobs,
                python_stacks=reading.python_stacks,
                strict=reading.strict,
                limits=not reading.no_limits,
            )
        return
    selection = question.selection()
    trace = reading.read_job(traces, selection.job)
    if trace.jobs and trace.job is None:
        raise UsageError(
            f"the files are of {len(trace.jobs)} jobs, and of what is chosen or redacted one is "
            "packed at a time",
            "choose it with --job N; traceflops info lists the jobs",
        )
    shown = privacy.shown(trace, selection)
    if (names := privacy.placeholders()) is not None:
        from traceflops.privacy.redact import Redaction

        shown = Redaction(names, selection.step_mark).trace(shown)
    yield shown

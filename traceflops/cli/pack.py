"""`traceflops pack`: recordings as one small file that every command reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from traceflops.cli.common import failures, path_of, spare_inputs, stem_of
from traceflops.cli.options import (
    Force,
    Privacy,
    Question,
    ReadingOptions,
    Text,
    Traces,
    grouped,
    option,
    typed,
)
from traceflops.cli.printing import say, watching
from traceflops.cli.reading import read_job, reading_words
from traceflops.errors import UsageError
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.table import Trace

EXAMPLES = (
    "traceflops pack trace.json.gz",
    "traceflops pack ranks/ -o job.tfpack",
    "traceflops pack ranks/ --steps 10:12 --without python-stacks --redact -o job.tfpack",
)
SUFFIX = ".tfpack"


@grouped
def pack(
    traces: Traces,
    *,
    output: Annotated[
        Text,
        option(
            "FILE",
            f"File to write. Default: the trace's name with {SUFFIX}, in this folder.",
            "-o",
            "--output",
        ),
    ] = None,
    without: Annotated[
        Text, option("LIST", "Leave out: python-stacks, host (operators and calls).")
    ] = None,
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
        from traceflops.parsers import file_hashes
        from traceflops.reports.files import check_replaced
        from traceflops.reports.packs import left_out, parse_left_out, with_hashes, write_pack
        from traceflops.reports.view import size

        names = parse_left_out(without)
        target = path_of(output if output is not None else stem_of(traces) + SUFFIX)
        spare_inputs([target], traces)
        check_replaced(target, force=force)
        hashes = {} if privacy.redact else file_hashes(traces)
        read = (with_hashes(trace, hashes) for trace in _read(traces, question, privacy, reading))
        count = write_pack(
            (left_out(trace, names) for trace in read),
            target,
            include_environment=privacy.include_environment,
        )
        say(f"{target}  {several(count, 'recording')}, {size(target.stat().st_size)}")


def _read(
    traces: list[str], question: Question, privacy: Privacy, reading: ReadingOptions
) -> Iterable[Trace]:
    """Give the traces as they are read; what is chosen or redacted is first put together."""
    chosen = any(value is not None for value in typed(question).values())
    if not (privacy.redact or chosen or reading.side_files):
        from traceflops.parsers import read_apart

        with watching() as watch:
            yield from read_apart(traces, watch=watch, **reading_words(reading))
        return
    selection = question.selection()
    trace = read_job(traces, reading, selection.job)
    if trace.jobs and trace.job is None:
        raise UsageError(
            f"the files are of {len(trace.jobs)} jobs, and of what is chosen or redacted one is "
            "packed at a time",
            "choose it with --job N; traceflops info lists the jobs",
        )
    shown = privacy.shown(trace, selection)
    names = privacy.placeholders()
    if names is None:
        yield shown
        return
    from traceflops.privacy import Redaction

    yield Redaction(names, selection.step_mark).trace(shown)

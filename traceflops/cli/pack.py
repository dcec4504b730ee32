"""`traceflops pack`: recordings as one small file that every command reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from traceflops.characters import visible
from traceflops.cli.common import path_of, say, spare_inputs, stem_of, watching
from traceflops.cli.options import TO, Force, Text, TraceOptions, Traces, option, typed
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
        "FILE", f"File to write. Default: the trace's name with {SUFFIX}, in this folder.", *TO
    ),
    without: Text = option("LIST", "Leave out: python-stacks, host (operators and calls)."),
    force: Force = False,
    asked: TraceOptions,
) -> None:
    """Write traces into one small file that every command reads.

    It holds all that was read. Host names, user names and folders are left out, as in reports.
    """
    asked.selection()  # raises now, before a file is read
    from traceflops.parsers.reading import file_hashes
    from traceflops.reports.files import check_replaced
    from traceflops.reports.packs import left_out, parse_left_out, with_hashes, write_pack
    from traceflops.reports.view.figures import size

    names = parse_left_out(without)
    target = path_of(output if output is not None else stem_of(traces) + SUFFIX)
    spare_inputs([target], traces)
    check_replaced(target, force=force)
    hashes = {} if asked.privacy.redact else file_hashes(traces)
    parts = (left_out(with_hashes(part, hashes), names) for part in _parts(traces, asked))
    kept = asked.privacy.include_environment
    count = write_pack(parts, target, include_environment=kept)
    say(f"{visible(str(target))}  {several(count, 'recording')}, {size(target.stat().st_size)}")


def _parts(traces: list[str], asked: TraceOptions) -> Iterable[Trace]:
    """Yield the traces as they are read, or a single one to select, redact or join files."""
    reading, names = asked.reading, asked.privacy.placeholders()
    has_selection = any(value is not None for value in typed(asked.question).values())
    if names is None and not (has_selection or reading.side_files):
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
    trace = asked.read(traces)
    if trace.jobs and trace.job is None:
        raise UsageError(
            f"the files are of {len(trace.jobs)} jobs, and of what is chosen or redacted one is "
            "packed at a time",
            "choose it with --job N; traceflops info lists the jobs",
        )
    if names is not None:
        from traceflops.privacy.redact import Redaction

        trace = Redaction(names, asked.question.step_mark).trace(trace)
    yield trace

"""`traceflops report`: the summary in the terminal and the page in a file."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from traceflops.characters import visible
from traceflops.cli import common, options
from traceflops.cli.common import say
from traceflops.cli.options import TO, AnalysisOptions, Force, Json, Text, Traces, flag, option
from traceflops.errors import UsageError
from traceflops.phases import phase
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.reports.view.author_notes import Authored

EXAMPLES = (
    "traceflops report trace.json.gz",
    "traceflops report ranks/ -o job.html --steps 10:20",
    "zcat trace.json.gz | traceflops report - -o trace.json",
    "traceflops report results.db --pair counters/",
    "traceflops report ranks/ -o tables/ --format csv",
    "traceflops report trace.json.gz --post-mortem case.md",
    'traceflops report ranks/ --redact --title "Slow since Tuesday" --notes notes.txt --open',
)
_MOST_INPUTS: Final = 3


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What the author adds to the report, the post-mortem, and whether the page is opened."""

    HEADING: ClassVar = "Output"
    title: Text = option("TEXT", "Title of the report.")
    notes: Path | None = option(
        "FILE",
        "Your notes for the top of the report: paragraphs, `- ` lists, `# ` headings, "
        "``` code; UTF-8, at most 64 kB.",
    )
    post_mortem: Text = option(
        "FILE", "Also write the case as text, in a .md file.", "--post-mortem"
    )
    open: bool = flag("Open the report in the browser.")

    def post_mortem_path(self, target: Target) -> Path | None:
        """Return where the post-mortem goes, if any. Raises UsageError unless it is .md."""
        if self.post_mortem is None:
            return None
        path = common.path_of(self.post_mortem)
        if path.suffix.lower() != ".md" or path.resolve() == target.path.resolve():
            problem = f"the post-mortem needs a .md file of its own: {path}"
            raise UsageError(problem, "give it another name")
        return path


@dataclass(frozen=True, slots=True)
class Target:
    """Where the report goes: a file, or a folder of tables in a `format`.

    A page whose name was not given ends in a `mark`, which identifies its recording (`target_of`).
    """

    path: Path
    format: str | None
    mark: bytes = b""

    @property
    def is_page(self) -> bool:
        """Whether it is an HTML page."""
        return self.format is None and self.path.suffix.lower() == ".html"

    def check(self, traces: list[str], others: list[str | Path | None], *, force: bool) -> None:
        """Raise UsageError if it cannot be written or is an input, before a file is read."""
        from traceflops.reports.files import is_report
        from traceflops.reports.tables import REPORT_TABLES, check_folder, table_files
        from traceflops.reports.write import check_target

        inputs = [*traces, *others]
        if self.format is None:
            # A report is replaced at each run; as an input it is refused with a reason of its own.
            common.spare_inputs([] if is_report(self.path) else [self.path], inputs)
            check_target(self.path, force=force)
        else:
            common.spare_inputs(table_files(self.path, REPORT_TABLES, self.format), inputs)
            common.keep_apart(self.path, traces, f".{self.format}")
            check_folder(self.path, REPORT_TABLES, self.format, force=force)

    def save(self, analysis: Analysis, command: str, authored: Authored, *, force: bool) -> str:
        """Write the report; return in words what was written."""
        from traceflops.reports.tables import save_tables
        from traceflops.reports.view.figures import size
        from traceflops.reports.write import save

        if self.format is not None:
            written = save_tables(analysis, self.path, self.format)
            return f"{several(len(written), 'table')} to {self.path}"
        save(analysis, self.path, force=force, command=command, authored=authored, mark=self.mark)
        return f"{self.path} ({size(self.path.stat().st_size)})"


def report(
    traces: Traces,
    *,
    output: Text = option(
        "FILE",
        "File to write: .html, .json, .md or .zip; or a folder for tables. Default: "
        "NAME.report.html in this folder; NAME-2.report.html beside that of another recording.",
        *TO,
    ),
    format_: Text = option(
        "FORMAT", "Write tables to a folder: csv, parquet or arrow.", "--format"
    ),
    added: ReportOptions,
    force: Force = False,
    quiet: bool = flag("Print only the path.", "-q", "--quiet"),
    json: Json = False,
    asked: AnalysisOptions,
) -> None:
    """Write the report as one HTML file, and print its summary.

    With -o also as JSON, Markdown, a ZIP file or tables.
    """
    target = target_of(output, format_, traces)
    if added.open and not target.is_page:
        problem = "--open shows a page, but none is written"
        raise UsageError(problem, "give a .html file with -o")
    if added.open and (quiet or json):
        problem = "--open cannot be combined with --json or --quiet"
        raise UsageError(problem, "remove one of them")
    from traceflops.reports.view.author_notes import authored
    from traceflops.reports.write import save_post_mortem

    words = authored(added.title, added.notes)
    others = [*(asked.pair or []), asked.rules, asked.finding_rules, added.notes]
    target.check(traces, others, force=force)
    case = added.post_mortem_path(target)
    if case is not None:
        Target(case, None).check(traces, others, force=force)
    analysis = asked.analyze(traces)
    try:
        if json:
            say(analysis.to_json())
        elif not quiet:
            common.print_summary(analysis)
    finally:  # write the report even if the reader of stdout has gone
        with phase("render and write"):
            command = _command(traces, analysis, asked, added)
            written = target.save(analysis, command, words, force=force)
            if case is not None:
                save_post_mortem(analysis, case, words)
                written += f" and {case}"
    if quiet:
        path = str(target.path)
        say(visible(path) if sys.stdout.isatty() else path)  # scripts take the path as it is
    elif not json:
        hint = "  open with --open" if target.is_page and not added.open else ""
        say(f"\n{'→' if common.terminal_style().unicode else '->'} {visible(written)}{hint}")
    if added.open:
        _open(target.path)


def _open(page: Path) -> None:
    """Open a page in the browser; if that fails, it is no error, since the report was written."""
    import webbrowser

    try:
        is_opened = webbrowser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        is_opened = False
    if not is_opened:
        say("note: no browser could be started; open the file yourself", to_stderr=True)


def target_of(output: str | None, format_: str | None, traces: list[str]) -> Target:
    """Return where the report goes. Raises UsageError if --format comes with a file name.

    Without `output` a page is named after the recording; if another recording has a page of that
    name, a number is added. The mark of a page shows which recording it is of: four digits of a
    hash of the paths of the traces, which do not reveal the paths.
    """
    if output is not None:
        path = common.path_of(output)
        is_folder = output.endswith(("/", "\\")) or path.is_dir()
        if format_ is not None and not is_folder and path.suffix:
            raise UsageError(
                f"--format writes tables to a folder, but this is a file name: {output}",
                f"give a folder such as {path.stem}/, or remove --format",
            )
        return Target(path, format_ or ("csv" if is_folder else None))
    stem = common.stem_of(traces)
    if format_ is not None:
        return Target(Path(f"{stem}.report"), format_)
    from traceflops.parsers.io.remote import is_remote
    from traceflops.reports.files import ends_in, is_report

    paths = [path if is_remote(path) else os.path.realpath(path) for path in traces]
    mark = f"<!-- {hashlib.sha256(repr(paths).encode()).hexdigest()[:4]} -->\n".encode()
    names = chain((stem,), (f"{stem}-{number}" for number in count(2)))
    pages = (Path(f"{name}.report.html") for name in names)
    free = next(page for page in pages if not is_report(page) or ends_in(page, mark))
    return Target(free, None, mark)


def _command(
    traces: list[str], analysis: Analysis, asked: AnalysisOptions, added: ReportOptions
) -> str:
    """Return the command that makes this report; names of traces are the shown ones."""
    names = [file.name for file in analysis.source.files]
    question, rates, reading = asked.question, asked.rates, asked.reading
    # A name per trace, unless a folder among them holds several files.
    has_folder = len(names) != len(traces) + len(reading.side_files)
    trace_names = ["FOLDER"] * len(traces) if has_folder else names[: len(traces)]
    pairs = zip(traces, trace_names, strict=True)
    inputs = ["-" if trace == "-" else name for trace, name in pairs]
    if len(inputs) > _MOST_INPUTS:
        inputs = [*inputs[:_MOST_INPUTS], "…"]
    pair = None
    if asked.pair:
        work = analysis.measured.executed.work
        paired = [join.file for join in work.joins if join.file] if work is not None else []
        # A join of several files has no name, only their number: "8 files".
        pair = paired[0] if paired and not paired[0].endswith(" files") else "FOLDER"

    def own(text: str | None) -> str | None:
        """Return a text of the user as the report may show it; None if there is none."""
        return "…" if text and asked.privacy.redact else text

    values: list[tuple[str, object]] = [
        ("--steps", question.steps),
        ("--ranks", question.ranks),
        ("--gpu", question.gpu),
        ("--run", question.run),
        ("--job", question.job),
        ("--from", question.start),
        ("--to", question.end),
        ("--step-mark", own(question.step_mark)),
        ("--pair", pair),
        ("--rules", own(asked.rules.name if asked.rules else None)),
        ("--finding-rules", own(asked.finding_rules.name if asked.finding_rules else None)),
        ("--title", own(added.title)),
        ("--notes", own(added.notes.name if added.notes else None)),
        *((name, own(Path(file).name)) for name, file in reading.side_files),
        ("--zone", reading.zone),
        ("--device", rates.device),
        ("--peak", f"{rates.peak:g}" if rates.peak else None),
        ("--link", f"{rates.link:g}" if rates.link else None),
    ]
    given = ((name, str(value)) for name, value in values if value is not None)
    flags: dict[str, bool | None] = {
        **options.typed(asked.privacy),
        "--python-stacks": reading.python_stacks,
        "--no-python-stacks": reading.python_stacks is False,
        "--no-limits": reading.no_limits,
        "--strict": reading.strict,
    }
    names_of_flags = (name for name, is_set in flags.items() if is_set)
    words = [*inputs, *chain.from_iterable(given), *names_of_flags]
    return shlex.join(["traceflops", "report", *words])

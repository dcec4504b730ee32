"""`traceflops report`: the summary in the terminal and the page in a file."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from traceflops.cli.common import (
    failures,
    keep_apart,
    path_of,
    print_summary,
    spare_inputs,
    stem_of,
    terminal_style,
)
from traceflops.cli.options import (
    Asked,
    Force,
    Json,
    ReadingOptions,
    Text,
    Traces,
    flag,
    grouped,
    option,
)
from traceflops.cli.printing import say
from traceflops.cli.reading import read_and_analyze
from traceflops.errors import UsageError
from traceflops.phases import phase
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.reports.view import Authored

EXAMPLES = (
    "traceflops report trace.json.gz",
    "traceflops report ranks/ -o job.html --steps 10:20",
    "zcat trace.json.gz | traceflops report - -o trace.json",
    "traceflops report results.db --pair counters/",
    "traceflops report ranks/ -o tables/ --format csv",
    "traceflops report trace.json.gz --post-mortem case.md",
    'traceflops report ranks/ --redact --title "Slow since Tuesday" --notes notes.txt --open',
)
_MOST_INPUTS = 3


@dataclass(frozen=True, slots=True)
class Added:
    """What the author adds to the report, what is written beside it, whether it opens at once."""

    HEADING: ClassVar = "Output"

    title: Annotated[Text, option("TEXT", "Title of the report.")] = None
    notes: Annotated[
        Path | None,
        option(
            "FILE",
            "Your notes for the top of the report: paragraphs, `- ` lists, `# ` headings, "
            "``` code; UTF-8, at most 64 kB.",
        ),
    ] = None
    post_mortem: Annotated[
        Text, option("FILE", "Also write the case as text, in a .md file.", "--post-mortem")
    ] = None
    open: Annotated[bool, flag("Open the report in the browser.", "--open")] = False


@dataclass(frozen=True, slots=True)
class Target:
    """Where the report goes: a file, or a folder of tables in a format.

    A page that was given no name ends in a `mark` of where its recording lies.
    """

    path: Path
    format: str | None
    mark: bytes = b""

    def check(self, traces: list[str], others: list[str | Path | None], *, force: bool) -> None:
        """Refuse what cannot be written, before a large file is read in vain."""
        from traceflops.reports.files import is_report
        from traceflops.reports.tables import REPORT_TABLES, check_folder, table_files
        from traceflops.reports.write import check_target

        inputs = [*traces, *others]
        if self.format is None:
            spare_inputs([] if is_report(self.path) else [self.path], inputs)
            check_target(self.path, force=force)
        else:
            spare_inputs(table_files(self.path, REPORT_TABLES, self.format), inputs)
            keep_apart(self.path, traces, f".{self.format}")
            check_folder(self.path, REPORT_TABLES, self.format, force=force)

    def save(self, analysis: Analysis, command: str, authored: Authored, *, force: bool) -> str:
        """Write the report; return what was written, in words."""
        from traceflops.reports.tables import save_tables
        from traceflops.reports.view import size
        from traceflops.reports.write import save

        if self.format is not None:
            written = save_tables(analysis, self.path, self.format)
            return f"{several(len(written), 'table')} to {self.path}"
        save(analysis, self.path, force=force, command=command, authored=authored, mark=self.mark)
        return f"{self.path} ({size(self.path.stat().st_size)})"


@grouped
def report(
    traces: Traces,
    *,
    output: Annotated[
        Text,
        option(
            "FILE",
            "File to write: .html, .json, .md or .zip; or a folder for tables. Default: "
            "NAME.report.html in this folder; NAME-2.report.html beside that of another recording.",
            "-o",
            "--output",
        ),
    ] = None,
    format_: Annotated[
        Text, option("FORMAT", "Write tables to a folder: csv, parquet or arrow.", "--format")
    ] = None,
    added: Added,
    force: Force = False,
    quiet: Annotated[bool, flag("Print only the path.", "-q", "--quiet")] = False,
    json: Json = False,
    asked: Asked,
) -> None:
    """Write the report as one HTML file, and print its summary.

    With -o also as JSON, Markdown, a ZIP file or tables.
    """
    with failures(asked.reading, asked.privacy):
        target = target_of(output, format_, traces)
        _check_open(added.open, target, silent=quiet or json)
        from traceflops.reports.view import authored
        from traceflops.reports.write import save_post_mortem

        words = authored(added.title, added.notes)
        others = [*(asked.pair or []), asked.rules, asked.finding_rules, added.notes]
        target.check(traces, others, force=force)
        case = case_of(added.post_mortem, target)
        if case is not None:
            case.check(traces, others, force=force)
        analysis = read_and_analyze(traces, asked)
        try:
            if json:
                say(analysis.to_json())
            elif not quiet:
                print_summary(analysis)
        finally:  # also where the reader of the pipe has gone
            with phase("render and write"):
                command = command_of(traces, analysis, asked, added)
                written = target.save(analysis, command, words, force=force)
                if case is not None:
                    save_post_mortem(analysis, case.path, words)
                    written += f" and {case.path}"
        if quiet:
            say(str(target.path))
        elif not json:
            arrow = "→" if terminal_style().unicode else "->"
            is_page = target.path.suffix.lower() == ".html"
            say(f"\n{arrow} {written}{'  open with --open' if is_page and not added.open else ''}")
        if added.open:
            _show(target.path)


def target_of(output: str | None, format_: str | None, traces: list[str]) -> Target:
    """Return where the report goes. Raises UsageError where a file and a folder are asked for."""
    if output is None:
        if format_ is not None:
            return Target(Path(f"{stem_of(traces)}.report"), format_)
        return _page_of(traces)
    path = path_of(output)
    is_folder = output.endswith(("/", "\\")) or path.is_dir()
    if format_ is None and not is_folder:
        return Target(path, None)
    if format_ is not None and not is_folder and path.suffix:
        raise UsageError(
            f"--format writes tables to a folder, but this is a file name: {output}",
            f"give a folder such as {path.stem}/, or remove --format",
        )
    return Target(path, format_ or "csv")


def _page_of(traces: list[str]) -> Target:
    """Return the page named after the recording, numbered beside one of another recording.

    Four digits tell one place from another, and tell nobody where it is.
    """
    from traceflops.parsers.io import is_remote
    from traceflops.reports.files import ends_in, is_report

    places = [one if is_remote(one) else os.path.realpath(one) for one in traces]
    mark = f"<!-- {hashlib.sha256(repr(places).encode()).hexdigest()[:4]} -->\n".encode()
    stem = stem_of(traces)
    names = chain((stem,), (f"{stem}-{number}" for number in count(2)))
    paths = (Path(f"{name}.report.html") for name in names)
    free = next(path for path in paths if not is_report(path) or ends_in(path, mark))
    return Target(free, None, mark)


def case_of(post_mortem: str | None, target: Target) -> Target | None:
    """Return where the post-mortem goes. Raises UsageError where it cannot be there."""
    if post_mortem is None:
        return None
    path = path_of(post_mortem)
    if path.suffix.lower() != ".md" or path.resolve() == target.path.resolve():
        raise UsageError(
            f"the post-mortem needs a .md file of its own: {path}", "give it another name"
        )
    return Target(path, None)


def _check_open(wanted: bool, target: Target, *, silent: bool) -> None:
    """Refuse to open what no browser shows, and beside output that a program reads."""
    if not wanted:
        return
    if target.format is not None or target.path.suffix.lower() != ".html":
        raise UsageError("--open shows a page, but none is written", "give a .html file with -o")
    if silent:
        raise UsageError("--open cannot be combined with --json or --quiet", "remove one of them")


def _show(page: Path) -> None:
    """Show the page in the browser of this machine; that this fails is no fault of the report."""
    import webbrowser

    try:
        shown = webbrowser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        shown = False
    if not shown:
        say("note: no browser could be started; open the file yourself", to_stderr=True)


def command_of(traces: list[str], analysis: Analysis, asked: Asked, added: Added) -> str:
    """Return the command that made a report: no path, and no name if redacted.

    Files have the names that the report shows.
    """
    names = [file.name for file in analysis.source.files]
    whole = len(names) == len(traces) + len(asked.reading.side_files)
    shown = names[: len(traces)] if whole else ["FOLDER"] * len(traces)
    inputs = ["-" if t == "-" else name for t, name in zip(traces, shown, strict=True)]
    more = ["…"] if len(inputs) > _MOST_INPUTS else []
    options = chain.from_iterable(_options(asked, added, analysis))
    flags = (*asked.rates.words(), *asked.privacy.words(), *_flags(asked.reading))
    return shlex.join(["traceflops", "report", *inputs[:_MOST_INPUTS], *more, *options, *flags])


def _options(asked: Asked, added: Added, analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Give the options that have a value, with what of it may be shown."""
    question, hidden = asked.question, "…" if asked.privacy.redact else None
    values: dict[str, object] = {
        "--steps": question.steps,
        "--ranks": question.ranks,
        "--gpu": question.gpu,
        "--run": question.run,
        "--job": question.job,
        "--from": question.start,
        "--to": question.end,
        "--step-mark": question.step_mark and (hidden or question.step_mark),
        "--pair": asked.pair and _pair_shown(analysis),
        "--rules": asked.rules and (hidden or asked.rules.name),
        "--finding-rules": asked.finding_rules and (hidden or asked.finding_rules.name),
        "--title": added.title and (hidden or added.title),
        "--notes": added.notes and (hidden or added.notes.name),
    }
    yield from ((name, str(value)) for name, value in values.items() if value is not None)
    yield from ((name, hidden or Path(file).name) for name, file in asked.reading.side_files)
    if asked.reading.zone is not None:
        yield "--zone", asked.reading.zone


def _flags(reading: ReadingOptions) -> Iterator[str]:
    """Give the options of reading that decide what is read."""
    if reading.python_stacks is not None:
        yield "--python-stacks" if reading.python_stacks else "--no-python-stacks"
    if reading.no_limits:
        yield "--no-limits"
    if reading.strict:
        yield "--strict"


def _pair_shown(analysis: Analysis) -> str:
    """Return the paired file by the name the report shows."""
    work = analysis.measured.executed.work
    files = [join.file for join in work.joins if join.file] if work is not None else []
    return files[0] if files and not files[0].endswith(" files") else "FOLDER"

"""`traceflops compare`: what changed between recordings, by how much, why, and how sure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from traceflops.cli.common import failures, path_of, spare_inputs, terminal_style
from traceflops.cli.options import Asked, Force, Json, Text, grouped, option
from traceflops.cli.printing import print_lines, say_object
from traceflops.cli.reading import read_and_analyze, schema_of
from traceflops.errors import InputError, UsageError

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.comparison import Comparison, Side

EXAMPLES = (
    "traceflops compare before.json.gz after.json.gz",
    "traceflops compare base.report.json after/ --names main,branch",
    "traceflops compare run1.db run2.db run3.db --baseline run2",
    "traceflops compare before.json.gz after.json.gz -o change.html",
)
_LEAST: Final = 2


@grouped
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="BEFORE AFTER...",
            help="Two recordings or more: trace files, folders of ranks, patterns such as "
            "'run1/*.json', or JSON reports.",
            show_default=False,
        ),
    ],
    *,
    names: Annotated[Text, option("LIST", "What to call them, e.g. main,branch.")] = None,
    baseline: Annotated[
        Text, option("NAME", "Which one to compare with. Default: the first.")
    ] = None,
    output: Annotated[
        Text, option("FILE", "Also write the comparison: .html, .md or .json.", "-o", "--output")
    ] = None,
    force: Force = False,
    json: Json = False,
    asked: Asked,
) -> None:
    """Say what changed between recordings, why, and how sure."""
    with failures(asked.reading, asked.privacy):
        labels = _labels(names, runs)
        target = _target(output, runs, force=force)
        given = [read_side(run, asked) for run in runs]
        named = labels or _told_apart(_own_names(runs, given, redact=asked.privacy.redact))
        found = _compared(given, named, baseline)
        if target is not None:
            from traceflops.reports.write import save_comparison

            save_comparison(found, target, force=force)
        _show(found, json=json)


def _labels(names: str | None, runs: Sequence[str]) -> list[str] | None:
    """Return the names given. Raises UsageError where these are not one each."""
    if len(runs) < _LEAST:
        raise UsageError("compare needs two recordings", "give BEFORE and AFTER")
    labels = [name.strip() for name in names.split(",")] if names is not None else None
    if labels is not None and (len(set(labels)) != len(runs) or "" in labels):
        raise UsageError(f"--names needs {len(runs)} different names", "separate them by commas")
    return labels


def _target(output: str | None, runs: Sequence[str], *, force: bool) -> Path | None:
    if output is None:
        return None
    from traceflops.reports.write import check_comparison_target

    target = path_of(output)
    check_comparison_target(target, several=len(runs) > _LEAST, force=force)
    spare_inputs([target], runs)
    return target


def read_side(run: str, asked: Asked) -> Analysis | Side:
    """Return the analysis of a recording, or the figures of a JSON report."""
    files = [run] if os.path.exists(run) else sorted(glob(run)) or [run]
    from traceflops.comparison import REPORT, side_of_report

    if len(files) > 1 or schema_of(files[0]) != REPORT:
        asked.reading.refuse_side_files("several recordings")
        return read_and_analyze(files, asked)
    try:
        return side_of_report(Path(files[0]).read_bytes())
    except InputError as error:
        raise InputError(f"{error.message}: {files[0]}", error.hint) from None


def _compared(
    given: Sequence[Analysis | Side], named: Sequence[str], baseline: str | None
) -> list[Comparison]:
    """Return each recording against the one that is the baseline."""
    from traceflops.comparison import compare

    if baseline is not None and baseline not in named:
        raise UsageError(f"no recording is called {baseline}", f"they are {', '.join(named)}")
    at = named.index(baseline) if baseline is not None else 0
    return [
        compare(given[at], one, (named[at], named[place]))
        for place, one in enumerate(given)
        if place != at
    ]


def _own_names(runs: Sequence[str], given: Sequence[Analysis | Side], *, redact: bool) -> list[str]:
    """Return the names of folders, and what other recordings are called.

    Files of the same name have their folder before it.
    """
    from traceflops.comparison import name_of

    names = [name_of(one) for one in given]
    if redact:
        return names
    paths = [Path(run).resolve() for run in runs]
    whole = [path.name if path.is_dir() else name for path, name in zip(paths, names, strict=True)]
    longer = [f"{path.parent.name}/{name}" for path, name in zip(paths, whole, strict=True)]
    return [
        long if whole.count(name) > longer.count(long) else name
        for long, name in zip(longer, whole, strict=True)
    ]


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return names with a number where several are the same."""
    return [
        f"{name} ({names[: at + 1].count(name)})" if names.count(name) > 1 else name
        for at, name in enumerate(names)
    ]


def _show(found: Sequence[Comparison], *, json: bool) -> None:
    from traceflops.reports.json import comparison_object, comparisons_object
    from traceflops.reports.terminal import render_comparison, render_runs

    if json:
        say_object(comparison_object(found[0]) if len(found) == 1 else comparisons_object(found))
    elif len(found) == 1:
        print_lines(render_comparison(found[0], terminal_style()))
    else:
        print_lines(render_runs(found, terminal_style()))

"""`traceflops compare`: what changed between recordings, by how much, why, and how sure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceflops.cli.common import path_of, print_lines, say_object, spare_inputs, terminal_style
from traceflops.cli.options import TO, AnalysisOptions, Brief, Force, Json, Text, argument, option
from traceflops.errors import InputError, UsageError

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.comparison.side import Side

EXAMPLES = (
    "traceflops compare before.json.gz after.json.gz",
    "traceflops compare base.report.json after/ --names main,branch",
    "traceflops compare run1.db run2.db run3.db --baseline run2",
    "traceflops compare before.json.gz after.json.gz -o change.html",
    "traceflops compare before.json.gz after.json.gz --fix data-input",
)
_LEAST: Final = 2


def compare(
    runs: list[str] = argument(
        "BEFORE AFTER...",
        "Two recordings or more: trace files, folders of ranks, patterns such as "
        "'run1/*.json', or JSON reports.",
    ),
    *,
    names: Text = option("LIST", "What to call them, e.g. main,branch."),
    baseline: Text = option("NAME", "Which one to compare with. Default: the first."),
    fix: Text = option("RULE", "Check what this finding of BEFORE promised, such as data-input."),
    output: Text = option("FILE", "Also write the comparison: .html, .md or .json.", *TO),
    force: Force = False,
    json: Json = False,
    brief: Brief = False,
    asked: AnalysisOptions,
) -> None:
    """Say what changed between recordings, why, and how sure."""
    if len(runs) < _LEAST:
        raise UsageError("compare needs two recordings", "give BEFORE and AFTER")
    labels = [name.strip() for name in names.split(",")] if names is not None else None
    if labels is not None and (len(set(labels)) != len(runs) or "" in labels):
        hint = "separate them by commas"
        raise UsageError(f"--names needs {len(runs)} different names", hint)
    target = path_of(output) if output is not None else None
    from traceflops.comparison.result import compare
    from traceflops.reports.json.comparison import comparison_object, comparisons_object
    from traceflops.reports.terminal.comparison import render_comparison, render_runs
    from traceflops.reports.write import check_comparison_target, save_comparison

    if target is not None:
        check_comparison_target(target, several=len(runs) > _LEAST, force=force)
        spare_inputs([target], runs)
    sides = [read_side(run, asked) for run in runs]
    labels = labels or _own_labels(runs, sides, redact=asked.privacy.redact)
    if baseline is not None and baseline not in labels:
        hint = f"they are {', '.join(labels)}"
        raise UsageError(f"no recording is called {baseline}", hint)
    base = labels.index(baseline) if baseline is not None else 0
    comparisons = [
        compare(sides[base], side, (labels[base], label), fix)
        for index, (side, label) in enumerate(zip(sides, labels, strict=True))
        if index != base
    ]
    first, *others = comparisons
    if target is not None:
        save_comparison(comparisons, target, force=force)
    if json or brief:
        found = comparisons_object(comparisons) if others else comparison_object(first)
        say_object(found, brief=brief)
    elif others:
        print_lines(render_runs(comparisons, terminal_style()))
    else:
        print_lines(render_comparison(first, terminal_style()))


def read_side(run: str, asked: AnalysisOptions) -> Analysis | Side:
    """Return the analysis of a recording (a path or pattern), or the figures of a JSON report."""
    from traceflops.comparison.report_side import REPORT, side_of_report
    from traceflops.front.files import schema_in

    files = [run] if os.path.exists(run) else sorted(glob(run)) or [run]
    if len(files) > 1 or schema_in(files[0]) != REPORT:
        # Side files were recorded with one of the sides; nothing says with which.
        asked.request().refuse_side_files("several recordings")
        return asked.analyze(files)
    try:
        return side_of_report(Path(files[0]).read_bytes())
    except InputError as error:
        raise InputError(f"{error.message}: {files[0]}", error.hint) from None


def _own_labels(
    runs: Sequence[str], sides: Sequence[Analysis | Side], *, redact: bool
) -> list[str]:
    """Return different labels for the recordings: their names, or those of their folders.

    Of several with the same name, the label begins with the parent folder if that tells them apart,
    else it ends with a number. If `redact`, no folders are shown, since their names are not
    redacted.
    """
    from traceflops.comparison.side import name_of

    labels = [name_of(side) for side in sides]
    if not redact:
        paths = [Path(run).resolve() for run in runs]
        pairs = zip(paths, labels, strict=True)
        short = [path.name if path.is_dir() else label for path, label in pairs]
        long = [f"{path.parent.name}/{label}" for path, label in zip(paths, short, strict=True)]
        labels = [
            long_label if short.count(short_label) > long.count(long_label) else short_label
            for short_label, long_label in zip(short, long, strict=True)
        ]
    return [
        f"{label} ({labels[: index + 1].count(label)})" if labels.count(label) > 1 else label
        for index, label in enumerate(labels)
    ]

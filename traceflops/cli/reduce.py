"""`traceflops reduce`: each file of a job as a summary, which `report` and `summary` add up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Annotated

from traceflops.cli.common import failures, keep_apart, path_of, stem_of
from traceflops.cli.options import Asked, Force, Traces, grouped, option
from traceflops.cli.parts import Files, check_asked, files_of, none_reduced, parts_of, runs_of
from traceflops.cli.printing import say
from traceflops.cli.reading import SUFFIX
from traceflops.errors import UsageError
from traceflops.units import several

EXAMPLES = (
    "traceflops reduce ranks/ -o summaries/",
    "traceflops reduce rank17.json.gz -o summaries/",
    "traceflops reduce ranks/ --steps 10:20 -o summaries/",
)


@grouped
def reduce(
    traces: Traces,
    *,
    output: Annotated[str, option("FOLDER", "Folder for the summaries.", "-o", "--output")],
    force: Force = False,
    asked: Asked,
) -> None:
    """Write a small summary of each file, for report to read.

    So machines need no network between them, and thousands of ranks fit into one report.
    """
    with failures(asked.reading, asked.privacy):
        check_asked(asked)
        from traceflops.analysis import decoded
        from traceflops.reports.files import write_pieces

        folder = path_of(output)
        keep_apart(folder, traces, SUFFIX)
        targets = _targets(runs_of(files_of(traces)), folder, force=force)
        folder.mkdir(parents=True, exist_ok=True)
        unread = []
        for target, content in zip(targets, parts_of(list(targets.values()), asked), strict=True):
            write_pieces(target, [content])
            unread += [target] if isinstance(decoded(content, target.name), str) else []
        if len(unread) == len(targets):
            for target in unread:
                target.unlink()
            raise none_reduced(traces)
        say(f"Wrote {several(len(targets), 'summary', 'summaries')} to {folder}")
        if unread:
            say(f"note: {several(len(unread), 'file')} could not be reduced", to_stderr=True)


def _names(runs: Sequence[Files]) -> list[str]:
    """Return a name for each run: of its first file, behind the folders in which same names lie."""
    names = [stem_of([run[0]]) for run in runs]
    if len(set(names)) == len(names):
        return names
    parents = [PurePath(run[0]).parent for run in runs]
    folders = [one.relative_to(one.anchor).parts for one in parents]
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    common = sum(1 for _ in levels)
    return ["-".join((*own[common:], name)) for own, name in zip(folders, names, strict=True)]


def _targets(runs: Sequence[Files], folder: Path, *, force: bool) -> dict[Path, Files]:
    """Return which run's summary each file to write is. Raises UsageError where one is there."""
    targets = {
        folder / f"{name}{SUFFIX}": run for name, run in zip(_names(runs), runs, strict=True)
    }
    if len(targets) < len(runs):
        raise UsageError("two files have the same name", "reduce them into folders of their own")
    there = next((target for target in targets if target.exists()), None)
    if there is not None and not force:
        raise UsageError(f"already there: {there}", "use --force, or another folder with -o")
    return targets

"""`traceflops reduce`: each file of a job as a summary, which `report` and `summary` add up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from traceflops.characters import visible
from traceflops.cli.common import keep_apart, path_of, say, stem_of
from traceflops.cli.options import REQUIRED, TO, AnalysisOptions, Force, Traces, option
from traceflops.errors import UsageError
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.front.reduction import Files

EXAMPLES = (
    "traceflops reduce ranks/ -o summaries/",
    "traceflops reduce rank17.json.gz -o summaries/",
    "traceflops reduce ranks/ --steps 10:20 -o summaries/",
)


def reduce(
    traces: Traces,
    *,
    output: str = option("FOLDER", "Folder for the summaries.", *TO, default=REQUIRED),
    force: Force = False,
    asked: AnalysisOptions,
) -> None:
    """Write a small summary of each file, for report to read.

    So machines need no network between them, and thousands of ranks fit into one report.
    """
    from traceflops.analysis.summary_files import decoded
    from traceflops.front.files import SUMMARY_SUFFIX
    from traceflops.front.reduction import file_sets, none_reduced, summary_contents
    from traceflops.reports.files import write_pieces

    request = asked.request()
    request.check_reducible()
    folder = path_of(output)
    keep_apart(folder, traces, SUMMARY_SUFFIX)
    targets = targets_of(file_sets(traces), folder, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    contents = summary_contents(list(targets.values()), request)
    unread = []
    for target, content in zip(targets, contents, strict=True):
        write_pieces(target, [content])
        if isinstance(decoded(content, target.name), str):  # only names: not reduced
            unread.append(target)
    if len(unread) == len(targets):
        for target in unread:
            target.unlink()
        raise none_reduced(traces)
    say(f"Wrote {several(len(targets), 'summary', 'summaries')} to {visible(str(folder))}")
    if unread:
        say(f"note: {several(len(unread), 'file')} could not be reduced", to_stderr=True)


def targets_of(sets: Sequence[Files], folder: Path, *, force: bool) -> dict[Path, Files]:
    """Return the target files, each with the files whose summary it gets.

    A target is named after its first file. If such names are equal, their folders are put before
    them, without the folders that all have in common. Raises UsageError if names are still equal,
    or if a target exists and `force` is not set.
    """
    from traceflops.front.files import SUMMARY_SUFFIX

    names = [stem_of([files[0]]) for files in sets]
    if len(set(names)) < len(names):
        parents = [PurePath(files[0]).parent for files in sets]
        folders = [parent.relative_to(parent.anchor).parts for parent in parents]
        levels = takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
        common = len(list(levels))
        pairs = zip(folders, names, strict=True)
        names = ["-".join((*folder[common:], name)) for folder, name in pairs]
    paths = [folder / f"{name}{SUMMARY_SUFFIX}" for name in names]
    targets = dict(zip(paths, sets, strict=True))
    if len(targets) < len(sets):
        raise UsageError("two files have the same name", "reduce them into folders of their own")
    existing = next(filter(Path.exists, targets), None)
    if existing is not None and not force:
        raise UsageError(f"already there: {existing}", "use --force, or another folder with -o")
    return targets

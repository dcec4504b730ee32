"""`traceflops reduce`: each file of a job as a summary, which `report` and `summary` add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from traceflops.cli.common import failures, keep_apart, path_of, stem_of
from traceflops.cli.options import Asked, Force, Traces, grouped, option, typed
from traceflops.cli.printing import say
from traceflops.errors import InputError, UsageError
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis import Analysis

EXAMPLES = (
    "traceflops reduce ranks/ -o summaries/",
    "traceflops reduce rank17.json.gz -o summaries/",
    "traceflops reduce ranks/ --steps 10:20 -o summaries/",
)
_SUFFIX: Final = ".summary"
_USUAL_EXPANSION: Final = 10
_LOCAL: Final = "local"
_EXTRA: Final = "pip install 'traceflops[cluster]'"
_Work = Callable[[str], bytes]


@grouped
def reduce(
    traces: Traces,
    *,
    output: Annotated[str, option("FOLDER", "Folder for the summaries.", "-o", "--output")],
    force: Force = False,
    asked: Asked,
) -> None:
    """Write a summary of each file, for machines without network; report reads them."""
    with failures(asked.reading, asked.privacy):
        _check(asked)
        folder = path_of(output)
        keep_apart(folder, traces, _SUFFIX)
        targets = _targets(_files(traces), folder, force=force)
        folder.mkdir(parents=True, exist_ok=True)
        sizes = []
        for target, content in zip(targets, _parts(list(targets.values()), asked), strict=True):
            target.write_bytes(content)
            sizes.append(len(content))
        say(f"Wrote {several(len(sizes), 'summary', 'summaries')} to {folder}")


def analysis_of_parts(traces: list[str], asked: Asked) -> Analysis:
    """Return the analysis of files that are summaries, or are reduced to them first."""
    _check(asked)
    from traceflops.analysis import analysis_of_summaries, decoded

    files = _files(traces)
    if asked.dask is None and any(value is not None for value in typed(asked.question).values()):
        raise UsageError(
            "summaries are of the steps and ranks they were made for",
            "give these options to traceflops reduce",
        )
    contents = (Path(file).read_bytes() for file in files)
    summaries, failed = [], []
    for file, content in zip(
        files, contents if asked.dask is None else _parts(files, asked), strict=True
    ):
        name = Path(file).name
        try:
            found = decoded(content, name)
        except InputError:
            found = name
        if isinstance(found, str):
            failed.append(found)
        else:
            summaries.append(found)
    if not summaries:
        raise InputError(f"no file could be read: {traces[0]}", "give the files of a job's ranks")
    return analysis_of_summaries(summaries, failed, asked.rates.link)


def reduced(asked: Asked, file: str) -> bytes:
    """Return the summary of a file as the content of one; the name of one that cannot be read."""
    from traceflops.analysis import analyze, encoded, summary_of
    from traceflops.parsers import read

    reading = asked.reading
    try:
        trace = read(
            file,
            jobs=1,
            python_stacks=reading.python_stacks,
            strict=reading.strict,
            limits=not reading.no_limits,
        )
        analysis = analyze(
            trace,
            asked.question.selection(),
            rules=asked.rules,
            include_environment=asked.privacy.include_environment,
            peaks=asked.rates.peaks(),
        )
        return encoded(summary_of(analysis))
    except InputError:
        return encoded(Path(file).name)


def _parts(files: Sequence[str], asked: Asked) -> Iterator[bytes]:
    """Yield the summary of each file, in order; other processes or machines reduce them."""
    work = partial(reduced, asked)
    return (
        _here(work, files, asked.reading.jobs)
        if asked.dask is None
        else on_dask(work, files, asked.dask, asked.reading.jobs)
    )


def _here(work: _Work, files: Sequence[str], jobs: int | None) -> Iterator[bytes]:
    from traceflops.parsers.io import Crew, usable_cores

    stored = sum(Path(file).stat().st_size for file in files if Path(file).is_file())
    with Crew(usable_cores() if jobs is None else jobs) as crew:
        crew.expect(_USUAL_EXPANSION * stored)
        for result in crew.each(work, files):
            yield result()


def on_dask(work: _Work, files: Sequence[str], address: str, jobs: int | None) -> Iterator[bytes]:
    """Yield the summaries that a cluster makes; a file that kills its worker has none."""
    try:
        from distributed import Client, KilledWorker, LocalCluster
    except ImportError:
        raise UsageError("--dask needs the package distributed", _EXTRA) from None
    from traceflops.analysis import encoded

    here = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
    place = LocalCluster(**here) if address == _LOCAL else nullcontext(address)
    with place as cluster, Client(cluster) as client:
        for file, future in zip(files, client.map(work, files, pure=False), strict=True):
            try:
                yield future.result()
            except KilledWorker:
                yield encoded(Path(file).name)


def _files(traces: Sequence[str]) -> list[str]:
    from traceflops.parsers.io import files_behind

    return [str(file) for trace in traces for file in files_behind(trace)]


def _targets(files: Sequence[str], folder: Path, *, force: bool) -> dict[Path, str]:
    """Return which file's summary each file to write is. Raises UsageError where one is there."""
    targets = {folder / f"{stem_of([file])}{_SUFFIX}": file for file in files}
    if len(targets) < len(files):
        raise UsageError("two files have the same name", "reduce them into folders of their own")
    there = next((target for target in targets if target.exists()), None)
    if there is not None and not force:
        raise UsageError(f"already there: {there}", "use --force, or another folder with -o")
    return targets


def _check(asked: Asked) -> None:
    """Refuse what cannot be asked of summaries."""
    if asked.privacy.redact:
        raise UsageError("--redact does not work with summaries", "give the traces to report")
    if asked.pair:
        raise UsageError("--pair does not work with summaries", "give the traces to report")

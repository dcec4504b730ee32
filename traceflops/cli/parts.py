"""Each file of a job as a summary, made here or on a cluster, and what they add up to."""

from __future__ import annotations

import gc
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final

from traceflops.cli.options import Asked, typed
from traceflops.errors import InputError, UsageError, is_out_of_memory, lacks

if TYPE_CHECKING:
    from traceflops.analysis import Analysis, RankSummary

_USUAL_EXPANSION: Final = 10
_PACKED: Final = (".gz", ".zst", ".lz4", ".zip")
_LOCAL: Final = "local"
_MANY: Final = 64
_LARGE_BYTES: Final = 1 << 29
"""So much text of so many files takes up to 1 GB when all of it is held."""
_REDUCED: Final = (
    "The files are many and large, so each was reduced to a summary when it was read. "
    "With --ranks or --steps all are kept whole."
)
_WORTH_BYTES: Final = 1 << 26
_GROUPS: Final = 8
_TOGETHER_BYTES: Final = 1 << 26
"""Reducing pays from so much text on. Files are read in so many groups at least, each of so much
text at most."""
_NUMBER: Final = re.compile(r"\d+")
_PATIENCE_S: Final = 5.0
"""So long a cluster is waited for."""
_EXTRA: Final = "pip install 'traceflops[cluster]'"
Files = tuple[str, ...]
"""Files that are read together: one, or all of a format in which a run is a set of files."""
_Work = Callable[[Files], bytes]


def analysis_of_many(traces: list[str], asked: Asked, *, brief: bool) -> Analysis | None:
    """Return the analysis of files of which several are reduced at a time, None if that is no use.

    It is of some if they are too many and large to be held, or where the report is `brief`, so
    that nearly all of it is in summaries: then other processes do most of the work. That does not
    depend on the number of processes, nor does what is shown.
    """
    if asked.reading.strict or asked.privacy.redact or asked.privacy.include_environment:
        return None
    if asked.pair or _selects(asked) or asked.reading.side_files:
        return None
    sizes = {file: _text_bytes(Path(file)) for file in files_of(traces) if os.path.isfile(file)}
    if len(sizes) < _MANY or sum(sizes.values()) < (_WORTH_BYTES if brief else _LARGE_BYTES):
        return None
    try:
        found = [one for part in _reduced_together(_groups(sizes), asked) for one in part]
        analysis = _added_up(found, asked)
    except UsageError:  # of several jobs, say
        return None
    from traceflops.table import Note

    note = Note("missing", "files-reduced", _REDUCED)
    return analysis and replace(analysis, notes=(note, *analysis.notes))


def _added_up(found: Sequence[RankSummary | str], asked: Asked) -> Analysis | None:
    """Return what summaries add up to, None where there are only names of files without any."""
    from traceflops.analysis import analysis_of_summaries
    from traceflops.parsers.shared import copies

    summaries = [one for one in found if not isinstance(one, str)]
    failed = [name for one in found if isinstance(one, str) for name in one.split("\n")]
    notes = copies([one.trace for one in summaries])
    once = [
        replace(one, trace=replace(one.trace, notes=(*notes[place], *one.trace.notes)))
        for place, one in enumerate(summaries)
        if place in notes
    ]
    return analysis_of_summaries(once, failed, asked.rates.link) if once else None


def _groups(sizes: Mapping[str, int]) -> list[tuple[Files, ...]]:
    """Return the runs that are read together, those of near ranks."""
    from traceflops.parsers.io import rank_in_name

    runs = runs_of(list(sizes))
    runs.sort(key=lambda run: (rank_in_name(PurePath(run[0]).name) or 0, run))
    most = -(-len(runs) // _GROUPS)
    groups: list[list[Files]] = []
    held = 0
    for run in runs:
        size = sum(sizes[file] for file in run)
        if not groups or len(groups[-1]) == most or held + size > _TOGETHER_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(run)
        held += size
    return list(map(tuple, groups))


def _reduced_together(
    groups: Sequence[tuple[Files, ...]], asked: Asked
) -> Iterator[list[RankSummary | str]]:
    from traceflops.parsers.io import Crew, usable_cores

    jobs = asked.reading.jobs
    with Crew(jobs or usable_cores(), worth_bytes=0, takes_part=True) as crew:
        crew.expect(1)
        for result in crew.each(partial(together, asked), groups):
            from traceflops.analysis import unpacked  # which takes as long as the first results

            yield [one if isinstance(one, str) else unpacked(one) for one in result()]


def together(asked: Asked, runs: tuple[Files, ...]) -> list[bytes | str]:
    """Return the summary of runs; one of each, or its names, where they cannot be read together."""
    from traceflops.analysis import packed

    try:
        return [packed(_summary(asked, tuple(file for run in runs for file in run)))]
    except (InputError, UsageError):
        found = [_summary_or_names(asked, run) for run in runs]
        return [one if isinstance(one, str) else packed(one) for one in found]


def _text_bytes(file: Path) -> int:
    """Return about how much text a file holds."""
    return file.stat().st_size * (_USUAL_EXPANSION if file.suffix in _PACKED else 1)


def analysis_of_parts(traces: list[str], summaries: list[str], asked: Asked) -> Analysis:
    """Return the analysis of files of which some are summaries; the others are reduced first."""
    from traceflops.analysis import decoded

    check_asked(asked)
    if summaries and _selects(asked):
        raise UsageError(
            "summaries are of the steps and ranks they were made for",
            "give these options to traceflops reduce",
        )
    known = set(summaries)
    others = runs_of([file for file in files_of(traces) if file not in known])
    runs = [*((file,) for file in summaries), *others]
    contents = chain(map(_content, summaries), parts_of(others, asked) if others else ())
    found = [_decoded(content, run) for run, content in zip(runs, contents, strict=True)]
    if (analysis := _added_up(found, asked)) is not None:
        return analysis
    for file in summaries[:1]:
        decoded(_content(file), Path(file).name)  # says what is wrong
    raise none_reduced(traces)


def none_reduced(traces: list[str]) -> InputError:
    """Return what to say of files of which none has a summary."""
    return InputError(
        f"no file could be reduced (unreadable, or without a timeline): {traces[0]}",
        "traceflops info says what it holds; give files without a timeline to report themselves",
    )


def _decoded(content: bytes, run: Files) -> RankSummary | str:
    from traceflops.analysis import decoded

    try:
        return decoded(content, Path(run[0]).name)
    except InputError:
        return _names(run)


def reduced(asked: Asked, files: Files) -> bytes:
    """Return the summary of files as the content of one; the names of those that have none.

    Those are files that cannot be read, or hold nothing but what is in no summary. Raises
    UsageError where they are of several jobs, of which none is chosen.
    """
    from traceflops.analysis import encoded

    summary = _summary_or_names(asked, files)
    return encoded(summary if isinstance(summary, str) or summary.has_timeline else _names(files))


def _summary_or_names(asked: Asked, files: Files) -> RankSummary | str:
    try:
        return _summary(asked, files)
    except InputError:
        return _names(files)


def _summary(asked: Asked, files: Files) -> RankSummary:
    from traceflops.analysis import summarised
    from traceflops.devices import check_decided, of_job
    from traceflops.parsers import read

    reading = asked.reading
    trace = read(
        list(files),
        jobs=1,
        python_stacks=reading.python_stacks,
        strict=reading.strict,
        limits=not reading.no_limits,
    )
    check_decided(of_job(trace, asked.question.selection().job), "a summary")
    return summarised(
        trace,
        asked.question.selection(),
        asked.rates.peaks(),
        rules=asked.rules,
        include_environment=asked.privacy.include_environment,
    )


def _names(files: Files) -> str:
    return "\n".join(Path(file).name for file in files)


def parts_of(runs: Sequence[Files], asked: Asked) -> Iterator[bytes]:
    """Yield the summary of each run, in order; other processes or machines reduce them."""
    work = partial(reduced, asked)
    return (
        _here(work, runs, asked.reading.jobs)
        if asked.dask is None
        else on_dask(work, runs, asked.dask, asked.reading.jobs)
    )


def _here(work: _Work, runs: Sequence[Files], jobs: int | None) -> Iterator[bytes]:
    from traceflops.parsers.io import Crew, usable_cores

    files = [file for run in runs for file in run]
    with Crew(jobs or usable_cores(), takes_part=True) as crew:
        crew.expect(sum(_text_bytes(Path(file)) for file in files if os.path.isfile(file)))
        for result in crew.each(work, runs):
            yield result()


def on_dask(work: _Work, runs: Sequence[Files], address: str, jobs: int | None) -> Iterator[bytes]:
    """Yield the summaries that a cluster makes; a file that kills its worker has none.

    Raises UsageError where there is no cluster, or none any more.
    """
    try:
        from distributed import CancelledError, Client, KilledWorker
        from distributed.comm.core import CommClosedError
    except ImportError as error:
        raise lacks(error, "--dask needs the package distributed", _EXTRA) from None
    from traceflops.analysis import encoded

    with ExitStack() as stack:
        stack.enter_context(_no_logs())
        place = _local_cluster(jobs) if address == _LOCAL else nullcontext(address)
        try:
            client = stack.enter_context(Client(stack.enter_context(place), timeout=_PATIENCE_S))
        except Exception as error:  # of any kind, by the scheme and by who answers
            if address == _LOCAL and is_out_of_memory(error):
                raise
            clear_frames(error.__traceback__)
            gc.collect()  # a client that never connected ends here, not inside another one's locks
            hint = "give the address of a running scheduler, e.g. tcp://host:8786, or local"
            raise UsageError(f"no cluster at {address} ({error})", hint) from None
        for run, future in zip(runs, client.map(work, runs, pure=False), strict=True):
            try:
                yield future.result()
            except KilledWorker:
                yield encoded(_names(run))
            except (CancelledError, CommClosedError):
                hint = "see what its scheduler says, then run this again"
                raise UsageError(f"the cluster at {address} was lost", hint) from None


@contextmanager
def _no_logs() -> Iterator[None]:
    """Keep what Dask logs off the screen: what it comes to is an error or a note of ours."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _local_cluster(jobs: int | None) -> Iterator[Any]:
    """Yield processes of this machine, without pages that show them.

    A worker has no second file, so that one that dies casts no doubt on others.
    """
    from dask import config
    from distributed import LocalCluster

    settings: dict[str, Any] = {
        "scheduler.allowed-failures": 1,
        "scheduler.worker-saturation": 1.0,
        "scheduler.http.routes": [],
        "worker.http.routes": [],
    }
    with (
        config.set({f"distributed.{name}": value for name, value in settings.items()}),
        LocalCluster(
            n_workers=jobs,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,  # what is lost is a note
        ) as cluster,
    ):
        yield cluster


def files_of(traces: Sequence[str]) -> list[str]:
    """Return the files that the inputs are read from."""
    from traceflops.parsers.io import files_behind

    return [file for trace in traces for file in files_behind(trace)]


def _content(file: str) -> bytes:
    from traceflops.parsers.io import open_file

    with open_file(file) as stream:
        return stream.read()


def runs_of(files: Sequence[str]) -> list[Files]:
    """Return the files that are read together: those of a set, of one rank, in or below a folder.

    Of files whose names differ by numbers only, one is opened to see what they are.
    """
    from traceflops.parsers.io import rank_in_name

    formats: dict[str, str | None] = {}
    for file in files:
        if formats.get(_NUMBER.sub("", file)) is None:
            formats[_NUMBER.sub("", file)] = _set_of(file)
    set_of = {file: formats[_NUMBER.sub("", file)] for file in files}
    folders = {file: _folder_of_passes(file) for file in files}
    holding = {(set_of[file], folders[file]) for file in files}
    found: dict[object, list[str]] = {}
    for file, format_ in set_of.items():
        above = (up for up in reversed(folders[file].parents) if (format_, up) in holding)
        place = (format_, next(above, folders[file]), rank_in_name(PurePath(file).name))
        found.setdefault(place if format_ else file, []).append(file)
    return [tuple(run) for run in found.values()]


def _folder_of_passes(file: str) -> PurePath:
    """Return the folder of a file, without those of the passes of one run."""
    from traceflops.parsers.rocprof import PASS

    return PurePath(*(part for part in PurePath(file).parent.parts if not PASS.fullmatch(part)))


def _set_of(file: str) -> str | None:
    """Return the format of a file if a run is a set of such files; None if it cannot be read."""
    from traceflops.parsers.io import find_inputs
    from traceflops.parsers.recognise import recognise

    try:
        sources, _ = find_inputs(file)
        with ExitStack() as stack:
            opened = [stack.enter_context(closing(source)) for source in sources]
            format_ = recognise(opened[0])
    except InputError:
        return None
    return format_.name if format_.gathers and len(opened) == 1 else ""


def _selects(asked: Asked) -> bool:
    return any(value is not None for value in typed(asked.question).values())


def check_asked(asked: Asked) -> None:
    """Refuse what cannot be asked of summaries."""
    if asked.privacy.redact:
        raise UsageError("--redact does not work with summaries", "give the traces to report")
    asked.reading.refuse_side_files("summaries")
    if asked.pair:
        raise UsageError("--pair does not work with summaries", "give the traces to report")

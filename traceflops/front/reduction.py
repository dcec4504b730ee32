"""A request to analyse files; many files are each reduced to a summary, then added up."""

from __future__ import annotations

import gc
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from traceback import clear_frames
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.analysis import summary_files
from traceflops.analysis.rank_summary import RankSummary, summarised
from traceflops.analysis.result import Analysis
from traceflops.analysis.summary_files import encoded
from traceflops.analysis.summary_sums import HeldSummary, Shared
from traceflops.devices.jobs import check_decided, of_job
from traceflops.errors import InputError, UsageError, is_out_of_memory, lacks
from traceflops.mfu.budget import FROM_THE_TRACE, PeakOptions
from traceflops.parsers.io.places import files_behind, find_inputs, open_file, rank_in_name
from traceflops.parsers.io.worker_pool import WorkerPool, usable_cores
from traceflops.parsers.reading import read
from traceflops.parsers.recognise import recognise
from traceflops.parsers.rocprof.tables.parts import PASS
from traceflops.parsers.shared.repeats import copies
from traceflops.table.trace import Trace, note_of
from traceflops.windows.selection import Selection

_LOCAL: Final = "local"
_TIMEOUT_S: Final = 5.0
_SETTINGS: Final[dict[str, Any]] = {
    # A file is given up when two workers died of it: a single one may have died by chance.
    "distributed.scheduler.allowed-failures": 1,
    # A worker gets one file at a time, so when one dies it is known by which file.
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
"""Of a cluster on this machine: worker processes without their web pages."""


def on_dask(
    work: Callable[[tuple[str, ...]], bytes],
    sets: Sequence[tuple[str, ...]],
    address: str,
    jobs: int | None,
) -> Iterator[bytes]:
    """Yield summaries by the workers of a Dask cluster; of files that kill theirs only the names.

    `address` is a scheduler, or "local" for `jobs` processes of this machine. Raises UsageError if
    no cluster answers or the connection is lost.
    """
    try:
        from dask import config
        from distributed import CancelledError, Client, KilledWorker, LocalCluster
        from distributed.comm.core import CommClosedError
    except ImportError as error:
        install = "pip install 'traceflops[cluster]'"
        raise lacks(error, "--dask needs the package distributed", install) from None
    with ExitStack() as stack:
        # Dask's problems are told by our errors and notes.
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        try:
            cluster: Any = address
            if address == _LOCAL:
                stack.enter_context(config.set(_SETTINGS))
                cluster = stack.enter_context(
                    LocalCluster(
                        n_workers=jobs,
                        threads_per_worker=1,
                        dashboard_address="127.0.0.1:0",
                        scheduler_kwargs={"dashboard": False},
                        silence_logs=logging.CRITICAL,
                    )
                )
            client = stack.enter_context(Client(cluster, timeout=_TIMEOUT_S))
        except Exception as error:  # its type depends on the protocol and on who answers
            if address == _LOCAL and is_out_of_memory(error):  # no fault of an address
                raise
            # Free the client that never connected now: later it would block another one.
            clear_frames(error.__traceback__)
            gc.collect()
            hint = "give the address of a running scheduler, e.g. tcp://host:8786, or local"
            raise UsageError(f"no cluster at {address} ({error})", hint) from None
        # pure=False: the files may have changed since the scheduler kept a result for these names.
        for files, future in zip(sets, client.map(work, sets, pure=False), strict=True):
            try:
                yield future.result()
            except KilledWorker:
                yield encoded("\n".join(Path(file).name for file in files))
            except (CancelledError, CommClosedError):
                hint = "see what its scheduler says, then run this again"
                raise UsageError(f"the cluster at {address} was lost", hint) from None


_USUAL_EXPANSION: Final = 10
_PACKED: Final = (".gz", ".zst", ".lz4", ".zip")
_MANY: Final = 64
_LARGE_BYTES: Final = 1 << 29
"""Text of many files that takes up to 1 GB of memory when all of it is held."""
_WORTH_BYTES: Final = 1 << 26  # text of many files from which a brief report is faster by reducing
_GROUPS: Final = 8
_GROUP_BYTES: Final = 1 << 26
"""Workers get at least `_GROUPS` groups of files, each of at most `_GROUP_BYTES` of text."""
_NUMBER: Final = re.compile(r"\d+")
Files = tuple[str, ...]
"""Files that are read together: one, or all of a format in which a run is a set of files."""


class Request(Struct, frozen=True):
    """All that an analysis depends on besides the files; worker processes get a copy.

    `pair` is a recording that provides FLOPs, or its paths. `reading` has keyword arguments of
    `read`, without `watch`. `dask` is the address of a cluster, or "local".
    """

    selection: Selection = field(default_factory=Selection)
    peaks: PeakOptions = FROM_THE_TRACE
    pair: Trace | Sequence[str] = ()
    rules: Path | None = None
    finding_rules: Path | None = None
    include_environment: bool = False
    redact: bool = False
    reading: Mapping[str, Any] = field(default_factory=dict)
    dask: str | None = None

    def check_reducible(self) -> None:
        """Raise UsageError for options that do not work with summaries."""
        self.refuse_side_files("summaries")
        for option, is_given in (("--redact", self.redact), ("--pair", bool(self.pair))):
            if is_given:
                problem = f"{option} does not work with summaries"
                raise UsageError(problem, "give the traces to report")

    def refuse_side_files(self, several: str) -> None:
        """Raise UsageError if there are side files; `several` names what they do not work with."""
        if option := self.side_option:
            hint = f"join them first: traceflops pack TRACE {option} FILE"
            raise UsageError(f"{option} does not work with {several}", hint)

    @property
    def side_option(self) -> str | None:
        """Return the option that names files beside the trace, None if there are none."""
        options = {"memory": "--memory", "gpu_samples": "--gpu-samples"}
        return next((text for name, text in options.items() if self.reading.get(name)), None)


def analysis_of_many(paths: Sequence[str], request: Request, *, brief: bool) -> Analysis | None:
    """Return the analysis of files that are reduced in other processes, None if that does not pay.

    It pays if files are too many and large to be held in memory, or sooner if the report is
    `brief`, so that nearly all of it is in summaries. This depends on the files alone, not on the
    number of processes, so that a report is the same on each machine.
    """
    # Summaries hold no events to select from, and no names to keep or replace.
    needs_events = request.selection != Selection() or request.include_environment or request.redact
    reading = request.reading
    if needs_events or request.pair or reading.get("strict") or request.side_option:
        return None
    sizes = {file: _text_bytes(file) for file in _files_of(paths) if os.path.isfile(file)}
    least_bytes = _WORTH_BYTES if brief else _LARGE_BYTES
    if len(sizes) < _MANY or sum(sizes.values()) < least_bytes:
        return None
    parts: list[HeldSummary | str] = []
    shared: Shared = {}
    jobs = reading.get("jobs") or usable_cores()
    try:
        with WorkerPool(jobs, worth_bytes=0, takes_part=True) as pool:
            pool.expect(1)  # enough with `worth_bytes=0`: the processes start at once
            for result in pool.each(partial(_summarised_together, request), _groups(sizes)):
                parts += [
                    part if isinstance(part, str) else summary_files.held(part, shared)
                    for part in result()
                ]
        analysis = _added_up(parts, request)
    except UsageError:  # e.g. several jobs: `read` tells what to do
        return None
    note = note_of("missing", "files-reduced")
    return analysis and replace(analysis, notes=(note, *analysis.notes))


def _groups(sizes: Mapping[str, int]) -> list[tuple[Files, ...]]:
    """Return the sets of files in groups of bounded size in bytes, near ranks together."""
    sets = file_sets(list(sizes))
    sets.sort(key=lambda files: (rank_in_name(PurePath(files[0]).name) or 0, files))
    most_sets = -(-len(sets) // _GROUPS)  # rounded up
    groups: list[list[Files]] = []
    group_bytes = 0
    for files in sets:
        set_bytes = sum(sizes[file] for file in files)
        if not groups or len(groups[-1]) == most_sets or group_bytes + set_bytes > _GROUP_BYTES:
            groups.append([])
            group_bytes = 0
        groups[-1].append(files)
        group_bytes += set_bytes
    return list(map(tuple, groups))


def _summarised_together(request: Request, sets: tuple[Files, ...]) -> list[bytes | str]:
    """Return one summary of all files; if they do not go together, a summary or names per set."""
    try:
        return [summary_files.packed(_summary(request, tuple(chain.from_iterable(sets))))]
    except (InputError, UsageError):
        parts = [_summary_or_names(request, files) for files in sets]
        return [part if isinstance(part, str) else summary_files.packed(part) for part in parts]


def analysis_of_parts(paths: Sequence[str], summaries: Sequence[str], request: Request) -> Analysis:
    """Return the analysis of `summaries` and of the other files, which are reduced."""
    request.check_reducible()
    if summaries and request.selection != Selection():
        problem = "summaries are of the steps and ranks they were made for"
        raise UsageError(problem, "give these options to traceflops reduce")
    sets = file_sets([file for file in _files_of(paths) if file not in set(summaries)])
    contents = chain(map(_content, summaries), summary_contents(sets, request) if sets else ())
    parts: list[HeldSummary | str] = []  # summaries, and names of files without one
    shared: Shared = {}
    for files, content in zip([*((file,) for file in summaries), *sets], contents, strict=True):
        try:
            parts.append(summary_files.held_file(content, Path(files[0]).name, shared))
        except InputError:
            parts.append(_names(files))
    if (analysis := _added_up(parts, request)) is not None:
        return analysis
    if summaries:  # read one again, for the error that says what is wrong with it
        summary_files.held_file(_content(summaries[0]), Path(summaries[0]).name, shared)
    raise none_reduced(paths)


def _added_up(parts: Sequence[HeldSummary | str], request: Request) -> Analysis | None:
    """Return the analysis of summaries, None without any; texts among `parts` name other files."""
    from traceflops.analysis.summaries import analysis_of_summaries

    summaries = [part for part in parts if not isinstance(part, str)]
    failed = [name for part in parts if isinstance(part, str) for name in part.split("\n")]
    notes = copies([summary.trace for summary in summaries])
    distinct = [
        replace(part, trace=replace(part.trace, notes=(*notes[index], *part.trace.notes)))
        for index, part in enumerate(summaries)
        if index in notes  # `copies` has no entry for a repeated file: each counts once
    ]
    return analysis_of_summaries(distinct, failed, request.peaks.link) if distinct else None


def summary_contents(sets: Sequence[Files], request: Request) -> Iterator[bytes]:
    """Yield the summary file of each set, in order, made by worker processes or a cluster."""
    work, jobs = partial(reduced, request), request.reading.get("jobs")
    if request.dask is not None:
        yield from on_dask(work, sets, request.dask, jobs)
        return
    with WorkerPool(jobs or usable_cores(), takes_part=True) as pool:
        files = chain.from_iterable(sets)
        pool.expect(sum(_text_bytes(file) for file in files if os.path.isfile(file)))
        for result in pool.each(work, sets):
            yield result()


def reduced(request: Request, files: Files) -> bytes:
    """Return the content of the summary file of some files; if they have no summary, their names.

    They have none if they cannot be read or have no timeline. Raises UsageError if they are of
    several jobs and none is chosen.
    """
    part = _summary_or_names(request, files)
    has_summary = not isinstance(part, str) and part.has_timeline
    return summary_files.encoded(part if has_summary else _names(files))


def _summary_or_names(request: Request, files: Files) -> RankSummary | str:
    try:
        return _summary(request, files)
    except InputError:
        return _names(files)


def _summary(request: Request, files: Files) -> RankSummary:
    """Return the summary of files. Raises InputError, and UsageError for several jobs."""
    trace = read(list(files), **{**request.reading, "jobs": 1})  # this is one of the processes
    check_decided(of_job(trace, request.selection.job), "a summary")
    selection = request.selection
    if not (trace.activities.num_rows or trace.ops.num_rows):  # other ranks may have a timeline
        selection = replace(selection, from_ns=None, to_ns=None)
    return summarised(
        trace,
        selection,
        request.peaks,
        rules=request.rules,
        include_environment=request.include_environment,
    )


def _names(files: Files) -> str:
    return "\n".join(Path(file).name for file in files)


def _text_bytes(file: str) -> int:
    """Return about how many bytes of text a file holds; compressed ones are estimated."""
    path = Path(file)
    return path.stat().st_size * (_USUAL_EXPANSION if path.suffix in _PACKED else 1)


def _files_of(paths: Sequence[str]) -> list[str]:
    return [file for path in paths for file in files_behind(path)]


def _content(file: str) -> bytes:
    with open_file(file) as stream:
        return stream.read()


def file_sets(paths: Sequence[str]) -> list[Files]:
    """Return the files behind paths in sets: files that must be read together.

    A set is the files of one rank in or below one folder, if their format splits a run into files;
    any other file is a set of its own. To know the formats, one file is opened of those whose names
    differ in numbers only.
    """
    files = _files_of(paths)
    formats: dict[str, str | None] = {}
    for file in files:
        pattern = _NUMBER.sub("", file)
        if formats.get(pattern) is None:  # not seen yet, or unreadable
            formats[pattern] = _splitting_format(file)
    format_of = {file: formats[_NUMBER.sub("", file)] for file in files}
    # The folder of each file, without parts like pass_1: the passes of a run belong together.
    folders = {
        file: PurePath(*(part for part in PurePath(file).parent.parts if not PASS.fullmatch(part)))
        for file in files
    }
    with_files = {(format_of[file], folder) for file, folder in folders.items()}
    sets: dict[object, list[str]] = {}
    for file, format_ in format_of.items():
        # The topmost folder around the file that has files of this format.
        parents = reversed(folders[file].parents)
        topmost = next((up for up in parents if (format_, up) in with_files), folders[file])
        key = (format_, topmost, rank_in_name(PurePath(file).name))
        sets.setdefault(key if format_ else file, []).append(file)
    return [tuple(files) for files in sets.values()]


def _splitting_format(file: str) -> str | None:
    """Return the format of a file if it splits a run into files, else "", None if unreadable."""
    try:
        sources, _ = find_inputs(file)
        with ExitStack() as stack:
            opened = [stack.enter_context(closing(source)) for source in sources]
            format_ = recognise(opened[0])
    except InputError:
        return None
    # Several sources behind one file (an archive) are a whole run already.
    return format_.name if format_.gathers and len(opened) == 1 else ""


def none_reduced(paths: Sequence[str]) -> InputError:
    """Return the error for files none of which has a summary."""
    return InputError(
        f"no file could be reduced (unreadable, or without a timeline): {paths[0]}",
        "traceflops info says what it holds; give files without a timeline to report themselves",
    )

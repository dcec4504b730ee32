"""Reads what profilers left behind: inputs are recognised, read and merged into one trace."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from traceflops.devices.gpu_samples import with_gpu_samples
from traceflops.devices.jobs import merge_jobs
from traceflops.devices.side_records import (
    GPU_SAMPLES,
    MEMORY_SNAPSHOT,
    calendar_shift,
    check_side,
    is_apart,
    same_devices,
    with_records,
    without_counters,
)
from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable, with_notes
from traceflops.parsers.io.places import find_inputs, tell_apart
from traceflops.parsers.io.worker_pool import Crew, usable_cores
from traceflops.parsers.recognise import recognise
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.parsers.shared.repeats import each_run_once
from traceflops.parsers.shared.sanity_checks import plausible
from traceflops.phases import phase
from traceflops.table.trace import Note, Trace
from traceflops.units import several

LOSSES = frozenset(
    {
        "input-cut",
        "tables-damaged",
        "no-checksum",
        "text-cut",
        "tail-cut",
        "tail-unread",
        "second-trace",
        "json-dropped",
        "no-time",
        "bad-arguments",
        "set-aside",
        "impossible-amounts",
        "rows-lost",
        "log-unread",
        "log-cut",
        "file-not-read",
    }
)
"""Codes of the notes that say that part of an input was lost; `strict` refuses such an input."""

_NOTES: Final = NoteTable(
    dropped={
        "not-a-trace": "{count} [file|files] in the folder skipped (no readable trace): {listed}.",
        "tail-unread": "Extra data behind the end of the compressed file: {size} not read.",
        "own-memory": "Memory events of the trace are replaced by those of the memory snapshot.",
    },
    assumed={
        "apart": "The memory snapshot and the trace do not overlap in time: they may be of "
        "different runs, or of different clocks."
    },
)

Paths = str | Path | Iterable[str | Path]
_Result = Callable[[], "list[Trace] | Format"]
Watcher = Callable[[ByteSource, int, int], None]
"""Told before each input is read: the input, its place, how many there are."""


def read(
    paths: Paths,
    *,
    watch: Watcher | None = None,
    jobs: int | None = None,
    python_stacks: bool | None = None,
    strict: bool = False,
    limits: bool = True,
    memory: Paths = (),
    gpu_samples: Paths = (),
    zone: str | None = None,
) -> Trace:
    """Return the trace in a file, in several (the ranks of one job), in a folder or in stdin (-).

    Compressed files (gzip, zstd, LZ4, zip) are recognised by content. `watch` is called before each
    input is read; it may set the input's `progress`. `jobs` is how many processes read (None:
    one per core) where there is much to read; the result does not depend on it.
    `python_stacks` says whether Python frames are kept (None: unless the input is huge). `strict`
    refuses an input of which anything was lost, `limits` one that unpacks to far more than a trace
    does. `memory` are PyTorch memory snapshots, `gpu_samples` what nvidia-smi or amd-smi printed
    during the recording, `zone` its time zone. Raises InputError where nothing can be read.
    """
    given, sources = _given(paths)
    job = _Job(strict)
    with Crew(usable_cores() if jobs is None else jobs) as crew:
        for _ in job.read(sources, Reading(crew, python_stacks), watch, limits=limits):
            pass
    if not job.traces:
        raise _nothing_in(given, job.passed_over)
    with phase("merge"):
        merged = merge_jobs(each_run_once(job.traces))
    trace = replace(merged, notes=(*job.notes, *merged.notes))
    beside = [_as_list(paths) for paths in (memory, gpu_samples)]
    if trace.jobs and any(beside):
        raise InputError(
            f"{', '.join(map(str, chain(*beside)))[:200]} must belong to one job: the traces are "
            f"of {len(trace.jobs)} jobs",
            "give the traces of one job; traceflops info lists the jobs",
        )
    records = [
        chain.from_iterable(read_apart(path, strict=strict, limits=limits) for path in paths)
        for paths in beside
    ]
    trace = _with_memory(trace, records[0])
    for samples in records[1]:
        check_side(samples, GPU_SAMPLES)
        trace = with_gpu_samples(trace, samples, zone)
    return trace


def _with_memory(trace: Trace, snapshots: Iterable[Trace]) -> Trace:
    """Return a trace with memory snapshots, one per rank. Raises InputError where one is of none.

    They take the place of the memory events of their GPUs.
    """
    known: set[int] = set()
    for records in snapshots:
        check_side(records, MEMORY_SNAPSHOT)
        devices, shift_ns = same_devices(trace, records), calendar_shift(trace, records)
        if not known.isdisjoint(devices.values()):
            name = records.source.files[0].name
            raise InputError(f"a second snapshot of the same GPU: {name}", "give one per rank")
        known.update(devices.values())
        bare = without_counters(trace, "device_memory.", devices.values())
        if bare.counters.num_rows < trace.counters.num_rows:
            bare = replace(bare, notes=(*bare.notes, _NOTES.note("own-memory")))
        if is_apart(trace, records, shift_ns):
            bare = replace(bare, notes=(*bare.notes, _NOTES.note("apart")))
        trace = with_records(bare, records, shift_ns, devices)
    return trace


def read_apart(
    paths: Paths,
    *,
    watch: Watcher | None = None,
    jobs: int | None = None,
    python_stacks: bool | None = None,
    strict: bool = False,
    limits: bool = True,
) -> Iterator[Trace]:
    """Give the traces of all inputs as they are read, before they are merged; see `read`.

    Each is let go before the next. Notes on what was passed over are of the last.
    """
    given, sources = _given(paths)
    job = _Job(strict)
    last: Trace | None = None
    with Crew(usable_cores() if jobs is None else jobs) as crew:
        for _ in job.read(sources, Reading(crew, python_stacks), watch, limits=limits):
            for trace in job.taken():
                if last is not None:
                    yield last
                last = trace
    if last is None:
        raise _nothing_in(given, job.passed_over)
    yield replace(last, notes=(*job.notes, *last.notes))


def _as_list(paths: Paths) -> list[str | Path]:
    return [paths] if isinstance(paths, str | Path) else list(paths)


def file_hashes(paths: Paths) -> dict[str, str]:
    """Return the SHA-256 of each input that is a file of this machine, by what reports call it."""
    hashes = {}
    kept = [path for path in _as_list(paths) if Path(path).is_file() or Path(path).is_dir()]
    for source, _ in _given(kept)[1]:
        if source.path is not None:
            with source.path.open("rb") as file:
                hashes[source.label] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def _given(paths: Paths) -> tuple[list[str | Path], list[tuple[ByteSource, bool]]]:
    """Return the paths, and the inputs behind them with whether each was named itself."""
    given = _as_list(paths)
    sources = [
        (source, named) for path in dict.fromkeys(given) for source, named in _inputs(str(path))
    ]
    tell_apart([source for source, _ in sources])
    return given, sources


@dataclass(slots=True)
class _Job:
    """The inputs of one call of `read`: what was read of them, and what was passed over and why."""

    strict: bool
    traces: list[Trace] = field(default_factory=list)
    passed_over: list[tuple[str, InputError]] = field(default_factory=list)
    _sets: dict[Format, list[tuple[ByteSource, bool]]] = field(default_factory=dict)

    def read(
        self,
        sources: Sequence[tuple[ByteSource, bool]],
        reading: Reading,
        watch: Watcher | None,
        *,
        limits: bool,
    ) -> Iterator[None]:
        """Read the inputs, stopping after each."""
        for source, _ in sources:
            source.limits = limits
        results = _results([source for source, _ in sources], reading)
        for place, ((source, named), result) in enumerate(zip(sources, results, strict=True)):
            if watch is not None:
                watch(source, place, len(sources))
            self.take(source, named, result)
            yield
        self.read_sets(reading)
        yield

    def taken(self) -> list[Trace]:
        """Return the traces that were read so far, which are then no longer held."""
        traces, self.traces = self.traces, []
        return traces

    @property
    def notes(self) -> tuple[Note, ...]:
        """What to say of the inputs that were passed over."""
        names = [name for name, _ in self.passed_over]
        listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        return (_NOTES.note("not-a-trace", len(names), listed=listed),) if names else ()

    def take(self, source: ByteSource, named: bool, result: _Result) -> None:
        """Take what an input gives, or put it aside until all of its set are known."""
        members = [(source, named)]
        found = self._tried(members, result)
        if isinstance(found, Format):
            self._sets.setdefault(found, []).append((source, named))
        elif source.stored_bytes is not None:
            source.progress(source.stored_bytes)

    def read_sets(self, reading: Reading) -> None:
        """Read the inputs of formats in which a run is a set of files."""
        for format_, members in self._sets.items():
            sources = [source for source, _ in members]
            self._tried(members, partial(_read, format_, sources, reading))

    def _tried(
        self, members: Sequence[tuple[ByteSource, bool]], result: _Result
    ) -> list[Trace] | Format:
        """Keep the traces that inputs give, or pass over these."""
        try:
            with phase("read", members[0][0].name):
                found = result()
        except InputError as error:
            self._pass_over(members, error)
            return []
        if not isinstance(found, Format):
            if self.strict:
                _refuse_damaged(found)
            self.traces += found
        return found

    def _pass_over(self, members: Sequence[tuple[ByteSource, bool]], error: InputError) -> None:
        """Note inputs of a folder that cannot be read. Raises the error for one that was named."""
        named = any(was_named for _, was_named in members)
        if named or (self.strict and not isinstance(error, NotATrace)):
            raise error
        self.passed_over += [(source.label, error) for source, _ in members]


def _results(sources: Sequence[ByteSource], reading: Reading) -> Iterator[_Result]:
    """Yield what gives the traces of each input; other processes read those that are files.

    But for large ones, whose blocks all processes share.
    """
    share = reading.crew.share(sum(source.expected_text_bytes for source in sources))
    alone = [s.location is not None and s.expected_text_bytes <= share for s in sources]
    files = [
        (str(source.location), source.label, source.limits)
        for source, is_alone in zip(sources, alone, strict=True)
        if is_alone
    ]
    read = reading.crew.each(partial(_read_file, reading.python_stacks), files)
    for source, is_alone in zip(sources, alone, strict=True):
        yield next(read) if is_alone else partial(_read_input, source, reading)


def _read_file(python_stacks: bool | None, file: tuple[str, str, bool]) -> list[Trace] | Format:
    """Return the same of a file that is named, with this process alone."""
    path, label, limits = file
    (source,), _ = find_inputs(path)
    source.label, source.limits = label, limits
    return _read_input(source, Reading(Crew(), python_stacks))


def _read_input(source: ByteSource, reading: Reading) -> list[Trace] | Format:
    """Return the traces in an input, or its format where a run is a set of files."""
    try:
        format_ = recognise(source)
    except InputError:
        source.close()
        raise
    return format_ if format_.gathers else _read(format_, [source], reading)


def _read(format_: Format, sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    try:
        traces = list(format_.read(sources, reading))
        notes = list(_unread(sources))
        traces = with_notes(traces, notes) if notes else traces
        return traces if format_.is_checked else [plausible(trace) for trace in traces]
    finally:
        for source in sources:
            source.close()


def _unread(sources: Sequence[ByteSource]) -> Iterator[Note]:
    """Yield notes on what stands behind the end of compressed inputs."""
    for source in sources:
        if source.behind_bytes:
            note = _NOTES.note("tail-unread", None, size=several(source.behind_bytes, "byte"))
            yield replace(note, count=source.behind_bytes, file=source.label)


def _refuse_damaged(traces: Sequence[Trace]) -> None:
    """Raise InputError where part of the input was lost."""
    for note in (note for trace in traces for note in trace.notes):
        if note.code in LOSSES:
            raise InputError(
                f"damaged: {note.file} ({note.text})",
                "without --strict the readable part is used",
            )


def _nothing_in(given: list[str | Path], passed_over: list[tuple[str, InputError]]) -> InputError:
    """Return what to say of a folder without a trace: what its first file is, if it has any."""
    folder = ", ".join(str(path) for path in given)[:200] or "no file was given"
    if passed_over:
        _, first = passed_over[0]
        found = first.message.replace(f"{folder}/", "")
        return InputError(f"no traces in folder: {folder} ({found})", first.hint)
    return InputError(
        f"no traces in folder: {folder}",
        "give a folder of torch.profiler traces, one file per rank",
    )


def _inputs(path: str) -> list[tuple[ByteSource, bool]]:
    sources, named = find_inputs(path)
    if not sources and named:
        raise InputError(f"empty archive: {path}", "pack the trace again")
    # An archive with several members is a folder in all but name.
    return [(source, named and len(sources) == 1) for source in sources]

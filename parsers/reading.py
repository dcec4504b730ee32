"""Reads what profilers left behind: inputs are recognised, read and merged into one trace."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.devices import side_records
from traceflops.devices.gpu_samples import with_gpu_samples
from traceflops.devices.jobs import merge_jobs
from traceflops.errors import InputError, NoContent, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable, with_notes
from traceflops.parsers.io.places import find_inputs, tell_apart
from traceflops.parsers.io.worker_pool import WorkerPool, usable_cores
from traceflops.parsers.recognise import UNKNOWN, recognise
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.parsers.shared.repeats import each_run_once
from traceflops.parsers.shared.sanity_checks import plausible
from traceflops.phases import phase
from traceflops.table.trace import Note, Trace
from traceflops.units import listed, several

LOSSES = frozenset(
    {
        *("input-cut", "tables-damaged", "no-checksum", "text-cut", "tail-cut", "tail-unread"),
        *("second-trace", "json-dropped", "no-time", "bad-arguments", "set-aside"),
        *("impossible-amounts", "rows-lost", "log-unread", "log-cut", "file-not-read"),
    }
)
"""Codes of the notes that say that part of an input was lost; `strict` refuses such an input."""
_LONGEST: Final = 200  # the most characters of paths in a message
_PACKED: Final = (".gz", ".zst", ".zip", ".lz4")
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
Watcher = Callable[[ByteSource, int, int], None]
"""Called before each input is read: with the input, its index, and how many there are."""


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
    """Return the trace in a file, several files (ranks of one job), a folder or stdin (-).

    Compressed files (gzip, zstd, LZ4, zip) are recognised by content. `watch` is called before each
    input is read; it may set the input's `progress`. `jobs` is how many processes read large
    inputs (None: one per core); the result does not depend on it.
    `python_stacks` says whether Python frames are kept (None: unless the input is huge). `strict`
    refuses an input of which anything was lost, `limits` one that unpacks to far more than a trace
    does. `memory` are PyTorch memory snapshots, `gpu_samples` files that nvidia-smi or amd-smi
    printed during the recording, in time zone `zone`. Raises InputError if nothing can be read.
    """
    job = _Job(_as_list(paths), strict, limits)
    traces = list(job.read(watch, jobs, python_stacks))
    with phase("merge"):
        merged = merge_jobs(each_run_once(traces))
    trace = replace(merged, notes=(*job.notes, *merged.notes))
    snapshot_paths, sample_paths = _as_list(memory), _as_list(gpu_samples)
    if trace.jobs and (snapshot_paths or sample_paths):
        raise InputError(
            f"{', '.join(map(str, snapshot_paths + sample_paths))[:_LONGEST]} must belong to one "
            f"job: the traces are of {len(trace.jobs)} jobs",
            "give the traces of one job; traceflops info lists the jobs",
        )

    def side_traces(paths: Sequence[str | Path]) -> Iterator[Trace]:
        for path in paths:
            yield from read_apart(path, strict=strict, limits=limits)

    covered_devices: set[int] = set()
    for snapshot in side_traces(snapshot_paths):
        trace = _with_snapshot(trace, snapshot, covered_devices)
    for samples in side_traces(sample_paths):
        side_records.check_side(samples, side_records.GPU_SAMPLES)
        trace = with_gpu_samples(trace, samples, zone)
    return trace


def _with_snapshot(trace: Trace, snapshot: Trace, covered_devices: set[int]) -> Trace:
    """Return the trace with a memory snapshot in place of the memory counters of its GPUs.

    Raises InputError if another snapshot covers one of these GPUs; adds them to `covered_devices`.
    """
    side_records.check_side(snapshot, side_records.MEMORY_SNAPSHOT)
    devices = side_records.same_devices(trace, snapshot)  # from the snapshot's to the trace's
    shift_ns = side_records.calendar_shift(trace, snapshot)
    if not covered_devices.isdisjoint(devices.values()):
        name = snapshot.source.files[0].name
        raise InputError(f"a second snapshot of the same GPU: {name}", "give one per rank")
    covered_devices.update(devices.values())
    bare = side_records.without_counters(trace, "device_memory.", devices.values())
    notes = [
        *[_NOTES.note("own-memory")] * (bare.counters.num_rows < trace.counters.num_rows),
        *[_NOTES.note("apart")] * side_records.is_apart(trace, snapshot, shift_ns),
    ]
    bare = replace(bare, notes=(*bare.notes, *notes))
    return side_records.with_records(bare, snapshot, shift_ns, devices)


def read_apart(
    paths: Paths,
    *,
    watch: Watcher | None = None,
    jobs: int | None = None,
    python_stacks: bool | None = None,
    strict: bool = False,
    limits: bool = True,
) -> Iterator[Trace]:
    """Yield the traces of all inputs one by one, without merging them; see `read`.

    The last trace also gets the note on inputs that were skipped, which is known only then.
    """
    job = _Job(_as_list(paths), strict, limits)
    last: Trace | None = None
    for trace in job.read(watch, jobs, python_stacks):
        if last is not None:
            yield last
        last = trace
    if last is not None:
        yield replace(last, notes=(*job.notes, *last.notes))


def _as_list(paths: Paths) -> list[str | Path]:
    return [paths] if isinstance(paths, str | Path) else list(paths)


def file_hashes(paths: Paths) -> dict[str, str]:
    """Return the SHA-256 of each input that is a local file, by the label that reports show."""
    hashes = {}
    local = [path for path in _as_list(paths) if Path(path).is_file() or Path(path).is_dir()]
    for source, _ in _inputs(local):
        if source.path is not None:
            with source.path.open("rb") as file:
                hashes[source.label] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def _inputs(paths: Sequence[str | Path]) -> list[tuple[ByteSource, bool]]:
    """Return the inputs of paths, each with whether the user named it: others may be skipped."""
    inputs: list[tuple[ByteSource, bool]] = []
    for path in dict.fromkeys(paths):  # each path once
        sources, named = find_inputs(str(path))
        if not sources and named:
            raise InputError(f"empty archive: {path}", "pack the trace again")
        # An archive with several members is a folder in all but name.
        inputs += [(source, named and len(sources) == 1) for source in sources]
    tell_apart([source for source, _ in inputs])
    return inputs


def _suffix(name: str) -> str:
    """Return the suffix of a file's name that tells its format, "" without one."""
    suffixes = [suffix.lower() for suffix in PurePath(name).suffixes]
    telling = [suffix for suffix in suffixes if suffix not in _PACKED and not suffix[1:].isdigit()]
    return telling[-1] if telling else ""


class _Job(Struct):
    """One call of `read`; `skipped` has the unreadable inputs in folders, and the errors.

    `suffixes` are those of the names of readable inputs.
    """

    paths: Sequence[str | Path]
    strict: bool
    limits: bool
    skipped: list[tuple[ByteSource, InputError]] = field(default_factory=list)
    suffixes: set[str] = field(default_factory=set)

    def read(
        self, watch: Watcher | None, jobs: int | None, python_stacks: bool | None
    ) -> Iterator[Trace]:
        """Yield the traces of all inputs. Raises InputError if there are none.

        Inputs of formats in which a run is a set of files are read last, a format at a time.
        """
        inputs = _inputs(self.paths)
        for source, _ in inputs:
            source.limits = self.limits
        inputs_of_sets: dict[Format, list[tuple[ByteSource, bool]]] = {}
        is_empty = True  # no input gave a trace
        with WorkerPool(usable_cores() if jobs is None else jobs) as pool:
            reading = Reading(pool, python_stacks)
            results = _results([source for source, _ in inputs], reading)
            for index, (input_, result) in enumerate(zip(inputs, results, strict=True)):
                source, _ = input_
                if watch is not None:
                    watch(source, index, len(inputs))
                traces = self._tried([input_], result)
                if isinstance(traces, Format):  # a run is a set of files: read when all are known
                    inputs_of_sets.setdefault(traces, []).append(input_)
                    continue
                if source.stored_bytes is not None:
                    source.progress(source.stored_bytes)
                is_empty &= not traces
                yield from traces
            for format_, members in inputs_of_sets.items():
                sources = [source for source, _ in members]
                traces = self._tried(members, partial(_read, format_, sources, reading))
                assert not isinstance(traces, Format)
                is_empty &= not traces
                yield from traces
        if is_empty:
            folder = ", ".join(map(str, self.paths))[:_LONGEST] or "nothing: no file was given"
            reason, hint = "", "give a folder of profiler traces, one file per rank"
            if self.skipped:  # say why of most, rather of a known kind, or what is left of a trace
                errors = [error for _, error in self.skipped]
                alike = Counter(error.hint for error in errors)
                first = max(
                    errors,
                    key=lambda one: (
                        one.hint != UNKNOWN,
                        alike[one.hint],
                        type(one) is not NotATrace,
                    ),
                )
                reason, hint = f" ({first.message.replace(f'{folder}/', '')})", first.hint
            raise InputError(f"no traces in {folder}{reason}", hint)
        if self.strict:
            for source, error in self.skipped:
                if self._is_damaged(source, error):
                    raise InputError(f"damaged: {error.message}", "without --strict it is skipped")

    @property
    def notes(self) -> tuple[Note, ...]:
        """The note on the inputs that were skipped, if any were, with what is wrong with traces."""
        if not self.skipped:
            return ()
        names = [source.label for source, _ in self.skipped]
        note = _NOTES.note("not-a-trace", len(names), listed=listed(names))
        damaged = [  # notes show no full path
            error.message.replace(str(source.path), source.label)
            for source, error in self.skipped
            if self._is_damaged(source, error)
        ]
        return (
            replace(note, advice=f"Damaged: {listed(damaged, between='; ')}." if damaged else ""),
        )

    def _is_damaged(self, source: ByteSource, error: InputError) -> bool:
        """Return whether an unreadable input was a trace, or has at least a trace's name."""
        is_named_so = isinstance(error, NoContent) and _suffix(source.label) in self.suffixes
        return is_named_so or not isinstance(error, NotATrace)

    def _tried(
        self, inputs: Sequence[tuple[ByteSource, bool]], result: Callable[[], list[Trace] | Format]
    ) -> list[Trace] | Format:
        """Return what `result` returns, which reads `inputs`; if it fails, skip them: no traces.

        Raises InputError instead if the user named an input or, if strict, if one is
        damaged.
        """
        try:
            with phase("read", inputs[0][0].name):
                traces = result()
        except InputError as error:
            is_named = any(named for _, named in inputs)
            if is_named or (self.strict and not isinstance(error, NotATrace)):
                raise
            self.skipped += [(source, error) for source, _ in inputs]
            return []
        self.suffixes |= {_suffix(source.name) for source, _ in inputs} - {""}
        if self.strict and not isinstance(traces, Format):
            for note in (note for trace in traces for note in trace.notes):
                if note.code in LOSSES:
                    raise InputError(
                        f"damaged: {note.file} ({note.text})",
                        "without --strict the readable part is used",
                    )
        return traces


def _results(
    sources: Sequence[ByteSource], reading: Reading
) -> Iterator[Callable[[], list[Trace] | Format]]:
    """Yield, for each input, a function that returns its traces or its format.

    A worker process reads each small file as a whole. This process reads the large ones, one at a
    time, and lets all workers parse their blocks.
    """
    share = reading.pool.share(sum(source.expected_text_bytes for source in sources))
    by_worker = [s.location is not None and s.expected_text_bytes <= share for s in sources]
    files = [
        (str(source.location), source.label, source.limits)
        for source, is_by_worker in zip(sources, by_worker, strict=True)
        if is_by_worker
    ]
    worker_results = reading.pool.each(partial(_read_file, reading.python_stacks), files)
    for source, is_by_worker in zip(sources, by_worker, strict=True):
        yield next(worker_results) if is_by_worker else partial(_read_input, source, reading)


def _read_file(python_stacks: bool | None, file: tuple[str, str, bool]) -> list[Trace] | Format:
    """Return what `_read_input` returns for a file (path, label, limits), in a worker process."""
    path, label, limits = file
    (source,), _ = find_inputs(path)
    source.label, source.limits = label, limits
    return _read_input(source, Reading(WorkerPool(), python_stacks))


def _read_input(source: ByteSource, reading: Reading) -> list[Trace] | Format:
    """Return the traces in an input, or only its format if a run is a set of such files."""
    try:
        format_ = recognise(source)
    except InputError:
        source.close()
        raise
    return format_ if format_.gathers else _read(format_, [source], reading)


def _read(format_: Format, sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    """Return the checked traces in inputs of a format, with notes on unread ends; close inputs."""
    try:
        traces, notes = list(format_.read(sources, reading)), list[Note]()
        for source in (source for source in sources if source.behind_bytes):
            note = _NOTES.note("tail-unread", size=several(source.behind_bytes, "byte"))
            notes.append(replace(note, count=source.behind_bytes, file=source.label))
        traces = with_notes(traces, notes) if notes else traces
        return traces if format_.is_checked else [plausible(trace) for trace in traces]
    finally:
        for source in sources:
            source.close()

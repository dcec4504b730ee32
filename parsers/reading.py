"""Reads what profilers left behind: inputs are recognised, read and merged into one trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from traceflops.devices import merge_jobs
from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import ByteSource, Crew, NoteTable, find_inputs, tell_apart, usable_cores
from traceflops.parsers.recognise import recognise
from traceflops.parsers.shared import Format, Reading, each_run_once, plausible
from traceflops.phases import phase
from traceflops.table import Trace

LOSSES = frozenset(
    {
        "input-cut",
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
    },
)

Watcher = Callable[[ByteSource, int, int], None]
"""Told before each input is read: the input, its place, how many there are."""


def read(
    paths: str | Path | Iterable[str | Path],
    *,
    watch: Watcher | None = None,
    jobs: int | None = None,
    python_stacks: bool | None = None,
    strict: bool = False,
    limits: bool = True,
) -> Trace:
    """Return the trace in a file, in several (the ranks of one job), in a folder or in stdin (-).

    Compressed files (gzip, zstd, zip) are recognised by content. `watch` is called before each
    input is read; it may set the input's `progress`. `jobs` is how many processes read a large
    input (None: one per core); the result does not depend on it. `python_stacks` says whether
    Python frames are kept (None: unless the input is huge). `strict` refuses an input of which
    anything was lost, `limits` one that unpacks to far more than a trace does. Raises InputError
    where nothing can be read.
    """
    given: list[str | Path] = [paths] if isinstance(paths, str | Path) else list(paths)
    sources = [
        (source, named) for path in dict.fromkeys(given) for source, named in _inputs(str(path))
    ]
    tell_apart([source for source, _ in sources])
    job = _Job(strict)
    with Crew(usable_cores() if jobs is None else jobs) as crew:
        reading = Reading(crew, python_stacks)
        for place, (source, named) in enumerate(sources):
            source.limits = limits
            if watch is not None:
                watch(source, place, len(sources))
            job.take(source, named, reading)
        job.read_sets(reading)
    traces, passed_over = job.traces, job.passed_over
    if not traces:
        raise _nothing_in(given, passed_over)
    with phase("merge"):
        merged = merge_jobs(each_run_once(traces))
    if not passed_over:
        return merged
    names = [name for name, _ in passed_over]
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    skipped = _NOTES.note("not-a-trace", len(names), listed=listed)
    return replace(merged, notes=(skipped, *merged.notes))


@dataclass(slots=True)
class _Job:
    """The inputs of one call of `read`: what was read of them, and what was passed over and why."""

    strict: bool
    traces: list[Trace] = field(default_factory=list)
    passed_over: list[tuple[str, InputError]] = field(default_factory=list)
    _sets: dict[Format, list[tuple[ByteSource, bool]]] = field(default_factory=dict)

    def take(self, source: ByteSource, named: bool, reading: Reading) -> None:
        """Read an input now, or put it aside until all of its set are known."""
        try:
            format_ = recognise(source)
        except InputError as error:
            source.close()
            self._pass_over([(source, named)], error)
            return
        if format_.gathers:
            self._sets.setdefault(format_, []).append((source, named))
        else:
            self._read(format_, [(source, named)], reading)

    def read_sets(self, reading: Reading) -> None:
        """Read the inputs of formats in which a run is a set of files."""
        for format_, members in self._sets.items():
            self._read(format_, members, reading)

    def _read(
        self, format_: Format, members: Sequence[tuple[ByteSource, bool]], reading: Reading
    ) -> None:
        sources = [source for source, _ in members]
        try:
            with phase("read", sources[0].name):
                traces = [plausible(trace) for trace in format_.read(sources, reading)]
        except InputError as error:
            self._pass_over(members, error)
            return
        finally:
            for source in sources:
                source.close()
        if self.strict:
            for trace in traces:
                _refuse_damaged(trace)
        self.traces += traces

    def _pass_over(self, members: Sequence[tuple[ByteSource, bool]], error: InputError) -> None:
        """Note inputs of a folder that cannot be read. Raises the error for one that was named."""
        named = any(was_named for _, was_named in members)
        if named or (self.strict and not isinstance(error, NotATrace)):
            raise error
        self.passed_over += [(source.label, error) for source, _ in members]


def _refuse_damaged(trace: Trace) -> None:
    """Raise InputError where part of the input was lost."""
    for note in trace.notes:
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

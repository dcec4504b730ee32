"""Reads what profilers left behind; adding a format means a module here and in `read_one`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from traceflops.errors import InputError, NotATrace
from traceflops.merge import merge
from traceflops.parsers.crew import Crew, usable_cores
from traceflops.parsers.inputs import ByteSource, find_inputs
from traceflops.parsers.plausible import plausible
from traceflops.parsers.pytorch import read_pytorch
from traceflops.parsers.recognise import foreign
from traceflops.phases import phase
from traceflops.trace import Note, Trace
from traceflops.words import several

_STACKS_BELOW_BYTES = 4 * 10**9
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
    }
)
"""Codes of the notes that say that part of an input was lost; `strict` refuses such an input."""

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
    traces: list[Trace] = []
    passed_over: list[tuple[str, InputError]] = []
    with Crew(usable_cores() if jobs is None else jobs) as crew:
        for place, (source, named) in enumerate(sources):
            source.limits = limits
            if watch is not None:
                watch(source, place, len(sources))
            try:
                with phase(f"read {source.name}"):
                    trace = read_one(source, crew, python_stacks=python_stacks)
            except InputError as error:
                if named or (strict and not isinstance(error, NotATrace)):
                    raise
                passed_over.append((source.name, error))
                continue
            if strict:
                _refuse_damaged(trace)
            traces.append(trace)
    if not traces:
        raise _nothing_in(given, passed_over)
    with phase("merge"):
        merged = merge(traces)
    return replace(
        merged, notes=(*_passed_over_notes([name for name, _ in passed_over]), *merged.notes)
    )


def _refuse_damaged(trace: Trace) -> None:
    """Raise InputError where part of the input was lost."""
    for note in trace.notes:
        if note.code in LOSSES:
            raise InputError(
                f"damaged: {note.file} ({note.text})",
                "leave out --strict to use what can be read of it",
            )


def _nothing_in(given: list[str | Path], passed_over: list[tuple[str, InputError]]) -> InputError:
    """Return what to say of a folder without a trace: what its first file is, if it has any."""
    folder = ", ".join(str(path) for path in given)[:200] or "no file was given"
    if passed_over:
        _, first = passed_over[0]
        found = first.message.replace(f"{folder}/", "")
        return InputError(f"no traces in the folder: {folder} ({found})", first.hint)
    return InputError(
        f"no traces in the folder: {folder}",
        "give a folder that holds traces of torch.profiler, one file per rank",
    )


def _inputs(path: str) -> list[tuple[ByteSource, bool]]:
    sources, named = find_inputs(path)
    if not sources and named:
        raise InputError(f"an empty archive: {path}", "pack the trace again")
    # An archive with several members is a folder in all but name.
    return [(source, named and len(sources) == 1) for source in sources]


def read_one(
    source: ByteSource, crew: Crew | None = None, *, python_stacks: bool | None = None
) -> Trace:
    """Return the trace in one input, recognised by its content. Raises InputError."""
    try:
        head = source.head()
        if not head.strip():
            raise _empty(source)
        what = foreign(head)
        if what is not None:
            raise NotATrace(f"{source.path or source.name} is {what.what}", what.hint)
        expected = source.expected_text_bytes
        if crew is not None:
            crew.expect(expected)
        keep = python_stacks if python_stacks is not None else expected <= _STACKS_BELOW_BYTES
        return plausible(read_pytorch(source, crew, python_stacks=keep))
    finally:
        source.close()


def _empty(source: ByteSource) -> InputError:
    if source.cut:
        return InputError(
            f"cut off before its first complete event: {source.name} ({source.cut})",
            "nothing can be saved from it; record or copy the trace again",
        )
    return NotATrace(f"an empty file: {source.path or source.name}", "record the trace again")


def _passed_over_notes(names: list[str]) -> tuple[Note, ...]:
    if not names:
        return ()
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return (
        Note(
            "dropped",
            "not-a-trace",
            f"{several(len(names), 'file')} of the folder could not be read as traces and "
            f"{'was' if len(names) == 1 else 'were'} passed over: {listed}.",
            len(names),
        ),
    )

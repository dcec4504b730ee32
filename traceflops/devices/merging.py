"""Several traces into one: the ranks of a job on one clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, product
from operator import itemgetter
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from traceflops.devices.device_facts import SeenDevice, by_name
from traceflops.devices.processes import settle_shared, unnamed_processes
from traceflops.remedies import NSIGHT, ROCPROF, family
from traceflops.table import (
    ABSENT,
    EVERYWHERE,
    RANK_UNKNOWN,
    TABLES,
    IntArray,
    Note,
    Owned,
    Source,
    Trace,
    counted_note,
    distinct,
    named,
    number_column,
    numbers,
    rank_unknown,
    together,
    with_numbers,
)
from traceflops.units import time_amount

FILE: Final = "file"
_CALENDAR: Final = "calendar"
_TIMES: Final = ("start_ns", "time_ns")
_MAKERS: Final = {ROCPROF: "amd", NSIGHT: "nvidia"}
"""Whose GPUs a tool records."""
Model = tuple[str | None, str | None, str | None]
_Move = Callable[[IntArray], IntArray]
_Value = TypeVar("_Value")
CLOCKS_DIFFER_NS: Final = 10**9
"""Clocks of machines differ by less than that."""
_SAID: Final = "runs-apart"
"""The note of a reader that has said so itself."""
_NO_TIMELINE: Final = "no-timeline"
_UNALIGNED = Note(
    "assumed",
    "clocks-not-aligned",
    "Some files have no calendar time, so times are compared between ranks only where collectives "
    "align the clocks. Each rank's own figures are unaffected.",
)


def identities(trace: Trace) -> list[tuple[str, str] | None]:
    """Return the clock and the place that name each device in all traces, None where they do not.

    For places that are the same everywhere the calendar is clock enough.
    """
    source = trace.source
    keys: list[tuple[str, str] | None] = []
    for place in _places(trace):
        clock = _clock(source) if (place or "").startswith(EVERYWHERE) else source.clock
        keys.append((clock, place) if clock is not None and place is not None else None)
    return keys


def _numbered(traces: Sequence[Trace]) -> tuple[list[IntArray], IntArray]:
    """Return numbers for the devices of all traces, the same one for the same device, by trace.

    And from where, of all devices one behind the other, each comes. Devices are the same where
    their traces have the same clock and name the same place.
    """
    known: dict[tuple[str, str], int] = {}
    keys = enumerate(key for trace in traces for key in identities(trace))
    first = [row if key is None else known.setdefault(key, row) for row, key in keys]
    rows, number = np.unique(np.array(first, dtype=np.int64), return_inverse=True)
    ends = np.cumsum([trace.devices.num_rows for trace in traces])
    return np.split(number.reshape(-1), ends[:-1]), rows


def _places(trace: Trace) -> tuple[str | None, ...]:
    return trace.places or (None,) * trace.devices.num_rows


def are_of_other_models(first: frozenset[Model], second: frozenset[Model]) -> bool:
    """Return whether no GPU of the one can be of the model of a GPU of the other."""
    pairs = product(first, second)
    facts = (list(zip(*models, strict=True)) for models in pairs)
    return all(any(None not in fact and len(set(fact)) > 1 for fact in known) for known in facts)


def models_of(trace: Trace) -> frozenset[Model]:
    """Return what is known of each GPU, of the tool's GPUs where the trace names none."""
    seen = [SeenDevice.of(row) for row in trace.devices.to_pylist()] or [SeenDevice()]
    return frozenset(_model(one, _MAKERS.get(family(trace.source.format))) for one in seen)


def _model(seen: SeenDevice, maker: str | None) -> Model:
    """Return maker, architecture and id of a GPU; `maker` is whose GPUs the tool records."""
    spec = None if seen.sharing else by_name(seen.name)
    if spec is not None:
        return spec.vendor, spec.arch, spec.id
    maker = seen.maker() or maker
    compute = seen.compute if maker == "nvidia" else None
    return maker, seen.instruction_set or (compute and "sm{}{}".format(*compute)), None


def merge(traces: Sequence[Trace]) -> Trace:
    """Return one trace that holds the processes and devices of all, renumbered.

    Times move to the clock of the first trace that is tied to the calendar. A rank that occurs
    twice keeps its rows apart and is said in a note. A device of a machine that several processes
    used becomes one (see `identities`), unless they ran one after the other (see `shared_gpus`),
    which is said, too: nothing is merged silently.
    """
    joined = join(traces)
    alone = _rank_notes(traces) if len(traces) == 1 else []
    notes = (*joined.notes, *alone, *_unknown_rank_notes(joined))
    return settle_shared(replace(joined, notes=notes) if len(notes) > len(joined.notes) else joined)


def join(traces: Sequence[Trace], noun: str = FILE) -> Trace:
    """Return the same, before it is looked at what processes share a device.

    `noun` is what each trace is of.
    """
    if len(traces) == 1:
        return traces[0]
    ordered = sorted(traces, key=by_rank)
    origins = [trace.source.origin_unix_ns for trace in ordered]
    common = next((origin for origin in origins if origin is not None), None)
    of_traces, rows = _numbered(ordered)
    places = [place for trace in ordered for place in _places(trace)]
    shifted = []
    processes = 0
    for trace, numbering in zip(ordered, of_traces, strict=True):
        shifted.append(_moved(trace, common, processes, numbering))
        processes += trace.processes.num_rows
    tables = {
        name: pa.concat_tables([trace.table(name) for trace in shifted])
        .unify_dictionaries()
        .combine_chunks()
        for name in TABLES
    }
    tables["devices"] = tables["devices"].take(number_column(rows, pa.int64()))
    notes = [
        *_clock_notes(ordered),
        *different_times(ordered),
        *_rank_notes(ordered),
        *_description_notes(ordered),
        *_file_notes(ordered, noun),
    ]
    notes.sort(key=lambda note: note.kind != "dropped")  # what was lost first
    named = tuple(places[row] for row in rows.tolist())
    return Trace(_source(ordered, common), tables, tuple(notes), named, _clocks(ordered))


def by_rank(trace: Trace) -> tuple[int, str]:
    """Return what sorts the traces of a job: the first rank, then the name."""
    rank = trace.ranks[0] if trace.ranks else None
    return (rank if rank is not None else 2**31, trace.source.files[0].name)


def _moved(trace: Trace, common: int | None, processes: int, devices: IntArray) -> Trace:
    """Return the trace on the common clock, its processes behind so many others.

    `devices` are the numbers that its devices have from now on.
    """
    origin = trace.source.origin_unix_ns
    shift = origin - common if origin is not None and common is not None else 0
    moves: dict[str, _Move] = {"process": lambda values: values + processes} if processes else {}
    if (devices != np.arange(len(devices))).any():
        moves["device"] = lambda values: devices[values]
    if shift:
        moves |= dict.fromkeys(_TIMES, lambda values: values + shift)
    return replace(trace, tables={n: _with_moves(n, t, moves) for n, t in trace.tables.items()})


def _with_moves(name: str, table: pa.Table, moves: Mapping[str, _Move]) -> pa.Table:
    for column in moves.keys() & set(table.column_names):
        values = numbers(table[column], ABSENT)
        known = values != ABSENT
        moved = np.full_like(values, ABSENT)
        moved[known] = moves[column](values[known])
        table = with_numbers(table, column, moved)
    return table


def _source(traces: Sequence[Trace], origin: int | None) -> Source:
    timed = (trace for trace in traces if trace.activities.num_rows or trace.ops.num_rows)
    first = next(timed, traces[0]).source  # its tool can record what the timeline lacks
    counts: Counter[str] = Counter()
    for trace in traces:
        counts.update(trace.source.event_counts)
    return Source(
        format=first.format,
        files=tuple(file for trace in traces for file in trace.source.files),
        tool=first.tool,
        origin_unix_ns=origin,
        clock=first.clock if all(t.source.clock == first.clock for t in traces) else None,
        facts=_agreed([first.facts, *(trace.source.facts for trace in traces)]),
        event_counts=dict(sorted(counts.items())),
        identities=tuple(dict.fromkeys(i for trace in traces for i in trace.source.identities)),
        description=_agreed(_descriptions(traces)) or None,
        lifetimes=tuple(life for trace in traces for life in trace.source.lifetimes),
        resolution_ns=max(trace.source.resolution_ns for trace in traces),
        kinds_apart=all(trace.source.kinds_apart for trace in traces),
        rules=_undisputed([trace.source.rules for trace in traces]),
    )


def _undisputed(rules: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the rules of all; of a placeholder that stands for different kernels none."""
    said = {one for mapping in rules for one in mapping.items()}
    count = Counter(name for name, _ in said)
    return {name: rule for name, rule in sorted(said) if count[name] == 1}


def _agreed(facts: Sequence[Mapping[str, _Value]]) -> dict[str, _Value]:
    """Return what all say of their run in the same words."""
    common = facts[0].items() if facts else ()
    return {key: value for key, value in common if all((key, value) in f.items() for f in facts)}


def _descriptions(traces: Sequence[Trace]) -> list[Mapping[str, object]]:
    return [known for trace in traces if (known := trace.source.description) is not None]


def _description_notes(traces: Sequence[Trace]) -> list[Note]:
    given = _descriptions(traces)
    disputed = sorted({word for one in given for word in one} - _agreed(given).keys())
    if not disputed:
        return []
    text = (
        f"The files describe their run differently ({', '.join(disputed)}). Only what they agree "
        "on is used."
    )
    return [Note("dropped", "descriptions-differ", text, len(disputed))]


def _clocks(traces: Sequence[Trace]) -> tuple[str, ...]:
    """Return what names the clock of each process, nothing where all have the same."""
    clocks: list[str] = []
    for place, trace in enumerate(traces):
        own = _clock(trace.source) or f"file {place}"
        clocks += trace.clocks or (own,) * trace.processes.num_rows
    return tuple(clocks) if len(set(clocks)) > 1 else ()


def _clock(source: Source) -> str | None:
    return _CALENDAR if source.origin_unix_ns is not None else source.clock


def _clock_notes(traces: Sequence[Trace]) -> list[Note]:
    timed = list(filter(_has_times, traces))
    clocks = {t.source.clock for t in timed}
    if len(timed) < 2 or (len(clocks) == 1 and None not in clocks):
        return []
    return [_UNALIGNED] if any(t.source.origin_unix_ns is None for t in timed) else []


def _has_times(trace: Trace) -> bool:
    return any(trace.table(name).num_rows for name in ("activities", "ops", "calls", "marks"))


def _file_notes(traces: Sequence[Trace], noun: str) -> list[Note]:
    """Return the notes of the traces; what is said of several is said once, and of how many.

    That counters have no timeline is said where nothing has one.
    """
    of_file: list[Owned] = []
    of_trace: list[Owned] = []
    is_timed = any(trace.activities.num_rows for trace in traces)
    for place, trace in enumerate(traces):
        whole = len(trace.source.files) == 1
        joined = is_timed and trace.kernel_counters.num_rows > 0
        for note in trace.notes:
            if joined and note.code == _NO_TIMELINE:
                continue
            is_of_files = whole or note.file is not None or note.owners > 1
            of_one = of_file if is_of_files else of_trace
            of_one.append(((place, None if whole else note.file), note))
    files = len(traces) if noun != FILE else sum(len(trace.source.files) for trace in traces)
    every = (*together(of_file, files, noun), *together(of_trace, len(traces), "recording"))
    return list(map(named, every))


def _unknown_rank_notes(trace: Trace) -> list[Note]:
    """Say of how many of several processes with device work the rank is unknown.

    It is said of all processes where none has work; nothing where a reader has said why it is so.
    """
    if any(note.code == RANK_UNKNOWN for note in trace.notes):
        return []
    nameless = unnamed_processes(trace)
    workers = distinct(numbers(trace.activities["process"])).tolist() or range(len(trace.ranks))
    named = [one for one in workers if one not in nameless]
    unknown = sum(trace.ranks[one] is None for one in named)
    if not unknown or len(named) == 1:
        return []
    return [counted_note("missing", RANK_UNKNOWN, rank_unknown(), unknown)]


OF_RANKS: Final = frozenset({"rank-clash", "rank-beyond-world", "ranks-missing"})
"""The notes that follow from the ranks of all files alone."""


def _rank_notes(traces: Sequence[Trace]) -> list[Note]:
    """Return what is odd about the ranks of several processes."""
    counts = Counter(rank for trace in traces for rank in trace.ranks if rank is not None)
    if counts.total() < 2:
        return []
    repeated = sorted(rank for rank, n in counts.items() if n > 1)
    notes = []
    if repeated:
        text = (
            f"Several files claim rank {_listed(repeated)}; they are shown "
            "separately. If they belong to different jobs, give one job's files."
        )
        notes.append(Note("assumed", "rank-clash", text, len(repeated)))
    sizes = {s for trace in traces for s in trace.processes["world_size"].to_pylist() if s}
    world, known = max(sizes, default=0), len(counts)
    beyond = sorted(rank for rank in counts if rank >= world)
    if world and beyond:
        text = f"A job of {world} ranks cannot have rank {_listed(beyond)}; shown as recorded."
        notes.append(Note("assumed", "rank-beyond-world", text, len(beyond)))
    most = world if len(sizes) == 1 else 0 if sizes else max(counts) + 1
    if known < most:
        job = f"the job's {most} ranks" if sizes else f"at least {most} ranks"
        text = f"{known} of {job} are here; totals cover only these."
        notes.append(Note("missing", "ranks-missing", text, most - known))
    return notes


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8]))


def different_times(traces: Sequence[Trace]) -> Iterator[Note]:
    """Say that the work in some files ended long before that in others began.

    The traces are on their own clocks; nothing is said where these are not tied to the calendar.
    """
    if any(note.code == _SAID for trace in traces for note in trace.notes):
        return
    spans = []
    for trace in traces:
        origin, activities = trace.source.origin_unix_ns, trace.activities
        if origin is None or not activities.num_rows:
            continue
        start = numbers(activities["start_ns"])
        end = int((start + numbers(activities["dur_ns"])).max())
        spans.append((origin + int(start.min()), origin + end, trace.source.files[0].name))
    spans.sort()
    latest = accumulate(spans, partial(max, key=itemgetter(1)))
    for last, span in zip(latest, spans[1:], strict=False):
        pause = span[0] - last[1]
        if pause > CLOCKS_DIFFER_NS:
            text = (
                f"The files were recorded at different times: {time_amount(pause)} lie between "
                f"the work in {last[2]} and that in {span[2]}. Times are compared between them "
                "only where collectives align the clocks; each GPU's own figures are unaffected."
            )
            yield Note("assumed", "files-of-different-times", text)
            return

"""Merging of several traces into one: the ranks of a job on one clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.devices.device_facts import SeenDevice, by_name
from traceflops.devices.processes import settle_shared, unnamed_processes
from traceflops.facts import fact
from traceflops.remedies import NSIGHT, ROCPROF, family
from traceflops.table import trace as tables
from traceflops.table.builder import with_numbers
from traceflops.table.columns import ABSENT, IntArray, numbers, take_rows
from traceflops.table.grouping import distinct, ranked
from traceflops.table.merged_notes import Owned, named, together
from traceflops.table.schema import TABLES, empty_table
from traceflops.table.trace import Note, Source, Trace, note_of

FILE: Final = "file"
_CALENDAR: Final = "calendar"
_TIMES: Final = ("start_ns", "time_ns")
_TIMELINE: Final = ("activities", "ops", "calls", "marks")
_MAKERS: Final = {ROCPROF: "amd", NSIGHT: "nvidia"}  # whose GPUs a tool records
Model = tuple[str | None, str | None, str | None]
"""Maker, architecture and id of a GPU, each None if unknown."""
_Value = TypeVar("_Value")
CLOCKS_DIFFER_NS: Final = 10**9  # clocks of machines differ by less than that


def identities(trace: Trace) -> list[tuple[str, str] | None]:
    """Return, per device, the (clock, place) that identifies it across traces, None if unknown.

    A place (such as a PCI address or UUID) is unique on the machine of the clock. If it is marked
    EVERYWHERE, it is unique on all machines, and the calendar replaces the clock.
    """
    source = trace.source
    keys: list[tuple[str, str] | None] = []
    for place in trace.places or (None,) * trace.devices.num_rows:
        has_calendar = source.origin_unix_ns is not None
        is_everywhere = (place or "").startswith(tables.EVERYWHERE)
        clock = _CALENDAR if is_everywhere and has_calendar else source.clock
        keys.append((clock, place) if clock is not None and place is not None else None)
    return keys


def are_of_other_models(first: frozenset[Model], second: frozenset[Model]) -> bool:
    """Return whether each pair of models differs in a fact that both know."""
    pairs = (zip(*models, strict=True) for models in product(first, second))
    return all(any(None not in facts and len({*facts}) > 1 for facts in pair) for pair in pairs)


def models_of(trace: Trace) -> frozenset[Model]:
    """Return the models of the GPUs of a trace; without GPUs, the maker that the tool is for."""
    models: set[Model] = set()
    for seen in {*map(SeenDevice.of, trace.devices.to_pylist())} or {SeenDevice()}:
        spec = None if seen.sharing else by_name(seen.name)  # a shared name is of several products
        if spec is not None:
            models.add((spec.vendor, spec.arch, spec.id))
            continue
        maker = seen.maker() or _MAKERS.get(family(trace.source.format))
        compute = seen.compute if maker == "nvidia" else None  # of AMD: the instruction set
        arch = seen.instruction_set or ("sm{}{}".format(*compute) if compute else None)
        models.add((maker, arch, None))
    return frozenset(models)


def merge(traces: Sequence[Trace]) -> Trace:
    """Return one trace with the processes and devices of all traces, renumbered.

    Times move to the clock of the first trace tied to the calendar. Nothing is merged silently:
    notes name ranks that occur twice (kept apart), GPUs that several processes used (one device,
    see `identities`), and runs one after the other on a GPU (a device each, see `settle_shared`).
    """
    joined = join(traces)
    notes: list[Note] = []
    if len(traces) == 1:  # `join` returns a single trace unchanged
        notes += _rank_notes(traces)
    # Note workers without a rank, unless there is only one worker or a reader noted why.
    if not any(note.code == tables.RANK_UNKNOWN for note in joined.notes):
        # Workers are the processes with device work; all processes if none has any.
        nameless, all_processes = unnamed_processes(joined), range(len(joined.ranks))
        working = distinct(numbers(joined.activities["process"])).tolist() or all_processes
        workers = [process for process in working if process not in nameless]
        unknown = sum(joined.ranks[worker] is None for worker in workers)
        if unknown and len(workers) != 1:
            text = tables.rank_unknown()
            notes.append(tables.counted_note("missing", tables.RANK_UNKNOWN, text, unknown))
    if notes:
        joined = replace(joined, notes=(*joined.notes, *notes))
    return settle_shared(joined)


def join(traces: Sequence[Trace], noun: str = FILE) -> Trace:
    """Return one trace of all; devices with the same identity become one.

    `settle_shared` must follow for GPUs of several processes. `noun` names a trace in notes.
    """
    if len(traces) == 1:
        return traces[0]
    ordered = sorted(traces, key=by_rank)
    origins = [trace.source.origin_unix_ns for trace in ordered]
    common = next((origin for origin in origins if origin is not None), None)
    # Per row of all devices, the first row of the same device: `rows` are the distinct ones, and
    # their order gives the new numbers.
    row_of_key: dict[tuple[str, str], int] = {}
    keys = enumerate(key for trace in ordered for key in identities(trace))
    first = [row if key is None else row_of_key.setdefault(key, row) for row, key in keys]
    rows, new_number = ranked(np.array(first, dtype=np.int64))
    ends = np.cumsum([trace.devices.num_rows for trace in ordered])
    moved: defaultdict[str, list[pa.Table]] = defaultdict(list)
    clocks: list[str] = []
    by_trace = zip(ordered, np.split(new_number, ends[:-1]), strict=True)
    for index, (trace, devices) in enumerate(by_trace):
        origin = trace.source.origin_unix_ns
        shift_ns = origin - common if origin is not None and common is not None else 0
        for name, table in trace.tables.items():
            moved[name].append(_moved(table, shift_ns, len(clocks), devices))
        own_clock = _CALENDAR if origin is not None else trace.source.clock or f"file {index}"
        clocks += trace.clocks or (own_clock,) * trace.processes.num_rows
    joined = {name: empty_table(name) for name in TABLES}
    for name, parts in moved.items():
        joined[name] = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
    joined["devices"] = take_rows(joined["devices"], rows)
    notes = [*_difference_notes(ordered), *different_times(ordered)]
    notes += [*_rank_notes(ordered), *_file_notes(ordered, noun)]
    notes.sort(key=lambda note: note.kind != "dropped")  # dropped data first
    places = [p for trace in ordered for p in trace.places or (None,) * trace.devices.num_rows]
    kept_places = tuple(places[row] for row in rows.tolist())
    # Clocks are named only if processes have different ones.
    own_clocks = tuple(clocks) if len(set(clocks)) > 1 else ()
    return Trace(_source(ordered, common), joined, tuple(notes), kept_places, own_clocks)


def _difference_notes(traces: Sequence[Trace]) -> Iterator[Note]:
    """Yield notes if clocks of traces cannot be compared, or their descriptions differ."""
    timed = [t for t in traces if any(t.table(name).num_rows for name in _TIMELINE)]
    clocks = {trace.source.clock for trace in timed}
    # Times of different or unknown clocks can only be compared if all have calendar times.
    differ = len(timed) > 1 and (len(clocks) > 1 or None in clocks)
    if differ and any(trace.source.origin_unix_ns is None for trace in timed):
        advice = fact("advice.clocks-not-aligned")
        yield note_of("assumed", "clocks-not-aligned", advice=advice)
    given = [t.source.description for t in traces if t.source.description is not None]
    if disputed := {word for words in given for word in words} - _agreed(given).keys():
        words = tuple(sorted(disputed))
        yield note_of("dropped", "descriptions-differ", count=len(words), words=words)


def _moved(table: pa.Table, shift_ns: int, processes: int, devices: IntArray) -> pa.Table:
    """Return a table with times moved by `shift_ns`, and processes and devices renumbered.

    `processes` is added to numbers of processes; `devices` are the new numbers by the old ones.
    """
    moves: dict[str, Callable[[IntArray], IntArray]] = {}
    if processes:
        moves["process"] = lambda values: values + processes
    if (devices != np.arange(len(devices))).any():
        moves["device"] = lambda values: devices[values]
    if shift_ns:
        moves |= dict.fromkeys(_TIMES, lambda values: values + shift_ns)
    for column in moves.keys() & set(table.column_names):
        values = numbers(table[column], ABSENT)
        is_set = values != ABSENT
        moved = np.full_like(values, ABSENT)
        moved[is_set] = moves[column](values[is_set])
        table = with_numbers(table, column, moved)
    return table


def by_rank(trace: Trace) -> tuple[int, str]:
    """Return the key that sorts the traces of a job: the first rank, then the name."""
    rank = trace.ranks[0] if trace.ranks else None
    return (rank if rank is not None else 2**31, trace.source.files[0].name)


def _source(traces: Sequence[Trace], origin: int | None) -> Source:
    """Return the source of several traces; the tool is that of the first one with a timeline."""
    timed = (trace for trace in traces if trace.activities.num_rows or trace.ops.num_rows)
    first = next(timed, traces[0]).source  # advice is for its tool
    counts: Counter[str] = Counter()
    for trace in traces:
        counts.update(trace.source.event_counts)
    descriptions = [t.source.description for t in traces if t.source.description is not None]
    # Redacted traces may give one placeholder to different kernels: drop contradictory rules.
    rules = {rule for trace in traces for rule in trace.source.rules.items()}
    rules_of = Counter(name for name, _ in rules)
    return Source(
        format=first.format,
        files=tuple(file for trace in traces for file in trace.source.files),
        tool=first.tool,
        origin_unix_ns=origin,
        clock=first.clock if all(t.source.clock == first.clock for t in traces) else None,
        facts=_agreed([first.facts, *(trace.source.facts for trace in traces)]),
        event_counts=dict(sorted(counts.items())),
        identities=tuple(dict.fromkeys(i for trace in traces for i in trace.source.identities)),
        description=_agreed(descriptions) or None,
        lifetimes=tuple(life for trace in traces for life in trace.source.lifetimes),
        resolution_ns=max(trace.source.resolution_ns for trace in traces),
        kinds_apart=all(trace.source.kinds_apart for trace in traces),
        rules={name: rule for name, rule in sorted(rules) if rules_of[name] == 1},
    )


def _agreed(facts: Sequence[Mapping[str, _Value]]) -> dict[str, _Value]:
    """Return the facts that all mappings have with equal values."""
    common = facts[0].items() if facts else ()
    return {key: value for key, value in common if all((key, value) in f.items() for f in facts)}


def _file_notes(traces: Sequence[Trace], noun: str) -> list[Note]:
    """Return the notes of the traces; what notes of several traces say alike becomes one note."""
    file_notes: list[Owned] = []
    trace_notes: list[Owned] = []
    is_timed = any(trace.activities.num_rows for trace in traces)
    for number, trace in enumerate(traces):
        is_single_file = len(trace.source.files) == 1
        # Counters that are merged with a timeline need no note that they have none.
        has_timeline = is_timed and trace.kernel_counters.num_rows > 0
        for note in trace.notes:
            if has_timeline and note.code == "no-timeline":
                continue
            # A note that names a file, or already counts several files, is about files.
            is_of_files = is_single_file or note.file is not None or note.owners > 1
            owner = (number, None if is_single_file else note.file)
            (file_notes if is_of_files else trace_notes).append((owner, note))
    files = sum(len(trace.source.files) for trace in traces) if noun == FILE else len(traces)
    merged_notes = together(file_notes, files, noun)
    merged_notes += together(trace_notes, len(traces), "recording")
    return list(map(named, merged_notes))


OF_RANKS: Final = frozenset({"rank-clash", "rank-beyond-world", "ranks-missing"})
"""The notes that depend only on the ranks of all files."""


def _rank_notes(traces: Sequence[Trace]) -> list[Note]:
    """Return notes on ranks that occur twice, exceed the world size, or are missing."""
    counts = Counter(rank for trace in traces for rank in trace.ranks if rank is not None)
    if counts.total() < 2:  # a recording of a single rank is complete by itself
        return []
    most_named = 8  # ranks in a note
    repeated = sorted(rank for rank, n in counts.items() if n > 1)
    notes = []
    if repeated:
        count, ranks, how = len(repeated), tuple(repeated[:most_named]), fact("advice.rank-clash")
        notes.append(note_of("assumed", "rank-clash", count=count, ranks=ranks, advice=how))
    sizes = {s for trace in traces for s in trace.processes["world_size"].to_pylist() if s}
    world, present = max(sizes, default=0), len(counts)
    beyond = sorted(rank for rank in counts if rank >= world)
    if world and beyond:
        count, ranks = len(beyond), tuple(beyond[:most_named])
        notes.append(note_of("assumed", "rank-beyond-world", count=count, world=world, ranks=ranks))
    expected = max(counts) + 1  # the least world size
    if sizes:
        expected = world if len(sizes) == 1 else 0  # ignore sizes that contradict each other
    if present < expected:
        code = "ranks-missing" if sizes else "ranks-missing.at-least"
        notes.append(note_of("missing", code, count=expected - present, here=present, all=expected))
    return notes


def different_times(traces: Sequence[Trace]) -> Iterator[Note]:
    """Yield a note if work in some files ended long before that in others began."""
    if any(note.code == "runs-apart" for trace in traces for note in trace.notes):
        return  # the reader of that trace has noted it
    spans = []
    for trace in traces:
        origin, activities = trace.source.origin_unix_ns, trace.activities
        if origin is None or not activities.num_rows:
            continue
        start = numbers(activities["start_ns"])
        end = int((start + numbers(activities["dur_ns"])).max())
        spans.append((origin + int(start.min()), origin + end, trace.source.files[0].name))
    spans.sort()
    # The latest end so far, and the file that has it.
    _, last_end, last_name = spans[0] if spans else (0, 0, "")
    for begin, end, name in spans[1:]:
        pause_ns = begin - last_end
        if pause_ns > CLOCKS_DIFFER_NS:
            how, code = fact("advice.files-of-different-times"), "files-of-different-times"
            yield note_of("assumed", code, advice=how, ns=pause_ns, first=last_name, second=name)
            return
        if end > last_end:
            last_end, last_name = end, name

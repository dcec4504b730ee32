"""Reads one PyTorch profiler trace (Kineto JSON) into a Trace, with notes.

torch.profiler writes it, from 2020 to PyTorch 2.13. Its categories: docs/parsers/pytorch.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.accelerators import with_activities
from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.json_events import EventStream
from traceflops.parsers.io.json_text import INVALID_UTF8, event_text_notes
from traceflops.parsers.io.notes import NoteTable, printable
from traceflops.parsers.io.worker_pool import BLOCK_BYTES, WorkerPool
from traceflops.parsers.pytorch import legacy
from traceflops.parsers.pytorch.block import Collected, KinetoBlock, KinetoReader
from traceflops.parsers.pytorch.events import KNOWN_CATEGORIES, PYTHON_CATEGORIES
from traceflops.parsers.pytorch.merged_ranks import number_devices, split_ranks
from traceflops.parsers.pytorch.metadata import GROUP_COLUMNS, HEADER_KEYS, Metadata, read_metadata
from traceflops.parsers.pytorch.values import optional_codes
from traceflops.parsers.shared import trace_builder
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.remedies import GPUS_LISTED, LEGACY, RECORDER
from traceflops.table.builder import with_numbers
from traceflops.table.columns import ABSENT, codes, names, numbers
from traceflops.table.grouping import distinct, joint_codes
from traceflops.table.links import first_of_same
from traceflops.table.patterns import (
    launches_nothing,
    operator_of_cpus,
    operator_of_gpus,
    operator_of_mps,
)
from traceflops.table.trace import Note, Source, SourceFile, Trace, of_noun, rank_from_name
from traceflops.units import duration, listed, several

_UNCATEGORISED = "phase "
_OF_EMPTY: Final = {f"{_UNCATEGORISED}M", f"{_UNCATEGORISED}i"}
"""What Kineto writes of a recording without work: names of threads, the end of the recording."""
_NOTES: Final = NoteTable(
    repaired={
        "no-duration": of_noun("event", "without a valid duration: counted as 0 ns."),
        "negative-duration": of_noun("event", "with negative duration: counted as 0 ns."),
        "arguments-repaired": of_noun("list", f"of arguments repaired: {INVALID_UTF8}."),
    },
    dropped={
        "unknown-category": "Events of unknown categories were skipped: {listed}.",
        "python-stacks-left-out": "{count} Python frames were skipped to save memory; "
        "--python-stacks keeps them.",
        "no-phase": "{count} [object|objects] without a phase skipped: not events.",
        "no-time": of_noun("event", "skipped: no valid time."),
        "no-category": of_noun("event", "skipped: no valid category."),
        "odd-phase": of_noun("event", "skipped: no valid phase."),
        "bad-arguments": of_noun("event", "with unreadable arguments."),
        "negative-size": of_noun("negative number", "of bytes ignored."),
        "description-left-out": "Run description in the trace: {problem}.",
    },
    assumed={
        "repeated-launches": "{count} of {calls} [has|have] the correlation of another one: "
        "links to operators may be wrong. If the file holds several ranks, nothing tells them "
        "apart, and ranks are not compared.",
        "merged-ranks": "The file holds {count} ranks. Their times are compared as they are in it.",
        "recording-cost": "All recorded steps, those left out too, took {recorded} on average, "
        "steps before the recording {before} ({change} %); times are as recorded.",
    },
    missing={
        "no-calls": "The file has no runtime calls, so what launched the GPU operations is "
        "unknown.",
        "no-shapes": "Operators have no shapes, so their FLOPs cannot be counted. Record with "
        "record_shapes=True.",
        "device-ambiguous": "Unknown GPU model for device {listed}: the listed GPUs differ and "
        "none clearly matches.",
        "no-device-work lost": (
            "The readable part of the file has no GPU operations; they may be in the part that "
            "was lost{shown}.",
            "Copy the file again, or let the program end before it is copied.",
        ),
        "no-device-work skipped": "The file has no readable GPU operations; they may be among the "
        "skipped events{shown}.",
        "no-device-work calls": "The file has {calls} and no GPU operations: the profiler lost the "
        "GPU records or could not make them.",
        "nothing-launched": "The file has {calls}, none of which starts GPU work{shown}.",
        "no-device-work": (
            "The file has no GPU operations{shown}.",
            "If the program uses a GPU, record with {activities}.",
        ),
        "no-device-work functions": "The file has no GPU operations, only Python frames.",
        "no-device-work nothing": (
            "The file has no operators, no calls and no GPU operations.",
            "If the profiler has a schedule, call prof.step() in each iteration, and let wait and "
            "warmup end before the program does.",
        ),
        "no-device-work gpu": (
            "The file has no GPU operations, although {operator} runs on a GPU.",
            "Record with {activities}.",
        ),
        "no-device-work unlisted": "The file has no GPU operations, and the profiler lists no GPU.",
        "no-device-work cpu": "The file has no GPU operations: {operator} ran on the CPU.",
        "no-device-work mps": (
            "The file has no GPU operations: {operator} ran on Apple's GPU, which this profiler "
            "does not record.",
            "Record it with torch.mps.profiler.profile() and Instruments.",
        ),
        "no-device-work recorder": "The file has no GPU operations{shown}: none ran while "
        "tf.record recorded.",
    },
)
_ODD: Final = (
    *("no-time", "no-category", "odd-phase", "bad-arguments", "no-duration"),
    *("negative-duration", "negative-size", "arguments-repaired"),
)
_SEVERAL: Final = 0.1
"""If fewer than this share of calls repeat a correlation, that may be chance."""
_NO_WORK: Final = "no-device-work"
_ON_CPU: Final = ": the operators ran on the CPU"
_SHOWN_INSTEAD: Final = "; CPU operators are shown if no file has any"
Tables: TypeAlias = Mapping[str, pa.Table]


def _reading_notes(
    stream: EventStream[Any], collected: Collected, python_stacks: bool
) -> Iterator[Note]:
    """Yield the notes on the text of a file and its events."""
    yield from event_text_notes(stream.source, stream.damage, "rank and world size")
    counts, known = collected.counts, KNOWN_CATEGORIES | legacy.CATEGORIES
    unknown = {
        category: count
        for category, count in sorted(counts.items())
        if category not in known and not category.startswith(_UNCATEGORISED)
    }
    if unknown:
        first = islice(unknown.items(), 6)
        texts = ", ".join(f"{printable(category)} ({count:,})" for category, count in first)
        yield _NOTES.note("unknown-category", sum(unknown.values()), listed=texts)
    frames = sum(counts.get(category, 0) for category in PYTHON_CATEGORIES)
    if frames and not python_stacks:
        yield _NOTES.note("python-stacks-left-out", frames)
    yield from _NOTES.counted({"no-phase": counts.get("phase None", 0)}, "no-phase")
    yield from _NOTES.counted(collected.odd, *_ODD)


def _content_notes(
    stream: EventStream[Any], collected: Collected, tables: Tables, facts: Mapping[str, str]
) -> Iterator[Note]:
    """Yield the notes on what a file lacks: device work, calls, shapes; `facts` are its header's.

    Old files (see `legacy`) have notes of their own.
    """
    counts = collected.counts
    if legacy.OPS in counts:
        yield from legacy.content_notes(tables, counts.get(legacy.ARROWS, 0), _SHOWN_INSTEAD)
        return
    calls, ops = tables["calls"].num_rows, tables["ops"]
    if not tables["activities"].num_rows:
        yield _no_work(stream, collected, tables, facts)
    elif not calls:
        yield _NOTES.note("no-calls")
    # A runtime call and the driver call inside it have the same correlation on purpose, so only
    # calls of the same API count as repeated. Merged ranks repeat correlations, too.
    correlation = numbers(tables["calls"]["correlation"], ABSENT)
    has_correlation = correlation != ABSENT
    api = codes(tables["calls"]["api"])[has_correlation]
    launches = joint_codes(api, correlation[has_correlation])
    repeated = len(launches) - len(distinct(launches))
    if repeated > _SEVERAL * calls and tables["processes"].num_rows == 1:
        yield _NOTES.note("repeated-launches", repeated, calls=several(calls, "runtime call"))
    if ops.num_rows and ops["input_dims"].null_count == ops.num_rows:
        yield _NOTES.note("no-shapes")


def _no_work(
    stream: EventStream[Any], collected: Collected, tables: Tables, facts: Mapping[str, str]
) -> Note:
    """Return the note that a file has no device work, with the first reason that holds."""
    damage, odd = stream.damage, collected.odd
    calls, ops = tables["calls"].num_rows, tables["ops"]
    called = several(calls, "API call")
    shown = _SHOWN_INSTEAD if ops.num_rows else ""
    if stream.source.cut is not None or damage.cut_bytes is not None or damage.dropped_places:
        return _NOTES.note(f"{_NO_WORK} lost", shown=shown)
    if any(odd[code] for code in ("no-time", "no-category", "odd-phase")):
        return _NOTES.note(f"{_NO_WORK} skipped", shown=shown)
    if launches_nothing(tables["calls"]):
        return _NOTES.note("nothing-launched", shown=_ON_CPU if ops.num_rows else "", calls=called)
    if calls:
        return _NOTES.note(f"{_NO_WORK} calls", calls=called)
    if RECORDER in facts:
        return _NOTES.note(f"{_NO_WORK} recorder", shown=shown)
    activities = with_activities(collected.counts)
    # An operator that ran elsewhere tells why.
    kinds = {"mps": operator_of_mps, "gpu": operator_of_gpus, "cpu": operator_of_cpus}
    for variant, operator_of in kinds.items():
        if (operator := operator_of(names(ops["name"]))) is not None:
            return _NOTES.note(f"{_NO_WORK} {variant}", operator=operator, activities=activities)
    if ops.num_rows and facts.get(GPUS_LISTED) == "0":
        return _NOTES.note(f"{_NO_WORK} unlisted")
    if not ops.num_rows and {"python", "module"} & {*names(tables["marks"]["kind"])}:
        return _NOTES.note(f"{_NO_WORK} functions")
    if not ops.num_rows and {*names(tables["marks"]["kind"])} <= {"instant"}:
        return _NOTES.note(f"{_NO_WORK} nothing")
    return _NOTES.note(_NO_WORK, shown=shown, activities=activities)


def _metadata_notes(
    metadata: Metadata, devices: Sequence[int], processes: pa.Table
) -> Iterator[Note]:
    """Yield the notes on description, recording cost, ranks and models of devices."""
    if metadata.description_problem:
        yield _NOTES.note("description-left-out", problem=metadata.description_problem)
    if metadata.step_ns is not None:
        before, recorded = metadata.step_ns
        change = f"{100 * (recorded - before) / before:+.1f}"
        was, now = duration(before), duration(recorded)
        yield _NOTES.note("recording-cost", before=was, recorded=now, change=change)
    if processes.num_rows > 1:
        if processes["rank"].null_count < processes.num_rows:
            yield _NOTES.note("merged-ranks", processes.num_rows)
    elif metadata.rank_from_name and metadata.rank is not None:
        yield rank_from_name([metadata.rank])
    unknown = [d for d in dict.fromkeys(devices) if metadata.by_id and metadata.facts_of(d) is None]
    if unknown:
        yield _NOTES.note("device-ambiguous", listed=listed(unknown, most=8))


_STACKS_BELOW_BYTES: Final = 4 * 10**9
_JSON_START: Final = re.compile(rb"\s*[\[{]")
_EPOCH_NS: Final = 10**17
"""Larger times (after 1973) count from 1970; times that count from a base are always smaller."""
_TIMED: Final = ("activities", "calls", "ops", "marks")


def read_pytorch(
    source: ByteSource,
    pool: WorkerPool | None = None,
    block_bytes: int = BLOCK_BYTES,
    *,
    python_stacks: bool = True,
) -> Trace:
    """Return the trace in `source`. Raises InputError if it is not a PyTorch trace."""
    stream = EventStream[KinetoBlock](
        source, KinetoReader(python_stacks), pool or WorkerPool(), HEADER_KEYS, block_bytes
    )
    collected = Collected()
    for block in stream:
        collected.absorb(block)
    counts, damage = collected.counts, stream.damage
    is_whole = damage.array_closed and not damage.dropped_places
    is_empty_kineto = counts.keys() <= _OF_EMPTY and "schemaVersion" in stream.header and is_whole
    if not (KNOWN_CATEGORIES | {legacy.OPS}) & counts.keys() and not is_empty_kineto:
        raise _refusal(stream, counts)
    if collected.odd["no-time"] and not any(collected.tables[name].count for name in _TIMED):
        hint = "ts and dur must be in microseconds; convert other units"
        raise InputError(f"no event has a valid time: {source.label}", hint)
    _lend_correlations(collected)
    # Without device work, operators are shown as the work: ranges must not be among them.
    if not collected.tables["activities"].count:
        legacy.ranges_from_ops(collected.tables)
    if legacy.WORK in collected.counts:
        work = collected.tables["activities"]
        collected.tables["activities"] = legacy.without_nested_work(work)
    return _assemble(stream, collected, python_stacks)


def _refusal(stream: EventStream[KinetoBlock], counts: Mapping[str, int]) -> InputError:
    """Return the error for a file without any PyTorch event; `counts` has events by category."""
    source, damage = stream.source, stream.damage
    if not counts and damage.dropped_places and "schemaVersion" in stream.header:
        places = several(damage.dropped_places, "damaged place")
        hint = "its JSON is broken; export the trace again"
        return InputError(f"no readable event: {source.label} ({places})", hint)
    if not counts and (source.cut or damage.cut_bytes is not None):
        hint = "nothing can be recovered; record or copy the trace again"
        return InputError(f"cut off before its first complete event: {source.label}", hint)
    categories = (name for name in sorted(counts) if not name.startswith(_UNCATEGORISED))
    seen = ", ".join(map(printable, islice(categories, 8))) or "none"
    return NotATrace(
        f"not a PyTorch trace: {source.label} (event categories: {seen[:200]})",
        "give a trace of torch.profiler (prof.export_chrome_trace); of another program record one "
        "with nsys profile or rocprofv3",
    )


def _lend_correlations(collected: Collected) -> None:
    """Fill in missing correlations from the only arrow that starts or ends at a row's start."""
    if not collected.flows:
        return
    ids, times = np.concatenate(collected.flows, axis=1)
    distinct_times, first, counts = np.unique(times, return_index=True, return_counts=True)
    is_single = counts == 1  # several arrows at a time may be chance
    arrow_times, arrow_ids = distinct_times[is_single], ids[first[is_single]]
    if not len(arrow_times):
        return
    for table in (collected.tables["activities"], collected.tables["calls"]):
        correlation, start = table.column("correlation"), table.column("start_ns")
        # The first arrow at the start or later; for starts after all arrows, the last one.
        # arrow_times [10 20], start [10 15 30]  ->  arrow [0 1 1]; only 10 is the time of its arrow
        arrow = np.minimum(np.searchsorted(arrow_times, start), len(arrow_times) - 1)
        is_filled = (correlation == ABSENT) & (arrow_times[arrow] == start)
        if is_filled.any():
            table.replace("correlation", np.where(is_filled, arrow_ids[arrow], correlation))


def _assemble(stream: EventStream[KinetoBlock], collected: Collected, python_stacks: bool) -> Trace:
    """Return the trace of one file, whose events are collected: one process per rank in it."""
    source = stream.source
    metadata = read_metadata(stream.header, source.name)
    ranks = split_ranks(collected.tables, metadata.rank)
    if len(ranks) == 1:  # the header has the groups of one rank only
        _complete_groups(collected, metadata)
    devices = number_devices(collected.tables, len(ranks) > 1)
    host, world_size = metadata.host, metadata.world_size
    process_facts = [
        trace_builder.ProcessFacts(source.label, rank, world_size, host, pid) for rank, pid in ranks
    ]
    device_facts = [
        (process, number, metadata.facts_of(number) or trace_builder.NOTHING_KNOWN)
        for process, number in devices
    ]
    tables = {
        "processes": trace_builder.processes_table(process_facts),
        "devices": trace_builder.devices_table(device_facts),
        **{name: trace_builder.in_order_of_time(table) for name, table in collected.tables.items()},
    }
    if legacy.WORK in collected.counts:
        # The correlation is -1 - the row of the operator, ABSENT without one.
        row = first_of_same(tables["ops"], "external_id", tables["activities"])
        correlation = np.where(row >= 0, -1 - row, ABSENT)
        tables["activities"] = with_numbers(tables["activities"], "correlation", correlation)
    starts = [tables[name]["start_ns"][0].as_py() for name in _TIMED if tables[name].num_rows]
    # Times count from a base that the header tells or, if they are so large, from 1970.
    origin_ns = metadata.base_ns
    if origin_ns is None and starts and max(starts) > _EPOCH_NS:
        origin_ns = 0
    notes = (
        *_reading_notes(stream, collected, python_stacks),
        *_content_notes(stream, collected, tables, metadata.facts),
        *_metadata_notes(metadata, [number for _, number in devices], tables["processes"]),
    )
    return Trace(
        source=Source(
            format="pytorch",
            files=(SourceFile(source.label, source.stored_bytes, source.text_bytes),),
            tool=LEGACY if legacy.OPS in collected.counts else "PyTorch profiler (Kineto)",
            origin_unix_ns=origin_ns,
            facts=metadata.facts,
            event_counts=dict(sorted(collected.counts.items())),
            identities=metadata.identities,
            description=metadata.description,
        ),
        tables=tables,
        # Without wording, notes of several files are not summed: each keeps its own figures.
        notes=(
            *(replace(note, file=source.label, wording=None, values=()) for note in notes),
            *trace_builder.overflow_notes(collected.tables.values(), source.label),
        ),
    )


def _complete_groups(collected: Collected, metadata: Metadata) -> None:
    """Fill in texts of process groups that collectives lack or shorten ("..."), in place."""
    for table in (collected.tables[name] for name in ("activities", "ops")):
        groups = [metadata.groups.get(name, {}) for name in table.names["collective_group"]]
        for column in GROUP_COLUMNS if groups else ():
            # Per group, the code of the text in the header; last, -1 for rows without a group (-1).
            texts = [*(group.get(column) for group in groups), None]
            code_in_header = optional_codes(table.names[column], texts)
            # Per text, whether it is short; last, True for rows without a text (code -1).
            is_short = np.array(["..." in text for text in table.names[column]] + [True])
            header_code = code_in_header[table.column("collective_group")]
            code = table.column(column)
            is_filled = is_short[code] & (header_code >= 0)
            table.replace(column, np.where(is_filled, header_code, code))


def _read(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    """Return the trace of each source. By default Python frames of very large ones are dropped."""
    traces, stacks = [], reading.python_stacks
    for source in sources:
        expected = source.expected_text_bytes
        reading.pool.expect(expected)
        keeps_stacks = expected <= _STACKS_BELOW_BYTES if stacks is None else stacks
        traces.append(read_pytorch(source, reading.pool, python_stacks=keeps_stacks))
    return traces


PYTORCH: Final = Format("PyTorch", lambda head: _JSON_START.match(head) is not None, _read)
"""Recognises any JSON, so it is asked after all other formats of JSON."""

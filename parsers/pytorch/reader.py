"""Reads one PyTorch profiler trace (Kineto JSON) into a Trace, with notes.

torch.profiler writes it, from 2020 to PyTorch 2.13. Its categories: docs/parsers/pytorch.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.json_events import EventStream
from traceflops.parsers.io.json_mend import INVALID_UTF8, event_text_notes
from traceflops.parsers.io.notes import NoteTable, printable
from traceflops.parsers.io.worker_pool import BLOCK_BYTES, WorkerPool
from traceflops.parsers.pytorch import legacy
from traceflops.parsers.pytorch.block import KinetoBlock, KinetoReader
from traceflops.parsers.pytorch.events import KNOWN_CATEGORIES, PYTHON_CATEGORIES
from traceflops.parsers.pytorch.merged_ranks import number_devices, split_ranks
from traceflops.parsers.pytorch.metadata import GROUP_COLUMNS, HEADER_KEYS, Metadata, read_metadata
from traceflops.parsers.pytorch.values import optional_codes
from traceflops.parsers.shared import trace_builder
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.remedies import GPUS_LISTED, LEGACY, RECORDER, with_activities
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, IntArray, codes, names, numbers
from traceflops.table.grouping import distinct, joint_codes
from traceflops.table.patterns import (
    launches_nothing,
    operator_of_cpus,
    operator_of_gpus,
    operator_of_mps,
)
from traceflops.table.trace import Note, Source, SourceFile, Trace, of_noun, rank_from_name
from traceflops.units import duration, listed, several

_UNCATEGORISED = "phase "
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


def _reading_notes(
    stream: EventStream[Any], collected: Collected, python_stacks: bool
) -> Iterator[Note]:
    """Yield the notes on the text of a file and its events."""
    yield from event_text_notes(stream.source, stream.damage, "rank and world size")
    counts, known = collected.counts, KNOWN_CATEGORIES | legacy.CATEGORIES
    unknown = [
        (category, count)
        for category, count in sorted(counts.items())
        if category not in known and not category.startswith(_UNCATEGORISED)
    ]
    if unknown:
        names = ", ".join(f"{printable(name)} ({count:,})" for name, count in unknown[:6])
        total = sum(count for _, count in unknown)
        yield _NOTES.note("unknown-category", total, listed=names)
    frames = sum(counts.get(category, 0) for category in PYTHON_CATEGORIES)
    if frames and not python_stacks:
        yield _NOTES.note("python-stacks-left-out", frames)
    yield from _NOTES.counted({"no-phase": counts.get("phase None", 0)}, "no-phase")
    yield from _NOTES.counted(collected.odd, *_ODD)


def _content_notes(
    stream: EventStream[Any],
    collected: Collected,
    tables: Mapping[str, pa.Table],
    facts: Mapping[str, str],
) -> Iterator[Note]:
    """Yield the notes on what a file lacks: device work, calls, shapes; `facts` are its header's.

    Old files (see `legacy`) have notes of their own.
    """
    counts, damage = collected.counts, stream.damage
    if legacy.OPS in counts:
        yield from legacy.content_notes(tables, counts.get(legacy.ARROWS, 0), _SHOWN_INSTEAD)
        return
    # How records may be missing, "" if none are.
    is_cut = stream.source.cut is not None or damage.cut_bytes is not None
    lost = "lost" * (is_cut or damage.dropped_places > 0)
    skipped = sum(collected.odd[code] for code in ("no-time", "no-category", "odd-phase"))
    lost = lost or "skipped" * (skipped > 0)
    calls, ops = tables["calls"].num_rows, tables["ops"]
    if not tables["activities"].num_rows:
        # The first reason that holds chooses the text; a text times False is empty.
        why = lost or "calls" * (calls > 0) or "recorder" * (RECORDER in facts)
        key, shown = f"{_NO_WORK} {why}".rstrip(), _SHOWN_INSTEAD if ops.num_rows else ""
        if launches_nothing(tables["calls"]) and not lost:
            key, shown = "nothing-launched", _ON_CPU if ops.num_rows else ""
        operator = None
        if key == _NO_WORK:
            # An operator that ran elsewhere says why, else the list of GPUs or the Python frames.
            tells = {" mps": operator_of_mps, " gpu": operator_of_gpus, " cpu": operator_of_cpus}
            for why, tell in tells.items():
                operator = operator or tell(names(ops["name"]))
                key += why * (operator is not None and key == _NO_WORK)
            is_unlisted = ops.num_rows > 0 and facts.get(GPUS_LISTED) == "0"
            is_python = bool(set(names(tables["marks"]["kind"])) & {"python", "module"})
            if operator is None:
                key += " unlisted" * is_unlisted or " functions" * (is_python and not ops.num_rows)
        called, activities = several(calls, "API call"), with_activities(counts)
        yield _NOTES.note(key, shown=shown, calls=called, activities=activities, operator=operator)
    elif not calls:
        yield _NOTES.note("no-calls")
    launched = numbers(tables["calls"]["correlation"], ABSENT)
    # A runtime call and the driver call inside it have one correlation on purpose.
    api = codes(tables["calls"]["api"])[launched != ABSENT]
    launched = joint_codes(api, launched[launched != ABSENT])
    repeated = len(launched) - len(distinct(launched))
    if repeated > _SEVERAL * calls and tables["processes"].num_rows == 1:  # merged ranks repeat ids
        yield _NOTES.note("repeated-launches", repeated, calls=several(calls, "runtime call"))
    if ops.num_rows and ops["input_dims"].null_count == ops.num_rows:
        yield _NOTES.note("no-shapes")


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


class Collected:
    """The rows and counts of all blocks of one file."""

    def __init__(self) -> None:
        self.tables = {name: TableBuilder(name) for name in (*_TIMED, "counters")}
        self.counts: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.flows: list[IntArray] = []

    def absorb(self, block: KinetoBlock) -> None:
        """Add a block. Call it in the order of the text: operators of old files are numbered so."""
        if block.legacy_ops or legacy.WORK in block.counts:
            for rows in (block.rows.ops, block.rows.activities):
                legacy.move_ids(rows, self.counts[legacy.OPS])
        for name, table in self.tables.items():
            table.absorb(getattr(block.rows, name))
        self.counts.update(block.counts)
        self.odd.update(block.rows.odd)
        self.flows.extend(block.flows)


def read_pytorch(
    source: ByteSource,
    pool: WorkerPool | None = None,
    block_bytes: int = BLOCK_BYTES,
    *,
    python_stacks: bool = True,
) -> Trace:
    """Return the trace in `source`. Raises InputError if it is not a PyTorch trace."""
    reader = KinetoReader(python_stacks)
    stream = EventStream[KinetoBlock](
        source, reader, pool or WorkerPool(), HEADER_KEYS, block_bytes
    )
    collected = Collected()
    for block in stream:
        collected.absorb(block)
    counts, damage = collected.counts, stream.damage
    whole = damage.array_closed and not damage.dropped_places
    is_empty_kineto = not counts and "schemaVersion" in stream.header and whole
    if not (KNOWN_CATEGORIES | {legacy.OPS}) & counts.keys() and not is_empty_kineto:
        raise _refusal(stream, counts)
    if collected.odd["no-time"] and not any(collected.tables[name].count for name in _TIMED):
        hint = "ts and dur must be in microseconds; convert other units"
        raise InputError(f"no event has a valid time: {source.label}", hint)
    _lend_correlations(collected)
    # Operators are the work only without device work: then a range must not count as one.
    if not collected.tables["activities"].count:
        legacy.ranges_from_ops(collected.tables)
    if legacy.WORK in collected.counts:
        work = collected.tables["activities"]
        collected.tables["activities"] = legacy.without_nested_work(work)
    return _assemble(stream, collected, python_stacks)


def _refusal(stream: EventStream[KinetoBlock], counts: Mapping[str, int]) -> InputError:
    """Return the error for a file without any event of PyTorch; `counts` are by category."""
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
    """Fill in missing correlations, in place: the id of the arrow at the start of the row.

    Times at which several arrows start or end are left out: equal times could be chance.
    """
    if not collected.flows:
        return
    ids, times = np.concatenate(collected.flows, axis=1)
    instants, first, counts = np.unique(times, return_index=True, return_counts=True)
    instants, ids = instants[counts == 1], ids[first[counts == 1]]
    if not len(instants):
        return
    for table in (collected.tables["activities"], collected.tables["calls"]):
        correlation, start = table.column("correlation"), table.column("start_ns")
        nearest = np.minimum(np.searchsorted(instants, start), len(instants) - 1)
        lends = (correlation == ABSENT) & (instants[nearest] == start)
        if lends.any():
            table.replace("correlation", np.where(lends, ids[nearest], correlation))


def _assemble(stream: EventStream[KinetoBlock], collected: Collected, python_stacks: bool) -> Trace:
    """Return the trace of one file, whose events are collected: one process per rank in it."""
    source = stream.source
    metadata = read_metadata(stream.header, source.name)
    processes = split_ranks(collected.tables, metadata.rank)
    if len(processes) == 1:  # the header has the groups of one rank only
        _complete_groups(collected, metadata)
    used = number_devices(collected.tables, len(processes) > 1)
    facts = [
        (process, n, metadata.facts_of(n) or trace_builder.NOTHING_KNOWN) for process, n in used
    ]
    tables = {
        "processes": trace_builder.processes_table(
            [
                trace_builder.ProcessFacts(
                    source.label, rank, metadata.world_size, metadata.host, pid
                )
                for rank, pid in processes
            ]
        ),
        "devices": trace_builder.devices_table(facts),
        **{name: trace_builder.in_order_of_time(table) for name, table in collected.tables.items()},
    }
    if legacy.WORK in collected.counts:
        tables["activities"] = legacy.linked_to_ops(tables)
    starts = [tables[name]["start_ns"][0].as_py() for name in _TIMED if tables[name].num_rows]
    # What to add to the times to get ns since 1970: their base, or 0 if they already are that.
    origin_ns = metadata.base_ns
    if origin_ns is None and starts and max(starts) > _EPOCH_NS:
        origin_ns = 0
    notes = (
        *_reading_notes(stream, collected, python_stacks),
        *_content_notes(stream, collected, tables, metadata.facts),
        *_metadata_notes(metadata, [local for _, local in used], tables["processes"]),
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
    """Fill in, in place, facts of process groups that collectives lack or shorten ("...")."""
    for rows in (collected.tables[name] for name in ("activities", "ops")):
        groups = [metadata.groups.get(name, {}) for name in rows.names["collective_group"]]
        for column in GROUP_COLUMNS if groups else ():
            texts = [*(group.get(column) for group in groups), None]  # None: of no group, code -1
            given = optional_codes(rows.names[column], texts)[rows.column("collective_group")]
            is_short = np.array(["..." in text for text in rows.names[column]] + [True])
            own = rows.column(column)
            rows.replace(column, np.where(is_short[own] & (given >= 0), given, own))


def _read(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    """Return the trace of each source. By default Python frames of very large ones are dropped."""
    traces, stacks = [], reading.python_stacks
    for source in sources:
        expected = source.expected_text_bytes
        reading.pool.expect(expected)
        keeps = expected <= _STACKS_BELOW_BYTES if stacks is None else stacks
        traces.append(read_pytorch(source, reading.pool, python_stacks=keeps))
    return traces


PYTORCH: Final = Format("PyTorch", lambda head: _JSON_START.match(head) is not None, _read)
"""Recognises any JSON, so it is asked after all other formats of JSON."""

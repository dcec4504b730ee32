"""The notes of readers of rocprof, and the traces of what they collected."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.parsers.io.csv_text import text_notes
from traceflops.parsers.io.database_file import nothing_left
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.rocprof.tables.parts import COUNTERS, TableFile, place_of
from traceflops.parsers.shared.sanity_checks import COUNTED_WHILE_TIMED, span_notes
from traceflops.parsers.shared.sinks import DISPATCH, UNNAMED_KERNEL
from traceflops.parsers.shared.trace_builder import Gathered, overflow_notes
from traceflops.remedies import ROCPROFV3
from traceflops.table.builder import with_numbers
from traceflops.table.columns import ABSENT, codes, count_true, names, numbers
from traceflops.table.grouping import distinct, joint_codes
from traceflops.table.merged_notes import together
from traceflops.table.patterns import launches_no_kernel
from traceflops.table.trace import Note, Source, SourceFile, Trace, of_noun, rank_from_name
from traceflops.units import does, percent, several

if TYPE_CHECKING:
    from traceflops.parsers.rocprof.tables.runs import TableRun

_MOST_NAMED: Final = 8
NOTES: Final = NoteTable(
    repaired={
        "instances-summed": "{n} counter [value|values] of chip instances merged: summed per "
        "launch (GRBM counters: largest value)."
    },
    dropped={
        "times-rounded": "{n} [time|times] [is not a whole number|are not whole numbers] of "
        "nanoseconds. Spreadsheets round them when saving (3.42E+14); use the file as rocprof "
        "wrote it.",
        "bad-cells": "{n} [number|numbers] could not be read.",
        "no-value": of_noun("counter", "without a value skipped."),
        "no-value database": of_noun("counter value", "skipped: not a number."),
        "streamed-counter": of_noun("counter value", "skipped: sampled over time, not per kernel."),
        "graph-without-device": of_noun("graph launch", "skipped: unknown GPU."),
        "sampled": of_noun("call stack sample", "skipped: not supported."),
        "system": of_noun("driver event", "skipped: not supported."),
        "empty-doubles": of_noun(
            "record", "of 0 ns skipped: another has the same kernel, start and queue."
        ),
        "loose-arrows": of_noun(
            "arrow", "between calls and GPU operations skipped: the link is ambiguous."
        ),
        "unpaired-ranges": "{n} [end|ends] of ranges without a start skipped.",
        "samples-not-read": "{n} [sample|samples] [is|are] counted but not read.",
        "barrier-packets": "{n} barrier [packet|packets] left out: a queue waits in them and does "
        "no work.",
        "repeated-passes": "The run was repeated for more counters. Times are from one pass; only "
        "counters are used from the others (pass {passes}).",
        "merged-passes": "{n} [table|tables] of single passes found beside the table merged by "
        "rocprof-compute. Only counters that the merged table lacks are used.",
        "launcher": "{n} [launcher|launchers] left only a list of agents: not shown.",
        "launcher json": of_noun("launcher", "left no records: not shown."),
        "host-copies": of_noun("copy record", "within CPU memory skipped: no GPU involved."),
        "host-copies database": "{n} [copy|copies] within CPU memory skipped: no GPU involved.",
        "counters-written-twice": "{n} repeated counter [value|values] ignored: the same counters "
        "of the same launches come earlier in the files. Where values differ, the first counts.",
    },
    assumed={
        "device-unknown": "Some records name no GPU. They count for the only GPU, else for "
        "device 0.",
        "device-unknown json": of_noun(
            "record", "without a GPU: counted for the only GPU, else for device 0."
        ),
        "kernel-clash": of_noun(
            "launch", "of kernels whose number has two names: the later name is shown."
        ),
        "timed-one-by-one": "rocprof-compute runs kernels one by one, also to time them: idle time "
        "and overlap are not those of a normal run.",
        "launch-is-queueing": "No API calls were recorded. Kernel launch time is taken as the time "
        "of queueing (DispatchNs).",
        "clocks-not-aligned": (
            "The file covers several machines whose clocks are not aligned.",
            "Times are compared between machines only where collectives align the clocks; figures "
            "of each machine are unaffected.",
        ),
        "runs-apart": "The folder holds several runs, separated by more than 10 s: they are shown "
        "separately.",
    },
    missing={
        "no-calls": "There are no API calls, so what launched the GPU operations is unknown. "
        f"{ROCPROFV3} records them.",
        "no-calls v1 file": "The file has no API calls, so what launched the GPU operations is "
        f"unknown. Record with rocprof --hip-trace, or {ROCPROFV3}.",
        "calls-of-unknown-process": "{count} API [call|calls] without a process, and several "
        "processes used GPUs: what launched {work} is unknown.",
        "calls-missing": (
            "{linked} of {work} ({share}) {have} a launch call in the file.",
            "Of the others no call was recorded, or nothing says which it is; the cause of idle "
            "time before them is unknown.",
        ),
        "dispatches-missing": "{n} [kernel is|kernels are] not in the file: numbers of dispatches "
        "are missing between the first and the last one. Record without filters or pauses.",
        "siblings-not-read": "{count} [table|tables] of the same process beside this file not "
        "read: {listed}. Give the folder {folder} to read all.",
        "no-rows": "The file has no records.",
        "no-timeline counters": "The files hold only hardware counters. Reading them serializes "
        "kernels, so there is no timeline; give a run of rocprofv3 --kernel-trace beside it.",
        "no-timeline": (
            "The files hold only totals by name: no timeline, idle time or overlap.",
            f"Record with {ROCPROFV3} --output-format rocpd.",
        ),
        "no-device-work": ("The files have no GPU operations.", f"Record with {ROCPROFV3}."),
        "no-device-work database": f"The database has no GPU operations; {ROCPROFV3} records them.",
        "no-device-work file": f"The file has no GPU operations; {ROCPROFV3} records them.",
        "no-device-work v1 file": "The file has no GPU operations. Record with rocprof --hip-trace "
        f"or --timestamp on, or with {ROCPROFV3}.",
        "no-kernels": "None of the recorded API calls launches a kernel.",
        "kernels-unnamed": of_noun("kernel", "without a name in the database."),
        "kernels-unnamed json": of_noun("kernel", "without a name in the file, shown by number."),
        "agents-missing": of_noun(
            "device", "missing from the file's list of agents: model unknown."
        ),
        "device-ambiguous": "Unknown GPU model for gpu-id {numbers}: the listed GPUs differ and "
        "none has that number.",
    },
)
_RECORDS: Final = ("activities", "calls", "marks", "counters", COUNTERS)
_ODD: Final = (
    *("no-value", "host-copies", "host-copies database", "graph-without-device", "sampled"),
    *("system", "streamed-counter", "no-value database", "empty-doubles", "loose-arrows"),
    "instances-summed",
)


def clock_of(machine: str | None, host: str | None) -> str | None:
    """Return a name for the clock of a machine, given its id and host name; None without both.

    It is a digest, to reveal neither, of both, since machines set up from one image share their id.
    """
    if not machine and not host:
        return None
    name = "\n".join((machine or "", host or ""))
    return f"machine {_digest(name)}"


def clock_of_folder(root: str) -> str | None:
    """Return a name for the clock of a folder's machine (a digest), None without a folder."""
    return None if root in ("", ".") else f"folder {_digest(root)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def link_notes(tables: Mapping[str, pa.Table], no_calls: str = "no-calls") -> Iterator[Note]:
    """Yield notes on device work whose launching call is unknown; `activities` has rows."""
    activities, calls = tables["activities"], tables["calls"]
    total = activities.num_rows
    if not calls.num_rows:
        yield NOTES.note(no_calls)
        return
    if names(calls["name"]) == [DISPATCH]:
        yield NOTES.note("launch-is-queueing")
        return
    # Work is linked if a call of its process has its correlation.
    work_ids, call_ids = (numbers(table["correlation"], ABSENT) for table in (activities, calls))
    working, calling = (numbers(table["process"]) for table in (activities, calls))
    keys = joint_codes(np.append(working, calling), np.append(work_ids, call_ids))
    is_linked = np.isin(keys[:total], keys[total:]) & (work_ids != ABSENT)
    linked = count_true(is_linked)
    # Readers give calls without a process to a process that has neither pid nor device work.
    pids = tables["processes"]["pid"].to_pylist()
    has_work = {*distinct(working).tolist()}
    unnamed = [row for row, pid in enumerate(pids) if pid is None and row not in has_work]
    unknown_calls = count_true(np.isin(calling, unnamed))
    if linked < total and unknown_calls:
        work = several(total - linked, "GPU operation")
        yield NOTES.note("calls-of-unknown-process", unknown_calls, work=work)
    elif linked < total:
        work, have, share = several(total, "GPU operation"), does(linked, "have"), linked / total
        fields = {"linked": f"{linked:,}", "work": work, "share": percent(share), "have": have}
        yield NOTES.note("calls-missing", total - linked, **fields)


def run_notes(
    run: TableRun, tables: Mapping[str, pa.Table], overflowed: Sequence[Note]
) -> Iterator[Note]:
    """Yield the notes on a run of CSV files: on each file, on texts left out, on the whole run."""
    by_file = [(index, n) for index, file in enumerate(run.files) for n in file_notes(file)]
    yield from together(by_file, len(run.files))
    yield from overflowed
    ranks = [process.place.rank for process in run.processes if process.place.rank is not None]
    if ranks:
        yield rank_from_name(ranks)
    if run.number:  # not the first run of its folder
        yield NOTES.note("runs-apart")
    # What was repaired, left out or assumed.
    odd, notes = run.odd, list[Note]()
    if run.passes_left_out:
        notes.append(passes_note(run.passes_left_out))
    notes += NOTES.counted(odd, "merged-passes", "launcher", "host-copies")
    notes += [NOTES.note("device-unknown")] if odd["device-unknown"] else []
    notes += NOTES.counted(odd, "instances-summed", "counters-written-twice")
    # What the run lacks as a whole, and what is strange about its times.
    if tables["activities"].num_rows:
        notes += link_notes(tables)
        if odd["counted-while-timed"]:
            notes.append(COUNTED_WHILE_TIMED)
        elif run.system:  # only rocprof-compute describes the system
            notes.append(NOTES.note("timed-one-by-one"))
    elif tables[COUNTERS].num_rows:
        notes.append(NOTES.note("no-timeline counters"))
    else:
        only_totals = tables["totals"].num_rows and not tables["calls"].num_rows
        notes.append(NOTES.note("no-timeline" if only_totals else "no-device-work"))
    # A note on a whole run of several files names no file.
    label = run.files[0].source.label if len(run.files) == 1 else None
    yield from (replace(note, file=label) for note in notes)


def passes_note(numbers: Sequence[int]) -> Note:
    """Return the note that of the passes with these numbers only the counters are used."""
    listed = ", ".join(map(str, numbers[:_MOST_NAMED]))
    return NOTES.note("repeated-passes", len(numbers), passes=listed)


def file_notes(file: TableFile) -> Iterator[Note]:
    """Yield the notes on damage and on what was left out in one file."""
    odd, bad_cells = file.odd, file.damage.bad_cells
    rounded_times = sum(bad_cells[role] for role in ("start", "end", "dispatched", "completed"))
    samples = file.events["pc_sampling"] + file.events["spm_counters"]
    counts = {
        "times-rounded": rounded_times,
        "bad-cells": sum(bad_cells.values()) - rounded_times,
        "no-value": odd["no-value"],
        "unpaired-ranges": odd["unpaired"],
        "samples-not-read": samples,
        "barrier-packets": odd["barriers"],
        "dispatches-missing": file.skipped,
    }
    damage = text_notes(file.damage, file.source.cut)
    # Rounded times are why records have none.
    for note in (*damage, *NOTES.counted(counts, *counts), *span_notes(odd)):
        yield replace(note, file=file.source.label)


def trace_of(
    recorded: Gathered,
    file: ByteSource,
    about: Source,
    holder: str,
    *,
    notes: Iterable[Note] = (),
    clocks: Iterable[str] = (),
) -> Trace:
    """Return the trace of the rows in `recorded`, with `notes` before the notes on them.

    `about` is the source without its file and counts, which are added. `holder` is "database",
    "file" or "v1 file", for the wording of notes. `clocks` name the clocks of processes if they
    differ; a file without any clock has that of its folder. If the path of the file states the rank
    of its only process, the rank is filled in.
    """
    counts = dict(sorted((+recorded.counts).items()))  # +: without zeros
    tables, name = recorded.finish(), file.label
    count = tables["processes"].num_rows
    clock_of_process = [*clocks, *("",) * count][:count]  # "": unknown
    facts = dict(about.facts)
    if counts:
        facts.setdefault("recorded", ", ".join(counts))
    all_notes = [*notes]
    output = place_of(file.folder, file.name)
    rank, clock = output.rank, about.clock
    if holder != "database" and not clocks:
        clock = clock or clock_of_folder(output.root)
    if rank is not None and count == 1:
        tables["processes"] = with_numbers(tables["processes"], "rank", np.array([rank]))
        all_notes.append(rank_from_name([rank]))
    all_notes += _notes_on_records(recorded.odd, tables, holder)
    return Trace(
        source=replace(
            about,
            clock=clock,
            files=(SourceFile(name, file.stored_bytes, file.text_bytes),),
            facts=facts,
            event_counts=counts,
            kinds_apart=True,
        ),
        tables=tables,
        notes=(
            *(note if note.file else replace(note, file=name) for note in all_notes),
            *overflow_notes(recorded.tables.values(), name),
        ),
        places=recorded.places,
        clocks=tuple(clock_of_process) if any(clock_of_process) else (),
    )


def _notes_on_records(
    odd: Counter[str], tables: Mapping[str, pa.Table], holder: str
) -> Iterator[Note]:
    """Yield notes on odd records (`odd`, by code), on unlinked work and on missing work."""
    yield from span_notes(odd)
    yield from NOTES.counted(odd, *_ODD)
    if odd["device-unknown"]:
        yield NOTES.note("device-unknown")
    yield from NOTES.counted(odd, "kernel-clash", "device-unknown json")
    kernels = tables["activities"]["name"]
    labels = names(kernels)
    if UNNAMED_KERNEL in labels:
        is_unnamed = codes(kernels) == labels.index(UNNAMED_KERNEL)
        odd["kernels-unnamed"] = int(np.count_nonzero(is_unnamed))
    yield from NOTES.counted(odd, "kernels-unnamed", "kernels-unnamed json", "agents-missing")
    was_counted = tables[COUNTERS].num_rows > 0
    if kernels.length():
        yield from link_notes(tables, "no-calls v1 file" if holder == "v1 file" else "no-calls")
        if was_counted:
            yield COUNTED_WHILE_TIMED
    elif was_counted:
        yield NOTES.note("no-timeline counters")
    else:
        launches_none = launches_no_kernel(tables["calls"])
        yield NOTES.note("no-kernels" if launches_none else f"no-device-work {holder}")


def with_losses(database: Database, trace: Trace, label: Callable[[str], str] = str) -> Trace:
    """Return the trace with notes on database damage. Raises InputError if nothing is left."""
    if database.damaged and not any(trace.table(name).num_rows for name in _RECORDS):
        again = "record or copy the database again"
        raise nothing_left(database.source.label, database.file.notes, again)
    return replace(trace, notes=(*database.notes(label), *trace.notes))

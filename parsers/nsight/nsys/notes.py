"""Notes on how a report of Nsight Systems was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.devices.processes import renumbered_note
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.nsight.nsys.reading import CUPTI, ReportReading
from traceflops.parsers.nsight.nsys.timeline import UNNAMED_KERNEL
from traceflops.parsers.shared.sanity_checks import span_notes
from traceflops.remedies import GENERATION, NSYS, NVPROF
from traceflops.table.columns import ABSENT, count_true, is_one_of, numbers, validity
from traceflops.table.grouping import distinct, shared_codes
from traceflops.table.patterns import GRAPH_LAUNCH, launches_nothing, started
from traceflops.table.trace import CUDA_END, CUDA_TRACE, CUPTI_ERROR, PROGRAM_ERROR, TRACED, Note
from traceflops.units import several, time_amount

_NOT_READ: Final = "{count} [row|rows] of tables that are not read: {names}."
_UNFLUSHED: Final = (
    "The recording has no GPU operations: the profiler did not get the last records of a process "
    "that used CUDA."
)
_NOTES: Final = NoteTable(
    repaired={
        "open-range": "{n} [range|ranges] without an end: still open when recording stopped, so "
        "[it ends|they end] with the last record."
    },
    dropped={
        "metrics-left-out": "{n} [sample|samples] of GPU metrics skipped to save memory.",
        "tables-not-used records": _NOT_READ,
    },
    assumed={
        "device-unknown": "Some records name no GPU. They count for the only GPU of their "
        "process, else for device -1.",
        "gpu-by-number": "The recording lists different GPUs. Which one a process used follows "
        "from its number, unless CUDA_VISIBLE_DEVICES was set.",
        "types-by-name": "PyTorch ranges hold operator shapes but no data types. The data type of "
        "a GEMM is taken from its kernel name.",
    },
    missing={
        "unnamed": "{n} [range|ranges] without a text.",
        "copy-kind": "{n} [copy|copies] of unknown kind and direction.",
        "work-lost": (
            "GPU operations are missing from the damaged part of the file, mostly at the end.",
            "GPUs look idle there; their true idle time is unknown.",
        ),
        "no-device-work lost": (
            "The recording has no GPU operations.",
            "It has {others}, so the driver lost the GPU records, could not make them, or the GPU "
            "had nothing to do.",
        ),
        "no-device-work skipped": "The recording has no readable GPU operations; they may be among "
        "the skipped records.",
        "nothing-launched": "The recording has no GPU operations: none of its {calls} starts work "
        "on a GPU.",
        "no-device-work true": "The recording has no GPU operations: CUDA was traced but left no "
        "records.",
        "no-device-work unused": "The recording has no GPU operations: CUDA was traced, but "
        "no process used it.",
        "no-device-work untraced-process": "The recording has no GPU operations: a process used "
        "CUDA, as CPU samples show, but was not traced.",
        "no-device-work no-driver": "The recording has no GPU operations: the system had no CUDA "
        "driver.",
        "no-device-work running": _UNFLUSHED,
        "no-device-work unflushed": _UNFLUSHED,
        "no-device-work error": "The recording has no GPU operations, and the program's output "
        "ends with an error.",
        "no-device-work failed": "The recording has no GPU operations: the profiler did not trace "
        "CUDA.",
        "no-device-work untraced": (
            "The recording has no GPU operations: CUDA was not traced (--trace={traced}).",
            f"{NSYS} records it.",
        ),
        "no-device-work None": (
            "The recording has no GPU operations.",
            f"Whether CUDA was traced is unknown; {NSYS} records it.",
        ),
        "no-calls": (
            "The recording has no CUDA API calls, so what launched the GPU operations is unknown. "
            f"{NSYS} records them."
        ),
        "no-calls before Pascal": (
            "The recording has no CUDA API calls, so what launched the GPU operations is unknown. "
            f"{NVPROF} without --analysis-metrics records them."
        ),
        "no-calls lost": "The CUDA API calls are in the damaged part of the file, so what "
        "launched the GPU operations is unknown.",
        "calls-of-unknown-process": "{count} GPU [operation|operations] without a process (one of "
        "{processes}): the launch calls are unknown.",
        "calls-of-unknown-process apart": (
            "{count} GPU [operation|operations] without a process (one of {processes}): the launch "
            "calls are unknown.",
            "Some GPUs are unknown too: they appear as {devices} of an unknown process, although "
            "the work belongs to the others.",
        ),
        "kernels-unnamed": "{n} [kernel|kernels] [has|have] no name (its text is not in the "
        "file), so [its category is|their categories are] unknown.",
        "graphs-opaque": "{count} CUDA graph [replay|replays] ({length}) [was|were] recorded "
        "without individual kernels. nsys profile --cuda-graph-trace=node records them, at some "
        "cost per kernel.",
        "graph-launches-lost": "{n} CUDA graph [launch|launches] left no GPU record: [its|their] "
        "work is missing.",
        "nccl-sizes": "NCCL annotated its collectives, but their sizes are not in the file. nsys "
        "export --type=sqlite --include-json=true REPORT.nsys-rep writes them.",
        "nccl-sizes bytes": "NCCL annotated its collectives, but their sizes are exported only as "
        "bytes, which are not read. nsys export --type=sqlite --include-json=true REPORT.nsys-rep "
        "writes them.",
        "no-shapes": "Operators have no shapes, so their FLOPs cannot be counted. Record with "
        "torch.autograd.profiler.emit_nvtx(record_shapes=True).",
        "tables-not-used": _NOT_READ,
        "gpu-unknown": "The recording does not name the GPU. MFU needs --device or --peak.",
        "gpu-unknown ambiguous": "The recording lists different GPUs and not which one a process "
        "used. MFU needs --device or --peak.",
    },
)
_WORK_TABLES: Final = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
_OF_CUDA: Final = ("SYNCHRONIZATION", "CUDA_EVENT", "MEMORY_USAGE")
"""Records that exist only if a program called CUDA while it was traced."""
_MOST_LISTED: Final = 20


def content_notes(
    tables: Mapping[str, pa.Table], reading: ReportReading, facts: Mapping[str, str]
) -> Iterator[Note]:
    """Yield the notes on the records of a report; `facts` are the settings of the recording."""
    odd, lost = reading.odd, reading.tables.lost
    yield from span_notes(odd)
    yield from _NOTES.counted(
        odd, "open-range", "unnamed", "copy-kind", "metrics-left-out", "device-unknown"
    )
    # GPU operations and the calls that launched them.
    is_work_lost = not lost.isdisjoint(CUPTI + table for table in _WORK_TABLES)
    if is_work_lost:
        yield _NOTES.note("work-lost")
    activities = tables["activities"]
    if not activities.num_rows:
        yield _no_work(tables, reading, facts)
    elif not tables["calls"].num_rows:
        variant = "lost" if f"{CUPTI}RUNTIME" in lost else facts.get(GENERATION, "")
        yield _NOTES.note(f"no-calls {variant}".rstrip())
    yield from _ownerless(tables)
    if unnamed := count_true(is_one_of(activities["name"], UNNAMED_KERNEL)):
        yield _NOTES.note("kernels-unnamed", unnamed)
    if moved := reading.registry.moved_streams:
        yield renumbered_note(moved, "context")
    # CUDA graphs.
    is_replay = is_one_of(activities["kind"], "graph")
    if is_replay.any():
        length = time_amount(int(numbers(activities["dur_ns"])[is_replay].sum()))
        yield _NOTES.note("graphs-opaque", count_true(is_replay), length=length)
    if not is_work_lost and (launches := _launches_without_work(tables)):
        yield _NOTES.note("graph-launches-lost", launches)
    # Sizes of collectives, shapes of operators.
    if odd["nccl-ranges"] and not odd["nccl-payloads"]:
        key = "nccl-sizes bytes" if odd["nccl-blobs"] else "nccl-sizes"
        yield _NOTES.note(key, odd["nccl-ranges"])
    if operators := tables["ops"].num_rows:
        has_shapes = tables["ops"]["input_dims"].null_count < operators
        yield _NOTES.note("types-by-name" if has_shapes else "no-shapes")
    devices = reading.registry.devices
    if devices.by_number:
        yield _NOTES.note("gpu-by-number")
    if unknown := tables["devices"]["product"].null_count:
        key = "gpu-unknown ambiguous" if devices.ambiguous else "gpu-unknown"
        yield _NOTES.note(key, unknown)
    # Tables that were not read. Name those first whose rows are records, which have a time.
    unused = reading.tables.unused((CUPTI, "NVTX_"))
    timed = {name for name in unused if {"start", "timestamp"} & reading.tables.columns(name)}
    in_order = sorted(unused, key=lambda name: name not in timed)
    if listed := [f"{name} ({unused[name]:,})" for name in in_order]:
        names = ", ".join(listed[:_MOST_LISTED]) + ", …" * (len(listed) > _MOST_LISTED)
        key = "tables-not-used records" if timed else "tables-not-used"
        yield _NOTES.note(key, sum(unused.values()), names=names)


def _no_work(
    tables: Mapping[str, pa.Table], reading: ReportReading, facts: Mapping[str, str]
) -> Note:
    """Return the note on why there are no GPU operations; `facts` say whether CUDA was traced."""
    calls = tables["calls"].num_rows
    if reading.odd["no-time"]:
        return _NOTES.note("no-device-work skipped")
    if launches_nothing(tables["calls"]) and not reading.tables.lost:
        return _NOTES.note("nothing-launched", calls=several(calls, "CUDA API call"))
    # If there are CUDA records, the GPU operations must have been lost.
    records = sum(reading.counts[table] for table in _OF_CUDA)
    counts = ((calls, "CUDA API call"), (records, "other CUDA record" if calls else "CUDA record"))
    if listed := " and ".join(several(count, noun) for count, noun in counts if count):
        return _NOTES.note("no-device-work lost", others=listed)
    # Else the program's error, that of the profiler or the settings of the recording tell why.
    traced = facts.get(TRACED, "cuda")
    if "cuda" not in traced and not facts.keys() & {CUDA_TRACE, CUPTI_ERROR, PROGRAM_ERROR}:
        return _NOTES.note("no-device-work untraced", traced=traced)
    if PROGRAM_ERROR in facts or CUPTI_ERROR in facts:
        return _NOTES.note(f"no-device-work {'error' if PROGRAM_ERROR in facts else 'failed'}")
    return _NOTES.note(f"no-device-work {facts.get(CUDA_END) or facts.get(CUDA_TRACE)}")


def _ownerless(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    """Yield a note if the process of GPU operations is unknown: no calls are linked to them."""
    has_pid = validity(tables["processes"]["pid"])  # per process; None: all have one
    # A report without any calls has a note on that.
    if has_pid is None or not tables["calls"].num_rows:
        return
    work, devices = (
        count_true(~has_pid[numbers(tables[name]["process"])]) for name in ("activities", "devices")
    )
    if work:
        key = "calls-of-unknown-process" + (" apart" if devices and has_pid.any() else "")
        processes = several(count_true(has_pid), "process")
        yield _NOTES.note(key, work, processes=processes, devices=several(devices, "device"))


def _launches_without_work(tables: Mapping[str, pa.Table]) -> int:
    """Return how many launches of CUDA graphs left no GPU operation."""
    calls, activities = tables["calls"], tables["activities"]
    if not activities.num_rows:  # a report without any work has a note on that
        return 0
    # A launch and its operations have the same process and correlation.
    call_ids, work_ids = (numbers(table["correlation"], ABSENT) for table in (calls, activities))
    launches = np.flatnonzero(started(calls, GRAPH_LAUNCH) & (call_ids != ABSENT))
    work = np.flatnonzero(np.isin(work_ids, call_ids[launches]))
    launch_keys, work_keys = shared_codes(
        (numbers(calls["process"])[launches], call_ids[launches]),
        (numbers(activities["process"])[work], work_ids[work]),
    )
    return count_true(~np.isin(distinct(launch_keys), work_keys))

"""What the reader of a report must know about how an export of Nsight Systems was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.devices import renumbered_note
from traceflops.parsers.nsight.nsys.reading import ReportReading
from traceflops.parsers.nsight.nsys.work import UNNAMED as UNNAMED_KERNEL
from traceflops.parsers.shared import span_notes
from traceflops.table import (
    ABSENT,
    CUDA_TRACE,
    Note,
    NoteKind,
    codes,
    counted_note,
    distinct,
    joint_codes,
    names,
    numbers,
    of_noun,
    validity,
)
from traceflops.units import several, time_amount

EXPORT: Final = "nsys export --type=sqlite --include-json=true REPORT.nsys-rep"

_COUNTED: Final[Mapping[str, tuple[NoteKind, str, str]]] = {
    "open-range": (
        "repaired",
        "range",
        "without an end: still open when recording stopped, so [it ends|they end] with the last "
        "record",
    ),
    "unnamed": ("missing", "range", "without a text in the export"),
    "copy-kind": ("missing", "copy", "of unknown kind and direction"),
    "metrics-left-out": ("dropped", "sample", "of GPU metrics skipped to save memory"),
}
_NO_CALLS: Final = (
    "The export has no CUDA API calls, so what launched the GPU operations is unknown. nsys "
    "profile --trace=cuda records them."
)
_CALLS_LOST: Final = (
    "The CUDA API calls are in the damaged part of the export, so what launched the GPU "
    "operations is unknown."
)
_WITHOUT_CUDA: Final[Mapping[str | None, str]] = {
    "true": (
        "CUDA was traced but left no records: the program made no CUDA calls while recording, its "
        "process was not traced, or the records were lost."
    ),
    "false": "CUDA was not traced: nsys profile --trace=cuda,nvtx records it.",
    None: "Whether CUDA was traced is unknown; nsys profile --trace=cuda,nvtx records it.",
}
"""What to say where there is no record of CUDA at all, by whether it was traced."""
_WORK_TABLES: Final = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
_CALL_TABLE: Final = "RUNTIME"
_OF_CUDA: Final = ("SYNCHRONIZATION", "CUDA_EVENT", "MEMORY_USAGE", "OVERHEAD")
"""Records that only tracing of CUDA makes."""
_PREFIX: Final = "CUPTI_ACTIVITY_KIND_"
_LAUNCH: Final = "GraphLaunch"


def content_notes(
    tables: Mapping[str, pa.Table],
    reading: ReportReading,
    lost: frozenset[str],
    facts: Mapping[str, str],
) -> Iterator[Note]:
    """Give the notes on records: what was repaired, dropped, assumed or is missing.

    `lost` are the tables of the export of which rows are lost, `facts` the switches of the
    recording.
    """
    odd = reading.odd
    yield from span_notes(odd)
    yield from _counted(odd)
    yield from _lost_work(lost)
    yield from _work(tables, reading, facts.get(CUDA_TRACE))
    yield from _calls(tables, lost)
    yield from _ownerless(tables)
    yield from _names(tables)
    if moved := reading.people.moved_streams:
        yield renumbered_note(moved, "context")
    yield from _graphs(tables, lost)
    yield from _nccl(odd)
    yield from _operators(tables)
    yield from _devices(tables, ambiguous=reading.people.devices.ambiguous)


def _counted(odd: Counter[str]) -> Iterator[Note]:
    for code, (kind, noun, sentence) in _COUNTED.items():
        if odd[code]:
            yield counted_note(kind, code, of_noun(noun, f"{sentence}."), odd[code])
    if odd["device-unknown"]:
        text = (
            "Some records name no GPU. They count for the only GPU of their process, else for "
            "device -1."
        )
        yield Note("assumed", "device-unknown", text, odd["device-unknown"])


def _is_work_lost(lost: frozenset[str]) -> bool:
    return not lost.isdisjoint(_PREFIX + table for table in _WORK_TABLES)


def _lost_work(lost: frozenset[str]) -> Iterator[Note]:
    """Say what the loss of device work means for times."""
    if not _is_work_lost(lost):
        return
    text = (
        "GPU operations are missing from the damaged part of the file, mostly at the end. GPUs "
        "look idle there; their true idle time is unknown."
    )
    yield Note("missing", "work-lost", text)


def _work(
    tables: Mapping[str, pa.Table], reading: ReportReading, traced: str | None
) -> Iterator[Note]:
    if tables["activities"].num_rows:
        return
    calls = tables["calls"].num_rows
    others = sum(reading.counts[one] for one in _OF_CUDA)
    counts = ((calls, "CUDA API call"), (others, "other CUDA record" if calls else "CUDA record"))
    found = " and ".join(several(count, noun) for count, noun in counts if count)
    lost = (
        f"It has {found}, so the driver lost the GPU records, could not make them, or the GPU had "
        "nothing to do."
        if found
        else _WITHOUT_CUDA[traced]
    )
    yield Note("missing", "no-device-work", f"The export has no GPU operations. {lost}")


def _calls(tables: Mapping[str, pa.Table], lost: frozenset[str]) -> Iterator[Note]:
    if tables["activities"].num_rows and not tables["calls"].num_rows:
        text = _CALLS_LOST if _PREFIX + _CALL_TABLE in lost else _NO_CALLS
        yield Note("missing", "no-calls", text)


def _ownerless(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    """Say that work is of none of the processes that are known, so that no call launched it."""
    activities, known = tables["activities"], validity(tables["processes"]["pid"])
    if known is None or not tables["calls"].num_rows:
        return
    count = int(np.count_nonzero(~known[numbers(activities["process"])]))
    if count:
        text = (
            f"{several(count, 'GPU operation')} without a process (one of "
            f"{several(int(known.sum()), 'process')}): the launch calls are unknown."
        )
        apart = int(np.count_nonzero(~known[numbers(tables["devices"]["process"])]))
        if apart and known.any():
            text += (
                f" Some GPUs are unknown too: they appear as {several(apart, 'device')} of an "
                "unknown process, although the work belongs to the others."
            )
        yield Note("missing", "calls-of-unknown-process", text, count)


def _names(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    """Say that kernels have no names, by which their categories are told."""
    activities = tables["activities"]
    known = names(activities["name"])
    if UNNAMED_KERNEL not in known:
        return
    count = int(np.count_nonzero(codes(activities["name"]) == known.index(UNNAMED_KERNEL)))
    if count:
        wording = of_noun(
            "kernel",
            "[has|have] no name (its text is not in StringIds), so [its category is|their "
            "categories are] unknown.",
        )
        yield counted_note("missing", "kernels-unnamed", wording, count)


def _graphs(tables: Mapping[str, pa.Table], damaged: frozenset[str]) -> Iterator[Note]:
    """Say what runs inside graphs that is not seen, and which launches of graphs have no record.

    Where tables of work are damaged, launches have none because of that.
    """
    activities = tables["activities"]
    kinds = names(activities["kind"])
    replays = codes(activities["kind"]) == (kinds.index("graph") if "graph" in kinds else -2)
    if replays.any():
        count = int(replays.sum())
        length = int(numbers(activities["dur_ns"])[replays].sum())
        text = (
            f"{several(count, 'CUDA graph replay')} ({time_amount(length)}) "
            f"{'was' if count == 1 else 'were'} recorded without individual kernels. nsys profile "
            "--cuda-graph-trace=node records them, at some cost per kernel."
        )
        yield Note("missing", "graphs-opaque", text, count)
    lost = _launches_without_work(tables)
    if lost and not _is_work_lost(damaged):
        wording = (
            "{n} CUDA graph [launch|launches] left no GPU record: [its|their] work is missing."
        )
        yield counted_note("missing", "graph-launches-lost", wording, lost)


def _launches_without_work(tables: Mapping[str, pa.Table]) -> int:
    """Return how many launches of graphs left nothing; twins of one launch share its number."""
    calls, activities = tables["calls"], tables["activities"]
    named = [place for place, name in enumerate(names(calls["name"])) if _LAUNCH in name]
    if not named or not activities.num_rows:
        return 0
    ids, done = (numbers(table["correlation"], ABSENT) for table in (calls, activities))
    launches = np.flatnonzero(np.isin(codes(calls["name"]), named) & (ids != ABSENT))
    work = np.flatnonzero(np.isin(done, ids[launches]))
    process = (numbers(calls["process"])[launches], numbers(activities["process"])[work])
    keys = joint_codes(np.concatenate(process), np.concatenate([ids[launches], done[work]]))
    launched = distinct(keys[: len(launches)])
    return int(np.count_nonzero(~np.isin(launched, keys[len(launches) :])))


def _nccl(odd: Counter[str]) -> Iterator[Note]:
    if odd["nccl-ranges"] and not odd["nccl-payloads"]:
        how = (
            "are exported only as bytes, which are not read"
            if odd["nccl-blobs"]
            else "are not in the export"
        )
        text = f"NCCL annotated its collectives, but their sizes {how}. {EXPORT} writes them."
        yield Note("missing", "nccl-sizes", text, odd["nccl-ranges"])


def _operators(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    """Say that operators have no shapes, or shapes and no types."""
    ops = tables["ops"]
    if not ops.num_rows:
        return
    if ops["input_dims"].null_count == ops.num_rows:
        text = (
            "Operators have no shapes, so their FLOPs cannot be counted. Record with "
            "torch.autograd.profiler.emit_nvtx(record_shapes=True)."
        )
        yield Note("missing", "no-shapes", text)
    else:
        text = (
            "PyTorch ranges hold operator shapes but no data types. The data type of a GEMM is "
            "taken from its kernel name."
        )
        yield Note("assumed", "types-by-name", text)


def _devices(tables: Mapping[str, pa.Table], *, ambiguous: bool) -> Iterator[Note]:
    devices = tables["devices"]
    unknown = devices["product"].null_count
    if not unknown:
        return
    if ambiguous:
        text = (
            "The export lists different GPUs and not which one a process used. MFU needs --device "
            "or --peak."
        )
    else:
        text = "The export does not name the GPU. MFU needs --device or --peak."
    yield Note("missing", "gpu-unknown", text, unknown)

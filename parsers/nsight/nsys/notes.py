"""What the reader of a report must know about how an export of Nsight Systems was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.columns import codes, names, numbers
from traceflops.parsers.overflow import overflow_notes
from traceflops.parsers.times import span_notes
from traceflops.rows import ABSENT
from traceflops.trace import Note, NoteKind
from traceflops.words import several, time_amount

EXPORT: Final = "nsys export --type=sqlite --include-json=true REPORT.nsys-rep"

_COUNTED: Final[Mapping[str, tuple[NoteKind, str, str]]] = {
    "open-range": (
        "repaired",
        "range",
        "without an end: still open when the recording stopped, so it ends with the last record",
    ),
    "unnamed": ("missing", "range", "without a text: the text is not in the export"),
    "copy-kind": ("missing", "copy", "of a kind that is not known: no direction"),
    "metrics-left-out": ("dropped", "sample", "of GPU metrics left out to save memory"),
}
_NO_CALLS: Final = (
    "No CUDA API calls are in the export, so device work cannot be linked to what launched it; "
    "nsys profile --trace=cuda records them."
)
_LAUNCH: Final = "GraphLaunch"


def content_notes(
    tables: Mapping[str, pa.Table],
    odd: Counter[str],
    overflowed: Sequence[str],
    file: str,
    *,
    ambiguous: bool,
) -> tuple[Note, ...]:
    """Return the notes on records: what was repaired, dropped, assumed or is missing."""
    found = [
        *span_notes(odd),
        *_counted(odd),
        *_work(tables),
        *_calls(tables),
        *_graphs(tables),
        *_nccl(odd),
        *_operators(tables),
        *_devices(tables, ambiguous=ambiguous),
        *_processes(tables),
        *overflow_notes(overflowed, file),
    ]
    return tuple(Note(n.kind, n.code, n.text, n.count, file) for n in found)


def _counted(odd: Counter[str]) -> Iterator[Note]:
    for code, (kind, noun, sentence) in _COUNTED.items():
        if odd[code]:
            yield Note(kind, code, f"{several(odd[code], noun)} {sentence}.", odd[code])
    if odd["device-unknown"]:
        text = "Some records do not say on which GPU they ran; they are shown as of device -1."
        yield Note("assumed", "device-unknown", text, odd["device-unknown"])


def _work(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    if tables["activities"].num_rows:
        return
    launched = tables["calls"].num_rows
    lost = (
        f"{launched:,} CUDA calls are there, so the driver lost the records of the device or was "
        "not allowed to make them."
        if launched
        else "It was recorded without CUDA tracing: nsys profile --trace=cuda,nvtx records it."
    )
    yield Note("missing", "no-device-work", f"No kernel, copy or graph is in the export. {lost}")


def _calls(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    if tables["activities"].num_rows and not tables["calls"].num_rows:
        yield Note("missing", "no-calls", _NO_CALLS)


def _graphs(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    """Say what runs inside graphs that is not seen, and which launches of graphs have no record."""
    activities = tables["activities"]
    kinds = names(activities["kind"])
    replays = codes(activities["kind"]) == (kinds.index("graph") if "graph" in kinds else -2)
    if replays.any():
        length = int(numbers(activities["dur_ns"])[replays].sum())
        text = (
            f"{several(int(replays.sum()), 'replay')} of CUDA graphs ({time_amount(length)}) were "
            "recorded as a whole: which kernels ran in them is unknown. nsys profile "
            "--cuda-graph-trace=node records each kernel (at some cost per kernel)."
        )
        yield Note("missing", "graphs-opaque", text, int(replays.sum()))
    lost = _launches_without_work(tables)
    if lost:
        text = (
            f"CUDA graphs were launched {several(lost, 'time')} without a record on the device: "
            "what they ran is missing."
        )
        yield Note("missing", "graph-launches-lost", text, lost)


def _launches_without_work(tables: Mapping[str, pa.Table]) -> int:
    calls, activities = tables["calls"], tables["activities"]
    named = [place for place, name in enumerate(names(calls["name"])) if _LAUNCH in name]
    if not named or not activities.num_rows:
        return 0
    launches = np.isin(codes(calls["name"]), named)
    wanted = numbers(calls["correlation"], ABSENT)[launches]
    return int(np.count_nonzero(~np.isin(wanted, numbers(activities["correlation"], ABSENT))))


def _nccl(odd: Counter[str]) -> Iterator[Note]:
    if odd["nccl-ranges"] and not odd["nccl-payloads"]:
        text = (
            "NCCL marked its collectives, but how much they moved is not in this export; "
            f"{EXPORT} writes it."
        )
        yield Note("missing", "nccl-sizes", text, odd["nccl-ranges"])


def _operators(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    """Say that operators have no shapes, or shapes and no types."""
    ops = tables["ops"]
    if not ops.num_rows:
        return
    if ops["input_dims"].null_count == ops.num_rows:
        text = (
            "Operators carry no shapes, so FLOPs cannot be counted from them; record with "
            "torch.autograd.profiler.emit_nvtx(record_shapes=True)."
        )
        yield Note("missing", "no-shapes", text)
    else:
        text = (
            "Ranges of PyTorch hold the shapes of operators and not their data types: the data "
            "type of a product is what the name of its kernel tells."
        )
        yield Note("assumed", "types-by-name", text)


def _devices(tables: Mapping[str, pa.Table], *, ambiguous: bool) -> Iterator[Note]:
    devices = tables["devices"]
    unknown = devices["product"].null_count
    if not unknown:
        return
    if ambiguous:
        text = (
            "GPUs of several kinds are listed, and the export does not say which of them a process "
            "used: --device names it."
        )
    else:
        text = "The export does not say which GPU this is; --device names it. Without it no MFU."
    yield Note("missing", "gpu-unknown", text, unknown)


def _processes(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    ranks = tables["processes"]["rank"]
    if len(ranks) > 1 and ranks.null_count:
        text = (
            f"The export holds {len(ranks)} processes and not which ranks they are: they are shown "
            "by process id."
        )
        yield Note("missing", "rank-unknown", text, ranks.null_count)

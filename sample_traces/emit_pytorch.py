"""Writes a simulated run as the PyTorch profiler (Kineto) would."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sample_traces.kineto_device import DeviceEvents
from sample_traces.kineto_host import Event, ExternalIds, HostEvents
from sample_traces.kineto_text import Document, KinetoOptions, Numbers, render
from sample_traces.machines import MACHINES, Machine
from sample_traces.parallel import all_groups
from sample_traces.program import streams_of
from sample_traces.records import RankRun, Run

__all__ = ["KinetoOptions", "kineto_document", "kineto_text", "write_pytorch"]

_SUFFIX: Final = {"none": ".json", "gzip": ".json.gz", "zip": ".zip"}
_LEGACY: Final = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "python_function": "Python",
    "cuda_runtime": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
_DEFAULT: Final = KinetoOptions()


def kineto_document(run: Run, rank: int, options: KinetoOptions = _DEFAULT) -> Document:
    """Return the file of one rank as nested data; numbers with decimals are `Digits`."""
    record = next(one for one in run.ranks if one.rank == rank)
    numbers = Numbers(record, options)
    machine = MACHINES[run.config.machine]
    header = _header(run, numbers)
    events = {"traceEvents": list(_events(record, numbers, machine))}
    closing: Document = {"traceName": f"./traces/rank{rank}.json"}
    if options.metadata == "after":
        return events | header | closing
    return header | events | closing


def kineto_text(run: Run, rank: int, options: KinetoOptions = _DEFAULT) -> str:
    """Return the text of the file of one rank."""
    return render(kineto_document(run, rank, options), options.style)


def write_pytorch(
    run: Run, folder: Path, options: KinetoOptions = _DEFAULT, stem: str = "rank{rank}"
) -> list[Path]:
    """Write one file per rank and return their paths; the same run gives the same bytes."""
    paths = []
    for record in run.ranks:
        name = stem.format(rank=record.rank)
        path = folder / (name + _SUFFIX[options.compression])
        text = kineto_text(run, record.rank, options).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_compressed(text, f"{path.stem}.json", options))
        paths.append(path)
    return paths


def _compressed(text: bytes, name: str, options: KinetoOptions) -> bytes:
    if options.compression == "gzip":
        return gzip.compress(text, mtime=0)
    if options.compression == "none":
        return text
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        # A fixed date, or the bytes would depend on the day.
        entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
        archive.writestr(entry, text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _header(run: Run, numbers: Numbers) -> Document:
    options = numbers.options
    header: Document = {"schemaVersion": 1, "deviceProperties": _devices(run)}
    header |= MACHINES[run.config.machine].versions
    flags = {
        "record_shapes": options.shapes,
        "profile_memory": options.memory,
        "with_stack": options.python_functions,
    }
    header |= {name: 1 for name, on in flags.items() if on}
    header["trace_id"] = f"{run.config.seed:016X}{numbers.rank.rank:016X}"
    if options.rank_metadata and run.config.ranks > 1:
        header["distributedInfo"] = _distributed(run, numbers.rank)
    header["displayTimeUnit"] = "ms"
    if options.times == "base":
        header["baseTimeNanoseconds"] = numbers.base_unix_ns
    return header


def _devices(run: Run) -> list[dict[str, Any]]:
    properties = MACHINES[run.config.machine].properties
    return [{"id": device, **properties} for device in range(run.config.ranks)]


def _distributed(run: Run, rank: RankRun) -> dict[str, Any]:
    groups = [
        {
            "pg_name": group.name,
            "pg_desc": group.description,
            "backend_config": "cuda:nccl",
            "pg_size": group.size,
            "ranks": list(group.ranks),
        }
        for group in all_groups(run.config)
        if rank.rank in group.ranks
    ]
    return {
        "backend": "nccl",
        "rank": rank.rank,
        "world_size": run.config.ranks,
        "pg_count": len(groups),
        "pg_config": groups,
        "nccl_version": "2.27.5",
    }


def _events(rank: RankRun, numbers: Numbers, machine: Machine) -> Iterator[Event]:
    ids = ExternalIds.of(rank)
    host = HostEvents(rank, numbers, ids)
    launching = {activity.call for activity in rank.activities if activity.call is not None}
    recorded = [*host, *host.calls(launching), *DeviceEvents(rank, numbers, ids, machine)]
    for event in recorded:
        if numbers.options.legacy:
            event = _legacy(event)
        yield event
    yield from _names(rank, numbers)
    yield from _service(rank, numbers)


def _legacy(event: Event) -> Event:
    return event | {"cat": _LEGACY.get(event["cat"], event["cat"])}


def _names(rank: RankRun, numbers: Numbers) -> Iterator[Event]:
    yield from _process(rank, numbers, rank.process, "CPU", rank.process)
    yield from _process(
        rank, numbers, numbers.device, f"GPU {numbers.device}", 5_000_000 + numbers.device
    )
    names = {rank.main_thread: "python3", rank.backward_thread: "pt_autograd_0"}
    for thread, name in names.items():
        label = f"thread {thread} ({name})"
        yield _name(numbers, "thread_name", rank.process, numbers.thread(thread), "name", label)
    for stream in streams_of(rank):
        place = numbers.stream(stream)
        yield _name(numbers, "thread_name", numbers.device, place, "name", f"stream {stream} ")


def _process(
    rank: RankRun, numbers: Numbers, process: int, label: str, order: int
) -> Iterator[Event]:
    yield _name(numbers, "process_name", process, 0, "name", "python3")
    yield _name(numbers, "process_labels", process, 0, "labels", label)
    yield _name(numbers, "process_sort_index", process, 0, "sort_index", order)


def _name(
    numbers: Numbers, name: str, process: int, thread: int | str, key: str, value: int | str
) -> Event:
    return {
        "name": name,
        "ph": "M",
        "ts": numbers.time(0),
        "pid": process,
        "tid": thread,
        "args": {key: value},
    }


def _service(rank: RankRun, numbers: Numbers) -> Iterator[Event]:
    """Yield what Kineto writes about itself."""
    begin, end = numbers.time(0), numbers.time(rank.end_ns)
    yield {
        "ph": "X",
        "cat": "Trace",
        "ts": begin,
        "dur": numbers.duration(rank.end_ns),
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "name": "PyTorch Profiler (0)",
        "args": {"Op count": 0},
    }
    yield {
        "name": "Iteration Start: PyTorch Profiler",
        "ph": "i",
        "s": "g",
        "pid": "Traces",
        "tid": "Trace PyTorch Profiler",
        "ts": begin,
    }
    yield {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": end}

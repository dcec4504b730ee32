"""Reports of `nsys stats` as CSV: every record of the device, of the host, of NVTX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final, Literal

from sample_traces.machines import MACHINES
from sample_traces.nsight.hostrows import full_name
from sample_traces.nsight.names import demangled
from sample_traces.nsight.nsys import stem_of
from sample_traces.nsight.session import CONTEXT, NsightOptions, Session, sessions
from sample_traces.records import Activity, Mark, RankRun, Run

Unit = Literal["ns", "us", "ms", "sec"]
Release = Literal["2021", "2025"]
Cell = str | int | Decimal

POWERS: Final[dict[Unit, int]] = {"ns": 0, "us": 3, "ms": 6, "sec": 9}
_FILES: Final[dict[Release, dict[str, str]]] = {
    "2021": {"work": "gputrace", "calls": "cudaapitrace", "ranges": "nvtxpptrace"},
    "2025": {
        "work": "cuda_gpu_trace",
        "calls": "cuda_api_trace",
        "ranges": "nvtx_pushpop_trace",
    },
}
_SIZES: Final = ("GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ")
_WORK: Final[dict[Release, tuple[str, ...]]] = {
    "2021": (
        *("Start{unit}", "Duration{unit}", "CorrId", *_SIZES, "Reg/Trd", "StcSMem (MB)"),
        *("DymSMem (MB)", "Bytes (MB)", "Thru (MB/s)", "SrcMemKd", "DstMemKd", "Device", "Ctx"),
        *("Strm", "Name"),
    ),
    "2025": (
        *("Start{unit}", "Duration{unit}", "CorrId", *_SIZES, "Reg/Trd", "StcSMem (MB)"),
        *("DymSMem (MB)", "Bytes (MB)", "Throughput (MB/s)", "SrcMemKd", "DstMemKd", "Device"),
        *("Ctx", "GreenCtx", "Strm", "Name"),
    ),
}
_CALLS: Final[dict[Release, tuple[str, ...]]] = {
    "2021": ("Start{unit}", "Duration{unit}", "Name", "Result", "CorrID", "Pid", "Tid", "T-Pri"),
    "2025": (
        *("Start{unit}", "Duration{unit}", "Name", "Result", "CorrID", "Pid", "Tid", "T-Pri"),
        "Thread Name",
    ),
}
_RANGES: Final = (
    *("Start{unit}", "End{unit}", "Duration{unit}", "DurChild{unit}", "DurNonChild{unit}"),
    *("Name", "PID", "TID", "Lvl", "NumChild", "RangeId", "ParentId", "RangeStack"),
)
_WAYS: Final[dict[Release, dict[str, str]]] = {
    "2021": {"HtoD": "HtoD", "DtoH": "DtoH"},
    "2025": {"HtoD": "Host-to-Device", "DtoH": "Device-to-Host"},
}
_MEMORY: Final = {"HtoD": ("Pinned", "Device"), "DtoH": ("Device", "Pinned")}
_PER_MB: Final = 1_000_000


def write_traces(
    run: Run,
    folder: Path,
    options: NsightOptions,
    release: Release = "2025",
    unit: Unit = "ns",
    together: bool = False,
) -> list[Path]:
    """Write the reports of all records, for each rank or of all processes."""
    header = f" ({unit})"
    paths = []
    for session in sessions(run, options, together):
        rows: dict[str, tuple[Sequence[str], Iterable[Sequence[Cell]]]] = {
            "work": (_WORK[release], _works(session, release, unit))
        }
        if options.calls:
            rows["calls"] = (_CALLS[release], _calls(session, release, unit))
        if options.markers != "none":
            rows["ranges"] = (_RANGES, _ranges(session, unit))
        for what, (columns, lines) in rows.items():
            named = [column.format(unit=header) for column in columns]
            path = folder / f"{stem_of(session, together)}_{_FILES[release][what]}.csv"
            paths.append(save(path, [named, *lines]))
    return paths


def save(path: Path, rows: Iterable[Sequence[Cell]]) -> Path:
    """Write a table, with quotes where a cell needs them, and return its path."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.getvalue().encode())
    return path


def amount(time_ns: int, unit: Unit) -> Cell:
    """Return a time in a unit, all its digits: ns are whole numbers."""
    return Decimal(time_ns).scaleb(-POWERS[unit]) if POWERS[unit] else time_ns


def operation(activity: Activity, release: Release) -> str:
    """Return how a copy or a fill is called, of a kernel its name."""
    work = activity.work
    if work.kind == "memcpy":
        return f"[CUDA memcpy {_WAYS[release][work.direction or '']}]"
    return "[CUDA memset]" if work.kind == "memset" else demangled(work.name)


def _works(session: Session, release: Release, unit: Unit) -> Iterator[tuple[Cell, ...]]:
    product = MACHINES[session.run.config.machine].product
    placed = [(session.time(r, a.start_ns), r, a) for r in session.ranks for a in r.activities]
    for start_ns, rank, activity in sorted(placed, key=lambda one: one[0]):
        work = activity.work
        if work.kind == "graph":
            raise ValueError("this report leaves out replays of graphs; simulate their kernels")
        is_kernel = work.kind == "kernel"
        sizes: tuple[Cell, ...] = (*work.grid, *work.block, work.registers, "0.000")
        place: tuple[Cell, ...] = (CONTEXT, "", activity.stream)
        yield (
            amount(start_ns, unit),
            amount(activity.dur_ns, unit),
            activity.correlation,
            *(sizes if is_kernel else ("",) * 8),
            megabytes(work.shared_bytes) if is_kernel else "",
            *(("", "") if is_kernel else (megabytes(work.bytes), _throughput(activity))),
            *_MEMORY.get(work.direction or "", ("", "Device" if work.kind == "memset" else "")),
            f"{product} ({session.device(rank)})",
            *(place if release == "2025" else (CONTEXT, activity.stream)),
            operation(activity, release),
        )


def megabytes(bytes_: int) -> str:
    """Return bytes in MB with three decimals, as the reports have them."""
    return f"{bytes_ // 1000 / 1000:.3f}"


def _throughput(activity: Activity) -> str:
    """Return what the report says: whole MB divided by whole ms, so that it is often too low."""
    seconds = max(1, activity.dur_ns) / 1_000_000_000
    return f"{activity.work.bytes / _PER_MB / seconds:.3f}"


def _calls(session: Session, release: Release, unit: Unit) -> Iterator[tuple[Cell, ...]]:
    for rank in session.ranks:
        for call in rank.calls:
            thread = ("python3",) if release == "2025" else ()
            yield (
                amount(session.time(rank, call.start_ns), unit),
                amount(call.dur_ns, unit),
                full_name(call.name).partition("_v")[0],
                0,
                call.correlation,
                rank.process,
                call.thread,
                20,
                *thread,
            )


def _ranges(session: Session, unit: Unit) -> Iterator[tuple[Cell, ...]]:
    number = 0
    for rank in session.ranks:
        for mark in marked(session.options, rank):
            number += 1
            start_ns = session.time(rank, mark.start_ns)
            times = start_ns, start_ns + mark.dur_ns, mark.dur_ns, 0, mark.dur_ns
            place: tuple[Cell, ...] = (rank.process, mark.thread, 0, 0, number, "", f":{number}")
            yield (*(amount(time_ns, unit) for time_ns in times), mark.name, *place)


def marked(options: NsightOptions, rank: RankRun) -> Iterator[Mark]:
    """Give the marks that are recorded as ranges."""
    kinds = {"none": (), "steps": ("step",), "all": ("step", "annotation")}[options.markers]
    return (mark for mark in rank.marks if mark.kind in kinds)

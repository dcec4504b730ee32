"""rocprofv2: a CSV per domain and process, an empty line after each header, names truncated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from sample_traces.kineto_text import Digits
from sample_traces.records import Run
from sample_traces.rocprof.capture import Capture, HostRange, captures
from sample_traces.rocprof.names import Cell, line, save, truncated
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.v1_csv import OBJECT, WAVE
from sample_traces.rocprof.v1_json import COPY_NAMES, FILL_NAME

Columns = Literal["5.7", "6.0"]
Row = tuple[Cell, ...]

_KERNEL_COLUMNS: Final[dict[Columns, tuple[str, ...]]] = {
    "5.7": (
        *("Dispatch_ID", "GPU_ID", "Queue_ID", "Queue_Index", "PID", "TID", "GRD", "WGR", "LDS"),
        *("SCR", "Arch_VGPR", "ACCUM_VGPR", "SGPR", "Wave_Size", "SIG", "OBJ", "Kernel_Name"),
        *("Start_Timestamp", "End_Timestamp", "Correlation_ID"),
    ),
    "6.0": (
        *("Dispatch_ID", "GPU_ID", "Queue_ID", "PID", "TID", "Grid_Size", "Workgroup_Size"),
        *("LDS_Per_Workgroup", "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR"),
        *("Wave_Size", "Kernel_Name", "Start_Timestamp", "End_Timestamp", "Correlation_ID"),
    ),
}
_SAME: Final = {
    "GRD": "Grid_Size",
    "WGR": "Workgroup_Size",
    "LDS": "LDS_Per_Workgroup",
    "SCR": "Scratch_Per_Workitem",
    "ACCUM_VGPR": "Accum_VGPR",
}
_OPS: Final = (
    *("Domain", "Operation", "Kernel_Name", "Start_Timestamp", "Stop_Timestamp"),
    "Correlation_ID",
)
_CALLS: Final = ("Domain", "Function", "Start_Timestamp", "End_Timestamp", "Correlation_ID")
_MARKERS: Final = ("Domain", "ROCTX_ID", "Message", "Timestamp")


def write_v2_csv(
    run: Run, folder: Path, options: RocprofOptions, columns: Columns = "6.0"
) -> list[Path]:
    """Write the files of a kernel trace; copies, calls and markers beside it as asked for."""
    paths = []
    for one in captures(run, options):
        header = [*_KERNEL_COLUMNS[columns], *_counter_names(one)]
        paths.append(_save(folder, "results", one, header, _kernels(one, header)))
        paths += _others(folder, one, _copies(one))
    return paths


def write_v2_ops_csv(run: Run, folder: Path, options: RocprofOptions) -> list[Path]:
    """Write the files of a HIP trace alone: kernels stand in the trace of operations."""
    paths = []
    for one in captures(run, options):
        operations = sorted([*_copies(one), *_operations(one)], key=_stop)
        paths += _others(folder, one, operations)
    return paths


def _save(
    folder: Path, what: str, capture: Capture, header: Iterable[str], rows: Iterable[Row]
) -> Path:
    text = ",".join(header) + "\n\n" + "".join(map(line, rows))
    return save(folder / f"{what}_{capture.process}.csv", text)


def _others(folder: Path, capture: Capture, operations: list[Row]) -> list[Path]:
    """Write what stands beside the kernels, as far as there is any."""
    files = {
        "hcc_ops_trace": (_OPS, operations),
        "hip_api_trace": (_CALLS, [_call(one) for one in capture.of("hip")]),
        "roctx_trace": (_MARKERS, _pushes_and_pops(capture.of("marker"))),
    }
    return [
        _save(folder, what, capture, header, rows) for what, (header, rows) in files.items() if rows
    ]


def _counter_names(capture: Capture) -> list[str]:
    return list(capture.dispatches[0].counters) if capture.dispatches else []


def _kernels(capture: Capture, header: Iterable[str]) -> Iterable[Row]:
    placed: Counter[int] = Counter()
    for one in capture.in_order_of_dispatch():
        width, height, depth = one.workgroup
        across, down, deep = one.grid
        everything: dict[str, Cell] = {
            "Dispatch_ID": one.dispatch_id,
            "GPU_ID": capture.node,
            "Queue_ID": one.queue,
            "Queue_Index": placed[one.queue],
            "PID": capture.process,
            "TID": one.thread,
            "Grid_Size": across * down * deep,
            "Workgroup_Size": width * height * depth,
            "LDS_Per_Workgroup": -(-one.work.shared_bytes // 512) * 512,
            "Scratch_Per_Workitem": 0,
            "Arch_VGPR": one.work.registers,
            "Accum_VGPR": 0,
            "SGPR": 112,
            "Wave_Size": WAVE,
            "SIG": Digits("0x0"),
            "OBJ": Digits(hex(OBJECT + 64 * one.kernel.kernel_id)),
            "Kernel_Name": truncated(one.kernel.name),
            "Start_Timestamp": one.start_ns,
            "End_Timestamp": one.end_ns,
            "Correlation_ID": one.correlation,
        }
        everything |= {name: Digits(f"{value}.000000") for name, value in one.counters.items()}
        placed[one.queue] += 2
        yield tuple(everything[_SAME.get(name, name)] for name in header)


def _copies(capture: Capture) -> list[Row]:
    return [
        (
            Digits("HIP_OPS_DOMAIN"),
            COPY_NAMES[one.work.direction or ""],
            Digits(""),
            one.start_ns,
            one.end_ns,
            one.correlation,
        )
        for one in capture.transfers
    ]


def _operations(capture: Capture) -> Iterable[Row]:
    for one in capture.dispatches:
        fill = one.work.sub == "memset"
        name = truncated(one.kernel.name)
        yield (
            Digits("HIP_OPS_DOMAIN"),
            FILL_NAME if fill else "KernelExecution",
            Digits("") if fill else name,
            one.start_ns,
            one.end_ns,
            one.correlation,
        )


def _stop(row: Row) -> int:
    return int(row[4])


def _call(one: HostRange) -> Row:
    return Digits("HIP_API_DOMAIN"), one.name, one.start_ns, one.end_ns, one.correlation


def _pushes_and_pops(marks: Iterable[HostRange]) -> list[Row]:
    """Return beginnings with their text and ends without, by time; both have the range's id."""
    rows: list[Row] = []
    for number, mark in enumerate(marks, start=1):
        domain = Digits("ROCTX_DOMAIN")
        rows.append((domain, number, mark.name, mark.start_ns))
        rows.append((domain, number, Digits(""), mark.end_ns))
    return sorted(rows, key=lambda row: int(row[3]))

"""Small CSV files as rocprof writes them, of each generation, and the traces they are read into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import traceflops as tf

V3_KERNELS = {
    "6.2": "Kind Agent_Id Queue_Id Kernel_Id Kernel_Name Correlation_Id Start_Timestamp"
    " End_Timestamp Private_Segment_Size Group_Segment_Size",
    "6.3": "Kind Agent_Id Queue_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id"
    " Start_Timestamp End_Timestamp Private_Segment_Size Group_Segment_Size",
    "7.0": "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name"
    " Correlation_Id Start_Timestamp End_Timestamp LDS_Block_Size Scratch_Size VGPR_Count"
    " Accum_VGPR_Count SGPR_Count",
    "converted": "Guid Kind Agent_Id Queue_Id Stream_Id Graph_Exec_Id Graph_Node_Id Thread_Id"
    " Dispatch_Id Kernel_Id Kernel_Name Correlation_Id Start_Timestamp End_Timestamp Duration"
    " Lds_Block_Size Scratch_Size Vgpr_Count Accum_Vgpr_Count Sgpr_Count",
}
SIZES = " ".join(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ")
API = "Domain Function Process_Id Thread_Id Correlation_Id Start_Timestamp End_Timestamp"
COPIES = "Kind Direction Source_Agent_Id Destination_Agent_Id Correlation_Id Start_Timestamp"
COUNTERS = (
    "Correlation_Id Dispatch_Id Agent_Id Queue_Id Process_Id Thread_Id Grid_Size Kernel_Id"
    " Kernel_Name Workgroup_Size LDS_Block_Size Scratch_Size VGPR_Count Accum_VGPR_Count"
    " SGPR_Count Counter_Name Counter_Value Start_Timestamp End_Timestamp"
)
V1_OLD = (
    "Index KernelName gpu-id queue-id queue-index pid tid grd wgr lds scr vgpr sgpr fbar sig obj"
)
V1_NEW = (
    "Index KernelName gpu-id queue-id queue-index pid tid grd wgr lds scr arch_vgpr accum_vgpr"
    " sgpr wave_size sig obj"
)
V1_TIMES = " DispatchNs BeginNs EndNs CompleteNs"
V2_57 = (
    "Dispatch_ID GPU_ID Queue_ID Queue_Index PID TID GRD WGR LDS SCR Arch_VGPR ACCUM_VGPR SGPR"
    " Wave_Size SIG OBJ Kernel_Name Start_Timestamp End_Timestamp Correlation_ID"
)
V2_60 = (
    "Dispatch_ID GPU_ID Queue_ID PID TID Grid_Size Workgroup_Size LDS_Per_Workgroup"
    " Scratch_Per_Workitem Arch_VGPR Accum_VGPR SGPR Wave_Size Kernel_Name Start_Timestamp"
    " End_Timestamp Correlation_ID"
)
AGENTS = (
    "Node_Id Logical_Node_Id Agent_Type Cu_Count Wave_Front_Size Num_Xcc Gfx_Target_Version"
    " Max_Engine_Clk_Ccompute Max_Engine_Clk_Fcompute Local_Mem_Size Name Product_Name"
)


def table(columns: str, rows: Iterable[Mapping[str, Any]], *, quoted: bool = True) -> str:
    """Return a CSV with these columns: texts in quotes that are not escaped, numbers bare.

    A row gives the cells by the names of columns in any case; what it lacks is 0.
    """
    names = columns.split()
    head = ",".join(f'"{name}"' if quoted else name for name in names)
    lines = [head]
    for row in rows:
        cells = {key.lower(): cell for key, cell in row.items()}
        lines.append(",".join(_cell(cells.get(name.lower(), 0)) for name in names))
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) and value != "None" else str(value)


def kernel(start: int | str, end: int | str, **more: Any) -> dict[str, Any]:
    """Return a row of a kernel trace of rocprofv3."""
    row: dict[str, Any] = {
        "Kind": "KERNEL_DISPATCH",
        "Agent_Id": "Agent 4",
        "Queue_Id": 1,
        "Stream_Id": 1,
        "Thread_Id": 77,
        "Kernel_Name": "gemm(float*)",
        "Start_Timestamp": start,
        "End_Timestamp": end,
        "VGPR_Count": 32,
        "Guid": "0000ddb5-1",
        **{f"Workgroup_Size_{axis}": size for axis, size in zip("XYZ", (64, 2, 1), strict=True)},
        **{f"Grid_Size_{axis}": size for axis, size in zip("XYZ", (1000, 8, 1), strict=True)},
    }
    return row | more


def kernels(*rows: Mapping[str, Any], release: str = "7.0") -> str:
    """Return a kernel trace of rocprofv3."""
    return table(f"{V3_KERNELS[release]} {SIZES}", rows)


def call(start: int, end: int, correlation: int = 0, **more: Any) -> dict[str, Any]:
    """Return a row of an API or marker trace of rocprofv3."""
    row: dict[str, Any] = {
        "Domain": "HIP_RUNTIME_API_EXT",
        "Function": "hipLaunchKernel",
        "Process_Id": 77,
        "Thread_Id": 78,
        "Correlation_Id": correlation,
        "Start_Timestamp": start,
        "End_Timestamp": end,
    }
    return row | more


def calls(*rows: Mapping[str, Any]) -> str:
    """Return an API or marker trace of rocprofv3."""
    return table(API, rows)


def copy(start: int, end: int, source: str, target: str, way: str, **more: Any) -> dict[str, Any]:
    """Return a row of a trace of memory copies."""
    row: dict[str, Any] = {
        "Kind": "MEMORY_COPY",
        "Direction": f"MEMORY_COPY_{way}",
        "Source_Agent_Id": source,
        "Destination_Agent_Id": target,
        "Start_Timestamp": start,
        "End_Timestamp": end,
    }
    return row | more


def copies(*rows: Mapping[str, Any]) -> str:
    """Return a trace of memory copies."""
    return table(COPIES + " End_Timestamp", rows)


def counter(dispatch: int, name: str, value: float, **more: Any) -> dict[str, Any]:
    """Return a row of counters of rocprofv3."""
    row: dict[str, Any] = {
        "Correlation_Id": dispatch,
        "Dispatch_Id": dispatch,
        "Agent_Id": "Agent 4",
        "Process_Id": 77,
        "Grid_Size": 8000,
        "Kernel_Name": "gemm(float*)",
        "Workgroup_Size": 128,
        "Counter_Name": name,
        "Counter_Value": f"{value:.6f}",
        "Start_Timestamp": 9 * dispatch,
        "End_Timestamp": 9 * dispatch + 5,
    }
    return row | more


def counters(*rows: Mapping[str, Any]) -> str:
    """Return counters of rocprofv3."""
    return table(COUNTERS, rows)


def v1_row(index: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    """Return a row of results.csv of rocprof v1."""
    row: dict[str, Any] = {
        "Index": index,
        "KernelName": "gemm(float*) [clone .kd]",
        "gpu-id": 2,
        "pid": 77,
        "tid": 78,
        "grd": 1024,
        "wgr": 64,
        "sig": "0x0",
        "obj": "0x7f00",
        "DispatchNs": start - 100,
        "BeginNs": start,
        "EndNs": end,
        "CompleteNs": end + 50,
    }
    return row | more


def agent(node: int, kind: str = "GPU", **more: Any) -> dict[str, Any]:
    """Return a row of a list of agents: an MI300X, or a processor."""
    row: dict[str, Any] = {
        "Node_Id": node,
        "Logical_Node_Id": node,
        "Agent_Type": kind,
        "Cu_Count": 304 if kind == "GPU" else 96,
        "Wave_Front_Size": 64,
        "Num_Xcc": 8,
        "Gfx_Target_Version": 90402,
        "Max_Engine_Clk_Ccompute": 3700,
        "Max_Engine_Clk_Fcompute": 2100,
        "Name": "gfx942",
        "Product_Name": "AMD Instinct MI300X" if kind == "GPU" else "AMD EPYC 9654",
    }
    return row | more


def agents(*rows: Mapping[str, Any]) -> str:
    """Return a list of agents."""
    return table(AGENTS, rows)


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files into a folder, names with folders in them too."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def read(folder: Path, files: Mapping[str, str | bytes]) -> tf.Trace:
    """Return the trace that the files of a folder are read into."""
    write(folder, files)
    return tf.read(folder)


def rows(trace: tf.Trace, name: str, *columns: str) -> list[Any]:
    """Return columns of a table as a list of rows; one column as a list of cells."""
    found = [trace.table(name)[column].to_pylist() for column in columns]
    return found[0] if len(found) == 1 else list(zip(*found, strict=True))


def codes(trace: tf.Trace) -> list[str]:
    """Return the codes of the notes."""
    return [note.code for note in trace.notes]

"""rocprofv3: a folder of CSV files per process, in the columns of each release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from sample_traces.kineto_text import Digits
from sample_traces.machines import MACHINES
from sample_traces.records import Run
from sample_traces.rocprof.agents import CPUS, Agent, agents
from sample_traces.rocprof.capture import Capture, Dispatch, HostRange, Transfer, captures
from sample_traces.rocprof.names import Cell, save, table, written
from sample_traces.rocprof.options import NameForm, RocprofOptions

Release = Literal["6.2", "6.3", "7.0"]
SIZES: Final = tuple(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ")
KERNELS: Final[dict[Release, tuple[str, ...]]] = {
    "6.2": (
        *("Kind", "Agent_Id", "Queue_Id", "Kernel_Id", "Kernel_Name", "Correlation_Id"),
        *("Start_Timestamp", "End_Timestamp", "Private_Segment_Size", "Group_Segment_Size"),
        *SIZES,
    ),
    "6.3": (
        *("Kind", "Agent_Id", "Queue_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id"),
        *("Kernel_Name", "Correlation_Id", "Start_Timestamp", "End_Timestamp"),
        *("Private_Segment_Size", "Group_Segment_Size", *SIZES),
    ),
    "7.0": (
        *("Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id"),
        *("Kernel_Name", "Correlation_Id", "Start_Timestamp", "End_Timestamp"),
        *("LDS_Block_Size", "Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count"),
        *SIZES,
    ),
}
COUNTERS: Final[dict[Release, tuple[str, ...]]] = {
    "6.2": (
        *("Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id"),
        *("Grid_Size", "Kernel_Name", "Workgroup_Size", "LDS_Block_Size", "Scratch_Size"),
        *("VGPR_Count", "SGPR_Count", "Counter_Name", "Counter_Value"),
    ),
    "6.3": (
        *("Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id"),
        *("Grid_Size", "Kernel_Id", "Kernel_Name", "Workgroup_Size", "LDS_Block_Size"),
        *("Scratch_Size", "VGPR_Count", "SGPR_Count", "Counter_Name", "Counter_Value"),
        *("Start_Timestamp", "End_Timestamp"),
    ),
    "7.0": (
        *("Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id"),
        *("Grid_Size", "Kernel_Id", "Kernel_Name", "Workgroup_Size", "LDS_Block_Size"),
        *("Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count", "Counter_Name"),
        *("Counter_Value", "Start_Timestamp", "End_Timestamp"),
    ),
}
_COPY_ENDS: Final = (
    *("Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id", "Start_Timestamp"),
    "End_Timestamp",
)
COPIES: Final[dict[Release, tuple[str, ...]]] = {
    "6.2": ("Kind", "Direction", *_COPY_ENDS),
    "6.3": ("Kind", "Direction", *_COPY_ENDS),
    "7.0": ("Kind", "Direction", "Stream_Id", *_COPY_ENDS),
}
RANGES: Final = (
    *("Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id"),
    *("Start_Timestamp", "End_Timestamp"),
)
FILES: Final = {"hip": "hip_api_trace", "rccl": "rccl_api_trace", "marker": "marker_api_trace"}
DOMAINS: Final[dict[Release, dict[str, str]]] = {
    "6.2": {"hip": "HIP_RUNTIME_API", "rccl": "RCCL_API", "marker": "MARKER_CORE_API"},
    "6.3": {"hip": "HIP_RUNTIME_API", "rccl": "RCCL_API", "marker": "MARKER_CORE_API"},
    "7.0": {"hip": "HIP_RUNTIME_API_EXT", "rccl": "RCCL_API", "marker": "MARKER_CORE_RANGE_API"},
}
DIRECTIONS: Final = {
    "HtoD": "MEMORY_COPY_HOST_TO_DEVICE",
    "DtoH": "MEMORY_COPY_DEVICE_TO_HOST",
}
NESTED: Final = {
    "sdma_fw_version": "uCodeSDMA",
    "fw_version": "uCode",
    "capability": "DoorbellType",
}
AGENT_WORDS: Final = (
    *("node_id", "logical_node_id", "type", "cpu_cores_count", "simd_count"),
    *("cpu_core_id_base", "simd_id_base", "max_waves_per_simd", "lds_size_in_kb"),
    *("gds_size_in_kb", "num_gws", "wave_front_size", "num_xcc", "cu_count", "array_count"),
    *("num_shader_banks", "simd_arrays_per_engine", "cu_per_simd_array", "simd_per_cu"),
    *("max_slots_scratch_cu", "gfx_target_version", "vendor_id", "device_id", "location_id"),
    *("domain", "drm_render_minor", "num_sdma_engines", "num_sdma_xgmi_engines"),
    *("num_sdma_queues_per_engine", "num_cp_queues", "max_engine_clk_ccompute"),
    *("max_engine_clk_fcompute", "sdma_fw_version", "fw_version", "capability"),
    *("cu_per_engine", "max_waves_per_cu", "family_id", "workgroup_max_size", "grid_max_size"),
    *("local_mem_size", "hive_id", "gpu_id", "workgroup_max_dim_x", "workgroup_max_dim_y"),
    *("workgroup_max_dim_z", "grid_max_dim_x", "grid_max_dim_y", "grid_max_dim_z", "name"),
    *("vendor_name", "product_name", "model_name"),
)


AgentForm = Literal["node", "logical", "type"]
"""An agent as a bare number, as "Agent 4", or as "GPU 2", counted within its type."""

Table = tuple[tuple[str, ...], list[list[Cell]]]
"""The columns of a file and its rows."""

_LDS_UNIT: Final = 512


def write_v3_csv(
    run: Run,
    folder: Path,
    options: RocprofOptions,
    release: Release = "7.0",
    agent_form: AgentForm | None = None,
) -> list[Path]:
    """Write `<host>/<pid>_<what>.csv` for each rank, as without --output-file."""
    form = agent_form or ("logical" if release == "7.0" else "node")
    nodes = agents(MACHINES[run.config.machine], run.config.ranks)
    paths = []
    for one in captures(run, options):
        made = {"agent_info": agent_table(nodes)}
        made |= tables(one, release, form, options)
        start = folder / options.host
        paths += [
            save(start / f"{one.process}_{what}.csv", table(*rows)) for what, rows in made.items()
        ]
    return paths


def agent_table(nodes: Iterable[Agent]) -> Table:
    """Return the columns and rows of the node's agents."""
    header = ["_".join(map(str.capitalize, word.split("_"))) for word in AGENT_WORDS]
    header[header.index("Type")] = "Agent_Type"
    return tuple(header), [[_agent_cell(agent, word) for word in AGENT_WORDS] for agent in nodes]


def _agent_cell(agent: Agent, word: str) -> Cell:
    if word == "type":
        return "GPU" if agent["type"] == 2 else "CPU"
    if word.endswith(("_x", "_y", "_z")):
        return int(agent[word[:-2]][word[-1]])
    value: Any = agent[word]
    return int(value[NESTED[word]]) if word in NESTED else value


def agent_text(node: int, form: AgentForm) -> Cell:
    """Return how an agent is named in a row."""
    if form == "node":
        return node
    if form == "logical":
        return f"Agent {node}"
    return f"CPU {node}" if node < CPUS else f"GPU {node - CPUS}"


def fixed(value: int) -> Digits:
    """Return a counter's value as rocprofv3 prints doubles."""
    return Digits(f"{value}.000000" if value >= 1 else "0.00000000e+00")


def tables(
    capture: Capture, release: Release, form: AgentForm, options: RocprofOptions
) -> dict[str, Table]:
    """Return the columns and rows of each file of one process that has any."""
    return _Tables(capture, release, form, options.names).files(options.times)


class _Tables(Struct, frozen=True):
    """Makes the tables of one process."""

    capture: Capture
    release: Release
    agent_form: AgentForm
    names: NameForm

    def files(self, timed: bool) -> dict[str, Table]:
        """Return the tables by the ends of their files' names, those without rows left out."""
        release, capture = self.release, self.capture
        kernels = capture.dispatches if timed else []
        made = {
            "kernel_trace": (
                KERNELS[release],
                [self._row(KERNELS[release], self._kernel(one)) for one in kernels],
            ),
            "memory_copy_trace": (
                COPIES[release],
                [self._row(COPIES[release], self._copy(one)) for one in capture.transfers],
            ),
            "counter_collection": (COUNTERS[release], list(self._counted())),
        }
        for domain, what in FILES.items():
            rows = [self._range(one) for one in capture.ranges if one.domain == domain]
            made[what] = RANGES, rows
        return {what: rows for what, rows in made.items() if rows[1]}

    def _row(self, header: Iterable[str], values: Mapping[str, Cell]) -> list[Cell]:
        return [values[name] for name in header]

    def _kernel(self, one: Dispatch) -> dict[str, Cell]:
        sizes = dict(zip(SIZES, (*one.workgroup, *one.grid), strict=True))
        block = -(-one.work.shared_bytes // _LDS_UNIT) * _LDS_UNIT
        return {
            "Kind": "KERNEL_DISPATCH",
            "Agent_Id": agent_text(self.capture.node, self.agent_form),
            "Queue_Id": one.queue,
            "Stream_Id": one.stream,
            "Thread_Id": one.thread,
            "Process_Id": self.capture.process,
            "Dispatch_Id": one.dispatch_id,
            "Kernel_Id": one.kernel.kernel_id,
            "Kernel_Name": written(one.kernel.name, self.names),
            "Correlation_Id": one.correlation,
            "Start_Timestamp": one.start_ns,
            "End_Timestamp": one.end_ns,
            "Private_Segment_Size": 0,
            "Group_Segment_Size": one.work.shared_bytes,
            "LDS_Block_Size": block,
            "Scratch_Size": 0,
            "VGPR_Count": one.work.registers,
            "Accum_VGPR_Count": 0,
            "SGPR_Count": 112,
            **sizes,
        }

    def _counted(self) -> Iterable[list[Cell]]:
        header = COUNTERS[self.release]
        for one in self.capture.in_order_of_dispatch():
            values = self._kernel(one)
            width, height, depth = one.workgroup
            across, down, deep = one.grid
            values |= {
                "Grid_Size": across * down * deep,
                "Workgroup_Size": width * height * depth,
            }
            for name, value in sorted(one.counters.items()):
                values |= {"Counter_Name": name, "Counter_Value": fixed(value)}
                yield self._row(header, values)

    def _copy(self, one: Transfer) -> dict[str, Cell]:
        return {
            "Kind": "MEMORY_COPY",
            "Direction": DIRECTIONS[one.work.direction or ""],
            "Stream_Id": one.stream,
            "Source_Agent_Id": agent_text(one.source, self.agent_form),
            "Destination_Agent_Id": agent_text(one.target, self.agent_form),
            "Correlation_Id": one.correlation,
            "Start_Timestamp": one.start_ns,
            "End_Timestamp": one.end_ns,
        }

    def _range(self, one: HostRange) -> list[Cell]:
        return [
            DOMAINS[self.release][one.domain],
            one.name,
            self.capture.process,
            one.thread,
            one.correlation,
            one.start_ns,
            one.end_ns,
        ]


_COUNTERS: Final = "counter_collection"


def write_converted_csv(run: Run, folder: Path, options: RocprofOptions) -> list[Path]:
    """Write `out_<what>.csv` for all ranks together."""
    nodes = agent_table(agents(MACHINES[run.config.machine], run.config.ranks))
    merged: dict[str, Table] = {}
    for one in captures(run, options):
        made = {"agent_info": nodes} | tables(one, "7.0", "logical", options)
        for what, (header, rows) in made.items():
            # The counters' first column is called Pid and holds the guid all the same, bare.
            first, guid = ("Pid", Digits(one.guid)) if what == _COUNTERS else ("Guid", one.guid)
            identified: list[list[Cell]] = [[guid, *row] for row in rows]
            merged.setdefault(what, ((first, *header), []))[1].extend(identified)
    start = folder / "rocpd-output-data"
    return [save(start / f"out_{what}.csv", table(*rows)) for what, rows in merged.items()]

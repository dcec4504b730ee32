"""The tables that rocprof writes as CSV, and how they are recognised by their columns.

Order and case of columns do not matter, so that tables of later releases, or saved again by other
programs, are recognised, too. A row of LAYOUTS is one generation of one table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from traceflops.parsers.io.csv_cells import Field, Kind
from traceflops.parsers.io.csv_text import Plan, Tables

V1, V2, V3, COMPUTE = "v1", "v2", "v3", "compute"
_WORDS: Final = re.compile("[^a-z0-9]+")
_COUNTER: Final = re.compile(r"([A-Z][A-Za-z0-9_]*?)((?:\[\d+\])*)")
_BLOCKS: Final = (
    *("ATC", "ATCL2", "CB", "CHA", "CHC", "CHCG", "CPC", "CPF", "CPG", "DB", "EA", "GCEA", "GCR"),
    *("GCATCL2", "GCUTCL2", "GCVML2", "GDS", "GE", "GL1A", "GL1C", "GL1CG", "GL2A", "GL2C"),
    *("GPU", "GRBM", "GRBMH", "GRBMSE", "GUS", "IA", "MC", "MCEA", "MCHUB", "MCVML2", "PA", "PASC"),
    *("PASU", "PC", "RLC", "RMI", "RPB", "SDMA", "SPI", "SQ", "SQC", "SQG", "SX", "TA", "TCA"),
    *("TCC", "TCP", "TCS", "TD", "UTCL1", "UTCL2", "VGT", "WD"),
)
"""Parts of the chip: the name of a hardware counter begins with its part and an underscore."""
_DERIVED: Final = re.compile(
    r"\w*(?:Busy\w*|Insts|Util\w*|Stalled\w*|CacheHit\w*|BankConflict|FetchSize|WriteSize"
    r"|Writes?32B|MfmaFlops\w*|Occupancy\w*|Wavefronts|Latency)"
    r"|(?:FETCH|WRITE)_SIZE|WRITE_REQ_32B|(?:CU|SE|SIMD|XCC)_NUM|CU_\w+|TOTAL_\d+_OPS"
    r"|MAX_WAVE_SIZE|\w+_(?:sum|avr|max|min)"
)
"""Names of what rocprof computes from hardware counters."""
_REPEATED: Final = re.compile(r"(.+)_\d+")
_BEGINNINGS: Final = (
    *("Kind", "Domain", "Correlation_Id", "Index", 'Pid"', "Pid,", "Guid", "GPU_ID", "Node_Id"),
    *("Dispatch_ID", "dispatch_id", "Name"),
)


class Layout(NamedTuple):
    """One table of one generation: the columns that it `needs` and `lacks`; others are optional.

    `what` is its kind (a key of _ROLES_OF), `name` rocprof's name for it.
    """

    what: str
    name: str
    generation: str
    release: str
    needs: str
    lacks: str = ""


def plain(name: str) -> str:
    """Return the name of a column in the one spelling in which releases agree."""
    return _WORDS.sub("", name.lower())


@cache
def _columns(names: str) -> frozenset[str]:
    return frozenset(map(plain, names.split()))


_V3_KERNEL: Final = "Kind Agent_Id Kernel_Name Start_Timestamp End_Timestamp"
_V1_KERNEL: Final = "Index KernelName gpu-id"
_V2_KERNEL: Final = "Dispatch_ID GPU_ID Kernel_Name Start_Timestamp End_Timestamp"
_LONG: Final = "Dispatch_Id Kernel_Name Counter_Name Counter_Value"
_CONVERTED: Final = "ROCm 7 (rocpd convert)"
_SUMMED: Final = "Name Calls Duration(nsec) Percent(inc) Min(nsec) Max(nsec)"
_R70: Final = "ROCm 7.0 or later"
LAYOUTS: Final = (
    Layout("kernels", "kernel_trace", V3, _CONVERTED, "Guid " + _V3_KERNEL),
    Layout("kernels", "kernel_trace", V3, _R70, "Stream_Id LDS_Block_Size " + _V3_KERNEL),
    Layout("kernels", "kernel_trace", V3, "ROCm 6.3 or 6.4", "Dispatch_Id Thread_Id " + _V3_KERNEL),
    Layout("kernels", "kernel_trace", V3, "ROCm 6.2", _V3_KERNEL),
    Layout("copies", "memory_copy", V3, _CONVERTED, "Guid Kind Direction Start_Timestamp"),
    Layout("copies", "memory_copy", V3, _R70, "Kind Direction Stream_Id Start_Timestamp"),
    Layout("copies", "memory_copy", V3, "ROCm 6.2 to 6.4", "Kind Direction Start_Timestamp"),
    Layout("graphs", "graph_launch", V3, _CONVERTED, "Kind Graph_Exec_Id Kernel_Dispatch_Count"),
    Layout("events", "hip_event", V3, _CONVERTED, "Kind Operation Event_Handle"),
    Layout("events", "memory_allocation", V3, "", "Kind Operation Allocation_Size"),
    Layout("scratch", "scratch_memory", V3, "", "Kind Operation Alloc_Flags"),
    Layout("events", "pc_sampling", V3, "", "Sample_Timestamp Exec_Mask"),
    Layout("events", "spm_counters", V3, "", "Counter_Name Counter_Value Timestamp"),
    Layout("counters", "counter_collection", V3, _CONVERTED, "Guid Process_Id " + _LONG),
    Layout("counters", "counter_collection", V3, _CONVERTED, "Pid Agent_Id " + _LONG),
    Layout("counters", "counter_collection", V3, "", "Agent_Id Process_Id " + _LONG),
    Layout("counters", "pmc_perf", COMPUTE, "rocprofv3 counters", "GPU_ID " + _LONG),
    Layout("calls", "api_trace", V3, _CONVERTED, "Guid Domain Function Start_Timestamp"),
    Layout("calls", "api_trace", V3, "", "Domain Function Process_Id Start_Timestamp"),
    Layout("agents", "agent_info", V3, "", "Node_Id Agent_Type Cu_Count"),
    Layout("totals", "stats", V3, "", "Name Calls TotalDurationNs Percentage MinNs MaxNs"),
    Layout("totals", "stats", V1, "", "Name Calls TotalDurationNs AverageNs Percentage"),
    Layout("totals", "summary", V3, "ROCm 7 (rocpd summary)", _SUMMED, "Process_Id"),
    Layout("calls", "api_trace", V2, "", "Domain Function Start_Timestamp End_Timestamp"),
    Layout("operations", "ops_trace", V2, "", "Domain Operation Start_Timestamp Stop_Timestamp"),
    Layout("pushes", "roctx_trace", V2, "", "Domain ROCTX_ID Message Timestamp"),
    Layout("kernels", "results", V1, "ROCm 5.3 or later", "arch_vgpr BeginNs EndNs " + _V1_KERNEL),
    Layout("kernels", "results", V1, "ROCm 5.2 or before", "BeginNs EndNs " + _V1_KERNEL),
    Layout("untimed", "results", V1, "ROCm 5.3 or later", "arch_vgpr " + _V1_KERNEL),
    Layout("untimed", "results", V1, "ROCm 5.2 or before", _V1_KERNEL),
    Layout("kernels", "results", V2, "ROCm 5.7", "GRD WGR " + _V2_KERNEL),
    Layout("kernels", "results", V2, "ROCm 6.0 or later", "PID Grid_Size " + _V2_KERNEL),
    Layout("kernels", "pmc_perf", COMPUTE, "", "Grid_Size " + _V2_KERNEL),
    Layout("system", "sysinfo", COMPUTE, "", "workload_name gpu_arch"),
    Layout("system", "sysinfo", COMPUTE, "", "workload_name gpu_soc"),
)
"""The first that fits counts."""


def _role(kind: Kind, *spellings: str) -> tuple[Kind, tuple[str, ...]]:
    return kind, tuple(map(plain, spellings))


_ROLES: Final = {
    "guid": _role("text", "Guid"),
    "pid": _role("integer", "Process_Id", "pid"),
    "thread": _role("integer", "Thread_Id", "tid"),
    "agent": _role("text", "Agent_Id", "gpu-id"),
    "queue": _role("integer", "Queue_Id", "Stream_Id"),
    "dispatch": _role("integer", "Dispatch_Id", "Index"),
    "correlation": _role("integer", "Correlation_Id"),
    "kernel": _role("text", "Kernel_Name", "KernelName"),
    "function": _role("text", "Function"),
    "message": _role("text", "Message"),
    "name": _role("text", "Name"),
    "start": _role("time", "Start_Timestamp", "BeginNs", "Timestamp"),
    "end": _role("time", "End_Timestamp", "Stop_Timestamp", "EndNs"),
    # Beside counters merged from several passes times are means, with decimals. Times of tables of
    # counters alone are not on the clock of a timeline: only their differences are used.
    "counted_from": _role("number", "Start_Timestamp", "BeginNs"),
    "counted_to": _role("number", "End_Timestamp", "EndNs"),
    "dispatched": _role("integer", "DispatchNs"),
    "domain": _role("text", "Domain"),
    "kind": _role("text", "Kind"),
    "operation": _role("text", "Operation"),
    "direction": _role("text", "Direction"),
    "source": _role("text", "Source_Agent_Id"),
    "target": _role("text", "Destination_Agent_Id"),
    "marker": _role("integer", "ROCTX_ID"),
    **{f"block_{axis}": _role("integer", f"Workgroup_Size_{axis}") for axis in "xyz"},
    **{f"grid_{axis}": _role("integer", f"Grid_Size_{axis}") for axis in "xyz"},
    "threads": _role("integer", "Grid_Size", "grd"),
    "block_threads": _role("integer", "Workgroup_Size", "wgr"),
    "registers": _role("integer", "VGPR_Count", "arch_vgpr", "vgpr"),
    "shared": _role("integer", "LDS_Block_Size", "LDS_Per_Workgroup", "Group_Segment_Size", "lds"),
    "private": _role(
        "integer", "Scratch_Size", "Scratch_Per_Workitem", "Private_Segment_Size", "scr"
    ),
    "graph": _role("integer", "Graph_Exec_Id"),
    "graph_node": _role("integer", "Graph_Node_Id"),
    "replay": _role("integer", "Replay_Pass"),
    "counter": _role("text", "Counter_Name"),
    "value": _role("number", "Counter_Value"),
    "calls": _role("integer", "Calls"),
    "total": _role("integer", "TotalDurationNs", "DURATION (nsec)"),
    "shortest": _role("integer", "MinNs", "MIN (nsec)"),
    "longest": _role("integer", "MaxNs", "MAX (nsec)"),
    "instance": _role("integer", "XCC_Index"),
    "completed": _role("integer", "CompleteNs"),
}
"""The role of a column, its kind, and how releases spell it, the usual spelling first."""
_PROCESS: Final = ("guid", "pid", "thread")
_WORK: Final = (*_PROCESS, "correlation", "start", "end")
_LAUNCH: Final = ("agent", "dispatch", "threads", "block_threads")
_LAUNCHED: Final = ("kernel", "correlation", "instance")
_ROLES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "kernels": (
        *(*_WORK, "kernel", "agent", "dispatch", "queue", "dispatched"),
        *("block_x", "block_y", "block_z", "grid_x", "grid_y", "grid_z"),
        *("registers", "shared", "private", "graph", "graph_node", "completed"),
    ),
    "copies": (*_WORK, "direction", "source", "target", "graph", "graph_node"),
    "graphs": (*_WORK, "agent", "queue", "graph"),
    "calls": (*_WORK, "function", "domain"),
    "scratch": (*_WORK, "agent", "queue", "operation"),
    "operations": (*_WORK, "kernel", "operation"),
    "pushes": (*_PROCESS, "message", "start", "marker"),
    "counters": (
        *(*_PROCESS, *_LAUNCH, *_LAUNCHED, "start", "replay", "counter", "value"),
        *("counted_from", "counted_to"),
    ),
    "wide": (*_PROCESS, *_LAUNCH, *_LAUNCHED, "counted_from", "counted_to"),
    "timed wide": (
        *(*_WORK, *_LAUNCH, "kernel", "queue", "dispatched", "registers", "shared"),
        "private",
        *("instance", "completed"),
    ),
    "untimed": ("dispatch",),
    "totals": ("name", "calls", "total", "shortest", "longest"),
    "events": ("kind", "counter", "dispatch"),
    "agents": (),
    "system": (),
}
"""The columns that are read of each kind of table; of agents and system all are read."""
_FREE: Final = ("function", "message", "kernel", "name", "direction")
"""The first of these that a table has may contain any text, even unquoted separators."""
_OTHERS: Final = _columns(
    "Guid Kernel_Id queue-index Group_Segment_Size"
    " Accum_VGPR_Count SGPR_Count lds vgpr arch_vgpr accum_vgpr sgpr fbar wave_size sig obj"
    " CompleteNs DurationNs Duration Accum_VGPR SGPR Wave_Size XCC_Index"
)
_KNOWN: Final = _OTHERS | {
    a_spelling for _, spellings in _ROLES.values() for a_spelling in spellings
}


def counters_in(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the counters of a wide table, a row per launch, with the indices of their columns.

    A counter has one column, or one per instance such as TCC_HIT[0]. With both, the one counts, as
    does TCC_HIT_sum: in merged tables instances are of another pass, and differ a little.
    """
    present = set(names)
    totals: dict[str, list[int]] = {}
    instances: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        repeated = _REPEATED.fullmatch(name)
        if repeated and repeated[1] in present:
            continue  # Wave_Size_10: the column of another pass that was joined to this table
        counter = _COUNTER.fullmatch(name)
        if counter is None or plain(name) in _KNOWN:
            continue
        # People add columns of their own: only names of rocprof's kinds are counters.
        part, underscore, _ = counter[1].partition("_")
        if (underscore and part in _BLOCKS) or _DERIVED.fullmatch(counter[1]):
            (instances if counter[2] else totals).setdefault(counter[1], []).append(index)
    alone = {name: own for name, own in instances.items() if f"{name}_sum" not in totals}
    return alone | {name: indices[:1] for name, indices in totals.items()}


def layout_of(names: Sequence[str]) -> Layout | None:
    """Return the layout of the table with these columns, None if it is not a table of rocprof."""
    columns = frozenset(map(plain, names))
    for layout in LAYOUTS:
        if _columns(layout.needs) <= columns and _columns(layout.lacks).isdisjoint(columns):
            return layout
    return None


class RocprofTable(NamedTuple):
    """A table: its layout, its kind (`what`, a key of _ROLES_OF), the fields of each counter.

    Roles name the fields of a table, "counter 7" those of a counter in column 7.
    """

    layout: Layout
    what: str
    counters: Mapping[str, tuple[str, ...]]


def _table_of(names: Sequence[str]) -> Plan | None:
    """Return which columns to read of the table with this header, None for other tools' tables."""
    layout = layout_of(names)
    if layout is None:
        return None
    if layout.what in ("agents", "system"):  # all columns
        fields = {name: Field(index, "text") for index, name in enumerate(names)}
        return Plan(len(names), fields, None, RocprofTable(layout, layout.what, {}))
    # Further columns may be counters, except for rocprofv3, which has a table for these.
    may_be_wide = layout.what in ("kernels", "untimed") and layout.generation != V3
    columns_of = counters_in(names) if may_be_wide else {}
    what = "wide" if columns_of else layout.what
    is_timed = layout.generation == V1 and layout.what == "kernels"

    # One field per role that the table has a column for; of two equal names the first counts.
    columns, fields = [*map(plain, names)], {}
    for role in _ROLES_OF["timed wide" if columns_of and is_timed else what]:
        kind, spellings = _ROLES[role]
        spelling = next((spelling for spelling in spellings if spelling in columns), None)
        if spelling is not None:
            fields[role] = Field(columns.index(spelling), kind)
    if what == "counters" and "guid" not in fields and "pid" in columns:
        # rocpd convert writes the run's guid into a column that it calls "pid".
        guid = columns.index("pid")
        fields = {role: field for role, field in fields.items() if field.place != guid}
        fields["guid"] = Field(guid, "text")
    fields = fields or {"row": Field(0, "text")}  # a plan needs one field to count rows
    free = next((fields[role].place for role in _FREE if role in fields), None)

    counters = {}
    for name, indices in columns_of.items():
        counters[name] = tuple(f"counter {index}" for index in indices)
        fields |= {f"counter {index}": Field(index, "number") for index in indices}
    return Plan(len(names), fields, free, RocprofTable(layout, what, counters))


ROCPROF_TABLES: Final = Tables(frozenset(_BEGINNINGS), _table_of)

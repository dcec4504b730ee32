"""The declared Arrow tables of a trace: every column with its type, unit and meaning.

All formats are read into these tables. A column that a source cannot fill is null, never 0.
Times are int64 nanoseconds on the trace's clock (see `Source.origin_unix_ns`).
"""

from __future__ import annotations

from functools import cache
from typing import Final

import pyarrow as pa
from msgspec import Struct

from traceflops.table.columns import NAME_TYPE

_TRIPLE = pa.list_(pa.int32(), 3)
DEVICE_KINDS: Final = ("kernel", "memcpy", "memset")
"""The kinds in the totals table that are work of devices."""


class Column(Struct, frozen=True):
    """One column: its name, Arrow type, unit and meaning, and whether it may be null."""

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    nullable: bool = True

    def field(self) -> pa.Field:
        """Return the Arrow field; unit and meaning travel as its metadata."""
        metadata = {"meaning": self.meaning}
        if self.unit:
            metadata["unit"] = self.unit
        return pa.field(self.name, self.type, self.nullable, metadata)


def _required(name: str, type_: pa.DataType, meaning: str, unit: str = "") -> Column:
    return Column(name, type_, meaning, unit, nullable=False)


_PROCESS = _required("process", pa.int32(), "row of the processes table")
_THREAD = Column("thread", pa.int64(), "operating-system thread id")
_NAME = _required("name", NAME_TYPE, "name exactly as the profiler wrote it")
_START = _required("start_ns", pa.int64(), "start on the trace's clock", "ns")
_DUR = _required("dur_ns", pa.int64(), "duration", "ns")
_CORRELATION = Column(
    "correlation",
    pa.int64(),
    "id shared by a call and the activities it launched, unique within a process; "
    "ids of 2^63 and above are stored modulo 2^64; of kind op, shared by the parts of an op",
)
_EXTERNAL = Column("external_id", pa.int64(), "the profiler's id of the op this belongs to")
_COLLECTIVE = (
    Column("collective", NAME_TYPE, "collective named by the framework (allreduce, ...)"),
    Column("collective_dtype", NAME_TYPE, "element type of the collective"),
    Column("collective_in_elements", pa.int64(), "elements this rank puts in", "elements"),
    Column("collective_out_elements", pa.int64(), "elements this rank gets out", "elements"),
    Column("collective_group", NAME_TYPE, "name of the process group"),
    Column("collective_group_size", pa.int64(), "ranks in the process group", "ranks"),
    Column("collective_group_ranks", NAME_TYPE, "ranks of the group as text, possibly shortened"),
    Column("collective_description", NAME_TYPE, "what the framework says the group is for"),
    Column("collective_sequence", pa.int64(), "number of the collective in its group"),
    Column(
        "collective_call",
        pa.int64(),
        "id of the collective that all its ranks have; ids of 2^63 and above are modulo 2^64",
    ),
    Column("collective_source", pa.int64(), "rank that sends, of a send or receive"),
    Column("collective_destination", pa.int64(), "rank that receives, of a send or receive"),
)
TABLES: dict[str, tuple[Column, ...]] = {
    "processes": (
        _PROCESS,
        Column("rank", pa.int32(), "rank in the job, null where the trace does not say"),
        Column("world_size", pa.int32(), "ranks in the job"),
        Column("host", NAME_TYPE, "host name; left out of everything that is shared"),
        Column("pid", pa.int64(), "operating-system process id"),
        _required("file", NAME_TYPE, "base name of the file it was read from"),
    ),
    "devices": (
        _required("device", pa.int32(), "row of this table"),
        _PROCESS,
        _required("local_id", pa.int64(), "device number as the process sees it"),
        _required("type", NAME_TYPE, "gpu, or cpu for the host of a CPU-only trace"),
        Column("product", NAME_TYPE, "product name"),
        Column("memory_bytes", pa.int64(), "memory of the device", "bytes"),
        Column("compute_major", pa.int32(), "compute capability or gfx version, major"),
        Column("compute_minor", pa.int32(), "compute capability or gfx version, minor"),
        Column("sm_count", pa.int32(), "streaming multiprocessors or compute units"),
        Column("warp_size", pa.int32(), "threads in a warp or wavefront"),
        Column("architecture", NAME_TYPE, "instruction set the device names itself (gfx942)"),
        Column("clock_hz", pa.int64(), "highest clock of the compute units", "Hz"),
        Column("dies", pa.int32(), "compute dies (XCC) the device spans; 1 in a CPX partition"),
    ),
    "activities": (
        _PROCESS,
        _required("device", pa.int32(), "row of the devices table"),
        Column("stream", pa.int64(), "queue on the device"),
        _required(
            "kind",
            NAME_TYPE,
            "kernel, memcpy, memset, graph; op: an operator, on a CPU or as timed by GPU events",
        ),
        _NAME,
        _START,
        _DUR,
        _CORRELATION,
        _EXTERNAL,
        Column("graph", pa.int64(), "id of the CUDA graph it was launched from"),
        Column("graph_node", pa.int64(), "node of that graph"),
        Column("bytes", pa.int64(), "bytes copied or set", "bytes"),
        Column(
            "direction",
            NAME_TYPE,
            "HtoD, DtoH, DtoD, PtoP, HtoH (or with A, an array) of a copy; before it `migration ` "
            "for unified memory",
        ),
        Column("grid", _TRIPLE, "blocks of the launch, x y z"),
        Column("block", _TRIPLE, "threads of a block, x y z"),
        Column("registers_per_thread", pa.int64(), "registers per thread", "registers"),
        Column("shared_memory_bytes", pa.int64(), "shared memory of a block", "bytes"),
        Column("scratch_bytes", pa.int64(), "scratch (private) memory of a thread", "bytes"),
        Column("occupancy_percent", pa.int64(), "occupancy estimated by the profiler", "%"),
        Column("annotation", NAME_TYPE, "annotation of its graph node, or op of XLA"),
        Column("source", NAME_TYPE, "lines of Python that a compiler generated it from"),
        *_COLLECTIVE,
    ),
    "calls": (
        _PROCESS,
        _THREAD,
        _NAME,
        _START,
        _DUR,
        _CORRELATION,
        _EXTERNAL,
        _required("api", NAME_TYPE, "runtime or driver; hip, hsa or rccl on AMD"),
        Column("kernel", NAME_TYPE, "kernel that a launch call names, as those of HIP do"),
        Column("grid", _TRIPLE, "grid of that launch as the call says it, x y z"),
        Column("block", _TRIPLE, "threads of a block of that launch, x y z"),
        Column("error_code", pa.int64(), "error returned, 0 for success; null if not recorded"),
    ),
    "ops": (
        _PROCESS,
        _THREAD,
        _NAME,
        _START,
        _DUR,
        _EXTERNAL,
        Column("sequence", pa.int64(), "autograd sequence number, unique per forward thread"),
        Column("forward_thread", pa.int64(), "profiler's number of the forward thread"),
        Column("input_dims", NAME_TYPE, "shapes of the inputs, JSON"),
        Column("input_types", NAME_TYPE, "types of the inputs, JSON"),
        Column("input_strides", NAME_TYPE, "strides of the inputs, JSON"),
        Column("concrete_inputs", NAME_TYPE, "values of scalar inputs as text, JSON"),
        Column("finished", pa.bool_(), "False where the op was still running at the end"),
        Column("generated_kernel", NAME_TYPE, "facts of a compiled (Inductor) kernel, JSON"),
        *_COLLECTIVE,
    ),
    "marks": (
        _PROCESS,
        _THREAD,
        Column("device", pa.int32(), "row of the devices table; null for marks on the host"),
        Column("stream", pa.int64(), "queue on the device"),
        _required(
            "kind",
            NAME_TYPE,
            "annotation, gpu_annotation, gpu_step (of the tool), python, module, system (a call of "
            "the operating system), sync, event, overhead, instant, page_fault (of a GPU, until "
            "it is served), graph_node (one was made; correlation is its id), sample (of a CPU: "
            "the innermost function then), off_cpu (the thread runs on no CPU)",
        ),
        _NAME,
        _START,
        _DUR,
        _CORRELATION,
        Column("input_dims", NAME_TYPE, "shapes of the inputs of what an annotation names, JSON"),
        Column("input_types", NAME_TYPE, "types of these inputs, JSON"),
        Column("python_id", pa.int64(), "the profiler's id of a python frame"),
        Column("python_parent", pa.int64(), "python_id of the calling frame"),
        Column("python_module", pa.int64(), "the profiler's id of the nn.Module"),
        Column("sync_kind", NAME_TYPE, "kind of wait (Stream Wait Event, ...)"),
        Column("wait_stream", pa.int64(), "stream whose event is waited for"),
        Column("wait_correlation", pa.int64(), "correlation of the recorded event waited for"),
    ),
    "counters": (
        _PROCESS,
        Column(
            "device",
            pa.int32(),
            "row of the devices table; null for the host and for a device without recorded work",
        ),
        _NAME,
        _required("time_ns", pa.int64(), "time on the trace's clock", "ns"),
        _required("value", pa.float64(), "value; unit as the counter's name says"),
        Column("address", pa.int64(), "address of the block of memory, modulo 2^64"),
        Column("stack", NAME_TYPE, "frames of who allocated, innermost first, without folders"),
    ),
    "kernel_counters": (
        _PROCESS,
        Column("device", pa.int32(), "row of the devices table; null where it is not known"),
        _NAME,
        Column("dispatch", pa.int64(), "the profiler's number of the launch, unique per process"),
        Column("correlation", pa.int64(), "id shared with the call that launched it"),
        Column("repetition", pa.int32(), "pass of a run that was repeated to count more"),
        Column("threads", pa.int64(), "threads of the launch (work-items)", "threads"),
        Column("block_threads", pa.int64(), "threads of a block (work-group)", "threads"),
        Column("grid", _TRIPLE, "blocks of the launch, x y z"),
        Column("block", _TRIPLE, "threads of a block, x y z"),
        Column("dur_ns", pa.int64(), "how long the launch ran while it was counted", "ns"),
        _required("counter", NAME_TYPE, "name of the hardware counter"),
        _required("value", pa.float64(), "value; unit as the counter's name says"),
    ),
    "kernel_rules": (
        _PROCESS,
        Column("device", pa.int32(), "row of the devices table; null where it is not known"),
        _NAME,
        Column("dispatch", pa.int64(), "the profiler's number of the launch, unique per process"),
        Column("section", NAME_TYPE, "section of the profiler's report that the rule is part of"),
        Column("rule", NAME_TYPE, "the profiler's id of the rule"),
        Column("kind", NAME_TYPE, "INF (fact), OPT (what to do better), WRN or ERR"),
        Column("text", NAME_TYPE, "what the rule says of the launch"),
        Column("speedup_share", pa.float64(), "estimated speed-up, 0.8 for 80 %"),
        Column("speedup_kind", NAME_TYPE, "of what: global (the launch), local (a unit of it)"),
    ),
    "totals": (
        _PROCESS,
        _required(
            "kind",
            NAME_TYPE,
            "of what: kernel, memcpy, memset, call, mark, gpu_mark, domain (all of them)",
        ),
        _NAME,
        Column("count", pa.int64(), "records of that name", "records"),
        Column("total_ns", pa.int64(), "sum of their durations, overlaps counted twice", "ns"),
        Column("min_ns", pa.int64(), "shortest", "ns"),
        Column("max_ns", pa.int64(), "longest", "ns"),
        Column("bytes", pa.int64(), "bytes that they copied or set", "bytes"),
        Column("grid", _TRIPLE, "blocks of these launches, x y z"),
        Column("block", _TRIPLE, "threads of a block, x y z"),
    ),
}


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Return the declared Arrow schema of `table`."""
    return pa.schema([column.field() for column in TABLES[table]])


def empty_table(table: str) -> pa.Table:
    """Return `table` without rows."""
    return pa.Table.from_batches([], schema=arrow_schema(table))  # empty_table() imports pandas

"""What rocprof records of one process of a run: numbered, on the machine's clock, in any format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal
from uuid import NAMESPACE_OID, uuid5

from msgspec import Struct, field
from msgspec.structs import replace

from sample_traces.config import Dtype
from sample_traces.library import nccl_function
from sample_traces.program import COMMUNICATION, COMPUTE, COPY
from sample_traces.program import STREAMS as ALL_STREAMS
from sample_traces.records import Activity, RankRun, Run, Triple, Work
from sample_traces.rocprof.agents import node_of_rank
from sample_traces.rocprof.options import Markers, RocprofOptions

FLOPS_PER_MOP: Final = 512
_SMALLEST_REQUEST: Final = 32
_MATRIX: Final[dict[Dtype, str]] = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
_MATRIX_TYPES: Final = ("F16", "BF16", "F32", "F64", "F8")
_VECTOR: Final = tuple(
    f"SQ_INSTS_VALU_{what}_{type_}"
    for type_ in ("F16", "F32", "F64")
    for what in ("ADD", "MUL", "TRANS", "FMA")
)


def counters_of(work: Work, dtype: Dtype) -> dict[str, int]:
    """Return operations and requests to memory by the names that gfx942 has for them.

    All operations are those of matrix units, as in the simulator's own count.
    """
    units = -(-work.bytes // _SMALLEST_REQUEST)
    writes = units // 6
    wide, rest = divmod(units - 2 * writes, 4)
    middle, narrow = divmod(rest, 2)
    matrix = {f"SQ_INSTS_VALU_MFMA_MOPS_{type_}": 0 for type_ in _MATRIX_TYPES}
    matrix[f"SQ_INSTS_VALU_MFMA_MOPS_{_MATRIX[dtype]}"] = counted_flops(work) // FLOPS_PER_MOP
    return {
        **matrix,
        **dict.fromkeys(_VECTOR, 0),
        "TCC_BUBBLE_sum": wide,
        "TCC_EA0_RDREQ_sum": wide + middle + narrow,
        "TCC_EA0_RDREQ_32B_sum": narrow,
        "TCC_EA0_WRREQ_sum": writes,
        "TCC_EA0_WRREQ_64B_sum": writes,
    }


def counted_flops(work: Work) -> int:
    """Return the FLOPs that the counters say: rounded to whole matrix operations."""
    return (work.flops + FLOPS_PER_MOP // 2) // FLOPS_PER_MOP * FLOPS_PER_MOP


def counted_bytes(work: Work) -> int:
    """Return the bytes that the counters say: rounded up to whole requests."""
    return -(-work.bytes // _SMALLEST_REQUEST) * _SMALLEST_REQUEST


def instances(name: str, value: int, dies: int) -> list[int]:
    """Return a counter's value on each die; a sum over the device is one value already."""
    if name.endswith("_sum"):
        return [value]
    share, rest = divmod(value, dies)
    return [share + (place < rest) for place in range(dies)]


Domain = Literal["hip", "rccl", "marker"]

STREAMS: Final = {stream: number for number, stream in enumerate(ALL_STREAMS, start=1)}
QUEUES: Final = STREAMS | {COMPUTE: 2, COMMUNICATION: 3, COPY: 1}
"""rocprof's numbers of the streams, and of the hardware queues that they have for themselves."""

FIRST_KERNEL: Final = 11
_FIRST_OWN_ID: Final = 1_000_000
_COLLECTIVE_CALL_NS: Final = 200
_COMPLETION_NS: Final = 2_000
_START_UP_NS: Final = 2_500_000_000
_RCCL_TYPES: Final = {"BFloat16": "ncclBfloat16", "Half": "ncclFloat16", "Float": "ncclFloat32"}
_MARKED: Final[dict[Markers, tuple[str, ...]]] = {
    "none": (),
    "steps": ("step",),
    "all": ("step", "annotation"),
}
_COPY_KINDS: Final = {"HtoD": "hipMemcpyHostToDevice", "DtoH": "hipMemcpyDeviceToHost"}


class Symbol(Struct, frozen=True):
    """A kernel that the process has loaded; `work` is None where it never runs."""

    kernel_id: int
    name: str
    work: Work | None


class Dispatch(Struct, frozen=True):
    """One kernel that ran. Grid and workgroup are in work-items."""

    dispatch_id: int
    kernel: Symbol
    work: Work
    queue: int
    stream: int
    thread: int
    correlation: int
    submitted_ns: int
    start_ns: int
    end_ns: int
    graph_node: int
    counters: dict[str, int]

    @property
    def workgroup(self) -> Triple:
        """Work-items of a group."""
        return self.work.block

    @property
    def grid(self) -> Triple:
        """Work-items of the whole kernel."""
        (x, y, z), (width, height, depth) = self.work.grid, self.work.block
        return x * width, y * height, z * depth

    @property
    def completed_ns(self) -> int:
        """When the host's runtime heard that it had ended."""
        return self.end_ns + _COMPLETION_NS


class Transfer(Struct, frozen=True):
    """One copy by a copy engine; `source` and `target` are node numbers."""

    work: Work
    stream: int
    thread: int
    correlation: int
    start_ns: int
    end_ns: int
    source: int
    target: int


class HostRange(Struct, frozen=True):
    """One call or marker on a host thread; `arguments` as (type, name, value)."""

    domain: Domain
    name: str
    thread: int
    correlation: int
    start_ns: int
    end_ns: int
    arguments: tuple[tuple[str, str, str], ...] = ()


class Capture(Struct):
    """Everything of one process. Kernels and copies stand in the order in which they ended."""

    rank: int
    process: int
    node: int
    init_ns: int
    fini_ns: int
    dispatches: list[Dispatch] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    ranges: list[HostRange] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)

    @property
    def guid(self) -> str:
        """Identity of the process, as databases give it."""
        return str(uuid5(NAMESPACE_OID, f"{self.process}:{self.init_ns}"))

    def of(self, domain: Domain) -> list[HostRange]:
        """Return the calls or markers of one domain."""
        return [one for one in self.ranges if one.domain == domain]

    def in_order_of_dispatch(self) -> list[Dispatch]:
        """Return the kernels in the order in which they were asked for."""
        return sorted(self.dispatches, key=lambda one: one.dispatch_id)


def captures(run: Run, options: RocprofOptions) -> list[Capture]:
    """Return what rocprof records of each rank of a run."""
    if run.config.machine != "mi300x":
        raise ValueError("rocprof runs on AMD's devices: simulate one (on_mi300x)")
    if run.config.opaque_graph:
        raise ValueError("rocprof has no record of a whole graph; simulate its kernels instead")
    return [_Recorder(run, rank, options).capture() for rank in run.ranks]


def submitted_ns(rank: RankRun, activity: Activity) -> int:
    """Return when a kernel was put into its queue; of one without a call only that it was."""
    if activity.call is None:
        return activity.start_ns
    return min(activity.start_ns, rank.calls[activity.call].end_ns)


class _Recorder(Struct, frozen=True):
    run: Run
    rank: RankRun
    options: RocprofOptions

    @property
    def zero_ns(self) -> int:
        """The machine's clock at the run's time 0 on this rank."""
        skew_ns = self.rank.origin_unix_ns - self.run.ranks[0].origin_unix_ns
        return self.options.uptime_ns + skew_ns

    def capture(self) -> Capture:
        zero_ns = self.zero_ns
        found = Capture(
            self.rank.rank,
            self.rank.process,
            node_of_rank(self.rank.rank),
            zero_ns - _START_UP_NS,
            zero_ns + self.rank.end_ns,
        )
        found.symbols += _symbols(self.rank)
        found.dispatches += sorted(self._dispatches(found.symbols), key=lambda one: one.end_ns)
        if self.options.copies:
            found.transfers += sorted(self._transfers(), key=lambda one: one.end_ns)
        found.ranges += self._ranges()
        return found

    def _dispatches(self, symbols: list[Symbol]) -> Iterator[Dispatch]:
        kernels = [one for one in self.rank.activities if one.work.kind == "kernel"]
        kernels.sort(key=lambda one: (one.correlation, one.graph_node or 0))
        by_name = {symbol.name: symbol for symbol in symbols}
        for number, activity in enumerate(kernels, start=1):
            counts = counters_of(activity.work, self.run.config.dtype)
            yield Dispatch(
                number,
                by_name[activity.work.name],
                activity.work,
                QUEUES[activity.stream],
                STREAMS[activity.stream],
                self._thread(activity),
                activity.correlation,
                self.zero_ns + submitted_ns(self.rank, activity),
                self.zero_ns + activity.start_ns,
                self.zero_ns + activity.end_ns,
                activity.graph_node or 0,
                counts if self.options.counters else {},
            )

    def _transfers(self) -> Iterator[Transfer]:
        gpu = node_of_rank(self.rank.rank)
        for activity in self.rank.activities:
            if activity.work.kind != "memcpy":
                continue
            source, target = (0, gpu) if activity.work.direction == "HtoD" else (gpu, 0)
            yield Transfer(
                activity.work,
                STREAMS[activity.stream],
                self._thread(activity),
                activity.correlation,
                self.zero_ns + activity.start_ns,
                self.zero_ns + activity.end_ns,
                source,
                target,
            )

    def _thread(self, activity: Activity) -> int:
        if activity.call is None:
            return self.rank.main_thread
        return self.rank.calls[activity.call].thread

    def _ranges(self) -> Iterator[HostRange]:
        if self.options.calls:
            yield from self._calls()
        unnumbered = [*self._collectives(), *self._markers()]
        for own, one in enumerate(unnumbered, start=_FIRST_OWN_ID):
            yield replace(one, correlation=own)

    def _calls(self) -> Iterator[HostRange]:
        asked = {one.call: one for one in self.rank.activities if one.call is not None}
        for position, call in enumerate(self.rank.calls):
            yield HostRange(
                "hip",
                call.name,
                call.thread,
                call.correlation,
                self.zero_ns + call.start_ns,
                self.zero_ns + call.end_ns,
                _arguments(asked.get(position)),
            )

    def _collectives(self) -> Iterator[HostRange]:
        for activity in self.rank.activities if self.options.collectives else ():
            if activity.collective is None or activity.call is None:
                continue
            # The call around the launch; the program leaves more time than this between calls.
            call = self.rank.calls[activity.call]
            exchange = activity.collective
            yield HostRange(
                "rccl",
                nccl_function(exchange),
                call.thread,
                0,
                self.zero_ns + call.start_ns - _COLLECTIVE_CALL_NS,
                self.zero_ns + call.end_ns + _COLLECTIVE_CALL_NS,
                (
                    ("unsigned long", "count", str(exchange.elements)),
                    ("ncclDataType_t", "datatype", _RCCL_TYPES[exchange.dtype]),
                    ("ncclRedOp_t", "op", "ncclSum"),
                ),
            )

    def _markers(self) -> Iterator[HostRange]:
        kinds = _MARKED[self.options.markers]
        for mark in self.rank.marks:
            if mark.kind in kinds:
                yield HostRange(
                    "marker",
                    mark.name,
                    mark.thread,
                    0,
                    self.zero_ns + mark.start_ns,
                    self.zero_ns + mark.end_ns,
                )


def _arguments(activity: Activity | None) -> tuple[tuple[str, str, str], ...]:
    """Return the arguments of the call that asked for an activity, as far as they matter."""
    if activity is None:
        return ()
    stream = ("hipStream_t", "stream", str(STREAMS[activity.stream]))
    if activity.work.kind != "memcpy":
        return (stream,)
    kind = _COPY_KINDS[activity.work.direction or ""]
    size = ("unsigned long", "sizeBytes", str(activity.work.bytes))
    return size, ("hipMemcpyKind", "kind", kind), stream


def _symbols(rank: RankRun) -> list[Symbol]:
    """Return the kernels of a process by first use, and some that it loads and never runs."""
    used = {one.work.name: one.work for one in rank.activities if one.work.kind == "kernel"}
    loaded = ["__amd_rocclr_initHeap", "__amd_rocclr_streamOpsWait", "__amd_rocclr_batchMemOp"]
    symbols = [Symbol(number, name, None) for number, name in enumerate(loaded, start=1)]
    symbols += [
        Symbol(number, name, work)
        for number, (name, work) in enumerate(used.items(), start=FIRST_KERNEL)
    ]
    return symbols

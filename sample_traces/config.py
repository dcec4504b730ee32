"""What is simulated: the model, the machine and the accidents of one training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

Dtype = Literal["bf16", "fp16", "fp32"]
MachineName = Literal["h100", "mi300x"]
Engine = Literal["", "vLLM", "SGLang", "ATOM", "TensorRT-LLM"]
PassKind = Literal["prefill", "decode", "mixed"]
Eager = Literal["attention", "casts", "checkpoint", "gelu", "layout", "optimizer"]
ELEMENT_BYTES: dict[Dtype, int] = {"bf16": 2, "fp16": 2, "fp32": 4}

_MAY_BE_ZERO = {
    "seed",
    "first_step",
    "dispatch_gap_ns",
    "launch_latency_ns",
    "event_wait_ns",
    "python_overhead_ns",
    "data_stall_ns",
    "noise_permille",
    "straggler_rank",
    "origin_unix_ns",
    "clock_skew_ns",
    "clock_offset_ns",
    "clock_drift_ppb",
    "jitter_permille",
    "exit_jitter_ns",
    "kernel_floor_ns",
    "pass_gap_ns",
    "prefix_ns",
}


class RunConfig(Struct, frozen=True):
    """A data-parallel training run of a GPT-like transformer. Times in ns, rates per second.

    Everything is an integer, so that a run is the same on every platform.
    """

    seed: int = 0
    ranks: int = 1
    steps: int = 3
    first_step: int = 0
    """Number of the first profiled step."""

    layers: int = 2
    hidden: int = 1024
    heads: int = 16
    sequence: int = 1024
    batch: int = 4
    vocab: int = 8192
    dtype: Dtype = "bf16"

    tensor_ranks: int = 1
    """So many ranks share each tensor. Groups are all that this changes: each does all the work."""
    expert_ranks: int = 1
    """So many ranks with other data share the experts."""
    stages: int = 1
    """Of the pipeline."""
    microbatches: int = 1
    """So many parts of the batch pass the stages one after the other, all forth and then all back.
    A part is as large as `batch`."""
    expert_percent: int = 100
    """Tokens that a rank's experts get, 100 = as many as all others."""
    positions: int | None = None
    """Rows of the table of positions; as many as `sequence` if None."""

    gradient_buckets: int = 3
    overlap: bool = True
    """Start a bucket's allreduce during backward, or all of them after it."""

    host_op_ns: int = 4_000
    """Host time an op takes by itself, without the ops and calls inside it."""
    launch_call_ns: int = 3_000
    launch_limit: int | None = None
    """So many launches may be unfinished; the call of one more waits."""
    launch_latency_ns: int = 4_000
    """Least time from the start of a launch call to the start of its work."""
    dispatch_gap_ns: int = 800
    """Least time between two pieces of work on one stream."""
    event_wait_ns: int = 1_500
    """Least time from the end of awaited work to the start of what waited on another stream."""
    python_overhead_ns: int = 0
    """Interpreter time at the entry of each python frame."""

    data_stall_steps: tuple[int, ...] = ()
    """Numbers of the steps that wait for the data loader."""
    data_stall_ns: int = 0
    plants: tuple[str, ...] = ()
    """What is planted in idle time, see `plants`; the first in the first step, and so on."""
    plant_ns: int = 400_000
    """How long each keeps the device idle."""
    once: tuple[str, ...] = ()
    """What happens only in the first step, before its other work, see `once`."""
    once_ns: int = 1_500_000
    """How long each of these takes beyond what it usually does."""
    prefix_ns: int = 0
    """Host time at the begin of each step, before its first work: decoding, say."""
    straggler_rank: int | None = None
    straggler_percent: int = 100
    """Kernel durations on the straggler, 100 = as on the others."""

    machine: MachineName = "h100"
    """Whose names kernels and calls have; see `machines`. The rates stand by themselves."""
    peak_flops_per_s: int = 989_400_000_000_000
    hbm_bytes_per_s: int = 3_350_000_000_000
    link_bytes_per_s: int = 450_000_000_000
    gemm_percent: int = 62
    """Share of the peak that GEMM kernels reach; the next three alike for their own limit."""
    attention_percent: int = 45
    memory_percent: int = 80
    link_percent: int = 70
    kernel_floor_ns: int = 1_400
    """No kernel is shorter, unless zero_length_kernels asks for it."""
    noise_permille: int = 20
    """Durations vary evenly by up to this much up and down."""
    jitter_permille: int = 0
    """All kernels of a rank's step are longer or shorter together by up to this much."""
    exit_jitter_ns: int = 0
    """Ranks leave a collective up to this much after the first one."""
    slow_group: str = ""
    """Name of a group whose links are slow, "" for none."""
    slow_group_percent: int = 100
    """Time of its transfers, 100 = as in the others."""

    steady_draws: bool = False
    """Noise depends on step and operator, not on earlier draws: a repair leaves the rest."""
    fp32_permille: int = 1000
    """Share of the peak that products of fp32 can reach at most."""
    tf32: bool = False
    """Products of fp32 run on the units of half the peak."""
    misaligned_percent: int = 100
    """Rate of products with a size that is no multiple of 8, 100 = as of others."""
    eager: tuple[Eager, ...] = ()
    """What is not fused, copied to another layout or type, or computed again; see `eager`."""
    slow_category: str = ""
    """Category of kernels, such as norm, that are slow; "" for none."""
    slow_category_percent: int = 100
    """Their time, 100 = as usual."""
    contention_percent: int = 100
    """Time of kernels while a collective runs beside them, 100 = as alone."""
    throttled_steps: tuple[int, ...] = ()
    """Numbers of the steps with a lower clock."""
    throttled_percent: int = 100
    """Time of their kernels, 100 = as in the others."""
    hidden_syncs: bool = False
    """Calls that wait for the device leave no record."""

    copy_stream: bool = False
    """Copy the next batch to the device on a stream of its own."""
    sync_each_step: bool = False
    """Read the loss on the host at the end of each step."""
    free_each_step: bool = False
    """Free memory at the end of each step, which waits for the device."""
    lead_in: bool = False
    """Work launched before the window opened: activities without a call."""
    trailing_copy: bool = False
    """A copy launched after the last step, belonging to no step."""
    cuda_graph: bool = False
    """Replay forward and backward as one graph; collectives follow it, never overlapped."""
    opaque_graph: bool = False
    """The graph is one activity without its kernels (needs cuda_graph)."""
    capture: bool = False
    """The first step captures the graph before it replays it (needs cuda_graph)."""
    engine: Engine = ""
    """Steps are forward passes of a server that annotates them as this engine does; see `serving`.

    Passes read in `batch` sequences of `sequence` tokens, or generate a token for each, or both.
    """
    passes: tuple[PassKind, ...] = ("prefill", "decode", "decode", "mixed")
    """What the passes of a server do, in turns."""
    pass_gap_ns: int = 0
    """Host time after each pass, for sampling and text."""
    programmatic_launch: bool = False
    """Some kernels start before their predecessor on the same stream has ended."""
    zero_length_kernels: bool = False
    """Some memory-bound kernels last 0 ns."""
    twin_kernels: bool = False
    """Some memory-bound kernels are launched twice and run at exactly the same time."""
    blit_copies: bool = False
    """Copies are made by kernels of the runtime (needs mi300x; its fills always are)."""

    origin_unix_ns: int = 1_767_225_600_123_456_789
    """Unix time of the run's time 0 on rank 0's clock."""
    clock_skew_ns: int = 0
    """Each rank's clock is ahead of the previous rank's by this much."""
    clock_offset_ns: int = 0
    """The clock is ahead by this much besides; the next ones alike are for a rank's own clock."""
    clock_drift_ppb: int = 0
    """It gains so many ns in a second."""
    unrecorded: tuple[int, ...] = ()
    """Numbers of the collectives of a rank whose kernels its recording lacks."""

    on_rank: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """By rank, what is otherwise there: any setting that leaves the collectives as they are."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            self._check_integer(name, getattr(self, name))
        self._check_together()

    def __hash__(self) -> int:
        settings = (name for name in self.__struct_fields__ if name != "on_rank")
        return hash(tuple(getattr(self, name) for name in settings))

    def _check_integer(self, name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            return
        least = 0 if name in _MAY_BE_ZERO else 1
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")

    def _check_together(self) -> None:
        problems = {
            "hidden must be a multiple of heads": self.hidden % self.heads != 0,
            f"dtype must be one of {get_args(Dtype)}": self.dtype not in ELEMENT_BYTES,
            "straggler_rank must be a rank": (self.straggler_rank or 0) >= self.ranks,
            "opaque_graph needs cuda_graph": self.opaque_graph and not self.cuda_graph,
            "capture needs cuda_graph": self.capture and not self.cuda_graph,
            f"machine must be one of {get_args(MachineName)}": self._machine_unknown(),
            "blit_copies needs mi300x": self.blit_copies and self.machine != "mi300x",
            "noise_permille must be below 1000": self.noise_permille >= 1000,
            "data_stall_steps must be among the steps": not self._stalls_known(),
            "cuda_graph needs one rank per tensor, expert and stage, and one microbatch": (
                self.cuda_graph
                and self.tensor_ranks * self.expert_ranks * self.stages * self.microbatches > 1
            ),
            "groups must divide the ranks": self.ranks
            % (self.tensor_ranks * self.expert_ranks * self.stages)
            != 0,
            "on_rank must name ranks": not set(self.on_rank) <= set(range(self.ranks)),
        }
        for message, wrong in problems.items():
            if wrong:
                raise ValueError(message)

    def _machine_unknown(self) -> bool:
        return self.machine not in get_args(MachineName)

    def _stalls_known(self) -> bool:
        return all(step in self.step_numbers for step in self.data_stall_steps)

    def of_rank(self, rank: int) -> RunConfig:
        """Return the config with what is otherwise on a rank."""
        return replace(self, **self.on_rank.get(rank, {}))

    def clock_ns(self, time_ns: int) -> int:
        """Return what the clock shows at a time, apart from where it began."""
        return time_ns + self.gained_ns(time_ns)

    def gained_ns(self, time_ns: int) -> int:
        """Return how much too long the clock makes a time."""
        return time_ns * self.clock_drift_ppb // 10**9

    @property
    def step_numbers(self) -> range:
        """Numbers of the profiled steps."""
        return range(self.first_step, self.first_step + self.steps)

    @property
    def tokens(self) -> int:
        """Tokens of one rank's batch."""
        return self.batch * self.sequence

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the model's data type."""
        return ELEMENT_BYTES[self.dtype]


def on_mi300x(**settings: Any) -> RunConfig:
    """Return the config of a run on MI300X, at its dense rates."""
    rates = {
        "peak_flops_per_s": 1_307_400_000_000_000,
        "hbm_bytes_per_s": 5_300_000_000_000,
        "link_bytes_per_s": 448_000_000_000,
    }
    return RunConfig(machine="mi300x", **(rates | settings))

"""What happened in a run, free of any profiler's format. All times are ns since the run began."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from sample_traces.config import RunConfig

ActivityKind = Literal["kernel", "memcpy", "memset", "graph"]
CallKind = Literal["launch", "record", "wait", "sync", "other"]
MarkKind = Literal["step", "annotation", "python", "system"]
Recorded = Literal["call", "op", "annotation", "python", "system", "device"]
"""What tells a profiler what host and device did."""
Triple = tuple[int, int, int]


class Argument(Struct, frozen=True):
    """One input of an op: a tensor (shape, strides in elements), a list of tensors, or a scalar.

    A scalar is given as text.
    """

    type: str
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    value: str = ""
    members: tuple[Argument, ...] = ()


class Group(Struct, frozen=True):
    """Ranks that communicate, by the framework's name and description."""

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return how many ranks it has."""
        return len(self.ranks)


class Collective(Struct, frozen=True):
    """One exchange within a group, as the framework describes it; elements go in and come out.

    A send and its receive have a `source` and a `target`, by their places in the group.
    """

    name: str
    elements: int
    dtype: str
    group: Group
    out_elements: int
    source: int | None = None
    target: int | None = None

    @property
    def members(self) -> tuple[int, ...]:
        """Return the ranks that meet."""
        if self.source is None or self.target is None:
            return self.group.ranks
        return self.group.ranks[self.source], self.group.ranks[self.target]


class Work(Struct, frozen=True):
    """What one activity does: its exact cost and geometry.

    `flops` counts the multiplies and adds of matrix products (GEMM and attention), 0 elsewhere.
    `dur_ns` is the undisturbed duration.
    """

    name: str
    kind: ActivityKind
    top: str
    sub: str
    dur_ns: int
    flops: int = 0
    bytes: int = 0
    grid: Triple = (1, 1, 1)
    block: Triple = (128, 1, 1)
    registers: int = 32
    shared_bytes: int = 0
    direction: str | None = None


class Activity(Struct, frozen=True):
    """One interval of work on the device.

    `call` and `op` are positions in the rank's `calls` and `ops`; None where the launch lies
    before the window. `step` is the number of the step that launched it.
    """

    start_ns: int
    dur_ns: int
    stream: int
    work: Work
    correlation: int
    call: int | None
    op: int | None
    step: int | None
    collective: Collective | None
    graph_node: int | None

    @property
    def end_ns(self) -> int:
        """End of the interval."""
        return self.start_ns + self.dur_ns

    @property
    def component(self) -> str:
        """Component that the activity's time counts in."""
        return "graph" if self.work.kind == "graph" else self.work.top


class Call(Struct, frozen=True):
    """One runtime API call on the host. `wait_stream` is the stream that `stream` waits for.

    `work` is what it launches, or would if it were not captured; of a graph the first.
    """

    start_ns: int
    dur_ns: int
    name: str
    thread: int
    kind: CallKind
    correlation: int
    op: int | None
    step: int | None
    stream: int | None
    wait_stream: int | None
    work: Work | None = None
    is_captured: bool = False

    @property
    def end_ns(self) -> int:
        """End of the call."""
        return self.start_ns + self.dur_ns


class Op(Struct, frozen=True):
    """One framework operator on the host; `parent` is the position of the op around it."""

    start_ns: int
    dur_ns: int
    name: str
    thread: int
    parent: int | None
    step: int | None
    inputs: tuple[Argument, ...]
    sequence: int | None
    is_backward: bool
    collective: Collective | None

    @property
    def end_ns(self) -> int:
        """End of the op."""
        return self.start_ns + self.dur_ns


class Mark(Struct, frozen=True):
    """A named range on the host; `parent` is the position of the mark of its kind around it."""

    start_ns: int
    dur_ns: int
    name: str
    thread: int
    kind: MarkKind
    parent: int | None
    step: int | None

    @property
    def is_range(self) -> bool:
        """Whether it is what the program annotates."""
        return self.kind in ("step", "annotation")

    @property
    def end_ns(self) -> int:
        """End of the range."""
        return self.start_ns + self.dur_ns


class Allocation(Struct, frozen=True):
    """Device memory taken (positive bytes) or given back (negative)."""

    time_ns: int
    thread: int
    address: int
    bytes: int
    total_bytes: int


class Cause(Struct, frozen=True):
    """Why the host is not yet at its next launch: the class, and what may name it.

    These are the user's function, the outermost op and the annotation around it, where recorded.
    """

    kind: str
    function: str = ""
    op: str = ""
    annotation: str = ""


class Spent(Struct, frozen=True):
    """Host time spent for a cause; `by` is the kind of the innermost event, `call` its name."""

    start_ns: int
    end_ns: int
    cause: Cause
    by: Recorded
    call: str = ""


class RankRun(Struct, frozen=True):
    """Everything that happened on one rank.

    Unix time of a moment = origin_unix_ns + its ns. Activities are sorted by start, ops, calls
    and marks by the order in which they began.
    """

    rank: int
    process: int
    main_thread: int
    backward_thread: int
    origin_unix_ns: int
    end_ns: int
    activities: tuple[Activity, ...]
    calls: tuple[Call, ...]
    ops: tuple[Op, ...]
    marks: tuple[Mark, ...]
    allocations: tuple[Allocation, ...]
    spent: tuple[Spent, ...] = ()


class Presence(Struct, frozen=True):
    """One rank in a meeting: which launch it came with, and when it came and left."""

    rank: int
    correlation: int
    start_ns: int
    end_ns: int


class Meeting(Struct, frozen=True):
    """A collective as it happened on all ranks that met, in ns that no clock distorts."""

    name: str
    group: Group
    step: int | None
    present: tuple[Presence, ...]


class Run(Struct, frozen=True):
    """A simulated run."""

    config: RunConfig
    ranks: tuple[RankRun, ...]
    meetings: tuple[Meeting, ...] = ()

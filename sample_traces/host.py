"""The host: walks a program on two threads, spends time, and asks the device for work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from msgspec.structs import replace

from sample_traces.config import RunConfig
from sample_traces.device import Device, Noise, Request
from sample_traces.machines import MACHINES
from sample_traces.program import (
    Block,
    BlockKind,
    Capture,
    Launch,
    Node,
    OnBackwardThread,
    Pause,
    Sync,
    Wait,
)
from sample_traces.records import (
    Allocation,
    Call,
    CallKind,
    Cause,
    Mark,
    MarkKind,
    Op,
    Recorded,
    Spent,
    Work,
)

FIRST_CORRELATION = 1_000
_MARK_NS = 300
_HANDOFF_NS = 9_000
_EVENT_CALL_NS = 900
_SYNC_CALL_NS = 2_500
_FIRST_ADDRESS = 0x7F00_0000_0000
_TOLD_BY: Final[Mapping[BlockKind, Recorded]] = {
    **dict.fromkeys(("op", "backward"), "op"),
    **dict.fromkeys(("step", "annotation"), "annotation"),
    "python": "python",
    "system": "system",
}


@dataclass(slots=True)
class Host:
    """One rank's host process. `cursor_ns` is the present moment."""

    config: RunConfig
    random: Random
    device: Device
    main_thread: int
    backward_thread: int
    cursor_ns: int = 0
    calls: list[Call] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)
    _step: int | None = None
    _thread: int = field(init=False)
    _op: int | None = None
    _frame: int | None = None
    _correlation: int = FIRST_CORRELATION
    _allocated: int = 0
    _launches: list[int] = field(default_factory=list)
    _cause: Cause | None = None
    _by: Recorded = "op"
    _system: str = ""
    _captures: bool = False
    _place: str = ""
    """Name of the innermost block."""
    _noise: Noise = field(init=False)

    def __post_init__(self) -> None:
        self._thread = self.main_thread
        self._noise = Noise(self.config, self.random, f"host:{self.main_thread}")

    def run_step(self, number: int, block: Block) -> Iterator[None]:
        """Do one step; yields wherever the host must know what the device did."""
        self._step = number
        yield from self.run((block,))
        self._step = None

    def run(self, nodes: tuple[Node, ...]) -> Iterator[None]:
        """Do what the nodes say; yields wherever the host must know what the device did."""
        for node in nodes:
            match node:
                case Block():
                    yield from self._run_block(node)
                case OnBackwardThread():
                    yield from self._run_elsewhere(node)
                case Capture():
                    yield from self._capture(node)
                case Sync():
                    yield from self._sync(node)
                case Launch():
                    yield from self._launch(node)
                case Wait():
                    self._wait(node)
                case Pause():
                    self._spend(node.dur_ns)

    def take_requests(self) -> list[Request]:
        """Return what was asked of the device since the last time."""
        taken, self.requests = self.requests, []
        return taken

    def _spend(self, dur_ns: int, told: bool = True) -> None:
        start_ns = self.cursor_ns
        # At least 1 ns, so that what is inside a block begins after it and ends before it.
        self.cursor_ns += max(1, self._noise.vary(dur_ns, f"{self._step} {self._place}"))
        if self._cause and told:
            self.spent.append(Spent(start_ns, self.cursor_ns, self._cause, self._by, self._system))

    def _run_block(self, block: Block) -> Iterator[None]:
        outer = self._cause, self._by, self._system, self._place
        is_op = block.kind in ("op", "backward")
        self._cause, self._by, self._place = block.cause, _TOLD_BY[block.kind], block.name
        self._system = block.name if block.kind == "system" else ""
        yield from self._run_op(block) if is_op else self._run_mark(block)
        self._cause, self._by, self._system, self._place = outer

    def _run_op(self, block: Block) -> Iterator[None]:
        position, outer = len(self.ops), self._op
        self.ops.append(self._begun_op(block))
        self._op = position
        self._spend((self.config.host_op_ns + 1) // 2)
        self._allocate(block.allocates)
        yield from self.run(block.children)
        self._spend(self.config.host_op_ns // 2)
        self._op = outer
        begun = self.ops[position]
        self.ops[position] = replace(begun, dur_ns=self.cursor_ns - begun.start_ns)

    def _begun_op(self, block: Block) -> Op:
        return Op(
            self.cursor_ns,
            0,
            block.name,
            self._thread,
            self._op,
            self._step,
            block.inputs,
            block.sequence,
            block.kind == "backward",
            block.collective,
        )

    def _run_mark(self, block: Block) -> Iterator[None]:
        position, outer = len(self.marks), self._frame
        self.marks.append(self._begun_mark(block))
        self._spend(_MARK_NS)
        if block.kind == "python":
            self._frame = position
            self._spend(self.config.python_overhead_ns)
        yield from self.run(block.children)
        self._spend(_MARK_NS)
        self._frame = outer
        begun = self.marks[position]
        self.marks[position] = replace(begun, dur_ns=self.cursor_ns - begun.start_ns)

    def _begun_mark(self, block: Block) -> Mark:
        kinds: dict[str, MarkKind] = {"step": "step", "python": "python", "system": "system"}
        kind = kinds.get(block.kind, "annotation")
        parent = self._frame if kind == "python" else None
        return Mark(self.cursor_ns, 0, block.name, self._thread, kind, parent, self._step)

    def _run_elsewhere(self, node: OnBackwardThread) -> Iterator[None]:
        self._spend(node.handoff_ns)
        if node.cause:
            start_ns = self.calls[-1].end_ns
            self.spent.append(Spent(start_ns, self.cursor_ns, node.cause, "call"))
        self._thread = self.backward_thread
        yield from self.run(node.children)
        self._thread = self.main_thread
        self._spend(_HANDOFF_NS)

    def _capture(self, node: Capture) -> Iterator[None]:
        self._captures = True
        begin = self._call("cudaStreamBeginCapture", "other", _EVENT_CALL_NS, None)
        yield from self.run(node.children)
        end = self._call("cudaStreamEndCapture", "other", _EVENT_CALL_NS, None)
        self._captures = False
        if node.cause:
            start_ns, end_ns = self.calls[begin].start_ns, self.calls[end].end_ns
            self.spent.append(Spent(start_ns, end_ns, node.cause, "call"))

    def _launch(self, launch: Launch) -> Iterator[None]:
        called_ns = self.cursor_ns
        if self._captures:
            self._call(
                launch.api, "other", self.config.launch_call_ns, launch.stream, launch.works[0]
            )
            return
        if launch.works:
            yield from self._await_place()
        twin = self.config.twin_kernels and _may_be_twin(launch) and not self.random.randrange(6)
        for is_twin in (False, True) if twin else (False,):
            accepted_ns = self.cursor_ns
            call = self._call(
                launch.api,
                "launch" if launch.works else "other",
                launch.call_ns or self.config.launch_call_ns,
                launch.stream,
                launch.works[0] if launch.works else None,
                called_ns,
            )
            asked = Request(
                launch,
                self._free_ns(launch, self.calls[call]) or accepted_ns,
                self._correlation,
                call,
                self._op if not launch.is_graph else None,
                self._step,
                is_twin,
                f"{self._step} {self._place}",
            )
            self.requests.append(asked)
            called_ns = self.cursor_ns

    def _await_place(self) -> Iterator[None]:
        """Wait until few enough launches are unfinished."""
        limit = self.config.launch_limit
        if limit and len(self._launches) >= limit:
            yield
            ended_ns = self.device.ended_ns[self._launches[-limit]]
            self.cursor_ns = max(self.cursor_ns, ended_ns)
        self._launches.append(self._correlation + 1)

    def _free_ns(self, launch: Launch, call: Call) -> int | None:
        """Return when a launch with a cause of idle time lets its work start."""
        if not launch.cause:
            return None
        free_ns = call.end_ns + launch.held_ns
        if launch.held_ns:
            until_ns = free_ns + self.config.launch_latency_ns
            self.spent.append(Spent(call.end_ns, until_ns, launch.cause, "device"))
        else:
            self._tell(call, launch.cause, launch.usual_ns)
        return free_ns

    def _tell(self, call: Call, cause: Cause | None, usual_ns: int = 0) -> None:
        if cause:
            start_ns = call.start_ns + usual_ns
            self.spent.append(Spent(start_ns, call.end_ns, cause, "call", call.name))

    def _wait(self, wait: Wait) -> None:
        self._call("cudaEventRecord", "record", _EVENT_CALL_NS, wait.awaited)
        call = self._call("cudaStreamWaitEvent", "wait", _EVENT_CALL_NS, wait.stream)
        self.calls[call] = replace(self.calls[call], wait_stream=wait.awaited)
        self.requests.append(Request(wait))

    def _sync(self, sync: Sync) -> Iterator[None]:
        if self.config.hidden_syncs:
            yield
            self.cursor_ns = max(self.cursor_ns, self.device.end_ns(sync.stream) + sync.return_ns)
            return
        if sync.api == "cudaEventSynchronize":
            self._call("cudaEventRecord", "record", _EVENT_CALL_NS, sync.stream)
        kind: CallKind = "sync" if sync.api.endswith("Synchronize") else "other"
        call = self._call(sync.api, kind, _SYNC_CALL_NS, sync.stream)
        yield
        self.cursor_ns = max(self.cursor_ns, self.device.end_ns(sync.stream) + sync.return_ns)
        begun = self.calls[call]
        self.calls[call] = replace(begun, dur_ns=self.cursor_ns - begun.start_ns)
        self._tell(self.calls[call], sync.cause)
        self._spend(_EVENT_CALL_NS)

    def _call(
        self,
        name: str,
        kind: CallKind,
        dur_ns: int,
        stream: int | None,
        work: Work | None = None,
        called_ns: int | None = None,
    ) -> int:
        """Record a call, begun now or earlier, that may launch work; return its position."""
        start_ns = self.cursor_ns if called_ns is None else called_ns
        self._spend(dur_ns, told=False)
        self._correlation += 1
        self.calls.append(
            Call(
                start_ns,
                self.cursor_ns - start_ns,
                MACHINES[self.config.machine].call(name, work.sub if work else ""),
                self._thread,
                kind,
                self._correlation,
                self._op,
                self._step,
                stream,
                None,
                work,
                self._captures,
            )
        )
        self._spend(_EVENT_CALL_NS)
        return len(self.calls) - 1

    def _allocate(self, bytes_: int) -> None:
        if not bytes_:
            return
        address = _FIRST_ADDRESS + min(self._allocated, self._allocated + bytes_)
        self._allocated += bytes_
        self.allocations.append(
            Allocation(self.cursor_ns, self._thread, address, bytes_, self._allocated)
        )


def _may_be_twin(launch: Launch) -> bool:
    work = next(iter(launch.works), None)
    return bool(work and work.kind == "kernel" and work.top == "memory" and not launch.is_graph)

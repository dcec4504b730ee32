"""Host events of a Kineto file: ops, annotations, python frames, calls, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from sample_traces.kineto_text import Numbers
from sample_traces.records import Allocation, Argument, Call, Collective, Mark, Op, RankRun

Event = dict[str, Any]

_FORWARD_THREAD = 0
_AUTOGRAD_FORWARD_THREAD = 1
RESERVE_BYTES = 1 << 21
# Numbers that CUPTI gives to the runtime functions; HIP's calls have none.
_CALLBACK_ID = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaGraphLaunch": 311,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaStreamSynchronize": 131,
}


class ExternalIds(Struct, frozen=True):
    """The profiler's ids of ops and annotations, by their position in the rank's records."""

    ops: tuple[int, ...]
    marks: dict[int, int]

    @classmethod
    def of(cls, rank: RankRun) -> ExternalIds:
        """Number ops and annotations in the order in which they began."""
        begun = [(op.start_ns, "op", position) for position, op in enumerate(rank.ops)]
        begun += [
            (mark.start_ns, "mark", position)
            for position, mark in enumerate(rank.marks)
            if mark.is_range
        ]
        numbers = {key[1:]: number for number, key in enumerate(sorted(begun), start=1)}
        ops = tuple(numbers["op", position] for position in range(len(rank.ops)))
        marks = {place: number for (kind, place), number in numbers.items() if kind == "mark"}
        return cls(ops, marks)


def collective_arguments(collective: Collective) -> Event:
    """Return the metadata that ops and kernels of a collective carry."""
    group = collective.group
    ends = {"Src Rank": collective.source, "Dst Rank": collective.target}
    return {
        "Collective name": collective.name,
        "In msg nelems": collective.elements,
        "Out msg nelems": collective.out_elements,
        "Group size": group.size,
        "dtype": collective.dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": str(list(group.ranks)),
        "Global rank start": group.ranks[0],
        "Global rank stride": group.ranks[1] - group.ranks[0],
        **(ends if collective.source is not None else {}),
    }


class HostEvents(Struct, frozen=True):
    """Makes the events of one rank's host threads."""

    rank: RankRun
    numbers: Numbers
    ids: ExternalIds

    def __iter__(self) -> Iterator[Event]:
        """Yield ops, marks and memory events by start, each with its place among them."""
        forward = self._forward_ops()
        begun: list[tuple[int, Event]] = []
        begun += [(op.start_ns, self._op(i, op)) for i, op in enumerate(self.rank.ops)]
        begun += [(mark.start_ns, self._mark(i, mark)) for i, mark in self._marks()]
        if self.numbers.options.memory:
            begun += self._memory()
        begun.sort(key=lambda pair: pair[0])
        for place, (_, event) in enumerate(begun):
            event["args"]["Ev Idx"] = place
            yield event
        if self.numbers.options.flows:
            yield from self._gradient_flows(forward)

    def calls(self, launching: set[int]) -> Iterator[Event]:
        """Yield calls and the flows that leave them; `launching` are positions of launches."""
        for position, call in enumerate(self.rank.calls):
            yield self._call(call)
            if self.numbers.options.flows:
                yield self._call_flow(call, position in launching)

    def _event(self, record: Op | Mark | Call, category: str, args: Event) -> Event:
        return {
            "ph": "X",
            "cat": category,
            "name": record.name,
            "pid": self.rank.process,
            "tid": self.numbers.thread(record.thread),
            "ts": self.numbers.time(record.start_ns),
            "dur": self.numbers.duration(record.dur_ns),
            "args": args,
        }

    def _op(self, position: int, op: Op) -> Event:
        args = self._identity(self.ids.ops[position])
        if op.sequence is not None:
            args["Sequence number"] = op.sequence
            threads = (_FORWARD_THREAD, _AUTOGRAD_FORWARD_THREAD)
            args["Fwd thread id"] = threads[op.is_backward]
        if op.collective is not None:
            args |= collective_arguments(op.collective) | {"Rank": self.rank.rank}
        if self.numbers.options.shapes and op.inputs:
            args |= _shapes(op.inputs)
        return self._event(op, "cpu_op", args)

    def _identity(self, external: int) -> Event:
        return {"External id": self.numbers.id(external), "Record function id": 0}

    def _marks(self) -> Iterator[tuple[int, Mark]]:
        for position, mark in enumerate(self.rank.marks):
            is_frame = mark.kind == "python" and self.numbers.options.python_functions
            if mark.is_range or is_frame:
                yield position, mark

    def _mark(self, position: int, mark: Mark) -> Event:
        if mark.kind != "python":
            return self._event(mark, "user_annotation", self._identity(self.ids.marks[position]))
        args: Event = {"Python parent id": mark.parent, "Python id": position}
        if mark.name.startswith("nn.Module: "):
            args["Python module id"] = 0
        return self._event(mark, "python_function", args)

    def _memory(self) -> Iterator[tuple[int, Event]]:
        reserved = 0
        for allocation in self.rank.allocations:
            needed = -(-allocation.total_bytes // RESERVE_BYTES) * RESERVE_BYTES
            reserved = max(reserved, needed)
            yield allocation.time_ns, self._allocation(allocation, reserved)

    def _allocation(self, allocation: Allocation, reserved: int) -> Event:
        return {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": self.rank.process,
            "tid": self.numbers.thread(allocation.thread),
            "ts": self.numbers.time(allocation.time_ns),
            "args": {
                "Total Reserved": reserved,
                "Total Allocated": allocation.total_bytes,
                "Bytes": allocation.bytes,
                "Addr": allocation.address,
                "Device Id": self.numbers.device,
                "Device Type": 1,
            },
        }

    def _forward_ops(self) -> dict[int, Op]:
        return {
            op.sequence: op
            for op in self.rank.ops
            if op.sequence is not None and not op.is_backward
        }

    def _gradient_flows(self, forward: dict[int, Op]) -> Iterator[Event]:
        """Yield the arrow from each forward op to the backward op inside its graph node."""
        for op in self.rank.ops:
            if op.is_backward and op.parent is not None and op.sequence in forward:
                number = op.sequence + 1
                yield self._arrow("s", number, forward[op.sequence], "fwdbwd")
                yield self._arrow("f", number, op, "fwdbwd")

    def _arrow(self, phase: str, number: int, end: Op | Call, category: str) -> Event:
        event = {
            "ph": phase,
            "id": self.numbers.id(number),
            "pid": self.rank.process,
            "tid": self.numbers.thread(end.thread),
            "ts": self.numbers.time(end.start_ns),
            "cat": category,
            "name": category,
        }
        return event | {"bp": "e"} if phase == "f" else event

    def _call(self, call: Call) -> Event:
        args: Event = {} if call.op is None else {"External id": self._external(call.op)}
        if call.name in _CALLBACK_ID:
            args["cbid"] = _CALLBACK_ID[call.name]
        args["correlation"] = self.numbers.id(call.correlation)
        work = call.work
        if work and work.kind == "kernel" and "Graph" not in call.name and _is_hip(call):
            args |= {"kernel": work.name, "grid": list(work.grid), "block": list(work.block)}
        return self._event(call, "cuda_runtime", args)

    def _external(self, op: int) -> int | str:
        return self.numbers.id(self.ids.ops[op])

    def _call_flow(self, call: Call, launches: bool) -> Event:
        # As Kineto does: a call whose work is not in the file is the end of an arrow.
        return self._arrow("s" if launches else "f", call.correlation, call, "ac2g")


def _is_hip(call: Call) -> bool:
    """Return whether a call is one of HIP, which say what kernel they launch."""
    return call.name.startswith("hip")


def _shapes(inputs: tuple[Argument, ...]) -> Event:
    return {
        "Concrete Inputs": [argument.value for argument in inputs],
        "Input type": [argument.type for argument in inputs],
        "Input Strides": [_extents(argument, strides=True) for argument in inputs],
        "Input Dims": [_extents(argument, strides=False) for argument in inputs],
    }


def _extents(argument: Argument, strides: bool) -> list[Any]:
    if argument.members:
        return [_extents(member, strides) for member in argument.members]
    return list(argument.strides if strides else argument.shape)

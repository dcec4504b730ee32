"""Device events of a Kineto file: kernels, copies, memsets, waits, annotations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from sample_traces.kineto_host import Event, ExternalIds, collective_arguments
from sample_traces.kineto_text import Digits, Numbers, ratio
from sample_traces.machines import Machine
from sample_traces.records import Activity, Call, Mark, RankRun, Work

_THREADS_PER_UNIT: Final = 2048
_SYNCS: Final = {"Stream": "Stream Sync", "Event": "Event Sync", "Device": "Context Sync"}
_CATEGORY: Final = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}


class DeviceEvents(Struct, frozen=True):
    """Makes the events of one rank's device."""

    rank: RankRun
    numbers: Numbers
    ids: ExternalIds
    machine: Machine

    def __iter__(self) -> Iterator[Event]:
        """Yield activities with the flows that reach them, then waits and annotations."""
        options = self.numbers.options
        for activity in self.rank.activities:
            event = self._activity(activity)
            yield event
            if options.duplicates:
                yield event
            if options.flows:
                yield self._flow(activity)
        if options.cuda_sync:
            yield from self._syncs()
        if options.gpu_annotations:
            yield from self._annotations()

    def _event(self, category: str, name: str, stream: int, start_ns: int, dur_ns: int) -> Event:
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": self.numbers.device,
            "tid": self.numbers.stream(stream),
            "ts": self.numbers.time(start_ns),
            "dur": self.numbers.duration(dur_ns),
        }

    def _activity(self, activity: Activity) -> Event:
        work = activity.work
        if work.kind == "graph":
            raise ValueError("Kineto has no event for a whole graph; simulate its kernels instead")
        event = self._event(
            _CATEGORY[work.kind], work.name, activity.stream, activity.start_ns, activity.dur_ns
        )
        args = self._identity(activity)
        if work.kind == "kernel":
            args |= _geometry(work, self.machine)
        else:
            args |= {"bytes": work.bytes, "memory bandwidth (GB/s)": _bandwidth(activity)}
        if activity.graph_node is not None:
            args |= {"graph id": 1, "graph node id": activity.graph_node}
        if activity.collective is not None:
            args |= collective_arguments(activity.collective)
        return event | {"args": args}

    def _identity(self, activity: Activity) -> Event:
        numbers = self.numbers
        args: Event = {}
        if activity.op is not None:
            key = "external id" if numbers.options.legacy else "External id"
            args[key] = numbers.id(self.ids.ops[activity.op])
        if activity.work.kind == "kernel":
            args["queued"] = 0
        return args | {
            "device": numbers.device,
            "context": 1,
            "stream": activity.stream,
            "correlation": numbers.id(activity.correlation),
        }

    def _flow(self, activity: Activity) -> Event:
        return {
            "ph": "f",
            "id": self.numbers.id(activity.correlation),
            "pid": self.numbers.device,
            "tid": self.numbers.stream(activity.stream),
            "ts": self.numbers.time(activity.start_ns),
            "cat": "ac2g",
            "name": "ac2g",
            "bp": "e",
        }

    def _syncs(self) -> Iterator[Event]:
        """Yield what the device knows of waits: marks, never work."""
        record = None
        for call in self.rank.calls:
            if call.kind == "record":
                record = call
            elif call.kind == "wait" and record is not None:
                yield self._sync(
                    call,
                    "Stream Wait Event",
                    {
                        "wait_on_stream": call.wait_stream,
                        "wait_on_cuda_event_record_corr_id": record.correlation,
                        "wait_on_cuda_event_id": record.correlation,
                    },
                )
            elif call.kind == "sync":
                yield self._sync(call, next(_SYNCS[w] for w in _SYNCS if w in call.name), {})

    def _sync(self, call: Call, kind: str, facts: Event) -> Event:
        stream = call.stream or 0
        event = self._event("cuda_sync", kind, stream, call.start_ns, call.dur_ns)
        args: Event = {"cuda_sync_kind": kind, **facts, "stream": stream}
        args["correlation"] = self.numbers.id(call.correlation)
        return event | {"args": args | {"device": self.numbers.device, "context": 1}}

    def _annotations(self) -> Iterator[Event]:
        for position, mark in enumerate(self.rank.marks):
            if not mark.is_range:
                continue
            for stream, (start_ns, end_ns) in sorted(self._spans(mark).items()):
                # Kineto widens them so that viewers nest them around their kernels.
                event = self._event(
                    "gpu_user_annotation", mark.name, stream, start_ns - 1, end_ns - start_ns + 2
                )
                yield event | {"args": {"External id": self.numbers.id(self.ids.marks[position])}}

    def _spans(self, mark: Mark) -> dict[int, tuple[int, int]]:
        """Return per stream the span of the work launched inside the mark on its thread."""
        spans: dict[int, tuple[int, int]] = {}
        for activity in self.rank.activities:
            if activity.call is None or not _contains(mark, self.rank.calls[activity.call]):
                continue
            start_ns, end_ns = activity.start_ns, activity.end_ns
            before = spans.get(activity.stream, (start_ns, end_ns))
            spans[activity.stream] = (min(before[0], start_ns), max(before[1], end_ns))
        return spans


def _contains(mark: Mark, call: Call) -> bool:
    return mark.thread == call.thread and mark.start_ns <= call.start_ns < mark.end_ns


def _bandwidth(activity: Activity) -> Digits | str:
    # Bytes per ns are GB per s.
    return ratio(activity.work.bytes, activity.dur_ns) if activity.dur_ns else "inf"


def _geometry(work: Work, machine: Machine) -> dict[str, Any]:
    blocks = work.grid[0] * work.grid[1] * work.grid[2]
    threads = work.block[0] * work.block[1] * work.block[2]
    warps = blocks * -(-threads // machine.width)
    most = machine.units * (_THREADS_PER_UNIT // machine.width)
    return {
        "registers per thread": work.registers,
        "shared memory": work.shared_bytes,
        "blocks per SM": ratio(blocks, machine.units),
        "warps per SM": ratio(warps, machine.units),
        "grid": list(work.grid),
        "block": list(work.block),
        "est. achieved occupancy %": min(100, 100 * warps // most),
    }

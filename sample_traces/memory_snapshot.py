"""Writes what a rank of a simulated run allocated as `torch.cuda.memory._dump_snapshot` would."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from sample_traces.kineto_host import RESERVE_BYTES
from sample_traces.records import Allocation, RankRun, Run

_FRAME: Final = re.compile(r"(.+)\((\d+)\): (.+)")
_ALLOCATOR: Final = (
    {"name": "torch::unwind::unwind()", "filename": "??", "line": 0},
    {"name": "c10::cuda::malloc(unsigned long)", "filename": "Allocator.cpp", "line": 0},
)
_CALL: Final = {
    "name": "Module._call_impl",
    "filename": "/lib/torch/nn/modules/module.py",
    "line": 1790,
}
_FOLDER: Final = "/home/someone/work/"

Snapshot = dict[str, Any]


class SnapshotOptions(Struct, frozen=True):
    """Variants: the last events alone (a full ring), no times as before PyTorch 2.1, no stacks.

    With `expandable` segments grow, else each growth is a segment of its own.
    """

    most_events: int | None = None
    times: bool = True
    stacks: bool = True
    expandable: bool = True
    protocol: int = 4


_DEFAULT: Final = SnapshotOptions()


def write_snapshot(
    run: Run, rank: int, path: Path, options: SnapshotOptions = _DEFAULT
) -> Snapshot:
    """Write the snapshot of one rank and return it as nested data."""
    record = next(one for one in run.ranks if one.rank == rank)
    found = _Allocator(record, options).snapshot()
    path.write_bytes(pickle.dumps(found, options.protocol))
    return found


def frames_of(rank: RankRun, at: Allocation) -> list[Snapshot]:
    """Return who allocated, innermost first: the allocator, the operators, Python."""
    ops = [op for op in rank.ops if _is_around(op, at)]
    python = [mark for mark in rank.marks if mark.kind == "python" and _is_around(mark, at)]
    frames = [*_ALLOCATOR]
    for op in sorted(ops, key=lambda one: -one.start_ns):
        name = f"at::_ops::{op.name.rpartition('::')[2]}::call(at::Tensor const&)"
        frames.append({"name": name, "filename": "??", "line": 0})
    for mark in sorted(python, key=lambda one: -one.start_ns):
        if (told := _FRAME.fullmatch(mark.name)) is not None:
            path, line, name = told.groups()
            frames += [{"name": name, "filename": f"{_FOLDER}{path}", "line": int(line)}, _CALL]
    return frames


def _is_around(one: Any, at: Allocation) -> bool:
    return bool(one.thread == at.thread and one.start_ns <= at.time_ns < one.end_ns)


class _Allocator(Struct):
    """Replays the allocations of a rank: events, and what is held and reserved at their end."""

    rank: RankRun
    options: SnapshotOptions
    reserved: int = 0
    held: dict[int, Snapshot] = field(default_factory=dict)
    segments: list[tuple[int, int]] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        events = [event for one in self.rank.allocations for event in self._events(one)]
        kept = events[-self.options.most_events :] if self.options.most_events else events
        return {
            "segments": list(self._segments()),
            "device_traces": [*([] for _ in range(self.rank.rank)), kept],
            "allocator_settings": {"expandable_segments": self.options.expandable},
            "external_annotations": [],
        }

    def _events(self, one: Allocation) -> Iterator[Snapshot]:
        frames = frames_of(self.rank, one) if self.options.stacks else []
        time_us = (self.rank.origin_unix_ns + one.time_ns) // 1000

        def event(action: str, address: int, size: int) -> Snapshot:
            time = {"time_us": time_us} if self.options.times else {}
            plain = {"action": action, "addr": address, "size": size, "stream": 0}
            return plain | time | {"frames": frames}

        if one.bytes < 0:
            del self.held[one.address]
            yield event("free_requested", one.address, -one.bytes)
            yield event("free_completed", one.address, -one.bytes)
            return
        first = min(each.address for each in self.rank.allocations)
        needed = -(-one.total_bytes // RESERVE_BYTES) * RESERVE_BYTES
        if needed > self.reserved:
            grown = (first + self.reserved, needed - self.reserved)
            yield event("segment_map" if self.options.expandable else "segment_alloc", *grown)
            self.segments.append(grown)
            self.reserved = needed
        sizes = {"size": one.bytes, "requested_size": one.bytes}
        self.held[one.address] = {
            "address": one.address,
            **sizes,
            "state": "active_allocated",
            "frames": frames,
        }
        yield event("alloc", one.address, one.bytes)

    def _segments(self) -> Iterator[Snapshot]:
        joined = [(self.segments[0][0], self.reserved)] if self.segments else []
        for address, size in joined if self.options.expandable else self.segments:
            inside = range(address, address + size)
            yield {
                "device": self.rank.rank,
                "address": address,
                "total_size": size,
                "is_expandable": self.options.expandable,
                "segment_pool_id": (0, 0),
                "blocks": [block for at, block in self.held.items() if at in inside],
            }

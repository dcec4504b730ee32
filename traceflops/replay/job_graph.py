"""The operations of a training job as cubes, and what each of them waits for.

An operation is a type, a number within it and a pipeline stage. Every step of every data-parallel
rank has the same operations, so a quantity is a cube [operation, step, data-parallel rank], and one
graph of dependencies serves all. It is built from the first data-parallel rank of the smallest
step, by the rules of the what-if analysis of "Understanding Stragglers in Large Model Training
Using What-if Analysis" (OSDI 2025).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Cube = npt.NDArray[np.float64]
"""Seconds by operation, step and data-parallel rank."""

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE: Final = {"forward": FORWARD, "backward": BACKWARD}
_PIPELINE: Final = ("forward-send", "forward-recv", "backward-send", "backward-recv")
GATHER, SCATTER, SEPARATE = (
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
)
NORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, COLLECTOR = "optimizer-clip-main-grad", "optimizer", "gc"
_OVER_RANKS: Final = frozenset({GATHER, SCATTER, SEPARATE})
TYPES: Final = frozenset(
    {*COMPUTE.values(), *_PIPELINE, *_OVER_RANKS, NORM, EMBEDDING, CLIP, OPTIMIZER, COLLECTOR}
)
_COLUMNS: Final = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id")
_NEVER_RAN_S: Final = 50e-6
"""A receive that starts so long after the last compute, or a send that ends so long before the
first one ends, was recorded but moved nothing."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Into how many parts a job is split: data, sequence and pipeline parallel."""

    dp: int
    dsp: int
    pp: int

    @classmethod
    def of(cls, sizes: Mapping[str, int | str]) -> Layout:
        """Return the layout of sizes by name: `dp_size` or `dp`, and so on; 1 where not given.

        Raises ValueError where a worker holds several chunks of the model (`vpp_size` above 1).
        """

        def size(name: str) -> int:
            return int(sizes.get(f"{name}_size", sizes.get(name, 1)))

        if size("vpp") > 1:
            raise ValueError("several model chunks per pipeline stage (vpp_size) are not supported")
        return cls(size("dp"), size("dsp"), size("pp"))

    @property
    def is_data_parallel(self) -> bool:
        """Return whether gradients are exchanged between workers."""
        return self.dp * self.dsp > 1


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of every step: its place in the cubes, and its times in the example step."""

    place: int
    kind: str
    number: int
    stage: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Group:
    """Operations that end only when all of them have started; `over_ranks` on all ranks, too."""

    members: tuple[int, ...]
    over_ranks: bool = False


@dataclass(frozen=True)
class JobGraph:
    """What every operation waits for, and with whom it communicates.

    `steps` are the numbers of the steps, `workers[dp_rank, stage]` those of the workers. `start`
    and `end` are in seconds from the start of their step.
    """

    layout: Layout
    operations: tuple[Operation, ...]
    steps: tuple[int, ...]
    workers: npt.NDArray[np.int64]
    start: Cube
    end: Cube

    @classmethod
    def of(cls, table: pa.Table, layout: Layout) -> JobGraph:
        """Return the graph of a table with a row per operation.

        Columns: dp_rank, stage, rank, step, optype, start_ts and duration in seconds, seq_id.
        Raises ValueError where a column is missing, a type is unknown, or a step or rank has not
        all operations exactly once.
        """
        missing = [name for name in _COLUMNS if name not in table.column_names]
        if missing:
            raise ValueError(f"no column {', '.join(missing)}")
        rows = {name: table[name].to_numpy() for name in _COLUMNS if name != "optype"}
        kinds = table["optype"].cast(pa.string()).combine_chunks().dictionary_encode()
        names = kinds.dictionary.to_pylist()
        unknown = sorted({str(name) for name in names} - TYPES)
        if unknown or not len(table):
            raise ValueError(f"unknown operations: {', '.join(unknown) or 'none at all'}")
        identity = np.stack((rows["stage"], kinds.indices.to_numpy(), rows["seq_id"]), axis=1)
        which, place = np.unique(identity, axis=0, return_inverse=True)
        steps, step = np.unique(rows["step"], return_inverse=True)
        ranks, rank = np.unique(rows["dp_rank"], return_inverse=True)
        shape = (len(which), len(steps), len(ranks))
        at = np.ravel_multi_index((place.ravel(), step.ravel(), rank.ravel()), shape)
        if len(at) != np.prod(shape) or len(np.unique(at)) != len(at):
            raise ValueError("not every step and rank has every operation exactly once")
        start, end = np.empty(shape), np.empty(shape)
        start.flat[at], end.flat[at] = rows["start_ts"], rows["start_ts"] + rows["duration"]
        begin = start.min(axis=(0, 2), keepdims=True)
        start, end = start - begin, end - begin
        workers = np.zeros((len(ranks), int(rows["stage"].max()) + 1), dtype=np.int64)
        workers[rank.ravel(), rows["stage"]] = rows["rank"]
        return cls(
            layout,
            tuple(
                Operation(at, names[kind], number, stage, start[at, 0, 0], end[at, 0, 0])
                for at, (stage, kind, number) in enumerate(which.tolist())
            ),
            tuple(steps.tolist()),
            workers,
            start,
            end,
        )

    @property
    def kinds(self) -> npt.NDArray[np.str_]:
        """Return the type of each operation."""
        return np.array([operation.kind for operation in self.operations])

    @property
    def stages(self) -> npt.NDArray[np.int64]:
        """Return the pipeline stage of each operation."""
        return np.array([operation.stage for operation in self.operations])

    @cached_property
    def _of_stage(self) -> dict[int, _Stage]:
        stages = sorted({operation.stage for operation in self.operations})
        return {
            stage: _Stage.of([one for one in self.operations if one.stage == stage])
            for stage in stages
        }

    @cached_property
    def after(self) -> list[tuple[int, ...]]:
        """Return the places of the operations that each one waits for."""
        waits: list[set[int]] = [set() for _ in self.operations]
        for stage, mine in self._of_stage.items():
            is_edge = stage in {min(self._of_stage), max(self._of_stage)}
            for before, later in mine.dependencies(self.layout, is_edge=is_edge):
                waits[later.place].add(before.place)
        return [tuple(sorted(places)) for places in waits]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Return the groups, each after all that its members wait for.

        Every operation is in one; those that do not communicate are alone. Raises ValueError where
        operations wait for each other in a circle.
        """
        groups = list(self._grouped())
        alone = set(range(len(self.operations))) - {at for one in groups for at in one.members}
        groups += [Group((at,)) for at in sorted(alone)]
        group_of = {at: place for place, one in enumerate(groups) for at in one.members}
        order = TopologicalSorter(
            {
                place: {group_of[before] for at in one.members for before in self.after[at]}
                for place, one in enumerate(groups)
            }
        )
        try:
            return tuple(groups[place] for place in order.static_order())
        except CycleError:
            raise ValueError("operations wait for each other in a circle") from None

    def _grouped(self) -> Iterator[Group]:
        stages = self._of_stage
        for stage, following in zip(stages, list(stages)[1:], strict=False):
            yield from _paired(
                stages[stage].sends("forward"), stages[following].receives("forward")
            )
            yield from _paired(
                stages[following].sends("backward"), stages[stage].receives("backward")
            )
        over = self._places(lambda one: one.kind in _OVER_RANKS)
        if self.layout.is_data_parallel:
            yield from (Group((at,), over_ranks=True) for at in over)
        edges = {min(stages), max(stages)}
        numbers: defaultdict[int, list[int]] = defaultdict(list)
        for at in self._places(lambda one: one.kind == EMBEDDING and one.stage in edges):
            numbers[self.operations[at].number].append(at)
        yield from (Group(tuple(places)) for places in numbers.values())
        clips = self._places(lambda one: one.kind == CLIP)
        if clips:
            yield Group(tuple(clips), over_ranks=True)

    def _places(self, fits: Callable[[Operation], bool]) -> list[int]:
        return [one.place for one in self.operations if fits(one)]


def _paired(sends: Sequence[Operation], receives: Sequence[Operation]) -> Iterator[Group]:
    """Yield the n-th send with the n-th receive."""
    for send, receive in zip(sends, receives, strict=False):
        yield Group((send.place, receive.place))


Dependency = tuple[Operation, Operation]
"""What must have ended, and what waits for it."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """The operations of one pipeline stage by type, in the order of their start."""

    by_kind: Mapping[str, list[Operation]]

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> _Stage:
        by_kind = defaultdict(list)
        for one in sorted(operations, key=lambda one: (one.start, one.number, one.kind)):
            by_kind[one.kind].append(one)
        return cls(by_kind)

    def in_order(self, *kinds: str) -> list[Operation]:
        found = [one for kind in kinds for one in self.by_kind.get(kind, ())]
        return sorted(found, key=lambda one: (one.start, one.number, one.kind))

    def sends(self, way: str) -> list[Operation]:
        """Return the sends that moved something."""
        computes = self.in_order(COMPUTE[way])
        first = min((one.end for one in computes), default=0.0) - _NEVER_RAN_S
        return [one for one in self.in_order(f"{way}-send") if one.end >= first]

    def receives(self, way: str) -> list[Operation]:
        """Return the receives that moved something."""
        computes = self.in_order(COMPUTE[way])
        last = max((one.start for one in computes), default=0.0) + _NEVER_RAN_S
        return [one for one in self.in_order(f"{way}-recv") if one.start <= last]

    def dependencies(self, layout: Layout, *, is_edge: bool) -> Iterator[Dependency]:
        yield from _chain(self.in_order(FORWARD, BACKWARD))
        for kind in _PIPELINE:
            yield from _chain(self.in_order(kind))
        for way in COMPUTE:
            yield from self._exchange(way)
        yield from self._first_backward()
        yield from _chain(self.in_order(GATHER, SCATTER))
        gathered, forward = self.in_order(GATHER), self.in_order(FORWARD)
        if gathered and forward:
            yield gathered[-1], forward[0]
        yield from self._tail(layout, is_edge=is_edge)

    def _exchange(self, way: str) -> Iterator[Dependency]:
        """Yield what sends and receives have to do with the computes of their direction."""
        computes, receives = self.in_order(COMPUTE[way]), self.receives(way)
        yield from zip(computes, self.sends(way), strict=False)
        shift = int(len(receives) == len(computes) - 1)
        yield from zip(receives, computes[shift:], strict=False)
        yield from zip(computes, receives[1 - shift :], strict=False)

    def _first_backward(self) -> Iterator[Dependency]:
        """Yield what the first exchange of gradients waits for: the compute before the last one."""
        computes = self.in_order(FORWARD, BACKWARD)
        first = next((at for at, one in enumerate(computes) if one.kind == BACKWARD), 0)
        if first >= 2:
            for kind in ("backward-send", "backward-recv"):
                yield from ((computes[first - 2], one) for one in self.in_order(kind)[:1])

    def _tail(self, layout: Layout, *, is_edge: bool) -> Iterator[Dependency]:
        """Yield the order of what follows the last compute."""
        computes = sorted(self.in_order(FORWARD, BACKWARD), key=lambda one: one.end)
        separate = self.in_order(SEPARATE)
        scatter = self.in_order(SCATTER) if layout.is_data_parallel else []
        chain = [*computes[-1:], *self.in_order(COLLECTOR)]
        last = [*self.in_order(NORM), *(self.in_order(EMBEDDING) if is_edge else ())]
        if separate:
            backward = self.in_order(BACKWARD)
            if backward and scatter:
                yield backward[-1], scatter[0]
            if scatter and last:
                yield scatter[-1], last[0]
            last += separate
        else:
            last += sorted(scatter, key=lambda one: one.number)
        yield from _chain([*chain, *last, *self.in_order(CLIP), *self.in_order(OPTIMIZER)])


def _chain(operations: Sequence[Operation]) -> Iterator[Dependency]:
    yield from pairwise(operations)

"""What slow workers, stages and kinds of operations cost a training job.

Definitions are those of "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI 2025), whose published values the tests reproduce.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceflops.replay.job_graph import (
    BACKWARD,
    COLLECTOR,
    FORWARD,
    NORM,
    OPTIMIZER,
    Cube,
    Group,
    JobGraph,
    Layout,
)

Steps = npt.NDArray[np.float64]
Metrics = dict[str, dict[str, float]]

_IMPOSSIBLE_S: Final = -0.01
"""A delay or transfer of so much less than nothing is an error of the clocks and counts as 0."""
_MEANS: Final = frozenset({FORWARD, BACKWARD, COLLECTOR, OPTIMIZER})
"""Operations whose ideal time is the mean; that of communication is the median."""
_LOCAL: Final = _MEANS | {NORM}
_JOINED: Final = {
    f"{way}-{end}": f"{way}-pp-comm" for way in ("forward", "backward") for end in ("send", "recv")
}
_WORST_WORKERS: Final = 0.03


def straggler(operations: pa.Table, layout: Mapping[str, int | str]) -> Metrics:
    """Return what-if metrics of a job by name and key; "" is the key where there is only one.

    `operations` has a row per operation of a worker (columns: see `JobGraph.of`), `layout` the
    sizes of the job by name (`dp_size`, `dsp_size`, `pp_size`). With T_base the recorded time of a
    step, T_nodelay that without launch delays, and T_ideal that with the ideal work of each type
    of operation, all ratios are of means over steps: `S` = T_nodelay / T_ideal,
    `launch_slowdown` = T_base / T_nodelay; `S_t`, `S_stage`, `S_dp`: the work of a type, stage or
    rank as recorded and all other work ideal, / T_ideal; `S_w`: the smaller one of a worker's rank
    and stage; `M_W`, `M_S`: the part of the slowdown that goes with ideal work of the worst
    workers, and of the last stage. Keys that end in `_step` are by step, times in seconds.

    Raises ValueError where the operations do not fit together.
    """
    job = _Replays(JobGraph.of(operations, Layout.of(layout)))
    return {**job.whole(), **job.parts(), **job.mended()}


@dataclass(frozen=True)
class _Replays:
    graph: JobGraph

    @cached_property
    def work(self) -> Cube:
        """Return the time of each operation, for those in a group from when all had started."""
        start, end = self.graph.start, self.graph.end
        work = end - start
        for group in self.graph.groups:
            if len(group.members) > 1 or group.over_ranks:
                members = list(group.members)
                work[members] = end[members] - _latest(start[members], group)
        return np.where(work <= _IMPOSSIBLE_S, 0.0, work)

    @cached_property
    def delay(self) -> Cube:
        """Return how long after what it waits for each operation starts."""
        end = self.graph.end
        ready = np.stack([_ready(end, before) for before in self.graph.after])
        delay = self.graph.start - ready
        return np.where(delay <= _IMPOSSIBLE_S, 0.0, delay)

    @cached_property
    def ideal(self) -> Cube:
        """Return the ideal work: what is usual for the type of operation."""
        ideal = np.empty_like(self.work)
        for kind in np.unique(self.graph.kinds):
            mine = self.graph.kinds == kind
            ideal[mine] = (np.mean if kind in _MEANS else np.median)(self.work[mine])
        return ideal

    def steps(self, work: Cube, delay: Cube | None = None) -> Steps:
        """Return how long each step takes with this work."""
        end = np.zeros_like(work)
        for group in self.graph.groups:
            members = list(group.members)
            ready = np.stack([_ready(end, self.graph.after[at]) for at in members])
            start = ready if delay is None else ready + delay[members]
            end[members] = _latest(start, group) + work[members]
        return np.asarray(end.max(axis=(0, 2)))

    def seconds(self, recorded: npt.NDArray[np.bool_]) -> float:
        """Return the mean time of a step in which only this work is as recorded."""
        return float(self.steps(np.where(recorded, self.work, self.ideal)).mean())

    @cached_property
    def no_delay(self) -> Steps:
        return self.steps(self.work)

    @cached_property
    def ideal_steps(self) -> Steps:
        return self.steps(self.ideal)

    def whole(self) -> Metrics:
        """Return the metrics of the job and of its steps."""
        base = self.graph.end.max(axis=(0, 2))
        times = {"base": base, "nodelay": self.no_delay, "ideal": self.ideal_steps}
        by_step = {f"step_time_{name}_s": seconds for name, seconds in times.items()}
        by_step |= {
            "S_step": self.no_delay / self.ideal_steps,
            "launch_slowdown_step": base / self.no_delay,
        }
        numbers = [str(step) for step in self.graph.steps]
        return {
            "launch_slowdown": {"": float(base.mean() / self.no_delay.mean())},
            "S": {"": float(self.no_delay.mean() / self.ideal_steps.mean())},
            **{name: dict(zip(numbers, of.tolist(), strict=True)) for name, of in by_step.items()},
        }

    def parts(self) -> Metrics:
        """Return how slow the job is with only one part of the work as recorded."""
        ideal = self.ideal_steps.mean()
        return {
            name: {key: self.seconds(part) / ideal for key, part in parts}
            for name, parts in (
                ("S_t", self._types()),
                ("S_stage", self._stages()),
                ("S_dp", self._ranks()),
            )
        } | {"S_w": {str(rank): slow for slow, rank, _ in self._workers}}

    def _types(self) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
        kinds = np.array([_JOINED.get(kind, kind) for kind in self.graph.kinds.tolist()])
        for kind in np.unique(kinds):
            yield str(kind), (kinds == kind)[:, None, None]

    def _stages(self) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
        for stage in np.unique(self.graph.stages):
            yield str(stage), (self.graph.stages == stage)[:, None, None]

    def _ranks(self) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
        ranks = np.arange(self.work.shape[2])
        for rank in ranks:
            yield str(rank), (ranks == rank)[None, None, :]

    @cached_property
    def _workers(self) -> list[tuple[float, int, npt.NDArray[np.bool_]]]:
        """Return how slow the job is by each worker, its number, and its operations."""
        ideal = self.ideal_steps.mean()
        stages = [(self.seconds(mine) / ideal, mine) for _, mine in self._stages()]
        ranks = [(self.seconds(mine) / ideal, mine) for _, mine in self._ranks()]
        return [
            (min(of_rank, of_stage), int(self.graph.workers[dp, stage]), in_rank & in_stage)
            for dp, (of_rank, in_rank) in enumerate(ranks)
            for stage, (of_stage, in_stage) in enumerate(stages)
        ]

    def mended(self) -> Metrics:
        """Return what is gained with ideal work of the worst workers, and of the last stage."""
        worst = sorted(self._workers, key=lambda worker: (-worker[0], worker[1]))
        worst = worst[: math.ceil(_WORST_WORKERS * len(worst))]
        last = self.graph.stages == self.graph.stages.max()
        return {
            "M_W": self._gain(np.any([mine for *_, mine in worst], axis=0), "Mw"),
            "M_S": self._gain(last[:, None, None], "Ms"),
        }

    def _gain(self, part: npt.NDArray[np.bool_], name: str) -> dict[str, float]:
        original, ideal = float(self.no_delay.mean()), float(self.ideal_steps.mean())
        without, alone = self.seconds(~part), self.seconds(part)
        lost = original - ideal
        gain = (original - without) / lost if lost else math.nan
        return {
            "trem": without,
            "tadd": alone,
            "tori": original,
            "tideal": ideal,
            "rem": gain,
            "add": (alone - ideal) / lost if lost else math.nan,
            name: gain,
        }


def _latest(start: Cube, group: Group) -> Cube:
    """Return when the last member of a group starts, over the axes that it joins."""
    axes = (0, 2) if group.over_ranks else (0,)
    return np.asarray(start.max(axis=axes, keepdims=True))


def _ready(end: Cube, before: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return when all of these operations have ended, 0 where there are none."""
    return np.asarray(end[list(before)].max(axis=0)) if before else np.zeros(end.shape[1:])

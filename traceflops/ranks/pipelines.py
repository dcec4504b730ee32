"""Pipelines: ranks in a chain of sends and receives, and when each has nothing to compute.

A pipeline runs, in each step, from the first work of its first stage to the last work of all. What
of that is neither work nor transfer of a rank is its bubble: warm-up until its first message is
there, drain after its last message, steady between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.ranks.clocks import Alignment
from traceflops.ranks.comm_records import SEND, CommRecords
from traceflops.ranks.waits import Waits
from traceflops.table.columns import ABSENT, Columns, IntArray
from traceflops.table.grouping import group_rows, groups
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Window

_SIZES: Final = 4
"""At least one in so many messages is of the largest size, else sizes vary and all count."""
_FAR: Final = int(np.iinfo(np.int64).max)


class Stage(Struct, frozen=True):
    """What one rank of a pipeline did in all steps, in ns; the parts add up to the pipeline's time.

    `transfer_ns` is transfer while it computes nothing. Ranks of one `pipeline` have one number.
    What its sends and receives waited and transferred is that of their kernels, also beside work.
    """

    rank: int
    pipeline: int
    stage: int
    busy_ns: int
    transfer_ns: int
    warm_up_ns: int
    steady_ns: int
    drain_ns: int
    send_wait_ns: int
    send_transfer_ns: int
    receive_wait_ns: int
    receive_transfer_ns: int

    @property
    def bubble_ns(self) -> int:
        """Return the time without work or transfer."""
        return self.warm_up_ns + self.steady_ns + self.drain_ns


class Pipelines(Struct, frozen=True):
    """All pipelines of a job, of `stages` stages each, over `steps` steps.

    `micro_batches` of a step, None where their number is not clear. `bubble` is the time of the
    bubbles by that of the work, which is (stages - 1) / micro-batches at best: `ideal`.
    """

    stages: int
    micro_batches: int | None
    steps: int
    bubble: float
    ideal: float | None
    ranks: tuple[Stage, ...]


class _Messages(Columns, frozen=True):
    """Matched sends: places of the ranks, step, elements, when sent and received, and how long."""

    source: IntArray
    target: IntArray
    step: IntArray
    size: IntArray
    sent_ns: IntArray
    here_ns: IntArray
    send_wait_ns: IntArray
    send_transfer_ns: IntArray
    receive_wait_ns: IntArray
    receive_transfer_ns: IntArray


def pipelines(
    windows: Mapping[int, tuple[Window, ...]],
    records: CommRecords,
    waits: Waits,
    alignment: Alignment,
) -> Pipelines | None:
    """Return the pipelines of a job on aligned clocks, None where there are none."""
    messages = _messages(records, waits, alignment)
    of_place = dict(groups(records.place))
    waited = np.zeros(len(records), dtype=np.int64)
    waited[waits.row] = waits.wait_ns
    moves_ns = records.start_ns + waited  # what has no match is taken as transfer
    stages: list[list[Stage]] = []
    steps, counts = 0, set()
    for places in _chains(messages):
        lanes = []
        for place in places:
            offset, rows = int(alignment.offset_ns[place]), of_place[place]
            own = {
                window.step: (window.start_ns - offset, window.end_ns - offset)
                for window in windows[records.devices[place]]
                if window.step is not None
            }
            work = records.work[place].moved(-offset)
            moving = Intervals.of(moves_ns[rows] - offset, records.end_ns[rows] - offset)
            steps_of_lane = own or {ABSENT: (-_FAR, _FAR)}
            lanes.append(_Lane(records.ranks[place], steps_of_lane, work, work.union(moving)))
        run = _Run(lanes, places, messages.only(np.isin(messages.source, places)))
        if run.is_pipeline:
            stages.append(list(run.stages(len(stages))))
            steps = max(steps, len(run.steps))
            counts.add(run.micro_batches)
    depth = {len(chain) for chain in stages}
    if len(depth) != 1:
        return None
    ranks = tuple(stage for chain in stages for stage in chain)
    many, p = counts.pop() if len(counts) == 1 else None, depth.pop()
    return Pipelines(
        stages=p,
        micro_batches=many,
        steps=steps,
        bubble=sum(stage.bubble_ns for stage in ranks) / max(sum(s.busy_ns for s in ranks), 1),
        ideal=(p - 1) / many if many else None,
        ranks=ranks,
    )


def _messages(records: CommRecords, waits: Waits, alignment: Alignment) -> _Messages:
    """Return the matched sends in the order of time, on aligned clocks."""
    end = records.end_ns[waits.row] - alignment.offset_ns[records.place[waits.row]]
    sends = waits.first[records.is_pair[waits.row[waits.first]]]
    is_first = records.kind[waits.row[sends]] == SEND
    send, receive = np.where(is_first, sends, sends + 1), np.where(is_first, sends + 1, sends)
    sent, got = waits.row[send], waits.row[receive]
    messages = _Messages(
        records.place[sent],
        records.place[got],
        records.step[sent],
        records.elements[sent],
        end[send],
        end[receive],
        *(ns[side] for side in (send, receive) for ns in (waits.wait_ns, waits.transfer_ns)),
    )
    return messages.only(np.argsort(messages.here_ns, kind="stable"))


def _chains(messages: _Messages) -> Iterator[list[int]]:
    """Yield the places of the ranks of each chain in the order of its first message."""
    near: defaultdict[int, set[int]] = defaultdict(set)
    _, first = group_rows((messages.source, messages.target))
    pairs = (messages.source[first].tolist(), messages.target[first].tolist())
    for source, target in zip(*pairs, strict=True):
        near[source].add(target)
        near[target].add(source)
    seen: set[int] = set()
    for place in sorted(near):
        if place in seen or len(near[place]) != 1:
            continue
        # A chain goes on from its end until it ends or branches.
        chain = [place]
        while following := near[chain[-1]].difference(chain[-2:]):
            chain.append(min(following))
            if len(near[chain[-1]]) > 2 or len(following) > 1:
                break
        seen.update(chain)
        if len(near[chain[-1]]) == 1:
            # The first message of most steps is away from the first rank.
            rows = np.flatnonzero(np.isin(messages.source, chain))
            begins = rows[np.unique(messages.step[rows], return_index=True)[1]]
            turn = {rank: number for number, rank in enumerate(chain)}
            ends = (messages.target[begins].tolist(), messages.source[begins].tolist())
            ahead = sum(turn[target] - turn[source] for target, source in zip(*ends, strict=True))
            yield chain if ahead >= 0 else chain[::-1]


class _Lane(Struct, frozen=True):
    """One rank of a pipeline on aligned clocks: its steps, when it works, and works or transfers.

    A recording without steps is one step, ABSENT.
    """

    rank: int
    windows: Mapping[int, tuple[int, int]]
    work: Intervals
    occupied: Intervals

    def edges(self, steps: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Return begin and end of its work in each step; the end comes first without work."""
        windows = [self.windows[step] for step in steps]
        start, stop = np.array(windows, dtype=np.int64).reshape(-1, 2).T
        after = np.searchsorted(self.work.end_ns, start, side="right")
        before = np.searchsorted(self.work.start_ns, stop)
        first = np.maximum(np.append(self.work.start_ns, _FAR)[after], start)
        return first, np.minimum(np.append(-_FAR, self.work.end_ns)[before], stop)


class _Run:
    """The steps of one pipeline in which all ranks work: `starts` and `stops` in their order."""

    def __init__(self, lanes: Sequence[_Lane], places: Sequence[int], messages: _Messages) -> None:
        self._lanes, self._places, self._messages = lanes, places, messages
        common = set.intersection(*(set(lane.windows) for lane in lanes))
        steps = sorted(common & set(messages.step.tolist()))
        edges = np.array([lane.edges(steps) for lane in lanes])
        works = (edges[:, 0] < edges[:, 1]).all(axis=0)
        self.steps: list[int] = np.array(steps, dtype=np.int64)[works].tolist()
        self.starts, self.stops = edges[0, 0, works], edges[:, 1, works].max(axis=0)
        self._inside = np.isin(messages.step, self.steps)

    def _first_and_last(self, stage: int) -> tuple[IntArray, IntArray]:
        """Return when the first and the last message of each step is over at a stage."""
        messages, place = self._messages, self._places[stage]
        time = np.where(messages.source == place, messages.sent_ns, messages.here_ns)
        of_stage = ((messages.source == place) | (messages.target == place)) & self._inside
        first, last = np.full(len(self.steps), _FAR), np.full(len(self.steps), -_FAR)
        step = np.searchsorted(self.steps, messages.step)
        np.minimum.at(first, step[of_stage], time[of_stage])
        np.maximum.at(last, step[of_stage], time[of_stage])
        return first, last

    @property
    def is_pipeline(self) -> bool:
        """Return whether the second stage does little before its first message in the steps.

        Ranks that exchange what all of them need, as in a ring, start together.
        """
        if not self.steps:
            return False
        first, _ = self._first_and_last(1)
        before = [lane.work.length_within(self.starts, first).sum() for lane in self._lanes[:2]]
        return bool(2 * before[1] < before[0])

    @property
    def micro_batches(self) -> int | None:
        """Return how many messages of the main size the first stage sends in most steps."""
        if self.steps == [ABSENT]:
            return None
        messages = self._messages
        forth = (messages.source == self._places[0]) & (messages.target == self._places[1])
        forth &= self._inside
        main = forth & (messages.size == messages.size[forth].max(initial=0))
        chosen = main if main.sum() * _SIZES >= forth.sum() else forth
        _, counts = np.unique(messages.step[chosen], return_counts=True)
        values, often = np.unique(counts, return_counts=True)
        usual = int(often.argmax()) if len(often) else 0
        return int(values[usual]) if len(often) and 2 * often[usual] > len(self.steps) else None

    def stages(self, number: int) -> Iterator[Stage]:
        """Yield the stage of each rank, in the order of the chain."""
        messages = self._messages
        whole = int((self.stops - self.starts).sum())
        for turn, (lane, place) in enumerate(zip(self._lanes, self._places, strict=True)):
            first, last = self._first_and_last(turn)
            begin = np.clip(first if turn else self.starts, self.starts, self.stops)
            end = np.clip(last, begin, self.stops)
            borders = (self.starts, begin, end, self.stops)
            free = [
                int((stop - start - lane.occupied.length_within(start, stop)).sum())
                for start, stop in pairwise(borders)
            ]
            busy = int(lane.work.length_within(self.starts, self.stops).sum())
            sent = messages.only(self._inside & (messages.source == place))
            got = messages.only(self._inside & (messages.target == place))
            moved = [sent.send_wait_ns, sent.send_transfer_ns]
            moved += [got.receive_wait_ns, got.receive_transfer_ns]
            transfer = whole - busy - sum(free)
            sums = (int(ns.sum()) for ns in moved)
            yield Stage(lane.rank, number, turn, busy, transfer, *free, *sums)

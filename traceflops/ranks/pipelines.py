"""Pipelines: ranks in a chain of sends and receives, and when each has nothing to compute.

A pipeline runs, in each step, from the first work of its first stage to the last work of all. What
of that is neither work nor transfer of a rank is its bubble: warm-up until its first message is
there, drain after its last message, steady between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Final

import numpy as np

from traceflops.ranks.clocks import Alignment
from traceflops.ranks.comm_records import SEND, CommRecords
from traceflops.ranks.waits import Waits
from traceflops.table import ABSENT, IntArray, group_rows, groups
from traceflops.timeline import Intervals, Window

_SIZES: Final = 4
"""At least one in so many messages is of the largest size, else sizes vary and all count."""
_FAR: Final = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Stage:
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
        """Return how long it had nothing to do."""
        return self.warm_up_ns + self.steady_ns + self.drain_ns


@dataclass(frozen=True, slots=True)
class Pipelines:
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


@dataclass(frozen=True, slots=True)
class _Messages:
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

    def take(self, rows: IntArray) -> _Messages:
        """Return some of them."""
        return _Messages(*(getattr(self, column.name)[rows] for column in fields(self)))


def pipelines(
    windows: Mapping[int, tuple[Window, ...]],
    records: CommRecords,
    waits: Waits,
    alignment: Alignment,
) -> Pipelines | None:
    """Return the pipelines of a job on aligned clocks, None where there are none."""
    messages = _messages(records, waits, alignment)
    made = _Lanes(windows, records, waits, alignment)
    found: list[tuple[list[Stage], int, int | None]] = []
    for places in _chains(messages):
        mine = messages.take(np.isin(messages.source, places).nonzero()[0])
        lanes = [made.lane(place) for place in places]
        run = _Run(lanes, places, mine)
        if run.is_pipeline:
            found.append((list(run.stages(len(found))), len(run.steps), run.micro_batches))
    depth = {len(stages) for stages, *_ in found}
    if len(depth) != 1:
        return None
    counts = {count for *_, count in found}
    ranks = tuple(stage for stages, *_ in found for stage in stages)
    many, p = counts.pop() if len(counts) == 1 else None, depth.pop()
    work = sum(stage.busy_ns for stage in ranks)
    return Pipelines(
        stages=p,
        micro_batches=many,
        steps=max(steps for _, steps, _ in found),
        bubble=sum(stage.bubble_ns for stage in ranks) / max(work, 1),
        ideal=(p - 1) / many if many else None,
        ranks=ranks,
    )


def _messages(records: CommRecords, waits: Waits, alignment: Alignment) -> _Messages:
    """Return the matched sends in the order of time, on aligned clocks."""
    end = records.end_ns[waits.row] - alignment.offset_ns[records.place[waits.row]]
    pair = (
        np.flatnonzero(records.is_pair[waits.row[waits.first]]) if len(waits.first) else waits.first
    )
    one, other = waits.first[pair], waits.first[pair] + 1
    is_first = records.kind[waits.row[one]] == SEND
    send, receive = np.where(is_first, one, other), np.where(is_first, other, one)
    sent, got = waits.row[send], waits.row[receive]
    found = _Messages(
        records.place[sent],
        records.place[got],
        records.step[sent],
        records.elements[sent],
        end[send],
        end[receive],
        *(ns[side] for side in (send, receive) for ns in (waits.wait_ns, waits.transfer_ns)),
    )
    return found.take(np.argsort(found.here_ns, kind="stable"))


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
        if place not in seen and len(near[place]) == 1:
            chain = _walk(near, place)
            seen.update(chain)
            if len(near[chain[-1]]) == 1:
                yield chain if _begins(messages, chain) else chain[::-1]


def _walk(near: Mapping[int, set[int]], place: int) -> list[int]:
    """Return a chain from its end until it ends or branches."""
    chain = [place]
    while next_ := near[chain[-1]].difference(chain[-2:]):
        chain.append(min(next_))
        if len(near[chain[-1]]) > 2 or len(next_) > 1:
            break
    return chain


def _begins(messages: _Messages, chain: Sequence[int]) -> bool:
    """Return whether the first message of most steps is away from the first rank."""
    mine = np.flatnonzero(np.isin(messages.source, chain))
    _, first = np.unique(messages.step[mine], return_index=True)
    place = {rank: at for at, rank in enumerate(chain)}
    ways = [place[int(messages.target[at])] - place[int(messages.source[at])] for at in mine[first]]
    return sum(ways) >= 0


@dataclass(frozen=True, slots=True)
class _Lane:
    """One rank of a pipeline on aligned clocks: its steps, when it works, and works or transfers.

    A recording without steps is one step, ABSENT.
    """

    rank: int
    windows: Mapping[int, tuple[int, int]]
    work: Intervals
    occupied: Intervals

    def edges(self, steps: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Return when its work of each step begins and ends; that is before where it has none."""
        windows = [self.windows[step] for step in steps]
        start, stop = np.array(windows, dtype=np.int64).reshape(-1, 2).T
        after = np.searchsorted(self.work.end_ns, start, side="right")
        before = np.searchsorted(self.work.start_ns, stop)
        first = np.maximum(np.append(self.work.start_ns, _FAR)[after], start)
        return first, np.minimum(np.append(-_FAR, self.work.end_ns)[before], stop)


class _Lanes:
    """Makes the lane of each rank."""

    def __init__(
        self,
        windows: Mapping[int, tuple[Window, ...]],
        records: CommRecords,
        waits: Waits,
        alignment: Alignment,
    ) -> None:
        self._windows, self._records, self._alignment = windows, records, alignment
        waited = np.zeros(len(records), dtype=np.int64)
        waited[waits.row] = waits.wait_ns
        self._moves_ns = records.start_ns + waited  # what has no match is taken as transfer
        self._of_place = dict(groups(records.place))

    def lane(self, place: int) -> _Lane:
        """Return the lane of the rank at a place."""
        records, device = self._records, self._records.devices[place]
        offset = int(self._alignment.offset_ns[place])
        windows = {
            one.step: (one.start_ns - offset, one.end_ns - offset)
            for one in self._windows[device]
            if one.step is not None
        }
        work, mine = records.work[place].moved(-offset), self._of_place[place]
        moving = Intervals.of(self._moves_ns[mine] - offset, records.end_ns[mine] - offset)
        return _Lane(
            records.ranks[place],
            windows or {ABSENT: (-_FAR, _FAR)},
            work,
            work.union(moving),
        )


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

    def _first_and_last(self, stage: int) -> tuple[IntArray, IntArray]:
        """Return when the first and the last message of each step is over at a stage."""
        found, place = self._messages, self._places[stage]
        time = np.where(found.source == place, found.sent_ns, found.here_ns)
        mine = (found.source == place) | (found.target == place)
        first, last = np.full(len(self.steps), _FAR), np.full(len(self.steps), -_FAR)
        at = np.searchsorted(self.steps, found.step)
        mine &= np.isin(found.step, self.steps)
        np.minimum.at(first, at[mine], time[mine])
        np.maximum.at(last, at[mine], time[mine])
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
        found = self._messages
        forth = (found.source == self._places[0]) & (found.target == self._places[1])
        forth &= np.isin(found.step, self.steps)
        main = forth & (found.size == found.size[forth].max(initial=0))
        chosen = main if main.sum() * _SIZES >= forth.sum() else forth
        _, counts = np.unique(found.step[chosen], return_counts=True)
        values, often = np.unique(counts, return_counts=True)
        usual = int(often.argmax()) if len(often) else 0
        return int(values[usual]) if len(often) and 2 * often[usual] > len(self.steps) else None

    def stages(self, number: int) -> Iterator[Stage]:
        """Yield what each rank did."""
        for at, lane in enumerate(self._lanes):
            first, last = self._first_and_last(at)
            begin = np.clip(first if at else self.starts, self.starts, self.stops)
            end = np.clip(last, begin, self.stops)
            borders = (self.starts, begin, end, self.stops)
            free = [
                int((stop - start - lane.occupied.length_within(start, stop)).sum())
                for start, stop in pairwise(borders)
            ]
            busy = int(lane.work.length_within(self.starts, self.stops).sum())
            whole = int((self.stops - self.starts).sum())
            moved = self._moved(self._places[at])
            yield Stage(lane.rank, number, at, busy, whole - busy - sum(free), *free, *moved)

    def _moved(self, place: int) -> Iterator[int]:
        """Yield how long sends wait and transfer in the steps, then receives."""
        found, inside = self._messages, np.isin(self._messages.step, self.steps)
        sends, receives = (inside & (side == place) for side in (found.source, found.target))
        for mine, wait, transfer in (
            (sends, found.send_wait_ns, found.send_transfer_ns),
            (receives, found.receive_wait_ns, found.receive_transfer_ns),
        ):
            yield int(wait[mine].sum())
            yield int(transfer[mine].sum())

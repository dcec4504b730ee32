"""Pipelines: ranks in a chain of sends and receives, and when each has nothing to compute.

A pipeline runs, in each step, from the first work of its first stage to the last work of all. The
part of that time in which a rank neither works nor transfers is its bubble: warm-up until its first
message is there, drain after its last message, steady between.
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
from traceflops.table.grouping import group_least, group_most, group_rows, groups
from traceflops.timeline.intervals import Intervals
from traceflops.windows.records import Windows

_SIZES: Final = 4
"""If fewer than one in so many messages has the largest size, sizes vary and all count."""
_FAR: Final = int(np.iinfo(np.int64).max)


class Stage(Struct, frozen=True):
    """What one rank of a pipeline did in all steps, in ns.

    Busy time, transfer, and the bubble (warm-up, steady, drain) add up to the pipeline's time.
    `transfer_ns` is transfer while the rank computes nothing. `pipeline` is the number of the
    pipeline, `stage` the place of the rank in it. Wait and transfer of sends and receives are those
    of their kernels, also beside work.
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

    `micro_batches` is their number per step, None if it is not clear. `bubble` is the time of the
    bubbles divided by that of the work, `ideal` its best value: (stages - 1) / micro-batches.
    """

    stages: int
    micro_batches: int | None
    steps: int
    bubble: float
    ideal: float | None
    ranks: tuple[Stage, ...]


class _Messages(Columns, frozen=True):
    """Matched sends: places of both ranks, step, size in elements, times on aligned clocks."""

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
    windows: Windows, records: CommRecords, waits: Waits, alignment: Alignment
) -> Pipelines | None:
    """Return the pipelines of a job on aligned clocks; None without any, or of several depths."""
    messages = _messages(records, waits, alignment)
    waited = np.zeros(len(records), dtype=np.int64)  # a kernel without a match is all transfer
    waited[waits.row] = waits.wait_ns
    transfer_begin = records.start_ns + waited
    rows_of_place = dict(groups(records.place))

    def lane(place: int) -> _Lane:
        """Return what the rank at a place did, on aligned clocks."""
        offset, rows = int(alignment.offset_ns[place]), rows_of_place[place]
        steps = {
            window.step: (window.start_ns - offset, window.end_ns - offset)
            for window in windows[records.devices[place]]
            if window.step is not None
        }
        work = records.work[place].moved(-offset)
        transfer = Intervals.of(transfer_begin[rows] - offset, records.end_ns[rows] - offset)
        steps = steps or {ABSENT: (-_FAR, _FAR)}  # the whole recording as one step
        return _Lane(place, records.ranks[place], steps, work, work.union(transfer))

    chains: list[list[Stage]] = []
    steps, micro_batches = 0, set()
    for places in _chains(messages):
        of_chain = messages.only(np.isin(messages.source, places))
        pipeline = _pipeline(len(chains), [lane(place) for place in places], of_chain)
        if pipeline is not None:
            chain, steps_of_chain, batches = pipeline
            chains.append(chain)
            steps = max(steps, steps_of_chain)
            micro_batches.add(batches)
    depths = {len(chain) for chain in chains}
    if len(depths) != 1:
        return None
    depth = depths.pop()
    stages = tuple(stage for chain in chains for stage in chain)
    common = micro_batches.pop() if len(micro_batches) == 1 else None
    busy_ns = sum(stage.busy_ns for stage in stages)
    return Pipelines(
        stages=depth,
        micro_batches=common,
        steps=steps,
        bubble=sum(stage.bubble_ns for stage in stages) / max(busy_ns, 1),
        ideal=(depth - 1) / common if common else None,
        ranks=stages,
    )


def _messages(records: CommRecords, waits: Waits, alignment: Alignment) -> _Messages:
    """Return the matched sends in the order of their receipt, on aligned clocks."""
    # The two records of a message are neighbours in `waits.row`, the earlier start first.
    first = waits.first[records.is_pair[waits.row[waits.first]]]
    is_send = records.kind[waits.row[first]] == SEND
    send = np.where(is_send, first, first + 1)
    receive = np.where(is_send, first + 1, first)
    send_row, receive_row = waits.row[send], waits.row[receive]
    source, target = records.place[send_row], records.place[receive_row]
    messages = _Messages(
        source=source,
        target=target,
        step=records.step[send_row],
        size=records.elements[send_row],
        sent_ns=records.end_ns[send_row] - alignment.offset_ns[source],
        here_ns=records.end_ns[receive_row] - alignment.offset_ns[target],
        send_wait_ns=waits.wait_ns[send],
        send_transfer_ns=waits.transfer_ns[send],
        receive_wait_ns=waits.wait_ns[receive],
        receive_transfer_ns=waits.transfer_ns[receive],
    )
    return messages.only(np.argsort(messages.here_ns, kind="stable"))


def _chains(messages: _Messages) -> Iterator[list[int]]:
    """Yield each chain (no ring) of ranks that send to each other, as places in order of stages."""
    neighbours: defaultdict[int, set[int]] = defaultdict(set)
    _, first = group_rows((messages.source, messages.target))
    sources, targets = messages.source[first].tolist(), messages.target[first].tolist()
    for source, target in zip(sources, targets, strict=True):
        neighbours[source].add(target)
        neighbours[target].add(source)
    seen: set[int] = set()
    for place in sorted(neighbours):
        if place in seen or len(neighbours[place]) != 1:
            continue
        # `place` is an end of a chain. Follow the neighbours until the chain ends or branches.
        # 0 - 1 - 2: the neighbours of 1 are 0 and 2; without the last two of chain [0, 1] it is 2.
        chain = [place]
        while following := neighbours[chain[-1]].difference(chain[-2:]):
            chain.append(min(following))
            if len(neighbours[chain[-1]]) > 2 or len(following) > 1:
                break
        seen.update(chain)
        if len(neighbours[chain[-1]]) == 1:
            # The first message of a step goes from a stage to the next one. If the first messages
            # of most steps go the other way, the chain was followed from its last stage.
            rows = np.flatnonzero(np.isin(messages.source, chain))
            _, first_of_step = np.unique(messages.step[rows], return_index=True)
            firsts = rows[first_of_step]
            # A message forth adds 1 to the sum of stages that are sent to less those that send.
            forth = sum(map(chain.index, messages.target[firsts].tolist()))
            forth -= sum(map(chain.index, messages.source[firsts].tolist()))
            yield chain if forth >= 0 else chain[::-1]


class _Lane(Struct, frozen=True):
    """One rank of a pipeline, on aligned clocks: when it works, and when it works or transfers.

    `windows` are begin and end by step; a recording without steps is one step, ABSENT.
    """

    place: int
    rank: int
    windows: Mapping[int, tuple[int, int]]
    work: Intervals
    occupied: Intervals


def _pipeline(
    number: int, lanes: Sequence[_Lane], messages: _Messages
) -> tuple[list[Stage], int, int | None] | None:
    """Return the stages of a chain, the number of its steps and of micro-batches in each.

    None if the chain is no pipeline; `number` is the number of the pipeline.
    """
    steps, starts, stops = _steps(lanes, messages)
    if not len(steps):
        return None
    messages = messages.only(np.isin(messages.step, steps))
    first_and_last = [_first_and_last(messages, lane.place, steps) for lane in lanes]
    # As a step begins, the second stage waits for the first one: until its first message, it works
    # less than half as much as the first. Ranks in a ring start together: they are no pipeline.
    first_message, _ = first_and_last[1]
    work_ns = [lane.work.length_within(starts, first_message).sum() for lane in lanes[:2]]
    if 2 * work_ns[1] >= work_ns[0]:
        return None
    whole_ns, stages = int((stops - starts).sum()), []
    for stage, (lane, (first, last)) in enumerate(zip(lanes, first_and_last, strict=True)):
        # starts ..warm-up.. begin (first message) ..steady.. end (last message) ..drain.. stops
        # The first stage has no warm-up: it waits for no message.
        begin = np.clip(first if stage else starts, starts, stops)
        end = np.clip(last, begin, stops)
        warm_up_ns, steady_ns, drain_ns = (
            int((stop - start - lane.occupied.length_within(start, stop)).sum())
            for start, stop in pairwise((starts, begin, end, stops))
        )
        busy_ns = int(lane.work.length_within(starts, stops).sum())
        sent = messages.only(messages.source == lane.place)
        got = messages.only(messages.target == lane.place)
        stages.append(
            Stage(
                rank=lane.rank,
                pipeline=number,
                stage=stage,
                busy_ns=busy_ns,
                transfer_ns=whole_ns - busy_ns - warm_up_ns - steady_ns - drain_ns,
                warm_up_ns=warm_up_ns,
                steady_ns=steady_ns,
                drain_ns=drain_ns,
                send_wait_ns=int(sent.send_wait_ns.sum()),
                send_transfer_ns=int(sent.send_transfer_ns.sum()),
                receive_wait_ns=int(got.receive_wait_ns.sum()),
                receive_transfer_ns=int(got.receive_transfer_ns.sum()),
            )
        )
    return stages, len(steps), _micro_batches(messages, lanes, steps)


def _steps(lanes: Sequence[_Lane], messages: _Messages) -> tuple[IntArray, IntArray, IntArray]:
    """Return the steps in which all ranks of a chain work and exchange messages, starts and stops.

    A step starts with the first work of the first stage and stops with the last work of any stage.
    """
    common = set.intersection(*(set(lane.windows) for lane in lanes))
    recorded = sorted(common & set(messages.step.tolist()))
    work_starts, work_ends = [], []  # by lane: when the work in each step starts and ends
    for lane in lanes:
        windows = [lane.windows[step] for step in recorded]
        start, stop = np.array(windows, dtype=np.int64).reshape(-1, 2).T
        # A step's first work is the first interval that ends after the start of its window, its
        # last work the last interval that starts before the window stops.
        # Work [0, 4) [5, 9) [12, 15), window [4, 12): first is 1, last is 1.
        first = np.searchsorted(lane.work.end_ns, start, side="right")
        last = np.searchsorted(lane.work.start_ns, stop) - 1
        # Where there is no such interval, the added values let the work end before it starts.
        work_starts.append(np.maximum(np.append(lane.work.start_ns, _FAR)[first], start))
        work_ends.append(np.minimum(np.append(lane.work.end_ns, -_FAR)[last], stop))
    all_work = (np.array(work_starts) < np.array(work_ends)).all(axis=0)
    steps = np.array(recorded, dtype=np.int64)[all_work]
    return steps, work_starts[0][all_work], np.max(work_ends, axis=0)[all_work]


def _first_and_last(messages: _Messages, place: int, steps: IntArray) -> tuple[IntArray, IntArray]:
    """Return when the first and the last message of each step is sent or here at a place."""
    time = np.where(messages.source == place, messages.sent_ns, messages.here_ns)
    of_place = (messages.source == place) | (messages.target == place)
    time, step = time[of_place], np.searchsorted(steps, messages.step[of_place])
    # In a step without messages there, the first one is after all times, and the last before all.
    return group_least(step, time, len(steps)), group_most(step, time, len(steps))


def _micro_batches(messages: _Messages, lanes: Sequence[_Lane], steps: IntArray) -> int | None:
    """Return how many messages the first stage sends to the second in most steps, else None.

    Messages of the largest size count. If fewer than one in _SIZES has that size, all count.
    """
    if steps.tolist() == [ABSENT]:  # the whole recording as one step: it may hold several
        return None
    forth = (messages.source == lanes[0].place) & (messages.target == lanes[1].place)
    largest = forth & (messages.size == messages.size[forth].max(initial=0))
    counted = largest if largest.sum() * _SIZES >= forth.sum() else forth
    _, per_step = np.unique(messages.step[counted], return_counts=True)
    if not len(per_step):
        return None
    # In how many steps each number is sent: 4, 4 and 3 messages per step give [0 0 0 1 2].
    steps_by_number = np.bincount(per_step)
    usual = int(steps_by_number.argmax())
    return usual if 2 * steps_by_number[usual] > len(steps) else None

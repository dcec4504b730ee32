"""Simulates a transformer training run of several ranks: what happened, free of any format."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sample_traces.config import RunConfig
from sample_traces.device import Device, Noise, Request, execute
from sample_traces.host import FIRST_CORRELATION, Host
from sample_traces.kernels import Kernels
from sample_traces.program import COMMUNICATION, COMPUTE, Launch
from sample_traces.records import Call, Mark, Meeting, Op, RankRun, Run
from sample_traces.training import Trainer

_Timed = TypeVar("_Timed", Call, Op, Mark)
_HOST_BEGIN_NS = 60_000
_LEAD_IN_BEGIN_NS = 5_000
_CLOSING_NS = 40_000
_FIRST_PROCESS = 4_100
_PROCESS_DISTANCE = 200
_BACKWARD_THREAD_DISTANCE = 97


def simulate(config: RunConfig) -> Run:
    """Return what happened in the run that the config describes."""
    ranks = [_Rank.begin(config.of_rank(rank), rank) for rank in range(config.ranks)]
    # One random source that all ranks share: what happens inside a collective.
    shared = Noise(config, Random(f"{config.seed}:collectives"), "collectives")
    meetings: list[Meeting] = []
    for number in config.step_numbers:
        meetings += _together(ranks, [rank.begin_step(number) for rank in ranks], shared)
    last = [rank.host.run(rank.trainer.after_last_step()) for rank in ranks]
    meetings += _together(ranks, last, shared)
    return Run(config, tuple(rank.finish() for rank in ranks), tuple(meetings))


class _Rank(Struct, frozen=True):
    number: int
    config: RunConfig
    host: Host
    device: Device
    trainer: Trainer

    @classmethod
    def begin(cls, config: RunConfig, number: int) -> _Rank:
        slow = config.straggler_percent if number == config.straggler_rank else 100
        device = Device(config, Random(f"{config.seed}:device:{number}"), number, slow)
        main_thread = _FIRST_PROCESS + _PROCESS_DISTANCE * number
        host = Host(
            config,
            Random(f"{config.seed}:host:{number}"),
            device,
            main_thread,
            main_thread + _BACKWARD_THREAD_DISTANCE,
            _HOST_BEGIN_NS,
        )
        if config.lead_in:
            _lead_in(config, device)
        return cls(number, config, host, device, Trainer(config, number))

    def begin_step(self, number: int) -> Iterator[None]:
        """Return the step, to be done from pause to pause."""
        if jitter := self.config.jitter_permille:
            random = Random(f"{self.config.seed}:jitter:{self.number}:{number}")
            self.device.pace_permille = random.randint(-jitter, jitter)
        is_throttled = number in self.config.throttled_steps
        self.device.throttle_percent = self.config.throttled_percent if is_throttled else 100
        return self.host.run_step(number, self.trainer.step(number))

    def finish(self) -> RankRun:
        """Return what the rank recorded; the window closes once host and device are done."""
        config = self.config
        activities = sorted(self.device.activities, key=lambda a: (a.start_ns, a.correlation))
        collectives = [activity for activity in activities if activity.collective]
        lost = {collectives[place].correlation for place in config.unrecorded}
        activities = [one for one in activities if one.correlation not in lost]
        last_ns = max([self.host.cursor_ns, *(activity.end_ns for activity in activities)])
        recorded = RankRun(
            self.number,
            self.host.main_thread,
            self.host.main_thread,
            self.host.backward_thread,
            config.origin_unix_ns + self.number * config.clock_skew_ns + config.clock_offset_ns,
            last_ns + _CLOSING_NS,
            tuple(activities),
            tuple(self.host.calls),
            tuple(self.host.ops),
            tuple(self.host.marks),
            tuple(self.host.allocations),
            tuple(self.host.spent),
        )
        return _on_clock(config, recorded)


def _on_clock(config: RunConfig, rank: RankRun) -> RankRun:
    """Return a rank's records as its clock timed them."""
    if not config.clock_drift_ppb:
        return rank
    at = config.clock_ns

    def timed(records: tuple[_Timed, ...]) -> tuple[_Timed, ...]:
        return tuple(
            replace(one, start_ns=at(one.start_ns), dur_ns=at(one.end_ns) - at(one.start_ns))
            for one in records
        )

    return replace(
        rank,
        end_ns=at(rank.end_ns),
        activities=tuple(
            replace(
                one, start_ns=at(one.start_ns), dur_ns=one.dur_ns + config.gained_ns(one.dur_ns)
            )
            for one in rank.activities
        ),
        calls=timed(rank.calls),
        ops=timed(rank.ops),
        marks=timed(rank.marks),
        allocations=tuple(replace(one, time_ns=at(one.time_ns)) for one in rank.allocations),
        spent=tuple(
            replace(one, start_ns=at(one.start_ns), end_ns=at(one.end_ns)) for one in rank.spent
        ),
    )


def _lead_in(config: RunConfig, device: Device) -> None:
    """Run the tail of an earlier step, whose launches lie before the window."""
    kernels = Kernels(config)
    elements = config.hidden * config.hidden
    launches = [Launch("", (kernels.adamw(elements),), COMPUTE) for _ in range(4)]
    launches.insert(
        0, Launch("", (kernels.gemm(config.tokens, config.hidden, config.hidden, "NT"),))
    )
    if config.ranks > 1:
        work = kernels.exchange("allreduce", elements, config.ranks)
        launches.insert(0, Launch("", (work,), COMMUNICATION))
    first = FIRST_CORRELATION - len(launches)
    for correlation, launch in enumerate(launches, start=first):
        device.run(Request(launch, _LEAD_IN_BEGIN_NS, correlation))


def _together(
    ranks: Sequence[_Rank], running: Sequence[Iterator[None]], shared: Noise
) -> Iterator[Meeting]:
    """Advance all ranks until all are done; one goes on once its device has done all it asked."""
    queues: list[deque[Request]] = [deque() for _ in ranks]
    going = dict(enumerate(running))
    while going:
        free = [place for place in going if not queues[place]]
        if not free:
            raise ValueError("ranks disagree about their collectives")
        for place in free:
            if next(going[place], _DONE) is _DONE:
                del going[place]
            queues[place].extend(ranks[place].host.take_requests())
        yield from execute([rank.device for rank in ranks], queues, shared)
    if any(queues):
        raise ValueError("ranks disagree about their collectives")


_DONE = object()

"""Simulates a data-parallel transformer training run: what happened, free of any format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from sample_traces.config import RunConfig
from sample_traces.device import Device, Request, execute
from sample_traces.host import FIRST_CORRELATION, Host
from sample_traces.kernels import Kernels
from sample_traces.program import COMMUNICATION, COMPUTE, Launch
from sample_traces.records import RankRun, Run
from sample_traces.training import Trainer

_HOST_BEGIN_NS = 60_000
_LEAD_IN_BEGIN_NS = 5_000
_CLOSING_NS = 40_000
_FIRST_PROCESS = 4_100
_PROCESS_DISTANCE = 200
_BACKWARD_THREAD_DISTANCE = 97


def simulate(config: RunConfig) -> Run:
    """Return what happened in the run that the config describes."""
    ranks = [_Rank.begin(config, rank) for rank in range(config.ranks)]
    # One random source that all ranks share: what happens inside a collective.
    shared = Random(f"{config.seed}:collectives")
    trainer = Trainer(config)
    for number in config.step_numbers:
        step = trainer.step(number)
        _together(ranks, [rank.host.run_step(number, step) for rank in ranks], shared)
    after = trainer.after_last_step()
    _together(ranks, [rank.host.run(after) for rank in ranks], shared)
    return Run(config, tuple(rank.finish() for rank in ranks))


@dataclass(frozen=True, slots=True)
class _Rank:
    number: int
    config: RunConfig
    host: Host
    device: Device

    @classmethod
    def begin(cls, config: RunConfig, number: int) -> _Rank:
        slow = config.straggler_percent if number == config.straggler_rank else 100
        device = Device(config, Random(f"{config.seed}:device:{number}"), slow)
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
        return cls(number, config, host, device)

    def finish(self) -> RankRun:
        """Return the rank's records; the window closes once host and device are done."""
        activities = sorted(self.device.activities, key=lambda a: (a.start_ns, a.correlation))
        last_ns = max([self.host.cursor_ns, *(activity.end_ns for activity in activities)])
        return RankRun(
            self.number,
            self.host.main_thread,
            self.host.main_thread,
            self.host.backward_thread,
            self.config.origin_unix_ns + self.number * self.config.clock_skew_ns,
            last_ns + _CLOSING_NS,
            tuple(activities),
            tuple(self.host.calls),
            tuple(self.host.ops),
            tuple(self.host.marks),
            tuple(self.host.allocations),
            tuple(self.host.spent),
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
        launches.insert(0, Launch("", (kernels.allreduce(elements),), COMMUNICATION))
    first = FIRST_CORRELATION - len(launches)
    for correlation, launch in enumerate(launches, start=first):
        device.run(Request(launch, _LEAD_IN_BEGIN_NS, correlation))


def _together(ranks: Sequence[_Rank], running: list[Iterator[None]], shared: Random) -> None:
    """Advance all ranks to their next common pause, let the devices run, until all are done."""
    done = False
    while not done:
        states = [next(host, _DONE) for host in running]
        execute(
            [rank.device for rank in ranks], [rank.host.take_requests() for rank in ranks], shared
        )
        done = all(state is _DONE for state in states)


_DONE = object()

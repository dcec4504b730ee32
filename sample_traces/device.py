"""The device: streams that run work in order, wait for each other, and meet other ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from sample_traces.config import RunConfig
from sample_traces.program import Launch, Wait
from sample_traces.records import Activity, Collective, Meeting, Presence, Work


@dataclass(frozen=True, slots=True)
class Request:
    """Something the host asked of the device, at `call_ns`."""

    asked: Launch | Wait
    call_ns: int = 0
    correlation: int = 0
    call: int | None = None
    op: int | None = None
    step: int | None = None
    is_twin: bool = False


def vary(dur_ns: int, permille: int, random: Random) -> int:
    """Return the duration changed evenly by up to `permille` up or down, in ns."""
    return dur_ns + dur_ns * random.randint(-permille, permille) // 1000


@dataclass(slots=True)
class _Stream:
    """State of one stream: when it is free, and what it must wait for."""

    last_start_ns: int = 0
    last_dur_ns: int = 0
    end_ns: int = 0
    barrier_ns: int = 0
    used: bool = False


@dataclass(slots=True)
class Device:
    """Runs the requests of one rank; `activities` grows in the order of execution.

    Kernels take `slow_percent` of their time, and `pace_permille` more in the present step.
    """

    config: RunConfig
    random: Random
    rank: int = 0
    slow_percent: int = 100
    pace_permille: int = 0
    activities: list[Activity] = field(default_factory=list)
    ended_ns: dict[int, int] = field(default_factory=dict)
    """By correlation, when the last work of a launch has ended."""
    _streams: dict[int, _Stream] = field(default_factory=dict)

    def end_ns(self, stream: int | None) -> int:
        """Return when everything so far on the stream, or without one anywhere, has ended."""
        if stream is None:
            return max(one.end_ns for one in self._streams.values())
        return self._stream(stream).end_ns

    def run(self, request: Request) -> None:
        """Execute a wait or a launch that needs no other rank."""
        asked = request.asked
        if isinstance(asked, Wait):
            awaited = self._stream(asked.awaited)
            if awaited.used:
                barrier = awaited.end_ns + self.config.event_wait_ns
                stream = self._stream(asked.stream)
                stream.barrier_ns = max(stream.barrier_ns, barrier)
            return
        for node, work in enumerate(asked.works, start=1):
            self._run_work(request, asked, work, node if asked.is_graph else None)

    def arrival_ns(self, request: Request, launch: Launch) -> int:
        """Return when the request could start on its stream."""
        stream = self._stream(launch.stream)
        free_ns = stream.end_ns + self.config.dispatch_gap_ns if stream.used else 0
        return max(self._earliest_ns(request, stream), free_ns)

    def place(
        self,
        request: Request,
        launch: Launch,
        work: Work,
        start_ns: int,
        dur_ns: int,
        node: int | None,
    ) -> None:
        """Put an activity on its stream."""
        stream = self._stream(launch.stream)
        stream.last_start_ns, stream.last_dur_ns, stream.used = start_ns, dur_ns, True
        stream.end_ns = max(stream.end_ns, start_ns + dur_ns)
        ended_ns = self.ended_ns.get(request.correlation, 0)  # one may end before the one before it
        self.ended_ns[request.correlation] = max(ended_ns, start_ns + dur_ns)
        self.activities.append(
            Activity(
                start_ns,
                dur_ns,
                launch.stream,
                work,
                request.correlation,
                request.call,
                request.op,
                request.step,
                launch.collective,
                node,
            )
        )

    def _stream(self, number: int) -> _Stream:
        return self._streams.setdefault(number, _Stream())

    def _earliest_ns(self, request: Request, stream: _Stream) -> int:
        return max(request.call_ns + self.config.launch_latency_ns, stream.barrier_ns)

    def _run_work(self, request: Request, launch: Launch, work: Work, node: int | None) -> None:
        stream = self._stream(launch.stream)
        start_ns, dur_ns = self.arrival_ns(request, launch), self._duration_ns(work)
        if work.kind == "kernel" and stream.used:
            earliest_ns = self._earliest_ns(request, stream)
            if request.is_twin and earliest_ns <= stream.last_start_ns:
                start_ns, dur_ns = stream.last_start_ns, stream.last_dur_ns
            elif self.config.programmatic_launch and self.random.randrange(4) == 0:
                early_ns = stream.end_ns - self.random.randrange(3_700)
                start_ns = max(earliest_ns, stream.last_start_ns, early_ns)
        self.place(request, launch, work, start_ns, dur_ns, node)

    def _duration_ns(self, work: Work) -> int:
        dur_ns = vary(work.dur_ns, self.config.noise_permille, self.random)
        if work.kind != "kernel":
            return dur_ns
        may_vanish = self.config.zero_length_kernels and work.top == "memory"
        if may_vanish and self.random.randrange(8) == 0:
            return 0
        return dur_ns * self.slow_percent * (1000 + self.pace_permille) // 100_000


def execute(
    devices: Sequence[Device], queues: Sequence[deque[Request]], random: Random
) -> Iterator[Meeting]:
    """Run the queues as far as they go, one per device; yield the collectives on the way.

    A rank that comes early to a collective waits inside it: its kernel starts at once and ends
    together with the others.
    """
    moved = True
    while moved:
        for device, queue in zip(devices, queues, strict=True):
            while queue and _collective(queue) is None:
                device.run(queue.popleft())
        met = [
            _meet([(devices[rank], queues[rank].popleft()) for rank in ranks], random)
            for ranks in dict.fromkeys(map(_awaited, queues))
            if ranks and all(_awaited(queues[rank]) == ranks for rank in ranks)
        ]
        yield from met
        moved = bool(met)


def _collective(queue: deque[Request]) -> Collective | None:
    """Return what the next request exchanges, if it does."""
    asked = queue[0].asked if queue else None
    return asked.collective if isinstance(asked, Launch) else None


def _awaited(queue: deque[Request]) -> tuple[int, ...]:
    """Return the ranks that the next request waits for."""
    collective = _collective(queue)
    return collective.members if collective else ()


def _meet(meeting: Sequence[tuple[Device, Request]], random: Random) -> Meeting:
    config = meeting[0][0].config
    launches = [request.asked for _, request in meeting if isinstance(request.asked, Launch)]
    collective = launches[0].collective
    assert collective is not None
    slow = config.slow_group_percent if collective.group.name == config.slow_group else 100
    longest_ns = max(launch.works[0].dur_ns for launch in launches) * slow // 100
    dur_ns = vary(longest_ns, config.noise_permille, random)
    present = []
    arrivals = [
        device.arrival_ns(request, launch)
        for (device, request), launch in zip(meeting, launches, strict=True)
    ]
    end_ns = max(arrivals) + dur_ns
    for (device, request), launch, start_ns in zip(meeting, launches, arrivals, strict=True):
        late_ns = random.randint(0, config.exit_jitter_ns) if config.exit_jitter_ns else 0
        left_ns = end_ns + late_ns
        device.place(request, launch, launch.works[0], start_ns, left_ns - start_ns, None)
        present.append(Presence(device.rank, request.correlation, start_ns, left_ns))
    return Meeting(collective.name, collective.group, meeting[0][1].step, tuple(present))

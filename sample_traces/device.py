"""The device: streams that run work in order, wait for each other, and meet other ranks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

from sample_traces.config import RunConfig
from sample_traces.program import COMPUTE, Launch, Wait
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
    place: str = ""
    """Step and operator."""


@dataclass(slots=True)
class Noise:
    """Varies durations: by what was drawn before, or by place and how often it was drawn there."""

    config: RunConfig
    random: Random
    name: str
    _drawn: Counter[str] = field(default_factory=Counter)

    def vary(self, dur_ns: int, place: str) -> int:
        """Return the duration changed evenly by up to the noise up or down, in ns."""
        return dur_ns + dur_ns * self._permille(place) // 1000

    def _permille(self, place: str) -> int:
        most = self.config.noise_permille
        if not self.config.steady_draws:
            return self.random.randint(-most, most)
        self._drawn[place] += 1
        key = f"{self.config.seed}:{self.name}:{place}:{self._drawn[place]}"
        return crc32(key.encode()) % (2 * most + 1) - most


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

    Kernels take `slow_percent` of their time; in the present step `throttle_percent` of that, and
    `pace_permille` more.
    """

    config: RunConfig
    random: Random
    rank: int = 0
    slow_percent: int = 100
    pace_permille: int = 0
    throttle_percent: int = 100
    activities: list[Activity] = field(default_factory=list)
    ended_ns: dict[int, int] = field(default_factory=dict)
    """By correlation, when the last work of a launch has ended."""
    _streams: dict[int, _Stream] = field(default_factory=dict)
    _exchanges: list[tuple[int, int]] = field(default_factory=list)
    """Start and end of collectives that may still run."""
    _noise: Noise = field(init=False)

    def __post_init__(self) -> None:
        self._noise = Noise(self.config, self.random, f"device:{self.rank}")

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
        if launch.collective:
            self._exchanges.append((start_ns, start_ns + dur_ns))
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
        start_ns, dur_ns = self.arrival_ns(request, launch), self._duration_ns(request, work)
        if work.kind == "kernel" and stream.used:
            earliest_ns = self._earliest_ns(request, stream)
            if request.is_twin and earliest_ns <= stream.last_start_ns:
                start_ns, dur_ns = stream.last_start_ns, stream.last_dur_ns
            elif self.config.programmatic_launch and self.random.randrange(4) == 0:
                early_ns = stream.end_ns - self.random.randrange(3_700)
                start_ns = max(earliest_ns, stream.last_start_ns, early_ns)
        if launch.stream == COMPUTE:
            dur_ns = self._contended_ns(start_ns, dur_ns)
        self.place(request, launch, work, start_ns, dur_ns, node)

    def _contended_ns(self, start_ns: int, dur_ns: int) -> int:
        """Return how long work takes that collectives beside it slow down."""
        slow = self.config.contention_percent
        self._exchanges = [one for one in self._exchanges if one[1] > start_ns]
        now_ns, left_ns = start_ns, dur_ns
        for begun_ns, ended_ns in self._exchanges if slow > 100 else ():
            alone_ns = min(max(begun_ns - now_ns, 0), left_ns)
            now_ns, left_ns = now_ns + alone_ns, left_ns - alone_ns
            beside_ns = min(max(ended_ns - now_ns, 0), left_ns * slow // 100)
            now_ns, left_ns = now_ns + beside_ns, left_ns - beside_ns * 100 // slow
        return now_ns + left_ns - start_ns

    def _duration_ns(self, request: Request, work: Work) -> int:
        dur_ns = self._noise.vary(work.dur_ns, request.place)
        if work.kind != "kernel":
            return dur_ns
        may_vanish = self.config.zero_length_kernels and work.top == "memory"
        if may_vanish and self.random.randrange(8) == 0:
            return 0
        slow = self.slow_percent * self.throttle_percent
        return dur_ns * slow * (1000 + self.pace_permille) // 10_000_000


def execute(
    devices: Sequence[Device], queues: Sequence[deque[Request]], noise: Noise
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
            _meet([(devices[rank], queues[rank].popleft()) for rank in ranks], noise)
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


def _meet(meeting: Sequence[tuple[Device, Request]], noise: Noise) -> Meeting:
    config = meeting[0][0].config
    launches = [request.asked for _, request in meeting if isinstance(request.asked, Launch)]
    collective = launches[0].collective
    assert collective is not None
    slow = config.slow_group_percent if collective.group.name == config.slow_group else 100
    longest_ns = max(launch.works[0].dur_ns for launch in launches) * slow // 100
    dur_ns = noise.vary(longest_ns, f"{meeting[0][1].step} {collective.name}")
    present = []
    arrivals = [
        device.arrival_ns(request, launch)
        for (device, request), launch in zip(meeting, launches, strict=True)
    ]
    end_ns = max(arrivals) + dur_ns
    for (device, request), launch, start_ns in zip(meeting, launches, arrivals, strict=True):
        late_ns = noise.random.randint(0, config.exit_jitter_ns) if config.exit_jitter_ns else 0
        left_ns = end_ns + late_ns
        device.place(request, launch, launch.works[0], start_ns, left_ns - start_ns, None)
        present.append(Presence(device.rank, request.correlation, start_ns, left_ns))
    return Meeting(collective.name, collective.group, meeting[0][1].step, tuple(present))

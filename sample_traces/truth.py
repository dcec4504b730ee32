"""The exact truth about a run, by a plain sweep in pure Python: the oracle for every format.

Definitions are those of the design: each nanosecond of a window goes to the first component of
`COMPONENTS` that is active, windows tile a device's span, idle time is split by its cause.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sample_traces.config import RunConfig
from sample_traces.plants import cause_of
from sample_traces.records import Activity, Meeting, RankRun, Recorded, Run, Spent

COMPONENTS: Final = ("compute", "memory", "other", "graph", "communication", "start_up", "idle")
CAUSES: Final = ("host_late", "queued", "launch_latency", "unknown")
KINDS: Final = ("kernel", "memcpy", "memset", "graph")
ALL_RECORDED: Final[frozenset[Recorded]] = frozenset(
    ("call", "op", "annotation", "python", "system", "device")
)

_Key = TypeVar("_Key")


class Gap(Struct, frozen=True):
    """Idle time up to the start of an activity, split by cause; ns since the run began.

    Start-up cuts it in parts. `activity` is the position in the rank's `activities` of the one that
    ends the gap. Any start ends a gap, also that of an activity of 0 ns. Among several starts at
    once the one whose call is earliest counts, and those without a call come last.
    """

    start_ns: int
    end_ns: int
    activity: int
    causes: Mapping[str, int]


class WindowTruth(Struct, frozen=True):
    """One window of one device: `step` is None for `before` and `after`.

    `components` and `idle_causes` are in ns and add up to the window and to its idle time.
    `launched` and `flops` belong to the activities launched in the step, wherever they ran.
    """

    label: str
    step: int | None
    start_ns: int
    end_ns: int
    components: Mapping[str, int]
    hidden_communication_ns: int
    idle_causes: Mapping[str, int]
    launched: int
    flops: int

    @property
    def length_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns


class DeviceTruth(Struct, frozen=True):
    """One rank's device over its whole span. Sums count overlaps twice, unions once; in ns."""

    rank: int
    start_ns: int
    end_ns: int
    windows: tuple[WindowTruth, ...]
    components: Mapping[str, int]
    hidden_communication_ns: int
    idle_causes: Mapping[str, int]
    gaps: tuple[Gap, ...]
    count: int
    unlinked: int
    """Activities without a call."""
    flops: int
    sum_by_kind: Mapping[str, int]
    union_by_kind: Mapping[str, int]
    count_by_kind: Mapping[str, int]
    sum_by_category: Mapping[tuple[str, str], int]
    """Summed durations by (top, sub)."""

    @property
    def span_ns(self) -> int:
        """From the first start to the last end."""
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        """Time in the span in which nothing ran."""
        return self.components["idle"]

    @property
    def busy_ns(self) -> int:
        """Time in the span in which something ran."""
        return self.span_ns - self.idle_ns

    def steps(self) -> tuple[WindowTruth, ...]:
        """Return the windows of the steps, without `before` and `after`."""
        return tuple(window for window in self.windows if window.step is not None)


class Waited(Struct, frozen=True):
    """How long a rank waited for the last one in a collective, and exchanged data; in true ns."""

    wait_ns: int
    transfer_ns: int


class Truth(Struct, frozen=True):
    """The truth about every rank, and what one step of one rank needs in FLOPs.

    `model_flops` follows the `exact-causal` convention: 3 passes over weights and attention.
    `waits` are by collective, in the order in which they ended, and by (rank, correlation).
    `slow` is the rank that is planted as slow, and why, None where none is.
    """

    ranks: tuple[DeviceTruth, ...]
    model_flops: int
    waits: tuple[Mapping[tuple[int, int], Waited], ...]
    slow: tuple[int, str] | None


class _Piece(Struct, frozen=True):
    """A stretch of time in which the set of running activities does not change."""

    start_ns: int
    end_ns: int
    component: str
    communicates: bool

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def truth(run: Run) -> Truth:
    """Return the exact truth about a run."""
    ranks = tuple(_device_truth(rank, run.config) for rank in run.ranks)
    waits = tuple(map(waits_of, run.meetings))
    return Truth(ranks, model_flops(run.config), waits, planted(run.config))


def waits_of(meeting: Meeting) -> dict[tuple[int, int], Waited]:
    """Return what each rank waited for the last one, and what it took from then on."""
    last_ns = max(one.start_ns for one in meeting.present)
    return {
        (one.rank, one.correlation): Waited(last_ns - one.start_ns, one.end_ns - last_ns)
        for one in meeting.present
    }


def planted(config: RunConfig) -> tuple[int, str] | None:
    """Return the rank that the config makes slow, and why."""
    if config.straggler_rank is not None and config.straggler_percent > 100:
        return config.straggler_rank, "slow_clock"
    for rank, settings in config.on_rank.items():
        for setting, cause in _SLOW.items():
            if setting in settings:
                name = settings[setting][0] if setting == "plants" else ""
                return rank, cause or _PAUSES.get(name) or cause_of(name, config)
    return None


_SLOW: Final = {
    "batch": "more_work",
    "sequence": "more_work",
    "expert_percent": "more_work",
    "data_stall_steps": "data_input",
    "plants": "",
}
"""Settings of one rank that make it slow, and why; of plants by what is planted."""
_PAUSES: Final = {
    "collector": "gc_pause",
    "checkpoint": "checkpoint",
    "allocate": "memory_pressure",
}


def model_flops(config: RunConfig) -> int:
    """Return the FLOPs that one step of one rank needs: forward, and twice that backward."""
    weights = 12 * config.layers * config.hidden**2 + config.vocab * config.hidden
    pairs = config.batch * config.sequence * (config.sequence + 1) // 2
    return 3 * (2 * weights * config.tokens + 4 * config.layers * config.hidden * pairs)


def sweep(
    times: Iterable[tuple[int, int, str]], edges: Iterable[int] = ()
) -> list[tuple[int, int, frozenset[str]]]:
    """Return (start, end, active classes) for each stretch between neighbouring points in time.

    `times` are starts, ends and classes. Points are all of these, and the given edges, in ns.
    """
    changes: dict[int, Counter[str]] = {edge: Counter() for edge in edges}
    for start_ns, end_ns, name in times:
        changes.setdefault(start_ns, Counter())[name] += 1
        changes.setdefault(end_ns, Counter())[name] -= 1
    active: Counter[str] = Counter()
    stretches = []
    for start_ns, end_ns in pairwise(sorted(changes)):
        active.update(changes[start_ns])
        stretches.append((start_ns, end_ns, frozenset(k for k in active if active[k] > 0)))
    return stretches


def is_start_up(spent: Spent) -> bool:
    """Return whether the host does something for the first time."""
    return spent.cause.kind == "start_up"


def _pieces(
    activities: tuple[Activity, ...], edges: list[int], start_up: Iterable[Spent]
) -> list[_Piece]:
    first_ns, last_ns = min(edges), max(edges)
    times = [
        (max(one.start_ns, first_ns), min(one.end_ns, last_ns), "start_up") for one in start_up
    ]
    times = [one for one in times if one[0] < one[1]]
    times += [(one.start_ns, one.end_ns, one.component) for one in activities]
    return [
        _Piece(start_ns, end_ns, _first_component(active), "communication" in active)
        for start_ns, end_ns, active in sweep(times, edges)
    ]


def _first_component(active: frozenset[str]) -> str:
    return next((name for name in COMPONENTS if name in active), "idle")


def _device_truth(rank: RankRun, config: RunConfig) -> DeviceTruth:
    activities = rank.activities
    start_ns = min(activity.start_ns for activity in activities)
    end_ns = max(activity.end_ns for activity in activities)
    bounds = _bounds(rank, config, start_ns, end_ns)
    # A window may begin at a mark, inside a gap or before all work: its pieces are its own.
    starts = [one for one in rank.spent if is_start_up(one)]
    spanned = _pieces(activities, [start_ns, end_ns], starts)
    whole = [_gap(piece, rank) for piece in spanned if piece.component == "idle"]
    pieces = _pieces(activities, [edge for _, _, *pair in bounds for edge in pair], starts)
    gaps = [_gap(piece, rank) for piece in pieces if piece.component == "idle"]
    windows = tuple(_window(*bound, pieces, gaps, activities) for bound in bounds)
    kind_of = [(activity.work.kind, activity.dur_ns) for activity in activities]
    category_of = [((a.work.top, a.work.sub), a.dur_ns) for a in activities]
    return DeviceTruth(
        rank=rank.rank,
        start_ns=start_ns,
        end_ns=end_ns,
        windows=windows,
        components=_components(spanned),
        hidden_communication_ns=_hidden(spanned),
        idle_causes=_causes(whole),
        gaps=tuple(whole),
        count=len(activities),
        unlinked=sum(activity.call is None for activity in activities),
        flops=sum(activity.work.flops for activity in activities),
        sum_by_kind=_sums(kind_of),
        union_by_kind=_unions(activities),
        count_by_kind=Counter(kind for kind, _ in kind_of),
        sum_by_category=_sums(category_of),
    )


_Bound = tuple[str, int | None, int, int]


def _bounds(rank: RankRun, config: RunConfig, start_ns: int, end_ns: int) -> list[_Bound]:
    """Return (label, step, start, end) of all windows, `before` and `after` included."""
    activities, starts, over = rank.activities, list[int](), start_ns
    for step in config.step_numbers:
        own = [activity for activity in activities if activity.step == step]
        streams = {one.stream for one in own if one.work.kind == "kernel"}
        paced = [one for one in own if one.stream in streams or not streams]
        after = [one for one in own if one.start_ns >= over]
        starts.append(min(one.start_ns for one in (*paced, *after)))
        over = max(one.end_ns for one in paced)
    last = max(a.end_ns for a in activities if a.step == config.step_numbers[-1])
    # What the host does first in a step is part of it, if the GPU has nothing else to do.
    marks = [mark.start_ns for mark in rank.marks if mark.kind == "step"]
    if marks and not config.engine:
        begins: list[int] = []
        for first, marked in zip(starts, marks, strict=True):
            earlier = [a.end_ns for a in activities if a.start_ns < first]
            begins.append(max(min(first, max(marked, *earlier, marked)), *begins[-1:], marked - 1))
        if starts == sorted({*starts}) and 20 * (sum(starts) - sum(begins)) >= last - begins[0]:
            starts = begins
    inner = zip(config.step_numbers, pairwise([*starts, last]), strict=True)
    steps: list[_Bound] = [(f"step {step}", step, begin, end) for step, (begin, end) in inner]
    return [
        ("before", None, start_ns, max(start_ns, starts[0])),
        *steps,
        ("after", None, last, end_ns),
    ]


def _window(
    label: str,
    step: int | None,
    start_ns: int,
    end_ns: int,
    pieces: list[_Piece],
    gaps: list[Gap],
    activities: tuple[Activity, ...],
) -> WindowTruth:
    inside = [piece for piece in pieces if start_ns <= piece.start_ns < end_ns]
    launched = [a for a in activities if step is not None and a.step == step]
    return WindowTruth(
        label=label,
        step=step,
        start_ns=start_ns,
        end_ns=end_ns,
        components=_components(inside),
        hidden_communication_ns=_hidden(inside),
        idle_causes=_causes([gap for gap in gaps if start_ns <= gap.start_ns < end_ns]),
        launched=len(launched),
        flops=sum(activity.work.flops for activity in launched),
    )


def _components(pieces: Iterable[_Piece]) -> dict[str, int]:
    sums = dict.fromkeys(COMPONENTS, 0)
    for piece in pieces:
        sums[piece.component] += piece.length_ns
    return sums


def _hidden(pieces: Iterable[_Piece]) -> int:
    hidden = (p for p in pieces if p.communicates and p.component != "communication")
    return sum(piece.length_ns for piece in hidden)


def _gap(piece: _Piece, rank: RankRun) -> Gap:
    """Return the idle piece with its causes: what the activity at its end was waiting for."""
    position = _next_activity(piece.end_ns, rank)
    activity = rank.activities[position]
    causes = dict.fromkeys(CAUSES, 0)
    if activity.call is None:
        causes["unknown"] = piece.length_ns
        return Gap(piece.start_ns, piece.end_ns, position, causes)
    asked_ns = rank.calls[activity.call].start_ns
    causes["host_late"] = min(max(asked_ns - piece.start_ns, 0), piece.length_ns)
    was_free = _stream_end_ns(position, rank.activities) < piece.start_ns
    queued = asked_ns < piece.start_ns and was_free
    causes["queued" if queued else "launch_latency"] = piece.length_ns - causes["host_late"]
    return Gap(piece.start_ns, piece.end_ns, position, causes)


class Told(Struct, frozen=True):
    """What is known of the host during a gap; in ns by (class, name).

    `is_blocked` says whether the launching thread waited or copied when the gap began.
    """

    idle_ns: Mapping[tuple[str, str], int]
    is_blocked: bool


def told(gap: Gap, rank: RankRun, recorded: frozenset[Recorded] = ALL_RECORDED) -> Told | None:
    """Return what host and device did for a known cause in a gap, None where there is none.

    The time from the launch on that has no such cause is launch latency.
    """
    at = rank.activities[gap.activity].call
    if at is None:
        return Told({("unexplained", ""): gap.end_ns - gap.start_ns}, is_blocked=False)
    call = rank.calls[at]
    asked_ns = min(max(call.start_ns, gap.start_ns), gap.end_ns)
    sums: Counter[tuple[str, str]] = Counter()
    own, of_launch = {("call", call.start_ns), ("device", call.end_ns)}, 0
    for spent in (_as_seen(one, recorded) for one in rank.spent):
        launches = (spent.by, spent.start_ns) in own
        until_ns = gap.end_ns if launches else asked_ns * (spent.by != "device")
        ns = min(spent.end_ns, until_ns) - max(spent.start_ns, gap.start_ns)
        if ns > 0 and _is_told(spent, recorded):
            sums[_kind(spent, recorded), _name(spent, recorded)] += ns
            of_launch += ns * launches
    if not sums:
        return None
    sums["launch_latency", call.name] += gap.end_ns - asked_ns - of_launch
    blocks = (one for one in rank.calls if one.thread == call.thread and _blocks(one.name))
    blocked = any(one.start_ns <= gap.start_ns < one.end_ns for one in blocks)
    return Told(+sums, blocked)


def _as_seen(spent: Spent, recorded: frozenset[Recorded]) -> Spent:
    """Return a call of the system as part of the function that makes it, where it is unseen."""
    is_unseen = spent.by == "system" and "system" not in recorded
    return replace(spent, by="python", call="") if is_unseen else spent


def _blocks(call: str) -> bool:
    return call.endswith("Synchronize") or "Memcpy" in call


def _is_told(spent: Spent, recorded: frozenset[Recorded]) -> bool:
    """Return whether anything recorded tells of what the host did, if only that nothing does."""
    kind, annotated = spent.cause.kind, spent.cause.annotation and "annotation" in recorded
    if kind == "host_unrecorded" and "python" in recorded:
        return False
    return kind == "thread_handover" or spent.by in recorded or bool(annotated)


def _kind(spent: Spent, recorded: frozenset[Recorded]) -> str:
    """Return the class of a cause; without its operator, reading a scalar is copying."""
    reads = spent.cause.kind == "sync_call" and "Memcpy" in spent.call
    return "blocking_copy" if reads and "op" not in recorded else spent.cause.kind


def _name(spent: Spent, recorded: frozenset[Recorded]) -> str:
    cause = spent.cause
    known = {"python": cause.function, "op": cause.op, "annotation": cause.annotation}
    owner = next((name for by, name in known.items() if name and by in recorded), "")
    return f"{spent.call} in {owner}" if spent.call and owner else spent.call or owner


def _next_activity(start_ns: int, rank: RankRun) -> int:
    def asked_ns(position: int) -> tuple[bool, int]:
        call = rank.activities[position].call
        return call is None, 0 if call is None else rank.calls[call].start_ns

    def begin_ns(activity: Activity) -> int:
        return activity.start_ns

    first = bisect_left(
        rank.activities, start_ns, key=begin_ns
    )  # behind start-up or a mark, what comes next
    last = bisect_right(rank.activities, rank.activities[first].start_ns, key=begin_ns)
    return min(range(first, last), key=asked_ns)


def _stream_end_ns(position: int, activities: tuple[Activity, ...]) -> int:
    """Return when the stream of an activity was done with everything that began before it."""
    stream, start_ns = activities[position].stream, activities[position].start_ns
    earlier = [
        other.end_ns
        for other in activities[:position]
        if other.stream == stream and other.start_ns < start_ns
    ]
    return max(earlier, default=-1)


def _causes(gaps: Iterable[Gap]) -> dict[str, int]:
    sums = dict.fromkeys(CAUSES, 0)
    for gap in gaps:
        for cause, dur_ns in gap.causes.items():
            sums[cause] += dur_ns
    return sums


def _unions(activities: tuple[Activity, ...]) -> dict[str, int]:
    sums = dict.fromkeys(KINDS, 0)
    for start_ns, end_ns, active in sweep(
        (one.start_ns, one.end_ns, one.work.kind) for one in activities
    ):
        for kind in active:
            sums[kind] += end_ns - start_ns
    return sums


def _sums(durations: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    sums: dict[_Key, int] = {}
    for key, dur_ns in durations:
        sums[key] = sums.get(key, 0) + dur_ns
    return sums

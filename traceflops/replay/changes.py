"""What edits look up in a recording, and the world as they change it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.attribution.scopes import Phases
from traceflops.errors import UsageError
from traceflops.ranks.who_waits import RankReport
from traceflops.replay.host_waits import threads_of
from traceflops.replay.recorded_graph import HOST, LAUNCH, STREAM, RecordedGraph, World
from traceflops.replay.spans import Spans
from traceflops.replay.stretches import NOWHERE, Stretches, same_of_all
from traceflops.table.columns import ABSENT, BoolArray, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import groups
from traceflops.table.nesting import taken
from traceflops.table.patterns import matches
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

_RANGES: Final = ("annotation", "python", "module", "system")
_NAMES: Final = re.compile(r"\^\((\w+(?:\|\w+)*)\)\$", re.ASCII)
_RE2: Final = "expressions are those of RE2, without look-around and back-references"
T = TypeVar("T", Stretches, IntArray)


def matches_of(target: str, texts: Sequence[str]) -> BoolArray:
    """Return which texts match a target such as `kernel:softmax`. Raises UsageError if invalid."""
    pattern = target.partition(":")[2]
    if exact := _NAMES.fullmatch(pattern):  # as findings ask: no expression is compiled
        wanted = exact[1].lower().split("|")
        return np.array([text.lower() in wanted for text in texts], dtype=np.bool_)
    try:
        return matches(pattern, texts, ignore_case=True)
    except ValueError as error:
        raise UsageError(f"no regular expression: {pattern!r} ({error})", _RE2) from None


def named(target: str, column: pa.ChunkedArray) -> BoolArray:
    """Return which rows of a column of names match a target such as `kernel:softmax`."""
    return np.append(matches_of(target, names(column)), False)[codes(column)]


class Value(Struct, frozen=True):
    """The new value of a time: `ns`, or `share` of the old one if `ns` is None."""

    ns: int | None = None
    share: Fraction = Fraction(0)

    def of(self, dur_ns: IntArray) -> IntArray:
        """Return the new values of times, rounded down."""
        if self.ns is not None:
            return np.full_like(dur_ns, self.ns)
        # dur * share in integers; the whole part apart, so that large times do not overflow.
        whole, rest = divmod(self.share.numerator, self.share.denominator)
        return dur_ns * whole + dur_ns * rest // self.share.denominator


class Recorded(Struct, frozen=True, dict=True):
    """A recording, and what edits look up in it: masks of activities, ranks, times of threads."""

    prepared: Prepared
    phases: Phases | None
    ranks: RankReport
    _looked_up: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def communicates(self) -> BoolArray:
        """Return which activities exchange data between devices."""
        activities = self.prepared.trace.activities
        rows = np.arange(activities.num_rows)
        kernel = is_one_of(activities["kind"], "kernel")
        return is_top(self.prepared.linked.categorised, "communication", rows) & kernel

    @cached_property
    def is_beside(self) -> BoolArray:
        """Return which activities run while their device communicates."""
        table = self.prepared.trace.activities
        device, start, dur = (numbers(table[name]) for name in ("device", "start_ns", "dur_ns"))
        end = start + dur
        beside = np.zeros(table.num_rows, dtype=np.bool_)
        for _, rows in groups(device):
            communication = rows[self.communicates[rows]]
            spans = Intervals.of(start[communication], end[communication])
            beside[rows] = spans.length_within(start[rows], end[rows]) > 0
        return beside

    @cached_property
    def recomputes(self) -> tuple[BoolArray, BoolArray]:
        """Return masks of the activities and of the ops that recompute activations."""
        trace = self.prepared.trace
        # Phases of other ops than those of the trace, as of a capture, tell nothing.
        if self.phases is None or len(self.phases.phase) != trace.ops.num_rows:
            return np.zeros(trace.activities.num_rows, bool), np.zeros(trace.ops.num_rows, bool)
        op = self.phases.is_in("recompute")
        links = self.prepared.linked.links
        return taken(op.astype(np.int8), links.op_of_activity, 0) > 0, op

    @cached_property
    def rank_of_device(self) -> IntArray:
        """Return the rank of each device as reports number it, or ABSENT."""
        trace = self.prepared.trace
        of_process = [ABSENT if rank is None else rank for rank in trace.ranks]
        rank = np.array(of_process, dtype=np.int64)[numbers(trace.devices["process"])]
        # Where files state no ranks, their comparison numbers them.
        rank[[*self.ranks.records.devices]] = self.ranks.records.ranks
        return rank

    @cached_property
    def rank_of_process(self) -> IntArray:
        """Return the rank of each process, ABSENT unless it has exactly one device."""
        owner = numbers(self.prepared.trace.devices["process"])
        device_count = np.bincount(owner, minlength=len(self.prepared.trace.ranks))
        rank_of = np.full(len(device_count), ABSENT)
        rank_of[owner] = self.rank_of_device
        rank_of[device_count != 1] = ABSENT
        return rank_of

    @cached_property
    def rank_of_row(self) -> IntArray:
        """Return the rank of each activity."""
        return self.rank_of_device[numbers(self.prepared.trace.activities["device"])]

    def named_on_host(self, rows: Callable[[pa.ChunkedArray], BoolArray]) -> Stretches:
        """Return when each thread is in a call, operator, range or function that `rows` selects.

        `rows` returns the mask of a column of names.
        """
        trace = self.prepared.trace
        masks = {name: rows(trace.table(name)["name"]) for name in ("marks", "ops", "calls")}
        masks["marks"] &= is_one_of(trace.marks["kind"], *_RANGES)
        return self.on_host({name: np.flatnonzero(mask) for name, mask in masks.items()})

    def on_host(self, rows: Mapping[str, IntArray]) -> Stretches:
        """Return when each thread is in one of the `rows` by table; threads without calls apart."""
        tables = {name: self.prepared.trace.table(name) for name in rows}
        start, dur = (
            np.concatenate([numbers(tables[name][column])[rows[name]] for name in rows])
            for column in ("start_ns", "dur_ns")
        )
        number = np.concatenate([self._threads[name][rows[name]] for name in rows])
        called = number >= 0
        return Stretches.of(number[called], start[called], (start + dur)[called])

    @cached_property
    def starts_up(self) -> Stretches:
        """Return when each thread starts up, or waits while a device of its process starts up."""
        linked = self.prepared.linked
        of_process = {number: own.all for number, own in linked.comparable_start_up.items()}
        owner = numbers(self.prepared.trace.devices["process"])
        for device, account in self.prepared.accounts.items():
            process = int(owner[device])
            if process in of_process:
                of_process[process] = of_process[process].union(account.start_up)
        # Each thread, and a call of it; then the threads of each process.
        threads, call = np.unique(self._threads["calls"], return_index=True)
        process_of_thread = numbers(self.prepared.trace.calls["process"])[call]
        stretches = (
            same_of_all(threads[own], of_process[process])
            for process, own in groups(process_of_thread)
            if process in of_process
        )
        return NOWHERE.union(*stretches)

    @cached_property
    def _threads(self) -> Mapping[str, IntArray]:
        """Return, by table, the number of each row's thread, -1 if the thread has no calls."""
        threads = threads_of(self.prepared.trace)
        count = max(thread.max(initial=-1) for thread in threads.values()) + 1
        has_calls = np.zeros(count, dtype=np.bool_)
        has_calls[threads["calls"]] = True
        return {name: np.where(has_calls[number], number, -1) for name, number in threads.items()}

    def once(self, target: str, look_up: Callable[[], T]) -> T:
        """Return what `look_up` returns for a target, which is called only once per target."""
        if target not in self._looked_up:
            self._looked_up[target] = look_up()
        looked_up: T = self._looked_up[target]
        return looked_up


class Changed(Struct, frozen=True):
    """A world that edits have changed; `without` is the time of each thread that they removed.

    If communication `is_hidden`, nothing waits for it, however long it takes.
    """

    graph: RecordedGraph
    recorded: Recorded
    world: World
    is_hidden: bool = False
    without: Stretches = NOWHERE

    def with_work(self, nodes: IntArray, dur_ns: IntArray | int) -> Changed:
        """Return the world with other durations of nodes; work of 0 ns leaves its queue."""
        world, edges, dur = self.world, self.graph.edges, self.world.dur_ns.copy()
        dur[nodes] = dur_ns
        is_gone = (dur == 0) & (world.dur_ns > 0)
        if not is_gone.any():
            return replace(self, world=replace(world, dur_ns=dur))
        # Removed work begins right after the work before it in its queue. Negative lags and delays
        # stay: they tell that both overlapped.
        into_gone = is_gone[edges.target] & (edges.kind == STREAM)
        delay = np.where(is_gone, np.minimum(world.delay_ns, 0), world.delay_ns)
        lag = np.where(into_gone, np.minimum(world.lag_ns, 0), world.lag_ns)
        return replace(self, world=replace(world, dur_ns=dur, delay_ns=delay, lag_ns=lag))

    def communication_ns(self, windows: Spans) -> Iterator[int]:
        """Yield the ns that each window takes at least, even if its communication is hidden.

        These are the communication, begun in the window, of the queue that communicates most.
        """
        graph = self.graph
        nodes, base = graph.nodes, graph.as_recorded()
        # Nodes are sorted by start, and so are these.
        communication = self.work_of(self.recorded.communicates)
        start = (nodes.time_ns - nodes.dur_ns)[communication]
        dur_ns = self.world.dur_ns[communication]
        activities = self.recorded.prepared.trace.activities
        stream = numbers(activities["stream"], ABSENT)[nodes.row[communication]]
        rows_of_device = dict(groups(nodes.device[communication]))
        for device, begin, end, _ in windows.rows(graph, base, nodes.time_ns):
            rows = rows_of_device.get(device, communication[:0])
            rows = rows[slice(*np.searchsorted(start[rows], (begin, end)))]
            queues = (int(dur_ns[rows[own]].sum()) for _, own in groups(stream[rows]))
            yield max(queues, default=0)

    def with_lags(self, edges: BoolArray, lag_ns: IntArray | int) -> Changed:
        """Return the world with other lags of some edges."""
        lag = np.where(edges, lag_ns, self.world.lag_ns)
        return replace(self, world=replace(self.world, lag_ns=lag))

    def with_host(self, when: Stretches, value: Value) -> Changed:
        """Return the world with another length of some time of each thread.

        `when` is that time; what earlier edits removed of it does not count again. An edge of 8 ns
        stands for 10 ns of a thread, of which `when` has 5: "/2" cuts 2.5 of the 10, so 2 of the 8.
        """
        nodes, edges, lag = self.graph.nodes, self.graph.edges, self.world.lag_ns.copy()
        call_ns = numbers(self.recorded.prepared.trace.calls["dur_ns"])
        # The recorded time that each edge of a thread stands for: up to the thread's next point, or
        # for a launch, the part of its lag inside the call.
        rows = np.flatnonzero((edges.kind == HOST) | (edges.kind == LAUNCH))
        rows = rows[np.isin(nodes.thread[edges.source[rows]], when.known)]
        source, target = edges.source[rows], edges.target[rows]
        thread, start = nodes.thread[source], nodes.at_ns[source]
        launched = start + np.minimum(taken(call_ns, nodes.call[source], 0), lag[rows])
        end = np.where(edges.kind[rows] == HOST, nodes.at_ns[target], launched)
        # Shorten the lag by the share of that time that is cut, both without what is removed.
        left = when.subtract(self.without)
        length_ns = left.end_ns - left.start_ns
        cut = length_ns - value.of(length_ns)  # per stretch
        cut_ns = left.up_to(cut, thread, end) - left.up_to(cut, thread, start)  # per edge
        left_ns = np.maximum(end - start - self.without.length_within(thread, start, end), 1)
        less = cut_ns.astype(np.float64) * np.minimum(lag[rows], left_ns) / left_ns
        lag[rows] = np.maximum(lag[rows] - less.astype(np.int64), 0)
        without = self.without.union(when) if value == Value(0) else self.without
        return replace(self, world=replace(self.world, lag_ns=lag), without=without)

    def work_of(self, rows: BoolArray) -> IntArray:
        """Return the nodes of some activities."""
        return np.flatnonzero(taken(rows.astype(np.int8), self.graph.nodes.row, 0))

"""Which nodes a replay visits one by one, and how the ends of all others follow from theirs.

A run is a node that is visited, and nodes after it that need no visit: moments of a thread, each of
which waits only for the one before it, or works of a queue, each of which waits only for the one
before it and, perhaps, for its launch. All launches of a run are moments of one other run.

  first --o-----o-----o      moments of a thread
          |     |     |      launches
  first ==work==work==work   of a queue

So the end of a node follows from the ends of two visited nodes, the `first` ones in the picture:

  end = after_ns + max(end of the first of its run,
                       end of the first of the launching run + late_ns of its last launch)

`after_ns` are the ns that pass from the first of the run if nothing waits for a launch. If launches
decide, a node ends as if the first of its run had ended `late_ns` after the first of the launching
run: the largest such value of the launches up to the node, and below 0 if they are early. Both are
sums of lags and durations, made for all nodes at once.

Columns hold numbers of these kinds; -1 is none of them:

  node    index of a node of the graph; nodes are in topological order
  edge    index of an edge of the graph; edges are sorted by the node into which they lead
  row     place of a node in the order of queues, then of threads; where ranks meet a node has none
  launch  place among the launches within runs, in the order of rows
  number  place among the visited nodes, from 1 on; 0 is none
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from traceflops.table.columns import BoolArray, IntArray, WholeArray, narrow
from traceflops.table.grouping import differ_from_before, distinct, slices
from traceflops.table.nesting import taken


class Incoming(Struct, frozen=True):
    """The edges of a graph, by the node into which they lead.

    Per node: the `first` edge into it, and the `count` of such edges. Per edge: the node that is
    its `source`, its `target`; whether it leads to the next moment of a thread or work of a queue;
    whether it is a launch.
    """

    first: WholeArray
    count: WholeArray
    source: WholeArray
    target: WholeArray
    is_next: BoolArray
    is_launch: BoolArray


class Runs(Struct, frozen=True):
    """The runs of a graph: columns per row (the first four) and per launch (the last three).

    `node` is the node of a row, `edge` the edge from the row before (-1: the row is the first of a
    run), `first_row` the first row of its run. `last_launch` is the last launch for which the run
    has waited up to the row. A launch leads by its `launch_edge` from `launching_row`, a moment, to
    `launched_row`, a work.
    """

    node: WholeArray
    edge: WholeArray
    first_row: WholeArray
    last_launch: WholeArray
    launched_row: WholeArray
    launching_row: WholeArray
    launch_edge: WholeArray

    @classmethod
    def of(cls, in_order: WholeArray, edges: Incoming, is_pinned: BoolArray) -> Runs:
        """Return the runs of a graph; `in_order` has the node of each row.

        A pinned node waits for a time of its own, too: it begins a run. The mask is per node.
        """
        source, row_of = edges.source, _rows_of(in_order, len(edges.first))
        # Of one or two edges into a node, `edge` is that from the row before, `other` may launch.
        count = np.where(is_pinned, 0, edges.count)[in_order]
        edge = np.where((count == 1) | (count == 2), edges.first[in_order], -1)
        other = np.where(count == 2, edge + 1, -1)
        # The node of the row before, -2 for none: in_order [4 7 9]  ->  before [-2 4 7]
        before = np.append(-2, in_order)[: len(in_order)]
        is_swapped = taken(source, other) == before
        edge, other = np.where(is_swapped, other, edge), np.where(is_swapped, edge, other)
        # Which rows go on with the run of the row before them, and which of these are launched?
        goes_on = (taken(source, edge) == before) & _at(edges.is_next, edge)
        is_launched = goes_on & _at(edges.is_launch, other)
        goes_on &= is_launched | (other < 0)
        # Work that another run launches than the work before it begins a run of its own. Three
        # works of one run, launched from the runs that begin at rows [50 50 80]: the third is new.
        launched_row = np.flatnonzero(is_launched)
        launching_row = row_of[source[other[launched_row]]]
        first_row = _first_rows(goes_on)
        run, launching_run = first_row[launched_row], first_row[launching_row]
        is_new = (run[1:] == run[:-1]) & (launching_run[1:] != launching_run[:-1])
        goes_on[launched_row[1:][is_new]] = False
        is_within = goes_on[launched_row]
        launched_row, launching_row = launched_row[is_within], launching_row[is_within]
        first_row, edge = _first_rows(goes_on), np.where(goes_on, edge, -1)
        # The last launch up to each row counts if it is of the same run.
        # launched_row [1 3], rows 0 to 4  ->  launch [-1 0 0 1 1]
        launch = np.searchsorted(launched_row, np.arange(len(in_order)), side="right") - 1
        last_launch = np.where(taken(launched_row, launch) > first_row, launch, -1)
        per_row = map(narrow, (edge, first_row, last_launch))
        per_launch = map(narrow, (launched_row, launching_row, other[launched_row]))
        return cls(in_order, *per_row, *per_launch)

    def after_ns(self, lag_ns: IntArray, work_ns: IntArray) -> tuple[IntArray, IntArray]:
        """Return `after_ns` per row, and `late_ns` per launch, as the file's docstring has them.

        `lag_ns` is per edge, `work_ns` per node. `late_ns` has one more entry, 0, for no launch:
        the index -1 takes it.
        """
        # The ns from row to row, summed over all runs, minus the sum up to the first of each run.
        # passed [0 3 4 0 2], first_row [0 0 0 3 3]  ->  sums [0 3 7 7 9], after [0 3 7 0 2]
        passed, after = taken(lag_ns, self.edge, 0), np.empty(len(self.node), dtype=np.int64)
        for part in slices(len(passed)):
            passed[part] += np.where(self.edge[part] >= 0, work_ns[self.node[part]], 0)
        np.cumsum(passed, out=passed)
        for part in slices(len(passed)):
            after[part] = passed[part] - passed[self.first_row[part]]
        # From the first of the launching run to the launched work, minus `after` of that work.
        late = after[self.launching_row] - after[self.launched_row]
        late += lag_ns[self.launch_edge] + work_ns[self.node[self.launched_row]]
        first = np.flatnonzero(differ_from_before(taken(self.first_row, self.launched_row)))
        if len(first):
            # The latest up to each launch: runs are shifted apart, so that each is above the one
            # before it, and one running maximum serves all of them.
            # late [5 9 7 | 3 4]  ->  shift [-5 1], shifted [0 4 2 | 4 5], maxima [5 9 9 | 3 4]
            high, low = (best.reduceat(late, first) for best in (np.maximum, np.minimum))
            shift = np.cumsum(np.append(0, high[:-1]) - low)
            shift = np.repeat(shift, np.diff(np.append(first, len(late))))
            late = np.maximum.accumulate(late + shift) - shift
        return after, np.append(late, 0)


def _rows_of(in_order: WholeArray, node_count: int) -> IntArray:
    """Return the row of each node, -1 without one; `in_order` has the node of each row."""
    row_of = np.full(node_count, -1)
    row_of[in_order] = np.arange(len(in_order))
    return row_of


def _at(mask: BoolArray, index: WholeArray) -> BoolArray:
    """Return whether the mask is true at each index; False where that is -1."""
    return np.asarray(taken(mask.astype(np.int8), index, 0) > 0)


def _first_rows(goes_on: BoolArray) -> IntArray:
    """Return, per row, the first of its run: goes_on [0 1 1 0 1] gives [0 0 0 3 3]."""
    return np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(goes_on))))


class _Waits(NamedTuple):
    """What visited nodes wait for, one thing each; 0 and -1 stand for nothing.

    `number` is the visited node that decides when the source of `edge` ends: the source itself, or
    the first of its run if it is not visited. Then `row` is that of the source, and its `after_ns`
    passes, too.
    """

    number: WholeArray
    edge: WholeArray
    row: WholeArray

    def lags(self, lag_ns: IntArray, after_ns: IntArray) -> IntArray:
        """Return the ns from the end of each `number` to when it allows what waits to begin.

        `lag_ns` is per edge, `after_ns` per row.
        """
        return np.asarray(taken(lag_ns, self.edge, 0) + taken(after_ns, self.row, 0))


class Visits(Struct, frozen=True):
    """The nodes that a replay visits, in order, and what they wait for.

    They are all that are not within runs, and some that are: those for which visited nodes wait, if
    their run waits for a launch before. The latter, `inner`, end as other nodes of runs do, but
    before those that wait for them are visited.
    """

    runs: Runs
    node: IntArray
    """The visited nodes."""
    number: WholeArray
    """Per node: its number if it is visited, else that of the first of its run."""
    first_number: WholeArray
    """Per row: the number of the first of its run."""
    launching_number: WholeArray
    """Per launch: the number of the first of the launching run; 0 for no launch, at the end."""
    inner: IntArray
    inner_row: IntArray
    """The inner nodes: index in `node`, and row."""
    first_two: tuple[_Waits, _Waits]
    """What each visited node waits for by its first two edges. Inner ones wait for the first of
    their run and for the first of the launching run."""
    further_index: IntArray
    further: _Waits
    """Nodes with more edges: index in `node`, and what they wait for by one of these edges."""

    @classmethod
    def of(cls, runs: Runs, edges: Incoming) -> Visits:
        """Return what a replay visits of a graph with these runs and edges."""
        source, target = edges.source, edges.target
        row_of = _rows_of(runs.node, len(edges.first))
        is_visited = np.ones(len(row_of), dtype=np.bool_)
        is_visited[runs.node[runs.edge >= 0]] = False  # all but the first of each run
        # Inner nodes: a visited node waits for them, and their run waits for a launch before.
        awaited = source[is_visited[target]]
        awaited_row = row_of[awaited[~is_visited[awaited]]]
        inner_row = distinct(awaited_row[runs.last_launch[awaited_row] >= 0])
        is_visited[runs.node[inner_row]] = True
        # Nodes that are not visited get the number of the first of their run.
        visited = np.flatnonzero(is_visited)
        number = np.zeros(len(row_of), dtype=np.int64)
        number[visited] = np.arange(1, len(visited) + 1)
        first_number = narrow(number[runs.node[runs.first_row]])
        is_hidden = ~is_visited[runs.node]
        number[runs.node[is_hidden]] = first_number[is_hidden]
        launching_number = narrow(np.append(first_number[runs.first_row[runs.launching_row]], 0))

        def waits(edge: IntArray) -> _Waits:
            """Return what nodes wait for by the given edges, of which -1 is none."""
            node = taken(source, edge)
            is_hidden = (edge >= 0) & ~is_visited[node]
            row = np.where(is_hidden, row_of[node], -1)
            return _Waits(*map(narrow, (taken(number, node, 0), edge, row)))

        inner = number[runs.node[inner_row]] - 1
        first, count = edges.first[visited], edges.count[visited]
        count[inner] = 0
        one, other = (waits(np.where(count > turn, first + turn, -1)) for turn in range(2))
        one.number[inner], one.row[inner] = first_number[inner_row], inner_row
        other.number[inner] = launching_number[runs.last_launch[inner_row]]
        # Edges are sorted by target: the third and later ones have that of the edge two before.
        # target [4 4 4 6]  ->  third [2]
        third = np.flatnonzero(target[2:] == target[:-2]) + 2
        third = third[is_visited[target[third]]]
        return cls(
            runs,
            visited,
            narrow(number),
            first_number,
            launching_number,
            inner,
            inner_row,
            (one, other),
            number[target[third]] - 1,
            waits(third),
        )

    def times(
        self, lag_ns: IntArray, work_ns: IntArray, floor_ns: IntArray, long_ago_ns: int
    ) -> IntArray:
        """Return when each node ends; `lag_ns` is per edge, the others are per node.

        A node begins at its `floor_ns` or later, if that is more than `long_ago_ns`, which is
        before all times.
        """
        after, late = self.runs.after_ns(lag_ns, work_ns)
        work = work_ns[self.node]
        work[self.inner] = 0
        (first, second), last_launch = self.first_two, self.runs.last_launch
        first_lag, second_lag = (waits.lags(lag_ns, after) for waits in self.first_two)
        second_lag[self.inner] = after[self.inner_row] + late[last_launch[self.inner_row]]
        limits = self._limits(lag_ns, after, floor_ns, long_ago_ns)
        is_limited = np.zeros(len(work), dtype=np.bool_)
        is_limited[[*limits]] = True
        # Most nodes have at most two edges: these are handled fast, without a call.
        ends = [long_ago_ns]  # by number; 0: no source
        add = ends.append
        columns = (first.number, first_lag, second.number, second_lag, work, is_limited)
        for part in slices(len(work)):  # as Python's numbers they take five times the memory
            own = [column[part].tolist() for column in columns]
            for source, lag, other, other_lag, node_ns, limited in zip(*own, strict=True):
                begin = ends[source] + lag
                later = ends[other] + other_lag
                if later > begin:
                    begin = later
                if limited:
                    begin = max(begin, *(ends[node] + ns for node, ns in limits[len(ends) - 1]))
                add(begin + node_ns)
        end = np.array(ends, dtype=np.int64)
        time, launched = end[self.number], end[self.launching_number] + late
        for part in slices(len(after)):
            latest = np.maximum(end[self.first_number[part]], launched[last_launch[part]])
            time[self.runs.node[part]] = latest + after[part]
        return time

    def _limits(
        self, lag_ns: IntArray, after_ns: IntArray, floor_ns: IntArray, long_ago_ns: int
    ) -> dict[int, list[tuple[int, int]]]:
        """Return what some visited nodes wait for besides their first two edges.

        The result has, by index in `node`, pairs of the number of a node and the ns after its end.
        In pairs for `floor_ns` the number is 0, whose end is `long_ago_ns`.
        """
        floor = floor_ns[self.node]
        floored = np.flatnonzero(floor > long_ago_ns)
        floor_lags = (floor[floored] - long_ago_ns).tolist()
        limits = {index: [(0, ns)] for index, ns in zip(floored.tolist(), floor_lags, strict=True)}
        lags = self.further.lags(lag_ns, after_ns)
        columns = (self.further_index, self.further.number, lags)
        for index, number, ns in zip(*(column.tolist() for column in columns), strict=True):
            limits.setdefault(index, []).append((number, ns))
        return limits

"""Which nodes a replay visits one by one, and how the ends of all others follow from theirs.

A run is a sequence of nodes that need no visit. Either each moment of a thread waits only for the
one before it, or each work of a queue waits only for the one before it and, perhaps, for its
launch, and all launches are moments of one other run. So two visited nodes decide when a node of a
run ends: the first of its own run, and the first of the run of the launches.

  first --o-----o-----o      moments of a thread
          |     |     |      launches
  first ==work==work==work   of a queue
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from traceflops.table.columns import BoolArray, IntArray, WholeArray, narrow
from traceflops.table.grouping import differ_from_before, distinct, slices
from traceflops.table.nesting import taken


class Runs(Struct, frozen=True):
    """Runs; a row per node, in the order of queues and threads.

    `edge` is that from the row before, -1 where a run begins, and `begin` the row where it does.
    `last` is the last launch of the run up to the row, -1 for none. Launches have a `launch_row`,
    the `launch_source`, which is the row of the moment, and the `launch_edge` between them.
    """

    node: WholeArray
    edge: WholeArray
    begin: WholeArray
    last: WholeArray
    launch_row: WholeArray
    launch_source: WholeArray
    launch_edge: WholeArray

    @classmethod
    def of(
        cls,
        node: WholeArray,
        edges_of: tuple[WholeArray, WholeArray],
        source: WholeArray,
        goes_on: BoolArray,
        launches: BoolArray,
    ) -> Runs:
        """Return the runs of a graph whose queues and threads have the nodes `node`, in order.

        `edges_of` are the index of the first edge into each node, and how many it has (0 keeps a
        node out of runs). Edges have a `source`, and two masks: whether they lead to the next node
        of a thread or queue (`goes_on`), and whether they are `launches`.
        """
        row_of = np.full(len(edges_of[0]), -1)
        row_of[node] = np.arange(len(node))
        first, count = (column[node] for column in edges_of)
        one = np.where((count == 1) | (count == 2), first, -1)
        other = np.where(count == 2, first + 1, -1)
        before = np.append(-2, node)[: len(node)]
        is_other = taken(source, other) == before
        edge, other = np.where(is_other, other, one), np.where(is_other, one, other)
        goes_on = (taken(source, edge) == before) & (taken(goes_on.astype(np.int8), edge, 0) > 0)
        is_launched = goes_on & (taken(launches.astype(np.int8), other, 0) > 0)
        goes_on &= is_launched | (other < 0)
        # Work launched by another run than the work before it begins a run of its own.
        row = np.flatnonzero(is_launched)
        begin, launch_source = _begins(goes_on), row_of[source[other[row]]]
        is_same_run = begin[row[1:]] == begin[row[:-1]]
        is_new = is_same_run & (np.diff(begin[launch_source]) != 0)
        goes_on[row[1:][is_new]] = False
        kept = goes_on[row]
        begin, row, launch_source = _begins(goes_on), row[kept], launch_source[kept]
        launch = np.searchsorted(row, np.arange(len(node)), side="right") - 1
        last = np.where(taken(row, launch) > begin, launch, -1)
        edge = np.where(goes_on, edge, -1)
        return cls(node, *map(narrow, (edge, begin, last, row, launch_source, other[row])))

    def after(self, lag_ns: IntArray, work_ns: IntArray) -> tuple[IntArray, IntArray]:
        """Return how much later than the first of its run each row ends if it waits for no launch.

        The second array has, per launch, how much later these ends are if the work up to it waits
        for launches, relative to the first row of their run; -1 takes a last entry for none.
        `lag_ns` is per edge, `work_ns` per node.
        """
        passed, after = taken(lag_ns, self.edge, 0), np.empty(len(self.node), dtype=np.int64)
        for part in slices(len(passed)):
            passed[part] += np.where(self.edge[part] >= 0, work_ns[self.node[part]], 0)
        np.cumsum(passed, out=passed)
        for part in slices(len(passed)):
            after[part] = passed[part] - passed[self.begin[part]]
        late = after[self.launch_source] - after[self.launch_row]
        late += lag_ns[self.launch_edge] + work_ns[self.node[self.launch_row]]
        first = np.flatnonzero(differ_from_before(taken(self.begin, self.launch_row)))
        if len(first):
            # Runs are shifted apart, so that one running maximum serves all of them.
            high, low = (best.reduceat(late, first) for best in (np.maximum, np.minimum))
            shift = np.cumsum(np.append(0, high[:-1]) - low)
            shift = np.repeat(shift, np.diff(np.append(first, len(late))))
            late = np.maximum.accumulate(late + shift) - shift
        return after, np.append(late, 0)


def _begins(goes_on: BoolArray) -> IntArray:
    """Return, per row, the last row up to it that does not go on with the one before."""
    return np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(goes_on))))


class Visits(Struct, frozen=True):
    """The nodes that a replay visits, in order and numbered from 1 on, and what they wait for.

    Of a run these are the first node, and those with launches for which nodes outside wait
    (`inner`: their index among the visited; `inner_row`). `number` has the number of each visited
    node, and for others of the first of their run. `of_first` is that by row, `of_launch` that of
    the run of each launch. Of the first two edges of a visited node there are the number of the
    source (0 for none), the edge, and the row of a source that is not visited (else -1); `further`
    has these of all other edges, after the index of their target.
    """

    runs: Runs
    node: IntArray
    number: WholeArray
    of_first: WholeArray
    of_launch: IntArray
    inner: IntArray
    inner_row: IntArray
    first_two: tuple[tuple[IntArray, IntArray, IntArray], ...]
    further: tuple[IntArray, IntArray, IntArray, IntArray]

    @classmethod
    def of(
        cls,
        runs: Runs,
        edges_of: tuple[WholeArray, WholeArray],
        source: WholeArray,
        target: WholeArray,
    ) -> Visits:
        """Return what a replay of a graph visits; the parameters are those of `Runs.of`."""
        node, edge, begin, last = runs.node, runs.edge, runs.begin, runs.last
        row_of = np.full(len(edges_of[0]), -1)
        row_of[node] = np.arange(len(node))
        is_visited = np.ones(len(row_of), dtype=np.bool_)
        is_visited[node[edge >= 0]] = False
        awaited = source[is_visited[target]]
        rows = row_of[awaited[~is_visited[awaited]]]
        inner_row = distinct(rows[last[rows] >= 0])
        is_visited[node[inner_row]] = True
        visited = np.flatnonzero(is_visited)
        number = np.zeros(len(row_of), dtype=np.int64)
        number[visited] = np.arange(1, len(visited) + 1)
        of_first = narrow(number[node[begin]])
        others = ~is_visited[node]
        number[node[others]] = of_first[others]
        of_launch = np.append(of_first[begin[runs.launch_source]], 0)
        inner = number[node[inner_row]] - 1

        def of_edges(edge: IntArray) -> tuple[IntArray, IntArray, IntArray]:
            """Return the number of the source of each edge, the edge, and the row of the source."""
            node = taken(source, edge)
            hidden = (edge >= 0) & ~is_visited[node]
            return taken(number, node, 0), edge, np.where(hidden, row_of[node], -1)

        first, count = (column[visited] for column in edges_of)
        count[inner] = 0
        one, other = (of_edges(np.where(count > turn, first + turn, -1)) for turn in range(2))
        one[0][inner], one[2][inner] = of_first[inner_row], inner_row
        other[0][inner] = of_launch[last[inner_row]]
        # Edges are sorted by target: the third and later ones have that of the edge two before.
        third = np.flatnonzero(target[2:] == target[:-2]) + 2
        third = third[is_visited[target[third]]]
        further = (number[target[third]] - 1, *of_edges(third))
        return cls(
            runs,
            visited,
            narrow(number),
            of_first,
            of_launch,
            inner,
            inner_row,
            (one, other),
            further,
        )

    def times(
        self, lag_ns: IntArray, work_ns: IntArray, floor_ns: IntArray, long_ago_ns: int
    ) -> IntArray:
        """Return when each node ends; `lag_ns` is per edge, the others are per node.

        A node that waits for nothing begins at `floor_ns`, if that is more than `long_ago_ns`.
        """
        after, late = self.runs.after(lag_ns, work_ns)
        work = work_ns[self.node]
        work[self.inner] = 0
        columns = []
        for source, edge, row in self.first_two:
            columns += [source, taken(lag_ns, edge, 0) + taken(after, row, 0)]
        columns[3][self.inner] = after[self.inner_row] + late[self.runs.last[self.inner_row]]
        limits = self._limits(lag_ns, after, floor_ns, long_ago_ns)
        is_limited = np.zeros(len(work), dtype=np.bool_)
        is_limited[[*limits]] = True
        # Most nodes have at most two edges: these are handled fast, without a call.
        ends = [long_ago_ns]  # number 0: no source
        add = ends.append
        for part in slices(len(work)):  # as Python's numbers they take five times the memory
            own = [column[part].tolist() for column in (*columns, work, is_limited)]
            for source, lag, other, other_lag, node_ns, limited in zip(*own, strict=True):
                begin = ends[source] + lag
                later = ends[other] + other_lag
                if later > begin:
                    begin = later
                if limited:
                    begin = max(begin, *(ends[node] + ns for node, ns in limits[len(ends) - 1]))
                add(begin + node_ns)
        end = np.array(ends, dtype=np.int64)
        time, launched = end[self.number], end[self.of_launch] + late
        for part in slices(len(after)):
            latest = np.maximum(end[self.of_first[part]], launched[self.runs.last[part]])
            time[self.runs.node[part]] = latest + after[part]
        return time

    def _limits(
        self, lag_ns: IntArray, after: IntArray, floor_ns: IntArray, long_ago_ns: int
    ) -> dict[int, list[tuple[int, int]]]:
        """Return what some visited nodes wait for besides their first two edges.

        The result has pairs by index among the visited nodes: the number of a node, and a lag in
        ns. Number 0 is `long_ago_ns`, and its lag leads to the earliest begin.
        """
        floor = floor_ns[self.node]
        floored = np.flatnonzero(floor > long_ago_ns)
        floor_lags = (floor[floored] - long_ago_ns).tolist()
        limits = {node: [(0, ns)] for node, ns in zip(floored.tolist(), floor_lags, strict=True)}
        index, source, edge, row = self.further
        lags = lag_ns[edge] + taken(after, row, 0)
        for node, number, ns in zip(index.tolist(), source.tolist(), lags.tolist(), strict=True):
            limits.setdefault(node, []).append((number, ns))
        return limits

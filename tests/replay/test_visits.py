"""Replays visit few nodes; all nodes end when they would if each were visited."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from traceflops.replay.visits import Incoming, Runs, Visits
from traceflops.table.columns import BoolArray, IntArray

NODES, LONG_AGO = 40, -(10**9)
THREADS, QUEUES, NOWHERE = (0, 1), (2, 3), 4
"""Lanes of nodes. Where ranks meet they have none."""


def ends(edges: Incoming, lag_ns: IntArray, work_ns: IntArray, floor_ns: IntArray) -> list[int]:
    """Return when each node ends, by visiting all of them in order."""
    end = list[int]()
    for node in range(len(work_ns)):
        into = edges.first[node] + np.arange(edges.count[node])
        allowed = (end[edges.source[edge]] + int(lag_ns[edge]) for edge in into.tolist())
        end.append(max(int(floor_ns[node]), LONG_AGO, *allowed) + int(work_ns[node]))
    return end


def graph_of(random: np.random.Generator) -> tuple[IntArray, Incoming]:
    """Return the node of each row, and edges: most lead to the next of a lane or are launches."""
    lane = random.integers(0, NOWHERE + 1, NODES)
    found, last = list[tuple[int, int, bool, bool]](), dict[int, int]()
    for node, own in enumerate(lane.tolist()):
        of_node = dict[int, tuple[bool, bool]]()  # by source
        earlier = np.flatnonzero(np.isin(lane[:node], THREADS))
        if own in last and random.random() < 0.9:
            of_node[last[own]] = (True, False)
        if own in QUEUES and len(earlier) and random.random() < 0.7:
            of_node.setdefault(int(earlier[-1]), (False, True))
        while node and random.random() < 0.1:
            of_node.setdefault(int(random.integers(0, node)), (False, False))
        sources = random.permutation([*of_node]).tolist()
        found += [(source, node, *of_node[source]) for source in sources]
        if own != NOWHERE:
            last[own] = node
    source, target, is_next, is_launch = np.array(found, dtype=np.int64).reshape(-1, 4).T
    count = np.bincount(target, minlength=NODES)
    first = np.cumsum(count) - count
    edges = Incoming(first, count, source, target, is_next > 0, is_launch > 0)
    rows = np.argsort(lane, kind="stable")
    return rows[lane[rows] != NOWHERE], edges


@settings(max_examples=examples(200))
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.1]))
def test_all_nodes_end_as_if_each_were_visited(seed: int, pinned_share: float) -> None:
    random = np.random.default_rng(seed)
    in_order, edges = graph_of(random)
    # What waits for nothing begins at a time of its own.
    is_pinned: BoolArray = (random.random(NODES) < pinned_share) | (edges.count == 0)
    runs = Runs.of(in_order, edges, is_pinned)
    visits = Visits.of(runs, edges)
    for _ in range(2):  # what is visited holds for all durations and lags
        lag_ns = random.integers(-50, 200, len(edges.source))
        work_ns = random.integers(0, 100, NODES)
        floor_ns = np.where(is_pinned, random.integers(0, 3_000, NODES), LONG_AGO)
        times = visits.times(lag_ns, work_ns, floor_ns, LONG_AGO)
        assert times.tolist() == ends(edges, lag_ns, work_ns, floor_ns)


def test_of_a_run_and_the_work_that_it_launches_the_first_are_visited() -> None:
    """Moments 0, 2 and 4 of a thread launch works 1, 3 and 5 of a queue."""
    pairs = ((0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5))
    source, target = np.array(pairs).T
    count = np.bincount(target)
    is_launch = source + 1 == target
    edges = Incoming(np.cumsum(count) - count, count, source, target, ~is_launch, is_launch)
    runs = Runs.of(np.array([1, 3, 5, 0, 2, 4]), edges, np.zeros(6, dtype=np.bool_))
    assert Visits.of(runs, edges).node.tolist() == [0, 1]
    assert runs.last_launch.tolist() == [-1, 0, 1, -1, -1, -1]
    after, late = runs.after_ns(np.full(7, 10), np.array([1, 90, 1, 30, 1, 30]))
    assert after.tolist() == [0, 40, 80, 0, 11, 22]
    assert late.tolist() == [11, 11, 0]  # 11 + 10 + 30 - 40, 22 + 10 + 30 - 80 is less; none

"""The time of devices as trees: each ns of the chosen windows belongs to one path of names.

Work is that of the activity that it is charged to, see `charged`. Idle time is charged to the
activity that ends it, and while data are loaded to what loads them; before the first and after the
last it is the step's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.attribution.charged import charged
from traceflops.attribution.device_work import (
    RULES,
    Launched,
    attributed,
    launching_names,
)
from traceflops.attribution.host_events import is_of_library, told
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.idle_slices import chosen_gaps
from traceflops.attribution.marks import host_marks
from traceflops.attribution.named_slices import NamedSlices
from traceflops.attribution.scopes import (
    ModulePaths,
    is_node,
    module_name,
    module_paths,
)
from traceflops.characters import function_name, kernel_name
from traceflops.table import IntArray, codes, group_rows, group_sums, matching, names, ranked, taken
from traceflops.timeline import WORK
from traceflops.windows import Prepared, chosen_time

_MOST_LEVELS: Final = 100
_IDLE: Final = len(WORK)
_LOADING: Final = "data_input"
TREE_PHASES: Final = ("forward", "backward", "gradient accumulation", "optimizer", "communication")
Path = tuple[str, ...]


@dataclass(slots=True)
class TimeNode:
    """The time of a path of names, all inside included: work by kernel name and component, idle."""

    label: str
    idle_ns: int = 0
    components: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    inside: dict[str, TimeNode] = field(default_factory=dict)

    @property
    def total_ns(self) -> int:
        """Return all of its time: that of what is inside, and idle time of its own."""
        return self.idle_ns + self.components.total()

    def add(self, path: Path, component: int, ns: int) -> None:
        """Add time to the nodes of a path, of which the last is a kernel where it is work."""
        node = self
        for label in ("", *path):
            if label and label not in node.inside:
                node.inside[label] = TimeNode(label)
            node = node.inside[label] if label else node
            if component == _IDLE:
                node.idle_ns += ns
            else:
                node.components[WORK[component]] += ns
                node.kernels[path[-1]] += ns


@dataclass(frozen=True, slots=True)
class _Times:
    """Time of the chosen windows by activity (a row, -1: none) and component; `named` is the rest.

    That is idle time by the path of what loads data.
    """

    row: IntArray
    component: IntArray
    ns: IntArray
    named: Sequence[tuple[Path, int]]


def time_trees(prepared: Prepared) -> dict[str, TimeNode]:
    """Return the time of the chosen windows by lens; each tree sums to their length."""
    times = _times(prepared)
    row, place = ranked(times.row[times.row >= 0])
    known = times.row >= 0
    spare_ns = int(times.ns[~known].sum())
    trees = {}
    for lens, (columns, path) in _lenses(prepared, row).items():
        root = trees[lens] = TimeNode("")
        key = [*(column[place] for column in columns), times.component[known]]
        group, first = group_rows(key)
        sums = group_sums(group, times.ns[known], len(first)).tolist()
        each = zip(place[first].tolist(), key[-1][first].tolist(), sums, strict=True)
        for at, component, ns in each:
            root.add(path(at), component, ns)
        for named, ns in (*times.named, ((), spare_ns)):
            root.add(named, _IDLE, ns)
    return trees


def _times(prepared: Prepared) -> _Times:
    work = charged(prepared)
    gaps = chosen_gaps(prepared)
    row, ns, named = gaps.activity, gaps.end_ns - gaps.start_ns, []
    if prepared.launch_records.is_judged:
        slices = NamedSlices.of(gaps, prepared.trace)
        for (kind, name), mine in slices.culprits():
            if kind == _LOADING:
                lengths, of = slices.slices.dur_ns[mine], slices.slices.part[mine]
                np.subtract.at(ns, of, lengths)
                named.append(((CLASSES[kind], function_name(name)), int(lengths.sum())))
    windows = prepared.windows
    length_ns = sum(chosen_time(windows[device]).length_ns for device in prepared.accounts)
    left = length_ns - int(work.ns.sum()) - int(ns.sum()) - sum(time for _, time in named)
    parts = [
        (work.row, work.component, work.ns),
        (row, np.full_like(row, _IDLE), ns),
        tuple(np.array([[-1], [_IDLE], [left]])),
    ]
    row, component, ns = (np.concatenate(column) for column in zip(*parts, strict=True))
    lasts = ns > 0
    return _Times(row[lasts], component[lasts], ns[lasts], named)


_Lens = tuple[tuple[IntArray, ...], Callable[[int], Path]]


def _lenses(prepared: Prepared, row: IntArray) -> dict[str, _Lens]:
    """Return, by lens, what tells the paths of activities apart and the path of each."""
    launched = prepared.as_launched
    work, trace = Launched.of(launched, row), launched.trace
    found, (op, ops) = attributed(launched, row), launching_names(work)
    categorised, activities = prepared.linked.categorised, prepared.trace.activities
    kernel, kernels = codes(activities["name"])[row], [*names(activities["name"]), "unknown"]
    category = categorised.category[row]
    frames, labels = _frames(work), names(trace.marks["name"])
    phase = _phases(work, found.rule)
    has_phases = bool(phase.any())

    def tail(at: int) -> Path:
        launcher = (ops[op[at]],) if op[at] >= 0 else ()
        return (*launcher, kernel_name(kernels[kernel[at]]) or "unknown")

    def by_module(at: int) -> Path:
        modules = _path(found.paths, int(found.paths.node[at]), labels, module_name)
        return (*TREE_PHASES[phase[at] :][:has_phases], *modules, *tail(at))

    def by_category(at: int) -> Path:
        one = categorised.categories[category[at]]
        return (one.top, one.sub.replace("_", " "), tail(at)[-1])

    return {
        "module": ((phase, found.paths.node, op, kernel), by_module),
        "python": (
            (frames.node, op, kernel),
            lambda at: (*_path(frames, int(frames.node[at]), labels, function_name), *tail(at)),
        ),
        "kernel": ((category, kernel), by_category),
    }


def _phases(work: Launched, rule: IntArray) -> IntArray:
    """Return the place in _PHASES of each piece of work."""
    prepared = work.prepared
    node = taken(prepared.linked.op_tree.nearest(is_node(prepared.trace.ops)), work.op)
    by_rule = [rule == RULES.index(one.replace(" ", "_")) for one in TREE_PHASES[2:]]
    return np.select([*by_rule, (work.forward >= 0) | (node >= 0)], [2, 3, 4, 1], 0)


def _frames(work: Launched) -> ModulePaths:
    """Return the functions of users around launches."""
    trace = work.prepared.trace
    rows, labels = host_marks(trace, "python"), trace.marks["name"]
    rows = rows[~(matching(labels, is_of_library) | told(labels, "compiled"))[rows]]
    causes = work.causes
    launch, forward = (module_paths(trace, cause, rows) for cause in causes)
    node = np.where(launch.node >= 0, launch.node, forward.node)
    return ModulePaths(node, launch.parent, launch.name)


def _path(
    paths: ModulePaths, node: int, labels: Sequence[str], named: Callable[[str], str]
) -> Path:
    levels: list[str] = []
    while node >= 0 and len(levels) < _MOST_LEVELS:
        levels.append(named(labels[paths.name[node]]) or "unknown")
        node = int(paths.parent[node])
    return tuple(reversed(levels))

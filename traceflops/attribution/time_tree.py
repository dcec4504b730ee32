"""The time of devices as trees: each ns of the chosen windows belongs to one path of names.

Work is that of the activity that it is charged to, see `charged`. Idle time is charged to the
activity that ends it, and while data are loaded to what loads them; before the first and after the
last it is the step's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from traceflops.attribution.charged import charged
from traceflops.attribution.device_work import RULES, Launched, attributed, launching_names
from traceflops.attribution.host_events import has_fact, is_of_library
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.idle_slices import chosen_gaps
from traceflops.attribution.marks import host_marks
from traceflops.attribution.named_slices import NamedSlices
from traceflops.attribution.scopes import ModulePaths, is_node, module_name, module_paths
from traceflops.characters import function_name, kernel_name
from traceflops.table.columns import IntArray, codes, matching, names
from traceflops.table.grouping import group_rows, group_sums, ranked
from traceflops.table.nesting import taken
from traceflops.timeline.records import WORK
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

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
        """All of its time: work inside, and idle time of its own."""
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


def time_trees(prepared: Prepared) -> dict[str, TimeNode]:
    """Return the time of the chosen windows by lens; each tree sums to their length."""
    work, gaps = charged(prepared), chosen_gaps(prepared)
    idle_ns, loading = gaps.end_ns - gaps.start_ns, list[tuple[Path, int]]()
    if prepared.knows_host_work:
        naming = NamedSlices.of(gaps, prepared.trace)
        for (kind, name), rows in naming.culprits():
            if kind == _LOADING:
                lengths = naming.slices.dur_ns[rows]
                np.subtract.at(idle_ns, naming.slices.part[rows], lengths)
                loading.append(((CLASSES[kind], function_name(name)), int(lengths.sum())))
    windows = prepared.windows
    start_up_ns = sum(
        account.start_up.intersect(chosen_time(windows[device])).length_ns
        for device, account in prepared.accounts.items()
    )
    loading += [((CLASSES["start_up"],), start_up_ns)] * (start_up_ns > 0)
    length_ns = sum(chosen_time(windows[device]).length_ns for device in prepared.accounts)
    rest_ns = length_ns - int(work.ns.sum() + idle_ns.sum()) - sum(ns for _, ns in loading)
    activity = np.append(work.row, gaps.activity)
    component = np.append(work.component, np.full_like(gaps.activity, _IDLE))
    ns = np.append(work.ns, idle_ns)
    rest_ns = max(rest_ns, 0) + int(ns[(activity < 0) & (ns > 0)].sum())
    known = (activity >= 0) & (ns > 0)
    activity, component, ns = activity[known], component[known], ns[known]
    row, index = ranked(activity)
    trees = {}
    for lens, (columns, path) in _lenses(prepared, row).items():
        root = trees[lens] = TimeNode("")
        key = [*(column[index] for column in columns), component]
        group, first = group_rows(key)
        sums = group_sums(group, ns, len(first)).tolist()
        parts = component[first].tolist()
        for number, part, sum_ns in zip(index[first].tolist(), parts, sums, strict=True):
            root.add(path(number), part, sum_ns)
        for labels, sum_ns in (*loading, ((), rest_ns)):
            root.add(labels, _IDLE, sum_ns)
    return trees


_Lens = tuple[tuple[IntArray, ...], Callable[[int], Path]]


def _lenses(prepared: Prepared, row: IntArray) -> dict[str, _Lens]:
    """Return, by lens, columns per activity that distinguish their paths, and the path of each."""
    launched = prepared.as_launched
    work, trace = Launched.of(launched, row), launched.trace
    owner, (op, ops) = attributed(launched, row), launching_names(work)
    categorised, activities = prepared.linked.categorised, prepared.trace.activities
    kernel, kernels = codes(activities["name"])[row], [*names(activities["name"]), "unknown"]
    category, labels = categorised.category[row], names(trace.marks["name"])
    # The functions of users around launches.
    mark = host_marks(trace, "python")
    library = matching(trace.marks["name"], is_of_library)
    mark = mark[~(library | has_fact(trace.marks["name"], "compiled"))[mark]]
    launch, forward = (module_paths(trace, cause, mark) for cause in work.causes)
    frames = replace(launch, node=np.where(launch.node >= 0, launch.node, forward.node))
    # The place of each phase in TREE_PHASES.
    node = taken(launched.linked.op_tree.nearest(is_node(trace.ops)), work.op)
    by_rule = [owner.rule == RULES.index(name.replace(" ", "_")) for name in TREE_PHASES[2:]]
    is_backward = (work.forward >= 0) | (node >= 0)
    phase = np.select([*by_rule, is_backward], [2, 3, 4, 1], 0)
    has_phases = bool(phase.any())

    def tail(place: int) -> Path:
        launcher = (ops[op[place]],) if op[place] >= 0 else ()
        return (*launcher, kernel_name(kernels[kernel[place]]) or "unknown")

    def levels(paths: ModulePaths, place: int, name_of: Callable[[str], str]) -> list[str]:
        node = int(paths.node[place])
        return paths.levels(node, labels, _MOST_LEVELS, lambda text: name_of(text) or "unknown")

    def by_module(place: int) -> Path:
        phases = TREE_PHASES[phase[place] :][:has_phases]
        return (*phases, *levels(owner.paths, place, module_name), *tail(place))

    def by_category(place: int) -> Path:
        known = categorised.categories[category[place]]
        return (known.top, known.sub.replace("_", " "), tail(place)[-1])

    return {
        "module": ((phase, owner.paths.node, op, kernel), by_module),
        "python": (
            (frames.node, op, kernel),
            lambda place: (*levels(frames, place, function_name), *tail(place)),
        ),
        "kernel": ((category, kernel), by_category),
    }

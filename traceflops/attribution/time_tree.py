"""The time of devices as trees: each ns of the chosen windows belongs to one path of names.

Work belongs to the activity that it is charged to, see `charged`. Idle time belongs to the activity
that ends it, or to the loader while data are loaded; before the first and after the last activity
it belongs to the root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

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


class TimeNode(Struct):
    """Time in ns of a path of names and all inside it: idle, by component, and by kernel name."""

    label: str
    idle_ns: int = 0
    components: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    inside: dict[str, TimeNode] = field(default_factory=dict)

    @property
    def total_ns(self) -> int:
        """Work and idle time, in ns."""
        return self.idle_ns + self.components.total()

    def add(self, path: Path, component: int, ns: int) -> None:
        """Add `ns` to all nodes on a path; for work (an index into WORK) it ends in a kernel."""
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
    """Return the time of the chosen windows as a tree per lens: "module", "python", "kernel"."""
    work, gaps = charged(prepared), chosen_gaps(prepared)
    # Idle time of each gap without that of loading data, which has a path of its own.
    idle_ns = gaps.end_ns - gaps.start_ns
    own_paths: list[tuple[Path, int]] = []
    if prepared.knows_host_work:
        naming = NamedSlices.of(gaps, prepared.trace)
        for (kind, name), rows in naming.culprits():
            if kind == _LOADING:
                lengths = naming.slices.dur_ns[rows]
                np.subtract.at(idle_ns, naming.slices.part[rows], lengths)
                own_paths.append(((CLASSES[kind], function_name(name)), int(lengths.sum())))
    windows = prepared.windows
    start_up_ns = sum(
        account.start_up.intersect(chosen_time(windows[device])).length_ns
        for device, account in prepared.accounts.items()
    )
    if start_up_ns > 0:
        own_paths.append(((CLASSES["start_up"],), start_up_ns))
    # The rest of the windows is before the first and after the last activity.
    length_ns = sum(chosen_time(windows[device]).length_ns for device in prepared.accounts)
    rest_ns = length_ns - int(work.ns.sum() + idle_ns.sum()) - sum(ns for _, ns in own_paths)
    # Work and idle time by the activity that each belongs to. Without one, it is of the rest.
    activity = np.append(work.row, gaps.activity)
    component = np.append(work.component, np.full_like(gaps.activity, _IDLE))
    ns = np.append(work.ns, idle_ns)
    rest_ns = max(rest_ns, 0) + int(ns[(activity < 0) & (ns > 0)].sum())
    has_time = (activity >= 0) & (ns > 0)
    component, ns = component[has_time], ns[has_time]
    row, index = ranked(activity[has_time])  # the distinct activities, and one of them per piece
    trees = {}
    for lens, (columns, path) in _lenses(prepared, row).items():
        root = trees[lens] = TimeNode("")
        # Pieces with equal columns have one path: a group, whose first piece stands for it.
        group, first = group_rows([*(column[index] for column in columns), component])
        sums = group_sums(group, ns, len(first)).tolist()
        components = component[first].tolist()
        for number, part, sum_ns in zip(index[first].tolist(), components, sums, strict=True):
            root.add(path(number), part, sum_ns)
        for labels, sum_ns in (*own_paths, ((), rest_ns)):
            root.add(labels, _IDLE, sum_ns)
    return trees


_Lens = tuple[tuple[IntArray, ...], Callable[[int], Path]]


def _lenses(prepared: Prepared, row: IntArray) -> dict[str, _Lens]:
    """Return, by lens, columns per `row` that tell paths apart, and the path of an index."""
    launched = prepared.as_launched
    launches, trace = Launched.of(launched, row), launched.trace
    rule, modules = attributed(launched, row)
    op, ops = launching_names(launches)
    categorised, activities = prepared.linked.categorised, prepared.trace.activities
    kernel = codes(activities["name"])[row]
    kernels = [*names(activities["name"]), "unknown"]  # the last is for code -1
    category, labels = categorised.category[row], names(trace.marks["name"])
    # The user's functions around launches, else around forward ops.
    mark = host_marks(trace, "python")
    library = matching(trace.marks["name"], is_of_library)
    mark = mark[~(library | has_fact(trace.marks["name"], "compiled"))[mark]]
    launch, forward = (module_paths(trace, cause, mark) for cause in launches.causes)
    frames = replace(launch, node=np.where(launch.node >= 0, launch.node, forward.node))
    # The phase of each row, an index into TREE_PHASES.
    node = taken(launched.linked.op_tree.nearest(is_node(trace.ops)), launches.op)
    by_rule = [rule == RULES.index(name.replace(" ", "_")) for name in TREE_PHASES[2:]]
    is_backward = (launches.forward >= 0) | (node >= 0)
    phase = np.select([*by_rule, is_backward], [2, 3, 4, 1], 0)
    has_phases = bool(phase.any())  # else all is forward, and the phase says nothing

    def kernel_path(index: int) -> Path:
        launcher = (ops[op[index]],) if op[index] >= 0 else ()
        return (*launcher, kernel_name(kernels[kernel[index]]) or "unknown")

    def levels(paths: ModulePaths, index: int, name_of: Callable[[str], str]) -> list[str]:
        node = int(paths.node[index])
        return paths.levels(node, labels, _MOST_LEVELS, lambda text: name_of(text) or "unknown")

    def by_module(index: int) -> Path:
        phases = TREE_PHASES[phase[index] :][:has_phases]  # the phase, or nothing
        return (*phases, *levels(modules, index, module_name), *kernel_path(index))

    def by_category(index: int) -> Path:
        kind = categorised.categories[category[index]]
        return (kind.top, kind.sub.replace("_", " "), kernel_path(index)[-1])

    return {
        "module": ((phase, modules.node, op, kernel), by_module),
        "python": (
            (frames.node, op, kernel),
            lambda index: (*levels(frames, index, function_name), *kernel_path(index)),
        ),
        "kernel": ((category, kernel), by_category),
    }

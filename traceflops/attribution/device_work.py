"""Whose work the devices did: by module, function, annotation, operator. See `attributed`.

Work belongs to the first of RULES that gives an answer. Modules are those on the stack of the
launch call; what a backward node launched belongs to the module of its forward op.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

import numpy as np

from traceflops.attribution.host_events import has_fact, is_of_library
from traceflops.attribution.launching_ops import ops_that_launched
from traceflops.attribution.marks import Instants, host_marks, innermost_mark, instants
from traceflops.attribution.scopes import (
    ModulePaths,
    annotation_around,
    forward_ops,
    module_name,
    modules_around,
)
from traceflops.table.columns import BoolArray, IntArray, Names, codes, matching, names
from traceflops.table.grouping import exact_sums
from traceflops.table.nesting import taken
from traceflops.timeline.device_span import is_top
from traceflops.windows.prepared import Prepared

RULES: Final = (
    *("module", "backward_module", "gradient_accumulation", "optimizer", "communication"),
    *("user_function", "annotation", "compiled_region", "op", "call", "none"),
)
"""What work is attributed to, the first that is known."""
_FUSED: Final = re.compile(r"triton_[a-z]+_fused_")
"""How Inductor names a kernel after the operators that it fuses."""
_REGION: Final = re.compile(r"Torch-Compiled Region")
_PATH_LEVELS: Final = 100
"""At most so many modules of a path are named, the innermost ones."""


@dataclass(frozen=True, slots=True)
class WorkSum:
    """Activities that start in the chosen windows, and the time inside these, overlaps twice."""

    activities: int
    device_ns: int

    def __add__(self, other: WorkSum) -> WorkSum:
        return WorkSum(self.activities + other.activities, self.device_ns + other.device_ns)


NOTHING: Final = WorkSum(0, 0)

Named = tuple[IntArray, Sequence[str]]
"""A code per piece of work (-1: unknown), and the names by code."""


@dataclass(frozen=True, slots=True)
class ModuleWork:
    """What a module launched itself, not those inside it, and their backward.

    `path` are instances, outermost first; `flops` is None where none are counted.
    """

    path: str
    count: int
    device_ns: int
    flops: int | None


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """Work of the chosen windows of all devices by the rule that attributes it, all of RULES.

    `modules` are those that launched any, with most time first.
    """

    by_rule: Mapping[str, WorkSum]
    modules: tuple[ModuleWork, ...]

    def share(self, *rules: str) -> float | None:
        """Return the share of activities that some rules attribute, None where none starts."""
        total = sum(work.activities for work in self.by_rule.values())
        return sum(self.by_rule[rule].activities for rule in rules) / total if total else None


@dataclass(frozen=True, slots=True)
class Launched:
    """Activities with the rows of the call and op that launched them, and of the forward op.

    `forward` is that of which a backward node around the launch is the derivative; -1: unknown.
    """

    prepared: Prepared
    row: IntArray
    call: IntArray
    op: IntArray
    forward: IntArray

    @classmethod
    def of(cls, prepared: Prepared, row: IntArray) -> Launched:
        """Return what launched some rows of activities."""
        linked, op = prepared.linked, ops_that_launched(prepared, row)
        call = linked.links.call_of_activity[row]
        return cls(prepared, row, call, op, forward_ops(linked, op))

    def only(self, places: IntArray) -> Launched:
        """Return some of them."""
        columns = (getattr(self, column.name)[places] for column in fields(self)[1:])
        return Launched(self.prepared, *columns)

    @property
    def causes(self) -> tuple[Instants, Instants]:
        """When and where they were launched, and the same of the forward ops."""
        trace, none = self.prepared.trace, np.full(len(self.row), -1, dtype=np.int64)
        return instants(trace, self.call, self.op), instants(trace, none, self.forward)

    def own(self, column: str) -> Named:
        """Return the names in a column of their own table."""
        values = self.prepared.trace.activities[column]
        return codes(values)[self.row], names(values)

    def is_inside(self, marked: BoolArray) -> BoolArray:
        """Return whether a marked op launched the work, or is around the op that did."""
        return taken(self.prepared.linked.op_tree.nearest(marked), self.op) >= 0


def launching_names(work: Launched) -> Named:
    """Return the name of the op that launched the work; of fused ops that of their kernel."""
    trace = work.prepared.trace
    fused = matching(trace.activities["name"], _FUSED.match)[work.row]
    code, texts = work.own("name")
    by_op = taken(codes(trace.ops["name"]), work.op), names(trace.ops["name"])
    return _first_named((np.where(fused, code, -1), texts), by_op)


def user_functions(work: Launched) -> Named:
    """Return the innermost function of a user, or the lines of source that a compiler states.

    Code that a compiler made, and what runs it, is no user's.
    """
    trace = work.prepared.trace
    rows, labels = host_marks(trace, "python"), trace.marks["name"]
    rows = rows[~(matching(labels, is_of_library) | has_fact(labels, "compiled"))[rows]]
    name = codes(labels)[rows]
    launch, forward = (taken(name, innermost_mark(trace, rows, cause)) for cause in work.causes)
    function = np.where(launch >= 0, launch, forward), names(labels)
    return _first_named(work.own("source"), function)


def annotated(work: Launched) -> Named:
    """Return the annotation of a graph's node, or that of the launch or of the forward op."""
    trace, mark = work.prepared.trace, work.prepared.selection.step_mark
    name, _ = annotation_around(trace, *work.causes, mark)
    return _first_named(work.own("annotation"), (name, names(trace.marks["name"])))


def ranges(work: Launched) -> Named:
    """Return the annotation, or else the compiled region around the launch."""
    ops = work.prepared.trace.ops
    regions = work.prepared.linked.op_tree.nearest(matching(ops["name"], _REGION.match))
    region = taken(codes(ops["name"]), taken(regions, work.op)), names(ops["name"])
    return _first_named(annotated(work), region)


def _first_named(first: Named, second: Named) -> Named:
    """Return the first name of each piece of work, or else the second."""
    (code, texts), (other, others) = first, second
    joined = Names()
    of_first, of_second = (
        np.append(joined.codes(labels), -1).astype(np.int64) for labels in (texts, others)
    )
    return np.where(code >= 0, of_first[code], of_second[other]), tuple(joined)


def _communicates(work: Launched) -> BoolArray:
    known = (work.call >= 0) | (work.op >= 0)
    return known & is_top(work.prepared.linked.categorised, "communication", work.row)


def _accumulates(work: Launched) -> BoolArray:
    """Return which work accumulates gradients, without what a hook there communicates."""
    ops = work.prepared.trace.ops
    adds = matching(ops["name"], lambda label: label.endswith("::AccumulateGrad"))
    return work.is_inside(adds) & ~_communicates(work)


def _in_optimizer(work: Launched) -> BoolArray:
    trace = work.prepared.trace
    rows = host_marks(trace, "annotation", "python")
    rows = rows[has_fact(trace.marks["name"], "optimizer")[rows]]
    inside = innermost_mark(trace, rows, work.causes[0]) >= 0
    return inside | work.is_inside(has_fact(trace.ops["name"], "optimizer"))


def _is_compiled(work: Launched) -> BoolArray:
    ops, activities = work.prepared.trace.ops, work.prepared.trace.activities
    regions = has_fact(ops["name"], "compiled") | (codes(ops["generated_kernel"]) >= 0)
    kernels = matching(activities["name"], lambda name: name.startswith("triton_"))
    return work.is_inside(regions) | kernels[work.row]


_TESTS: Final[dict[str, Callable[[Launched], BoolArray]]] = {
    "gradient_accumulation": _accumulates,
    "optimizer": _in_optimizer,
    "communication": _communicates,
    "user_function": lambda work: user_functions(work)[0] >= 0,
    "annotation": lambda work: annotated(work)[0] >= 0,
    "compiled_region": _is_compiled,
    "op": lambda work: work.op >= 0,
    "call": lambda work: work.call >= 0,
    "none": lambda work: np.ones(len(work.row), dtype=np.bool_),
}


@dataclass(frozen=True, slots=True)
class Attributed:
    """Whose each of some activities is: a place in RULES, and the node of its module, -1: none."""

    rule: IntArray
    paths: ModulePaths


def attributed(prepared: Prepared, row: IntArray) -> Attributed:
    """Return whose work some rows of activities are."""
    work = Launched.of(prepared, row)
    paths, by_launch = modules_around(prepared.trace, *work.causes)
    rule = np.select([by_launch, paths.node >= 0], [0, 1], -1)
    for name, fits in _TESTS.items():
        left = np.flatnonzero(rule < 0)
        rule[left[fits(work.only(left))]] = RULES.index(name)
    return Attributed(rule, paths)


def attributed_work(prepared: Prepared, flops: IntArray) -> DeviceWork | None:
    """Return whose work is in the chosen windows, None without any.

    `flops` are by row of activities, -1 where they are not counted.
    """
    row, starts = prepared.chosen.row, prepared.begins
    if not len(row):
        return None
    owner, inside_ns = attributed(prepared, row), prepared.chosen.inside_ns
    sums = (exact_sums(owner.rule, values, len(RULES)) for values in (starts, inside_ns))
    by_rule = dict(zip(RULES, map(WorkSum, *sums), strict=True))
    paths, done = owner.paths, taken(flops, row)
    own, nodes, known = np.flatnonzero(paths.node >= 0), len(paths.parent), done >= 0
    columns = (starts, inside_ns, np.where(known, done * starts, 0), known.astype(np.int64))
    of_node = zip(*(exact_sums(paths.node[own], c[own], nodes) for c in columns), strict=True)
    texts = names(prepared.trace.marks["name"])
    modules = []
    for node, (count, ns, flop, counted) in enumerate(of_node):
        if count or ns:
            levels = paths.levels(node, texts, _PATH_LEVELS + 1, module_name)
            if len(levels) > _PATH_LEVELS:
                levels[0] = "…"
            modules.append(ModuleWork("/".join(levels), count, ns, flop if counted else None))
    modules.sort(key=attrgetter("device_ns"), reverse=True)
    return DeviceWork(by_rule, tuple(modules))

"""Attributes device work to modules, functions, annotations and operators. See `attributed`.

Each activity is attributed by the first of RULES that applies to it. Its modules are those around
the launch call; what a backward node launched belongs to the module of its forward op.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import numpy as np
from msgspec import Struct

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
from traceflops.table.columns import Additive, BoolArray, IntArray, Names, codes, matching, names
from traceflops.table.grouping import exact_sums
from traceflops.table.nesting import taken
from traceflops.timeline.device_span import is_top
from traceflops.windows.prepared import Prepared

RULES: Final = (
    *("module", "backward_module", "gradient_accumulation", "optimizer", "communication"),
    *("user_function", "annotation", "compiled_region", "op", "call", "none"),
)
"""What work can be attributed to; the first rule that applies decides."""
_FUSED: Final = re.compile(r"triton_[a-z]+_fused_")
"""How Inductor names a kernel after the operators that it fuses."""
_REGION: Final = re.compile(r"Torch-Compiled Region")
_PATH_LEVELS: Final = 100  # at most so many modules of a path are named, the innermost ones


class WorkSum(Additive, frozen=True):
    """Activities that start in the chosen windows, and their ns inside; overlaps count twice."""

    activities: int
    device_ns: int


NOTHING: Final = WorkSum(0, 0)
Named = tuple[IntArray, Sequence[str]]
"""A code per piece of work (-1: unknown), and the names by code."""


class ModuleWork(Struct, frozen=True):
    """Device work that one module instance launched, with backward, without inner modules.

    `path` names the instances from the outermost on; `flops` is None if none are counted.
    """

    path: str
    count: int
    device_ns: int
    flops: int | None


class DeviceWork(Struct, frozen=True):
    """Work of the chosen windows of all devices, by rule (all of RULES) and by module.

    `modules` holds the modules that launched any work, those with most time first.
    """

    by_rule: Mapping[str, WorkSum]
    modules: tuple[ModuleWork, ...]

    def share(self, *rules: str) -> float | None:
        """Return the share of activities that `rules` attribute, None without activities."""
        total = sum(work.activities for work in self.by_rule.values())
        return sum(self.by_rule[rule].activities for rule in rules) / total if total else None


class Launched(Struct, frozen=True):
    """Activities (rows) and what launched each: rows of its call, its op and its forward op.

    `forward` is the op whose derivative the launch computes in the backward pass. -1: unknown.
    """

    prepared: Prepared
    row: IntArray
    call: IntArray
    op: IntArray
    forward: IntArray

    @classmethod
    def of(cls, prepared: Prepared, row: IntArray) -> Launched:
        """Return the launches of some rows of activities."""
        linked, op = prepared.linked, ops_that_launched(prepared, row)
        call = linked.links.call_of_activity[row]
        return cls(prepared, row, call, op, forward_ops(linked, op))

    def only(self, index: IntArray) -> Launched:
        """Return the selected activities only."""
        columns = (column[index] for column in (self.row, self.call, self.op, self.forward))
        return Launched(self.prepared, *columns)

    @property
    def causes(self) -> tuple[Instants, Instants]:
        """Instants of the launches, and instants of the forward ops."""
        trace, none = self.prepared.trace, np.full(len(self.row), -1, dtype=np.int64)
        return instants(trace, self.call, self.op), instants(trace, none, self.forward)

    def texts_in(self, column: str) -> Named:
        """Return, per activity, its text in a column of the activities table."""
        values = self.prepared.trace.activities[column]
        return codes(values)[self.row], names(values)

    def is_inside(self, marked: BoolArray) -> BoolArray:
        """Return, per activity, whether its op or one around that is `marked` (per op)."""
        return taken(self.prepared.linked.op_tree.nearest(marked), self.op) >= 0


def launching_names(work: Launched) -> Named:
    """Return, per activity, the name of its launching op, for a fused kernel its own name."""
    trace = work.prepared.trace
    fused = matching(trace.activities["name"], _FUSED.match)[work.row]
    code, texts = work.texts_in("name")
    by_op = taken(codes(trace.ops["name"]), work.op), names(trace.ops["name"])
    return _first_named((np.where(fused, code, -1), texts), by_op)


def user_functions(work: Launched) -> Named:
    """Return, per activity, the place in the user's code, the first of these that is known.

    The source lines of its kernel, which a compiler states; the innermost function of the user (not
    of libraries, nor compiled) around its launch; that around its forward op.
    """
    trace = work.prepared.trace
    rows, labels = host_marks(trace, "python"), trace.marks["name"]
    is_users = ~(matching(labels, is_of_library) | has_fact(labels, "compiled"))
    rows = rows[is_users[rows]]
    name = codes(labels)[rows]
    launch, forward = (taken(name, innermost_mark(trace, rows, cause)) for cause in work.causes)
    function = np.where(launch >= 0, launch, forward), names(labels)
    return _first_named(work.texts_in("source"), function)


def annotated(work: Launched) -> Named:
    """Return, per activity, the annotation of its graph node, else of its launch or forward op."""
    trace, mark = work.prepared.trace, work.prepared.selection.step_mark
    name, _ = annotation_around(trace, *work.causes, mark)
    return _first_named(work.texts_in("annotation"), (name, names(trace.marks["name"])))


def ranges(work: Launched) -> Named:
    """Return, per activity, its annotation, or else the compiled region around its launch."""
    ops = work.prepared.trace.ops
    regions = work.prepared.linked.op_tree.nearest(matching(ops["name"], _REGION.match))
    region = taken(codes(ops["name"]), taken(regions, work.op)), names(ops["name"])
    return _first_named(annotated(work), region)


def _first_named(first: Named, second: Named) -> Named:
    """Return, per activity, the first name if known, else the second, as codes of common names."""
    first_code, first_texts = first
    second_code, second_texts = second
    joined = Names()
    # Texts [a b] and [b c]  ->  of_first [0 1 -1], of_second [1 2 -1]; code -1 takes the last.
    of_first = np.append(joined.codes(first_texts), -1).astype(np.int64)
    of_second = np.append(joined.codes(second_texts), -1).astype(np.int64)
    return np.where(first_code >= 0, of_first[first_code], of_second[second_code]), tuple(joined)


def _communicates(work: Launched) -> BoolArray:
    has_launch = (work.call >= 0) | (work.op >= 0)
    return has_launch & is_top(work.prepared.linked.categorised, "communication", work.row)


def _accumulates(work: Launched) -> BoolArray:
    """Return, per activity, whether it accumulates gradients, without communication by hooks."""
    ops = work.prepared.trace.ops
    adds = matching(ops["name"], lambda label: label.endswith("::AccumulateGrad"))
    return work.is_inside(adds) & ~_communicates(work)


def _in_optimizer(work: Launched) -> BoolArray:
    """Return, per activity, whether a function, annotation or op of an optimizer launched it."""
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


def attributed(prepared: Prepared, row: IntArray) -> tuple[IntArray, ModulePaths]:
    """Return, per row of activities, the first of RULES that applies, and its module's node."""
    work = Launched.of(prepared, row)
    paths, by_launch = modules_around(prepared.trace, *work.causes)
    # Rules 0 and 1: a module around the launch, or around the forward op.
    rule = np.select([by_launch, paths.node >= 0], [0, 1], -1)
    for name, applies in _TESTS.items():
        undecided = np.flatnonzero(rule < 0)
        rule[undecided[applies(work.only(undecided))]] = RULES.index(name)
    return rule, paths


def attributed_work(prepared: Prepared, flops: IntArray) -> DeviceWork | None:
    """Sum the device work of the chosen windows by rule and by module; None without any.

    `flops` are per activity, -1 if not counted. Only activities that start in the windows count.
    """
    row, starts = prepared.chosen.row, prepared.begins
    if not len(row):
        return None
    inside_ns = prepared.chosen.inside_ns
    rule, paths = attributed(prepared, row)
    sums = (exact_sums(rule, values, len(RULES)) for values in (starts, inside_ns))
    by_rule = dict(zip(RULES, map(WorkSum, *sums), strict=True))
    # Per node of the modules: activities, ns, FLOPs, and how many activities have FLOPs.
    flops_of_row = taken(flops, row)
    counted = flops_of_row >= 0
    flops_started = np.where(counted, flops_of_row * starts, 0)
    columns = (starts, inside_ns, flops_started, counted.astype(np.int64))
    in_module = np.flatnonzero(paths.node >= 0)
    node, nodes = paths.node[in_module], len(paths.parent)
    sums_of_node = zip(*(exact_sums(node, c[in_module], nodes) for c in columns), strict=True)
    texts = names(prepared.trace.marks["name"])
    modules = []
    for number, (count, ns, flop, with_flops) in enumerate(sums_of_node):
        if count or ns:
            levels = paths.levels(number, texts, _PATH_LEVELS + 1, module_name)
            if len(levels) > _PATH_LEVELS:  # too deep: stands for the outer modules left out
                levels[0] = "…"
            modules.append(ModuleWork("/".join(levels), count, ns, flop if with_flops else None))
    modules.sort(key=attrgetter("device_ns"), reverse=True)
    return DeviceWork(by_rule, tuple(modules))

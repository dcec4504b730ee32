"""What surrounded work on the host: the modules that launched it, else the annotation.

Instances of a module count as one (`Linear_3` is a `Linear`), so that the layers of a model do not
each have a row of their own. What a backward node launched, in no module itself, belongs to the
module of the op that it is the derivative of: of the forward ops with its sequence number the last.

When in a training step an op ran: forward, backward, recomputation, optimizer.

R1 An op below a backward node that carries a sequence number, or is inside an op that does, ran
   with gradients on: it is a forward computed again. Gradients themselves are computed with
   gradients off and have none. (Double backward, `create_graph`, looks the same.)
R2 Ghosts and duplicates are none of these: `attribution` sorts them out before.
R3 Products inside backward nodes that are no derivative of one product, above all those of a
   compiled graph, have no sequence numbers: shapes and strides tell, see `products`.
R4 Python frames of torch/utils/checkpoint.py confirm R1 where they were recorded.
R5 Kernels alone tell no phase; nothing is guessed from their number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from traceflops.attribution.backward_threads import starting_mark
from traceflops.attribution.host_events import told
from traceflops.attribution.marks import Instants, host_marks, innermost_mark, instants
from traceflops.attribution.op_kernels import Attribution
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Names,
    OpTree,
    SmallArray,
    Trace,
    codes,
    distinct,
    group_rows,
    innermost,
    joint_codes,
    matching,
    names,
    numbers,
    ranked,
    taken,
)
from traceflops.timeline import LinkedTrace
from traceflops.windows import is_step_label

Phase = Literal["forward", "backward", "recompute", "optimizer"]

PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "recompute", "optimizer")

EVALUATE: Final = "autograd::engine::evaluate_function: "
_NODE: Final = re.compile(
    r"(?:torch::jit::\(anonymous namespace\)::)?[A-Za-z_][A-Za-z0-9_]{0,200}Backward[0-9]{0,3}"
    r"|torch::autograd::CppNode<.{1,1000}>"
)
"""Nodes of the library's derivatives, of Python's, TorchScript's and C++'s own functions."""
_CHECKPOINT: Final = re.compile(
    r".{0,1000}torch/utils/checkpoint\.py\([0-9]{1,9}\): (?:recompute_fn|unpack_hook|backward)"
)


@dataclass(frozen=True, slots=True)
class Phases:
    """The phase of each op, and what it hangs on.

    `phase` is, per op, a place in PHASES; `root` the row of the innermost backward node around it,
    -1 for none. `confirmed` counts the recomputed ops inside a frame of the checkpoint module and
    `unconfirmed` the others; both are None where no such frame was recorded.
    """

    phase: SmallArray
    root: IntArray
    confirmed: int | None
    unconfirmed: int | None

    def is_in(self, phase: Phase) -> BoolArray:
        """Return, per op, whether it ran in this phase."""
        return np.asarray(self.phase == PHASES.index(phase))


def phases(trace: Trace, attribution: Attribution) -> Phases:
    """Return the phase of every op of a trace."""
    ops, tree = trace.ops, attribution.tree
    node = is_node(ops)
    root = tree.around(node)
    with_gradients = tree.nearest((numbers(ops["sequence"], ABSENT) != ABSENT) & ~node)
    both = (with_gradients >= 0) & (root >= 0)
    below_root = both & (taken(tree.place, with_gradients) > taken(tree.place, root))
    phase = np.full(ops.num_rows, PHASES.index("forward"), dtype=np.int8)
    steps = in_optimizer(trace, ops) | (tree.nearest(told(ops["name"], "optimizer")) >= 0)
    phase[(with_gradients < 0) & steps] = PHASES.index("optimizer")
    phase[node | (root >= 0)] = PHASES.index("backward")
    phase[below_root] = PHASES.index("recompute")
    again = np.flatnonzero((phase == PHASES.index("recompute")) & attribution.has("executed"))
    framed = _in_checkpoint(trace, again)
    confirmed = None if framed is None else int(framed.sum())
    unconfirmed = None if confirmed is None else len(again) - confirmed
    return Phases(phase, root, confirmed, unconfirmed)


def is_node(ops: pa.Table) -> BoolArray:
    """Return which ops are backward nodes, or the engine's call of one.

    What the engine calls is a node, whatever it is named. Older profilers recorded only the nodes
    themselves.
    """
    labels = names(ops["name"])
    called = {label.removeprefix(EVALUATE) for label in labels if label.startswith(EVALUATE)}
    return matching(
        ops["name"],
        lambda name: name.startswith(EVALUATE) or name in called or _NODE.fullmatch(name),
    )


def in_optimizer(trace: Trace, table: pa.Table) -> BoolArray:
    """Return which calls or ops of a table start inside a mark of an optimizer."""
    return _inside(trace, np.flatnonzero(told(trace.marks["name"], "optimizer")), table)


def _in_checkpoint(trace: Trace, ops: IntArray) -> BoolArray | None:
    """Return which of these ops start inside a frame that recomputes, None without such frames."""
    frames = matching(
        trace.marks["name"], lambda name: "checkpoint.py" in name and _CHECKPOINT.fullmatch(name)
    )
    return _inside(trace, np.flatnonzero(frames), trace.ops)[ops] if frames.any() else None


def _inside(trace: Trace, marks: IntArray, table: pa.Table) -> BoolArray:
    """Return which rows of a table start inside one of these marks, on the same thread."""
    if not len(marks) or not table.num_rows:
        return np.zeros(table.num_rows, dtype=np.bool_)
    count = len(marks)
    columns = [
        np.concatenate([numbers(trace.marks[name], ABSENT)[marks], numbers(table[name], ABSENT)])
        for name in ("process", "thread", "start_ns")
    ]
    thread = joint_codes(columns[0], columns[1])
    start = columns[2]
    end = start[:count] + numbers(trace.marks["dur_ns"])[marks]
    return innermost(thread[:count], start[:count], end, thread[count:], start[count:]) >= 0


_LEVELS: Final = 3
_PREFIX: Final = "nn.Module: "
_INSTANCE: Final = re.compile(r"_\d{1,9}$")
_LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class Scopes:
    """The scope of each piece of work: a place in `texts`, -1 where none is known.

    `is_module` says, per text, whether it names modules (the innermost last) or an annotation.
    `instance` tells the modules of a scope apart: rows of marks' names, -1 without a module.
    `backward` marks work that belongs to a scope by the forward op.
    """

    scope: IntArray
    texts: list[str]
    is_module: list[bool]
    instance: IntArray
    backward: BoolArray


@dataclass(frozen=True, slots=True)
class ModulePaths:
    """Modules as a forest: a node is one instance in one other. A parent is before its children.

    `node` is, per instant, that of the innermost module around it, -1 for none; `parent` (-1: none)
    and `name`, a code of the names of marks, are by node.
    """

    node: IntArray
    parent: IntArray
    name: IntArray


def launch_scopes(
    linked: LinkedTrace, call: IntArray, op: IntArray, step_mark: str | None
) -> Scopes:
    """Return the scopes of work launched by these rows of calls, or else of ops."""
    trace, forward = linked.trace, forward_ops(linked, op)
    causes = instants(trace, call, op), instants(trace, np.full_like(forward, -1), forward)
    paths, by_launch = modules_around(trace, *causes)
    path, path_texts, instance = _modules(trace, paths)
    around, by_forward, label_texts = _annotations(trace, causes, path < 0, step_mark)
    scope = np.where(path >= 0, path, np.where(around >= 0, around + len(path_texts), -1))
    return Scopes(
        scope,
        [*path_texts, *label_texts],
        [True] * len(path_texts) + [False] * len(label_texts),
        instance,
        (forward >= 0) & np.where(path >= 0, ~by_launch, by_forward),
    )


def forward_ops(linked: LinkedTrace, op: IntArray) -> IntArray:
    """Return the forward op of the backward node around each op, -1 where there is none."""
    ops = linked.trace.ops
    sequence = numbers(ops["sequence"], ABSENT)
    numbered = sequence != ABSENT
    nodes = is_node(ops) & numbered if ops.num_rows else numbered
    # Where several threads ran forward, their numbers are not told apart.
    threads = distinct(numbers(ops["forward_thread"])[nodes])
    if not nodes.any() or len(threads) > 1:
        return np.full(len(op), -1, dtype=np.int64)
    keys = joint_codes(numbers(ops["process"]), sequence)
    keys -= int(keys.min())
    rows = np.flatnonzero(numbered & ~nodes)
    rows = rows[np.argsort(numbers(ops["start_ns"])[rows], kind="stable")]
    last = np.full(int(keys.max()) + 1, -1, dtype=np.int64)
    last[keys[rows]] = rows  # the last one written stays
    node = taken(linked.op_tree.nearest(nodes), op)
    return taken(last, taken(keys, node))


def module_paths(trace: Trace, causes: Instants, rows: IntArray | None = None) -> ModulePaths:
    """Return the modules around instants, or else those of some marks."""
    marks, rows = trace.marks, host_marks(trace, "module") if rows is None else rows
    name, start = codes(marks["name"])[rows], numbers(marks["start_ns"])[rows]
    thread = joint_codes(numbers(marks["process"])[rows], numbers(marks["thread"], ABSENT)[rows])
    tree = OpTree.nested(thread, start, start + numbers(marks["dur_ns"])[rows])
    nodes: dict[tuple[int, int], int] = {}  # (parent, name) -> node
    node = [-1] * (len(rows) + 1)  # the last is that of no mark, -1
    order = tree.order
    each = (order, tree.parent[order], name[order])
    for row, above, label in zip(*(column.tolist() for column in each), strict=True):
        node[row] = nodes.setdefault((node[above], label), len(nodes))
    around = np.array(node, dtype=np.int64)[innermost_mark(trace, rows, causes)]
    parent, label_of = np.array([*nodes], dtype=np.int64).reshape(-1, 2).T
    return ModulePaths(around, parent, label_of)


def modules_around(
    trace: Trace, launch: Instants, forward: Instants
) -> tuple[ModulePaths, BoolArray]:
    """Return the modules around launches or else forward ops, and where it is the launch.

    What a backward node computes again is launched inside its own modules.
    """
    paths = module_paths(trace, Instants.joined((launch, forward)))
    by_launch, by_forward = np.split(paths.node, 2)
    node = np.where(by_launch >= 0, by_launch, by_forward)
    return replace(paths, node=node), by_launch >= 0


def _modules(trace: Trace, paths: ModulePaths) -> tuple[IntArray, list[str], IntArray]:
    """Return the path of modules around each instant, the paths, and the innermost's name."""
    place = Names()
    kind = place.codes(map(module_class, names(trace.marks["name"])))
    levels = [paths.node]
    for _ in range(_LEVELS - 1):
        levels.append(taken(paths.parent, levels[-1]))
    kept = [taken(kind, taken(paths.name, level)) for level in levels]
    path, first = group_rows(kept)
    classes = list(place)
    texts = [
        "/".join(classes[code] for code in reversed(one) if code >= 0)
        for one in np.stack(kept, axis=1)[first].tolist()
    ]
    return np.where(paths.node >= 0, path, -1), texts, taken(paths.name, paths.node)


def annotation_around(
    trace: Trace, launch: Instants, forward: Instants, step_mark: str | None
) -> tuple[IntArray, BoolArray]:
    """Return the name of the annotation around each piece of work that is no step, or -1.

    And whether it is the one around the forward op, which is looked at first, then that around the
    launch. What autograd's own thread launches belongs to the one around the call that started it,
    if that began behind the forward op or there is none around that.
    """
    rows = _annotations_but_steps(trace, step_mark)
    own, earlier = (innermost_mark(trace, rows, one) for one in (launch, forward))
    threadless = replace(launch, known=launch.known & (own < 0))
    nodes = is_node(trace.ops) if trace.ops.num_rows else np.zeros(0, dtype=np.bool_)
    started = starting_mark(trace, rows, threadless, nodes)
    began = taken(numbers(trace.marks["start_ns"]), taken(rows, started))
    by_forward = (earlier >= 0) & ((started < 0) | (began <= forward.at_ns))
    found = np.where(by_forward, earlier, np.where(started >= 0, started, own))
    return taken(codes(trace.marks["name"]), taken(rows, found)), by_forward


def _annotations(
    trace: Trace, causes: tuple[Instants, Instants], wanted: BoolArray, step_mark: str | None
) -> tuple[IntArray, BoolArray, list[str]]:
    """Return the annotation around each cause that is wanted, no step, and their names.

    And whether it is that around the forward op.
    """
    labels = names(trace.marks["name"])
    launch, forward = (replace(one, known=one.known & wanted) for one in causes)
    name, by_forward = annotation_around(trace, launch, forward, step_mark)
    found, place = ranked(name)
    texts = [limited(labels[code]) for code in found.tolist() if code >= 0]
    return place - (len(found) - len(texts)), by_forward, texts


def _annotations_but_steps(trace: Trace, step_mark: str | None) -> IntArray:
    labels, label = names(trace.marks["name"]), codes(trace.marks["name"])
    rows = host_marks(trace, "annotation")
    used = distinct(label[rows])
    steps = [code for code in used.tolist() if is_step_label(labels[code], step_mark)]
    return rows[~np.isin(label[rows], steps)]


def module_name(label: str) -> str:
    """Return the name of an instance of a module."""
    return limited(label.removeprefix(_PREFIX))


def module_class(label: str) -> str:
    """Return the name of its class."""
    return limited(_INSTANCE.sub("", label.removeprefix(_PREFIX)[:_LONGEST]))


def limited(text: str, longest: int = _LONGEST) -> str:
    """Return at most so many characters of a text; a cut one ends in an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"

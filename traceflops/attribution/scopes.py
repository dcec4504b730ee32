"""What surrounded work on the host: the modules that launched it, else the annotation.

Instances of a module count as one (`Linear_3` is a `Linear`), so that the layers of a model do not
each have a row of their own. What a backward node launched, in no module itself, belongs to the
module of the op that it is the derivative of: of the forward ops with its sequence number the last.

When in a training step an op ran: forward, backward, recomputation, optimizer.

R1 An op below a backward node that carries a sequence number, or is inside an op that does, ran
   with gradients on: it is a forward computed again. Gradients themselves are computed with
   gradients off and have none. (Double backward, `create_graph`, looks the same.)
R2 Ghosts and duplicates are none of these: `op_kernels` sorts them out before.
R3 Products inside backward nodes that are no derivative of one product, above all those of a
   compiled graph, have no sequence numbers: shapes and strides decide, see `products`.
R4 Python frames of torch/utils/checkpoint.py confirm R1 where they were recorded.
R5 Kernels alone tell no phase; nothing is guessed from their number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from traceflops.attribution.host_events import has_fact
from traceflops.attribution.marks import (
    Instants,
    host_marks,
    innermost_mark,
    instants,
    starting_mark,
)
from traceflops.attribution.op_kernels import Attribution
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    IntArray,
    Names,
    SmallArray,
    codes,
    matching,
    names,
    numbers,
)
from traceflops.table.grouping import distinct, group_rows, joint_codes, ranked
from traceflops.table.nesting import OpTree, innermost, taken
from traceflops.table.trace import Trace
from traceflops.timeline.account import LinkedTrace
from traceflops.windows.steps import is_step_label

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
    steps = in_optimizer(trace, ops) | (tree.nearest(has_fact(ops["name"], "optimizer")) >= 0)
    phase[(with_gradients < 0) & steps] = PHASES.index("optimizer")
    phase[node | (root >= 0)] = PHASES.index("backward")
    phase[below_root] = PHASES.index("recompute")
    frames = matching(
        trace.marks["name"], lambda name: "checkpoint.py" in name and _CHECKPOINT.fullmatch(name)
    )
    if not frames.any():
        return Phases(phase, root, None, None)
    again = np.flatnonzero((phase == PHASES.index("recompute")) & attribution.has("executed"))
    confirmed = int(_inside(trace, np.flatnonzero(frames), ops)[again].sum())
    return Phases(phase, root, confirmed, len(again) - confirmed)


def is_node(ops: pa.Table) -> BoolArray:
    """Return, per op, whether it is a backward node, or the engine's call of one.

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
    """Return, per row of calls or ops, whether it starts inside a mark of an optimizer."""
    is_optimizer = has_fact(trace.marks["name"], "optimizer")
    return _inside(trace, np.flatnonzero(is_optimizer), table)


def _inside(trace: Trace, marks: IntArray, table: pa.Table) -> BoolArray:
    """Return, per row of a table, whether it starts inside one of these marks, on its thread."""
    if not len(marks) or not table.num_rows:
        return np.zeros(table.num_rows, dtype=np.bool_)
    count = len(marks)
    process, tid, start = (
        np.concatenate([numbers(trace.marks[name], ABSENT)[marks], numbers(table[name], ABSENT)])
        for name in ("process", "thread", "start_ns")
    )
    thread, end = joint_codes(process, tid), start[:count] + numbers(trace.marks["dur_ns"])[marks]
    return innermost(thread[:count], start[:count], end, thread[count:], start[count:]) >= 0


_LEVELS: Final = 3
_PREFIX: Final = "nn.Module: "
_INSTANCE: Final = re.compile(r"_\d{1,9}$")
_LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class Scopes:
    """The scope of each piece of work: a place in `texts`, -1 where none is known.

    `is_module` says, per text, whether it names modules (the innermost last) or an annotation.
    `instance` distinguishes the modules of a scope: codes of marks' names, -1 without a module.
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

    def levels(
        self, node: int, texts: Sequence[str], most: int, name_of: Callable[[str], str]
    ) -> list[str]:
        """Return the names on the path to a node (-1: none), at most so many innermost ones.

        `texts` are the names of marks. The outermost comes first.
        """
        levels: list[str] = []
        while node >= 0 and len(levels) < most:
            levels.append(name_of(texts[self.name[node]]))
            node = int(self.parent[node])
        return levels[::-1]


def launch_scopes(
    linked: LinkedTrace, call: IntArray, op: IntArray, step_mark: str | None
) -> Scopes:
    """Return the scopes of work launched by these rows of calls, or else of ops."""
    trace, forward = linked.trace, forward_ops(linked, op)
    labels = names(trace.marks["name"])
    causes = instants(trace, call, op), instants(trace, np.full_like(forward, -1), forward)
    # Paths of module classes, of the innermost levels.
    paths, by_launch = modules_around(trace, *causes)
    class_codes = Names()
    class_of = class_codes.codes(map(module_class, labels))
    levels = [paths.node]
    for _ in range(_LEVELS - 1):
        levels.append(taken(paths.parent, levels[-1]))
    kept = [taken(class_of, taken(paths.name, level)) for level in levels]
    path, first = group_rows(kept)
    classes, is_inside = list(class_codes), paths.node >= 0
    texts = [
        "/".join(classes[code] for code in reversed(codes) if code >= 0)
        for codes in np.stack(kept, axis=1)[first].tolist()
    ]
    # Without a module, the annotation.
    launch, earlier = (replace(cause, known=cause.known & ~is_inside) for cause in causes)
    name, by_forward = annotation_around(trace, launch, earlier, step_mark)
    known, rank = ranked(name)
    ranges = [limited(labels[code]) for code in known.tolist() if code >= 0]
    rank -= len(known) - len(ranges)  # -1 where there is no annotation
    return Scopes(
        np.where(is_inside, path, np.where(rank >= 0, rank + len(texts), -1)),
        [*texts, *ranges],
        [True] * len(texts) + [False] * len(ranges),
        taken(paths.name, paths.node),
        (forward >= 0) & np.where(is_inside, ~by_launch, by_forward),
    )


def forward_ops(linked: LinkedTrace, op: IntArray) -> IntArray:
    """Return, per op, the forward op of the backward node around it, -1 where there is none."""
    ops = linked.trace.ops
    sequence = numbers(ops["sequence"], ABSENT)
    numbered = sequence != ABSENT
    nodes = is_node(ops) & numbered if ops.num_rows else numbered
    # Sequence numbers of several forward threads cannot be distinguished.
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
    columns = tree.order, tree.parent[tree.order], name[tree.order]
    for row, parent, label in zip(*(column.tolist() for column in columns), strict=True):
        node[row] = nodes.setdefault((node[parent], label), len(nodes))
    around = np.array(node, dtype=np.int64)[innermost_mark(trace, rows, causes)]
    return ModulePaths(around, *np.array([*nodes], dtype=np.int64).reshape(-1, 2).T)


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


def annotation_around(
    trace: Trace, launch: Instants, forward: Instants, step_mark: str | None
) -> tuple[IntArray, BoolArray]:
    """Return the name of the annotation around each piece of work that is no step, or -1.

    Also whether it is the one around the forward op, which is looked at first, then that around the
    launch. What autograd's own thread launches belongs to the one around the call that started it,
    if that began after the forward op or there is none around that.
    """
    labels, label = names(trace.marks["name"]), codes(trace.marks["name"])
    rows = host_marks(trace, "annotation")
    used = distinct(label[rows]).tolist()
    steps = [code for code in used if is_step_label(labels[code], step_mark)]
    rows = rows[~np.isin(label[rows], steps)]
    own, earlier = (innermost_mark(trace, rows, cause) for cause in (launch, forward))
    unmarked = replace(launch, known=launch.known & (own < 0))
    nodes = is_node(trace.ops) if trace.ops.num_rows else np.zeros(0, dtype=np.bool_)
    started = starting_mark(trace, rows, unmarked, nodes)
    began = taken(numbers(trace.marks["start_ns"]), taken(rows, started))
    by_forward = (earlier >= 0) & ((started < 0) | (began <= forward.at_ns))
    mark = np.where(by_forward, earlier, np.where(started >= 0, started, own))
    return taken(label, taken(rows, mark)), by_forward


def module_name(label: str) -> str:
    """Return the name of an instance of a module."""
    return limited(label.removeprefix(_PREFIX))


def module_class(label: str) -> str:
    """Return the name of its class."""
    return limited(_INSTANCE.sub("", label.removeprefix(_PREFIX)[:_LONGEST]))


def limited(text: str, longest: int = _LONGEST) -> str:
    """Return at most so many characters of a text; a cut one ends in an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"

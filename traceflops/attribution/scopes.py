"""What surrounded work on the host: the modules that launched it, else the annotation.

Instances of a module count as one (`Linear_3` is a `Linear`), so that the layers of a model share a
row. Work that a backward node launched outside of modules belongs to the module of its forward op:
the last forward op with the node's sequence number.

Also the phase of a training step in which each op ran: forward, backward, recompute, optimizer.

R1 An op inside a backward node that has a sequence number, or is inside such an op, ran with
   gradients on: it is a forward op computed again. Gradients themselves are computed with gradients
   off and have no sequence number. (Double backward, `create_graph`, looks like a recomputation.)
R2 Ghosts and duplicates are excluded before, by `op_kernels`.
R3 Products inside backward nodes that are not the derivative of one product, mostly those of a
   compiled graph, have no sequence numbers: shapes and strides decide, see `products`.
R4 Python frames of torch/utils/checkpoint.py confirm R1 if they were recorded.
R5 Kernels alone tell no phase; nothing is guessed from their number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.host_events import has_fact
from traceflops.attribution.marks import (
    Instants,
    host_marks,
    innermost_mark,
    instants,
    starting_mark,
)
from traceflops.attribution.op_kernels import Attribution
from traceflops.table.arrays import ABSENT, BoolArray, IntArray, SmallArray
from traceflops.table.columns import (
    Names,
    codes,
    matching,
    names,
    narrow,
    numbers,
    span_columns,
    thread_columns,
)
from traceflops.table.grouping import distinct, group_rows, joint_codes, ranked, shared_codes
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
"""Backward nodes of the library, and of functions in Python, TorchScript and C++."""
_CHECKPOINT: Final = re.compile(
    r".{0,1000}torch/utils/checkpoint\.py\([0-9]{1,9}\): (?:recompute_fn|unpack_hook|backward)"
)


class Phases(Struct, frozen=True):
    """The phase of each op, an index into PHASES, and the evidence.

    `root` is, per op, the row of the innermost backward node around it, -1 for none. `confirmed`
    counts the recomputed ops inside a frame of the checkpoint module, `unconfirmed` the others;
    both are None if no such frame was recorded.
    """

    phase: SmallArray
    root: IntArray
    confirmed: int | None
    unconfirmed: int | None

    def is_in(self, phase: Phase) -> BoolArray:
        """Return, per op, whether it ran in this phase."""
        return np.asarray(self.phase == PHASES.index(phase))


def phases(trace: Trace, attribution: Attribution) -> Phases:
    """Return the phase of each op of a trace, by R1 and the marks of optimizers."""
    ops, tree = trace.ops, attribution.tree
    node = is_node(ops)
    root = narrow(tree.around(node))
    with_gradients = tree.nearest((numbers(ops["sequence"], ABSENT) != ABSENT) & ~node)
    has_both = (with_gradients >= 0) & (root >= 0)
    # Both are around the op, so the one that comes later in the tree is inside the other (R1).
    is_recomputed = has_both & (taken(tree.place, with_gradients) > taken(tree.place, root))
    # Later lines replace earlier ones: recompute, else backward, else optimizer, else forward.
    phase = np.full(ops.num_rows, PHASES.index("forward"), dtype=np.int8)
    optimizes = in_optimizer(trace, ops) | (tree.nearest(has_fact(ops["name"], "optimizer")) >= 0)
    phase[(with_gradients < 0) & optimizes] = PHASES.index("optimizer")
    phase[node | (root >= 0)] = PHASES.index("backward")
    phase[is_recomputed] = PHASES.index("recompute")
    is_checkpoint = matching(
        trace.marks["name"], lambda name: "checkpoint.py" in name and _CHECKPOINT.fullmatch(name)
    )
    if not is_checkpoint.any():
        return Phases(phase, root, None, None)
    recomputed = np.flatnonzero((phase == PHASES.index("recompute")) & attribution.has("executed"))
    confirmed = int(_inside(trace, is_checkpoint, ops)[recomputed].sum())
    return Phases(phase, root, confirmed, len(recomputed) - confirmed)


def is_node(ops: pa.Table) -> BoolArray:
    """Return, per op, whether it is a backward node, or the autograd engine's call of one.

    All that the engine calls are nodes; names also decide, as older profilers record only nodes.
    """
    labels = names(ops["name"])
    called = {label.removeprefix(EVALUATE) for label in labels if label.startswith(EVALUATE)}
    return matching(
        ops["name"],
        lambda name: name.startswith(EVALUATE) or name in called or _NODE.fullmatch(name),
    )


def in_optimizer(trace: Trace, table: pa.Table) -> BoolArray:
    """Return, per row of calls or ops, whether it starts inside a mark of an optimizer."""
    return _inside(trace, has_fact(trace.marks["name"], "optimizer"), table)


def _inside(trace: Trace, is_wanted: BoolArray, table: pa.Table) -> BoolArray:
    """Return, per row of a table, whether it starts inside a wanted mark, on its thread."""
    marks = np.flatnonzero(is_wanted)
    if not len(marks) or not table.num_rows:
        return np.zeros(table.num_rows, dtype=np.bool_)
    thread_of_mark, thread = shared_codes(thread_columns(trace.marks, marks), thread_columns(table))
    spans, at_ns = span_columns(trace.marks, marks), numbers(table["start_ns"])
    return innermost(thread_of_mark, *spans, thread, at_ns) >= 0


_LEVELS: Final = 3
_PREFIX: Final = "nn.Module: "
_INSTANCE: Final = re.compile(r"_\d{1,9}$")
_LONGEST: Final = 300


class Scopes(Struct, frozen=True):
    """The scope of each launch: an index into `texts`, -1 if unknown.

    `is_module` is, per text, True if it names modules (the innermost last), False for an
    annotation. `instance` is, per launch, the code of the innermost module's mark, -1 without a
    module. `backward` marks launches that got the scope of their forward op.
    """

    scope: IntArray
    texts: list[str]
    is_module: list[bool]
    instance: IntArray
    backward: BoolArray


class ModulePaths(Struct, frozen=True):
    """A forest of modules with a node per instance and parent node; parents come first.

    `node` is, per instant, the innermost module around it, -1 for none. Per node, `parent` is its
    parent or -1, and `name` a code of the names of marks.
    """

    node: IntArray
    parent: IntArray
    name: IntArray

    def levels(
        self, node: int, texts: Sequence[str], most: int, name_of: Callable[[str], str]
    ) -> list[str]:
        """Return the last `most` names on the path to a node (-1: none), the outermost first."""
        levels: list[str] = []
        while node >= 0 and len(levels) < most:
            levels.append(name_of(texts[self.name[node]]))
            node = int(self.parent[node])
        return levels[::-1]


def launch_scopes(
    linked: LinkedTrace, call: IntArray, op: IntArray, step_mark: str | None
) -> Scopes:
    """Return the scope of each launch, given as rows of calls and ops (-1: unknown)."""
    trace, forward = linked.trace, forward_ops(linked, op)
    labels = names(trace.marks["name"])
    causes = instants(trace, call, op), instants(trace, np.full_like(forward, -1), forward)
    # The scope is the path of the classes of the _LEVELS innermost modules.
    paths, by_launch = modules_around(trace, *causes)
    class_codes = Names()
    class_of = class_codes.codes(map(module_class, labels))
    levels = [paths.node]  # the innermost first
    for _ in range(_LEVELS - 1):
        levels.append(taken(paths.parent, levels[-1]))
    classes_of_level = [taken(class_of, taken(paths.name, level)) for level in levels]
    path, first = group_rows(classes_of_level)
    classes, is_inside = list(class_codes), paths.node >= 0
    texts = [
        "/".join(classes[code] for code in reversed(codes) if code >= 0)
        for codes in np.stack(classes_of_level, axis=1)[first].tolist()
    ]
    # Without a module, it is the annotation. Texts of annotations follow those of modules.
    # name [-1 7 4 7]  ->  used [-1 4 7], range_code [0 2 1 2], less one for the -1: [-1 1 0 1]
    of_launch, of_forward = (replace(cause, known=cause.known & ~is_inside) for cause in causes)
    name, by_forward = annotation_around(trace, of_launch, of_forward, step_mark)
    used, range_code = ranked(name)
    annotations = [limited(labels[code]) for code in used.tolist() if code >= 0]
    range_code -= len(used) - len(annotations)
    code_of_annotation = np.where(range_code >= 0, range_code + len(texts), -1)
    return Scopes(
        scope=np.where(is_inside, path, code_of_annotation),
        texts=[*texts, *annotations],
        is_module=[True] * len(texts) + [False] * len(annotations),
        instance=taken(paths.name, paths.node),
        backward=(forward >= 0) & np.where(is_inside, ~by_launch, by_forward),
    )


def forward_ops(linked: LinkedTrace, op: IntArray) -> IntArray:
    """Return, per row in `op`, the forward op of the backward node around this op, or -1."""
    if "forward_ops" not in linked.derived:
        linked.derived["forward_ops"] = narrow(_forward_of_ops(linked))
    return taken(linked.derived["forward_ops"], op).astype(np.int64)


def _forward_of_ops(linked: LinkedTrace) -> IntArray:
    """Return `forward_ops` of every op, without values if none has a forward op."""
    ops = linked.trace.ops
    sequence = numbers(ops["sequence"], ABSENT)
    numbered = sequence != ABSENT
    nodes = is_node(ops) & numbered if ops.num_rows else numbered
    # Threads number their ops independently, so several forward threads are ambiguous.
    threads = distinct(numbers(ops["forward_thread"])[nodes])
    if not nodes.any() or len(threads) > 1:
        return np.empty(0, dtype=np.int64)
    keys = joint_codes(numbers(ops["process"]), sequence)
    keys -= int(keys.min())
    # The last op of each process and sequence number: assigned by start, the last one stays.
    rows = np.flatnonzero(numbered & ~nodes)
    rows = rows[np.argsort(numbers(ops["start_ns"])[rows], kind="stable")]
    last_of_key = np.full(int(keys.max()) + 1, -1, dtype=np.int64)
    last_of_key[keys[rows]] = rows
    return taken(last_of_key, taken(keys, linked.op_tree.nearest(nodes)))


def module_paths(trace: Trace, causes: Instants, rows: IntArray | None = None) -> ModulePaths:
    """Return the modules around instants, or if given, the marks in `rows` instead of modules."""
    marks, rows = trace.marks, host_marks(trace, "module") if rows is None else rows
    name, thread = codes(marks["name"])[rows], joint_codes(*thread_columns(marks, rows))
    tree = OpTree.nested(thread, *span_columns(marks, rows))
    nodes: dict[tuple[int, int], int] = {}  # (parent, name) -> node
    node = [-1] * (len(rows) + 1)  # per mark; the last element is for no mark, -1
    columns = tree.order, tree.parent[tree.order], name[tree.order]
    for row, parent, label in zip(*(column.tolist() for column in columns), strict=True):
        node[row] = nodes.setdefault((node[parent], label), len(nodes))  # parents come first
    around = np.array(node, dtype=np.int64)[innermost_mark(trace, rows, causes)]
    return ModulePaths(around, *np.array([*nodes], dtype=np.int64).reshape(-1, 2).T)


def modules_around(
    trace: Trace, launch: Instants, forward: Instants
) -> tuple[ModulePaths, BoolArray]:
    """Return the modules around launches, else around forward ops, and whether a launch had any.

    The launch comes first, since recomputation inside a backward node has modules of its own.
    """
    paths = module_paths(trace, Instants.joined((launch, forward)))
    by_launch, by_forward = np.split(paths.node, 2)
    node = np.where(by_launch >= 0, by_launch, by_forward)
    return replace(paths, node=node), by_launch >= 0


def annotation_around(
    trace: Trace, launch: Instants, forward: Instants, step_mark: str | None
) -> tuple[IntArray, BoolArray]:
    """Return, per launch, the name code of its annotation (-1: none), and if it is the forward's.

    Annotations of steps do not count. The first of these that there is:
    1. On autograd's own thread: the annotation around the call that started the backward pass, if
       it began after the forward op, or if the forward op has no annotation.
    2. The annotation around the forward op.
    3. The annotation around the launch.
    """
    labels, label = names(trace.marks["name"]), codes(trace.marks["name"])
    rows = host_marks(trace, "annotation")
    used_codes = distinct(label[rows]).tolist()
    step_codes = [code for code in used_codes if is_step_label(labels[code], step_mark)]
    rows = rows[~np.isin(label[rows], step_codes)]
    own_mark, forward_mark = (innermost_mark(trace, rows, cause) for cause in (launch, forward))
    unmarked = replace(launch, known=launch.known & (own_mark < 0))
    nodes = is_node(trace.ops) if trace.ops.num_rows else np.zeros(0, dtype=np.bool_)
    starter_mark = starting_mark(trace, rows, unmarked, nodes)
    began = taken(numbers(trace.marks["start_ns"]), taken(rows, starter_mark))
    is_after_forward = (forward_mark < 0) | (began > forward.at_ns)
    by_starter = (starter_mark >= 0) & is_after_forward
    by_forward = (forward_mark >= 0) & ~by_starter
    mark = np.select([by_starter, by_forward], [starter_mark, forward_mark], own_mark)
    return taken(label, taken(rows, mark)), by_forward


def module_name(label: str) -> str:
    """Return the name of a module instance from the label of its mark."""
    return limited(label.removeprefix(_PREFIX))


def module_class(label: str) -> str:
    """Return the class name of a module from the label of its mark."""
    return limited(_INSTANCE.sub("", label.removeprefix(_PREFIX)[:_LONGEST]))


def limited(text: str, longest: int = _LONGEST) -> str:
    """Return at most `longest` characters of a text; a cut text ends in an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"

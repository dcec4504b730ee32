"""When in a training step an op ran: forward, backward, recomputation, optimizer.

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
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from traceflops.attribution.host_names import told
from traceflops.attribution.op_kernels import Attribution
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    SmallArray,
    Trace,
    innermost,
    joint_codes,
    matching,
    names,
    numbers,
    taken,
)

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

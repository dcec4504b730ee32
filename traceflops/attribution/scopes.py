"""What surrounded work on the host: the modules that launched it, else the annotation.

Instances of a module count as one (`Linear_3` is a `Linear`), so that the layers of a model do not
each have a row of their own. What a backward node launched belongs to the module of the op that
it is the derivative of: of the forward ops with its sequence number the last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceflops.attribution.training_phases import is_node
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Names,
    OpTree,
    Trace,
    codes,
    distinct,
    group_rows,
    innermost,
    is_one_of,
    joint_codes,
    names,
    numbers,
    ranked,
    taken,
)
from traceflops.timeline import LinkedTrace
from traceflops.windows import is_step_label

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
class Instants:
    """When and where on the host work was caused; `known` says for which."""

    process: IntArray
    thread: IntArray
    at_ns: IntArray
    known: BoolArray

    @classmethod
    def joined(cls, parts: Iterable[Instants]) -> Instants:
        """Return the instants of all parts in their order."""
        rows = ((one.process, one.thread, one.at_ns, one.known) for one in parts)
        columns = zip(*rows, strict=True)
        return cls(*map(np.concatenate, columns))


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
    trace = linked.trace
    forward = forward_ops(linked, op)
    backward = forward >= 0
    causes = instants(trace, np.where(backward, -1, call), np.where(backward, forward, op))
    path, path_texts, instance = _modules(trace, causes)
    without = replace(causes, known=causes.known & (path < 0))
    around, label_texts = _annotations(trace, without, step_mark)
    scope = np.where(path >= 0, path, np.where(around >= 0, around + len(path_texts), -1))
    return Scopes(
        scope,
        [*path_texts, *label_texts],
        [True] * len(path_texts) + [False] * len(label_texts),
        instance,
        backward & (scope >= 0),
    )


def instants(trace: Trace, call: IntArray, op: IntArray) -> Instants:
    """Return the starts of these rows of calls, or else of ops; -1 is none."""

    def of(column: str) -> IntArray:
        by_op = taken(numbers(trace.ops[column], ABSENT), op, ABSENT)
        return np.where(call >= 0, taken(numbers(trace.calls[column], ABSENT), call, ABSENT), by_op)

    thread = of("thread")
    known = ((call >= 0) | (op >= 0)) & (thread != ABSENT)
    return Instants(of("process"), thread, of("start_ns"), known)


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


def module_paths(trace: Trace, causes: Instants) -> ModulePaths:
    """Return the modules around instants."""
    marks, rows = trace.marks, host_marks(trace, "module")
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


def _modules(trace: Trace, causes: Instants) -> tuple[IntArray, list[str], IntArray]:
    """Return the path of modules around each instant, the paths, and the innermost's name."""
    paths = module_paths(trace, causes)
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


def _annotations(
    trace: Trace, causes: Instants, step_mark: str | None
) -> tuple[IntArray, list[str]]:
    """Return the innermost annotation around each instant that is no step, and their names."""
    labels = names(trace.marks["name"])
    found, place = ranked(innermost_annotation(trace, causes, step_mark))
    texts = [limited(labels[code]) for code in found.tolist() if code >= 0]
    return place - (len(found) - len(texts)), texts


def innermost_annotation(trace: Trace, causes: Instants, step_mark: str | None) -> IntArray:
    """Return the name of the innermost annotation around each instant that is no step, or -1."""
    labels, label = names(trace.marks["name"]), codes(trace.marks["name"])
    rows = host_marks(trace, "annotation")
    used = distinct(label[rows])
    steps = [code for code in used.tolist() if is_step_label(labels[code], step_mark)]
    rows = rows[~np.isin(label[rows], steps)]
    return taken(label[rows], innermost_mark(trace, rows, causes))


def host_marks(trace: Trace, *kinds: str) -> IntArray:
    """Return the rows of the marks of some kinds that have a length and a thread."""
    marks = trace.marks
    wanted = is_one_of(marks["kind"], *kinds)
    wanted &= (numbers(marks["dur_ns"]) > 0) & (numbers(marks["thread"], ABSENT) != ABSENT)
    return np.flatnonzero(wanted)


def innermost_mark(trace: Trace, rows: IntArray, causes: Instants) -> IntArray:
    """Return, per instant, the place in `rows` of the innermost mark around it, or -1."""
    marks, asked = trace.marks, np.flatnonzero(causes.known)
    at, start = np.sort(causes.at_ns[asked]), numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    holds = np.flatnonzero(np.searchsorted(at, start) < np.searchsorted(at, end))
    mine, count = rows[holds], len(holds)
    thread = joint_codes(
        np.concatenate([numbers(marks["process"])[mine], causes.process[asked]]),
        np.concatenate([numbers(marks["thread"], ABSENT)[mine], causes.thread[asked]]),
    )
    inner = np.full(len(causes.known), -1, dtype=np.int64)
    if count:
        found = innermost(
            thread[:count], start[holds], end[holds], thread[count:], causes.at_ns[asked]
        )
        inner[asked] = taken(holds, found)
    return inner


def module_name(label: str) -> str:
    """Return the name of an instance of a module."""
    return limited(label.removeprefix(_PREFIX))


def module_class(label: str) -> str:
    """Return the name of its class."""
    return limited(_INSTANCE.sub("", label.removeprefix(_PREFIX)[:_LONGEST]))


def limited(text: str, longest: int = _LONGEST) -> str:
    """Return at most so many characters of a text; a cut one ends in an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"

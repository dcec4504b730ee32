"""What surrounded work on the host: the modules that launched it, else the annotation.

Instances of a module count as one (`Linear_3` is a `Linear`), so that the layers of a model do not
each have a row of their own. What a backward node launched belongs to the module of the op that
it is the derivative of: of the forward ops with its sequence number the last one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceflops.attribution.training_phases import is_node
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Names,
    Trace,
    codes,
    distinct,
    group_rows,
    innermost,
    is_one_of,
    joint_codes,
    names,
    numbers,
    parents,
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
class _Instants:
    """When and where on the host work was caused; `known` says for which."""

    process: IntArray
    thread: IntArray
    at_ns: IntArray
    known: BoolArray


def scopes(linked: LinkedTrace, call: IntArray, op: IntArray, step_mark: str | None) -> Scopes:
    """Return the scopes of work launched by these rows of calls, or else of ops."""
    trace = linked.trace
    forward = _forward_ops(linked, op)
    backward = forward >= 0
    causes = _instants(trace, np.where(backward, -1, call), np.where(backward, forward, op))
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


def _instants(trace: Trace, call: IntArray, op: IntArray) -> _Instants:
    def of(column: str) -> IntArray:
        by_op = taken(numbers(trace.ops[column], ABSENT), op, ABSENT)
        return np.where(call >= 0, taken(numbers(trace.calls[column], ABSENT), call, ABSENT), by_op)

    thread = of("thread")
    known = ((call >= 0) | (op >= 0)) & (thread != ABSENT)
    return _Instants(of("process"), thread, of("start_ns"), known)


def _forward_ops(linked: LinkedTrace, op: IntArray) -> IntArray:
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


def _modules(trace: Trace, causes: _Instants) -> tuple[IntArray, list[str], IntArray]:
    """Return the path of modules around each instant, the paths, and the innermost's name."""
    marks = trace.marks
    rows = _host_marks(trace, "module")
    if not len(rows):
        none = np.full(len(causes.known), -1, dtype=np.int64)
        return none, [], none
    place, label = Names(), codes(marks["name"])[rows]
    kind = place.codes(map(_module_class, names(marks["name"])))[label]
    inner, thread, start, end = _around(trace, rows, causes)
    above = parents(thread, start, end)
    levels = [inner]
    for _ in range(_LEVELS - 1):
        levels.append(taken(above, levels[-1]))
    kept = [taken(kind, level) for level in levels]
    path, first = group_rows(kept)
    classes = list(place)
    texts = [
        "/".join(classes[code] for code in reversed(one) if code >= 0)
        for one in np.stack(kept, axis=1)[first].tolist()
    ]
    return np.where(inner >= 0, path, -1), texts, taken(label, inner)


def _annotations(
    trace: Trace, causes: _Instants, step_mark: str | None
) -> tuple[IntArray, list[str]]:
    """Return the innermost annotation around each instant that is no step, and their names."""
    labels = names(trace.marks["name"])
    rows = _host_marks(trace, "annotation")
    label = codes(trace.marks["name"])
    used = distinct(label[rows])
    steps = [code for code in used.tolist() if is_step_label(labels[code], step_mark)]
    rows = rows[~np.isin(label[rows], steps)]
    inner = _around(trace, rows, causes)[0]
    found, place = ranked(taken(label[rows], inner))
    texts = [limited(labels[code]) for code in found.tolist() if code >= 0]
    return place - (len(found) - len(texts)), texts


def _host_marks(trace: Trace, kind: str) -> IntArray:
    """Return the rows of the marks of a kind that have a length and a thread."""
    marks = trace.marks
    wanted = is_one_of(marks["kind"], kind)
    wanted &= (numbers(marks["dur_ns"]) > 0) & (numbers(marks["thread"], ABSENT) != ABSENT)
    return np.flatnonzero(wanted)


def _around(
    trace: Trace, rows: IntArray, causes: _Instants
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return, per instant, the place in `rows` of the mark around it; and the marks' own times."""
    marks, count = trace.marks, len(rows)
    thread = joint_codes(
        np.concatenate([numbers(marks["process"])[rows], causes.process]),
        np.concatenate([numbers(marks["thread"], ABSENT)[rows], causes.thread]),
    )
    start = numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    inner = np.full(len(causes.known), -1, dtype=np.int64)
    asked = np.flatnonzero(causes.known)
    if count and len(asked):
        at = thread[count:][asked]
        inner[asked] = innermost(thread[:count], start, end, at, causes.at_ns[asked])
    return inner, thread[:count], start, end


def _module_class(label: str) -> str:
    return limited(_INSTANCE.sub("", label.removeprefix(_PREFIX)[:_LONGEST]))


def limited(text: str, longest: int = _LONGEST) -> str:
    """Return at most so many characters of a text; a cut one ends in an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"

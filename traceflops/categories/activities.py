"""The category of each activity: facts in its record count more than its name."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.categories.classify import Classifier
from traceflops.categories.programs import names_kernels
from traceflops.categories.rules import Category
from traceflops.table.arrays import BoolArray, IntArray
from traceflops.table.columns import Names, codes, is_one_of, matching, names, numbers
from traceflops.table.grouping import group_sums, groups
from traceflops.table.links import Links
from traceflops.table.nesting import OpTree
from traceflops.table.trace import Trace

COLLECTIVE_OP = "record_param_comms"
_KIND_CATEGORIES = {
    "memcpy": Category("memory", "copy"),
    "memset": Category("memory", "memset"),
    "graph": Category("graph", "graph"),
}
_OTHER = Category("other", "other")
_DISPATCH = Category("other", "dispatch")
_WORKS = ("compute", "memory")
_OPERATOR = re.compile("aten::")
_DISPATCH_NS = 25_000
"""An operator that itself usually takes longer does work of its own beside what it calls."""
_BY_DIRECTION = (
    (re.compile("PtoP"), Category("communication", "point_to_point"), "peer-copy"),
    (re.compile("migration"), Category("memory", "migration"), "migration"),
)
"""Special copies: the beginning of their direction, their category, and the rule's name."""
_MOST_NAMES = 100_000
"""The most distinct names that are classified, those with the most time: this takes seconds."""
_TOO_MANY_NAMES = "too-many-names"
"""The rule of activities whose name was not classified: their category is other."""
_SUBS = ("collective", "point_to_point")
"""The subcategories of communication, both of which metadata can tell."""
_POINT_TO_POINT = ("send", "recv", "isend", "irecv", "sendrecv")


class Categorised(Struct, frozen=True):
    """Per activity the codes of its category and of the rule that decided it."""

    category: IntArray
    categories: tuple[Category, ...]
    rule: IntArray
    rules: tuple[str, ...]
    names_left: int = 0
    """The number of names beyond _MOST_NAMES; their activities are `other`."""
    time_left_ns: int = 0

    def top(self) -> list[str]:
        """Return the top category by code."""
        return [category.top for category in self.categories]


class _Decisions:
    """The categories and rules of activities as codes, numbered in order of appearance."""

    def __init__(self, rows: int) -> None:
        self.category, self.rule = np.zeros((2, rows), dtype=np.int64)
        self.categories: dict[Category, int] = {}
        self.rules = Names()

    def code(self, category: Category, rule: str) -> tuple[int, int]:
        """Return the codes of a category and a rule; new ones get the next numbers."""
        number = self.categories.setdefault(category, len(self.categories))
        return number, self.rules[rule]

    def decide(self, rows: IntArray | BoolArray, category: Category, rule: str) -> None:
        """Set the category and the rule of some rows of activities."""
        self.category[rows], self.rule[rows] = self.code(category, rule)


def categorise(trace: Trace, links: Links, classifier: Classifier) -> Categorised:
    """Return the category of every activity, and the rule that decided it.

    Decisions go from weak to strong evidence, and a later one replaces an earlier one:

    1. the name (single words of it count only if it names a library's kernels, see `by_words`);
       for an operator on a CPU also whether operators that it calls do the work;
    2. the kind of record: copy, fill, graph;
    3. the direction of a copy: peer to peer, or a migration of unified memory;
    4. metadata of a collective, of the kernel or of the op that launched it.
    """
    activities = trace.activities
    decisions = _Decisions(activities.num_rows)
    by_words = names_kernels(trace)
    classifier = classifier.knowing(trace.source.rules, by_words=by_words)
    names_skipped = _decide_by_name(activities, decisions, classifier)
    _decide_wrappers(trace, decisions)
    kind = codes(activities["kind"])
    for code, label in enumerate(names(activities["kind"])):
        if label in _KIND_CATEGORIES:
            decisions.decide(kind == code, _KIND_CATEGORIES[label], f"kind-{label}")
    for sign, category, rule in _BY_DIRECTION:
        copies = matching(activities["direction"], sign.match)
        if copies.any():
            decisions.decide(copies, category, rule)
    _decide_by_metadata(trace, links, decisions)
    is_skipped = decisions.rule == decisions.rules.get(_TOO_MANY_NAMES, -1)
    skipped_ns = int(numbers(activities["dur_ns"])[is_skipped].sum())
    categories, rules = tuple(decisions.categories), tuple(decisions.rules)
    return Categorised(
        decisions.category, categories, decisions.rule, rules, names_skipped, skipped_ns
    )


def _decide_by_name(activities: pa.Table, decisions: _Decisions, classifier: Classifier) -> int:
    """Decide the category of each activity by its name; return the number of names left out."""
    name, labels = codes(activities["name"]), names(activities["name"])
    is_skipped = np.zeros(len(labels), dtype=np.bool_)
    if len(labels) > _MOST_NAMES:
        time_ns = np.bincount(name, weights=numbers(activities["dur_ns"]), minlength=len(labels))
        is_skipped[np.argsort(-time_ns, kind="stable")[_MOST_NAMES:]] = True
    is_op = is_one_of(activities["kind"], "op")
    for rows, classify in ((~is_op, classifier.kernel), (is_op, classifier.op)):
        category_of, rule_of = np.zeros((2, len(labels)), dtype=np.int64)  # by code of a name
        is_used = np.zeros(len(labels), dtype=np.bool_)
        is_used[name[rows]] = True
        if (is_used & is_skipped).any():
            category_of[is_skipped], rule_of[is_skipped] = decisions.code(_OTHER, _TOO_MANY_NAMES)
        for code in np.flatnonzero(is_used & ~is_skipped).tolist():
            decision = classify(labels[code])
            category_of[code], rule_of[code] = decisions.code(decision.category, decision.rule)
        decisions.category[rows] = category_of[name[rows]]
        decisions.rule[rows] = rule_of[name[rows]]
    return int(is_skipped.sum())


def _decide_wrappers(trace: Trace, decisions: _Decisions) -> None:
    """Decide that an operator on a CPU which calls operators of its own category only dispatches.

    `aten::linear` calls `aten::addmm`, so its own time is no time of a product. But `aten::cat`,
    which calls `aten::narrow`, copies: the calls of its name themselves take too long to dispatch.
    Nodes of the backward pass and products may be long, too, because they free memory.
    """
    rows = np.flatnonzero(is_one_of(trace.activities["kind"], "op"))
    if not len(rows):
        return
    # Activities that are operators have -1 - row of the operator as their correlation.
    op = -1 - numbers(trace.activities["correlation"])[rows]
    is_work = np.array([kind.top in _WORKS for kind in decisions.categories], dtype=np.bool_)
    category = decisions.category[rows]
    category_of_op = np.full(trace.ops.num_rows, -1, dtype=np.int64)
    category_of_op[op] = np.where(is_work[category], category, -1)
    is_wrapper = OpTree.of(trace.ops).repeated_below(category_of_op)
    own_ns = group_sums(op, numbers(trace.activities["dur_ns"])[rows], len(is_wrapper))
    is_memory = np.array([*(kind.top == "memory" for kind in decisions.categories), False])
    may_work = is_memory[category_of_op] & matching(trace.ops["name"], _OPERATOR.match)
    wrappers = np.flatnonzero(is_wrapper & may_work)
    for _, calls in groups(codes(trace.ops["name"])[wrappers]):
        is_wrapper[wrappers[calls]] = np.median(own_ns[wrappers[calls]]) <= _DISPATCH_NS
    decisions.decide(rows[is_wrapper[op]], _DISPATCH, "wrapper")


def _decide_by_metadata(trace: Trace, links: Links, decisions: _Decisions) -> None:
    """Decide which kernels communicate by the metadata of collectives.

    If a kernel communicates by its name, metadata of a collective are ignored: they may be those of
    a larger operation of which the kernel is a part. Metadata of point-to-point communication
    replace the decision by name: RCCL gives all its kernels the same name.
    """
    kernels = np.flatnonzero(is_one_of(trace.activities["kind"], "kernel"))

    def subs(table: pa.Table, rows: IntArray) -> IntArray:
        """Return, per row, the index into _SUBS of its collective, -1 for none."""
        of_text = [text.lower() in _POINT_TO_POINT for text in names(table["collective"])]
        return np.array([*of_text, -1], dtype=np.int64)[codes(table["collective"])[rows]]

    # The kernel's own metadata come before those of the op that launched it.
    ops, op = trace.ops, links.op_of_activity[kernels]
    of_launch = np.full(len(kernels), -1, dtype=np.int64)
    if ops.num_rows:
        launched = (op >= 0) & is_one_of(ops["name"], COLLECTIVE_OP)[op]
        of_launch[launched] = np.maximum(subs(ops, op[launched]), 0)  # unnamed: collective
    own = subs(trace.activities, kernels)
    sub_of = np.where(own >= 0, own, of_launch)
    tops = [category.top for category in decisions.categories]
    is_communication = np.array([top == "communication" for top in tops], dtype=np.bool_)
    by_name = is_communication[decisions.category[kernels]]
    for number, sub in enumerate(_SUBS):
        rows = kernels[(sub_of == number) & (~by_name | (sub == "point_to_point"))]
        if len(rows):
            decisions.decide(rows, Category("communication", sub), "collective-metadata")

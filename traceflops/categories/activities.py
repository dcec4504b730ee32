"""What each activity is: what the record itself knows beats what its name says."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceflops.categories.classify import Classifier
from traceflops.categories.rules import Category
from traceflops.table.columns import (
    BoolArray,
    IntArray,
    Names,
    codes,
    is_one_of,
    matching,
    names,
    numbers,
)
from traceflops.table.nesting import Links
from traceflops.table.trace import Trace

COLLECTIVE_OP = "record_param_comms"
_KIND_CATEGORIES = {
    "memcpy": Category("memory", "copy"),
    "memset": Category("memory", "memset"),
    "graph": Category("graph", "graph"),
}
_OTHER = Category("other", "other")
_BY_DIRECTION = (
    (re.compile("PtoP"), Category("communication", "point_to_point"), "peer-copy"),
    (re.compile("migration"), Category("memory", "migration"), "migration"),
)
"""Beginnings of directions whose copies are no plain ones: the category, and the rule's name."""
_MOST_NAMES = 100_000
"""Distinct names that are looked at: some seconds. Those with most time come first."""
_LEFT = "too-many-names"
_SUBS = ("collective", "point_to_point")
_POINT_TO_POINT = ("send", "recv", "isend", "irecv", "sendrecv")


@dataclass(frozen=True, slots=True)
class Categorised:
    """The category of each activity, as codes, and the rule that decided.

    `category[i]` is a place in `categories`, `rule[i]` one in `rules`.
    """

    category: IntArray
    categories: tuple[Category, ...]
    rule: IntArray
    rules: tuple[str, ...]
    names_left: int = 0
    """Names that were too many to be looked at; their activities are `other`."""
    time_left_ns: int = 0

    def top(self) -> list[str]:
        """Return the top category of each place in `categories`."""
        return [category.top for category in self.categories]


class _Decisions:
    """The categories and rules of activities; both are numbered as they come up."""

    def __init__(self, rows: int) -> None:
        self.category, self.rule = np.zeros((2, rows), dtype=np.int64)
        self.categories: dict[Category, int] = {}
        self.rules = Names()

    def code(self, category: Category, rule: str) -> tuple[int, int]:
        number = self.categories.setdefault(category, len(self.categories))
        return number, self.rules[rule]

    def decide(self, rows: IntArray | BoolArray, category: Category, rule: str) -> None:
        self.category[rows], self.rule[rows] = self.code(category, rule)


def categorise(trace: Trace, links: Links, classifier: Classifier) -> Categorised:
    """Return the category of every activity.

    In this order: the kind of record (copy, fill, graph), a peer-to-peer copy or a migration of
    unified memory, the framework's word that a kernel is a collective (its own metadata, or the op
    that launched it), the name.
    """
    activities = trace.activities
    decisions = _Decisions(activities.num_rows)
    kind, kinds = codes(activities["kind"]), names(activities["kind"])
    left = _decide_by_name(activities, decisions, classifier.knowing(trace.source.rules))
    for code, label in enumerate(kinds):
        if label in _KIND_CATEGORIES:
            decisions.decide(kind == code, _KIND_CATEGORIES[label], f"kind-{label}")
    for sign, category, rule in _BY_DIRECTION:
        rows = matching(activities["direction"], sign.match)
        if rows.any():
            decisions.decide(rows, category, rule)
    # A name that says communication stands, as the metadata of an exchange may only say of which
    # collective it is a part; but kernels of RCCL are named alike, whether they send or reduce.
    kernels = np.flatnonzero(is_one_of(activities["kind"], "kernel"))
    sub_of = _collective_subs(trace, links, kernels)
    tops = [category.top for category in decisions.categories]
    by_name = np.array([top == "communication" for top in tops], dtype=np.bool_)
    is_open = ~by_name[decisions.category[kernels]]
    for number, sub in enumerate(_SUBS):
        rows = kernels[(sub_of == number) & (is_open | (sub == "point_to_point"))]
        if len(rows):
            decisions.decide(rows, Category("communication", sub), "collective-metadata")
    unknown = decisions.rule == decisions.rules.get(_LEFT, -1)
    return Categorised(
        decisions.category,
        tuple(decisions.categories),
        decisions.rule,
        tuple(decisions.rules),
        left,
        int(numbers(activities["dur_ns"])[unknown].sum()),
    )


def _decide_by_name(activities: pa.Table, decisions: _Decisions, classifier: Classifier) -> int:
    """Decide what each activity is by its name; return how many names were too many to look at."""
    name, labels = codes(activities["name"]), names(activities["name"])
    left = np.zeros(len(labels), dtype=np.bool_)
    if len(labels) > _MOST_NAMES:
        time = np.bincount(name, weights=numbers(activities["dur_ns"]), minlength=len(labels))
        left[np.argsort(-time, kind="stable")[_MOST_NAMES:]] = True
    is_op = is_one_of(activities["kind"], "op")
    for rows, decide in ((~is_op, classifier.kernel), (is_op, classifier.op)):
        of_name = np.zeros((2, len(labels)), dtype=np.int64)
        used = np.zeros(len(labels), dtype=np.bool_)
        used[name[rows]] = True
        if (used & left).any():
            of_name[:, left] = np.array(decisions.code(_OTHER, _LEFT))[:, None]
        for code in np.flatnonzero(used & ~left).tolist():
            decision = decide(labels[code])
            of_name[:, code] = decisions.code(decision.category, decision.rule)
        decisions.category[rows], decisions.rule[rows] = of_name[:, name[rows]]
    return int(left.sum())


def _collective_subs(trace: Trace, links: Links, kernels: IntArray) -> IntArray:
    """Return which of _SUBS each kernel is, -1 for none: by its own record, else its launch."""

    def subs(table: pa.Table, rows: IntArray) -> IntArray:
        of_text = [text.lower() in _POINT_TO_POINT for text in names(table["collective"])]
        return np.array([*of_text, -1], dtype=np.int64)[codes(table["collective"])[rows]]

    ops, op = trace.ops, links.op_of_activity[kernels]
    of_launch = np.full(len(kernels), -1, dtype=np.int64)
    if ops.num_rows:
        launched = (op >= 0) & is_one_of(ops["name"], COLLECTIVE_OP)[op]
        of_launch[launched] = np.maximum(subs(ops, op[launched]), 0)  # unnamed: collective
    own = subs(trace.activities, kernels)
    return np.where(own >= 0, own, of_launch)

"""What each activity is: what the record itself knows beats what its name says."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceflops.categories.classify import Classifier
from traceflops.categories.rules import Category
from traceflops.table import BoolArray, IntArray, Links, Names, Trace, codes, names, numbers

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
    left, classifier = _names_left(activities), classifier.knowing(trace.source.rules)
    _decide_by_name(activities, decisions, classifier, left)
    for code, label in enumerate(kinds):
        if label in _KIND_CATEGORIES:
            decisions.decide(kind == code, _KIND_CATEGORIES[label], f"kind-{label}")
    _decide_special_copies(activities, decisions)
    _decide_collectives(trace, links, decisions, np.flatnonzero(kind == _place(kinds, "kernel")))
    rules = list(decisions.rules)
    unknown = decisions.rule == _place(rules, _LEFT)
    return Categorised(
        decisions.category,
        tuple(decisions.categories),
        decisions.rule,
        tuple(rules),
        int(left.sum()),
        int(numbers(activities["dur_ns"])[unknown].sum()),
    )


def _place(labels: list[str], label: str) -> int:
    return labels.index(label) if label in labels else -2


def _names_left(activities: pa.Table) -> BoolArray:
    """Return which names are not looked at, as others have more time and there are too many."""
    count = len(names(activities["name"]))
    left = np.zeros(count, dtype=np.bool_)
    if count > _MOST_NAMES:
        name, duration = codes(activities["name"]), numbers(activities["dur_ns"])
        time = np.bincount(name, weights=duration, minlength=count)
        left[np.argsort(-time, kind="stable")[_MOST_NAMES:]] = True
    return left


def _decide_by_name(
    activities: pa.Table, decisions: _Decisions, classifier: Classifier, left: BoolArray
) -> None:
    name, labels = codes(activities["name"]), names(activities["name"])
    is_op = codes(activities["kind"]) == _place(names(activities["kind"]), "op")
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


def _decide_special_copies(activities: pa.Table, decisions: _Decisions) -> None:
    """Make copies between devices communication, and those of unified memory migrations."""
    directions = names(activities["direction"])
    for sign, category, rule in _BY_DIRECTION:
        wanted = [place for place, direction in enumerate(directions) if sign.match(direction)]
        if wanted:
            decisions.decide(np.isin(codes(activities["direction"]), wanted), category, rule)


def _decide_collectives(
    trace: Trace, links: Links, decisions: _Decisions, kernels: IntArray
) -> None:
    """Make communication of kernels that were launched as a collective, whatever their names say.

    A name that says communication stands, as the metadata of an exchange may only say of which
    collective it is a part; but kernels of RCCL are named alike, whether they send or reduce.
    """
    sub_of = _collective_subs(trace, links, kernels)
    tops = [category.top for category in decisions.categories]
    named_so = np.array([top == "communication" for top in tops], dtype=np.bool_)
    is_open = ~named_so[decisions.category[kernels]]
    for place, sub in enumerate(_SUBS):
        rows = kernels[(sub_of == place) & (is_open | (sub == "point_to_point"))]
        if len(rows):
            decisions.decide(rows, Category("communication", sub), "collective-metadata")


def _collective_subs(trace: Trace, links: Links, kernels: IntArray) -> IntArray:
    """Return which of _SUBS each kernel is, -1 for none: by its own record, else its launch."""
    ops, op = trace.ops, links.op_of_activity[kernels]
    of_launch = np.full(len(kernels), -1, dtype=np.int64)
    if ops.num_rows:
        place = _place(names(ops["name"]), COLLECTIVE_OP)
        launched = (op >= 0) & (codes(ops["name"])[op] == place)
        of_launch[launched] = np.maximum(_named_subs(ops, op[launched]), 0)  # unnamed: collective
    own = _named_subs(trace.activities, kernels)
    return np.where(own >= 0, own, of_launch)


def _named_subs(table: pa.Table, rows: IntArray) -> IntArray:
    texts = names(table["collective"])
    subs = [text.lower() in _POINT_TO_POINT for text in texts]
    return np.array([*subs, -1], dtype=np.int64)[codes(table["collective"])[rows]]

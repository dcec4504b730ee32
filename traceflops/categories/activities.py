"""What each activity is: what the record itself knows beats what its name says."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceflops.categories.classify import Classifier
from traceflops.categories.model import Category
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


class _Register:
    """Numbers for categories and rules as they come up."""

    def __init__(self) -> None:
        self.categories: dict[Category, int] = {}
        self.rules = Names()

    def code(self, category: Category, rule: str) -> tuple[int, int]:
        number = self.categories.setdefault(category, len(self.categories))
        return number, self.rules[rule]


def categorise(trace: Trace, links: Links, classifier: Classifier) -> Categorised:
    """Return the category of every activity.

    In this order: the kind of record (copy, fill, graph), a peer-to-peer copy or a migration of
    unified memory, the framework's word that a kernel is a collective (its own metadata, or the op
    that launched it), the name.
    """
    activities = trace.activities
    register = _Register()
    name, kind = codes(activities["name"]), codes(activities["kind"])
    kinds = names(activities["kind"])
    left = _names_left(activities, name)
    category, rule = _by_name(activities, register, classifier, name, kind, kinds, left)
    for code, label in enumerate(kinds):
        if label in _KIND_CATEGORIES:
            rows = kind == code
            category[rows], rule[rows] = register.code(_KIND_CATEGORIES[label], f"kind-{label}")
    _mark_special_copies(activities, register, category, rule)
    _mark_collectives(trace, links, register, category, rule, _rows_of(kind, kinds, "kernel"))
    rules = tuple(register.rules)
    left_rows = rule == (rules.index(_LEFT) if _LEFT in rules else -1)
    return Categorised(
        category,
        tuple(register.categories),
        rule,
        rules,
        int(left.sum()),
        int(numbers(activities["dur_ns"])[left_rows].sum()),
    )


def _names_left(activities: pa.Table, name: IntArray) -> BoolArray:
    """Return which names are not looked at, as others have more time and there are too many."""
    count = len(names(activities["name"]))
    left = np.zeros(count, dtype=np.bool_)
    if count > _MOST_NAMES:
        time = np.bincount(name, weights=numbers(activities["dur_ns"]), minlength=count)
        left[np.argsort(-time, kind="stable")[_MOST_NAMES:]] = True
    return left


def _rows_of(kind: IntArray, kinds: list[str], label: str) -> IntArray:
    wanted = kinds.index(label) if label in kinds else -2
    return np.flatnonzero(kind == wanted)


def _by_name(
    activities: pa.Table,
    register: _Register,
    classifier: Classifier,
    name: IntArray,
    kind: IntArray,
    kinds: list[str],
    left: BoolArray,
) -> tuple[IntArray, IntArray]:
    labels = names(activities["name"])
    op_kind = kinds.index("op") if "op" in kinds else -2
    table = np.zeros((2, 2, len(labels)), dtype=np.int64)
    for is_op in (0, 1):
        decide = classifier.op if is_op else classifier.kernel
        used = np.zeros(len(labels), dtype=np.bool_)
        used[name[(kind == op_kind) == bool(is_op)]] = True
        if (used & left).any():
            table[is_op, :, left] = register.code(_OTHER, _LEFT)
        for code in np.flatnonzero(used & ~left).tolist():
            decision = decide(labels[code])
            table[is_op, :, code] = register.code(decision.category, decision.rule)
    chosen = (kind == op_kind).astype(np.int64)
    return table[chosen, 0, name], table[chosen, 1, name]


def _mark_special_copies(
    activities: pa.Table, register: _Register, category: IntArray, rule: IntArray
) -> None:
    """Make copies between devices communication, and those of unified memory migrations."""
    directions = names(activities["direction"])
    for sign, what, word in _BY_DIRECTION:
        wanted = [place for place, one in enumerate(directions) if sign.match(one)]
        if wanted:
            rows = np.isin(codes(activities["direction"]), wanted)
            category[rows], rule[rows] = register.code(what, word)


def _mark_collectives(
    trace: Trace,
    links: Links,
    register: _Register,
    category: IntArray,
    rule: IntArray,
    kernels: IntArray,
) -> None:
    """Make communication of kernels that were launched as a collective, whatever their names say.

    A name that says communication stands, as the metadata of an exchange may only say of which
    collective it is a part; but kernels of RCCL are named alike, whether they send or reduce.
    """
    named, labels = _collective_names(trace, links, kernels)
    subs = [_collective_sub(label) for label in labels]
    tops = [c.top for c in register.categories]
    done = np.isin(category[kernels], _places(tops, "communication"))
    for sub in dict.fromkeys(subs):
        of_sub = np.array([one == sub for one in subs], dtype=np.bool_)
        is_open = (named >= 0) & (~done | (sub == "point_to_point"))
        rows = kernels[is_open & of_sub[named]]
        category[rows], rule[rows] = register.code(
            Category("communication", sub), "collective-metadata"
        )


def _collective_sub(label: str) -> str:
    return "point_to_point" if label.lower() in _POINT_TO_POINT else "collective"


def _places(tops: list[str], top: str) -> list[int]:
    return [place for place, one in enumerate(tops) if one == top]


def _collective_names(trace: Trace, links: Links, kernels: IntArray) -> tuple[IntArray, list[str]]:
    """Return which collective each kernel is, -1 for none, and their names ("" if unnamed)."""
    activities, ops = trace.activities, trace.ops
    labels = Names()
    found = np.full(len(kernels), -1, dtype=np.int64)
    op = links.op_of_activity[kernels]
    if ops.num_rows and COLLECTIVE_OP in names(ops["name"]):
        launched = (op >= 0) & (codes(ops["name"])[op] == names(ops["name"]).index(COLLECTIVE_OP))
        found[launched] = labels[""]
        _take_names(ops, op[launched], launched, found, labels)
    own = np.ones(len(kernels), dtype=np.bool_)
    _take_names(activities, kernels, own, found, labels)
    return found, list(labels)


def _take_names(
    table: pa.Table, rows: IntArray, into: BoolArray, found: IntArray, labels: Names
) -> None:
    """Write the collective named by `rows` of a table to the places `into`, if one is named."""
    own = codes(table["collective"])[rows]
    texts = names(table["collective"])
    translate = np.array([labels[text] for text in texts] + [-1], dtype=np.int64)
    target = np.flatnonzero(into)
    named = own >= 0
    found[target[named]] = translate[own[named]]

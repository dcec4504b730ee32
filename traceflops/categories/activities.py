"""What each activity is: what the record itself knows beats what its name says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceflops.categories.classify import Classifier
from traceflops.categories.model import Category
from traceflops.columns import BoolArray, IntArray, codes, names
from traceflops.links import Links
from traceflops.rows import Names
from traceflops.trace import Trace

COLLECTIVE_OP = "record_param_comms"
_KIND_CATEGORIES = {
    "memcpy": Category("memory", "copy"),
    "memset": Category("memory", "memset"),
    "graph": Category("graph", "graph"),
}
_PEER_COPY = Category("communication", "point_to_point")
_POINT_TO_POINT = ("send", "recv", "isend", "irecv")


@dataclass(frozen=True, slots=True)
class Categorised:
    """The category of each activity, as codes, and the rule that decided.

    `category[i]` is a place in `categories`, `rule[i]` one in `rules`.
    """

    category: IntArray
    categories: tuple[Category, ...]
    rule: IntArray
    rules: tuple[str, ...]

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

    In this order: the kind of record (copy, fill, graph), a peer-to-peer copy, the framework's
    word that a kernel is a collective (its own metadata, or the op that launched it), the name.
    """
    activities = trace.activities
    register = _Register()
    name, kind = codes(activities["name"]), codes(activities["kind"])
    kinds = names(activities["kind"])
    by_name = _by_name(activities, register, classifier, name, kind, kinds)
    category, rule = by_name
    for code, label in enumerate(kinds):
        if label in _KIND_CATEGORIES:
            rows = kind == code
            category[rows], rule[rows] = register.code(_KIND_CATEGORIES[label], f"kind-{label}")
    _mark_peer_copies(activities, register, category, rule)
    _mark_collectives(trace, links, register, category, rule, _rows_of(kind, kinds, "kernel"))
    return Categorised(category, tuple(register.categories), rule, tuple(register.rules))


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
) -> tuple[IntArray, IntArray]:
    labels = names(activities["name"])
    op_kind = kinds.index("op") if "op" in kinds else -2
    table = np.zeros((2, 2, len(labels)), dtype=np.int64)
    for is_op in (0, 1):
        decide = classifier.op if is_op else classifier.kernel
        for code in np.unique(name[(kind == op_kind) == bool(is_op)]).tolist():
            decision = decide(labels[code])
            table[is_op, :, code] = register.code(decision.category, decision.rule)
    chosen = (kind == op_kind).astype(np.int64)
    return table[chosen, 0, name], table[chosen, 1, name]


def _mark_peer_copies(
    activities: pa.Table, register: _Register, category: IntArray, rule: IntArray
) -> None:
    directions = names(activities["direction"])
    if "PtoP" in directions:
        rows = codes(activities["direction"]) == directions.index("PtoP")
        category[rows], rule[rows] = register.code(_PEER_COPY, "peer-copy")


def _mark_collectives(
    trace: Trace,
    links: Links,
    register: _Register,
    category: IntArray,
    rule: IntArray,
    kernels: IntArray,
) -> None:
    """Make communication of kernels that the framework launched as a collective."""
    collective = _collective_names(trace, links, kernels)
    tops = [c.top for c in register.categories]
    for label, rows in collective.items():
        open_rows = rows[~np.isin(category[rows], _places(tops, "communication"))]
        sub = "point_to_point" if label.lower() in _POINT_TO_POINT else "collective"
        category[open_rows], rule[open_rows] = register.code(
            Category("communication", sub), "collective-metadata"
        )


def _places(tops: list[str], top: str) -> list[int]:
    return [place for place, one in enumerate(tops) if one == top]


def _collective_names(trace: Trace, links: Links, kernels: IntArray) -> dict[str, IntArray]:
    """Return the kernels that are collectives, by the collective's name ("" if unnamed)."""
    activities, ops = trace.activities, trace.ops
    labels = Names()
    found = np.full(len(kernels), -1, dtype=np.int64)
    op = links.op_of_activity[kernels]
    if COLLECTIVE_OP in names(ops["name"]):
        launched = (op >= 0) & (codes(ops["name"])[op] == names(ops["name"]).index(COLLECTIVE_OP))
        found[launched] = labels[""]
        _take_names(ops, op[launched], launched, found, labels)
    own = np.ones(len(kernels), dtype=np.bool_)
    _take_names(activities, kernels, own, found, labels)
    return {label: kernels[found == code] for label, code in labels.items()}


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

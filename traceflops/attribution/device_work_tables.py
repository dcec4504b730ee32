"""Device work by owner: modules as a tree, layers, operators, functions, ranges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import repeat
from typing import Final

import numpy as np
from msgspec import Struct, field

from traceflops.attribution.device_work import (
    NOTHING,
    Launched,
    Named,
    WorkSum,
    launching_names,
    ranges,
    user_functions,
)
from traceflops.attribution.marks import range_names
from traceflops.attribution.scopes import module_class, module_name, modules_around
from traceflops.errors import UsageError
from traceflops.table.columns import IntArray, codes, names, texts_of
from traceflops.table.grouping import exact_sums, group_rows
from traceflops.table.nesting import taken
from traceflops.windows.prepared import Prepared

_MANY: Final = 4
"""So many modules of one class inside one module, or more, share a row that names the slowest."""
HOST_OP: Final = "host-op"
KERNEL: Final = "kernel"
"""Further values of `--by`: operators by host time, and kernels. They own no device work."""


class Owner(Struct, frozen=True):
    """The device work that one owner launched; a module's includes that of the modules inside it.

    `depth` is the depth in the tree of modules. An owner may stand for several `instances`, of
    which `slowest` has the most time. `shapes` are those of an operator's inputs, as recorded.
    """

    label: str
    work: WorkSum
    depth: int = 0
    instances: int = 1
    slowest: str = ""
    shapes: str = ""


class WorkOwners(Struct, frozen=True):
    """Owners, the most time first (a module before those inside it); `rest` is work without one."""

    owners: tuple[Owner, ...]
    rest: WorkSum


def check_owner(by: str) -> None:
    """Raise UsageError unless `by` is one of BY, HOST_OP and KERNEL."""
    tables = (*BY, HOST_OP, KERNEL)
    if by not in tables:
        near = get_close_matches(by, tables, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no such table: --by {by}", f"{meant}choose one of {', '.join(tables)}")


def _sums(prepared: Prepared, group: IntArray, groups: int) -> list[WorkSum]:
    """Return the work per group, then that of group -1; `group` is per chosen activity."""
    index = np.where(group < 0, groups, group)  # group -1 becomes the last one
    counts = exact_sums(index, prepared.begins, groups + 1)
    sums_ns = exact_sums(index, prepared.chosen.inside_ns, groups + 1)
    return list(map(WorkSum, counts, sums_ns))


def _of_texts(
    prepared: Prepared, code: IntArray, texts: Sequence[str], shapes: Iterable[str] = repeat("")
) -> WorkOwners:
    """Return the work per text, the most time first; `code` is per chosen activity, -1 for none."""
    *sums, rest = _sums(prepared, code, len(texts))
    rows = zip(texts, sums, shapes, strict=False)  # by default `shapes` never end
    owners = [Owner(text, work, shapes=dims) for text, work, dims in rows if work != NOTHING]
    return WorkOwners(tuple(sorted(owners, key=_time, reverse=True)), rest)


def _by_shape(prepared: Prepared) -> WorkOwners:
    """Return the work per operator and shapes of its inputs."""
    ops = prepared.trace.ops
    op = Launched.of(prepared, prepared.chosen.row).op
    name, shape = (taken(codes(ops[column]), op) for column in ("name", "input_dims"))
    group, first = group_rows((name, shape))
    texts, shapes = (texts_of(ops[column], op[first]) for column in ("name", "input_dims"))
    return _of_texts(prepared, np.where(op >= 0, group, -1), texts, shapes)


def _by_name(name_of: Callable[[Launched], Named], prepared: Prepared) -> WorkOwners:
    return _of_texts(prepared, *name_of(Launched.of(prepared, prepared.chosen.row)))


def _by_range(prepared: Prepared) -> WorkOwners:
    """Return the work per annotation; annotations that differ only in numbers are one owner."""
    work = _by_name(ranges, prepared)
    by_name: defaultdict[str, list[Owner]] = defaultdict(list)
    range_name = range_names(prepared.trace)
    for owner in work.owners:
        by_name[range_name(owner.label)].append(owner)
    owners = []
    for label, (slowest, *others) in by_name.items():  # owners come by time, the slowest first
        total = sum((owner.work for owner in others), slowest.work)
        joined = Owner(label, total, instances=len(others) + 1, slowest=slowest.label)
        owners.append(joined if others else slowest)
    return WorkOwners(tuple(sorted(owners, key=_time, reverse=True)), work.rest)


class _Branch(Struct):
    """Modules that share a row: their `work`, ns and name of each member, branches inside them."""

    work: WorkSum = NOTHING
    members: list[tuple[int, str]] = field(default_factory=list)
    inside: defaultdict[str, _Branch] = field(default_factory=lambda: defaultdict(_Branch))

    def add(self, name: str, work: WorkSum) -> None:
        """Add a module with its work."""
        self.work += work
        self.members.append((work.device_ns, name))

    def folded(self) -> list[tuple[str, _Branch]]:
        """Return the branches inside, the least time first; _MANY or more of a class become one."""
        by_class: defaultdict[str, list[tuple[str, _Branch]]] = defaultdict(list)
        for label, branch in self.inside.items():
            by_class[module_class(label)].append((label, branch))
        folded = []
        for label, branches in by_class.items():
            if len(branches) < _MANY:
                folded += branches
                continue
            # In a dict by name, so that inner modules are found as in any other branch.
            slowest = max(branches, key=lambda item: _time(item[1]))
            joined = _Branch(inside=defaultdict(_Branch, [slowest]))
            for name, branch in branches:
                joined.add(name, branch.work)
            folded.append((label, joined))
        return sorted(folded, key=lambda item: _time(item[1]))


def _by_module(class_of: Callable[[str], str], prepared: Prepared) -> WorkOwners:
    """Return the work per module as a tree: each before those inside it, the most time first.

    Modules inside one module whose names have the same `class_of` are one owner.
    """
    work_of_row = Launched.of(prepared, prepared.chosen.row)
    paths, _ = modules_around(prepared.trace, *work_of_row.causes)
    *work, rest = _sums(prepared, paths.node, len(paths.parent))
    parent_of = paths.parent.tolist()
    for node in range(len(parent_of) - 1, -1, -1):  # children come after their parents
        if parent_of[node] >= 0:
            work[parent_of[node]] += work[node]
    labels = list(map(module_name, names(prepared.trace.marks["name"])))
    root = _Branch()
    branches: list[_Branch] = []  # per node
    for parent, code, node_work in zip(parent_of, paths.name.tolist(), work, strict=True):
        outer = branches[parent] if parent >= 0 else root
        branch = outer.inside[class_of(labels[code])]  # a new one, or that of its siblings
        branch.add(labels[code], node_work)
        branches.append(branch)
    owners = []
    # Depth first; the largest branch is the last one of a list, so it is popped first.
    stack = [(0, *item) for item in root.folded()]
    while stack:
        depth, label, branch = stack.pop()
        if branch.work != NOTHING:
            slowest = max(branch.members)[1]
            owners.append(Owner(label, branch.work, depth, len(branch.members), slowest))
            stack += [(depth + 1, *item) for item in branch.folded()]
    return WorkOwners(tuple(owners), rest)


def _time(of: Owner | _Branch) -> int:
    return of.work.device_ns


BY: Final[dict[str, Callable[[Prepared], WorkOwners]]] = {
    "module": partial(_by_module, str),
    "layer": partial(_by_module, module_class),
    "op": partial(_by_name, launching_names),
    "shape": _by_shape,
    "source": partial(_by_name, user_functions),
    "range": _by_range,
}
"""By kind of owner, the function that returns the owners of the work in the chosen windows.

A layer is all modules of one class inside one module.
"""

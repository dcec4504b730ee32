"""Work of the devices by what owns it: modules as a tree, layers, operators, functions, ranges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import repeat
from typing import Final

import numpy as np

from traceflops.attribution.device_work import (
    NOTHING,
    Launched,
    Named,
    WorkSum,
    launched_modules,
    launching_names,
    ranges,
    user_functions,
)
from traceflops.attribution.range_labels import range_names
from traceflops.attribution.scopes import ModulePaths, module_class, module_name
from traceflops.errors import UsageError
from traceflops.table import IntArray, codes, exact_sums, group_rows, names, taken
from traceflops.windows import Prepared

_MANY: Final = 4
"""From so many on modules of one class in another are listed as one, and the slowest in it."""
HOST_OP: Final = "host-op"
KERNEL: Final = "kernel"
"""Operators by time of the host, and kernels: no owners of device work, asked for like them."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What a thing launched, a module with those inside it; `depth` is that in a tree.

    It may stand for several `instances`; `slowest` is the one with most time. `shapes` are those of
    an operator's inputs, as recorded.
    """

    label: str
    work: WorkSum
    depth: int = 0
    instances: int = 1
    slowest: str = ""
    shapes: str = ""


@dataclass(frozen=True, slots=True)
class WorkOwners:
    """Owners, each after the one around it and else by time, and the work that has none."""

    owners: tuple[Owner, ...]
    rest: WorkSum


def check_owner(by: str) -> None:
    """Refuse what cannot own work. Raises UsageError."""
    known = (*BY, HOST_OP, KERNEL)
    if by not in known:
        near = get_close_matches(by, known, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no such table: --by {by}", f"{meant}choose one of {', '.join(known)}")


def work_owners(prepared: Prepared, by: str) -> WorkOwners:
    """Return who owns the work of the chosen windows, `by` one of BY."""
    return BY[by](prepared)


def _sums(prepared: Prepared, group: IntArray, groups: int) -> list[WorkSum]:
    """Return the work of each group; the last has that of -1."""
    columns = (prepared.begins, prepared.chosen.inside_ns)
    place = np.where(group < 0, groups, group)
    return list(map(WorkSum, *(exact_sums(place, one, groups + 1) for one in columns)))


def _of_texts(
    prepared: Prepared, code: IntArray, texts: Sequence[str], shapes: Iterable[str] = repeat("")
) -> WorkOwners:
    """Return work by name, where each activity has a code, -1 for none."""
    *sums, rest = _sums(prepared, code, len(texts))
    each = zip(texts, sums, shapes, strict=False)
    owners = [Owner(text, one, shapes=dims) for text, one, dims in each if one != NOTHING]
    owners.sort(key=lambda owner: owner.work.device_ns, reverse=True)
    return WorkOwners(tuple(owners), rest)


def _by_shape(prepared: Prepared) -> WorkOwners:
    ops = prepared.trace.ops
    op = Launched.of(prepared, prepared.chosen.row).op
    name, shape = (taken(codes(ops[column]), op) for column in ("name", "input_dims"))
    group, first = group_rows((name, shape))
    labels, shapes = [*names(ops["name"]), ""], [*names(ops["input_dims"]), ""]  # last: those of -1
    texts = [labels[one] for one in name[first].tolist()]
    dims = [shapes[one] for one in shape[first].tolist()]
    return _of_texts(prepared, np.where(op >= 0, group, -1), texts, dims)


def _by_name(name_of: Callable[[Launched], Named]) -> Callable[[Prepared], WorkOwners]:
    def found(prepared: Prepared) -> WorkOwners:
        return _of_texts(prepared, *name_of(Launched.of(prepared, prepared.chosen.row)))

    return found


def _by_range(prepared: Prepared) -> WorkOwners:
    """Return work by annotation; those that differ only in their numbers are one."""
    found = _by_name(ranges)(prepared)
    alike: defaultdict[str, list[Owner]] = defaultdict(list)
    called = range_names(prepared.trace)
    for one in found.owners:
        alike[called(one.label)].append(one)
    owners = [_together(label, mine) for label, mine in alike.items()]
    owners.sort(key=lambda owner: owner.work.device_ns, reverse=True)
    return WorkOwners(tuple(owners), found.rest)


def _together(label: str, owners: Sequence[Owner]) -> Owner:
    slowest, *others = owners
    if not others:
        return slowest
    work = sum((one.work for one in others), slowest.work)
    return Owner(label, work, instances=len(owners), slowest=slowest.label)


@dataclass(slots=True)
class _Branch:
    """Modules of one name in one other: their work with all inside; time and name of each."""

    work: WorkSum = NOTHING
    members: list[tuple[int, str]] = field(default_factory=list)
    inside: defaultdict[str, _Branch] = field(default_factory=lambda: defaultdict(_Branch))

    def add(self, name: str, work: WorkSum) -> None:
        self.work += work
        self.members.append((work.device_ns, name))


def _by_module(called: Callable[[str], str]) -> Callable[[Prepared], WorkOwners]:
    """Return how to list modules as a tree; those that are called the same in one other are one."""

    def found(prepared: Prepared) -> WorkOwners:
        paths, _ = launched_modules(Launched.of(prepared, prepared.chosen.row))
        *own, rest = _sums(prepared, paths.node, len(paths.parent))
        names_of = list(map(module_name, names(prepared.trace.marks["name"])))
        root = _Branch()
        branches: list[_Branch] = []
        columns = (paths.parent.tolist(), paths.name.tolist(), _with_inside(own, paths))
        for above, code, work in zip(*columns, strict=True):
            outer = branches[above] if above >= 0 else root
            branches.append(outer.inside[called(names_of[code])])
            branches[-1].add(names_of[code], work)
        return WorkOwners(tuple(_listed(root)), rest)

    return found


def _with_inside(own: list[WorkSum], paths: ModulePaths) -> list[WorkSum]:
    """Return the work of each node with that of all nodes inside it."""
    total = list(own)
    for node, above in reversed(list(enumerate(paths.parent.tolist()))):
        if above >= 0:
            total[above] += total[node]
    return total


def _folded(branch: _Branch) -> Iterator[tuple[str, _Branch]]:
    """Yield what is in a branch; of many modules of one class only the slowest, in one for all."""
    alike: defaultdict[str, list[tuple[str, _Branch]]] = defaultdict(list)
    for label, one in branch.inside.items():
        alike[module_class(label)].append((label, one))
    for label, mine in alike.items():
        if len(mine) < _MANY:
            yield from mine
            continue
        every = _Branch(
            inside=defaultdict(_Branch, [max(mine, key=lambda each: _time((0, *each)))])
        )
        for name, one in mine:
            every.add(name, one.work)
        yield label, every


def _listed(root: _Branch) -> Iterator[Owner]:
    """Yield what is in a branch, the most time first, each before what is in it."""
    open_ones = [(0, label, one) for label, one in _folded(root)]
    open_ones.sort(key=_time)
    while open_ones:
        depth, label, branch = open_ones.pop()
        if branch.work == NOTHING:
            continue
        yield Owner(label, branch.work, depth, len(branch.members), max(branch.members)[1])
        inside = [(depth + 1, label, one) for label, one in _folded(branch)]
        open_ones += sorted(inside, key=_time)


def _time(branch: tuple[int, str, _Branch]) -> int:
    return branch[2].work.device_ns


BY: Final[dict[str, Callable[[Prepared], WorkOwners]]] = {
    "module": _by_module(lambda name: name),
    "layer": _by_module(module_class),
    "op": _by_name(launching_names),
    "shape": _by_shape,
    "source": _by_name(user_functions),
    "range": _by_range,
}
"""What can own work. A layer is all modules of one class in one other."""

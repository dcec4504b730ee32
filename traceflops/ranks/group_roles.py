"""What the process groups of a job are for: dp, tp, pp, ep or cp.

The words of the description tell, else those of the name, else the words of a group over as many
ranks that lie as far apart. Without any words the ranks may tell: where the groups are the
dimensions of one grid, ranks next to each other that reduce are tp, the outermost groups are pp if
they only send and receive, and dp if they reduce.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Final

import numpy as np

REDUCING: Final = frozenset({"all_reduce", "reduce_scatter", "reduce"})
POINT_TO_POINT: Final = frozenset({"send", "recv", "send_recv"})
_ROLES: Final = (
    (None, "and"),
    ("dp", "expert data|edp|efsdp"),
    ("tp", "expert tensor|etp"),
    ("ep", "expert|experts|ep|moe"),
    ("dp", "data|dp|ddp|fsdp|hsdp|replicate|shard|batch|loss|zero"),
    ("pp", "pipeline|pipe|pp"),
    ("cp", "context|cp|dcp|pcp|sequence|sp|ulysses"),
    ("tp", "tensor|tp"),
)
"""Whole words of names and the role that they tell; the first that is found counts.

A group of two dimensions (TENSOR_AND_DATA_PARALLEL_GROUP) has no role.
"""
_OTHER: Final = "mesh dim default pg undefined group parallel model with global world size"
"""What else stands in names of groups."""
GROUP_WORDS: Final = frozenset(re.findall(r"[a-z]+", " ".join([_OTHER, *(w for _, w in _ROLES)])))
_Shape = tuple[int, int]
"""How far apart the ranks of a group are, and how many they are."""


@dataclass(frozen=True, slots=True)
class CommGroup:
    """Who communicates: `ranks` as the trace lists them, None where it does not.

    `size` is None where it is not known. `name` is the framework's, or the stream; `role` is what
    the group is for (dp, tp, pp, ep or cp), None where that is not known.
    """

    name: str
    ranks: tuple[int, ...] | None
    size: int | None
    role: str | None = None


def role_in(text: str) -> str | None:
    """Return the role that a name or description tells, None if it tells none."""
    words = " ".join(re.findall(r"[a-z]+", text.lower()))
    return next((role for role, told in _ROLES if re.search(rf"\b(?:{told})\b", words)), None)


def with_roles(
    groups: Sequence[CommGroup], kinds: Sequence[frozenset[str]]
) -> tuple[CommGroup, ...]:
    """Return the groups with the roles of those that have none in words; `kinds` is what each ran.

    A shape that groups of different roles have tells nothing.
    """
    shapes = [_shape(group.ranks) for group in groups]
    roles: dict[_Shape | None, set[str]] = {None: set()}
    ran: dict[_Shape, frozenset[str]] = {}
    for shape, group, kinds_ran in zip(shapes, groups, kinds, strict=True):
        if group.role is not None:
            roles.setdefault(shape, set()).add(group.role)
        if shape is not None:
            ran[shape] = ran.get(shape, frozenset()) | kinds_ran
    by_shape: dict[_Shape | None, str] = _of_grid(ran)
    by_shape |= {shape: min(known) for shape, known in roles.items() if len(known) == 1}
    return tuple(
        replace(group, role=group.role or by_shape.get(shape))
        for shape, group in zip(shapes, groups, strict=True)
    )


def _shape(ranks: tuple[int, ...] | None) -> _Shape | None:
    """Return the stride and size of a group; None where its ranks are not equally far apart."""
    steps = set(np.diff(sorted(ranks or ())).tolist())
    return (steps.pop(), len(ranks or ())) if len(steps) == 1 else None


def _of_grid(ran: dict[_Shape, frozenset[str]]) -> dict[_Shape | None, str]:
    """Return the roles of groups that are the dimensions of one grid, by shape."""
    inner_first = sorted(ran)
    world = max((stride * size for stride, size in ran), default=0)
    dimensions = [shape for shape in inner_first if shape != (1, world)]
    strides = accumulate((size for _, size in dimensions), mul, initial=1)
    if len(dimensions) < 2 or any(s != n for (s, _), n in zip(dimensions, strides, strict=False)):
        return {}
    first, last = dimensions[0], dimensions[-1]
    roles: dict[_Shape | None, str] = {}
    if "all_reduce" in ran[first]:
        roles[first] = "tp"
    if ran[last] & REDUCING:
        roles[last] = "dp"
    elif ran[last] and ran[last] <= POINT_TO_POINT:
        roles[last] = "pp"
    return roles

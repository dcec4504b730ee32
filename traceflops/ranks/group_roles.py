"""What the process groups of a job are for: dp, tp, pp, ep or cp.

The words of the description tell, else those of the name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

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

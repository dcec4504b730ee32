"""What each launch of a run did, whoever says so: FLOPs by line and data type, bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from traceflops.flops import UNSPLIT
from traceflops.mfu.counted.launches import Launches
from traceflops.table import BoolArray, IntArray, group_rows

Origin = Literal["counters", "pair"]
"""Who says it: hardware counters, or the shapes of a paired trace."""

UNSPLIT_LINE: Final = f"{UNSPLIT}.matrix"
"""FLOPs of matrix units: model work, recomputation and padding together."""

UNKNOWN: Final = -1
"""Of a kind, bytes or FLOPs."""


@dataclass(frozen=True, slots=True)
class WorkPart:
    """FLOPs of one line and data type; `flops` is the most and `at_least` the least."""

    line: str
    dtype: str
    flops: int
    at_least: int


Kind = tuple[WorkPart, ...]
"""All FLOPs of a launch; none for one that does no matrix work."""


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """Launches and what each did: `kind` is a place in `kinds`, UNKNOWN where it is not known.

    `size` are bytes and `vector` FLOPs of vector units, UNKNOWN likewise.
    """

    origin: Origin
    launches: Launches
    kind: IntArray
    kinds: tuple[Kind, ...]
    size: IntArray
    vector: IntArray


def kinds_of(
    line: str, flops: Mapping[str, IntArray], known: BoolArray
) -> tuple[IntArray, tuple[Kind, ...]]:
    """Return the kind of each launch by its FLOPs of one line, by data type, and the kinds."""
    dtypes = list(flops)
    rows = np.flatnonzero(known)
    kind = np.full(len(known), UNKNOWN, dtype=np.int64)
    if not dtypes or not len(rows):
        return kind, ()
    columns = [np.maximum(flops[dtype][rows], 0) for dtype in dtypes]
    group, first = group_rows(columns)
    kind[rows] = group
    counts = zip(*(column[first].tolist() for column in columns), strict=True)
    return kind, tuple(
        tuple(
            WorkPart(line, dtype, count, count)
            for dtype, count in zip(dtypes, each, strict=True)
            if count
        )
        for each in counts
    )


def between(kinds: Sequence[Kind]) -> Kind:
    """Return a kind that leaves open which of some it is: from the least to the most FLOPs."""
    counts: dict[tuple[str, str], list[WorkPart]] = {}
    for kind in kinds:
        for part in kind:
            counts.setdefault((part.line, part.dtype), []).append(part)
    return tuple(
        WorkPart(
            line,
            dtype,
            max(part.flops for part in parts),
            min(part.at_least for part in parts) if len(parts) == len(kinds) else 0,
        )
        for (line, dtype), parts in counts.items()
    )


def common(kinds: Sequence[Kind]) -> Kind | None:
    """Return what kinds of equal FLOPs have in common; None where their FLOPs differ.

    Lines of one family become the words they share (model.matmul of a forward product and a
    gradient); where families differ it is not known what the FLOPs were for.
    """
    families = [_sums(kind, lambda part: part.line.split(".")[0]) for kind in kinds]
    if all(sums == families[0] for sums in families):
        return tuple(
            WorkPart(_shared_words(kinds, family), dtype, *counts)
            for (family, dtype), counts in families[0].items()
        )
    whole = [_sums(kind, lambda _: UNSPLIT_LINE) for kind in kinds]
    if any(sums != whole[0] for sums in whole):
        return None
    return tuple(WorkPart(line, dtype, *counts) for (line, dtype), counts in whole[0].items())


def _sums(kind: Kind, name: Callable[[WorkPart], str]) -> dict[tuple[str, str], tuple[int, int]]:
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for part in kind:
        most, least = sums.get((name(part), part.dtype), (0, 0))
        sums[name(part), part.dtype] = (most + part.flops, least + part.at_least)
    return sums


def _shared_words(kinds: Sequence[Kind], family: str) -> str:
    lines = [part.line.split(".") for kind in kinds for part in kind]
    mine = [words for words in lines if words[0] == family]
    shared = itertools.takewhile(lambda words: len(set(words)) == 1, zip(*mine, strict=False))
    return ".".join(words[0] for words in shared)


def exact_flops(kinds: Sequence[Kind], kind: IntArray) -> IntArray:
    """Return the FLOPs of launches of some kinds, UNKNOWN where they are not exact."""
    flops = [
        sum(part.flops for part in parts)
        if all(part.flops == part.at_least for part in parts)
        else UNKNOWN
        for parts in kinds
    ]
    return np.array([*flops, UNKNOWN], dtype=np.int64)[kind]

"""Copies and collectives in the chosen windows, with the sizes that were recorded of them."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.ranks.collectives import KINDS, Recorded, kinds_of
from traceflops.repro.calls import Refusal
from traceflops.table.arrays import BoolArray, IntArray
from traceflops.table.columns import codes, is_one_of, names, numbers
from traceflops.table.grouping import group_rows, group_sums
from traceflops.timeline.device_span import is_top

COLLECTIVES: Final = frozenset(
    {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce"}
)
"""The kinds that PyTorch has one call of, with parts of equal size."""
ELEMENT_TYPES: Final = {
    "byte": "uint8",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
}
"""PyTorch's types by the name that its records of collectives have."""


class Transfer(Struct, frozen=True):
    """Equal transfers in the chosen windows: `count` of them took `sum_ns` on devices."""

    count: int
    sum_ns: int
    device: int
    kernels: tuple[str, ...]

    op: ClassVar[None] = None
    """No operator is repeated."""

    @property
    def mean_ns(self) -> int:
        """Return the time of one."""
        return self.sum_ns // self.count

    @property
    def refused(self) -> Refusal | None:
        """Return why it cannot be repeated, None if it can."""
        return None


class Copy(Transfer, frozen=True):
    """Copies of `bytes` each between host and device; `direction` is HtoD or DtoH."""

    direction: str
    bytes: int


class Exchange(Transfer, frozen=True):
    """Calls of a collective by a rank that puts in and gets out so many elements."""

    collective: str
    dtype: str
    ranks: int
    in_elements: int
    out_elements: int

    @property
    def refused(self) -> Refusal | None:
        """Return why it cannot be repeated, None if it can."""
        is_known = self.collective in COLLECTIVES and self.dtype.lower() in ELEMENT_TYPES
        return None if is_known else "no-collective"


def copies(analysis: Analysis) -> list[Copy]:
    """Return the copies between host and device whose size is known."""
    activities, row = analysis.prepared.trace.activities, analysis.prepared.chosen.row
    size = numbers(activities["bytes"])[row]
    is_asked = is_one_of(activities["direction"], "HtoD", "DtoH")[row] & (size > 0)
    direction = codes(activities["direction"])[row]
    labels = names(activities["direction"])
    return [
        Copy(*shared, labels[direction[example]], int(size[example]))
        for shared, example in _equal(analysis, is_asked, [direction, size])
    ]


def exchanges(analysis: Analysis) -> list[Exchange]:
    """Return the collectives whose kind, ranks, sizes and type are known."""
    linked, row = analysis.prepared.linked, analysis.prepared.chosen.row
    recorded = Recorded(linked, row)
    label, labels = recorded.texts("collective")
    dtype, dtypes = recorded.texts("collective_dtype")
    kind = kinds_of(labels, label)[label]
    ranks = recorded.numbers("collective_group_size")
    given, received = (recorded.numbers(f"collective_{side}_elements") for side in ("in", "out"))
    is_known = (kind >= 0) & (dtype >= 0) & (ranks > 1) & (given > 0) & (received > 0)
    is_asked = is_known & is_top(linked.categorised, "communication", row)
    keys = [kind, dtype, ranks, given, received]
    return [
        Exchange(
            *shared,
            KINDS[kind[example]],
            dtypes[dtype[example]],
            *(int(column[example]) for column in (ranks, given, received)),
        )
        for shared, example in _equal(analysis, is_asked, keys)
    ]


def _equal(
    analysis: Analysis, is_asked: BoolArray, keys: list[IntArray]
) -> list[tuple[tuple[int, int, int, tuple[str, ...]], int]]:
    """Return the fields of a Transfer for each group of equal chosen activities, and an example.

    `is_asked` and the keys are per row of the chosen activities, as is the example.
    """
    prepared = analysis.prepared
    activities, asked = prepared.trace.activities, np.flatnonzero(is_asked)
    row, ns = prepared.chosen.row[asked], prepared.chosen.inside_ns[asked]
    name, labels = codes(activities["name"])[row], names(activities["name"])
    device = numbers(activities["device"])[row]
    group, first = group_rows([device, name, *(key[asked] for key in keys)])
    counts, sums = np.bincount(group, minlength=len(first)), group_sums(group, ns, len(first))
    return [
        (
            (int(counts[at]), int(sums[at]), int(device[example]), (labels[name[example]],)),
            int(asked[example]),
        )
        for at, example in enumerate(first.tolist())
    ]

"""Sums by name, as a source without a timeline gives them or as its records of the host add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table.columns import IntArray, codes, is_one_of, names, number_column, numbers
from traceflops.table.grouping import joint_codes
from traceflops.table.rows import ABSENT
from traceflops.table.trace import Trace

DEVICE_KINDS: Final = ("kernel", "memcpy", "memset")
HOST_TABLES: Final = {"call": "calls", "mark": "marks", "gpu_mark": "marks"}
"""Kinds that are summed up here where the source has the records and not their sums."""

_PROJECTED: Final = "gpu_annotation"
"""The kind of marks that are ranges of the host as they are seen on the device: gpu_mark here."""

_FIGURES: Final = {
    "count": np.add,
    "total_ns": np.add,
    "min_ns": np.minimum,
    "max_ns": np.maximum,
    "bytes": np.add,
}
_TOO_LARGE: Final = 2.0**62


@dataclass(frozen=True, slots=True)
class Total:
    """The records of one name and kind added up; None where the source does not say."""

    kind: str
    name: str
    count: int | None
    sum_ns: int | None
    min_ns: int | None
    max_ns: int | None
    bytes: int | None = None

    @property
    def side(self) -> str:
        """Return what this is a part of: device work, or all of its own kind."""
        return "device" if self.kind in DEVICE_KINDS else self.kind

    @property
    def mean_ns(self) -> int | None:
        """Return the mean in whole ns."""
        if not self.count or self.sum_ns is None:
            return None
        return (self.sum_ns + self.count // 2) // self.count


def totals_of(trace: Trace) -> list[Total]:
    """Return the sums of all processes together: device work first, then the longest first."""
    found = [*_given(trace.totals)]
    kinds = {one.kind for one in found}
    for kind, table in HOST_TABLES.items():
        if kind not in kinds:
            found += _added_up(kind, _of_kind(kind, trace.table(table)))
    place = {side: at for at, side in enumerate(("device", *HOST_TABLES))}
    return sorted(
        found, key=lambda item: (place.get(item.side, len(place)), -(item.sum_ns or 0), item.name)
    )


def side_sums(totals: list[Total]) -> dict[str, int]:
    """Return the sum of each side; one of which a part is not known has none."""
    unknown = {total.side for total in totals if total.sum_ns is None}
    sums: dict[str, int] = {}
    for total in totals:
        if total.side not in unknown:
            sums[total.side] = sums.get(total.side, 0) + (total.sum_ns or 0)
    return sums


def _given(table: pa.Table) -> Iterator[Total]:
    """Yield the sums that the source itself gives."""
    if not table.num_rows:
        return
    kinds, labels = names(table["kind"]), names(table["name"])
    kind, name = codes(table["kind"]), codes(table["name"])
    group, first = _grouped(joint_codes(kind, name))
    figures = [
        _combined(numbers(table[column], ABSENT), group, len(first), how)
        for column, how in _FIGURES.items()
    ]
    for k, n, *of in zip(kind[first].tolist(), name[first].tolist(), *figures, strict=True):
        yield Total(kinds[k], labels[n], *of)


def _of_kind(kind: str, records: pa.Table) -> pa.Table:
    if "kind" not in records.schema.names or not records.num_rows:
        return records
    rows = np.flatnonzero(is_one_of(records["kind"], _PROJECTED) == (kind == "gpu_mark"))
    if len(rows) == records.num_rows:
        return records
    return records.take(number_column(rows, pa.int64()))


def _added_up(kind: str, records: pa.Table) -> Iterator[Total]:
    """Yield the sums of what the source recorded one by one."""
    if not records.num_rows:
        return
    labels, duration = names(records["name"]), numbers(records["dur_ns"], 0)
    group, first = _grouped(codes(records["name"]))
    columns = (np.ones_like(duration), duration, duration, duration)
    figures = [
        _combined(values, group, len(first), how)
        for values, how in zip(columns, _FIGURES.values(), strict=False)
    ]
    for n, *of in zip(codes(records["name"])[first].tolist(), *figures, strict=True):
        yield Total(kind, labels[n], *of)


def _grouped(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Return the group of each row, and one row of each group."""
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return group, first


def _combined(values: IntArray, group: IntArray, groups: int, how: np.ufunc) -> list[int | None]:
    """Return the values of each group combined; None where one is not known, or it is too large."""
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], np.arange(groups))
    ordered = values[order]
    found = how.reduceat(ordered, first)
    known = np.minimum.reduceat(ordered, first) != ABSENT
    known &= np.abs(how.reduceat(ordered.astype(np.float64), first)) < _TOO_LARGE
    return [
        value if is_known else None
        for value, is_known in zip(found.tolist(), known.tolist(), strict=True)
    ]

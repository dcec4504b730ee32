"""What launched each kernel: op, module, shapes. A table over the chosen windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.attribution.scopes import Scopes, launch_scopes, limited
from traceflops.table import (
    BoolArray,
    IntArray,
    codes,
    dictionary_column,
    distinct,
    first_rows,
    group_rows,
    group_sums,
    is_one_of,
    names,
    number_column,
    numbers,
    taken,
)
from traceflops.windows import InWindows, Prepared

MOST_KERNELS: Final = 200
MOST_PER_KERNEL: Final = 6


@dataclass(frozen=True, slots=True)
class Launchers:
    """What launched the kernels with the most time.

    `table` has the columns of a kernel table that name a kernel (name, kind, top, sub, rule), what
    launched it (op; where none is known the call), around what (scope; `is_module` where those are
    modules, `modules` how many different ones; `backward` where it is the scope of the forward op)
    and on what (shapes, dtypes: the op's inputs as JSON); null where it is not known. `count`
    and `sum_ns` sum to those of the kernel. A row with `others` holds that many more ways.
    """

    table: pa.Table

    def knows(self, column: str) -> bool:
        """Return whether any row tells this."""
        return bool(self.table[column].null_count < self.table.num_rows)


@dataclass(frozen=True, slots=True)
class _Ways:
    """Distinct ways to be launched, by kernel and time: a row of activities of each."""

    kernel: IntArray
    first: IntArray
    count: IntArray
    sum_ns: IntArray
    modules: IntArray


def ops_that_launched(prepared: Prepared, rows: IntArray) -> IntArray:
    """Return the innermost op that launched each activity, on a CPU the op itself; -1: unknown."""
    activities = prepared.trace.activities
    op = prepared.linked.links.op_of_activity[rows]
    if "op" not in names(activities["kind"]):
        return op
    on_cpu = is_one_of(activities["kind"], "op")[rows]
    return np.where(on_cpu, -1 - numbers(activities["correlation"], 0)[rows], op)


def launchers(
    prepared: Prepared, most: int = MOST_PER_KERNEL, most_kernels: int = MOST_KERNELS
) -> Launchers:
    """Return what launched the `most_kernels` kernels with most time, `most` ways of each."""
    chosen = prepared.chosen
    kernel, first = _kernels(prepared, chosen, most_kernels)
    inside = kernel >= 0
    chosen = InWindows(*(c[inside] for c in (chosen.row, chosen.inside_ns, chosen.starts_inside)))
    op = ops_that_launched(prepared, chosen.row)
    call = prepared.linked.links.call_of_activity[chosen.row]
    around = launch_scopes(prepared.linked, call, op, prepared.selection.step_mark)
    ways = _ways(prepared, chosen, kernel[inside], op, call, around)
    return Launchers(_table(prepared, chosen, ways, first, op, call, around, most))


def _kernels(prepared: Prepared, chosen: InWindows, most: int) -> tuple[IntArray, IntArray]:
    """Return the kernel of each activity by time, -1 beyond `most`; a row of each."""
    activities, categorised = prepared.trace.activities, prepared.linked.categorised
    name = codes(activities["name"])[chosen.row]
    group, first = group_rows(
        (
            name,
            codes(activities["kind"])[chosen.row],
            categorised.category[chosen.row],
            categorised.rule[chosen.row],
        )
    )
    sums, labels = group_sums(group, chosen.inside_ns, len(first)), names(activities["name"])
    left = max(len(first) - most, 0)
    least = int(np.partition(sums, left)[left]) if left else 0
    found = sorted(
        np.flatnonzero(sums >= least).tolist(),
        key=lambda at: (-int(sums[at]), labels[int(name[first[at]])]),
    )[:most]
    place = np.full(len(first), -1, dtype=np.int64)
    place[found] = np.arange(len(found))
    return place[group], chosen.row[first[found]]


def _ways(
    prepared: Prepared,
    chosen: InWindows,
    kernel: IntArray,
    op: IntArray,
    call: IntArray,
    around: Scopes,
) -> _Ways:
    trace = prepared.trace
    group, first = group_rows(
        (
            kernel,
            taken(codes(trace.ops["name"]), op),
            taken(codes(trace.calls["name"]), np.where(op >= 0, -1, call)),
            around.scope,
            around.backward.astype(np.int64),
            taken(codes(trace.ops["input_dims"]), op),
            taken(codes(trace.ops["input_types"]), op),
        )
    )
    begins = chosen.starts_inside * prepared.linked.split.first[chosen.row]
    count, sum_ns = (group_sums(group, values, len(first)) for values in (begins, chosen.inside_ns))
    _, one_each = group_rows((group, around.instance))
    known = one_each[around.instance[one_each] >= 0]
    modules = np.bincount(group[known], minlength=len(first))
    order = np.lexsort((first, -sum_ns, kernel[first]))
    return _Ways(*(c[order] for c in (kernel[first], first, count, sum_ns, modules)))


def _table(
    prepared: Prepared,
    chosen: InWindows,
    ways: _Ways,
    kernels: IntArray,
    op: IntArray,
    call: IntArray,
    around: Scopes,
    most: int,
) -> pa.Table:
    begins = first_rows(ways.kernel, len(kernels))
    nth = np.arange(len(ways.kernel)) - begins[ways.kernel]
    kept = np.flatnonzero(nth < most)
    more = nth >= most
    rest, others = np.unique(ways.kernel[more], return_counts=True)
    kernel = np.concatenate([ways.kernel[kept], rest])
    order = np.argsort(kernel, kind="stable")

    def figures(values: IntArray) -> IntArray:
        together = group_sums(ways.kernel[more], values[more], len(kernels))[rest]
        return np.concatenate([values[kept], together])[order]

    def told(values: IntArray) -> IntArray:
        shown = values[ways.first[kept]]
        return np.concatenate([shown, np.full(len(rest), -1, dtype=np.int64)])[order]

    ops, calls, scope = prepared.trace.ops, prepared.trace.calls, told(around.scope)
    none = np.zeros(len(kept), dtype=np.int64)
    modules = np.concatenate([ways.modules[kept], 0 * rest])[order]
    columns = _named(prepared, kernels[kernel[order]]) | {
        "op": _taken_texts(ops["name"], told(op)),
        "call": _taken_texts(calls["name"], told(np.where(op >= 0, -1, call))),
        "scope": _texts(scope, around.texts),
        "is_module": _flags(np.array([*around.is_module, False])[scope], scope >= 0),
        "modules": number_column(modules, pa.int64(), modules > 0),
        "backward": _flags(told(around.backward.astype(np.int64)) == 1, scope >= 0),
        # Whole, because half a list of shapes is no JSON: whoever shows it cuts by whole shapes.
        "shapes": _taken_texts(ops["input_dims"], told(op), None),
        "dtypes": _taken_texts(ops["input_types"], told(op), None),
        "count": number_column(figures(ways.count), pa.int64()),
        "sum_ns": number_column(figures(ways.sum_ns), pa.int64()),
        "others": number_column(np.concatenate([none, others])[order], pa.int64()),
    }
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def _named(prepared: Prepared, row: IntArray) -> dict[str, pa.Array]:
    """Return the columns that name the kernels of some activities."""
    activities, categorised = prepared.trace.activities, prepared.linked.categorised
    category = categorised.category[row]
    return {
        "name": _texts(codes(activities["name"])[row], names(activities["name"]), None),
        "kind": _texts(codes(activities["kind"])[row], names(activities["kind"])),
        "top": _texts(category, [a_category.top for a_category in categorised.categories]),
        "sub": _texts(category, [a_category.sub for a_category in categorised.categories]),
        "rule": _texts(categorised.rule[row], list(categorised.rules)),
    }


def _taken_texts(column: pa.ChunkedArray, row: IntArray, longest: int | None = 300) -> pa.Array:
    return _texts(taken(codes(column), row), names(column), longest)


def _texts(code: IntArray, labels: list[str], longest: int | None = 300) -> pa.Array:
    """Return a column of texts, null where the code is negative; long ones are cut."""
    used = distinct(code[code >= 0])
    texts = [labels[each] for each in used.tolist()]
    if longest is not None:
        texts = [limited(text, longest) for text in texts]
    place = np.where(code >= 0, np.searchsorted(used, code), -1)
    return dictionary_column(place, texts)


def _flags(values: BoolArray, valid: BoolArray) -> pa.Array:
    return number_column(values, pa.int8(), valid).cast(pa.bool_())

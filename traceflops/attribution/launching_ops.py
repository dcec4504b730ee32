"""What launched each kernel: op, module, shapes. A table over the chosen windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.attribution.scopes import Scopes, launch_scopes, limited
from traceflops.table.columns import (
    BoolArray,
    IntArray,
    codes,
    dictionary_column,
    is_one_of,
    names,
    number_column,
    numbers,
)
from traceflops.table.grouping import distinct, first_rows, group_rows, group_sums
from traceflops.table.nesting import taken
from traceflops.windows.prepared import Prepared

MOST_KERNELS: Final = 200
MOST_PER_KERNEL: Final = 6


@dataclass(frozen=True, slots=True)
class Launchers:
    """What launched the kernels with the most time.

    `table` has the columns of a kernel table that name a kernel (name, kind, top, sub, rule), what
    launched it (op; where none is known the call), around what (scope; `is_module` where those are
    modules, `modules` how many different ones; `backward` where it is the scope of the forward op)
    and on what (shapes, dtypes: the op's inputs as JSON); null where it is not known. `count`
    and `sum_ns` sum to those of the kernel. A row with `others` stands for so many launch paths.
    """

    table: pa.Table

    def knows(self, column: str) -> bool:
        """Return whether any row has a value in this column."""
        return bool(self.table[column].null_count < self.table.num_rows)


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
    """Return what launched the `most_kernels` kernels with most time, `most` paths of each."""
    trace, chosen, ops = prepared.trace, prepared.chosen, prepared.trace.ops
    kernels, kernel = _longest_kernels(prepared, most_kernels)
    inside = kernel >= 0
    kernel, row, inside_ns = kernel[inside], chosen.row[inside], chosen.inside_ns[inside]
    op, call = ops_that_launched(prepared, row), prepared.linked.links.call_of_activity[row]
    around = launch_scopes(prepared.linked, call, op, prepared.selection.step_mark)
    call = np.where(op >= 0, -1, call)
    path, first = group_rows(
        (
            kernel,
            taken(codes(ops["name"]), op),
            taken(codes(trace.calls["name"]), call),
            around.scope,
            around.backward.astype(np.int64),
            taken(codes(ops["input_dims"]), op),
            taken(codes(ops["input_types"]), op),
        )
    )
    begins = prepared.begins[inside]
    count, sum_ns = (group_sums(path, values, len(first)) for values in (begins, inside_ns))
    _, one_each = group_rows((path, around.instance))
    known = one_each[around.instance[one_each] >= 0]
    order = np.lexsort((first, -sum_ns, kernel[first]))
    paths = {
        "kernel": kernel[first],
        "op": op[first],
        "call": call[first],
        "scope": around.scope[first],
        "backward": around.backward[first].astype(np.int64),
        "modules": np.bincount(path[known], minlength=len(first)),
        "count": count,
        "sum_ns": sum_ns,
    }
    paths = {name: values[order] for name, values in paths.items()}
    return Launchers(_table(prepared, kernels, paths, around, most))


def _longest_kernels(prepared: Prepared, most: int) -> tuple[IntArray, IntArray]:
    """Return a row of each of the kernels with most time; per chosen activity its place or -1."""
    activities, categorised = prepared.trace.activities, prepared.linked.categorised
    row, name = prepared.chosen.row, codes(activities["name"])
    columns = (name, codes(activities["kind"]), categorised.category, categorised.rule)
    group, first = group_rows([column[row] for column in columns])
    sums = group_sums(group, prepared.chosen.inside_ns, len(first))
    labels, left = names(activities["name"]), max(len(first) - most, 0)
    least = int(np.partition(sums, left)[left]) if left else 0
    longest = sorted(
        np.flatnonzero(sums >= least).tolist(),
        key=lambda number: (-int(sums[number]), labels[int(name[row[first[number]]])]),
    )[:most]
    index = np.full(len(first), -1, dtype=np.int64)
    index[longest] = np.arange(len(longest))
    return row[first[longest]], index[group]


def _table(
    prepared: Prepared, kernels: IntArray, paths: dict[str, IntArray], around: Scopes, most: int
) -> pa.Table:
    """Return the first `most` paths of each kernel, and a row for its others.

    `kernels` are rows of activities; `paths` are sorted by kernel, then by time.
    """
    of_path = paths["kernel"]
    nth = np.arange(len(of_path)) - first_rows(of_path, len(kernels))[of_path]
    kept, more = np.flatnonzero(nth < most), nth >= most
    rest, others = np.unique(of_path[more], return_counts=True)
    shown = np.concatenate([of_path[kept], rest])
    order = np.argsort(shown, kind="stable")

    def summed(name: str) -> IntArray:
        sums = group_sums(of_path[more], paths[name][more], len(kernels))[rest]
        return np.concatenate([paths[name][kept], sums])[order]

    def of_kept(values: IntArray, other: int = -1) -> IntArray:
        return np.concatenate([values[kept], np.full(len(rest), other, dtype=np.int64)])[order]

    def texts(column: pa.ChunkedArray, rows: IntArray, longest: int | None = 300) -> pa.Array:
        return _texts(taken(codes(column), rows), names(column), longest)

    activities, ops = prepared.trace.activities, prepared.trace.ops
    categorised = prepared.linked.categorised
    row, categories = kernels[shown[order]], categorised.categories
    category, op = categorised.category[row], of_kept(paths["op"])
    scope, modules = of_kept(paths["scope"]), of_kept(paths["modules"], 0)
    is_module = np.array([*around.is_module, False])[scope]
    others = np.concatenate([np.zeros(len(kept), dtype=np.int64), others])[order]
    columns = {
        "name": texts(activities["name"], row, None),
        "kind": texts(activities["kind"], row),
        "top": _texts(category, [known.top for known in categories]),
        "sub": _texts(category, [known.sub for known in categories]),
        "rule": _texts(categorised.rule[row], list(categorised.rules)),
        "op": texts(ops["name"], op),
        "call": texts(prepared.trace.calls["name"], of_kept(paths["call"])),
        "scope": _texts(scope, around.texts),
        "is_module": _flags(is_module, scope >= 0),
        "modules": number_column(modules, pa.int64(), modules > 0),
        "backward": _flags(of_kept(paths["backward"]) == 1, scope >= 0),
        # Uncut, because half a list of shapes is no JSON: renderers cut between shapes.
        "shapes": texts(ops["input_dims"], op, None),
        "dtypes": texts(ops["input_types"], op, None),
        "count": number_column(summed("count"), pa.int64()),
        "sum_ns": number_column(summed("sum_ns"), pa.int64()),
        "others": number_column(others, pa.int64()),
    }
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def _texts(code: IntArray, labels: list[str], longest: int | None = 300) -> pa.Array:
    """Return a column of texts, null where the code is negative; long ones are cut."""
    used = distinct(code[code >= 0])
    texts = [labels[number] for number in used.tolist()]
    if longest is not None:
        texts = [limited(text, longest) for text in texts]
    return dictionary_column(np.where(code >= 0, np.searchsorted(used, code), -1), texts)


def _flags(values: BoolArray, valid: BoolArray) -> pa.Array:
    return number_column(values, pa.int8(), valid).cast(pa.bool_())

"""What launched each kernel over the chosen windows: its op, module and input shapes."""

from __future__ import annotations

import sys
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.attribution.scopes import Scopes, launch_scopes, limited
from traceflops.table.arrays import IntArray
from traceflops.table.columns import (
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
_LONGEST_TEXT: Final = 300  # characters that a name has at most in the table; longer ones are cut


def ops_that_launched(prepared: Prepared, rows: IntArray) -> IntArray:
    """Return, per row of activities, the innermost op that launched it (a CPU's: itself), or -1."""
    activities = prepared.trace.activities
    op = prepared.linked.links.op_of_activity[rows]
    if "op" not in names(activities["kind"]):
        return op
    on_cpu = is_one_of(activities["kind"], "op")[rows]
    # Such an activity has -1 - row of its op as its correlation.
    return np.where(on_cpu, -1 - numbers(activities["correlation"], 0)[rows], op)


def launchers(
    prepared: Prepared, most: int = MOST_PER_KERNEL, most_kernels: int = MOST_KERNELS
) -> pa.Table:
    """Return the `most` largest launch paths of each of the `most_kernels` largest kernels.

    There is a row per kernel and path, with these columns: name, kind, top, sub, rule as in a
    kernel table; op, or call if no op is known; scope around the launch (`is_module`: it names
    modules, of which `modules` are different; `backward`: it is the scope of the forward op);
    shapes and dtypes of the op's inputs as JSON. Unknown is null. `count` and `sum_ns` add up to
    those of the kernel. `others` is the number of further launch paths that a row stands for, 0 for
    an ordinary row.
    """
    trace, chosen, ops = prepared.trace, prepared.chosen, prepared.trace.ops
    kernels, kernel = _longest_kernels(prepared, most_kernels)
    is_listed = kernel >= 0
    kernel, row, inside_ns = kernel[is_listed], chosen.row[is_listed], chosen.inside_ns[is_listed]
    op, call = ops_that_launched(prepared, row), prepared.linked.links.call_of_activity[row]
    around = launch_scopes(prepared.linked, call, op, prepared.selection.step_mark)
    call = np.where(op >= 0, -1, call)  # a call tells more only if no op is known
    of_op = (taken(codes(ops[column]), op) for column in ("name", "input_dims", "input_types"))
    callee, backward = taken(codes(trace.calls["name"]), call), around.backward.astype(np.int64)
    path, first = group_rows((kernel, callee, around.scope, backward, *of_op))
    begins = prepared.begins[is_listed]
    count, sum_ns = (group_sums(path, values, len(first)) for values in (begins, inside_ns))
    # The different module instances of each path: a row of each pair of path and instance.
    _, pairs = group_rows((path, around.instance))
    in_module = pairs[around.instance[pairs] >= 0]
    order = np.lexsort((first, -sum_ns, kernel[first]))
    paths = {
        "kernel": kernel[first],
        "op": op[first],
        "call": call[first],
        "scope": around.scope[first],
        "backward": backward[first],
        "modules": np.bincount(path[in_module], minlength=len(first)),
        "count": count,
        "sum_ns": sum_ns,
    }
    paths = {name: values[order] for name, values in paths.items()}
    return _table(prepared, kernels, paths, around, most)


def _longest_kernels(prepared: Prepared, most: int) -> tuple[IntArray, IntArray]:
    """Return an activity per kernel of the `most` largest, and each chosen one's kernel or -1."""
    activities, categorised = prepared.trace.activities, prepared.linked.categorised
    row, name = prepared.chosen.row, codes(activities["name"])
    columns = (name, codes(activities["kind"]), categorised.category, categorised.rule)
    group, first = group_rows([column[row] for column in columns])
    sums = group_sums(group, prepared.chosen.inside_ns, len(first))
    # Only kernels with the time of the last one listed, or more, are sorted; ties by name.
    # sums [5 9 7], most 2  ->  left 1, partitioned [5 7 9], least 7
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
    """Return a table of the first `most` of the sorted paths of each kernel, and of the others."""
    # of_path [0 0 0 1]: kernel 0 begins at path 0, kernel 1 at path 3  ->  nth [0 1 2 0]
    of_path = paths["kernel"]  # per path, its kernel
    nth = np.arange(len(of_path)) - first_rows(of_path, len(kernels))[of_path]
    kept = np.flatnonzero(nth < most)
    is_beyond = nth >= most
    # Kernels with other paths, and how many; this row follows the kept paths of the kernel.
    with_others, others = np.unique(of_path[is_beyond], return_counts=True)
    shown = np.concatenate([of_path[kept], with_others])
    order = np.argsort(shown, kind="stable")

    def summed(name: str) -> IntArray:
        """Return a column of figures: those of the kept paths, and sums over the others."""
        sums = group_sums(of_path[is_beyond], paths[name][is_beyond], len(kernels))[with_others]
        return np.concatenate([paths[name][kept], sums])[order]

    def of_kept(values: IntArray, other: int = -1) -> IntArray:
        """Return a column with the values of the kept paths, and `other` in the other rows."""
        fill = np.full(len(with_others), other, dtype=np.int64)
        return np.concatenate([values[kept], fill])[order]

    def texts(values: pa.ChunkedArray, rows: IntArray, longest: int = _LONGEST_TEXT) -> pa.Array:
        return _texts(taken(codes(values), rows), names(values), longest)

    activities, ops = prepared.trace.activities, prepared.trace.ops
    categorised = prepared.linked.categorised
    row, categories = kernels[shown[order]], categorised.categories
    category, op = categorised.category[row], of_kept(paths["op"])
    scope, modules = of_kept(paths["scope"]), of_kept(paths["modules"], 0)
    is_module = np.array([*around.is_module, False])[scope]  # scope -1 takes the False
    backward = of_kept(paths["backward"]) == 1
    others = np.concatenate([np.zeros(len(kept), dtype=np.int64), others])[order]
    columns = {
        "name": texts(activities["name"], row, sys.maxsize),
        "kind": texts(activities["kind"], row),
        "top": _texts(category, [c.top for c in categories]),
        "sub": _texts(category, [c.sub for c in categories]),
        "rule": _texts(categorised.rule[row], list(categorised.rules)),
        "op": texts(ops["name"], op),
        "call": texts(prepared.trace.calls["name"], of_kept(paths["call"])),
        "scope": _texts(scope, around.texts),
        "is_module": number_column(is_module, pa.int8(), scope >= 0).cast(pa.bool_()),
        "modules": number_column(modules, valid=modules > 0),
        "backward": number_column(backward, pa.int8(), scope >= 0).cast(pa.bool_()),
        # Not cut, because half a list of shapes is no JSON: renderers cut between shapes.
        "shapes": texts(ops["input_dims"], op, sys.maxsize),
        "dtypes": texts(ops["input_types"], op, sys.maxsize),
        "count": number_column(summed("count")),
        "sum_ns": number_column(summed("sum_ns")),
        "others": number_column(others),
    }
    return pa.table(columns)


def _texts(code: IntArray, labels: list[str], longest: int = _LONGEST_TEXT) -> pa.Array:
    """Return a column of the texts with these codes, null for -1; cut to `longest` characters."""
    used = distinct(code[code >= 0])
    texts = [limited(labels[number], longest) for number in used.tolist()]
    return dictionary_column(np.where(code >= 0, np.searchsorted(used, code), -1), texts)

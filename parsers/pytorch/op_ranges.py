"""Finds ranges of the program that a file writes as operators, as `record_function` makes them.

```text
cpu_op  model_inference  |-------------------------|
cpu_op  aten::add, ...      |--|  |---|    |--|           # what it takes itself is host code
```
"""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np

from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, IntArray
from traceflops.table.grouping import distinct, joint_codes
from traceflops.table.nesting import OpTree

_TIMES = ("thread", "start_ns", "dur_ns")


def ranges_from_ops(tables: MutableMapping[str, TableBuilder]) -> None:
    """Make annotations, in place, of operators that are ranges.

    A range has no namespace (`aten::`), neither inputs nor a number of autograd, and others inside.
    """
    ops, marks = tables["ops"], tables["marks"]
    rows = _ranges(ops)
    if not len(rows):
        return
    codes = {}
    for name in ("process", "name"):
        labels = list(ops.names[name])
        texts = (labels[code] for code in ops.column(name)[rows].tolist())
        codes[name] = marks.names[name].codes(texts)
    times = {name: ops.column(name)[rows] for name in _TIMES}
    marks.add(len(rows), **codes, **times, kind=marks.names["kind"]["annotation"])
    rest = np.delete(np.arange(ops.count), rows)
    used = dict.fromkeys(name for _, piece in ops.pieces for name in piece)
    tables["ops"] = kept = TableBuilder(ops.table)
    kept.names = ops.names
    kept.add(len(rest), **{name: ops.column(name)[rest] for name in used})


def _ranges(ops: TableBuilder) -> IntArray:
    """Return the rows of operators that are ranges: see `ranges_from_ops`."""
    is_free = np.array(["::" not in name for name in ops.names["name"]], dtype=np.bool_)
    if not is_free.any():
        return np.empty(0, dtype=np.int64)
    may_be = is_free[ops.column("name")] & (ops.column("input_dims") == -1)  # no inputs
    may_be &= ops.column("sequence") == ABSENT  # no number of autograd
    process, thread, start, dur = (ops.column(name) for name in ("process", *_TIMES))
    tree = OpTree.nested(joint_codes(process, thread), start, start + dur)
    around = distinct(tree.parent)
    rows: IntArray = around[around >= 0]
    ranges: IntArray = rows[may_be[rows]]
    return ranges

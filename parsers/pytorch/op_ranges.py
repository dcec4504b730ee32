"""Finds ranges of the program that a file writes as operators, as `record_function` makes them.

```text
cpu_op  model_inference  |-------------------------|
cpu_op  aten::add, ...      |--|  |---|    |--|           # what it takes itself is host code
```
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Final

import numpy as np

from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT
from traceflops.table.grouping import distinct, joint_codes
from traceflops.table.nesting import OpTree

_COPIED: Final = ("thread", "start_ns", "dur_ns")
_BACKWARD: Final = re.compile(r"\w+Backwards?\d*")
"""The name of a node of autograd, which has no namespace."""


def ranges_from_ops(tables: MutableMapping[str, TableBuilder]) -> None:
    """Move ranges from the operators to the marks, in place, as annotations.

    A range has a name without namespace (`aten::`) that is not one of autograd, neither inputs nor
    a number of autograd, and one of its name has others inside. Before PyTorch 1.6 no operator has
    a namespace, so none can be told.
    """
    ops, marks = tables["ops"], tables["marks"]
    labels = list(ops.names["name"])
    has_namespace = np.array(["::" in label for label in labels], dtype=np.bool_)
    if has_namespace.all() or not has_namespace.any():
        return
    of_autograd = np.array([_BACKWARD.fullmatch(label) is not None for label in labels], np.bool_)
    name = ops.column("name")
    may_be = ~(has_namespace | of_autograd)[name] & (ops.column("input_dims") == -1)  # no inputs
    may_be &= ops.column("sequence") == ABSENT  # no number of autograd
    process, thread, start, dur = (ops.column(column) for column in ("process", *_COPIED))
    parent = OpTree.nested(joint_codes(process, thread), start, start + dur).parent
    around = distinct(parent[parent >= 0])
    is_around = np.bincount(name[around[may_be[around]]], minlength=len(labels)) > 0
    rows = np.flatnonzero(may_be & is_around[name])
    if not len(rows):
        return
    codes = {}
    for column in ("process", "name"):
        texts = list(ops.names[column])
        of_rows = (texts[code] for code in ops.column(column)[rows].tolist())
        codes[column] = marks.names[column].codes(of_rows)
    times = {name: ops.column(name)[rows] for name in _COPIED}
    marks.add(len(rows), **codes, **times, kind=marks.names["kind"]["annotation"])
    rest = np.delete(np.arange(ops.count), rows)
    used = dict.fromkeys(name for _, piece in ops.pieces for name in piece)
    tables["ops"] = kept = TableBuilder(ops.table)
    kept.names = ops.names
    kept.add(len(rest), **{name: ops.column(name)[rest] for name in used})

"""What else in a trace tells about an op whose own arguments are not all recorded.

Profilers before torch 2.1 record no values, so a convolution's stride and padding are unknown. Its
output is as large as the gradient that the backward node of the same sequence number gets. Before
torch 1.11 one op per gradient ran inside one op that has all shapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.flops.ops.table import ENCLOSING, RULES
from traceflops.table.columns import BoolArray, IntArray, codes, names, numbers
from traceflops.table.grouping import joint_codes
from traceflops.table.nesting import innermost
from traceflops.table.rows import ABSENT

_FORWARD: Final = frozenset(name for name, rule in RULES.items() if rule.kind == "convolution")
_ENCLOSED: Final = frozenset(ENCLOSING.values())
_CONVOLUTION_NODE: Final = re.compile(r"[A-Za-z0-9_]{0,40}Conv[A-Za-z0-9_]{0,40}Backward[0-9]{0,3}")


def output_shapes(ops: pa.Table) -> IntArray:
    """Return, per op, the code of the `input_dims` of its gradient's node, -1 where none is known.

    Only for convolutions without recorded values. An op without a sequence number has that of the
    convolution around it. A number that several nodes with different shapes have (several forward
    threads) tells nothing.
    """
    found = np.full(ops.num_rows, -1, dtype=np.int64)
    sequence, dims = numbers(ops["sequence"], ABSENT), codes(ops["input_dims"])
    forward = _named(ops, lambda name: name in _FORWARD) & (dims >= 0)
    asking = np.flatnonzero(forward & (codes(ops["concrete_inputs"]) < 0))
    numbered = (sequence != ABSENT) & (dims >= 0)
    giving = np.flatnonzero(numbered & _named(ops, _is_convolution_node))
    if not len(asking) or not len(giving):
        return found
    carrying = np.flatnonzero(forward & numbered)
    carrier = np.where(numbered[asking], asking, _around(ops, asking, carrying))
    keys = joint_codes(numbers(ops["process"]), sequence)
    given, shape = _unambiguous(keys[giving], dims[giving])
    at = np.minimum(np.searchsorted(given, keys[carrier]), len(given) - 1)
    if len(given):
        known = (carrier >= 0) & (given[at] == keys[carrier])
        found[asking] = np.where(known, shape[at], -1)
    return found


def enclosing_ops(ops: pa.Table) -> IntArray:
    """Return, per op, the row of the op around it that knows its shapes, -1 where it needs none."""
    found = np.full(ops.num_rows, -1, dtype=np.int64)
    inner = np.flatnonzero(_named(ops, lambda name: name in ENCLOSING))
    outer = np.flatnonzero(_named(ops, lambda name: name in _ENCLOSED))
    if not len(inner) or not len(outer):
        return found
    name = codes(ops["name"])
    code_of = {label: code for code, label in enumerate(names(ops["name"]))}
    wanted = np.array([code_of.get(ENCLOSING.get(label, ""), -1) for label in code_of])
    around = _around(ops, inner, outer)
    found[inner] = np.where((around >= 0) & (name[around] == wanted[name[inner]]), around, -1)
    return found


def _is_convolution_node(name: str) -> bool:
    return _CONVOLUTION_NODE.fullmatch(name) is not None


def _around(ops: pa.Table, inner: IntArray, outer: IntArray) -> IntArray:
    """Return, for each of the inner rows, the innermost of the outer ones around it, or -1."""
    if not len(outer):
        return np.full(len(inner), -1, dtype=np.int64)
    start = numbers(ops["start_ns"])
    end = start + numbers(ops["dur_ns"])
    threads = joint_codes(numbers(ops["process"]), numbers(ops["thread"], ABSENT))
    place = innermost(threads[outer], start[outer], end[outer], threads[inner], start[inner])
    return np.where(place >= 0, outer[place], -1)


def _named(ops: pa.Table, wanted: Callable[[str], bool]) -> BoolArray:
    """Return which ops have a name that is wanted."""
    chosen = np.array([wanted(label) for label in names(ops["name"])], dtype=np.bool_)
    return chosen[codes(ops["name"])] if len(chosen) else np.zeros(0, dtype=np.bool_)


def _unambiguous(keys: IntArray, values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct keys in order, and their values; keys with several ones are left out."""
    order = np.lexsort((values, keys))
    ordered, found = keys[order], values[order]
    opens = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    closes = np.append(opens[1:], len(ordered)) - 1
    alike = found[opens] == found[closes] if len(opens) else np.zeros(0, dtype=np.bool_)
    return ordered[opens][alike], found[opens][alike]

"""The work of every op of a trace, computed once per distinct combination of arguments.

Some arguments are missing from old recordings. Before torch 2.1 there are no values: the output of
a convolution is as large as the gradient of its backward node (same sequence number). Before torch
1.11 an op per gradient ran inside an op that has all shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.flops.ops.arguments import INT64_MAX, READERS, Arguments, Shapes
from traceflops.flops.ops.table import ENCLOSING, RULES
from traceflops.flops.ops.work import CannotCount, Result, Rule, Signature, Unknown, Work
from traceflops.table.arrays import ABSENT, BoolArray, IntArray
from traceflops.table.columns import codes, matching, names, narrow, numbers, texts_of
from traceflops.table.grouping import extremes, group_rows, joint_codes, ranked
from traceflops.table.nesting import innermost, taken

UNKNOWN: Final = -1  # an unknown count
_COLUMNS: Final = ("name", *READERS)
_CONVOLUTION_NODE: Final = re.compile(r"[A-Za-z0-9_]{0,40}Conv[A-Za-z0-9_]{0,40}Backward[0-9]{0,3}")


class OpWork(Struct, frozen=True):
    """The distinct works of a trace's ops, and which one each op does.

    `place` has, per op, the index of its work in `works`. The other columns are per work: `rules`
    (None: not in the table), and int64 counts, UNKNOWN if not known.
    """

    place: IntArray
    works: tuple[Result, ...]
    rules: tuple[Rule | None, ...]
    flops: IntArray
    at_least: IntArray
    min_bytes: IntArray
    vector_flops: IntArray

    @classmethod
    def of(cls, place: IntArray, works: Sequence[Result], rules: Sequence[Rule | None]) -> OpWork:
        """Return the table of distinct works and their rules; `place` is by op."""
        columns = []
        for name in ("flops", "at_least", "min_bytes", "vector_flops"):
            counts = [getattr(work, name, None) for work in works]  # Unknown has no counts
            values = [UNKNOWN if count is None else count for count in counts]
            columns.append(np.array(values, dtype=np.int64))
        return cls(place, tuple(works), tuple(rules), *columns)

    def signature(self, index: int) -> Signature | None:
        """Return the sizes in a work; None if it is unknown or has none, and for index -1."""
        work = self.works[index] if index >= 0 else None
        return work.signature if isinstance(work, Work) else None

    @property
    def matrix(self) -> BoolArray:
        """Return, per op, whether its kind does matrix work, of known amount or not."""
        is_matrix = [rule is not None and rule.matrix for rule in self.rules]
        return np.array(is_matrix, dtype=np.bool_)[self.place]

    @property
    def wrapper(self) -> BoolArray:
        """Return, per op, whether it is a wrapper, which counts if no modelled op is below it."""
        is_wrapper = [rule is not None and rule.role == "wrapper" for rule in self.rules]
        return np.array(is_wrapper, dtype=np.bool_)[self.place]

    def of_ops(self, column: IntArray) -> IntArray:
        """Return a column of counts per op instead of per work."""
        return column[self.place]

    def total(self, column: IntArray, rows: IntArray | BoolArray | None = None) -> int:
        """Return the exact sum of a column over ops, in Python integers (int64 would wrap)."""
        places = self.place if rows is None else self.place[rows]
        times = np.bincount(places, minlength=len(self.works)).tolist()
        counts = column.tolist()
        return sum(n * count for n, count in zip(times, counts, strict=True) if count != UNKNOWN)


def count_ops(ops: pa.Table) -> OpWork:
    """Return the work of each op of a trace."""
    modelled = np.flatnonzero(matching(ops["name"], RULES.__contains__))
    output, enclosing = output_shapes(ops), enclosing_ops(ops)
    # Per op: a number for its name and arguments.
    call = np.full(ops.num_rows, -1, dtype=np.int64)
    call[modelled], _ = group_rows([codes(ops[column])[modelled] for column in _COLUMNS])
    # Ops of equal call, output shape and call of the enclosing op do equal work.
    equal = [call[modelled], output[modelled], taken(call, enclosing[modelled])]
    group, first = group_rows(equal)
    sample = modelled[first]  # one op per group
    works: list[tuple[Result, Rule | None]] = [(Unknown("not-modelled"), None)]
    works += _works(ops, sample, output[sample], enclosing[sample])
    place = np.zeros(ops.num_rows, dtype=np.int64)  # work 0 is of ops that are not modelled
    place[modelled] = group + 1
    return OpWork.of(narrow(place), *zip(*works, strict=True))


def _works(
    ops: pa.Table, rows: IntArray, outputs: IntArray, enclosing: IntArray
) -> Iterator[tuple[Result, Rule]]:
    """Yield the work and the rule of some rows of ops; each text of arguments is parsed once.

    By row: `outputs` is the code of `input_dims` whose first shape is that of the result,
    `enclosing` the row of the op around it; -1 for none.
    """
    texts = {column: names(ops[column]) for column in _COLUMNS}
    codes_of = {column: codes(ops[column]) for column in _COLUMNS}
    parsed = cache(lambda column, code: READERS[column](texts[column][code]))

    def arguments(row: int) -> Arguments | None:
        """Return the arguments of one op, None if its shapes cannot be read."""
        code = {column: int(codes_of[column][row]) for column in READERS}
        shapes, types, strides, values = (
            parsed(column, number) if number >= 0 else () for column, number in code.items()
        )
        return None if shapes is None else Arguments(shapes, types, strides, values)

    columns = (rows.tolist(), outputs.tolist(), enclosing.tolist())
    for row, output, outer in zip(*columns, strict=True):
        rule, args = RULES[texts["name"][int(codes_of["name"][row])]], arguments(row)
        if args is None:
            yield Unknown("odd-shapes"), rule
            continue
        shapes = parsed("input_dims", output) if output >= 0 else None
        result = shapes[0] if shapes and not isinstance(shapes[0], Shapes) else None
        args = replace(args, output=result, enclosing=arguments(outer) if outer >= 0 else None)
        try:
            work = rule.formula(rule.kind, args)
        except CannotCount as error:
            yield Unknown(error.reason), rule
        else:
            counts = (work.flops, work.min_bytes or 0, work.vector_flops or 0)
            yield (work if max(counts) <= INT64_MAX else Unknown("too-large")), rule


def output_shapes(ops: pa.Table) -> IntArray:
    """Return the code of the `input_dims` of each op's gradient node, -1 if there is none.

    Only convolutions without recorded values need it: the gradient is as large as their output. The
    node has the sequence number of the op or, if the op has none, of the convolution around it. If
    nodes with different shapes share a number (several forward threads), the result is -1.
    """
    shape_of = np.full(ops.num_rows, -1, dtype=np.int64)
    sequence, dims = numbers(ops["sequence"], ABSENT), codes(ops["input_dims"])
    convolutions = {name for name, rule in RULES.items() if rule.kind == "convolution"}
    is_forward = matching(ops["name"], convolutions.__contains__) & (dims >= 0)
    valueless = np.flatnonzero(is_forward & (codes(ops["concrete_inputs"]) < 0))
    is_numbered = (sequence != ABSENT) & (dims >= 0)
    nodes = np.flatnonzero(is_numbered & matching(ops["name"], _CONVOLUTION_NODE.fullmatch))
    if not len(valueless) or not len(nodes):
        return shape_of
    # By process and sequence number (a key): the shape of its nodes, -1 if there are none.
    keys, key = ranked(joint_codes(numbers(ops["process"]), sequence))
    most, least = extremes(key[nodes], dims[nodes], len(keys))
    shape_of_key = np.where(most == least, most, -1)
    around = _around(ops, valueless, np.flatnonzero(is_forward & is_numbered))
    numbered_op = np.where(is_numbered[valueless], valueless, around)  # -1 if there is none
    shape_of[valueless] = taken(shape_of_key, taken(key, numbered_op))
    return shape_of


def enclosing_ops(ops: pa.Table) -> IntArray:
    """Return, per op, the row of the op around it that has shapes for it (ENCLOSING), or -1."""
    enclosing = np.full(ops.num_rows, -1, dtype=np.int64)
    inner = np.flatnonzero(matching(ops["name"], ENCLOSING.__contains__))
    outer = np.flatnonzero(matching(ops["name"], frozenset(ENCLOSING.values()).__contains__))
    if not len(inner) or not len(outer):
        return enclosing
    around = _around(ops, inner, outer)
    # An op around it of another library has no shapes for it.
    pairs = zip(texts_of(ops["name"], inner), texts_of(ops["name"], around), strict=True)
    has_shapes = [ENCLOSING[inner_name] == outer_name for inner_name, outer_name in pairs]
    enclosing[inner] = np.where(has_shapes, around, -1)
    return enclosing


def _around(ops: pa.Table, inner: IntArray, outer: IntArray) -> IntArray:
    """Return, for each of the `inner` rows, the innermost of the `outer` rows around it, or -1."""
    if not len(outer):
        return np.full(len(inner), -1, dtype=np.int64)
    start = numbers(ops["start_ns"])
    end = start + numbers(ops["dur_ns"])
    threads = joint_codes(numbers(ops["process"]), numbers(ops["thread"], ABSENT))
    index = innermost(threads[outer], start[outer], end[outer], threads[inner], start[inner])
    return np.where(index >= 0, outer[index], -1)

"""Signs in the inputs of CPU operators of work that better code would not do.

```text
aten::cat        [[64, 256], [64, 256]]    [[128, 256], [64, 256]]    ...   # copies all again
aten::embedding  tokens [2, 96]            [2, 97]                    ...   # computes all again
```
"""

from __future__ import annotations

import re
from math import prod
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table.columns import ABSENT, BoolArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import joint_codes
from traceflops.table.nesting import OpTree

_CAT: Final = "aten::cat"
_TENSORS: Final = re.compile(r"\[\[(\[[\d, ]+\](?:, ?\[[\d, ]+\])+)\]")
"""Sizes of a list of tensors that is the first input."""
_TABLE: Final = re.compile(r"\[\[(\d+, ?\d+)\], ?\[([\d, ]+)\]")
"""Sizes of aten::embedding(table, indices)."""
_FIRST: Final = re.compile(r"\[\[(?:\d+, ?)*(\d+, ?\d+)\]")
"""The last two sizes of a first input."""
_SIZES, _NUMBER = re.compile(r"\[([\d, ]+)\]"), re.compile(r"\d{1,12}")
"""Longer numbers are no sizes, and int() refuses very long ones."""
_MATRICES: Final = ("aten::mm", "aten::bmm")
_ATTENTION: Final = (*_MATRICES, "aten::_softmax")
_NOT_BY_HAND: Final = ("aten::scaled_dot_product_attention", "aten::linear")
"""Operators whose products are PyTorch's own attention, or those of a layer beside a softmax."""
_OFTEN, _MOSTLY = 8, 0.9
"""Inputs grow if they have so many sizes, and nearly each is larger by one token."""


def joins_what_was_joined(ops: pa.Table) -> BoolArray:
    """Return which calls of aten::cat append to what an earlier one returned, time and again."""
    row = np.flatnonzero(is_one_of(ops["name"], _CAT))
    dims = [*names(ops["input_dims"]), ""]
    sizes = {code: _joined(dims[code]) for code in set(codes(ops["input_dims"])[row].tolist())}
    known = {pair for pair in sizes.values() if pair is not None}
    grown = {first for first, _ in known} & {whole for _, whole in known}
    joins = np.zeros(ops.num_rows, dtype=np.bool_)
    if len(grown) >= _OFTEN:
        again = [code for code, pair in sizes.items() if pair is not None and pair[0] in grown]
        joins[row] = np.isin(codes(ops["input_dims"])[row], again)
    return joins


def _joined(dims: str) -> tuple[int, int] | None:
    """Return the elements of the first tensor of a list, and of all; None if they are unknown."""
    tensors = _TENSORS.match(dims)
    if tensors is None:
        return None
    first, *others = (_elements(text) for text in _SIZES.findall(tensors[1]))
    return first, first + sum(others)


def _elements(sizes: str) -> int:
    return prod(map(int, _NUMBER.findall(sizes)))


def embeds_all_again(ops: pa.Table) -> bool:
    """Return whether an embedding gets one more token from call to call, as text without a cache.

    Batches sorted by length, and sweeps of lengths, grow by other steps.
    """
    row = np.flatnonzero(is_one_of(ops["name"], "aten::embedding"))
    row = row[np.argsort(numbers(ops["start_ns"])[row], kind="stable")]
    dims, lengths = [*names(ops["input_dims"]), ""], dict[tuple[str, ...], list[int]]()
    for code in codes(ops["input_dims"])[row].tolist():
        if known := _TABLE.match(dims[code]):
            *batch, length = _NUMBER.findall(known[2])
            lengths.setdefault((known[1], *batch), []).append(int(length))
    return any(
        len(set(own)) >= _OFTEN and bool((np.diff(own) == 1).mean() >= _MOSTLY)
        for own in lengths.values()
    )


def in_attention(ops: pa.Table) -> BoolArray:
    """Return which matrix products enclose a softmax: the second one multiplies its result.

    PyTorch's own attention computes so, too, with dropout or a mask that has a gradient.
    """
    by_pytorch = OpTree.of(ops).nearest(is_one_of(ops["name"], *_NOT_BY_HAND)) >= 0
    row = np.flatnonzero(is_one_of(ops["name"], *_ATTENTION))
    thread = joint_codes(numbers(ops["process"]), numbers(ops["thread"], ABSENT))[row]
    order = np.lexsort((numbers(ops["start_ns"])[row], thread))
    row, thread = row[order], thread[order]
    found = [_FIRST.match(text) for text in (*names(ops["input_dims"]), "")]
    number = {text: code for code, text in enumerate(dict.fromkeys(own[1] for own in found if own))}
    matrix = np.array([number[own[1]] if own else ABSENT for own in found])
    sizes = matrix[codes(ops["input_dims"])[row]]
    is_product = is_one_of(ops["name"], *_MATRICES)[row]
    middle = np.flatnonzero(~is_product[1:-1]) + 1
    fits = is_product[middle - 1] & is_product[middle + 1] & (sizes[middle] >= 0)
    fits &= (thread[middle - 1] == thread[middle + 1]) & (sizes[middle] == sizes[middle + 1])
    held = np.zeros(ops.num_rows, dtype=np.bool_)
    for side in (-1, 1):
        held[row[middle[fits] + side]] = True
    return held & ~by_pytorch

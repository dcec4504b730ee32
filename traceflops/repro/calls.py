"""The calls of operators behind the device time, with the arguments that were recorded of them.

A kernel is repeated by the outermost `aten::` operator around its launch: users know that one, it
runs on any device, and it launches all kernels of the call.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.analysis.result import Analysis
from traceflops.attribution.datatypes import types_of_ops
from traceflops.attribution.launching_ops import ops_that_launched
from traceflops.flops.ops.arguments import (
    READERS,
    Arguments,
    Shape,
    Tensor,
    Unreadable,
    Value,
    arguments_of,
)
from traceflops.flops.ops.count import UNKNOWN
from traceflops.mfu.traced.work_tables import activity_flops
from traceflops.table.arrays import IntArray
from traceflops.table.columns import codes, is_one_of, matching, names, numbers
from traceflops.table.grouping import by_code, group_rows, group_sums
from traceflops.table.nesting import OpTree, taken

Refusal = Literal[
    "no-operator", "not-torch", "no-shapes", "unread-argument", "unknown-type", "no-collective"
]
"""
no-operator      no operator is recorded around the launch
not-torch        an operator of an extension, or generated code: only its library runs it
no-shapes        the profiler did not record shapes
unread-argument  an argument is no tensor, number, flag, word or list of numbers
unknown-type     PyTorch has no random values of a tensor's type, or the type is not recorded
no-collective    PyTorch has no call of such a collective, or not of that type, on equal parts
"""
MEMORY_FORMATS: Final = (
    *("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
)
"""PyTorch's memory formats by number."""
_FIRST_TYPES: Final = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
TORCH_TYPES: Final = dict(enumerate(_FIRST_TYPES)) | {
    9: "complex64",
    10: "complex128",
    11: "bool",
    15: "bfloat16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
    27: "uint16",
    28: "uint32",
    29: "uint64",
}
"""PyTorch's types by number, of which it has random values."""
_NUMBERS_OF: Final = {"type": {*TORCH_TYPES}, "format": {*range(len(MEMORY_FORMATS))}}
"""The numbers that arguments of a kind may have."""
_ROWS_OF: Final = {
    **dict.fromkeys(("aten::embedding", "aten::embedding_bag", "aten::index_select"), (0, 0)),
    **dict.fromkeys(("aten::cross_entropy_loss", "aten::nll_loss_nd", "aten::nll_loss"), (0, 1)),
    "aten::nll_loss_forward": (0, 1),
    "aten::nll_loss_backward": (1, 1),
}
"""The tensor by position, and its dimension, that the indices of an operator point into."""
_ATEN: Final = re.compile(r"aten::[a-z0-9_]{1,100}")
_UNTOLD: Final = ("aten::to", "aten::_to_copy", "aten::contiguous", "aten::type_as", "aten::einsum")
"""Operators that are not repeated as a whole: their recorded arguments do not say what they do."""
_INDEXED: Final = frozenset({"aten::index", "aten::index_put", "aten::index_put_"})
"""Operators whose second argument is a list of indices, which recordings may lack."""
_WORD: Final = re.compile(r"[A-Za-z0-9_,.>+*() -]{1,100}")
_CPP_TYPES: Final = ("c10::", "long", "float", "double", "int", "bool", "unsigned")
_TEXTS: Final = msgspec.json.Decoder(list[Any])


class TensorList(Struct, frozen=True):
    """A list of tensors. Profilers do not record their types."""

    tensors: tuple[Tensor, ...]


Argument = Tensor | TensorList | Value | str


class Call(Struct, frozen=True):
    """Equal calls of one operator in the chosen windows: `count` of them took `sum_ns` on devices.

    `kernels` are the names of their kernels, the longest first. Of one call, `flops` are the FLOPs
    and `min_bytes` the least bytes moved; `dtype` is the data type of its matrix product. None:
    unknown. A call that cannot be repeated has no `arguments` but the reason `refused`.
    """

    op: str | None
    count: int
    sum_ns: int
    device: int
    kernels: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    refused: Refusal | None = None
    flops: int | None = None
    min_bytes: int | None = None
    dtype: str | None = None

    @property
    def mean_ns(self) -> int:
        """Return the device time of one call."""
        return self.sum_ns // self.count


def calls(analysis: Analysis) -> tuple[Call, ...]:
    """Return the calls behind the kernels of the chosen windows, the longest first.

    Kernels of communication are left out. The times of the calls add up to those of the kernels.
    """
    ops = analysis.prepared.trace.ops
    kernels = _KernelRows.of(analysis)
    # Kernels on one device whose repeated ops have equal names and arguments are of equal calls;
    # of those without an op, kernels of one name.
    arguments_of_op = [taken(codes(ops[name]), kernels.op) for name in ("name", *READERS)]
    name = np.where(kernels.op < 0, kernels.name, -1)
    group, first = group_rows([kernels.device, name, *arguments_of_op])
    sums = group_sums(group, kernels.ns, len(first))
    rows_of = np.split(by_code(group), np.cumsum(np.bincount(group, minlength=len(first)))[:-1])
    found = []
    for number in np.argsort(-sums, kind="stable").tolist():
        call, op = kernels.call(rows_of[number]), int(kernels.op[first[number]])
        found.append(call if op < 0 else with_arguments(call, ops.slice(op, 1)))
    return tuple(found)


class _KernelRows(Struct, frozen=True):
    """The kernels of the chosen windows, a row each; -1 and UNKNOWN stand for what is not known.

    op       op that repeats it
    launcher innermost op around its launch
    name     code of its name in `names`
    dtype    code in `dtypes` of the data type of the product that it is part of
    flops    FLOPs of its op, at the op's main kernel
    moved    least bytes that the launcher moves
    """

    op: IntArray
    launcher: IntArray
    device: IntArray
    ns: IntArray
    name: IntArray
    dtype: IntArray
    flops: IntArray
    moved: IntArray
    names: list[str]
    dtypes: list[str]

    @classmethod
    def of(cls, analysis: Analysis) -> _KernelRows:
        """Return the kernels of an analysis, without those of communication."""
        prepared, executed = analysis.prepared, analysis.measured.executed
        activities, chosen, ops = prepared.trace.activities, prepared.chosen, prepared.trace.ops
        categorised = prepared.linked.categorised
        top = np.array(categorised.top(), dtype=np.str_)[categorised.category]
        is_asked = is_one_of(activities["kind"], "kernel", "op") & (top != "communication")
        asked = np.flatnonzero(is_asked[chosen.row])
        row = chosen.row[asked]
        launcher, work = ops_that_launched(prepared, row), executed.attribution.work
        dtype_of_op, dtypes = types_of_ops(prepared, executed.attribution)
        return cls(
            op=taken(outermost(ops), launcher),
            launcher=launcher,
            device=numbers(activities["device"])[row],
            ns=chosen.inside_ns[asked],
            name=codes(activities["name"])[row],
            dtype=taken(dtype_of_op, executed.attribution.owner)[row],
            flops=activity_flops(executed)[row],
            moved=taken(work.of_ops(work.min_bytes), launcher, UNKNOWN),
            names=names(activities["name"]),
            dtypes=dtypes,
        )

    def call(self, rows: IntArray) -> Call:
        """Return the call that some kernels are of, as one without an operator."""
        ops, first = np.unique(self.launcher[rows], return_index=True)
        is_known = ops[0] >= 0
        count = len(np.unique(self.op[rows])) if is_known else len(rows)
        moved = self.moved[rows[first]]
        flops, dtype = self.flops[rows], self.dtype[rows]
        return Call(
            op=None,
            count=count,
            sum_ns=int(self.ns[rows].sum()),
            device=int(self.device[rows[0]]),
            kernels=self._longest_names(rows),
            refused="no-operator",
            flops=int(flops[flops > 0].sum()) // count if (flops > 0).any() else None,
            min_bytes=int(moved.sum()) // count if (moved != UNKNOWN).all() else None,
            dtype=self.dtypes[int(dtype.max())] if dtype.max() >= 0 else None,
        )

    def _longest_names(self, rows: IntArray) -> tuple[str, ...]:
        """Return the names of some kernels, that with the most time first."""
        group, first = group_rows([self.name[rows]])
        order = np.argsort(-group_sums(group, self.ns[rows], len(first)), kind="stable")
        return tuple(self.names[code] for code in self.name[rows[first[order]]].tolist())


def outermost(ops: pa.Table) -> IntArray:
    """Return, per op, the outermost `aten::` op around it, which repeats its kernels, or itself."""
    is_aten = matching(ops["name"], _ATEN.fullmatch) & ~is_one_of(ops["name"], *_UNTOLD)
    parent = OpTree.of(ops).parent
    outer = np.arange(len(parent))
    while True:
        above = parent[outer]
        climbs = taken(is_aten.astype(np.int64), above, 0) == 1
        if not climbs.any():
            return outer
        outer = np.where(climbs, above, outer)


def with_arguments(call: Call, op: pa.Table) -> Call:
    """Return a call with the arguments of an op, a table of one row, or why it has none."""
    recorded = op.to_pylist()[0]
    call = replace(call, op=recorded["name"], refused=None)
    if not _ATEN.fullmatch(recorded["name"]):
        return replace(call, refused="not-torch")
    if recorded["name"] == "aten::einsum":  # texts, such as its equation, are not recorded
        return replace(call, refused="unread-argument")
    if not recorded["input_dims"]:
        return replace(call, refused="no-shapes")
    given = arguments_of(recorded)
    texts = _texts(recorded["concrete_inputs"])
    values = [_argument(given, position, texts) for position in range(len(given.shapes))]
    refused = next((value for value in values if isinstance(value, _Refused)), None)
    if refused is not None:
        return replace(call, refused=refused.reason)
    if recorded["name"] in _INDEXED and len(values) > 1 and values[1] is None:
        return replace(call, refused="unread-argument")
    for position, (_, kind) in keywords(recorded["name"], len(values)).items():
        value = values[position] if position < len(values) else None
        allowed = _NUMBERS_OF.get(kind or "")
        if allowed is not None and type(value) is int and value not in allowed:
            return replace(call, refused="unread-argument")
    return replace(call, arguments=tuple(values))


class _Refused(Struct, frozen=True):
    reason: Refusal


def _argument(given: Arguments, position: int, texts: Sequence[Any]) -> Argument | _Refused:
    """Return an argument of an op by its position; `texts` are the recorded values."""
    tensors, tensor = given.tensors(position), given.tensor(position)
    if tensors is not None:
        return TensorList(tensors)
    if tensor is not None and tensor.type is not None:
        return tensor if tensor.type.number in TORCH_TYPES else _Refused("unknown-type")
    name = given.types[position] if position < len(given.types) else ""
    if name.endswith("List") and not name.startswith("Scalar"):
        return _Refused("no-shapes")
    if given.shapes[position] or name.startswith(_CPP_TYPES):
        return _Refused("unknown-type")
    value = given.value(position)
    if not isinstance(value, Unreadable):
        return value
    text = texts[position] if position < len(texts) else None
    is_word = isinstance(text, str) and _WORD.fullmatch(text)
    return text if is_word else _Refused("unread-argument")


def _texts(text: str | None) -> list[Any]:
    try:
        return _TEXTS.decode(text or "[]")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []


def dense(shape: Shape) -> Shape:
    """Return the strides of a dense tensor in the order of its dimensions."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def index_bound(call: Call, position: int) -> int | None:
    """Return the bound of the random integers of a tensor at a position, None for other types.

    Indices fit the dimension that they point into, else the smallest one of tensors of numbers.
    """
    tensor = call.arguments[position]
    if not isinstance(tensor, Tensor) or not _is_integer(tensor):
        return None
    others = [t for t in call.arguments if isinstance(t, Tensor) and not _is_integer(t)]
    sizes = [size for other in others for size in other.shape if size > 0]
    which, dim = _ROWS_OF.get(call.op or "", (-1, -1))
    table = call.arguments[which] if 0 <= which < len(call.arguments) else None
    if isinstance(table, Tensor) and len(table.shape) > dim:
        return max(table.shape[dim], 1)
    return min(sizes, default=2)


def _is_integer(tensor: Tensor) -> bool:
    name = TORCH_TYPES.get(tensor.type.number or 0, "") if tensor.type is not None else ""
    return "int" in name


@cache
def _keywords() -> Mapping[str, str]:
    text = (files("traceflops.repro") / "keywords.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def keywords(op: str, count: int) -> Mapping[int, tuple[str, str | None]]:
    """Return, by position, the name and kind of the arguments of an op that are given by name.

    The kind is `type`, `format` or `layout` if profilers write it as a number, `text` if they do
    not write it. `count` is the number of arguments that were recorded; older recordings may lack
    the last ones.
    """
    schemas = ((count + more, _keywords().get(f"{op} {count + more}")) for more in range(4))
    total, text = next(((n, text) for n, text in schemas if text is not None), (count, ""))
    names_ = [word.partition(":") for word in text.split()]
    first = total - len(names_)
    return {first + place: (name, kind or None) for place, (name, _, kind) in enumerate(names_)}

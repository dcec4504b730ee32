"""What `export_chrome_trace` of torch.autograd.profiler wrote in PyTorch 0.4 to 1.8.

It is a list of events without categories. Operators have the process `CPU functions`. After each
come an arrow and its device work, with the process `CUDA functions` (`XPU functions` and others in
ports). Device work lasts from a CUDA event before the operator to one after it, so that of nested
operators is nested. Later versions write the same list without device work. Ranges of the user are
among the operators (`ranges_from_ops`), as in Kineto files of some versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.shared.trace_builder import chosen
from traceflops.remedies import LEGACY
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT
from traceflops.table.grouping import distinct, joint_codes
from traceflops.table.nesting import OpTree, innermost_pieces
from traceflops.table.trace import Note
from traceflops.units import several

OPS: Final = "CPU functions"
WORK: Final = "device functions"
ARROWS: Final = "cpu_to_device"
CATEGORIES: Final = frozenset({OPS, WORK, ARROWS})
"""The names that are used here as categories of these events."""
_INSTEAD: Final = "torch.profiler (PyTorch 1.8.1 or later)"
_NOTES: Final = NoteTable(
    assumed={
        "operator-times": "GPU times are those between two events around each operator "
        f"({LEGACY}): they include gaps between its kernels, which are not recorded. {_INSTEAD} "
        "records kernels."
    },
    missing={
        "no-calls": (
            f"{LEGACY} records no runtime calls, so the cause of idle time is unknown.",
            f"Record with {_INSTEAD}.",
        ),
        "no-shapes": f"{LEGACY} exports no shapes, so FLOPs cannot be counted. Record with "
        f"{_INSTEAD} and record_shapes=True.",
        "no-device-work": (
            "The file has no GPU operations{shown}.",
            f"If the program uses a GPU, record with {_INSTEAD} and "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
        ),
        "no-device-work arrows": (
            "The operators launched {work}, whose times are not in the file{shown}.",
            f"Record them with {_INSTEAD}.",
        ),
    },
)
_OF_DEVICE: Final = re.compile(r"\w{1,20} functions")
_ARROW: Final = re.compile(r"cpu_to_\w{1,20}")
_COPIED: Final = ("thread", "start_ns", "dur_ns")
_BACKWARD: Final = re.compile(r"\w+Backwards?\d*")
"""The name of a node of autograd, which has no namespace."""


def category(event: Any) -> str:
    """Return the category of an event: its own, or one of CATEGORIES; "" if it has none."""
    if event.cat.__class__ is str:
        return ARROWS if _ARROW.fullmatch(event.cat) else event.cat
    if event.cat is not None or event.ph != "X" or event.pid.__class__ is not str:
        return ""
    if event.pid == OPS:
        return OPS
    return WORK if _OF_DEVICE.fullmatch(event.pid) else ""


def number_ops(events: Sequence[Any], categories: Sequence[str]) -> int:
    """Number the operators of a block (`id`), give device work its operator's number; return count.

    Device work gets the number of
    1. the last operator of the block before (-1), if the block has no operator before the work;
    2. the last operator before the work, if the arrow between them confirms that;
    3. no operator (ABSENT) otherwise.
    """
    count = 0
    op: Any = None
    arrow_start: Any = None
    last_arrow: Any = None
    for event, kind in zip(events, categories, strict=True):
        if kind == OPS:
            op = event
            arrow_start = None
            event.id = count
            count += 1
        elif kind == ARROWS:
            last_arrow = event
            if event.ph == "s":
                arrow_start = event
        elif kind == WORK and op is None:
            event.id = -1
        elif kind == WORK:
            # The arrow starts at the operator, and its end, just before the work, has the same id.
            is_of_op = (
                arrow_start is not None
                and (arrow_start.ts, arrow_start.tid) == (op.ts, op.tid)
                and arrow_start.id == last_arrow.id
            )
            event.id = count - 1 if is_of_op else ABSENT
    return count


def without_nested_work(table: TableBuilder) -> TableBuilder:
    """Return device work in pieces: at each time only the work of the innermost operator."""
    columns = {name: table.column(name) for name in ("process", "device", "name", "external_id")}
    # Work without an operator is of kind kernel, all other work of kind op.
    kernel, op = table.names["kind"].codes(("kernel", "op"))
    columns["kind"] = np.where(columns["external_id"] == ABSENT, kernel, op)
    start = table.column("start_ns")
    # Work of row 0 at 0-10, of row 1 at 2-4  ->  row [0 1 0], begins [0 2 4], ends [2 4 10]
    row, begins, ends = innermost_pieces(columns["device"], start, start + table.column("dur_ns"))
    flat = TableBuilder(table.table)
    flat.names = table.names
    flat.add(
        len(row),
        **{name: values[row] for name, values in columns.items()},
        start_ns=begins,
        dur_ns=ends - begins,
    )
    return flat


def ranges_from_ops(tables: Mapping[str, TableBuilder]) -> None:
    """Move ranges from the operators to the marks, in place, as annotations.

    A range is host code around operators, as `record_function` makes it:
    1. Its name has no namespace (`aten::`).
    2. Its name is not that of a node of autograd (`AddBackward0`).
    3. It has no inputs and no sequence number.
    4. It has operators inside, or another one with this name, for which 3 holds, has some.
    Before PyTorch 1.6 no operator had a namespace: then there are no ranges.
    """
    ops, marks = tables["ops"], tables["marks"]
    labels = list(ops.names["name"])
    has_namespace = np.array(["::" in label for label in labels], dtype=np.bool_)
    if has_namespace.all() or not has_namespace.any():
        return
    of_autograd = np.array([_BACKWARD.fullmatch(label) is not None for label in labels], np.bool_)
    name = ops.column("name")
    may_be_range = ~(has_namespace | of_autograd)[name]  # rules 1 and 2, per operator
    may_be_range &= (ops.column("input_dims") == -1) & (ops.column("sequence") == ABSENT)  # 3
    # Rule 4: which names have other operators inside, at least once? Parents are rows of `ops`:
    # name [a b a], parent [-1 0 -1]: row 0 is a parent, so the name a, and rows 0 and 2, are ranges
    process, thread, start, dur = (ops.column(column) for column in ("process", *_COPIED))
    parent = OpTree.nested(joint_codes(process, thread), start, start + dur).parent
    parents = distinct(parent[parent >= 0])
    parent_names = name[parents[may_be_range[parents]]]
    is_parent_name = np.bincount(parent_names, minlength=len(labels)) > 0
    is_range = may_be_range & is_parent_name[name]
    if not is_range.any():
        return
    codes = {}
    for column in ("process", "name"):
        texts = list(ops.names[column])
        range_texts = (texts[code] for code in ops.column(column)[is_range].tolist())
        codes[column] = marks.names[column].codes(range_texts)
    times = {column: ops.column(column)[is_range] for column in _COPIED}
    kind = marks.names["kind"]["annotation"]
    marks.add(int(np.count_nonzero(is_range)), **codes, **times, kind=kind)
    chosen(ops, ~is_range)


def content_notes(tables: Mapping[str, pa.Table], arrows: int, shown: str) -> Iterator[Note]:
    """Yield the notes on what the format lacks; `shown` tells what reports show instead of work."""
    if tables["activities"].num_rows:
        yield _NOTES.note("operator-times", tables["activities"].num_rows)
        yield _NOTES.note("no-calls")
    elif arrows:
        work = several(arrows, "GPU operation")
        yield _NOTES.note("no-device-work arrows", work=work, shown=shown)
    else:
        yield _NOTES.note("no-device-work", shown=shown)
    if tables["ops"]["input_dims"].null_count == tables["ops"].num_rows:
        yield _NOTES.note("no-shapes")

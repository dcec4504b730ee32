"""What `export_chrome_trace` of torch.autograd.profiler wrote in PyTorch 0.4 to 1.8.

A list of events without categories: operators of `CPU functions` and, behind each, its arrow and
time on each device, of `CUDA functions` (`XPU functions` and others in ports). These times are
those between two CUDA events around the operator, so operators inside one another have times
inside one another. Later versions write the same list without times of devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.pytorch.values import trailing_integer
from traceflops.remedies import LEGACY
from traceflops.table.builder import TableBuilder, with_numbers
from traceflops.table.columns import ABSENT, Rows
from traceflops.table.nesting import first_of_same, innermost_pieces
from traceflops.table.trace import Note
from traceflops.units import several

OPS: Final = "CPU functions"
WORK: Final = "device functions"
ARROWS: Final = "cpu_to_device"
CATEGORIES: Final = frozenset({OPS, WORK, ARROWS})
"""What counts as the category of these events."""
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


def category(event: Any) -> str:
    """Return what an event is that has no category of Kineto's: "" if nothing of this format."""
    if event.cat.__class__ is str:
        return ARROWS if _ARROW.fullmatch(event.cat) else event.cat
    if event.cat is not None or event.ph != "X" or event.pid.__class__ is not str:
        return ""
    if event.pid == OPS:
        return OPS
    return WORK if _OF_DEVICE.fullmatch(event.pid) else ""


def number_ops(events: Sequence[Any], categories: Sequence[str]) -> int:
    """Set the id of each operator to its number, of device work to its operator's number.

    Return how many operators there are. The operator of the work is the last one before it, which
    its arrow confirms; -1 is the last one of the text before, and ABSENT none.
    """
    count = 0
    op: Any = None
    arrow: Any = None
    last: Any = None
    for event, kind in zip(events, categories, strict=True):
        if kind == OPS:
            op, arrow, event.id = event, None, count
            count += 1
        elif kind == ARROWS:
            last, arrow = event, event if event.ph == "s" else arrow
        elif kind == WORK:
            own = op is None or (
                arrow is not None and (arrow.ts, arrow.tid, arrow.id) == (op.ts, op.tid, last.id)
            )
            event.id = count - 1 if own else ABSENT
    return count


def add_ids(args: Sequence[Any], events: Sequence[Any], of_device: bool) -> None:
    """Copy ids and devices of events into their arguments."""
    for of_event, event in zip(args, events, strict=True):
        of_event.external_id = event.id
        if of_device:
            of_event.device = trailing_integer(event.tid)


def move_ids(rows: Rows, before: int) -> None:
    """Shift the operator numbers of a block by the operators before it."""
    for count, columns in rows.pieces:
        ids = np.asarray(columns.get("external_id", ABSENT), dtype=np.int64)
        moved = np.where(ids == ABSENT, ABSENT, ids + before)
        columns["external_id"] = np.broadcast_to(np.where(moved < 0, ABSENT, moved), count)


def without_nested_work(table: TableBuilder) -> TableBuilder:
    """Return work of devices of which at each time only that of the innermost operator is left."""
    columns = {name: table.column(name) for name in ("process", "device", "name", "external_id")}
    kinds, external = table.names["kind"].codes(("kernel", "op")), columns["external_id"]
    columns["kind"] = np.where(external == ABSENT, kinds[0], kinds[1])
    start = table.column("start_ns")
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


def linked_to_ops(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the activities with the rows of their operators, as activities of operators have."""
    activities, ops = tables["activities"], tables["ops"]
    row = first_of_same(ops, "external_id", activities)
    return with_numbers(activities, "correlation", np.where(row >= 0, -1 - row, ABSENT))


def use_old_spelling(args: Sequence[Any]) -> None:
    """Put `Input dims` where `Input Dims` is; such files write [] for what was not recorded."""
    for of_event in args:
        if of_event.old_input_dims:
            texts = (of_event.old_input_dims, of_event.input_types)
            of_event.input_dims, of_event.input_types = (
                text if bytes(text).strip(b"[] ") else msgspec.Raw(b"") for text in texts
            )


def content_notes(tables: Mapping[str, pa.Table], arrows: int, shown: str) -> Iterator[Note]:
    """Return what the format lacks; `arrows` are those that begin at operators."""
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

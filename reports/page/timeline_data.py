"""The boxes of a timeline as bytes: a header in JSON, then columns of numbers, all in gzip.

Numbers of a column take as many bytes as the largest one needs. A column has the lowest byte of all
numbers, then the next byte of all: the higher bytes are mostly 0 and compress to almost nothing.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

import numpy as np

from traceflops.drawing.coarsening import Boxes
from traceflops.drawing.lanes import TABLE_OF, Kind
from traceflops.drawing.timeline import Budget, Drawable, Level, Timeline
from traceflops.reports.page.timeline_figures import Known, Pieces
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.recorded_shapes import shape_words
from traceflops.reports.view.short_names import short_labels
from traceflops.table.columns import ABSENT, IntArray, codes, names
from traceflops.table.grouping import group_rows
from traceflops.table.nesting import taken
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

Places = tuple[IntArray, Mapping[tuple[int, int], Intervals]]
"""The critical path: its activities, and its intervals by process and thread."""
_Numbers = defaultdict[str, int]
"""The number of each text; a new text gets the next one."""

_MOST_PACKED: Final = 1_420_000
"""Bytes after compression; Base64 in the page takes a third more."""

_MOST_TEXT: Final = 1_000_000  # bytes of texts before compression
_NAME_WIDTHS: Final = (2_000, 400, 120, 48, 24)
_SHAPES_WIDTH: Final = 400
_NO_CAUSE: Final = (-1, -1)
HOST_LOOKS: Final = ("annotation", "module", "python", "op", "call")
LOOK_NAMES: Final = (*LOOKS, *HOST_LOOKS)
"""The looks of boxes, in the order of their numbers: components, then host events."""


def packed(
    prepared: Prepared,
    drawable: Drawable,
    extra: Mapping[str, Any],
    flops: IntArray,
    path: Places | None = None,
) -> tuple[Timeline, bytes]:
    """Return a timeline as detailed as fits the page, and its bytes with `extra` in the header.

    `flops` are per activity, `path` is the critical path. A timeline that is still too large at
    1/64 of the usual detail is returned nevertheless.
    """
    share, known = 1.0, Known(prepared, drawable.outline, flops)
    while True:  # reduce the budget of boxes and texts until all fits
        timeline = drawable.within(Budget().times(share))
        content = _bytes(prepared, timeline, extra, int(_MOST_TEXT * share), path, known)
        size = len(zlib.compress(content, 6))
        if size <= _MOST_PACKED or share < 1 / 64:
            return timeline, content
        # Reduce by at least 30 %, as not all bytes shrink with the budget.
        share *= min(0.9 * _MOST_PACKED / size, 0.7)


def _bytes(
    prepared: Prepared,
    timeline: Timeline,
    extra: Mapping[str, Any],
    most_text: int,
    path: Places | None,
    known: Known,
) -> bytes:
    """Return a timeline before compression: 4 bytes of header length, the header, the columns.

    The header is JSON with `extra`, texts of about `most_text` bytes at most, and the offset and
    width of each column. `known` makes the figures of levels.
    """
    number_of: _Numbers = defaultdict(count().__next__)
    kinds = [lane.kind for lane in timeline.lanes]
    boxes = [level.boxes for level in timeline.levels]
    # Lane and row of the boxes of all levels, one level after the other.
    all_boxes = np.concatenate([b.lane for b in boxes]), np.concatenate([b.row for b in boxes])
    what, what_rows = _whats(prepared, kinds, all_boxes, number_of)
    cause, cause_rows = _causes(prepared, kinds, all_boxes, number_of)
    levels, columns, begin = [], bytearray(), 0
    for level in timeline.levels:
        of_level = slice(begin, begin + len(level.boxes))
        begin = of_level.stop
        level_header = _level(level, len(kinds), columns)
        level_header["what"] = _add(columns, what[of_level])
        level_header["cause"] = _add(columns, cause[of_level])
        if path is not None:
            level_header["path"] = _add(columns, _on_path(timeline, level.boxes, path))
        level_header["launch"] = _add(columns, _launches(prepared, kinds, level.boxes))
        level_header["counters"] = _counters(level, columns)
        figures = known.of(level, complete=not timeline.left_out.work)
        level_header["figures"] = {"bin": figures.bin_ns}
        for name in ("idle", "kernels", "parts", "flops"):
            pieces_of = getattr(figures, name).items()
            level_header["figures"][name] = {d: _pieces(pieces, columns) for d, pieces in pieces_of}
        levels.append(level_header)
    header = {
        **extra,
        "levels": levels,
        "whats": what_rows,
        "causes": cause_rows,
        "keys": [(number_of[words], number_of[name]) for words, name in known.keys],
        "texts": _shortened(list(number_of), most_text),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(4, "little") + text + columns


def _shortened(texts: Sequence[str], most_bytes: int) -> list[str]:
    """Return all texts, cut to the largest width at which they fit, or the least."""
    for width in _NAME_WIDTHS:
        # Shortening is slow: skip a width at which the texts cannot fit.
        least_bytes = sum(min(len(text), width) for text in texts)
        if least_bytes > most_bytes and width != _NAME_WIDTHS[-1]:
            continue
        shown = short_labels(texts, width)
        if sum(len(text.encode()) for text in shown) <= most_bytes:
            break
    return shown


def _pieces(pieces: Pieces, columns: bytearray) -> dict[str, Any]:
    """Append the columns of pieces of time; return where they are. Starts follow `base`."""
    base = int(pieces.start_ns[0]) if len(pieces.start_ns) else 0
    return {
        "base": base,
        "count": len(pieces.start_ns),
        "after": _add(columns, np.diff(pieces.start_ns, prepend=base)),
        "ns": _add(columns, pieces.ns),
        "key": _add(columns, pieces.key),
    }


def _counters(level: Level, columns: bytearray) -> list[dict[str, Any]]:
    """Append the columns of the counters of a level; return where they are."""
    return [
        {
            "base": int(counts.start_ns[0]) if len(counts.start_ns) else 0,
            "count": len(counts.start_ns),
            "length": _add(columns, counts.end_ns - counts.start_ns),
            "most": _add(columns, counts.most),
            "falls": _add(columns, counts.most - counts.least),  # smaller numbers than `least`
        }
        for counts in level.counters.values()
    ]


def _add(columns: bytearray, values: IntArray) -> list[int]:
    """Append a column of non-negative numbers; return its offset and the bytes of a number."""
    width = max((int(values.max()).bit_length() + 7) // 8, 1) if len(values) else 1
    bytes_of_value = values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
    offset = len(columns)
    columns += np.ascontiguousarray(bytes_of_value.T).tobytes()
    return [offset, width]


def _level(level: Level, lanes: int, columns: bytearray) -> dict[str, Any]:
    """Append the columns of the boxes of a level; return where they are.

    Small numbers compress well: a start is stored as the time since the end of the box before it in
    its lane; of the first box of a lane, since `base`.
    """
    boxes = level.boxes
    base = int(boxes.start_ns.min()) if len(boxes) else level.span.start_ns
    previous_end = np.full(len(boxes), base, dtype=np.int64)
    follows = np.flatnonzero(boxes.lane[1:] == boxes.lane[:-1]) + 1
    previous_end[follows] = boxes.end_ns[follows - 1]
    length = boxes.end_ns - boxes.start_ns
    return {
        "span": [level.span.start_ns, level.span.end_ns],
        "base": base,
        "lanes": np.bincount(boxes.lane, minlength=lanes).tolist(),
        "gap": _add(columns, boxes.start_ns - previous_end),
        "length": _add(columns, length),
        "more": _add(columns, boxes.count - 1),
        "idle": _add(columns, length - boxes.busy_ns),
    }


def _launches(prepared: Prepared, kinds: Sequence[Kind], boxes: Boxes) -> IntArray:
    """Return a code per box that leads from an activity to its launch call; 0 if there is no way.

    Both must have a box of their own. The code is 1 + the zigzag of the distance, in boxes, from
    the launch call of the activity before to this one's (for the first: from box 0). Zigzag maps
    0, -1, 1, -2 to 0, 1, 2, 3. Neighbours are mostly launched by neighbours, so codes are small.
    """
    kind = np.where(boxes.count == 1, np.array(kinds)[boxes.lane], "")  # "" for merged events
    activity_box, call_box = np.flatnonzero(kind == "stream"), np.flatnonzero(kind == "call")
    call_box = call_box[np.argsort(boxes.row[call_box])]
    call = prepared.linked.links.call_of_activity[boxes.row[activity_box]]
    # Find the box of each activity's launch call by its row in the table of calls.
    place = np.searchsorted(boxes.row[call_box], call)
    launch_box = taken(call_box, np.where(place < len(call_box), place, -1))
    is_launched = call >= 0
    has_box = is_launched & (taken(boxes.row, launch_box, -2) == call)
    code = np.zeros(len(boxes), dtype=np.int64)
    distance = np.diff(launch_box[has_box], prepend=0)
    code[activity_box[has_box]] = 1 + ((distance << 1) ^ (distance >> 63))
    return code


def _on_path(timeline: Timeline, boxes: Boxes, path: Places) -> IntArray:
    """Return 1 for each box on the critical path, else 0; a host event by half its time."""
    path_rows, path_of_thread = path
    kinds = np.array([lane.kind for lane in timeline.lanes])[boxes.lane]
    is_on_path: IntArray = ((kinds == "stream") & np.isin(boxes.row, path_rows)).astype(np.int64)
    for number, lane in enumerate(timeline.lanes):
        thread = ABSENT if lane.track is None else lane.track
        on_path = path_of_thread.get((lane.process, thread)) if lane.kind != "stream" else None
        if on_path is not None:
            # Boxes are ordered by lane.
            of_lane = slice(*np.searchsorted(boxes.lane, [number, number + 1]).tolist())
            start, end = boxes.start_ns[of_lane], boxes.end_ns[of_lane]
            origin = timeline.origin_ns[lane.process]
            path_ns = on_path.length_within(start + origin, end + origin)
            is_on_path[of_lane] = (path_ns > 0) & (2 * path_ns >= end - start)
    return is_on_path


def _by_kind(
    kinds: Sequence[Kind], boxes: tuple[IntArray, IntArray]
) -> Iterable[tuple[Kind, IntArray, IntArray]]:
    """Yield each kind of lane with the indices of its boxes (lane, row) and their table rows."""
    lane, row = boxes
    kind_numbers = {kind: number for number, kind in enumerate(TABLE_OF)}
    kind_of_box = np.array([kind_numbers[kind] for kind in kinds], dtype=np.int64)[lane]
    for kind, number in kind_numbers.items():
        of_kind = np.flatnonzero(kind_of_box == number)
        if len(of_kind):
            yield kind, of_kind, row[of_kind]


def _whats(
    prepared: Prepared, kinds: Sequence[Kind], boxes: tuple[IntArray, IntArray], number_of: _Numbers
) -> tuple[IntArray, list[tuple[int, int, int]]]:
    """Return a number per box for what it is, and by number: texts of name, category; its look."""
    trace, categorised = prepared.trace, prepared.linked.categorised
    what = np.zeros(len(boxes[0]), dtype=np.int64)
    rows: list[tuple[int, int, int]] = []
    for kind, of_kind, row in _by_kind(kinds, boxes):
        table = trace.table(TABLE_OF[kind])
        # A key distinguishes events with the same name: a category, the kind of a mark, an API.
        # `looks` has the look and the category in words of each key.
        key, looks = np.zeros(table.num_rows, dtype=np.int64), [("op", "op")]
        if kind == "stream":
            key, categories = categorised.category, categorised.categories
            looks = [(c.top, f"{c.top}, {c.sub.replace('_', ' ')}") for c in categories]
        elif TABLE_OF[kind] == "marks":
            key, looks = codes(table["kind"]), [(name, name) for name in names(table["kind"])]
        elif kind == "call":
            key = codes(table["api"])
            looks = [("call", f"{api} call") for api in names(table["api"])]
        box_name, box_key = codes(table["name"])[row], key[row]
        group, first = group_rows([box_name, box_key])
        what[of_kind] = group + len(rows)  # continues the numbers of earlier kinds
        labels = names(table["name"])
        pairs = zip(box_name[first].tolist(), box_key[first].tolist(), strict=True)
        for name_code, key_code in pairs:
            look, category = looks[key_code]
            look_number = LOOK_NAMES.index(look if look in LOOK_NAMES else "other")
            rows.append((number_of[labels[name_code]], look_number, number_of[category]))
    return what, rows


def _causes(
    prepared: Prepared, kinds: Sequence[Kind], boxes: tuple[IntArray, IntArray], number_of: _Numbers
) -> tuple[IntArray, list[tuple[int, int]]]:
    """Return a number per box for the operator that caused it, 0 for none, and its texts by number.

    Texts are the numbers of the operator's name and input shapes, -1 if unknown. The name is also
    -1 for the box of an operator itself, as its box already has it.
    """
    links, ops = prepared.linked.links, prepared.trace.ops
    cause = np.zeros(len(boxes[0]), dtype=np.int64)
    rows: list[tuple[int, int]] = [_NO_CAUSE]
    op_of = {"stream": links.op_of_activity, "call": links.op_of_call}
    name, shapes = codes(ops["name"]), codes(ops["input_dims"])
    labels, dims = names(ops["name"]), names(ops["input_dims"])
    for kind, of_kind, row in _by_kind(kinds, boxes):
        if TABLE_OF[kind] == "marks":
            continue  # nothing links them to an op
        is_op = kind == "op"
        op = row if is_op else op_of[kind][row]
        has_op = op >= 0
        op = op[has_op]
        # Boxes of the same operator and shapes have the same number.
        name_of_box = np.full(len(op), -1) if is_op else name[op]
        group, first = group_rows([name_of_box, shapes[op]])
        cause[of_kind[has_op]] = group + len(rows)
        for op_row in op[first].tolist():
            label = -1 if is_op else number_of[labels[name[op_row]]]
            shape = -1
            if shapes[op_row] >= 0:
                shape = number_of[shape_words(dims[shapes[op_row]], _SHAPES_WIDTH)]
            rows.append((label, shape))
    return cause, rows

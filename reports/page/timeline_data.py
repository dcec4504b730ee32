"""The boxes of a timeline as bytes: a header in JSON, then columns of numbers, then gzip.

A column is as wide as its largest number needs, and stored byte by byte: the lowest byte of all
numbers, then the next one. Most of those are 0 and cost next to nothing once compressed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from traceflops.drawing.coarsening import Boxes
from traceflops.drawing.lanes import TABLE_OF, Kind
from traceflops.drawing.timeline import Budget, Drawable, Level, Timeline
from traceflops.reports.page.timeline_figures import Known
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.recorded_shapes import shape_words
from traceflops.reports.view.short_names import short_labels
from traceflops.table.columns import ABSENT, IntArray, codes, names
from traceflops.table.grouping import group_rows
from traceflops.table.nesting import taken
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

Places = tuple[IntArray, Mapping[tuple[int, int], Intervals]]

_MOST_PACKED: Final = 1_420_000
"""Bytes after compression; as text in the page they are a third more."""

_MOST_TEXT: Final = 1_000_000  # bytes of texts before compression
_NAME_WIDTHS: Final = (2_000, 400, 120, 48, 24)
_SHAPES_WIDTH: Final = 400
_NO_CAUSE: Final = (-1, -1)
HOST_LOOKS: Final = ("annotation", "module", "python", "op", "call")
LOOK_NAMES: Final = (*LOOKS, *HOST_LOOKS)
"""What boxes can look like, by the numbers that the bytes hold: components, then host events."""


class _Texts:
    """Numbers texts, and shortens them until all fit."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """Return the number of a text; a new text gets the next one."""
        return self._places.setdefault(text, len(self._places))

    def shown(self, most_bytes: int) -> list[str]:
        """Return all texts by number, cut to the largest width at which they fit, or the least."""
        for width in _NAME_WIDTHS:
            # Shortening is slow: skip a width at which the texts cannot fit.
            least = sum(min(len(text), width) for text in self._places)
            if least > most_bytes and width != _NAME_WIDTHS[-1]:
                continue
            shown = short_labels(list(self._places), width)
            if sum(len(text.encode()) for text in shown) <= most_bytes:
                break
        return shown


def packed(
    prepared: Prepared,
    drawable: Drawable,
    extra: Mapping[str, Any],
    flops: IntArray,
    path: Places | None = None,
) -> tuple[Timeline, bytes]:
    """Return a timeline as detailed as fits the page, and its bytes with `extra` in their header.

    `flops` are per activity. `path` is the critical path: its activities, and intervals by thread.
    A timeline that is still too large at 1/64 of the usual detail is returned as it is.
    """
    share, known = 1.0, Known(prepared, drawable.outline, flops)
    while True:  # with a smaller budget of boxes and texts until it fits
        timeline = drawable.within(Budget().times(share))
        content = _bytes(prepared, timeline, extra, int(_MOST_TEXT * share), path, known)
        size = len(zlib.compress(content, 6))
        if size <= _MOST_PACKED or share < 1 / 64:
            return timeline, content
        # Aim a little lower, and by at least 30 %: not all bytes shrink with the budget.
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

    The header is JSON with `extra`, texts of at most about `most_text` bytes, and the place and
    width of each column. `path` is the critical path, `known` has the figures of boxes.
    """
    texts = _Texts()
    kinds = [lane.kind for lane in timeline.lanes]
    boxes = [level.boxes for level in timeline.levels]
    # Lane and row of the boxes of all levels, one level after the other.
    all_boxes = np.concatenate([b.lane for b in boxes]), np.concatenate([b.row for b in boxes])
    what, what_rows = _whats(prepared, kinds, all_boxes, texts)
    cause, cause_rows = _causes(prepared, kinds, all_boxes, texts)
    levels, columns, begin = [], bytearray(), 0
    for level in timeline.levels:
        of_level = slice(begin, begin + len(level.boxes))
        begin = of_level.stop
        header = _level(level, len(kinds), columns)
        header["what"] = _add(columns, what[of_level])
        header["cause"] = _add(columns, cause[of_level])
        if path is not None:
            header["path"] = _add(columns, _on_path(timeline, level.boxes, path))
        header["launch"] = _add(columns, _launches(prepared, kinds, level.boxes))
        header["counters"] = _counters(level, columns)
        figures = known.of(level, complete=not timeline.left_out.work)
        header["figures"] = {"bin": figures.bin_ns}
        for name in ("idle", "kernels", "parts", "flops"):
            of_device = header["figures"][name] = {}
            for device, pieces in getattr(figures, name).items():
                base = int(pieces.start_ns[0]) if len(pieces.start_ns) else 0
                of_device[device] = {
                    "base": base,
                    "count": len(pieces.start_ns),
                    "after": _add(columns, np.diff(pieces.start_ns, prepend=base)),
                    "ns": _add(columns, pieces.ns),
                    "key": _add(columns, pieces.key),
                }
        levels.append(header)
    header = {
        **extra,
        "levels": levels,
        "whats": what_rows,
        "causes": cause_rows,
        "keys": [(texts.place(words), texts.place(name)) for words, name in known.names],
        "texts": texts.shown(most_text),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(4, "little") + text + columns


def _counters(level: Level, columns: bytearray) -> list[dict[str, Any]]:
    """Add the columns of the counters of a level; return where they are."""
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
    """Append a column of non-negative numbers, byte plane by byte plane; return place and width."""
    width = max((int(values.max()).bit_length() + 7) // 8, 1) if len(values) else 1
    planes = values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
    place = len(columns)
    columns += np.ascontiguousarray(planes.T).tobytes()
    return [place, width]


def _level(level: Level, lanes: int, columns: bytearray) -> dict[str, Any]:
    """Add the columns of the boxes of a level; return where they are.

    A start is stored as the gap after the box before in its lane, and in each lane's first box as
    the time since `base`: small numbers compress well.
    """
    boxes = level.boxes
    base = int(boxes.start_ns.min()) if len(boxes) else level.span.start_ns
    before = np.full(len(boxes), base, dtype=np.int64)
    follows = np.flatnonzero(boxes.lane[1:] == boxes.lane[:-1]) + 1
    before[follows] = boxes.end_ns[follows - 1]
    length = boxes.end_ns - boxes.start_ns
    return {
        "span": [level.span.start_ns, level.span.end_ns],
        "base": base,
        "lanes": np.bincount(boxes.lane, minlength=lanes).tolist(),
        "gap": _add(columns, boxes.start_ns - before),
        "length": _add(columns, length),
        "more": _add(columns, boxes.count - 1),
        "idle": _add(columns, length - boxes.busy_ns),
    }


def _launches(prepared: Prepared, kinds: Sequence[Kind], boxes: Boxes) -> IntArray:
    """Return for each box of one activity how to find its launch call, 0 if that has no own box.

    The first such activity has 1 + the code of its call's place among all boxes, later ones 1 + the
    code of the distance to the call before. The code (zigzag: 0, -1, 1, -2 -> 0, 1, 2, 3) keeps
    numbers small, since neighbours are mostly launched by neighbouring calls.
    """
    kind = np.where(boxes.count == 1, np.array(kinds)[boxes.lane], "")  # "" for merged events
    activities, calls = np.flatnonzero(kind == "stream"), np.flatnonzero(kind == "call")
    calls = calls[np.argsort(boxes.row[calls])]
    call = prepared.linked.links.call_of_activity[boxes.row[activities]]
    # The box of each activity's launch call, found by its row in the table of calls.
    place = np.searchsorted(boxes.row[calls], call)
    place = taken(calls, np.where(place < len(calls), place, -1))
    has_box = (call >= 0) & (taken(boxes.row, place, -2) == call)
    code = np.zeros(len(boxes), dtype=np.int64)
    away = np.diff(place[has_box], prepend=0)
    code[activities[has_box]] = 1 + ((away << 1) ^ (away >> 63))
    return code


def _on_path(timeline: Timeline, boxes: Boxes, path: Places) -> IntArray:
    """Return 1 for each box on the critical path (of a thread: for half its time), else 0."""
    rows, threads = path
    kinds = np.array([lane.kind for lane in timeline.lanes])[boxes.lane]
    is_on_path: IntArray = ((kinds == "stream") & np.isin(boxes.row, rows)).astype(np.int64)
    for number, lane in enumerate(timeline.lanes):
        track = ABSENT if lane.track is None else lane.track
        spans = threads.get((lane.process, track)) if lane.kind != "stream" else None
        if spans is not None:
            # Boxes are ordered by lane.
            of_lane = slice(*np.searchsorted(boxes.lane, [number, number + 1]).tolist())
            start, end = boxes.start_ns[of_lane], boxes.end_ns[of_lane]
            origin = timeline.origin_ns[lane.process]
            inside = spans.length_within(start + origin, end + origin)
            is_on_path[of_lane] = (inside > 0) & (2 * inside >= end - start)
    return is_on_path


def _by_kind(
    kinds: Sequence[Kind], boxes: tuple[IntArray, IntArray]
) -> Iterable[tuple[Kind, IntArray, IntArray]]:
    """Yield each kind of lane with the numbers of its boxes (lane, row) and their table rows."""
    lane, row = boxes
    kind_numbers = {kind: number for number, kind in enumerate(TABLE_OF)}
    kind_of_box = np.array([kind_numbers[kind] for kind in kinds], dtype=np.int64)[lane]
    for kind, number in kind_numbers.items():
        of_kind = np.flatnonzero(kind_of_box == number)
        if len(of_kind):
            yield kind, of_kind, row[of_kind]


def _whats(
    prepared: Prepared, kinds: Sequence[Kind], boxes: tuple[IntArray, IntArray], texts: _Texts
) -> tuple[IntArray, list[tuple[int, int, int]]]:
    """Return what each box is as a number, and by it texts of name and category, and a look."""
    trace, categorised = prepared.trace, prepared.linked.categorised
    what = np.zeros(len(boxes[0]), dtype=np.int64)
    rows: list[tuple[int, int, int]] = []
    for kind, of_kind, row in _by_kind(kinds, boxes):
        table = trace.table(TABLE_OF[kind])
        # Events of one name are told apart by a key: a category, the kind of a mark, an interface.
        # By the key a look and a text.
        key, shown = np.zeros(table.num_rows, dtype=np.int64), [("op", "op")]
        if kind == "stream":
            key, categories = categorised.category, categorised.categories
            shown = [(c.top, f"{c.top}, {c.sub.replace('_', ' ')}") for c in categories]
        elif TABLE_OF[kind] == "marks":
            key, shown = codes(table["kind"]), [(name, name) for name in names(table["kind"])]
        elif kind == "call":
            key = codes(table["api"])
            shown = [("call", f"{api} call") for api in names(table["api"])]
        name, second = codes(table["name"])[row], key[row]
        group, first = group_rows([name, second])
        what[of_kind] = group + len(rows)  # numbers continue those of the kinds before
        labels = names(table["name"])
        for code, other in zip(name[first].tolist(), second[first].tolist(), strict=True):
            look, category = shown[other]
            number = LOOK_NAMES.index(look if look in LOOK_NAMES else "other")
            rows.append((texts.place(labels[code]), number, texts.place(category)))
    return what, rows


def _causes(
    prepared: Prepared, kinds: Sequence[Kind], boxes: tuple[IntArray, IntArray], texts: _Texts
) -> tuple[IntArray, list[tuple[int, int]]]:
    """Return the cause of each box as a number, and by that number the op and its input shapes.

    Ops and shapes are numbers of texts, -1 if unknown; 0 is no cause. The op of an op itself is
    not repeated.
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
        op = row if kind == "op" else op_of[kind][row]
        of_kind, op = of_kind[op >= 0], op[op >= 0]
        # For an op the shapes alone count: its box already has the name.
        group, first = group_rows([np.full(len(op), -1) if kind == "op" else name[op], shapes[op]])
        cause[of_kind] = group + len(rows)
        for one in op[first].tolist():
            label = -1 if kind == "op" else texts.place(labels[name[one]])
            known = shapes[one] >= 0
            text = shape_words(dims[shapes[one]], _SHAPES_WIDTH) if known else ""
            rows.append((label, texts.place(text) if known else -1))
    return cause, rows

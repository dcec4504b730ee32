"""The boxes of a timeline as bytes: a header in JSON, then columns of numbers, then gzip.

A column is as wide as its largest number needs, and stored byte by byte: the lowest byte of all
numbers, then the next one. Most of those are 0 and cost next to nothing once compressed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from traceflops.drawing.lanes import TABLE_OF, Kind
from traceflops.drawing.timeline import Budget
from traceflops.reports.page.timeline_figures import Known, Pieces
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.wording import shape_words
from traceflops.table.columns import ABSENT, IntArray, codes, names
from traceflops.table.grouping import group_rows
from traceflops.table.nesting import taken

if TYPE_CHECKING:
    from traceflops.drawing.coarsening import Boxes
    from traceflops.drawing.timeline import Drawable, Level, Timeline
    from traceflops.timeline.intervals import Intervals
    from traceflops.windows.prepared import Prepared

    Places = tuple[IntArray, Mapping[tuple[int, int], Intervals]]

_MOST_PACKED: Final = 1_420_000
"""Bytes after compression; as text in the page they are a third more."""

_MOST_TEXT: Final = 1_000_000
"""Bytes of texts before compression."""
_NAME_WIDTHS: Final = (2_000, 400, 120, 48, 24)
_SHAPES_WIDTH: Final = 400
_NO_CAUSE: Final = (-1, -1)
HOST_LOOKS: Final = ("annotation", "module", "python", "op", "call")
LOOK_NAMES: Final = (*LOOKS, *HOST_LOOKS)
"""What boxes can look like, by the numbers that the bytes hold: components, then host events."""


class _Texts:
    """Numbers distinct texts, and then gives them no longer than fits."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    def shown(self, most_bytes: int) -> list[str]:
        for width in _NAME_WIDTHS:
            # No text becomes shorter than this, so there is no need to look at each.
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
    """Return a timeline as detailed as fits its page, and its bytes, with `extra` in its header.

    `flops` are of each activity; `path` is what is on the critical path: activities, and stretches
    of threads.
    """
    share, known = 1.0, Known(prepared, drawable.outline, flops)
    while True:
        timeline = drawable.within(Budget().times(share))
        content = _bytes(prepared, timeline, extra, int(_MOST_TEXT * share), path, known)
        size = len(zlib.compress(content, 6))
        if size <= _MOST_PACKED or share < 1 / 64:
            return timeline, content
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

    The header is JSON and includes `extra`; its texts have at most about `most_text` bytes. Each
    column is named in the header. `path` is the critical path, `known` has the figures of boxes.
    """
    texts = _Texts()
    kinds = [lane.kind for lane in timeline.lanes]
    boxes = [level.boxes for level in timeline.levels]
    whole = np.concatenate([b.lane for b in boxes]), np.concatenate([b.row for b in boxes])
    what, what_rows = _whats(prepared, kinds, whole, texts)
    cause, cause_rows = _causes(prepared, kinds, whole, texts)
    levels, columns, at = [], bytearray(), 0
    for level in timeline.levels:
        mine = slice(at, at := at + len(level.boxes))
        header = _level(level, len(kinds), columns)
        header["what"] = _add(columns, what[mine])
        header["cause"] = _add(columns, cause[mine])
        if path is not None:
            header["path"] = _add(columns, _on_path(timeline, level.boxes, path))
        header["launch"] = _add(columns, _launches(prepared, kinds, level.boxes))
        header["counters"] = [
            {
                "base": int(counts.start_ns[0]) if len(counts.start_ns) else 0,
                "count": len(counts.start_ns),
                "length": _add(columns, counts.end_ns - counts.start_ns),
                "most": _add(columns, counts.most),
                "falls": _add(columns, counts.most - counts.least),
            }
            for counts in level.counters.values()
        ]
        figures = known.of(level, complete=not timeline.left_out.work)
        header["figures"] = {"bin": figures.bin_ns} | {
            name: {device: _pieces(pieces, columns) for device, pieces in of_device.items()}
            for name, of_device in (
                ("idle", figures.idle),
                ("kernels", figures.kernels),
                ("parts", figures.parts),
                ("flops", figures.flops),
            )
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


def _add(columns: bytearray, values: IntArray) -> list[int]:
    """Add a column of numbers that are not negative; return its place and its width in bytes."""
    width = max((int(values.max()).bit_length() + 7) // 8, 1) if len(values) else 1
    planes = values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
    place = len(columns)
    columns += np.ascontiguousarray(planes.T).tobytes()
    return [place, width]


def _level(level: Level, lanes: int, columns: bytearray) -> dict[str, Any]:
    """Return where the columns of a level are: gaps before boxes, their lengths and counts."""
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
    """Return where the launch call of each activity is among the boxes; both have their own box.

    0 where it is not, else from 1 on by how far from that of the activity before: 0, -1, 1, -2.
    """
    kind = np.where(boxes.count == 1, np.array(kinds)[boxes.lane], "")
    mine, calls = np.flatnonzero(kind == "stream"), np.flatnonzero(kind == "call")
    calls = calls[np.argsort(boxes.row[calls])]
    call = prepared.linked.links.call_of_activity[boxes.row[mine]]
    place = np.searchsorted(boxes.row[calls], call)
    place = taken(calls, np.where(place < len(calls), place, -1))
    is_there = (call >= 0) & (taken(boxes.row, place, -2) == call)
    found = np.zeros(len(boxes), dtype=np.int64)
    away = np.diff(place[is_there], prepend=0)
    found[mine[is_there]] = 1 + ((away << 1) ^ (away >> 63))
    return found


def _on_path(timeline: Timeline, boxes: Boxes, path: Places) -> IntArray:
    """Return 1 for work on the critical path, and for what threads did there half of its time."""
    rows, threads = path
    kinds = np.array([lane.kind for lane in timeline.lanes])[boxes.lane]
    found: IntArray = ((kinds == "stream") & np.isin(boxes.row, rows)).astype(np.int64)
    for number, lane in enumerate(timeline.lanes):
        track = ABSENT if lane.track is None else lane.track
        spans = threads.get((lane.process, track)) if lane.kind != "stream" else None
        if spans is not None:
            mine = slice(*np.searchsorted(boxes.lane, [number, number + 1]).tolist())
            start, end = boxes.start_ns[mine], boxes.end_ns[mine]
            origin = timeline.origin_ns[lane.process]
            inside = spans.length_within(start + origin, end + origin)
            found[mine] = (inside > 0) & (2 * inside >= end - start)
    return found


def _pieces(pieces: Pieces, columns: bytearray) -> dict[str, Any]:
    base = int(pieces.start_ns[0]) if len(pieces.start_ns) else 0
    return {
        "base": base,
        "count": len(pieces.start_ns),
        "after": _add(columns, np.diff(pieces.start_ns, prepend=base)),
        "ns": _add(columns, pieces.ns),
        "key": _add(columns, pieces.key),
    }


def _by_kind(
    kinds: Sequence[Kind], boxes: tuple[IntArray, IntArray]
) -> Iterable[tuple[Kind, IntArray, IntArray]]:
    """Give, by kind of lane, the places of its boxes and the rows of its table."""
    lane, row = boxes
    places = {kind: number for number, kind in enumerate(TABLE_OF)}
    number = np.array([places[kind] for kind in kinds], dtype=np.int64)[lane]
    for kind, wanted in places.items():
        mine = np.flatnonzero(number == wanted)
        if len(mine):
            yield kind, mine, row[mine]


def _whats(
    prepared: Prepared, kinds: Sequence[Kind], boxes: tuple[IntArray, IntArray], texts: _Texts
) -> tuple[IntArray, list[tuple[int, int, int]]]:
    """Return what each box is, and of each of those its name, its look and its category."""
    what = np.zeros(len(boxes[0]), dtype=np.int64)
    rows: list[tuple[int, int, int]] = []
    for kind, mine, row in _by_kind(kinds, boxes):
        table = prepared.trace.table(TABLE_OF[kind])
        keys, looks = _second_key(prepared, kind)
        name, second = codes(table["name"])[row], keys[row]
        group, first = group_rows([name, second])
        what[mine] = group + len(rows)
        labels = names(table["name"])
        for code, other in zip(name[first].tolist(), second[first].tolist(), strict=True):
            look, category = looks[other]
            rows.append((texts.place(labels[code]), look, texts.place(category)))
    return what, rows


def _second_key(prepared: Prepared, kind: Kind) -> tuple[IntArray, list[tuple[int, str]]]:
    """Return what tells rows of one name apart: a category, the kind of a mark, an interface.

    Those are numbers; with them comes, by number, a look and a category in words.
    """
    trace = prepared.trace
    if kind == "stream":
        categorised = prepared.linked.categorised
        looks = [
            (_look(category.top), f"{category.top}, {category.sub.replace('_', ' ')}")
            for category in categorised.categories
        ]
        return categorised.category, looks
    if TABLE_OF[kind] == "marks":
        column = trace.marks["kind"]
        return codes(column), [(_look(name), name) for name in names(column)]
    if kind == "call":
        column = trace.calls["api"]
        return codes(column), [(_look("call"), f"{api} call") for api in names(column)]
    return np.zeros(trace.ops.num_rows, dtype=np.int64), [(_look("op"), "op")]


def _look(name: str) -> int:
    return LOOK_NAMES.index(name) if name in LOOK_NAMES else LOOK_NAMES.index("other")


def _causes(
    prepared: Prepared, kinds: Sequence[Kind], boxes: tuple[IntArray, IntArray], texts: _Texts
) -> tuple[IntArray, list[tuple[int, int]]]:
    """Return the cause of each box, and of each of those the op and its shapes, -1 for none."""
    links, ops = prepared.linked.links, prepared.trace.ops
    cause = np.zeros(len(boxes[0]), dtype=np.int64)
    rows: list[tuple[int, int]] = [_NO_CAUSE]
    of_kind = {"stream": links.op_of_activity, "call": links.op_of_call}
    name, shapes = codes(ops["name"]), codes(ops["input_dims"])
    labels, dims = names(ops["name"]), names(ops["input_dims"])
    for kind, mine, row in _by_kind(kinds, boxes):
        if TABLE_OF[kind] == "marks":
            continue
        op = row if kind == "op" else of_kind[kind][row]
        mine, op = mine[op >= 0], op[op >= 0]
        group, first = group_rows([np.full(len(op), -1) if kind == "op" else name[op], shapes[op]])
        cause[mine] = group + len(rows)
        for one in op[first].tolist():
            label = -1 if kind == "op" else texts.place(labels[name[one]])
            known = shapes[one] >= 0
            text = shape_words(dims[shapes[one]], _SHAPES_WIDTH) if known else ""
            rows.append((label, texts.place(text) if known else -1))
    return cause, rows

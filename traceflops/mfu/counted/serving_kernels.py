"""Work of a serving engine's kernels that an operator's shapes tell only in part.

Attention on cached keys   Shapes tell the FLOPs of a pair of query and key. How many pairs a pass
                           has, its annotation tells: with a window only the most.
Products of experts        Routing tells the rows, the operator around it the hidden size. The grid
                           tells how many tiles of columns there are, so the width of an expert to
                           within a tile; both products must fit the hidden size, else nothing is
                           known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.attribution import UNKNOWN_TYPE
from traceflops.flops import Arguments, arguments_of, matrix_type, total_bytes
from traceflops.mfu.counted.joins import HOW, Matched
from traceflops.mfu.counted.launches import (
    UNKNOWN,
    CachedKeys,
    Kind,
    Launches,
    LaunchWork,
    WorkPart,
)
from traceflops.mfu.forward_passes import annotated_passes, places_in
from traceflops.mfu.traced.coverage import compute_kernels
from traceflops.table import IntArray, Note, groups, joint_codes, matching, numbers, taken
from traceflops.units import several
from traceflops.windows import Prepared

_ATTENTION: Final = "model.attention.forward"
_PRODUCT: Final = "model.matmul.forward"
_TYPES: Final = ("bf16", "fp16")
_MOST: Final = 2**62
"""Counts beyond it fit no int64: what has so many cannot be."""


@dataclass(frozen=True, slots=True)
class _Cached:
    """Operators of attention on cached keys: where query, key and value stand.

    `windowed` says that a window, which no argument shows, may hide keys.
    """

    name: re.Pattern[str]
    places: tuple[int, int, int]
    windowed: bool


_CACHED: Final = (
    _Cached(re.compile(r"vllm::unified_attention(?:_with_output)?"), (0, 1, 2), windowed=True),
    _Cached(
        re.compile(r"(?:\w{1,40}::)?(?:\w{1,80}_)?paged_attention_ragged(?:_[0-9]{1,9})?"),
        (2, 3, 4),
        windowed=False,
    ),
)

_EXPERTS: Final = re.compile(r"vllm::moe_forward(?:_shared)?")
_ROUTING: Final = "TopK"
_EXPERT: Final = re.compile(
    r"_matmul_ogs_[NT]{3}_[a-z0-9]{1,16}?x([a-z0-9]{1,16}?)x[a-z0-9]{1,16}"
    r"_([0-9]{1,6})x([0-9]{1,6})x[0-9]{1,6}x1(_swiglu)?"
)
"""Type of the rows, rows and columns of a tile; not of a product in pieces along K (not x1)."""


_TEXTS: Final = {
    "keys-from-annotation": "Attention over cached keys ({} of the pair): the annotation of the "
    "decode pass gives the number of keys; without one, FLOPs are unknown.",
    "window-unknown": "A sliding window, which is not recorded, may hide keys from {} of "
    "attention: the FLOPs are an upper bound.",
    "experts-by-grid": "Products of experts ({} of the pair): their grid gives the size of an "
    "expert to within one tile, so FLOPs are a range. The number of experts in use is not "
    "recorded, so bytes are unknown.",
}
"""What to say of launches whose work is not from shapes alone."""


def serving_kinds(pair: Prepared, launches: Launches) -> dict[int, Kind]:
    """Return what launches of a recording did, by place in `launches`; those not known are left."""
    op = pair.linked.links.op_of_activity[launches.row]
    compute = compute_kernels(pair)[launches.row]
    found: dict[int, Kind] = {}
    for wanted, kinds in ((_cached, _attention), (_EXPERTS.fullmatch, _experts)):
        around = np.where(compute, taken(_nearest(pair, wanted), op), -1)
        for one, mine in groups(around):
            if one >= 0:
                found |= kinds(pair, launches, one, mine)
    return {at: kind for at, kind in found.items() if _fits(kind)}


def _fits(kind: Kind) -> bool:
    return all(part.flops < _MOST for part in kind)


def _nearest(pair: Prepared, wanted: Callable[[str], object]) -> IntArray:
    """Return, per op, the nearest op of such a name around it, itself included, or -1."""
    return pair.linked.op_tree.nearest(matching(pair.trace.ops["name"], wanted))


def _cached(name: str) -> _Cached | None:
    return next((one for one in _CACHED if one.name.fullmatch(name)), None)


def _arguments(pair: Prepared, op: int) -> Arguments:
    return arguments_of(pair.trace.ops.slice(op, 1).to_pylist()[0])


def _attention(pair: Prepared, _: Launches, op: int, mine: IntArray) -> dict[int, Kind]:
    """Return the kinds of the kernels of an attention: the first computes, the others help it."""
    rule = _cached(pair.trace.ops["name"][op].as_py())
    tensors = _arguments(pair, op).given(*rule.places) if rule is not None else []
    if rule is None or len(tensors) < len(rule.places) or any(len(t.shape) < 3 for t in tensors):
        return {}
    q, k, v = tensors
    each = 2 * q.shape[-2] * (q.shape[-1] + v.shape[-1])
    own = total_bytes(q.bytes, q.like((*q.shape[:-1], v.shape[-1])).bytes)
    per_key = total_bytes(*(one.like(one.shape[-2:]).bytes for one in (k, v)))
    known = not rule.windowed and own is not None and per_key is not None
    part = WorkPart(
        line=_ATTENTION,
        dtype=matrix_type(q, k) or UNKNOWN_TYPE,
        flops=each,
        at_least=0 if rule.windowed else each,
        cached=CachedKeys(own, per_key) if known else CachedKeys(),
    )
    return dict.fromkeys(mine.tolist(), ()) | {int(mine[0]): (part,)}


def _experts(pair: Prepared, launches: Launches, op: int, mine: IntArray) -> dict[int, Kind]:
    """Return the kinds of the two products of experts; none where their grids do not fit."""
    label = [launches.names[code] for code in launches.name[mine].tolist()]
    both = [(at, found) for at, name in enumerate(label) if (found := _EXPERT.fullmatch(name))]
    routing = _routing(pair, op)
    if len(both) != 2 or routing is None:
        return {}
    (up, first), (down, second) = both
    rows, experts, hidden = routing
    wide, narrow = (
        _columns(int(launches.grid_axes[mine[at], 0]), rows, experts, found) for at, found in both
    )
    fits = wide and narrow and narrow[0] <= hidden <= narrow[1] and first[4] and not second[4]
    if not (wide and fits):
        return {}
    least, most = wide
    sizes = {
        up: (hidden * least, hidden * most),
        down: (hidden * -(-least // 2), hidden * (most // 2)),
    }
    return {
        int(mine[at]): (WorkPart(_PRODUCT, _type(found), 2 * rows * high, 2 * rows * low),)
        for (at, found), (low, high) in zip(both, sizes.values(), strict=True)
    }


def _type(found: re.Match[str]) -> str:
    return found[1] if found[1] in _TYPES else UNKNOWN_TYPE


def _routing(pair: Prepared, op: int) -> tuple[int, int, int] | None:
    """Return the rows of all experts together, how many these are, and the hidden size."""
    hidden = _arguments(pair, op).given(0, 1)
    below = np.flatnonzero(pair.linked.op_tree.parent == op)
    chosen = [row for row in below.tolist() if pair.trace.ops["name"][row].as_py() == _ROUTING]
    if len(hidden) < 2 or len(chosen) != 1:
        return None
    routed = _arguments(pair, chosen[0])
    logits, each = routed.given(0), routed.integer(1)
    if not logits or not each or logits[0].shape != hidden[1].shape or len(hidden[0].shape) != 2:
        return None
    tokens, experts = logits[0].shape
    return tokens * each, experts, hidden[0].shape[1]


def _columns(grid: int, rows: int, experts: int, found: re.Match[str]) -> tuple[int, int] | None:
    """Return the least and the most columns of a product, by how many tiles it was launched with.

    There are tiles of rows for the worst case of routing: an expert with one row has a whole tile.
    """
    high, wide = int(found[2]), int(found[3])
    tall = rows if rows <= experts else experts - 1 + -(-(rows - experts + 1) // high)
    if grid <= 0 or not tall or not wide or grid % tall:
        return None
    return (grid // tall - 1) * wide + 1, grid // tall * wide


def serving_notes(work: LaunchWork) -> Iterator[Note]:
    """Yield what the kinds of a recording's launches rest on."""
    times = np.bincount(work.kind[work.kind >= 0], minlength=len(work.kinds)).tolist()
    counts = Counter[str]()
    for kind, count in zip(work.kinds, times, strict=True):
        for part in kind:
            is_open = part.at_least < part.flops
            counts["keys-from-annotation"] += count * (part.cached is not None)
            counts["window-unknown"] += count * (part.cached is not None and is_open)
            counts["experts-by-grid"] += count * (part.line == _PRODUCT and is_open)
    for code, count in (+counts).items():
        yield Note("assumed", code, _TEXTS[code].format(several(count, "launch")), count)


def of_passes(prepared: Prepared, launches: Launches, matched: Matched) -> Matched:
    """Return what launches did with the keys of the decode pass in which each was launched."""
    of_kind = [next((part.cached for part in kind if part.cached), None) for kind in matched.kinds]
    is_open = np.array([one is not None for one in of_kind] + [False], dtype=np.bool_)
    rows = np.flatnonzero(is_open[matched.kind])
    keys = _keys(prepared, launches.row[rows])
    kind, how, size = matched.kind.copy(), matched.how.copy(), matched.size.copy()
    kinds = list(matched.kinds)
    for (place, count), at in _by_pair(kind[rows], keys):
        cached, mine = of_kind[place], rows[at]
        done = tuple(part.times(count) for part in kinds[place])
        moved = cached.bytes(count) if cached is not None else UNKNOWN
        if count < 0 or not _fits(done):
            kind[mine], how[mine] = UNKNOWN, HOW.index("uncounted")
            continue
        kind[mine], size[mine] = len(kinds), moved if moved < _MOST else UNKNOWN
        kinds.append(done)
    return Matched(how, kind, tuple(kinds), size, matched.vector)


def _by_pair(first: IntArray, second: IntArray) -> Iterator[tuple[tuple[int, int], IntArray]]:
    """Yield each distinct pair of two columns and the rows that have it."""
    for _, at in groups(joint_codes(first, second)):
        yield (int(first[at[0]]), int(second[at[0]])), at


def _keys(prepared: Prepared, activities: IntArray) -> IntArray:
    """Return the keys that the pass of each activity attends to with one query per sequence."""
    passes = annotated_passes(prepared.trace)
    calls, call = prepared.trace.calls, prepared.linked.links.call_of_activity[activities]
    process, start = (taken(numbers(calls[name]), call) for name in ("process", "start_ns"))
    place = np.where(call >= 0, places_in(passes, process, start), -1)
    told = [
        one.keys if one.kind == "decode" and one.queries == one.sequences else None
        for one in (each.judged for each in passes)
    ]
    return np.array([UNKNOWN if one is None else one for one in (*told, None)])[place]

"""Work of a serving engine's kernels that an operator's shapes tell only in part.

Attention on cached keys   Shapes tell the FLOPs of a pair of query and key. How many pairs a pass
                           has, its annotation tells: with a window only the most.
Products of experts        The operator around them tells tokens, experts and hidden size, routing
                           or the grid the rows. The grid tells how many tiles of columns there are,
                           so the width of an expert to within a tile; both products must fit the
                           hidden size, else nothing is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceflops.attribution import UNKNOWN_TYPE, Attribution
from traceflops.flops import Arguments, Shape, arguments_of, matrix_type, total_bytes
from traceflops.mfu.counted.joins import HOW, Matched
from traceflops.mfu.counted.launches import (
    UNKNOWN,
    CachedKeys,
    Kind,
    Launches,
    LaunchWork,
    WorkPart,
    launches_of,
)
from traceflops.mfu.forward_passes import ForwardPass, JudgedPass, annotated_passes, places_in
from traceflops.mfu.traced.coverage import compute_kernels
from traceflops.table import (
    BoolArray,
    IntArray,
    Note,
    groups,
    joint_codes,
    matching,
    numbers,
    taken,
)
from traceflops.units import several
from traceflops.windows import Prepared

_ATTENTION: Final = "model.attention.forward"
_PRODUCT: Final = "model.matmul.forward"
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


@dataclass(frozen=True, slots=True)
class _Expert:
    """Products of experts by name: `rows` and `columns` of a tile, and which is `gated`: the first.

    `types` are data types, each by what `operands` has in it. `tall` says that the second axis of
    the grid counts the tiles of rows alone. Columns of the first are a multiple of `step`.
    """

    name: re.Pattern[str]
    types: tuple[tuple[str, str], ...]
    tall: bool = False
    step: int = 1


_PRODUCTS: Final = (
    # Triton kernels of OpenAI; not of a product in pieces along K (not x1).
    _Expert(
        re.compile(
            r"_matmul_ogs_[NT]{3}_[a-z0-9]{1,16}?x(?P<operands>[a-z0-9]{1,16}?)x[a-z0-9]{1,16}"
            r"_(?P<rows>[0-9]{1,6})x(?P<columns>[0-9]{1,6})x[0-9]{1,6}x1(?P<gated>_swiglu)?"
        ),
        (("bf16", "bf16"), ("fp16", "fp16")),
    ),
    # TensorRT-LLM, also in FlashInfer: A is the weights, so a tile's first size counts columns.
    # Eight bits beside four run at the rate of eight. The width of an
    # expert is a multiple of 128.
    _Expert(
        re.compile(
            r"bmm_[A-Za-z0-9]{1,16}_(?P<operands>[A-Za-z0-9]{0,16}E4m3[A-Za-z0-9]{0,16})_Fp32"
            r"_t(?P<columns>[0-9]{1,6})x(?P<rows>[0-9]{1,6})x\w{0,120}?_transOut\w{0,120}?"
            r"(?P<gated>_swiGlu)?_dynBatch_\w{0,40}"
        ),
        (("fp8", "E4m3"),),
        tall=True,
        step=256,
    ),
)


_TEXTS: Final = {
    "keys-from-annotation": "Attention over cached keys ({}): sums of lengths in the annotation "
    "of the pass give the pairs of query and key; without them, FLOPs are unknown.",
    "window-unknown": "A sliding window, which is not recorded, may hide keys from {} of "
    "attention: the FLOPs are an upper bound.",
    "experts-by-grid": "Products of experts ({}): their grid gives the size of an expert to "
    "within one tile, so FLOPs are a range. The number of experts in use is not recorded, so "
    "bytes are unknown.",
    "experts-exact": "Products of experts ({}): their grid gives the size of an expert and the "
    "number of experts per token, padding included. The number of experts in use is not "
    "recorded, so bytes are unknown.",
}
"""What to say of launches whose work is not from shapes alone."""


def own_work(prepared: Prepared, attribution: Attribution) -> LaunchWork | None:
    """Return what launches did whose operators' own shapes do not tell it, None of no launch."""
    launches = launches_of(prepared)
    nothing = np.full(launches.count, UNKNOWN, dtype=np.int64)
    is_open = attribution.owner[launches.row] < 0
    work = LaunchWork("shapes", launches, nothing, (), nothing, nothing)
    work = with_serving_kinds(prepared, work, is_open)
    return work if work.kinds else None


def with_serving_kinds(pair: Prepared, work: LaunchWork, is_open: BoolArray) -> LaunchWork:
    """Return work with what serving kernels did, of those launches that are open."""
    told = _serving_kinds(pair, work.launches, is_open)
    kind = work.kind.copy()
    kind[list(told)] = len(work.kinds) + np.arange(len(told))
    return replace(work, kind=kind, kinds=(*work.kinds, *told.values()))


def _serving_kinds(pair: Prepared, launches: Launches, is_open: BoolArray) -> dict[int, Kind]:
    """Return what launches of a recording did, by place in `launches`; those not known are left."""
    op = pair.linked.links.op_of_activity[launches.row]
    mine = compute_kernels(pair)[launches.row] & is_open
    layers = _of_ops(np.where(mine, taken(_nearest(pair, _EXPERTS.fullmatch), op), -1))
    found = dict(_experts([one for each in layers if (one := _layer(pair, launches, *each))]))
    for one in _of_ops(np.where(mine, taken(_nearest(pair, _cached), op), -1)):
        found |= _attention(pair, *one)
    return {at: kind for at, kind in found.items() if _fits(kind)}


def _of_ops(around: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each op, and the launches in it."""
    return ((op, mine) for op, mine in groups(around) if op >= 0)


def _fits(kind: Kind) -> bool:
    return all(part.flops < _MOST for part in kind)


def _nearest(pair: Prepared, wanted: Callable[[str], object]) -> IntArray:
    """Return, per op, the nearest op of such a name around it, itself included, or -1."""
    return pair.linked.op_tree.nearest(matching(pair.trace.ops["name"], wanted))


def _cached(name: str) -> _Cached | None:
    return next((one for one in _CACHED if one.name.fullmatch(name)), None)


def _arguments(pair: Prepared, op: int) -> Arguments:
    return arguments_of(pair.trace.ops.slice(op, 1).to_pylist()[0])


def _attention(pair: Prepared, op: int, mine: IntArray) -> dict[int, Kind]:
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


@dataclass(frozen=True, slots=True)
class _Product:
    """One of the two products of experts: its launch, rule, name and grid."""

    at: int
    rule: _Expert
    name: re.Match[str]
    grid: tuple[int, int]

    def tile(self, side: str) -> int:
        """Return the rows or the columns of a tile."""
        return int(self.name[side]) or 1

    def columns(self, rows: int, experts: int) -> tuple[int, int] | None:
        """Return the least and the most columns, by how many tiles it was launched with."""
        tall = _tall(rows, experts, self.tile("rows"))
        across, down = self.grid
        grid = across * (down if self.rule.tall else 1)
        if grid <= 0 or not tall or grid % tall or (self.rule.tall and down != tall):
            return None
        return (grid // tall - 1) * self.tile("columns") + 1, grid // tall * self.tile("columns")

    def part(self, rows: int, least: int, most: int) -> WorkPart:
        """Return the work of so many rows by at least and at most so many weights."""
        types = (dtype for dtype, word in self.rule.types if word in self.name["operands"])
        return WorkPart(_PRODUCT, next(types, UNKNOWN_TYPE), 2 * rows * most, 2 * rows * least)


def _tall(rows: int, experts: int, high: int) -> int:
    """Return the tiles of rows for the worst case: an expert with one row has a whole tile."""
    return rows if rows <= experts else experts + (rows - experts) // high


@dataclass(frozen=True, slots=True)
class _Layer:
    """The experts of one layer; `each` are the experts per token, None where no routing tells."""

    up: _Product
    down: _Product
    tokens: int
    experts: int
    hidden: int
    each: int | None

    @property
    def routings(self) -> set[tuple[int, int]] | None:
        """Return the experts that are here, and those per token, as they may be; None: any."""
        if self.each is not None:
            return {(self.experts, self.each)}
        if not self.up.rule.tall:
            return None
        tiles, high = self.up.grid[1], self.up.tile("rows")
        found = set[tuple[int, int]]()
        for here in (n for n in range(1, self.experts + 1) if not self.experts % n):
            least = tiles if tiles < here else here + (tiles - here) * high
            most = least if tiles < here else least + high - 1
            each = range(-(-least // self.tokens), most // self.tokens + 1)
            found |= {(here, one) for one in each if 0 < one <= self.experts}
        return found

    def kinds(self, rows: int) -> dict[int, Kind]:
        """Return the kinds of both products; none where their grids do not fit."""
        wide, narrow = (one.columns(rows, self.experts) for one in (self.up, self.down))
        if not wide or not narrow or not narrow[0] <= self.hidden <= narrow[1]:
            return {}
        step = self.up.rule.step
        least, most = -(-wide[0] // step) * step, wide[1] // step * step
        sizes = (self.hidden * least, self.hidden * most)
        halves = (self.hidden * -(-least // 2), self.hidden * (most // 2))
        return {
            self.up.at: (self.up.part(rows, *sizes),),
            self.down.at: (self.down.part(rows, *halves),),
        }


def _experts(layers: Sequence[_Layer]) -> Iterator[tuple[int, Kind]]:
    """Yield the kinds of products of experts, where all layers alike leave one routing."""
    alike: dict[tuple[int, int], set[tuple[int, int]] | None] = {}
    for layer in layers:
        model, mine = (layer.experts, layer.hidden), layer.routings
        known = alike.get(model)
        alike[model] = known if mine is None else mine if known is None else known & mine
    for layer in layers:
        left = list(alike[layer.experts, layer.hidden] or ())
        if len(left) == 1 and left[0][0] == layer.experts:  # else some experts are elsewhere
            yield from layer.kinds(layer.tokens * left[0][1]).items()


def _layer(pair: Prepared, launches: Launches, op: int, mine: IntArray) -> _Layer | None:
    """Return the experts of an op, None where it has no two products that belong together."""
    both = [found for at in mine.tolist() if (found := _product(launches, at)) is not None]
    tensors = _arguments(pair, op).given(0, 1)
    if len(both) != 2 or [bool(one.name["gated"]) for one in both] != [True, False]:
        return None
    if [len(one.shape) for one in tensors] != [2, 2] or not all(t.elements for t in tensors):
        return None
    (tokens, hidden), (_, experts) = (one.shape for one in tensors)
    return _Layer(*both, tokens, experts, hidden, _routing(pair, op, tensors[1].shape))


def _product(launches: Launches, at: int) -> _Product | None:
    name = launches.names[int(launches.name[at])]
    across, down = launches.grid_axes[at, :2].tolist()
    found = ((rule, match) for rule in _PRODUCTS if (match := rule.name.fullmatch(name)))
    return next((_Product(at, *one, (across, down)) for one in found), None)


def _routing(pair: Prepared, op: int, logits: Shape) -> int | None:
    """Return the experts per token that the routing below an op chooses; None if it is not told."""
    below = np.flatnonzero(pair.linked.op_tree.parent == op)
    chosen = [row for row in below.tolist() if pair.trace.ops["name"][row].as_py() == _ROUTING]
    if len(chosen) != 1:
        return None
    routed = _arguments(pair, chosen[0])
    fits = [one.shape for one in routed.given(0)] == [logits]
    return (routed.integer(1) or None) if fits else None


def serving_notes(work: LaunchWork, own: IntArray | None) -> Iterator[Note]:
    """Yield what the kinds of a recording's launches rest on; those of its `own` that are known."""
    known = work.kind >= 0 if own is None else (work.kind >= 0) & (own >= 0)
    times = np.bincount(work.kind[known], minlength=len(work.kinds)).tolist()
    counts = Counter[str]()
    for kind, count in zip(work.kinds, times, strict=True):
        for part in kind:
            is_open = part.at_least < part.flops
            counts["keys-from-annotation"] += count * (part.cached is not None)
            counts["window-unknown"] += count * (part.cached is not None and is_open)
            by_grid = "experts-by-grid" if is_open else "experts-exact"
            counts[by_grid] += count * (part.line == _PRODUCT and part.cached is None)
    for code, count in (+counts).items():
        yield Note("assumed", code, _TEXTS[code].format(several(count, "launch")), count)


def of_passes(prepared: Prepared, launches: Launches, matched: Matched) -> Matched:
    """Return what launches did with the keys of the pass in which each was launched."""
    of_kind = [next((part.cached for part in kind if part.cached), None) for kind in matched.kinds]
    is_open = np.array([one is not None for one in of_kind] + [False], dtype=np.bool_)
    rows = np.flatnonzero(is_open[matched.kind])
    passes = annotated_passes(prepared.trace)
    place = _pass_of(prepared, passes, launches.row[rows])
    kind, how, size = matched.kind.copy(), matched.how.copy(), matched.size.copy()
    kinds = list(matched.kinds)
    for _, at in groups(joint_codes(kind[rows], place)):
        mine, one = rows[at], int(kind[rows[at[0]]])
        judged = passes[place[at[0]]].judged if place[at[0]] >= 0 else JudgedPass()
        pairs, cached = _pairs(judged), of_kind[one]
        done = tuple(part.times(pairs or 0) for part in kinds[one])
        if pairs is None or cached is None or not _fits(done):
            kind[mine] = UNKNOWN
            how[mine] = np.where(how[mine] >= 0, HOW.index("uncounted"), -1)
            continue
        moved = UNKNOWN if judged.keys is None else cached.bytes(judged.keys)
        kind[mine], size[mine] = len(kinds), moved if moved < _MOST else UNKNOWN
        kinds.append(done)
    return Matched(how, kind, tuple(kinds), size, matched.vector)


def _pairs(judged: JudgedPass) -> int | None:
    """Return the pairs of query and key: with one query per sequence as many as keys."""
    alone = judged.kind == "decode" and judged.queries == judged.sequences
    return judged.keys if alone else judged.pairs


def _pass_of(prepared: Prepared, passes: tuple[ForwardPass, ...], activities: IntArray) -> IntArray:
    """Return the pass in which each activity was launched, -1 for none."""
    calls, call = prepared.trace.calls, prepared.linked.links.call_of_activity[activities]
    process, start = (taken(numbers(calls[name]), call) for name in ("process", "start_ns"))
    return np.where(call >= 0, places_in(passes, process, start), -1)

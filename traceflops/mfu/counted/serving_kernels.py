"""Work of a serving engine's kernels that an operator's shapes tell only in part.

Attention on cached keys   Shapes give the FLOPs of a pair of query and key, the annotation of the
                           pass the number of pairs (only the most if there is a window).
Products of experts        The grids of their launches give sizes (expert_products.py).

`paired_work` is the work of a paired recording, launch by launch, by its operators' shapes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.datatypes import operand_type, types_of_ops
from traceflops.attribution.op_kernels import Attribution, attribute
from traceflops.flops.ops.arguments import Arguments, Tensor
from traceflops.flops.ops.gemm import matrix_type
from traceflops.flops.ops.work import known_sum
from traceflops.mfu.counted.expert_products import EXPERTS, PRODUCT, arguments, expert_kinds
from traceflops.mfu.counted.joins import Matched
from traceflops.mfu.counted.launches import (
    UNKNOWN,
    CachedKeys,
    Kind,
    Launches,
    LaunchWork,
    WorkPart,
    launches_of,
)
from traceflops.mfu.forward_passes import JudgedPass, annotated_passes, places_in
from traceflops.mfu.roof_times import moved_bytes
from traceflops.mfu.traced.coverage import HOW, compute_kernels
from traceflops.mfu.traced.executed import parts_of
from traceflops.mfu.traced.work_tables import main_ops
from traceflops.table.columns import BoolArray, IntArray, matching, numbers
from traceflops.table.grouping import group_rows, groups, joint_codes
from traceflops.table.nesting import taken
from traceflops.table.trace import Note, note_of
from traceflops.windows.prepared import Prepared

_MOST: Final = 2**62  # larger counts are errors, and do not fit an int64


class _Cached(Struct, frozen=True):
    """Operators of attention on cached keys, by name.

    `places` are the positions of the arguments query, key and value. Keys and values have at least
    `rank` dimensions, as a cache consists of blocks. `heads` is the position of the number of key
    heads, for caches in another layout. `causal` is the position of a flag that the mask is causal;
    the argument after it is the number of earlier keys that a query sees (-1: all). If `causal` is
    None, a window may hide some keys, unless `no_window` is set.
    """

    name: re.Pattern[str]
    places: tuple[int, int, int]
    heads: int | None = None
    causal: int | None = None
    no_window: bool = False
    rank: int = 4

    def tensors(self, args: Arguments) -> list[Tensor]:
        """Return query, key and value; [] if they do not fit, or the mask is not causal."""
        tensors = args.given(*self.places)
        if len(tensors) < len(self.places):
            return []
        least_ranks = (3, self.rank, self.rank)
        if any(len(t.shape) < least for t, least in zip(tensors, least_ranks, strict=True)):
            return []
        if self.causal is not None and not args.boolean(self.causal):
            return []
        if self.heads is None:
            return tensors
        # Caches in another layout: an argument tells the heads, the query their size.
        size = (args.integer(self.heads) or 0, tensors[0].shape[-1])
        return [tensors[0], *(tensor.like(size) for tensor in tensors[1:])]


_CACHED: Final = (
    _Cached(re.compile(r"vllm::unified_attention(?:_with_output)?"), (0, 1, 2), rank=3),
    _Cached(re.compile(r"_vllm_fa2_C::varlen_fwd"), (0, 1, 2), causal=15),
    _Cached(re.compile(r"(?:_vllm_fa3_C|sgl_kernel)::fwd"), (0, 1, 2), causal=24),
    _Cached(re.compile(r"_C::paged_attention_v1"), (1, 2, 3), heads=4, no_window=True),
    _Cached(
        re.compile(r"_C::paged_attention_v2|_rocm_C::paged_attention|aiter::paged_attention_rocm"),
        (4, 5, 6),
        heads=7,
        no_window=True,
    ),
    _Cached(
        re.compile(r"(?:\w{1,40}::)?(?:\w{1,80}_)?paged_attention_ragged(?:_[0-9]{1,9})?"),
        (2, 3, 4),
        no_window=True,
    ),
)


def own_work(prepared: Prepared, attribution: Attribution) -> LaunchWork | None:
    """Return the work of serving kernels whose FLOPs no operator's shapes give; None without."""
    launches = launches_of(prepared)
    nothing = np.full(launches.count, UNKNOWN, dtype=np.int64)
    is_open = attribution.owner[launches.row] < 0
    work = LaunchWork("shapes", launches, nothing, (), nothing, nothing)
    work = with_serving_kinds(prepared, work, is_open)
    return work if work.kinds else None


def with_serving_kinds(pair: Prepared, work: LaunchWork, is_open: BoolArray) -> LaunchWork:
    """Return the work with that of serving kernels filled in, for launches with `is_open`."""
    launches, tree = work.launches, pair.linked.op_tree
    op, name = pair.linked.links.op_of_activity[launches.row], pair.trace.ops["name"]
    # Products of experts: the launches in each op that holds a layer with experts.
    layer_op = tree.nearest(matching(name, EXPERTS.fullmatch))
    layers = groups(np.where(is_open, taken(layer_op, op), -1))
    done = expert_kinds(pair, launches, ((row, launched) for row, launched in layers if row >= 0))
    # Attention on cached keys: the compute kernels in each attention op.
    attention_op = tree.nearest(matching(name, _cached))
    is_compute = compute_kernels(pair)[launches.row] & is_open
    by_op = groups(np.where(is_compute, taken(attention_op, op), -1))
    kernels_of = {row: kernels for row, kernels in by_op if row >= 0}
    # If an attention op holds several others, each of these computes on some of the keys, and it is
    # unknown on how many.
    around = taken(attention_op, tree.parent[[*kernels_of]]).tolist()
    attentions_in = Counter(around)
    for (row, kernels), outer in zip(kernels_of.items(), around, strict=True):
        if outer < 0 or attentions_in[outer] == 1:
            kinds = _attention(pair, launches, row, kernels)
            done |= {launch: (kind, UNKNOWN) for launch, kind in kinds.items()}
    # Drop counts that do not fit an int64: a shape was misread.
    done = {launch: (kind, moved) for launch, (kind, moved) in done.items() if _fits(kind)}
    kind, size, rows = work.kind.copy(), work.size.copy(), list(done)
    kind[rows] = len(work.kinds) + np.arange(len(done))
    size[rows] = [moved for _, moved in done.values()]
    all_kinds = (*work.kinds, *(new_kind for new_kind, _ in done.values()))
    return replace(work, kind=kind, kinds=all_kinds, size=size)


def _fits(kind: Kind) -> bool:
    return all(part.flops < _MOST for part in kind)


def _cached(name: str) -> _Cached | None:
    return next((operator for operator in _CACHED if operator.name.fullmatch(name)), None)


def _attention(pair: Prepared, launches: Launches, op: int, kernels: IntArray) -> dict[int, Kind]:
    """Return the kind of each kernel of an attention: the first computes, the others help it.

    FLOPs are those of one pair of query and key. If a window may hide pairs, the least is 0, and
    bytes are unknown: nothing tells how many pairs the window hides.
    """
    rule, args = _cached(pair.trace.ops["name"][op].as_py()), arguments(pair, op)
    tensors = rule.tensors(args) if rule is not None else []
    if rule is None or not tensors:
        return {}
    q, k, v = tensors
    # A flag `causal` is followed by the number of earlier keys that a query sees, -1 for all.
    seen_before = -1 if rule.causal is None else args.integer(rule.causal + 1)
    may_be_windowed = not rule.no_window and (rule.causal is None or seen_before != -1)
    # Heads x head sizes: 32 heads of 128 take 2 x 32 x (128 + 128) FLOPs.
    per_pair = 2 * q.shape[-2] * (q.shape[-1] + v.shape[-1])
    own_bytes = known_sum(q.bytes, q.like((*q.shape[:-1], v.shape[-1])).bytes)  # with the output
    key_bytes = known_sum(*(tensor.like(tensor.shape[-2:]).bytes for tensor in (k, v)))
    has_bytes = not may_be_windowed and own_bytes is not None and bool(key_bytes)
    cached = CachedKeys(own_bytes, key_bytes) if has_bytes else CachedKeys()
    dtype = matrix_type(q, k) or operand_type(launches.names[int(launches.name[kernels[0]])])
    least = 0 if may_be_windowed else per_pair
    part = WorkPart("model.attention.forward", dtype, per_pair, least, cached)
    return dict.fromkeys(kernels.tolist(), ()) | {int(kernels[0]): (part,)}


def serving_notes(work: LaunchWork, own: IntArray | None) -> Iterator[Note]:
    """Yield notes on what the work of launches is based on: passes' annotations or grids.

    `own` is the kind of each launch after `of_passes` (UNKNOWN: left out), or None.
    """
    is_noted = work.kind >= 0 if own is None else (work.kind >= 0) & (own >= 0)
    launches_of_kind = np.bincount(work.kind[is_noted], minlength=len(work.kinds)).tolist()
    counts = Counter[str]()
    for kind, count in zip(work.kinds, launches_of_kind, strict=True):
        for part in kind:
            is_range, is_cached = part.at_least < part.flops, part.cached is not None
            of_experts = "experts-by-grid" if is_range else "experts-exact"
            # Add zeros, too, since notes are in the order in which their codes are first seen.
            counts["keys-from-annotation"] += count if is_cached else 0
            counts["window-unknown"] += count if is_cached and is_range else 0
            counts[of_experts] += count if part.line == PRODUCT and not is_cached else 0
    for code, count in (+counts).items():
        yield note_of("assumed", code, count=count)


def of_passes(prepared: Prepared, launches: Launches, matched: Matched) -> Matched:
    """Return matched work; work per pair on cached keys becomes that of its pass, or unknown."""
    # Per kind, what tells the bytes on cached keys; None for other kinds, whose work is final.
    cached_of = [next(filter(None, (p.cached for p in parts)), None) for parts in matched.kinds]
    is_cached = np.array([*(cached is not None for cached in cached_of), False], dtype=np.bool_)
    rows = np.flatnonzero(is_cached[matched.kind])  # kind -1 takes the last element
    passes = annotated_passes(prepared.trace)
    calls, call = prepared.trace.calls, prepared.linked.links.call_of_activity[launches.row[rows]]
    process, start = (taken(numbers(calls[name]), call) for name in ("process", "start_ns"))
    pass_of = np.where(call >= 0, places_in(passes, process, start), -1)
    kind, how, size = matched.kind.copy(), matched.how.copy(), matched.size.copy()
    kinds = list(matched.kinds)
    # All launches of one kind in one pass get one new kind.
    for _, members in groups(joint_codes(kind[rows], pass_of)):
        launched, pass_index = rows[members], int(pass_of[members[0]])
        old_kind = int(kind[launched[0]])
        cached = cached_of[old_kind]
        judged = passes[pass_index].judged if pass_index >= 0 else JudgedPass()
        # With one query per sequence there are as many pairs of query and key as keys.
        has_one_query = judged.kind == "decode" and judged.queries == judged.sequences
        pairs = judged.keys if has_one_query else judged.pairs
        done = tuple(part.times(pairs or 0) for part in kinds[old_kind])
        if pairs is None or cached is None or not _fits(done):
            kind[launched] = UNKNOWN
            how[launched] = np.where(how[launched] >= 0, HOW.index("uncounted"), -1)
            continue
        moved = UNKNOWN if judged.keys is None else cached.bytes(judged.keys)
        size[launched] = moved if moved < _MOST else UNKNOWN
        kind[launched] = len(kinds)
        kinds.append(done)
    return replace(matched, how=how, kind=kind, kinds=tuple(kinds), size=size)


def paired_work(pair: Prepared) -> LaunchWork | None:
    """Return the work of a paired trace's launches by shapes; None if it tells no FLOPs."""
    attribution = attribute(pair.linked)
    launches = launches_of(pair)
    if not len(attribution.executed) or not launches.count:
        return None
    # The FLOPs and bytes of an op belong to its main kernel. Its other kernels only help that one:
    # they have 0 bytes, and the last kind, (), without FLOPs.
    main_op = main_ops(attribution, pair.trace.activities.num_rows)[launches.row]
    helps = (attribution.owner[launches.row] >= 0) & (main_op < 0)
    kind_of_op, kinds = _kinds_of_ops(pair, attribution)
    kind = np.where(helps, len(kinds), taken(kind_of_op, main_op, UNKNOWN))
    size = taken(attribution.work.of_ops(attribution.work.min_bytes), main_op, UNKNOWN)
    # If an op without matrix work launched only one activity, this one moved the op's bytes.
    moved = moved_bytes(pair, attribution)
    has_one = np.bincount(moved.unit[moved.unit >= 0], minlength=len(moved.op_size)) == 1
    size_of_op = np.where(has_one, moved.op_size, UNKNOWN)
    size = np.where(kind < 0, taken(size_of_op, moved.unit[launches.row], UNKNOWN), size)
    size[helps] = 0
    vector_flops = np.full(launches.count, UNKNOWN, dtype=np.int64)
    work = LaunchWork("pair", launches, kind, (*kinds, ()), size, vector_flops)
    return with_serving_kinds(pair, work, is_open=kind < 0)


def _kinds_of_ops(pair: Prepared, attribution: Attribution) -> tuple[IntArray, tuple[Kind, ...]]:
    """Return the index of each op's kind (UNKNOWN: not executed), and all distinct kinds."""
    parts, _ = parts_of(pair, attribution)
    dtype, labels = types_of_ops(pair, attribution)
    rows = attribution.executed
    # Ops with equal parts and data type are of one case: read the parts of the first of each.
    case, first = group_rows([parts.case, dtype[rows]])
    parts_of_op: dict[int, list[WorkPart]] = {op: [] for op in rows[first].tolist()}
    for row in np.flatnonzero(np.isin(parts.op, rows[first])).tolist():
        op, line = int(parts.op[row]), parts.lines[int(parts.line[row])]
        flops, at_least = int(parts.flops[row]), int(parts.at_least[row])
        parts_of_op[op].append(WorkPart(line, labels[int(dtype[op])], flops, at_least))
    # Several cases may have equal parts, and so the same kind.
    kind_of_case = [tuple(parts) for parts in parts_of_op.values()]
    index_of = {kind: index for index, kind in enumerate(dict.fromkeys(kind_of_case))}
    kind_of_op = np.full(pair.trace.ops.num_rows, UNKNOWN, dtype=np.int64)
    kind_of_op[rows] = np.array([index_of[kind] for kind in kind_of_case], dtype=np.int64)[case]
    return kind_of_op, tuple(index_of)

"""Inference in a trace: prefill and decode, their time, and MBU, memory bandwidth utilisation.

MBU is the least bytes that had to be moved, as a share of devices x time x bandwidth. Decoding
reads every weight for one token per sequence, so it is bound by memory: MBU is to decode what MFU
is to prefill. Bytes are counted from shapes (docs/flops.md), so MBU is a lower bound. It is unknown
if the bytes of less than half of the time are known. docs/inference.md has all definitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.op_kernels import Attribution, named
from traceflops.attribution.scopes import is_node
from traceflops.facts import Fact, fact
from traceflops.flops.ops.count import UNKNOWN
from traceflops.flops.ops.work import Core, Product, Work, known_sum
from traceflops.mfu.counted.joins import MeasuredWork
from traceflops.mfu.forward_passes import ALWAYS, BATCHED, ForwardPass, forward_passes, places_in
from traceflops.mfu.roof_times import MovedBytes
from traceflops.mfu.traced.coverage import TOO_LITTLE, chosen_activities
from traceflops.table.columns import ABSENT, IntArray, is_one_of, names, numbers
from traceflops.table.grouping import distinct, exact_sums, group_rows
from traceflops.table.nesting import taken
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Window
from traceflops.windows.engine_passes import Kind, serving_marks
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time
from traceflops.windows.steps import without_launches

BY_MARKS: Final = fact("inference.marks")
BY_LACK: Final = fact("inference.no-training")
ORDER: Final[tuple[Kind | None, ...]] = ("prefill", "decode", "mixed", None)
_ELEMENT: Final = {
    "fp64": 8,
    **dict.fromkeys(("fp32", "tf32", "tf32-or-fp32"), 4),
    **dict.fromkeys(("bf16", "fp16"), 2),
    **dict.fromkeys(("fp8", "int8"), 1),
}
"""Bytes of an operand by data type of a product."""


class Moved(Struct, frozen=True):
    """The least bytes that operators moved: of weights, of cached keys and values, of the rest.

    Weights are the right operands of products; the cache is the keys and values of attention.
    Operands of packed or unknown types are in `rest`.
    """

    weights: int
    cache: int
    rest: int

    @property
    def total(self) -> int:
        """Return all bytes."""
        return self.weights + self.cache + self.rest


class PhaseUse(Struct, frozen=True):
    """All passes of one kind in the chosen windows, over all devices.

    `rules` are the rules that decided the kind, each with its number of passes. `time_ns` is the
    device time including idle time, `possible` the bytes that the devices could move in it (None if
    a bandwidth is unknown). `sequences`, `queries` and `keys` are sums over the passes, or None.
    `coverage` is the share of the time of kernels and copies whose bytes are known.
    """

    kind: Kind | None
    rules: tuple[tuple[Fact, int], ...]
    passes: int
    sequences: int | None
    queries: int | None
    keys: int | None
    time_ns: int
    possible: int | None
    flops: int
    moved: Moved
    coverage: Fraction | None

    @property
    def mbu(self) -> Fraction | None:
        """Return MBU, a lower bound (0 to 1); None if the bytes of too little time are known."""
        if not self.possible or self.coverage is None or self.coverage < TOO_LITTLE:
            return None
        return Fraction(self.moved.total, self.possible)


class Inference(Struct, frozen=True):
    """The rule that made a trace one of inference, and its phases in the order of ORDER.

    The phase of kind None has the passes of unknown kind; `outside_ns` is chosen time in no pass.
    """

    rule: Fact
    phases: tuple[PhaseUse, ...]
    outside_ns: int

    def phase(self, kind: Kind | None) -> PhaseUse | None:
        """Return the passes of one kind, None where there are none."""
        return next((phase for phase in self.phases if phase.kind == kind), None)


def inference(
    prepared: Prepared,
    moved: MovedBytes,
    bandwidths: Mapping[int, int | None],
    work: MeasuredWork | None = None,
) -> Inference | None:
    """Return the inference phases of a prepared trace; None if it trains, or if that is unclear.

    `bandwidths` are in bytes per ns by row of the table of devices. `work` has the FLOPs and bytes
    of kernels that have no operator with shapes.
    """
    attribution = moved.attribution
    if serving_marks(names(prepared.trace.marks["name"])):
        rule = BY_MARKS
    elif not is_trained(prepared) and len(attribution.executed):
        rule = BY_LACK
    else:
        return None
    passes = forward_passes(prepared.linked, attribution)
    of_activity, used_ns, outside_ns = pass_times(prepared, attribution, passes)
    pass_ns = [sum(device_ns) for device_ns in zip(*used_ns.values(), strict=True)]
    # The phase (a place in ORDER) of each pass that took time; the last entry is for no pass, -1.
    phase_of_pass = np.full(len(passes) + 1, -1, dtype=np.int64)
    for index, ns in enumerate(pass_ns):
        if ns:
            phase_of_pass[index] = ORDER.index(passes[index].judged.kind)
    flops, moved_bytes, coverage = _sums(prepared, moved, phase_of_pass[of_activity], work)
    phases = []
    for phase, kind in enumerate(ORDER):
        of_kind = np.flatnonzero(phase_of_pass == phase).tolist()
        if not of_kind:
            continue
        judged = [passes[index].judged for index in of_kind]
        # The bytes that each device could move during these passes.
        possible: list[int | None] = []
        for device, ns in used_ns.items():
            if used := sum(ns[index] for index in of_kind):
                rate = bandwidths.get(device)
                possible.append(rate * used if rate is not None else None)
        phases.append(
            PhaseUse(
                kind=kind,
                rules=tuple(Counter(one_pass.rule for one_pass in judged).most_common()),
                passes=len(of_kind),
                sequences=known_sum(*(one_pass.sequences for one_pass in judged)),
                queries=known_sum(*(one_pass.queries for one_pass in judged)),
                keys=known_sum(*(one_pass.keys for one_pass in judged)),
                time_ns=sum(pass_ns[index] for index in of_kind),
                possible=known_sum(*possible),
                flops=flops[phase],
                moved=moved_bytes[phase],
                coverage=coverage[phase],
            )
        )
    return Inference(rule, tuple(phases), outside_ns)


def is_trained(prepared: Prepared) -> bool:
    """Return whether a trace shows a backward pass, an optimizer, or operators with gradients."""
    trace, categorised = prepared.trace, prepared.linked.categorised
    # Autograd gives sequence numbers only to operators with gradients.
    if is_node(trace.ops).any() or (numbers(trace.ops["sequence"], ABSENT) != ABSENT).any():
        return True
    if any(label.startswith("Optimizer.") for label in names(trace.marks["name"])):
        return True
    used = distinct(categorised.category).tolist()
    return any(categorised.categories[index].sub == "optimizer" for index in used)


def _sums(
    prepared: Prepared, moved: MovedBytes, phase: IntArray, work: MeasuredWork | None
) -> tuple[list[int], list[Moved], list[Fraction | None]]:
    """Return, by phase, the FLOPs, the least bytes moved, and the share of time of known bytes.

    `phase` is that of each activity in ORDER, or -1; an op is in the phase of its first activity.
    Communication is left out. FLOPs are of ops, and of kernels without an op (`work`). Bytes are
    those recorded for an activity (`rest`), else those of its op.
    """
    op_work, phases = moved.attribution.work, len(ORDER)
    chosen = chosen_activities(prepared)
    rows = np.flatnonzero(chosen & ~is_top(prepared.linked.categorised, "communication"))
    phase_of_row, dur_ns = phase[rows], numbers(prepared.trace.activities["dur_ns"])[rows]
    recorded = np.where(moved.recorded, moved.size, UNKNOWN)[rows]
    is_sized = (taken(moved.op_size, moved.unit[rows], UNKNOWN) != UNKNOWN) | (recorded != UNKNOWN)
    known_ns = exact_sums(phase_of_row, np.where(is_sized, dur_ns, 0), phases)
    total_ns = exact_sums(phase_of_row, dur_ns, phases)
    shares = zip(known_ns, total_ns, strict=True)
    coverage = [Fraction(known, total) if total else None for known, total in shares]
    flops = [0] * phases
    if work is not None:
        flops = exact_sums(phase_of_row, np.maximum(work.flops[rows], 0), phases)
    weights, cache = [0] * phases, [0] * phases
    rest = exact_sums(phase_of_row, np.maximum(recorded, 0), phases)
    # The ops whose activities have no recorded bytes; in a phase those of equal work are a group.
    unrecorded = np.flatnonzero(chosen & (moved.unit >= 0) & ~moved.recorded)
    op, first = np.unique(moved.unit[unrecorded], return_index=True)
    op_phase, place = phase[unrecorded[first]], op_work.place[op]
    group, first = group_rows([op_phase, place])
    counts = np.bincount(group, minlength=len(first)).tolist()
    # The works of products of two activations, which read no weights.
    batched = set(distinct(op_work.place[named(prepared.trace.ops, BATCHED)]).tolist())
    equal_works = zip(op_phase[first].tolist(), place[first].tolist(), counts, strict=True)
    for in_phase, index, times in equal_works:
        done = op_work.works[index]
        if in_phase >= 0 and isinstance(done, Work):
            flops[in_phase] += done.flops * times
            sizes = _moved_by(done, has_weights=index not in batched)
            weights[in_phase] += sizes.weights * times
            cache[in_phase] += sizes.cache * times
            rest[in_phase] += sizes.rest * times
    return flops, list(map(Moved, weights, cache, rest)), coverage


def _moved_by(done: Work, *, has_weights: bool) -> Moved:
    """Return the least bytes that an op moved, 0 if unknown; `has_weights`: as right operand."""
    weights, cache, total = 0, 0, done.min_bytes or 0
    element = _ELEMENT.get(done.dtype or "", 0)  # 0: all is the rest
    sizes = done.signature
    if isinstance(sizes, Product) and sizes.batch == 1 and has_weights:
        weights = sizes.k * sizes.n * element
    elif isinstance(sizes, Core):
        sequences = sizes.batch if sizes.documents is None else 1  # packed: `keys` is their sum
        per_token = sizes.kv_heads * (sizes.d_qk + sizes.d_v) * element
        cache = sequences * sizes.keys * per_token
    if weights + cache > total:  # an operand is broadcast, so smaller
        return Moved(0, 0, total)
    return Moved(weights, cache, total - weights - cache)


def pass_times(
    prepared: Prepared, attribution: Attribution, passes: tuple[ForwardPass, ...]
) -> tuple[IntArray, Mapping[int, list[int]], int]:
    """Return the pass of each activity, the ns of each pass by device, and the ns in no pass.

    1. An activity is in the pass that launched it.
    2. Else it is in the pass that runs on its device when it starts: a pass runs from its first
       launched work (no copy) to that of the next pass. Windows of the role "between" are no pass.
    3. Else (before the first pass, or between passes) it is in none: -1.

    Times are those of the chosen windows, over all devices.
    """
    of_activity = launched_in(prepared, attribution, passes)
    # The only pass of a process without look-ups has no beginning.
    is_whole = np.array([one_pass.start_ns == -ALWAYS for one_pass in passes], dtype=np.bool_)
    is_copy = is_one_of(prepared.trace.activities["kind"], "memcpy", "memset")
    used_ns, outside_ns = {}, 0
    for device, account in prepared.accounts.items():
        rows, start = account.rows.row, account.rows.start_ns
        # Copies do not begin a pass: inputs of the next pass are copied while this one runs.
        own = of_activity[rows]
        is_launched = (own >= 0) & ~is_copy[rows]
        begins = np.full(len(passes), ALWAYS, dtype=np.int64)
        np.minimum.at(begins, own[is_launched], start[is_launched])
        begins[is_whole & (begins < ALWAYS)] = -ALWAYS
        # The passes that have work on this device, by their begin.
        # begins [40 ALWAYS 10] -> order [2 0]: pass 1 has no work
        order = np.argsort(begins, kind="stable")
        order = order[begins[order] < ALWAYS]
        # Per activity, the last pass (its place in `order`) that begins by its start, or -1.
        # starts [5 10 50] -> around [-1 0 1] -> passes [-1 2 0]
        around = np.searchsorted(begins[order], start, side="right") - 1
        windows = prepared.windows[device]
        between = _time(window for window in windows if window.role == "between")
        around[between.contains(start)] = -1
        of_activity[rows] = np.where(own >= 0, own, taken(order, around))
        # A pass has the chosen time from its begin to the next one's. Chosen is 0-60: before the
        # begins 10 and 40, and ALWAYS, lie [10 40 60] ns -> used [30 20] of the passes 2 and 0
        chosen = chosen_time(windows)
        before = chosen.subtract(between).covered_before(np.append(begins[order], ALWAYS))
        used = np.zeros(len(passes), dtype=np.int64)
        used[order] = np.diff(before)
        used_ns[device] = used.tolist()
        # Time between passes counts if it is chosen itself, or follows a chosen window.
        after_chosen = _time(later for earlier, later in pairwise(windows) if earlier.used)
        outside_ns += int(before[0]) + between.intersect(chosen.union(after_chosen)).length_ns
    return of_activity, used_ns, outside_ns


def launched_in(
    prepared: Prepared, attribution: Attribution, passes: tuple[ForwardPass, ...]
) -> IntArray:
    """Return the pass in which each activity was launched (on a CPU: in which its op ran), or -1.

    In a process without any recorded launch, it is the pass in which the activity started.
    """
    trace, op = prepared.trace, attribution.op
    process, call = numbers(trace.activities["process"]), prepared.linked.links.call_of_activity
    is_unlaunched = np.isin(process, without_launches(trace, prepared.linked.links))
    # Per activity, the start of its launch, else of itself (in such a process), else of its op.
    call_ns = taken(numbers(trace.calls["start_ns"]), call, ABSENT)
    op_ns = taken(numbers(trace.ops["start_ns"]), op, ABSENT)
    other_ns = np.where(is_unlaunched, numbers(trace.activities["start_ns"]), op_ns)
    pass_of = places_in(passes, process, np.where(call >= 0, call_ns, other_ns))
    return np.where((call >= 0) | (op >= 0) | is_unlaunched, pass_of, -1)


def _time(windows: Iterable[Window]) -> Intervals:
    """Return the time of some windows, as intervals."""
    edges = [(window.start_ns, window.end_ns) for window in windows]
    return Intervals.of(*np.array(edges, dtype=np.int64).reshape(-1, 2).T)

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
from traceflops.table.grouping import distinct, exact_sum
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
    done = _Done(prepared, moved, of_activity, work)
    pass_ns = [sum(device_ns) for device_ns in zip(*used_ns.values(), strict=True)]
    phases = []
    for kind in ORDER:
        with_time = (index for index, ns in enumerate(pass_ns) if ns)
        of_kind = [index for index in with_time if passes[index].judged.kind == kind]
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
                flops=done.flops(of_kind),
                moved=done.moved(of_kind),
                coverage=done.coverage(of_kind),
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


class _Done:
    """The bytes, FLOPs and kernel time of the chosen windows, to be summed over some passes."""

    def __init__(
        self, prepared: Prepared, moved: MovedBytes, pass_of: IntArray, work: MeasuredWork | None
    ) -> None:
        """Read the chosen activities and ops; `pass_of` is the pass of each activity, or -1.

        An op belongs to the pass of its first activity. Communication is left out.
        """
        # The works of products of two activations, which read no weights.
        self._work = moved.attribution.work
        batched = named(prepared.trace.ops, BATCHED)
        self._batched = set(distinct(self._work.place[batched]).tolist())
        chosen = chosen_activities(prepared)
        is_local = ~is_top(prepared.linked.categorised, "communication")
        # Per activity: its pass, duration, recorded bytes and counted FLOPs, and whether its bytes
        # are known, from its own record or from its op.
        rows = np.flatnonzero(chosen & is_local)
        op_of = moved.unit
        self._pass = pass_of[rows]
        self._dur_ns = numbers(prepared.trace.activities["dur_ns"])[rows]
        self._size = np.where(moved.recorded, moved.size, UNKNOWN)[rows]
        self._flops = (work.flops if work is not None else np.zeros_like(op_of))[rows]
        size_of_op = taken(moved.op_size, op_of[rows], UNKNOWN)
        self._is_sized = (size_of_op != UNKNOWN) | (self._size != UNKNOWN)
        # Per op whose bytes count (those of its activities are not recorded): the op, and its pass.
        by_op = np.flatnonzero(chosen & (op_of >= 0) & ~moved.recorded)
        self._op, first = np.unique(op_of[by_op], return_index=True)
        self._op_pass = pass_of[by_op[first]]

    def flops(self, passes: list[int]) -> int:
        """Return the matrix FLOPs of some passes: of their ops, and of kernels without an op."""
        by_kernel = exact_sum(np.maximum(self._flops[np.isin(self._pass, passes)], 0))
        return self._work.total(self._work.flops, self._ops(passes)) + by_kernel

    def coverage(self, passes: list[int]) -> Fraction | None:
        """Return the share of the time of kernels and copies whose bytes are known."""
        in_passes = np.isin(self._pass, passes)
        total_ns = exact_sum(self._dur_ns[in_passes])
        known_ns = exact_sum(self._dur_ns[in_passes & self._is_sized])
        return Fraction(known_ns, total_ns) if total_ns else None

    def moved(self, passes: list[int]) -> Moved:
        """Return the least bytes that some passes moved in the memory of their devices."""
        works, counts = np.unique(self._work.place[self._ops(passes)], return_counts=True)
        in_passes = np.isin(self._pass, passes)
        all_weights, all_cache = 0, 0
        rest = exact_sum(np.maximum(self._size[in_passes], 0))
        for index, count in zip(works.tolist(), counts.tolist(), strict=True):
            work = self._work.works[index]
            if not isinstance(work, Work) or work.min_bytes is None:
                continue
            size, sizes = work.min_bytes, work.signature
            element = _ELEMENT.get(work.dtype or "", 0)  # 0: all bytes stay in the rest
            weights = cache = 0
            if isinstance(sizes, Product) and sizes.batch == 1 and index not in self._batched:
                weights = sizes.k * sizes.n * element
            elif isinstance(sizes, Core):
                # `keys` of packed sequences is their sum.
                sequences = sizes.batch if sizes.documents is None else 1
                per_token = sizes.kv_heads * (sizes.d_qk + sizes.d_v) * element
                cache = sequences * sizes.keys * per_token
            if weights + cache > size:  # an operand is broadcast: it is smaller than its shape
                weights = cache = 0
            all_weights += weights * count
            all_cache += cache * count
            rest += (size - weights - cache) * count
        return Moved(all_weights, all_cache, rest)

    def _ops(self, passes: list[int]) -> IntArray:
        return self._op[np.isin(self._op_pass, passes)]


def pass_times(
    prepared: Prepared, attribution: Attribution, passes: tuple[ForwardPass, ...]
) -> tuple[IntArray, Mapping[int, list[int]], int]:
    """Return the pass of each activity, the ns of each pass by device, and the ns in no pass.

    An activity is in the pass that launched it, else in the pass in which it starts, else -1. Times
    are those of the chosen windows, over all devices; windows of the role "between" are in no pass.
    """
    of_activity = launched_in(prepared, attribution, passes)
    # The only pass of a process without look-ups has no beginning.
    is_whole = np.array([one_pass.start_ns == -ALWAYS for one_pass in passes], dtype=np.bool_)
    is_copy = is_one_of(prepared.trace.activities["kind"], "memcpy", "memset")
    used_ns, outside_ns = {}, 0
    for device, account in prepared.accounts.items():
        rows, start = account.rows.row, account.rows.start_ns
        # A pass begins on the device with its first launched work. Copies do not count: inputs of
        # the next pass are copied while this one runs.
        own = of_activity[rows]
        is_launched = (own >= 0) & ~is_copy[rows]
        begins = np.full(len(passes), ALWAYS, dtype=np.int64)
        np.minimum.at(begins, own[is_launched], start[is_launched])
        begins[is_whole & (begins < ALWAYS)] = -ALWAYS
        # The passes that have work on this device, by their begin.
        order = np.argsort(begins, kind="stable")
        order = order[begins[order] < ALWAYS]
        # Work without a launch is in the pass that runs then, unless it lies between passes.
        around = np.searchsorted(begins[order], start, side="right") - 1
        windows = prepared.windows[device]
        between = _time(window for window in windows if window.role == "between")
        around[between.contains(start)] = -1
        of_activity[rows] = np.where(own >= 0, own, taken(order, around))
        # A pass has the chosen time from its begin to the next one's.
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
    trace, call = prepared.trace, prepared.linked.links.call_of_activity
    call_ns = taken(numbers(trace.calls["start_ns"]), call, ABSENT)
    op_ns = taken(numbers(trace.ops["start_ns"]), attribution.op, ABSENT)
    process = numbers(trace.activities["process"])
    is_unlaunched = np.isin(process, without_launches(trace, prepared.linked.links))
    other_ns = np.where(is_unlaunched, numbers(trace.activities["start_ns"]), op_ns)
    pass_of = places_in(passes, process, np.where(call >= 0, call_ns, other_ns))
    return np.where((call >= 0) | (attribution.op >= 0) | is_unlaunched, pass_of, -1)


def _time(windows: Iterable[Window]) -> Intervals:
    """Return the time of some windows, as intervals."""
    edges = [(window.start_ns, window.end_ns) for window in windows]
    return Intervals.of(*np.array(edges, dtype=np.int64).reshape(-1, 2).T)

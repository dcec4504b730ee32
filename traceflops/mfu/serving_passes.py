"""Annotated passes of a serving engine: their times, and what the device waits on between them.

On a device a pass lasts from the start of the first kernel launched in its annotation to the end of
the last. Copies do not count: inputs of the next pass are copied while this one runs. Work after a
pass, such as sampling, belongs to no pass; idle time there counts as between passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.culprits import IdleCulprits, culprits_of
from traceflops.attribution.idle_slices import GapParts, gap_parts
from traceflops.attribution.op_kernels import Attribution
from traceflops.flops.ops.work import known_sum
from traceflops.mfu.forward_passes import ForwardPass, annotated_passes
from traceflops.mfu.inference import ORDER, launched_in
from traceflops.table.columns import BoolArray, IntArray, count_true, is_one_of
from traceflops.table.grouping import exact_sum, group_most, group_rows
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import EMPTY_ACCOUNT, Account
from traceflops.windows.engine_passes import Kind
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

NEVER: Final = np.iinfo(np.int64).min


class ServingPass(Struct, frozen=True):
    """One pass on one device; `batch` is its sequences, `tokens` those computed, or None."""

    kind: Kind | None
    device: int
    start_ns: int
    duration_ns: int
    batch: int | None
    tokens: int | None


class PassKind(Struct, frozen=True):
    """All chosen passes of one kind. Times are sums over them in ns, except p50 and p99.

    `followed` is the number of passes that another chosen pass follows on their device;
    `between_ns` is the idle time up to the next pass, and `waits` its causes. `cycle_ns` is from
    each start to the next, or to the pass's own end. `total` is the account of the passes.
    """

    kind: Kind | None
    passes: int
    p50_ns: int
    p99_ns: int
    tokens: int | None
    cycle_ns: int
    followed: int
    between_ns: int
    waits: IdleCulprits
    total: Account

    @property
    def tokens_per_s(self) -> float | None:
        """Return how many tokens a device computes per second of `cycle_ns`, None if unknown."""
        is_known = self.tokens is not None and self.cycle_ns
        return (self.tokens or 0) * 1e9 / self.cycle_ns if is_known else None

    @property
    def exposed_ns(self) -> int:
        """Return the time of communication in the passes while nothing else ran."""
        return self.total.components.communication_ns

    @property
    def communication_ns(self) -> int:
        """Return the time of communication in the passes."""
        return self.exposed_ns + self.total.hidden_communication_ns


class Serving(Struct, frozen=True):
    """The chosen passes, by device and time, and statistics by kind."""

    passes: tuple[ServingPass, ...] = ()
    kinds: tuple[PassKind, ...] = ()


NO_SERVING: Final = Serving()


class _Lane(Struct, frozen=True):
    """Passes on one device, in order of start.

    `pass_index` is the place of each pass among all annotated passes. `next_ns` is the start of the
    following pass if that is chosen, too, else NEVER.
    """

    device: int
    account: DeviceAccount
    pass_index: IntArray
    start_ns: IntArray
    end_ns: IntArray
    next_ns: IntArray

    def only(self, chosen: BoolArray) -> _Lane:
        """Return the chosen passes; `chosen` is per pass."""
        columns = (self.pass_index, self.start_ns, self.end_ns, self.next_ns)
        return _Lane(self.device, self.account, *(column[chosen] for column in columns))


def serving(prepared: Prepared, attribution: Attribution) -> Serving:
    """Return the annotated passes that begin in the chosen windows; empty without any."""
    passes = annotated_passes(prepared.trace)
    if not passes:
        return NO_SERVING
    pass_of = launched_in(prepared, attribution, passes)
    lanes = [_lane(prepared, device, pass_of) for device in prepared.accounts]
    kinds = (_pass_kind(kind, prepared, passes, lanes) for kind in ORDER)
    rows = []
    for lane in lanes:
        columns = (lane.pass_index.tolist(), lane.start_ns.tolist(), lane.end_ns.tolist())
        for index, start, end in zip(*columns, strict=True):
            judged = passes[index].judged
            size = (judged.sequences, judged.queries)
            rows.append(ServingPass(judged.kind, lane.device, start, end - start, *size))
    return Serving(tuple(rows), tuple(kind for kind in kinds if kind.passes))


def _lane(prepared: Prepared, device: int, pass_of: IntArray) -> _Lane:
    """Return the chosen passes on a device; `pass_of` is the pass of each activity, -1 for none."""
    account, windows = prepared.accounts[device], prepared.windows[device]
    rows = account.rows
    # From the first start to the last end of what a pass launched, without copies.
    # passes [4 4 6], starts [1 3 5], ends [2 9 8] -> pass_index [4 6], start_ns [1 5], end_ns [9 8]
    is_copy = is_one_of(prepared.trace.activities["kind"], "memcpy", "memset")[rows.row]
    in_pass = (pass_of[rows.row] >= 0) & ~is_copy
    passes = pass_of[rows.row[in_pass]]
    group, first = group_rows([passes])
    # Rows are in the order of start, so the first row of a pass starts first.
    pass_index, start_ns = passes[first], rows.start_ns[in_pass][first]
    end_ns = group_most(group, rows.end_ns[in_pass], len(first))
    if prepared.plan.layout.are_passes:
        # No pass begins in time without recorded work.
        unrecorded = (window.end_ns for window in windows if window.role == "before")
        start_ns = np.maximum(start_ns, max(unrecorded, default=NEVER))
    order = np.argsort(start_ns, kind="stable")
    order = order[end_ns[order] >= start_ns[order]]  # the others ended in time without records
    pass_index, start_ns, end_ns = pass_index[order], start_ns[order], end_ns[order]
    used = chosen_time(windows).contains(start_ns)
    # start_ns [0 10 20], the first two chosen -> next_ns [10 NEVER]
    next_ns = np.full(len(order), NEVER)
    next_ns[:-1] = np.where(used, start_ns, NEVER)[1:]
    return _Lane(device, account, pass_index, start_ns, end_ns, next_ns).only(used)


def _pass_kind(
    kind: Kind | None, prepared: Prepared, passes: Sequence[ForwardPass], lanes: Sequence[_Lane]
) -> PassKind:
    """Return the statistics of one kind of passes; `lanes` are the chosen passes of all kinds."""
    is_of_kind = np.array([one.judged.kind == kind for one in passes], dtype=np.bool_)
    lanes = [lane.only(is_of_kind[lane.pass_index]) for lane in lanes]
    durations_ns = sorted(ns for lane in lanes for ns in (lane.end_ns - lane.start_ns).tolist())
    tokens = [passes[index].judged.queries for lane in lanes for index in lane.pass_index.tolist()]
    pauses = [(lane.account, Intervals.of(lane.end_ns, lane.next_ns)) for lane in lanes]
    idle_ns = sum(pause.subtract(account.timeline.busy).length_ns for account, pause in pauses)
    waits = IdleCulprits((), idle_ns)
    if idle_ns and prepared.launch_records.is_judged:  # else no launch tells what a gap waited for
        gaps = [gap_parts(account, pause) for account, pause in pauses if len(pause)]
        waits = culprits_of(GapParts.joined(gaps), prepared.trace)
    cycle_ns, followed, total = 0, 0, EMPTY_ACCOUNT
    for lane in lanes:
        is_followed = lane.next_ns != NEVER
        followed += count_true(is_followed)
        # A cycle ends where the next chosen pass starts, else with the pass.
        cycle_ns += exact_sum(np.where(is_followed, lane.next_ns, lane.end_ns) - lane.start_ns)
        total = sum(lane.account.accounts(lane.start_ns, lane.end_ns), total)
    return PassKind(
        kind=kind,
        passes=len(durations_ns),
        p50_ns=_percentile(durations_ns, 50),
        p99_ns=_percentile(durations_ns, 99),
        tokens=known_sum(*tokens),
        cycle_ns=cycle_ns,
        followed=followed,
        between_ns=idle_ns,
        waits=waits,
        total=total,
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the least of the ordered values that `percent` of all do not exceed; 0 without any."""
    count = -(-len(ordered) * percent // 100)  # rounded up: 99 % of 150 values are 149
    return ordered[count - 1] if ordered else 0

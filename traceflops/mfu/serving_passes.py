"""Annotated passes of a serving engine: their times, and what the device waits on between them.

On a device a pass is from the start of the first kernel launched in its annotation to the end of
the last. Copies do not count: inputs of the next pass are copied while this one runs. What follows
a pass, such as sampling, is of none; idle time there counts up to the next pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.attribution import Attribution, GapParts, IdleCulprits, culprits_of, gap_parts
from traceflops.flops import known_sum
from traceflops.mfu.forward_passes import ForwardPass, annotated_passes
from traceflops.mfu.inference import ORDER, launched_in
from traceflops.table import BoolArray, IntArray, exact_sum, is_one_of
from traceflops.timeline import EMPTY_ACCOUNT, Account, DeviceAccount, Intervals, Window
from traceflops.windows import Kind, Prepared, chosen_time

NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class ServingPass:
    """One pass on one device; `batch` are its sequences, `tokens` those computed, None: unknown."""

    kind: Kind | None
    device: int
    start_ns: int
    duration_ns: int
    batch: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class PassKind:
    """All chosen passes of one kind. Times in ns are sums over them but for p50 and p99.

    `followed` of them have a chosen pass behind them on their device; `between_ns` is the idle time
    up to that, all of it in `waits`. `cycle_ns` is from the start of each to the start of the next,
    or to its end. `total` has the accounts of the passes themselves.
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
        """Return how many tokens a device computes per second of its passes and what follows."""
        known = self.tokens is not None and self.cycle_ns
        return (self.tokens or 0) * 1e9 / self.cycle_ns if known else None

    @property
    def exposed_ns(self) -> int:
        """Return the time of communication in the passes while nothing else ran."""
        return self.total.components.communication_ns

    @property
    def communication_ns(self) -> int:
        """Return the time of communication in the passes."""
        return self.exposed_ns + self.total.hidden_communication_ns


@dataclass(frozen=True, slots=True)
class Serving:
    """The chosen passes, by device in order of time, and what there is to say of each kind."""

    passes: tuple[ServingPass, ...] = ()
    kinds: tuple[PassKind, ...] = ()


NO_SERVING: Final = Serving()


@dataclass(frozen=True, slots=True)
class _Ran:
    """Passes on one device in order of time; `place` is that of a pass, `next_ns` may be NEVER."""

    device: int
    account: DeviceAccount
    place: IntArray
    start_ns: IntArray
    end_ns: IntArray
    next_ns: IntArray

    def only(self, mine: BoolArray) -> _Ran:
        """Return some of the passes."""
        columns = (self.place, self.start_ns, self.end_ns, self.next_ns)
        return _Ran(self.device, self.account, *(one[mine] for one in columns))

    @property
    def duration_ns(self) -> IntArray:
        """Return how long each is."""
        return self.end_ns - self.start_ns

    @property
    def cycle_ns(self) -> IntArray:
        """Return how long it is from the start of each to the next, or to its end."""
        return np.where(self.next_ns == NEVER, self.end_ns, self.next_ns) - self.start_ns

    @property
    def between(self) -> Intervals:
        """Return the time behind each up to the next."""
        return Intervals.of(self.end_ns, self.next_ns)

    @property
    def accounts(self) -> list[Account]:
        """Return the account of each."""
        return self.account.accounts(self.start_ns, self.end_ns)


def serving(prepared: Prepared, attribution: Attribution) -> Serving:
    """Return the annotated passes that begin in the chosen windows; none where none has work."""
    passes = annotated_passes(prepared.trace)
    if not passes:
        return NO_SERVING
    place = launched_in(prepared, attribution, passes)
    ran = [_ran(prepared, device, place) for device in prepared.accounts]
    kinds = (_pass_kind(kind, prepared, passes, ran) for kind in ORDER)
    shown = tuple(one for each in ran for one in _shown(each, passes))
    return Serving(shown, tuple(kind for kind in kinds if kind.passes))


def _ran(prepared: Prepared, device: int, place: IntArray) -> _Ran:
    """Return the chosen passes on a device."""
    account = prepared.accounts[device]
    rows = account.rows
    is_copy = is_one_of(prepared.trace.activities["kind"], "memcpy", "memset")[rows.row]
    mine = (place[rows.row] >= 0) & ~is_copy
    places, first, at = np.unique(place[rows.row[mine]], return_index=True, return_inverse=True)
    start, end = rows.start_ns[mine][first], np.full(len(places), NEVER)
    np.maximum.at(end, at.reshape(-1), rows.end_ns[mine])
    windows = prepared.windows[device]
    start = np.maximum(start, _recorded_from(prepared, windows))
    order = np.argsort(start, kind="stable")
    order = order[end[order] >= start[order]]
    places, start, end = places[order], start[order], end[order]
    following = np.append(start[1:], NEVER)[: len(start)]
    used = chosen_time(windows).contains(start)
    following[~np.append(used[1:], False)[: len(used)]] = NEVER
    return _Ran(device, account, places, start, end, following).only(used)


def _recorded_from(prepared: Prepared, windows: Sequence[Window]) -> int:
    """Return when the first pass begins: not before time without recorded work."""
    are_passes = prepared.plan.layout.are_passes
    return max(
        (one.end_ns for one in windows if are_passes and one.role == "before"), default=NEVER
    )


def _shown(ran: _Ran, passes: Sequence[ForwardPass]) -> Iterator[ServingPass]:
    times = ran.start_ns.tolist(), ran.duration_ns.tolist()
    for place, start, duration in zip(ran.place.tolist(), *times, strict=True):
        told = passes[place].judged
        yield ServingPass(told.kind, ran.device, start, duration, told.sequences, told.queries)


def _pass_kind(
    kind: Kind | None, prepared: Prepared, passes: Sequence[ForwardPass], ran: Sequence[_Ran]
) -> PassKind:
    """Return what there is to say of the passes of one kind."""
    is_kind = np.array([one.judged.kind == kind for one in passes], dtype=np.bool_)
    mine = [one.only(is_kind[one.place]) for one in ran]
    spans = sorted(ns for one in mine for ns in one.duration_ns.tolist())
    idle_ns = sum(one.between.subtract(one.account.timeline.busy).length_ns for one in mine)
    return PassKind(
        kind,
        len(spans),
        _percentile(spans, 50),
        _percentile(spans, 99),
        known_sum(*(passes[at].judged.queries for one in mine for at in one.place.tolist())),
        sum(exact_sum(one.cycle_ns) for one in mine),
        sum(int((one.next_ns != NEVER).sum()) for one in mine),
        idle_ns,
        _waits(prepared, mine, idle_ns),
        sum((account for one in mine for account in one.accounts), EMPTY_ACCOUNT),
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the least value that so many percent of all do not exceed; 0 of none."""
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else 0


def _waits(prepared: Prepared, ran: Sequence[_Ran], idle_ns: int) -> IdleCulprits:
    """Return what the host did in the idle time between passes."""
    if not idle_ns or not prepared.launch_records.is_judged:
        return IdleCulprits((), idle_ns)
    parts = [gap_parts(one.account, one.between) for one in ran if len(one.between)]
    return culprits_of(GapParts.joined(parts), prepared.trace)

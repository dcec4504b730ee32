"""Rules of communication: exposed, in many small collectives, or far below the rate of the links.

Time is exposed where one collective runs and nothing else does; `wait_ns` is the part in which
other ranks had not begun.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.collective_latency import latency_of
from traceflops.findings.finding import Cause, Finding, Gain, Row, as_loss, severity_of, short_name
from traceflops.findings.late_rank import clocks_apart_ns
from traceflops.findings.rank_waits import waiting_told
from traceflops.findings.rules import cause_of
from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.link_rates import Fastest, LinkRate, links_of, needed_ns
from traceflops.ranks.who_waits import RankReport, records_of
from traceflops.table.columns import IntArray, codes, names
from traceflops.table.grouping import group_rows, groups
from traceflops.table.trace import Trace
from traceflops.units import listed
from traceflops.windows.records import chosen_time

_WORK: Final = ("compute", "memory", "other", "graph")
_MOST_ROWS, _MIB = 3, 2**20
_ALONE: Final = 0.9
"""A collective whose exposed time is a larger share of its time ran beside no other work."""
_FSDP: Final = re.compile(r"FSDP|FullySharded|fully_shard|/_?fsdp/")
_WORTH_NAMING: Final = 0.005
"""Share of the window."""
_PAIRS: Final = ("send", "recv", "send_recv")
_USUAL: Final = {
    "all_reduce": "dp",
    "all_gather": "dp",
    "reduce_scatter": "dp",
    "all_to_all": "any",
    **dict.fromkeys(_PAIRS, "pp"),
}
"""What groups without a known role are for, by kind, in training."""
_Group = tuple[str, str | None, IntArray]
"""Kind ("" for unknown), role of the group of ranks, and places in the columns of `_Exposed`."""


class _Exposed(Struct, frozen=True):
    """Communication of the chosen windows: rows of `records`, and exposed times in ns.

    `name` is the code of the kernel's name if its kind is unknown, else -1.
    """

    records: CommRecords
    row: IntArray
    name: IntArray
    exposed_ns: IntArray
    wait_ns: IntArray

    def by_group(self) -> list[_Group]:
        """Return a group per kind and role, or kernel of unknown kind, the most exposed first."""
        rows, records = self.row, self.records
        roles = [group.role for group in records.groups]
        # Groups with the same role count as one: they get the place of the first of them.
        place_of_role = np.array([roles.index(role) for role in roles], dtype=np.int64)
        number, _ = group_rows((records.kind[rows], place_of_role[records.group[rows]], self.name))
        by_role = []
        for _, places in groups(number):
            first = rows[places[0]]
            kind, role = int(records.kind[first]), roles[int(records.group[first])]
            by_role.append((KINDS[kind] if kind >= 0 else "", role, places))
        return sorted(by_role, key=lambda entry: -int(self.exposed_ns[entry[2]].sum()))


def _exposed(case: Case) -> _Exposed | None:
    """Return the communication of the chosen windows, None if kernels are not known one by one.

    A row is chosen by its start. Waiting counts only as far as it is exposed.
    """
    if case.ranks is not None:
        records = case.ranks.records
    elif case.prepared is not None:
        records = records_of(case.prepared)
    else:
        return None
    windows = {device.device: device.windows for device in case.devices}
    is_chosen, alone_ns = np.zeros(len(records), dtype=np.bool_), np.zeros_like(records.start_ns)
    for place, rows in groups(records.place):
        start, end = records.start_ns[rows], records.end_ns[rows]
        chosen = chosen_time(windows[records.devices[place]])
        is_chosen[rows] = chosen.contains(start)
        alone_ns[rows] = records.alone[place].length_within(start, end)
    wait_ns = np.zeros_like(alone_ns)
    if case.ranks is not None:
        wait_ns[case.ranks.waits.row] = case.ranks.waits.exposed_ns
    row = np.flatnonzero(is_chosen)
    name = np.full(len(row), -1, dtype=np.int64)
    if case.prepared is not None:
        name_of_activity = codes(case.prepared.trace.activities["name"])
        name = np.where(records.kind[row] < 0, name_of_activity[records.row[row]], -1)
    return _Exposed(records, row, name, alone_ns[row], np.minimum(wait_ns, alone_ns)[row])


def communication(case: Case) -> Iterator[Cause]:
    """Give causes if much communication is exposed."""
    share = case.total.components.share("communication") or 0.0
    if share < limit(case, "exposed-communication", "least_share"):
        return
    exposed = _exposed(case)
    parts = case.total.components.parts()
    is_beside_work = any(ns for name, ns in parts.items() if name not in ("idle", "communication"))
    # Without other work there is nothing to hide it under.
    if is_beside_work and not _is_bubble(case, exposed):
        yield _not_hidden(case, share, exposed)
    if exposed is not None:
        for kind, role, places in exposed.by_group()[:_MOST_ROWS]:
            if kind not in _PAIRS:  # sends are of one micro-batch each, and cannot be joined
                yield from _small(case, exposed, _called(kind, role), places)
    yield from _slow(case, share)


def _is_bubble(case: Case, exposed: _Exposed | None) -> bool:
    """Return whether most of it is stages of a pipeline that wait for each other."""
    if case.ranks is None or case.ranks.pipeline is None or exposed is None:
        return False
    waits_ns = exposed.wait_ns[exposed.records.is_pair[exposed.row]].sum()
    return bool(2 * waits_ns > exposed.exposed_ns.sum())


def _not_hidden(case: Case, share: float, exposed: _Exposed | None) -> Cause:
    """Return that collectives run while nothing else does, by kind and role of the group."""
    groups_ = exposed.by_group() if exposed is not None else []
    knows_waits = case.ranks is not None and not case.ranks.partial
    parts: tuple[Fact, ...] = ()
    details: tuple[Fact, ...] = ()
    first: Fact | None = None
    knows = set[str]()
    waits: dict[str, Any] = {}
    if exposed is not None:
        parts = tuple(_parts(case, exposed, knows_waits=knows_waits))
        mostly = limit(case, "exposed-communication", "mostly_waiting")
        exposed_ns = int(exposed.exposed_ns.sum())
        if not knows_waits:  # one rank may tell by its fastest collectives what limits it
            reason, details, waits = _limited(case, exposed, groups_, mostly)
            knows.add(reason)
            if reason != "link-limited":
                first = fact("exposed-communication.record-first")
        elif exposed.wait_ns.sum() >= mostly * max(exposed_ns, 1):
            first = fact("exposed-communication.balance-first")
        if (latency := latency_of(case, exposed.records.dur_ns[exposed.row])) is not None:
            details = (*details, latency)
            knows.add("latency")
    kind, role = groups_[0][:2] if groups_ else ("", None)
    knows |= {_purpose(case, kind, role), kind} if kind else set()
    knows |= {"fsdp"} if case.prepared is not None and _has_fsdp(case.prepared.trace) else set()
    # No more can be hidden than there is other work to hide it under.
    beside = sum(case.total.components.share(part) or 0.0 for part in _WORK)
    knows |= {"alone"} if beside < limit(case, "exposed-communication", "least_share") else set()
    made = cause(
        case,
        "exposed-communication",
        share,
        {"parts": parts},
        details,
        frozenset(knows),
        rows=tuple(
            _row(case, exposed, *entry) for entry in groups_[:_MOST_ROWS] if exposed is not None
        ),
    )
    then = made.advice
    advice = fact("exposed-communication.advice", first=first, then=then) if then else first
    # A rank that waits for others has nothing to hide.
    return replace(made, **({"advice": advice} | waits))


def _parts(case: Case, exposed: _Exposed, *, knows_waits: bool) -> Iterator[Fact]:
    """Yield the largest groups of known kind, and how much of each is waiting if that is known."""
    for kind, role, places in exposed.by_group()[:_MOST_ROWS]:
        part = share_of_window(case, int(exposed.exposed_ns[places].sum()))
        waiting = share_of_window(case, int(exposed.wait_ns[places].sum())) if knows_waits else 0.0
        if kind and part >= _WORTH_NAMING:
            code = "part-waiting" if waiting >= _WORTH_NAMING else "part"
            named = _called(kind, role)
            yield fact(f"exposed-communication.{code}", kind=named, share=part, waiting=waiting)


def _limited(
    case: Case, exposed: _Exposed, by_group: Sequence[_Group], mostly: float
) -> tuple[str, tuple[Fact, ...], dict[str, Any]]:
    """Return what limits the largest group of one rank, how that is known, and what is told of it.

    "link-limited": its links; "waits": other ranks, for which it waits; or "unknown". `mostly` is
    the share from which waiting is most of the time.
    """
    if not by_group:
        return "unknown", (), {}
    kind, role, places = by_group[0]
    share = share_of_window(case, int(exposed.exposed_ns[places].sum()))
    took_ns = exposed.records.dur_ns[exposed.row[places]]
    # Other work beside a collective may slow it down.
    is_alone = exposed.exposed_ns[places] >= _ALONE * took_ns
    fastest = Fastest.of(exposed.records, exposed.row[places[is_alone]])
    if fastest is not None:
        # `part` of the time is left if all calls were as fast as the fastest: the rest is waiting.
        if fastest.part < 1 - mostly:
            like = exposed.row[places[is_alone]]
            named = _called(kind, role)
            told = waiting_told(case, exposed.records, exposed.row, like, fastest, named)
            return "waits", (), told
        values: dict[str, Value] = {"kind": _called(kind, role), "share": fastest.part * share}
        if fastest.bytes >= limit(case, "small-collectives", "most_mib") * _MIB:
            values |= {"mib": fastest.bytes / _MIB, "rate": fastest.rate}
            return "link-limited", (Fact("exposed-communication.link", values),), {}
    # Else by how long the bytes need on the links: if that is much of the time, these limit it.
    need = _need(case, exposed, places)
    all_share = share_of_window(case, int(exposed.exposed_ns.sum()))
    if need is None or need >= (1 - mostly) * all_share:
        return "unknown" if need is None else "link-limited", (), {}
    return "unknown", (fact("exposed-communication.need", share=need),), {}


def _has_fsdp(trace: Trace) -> bool:
    """Return whether PyTorch shards parameters, by the names of its ranges and functions."""
    columns = (trace.marks["name"], trace.ops["name"])
    return any(_FSDP.search(name) for column in columns for name in names(column))


def _row(case: Case, exposed: _Exposed, kind: str, role: str | None, records: IntArray) -> Row:
    """Return a row for a group, by its kind and role; if both are unknown, by its kernel."""
    name = _called(kind, role)
    if not name and case.prepared is not None:
        column = case.prepared.trace.activities["name"]
        name = short_name(
            names(column)[codes(column)[exposed.records.row[exposed.row[records[0]]]]]
        )
    return Row(name, int(exposed.exposed_ns[records].sum()), len(records))


def _need(case: Case, exposed: _Exposed, records: IntArray) -> float | None:
    """Return the share of the window that transfers need at the peak of the links, if known."""
    if case.prepared is None:
        return None
    links = links_of(case.prepared, case.measured.devices, None)
    need_ns = needed_ns(exposed.records, exposed.row[records], links)
    return None if need_ns is None else share_of_window(case, int(need_ns.sum()))


def _purpose(case: Case, kind: str, role: str | None) -> str:
    """Return what a group is for: its role, else what such collectives are usually for."""
    if kind == "all_to_all" and case.ranks is not None and case.ranks.experts():
        return "ep"
    if kind == "all_reduce" and case.measured.inference is not None and role in (None, "tp"):
        return "serving"
    if kind == "all_reduce" and "trains" not in case.program:
        return role or "tp"  # without gradients only tensor parallelism needs them
    return role or _USUAL.get(kind, "any")


def _called(kind: str, role: str | None) -> str:
    """Return words for a kind and role of collectives, such as "all-gather of dp"."""
    return " of ".join(filter(None, (kind.replace("_", "-"), role)))


def _small(case: Case, exposed: _Exposed, name: str, records: IntArray) -> Iterator[Cause]:
    """Give a cause if many small collectives of a group follow each other with no work between."""
    joined, size = _to_be_joined(case, exposed, records), exposed.records.bytes[exposed.row]
    time_ns = int((exposed.exposed_ns - exposed.wait_ns)[joined].sum())
    share, windows = share_of_window(case, time_ns), max(case.windows_used, 1)
    few = len(joined) < limit(case, "small-collectives", "least_per_step") * windows
    if few or share < limit(case, "small-collectives", "least_share"):
        return
    rate = (size[records] / np.maximum(exposed.records.dur_ns[exposed.row[records]], 1)).max()
    as_one_ns = float(size[joined].sum()) / rate  # at the rate of the fastest of the group
    kib = float(np.median(size[joined]) / 1024)
    yield cause(
        case,
        "small-collectives",
        share,
        {"count": len(joined), "name": name, "kib": kib},
        rows=(Row(name, time_ns, len(joined)),),
        gain=Gain(max(0, round((time_ns - as_one_ns) / windows)), time_ns // windows, None),
    )


def _to_be_joined(case: Case, exposed: _Exposed, group_records: IntArray) -> IntArray:
    """Return the small collectives that follow another of their group without work between."""
    records, rows = exposed.records, exposed.row
    order = group_records[
        np.lexsort((records.start_ns[rows[group_records]], records.place[rows[group_records]]))
    ]
    row = rows[order]
    size, busy = records.bytes[row], records.busy_ns[row]
    small = (size > 0) & (size <= limit(case, "small-collectives", "most_mib") * _MIB)
    same = (records.place[row[1:]] == records.place[row[:-1]]) & small[:-1] & small[1:]
    same &= records.group[row[1:]] == records.group[row[:-1]]
    # Other work between two collectives: over half as long as the second one takes.
    worked = np.diff(busy) * 2 > records.dur_ns[row[1:]]
    return np.asarray(order[1:][same & ~worked])


def _slow(case: Case, share: float) -> Iterator[Cause]:
    """Give a cause if large collectives run far below the peak of the links."""
    rule, ranks = "slow-collectives", case.ranks
    poor, good, least = (limit(case, rule, name) for name in ("poor", "good", "least_share"))
    if ranks is None or ranks.partial:
        return  # without all ranks, transfers contain waiting and look slow
    slow = [
        # Bytes by bandwidth is the time taken; of it, what a good rate would save.
        (rate.count * rate.bytes / rate.algorithm * (1 - rate.of_peak / good), rate)
        for rate in ranks.rates()
        if rate.of_peak is not None and rate.of_peak < poor and not rate.slow  # rule slow-link
        if rate.bytes >= limit(case, rule, "least_mib") * _MIB
    ]
    slow.sort(key=lambda entry: -entry[0])
    lost_ns = sum(ns * len(rate.members) for ns, rate in slow)
    part = min(lost_ns / max(int(ranks.waits.transfer_ns.sum()), 1), 1.0)
    if not slow or part * share < least:
        return
    worst = slow[0][1]
    yield cause(
        case,
        rule,
        part * share,
        {
            "name": _called(worst.kind, worst.role),
            "mib": worst.bytes / _MIB,
            "rate": worst.bus,
            "reached": worst.of_peak or 0,
            "good": good,
        },
        rows=tuple(
            Row(_called(entry.kind, entry.role), round(ns), entry.count)
            for ns, entry in slow[:_MOST_ROWS]
        ),
        edits=(f"communication*{1 - part:.4f}",),
    )


RULE: Final = "slow-link"


def slow_link_fact(ranks: RankReport | None) -> Fact | None:
    """Return which group transfers far slower than groups alike, None if that costs little."""
    worst = _worst(ranks)
    return Fact(f"{RULE}.claim", _values(worst[0], ranks)) if worst is not None else None


def slow_link_findings(ranks: RankReport | None, program: frozenset[str]) -> Iterator[Finding]:
    """Give a finding if one group transfers far slower than groups alike."""
    yield from filter(None, map(as_loss, _causes(ranks, program)))


def slow_link(case: Case) -> Iterator[Cause]:
    """Give a cause if one group transfers far slower than groups alike."""
    yield from _causes(case.ranks, case.program)


def _causes(ranks: RankReport | None, program: frozenset[str]) -> Iterator[Cause]:
    """Yield at most one cause: the slow link by which ranks lose most."""
    worst = _worst(ranks)
    if worst is not None:
        rate, lost_ns, share = worst
        yield cause_of(
            program,
            RULE,
            share,
            _values(rate, ranks),
            (fact(f"{RULE}.cost", lost_ns=lost_ns),),
            rows=(Row(f"{rate.kind} of ranks {listed(sorted(rate.members))}", lost_ns),),
        )


def _worst(ranks: RankReport | None) -> tuple[LinkRate, int, float] | None:
    """Return worst rate, lost time and share of the ranks that lose most by a slow link."""
    slow = [rate for rate in ranks.rates() if rate.slow] if ranks is not None else []
    if ranks is None or not slow:
        return None
    lost: defaultdict[tuple[int, ...], int] = defaultdict(int)
    for rate in slow:
        lost[tuple(sorted(rate.members))] += rate.lost_ns
    worst = max(lost, key=lambda members: (lost[members], members))
    share = lost[worst] / ranks.span_ns
    worst_rates = [rate for rate in slow if tuple(sorted(rate.members)) == worst]
    rate = max(worst_rates, key=lambda rate: rate.lost_ns)
    return (rate, lost[worst], share) if severity_of(share) is not None else None


def _values(rate: LinkRate, ranks: RankReport | None) -> dict[str, Value]:
    """Return the values for the texts about a slow link."""
    usual = rate.usual or rate.bus
    return {
        "group": fact(f"{RULE}.group", role=rate.role) if rate.role else fact(f"{RULE}.link"),
        "ranks": listed(sorted(rate.members)),
        "kind": rate.kind.replace("_", "-"),
        "rate": rate.bus,
        "usual": usual,
        "times": usual / rate.bus,
        "clocks_ns": clocks_apart_ns(ranks),
    }

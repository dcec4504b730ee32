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
from traceflops.findings.finding import (
    MOST_ROWS,
    Cause,
    Finding,
    Gain,
    Row,
    as_loss,
    severity_of,
    short_name,
)
from traceflops.findings.late_rank import clocks_apart_ns
from traceflops.findings.rules import cause_of
from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.link_rates import Fastest, links_of, needed_ns
from traceflops.ranks.who_waits import RankReport, records_of
from traceflops.table.columns import IntArray, codes, names
from traceflops.table.grouping import group_rows, groups
from traceflops.units import listed
from traceflops.windows.records import chosen_time

EXPOSED: Final = "exposed-communication"
SLOW_LINK: Final = "slow-link"
_WORK: Final = ("compute", "memory", "other", "graph")
_MIB: Final = 2**20
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
    if share < limit(case, EXPOSED, "least_share"):
        return
    exposed = _exposed(case)
    parts = case.total.components.parts()
    is_beside_work = any(ns for name, ns in parts.items() if name not in ("idle", "communication"))
    # Most of it may be stages of a pipeline that wait for each other.
    is_bubble = False
    if exposed is not None and case.ranks is not None and case.ranks.pipeline is not None:
        waits_ns = exposed.wait_ns[exposed.records.is_pair[exposed.row]].sum()
        is_bubble = 2 * waits_ns > exposed.exposed_ns.sum()
    # Without other work there is nothing to hide it under.
    if is_beside_work and not is_bubble:
        yield _not_hidden(case, share, exposed)
    if exposed is not None:
        for kind, role, places in exposed.by_group()[:MOST_ROWS]:
            if kind not in _PAIRS:  # sends are of one micro-batch each, and cannot be joined
                yield from _small(case, exposed, _collective_name(kind, role), places)
    yield from _slow(case, share)


def _not_hidden(case: Case, share: float, exposed: _Exposed | None) -> Cause:
    """Return that collectives run while nothing else does, by kind and role of the group."""
    by_group = exposed.by_group() if exposed is not None else []
    knows_waits = case.ranks is not None and not case.ranks.partial
    details: tuple[Fact, ...] = ()
    first: Fact | None = None
    knows = set[str]()
    waits: dict[str, Any] = {}
    parts, rows = list[Fact](), list[Row]()
    if exposed is not None:
        for kind, role, places in by_group[:MOST_ROWS]:
            name, exposed_ns = _collective_name(kind, role), int(exposed.exposed_ns[places].sum())
            part = share_of_window(case, exposed_ns)
            wait_ns = int(exposed.wait_ns[places].sum()) if knows_waits else 0
            waiting = share_of_window(case, wait_ns)
            if kind and part >= _WORTH_NAMING:
                code = "part-waiting" if waiting >= _WORTH_NAMING else "part"
                parts.append(fact(f"{EXPOSED}.{code}", kind=name, share=part, waiting=waiting))
            if not name and case.prepared is not None:  # a kernel of unknown kind
                column = case.prepared.trace.activities["name"]
                kernel = exposed.records.row[exposed.row[places[0]]]
                name = short_name(names(column)[codes(column)[kernel]])
            rows.append(Row(name, exposed_ns, len(places)))
        mostly = limit(case, EXPOSED, "mostly_waiting")
        if not knows_waits:  # one rank may tell by its fastest collectives what limits it
            reason, details, waits = _what_limits(case, exposed, by_group, mostly)
            knows.add(reason)
            first = fact(f"{EXPOSED}.record-first") if reason != "link-limited" else None
        elif exposed.wait_ns.sum() >= mostly * max(int(exposed.exposed_ns.sum()), 1):
            first = fact(f"{EXPOSED}.balance-first")
        # Of many short collectives the time is latency, not bytes.
        took_ns = exposed.records.dur_ns[exposed.row]
        count = len(took_ns) // max(case.windows_used, 1)
        median_ns = int(np.median(took_ns)) if count else 0
        is_short = median_ns <= limit(case, EXPOSED, "latency_ns")
        if is_short and count >= limit(case, EXPOSED, "many"):
            per = "step" if case.steps.used else "window"
            latency = fact(f"{EXPOSED}.latency", count=count, median_ns=median_ns, per=per)
            details = (*details, latency)
            knows.add("latency")
    kind, role = by_group[0][:2] if by_group else ("", None)
    knows |= {_purpose(case, kind, role), kind} if kind else set()
    trace = case.prepared.trace if case.prepared is not None else None
    columns = (trace.marks["name"], trace.ops["name"]) if trace is not None else ()
    has_fsdp = any(_FSDP.search(name) for column in columns for name in names(column))
    knows |= {"fsdp"} if has_fsdp else set()
    # No more can be hidden than there is other work to hide it under.
    beside = sum(case.total.components.share(part) or 0.0 for part in _WORK)
    knows |= {"alone"} if beside < limit(case, EXPOSED, "least_share") else set()
    values = {"parts": tuple(parts)}
    made = cause(case, EXPOSED, share, values, details, frozenset(knows), rows=tuple(rows))
    then = made.advice
    advice = fact(f"{EXPOSED}.advice", first=first, then=then) if then else first
    # A rank that waits for others has nothing to hide.
    return replace(made, **({"advice": advice} | waits))


def _what_limits(
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
            named = _collective_name(kind, role)
            told = waiting_texts(case, exposed.records, exposed.row, like, fastest, named)
            return "waits", (), told
        values: dict[str, Value] = {
            "kind": _collective_name(kind, role),
            "share": fastest.part * share,
        }
        if fastest.bytes >= limit(case, "small-collectives", "most_mib") * _MIB:
            values |= {"mib": fastest.bytes / _MIB, "rate": fastest.rate}
            return "link-limited", (Fact(f"{EXPOSED}.link", values),), {}
    # Else by how long the bytes need on the links: if that is much of the time, these limit it.
    need: float | None = None
    if case.prepared is not None:
        links = links_of(case.prepared, case.measured.devices, None)
        need_ns = needed_ns(exposed.records, exposed.row[places], links)
        need = None if need_ns is None else share_of_window(case, int(need_ns.sum()))
    all_share = share_of_window(case, int(exposed.exposed_ns.sum()))
    if need is None or need >= (1 - mostly) * all_share:
        return "unknown" if need is None else "link-limited", (), {}
    return "unknown", (fact(f"{EXPOSED}.need", share=need),), {}


def _purpose(case: Case, kind: str, role: str | None) -> str:
    """Return what a group is for: its role, else what such collectives are usually for."""
    if kind == "all_to_all" and case.ranks is not None and case.ranks.experts():
        return "ep"
    if kind == "all_reduce" and case.measured.inference is not None and role in (None, "tp"):
        return "serving"
    # Without gradients only tensor parallelism needs them; a summary does not say if there are any.
    if kind == "all_reduce" and case.prepared is not None and "trains" not in case.program:
        return role or "tp"
    return role or _USUAL.get(kind, "any")


def _collective_name(kind: str, role: str | None) -> str:
    """Return words for a kind and role of collectives, such as "all-gather of dp"."""
    return " of ".join(filter(None, (kind.replace("_", "-"), role)))


def _small(case: Case, exposed: _Exposed, name: str, places: IntArray) -> Iterator[Cause]:
    """Give a cause if many small collectives of a group follow each other with no work between."""
    records, rule = exposed.records, "small-collectives"
    order = places[
        np.lexsort((records.start_ns[exposed.row[places]], records.place[exposed.row[places]]))
    ]
    row = exposed.row[order]
    size, busy_ns, took_ns = records.bytes[row], records.busy_ns[row], records.dur_ns[row]
    is_small = (size > 0) & (size <= limit(case, rule, "most_mib") * _MIB)
    follows = (records.place[row[1:]] == records.place[row[:-1]]) & is_small[:-1] & is_small[1:]
    follows &= records.group[row[1:]] == records.group[row[:-1]]
    # Other work between two collectives: over half as long as the second one takes
    worked = np.diff(busy_ns) * 2 > took_ns[1:]
    joined = order[1:][follows & ~worked]
    joined_bytes = size[1:][follows & ~worked]
    time_ns = int((exposed.exposed_ns - exposed.wait_ns)[joined].sum())
    share, windows = share_of_window(case, time_ns), max(case.windows_used, 1)
    few = len(joined) < limit(case, rule, "least_per_step") * windows
    if few or share < limit(case, rule, "least_share"):
        return
    rate = (size / np.maximum(took_ns, 1)).max()
    as_one_ns = float(joined_bytes.sum()) / rate  # at the rate of the fastest of the group
    kib = float(np.median(joined_bytes) / 1024)
    yield cause(
        case,
        rule,
        share,
        {"count": len(joined), "name": name, "kib": kib},
        rows=(Row(name, time_ns, len(joined)),),
        gain=Gain(max(0, round((time_ns - as_one_ns) / windows)), time_ns // windows, None),
    )


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
            "name": _collective_name(worst.kind, worst.role),
            "mib": worst.bytes / _MIB,
            "rate": worst.bus,
            "reached": worst.of_peak or 0,
            "good": good,
        },
        rows=tuple(
            Row(_collective_name(entry.kind, entry.role), round(ns), entry.count)
            for ns, entry in slow[:MOST_ROWS]
        ),
        edits=(f"communication*{1 - part:.4f}",),
    )


def slow_link_fact(ranks: RankReport | None) -> Fact | None:
    """Return which group transfers far slower than groups alike, None if that costs little."""
    claim = next((found.claim for found in _slow_links(ranks, frozenset())), None)
    if claim is None:
        return None
    values = {name: value for name, value in claim.values.items() if name != "share"}
    return Fact(claim.code, values)  # verdicts tell no share of it


def slow_link_findings(ranks: RankReport | None, program: frozenset[str]) -> Iterator[Finding]:
    """Give a finding if one group transfers far slower than groups alike."""
    yield from filter(None, map(as_loss, _slow_links(ranks, program)))


def slow_link(case: Case) -> Iterator[Cause]:
    """Give a cause if one group transfers far slower than groups alike."""
    yield from _slow_links(case.ranks, case.program)


def _slow_links(ranks: RankReport | None, program: frozenset[str]) -> Iterator[Cause]:
    """Yield at most one cause: the slow link by which ranks lose most."""
    slow = [rate for rate in ranks.rates() if rate.slow] if ranks is not None else []
    if ranks is None or not slow:
        return
    lost: defaultdict[tuple[int, ...], int] = defaultdict(int)
    for rate in slow:
        lost[tuple(sorted(rate.members))] += rate.lost_ns
    worst = max(lost, key=lambda members: (lost[members], members))
    share = lost[worst] / ranks.span_ns
    if severity_of(share) is None:
        return
    worst_rates = [rate for rate in slow if tuple(sorted(rate.members)) == worst]
    rate = max(worst_rates, key=lambda rate: rate.lost_ns)
    usual = rate.usual or rate.bus
    link = fact(f"{SLOW_LINK}.link")
    values: dict[str, Value] = {
        "group": fact(f"{SLOW_LINK}.group", role=rate.role) if rate.role else link,
        "ranks": listed(worst),
        "kind": rate.kind.replace("_", "-"),
        "rate": rate.bus,
        "usual": usual,
        "times": usual / rate.bus,
        "clocks_ns": clocks_apart_ns(ranks),
    }
    cost = fact(f"{SLOW_LINK}.cost", lost_ns=lost[worst])
    rows = (Row(f"{rate.kind} of ranks {listed(worst)}", lost[worst]),)
    yield cause_of(program, SLOW_LINK, share, values, (cost,), rows=rows)


def waiting_texts(
    case: Case, records: CommRecords, chosen: IntArray, like: IntArray, fastest: Fastest, named: str
) -> dict[str, Any]:
    """Return what differs in the cause of a rank that waits: its texts, gain and remedy.

        first of the recording |##########|    others of its size |#|  |#|  |#|

    Where collectives of equal size take very different times, hiding or faster links gain little.
    Of a first collective that is most of the time, a recording of one step does not tell whether
    ranks began apart, or are uneven in each step.

    `chosen` are its collectives as rows of `records`, `like` those that are `named`, which take
    most time; of them only the `fastest` may be all transfer.
    """
    took_ns = records.dur_ns[like]
    waited_ns = round((1 - fastest.part) * int(took_ns.sum()))
    windows = max(case.windows_used, 1)
    rank = records.ranks[0] if len(records.ranks) == 1 else None
    values: dict[str, Value] = {
        "share": case.total.components.share("communication") or 0.0,
        "rank": rank,
        "kind": named,
        "waiting": share_of_window(case, waited_ns),
        "least_ns": fastest.least_ns,
    }
    first = like[int(np.argmin(records.start_ns[like]))]
    is_first = windows == 1 and records.start_ns[first] == records.start_ns[chosen].min()
    # More than half of the time in one call, the first of all.
    is_skew = bool(is_first and 2 * records.dur_ns[first] > took_ns.sum())
    first_ns = int(records.dur_ns[first])
    return {
        "name": fact(f"{EXPOSED}.title-waits", **values),
        "claim": fact(f"{EXPOSED}.claim-waits", **values),
        "details": (fact(f"{EXPOSED}.first-waits", kind=named, first_ns=first_ns),) * is_skew,
        "advice": fact(f"{EXPOSED}.{'several-steps' if is_skew else 'balance-ranks'}"),
        "owner": None,  # other ranks are not recorded
        "edits": (),
        "partly": (),
        "on_path": frozenset(),
        "doubts": (fact("doubt.ranks-missing"),),
        "gain": None if is_skew else Gain(0, waited_ns // windows, None),
    }

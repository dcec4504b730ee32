"""Communication that is exposed, and what exposes it: waiting, slow links, many small collectives.

Communication is exposed while nothing else runs, and waits while other ranks have not begun.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.finding import MOST_ROWS, Cause, Gain, Row, short_name
from traceflops.findings.slow_links import collective_name, slow_collectives
from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.link_rates import Fastest, bus_bytes, links_of, needed_ns
from traceflops.ranks.recorded import records_of
from traceflops.table.columns import IntArray, codes, names
from traceflops.table.grouping import group_rows, groups
from traceflops.table.nesting import taken
from traceflops.windows.records import chosen_time

EXPOSED: Final = "exposed-communication"
_WORK: Final = ("compute", "memory", "other", "graph")
_MIB: Final = 2**20
_ALONE: Final = 0.9
"""A collective ran beside no other work if at least this share of its time is exposed."""
_MOST: Final = 0.5
_FSDP: Final = re.compile(r"FSDP|FullySharded|fully_shard|/_?fsdp/")
_WORTH_NAMING: Final = 0.005  # groups with a smaller share of the window are not named
_PAIRS: Final = ("send", "recv", "send_recv")
_USUAL: Final = {
    "all_reduce": "dp",
    "all_gather": "dp",
    "reduce_scatter": "dp",
    "all_to_all": "any",
    **dict.fromkeys(_PAIRS, "pp"),
}
"""What groups without a known role are for, by kind, in training."""


class _Group(NamedTuple):
    """Collectives of one kind ("" if unknown) whose groups of ranks have the same role.

    `places` are those in the columns of `_Exposed`.
    """

    kind: str
    role: str | None
    places: IntArray

    @property
    def name(self) -> str:
        """Return kind and role in words, "" if both are unknown."""
        return collective_name(self.kind, self.role)


class _Exposed(Struct, frozen=True):
    """The communication of the chosen windows: columns with an entry per collective.

    `row` is its row in `records`. `name` is the code of the kernel's name if the kind is unknown,
    else -1. `wait_ns` is the part of `exposed_ns` in which other ranks had not begun.
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
        # Groups of ranks with the same role count as the first of them.
        group_of_role = np.array([roles.index(role) for role in roles], dtype=np.int64)
        number, _ = group_rows((records.kind[rows], group_of_role[records.group[rows]], self.name))
        by_role = []
        for _, places in groups(number):
            first = rows[places[0]]
            kind, role = int(records.kind[first]), roles[int(records.group[first])]
            by_role.append(_Group(KINDS[kind] if kind >= 0 else "", role, places))
        return sorted(by_role, key=lambda group: -int(self.exposed_ns[group.places].sum()))


def _exposed(case: Case) -> _Exposed | None:
    """Return the collectives that begin in the chosen windows, None without records of each."""
    ranks = case.ranks
    if not (ranks.are_several or case.has_events):
        return None
    records = ranks.records if ranks.are_several else records_of(case.prepared)
    windows = {device.device: device.windows for device in case.devices}
    is_chosen, alone_ns = np.zeros(len(records), dtype=np.bool_), np.zeros_like(records.start_ns)
    for place, rows in groups(records.place):
        start, end = records.start_ns[rows], records.end_ns[rows]
        chosen = chosen_time(windows[records.devices[place]])
        is_chosen[rows] = chosen.contains(start)
        alone_ns[rows] = records.alone[place].length_within(start, end)
    wait_ns = np.zeros_like(alone_ns)
    wait_ns[ranks.waits.row] = ranks.waits.exposed_ns
    row = np.flatnonzero(is_chosen)
    name = taken(codes(case.prepared.trace.activities["name"]), records.row[row])
    name[records.kind[row] >= 0] = -1
    return _Exposed(records, row, name, alone_ns[row], np.minimum(wait_ns, alone_ns)[row])


def communication(case: Case) -> Iterator[Cause]:
    """Give causes if much communication is exposed."""
    share = case.total.components.share("communication") or 0.0
    if share < limit(case, EXPOSED, "least_share"):
        return
    exposed = _exposed(case)
    parts = case.total.components.parts()
    is_beside_work = any(ns for name, ns in parts.items() if name not in ("idle", "communication"))
    # Stages of a pipeline that wait for each other are the subject of another rule.
    is_bubble = False
    if exposed is not None and case.ranks.pipeline is not None:
        waits_ns = exposed.wait_ns[exposed.records.is_pair[exposed.row]].sum()
        is_bubble = 2 * waits_ns > exposed.exposed_ns.sum()
    # Without other work there is nothing to hide it under.
    if is_beside_work and not is_bubble:
        yield _not_hidden(case, share, exposed)
    if exposed is not None:
        for group in exposed.by_group()[:MOST_ROWS]:
            if group.kind not in _PAIRS:  # sends are of one micro-batch each: none can be joined
                yield from _small(case, exposed, group)
    yield from slow_collectives(case, share)


def _not_hidden(case: Case, share: float, exposed: _Exposed | None) -> Cause:
    """Return the cause that collectives run while nothing else does, by kind and role."""
    by_group = exposed.by_group() if exposed is not None else []
    knows_waits = case.ranks.are_several and not case.ranks.partial
    details: tuple[Fact, ...] = ()
    first: Fact | None = None  # what to do before hiding communication
    knows = set[str]()  # facts that choose the remedy
    changes: dict[str, Any] = {}
    parts, rows = list[Fact](), list[Row]()
    if exposed is not None:
        parts, rows = _parts_and_rows(case, exposed, by_group[:MOST_ROWS], knows_waits)
        mostly = limit(case, EXPOSED, "mostly_waiting")
        if not knows_waits:  # one rank may tell by its fastest collectives what limits it
            reason, details, changes = _what_limits(case, exposed, by_group, mostly)
            knows.add(reason)
            first = fact(f"{EXPOSED}.record-first") if reason != "link-limited" else None
        elif exposed.wait_ns.sum() >= mostly * max(int(exposed.exposed_ns.sum()), 1):
            first = fact(f"{EXPOSED}.balance-first")
        # Many short collectives are limited by latency, not by bytes.
        took_ns = exposed.records.dur_ns[exposed.row]
        count = len(took_ns) // max(case.windows_used, 1)
        median_ns = int(np.median(took_ns)) if count else 0
        is_short = median_ns <= limit(case, EXPOSED, "latency_ns")
        if is_short and count >= limit(case, EXPOSED, "many"):
            per = "step" if case.steps.used else "window"
            latency = fact(f"{EXPOSED}.latency", count=count, median_ns=median_ns, per=per)
            details = (*details, latency)
            knows.add("latency")
    if by_group and by_group[0].kind:
        knows |= {_purpose(case, by_group[0].kind, by_group[0].role), by_group[0].kind}
    columns = case.prepared.trace.marks["name"], case.prepared.trace.ops["name"]
    has_fsdp = any(_FSDP.search(name) for column in columns for name in names(column))
    knows |= {"fsdp"} if has_fsdp else set()
    # No more can be hidden than there is other work to hide it under.
    beside = sum(case.total.components.share(part) or 0.0 for part in _WORK)
    knows |= {"alone"} if beside < limit(case, EXPOSED, "least_share") else set()
    is_transfer = first is None and (knows_waits or "link-limited" in knows)
    is_little = beside < limit(case, EXPOSED, "little_beside") * share and share > _MOST
    if exposed is not None and is_transfer and is_little and "latency" not in knows:
        knows.add("little-beside")
        changes["name"] = fact(f"{EXPOSED}.title-alone")
        details = (*_single(case, exposed), *details)
    values = {"parts": tuple(parts)}
    made = cause(case, EXPOSED, share, values, details, frozenset(knows), rows=tuple(rows))
    then = made.advice
    advice = fact(f"{EXPOSED}.advice", first=first, then=then) if then else first
    # `changes` may replace the advice: a rank that waits for others has nothing to hide.
    return replace(made, **({"advice": advice} | changes))


def _single(case: Case, exposed: _Exposed) -> tuple[Fact, ...]:
    """Return which collective alone takes most of a rank's exposed transfer, () if none does.

    Its time, and so its rate, are without its waiting for other ranks.
    """
    transfer_ns = exposed.exposed_ns - exposed.wait_ns
    longest = int(np.argmax(transfer_ns))
    row, records = int(exposed.row[longest]), exposed.records
    of_rank_ns = transfer_ns[records.place[exposed.row] == records.place[row]].sum()
    if 2 * transfer_ns[longest] <= of_rank_ns or case.windows_used > len(case.devices):
        return ()
    kind, dur_ns, size = (int(of[row]) for of in (records.kind, records.dur_ns, records.bytes))
    took_ns = dur_ns - int(exposed.wait_ns[longest])
    values: dict[str, Value] = {
        "kind": KINDS[kind].replace("_", "-") if kind >= 0 else "collective",
        "time_ns": took_ns,
    }
    if size > 0:
        moved = float(bus_bytes(records, exposed.row[longest : longest + 1])[0])
        values |= {"bytes": size, "rate": moved / took_ns}
    return (fact(f"{EXPOSED}.single", **values),)


def _parts_and_rows(
    case: Case, exposed: _Exposed, by_group: Sequence[_Group], knows_waits: bool
) -> tuple[list[Fact], list[Row]]:
    """Return the share of each group worth naming as a fact, and all groups as rows."""
    parts, rows = [], []
    for group in by_group:
        name, exposed_ns = group.name, int(exposed.exposed_ns[group.places].sum())
        part = share_of_window(case, exposed_ns)
        wait_ns = int(exposed.wait_ns[group.places].sum()) if knows_waits else 0
        waiting = share_of_window(case, wait_ns)
        if group.kind and part >= _WORTH_NAMING:
            code = "part-waiting" if waiting >= _WORTH_NAMING else "part"
            parts.append(fact(f"{EXPOSED}.{code}", kind=name, share=part, waiting=waiting))
        kernel = int(exposed.name[group.places[0]])
        if not name and kernel >= 0:  # of unknown kind
            name = short_name(names(case.prepared.trace.activities["name"])[kernel])
        rows.append(Row(name, exposed_ns, len(group.places)))
    return parts, rows


def _what_limits(
    case: Case, exposed: _Exposed, by_group: Sequence[_Group], mostly: float
) -> tuple[str, tuple[Fact, ...], dict[str, Any]]:
    """Return what limits the largest group of one rank, details on it, and changes of the cause.

    The limit is "link-limited" (the links), "waits" (for other ranks) or "unknown". Waiting is most
    of the time if its share is above `mostly`.
    """
    if not by_group:
        return "unknown", (), {}
    places = by_group[0].places
    share = share_of_window(case, int(exposed.exposed_ns[places].sum()))
    took_ns = exposed.records.dur_ns[exposed.row[places]]
    # Only collectives that ran alone are compared: other work may slow one down.
    alone = exposed.row[places[exposed.exposed_ns[places] >= _ALONE * took_ns]]
    fastest = Fastest.of(exposed.records, alone)
    if fastest is not None:
        # If all calls were as fast as the fastest, `part` of the time would remain: all else waits.
        if fastest.part < 1 - mostly:
            named = by_group[0].name
            return "waits", (), _waiting_changes(case, exposed, alone, fastest, named)
        if fastest.bytes >= limit(case, "small-collectives", "most_mib") * _MIB:
            values: dict[str, Value] = {
                "kind": by_group[0].name,
                "share": fastest.part * share,
                "mib": fastest.bytes / _MIB,
                "rate": fastest.rate,
            }
            return "link-limited", (Fact(f"{EXPOSED}.link", values),), {}
    # The links limit if the bytes need much of the time at the peak of the links.
    need: float | None = None
    if case.has_events:
        links = links_of(case.prepared, case.measured.devices, None)
        need_ns = needed_ns(exposed.records, exposed.row[places], links)
        need = None if need_ns is None else share_of_window(case, int(need_ns.sum()))
    all_share = share_of_window(case, int(exposed.exposed_ns.sum()))
    if need is None or need >= (1 - mostly) * all_share:
        return "unknown" if need is None else "link-limited", (), {}
    return "unknown", (fact(f"{EXPOSED}.need", share=need),), {}


def _purpose(case: Case, kind: str, role: str | None) -> str:
    """Return what a group of ranks is for, by its role or by the usual use of such collectives."""
    if kind == "all_to_all" and case.ranks.experts():
        return "ep"
    if kind == "all_reduce" and case.measured.inference is not None and role in (None, "tp"):
        return "serving"
    # Without gradients only tensor parallelism reduces. A summary does not tell if there are any.
    if kind == "all_reduce" and case.has_events and "trains" not in case.program:
        return role or "tp"
    return role or _USUAL.get(kind, "any")


def _small(case: Case, exposed: _Exposed, group: _Group) -> Iterator[Cause]:
    """Give a cause if many small collectives of a group follow each other with no work between."""
    records, rule = exposed.records, "small-collectives"
    row = exposed.row[group.places]
    order = np.lexsort((records.start_ns[row], records.place[row]))
    places, row = group.places[order], row[order]
    size, took_ns = records.bytes[row], records.dur_ns[row]
    is_small = (size > 0) & (size <= limit(case, rule, "most_mib") * _MIB)
    # Each collective but the first, against the one before it
    same_device = records.place[row[1:]] == records.place[row[:-1]]
    same_ranks = records.group[row[1:]] == records.group[row[:-1]]
    has_work_between = np.diff(records.busy_ns[row]) * 2 > took_ns[1:]  # over half of its own time
    both_small = is_small[1:] & is_small[:-1]
    can_join = same_device & same_ranks & both_small & ~has_work_between
    joined, joined_bytes = places[1:][can_join], size[1:][can_join]
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
        {"count": len(joined), "name": group.name, "kib": kib},
        rows=(Row(group.name, time_ns, len(joined)),),
        gain=Gain(max(0, round((time_ns - as_one_ns) / windows)), time_ns // windows, None),
    )


def _waiting_changes(
    case: Case, exposed: _Exposed, alone: IntArray, fastest: Fastest, named: str
) -> dict[str, Any]:
    """Return the fields that differ in the cause of a rank that waits: texts, gain and remedy.

        first of the recording |##########|    others of its size |#|  |#|  |#|

    If collectives of equal size take very different times, hiding or faster links gain little. If
    the first collective takes most of the time, a recording of one step does not tell whether the
    ranks began apart once, or are uneven in each step. `alone` are the collectives `named` so that
    ran alone, as rows of the records; only the `fastest` may be all transfer.
    """
    records = exposed.records
    took_ns = records.dur_ns[alone]
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
    first = alone[int(np.argmin(records.start_ns[alone]))]
    is_first_of_all = records.start_ns[first] == records.start_ns[exposed.row].min()
    is_most = 2 * records.dur_ns[first] > took_ns.sum()
    is_skew = bool(windows == 1 and is_first_of_all and is_most)
    first_ns = int(records.dur_ns[first])
    then = "several-steps" if is_skew else "balance-ranks"
    return {
        "name": fact(f"{EXPOSED}.title-waits", **values),
        "claim": fact(f"{EXPOSED}.claim-waits", **values),
        "details": (fact(f"{EXPOSED}.first-waits", kind=named, first_ns=first_ns),) * is_skew,
        "advice": fact(f"{EXPOSED}.{then}"),
        "owner": None,  # other ranks are not recorded
        "edits": (),
        "partly": (),
        "on_path": frozenset(),
        "doubts": (fact("doubt.ranks-missing"),),
        "gain": None if is_skew else Gain(0, waited_ns // windows, None),
    }

"""Rules of communication: exposed, in many small collectives, or far below the rate of the links.

Time is exposed where one collective runs and nothing else does; `wait_ns` is the part in which
other ranks had not begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.findings.case import is_amd, is_torch, limit, share_of_window
from traceflops.findings.finding import Candidate, Gain, Row, short_name
from traceflops.ranks import KINDS, links_of, needed_ns, records_of
from traceflops.table import IntArray, codes, group_rows, groups, names
from traceflops.units import capitalized, listed, percent, significant
from traceflops.windows import chosen_time

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.ranks import CommRecords

_MOST_ROWS, _MIB = 3, 2**20
_WORTH_NAMING: Final = 0.005
_PAIRS: Final = ("send", "recv", "send_recv")
_EARLIER: Final = "Start communication earlier, beside independent work."
_BALANCE: Final = "Balance the work of the ranks first: most of this is waiting. "
_RECORD: Final = "Record all ranks to see for whom it waits. "
_OVERLAP: Final = {
    ("dp", "all_reduce"): "Overlap it with the backward pass: DistributedDataParallel with "
    "gradient_as_bucket_view=True and another bucket_cap_mb; no_sync() while gradients accumulate.",
    ("dp", ""): "Gather parameters earlier: FullyShardedDataParallel with forward_prefetch=True, "
    "backward_prefetch=BackwardPrefetch.BACKWARD_PRE and limit_all_gathers=False; with "
    "fully_shard, set_modules_to_forward_prefetch().",
    ("serving", ""): "Fuse all-reduce and norm (fuse_allreduce_rms in the pass_config of vLLM), or "
    "split tensors over fewer GPUs and run more replicas.",
    ("tp", ""): "Overlap it with the products around it: torch.compile with "
    "torch._inductor.config._micro_pipeline_tp=True; or split tensors over fewer ranks.",
    ("ep", ""): "Overlap the exchange of tokens with the shared experts or with the other half of "
    "the batch; limit the capacity factor.",
    ("pp", ""): "Send beside the next microbatch, as ScheduleInterleaved1F1B of "
    "torch.distributed.pipelining does; use more microbatches.",
    ("any", ""): "Start it with async_op=True, and do what does not need its result before wait().",
    ("cp", ""): "Exchange keys and values beside the attention of the block before.",
}
"""How PyTorch hides it, by the role of the group and the kind; "" is any other kind."""
_USUAL: Final = {
    "all_reduce": "dp",
    "all_gather": "dp",
    "reduce_scatter": "dp",
    "all_to_all": "any",
    **dict.fromkeys(_PAIRS, "pp"),
}
"""What groups without a known role are for, by kind, in training."""
_JOIN: Final = (
    "Join them: a larger bucket_cap_mb for DistributedDataParallel, larger units to wrap for "
    "FullyShardedDataParallel, or one flat tensor instead of a loop."
)
_LINKS: Final = (
    "Set NCCL_DEBUG=INFO and look for missing P2P, {link} or GPUDirect; unset NCCL_P2P_DISABLE, "
    "NCCL_ALGO and NCCL_PROTO, and try a larger NCCL_MIN_NCHANNELS."
)
_Group = tuple[str, str | None, IntArray]
"""Kind, role of the group, and places."""


@dataclass(frozen=True, slots=True)
class _Exposed:
    """Communication of the chosen windows: places of its records, and exposed times in ns."""

    records: CommRecords
    row: IntArray
    exposed_ns: IntArray
    wait_ns: IntArray

    def by_group(self) -> list[_Group]:
        """Return kind, role and places of each kind and group, the most exposed first."""
        rows, records = self.row, self.records
        roles = [group.role for group in records.groups]
        place = np.array([roles.index(role) for role in roles], dtype=np.int64)
        number, _ = group_rows((records.kind[rows], place[records.group[rows]]))
        found = []
        for _, mine in groups(number):
            kind, group = int(records.kind[rows[mine[0]]]), int(records.group[rows[mine[0]]])
            found.append((KINDS[kind] if kind >= 0 else "", roles[group], mine))
        return sorted(found, key=lambda one: -int(self.exposed_ns[one[2]].sum()))


def _exposed(case: Case) -> _Exposed | None:
    """Return when communication is exposed, None where single kernels are not known."""
    if case.ranks is not None:
        records = case.ranks.records
    elif case.prepared is not None:
        records = records_of(case.prepared)
    else:
        return None
    windows = {one.device: one.windows for one in case.devices}
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
    return _Exposed(records, row, alone_ns[row], np.minimum(wait_ns, alone_ns)[row])


def communication(case: Case) -> Iterator[Candidate]:
    """Give candidates where communication is exposed."""
    share = case.total.components.share("communication") or 0.0
    if share < limit(case, "exposed-communication", "least_share"):
        return
    found = _exposed(case)
    if _is_beside_work(case) and not _is_bubble(case, found):
        yield _not_hidden(case, share, found)
    if found is not None:
        several = found.by_group()[:_MOST_ROWS]
        for kind, role, mine in (one for one in several if one[0] not in _PAIRS):
            yield from _small(case, found, _called(kind, role), mine)
    yield from _slow(case, share)


def _is_beside_work(case: Case) -> bool:
    """Return whether there is work that could hide communication."""
    parts = case.total.components.parts()
    return any(ns for name, ns in parts.items() if name not in ("idle", "communication"))


def _is_bubble(case: Case, found: _Exposed | None) -> bool:
    """Return whether most of it is that stages of a pipeline wait for each other."""
    if case.ranks is None or case.ranks.pipeline is None or found is None:
        return False
    waits_ns = found.wait_ns[found.records.is_pair[found.row]].sum()
    return bool(2 * waits_ns > found.exposed_ns.sum())


def _not_hidden(case: Case, share: float, found: _Exposed | None) -> Candidate:
    """Return that collectives run while nothing else does, by kind and role of the group."""
    several = found.by_group() if found is not None else []
    parts, said, first = _parts(case, found, several) if found is not None else ([], "", "")
    return Candidate(
        rule="exposed-communication",
        title="Communication is not hidden",
        sentence=(
            f"For {percent(share)} of the time only communication runs"
            f"{f': {listed(parts)}' if parts else ''}.{said}"
        ),
        share=share,
        owner="framework",
        remedy=first + _overlap(case, *(several[0][:2] if several else ("", None))),
        evidence=("communication", "timeline", "categories"),
        rows=tuple(_row(case, found, *one) for one in several[:_MOST_ROWS] if found is not None),
        edits=("communication=hidden",),
        on_path=frozenset({"communication"}),
        frees=True,
        partly=("communication*1",),
        doubts=("there may be nothing to hide some of it under",),
    )


def _row(case: Case, found: _Exposed, kind: str, role: str | None, mine: IntArray) -> Row:
    """Return kind and role; where neither is known, the name of the kernel."""
    name = _called(kind, role)
    if not name and case.prepared is not None:
        column = case.prepared.trace.activities["name"]
        name = short_name(names(column)[codes(column)[found.records.row[found.row[mine[0]]]]])
    return Row(name, int(found.exposed_ns[mine].sum()), len(mine))


def _parts(case: Case, found: _Exposed, several: Sequence[_Group]) -> tuple[list[str], str, str]:
    """Return the largest parts with their waiting, else what may be, and what to do about that."""
    knows = case.ranks is not None and not case.ranks.partial
    parts = [
        f"{_called(kind, role)} {percent(share)}{_waiting(case, found, mine) if knows else ''}"
        for kind, role, mine in several[:_MOST_ROWS]
        if (share := share_of_window(case, int(found.exposed_ns[mine].sum()))) >= _WORTH_NAMING
        if kind
    ]
    mostly, exposed_ns = (
        limit(case, "exposed-communication", "mostly_waiting"),
        int(found.exposed_ns.sum()),
    )
    if knows:
        return parts, "", _BALANCE * bool(found.wait_ns.sum() >= mostly * max(exposed_ns, 1))
    need = _need(case, found, several[0][2]) if several else None
    if need is None:
        return parts, "", _RECORD
    if need >= (1 - mostly) * share_of_window(case, exposed_ns):
        return parts, "", ""
    at_peak = f" At link speed the largest part would take {percent(need)} of the time"
    return parts, f"{at_peak}; the rest may be waiting for other ranks.", _RECORD


def _waiting(case: Case, found: _Exposed, mine: IntArray) -> str:
    """Return how much of it is waiting for other ranks, "" where that is little."""
    share = share_of_window(case, int(found.wait_ns[mine].sum()))
    return f" ({percent(share)} waiting for other ranks)" if share >= _WORTH_NAMING else ""


def _need(case: Case, found: _Exposed, mine: IntArray) -> float | None:
    """Return which share of the time transfers must take at the peak of the links."""
    if case.prepared is None:
        return None
    links = links_of(case.prepared, case.measured.devices, None)
    need_ns = needed_ns(found.records, found.row[mine], links)
    return None if need_ns is None else share_of_window(case, int(need_ns.sum()))


def _overlap(case: Case, kind: str, role: str | None) -> str:
    """Return how the framework hides what is most exposed."""
    if not (kind and is_torch(case)):
        return _EARLIER
    purpose = role or _USUAL.get(kind, "any")
    if kind == "all_to_all" and case.ranks is not None and case.ranks.experts():
        purpose = "ep"
    if kind == "all_reduce" and case.measured.inference is not None and role in (None, "tp"):
        purpose = "serving"
    return _OVERLAP.get((purpose, kind)) or _OVERLAP[purpose, ""]


def _called(kind: str, role: str | None) -> str:
    """Return what to call collectives of a kind and the role of their group."""
    return " of ".join(filter(None, (kind.replace("_", "-"), role)))


def _small(case: Case, found: _Exposed, name: str, mine: IntArray) -> Iterator[Candidate]:
    """Give a candidate where small collectives follow each other with no work between."""
    joined, size = _to_be_joined(case, found, mine), found.records.bytes[found.row]
    time_ns = int((found.exposed_ns - found.wait_ns)[joined].sum())
    share, windows = share_of_window(case, time_ns), max(case.windows_used, 1)
    few = len(joined) < limit(case, "small-collectives", "least_per_step") * windows
    if few or share < limit(case, "small-collectives", "least_share"):
        return
    rate = (size[mine] / np.maximum(found.records.dur_ns[found.row[mine]], 1)).max()
    as_one_ns = float(size[joined].sum()) / rate
    yield Candidate(
        rule="small-collectives",
        title="Collectives are small and many",
        sentence=(
            f"{len(joined):,} times {name} of {significant(np.median(size[joined]) / 1024, 3)} KiB "
            f"(median) follows another with no work between: {percent(share)} of the time."
        ),
        share=share,
        owner="framework",
        remedy=_JOIN,
        evidence=("communication", "timeline"),
        rows=(Row(name, time_ns, len(joined)),),
        gain=Gain(max(0, round((time_ns - as_one_ns) / windows)), time_ns // windows, None),
    )


def _to_be_joined(case: Case, found: _Exposed, mine: IntArray) -> IntArray:
    """Return those small collectives of one kind that follow another without work between."""
    records, rows = found.records, found.row
    order = mine[np.lexsort((records.start_ns[rows[mine]], records.place[rows[mine]]))]
    row = rows[order]
    size, busy = records.bytes[row], records.busy_ns[row]
    small = (size > 0) & (size <= limit(case, "small-collectives", "most_mib") * _MIB)
    same = (records.place[row[1:]] == records.place[row[:-1]]) & small[:-1] & small[1:]
    same &= records.group[row[1:]] == records.group[row[:-1]]
    worked = np.diff(busy) * 2 > records.dur_ns[row[1:]]
    return np.asarray(order[1:][same & ~worked])


def _slow(case: Case, exposed: float) -> Iterator[Candidate]:
    """Give a candidate where large collectives run far below what the links carry."""
    rule, ranks = "slow-collectives", case.ranks
    poor, good, least = (limit(case, rule, name) for name in ("poor", "good", "least_share"))
    if ranks is None or ranks.partial:
        return
    found = [
        (one.count * one.bytes / one.algorithm * (1 - one.of_peak / good), one)
        for one in ranks.rates()
        if one.of_peak is not None and one.of_peak < poor and not one.slow
        if one.bytes >= limit(case, rule, "least_mib") * _MIB
    ]
    found.sort(key=lambda one: -one[0])
    lost_ns = sum(ns * len(one.members) for ns, one in found)
    part = min(lost_ns / max(int(ranks.waits.transfer_ns.sum()), 1), 1.0)
    if not found or part * exposed < least:
        return
    worst = found[0][1]
    yield Candidate(
        rule=rule,
        title="Collectives are far below the links",
        sentence=(
            f"{capitalized(_called(worst.kind, worst.role))} of "
            f"{significant(worst.bytes / _MIB, 3)} MiB runs at {significant(worst.bus, 3)} GB/s, "
            f"{percent(worst.of_peak or 0)} of what the links carry; the gain assumes "
            f"{percent(good)}."
        ),
        share=part * exposed,
        owner="cluster",
        remedy=_LINKS.format(link="XGMI" if is_amd(case) else "NVLink"),
        evidence=("ranks", "communication"),
        rows=tuple(
            Row(_called(one.kind, one.role), round(ns), one.count) for ns, one in found[:_MOST_ROWS]
        ),
        edits=(f"communication*{1 - part:.4f}",),
        on_path=frozenset({"communication"}),
        doubts=("the links may be slower than the device table says",),
    )

"""The ranks of a job, farthest off first: waits and bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from traceflops.facts import Fact, fact
from traceflops.findings.communication import slow_link_fact
from traceflops.findings.late_rank import (
    clocks_apart_ns,
    late_rank_fact,
    late_rank_reason,
    waiting_for,
)
from traceflops.findings.rules import advice_of
from traceflops.reports.view.figures import (
    UNKNOWN,
    count,
    duration,
    percent,
    shorten_middle,
    significant,
    size,
)
from traceflops.reports.view.tables import Column, Name, ReportTable, table_of
from traceflops.reports.view.texts import words
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.ranks.collectives import Collective
    from traceflops.ranks.link_rates import LinkRate
    from traceflops.ranks.who_waits import RankReport, Turn
    from traceflops.table.columns import IntArray

_MOST_RATES: Final = 24
_FEW_RANKS: Final = 4
_MOST_ROWS, _MOST_COLUMNS = 12, 8
_SHADES: Final = (0.02, 0.25, 0.6)
_NONE: Final = table_of((), ())
_number = partial(Column, is_number=True)


class Amount(str):
    """A time in words, and how dark its cell is: 0 (nothing) to 3 (as much as any)."""

    __slots__ = ("shade",)
    shade: int

    def __new__(cls, text: str, share: float) -> Self:
        """Return a time that is this share of the largest one beside it."""
        made = super().__new__(cls, text)
        made.shade = sum(share > edge for edge in _SHADES)
        return made


def late_rank_words(analysis: Analysis) -> tuple[str, str, str]:
    """Return which rank or link holds others up, why and what to do; else how much is waiting."""
    ranks = analysis.ranks
    late = late_rank_fact(ranks)
    if late is not None and ranks is not None and ranks.slow is not None:
        why, advice = late_rank_reason(ranks.slow)
        return words(late), words(why), words(advice)
    link = slow_link_fact(ranks)
    if link is not None:
        return words(link), "", words(advice_of("slow-link", analysis.program))
    return waiting_sentence(analysis), "", ""


def late_rank_statement(analysis: Analysis) -> Fact | None:
    """Return which rank or link holds others up, None where none does."""
    return late_rank_fact(analysis.ranks) or slow_link_fact(analysis.ranks)


def waiting_sentence(analysis: Analysis) -> str:
    """Return how much of communication is waiting and for whom, "" where that is little."""
    waiting = waiting_for(analysis.ranks)
    details = waiting[1] if waiting is not None else ()
    is_said = any(details == loss.details for loss in analysis.losses)
    return " ".join(map(words, details)) if is_said else ""


def clocks_sentence(analysis: Analysis) -> str:
    """Return how far times of different ranks can be compared, and who is late without a number."""
    ranks = analysis.ranks
    return "" if ranks is None else " ".join([_how_aligned(ranks), *_late_device(analysis, ranks)])


def _late_device(analysis: Analysis, ranks: RankReport) -> Iterator[str]:
    if ranks.slow is not None and ranks.records.devices:
        at = ranks.records.devices[ranks.records.ranks.index(ranks.slow.rank)]
        for device in analysis.devices:
            if device.device == at and not device.rank_text:
                yield f"Nothing numbers the ranks: rank {ranks.slow.rank} is {device.label}."


def _how_aligned(ranks: RankReport) -> str:
    found = ranks.alignment
    if not ranks.comparable:
        return "Clocks cannot be aligned: waits are durations beyond the shortest."
    far = max(*abs(found.earliest_ns).tolist(), *found.latest_ns.tolist())
    how = f"aligned on {_words(found.basis)}" if found.basis else "as recorded"
    residual = (found.residual_median_ns, found.residual_p95_ns)
    middle, high = (UNKNOWN if ns is None else duration(ns) for ns in residual)
    return f"Clocks {how}: residual {middle}, p95 {high}, bound ±{duration(far)}."


def limits_sentence(ranks: RankReport) -> str:
    """Return what the collectives do not tell, "" where they tell everything."""
    sentences = []
    if ranks.partial:
        sentences.append("Ranks are missing: waits are at least, transfers at most, as shown.")
    if ranks.unmatched:
        of = several(len(ranks.records), "communication kernel")
        sentences.append(f"{count(ranks.unmatched)} of {of} match none of another rank.")
    if ranks.by_ends:
        sentences.append(
            "Groups or peers that nothing names are those of kernels that end together."
        )
    if ranks.matches.impossible:
        impossible = several(ranks.matches.impossible, "match", "matches")
        sentences.append(f"{impossible} impossible in time dropped.")
    return " ".join(sentences)


def waits_basis(ranks: RankReport) -> str:
    """Return what the figures are of, and how much waiting is before them."""
    cycles, found = ranks.cycles, ranks.waits
    if cycles.has_steps:
        return f"Means of {several(len(cycles.steps), 'step')}."
    if not cycles.steps:
        return "Totals of the recording."
    before = int(found.wait_ns[cycles.of_collective[found.collective] < 0].sum())
    left_out = f"; outside it, {duration(before)} of waiting" if before else ""
    return f"Totals from the end of the first collective to that of the last{left_out}."


def ranks_table(analysis: Analysis, most: int) -> ReportTable:
    """Return the ranks, those farthest from the median own time first."""
    if analysis.ranks is None or not analysis.ranks.matches.count:
        return _NONE
    ranks = analysis.ranks.in_cycles()
    waits, per = ranks.by_rank(), ranks.cycles.count
    in_cycles = []
    if ranks.cycles.steps:
        cycles = (ranks.cycles.own_ns, ranks.cycles.busy_ns)
        own, busy = (values.sum(axis=0) / per for values in cycles)
        in_cycles.append(_number("Own time", lambda place: duration(own[place])))
        for head, values in {"Own": own, "Busy": busy, "Idle": own - busy}.items():
            off = np.round(values - np.median(values)).astype(np.int64)
            cell = partial(lambda off, place: signed(int(off[place])), off)
            in_cycles.append(_number(f"{head} vs median", cell))
    across = (
        _number("Caused wait", lambda place: duration(waits[place].caused_wait_ns / per)),
        _number("Clock", lambda place: signed(int(ranks.alignment.offset_ns[place]))),
    )
    columns = (
        Column("Rank", lambda place: str(waits[place].rank)),
        *in_cycles,
        _number("Waits", lambda place: duration(waits[place].wait_ns / per)),
        _number("Exposed", lambda place: duration(waits[place].exposed_wait_ns / per)),
        _number("Transfer", lambda place: duration(waits[place].transfer_ns / per)),
        *(across if ranks.comparable else ()),
    )
    said = (
        waits_basis(analysis.ranks),
        "Idle includes exposed transfer." if ranks.cycles.steps else "",
        clocks_sentence(analysis),
    )
    remark = " ".join(filter(None, (*said, limits_sentence(ranks))))
    return table_of(columns, ranks.farthest()[:most], len(waits), remark)


def own_times(analysis: Analysis) -> dict[int, int]:
    """Return the own time of each device, those farthest off the median first.

    Means per step, totals without steps; empty where nothing is known.
    """
    ranks = analysis.ranks
    if ranks is None or not ranks.cycles.steps:
        return {}
    own = np.round(ranks.cycles.own_ns.sum(axis=0) / ranks.cycles.count).astype(np.int64).tolist()
    return {ranks.records.devices[place]: own[place] for place in ranks.farthest()}


def signed(ns: int) -> str:
    """Return a difference of times in words."""
    sign = "\N{MINUS SIGN}" if ns < 0 else "+" if ns else ""
    return f"{sign}{duration(abs(ns))}"


def waiting_table(analysis: Analysis) -> ReportTable:
    """Return for how long each rank waits for each other one, the largest of many."""
    if analysis.ranks is None or not analysis.ranks.comparable:
        return _NONE
    ranks = analysis.ranks.in_cycles()
    waits = ranks.by_rank()
    rows = _largest([wait.wait_ns for wait in waits], _MOST_ROWS)
    columns = _largest([wait.caused_wait_ns for wait in waits], _MOST_COLUMNS)
    if not len(columns):
        return _NONE
    found, per = ranks.waited_for(rows, columns), ranks.cycles.count
    names = [f"rank {waits[place].rank}" for place in columns.tolist()]
    heads = [f"for {name}" for name in names] + ["for others"] * bool(found[:, -1].any())
    labels = [f"rank {waits[place].rank}" for place in rows.tolist()]
    labels += ["others"] * bool(found[-1].any())
    shown = (
        Column("Waits", lambda row: labels[row]),
        *(_number(head, partial(_amount, found, per, at)) for at, head in enumerate(heads)),
        _number("In all", lambda row: duration(int(found[row].sum()) / per)),
    )
    # How much of the waiting is for a rank that may not have been the last one.
    tied = int(ranks.waits.wait_ns[ranks.waits.tie[ranks.waits.collective]].sum()) / per
    ties = f"{duration(tied)} of it in ties: the last two start together." if tied else ""
    remark = f"{waits_basis(analysis.ranks)} {_clocks(ranks)} {ties}"
    return table_of(shown, range(len(labels)), remark=" ".join(remark.split()))


def _clocks(ranks: RankReport | None) -> str:
    """Return how far clocks may be off as a sentence, "" where that is not at all."""
    apart_ns = clocks_apart_ns(ranks)
    return words(fact("ranks.clocks", ns=apart_ns)) if apart_ns else ""


def _amount(found: IntArray, per: int, column: int, row: int) -> Amount:
    ns, single = int(found[row, column]), found[:-1, :-1]
    is_one = row < single.shape[0] and column < single.shape[1]
    share = ns / int(single.max(initial=1)) if is_one else 0.0
    return Amount(duration(ns / per) if ns else UNKNOWN, share)


def _largest(values: Sequence[int], most: int) -> IntArray:
    """Return the places of the largest values above 0, in their order."""
    numbers = np.array(values, dtype=np.int64)
    order = np.argsort(-numbers, kind="stable")[:most]
    return np.sort(order[numbers[order] > 0])


def worst_collectives(
    analysis: Analysis, most: int
) -> tuple[IntArray, dict[int, tuple[str, list[Turn]]]]:
    """Return by cycle and rank the collective with most waiting, and those in words and turns.

    Of the latter so many as have most waiting, the worst first.
    """
    if analysis.ranks is None or not analysis.ranks.comparable:
        return np.empty((0, 0), dtype=np.int64), {}
    ranks = analysis.ranks.in_cycles()
    found = ranks.most_awaited()
    wanted = set(found[found >= 0].tolist())
    ordered = sorted(
        (one for one in ranks.collectives() if one.index in wanted), key=lambda one: -one.wait_ns
    )
    met = {}
    for collective in ordered[:most]:
        text = words(
            fact(
                "ranks.met-tie" if collective.tie else "ranks.met",
                step=collective.step,
                kind=_words(collective.kind),
                bytes=size(collective.bytes) if collective.bytes else None,
                rank=collective.last_rank,
                margin_ns=collective.margin_ns,
                clocks_ns=clocks_apart_ns(ranks),
            )
        )
        met[collective.index] = text, ranks.turns(collective.index)
    return found, met


def rates_table(analysis: Analysis) -> ReportTable:
    """Return the bandwidth of collectives by kind, group and size, over their transfer alone."""
    rates = sorted(_rates(analysis), key=lambda rate: not rate.slow)
    knows_peak = any(rate.of_peak is not None for rate in rates)
    columns = (*_RATES, *(_OF_PEAK if knows_peak else ()))
    remark = f"{_RATES_REMARK} {_clocks(analysis.ranks)}".rstrip()
    return table_of(columns, rates[:_MOST_RATES], len(rates), remark)


def busbw_words(analysis: Analysis, row: Collective) -> Iterator[str]:
    """Yield the bus bandwidth of such collectives without waiting, and its share of the peak."""
    label = (row.collective or "").replace("_", "")
    mine = [one for one in _rates(analysis) if one.kind.replace("_", "") in label]
    mine = [one for one in mine if one.ranks == row.ranks]
    if mine:
        yield f"busbw {_range([one.bus for one in mine], lambda rate: significant(rate, 3))} GB/s"
    of = [one.of_peak for one in mine if one.of_peak is not None]
    if of and len(of) == len(mine):
        yield f"{_range(of, percent)} of the link's peak"


def _rates(analysis: Analysis) -> list[LinkRate]:
    return analysis.ranks.rates() if analysis.ranks is not None else []


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys(map(text, (min(values), max(values)))))


def _members(rate: LinkRate) -> str:
    """Return the ranks of a group, how many there are where these are many."""
    few = len(rate.members) <= _FEW_RANKS
    return ", ".join(map(str, rate.members)) if few else f"{count(rate.ranks)} ranks"


_RATES: Final = (
    Column("Collective", lambda rate: f"{_words(rate.kind)}{', slow' if rate.slow else ''}"),
    Column("Group", lambda rate: Name(rate.role or shorten_middle(rate.group, 40), rate.group)),
    Column("Ranks", _members),
    _number("Message", lambda rate: size(rate.bytes)),
    _number("Count", lambda rate: count(rate.count)),
    _number("Algbw", lambda rate: significant(rate.algorithm, 3)),
    _number("Busbw", lambda rate: significant(rate.bus, 3)),
    _number(
        "5th to 95th",
        lambda rate: _range([rate.slowest, rate.fastest], partial(significant, digits=3)),
    ),
)
_RATES_REMARK: Final = (
    "GB/s, without waiting. Busbw as nccl-tests: median and percentiles of calls."
)
_OF_PEAK: Final = (_number("Of link peak", lambda rate: percent(rate.of_peak)),)


def _words(kind: str) -> str:
    return kind.replace("_", "-")

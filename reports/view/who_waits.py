"""The ranks of a job: how long they wait for each other, and their bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Self

import numpy as np

from traceflops.analysis.result import Analysis
from traceflops.facts import fact
from traceflops.findings import late_rank
from traceflops.findings.rules import advice_of
from traceflops.findings.slow_links import slow_link_fact
from traceflops.ranks.collectives import Collective
from traceflops.ranks.link_rates import LinkRate
from traceflops.ranks.who_waits import RankReport, Turn
from traceflops.reports.view.figures import (
    UNKNOWN,
    count,
    duration,
    percent,
    shorten_middle,
    signed_duration,
    significant,
    size,
)
from traceflops.reports.view.tables import Column, Name, ReportTable, table_of
from traceflops.reports.view.texts import words
from traceflops.table.columns import IntArray
from traceflops.units import several

_MOST_RATES: Final = 24
_FEW_RANKS: Final = 4
_MOST_ROWS, _MOST_COLUMNS = 12, 8
_SHADES: Final = (0.02, 0.25, 0.6)  # shares of the largest time, from which a cell is darker
_NONE: Final = table_of((), ())


class Amount(str):
    """A time as text, and how dark its cell is: from 0 (next to nothing) to 3 (the largest)."""

    __slots__ = ("shade",)
    shade: int

    def __new__(cls, text: str, share: float) -> Self:
        """Return a time; `share` is its share of the largest one in the table."""
        amount = super().__new__(cls, text)
        amount.shade = sum(share > edge for edge in _SHADES)
        return amount


def late_rank_words(analysis: Analysis) -> tuple[str, str, str]:
    """Return which rank or link delays others (else how much is waiting), why, and the remedy."""
    ranks = analysis.ranks
    late = late_rank.late_rank_fact(ranks)
    if late is not None and ranks.slow is not None:
        why, advice = late_rank.late_rank_reason(ranks.slow)
        return words(late), words(why), words(advice)
    link = slow_link_fact(ranks)
    if link is not None:
        return words(link), "", words(advice_of("slow-link", analysis.program))
    return waiting_sentence(analysis), "", ""


def waiting_sentence(analysis: Analysis) -> str:
    """Return how much of communication is waiting and for whom, "" if that is no known loss."""
    waiting = late_rank.waiting_for(analysis.ranks)
    details = waiting[1] if waiting is not None else ()
    is_loss = any(details == loss.details for loss in analysis.losses)
    return " ".join(map(words, details)) if is_loss else ""


def clocks_sentence(analysis: Analysis) -> str:
    """Return how well the clocks of ranks are aligned; if ranks have no numbers, the slow GPU."""
    ranks = analysis.ranks
    if not ranks.are_several:
        return ""
    text = "Clocks cannot be aligned: waits are durations beyond the shortest."
    if ranks.comparable:
        clocks = ranks.alignment
        how = "as recorded"
        if clocks.basis:
            how = f"aligned on {clocks.basis.replace('_', '-')}"
        median, p95 = duration(clocks.residual_median_ns), duration(clocks.residual_p95_ns)
        bound_ns = max(*abs(clocks.earliest_ns).tolist(), *clocks.latest_ns.tolist())
        text = f"Clocks {how}: residual {median}, p95 {p95}, bound ±{duration(bound_ns)}."
    if ranks.slow is not None and ranks.records.devices:
        slow_device = ranks.records.devices[ranks.records.ranks.index(ranks.slow.rank)]
        for device in analysis.devices:
            if device.device == slow_device and not device.rank_text:
                text += f" Nothing numbers the ranks: rank {ranks.slow.rank} is {device.label}."
    return text


def limits_sentence(ranks: RankReport) -> str:
    """Return sentences on what the figures of collectives lack, "" if they are complete."""
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
    """Return a sentence on the time that the figures cover, and the waiting outside it, if any.

    A cycle is a step, from the end of its last collective to that of the next; without steps, the
    recording from the end of the first collective to that of the last is one cycle.
    """
    cycles, waits = ranks.cycles, ranks.waits
    if cycles.has_steps:
        return f"Means of {several(len(cycles.steps), 'step')}."
    if not cycles.steps:
        return "Totals of the recording."
    is_outside = cycles.of_collective[waits.collective] < 0  # -1: in no cycle
    outside_ns = int(waits.wait_ns[is_outside].sum())
    left_out = f"; outside it, {duration(outside_ns)} of waiting" if outside_ns else ""
    return f"Totals from the end of the first collective to that of the last{left_out}."


def ranks_table(analysis: Analysis, most: int) -> ReportTable:
    """Return the `most` ranks farthest from the median own time, the farthest first.

    Times are means per step, or totals without steps. Without cycles there are no own times,
    without aligned clocks no columns on which rank caused waits.
    """
    if not analysis.ranks.matches.count:
        return _NONE
    ranks = analysis.ranks.in_cycles()
    waits, cycles, steps = ranks.by_rank(), ranks.cycles, ranks.cycles.count
    # A row is the index of a rank in `waits` and in the arrays.
    columns = [Column("Rank", lambda rank: str(waits[rank].rank))]
    if cycles.steps:
        own_ns, busy_ns = cycles.own_ns.sum(axis=0) / steps, cycles.busy_ns.sum(axis=0) / steps
        columns.append(Column.number("Own time", lambda rank: duration(own_ns[rank])))
        for head, ns in {"Own": own_ns, "Busy": busy_ns, "Idle": own_ns - busy_ns}.items():
            deviation_ns = np.round(ns - np.median(ns)).astype(np.int64).tolist()
            texts = list(map(signed_duration, deviation_ns))
            columns.append(Column.number(f"{head} vs median", texts.__getitem__))
    columns += [
        Column.number("Waits", lambda rank: duration(waits[rank].wait_ns / steps)),
        Column.number("Exposed", lambda rank: duration(waits[rank].exposed_wait_ns / steps)),
        Column.number("Transfer", lambda rank: duration(waits[rank].transfer_ns / steps)),
    ]
    if ranks.comparable:
        offset_ns = ranks.alignment.offset_ns.tolist()
        columns += [
            Column.number("Caused wait", lambda rank: duration(waits[rank].caused_wait_ns / steps)),
            Column.number("Clock", lambda rank: signed_duration(offset_ns[rank])),
        ]
    remarks = (
        waits_basis(analysis.ranks),
        "Idle includes exposed transfer." if cycles.steps else "",
        clocks_sentence(analysis),
        limits_sentence(ranks),
    )
    remark = " ".join(filter(None, remarks))
    return table_of(columns, ranks.farthest()[:most], len(waits), remark)


def own_times(analysis: Analysis) -> dict[int, int]:
    """Return the own ns per step (or in all) by device, those farthest from the median first."""
    ranks = analysis.ranks
    if not ranks.cycles.steps:
        return {}
    mean_ns = ranks.cycles.own_ns.sum(axis=0) / ranks.cycles.count
    own_ns = np.round(mean_ns).astype(np.int64).tolist()
    return {ranks.records.devices[rank]: own_ns[rank] for rank in ranks.farthest()}


def waiting_table(analysis: Analysis) -> ReportTable:
    """Return how long ranks that wait most (rows) wait for ranks that cause most (columns).

    Other ranks are summed in a last row and a last column. There is no row without aligned clocks.
    """
    if not analysis.ranks.comparable:
        return _NONE
    ranks = analysis.ranks.in_cycles()
    waits = ranks.by_rank()
    rows = _largest([wait.wait_ns for wait in waits], _MOST_ROWS)
    columns = _largest([wait.caused_wait_ns for wait in waits], _MOST_COLUMNS)
    if not len(columns):
        return _NONE
    # [rows + 1, columns + 1]: the last row and column are of all other ranks.
    wait_ns, steps = ranks.waited_for(rows, columns), ranks.cycles.count
    labels = [f"rank {waits[rank].rank}" for rank in rows.tolist()]
    heads = [f"for rank {waits[rank].rank}" for rank in columns.tolist()]
    if wait_ns[-1].any():
        labels.append("others")
    if wait_ns[:, -1].any():
        heads.append("for others")
    # Only cells of one rank for one other are shaded: sums of several ranks are larger anyway.
    largest_ns = int(wait_ns[:-1, :-1].max(initial=1))

    def amount(column: int, row: int) -> Amount:
        ns, is_single = int(wait_ns[row, column]), row < len(rows) and column < len(columns)
        share = ns / largest_ns if is_single else 0.0
        return Amount(duration(ns / steps) if ns else UNKNOWN, share)

    table_columns = (
        Column("Waits", lambda row: labels[row]),
        *(Column.number(head, partial(amount, column)) for column, head in enumerate(heads)),
        Column.number("In all", lambda row: duration(int(wait_ns[row].sum()) / steps)),
    )
    # In a tie, another rank than the one that is waited for may have been the last.
    is_tie = ranks.waits.tie[ranks.waits.collective]
    tied_ns = int(ranks.waits.wait_ns[is_tie].sum()) / steps
    ties = f"{duration(tied_ns)} of it in ties: the last two start together." if tied_ns else ""
    remark = " ".join(filter(None, (waits_basis(analysis.ranks), _clocks(ranks), ties)))
    return table_of(table_columns, range(len(labels)), remark=remark)


def _clocks(ranks: RankReport) -> str:
    """Return a sentence on how far the clocks of ranks may be apart, "" if they agree."""
    apart_ns = late_rank.clocks_apart_ns(ranks)
    return words(fact("ranks.clocks", ns=apart_ns)) if apart_ns else ""


def _largest(values: Sequence[int], most: int) -> IntArray:
    """Return the indices of the `most` largest values above 0, in ascending order."""
    numbers = np.array(values, dtype=np.int64)
    largest = np.argsort(-numbers, kind="stable")[:most]
    return np.sort(largest[numbers[largest] > 0])


def worst_collectives(
    analysis: Analysis, most: int
) -> tuple[IntArray, dict[int, tuple[str, list[Turn]]]]:
    """Return in which collective each rank waits most per cycle, and the worst of these.

    The array [cycles, ranks] has numbers of collectives, -1 for none. The mapping has, by number, a
    sentence and the turns of the ranks for the `most` collectives with most waiting.
    """
    if not analysis.ranks.comparable:
        return np.empty((0, 0), dtype=np.int64), {}
    ranks = analysis.ranks.in_cycles()
    awaited = ranks.most_awaited()
    numbers = set(awaited.ravel().tolist())
    worst_first = sorted(
        (collective for collective in ranks.collectives() if collective.index in numbers),
        key=lambda collective: -collective.wait_ns,
    )
    shown = {}
    for collective in worst_first[:most]:
        text = words(
            fact(
                "ranks.met-tie" if collective.tie else "ranks.met",
                step=collective.step,
                kind=collective.kind.replace("_", "-"),
                bytes=size(collective.bytes) if collective.bytes else None,
                rank=collective.last_rank,
                margin_ns=collective.margin_ns,
                clocks_ns=late_rank.clocks_apart_ns(ranks),
            )
        )
        shown[collective.index] = text, ranks.turns(collective.index)
    return awaited, shown


def rates_table(analysis: Analysis) -> ReportTable:
    """Return the bandwidth of collectives by kind, group and size, without waiting; slow first."""
    rates = sorted(analysis.ranks.rates(), key=lambda rate: not rate.slow)
    knows_peak = any(rate.of_peak is not None for rate in rates)
    columns = (*_RATES, *(_OF_PEAK if knows_peak else ()))
    remark = f"{_RATES_REMARK} {_clocks(analysis.ranks)}".rstrip()
    return table_of(columns, rates[:_MOST_RATES], len(rates), remark)


def busbw_words(analysis: Analysis, row: Collective) -> Iterator[str]:
    """Yield the bus bandwidth of a kind of collectives, and its share of the peak if known."""
    recorded = (row.collective or "").replace("_", "")  # such as "allgatherbase"
    of_kind = [
        rate
        for rate in analysis.ranks.rates()
        if rate.kind.replace("_", "") in recorded and rate.ranks == row.ranks
    ]
    if of_kind:
        yield f"busbw {_range([rate.bus for rate in of_kind], _digits3)} GB/s"
    shares = [rate.of_peak for rate in of_kind if rate.of_peak is not None]
    if shares and len(shares) == len(of_kind):
        yield f"{_range(shares, percent)} of the link's peak"


def _range(values: Sequence[float], text_of: Callable[[float], str]) -> str:
    """Return the smallest and the largest value as text, only one if both texts are the same."""
    return " to ".join(dict.fromkeys(map(text_of, (min(values), max(values)))))


_digits3: Final = partial(significant, digits=3)


def _members(rate: LinkRate) -> str:
    is_few = len(rate.members) <= _FEW_RANKS
    return ", ".join(map(str, rate.members)) if is_few else f"{count(rate.ranks)} ranks"


_RATES: Final = (
    Column(
        "Collective",
        lambda rate: f"{rate.kind.replace('_', '-')}{', slow' if rate.slow else ''}",
    ),
    Column("Group", lambda rate: Name(rate.role or shorten_middle(rate.group, 40), rate.group)),
    Column("Ranks", _members),
    Column.number("Message", lambda rate: size(rate.bytes)),
    Column.number("Count", lambda rate: count(rate.count)),
    Column.number("Algbw", lambda rate: _digits3(rate.algorithm)),
    Column.number("Busbw", lambda rate: _digits3(rate.bus)),
    Column.number("5th to 95th", lambda rate: _range([rate.slowest, rate.fastest], _digits3)),
)
_RATES_REMARK: Final = (
    "GB/s, without waiting. Busbw as nccl-tests: median and percentiles of calls."
)
_OF_PEAK: Final = (Column.number("Of link peak", lambda rate: percent(rate.of_peak)),)

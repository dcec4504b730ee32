"""Rule `late-rank`: what waiting for one rank costs the job, why it is late, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution import CLASSES, REMEDIES
from traceflops.findings.finding import (
    Candidate,
    Finding,
    Gain,
    Owner,
    Row,
    Where,
    as_loss,
    severity_of,
    short_name,
)
from traceflops.findings.idle_causes import remedy_of
from traceflops.findings.low_clocks import clocks_of_late
from traceflops.ranks import STALLS
from traceflops.table import exact_sums
from traceflops.units import capitalized, duration, listed, percent, plural, several

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.ranks import RankReport, SlowRank, Waits

RULE: Final = "late-rank"
_AT_MOST: Final = "the gain is at most what the rank is late"
_CAUSES: Final = {
    "slow_clock": (
        "all its kernels take {factor:.2f} times as long as on the others",
        "check clocks, power and temperature of that GPU; exclude its node from the job",
    ),
    "slow_kernel": (
        "the kernel {label} takes {factor:.2f} times as long as on the others",
        "compare its inputs and library versions on that rank",
    ),
    "more_work": (
        "it has more work, most of it in {label}",
        "balance tokens, sequence lengths, experts or layers over the ranks",
    ),
    "checkpoint": (
        "it writes a checkpoint ({label})",
        "write it asynchronously, or on all ranks at once",
    ),
    "gc_pause": (
        "its host stops for a while, as garbage collection does",
        "turn that off with gc.disable(), and collect on all ranks every N steps",
    ),
    "memory_pressure": (
        "its GPU is idle while memory is allocated ({label})",
        "leave memory free on that rank: a smaller batch, no empty_cache() in loops",
    ),
    "unknown": ("the recording does not say why", "record that rank with Python stacks"),
}
"""By cause: why in words, and what to do."""
_OWNERS: Final[Mapping[str, Owner]] = {
    "slow_clock": "cluster",
    "slow_kernel": "library",
    "data_input": "input pipeline",
}
_SEVERAL: Final = {
    "Its GPU is": "Their GPUs are",
    "All its kernels": "All their kernels",
    "It has": "They have",
    "It writes": "They write",
    "Its host stops": "Their hosts stop",
    "that GPU; exclude its node": "those GPUs; exclude their nodes",
    "that rank": "those ranks",
}


def late_rank_sentence(ranks: RankReport | None) -> str:
    """Return which ranks the others wait for and for how long, "" where it is none."""
    slow = ranks.slow if ranks is not None else None
    if ranks is None or slow is None or severity_of(_share(ranks, slow)) is None:
        return ""
    share, who = percent(_share(ranks, slow)), late_ranks_text(slow)
    clocks = clocks_words(ranks)
    if slow.sporadic:
        waited = f"the other ranks waited long for {who}: {share} of the time"
        return f"In {_when(ranks, slow)} {waited}{clocks}."
    of = "each step" if ranks.cycles.has_steps else "the recording"
    waited = duration(slow.lost_ns_per_step)
    return f"The other ranks wait for {who}: {waited} of {of} ({share}){clocks}."


def lasting_late_rank_sentence(ranks: RankReport | None) -> str:
    """Return the same of what is no single delay, "" else."""
    slow = ranks.slow if ranks is not None else None
    is_one_delay = slow is not None and slow.sporadic and len(slow.steps) < 2
    return "" if is_one_delay else late_rank_sentence(ranks)


def _when(ranks: RankReport, slow: SlowRank) -> str:
    """Return in which of the steps, or that there are none."""
    if not ranks.cycles.has_steps:
        return "part of the recording"
    some, every = slow.steps, ranks.cycles.count
    if every == 1:
        return f"step {ranks.cycles.steps[0]}"
    return f"{len(some):,} of {several(every, 'step')} ({listed(some)})"


def clocks_words(ranks: RankReport) -> str:
    """Return how far the clocks of the ranks may be off, "" where that is not at all."""
    error = ranks.alignment.residual_p95_ns
    return f"; clocks agree to {duration(error)}" if error else ""


def waiting_words(ranks: RankReport | None) -> tuple[str, str]:
    """Return for whom communication mostly waits, and how much of it; "" where it is less.

    Nothing is said where one rank is blamed: then that says it.
    """
    if ranks is None or late_rank_sentence(ranks):
        return "", ""
    found = (ranks.in_cycles() if ranks.cycles.has_steps else ranks).waits
    waited = int(found.wait_ns.sum())
    total = waited + int(found.transfer_ns.sum())
    if 2 * waited <= total:
        return "", ""
    whom = _for_whom(ranks, found)
    share = f"{'at least ' * ranks.partial}{percent(waited / total)}"
    said = (
        f"Of the time in collectives, {share} is waiting, mostly for {whom}{clocks_words(ranks)}."
    )
    if 2 * int(found.wait_ns[found.collective == found.from_ns.argmin()].sum()) > waited:
        said += " Most of it is in the first collective; ranks may have begun recording apart."
    return whom, said


def _for_whom(ranks: RankReport, found: Waits) -> str:
    """Return the rank that most of the waiting is for; ties are for nobody."""
    clear = np.where(found.tie[found.collective], 0, found.wait_ns)
    caused = exact_sums(found.last[found.collective], clear, len(ranks.records.ranks))
    most = max(caused)
    one = ranks.records.ranks[caused.index(most)]
    whom = f"rank {one}" if 2 * most > int(found.wait_ns.sum()) else "other ranks"
    return f"{whom} to arrive"


def late_ranks_text(slow: SlowRank) -> str:
    """Return which ranks are late, and what they have in common."""
    who = _some("rank", slow.ranks)
    return f"{who} ({slow.position})" if slow.position else who


def _some(noun: str, numbers: tuple[int, ...]) -> str:
    return f"{noun if len(numbers) == 1 else plural(noun)} {listed(numbers)}"


def late_rank_findings(ranks: RankReport | None) -> Iterator[Finding]:
    """Give a finding where waiting for one rank costs much."""
    yield from filter(None, map(as_loss, _candidates(ranks)))


def late_rank(case: Case) -> Iterator[Candidate]:
    """Give a candidate where waiting for one rank costs much."""
    for one in _candidates(case.ranks):
        assert case.ranks is not None
        slow, (_, why) = case.ranks.slow, case.replay_or_reason
        assert slow is not None
        if case.prepared is None:  # of summaries: they tell how late it is
            gain, doubts = Gain(0, slow.lost_ns_per_step, None), (why, _AT_MOST)
            one = replace(one, gain=gain, doubts=doubts)
        clocks, remedy = clocks_of_late(case, slow) if slow.cause == "slow_clock" else ("", "")
        remedy = remedy or remedy_of(case, slow.cause) or one.remedy
        yield replace(one, sentence=f"{one.sentence} {clocks}".rstrip(), remedy=remedy)


def _candidates(ranks: RankReport | None) -> Iterator[Candidate]:
    sentence = late_rank_sentence(ranks)
    if ranks is None or ranks.slow is None or not sentence:
        return
    slow = ranks.slow
    why, remedy = late_rank_reason(slow)
    is_one = len(slow.ranks) == 1
    yield Candidate(
        rule=RULE,
        title=capitalized(f"{_some('rank', slow.ranks)} {'is' if is_one else 'are'} late"),
        sentence=f"{sentence} {why}",
        share=_share(ranks, slow),
        owner=_OWNERS.get(slow.cause, "yours"),
        remedy=remedy,
        evidence=("ranks",),
        rows=(Row(slow.label or f"rank {slow.rank}", slow.lost_ns_per_step * ranks.cycles.count),),
        where=Where(rank=slow.rank),
        edits=(*_stall(slow), *slow_rank_edits(ranks)),
        partly=slow_rank_edits(ranks) * bool(_stall(slow)),
        frees=True,
    )


def _stall(slow: SlowRank) -> tuple[str, ...]:
    """Return the edit without what holds up the host of a rank, where one name does."""
    name, is_stall = slow.label.partition(" in ")[0], slow.cause in STALLS
    return (f"host:^{re.escape(name)}$=0",) if name and is_stall else ()


def slow_rank_edits(ranks: RankReport | None) -> tuple[str, ...]:
    """Return the edits with which no rank is late, where waiting for them costs much."""
    if ranks is None or ranks.slow is None or not late_rank_sentence(ranks):
        return ()
    return tuple(f"rank {rank}=median" for rank in ranks.slow.ranks)


def late_rank_reason(slow: SlowRank) -> tuple[str, str]:
    """Return why a rank is late and what to do, as sentences."""
    if slow.cause in _CAUSES:
        why, remedy = _CAUSES[slow.cause]
        why = why.format(label=short_name(slow.label), factor=slow.factor or 1.0)
        why = why.replace(" ()", "")
    else:
        name = f" ({short_name(slow.label)})" if slow.label else ""
        why, remedy = f"its GPU is idle longer: {CLASSES[slow.cause]}{name}", REMEDIES[slow.cause]
    said = f"{capitalized(why)}.", f"{capitalized(remedy)}."
    return said if len(slow.ranks) == 1 else (_of_several(said[0]), _of_several(said[1]))


def _of_several(text: str) -> str:
    """Return what is said of one rank as said of several."""
    for one, more in _SEVERAL.items():
        text = text.replace(one, more)
    return text


def _share(ranks: RankReport, slow: SlowRank) -> float:
    length = int(ranks.cycles.length_ns.sum())
    if not ranks.cycles.has_steps:  # what overlaps makes a rank late before the first one
        length = max(length, ranks.recorded_ns)
    return slow.lost_ns_per_step * ranks.cycles.count / length if length else 0.0

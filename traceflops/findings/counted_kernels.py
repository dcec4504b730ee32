"""Rule `counted-kernel`: how near counted kernels came to their limits, and what held them back."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from traceflops.categories import from_own_word, same_kernels
from traceflops.characters import shortened
from traceflops.findings.case import limit, share_of_window, thresholds
from traceflops.findings.finding import Finding, Row, row_name, severity_of
from traceflops.findings.finding import short_name as without_signature
from traceflops.mfu import ROOFS
from traceflops.units import percent

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.mfu import KernelRule, KernelSpeed

COUNTED_KERNEL: Final = "counted-kernel"
_Least: TypeAlias = Callable[[str], float]
"""A threshold of the rule by its name."""
_NO_KERNELS: Final = frozenset({"copy", "memset", "migration"})
_MOST: Final = 3
_NAME: Final = 60
_LEAST_WAVES: Final = 0.1
_SMALL: Final = "the grid has too few blocks to fill the GPU"
_ESTIMATED: Final = {_SMALL: "launch configuration", "occupancy": "occupancy"}
"""The words of NVIDIA's rules that estimate what mending a cause gains, by those of the cause."""
_BUSY: Final = frozenset({"matrix", "vector", "lds"})
"""Throughputs that are shares of cycles in which units are busy."""
_HUMP: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OWN_WORD: Final = re.compile(r"\w+(?=[<(]|$)")
_PART: Final = re.compile("L1|L2|DRAM", re.I)
_SAYING_LITTLE: Final = 7
"""A function's name of fewer letters, such as kernel, is followed by its templates, if any."""


def counted_kernels(case: Case) -> Iterator[Finding]:
    """Give the kernels that lose most time to the nearest roof, where only counters tell times."""
    work = case.measured.executed.work
    speeds = work.speeds if work is not None else ()
    total_ns = sum(speed.duration_ns or 0 for speed in speeds)
    names = _names([speed.name for speed in speeds])
    judged = [speed for speed in speeds if speed.roof is not None] or list(speeds[:1])
    for speed in judged[:_MOST]:
        share = (speed.duration_ns or 0) / total_ns if total_ns else 0.0
        yield from _finding(case, speed, names[speed.name], share)


def counted_main_kernel(case: Case) -> Iterator[Finding]:
    """Give what counters of another run say of the kernel that takes most of the timed run."""
    work = case.measured.executed.work
    speeds = work.speeds if work is not None else ()
    kernels = [row for row in case.measured.kernels if row.category.sub not in _NO_KERNELS]
    if not speeds or not kernels:
        return
    most = max(kernels, key=lambda row: row.sum_ns)
    share = min(share_of_window(case, most.sum_ns), 1.0)
    (ours,), theirs = same_kernels([most.name], [speed.name for speed in speeds])
    mine = [speed for speed, one in zip(speeds, theirs, strict=True) if one == ours]
    if mine and severity_of(share) is not None:
        name = _names([mine[0].name])[mine[0].name]
        row = Row(row_name(most.name), most.sum_ns, most.count)
        for one in _finding(case, mine[0], name, share):
            yield replace(one, evidence=("speed-of-light", "kernels"), rows=(row,))


def _finding(case: Case, speed: KernelSpeed, name: str, share: float) -> Iterator[Finding]:
    """Give what holds a kernel back, nothing where counters do not tell it."""
    held, remedy = _held_back(case, speed)
    words = ", ".join(filter(None, (_roof_words(speed), held)))
    gain = _estimate(speed, held, partial(limit, case, COUNTED_KERNEL))
    if words:
        yield Finding(
            rule=COUNTED_KERNEL,
            severity=severity_of(share) or "low",
            sentence=f"{name}: {words}{gain}. {remedy}".rstrip(),
            share=share,
            mfu_without=None,
            evidence=("speed-of-light",),
            title="What holds a kernel back",
            remedy=remedy,
        )


def _roof_words(speed: KernelSpeed) -> str:
    """Return how near the nearest roof is: "61.8 % of DRAM peak"; else what is known instead."""
    shares = dict([speed.roof]) if speed.roof is not None else speed.throughputs
    return ", ".join(
        f"{ROOFS[name]} busy {percent(share)}"
        if name in _BUSY
        else f"{percent(share)} of {ROOFS[name]} peak"
        for name, share in shares.items()
    )


def _held_back(case: Case, speed: KernelSpeed) -> tuple[str, str]:
    """Return what holds a kernel back in words, "" where its roof does, and what to do."""

    def least(name: str) -> float:
        return limit(case, COUNTED_KERNEL, name)

    roof, share = speed.roof or ("", 0.0)
    at_roof = "", _table()["roof"].get(roof, "")
    if share >= least("near"):
        return at_roof
    if speed.is_small:
        return f"{_waves_words(speed)}: {_SMALL}", _table()["limiter"]["grid"]
    other, fits, runs = _table()["other"], speed.theoretical_occupancy, speed.achieved_occupancy
    if speed.active is not None and speed.active < least("active"):
        units = "CUs" if "vector" in speed.throughputs else "SMs"
        return f"{units} have work {percent(speed.active)} of the time", other["active"]
    if fits is not None and fits <= least("theoretical"):
        by = f", limited by {' and '.join(speed.limiters)}" if speed.limiters else ""
        remedies = (_table()["limiter"].get(one, "") for one in speed.limiters)
        return f"theoretical occupancy {percent(fits)}{by}", " ".join(remedies) or at_roof[1]
    if fits and runs is not None and runs < least("achieved") * fits:
        words = f"achieved occupancy {percent(runs)} of theoretical {percent(fits)}"
        return words, other["achieved"]
    reason, waits = next(iter(speed.stalls), ("", 0.0))
    if waits >= least("stall"):
        words, remedy = _stall(reason)
        return f"warps wait {percent(waits)} of their cycles for {words}", remedy
    if speed.roof is None:
        return "", other["no_roof"]
    if share >= least("bound"):
        return at_roof
    return "no limit is near", other["even" if speed.stalls else "unknown"]


def _waves_words(speed: KernelSpeed) -> str:
    waves = speed.waves or 0.0
    return f"{waves:.2g} waves" if waves >= _LEAST_WAVES else f"less than {_LEAST_WAVES} waves"


def _estimate(speed: KernelSpeed, held: str, least: _Least) -> str:
    """Return what NVIDIA estimates that mending this would gain, else its largest estimate.

    Other estimates are as if the grid filled the GPU: of one that does not none is told. Nor is one
    told that gains nothing.
    """
    known = [
        one for one in speed.rules if one.speedup_share and not gains_nothing(speed, one, least)
    ]
    about = next((words for cause, words in _ESTIMATED.items() if cause in held), None)
    told = [rule for rule in known if about is not None and about in rule_words(rule)]
    if not known or (_SMALL in held and not told):
        return ""
    best = next(iter(told), known[0])
    by = "" if told else f" by {rule_words(best)}"
    return f" (Nsight Compute: {estimate_words(best)}{by})"


def gains_nothing(speed: KernelSpeed, rule: KernelRule, least: _Least | None = None) -> bool:
    """Return whether what a rule estimates cannot be gained.

    Balancing a part of the memory system that is not busy, or more warps for a unit at its peak.
    """
    least = least or thresholds()[COUNTED_KERNEL].__getitem__
    if (
        speed.roof is not None
        and speed.roof[1] >= least("near")
        and "occupancy" in rule_words(rule)
    ):
        return True
    return speed.throughputs.get(_part_in(rule), 1.0) < least("busy")


def _part_in(rule: KernelRule) -> str:
    """Return which part of the memory system a rule is about, by its name or as unbalanced."""
    named = _PART.search(rule.rule or "")
    if named is None and "imbalance" in rule_words(rule):
        named = _PART.search(rule.text)
    return named[0].lower() if named else ""


def estimate_words(rule: KernelRule) -> str:
    """Return an estimated speed-up as Nsight Compute calls it, "" where there is none."""
    local = "local " if rule.speedup_kind == "local" else ""
    return f"estimated {local}speedup {percent(rule.speedup_share)}" if rule.speedup_share else ""


def rule_words(rule: KernelRule) -> str:
    """Return the name of a rule in words: "uncoalesced global access", "CPI stall"."""
    words = _HUMP.sub(" ", rule.rule or "another rule").replace("_", " ").split()
    return _cut(" ".join(one if one.isupper() else one.lower() for one in words))


def _stall(reason: str) -> tuple[str, str]:
    of_reason, singular = _table()["stall"], reason.removesuffix("s")
    known: Mapping[str, str] = of_reason.get(reason, of_reason.get(singular, {}))
    named = reason.replace("_", " ")
    return (f"{known['words']} ({named})" if known else named), known.get("remedy", "")


def _names(names: Sequence[str]) -> dict[str, str]:
    """Return short names of kernels that tell them apart, in words that end no sentence."""
    own = dict(zip(names, from_own_word(names), strict=True))
    words = {name: _OWN_WORD.match(text) for name, text in own.items()}
    times = Counter(word[0] for word in words.values() if word)
    return {
        name: _cut(
            word[0]
            if word
            and times[word[0]] == 1
            and (len(word[0]) >= _SAYING_LITTLE or own[name][word.end() :][:1] != "<")
            else without_signature(own[name])
        )
        for name, word in words.items()
    }


def _cut(name: str) -> str:
    plain = " ".join(name.replace(";", ",").replace(". ", " ").split())
    return shortened(plain, _NAME)


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    text = files(__package__).joinpath("kernel_limits.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)

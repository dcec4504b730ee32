"""What Nsight Compute estimates that mending one thing would gain, and which estimates to tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from traceflops.characters import shortened
from traceflops.facts import Fact
from traceflops.findings.finding import WORTH_SAYING
from traceflops.findings.rules import thresholds
from traceflops.mfu.counted.kernel_speeds import COMPUTING, ROOFS

if TYPE_CHECKING:
    from traceflops.mfu.counted.kernel_speeds import KernelRule, KernelSpeed

COUNTED_KERNEL: Final = "counted-kernel"
_Least: TypeAlias = Callable[[str], float]
"""A threshold of the rule by its name."""
_NAME: Final = 60
_ESTIMATED: Final = {
    "block": "launch configuration",
    "theoretical": "occupancy",
    "achieved": "occupancy",
}
"""The words of NVIDIA's rules that estimate what mending a cause gains, by that cause."""
_NEVER: Final = frozenset({"waves", "waves-few", "spills"})
"""Causes of which no rule estimates what mending them gains, for a launch or the program."""
_UNCOALESCED: Final = "uncoalesced global access"
_HUMP: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PART: Final = re.compile("L1|L2|DRAM", re.I)
_EVEN: Final = re.compile(r"\bwhich is 1\.0x of\b")
"""What a rule says of work that is no more than it must be."""
_FEWER: Final = re.compile("instructions|divergence")
_LESS_MOVED: Final = re.compile("access|conflict")
_RELIEVES: Final = {name: _FEWER if name in COMPUTING else _LESS_MOVED for name in ROOFS}
"""Words of NVIDIA's rules whose remedies take work from a unit, by its roof."""
_QUEUES: Final = frozenset({"mio_throttle", "lg_throttle", "tex_throttle"})
"""Waits for queues of L1: what shortens them takes work from it."""


def told_estimate(speed: KernelSpeed, held: Fact | None, least: _Least) -> Fact | None:
    """Return the largest of NVIDIA's estimates, and the rule where it is not of what holds back.

    None is told of a grid that does not fill the GPU or a kernel that spills, nor one that gains
    nothing worth saying, or little of what a kernel far below its roofs leaves.
    """
    rules = [
        rule
        for rule in speed.rules
        if (rule.speedup_share or 0.0) >= WORTH_SAYING and not gains_nothing(speed, rule, least)
    ]
    code = held.code.removeprefix(f"{COUNTED_KERNEL}.") if held else ""
    about = _ESTIMATED.get(code)
    same = [rule for rule in rules if about is not None and about in rule_name(rule)]
    if not rules or code in _NEVER:
        return None
    best = rules[0]
    nearest = speed.roof[1] if speed.roof is not None else 1.0
    if nearest < least("far") and 2 * (best.speedup_share or 0.0) < 1 - nearest:
        return None  # far more is left than this
    return estimated(best, None if best in same else rule_name(best))


def estimated(rule: KernelRule, by: str | None = None) -> Fact | None:
    """Return an estimated speed-up as Nsight Compute calls it, None where there is none."""
    code = "estimate-local" if rule.speedup_kind == "local" else "estimate"
    if not rule.speedup_share:
        return None
    return Fact(f"{COUNTED_KERNEL}.{code}", {"share": rule.speedup_share, "rule": by})


def is_of_access(estimate: Fact | None, least: float) -> bool:
    """Return whether coalescing is estimated to gain enough."""
    values = estimate.values if estimate is not None else {}
    share = values.get("share")
    is_much = isinstance(share, float) and share >= least
    return is_much and values.get("rule") == _UNCOALESCED


def gains_nothing(speed: KernelSpeed, rule: KernelRule, least: _Least | None = None) -> bool:
    """Return whether what a rule estimates cannot be gained.

    That is of a kernel at its roof all but what takes work from that unit, of others balancing a
    part of the memory system that is not busy, and occupancy for which the grid has no blocks.
    Compression needs memory that is allocated for it.
    """
    least, name = least or thresholds()[COUNTED_KERNEL].__getitem__, rule_name(rule)
    roof, share = speed.roof or ("", 0.0)
    if "compression" in name or _EVEN.search(rule.text):
        return True
    if "occupancy" in name and not speed.has_more_blocks:
        return True
    waits = speed.stalls[0][0] if roof == "l1" and "stall" in name and speed.stalls else ""
    if share >= least("near") and not (_RELIEVES[roof].search(name) or waits in _QUEUES):
        return True
    # Which part of the memory system a rule is about, by its name or as unbalanced
    named = _PART.search(rule.rule or "")
    if named is None and "imbalance" in name:
        named = _PART.search(rule.text)
    return speed.throughputs.get(named[0].lower() if named else "", 1.0) < least("busy")


def rule_name(rule: KernelRule) -> str:
    """Return the name of a rule in words: "uncoalesced global access", "CPI stall"."""
    words = _HUMP.sub(" ", rule.rule or "another rule").replace("_", " ").split()
    return cut(" ".join(word if word.isupper() else word.lower() for word in words))


def cut(name: str) -> str:
    """Return a name that ends no sentence, the middle of a long one left out."""
    plain = " ".join(name.replace(";", ",").replace(". ", " ").split())
    return shortened(plain, _NAME)

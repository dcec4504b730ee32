"""Names of kernels, estimates of Nsight Compute worth telling, traffic of L2, remedies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from traceflops.categories.kernel_names import from_own_word
from traceflops.categories.mangled import readable
from traceflops.categories.programs import is_of_library
from traceflops.characters import shortened
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, limit
from traceflops.findings.finding import WORTH_SAYING
from traceflops.findings.finding import short_name as without_signature
from traceflops.findings.rules import thresholds
from traceflops.mfu.counted.kernel_speeds import COMPUTING, ROOFS, KernelSpeed
from traceflops.mfu.counted.launches import KernelRule

COUNTED_KERNEL: Final = "counted-kernel"
_Least: TypeAlias = Callable[[str], float]
"""A threshold of the rule by its name."""
_NAME: Final = 60
_ESTIMATED: Final = {
    "block": "launch configuration",
    "theoretical": "occupancy",
    "achieved": "occupancy",
}
"""A word in the names of NVIDIA's rules that estimate what mending a cause gains, by cause."""
_NEVER: Final = frozenset(
    {"waves", "waves-few", "active-sm", "active-cu", "spills", "empty", "local", "atomics", "host"}
)
"""Causes that must be mended first: no rule estimates what mending them gains."""
UNCOALESCED: Final = "uncoalesced global access"
_HUMP: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word begins in CamelCase."""
_PART: Final = re.compile("L1|L2|DRAM", re.I)  # parts of the memory system
_EVEN: Final = re.compile(r"\bwhich is 1\.0x of\b")
"""What a rule says of memory traffic that is already as small as it can be."""
_FEWER: Final = re.compile("instructions|divergence")
_LESS_MOVED: Final = re.compile("access|conflict")
_RELIEVES: Final = {name: _FEWER if name in COMPUTING else _LESS_MOVED for name in ROOFS}
"""Words in names of NVIDIA's rules whose remedies take work from a unit, by the unit's roof."""
_QUEUES: Final = frozenset({"mio_throttle", "lg_throttle", "tex_throttle"})
"""Waits for queues of L1: what shortens these waits takes work from L1."""


def largest_estimate(speed: KernelSpeed, held: Fact | None, least: _Least) -> Fact | None:
    """Return the largest estimated speed-up that is real, None if none is worth telling.

    `held` is what holds the kernel back: a rule is named if it is about something else.
    """
    code = held.code.removeprefix(f"{COUNTED_KERNEL}.") if held else ""
    about = _ESTIMATED.get(code)
    # At a roof, only less work for its unit helps; idle lanes are work for it.
    own = about if code == "block" else None
    rules = [
        rule
        for rule in speed.rules
        if (rule.speedup_share or 0.0) >= WORTH_SAYING
        and ((own and own in rule_name(rule)) or not gains_nothing(speed, rule, least))
    ]
    if not rules or code in _NEVER:
        return None
    best = rules[0]  # rules are sorted by speed-up
    nearest = speed.roof[1] if speed.roof is not None else 1.0
    if nearest < least("far") and 2 * (best.speedup_share or 0.0) < 1 - nearest:
        return None  # the kernel is so far below its roofs that this would hardly help
    is_of_held = about is not None and about in rule_name(best)
    return estimated(best, None if is_of_held else rule_name(best))


def estimated(rule: KernelRule, by: str | None = None) -> Fact | None:
    """Return the speed-up that a rule estimates, None without one; `by` is its name to be told."""
    # A local estimate is of a part of the kernel's time.
    code = "estimate-local" if rule.speedup_kind == "local" else "estimate"
    return counted_fact(code, share=rule.speedup_share, rule=by) if rule.speedup_share else None


def gains_nothing(speed: KernelSpeed, rule: KernelRule, least: _Least | None = None) -> bool:
    """Return whether the speed-up that a rule estimates cannot be gained for this kernel."""
    least, name = least or thresholds()[COUNTED_KERNEL].__getitem__, rule_name(rule)
    roof, share = speed.roof or ("", 0.0)
    if "compression" in name or _EVEN.search(rule.text):
        return True  # compression needs special allocations; or traffic is already minimal
    if "FP instructions" in name and (1.0 if speed.floats is None else speed.floats) < least(
        "busy"
    ):
        return True  # pipes of floating point have little to do
    if "occupancy" in name and not speed.has_more_blocks:
        return True  # the grid has no blocks for more room
    main_stall = speed.stalls[0][0] if "stall" in name and speed.stalls else ""
    if main_stall == "not_selected":
        return True  # these warps are ready, but others issue
    # A kernel at the roof of a unit gains only from less work for that unit.
    if share >= least("near"):
        relieves = _RELIEVES[roof].search(name) and not speed.moves_no_more
        if not relieves and not (roof == "l1" and main_stall in _QUEUES):
            return True
    elif "access" in name and computes_most(speed, least):
        return True
    # Nothing is gained by balancing a part of the memory system that is not busy.
    part = _PART.search(rule.rule or "")
    if part is None and "imbalance" in name:
        part = _PART.search(rule.text)
    return speed.throughputs.get(part[0].lower() if part else "", 1.0) < least("busy")


def computes_most(speed: KernelSpeed, least: _Least) -> bool:
    """Return whether computing limits a kernel and memory behind L1 has little to do."""
    roof, share = speed.roof or ("", 0.0)
    beyond = (speed.throughputs.get(name, 1.0) for name in _BEYOND_L1)
    return roof in COMPUTING and share >= least("bound") and max(beyond) < least("busy")


def rule_name(rule: KernelRule) -> str:
    """Return the name of a rule in words: "uncoalesced global access", "CPI stall"."""
    words = _HUMP.sub(" ", rule.rule or "another rule").replace("_", " ").split()
    return cut(" ".join(word if word.isupper() else word.lower() for word in words))


def cut(name: str) -> str:
    """Return a name without punctuation that ends a sentence; a long name loses its middle."""
    plain = " ".join(name.replace(";", ",").replace(". ", " ").split())
    return shortened(plain, _NAME)


def counted_fact(name: str, /, **values: Value) -> Fact:
    """Return a fact with a text of the rule."""
    return Fact(f"{COUNTED_KERNEL}.{name}", values)


def pipes_fact(speed: KernelSpeed) -> Fact:
    """Return the pipe that limits the SMs, and another one that nearly does."""
    other, share = speed.other_pipe or (None, None)
    near = counted_fact(f"pipe.{other}") if other else None
    return counted_fact("pipes", pipe=counted_fact(f"pipe.{speed.pipe}"), other=near, share=share)


_OWN_WORD: Final = re.compile(r"\w+(?=[<(]|$)")
_SAYING_LITTLE: Final = 7
"""A function's name of fewer characters, such as "kernel", is told with its template arguments."""


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return the short name by full name of each kernel, one that no other kernel has.

    It is the function's own word or, if that says too little, the name without its parameters.
    """
    texts = dict(zip(names, from_own_word([readable(name) for name in names]), strict=True))
    words = {name: _OWN_WORD.match(text) for name, text in texts.items()}
    times = Counter(word[0] for word in words.values() if word)
    shown: dict[str, str] = {}
    for name, word in words.items():
        text, is_enough = texts[name], False
        if word:
            has_templates = text[word.end() :].startswith("<")
            is_long = len(word[0]) >= _SAYING_LITTLE
            # A short word, such as "kernel", needs its template arguments to say what runs.
            is_enough = times[word[0]] == 1 and (is_long or not has_templates)
        shown[name] = cut(word[0] if word and is_enough else without_signature(text))
    return shown


_OF_CALLERS: Final = frozenset(
    f"{COUNTED_KERNEL}.remedy.{name}"
    for name in (
        *("short", "seeds", "no-roof", "limiter.grid", "product.grid", "product.sm"),
        *("once.dram", "passes.dram", "roof.dram", "roof.matrix", "pipe.fp64", "pipe.tensor"),
    )
)
"""Remedies for those who call a kernel; the others change its code."""


def for_callers(case: Case, speed: KernelSpeed, advice: Fact | None) -> Fact | None:
    """Return advice on a kernel, replaced if it would change the code of a library's kernel.

    If all counted kernels are of frameworks or libraries, the advice tells how to count others;
    it is all of the advice if these only set up memory, and on a kernel that checks others.
    Code that was built for the debugger has to be built again before it is changed: only advice for
    callers is kept.
    """
    if advice is not None and _only_sets_up(case):
        return counted_fact("remedy.set-up", how=counted_fact("choose"))
    if advice is not None and "nvidia" in case.program and _REFERENCE.search(speed.name):
        return counted_fact("remedy.reference", how=counted_fact("choose"))
    if advice is None or advice.code in _OF_CALLERS:
        return advice
    if speed.is_debug:
        parts = advice.values.get("parts")
        facts = (
            [part for part in parts if isinstance(part, Fact)] if isinstance(parts, tuple) else []
        )
        return next((part for part in facts if part.code in _OF_CALLERS), None)
    if not is_of_library(speed.name):
        return advice
    are_all = all(is_of_library(counted.name) for counted in case.measured.speeds)
    tells_how = are_all and "nvidia" in case.program
    return counted_fact("remedy.library", how=counted_fact("choose") if tells_how else None)


_REFERENCE: Final = re.compile(r"(?:(?<![A-Za-z])[Rr]|(?<=[a-z])R)eference(?![a-z])")
"""A word in names of kernels whose results others are checked by, as in CUTLASS's examples."""
_SETS_UP: Final = frozenset({"memset", "rng_dropout"})


def _only_sets_up(case: Case) -> bool:
    """Return whether NVIDIA's tool counted only a library's fills and random numbers."""
    rows = case.untimed.counted.to_pylist() if case.untimed is not None else []
    is_set_up = (row["sub"] in _SETS_UP and is_of_library(row["name"]) for row in rows)
    return bool(rows) and "nvidia" in case.program and all(is_set_up)


_TENSOR: Final = re.compile(
    r"(?<![a-z])(?:[dhiw]|wg)?mma(?![a-z])|wg?mma|hmma|tensor_?(?:core|op)|tcgen05", re.IGNORECASE
)


def is_on_tensor_cores(speed: KernelSpeed) -> bool:
    """Return whether a kernel uses tensor cores, by counters or its name: no advice to do so."""
    return speed.uses_tensor or _TENSOR.search(speed.name) is not None


_BEYOND_L1: Final = frozenset({"l2", "dram"})
_FOR_MEMORY: Final = frozenset({"long_scoreboard", "lg_throttle", "drain"})
"""Waits for accesses that go beyond L1."""
_ONE_SLICE: Final = 4
"""A slice of L2 so many times as busy as the average serves few addresses."""


def traffic_of_l2(case: Case, speed: KernelSpeed) -> tuple[Fact, Fact] | None:
    """Return what most of the traffic in L2 is for and what to do, if that slows a kernel down."""
    least = partial(limit, case, COUNTED_KERNEL)
    roof, share = speed.roof or ("", 0.0)
    # Short launches read little but their arguments, which lie in the memory of the host.
    is_long = (speed.duration_ns or 0) >= least("host_ns") * speed.launches
    if is_long and (speed.host or 0.0) >= least("traffic"):
        # Without stalls it is not known whether warps wait for that.
        kinds = ("host",) if speed.stalls else ("host", "unknown")
        advice = fact("joined", parts=tuple(counted_fact(f"remedy.{kind}") for kind in kinds))
        return counted_fact("host", share=speed.host), advice
    reason, waits = next(iter(speed.stalls), ("", 0.0))
    waits_for_it = reason in _FOR_MEMORY and waits >= least("stall")
    is_busy = (speed.slice or 0.0) >= least("bound")
    if not (roof in _BEYOND_L1 if share >= least("bound") else waits_for_it or is_busy):
        return None
    if (speed.local or 0.0) >= least("traffic"):
        local = counted_fact("local", share=speed.local, registers=speed.registers)
        return local, counted_fact("remedy.local")
    if (speed.atomics or 0.0) >= least("traffic"):
        is_one = is_busy and (speed.slice or 0.0) >= _ONE_SLICE * speed.shares.get("l2", 1.0)
        busiest = speed.slice if is_one else None
        atomics = counted_fact("atomics", share=speed.atomics, busiest=busiest)
        return atomics, counted_fact("remedy.atomics")
    return None

"""Rule `counted-kernel`: what held kernels back, by hardware counters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Final, TypeAlias

from traceflops.categories.kernel_names import from_own_word, same_kernels
from traceflops.characters import shortened
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import limit, share_of_window
from traceflops.findings.finding import Finding, Row, row_name, severity_of
from traceflops.findings.finding import short_name as without_signature
from traceflops.findings.launch_geometry import few_blocks
from traceflops.findings.rules import statement, thresholds
from traceflops.mfu.counted.kernel_speeds import COMPUTING, ROOFS

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.mfu.counted.kernel_speeds import KernelRule, KernelSpeed
    from traceflops.mfu.measurement import Measurement
    from traceflops.mfu.traced.work_tables import KernelRow
    from traceflops.table.trace import Trace

COUNTED_KERNEL: Final = "counted-kernel"
_Least: TypeAlias = Callable[[str], float]
"""A threshold of the rule by its name."""
_TERA: Final = 1000
"""In FLOP per ns."""
_NO_KERNELS: Final = frozenset({"copy", "memset", "migration"})
_MOST: Final = 3
_NAME: Final = 60
_LEAST_WAVES: Final = 0.1
_ESTIMATED: Final = {
    "block": "launch configuration",
    "waves": "launch configuration",
    "waves-few": "launch configuration",
    "theoretical": "occupancy",
    "achieved": "occupancy",
}
"""The words of NVIDIA's rules that estimate what mending a cause gains, by that cause."""
_STALLS: Final = frozenset(
    {
        *("barrier", "branch_resolving", "drain", "imc_miss", "lg_throttle", "long_scoreboard"),
        *("math_pipe_throttle", "membar", "mio_throttle", "no_instruction", "not_selected"),
        *("short_scoreboard", "sleeping", "tex_throttle", "wait"),
    }
)
"""Reasons why warps wait that have texts; others are named as the profiler does."""
_LIMITERS: Final = frozenset({"registers", "shared memory", "warps", "blocks", "barriers"})
_BUSY: Final = frozenset({"matrix", "vector", "lds"})
"""Throughputs that are shares of cycles in which units are busy."""
_WARP: Final = 32
_TILED: Final = frozenset({"grid", "registers"})
_PRODUCTS: Final = frozenset({"gemm", "convolution", "attention"})
_OF_KINDS: Final = frozenset({("product", "sm"), ("product", "vector"), ("once", "dram")})
"""Kinds of kernels and roofs with a remedy of their own."""
_OF_PIPES: Final = frozenset({"fp64", "tensor", "alu", "xu", "lsu"})
"""Pipes with a remedy of their own."""
_ALSO: Final = ("sm", "dram")
"""Roofs that are told beside a nearer one: both must be relieved."""
_UNCOALESCED: Final = "uncoalesced global access"
_CONFLICTS: Final = re.compile(r"(\d+(?:\.\d+)?) ?- ?way bank conflict")
_SEEDS: Final = re.compile(
    r"(?:init|set_?up|seed|state)\w*(?:<[^(]*>)?\([^)]*\bcurandState", re.IGNORECASE
)
"""Kernels that make the states of random numbers: that is what takes their time."""
_HUMP: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OWN_WORD: Final = re.compile(r"\w+(?=[<(]|$)")
_PART: Final = re.compile("L1|L2|DRAM", re.I)
_FEWER: Final = re.compile("instructions|divergence|imbalance|launch configuration")
_LESS_MOVED: Final = re.compile("access|conflict|imbalance|launch configuration")
_RELIEVES: Final = {name: _FEWER if name in COMPUTING else _LESS_MOVED for name in ROOFS}
"""Words of NVIDIA's rules whose remedies take work from a unit, by its roof."""
_SAYING_LITTLE: Final = 7
"""A function's name of fewer letters, such as kernel, is followed by its templates, if any."""


def counted_kernels(case: Case) -> Iterator[Finding]:
    """Give the kernels that take most time, where only counters tell times.

    First come those of which nothing was counted: any of them may be the one that matters.
    """
    work = case.measured.executed.work
    speeds = work.speeds if work is not None else ()
    total_ns = sum(speed.duration_ns or 0 for speed in speeds)
    names = _names([speed.name for speed in speeds])
    kinds = _kinds(case)
    if total_ns:
        yield from _uncounted(case, speeds)
    least_ns = limit(case, COUNTED_KERNEL, "least_share") * total_ns
    long = [speed for speed in speeds if (speed.duration_ns or 0) >= least_ns]
    judged = [speed for speed in long if speed.roof is not None] or list(speeds[:1])
    for speed in judged[:_MOST]:
        share = (speed.duration_ns or 0) / total_ns if total_ns else 0.0
        yield from _finding(case, speed, names[speed.name], kinds.get(speed.name, ""), share)


def _uncounted(case: Case, speeds: Sequence[KernelSpeed]) -> Iterator[Finding]:
    """Give a finding that names the kernels for which neither a time nor a rate was counted.

    Rows with a grid or of several launches are not judged: some of these may have been counted.
    """
    may_be_counted = {
        one.name
        for one in speeds
        if one.duration_ns is not None or one.throughputs or one.grid or one.launches > 1
    }
    every = case.untimed.counted.to_pylist() if case.untimed is not None else ()
    lost = [row for row in every if row["name"] not in may_be_counted][:_MOST]
    if lost:
        called = _names([row["name"] for row in lost])
        values: dict[str, Value] = {
            "names": tuple(called.values()),
            "launches": sum(row["launches"] for row in lost),
            "kernels": len(lost),
        }
        claim, advice = _fact("uncounted", **values), _fact("remedy.uncounted", **values)
        yield statement(COUNTED_KERNEL, 0.0, claim=claim, advice=advice, severity="high")


def counted_main_kernel(case: Case) -> Iterator[Finding]:
    """Give what counters of another run say of the kernel that takes most of the timed run."""
    kernels = _longest_first(case.measured)
    speed = _speed_of(case.measured, kernels[0]) if kernels else None
    if speed is None:
        return
    most = kernels[0]
    share = min(share_of_window(case, most.sum_ns), 1.0)
    if severity_of(share) is not None:
        name = _names([speed.name])[speed.name]
        row = Row(row_name(most.name), most.sum_ns, most.count)
        kind = _kind(most.category.top, most.category.sub)
        for finding in _finding(case, speed, name, kind, share):
            yield replace(finding, evidence=("speed-of-light", "kernels"), rows=(row,))


def _longest_first(measured: Measurement) -> list[KernelRow]:
    """Return the kernels, neither copies nor fills, that with most time first."""
    kernels = [row for row in measured.kernels if row.category.sub not in _NO_KERNELS]
    return sorted(kernels, key=lambda row: -row.sum_ns)


def _speed_of(measured: Measurement, kernel: KernelRow) -> KernelSpeed | None:
    """Return how near counters say that a kernel came to its limits; None without any."""
    work = measured.executed.work
    speeds = work.speeds if work is not None else ()
    (ours,), theirs = same_kernels([kernel.name], [speed.name for speed in speeds])
    same_shape = (speed for speed, shape in zip(speeds, theirs, strict=True) if shape == ours)
    return next(same_shape, None)


def kernel_with_most(measured: Measurement, trace: Trace) -> Fact | None:
    """Return which kernel has most of the time of kernels, and what counters say of its speed.

    So it says in how few blocks most of its launches are.
    """
    kernels = _longest_first(measured)
    if not kernels:
        return None
    most, total_ns = kernels[0], sum(row.sum_ns for row in kernels)
    speed, work = _speed_of(measured, most), most.measured
    said = [*filter(None, [few_blocks(trace, most.name)])]
    if work.flops_per_ns:
        said.append(_fact("flops", tflops=work.flops_per_ns / _TERA))
    if work.bytes_per_ns:
        said.append(_fact("bytes", gigabytes=work.bytes_per_ns))
    near = thresholds()[COUNTED_KERNEL]["near"]
    said += [] if speed is None else [one for one in _roofs(speed, near) if one.values["share"]]
    return _fact(
        "most",
        name=_names([row.name for row in kernels])[most.name],
        share=most.sum_ns / total_ns,
        time_ns=total_ns,
        limits=tuple(said),
    )


def counted_with_most(measured: Measurement) -> Fact | None:
    """Return which kernel has most of the time of counted launches, where only these are known.

    None where a time is missing, or where speeds are known, of which findings tell more.
    """
    work = measured.executed.work
    rows = work.counted if work is not None and not work.speeds else ()
    times = [row.time_ns for row in rows if row.time_ns]
    if not times or len(times) < len(rows):
        return None
    most, total_ns = max(rows, key=lambda row: row.time_ns or 0), sum(times)
    rate = [_fact("bytes", gigabytes=most.bytes_per_ns)] if most.bytes_per_ns else []
    return _fact(
        "most",
        name=_names([row.name for row in rows])[most.name],
        share=max(times) / total_ns,
        time_ns=total_ns,
        limits=tuple(rate),
    )


def _kinds(case: Case) -> dict[str, str]:
    """Return what kernels do that were counted without a timeline, by name."""
    rows = case.untimed.counted.to_pylist() if case.untimed is not None else ()
    return {row["name"]: _kind(row["top"], row["sub"]) for row in rows}


def _kind(top: str, sub: str) -> str:
    """Return "product" of what tensor cores may compute, "once" of what moves each byte once."""
    return "product" if sub in _PRODUCTS else "once" if top == "memory" else ""


def _finding(
    case: Case, speed: KernelSpeed, name: str, kind: str, share: float
) -> Iterator[Finding]:
    """Give what holds a kernel back, nothing where counters do not tell it."""
    wasted = tuple(_wasted(case, speed))
    held, advice = _held_back(case, speed, kind, _relief(speed, kind, wasted))
    least = partial(limit, case, COUNTED_KERNEL)
    limits = (*_roofs(speed, least("near")), *wasted, *filter(None, [held]))
    if limits:
        estimate = _estimate(speed, held, least)
        if _is_of_access(estimate, least("excess")):
            advice = _fact("remedy.coalesce")
        if any(one.code.endswith(".conflicts") for one in wasted):
            advice = fact("joined", parts=(*filter(None, [advice]), _fact("remedy.conflicts")))
        if _SEEDS.search(speed.name):
            advice = _fact("remedy.seeds")
        values = {"name": name, "limits": limits, "estimate": estimate}
        yield statement(COUNTED_KERNEL, share, values, advice=advice)


def _roofs(speed: KernelSpeed, near: float) -> Iterator[Fact]:
    """Give how near the nearest roof is and what else is near, else all that is known of roofs."""
    shares = dict(speed.throughputs)
    if speed.roof is not None:
        others = {name: share for name, share in shares.items() if share >= near}
        shares = {**dict([speed.roof]), **{name: others[name] for name in _ALSO if name in others}}
    for name, share in shares.items():
        pipe = _fact(f"pipe.{speed.pipe}") if name == "sm" and speed.pipe else None
        yield _fact("busy" if name in _BUSY else "roof", roof=ROOFS[name], share=share, pipe=pipe)


def _wasted(case: Case, speed: KernelSpeed) -> Iterator[Fact]:
    """Give what of the work of the nearest roof is in vain: lanes, or sectors of memory."""
    is_computing = speed.roof is not None and speed.roof[0] in COMPUTING
    if is_computing and speed.lanes and speed.lanes < limit(case, COUNTED_KERNEL, "lanes") * _WARP:
        yield _fact("lanes", lanes=speed.lanes, warp=_WARP)
    if (speed.excess or 0.0) >= limit(case, COUNTED_KERNEL, "excess"):
        yield _fact("excess", share=speed.excess)
    ways = [
        float(match[1])
        for rule in speed.rules
        if (rule.speedup_share or 0.0) >= limit(case, COUNTED_KERNEL, "conflicts")
        and (match := _CONFLICTS.search(rule.text))
    ]
    if ways:
        yield _fact("conflicts", ways=max(ways))


def _relief(speed: KernelSpeed, kind: str, wasted: Sequence[Fact]) -> Fact | None:
    """Return how to take work from the unit that is nearest its peak."""
    if speed.roof is None:
        return None
    roof, _ = speed.roof
    if roof not in COMPUTING and any(one.code.endswith(".excess") for one in wasted):
        return _fact("remedy.coalesce")
    if roof == "sm" and speed.pipe in _OF_PIPES:
        return _fact(f"remedy.pipe.{speed.pipe}")
    if roof == "l1" and speed.shared_bytes == 0:
        return _fact("remedy.unshared.l1")
    return _fact(f"remedy.{kind}.{roof}" if (kind, roof) in _OF_KINDS else f"remedy.roof.{roof}")


def _held_back(
    case: Case, speed: KernelSpeed, kind: str, relief: Fact | None
) -> tuple[Fact | None, Fact | None]:
    """Return what holds a kernel back, None where its roof does, and what to do.

    `relief` is what takes work from its roof.
    """

    def least(name: str) -> float:
        return limit(case, COUNTED_KERNEL, name)

    share = speed.roof[1] if speed.roof is not None else 0.0
    threads = prod(speed.block) if speed.block and "amd" not in case.program else _WARP
    lanes = -(-threads // _WARP) * _WARP
    if 0 < threads < least("lanes") * lanes:
        idle = _fact("block", threads=threads, idle=lanes - threads, all=lanes)
        return idle, _fact("remedy.block")
    if share >= least("near"):
        return None, relief
    if speed.is_small:
        waves = speed.waves or 0.0
        held = "waves" if waves >= _LEAST_WAVES else "waves-few"
        return _fact(held, waves=waves), _limiter("grid", kind)
    if speed.active is not None and speed.active < least("active"):
        units = "cu" if "vector" in speed.throughputs else "sm"
        return _fact(f"active-{units}", share=speed.active), _fact("remedy.active")
    if share >= least("bound"):
        return None, relief
    fits, runs = speed.theoretical_occupancy, speed.achieved_occupancy
    if fits is not None and fits <= least("theoretical"):
        named = [limiter.replace(" ", "-") for limiter in speed.limiters if limiter in _LIMITERS]
        remedies = tuple(_limiter(limiter, kind) for limiter in named)
        advice = fact("joined", parts=remedies) if remedies else relief
        return _fact("theoretical", share=fits, limiters=speed.limiters), advice
    if fits and runs is not None and runs < least("achieved") * fits:
        return _fact("achieved", share=runs, fits=fits), _fact("remedy.achieved")
    reason, waits = next(iter(speed.stalls), ("", 0.0))
    if waits >= least("stall"):
        stall = next((name for name in (reason, reason.removesuffix("s")) if name in _STALLS), None)
        text = _fact(f"reason.{stall}") if stall else reason.replace("_", " ")
        advice = _fact(f"remedy.stall.{stall}") if stall else None
        return _fact("stall", share=waits, reason=text), advice
    if speed.roof is None:
        return None, None if case.devices else _fact("remedy.no-roof")
    return _fact("no-limit"), _fact("remedy.even" if speed.stalls else "remedy.unknown")


def _limiter(limiter: str, kind: str) -> Fact:
    """Return what to do where something limits how much runs at once; products have tiles."""
    is_tiled = kind == "product" and limiter in _TILED
    return _fact(f"remedy.{'product' if is_tiled else 'limiter'}.{limiter}")


def _estimate(speed: KernelSpeed, held: Fact | None, least: _Least) -> Fact | None:
    """Return the largest of NVIDIA's estimates, and the rule where it is not of what holds back.

    Other estimates are as if the grid filled the GPU: of one that does not none is told. Nor is one
    told that gains nothing, or little of what a kernel far below its roofs or a small grid leaves.
    """
    rules = [
        rule for rule in speed.rules if rule.speedup_share and not gains_nothing(speed, rule, least)
    ]
    code = held.code.removeprefix(f"{COUNTED_KERNEL}.") if held else ""
    about = _ESTIMATED.get(code)
    same = [rule for rule in rules if about is not None and about in rule_name(rule)]
    is_small = code in ("waves", "waves-few")
    if not rules or (is_small and not same):
        return None
    best = same[0] if is_small else rules[0]
    nearest = speed.roof[1] if speed.roof is not None else 1.0
    if (nearest < least("far") or is_small) and 2 * (best.speedup_share or 0.0) < 1 - nearest:
        return None  # far more is left than this
    return estimated(best, None if best in same else rule_name(best))


def estimated(rule: KernelRule, by: str | None = None) -> Fact | None:
    """Return an estimated speed-up as Nsight Compute calls it, None where there is none."""
    code = "estimate-local" if rule.speedup_kind == "local" else "estimate"
    return _fact(code, share=rule.speedup_share, rule=by) if rule.speedup_share else None


def _is_of_access(estimate: Fact | None, least: float) -> bool:
    """Return whether coalescing is estimated to gain enough."""
    values = estimate.values if estimate is not None else {}
    share = values.get("share")
    is_much = isinstance(share, float) and share >= least
    return is_much and values.get("rule") == _UNCOALESCED


def _fact(name: str, /, **values: Value) -> Fact:
    return Fact(f"{COUNTED_KERNEL}.{name}", values)


def gains_nothing(speed: KernelSpeed, rule: KernelRule, least: _Least | None = None) -> bool:
    """Return whether what a rule estimates cannot be gained.

    That is of a kernel at its roof all but what takes work from that unit, of others balancing a
    part of the memory system that is not busy. Compression needs memory that is allocated for it.
    """
    least, name = least or thresholds()[COUNTED_KERNEL].__getitem__, rule_name(rule)
    roof, share = speed.roof or ("", 0.0)
    if "compression" in name or (share >= least("near") and not _RELIEVES[roof].search(name)):
        return True
    # Which part of the memory system a rule is about, by its name or as unbalanced
    named = _PART.search(rule.rule or "")
    if named is None and "imbalance" in name:
        named = _PART.search(rule.text)
    return speed.throughputs.get(named[0].lower() if named else "", 1.0) < least("busy")


def rule_name(rule: KernelRule) -> str:
    """Return the name of a rule in words: "uncoalesced global access", "CPI stall"."""
    words = _HUMP.sub(" ", rule.rule or "another rule").replace("_", " ").split()
    return _cut(" ".join(word if word.isupper() else word.lower() for word in words))


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

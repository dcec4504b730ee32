"""Rule `counted-kernel`: what held kernels back, by hardware counters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from traceflops.categories.kernel_names import from_own_word, same_kernels
from traceflops.categories.mangled import readable
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import limit, share_of_window
from traceflops.findings.counted_estimates import (
    COUNTED_KERNEL,
    cut,
    is_of_access,
    told_estimate,
)
from traceflops.findings.finding import Finding, Row, row_name, severity_of
from traceflops.findings.finding import short_name as without_signature
from traceflops.findings.rules import statement
from traceflops.mfu.counted.kernel_speeds import COMPUTING, ROOFS

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.mfu.counted.kernel_speeds import KernelSpeed
    from traceflops.mfu.measurement import Measurement
    from traceflops.mfu.traced.work_tables import KernelRow

_MOST: Final = 3
_LEAST_WAVES: Final = 0.1
_GRIDS: Final = frozenset({"counted-kernel.waves", "counted-kernel.waves-few"})
_STALLS: Final = frozenset(
    {
        *("barrier", "branch_resolving", "drain", "imc_miss", "lg_throttle", "long_scoreboard"),
        *("math_pipe_throttle", "membar", "mio_throttle", "no_instruction", "not_selected"),
        *("short_scoreboard", "sleeping", "tex_throttle", "wait"),
    }
)
"""Reasons why warps wait that have texts; others are named as the profiler does."""
_MOST_REGISTERS: Final = 255
"""Of a thread: a kernel that has so many and spills needs more."""
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
_CONFLICTS: Final = re.compile(r"(\d+(?:\.\d+)?) ?- ?way bank conflict")
_SEEDS: Final = re.compile(
    r"(?:init|set_?up|seed|state)\w*(?:<[^(]*>)?\([^)]*\bcurandState", re.IGNORECASE
)
"""Kernels that make the states of random numbers: that is what takes their time."""
_OWN_WORD: Final = re.compile(r"\w+(?=[<(]|$)")
_SAYING_LITTLE: Final = 7
"""A function's name of fewer letters, such as kernel, is followed by its templates, if any."""


def counted_kernels(case: Case) -> Iterator[Finding]:
    """Give the kernels that take most time, where only counters tell times.

    First come those of which nothing was counted: any of them may be the one that matters, more
    than launches so short that their grid would not be told beside a timeline.
    """
    work = case.measured.executed.work
    speeds = work.speeds if work is not None else ()
    total_ns = sum(speed.duration_ns or 0 for speed in speeds)
    names = called([speed.name for speed in speeds])
    kinds = _kinds(case)
    lost = [*_uncounted(case, speeds)] if total_ns else []
    yield from lost
    least_ns = limit(case, COUNTED_KERNEL, "least_share") * total_ns
    shortest = limit(case, "small-grid", "least_ns") if lost else 0
    long = [
        speed
        for speed in speeds
        if (speed.duration_ns or 0) >= max(least_ns, shortest * speed.launches)
    ]
    judged = [speed for speed in long if speed.roof is not None] or list(speeds[: not lost])
    small = [speed for speed in judged[:_MOST] if _is_small(case, speed)]
    for speed in judged[:_MOST]:
        share = (speed.duration_ns or 0) / total_ns if total_ns else 0.0
        kind, others = kinds.get(speed.name, ""), tuple[str, ...]()
        if speed in small:
            if speed is not small[0]:
                continue  # told with it
            others = tuple({names[other.name]: 0 for other in small if other.name != speed.name})
        yield from _finding(case, speed, names[speed.name], kind, share, others)


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
        shown = called([row["name"] for row in lost])
        values: dict[str, Value] = {
            "names": tuple(shown.values()),
            "launches": sum(row["launches"] for row in lost),
            "kernels": len(lost),
        }
        claim, advice = _fact("uncounted", **values), _fact("remedy.uncounted", **values)
        yield statement(COUNTED_KERNEL, 0.0, claim=claim, advice=advice, severity="high")


def counted_main_kernel(case: Case) -> Iterator[Finding]:
    """Give what counters of another run say of the kernel that takes most of the timed run."""
    kernels = longest_first(case.measured)
    speed = speed_of(case.measured, kernels[0]) if kernels else None
    if speed is None:
        return
    most = kernels[0]
    share = min(share_of_window(case, most.sum_ns), 1.0)
    if severity_of(share) is not None:
        name = called([speed.name])[speed.name]
        row = Row(row_name(most.name), most.sum_ns, most.count)
        kind = _kind(most.category.top, most.category.sub)
        for finding in _finding(case, speed, name, kind, share):
            yield replace(finding, evidence=("speed-of-light", "kernels"), rows=(row,))


def longest_first(measured: Measurement) -> list[KernelRow]:
    """Return the kernels, as recorded whatever their names say, that with most time first."""
    kernels = [row for row in measured.kernels if row.is_kernel]
    return sorted(kernels, key=lambda row: -row.sum_ns)


def speed_of(measured: Measurement, kernel: KernelRow) -> KernelSpeed | None:
    """Return how near counters say that a kernel came to its limits; None without any."""
    work = measured.executed.work
    speeds = work.speeds if work is not None else ()
    (ours,), theirs = same_kernels([kernel.name], [speed.name for speed in speeds])
    same_shape = (speed for speed, shape in zip(speeds, theirs, strict=True) if shape == ours)
    return next(same_shape, None)


def _kinds(case: Case) -> dict[str, str]:
    """Return what kernels do that were counted without a timeline, by name."""
    rows = case.untimed.counted.to_pylist() if case.untimed is not None else ()
    return {row["name"]: _kind(row["top"], row["sub"]) for row in rows}


def _kind(top: str, sub: str) -> str:
    """Return "product" of what tensor cores may compute, "once" of what moves each byte once."""
    return "product" if sub in _PRODUCTS else "once" if top == "memory" else ""


def _finding(
    case: Case,
    speed: KernelSpeed,
    name: str,
    kind: str,
    share: float,
    others: tuple[str, ...] = (),
) -> Iterator[Finding]:
    """Give what holds a kernel back, nothing where counters do not tell it.

    Of a grid that is too small nothing else matters; `others` have such, too.
    """
    wasted = tuple(_wasted(case, speed))
    held, advice = _held_back(case, speed, kind, _relief(speed, kind, wasted))
    least = partial(limit, case, COUNTED_KERNEL)
    limits = (*roofs(speed, least("near")), *wasted, *filter(None, [held]))
    if held is not None and held.code in _GRIDS:
        wasted, limits = (), (Fact(held.code, {**held.values, "others": others}),)
    if limits:
        estimate = told_estimate(speed, held, least)
        if is_of_access(estimate, least("excess")):
            advice = _fact("remedy.coalesce")
        if any(one.code.endswith(".conflicts") for one in wasted):
            advice = fact("joined", parts=(*filter(None, [advice]), _fact("remedy.conflicts")))
        if _SEEDS.search(speed.name):
            advice = _fact("remedy.seeds")
        part = share if 0 < share < 1 and not case.devices else None  # else of the window
        values = {"name": name, "part": part, "limits": limits, "estimate": estimate}
        yield statement(COUNTED_KERNEL, share, values, advice=advice)


def roofs(speed: KernelSpeed, near: float) -> Iterator[Fact]:
    """Give how near the nearest roof is and what else is near, else all that is known of roofs."""
    shares = speed.shares
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
        return _small_grid(speed), _more_work(case, speed, kind)
    if speed.active is not None and speed.active < least("active"):
        units = "cu" if "vector" in speed.throughputs else "sm"
        return _fact(f"active-{units}", share=speed.active), _fact("remedy.active")
    if share >= least("bound"):
        roof, _ = speed.roof or ("", share)
        is_told = speed.stalls or speed.excess is not None or (roof == "sm" and speed.pipe)
        return None, relief if is_told else _fact("remedy.unknown")
    if speed.registers == _MOST_REGISTERS and speed.spills:
        most = _fact("spills", registers=speed.registers, spills=speed.spills)
        return most, _fact("remedy.spills")
    fits, runs = speed.theoretical_occupancy, speed.achieved_occupancy
    if fits is not None and fits <= least("theoretical") and speed.has_more_blocks:
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


def _is_small(case: Case, speed: KernelSpeed) -> bool:
    """Return whether too few blocks hold a kernel back, not lanes of warps nor a near roof."""
    held, _ = _held_back(case, speed, "", None)
    return held is not None and held.code in _GRIDS


def _small_grid(speed: KernelSpeed) -> Fact:
    """Return how small the grid of a kernel is."""
    waves = speed.waves or 0.0
    return _fact(
        "waves" if waves >= _LEAST_WAVES else "waves-few",
        waves=waves,
        blocks=prod(speed.grid) if speed.grid and speed.block else None,
        threads=prod(speed.block) if speed.block else None,
    )


def _more_work(case: Case, speed: KernelSpeed, kind: str) -> Fact:
    """Return what to do where too few blocks hold a kernel back."""
    mean_ns = (speed.duration_ns or 0) // speed.launches
    if 0 < mean_ns < limit(case, "memory-bandwidth", "least_ns"):
        return _fact("remedy.short", mean_ns=mean_ns)
    return _limiter("grid", kind)


def _limiter(limiter: str, kind: str) -> Fact:
    """Return what to do where something limits how much runs at once; products have tiles."""
    is_tiled = kind == "product" and limiter in _TILED
    return _fact(f"remedy.{'product' if is_tiled else 'limiter'}.{limiter}")


def _fact(name: str, /, **values: Value) -> Fact:
    return Fact(f"{COUNTED_KERNEL}.{name}", values)


def called(names: Sequence[str]) -> dict[str, str]:
    """Return short names of kernels that tell them apart, in words that end no sentence."""
    own = dict(zip(names, from_own_word([readable(name) for name in names]), strict=True))
    words = {name: _OWN_WORD.match(text) for name, text in own.items()}
    times = Counter(word[0] for word in words.values() if word)
    return {
        name: cut(
            word[0]
            if word
            and times[word[0]] == 1
            and (len(word[0]) >= _SAYING_LITTLE or own[name][word.end() :][:1] != "<")
            else without_signature(own[name])
        )
        for name, word in words.items()
    }

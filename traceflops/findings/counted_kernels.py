"""Rule `counted-kernel`: what held kernels back, by hardware counters."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import prod
from typing import Any, Final

from msgspec.structs import replace

from traceflops.categories.kernel_names import same_kernels
from traceflops.categories.programs import is_of_directives, is_of_library
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, limit, share_of_window
from traceflops.findings.counted_estimates import (
    COUNTED_KERNEL,
    UNCOALESCED,
    counted_fact,
    for_callers,
    largest_estimate,
    short_names,
    traffic_of_l2,
)
from traceflops.findings.counted_roofs import WARP, relief_of, roofs, wasted_by
from traceflops.findings.finding import Finding, Row, row_name, severity_of
from traceflops.findings.kernel_signs import is_slow_at_doubles, share_of_doubles
from traceflops.findings.rules import statement
from traceflops.mfu.counted.kernel_speeds import KernelSpeed
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.work_tables import KernelRow

_MOST: Final = 3
_LEAST_WAVES: Final = 0.1  # fewer waves than this are told without their number
_GRIDS: Final = frozenset({"counted-kernel.waves", "counted-kernel.waves-few"})
_ALONE: Final = _GRIDS | {"counted-kernel.empty"}
_OCCUPANCY: Final = f"{COUNTED_KERNEL}.theoretical"
_NO_LIMIT: Final = f"{COUNTED_KERNEL}.no-limit"
_TRAFFIC: Final = frozenset(f"counted-kernel.{kind}" for kind in ("local", "atomics", "host"))
_STALLS: Final = frozenset(
    {
        *("barrier", "branch_resolving", "drain", "imc_miss", "lg_throttle", "long_scoreboard"),
        *("math_pipe_throttle", "membar", "mio_throttle", "no_instruction", "not_selected"),
        *("short_scoreboard", "sleeping", "tex_throttle", "wait"),
    }
)
"""Reasons why warps wait that have texts; others are called what the profiler calls them."""
_MOST_REGISTERS: Final = 255
"""The most that a thread can have: a kernel that has so many and spills needs more."""
_LIMITERS: Final = frozenset({"registers", "shared memory", "warps", "blocks", "barriers"})
_TILED: Final = frozenset({"grid", "registers"})
_PRODUCTS: Final = frozenset({"gemm", "convolution", "attention"})
_SORTS: Final = "sort_scan"
_ALSO_TO_DO: Final = {"conflicts": "remedy.conflicts", "active-sm": "remedy.achieved"}
"""What to do about a kind of waste, besides what holds a kernel back."""
_SEEDS: Final = re.compile(
    r"(?:init|set_?up|seed|state)\w*(?:<[^(]*>)?\([^)]*\bcurandState", re.IGNORECASE
)
"""Kernels that set up random number generators, which is what takes their time."""


def counted_kernels(case: Case) -> Iterator[Finding]:
    """Give findings on the kernels that take most time, if only counters tell times.

    Kernels of which nothing was counted come first: any of them may be the one that matters.
    """
    speeds = case.measured.speeds
    total_ns = sum(speed.duration_ns or 0 for speed in speeds)
    names = short_names([speed.name for speed in speeds])
    rows = case.untimed.counted.to_pylist() if case.untimed is not None else ()
    kinds = {row["name"]: kind_of(row["top"], row["sub"]) for row in rows}
    uncounted = [*_uncounted(rows, speeds)] if total_ns else []
    yield from uncounted
    shares, sizes = defaultdict[str, float](float), Counter(speed.name for speed in speeds)
    for speed in speeds:
        shares[speed.name] += _share(speed, total_ns)
    judged = _judged(case, speeds, shares, bool(uncounted))
    held_back = ((speed, _held_back(case, speed, "", None)[0]) for speed in judged)
    small = [speed for speed, held in held_back if held is not None and held.code in _GRIDS]
    for speed in judged:
        others: tuple[str, ...] = ()
        if speed in small:
            if speed is not small[0]:
                continue  # the finding on the first one names all small grids
            others = tuple({names[other.name]: 0 for other in small if other.name != speed.name})
        share, kind = shares[speed.name], kinds.get(speed.name, "")
        count = sizes[speed.name]
        yield from _finding(case, speed, names[speed.name], kind, share, others, count)


def _judged(
    case: Case, speeds: Sequence[KernelSpeed], times: Mapping[str, float], has_uncounted: bool
) -> list[KernelSpeed]:
    """Return the kernels to tell of, each in the size that takes most time, and an empty one."""
    least = limit(case, COUNTED_KERNEL, "least_share") if any(times.values()) else 0.0
    # Very short launches matter less than kernels of which nothing is known.
    shortest_ns = limit(case, "small-grid", "least_ns") if has_uncounted else 0
    with_roof: dict[str, KernelSpeed] = {}
    for speed in speeds:
        is_long = (speed.duration_ns or 0) >= shortest_ns * speed.launches
        if is_long and times[speed.name] >= least and speed.roof is not None:
            with_roof.setdefault(speed.name, speed)
    # Without roofs, only the first kernel is told, and none if uncounted ones are told.
    longest = sorted(with_roof.values(), key=lambda speed: -times[speed.name])
    judged = longest[:_MOST] or [*speeds[: 0 if has_uncounted else 1]]
    # Launches without work are told only of kernels that never do any, not of libraries' dummies.
    working = {speed.name for speed in speeds if not _is_empty(case, speed)}
    told = working.union(speed.name for speed in judged)
    empty = (one for one in speeds if one.name not in told and not is_of_library(one.name))
    return [*judged, *islice(empty, 1)]


def _share(speed: KernelSpeed, total_ns: int) -> float:
    """Return the share of a kernel in all times; 0 if it is unknown."""
    return (speed.duration_ns or 0) / total_ns if total_ns else speed.part or 0.0


def _is_empty(case: Case, speed: KernelSpeed) -> bool:
    """Return whether the warps of a kernel end at once, without an access to memory."""
    executed = speed.idle_instructions
    return executed is not None and executed < limit(case, COUNTED_KERNEL, "empty")


def _uncounted(
    rows: Sequence[Mapping[str, Any]], speeds: Sequence[KernelSpeed]
) -> Iterator[Finding]:
    """Give a finding that names the kernels for which neither a time nor a rate was counted.

    `rows` are all kernels. Speeds with a grid or of several launches count as counted: some of
    these launches may be.
    """
    may_be_counted = {
        speed.name
        for speed in speeds
        if speed.duration_ns is not None or speed.throughputs or speed.grid or speed.launches > 1
    }
    lost = [row for row in rows if row["name"] not in may_be_counted][:_MOST]
    if lost:
        values: dict[str, Value] = {
            "names": tuple(short_names([row["name"] for row in lost]).values()),
            "launches": sum(row["launches"] for row in lost),
            "kernels": len(lost),
        }
        claim = counted_fact("uncounted", **values)
        advice = counted_fact("remedy.uncounted", **values)
        yield statement(COUNTED_KERNEL, 0.0, claim=claim, advice=advice, severity="high")


def counted_main_kernel(case: Case) -> Iterator[Finding]:
    """Give what counters of another run say about the kernel with most time of this recording."""
    kernels = longest_first(case.measured)
    speed = speed_of(case.measured, kernels[0]) if kernels else None
    if speed is None:
        return
    most = kernels[0]
    share = min(share_of_window(case, most.sum_ns), 1.0)  # launches may overlap
    if severity_of(share) is not None:
        name = short_names([speed.name])[speed.name]
        row = Row(row_name(most.name), most.sum_ns, most.count)
        kind = kind_of(most.category.top, most.category.sub)
        for finding in _finding(case, speed, name, kind, share):
            yield replace(finding, evidence=("speed-of-light", "kernels"), rows=(row,))


def longest_first(measured: Measurement) -> list[KernelRow]:
    """Return the rows that are kernels by their record, whatever their names, the longest first."""
    kernels = [row for row in measured.kernels if row.is_kernel]
    return sorted(kernels, key=lambda row: -row.sum_ns)


def speed_of(measured: Measurement, kernel: KernelRow) -> KernelSpeed | None:
    """Return the speed of a kernel by counters of another run, None without any."""
    # The runs may shorten names differently.
    (ours,), theirs = same_kernels([kernel.name], [speed.name for speed in measured.speeds])
    same = (speed for speed, shape in zip(measured.speeds, theirs, strict=True) if shape == ours)
    return next(same, None)


def kind_of(top: str, sub: str) -> str:
    """Return what is typical of a kernel of a category; "" if nothing is.

    It is "product" if tensor cores may compute it, "passes" if it is one of several over the same
    data, "once" if it moves bytes once.
    """
    if sub in _PRODUCTS:
        return "product"
    return "passes" if sub == _SORTS else "once" if top == "memory" else ""


def _finding(
    case: Case,
    speed: KernelSpeed,
    name: str,
    kind: str,
    share: float,
    others: tuple[str, ...] = (),
    sizes: int = 1,
) -> Iterator[Finding]:
    """Give a finding on what holds a kernel back, nothing if counters do not tell it.

    `name` and `kind` come from `short_names` and `kind_of`; `others` have too small a grid as well.
    `share` is of launches of all `sizes`, `speed` is of the size with most time.
    """
    wasted = tuple(wasted_by(case, speed))
    held, advice = _held_back(case, speed, kind, relief_of(speed, kind, wasted))
    least = partial(limit, case, COUNTED_KERNEL)
    if held is not None:
        wasted = tuple(waste for waste in wasted if waste.code != held.code)
        if held.code == _NO_LIMIT and any(_kind_of(waste) in _ALSO_TO_DO for waste in wasted):
            held = advice = None
    # More warps help as far as those that run wait: tell for what, if that is most of the time.
    stalled = _stalled(speed, least("waiting")) if held and held.code == _OCCUPANCY else None
    beside = (*wasted, *(stalled or ())[:1])
    limits = (*roofs(speed, least("near")), *beside, *filter(None, [held]))
    if held is not None and held.code in _TRAFFIC:  # what else is wasted costs little
        wasted, limits = (), (*roofs(speed, least("near")), held)
    elif held is not None and held.code in _ALONE:  # with too few blocks nothing else matters
        wasted, limits = (), (Fact(held.code, {**held.values, "others": others}),)
    if limits:
        estimate = largest_estimate(speed, held, least)
        estimated = estimate.values if estimate is not None else {}
        gained = estimated.get("share")
        # The remedies below are more specific than the one for what holds the kernel back.
        is_much = isinstance(gained, float) and gained >= least("excess")
        if is_much and estimated.get("rule") == UNCOALESCED:
            advice = counted_fact("remedy.coalesce")
        advice = _with_remedies_of(wasted, advice)
        if _SEEDS.search(speed.name):
            advice = counted_fact("remedy.seeds")
        advice = for_callers(case, speed, advice)
        # With a timeline the share is of the window, not of the kernels that were counted.
        part = share if 0 < share < 1 and not case.devices else None
        values = {"name": name, "part": part, "limits": limits, "estimate": estimate}
        if speed.duration_ns is None:
            values |= {"part": None, "about": part}
        elif sizes > 1:
            values |= {"part": None, "whole": part, "sizes": sizes}
        yield statement(COUNTED_KERNEL, share, values, advice=advice)


def _with_remedies_of(wasted: Sequence[Fact], advice: Fact | None) -> Fact | None:
    """Return an advice joined with that on bank conflicts and SMs without work, if it lacks it."""
    kinds = map(_kind_of, wasted)
    more = [counted_fact(_ALSO_TO_DO[kind]) for kind in kinds if kind in _ALSO_TO_DO]
    parts = (*filter(None, [advice]), *(remedy for remedy in more if remedy != advice))
    return fact("joined", parts=parts) if len(parts) > 1 else next(iter(parts), None)


def _kind_of(waste: Fact) -> str:
    """Return a kind of waste by its fact."""
    return waste.code.removeprefix(f"{COUNTED_KERNEL}.")


def _held_back(
    case: Case, speed: KernelSpeed, kind: str, relief: Fact | None
) -> tuple[Fact | None, Fact | None]:
    """Return what holds a kernel back (None if its roof does), and what to do about that.

    `relief` is the advice for a kernel at its roof. The first check that applies decides.
    """
    least = partial(limit, case, COUNTED_KERNEL)
    share = speed.roof[1] if speed.roof is not None else 0.0
    if _is_empty(case, speed):
        empty = counted_fact("empty", instructions=speed.idle_instructions)
        return empty, counted_fact("remedy.empty")
    # Fuller blocks are fewer: they help where more blocks wait than fit on the GPU, or where a unit
    # is busy, as it works for idle lanes, too.
    is_small = speed.is_small and (speed.waves or 0.0) < least("waves")
    odd_block = None if is_small and share < least("bound") else _odd_block(case, speed, share)
    if odd_block is not None:
        return odd_block
    traffic = traffic_of_l2(case, speed)
    if share >= least("bound"):
        roof, _ = speed.roof or ("", share)
        is_told = speed.stalls or speed.excess is not None or (roof == "sm" and speed.pipe)
        is_told = is_told or share >= least("near")
        return traffic or (None, relief if is_told else counted_fact("remedy.unknown"))
    if is_small:
        return _small_grid(case, speed, kind)
    if speed.active is not None and speed.active < least("active"):
        units = "cu" if "vector" in speed.throughputs else "sm"
        # Few SMs work on long after the others, though all get blocks: the blocks are unequal.
        most = speed.busiest if (speed.waves or 0.0) >= 1 else None
        most = most if speed.active < least("active") * (most or 0.0) else None
        held = counted_fact(f"active-{units}", share=speed.active, most=most)
        short = _too_short(case, speed)
        return held, short or counted_fact("remedy.unequal" if most else "remedy.active")
    if traffic is not None:
        return traffic
    few_warps = _few_warps(case, speed, kind, relief)
    if few_warps is not None:
        return few_warps
    stalled = _stalled(speed, least("stall"))
    if stalled is not None:
        return stalled
    if speed.roof is None:
        # Nsight Compute has the time; what is missing is the other side of the roof.
        missing = "remedy.no-roof" if "amd" in case.program else "remedy.unknown"
        return None, None if case.devices else counted_fact(missing)
    has_idle_lanes = speed.lanes is not None and speed.lanes < least("lanes") * WARP
    # SMs may be near their peak whenever they have work.
    is_near = speed.active and speed.roof[0] == "sm" and share >= least("bound") * speed.active
    if has_idle_lanes and is_near:
        return counted_fact("active-sm", share=speed.active), counted_fact("remedy.diverge")
    if speed.is_small:  # nearly enough blocks, and nothing else is known
        return _small_grid(case, speed, kind)
    advice = counted_fact("remedy.even" if speed.stalls else "remedy.unknown")
    # FP64 of so few units is slow, also while it waits for other instructions.
    if share_of_doubles(speed) >= least("doubles") and is_slow_at_doubles(case.prepared.trace):
        return None, fact("joined", parts=(counted_fact("remedy.pipe.fp64"), advice))
    return counted_fact("no-limit"), advice


def _odd_block(case: Case, speed: KernelSpeed, share: float) -> tuple[Fact, Fact] | None:
    """Return that blocks leave lanes of their warps idle and what to do, None if they hardly do.

    `share` is of the nearest roof.
    """
    least = partial(limit, case, COUNTED_KERNEL)
    # On AMD a wave may have 32 or 64 lanes: the size of the block does not tell how many are idle.
    threads = prod(speed.block) if speed.block and "amd" not in case.program else WARP
    lanes = -(-threads // WARP) * WARP
    if not 0 < threads < least("lanes") * lanes:
        return None
    idle = counted_fact("block", threads=threads, idle=lanes - threads, all=lanes)
    fuller = counted_fact("remedy.block")
    if speed.is_small:
        return idle, fact("joined", parts=(fuller, _limiter("grid", "")))
    is_excess = (speed.excess or 0.0) >= least("excess") and share >= least("bound")
    coalesced = counted_fact("remedy.coalesce")
    return idle, fact("joined", parts=(coalesced, fuller)) if is_excess else fuller


def _stalled(speed: KernelSpeed, least: float) -> tuple[Fact, Fact | None] | None:
    """Return what warps wait for most and what to do, None if that is less than `least`."""
    reason, waits = next(iter(speed.stalls), ("", 0.0))
    if waits < least:
        return None
    stall = next((name for name in (reason, reason.removesuffix("s")) if name in _STALLS), None)
    text = counted_fact(f"reason.{stall}") if stall else reason.replace("_", " ")
    advice = counted_fact(f"remedy.stall.{stall}") if stall else None
    return counted_fact("stall", share=waits, reason=text), advice


def _small_grid(case: Case, speed: KernelSpeed, kind: str) -> tuple[Fact, Fact]:
    """Return how small the grid of a kernel is, in waves of blocks, and what to do about that."""
    waves = speed.waves or 0.0
    grid = counted_fact(
        "waves" if waves >= _LEAST_WAVES else "waves-few",
        waves=waves,
        blocks=prod(speed.grid) if speed.grid and speed.block else None,
        threads=prod(speed.block) if speed.block else None,
    )
    return grid, _too_short(case, speed) or remedy_of_grid(speed.name, kind)


def remedy_of_grid(name: str, kind: str) -> Fact:
    """Return what to do about the small grid of a kernel of a kind; see `kind_of`."""
    return _limiter("grid", "directives" if is_of_directives(name) else kind)


def _too_short(case: Case, speed: KernelSpeed) -> Fact | None:
    """Return what to do about launches too short for other blocks to help, None if they are not."""
    mean_ns = (speed.duration_ns or 0) // speed.launches
    is_short = 0 < mean_ns < limit(case, "memory-bandwidth", "least_ns")
    return counted_fact("remedy.short", mean_ns=mean_ns) if is_short else None


def _few_warps(
    case: Case, speed: KernelSpeed, kind: str, relief: Fact | None
) -> tuple[Fact, Fact | None] | None:
    """Return why too few warps run at once and what to do, None if enough do."""
    # A thread has all the registers it can have, and still spills: that matters before occupancy.
    if speed.registers == _MOST_REGISTERS and speed.spills:
        spills = counted_fact("spills", registers=speed.registers, spills=speed.spills)
        return spills, counted_fact("remedy.spills")
    least = partial(limit, case, COUNTED_KERNEL)
    fits, runs = speed.theoretical_occupancy, speed.achieved_occupancy
    if fits is not None and fits <= least("theoretical") and speed.has_more_blocks:
        named = [limiter.replace(" ", "-") for limiter in speed.limiters if limiter in _LIMITERS]
        remedies = tuple(_limiter(limiter, kind) for limiter in named)
        advice = fact("joined", parts=remedies) if remedies else relief
        return counted_fact("theoretical", share=fits, limiters=speed.limiters), advice
    if fits and runs is not None and runs < least("achieved") * fits:
        return counted_fact("achieved", share=runs, fits=fits), counted_fact("remedy.achieved")
    return None


def _limiter(limiter: str, kind: str) -> Fact:
    """Return what to do about what limits the blocks that run at once, by kind of kernel."""
    has_own = kind == "directives" or (kind == "product" and limiter in _TILED)
    return counted_fact(f"remedy.{kind if has_own else 'limiter'}.{limiter}")

"""The ledger (FLOPs by named line) and the waterfall (the budget devices x window x peak, split).

For device j with window w_j ns, peak P_j FLOP/ns, component times t_jc that sum to w_j, u_j ns with
only compute kernels without counted FLOPs, and ledger FLOPs E_jc of the kernels of component c:

    useful, recompute, algorithmic, overcompute, executed  sum E_jc of each family of the ledger
    unattributed                                           sum P_j u_j
    inefficiency                                           sum P_j (t_j,compute - u_j) - E_j,compute
    memory, other, graph, communication, idle              sum P_j t_jc - E_jc

The lines sum to the budget. With several data types there is no single peak: a FLOP of type d then
takes 1/P_d ns, and the budget is the window. All are integers, in FLOP or in a fraction of a ns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import lcm
from typing import Final

from msgspec import Struct

from traceflops.errors import UsageError
from traceflops.facts import Fact, fact
from traceflops.timeline.records import COMPONENTS

UNSPLIT: Final = "executed"
"""The family of lines whose FLOPs were executed for an unknown purpose."""
Count = int | Fraction
"""FLOPs: an integer, or a fraction where a convention or a recomputed share makes one."""


class Line(Struct, frozen=True):
    """One line: a dotted name such as `model.matmul.forward.ffn`, and its FLOPs."""

    name: str
    flops: Count


class Ledger(Struct, frozen=True):
    """The FLOPs of one step under one convention, by line.

    Model FLOPs are the lines under `model` and `convention` (what only that convention counts).
    Executed FLOPs are all lines: also `recompute`, `algorithmic`, `overcompute` and UNSPLIT. With
    `executed_only`, the figure of the convention is the executed FLOPs.
    """

    convention: str
    lines: tuple[Line, ...]
    executed_only: bool = False

    def total(self, prefix: str = "") -> Count:
        """Return the sum of the lines under a dotted name; of all lines without one."""
        if not prefix:
            return whole(sum(line.flops for line in self.lines))
        under = (line.flops for line in self.lines if f"{line.name}.".startswith(f"{prefix}."))
        return whole(sum(under))

    @property
    def model(self) -> Count:
        """Return the model FLOPs of the step: for MFU."""
        return whole(self.total("model") + self.total("convention"))

    @property
    def executed(self) -> Count:
        """Return what is executed in the step: for HFU."""
        return self.total()

    @property
    def figure(self) -> Count:
        """Return the number that the convention is known for: model or executed FLOPs."""
        return self.executed if self.executed_only else self.model


def collect(convention: str, lines: Iterable[Line], *, executed_only: bool) -> Ledger:
    """Return a ledger of lines; lines of one name are added up, lines of 0 left out."""
    sums: dict[str, Count] = {}
    for line in lines:
        sums[line.name] = sums.get(line.name, 0) + line.flops
    added = tuple(Line(name, whole(flops)) for name, flops in sums.items() if flops)
    return Ledger(convention, added, executed_only)


def whole(count: Count) -> Count:
    """Return a count as an integer if it is a whole number, else unchanged."""
    is_whole = isinstance(count, Fraction) and count.denominator == 1
    return int(count) if is_whole else count


FAMILIES: Final = ("model", "recompute", "algorithmic", "overcompute")
"""First words of the ledger's lines."""
LINES: Final = (
    *("useful", "recompute", "algorithmic", "overcompute"),
    *("unattributed", "inefficiency", "memory", "other", "graph", "communication"),
    *("start_up", "idle"),
)
"""The lines in order; `inefficiency` is that of compute kernels, `communication` is exposed. FLOPs
of unknown purpose are an additional first line: UNSPLIT."""
_FAMILY_LINES: Final = {UNSPLIT: UNSPLIT, **dict(zip(FAMILIES, LINES, strict=False))}
_LOSS_LINES: Final = {name: name for name in COMPONENTS} | {"compute": "inefficiency"}
Peaks = Mapping[str, int]  # FLOP per ns by data type


class Portion(Struct, frozen=True):
    """FLOPs of one family of lines, in one component, of one data type."""

    family: str
    component: str
    dtype: str
    flops: int


class DeviceBudget(Struct, frozen=True):
    """The time of one device in one window, in ns, and the FLOPs done in it.

    `components` do not overlap and sum to the window. `uncounted_ns` is the part of `compute` in
    which only kernels without counted FLOPs ran. `peaks` are FLOP per ns by data type.
    """

    components: Mapping[str, int]
    uncounted_ns: int
    work: tuple[Portion, ...]
    peaks: Peaks

    @property
    def window_ns(self) -> int:
        """Return the length of the window."""
        return sum(self.components.values())


def added_budgets(budgets: Iterable[DeviceBudget]) -> tuple[DeviceBudget, ...]:
    """Return one budget per group of devices with equal peaks; the waterfall stays the same."""
    of_peaks: defaultdict[object, list[DeviceBudget]] = defaultdict(list)
    for budget in budgets:
        of_peaks[frozenset(budget.peaks.items())].append(budget)
    added = []
    for same in of_peaks.values():
        components: Counter[str] = Counter()
        flops: Counter[tuple[str, str, str]] = Counter()
        for budget in same:
            components.update(budget.components)
            for part in budget.work:
                flops[part.family, part.component, part.dtype] += part.flops
        work = tuple(Portion(*key, count) for key, count in flops.items())
        uncounted_ns = sum(budget.uncounted_ns for budget in same)
        added.append(DeviceBudget(dict(components), uncounted_ns, work, same[0].peaks))
    return tuple(added)


class WaterfallLine(Struct, frozen=True):
    """One line, in units of `Waterfall.unit`; negative if kernels ran above the peak."""

    name: str
    amount: int


class Waterfall(Struct, frozen=True):
    """A budget and the lines it is split into; they sum to it exactly.

    `dtypes` are the data types that were counted. `unit` is FLOP for one type; for several, it is a
    fraction of a ns of which a FLOP of each type takes a whole number at its peak.
    """

    budget: int
    lines: tuple[WaterfallLine, ...]
    dtypes: tuple[str, ...]
    unit: str

    def amount(self, name: str) -> int:
        """Return the amount of a line; 0 for UNSPLIT if there is no such line."""
        amounts = (line.amount for line in self.lines if line.name == name)
        return next(amounts, 0) if name == UNSPLIT else next(amounts)

    def share(self, name: str) -> Fraction | None:
        """Return one line as a share of the budget, None for an empty budget."""
        return Fraction(self.amount(name), self.budget) if self.budget else None

    @property
    def mfu(self) -> Fraction | None:
        """Return the useful FLOPs as a share of the budget; None for an empty budget."""
        return self.share("useful")

    @property
    def hfu(self) -> Fraction | None:
        """Return all counted FLOPs as a share of the budget; None for an empty budget."""
        return Fraction(self._executed, self.budget) if self.budget else None

    @property
    def known_share(self) -> Fraction:
        """Return the least share of all FLOPs that can be counted: the others may be at peak."""
        all_flops = self._executed + self.amount("unattributed")
        return Fraction(self._executed, all_flops) if all_flops else Fraction(1)

    @property
    def _executed(self) -> int:
        return sum(self.amount(name) for name in _FAMILY_LINES.values())

    @property
    def errors(self) -> tuple[Fact, ...]:
        """Return a fact per negative line, which is impossible: kernels ran above the peak."""
        return tuple(
            fact("waterfall.negative", line=line.name, amount=line.amount, unit=self.unit)
            for line in self.lines
            if line.amount < 0
        )


def waterfall(devices: Iterable[DeviceBudget], dtype: str | None = None) -> Waterfall:
    """Return the split of the summed budget of some devices or windows.

    If no FLOPs were counted, the budget is that of the peak of `dtype`. Raises UsageError for a
    data type without a peak, ValueError for inconsistent times.
    """
    given = tuple(devices)
    counted = {work.dtype for device in given for work in device.work if work.flops}
    dtypes = tuple(sorted(counted))
    needed = dtypes or ((dtype,) if dtype else ())
    for device in given:
        if missing := ", ".join(name for name in needed if name not in device.peaks):
            raise UsageError(f"the peak of {missing} is unknown", "set it with --peak, in TFLOP/s")
        peaks = [device.peaks[name] for name in needed]
        if min(peaks, default=1) <= 0 or set(device.components) - set(COMPONENTS):
            raise ValueError("peaks are above 0, components those of the timeline")
        if not 0 <= device.uncounted_ns <= device.components.get("compute", 0):
            raise ValueError("uncounted compute time is a part of the compute time")
    if not needed and given:
        raise UsageError("no FLOPs were counted, so no peak applies", "specify a type")
    # Amounts are FLOPs. With several data types they are times, in a unit of which a ns and a FLOP
    # at each peak take whole numbers.
    unit, time_units_per_ns = "FLOP", None
    if len(dtypes) > 1:
        time_units_per_ns = lcm(*(device.peaks[name] for device in given for name in dtypes))
        unit = f"1/{time_units_per_ns} ns"
    amounts, budget = dict.fromkeys((UNSPLIT, *LINES), 0), 0
    for device in given:
        units_per_ns = time_units_per_ns or device.peaks[needed[0]]
        budget += units_per_ns * device.window_ns
        # First, all time of a component is lost. Then its counted FLOPs move to their family.
        for component, time_ns in device.components.items():
            amounts[_LOSS_LINES[component]] += units_per_ns * time_ns
        amounts["unattributed"] += units_per_ns * device.uncounted_ns
        amounts["inefficiency"] -= units_per_ns * device.uncounted_ns
        for work in device.work:
            units = units_per_ns // device.peaks[work.dtype] * work.flops if work.flops else 0
            amounts[_FAMILY_LINES[work.family]] += units
            amounts[_LOSS_LINES[work.component]] -= units
    assert sum(amounts.values()) == budget
    names = LINES if not amounts[UNSPLIT] else (UNSPLIT, *LINES)
    lines = tuple(WaterfallLine(name, amounts[name]) for name in names)
    return Waterfall(budget, lines, dtypes, unit)

"""Formulas from hardware counters to FLOPs, bytes and shares of the limits of a device.

    counters.toml         formulas from counters to FLOPs, bytes and cycles, by architecture
    speed_of_light.toml   all spellings of shares of peaks, occupancy and reasons to wait

Nsight Compute reads many counters only per cycle or per second. Clock and duration turn them into
counts again, as exact as they were printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, Literal

import numpy as np
from msgspec import Struct, toml

from traceflops.table.columns import FloatArray

MATRIX, VECTOR = "matrix.", "vector."
READ, WRITTEN, MOVED = "bytes.read", "bytes.written", "bytes.moved"
BUSY, ACTIVE = "cycles.matrix", "cycles.active"
_SECTOR: Final = 32  # bytes
SIMDS_PER_UNIT: Final = 4  # SIMDs of a CU; each has a matrix unit
SUM: Final = ".sum"
DURATION: Final = "gpu__time_duration.sum"  # in ns, as all times are
CLOCKS: Final = ("smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second")
_PER_SECOND, _PER_CYCLE = ".per_second", ".per_cycle_elapsed"
_ENDING: Final = re.compile(r"_(?:sum|max)$")


class Family(Struct, frozen=True):
    """Architectures with the same counters; the table describes each field."""

    id: str
    hardware: str
    pattern: str
    named_by: tuple[str, ...]
    matrix: tuple[str, ...]
    vector: tuple[str, ...]
    passes: tuple[tuple[str, ...], ...]
    counted_by: tuple[str, ...] = ()
    tool: Literal["rocprofv3", "ncu"] = "rocprofv3"
    at_memory: bool = False

    @property
    def counts_memory(self) -> bool:
        """Return whether bytes are counted at the memory, with no cache between."""
        return self.at_memory or self.tool == "ncu"

    @property
    def counts_matrix_work(self) -> bool:
        """Return whether counters of this hardware tell the work of its matrix units."""
        return bool(self.matrix)

    @property
    def options(self) -> tuple[str, ...]:
        """Return the tool's options that count matrix work, one per run."""
        option, between = ("--metrics ", ",") if self.tool == "ncu" else ("--pmc ", " ")
        return tuple(option + between.join(counters) for counters in self.passes)

    @property
    def recording(self) -> str:
        """Return the command line that records the FLOPs of matrix units."""
        if self.tool == "ncu":
            return f"ncu --csv --page raw --print-units base {self.options[0]} COMMAND"
        return f"rocprofv3 {self.options[0]} -- COMMAND"


class Formula(Struct, frozen=True):
    """One quantity as a sum of counters, each times its factor.

    It holds for `families` or, if none are given, for all except those in `but`. With `only_zero`,
    the worth of one count is unknown: only a count of 0 can be used.
    """

    quantity: str
    families: tuple[str, ...]
    terms: Mapping[str, int]
    only_zero: bool = False
    but: tuple[str, ...] = ()

    def holds_for(self, family: Family | None) -> bool:
        """Return whether the formula holds for a family (None: unknown)."""
        if not self.families:
            return family is None or family.id not in self.but
        if family is None:  # all families with counters of matrix and vector units count them alike
            return self.quantity.startswith((MATRIX, VECTOR))
        return family.id in self.families


class CounterTable(Struct, frozen=True):
    """All rows of counters.toml; a `label` is what some tools print in place of a counter."""

    family: tuple[Family, ...]
    formula: tuple[Formula, ...]
    label: tuple[Mapping[str, str], ...]


@cache
def counter_table() -> CounterTable:
    """Return counters.toml."""
    return toml.decode(Path(__file__).with_name("counters.toml").read_bytes(), type=CounterTable)


def plain_counter(name: str) -> str:
    """Return a counter's name as the table has it, such as TCC_EA0_RDREQ for TCC_EA0_RDREQ_sum."""
    plain = _ENDING.sub("", name.strip())
    labels = counter_table().label
    return next((row["counter"] for row in labels if row["label"] == plain), plain)


def family_of(architecture: str | None) -> Family | None:
    """Return the family of an architecture such as gfx942, None where the table has none."""
    if not architecture:
        return None
    named, families = architecture[:64].strip().lower(), counter_table().family
    return next((family for family in families if re.search(family.pattern, named)), None)


def family_by_counters(counters: Iterable[str], above_0: Iterable[str] = ()) -> Family | None:
    """Return the only family that has counters of these names; None if none or several have.

    A counter `above_0` tells a family, too, on whose hardware alone it counts.
    """
    plain, counting = ([*map(plain_counter, found)] for found in (counters, above_0))
    fitting = [
        family
        for family in counter_table().family
        if any(name.startswith(family.named_by) for name in plain)
        or not set(family.counted_by).isdisjoint(counting)
    ]
    return fitting[0] if len(fitting) == 1 else None


def formulas_of(quantity: str, family: Family | None) -> tuple[Formula, ...]:
    """Return the formulas of a quantity for a family, the preferred one first."""
    of_quantity = (row for row in counter_table().formula if row.quantity == quantity)
    return tuple(formula for formula in of_quantity if formula.holds_for(family))


def quantities(prefix: str, family: Family | None) -> tuple[str, ...]:
    """Return the quantities under a prefix that a family has, in the order of the table."""
    names = (row.quantity for row in counter_table().formula if row.holds_for(family))
    return tuple(dict.fromkeys(name for name in names if name.startswith(prefix)))


@cache
def counters_used() -> frozenset[str]:
    """Return the counters of all formulas, and those from which `with_sums` computes these."""
    named = frozenset(name for formula in counter_table().formula for name in formula.terms)
    summed = {name for name in named if name.endswith(SUM)}
    rates = {name + per for name in summed for per in (_PER_SECOND, _PER_CYCLE)}
    return named | rates | ({DURATION, *CLOCKS} if summed else set())


def with_sums(values: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return counters by launch, and the sums that follow from a rate where none was read."""
    sums = dict(values)  # NaN where a launch lacks a counter
    if DURATION not in values:
        return sums
    seconds = values[DURATION] / 1e9
    clock = next((values[name] for name in CLOCKS if name in values), None)
    for name, rate in values.items():
        if name.endswith(SUM + _PER_SECOND):
            counter, computed = name.removesuffix(_PER_SECOND), rate * seconds
        elif name.endswith(SUM + _PER_CYCLE) and clock is not None:
            counter, computed = name.removesuffix(_PER_CYCLE), rate * clock * seconds
        else:
            continue
        read = sums.get(counter, computed)
        sums[counter] = np.where(np.isnan(read), computed, read)
    return sums


LIMIT: Final = "limit."
"""The prefix of quantities that give how many blocks fit on an SM, by the limiting resource."""
FULL_WAVES: Final = re.compile(r"\b(\d{1,6}\.\d{1,3}) full waves across all SMs")
"""The message of a rule of Nsight Compute on a small grid, also if waves were not counted."""
_MOST_NAMES: Final = 10_000  # size of the caches by counter name
Kind = Literal["percent", "ns", "number", "rate"]
_UNITS: Final[Mapping[Kind, frozenset[str]]] = {
    "percent": frozenset({"%"}),
    "ns": frozenset({"ns"}),
    "number": frozenset({"", "block", "byte/block", "cycle", "register/thread"}),
    "rate": frozenset({"byte/s", "byte/cycle", "Hz"}),
}


class Quantity(Struct, frozen=True):
    """A quantity and its spellings, the best first; the table describes each field."""

    id: str
    kind: Kind
    counters: tuple[str, ...]
    sections: tuple[str, ...]
    labels: tuple[str, ...]

    def spelling(self, counter: str) -> int | None:
        """Return the index of a counter's name among the spellings, None if it is none of them.

        The name of a figure on a page of a report is section|label|unit.
        """
        if counter in self.counters:
            return self.counters.index(counter)
        section, _, rest = counter.partition("|")
        label, _, unit = rest.rpartition("|")
        fits = label in self.labels and section in self.sections
        if not fits or unit not in _UNITS[self.kind]:
            return None
        return len(self.counters) + self.labels.index(label)


class Stalls(Struct, frozen=True):
    """Counters of reasons to wait, parts of `total` (None: of their sum); unused below `least`."""

    pattern: str
    total: str | None = None
    least: float = 0.0

    def reason(self, counter: str) -> str | None:
        """Return the reason that a counter is for, such as long_scoreboard; None if for none."""
        match = re.fullmatch(self.pattern, counter)
        return match[1].strip().lower().replace(" ", "_") if match else None


class Cycles(Struct, frozen=True):
    """A counter of busy cycles, in units of `factor` cycles, summed over such parts of all CUs.

    `families` has the number of parts per CU, by id of a family.
    """

    id: str
    counter: str
    families: Mapping[str, int]
    factor: int = 1


class SpeedTable(Struct, frozen=True):
    """All rows of speed_of_light.toml, the best spellings of stall reasons first."""

    quantity: tuple[Quantity, ...]
    stalls: tuple[Stalls, ...]
    cycles: tuple[Cycles, ...]
    reasons: frozenset[str]


@cache
def speed_table() -> SpeedTable:
    """Return speed_of_light.toml."""
    content = Path(__file__).with_name("speed_of_light.toml").read_bytes()
    return toml.decode(content, type=SpeedTable)


@lru_cache(_MOST_NAMES)
def is_quantity(counter: str) -> bool:
    """Return whether a counter's name is known: of a quantity, of cycles, or a reason to wait."""
    table = speed_table()
    if any(row.spelling(counter) is not None for row in table.quantity):
        return True
    if any(row.counter == counter for row in table.cycles):
        return True
    # A reason on a page of a report (section|label|unit) must also have a fitting unit.
    label, _, unit = counter.rpartition("|")
    reasons = {row.reason(counter) for row in table.stalls} & table.reasons
    return bool(reasons) and (not label or unit in _UNITS["number"] | {"inst"})


@lru_cache(_MOST_NAMES)
def tells_speed(counter: str) -> bool:
    """Return whether a counter tells anything about speed; unknown reasons to wait count, too."""
    reasons = (row.reason(counter) for row in speed_table().stalls)
    return is_quantity(counter) or any(reason is not None for reason in reasons)


def quantities_in(values: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return columns of quantities by id (percent as shares), by each launch's best spelling.

    Those that follow from others are there, too: `dram` by its rate, shares of `active` time, also
    of the `busiest` SM, of sectors in `excess`, of `local` memory in what L2 is read for, of
    `atomics` in all its sectors, of memory of the `host` in what L2 takes in; `shared_bytes`;
    `asked`, the bytes of coalesced accesses to global memory by those that DRAM moves.
    """
    quantities: dict[str, FloatArray] = {}
    for row in speed_table().quantity:
        ranks = {name: rank for name in values if (rank := row.spelling(name)) is not None}
        for name in sorted(ranks, key=lambda name: ranks[name]):
            value = values[name] / 100 if row.kind == "percent" else values[name]
            by_better_spelling = quantities.get(row.id, value)
            is_missing = np.isnan(by_better_spelling)
            quantities[row.id] = np.where(is_missing, value, by_better_spelling)
    known = quantities.keys()
    if {"dram.rate", "dram.clock", "dram.width"} <= known:
        peak = quantities["dram.clock"] * quantities["dram.width"]
        by_rate = ratio(quantities["dram.rate"], peak)
        known_shares = quantities.get("dram", by_rate)
        quantities["dram"] = np.where(np.isnan(known_shares), by_rate, known_shares)
    if {"active_cycles", "elapsed_cycles"} <= known:
        quantities["active"] = ratio(quantities["active_cycles"], quantities["elapsed_cycles"])
    if {"active_cycles.most", "elapsed_cycles"} <= known:
        most = quantities["active_cycles.most"]
        quantities["busiest"] = ratio(most, quantities["elapsed_cycles"])
    if {"sectors", "sectors.ideal"} <= known:
        quantities["excess"] = 1 - ratio(quantities["sectors.ideal"], quantities["sectors"])
    if {"sectors.ideal", "dram.read", "dram.written"} <= known:
        moved = quantities["dram.read"] + quantities["dram.written"]
        quantities["asked"] = ratio(quantities["sectors.ideal"] * _SECTOR, moved)
    if {"shared.static", "shared.dynamic"} <= known:
        quantities["shared_bytes"] = quantities["shared.static"] + quantities["shared.dynamic"]
    if {"l2.read.local", "l2.read"} <= known:
        quantities["local"] = ratio(quantities["l2.read.local"], quantities["l2.read"])
    if {"l2.fill.device", "l2.fill.host"} <= known:
        of_host = quantities["l2.fill.host"]
        quantities["host"] = ratio(of_host, of_host + quantities["l2.fill.device"])
    if {"l2.red", "l2.sectors"} <= known:
        counted = (quantities[name] for name in ("l2.atom", "l2.cas") if name in known)
        others = map(np.nan_to_num, counted)
        quantities["atomics"] = ratio(sum(others, quantities["l2.red"]), quantities["l2.sectors"])
    return quantities


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Return quotients, NaN where the divisor is not positive."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)

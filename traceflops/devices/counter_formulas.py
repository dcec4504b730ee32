"""From hardware counters to FLOPs and bytes: the formulas of `counters.toml`, by architecture.

Nsight Compute reads many counters only per cycle or per second. With clock and duration they are
counts again, rounded as they were printed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from traceflops.table.columns import FloatArray

MATRIX, VECTOR = "matrix.", "vector."
READ, WRITTEN, MOVED = "bytes.read", "bytes.written", "bytes.moved"
BUSY, ACTIVE = "cycles.matrix", "cycles.active"

SIMDS_PER_UNIT: Final = 4
"""SIMDs of a CU; each has a matrix unit."""

SUM: Final = ".sum"
DURATION: Final = "gpu__time_duration.sum"
"""In ns, as all times are."""
CLOCKS: Final = ("smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second")

_PER_SECOND, _PER_CYCLE = ".per_second", ".per_cycle_elapsed"
_NS_PER_S: Final = 1e9
_ENDING: Final = re.compile(r"_(?:sum|max)$")


@dataclass(frozen=True, slots=True)
class Family:
    """Architectures that count alike; see the table for what each field says."""

    id: str
    hardware: str
    pattern: str
    named_by: tuple[str, ...]
    matrix: tuple[str, ...]
    vector: tuple[str, ...]
    passes: tuple[tuple[str, ...], ...]
    tool: Literal["rocprofv3", "ncu"] = "rocprofv3"

    @property
    def counts_matrix_work(self) -> bool:
        """Return whether counters of this hardware say what its matrix units did."""
        return bool(self.matrix)

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options of its tool that count, those of each run."""
        option, between = ("--metrics ", ",") if self.tool == "ncu" else ("--pmc ", " ")
        return tuple(option + between.join(counters) for counters in self.passes)

    @property
    def recording(self) -> str:
        """Return what to record for the FLOPs of matrix units: the command line of its tool."""
        if self.tool == "ncu":
            return f"ncu --csv --page raw --print-units base {self.options[0]} COMMAND"
        return f"rocprofv3 {self.options[0]} -- COMMAND"


@dataclass(frozen=True, slots=True)
class Formula:
    """One quantity as a sum of counters, each times its factor.

    It holds for `families`, or without any for all but those in `but`. With `only_zero`, what is
    counted has no known worth, so only a count of 0 says something.
    """

    quantity: str
    families: tuple[str, ...]
    terms: Mapping[str, int] = field(hash=False)
    only_zero: bool = False
    but: tuple[str, ...] = ()

    def holds_for(self, family: Family | None) -> bool:
        """Return whether it holds for a family; for an unknown one (None), only what holds for all.

        Work of matrix and vector units is counted by the same formula wherever it is counted.
        """
        if not self.families:
            return family is None or family.id not in self.but
        if family is None:
            return self.quantity.startswith((MATRIX, VECTOR))
        return family.id in self.families


def plain_counter(name: str) -> str:
    """Return a counter's name as the table has it: TCC_EA0_RDREQ of TCC_EA0_RDREQ_sum."""
    plain = _ENDING.sub("", name.strip())
    return _counters_of_labels().get(plain, plain)


@cache
def _counters_of_labels() -> dict[str, str]:
    return {row["label"]: row["counter"] for row in _document()["label"]}


def family_of(architecture: str | None) -> Family | None:
    """Return the family of an architecture such as gfx942, None where the table has none."""
    if not architecture:
        return None
    named = architecture[:64].strip().lower()
    return next((family for family in families() if re.search(family.pattern, named)), None)


def family_by_counters(counters: Iterable[str]) -> Family | None:
    """Return the only family that has all of these counters where their names tell it."""
    plain = [plain_counter(name) for name in counters]
    named = [
        family
        for family in families()
        if any(counter.startswith(family.named_by) for counter in plain)
    ]
    return named[0] if len(named) == 1 else None


def formulas_of(quantity: str, family: Family | None) -> tuple[Formula, ...]:
    """Return the formulas of a quantity for a family, those to be preferred first."""
    return tuple(
        formula
        for formula in formulas()
        if formula.quantity == quantity and formula.holds_for(family)
    )


def quantities(prefix: str, family: Family | None) -> tuple[str, ...]:
    """Return the quantities under a prefix that a family has, in the order of the table."""
    known = (formula.quantity for formula in formulas() if formula.holds_for(family))
    return tuple(dict.fromkeys(name for name in known if name.startswith(prefix)))


def counters_for(prefix: str, types: Iterable[str], family: Family) -> Iterator[str]:
    """Yield the counters that count work of some data types."""
    for dtype in types:
        for formula in formulas_of(f"{prefix}{dtype}", family)[:1]:
            yield from formula.terms


@cache
def families() -> tuple[Family, ...]:
    """Return all families of the table."""
    return tuple(Family(**_frozen(row)) for row in _document()["family"])


@cache
def formulas() -> tuple[Formula, ...]:
    """Return all formulas of the table, in its order."""
    return tuple(Formula(**_frozen(row)) for row in _document()["formula"])


def _frozen(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the document with tuples for its lists."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return {key: frozen(value) for key, value in row.items()}


@cache
def counters_used() -> frozenset[str]:
    """Return the counters that any formula has, and those that tell such a counter's sum."""
    named = frozenset(name for formula in formulas() for name in formula.terms)
    summed = {name for name in named if name.endswith(SUM)}
    rates = {name + per for name in summed for per in (_PER_SECOND, _PER_CYCLE)}
    return named | rates | ({DURATION, *CLOCKS} if summed else set())


@cache
def _document() -> dict[str, Any]:
    text = Path(__file__).with_name("counters.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def with_sums(values: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return counters with the sums that follow from rates, where the sums were not read.

    `values` are by counter, one per launch, NaN where it has none.
    """
    sums = dict(values)
    if DURATION not in values:
        return sums
    seconds = values[DURATION] / _NS_PER_S
    clock = next((values[name] for name in CLOCKS if name in values), None)
    for name, rate in values.items():
        if name.endswith(SUM + _PER_SECOND):
            counter, computed = name.removesuffix(_PER_SECOND), rate * seconds
        elif name.endswith(SUM + _PER_CYCLE) and clock is not None:
            counter, computed = name.removesuffix(_PER_CYCLE), rate * clock * seconds
        else:
            continue
        read = sums.get(counter)
        sums[counter] = computed if read is None else np.where(np.isnan(read), computed, read)
    return sums

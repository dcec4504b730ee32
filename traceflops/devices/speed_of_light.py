"""How counters spell what says how near a kernel came to the limits of its device.

The table is `speed_of_light.toml`: a row per quantity with all its spellings.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from traceflops.table.columns import FloatArray

LIMIT: Final = "limit."
"""What the quantities begin with that say how many blocks an SM has room for."""

FULL_WAVES: Final = re.compile(r"\b(\d{1,6}\.\d{1,3}) full waves across all SMs")
"""What a rule of Nsight Compute says of a small grid, also where waves were not counted."""

_MOST_NAMES: Final = 10_000
"""Of counters, whose spelling is remembered."""

Kind = Literal["percent", "ns", "number"]
_UNITS: Final[Mapping[Kind, frozenset[str]]] = {
    "percent": frozenset({"%"}),
    "ns": frozenset({"ns"}),
    "number": frozenset({"", "block", "cycle", "register/thread"}),
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity and its spellings, the best first; see the table for what each field says."""

    id: str
    kind: Kind
    counters: tuple[str, ...]
    sections: tuple[str, ...]
    labels: tuple[str, ...]

    def spelling(self, counter: str) -> int | None:
        """Return the place of a counter's name among the spellings, None where it is none."""
        if counter in self.counters:
            return self.counters.index(counter)
        section, _, rest = counter.partition("|")
        label, _, unit = rest.rpartition("|")
        fits = label in self.labels and section in self.sections
        if not fits or unit not in _UNITS[self.kind]:
            return None
        return len(self.counters) + self.labels.index(label)


@dataclass(frozen=True, slots=True)
class Stalls:
    """Counters of why warps wait: parts of quantity `total`, or of their sum from `least` on."""

    pattern: str
    total: str | None = None
    least: float = 0.0

    def reason(self, counter: str) -> str | None:
        """Return the reason that a counter is of, such as long_scoreboard."""
        match = re.fullmatch(self.pattern, counter)
        return match[1].strip().lower().replace(" ", "_") if match else None


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of a part of all CUs, of which a CU of each of the `families` has so many."""

    id: str
    counter: str
    families: Mapping[str, int] = field(hash=False)
    factor: int = 1


@cache
def quantity_rows() -> tuple[Quantity, ...]:
    """Return the quantities."""

    def frozen(row: dict[str, Any]) -> dict[str, Any]:
        return {key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}

    return tuple(Quantity(**frozen(row)) for row in _document()["quantity"])


@cache
def stall_rows() -> tuple[Stalls, ...]:
    """Return the spellings of stall reasons, the best first."""
    return tuple(Stalls(**row) for row in _document()["stalls"])


@cache
def cycle_rows() -> tuple[Cycles, ...]:
    """Return the counters of cycles of parts of CUs."""
    return tuple(Cycles(**row) for row in _document()["cycles"])


@lru_cache(_MOST_NAMES)
def is_quantity(counter: str) -> bool:
    """Return whether all of a counter's name is known: of a quantity, cycles, a reason to wait."""
    if any(row.spelling(counter) is not None for row in quantity_rows()):
        return True
    if any(row.counter == counter for row in cycle_rows()):
        return True
    label, _, unit = counter.rpartition("|")
    reasons = {row.reason(counter) for row in stall_rows()} & set(_document()["reasons"])
    return bool(reasons) and (not label or unit in _UNITS["number"] | {"inst"})


@lru_cache(_MOST_NAMES)
def tells_speed(counter: str) -> bool:
    """Return whether a counter says anything here."""
    return is_quantity(counter) or any(row.reason(counter) is not None for row in stall_rows())


def quantities_in(values: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return quantities by id, percent as shares; of each launch the best spelling that it has.

    `values` are by counter, one per launch, NaN where it has none.
    """
    quantities: dict[str, FloatArray] = {}
    for row in quantity_rows():
        ranks = {name: rank for name in values if (rank := row.spelling(name)) is not None}
        for name in sorted(ranks, key=lambda name: ranks[name]):
            value = values[name] / 100 if row.kind == "percent" else values[name]
            own = quantities.get(row.id)
            quantities[row.id] = value if own is None else np.where(np.isnan(own), value, own)
    return quantities


@cache
def _document() -> dict[str, Any]:
    text = Path(__file__).with_name("speed_of_light.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)

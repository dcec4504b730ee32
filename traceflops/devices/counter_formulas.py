"""From hardware counters to FLOPs and bytes: the formulas of `counters.toml`, by architecture."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from traceflops.devices.counted_rates import rates_of

MATRIX, VECTOR = "matrix.", "vector."
READ, WRITTEN, MOVED = "bytes.read", "bytes.written", "bytes.moved"
BUSY, ACTIVE = "cycles.matrix", "cycles.active"

SIMDS_PER_UNIT: Final = 4
"""SIMDs of a CU; each has a matrix unit."""

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
        if self.tool == "ncu":
            return tuple(f"--metrics {','.join(counters)}" for counters in self.passes)
        return tuple(f"--pmc {' '.join(counters)}" for counters in self.passes)

    @property
    def recording(self) -> str:
        """Return what to record for the FLOPs of matrix units: the command line of its tool."""
        if self.tool == "ncu":
            return f"ncu --csv --page raw --print-units base {self.options[0]} COMMAND"
        return f"rocprofv3 {self.options[0]} -- COMMAND"


@dataclass(frozen=True, slots=True)
class Formula:
    """One quantity as a sum of counters, each times its factor.

    It holds for `families`, or if there are none for all but those in `but`.
    `only_zero`: what a counted thing is worth is not known, so only none of it says something.
    """

    quantity: str
    families: tuple[str, ...]
    terms: Mapping[str, int] = field(hash=False)
    only_zero: bool = False
    but: tuple[str, ...] = ()

    def holds_for(self, family: Family | None) -> bool:
        """Return whether it holds for a family; of an unknown one (None) only what holds for all.

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
    return _labels().get(plain, plain)


def family_of(architecture: str | None) -> Family | None:
    """Return the family of an architecture such as gfx942, None where the table has none."""
    if not architecture:
        return None
    named = architecture[:64].strip().lower()
    return next((one for one in families() if re.search(one.pattern, named)), None)


def family_by_counters(counters: Iterable[str]) -> Family | None:
    """Return the only family that has all of these counters where their names tell it."""
    plain = [plain_counter(name) for name in counters]
    named = [one for one in families() if one.named_by and _has_any(plain, one.named_by)]
    return named[0] if len(named) == 1 else None


def formulas_of(quantity: str, family: Family | None) -> tuple[Formula, ...]:
    """Return the formulas of a quantity for a family, those to be preferred first."""
    return tuple(one for one in formulas() if one.quantity == quantity and one.holds_for(family))


def quantities(prefix: str, family: Family | None) -> tuple[str, ...]:
    """Return the quantities under a prefix that a family has, in the order of the table."""
    found = (one.quantity for one in formulas() if one.holds_for(family))
    return tuple(dict.fromkeys(name for name in found if name.startswith(prefix)))


def counters_for(prefix: str, types: Iterable[str], family: Family) -> Iterator[str]:
    """Yield the counters that count work of some data types."""
    for dtype in types:
        for formula in formulas_of(f"{prefix}{dtype}", family)[:1]:
            yield from formula.terms


def families() -> tuple[Family, ...]:
    """Return all families of the table."""
    return _table()[0]


def formulas() -> tuple[Formula, ...]:
    """Return all formulas of the table, in its order."""
    return _table()[1]


@cache
def counters_used() -> frozenset[str]:
    """Return the counters that any formula has, and those that tell such a counter."""
    named = frozenset(name for one in formulas() for name in one.terms)
    return named | {rate for name in named for rate in rates_of(name)}


def _has_any(names: list[str], beginnings: tuple[str, ...]) -> bool:
    return any(name.startswith(beginnings) for name in names)


@cache
def _table() -> tuple[tuple[Family, ...], tuple[Formula, ...]]:
    document = _document()
    return (
        tuple(
            Family(
                row["id"],
                row["hardware"],
                row["pattern"],
                tuple(row["named_by"]),
                tuple(row["matrix"]),
                tuple(row["vector"]),
                tuple(tuple(line) for line in row["passes"]),
                row.get("tool", "rocprofv3"),
            )
            for row in document["family"]
        ),
        tuple(
            Formula(
                row["quantity"],
                tuple(row["families"]),
                row["terms"],
                row.get("only_zero", False),
                tuple(row.get("but", ())),
            )
            for row in document["formula"]
        ),
    )


@cache
def _labels() -> dict[str, str]:
    """Return the counters that labels of a page stand for."""
    return {row["label"]: row["counter"] for row in _document()["label"]}


@cache
def _document() -> dict[str, Any]:
    text = Path(__file__).with_name("counters.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)

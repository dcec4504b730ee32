"""The ledger: FLOPs by named line, exact, so that the lines add up to the total."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

UNSPLIT: Final = "executed"
"""The family of lines whose FLOPs were executed, and nothing tells what for."""

Count = int | Fraction
"""FLOPs: an integer, or a fraction where a convention or a recomputed share makes one."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: a dotted name such as `model.matmul.forward.ffn`, and its FLOPs."""

    name: str
    flops: Count


@dataclass(frozen=True, slots=True)
class Ledger:
    """The FLOPs of one step under one convention.

    Lines under `model` and `convention` (what only that convention counts) are the model FLOPs;
    `recompute`, `algorithmic` and `overcompute` come on top in what is executed, and so does what
    is under UNSPLIT, which may be any of them.
    """

    convention: str
    lines: tuple[Line, ...]
    executed_only: bool = False
    """the convention's figure is what is executed, not the model FLOPs"""

    def total(self, prefix: str = "") -> Count:
        """Return the sum of the lines under a name; of all without one."""
        return whole(sum(line.flops for line in self.lines if _is_under(line.name, prefix)))

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

    def grouped(self, depth: int) -> tuple[Line, ...]:
        """Return the lines added up by the first `depth` words of their names, in order."""
        short = (replace(line, name=".".join(line.name.split(".")[:depth])) for line in self.lines)
        return tuple(_added(short))

    def scaled(self, factor: Fraction) -> Ledger:
        """Return the ledger with every line times a factor."""
        lines = tuple(Line(line.name, whole(line.flops * factor)) for line in self.lines)
        return Ledger(self.convention, lines, self.executed_only)


def collect(convention: str, lines: Iterable[Line], *, executed_only: bool) -> Ledger:
    """Return the ledger of the lines that are not zero, those of one name added up."""
    return Ledger(convention, tuple(line for line in _added(lines) if line.flops), executed_only)


def _added(lines: Iterable[Line]) -> Iterator[Line]:
    sums: dict[str, Count] = {}
    for line in lines:
        sums[line.name] = sums.get(line.name, 0) + line.flops
    return (Line(name, whole(flops)) for name, flops in sums.items())


def whole(count: Count) -> Count:
    """Return an integer where the fraction is one."""
    is_whole = isinstance(count, Fraction) and count.denominator == 1
    return int(count) if is_whole else count


def _is_under(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(f"{prefix}.")

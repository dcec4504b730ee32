"""Which part of an AMD device a partition is, told by the compute dies (XCC) that it spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traceflops.devices.peaks import DeviceSpec, load_devices

_MODES: Final = {1: "SPX", 2: "DPX", 3: "TPX", 4: "QPX"}
"""AMD's names of the modes by the number of partitions; one die each is CPX, however many."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A mode (SPX, CPX, ...) and the dies of one partition; `whole` is None where unknown."""

    mode: str
    dies: int
    whole: int | None

    @property
    def is_part(self) -> bool:
        """Return whether the device is less than all dies of the product."""
        return self.mode != "SPX"

    @property
    def text(self) -> str:
        """Return it in words: "CPX, 1 of 8 dies"."""
        if self.whole is None:
            return f"{self.mode}, 1 die"
        share = "all" if self.dies == self.whole else f"{self.dies} of"
        return f"{self.mode}, {share} {self.whole} dies"


def partition(
    spec: DeviceSpec | None, architecture: str | None, dies: int | None
) -> Partition | None:
    """Return the partition that a device is; None where that cannot be told or it has none.

    `spec` is the row of the device table that its name stands for. Without one, all products of
    its architecture must say the same.
    """
    if dies is None or dies < 1:
        return None
    rows = (spec,) if spec is not None else _of_architecture(architecture)
    wholes = {whole_dies(row) for row in rows}
    if not wholes or None in wholes:
        return None
    told = {_mode(dies, whole or 0) for whole in wholes} - {None}
    if len(told) != 1:
        return None
    whole = wholes.pop() if len(wholes) == 1 else None
    if whole is None and "SPX" in told:
        whole = dies
    return Partition(told.pop() or "", dies, whole)


def whole_dies(spec: DeviceSpec) -> int | None:
    """Return the dies of a product that can be partitioned; None for any other."""
    if not spec.partition_units or not spec.units:
        return None
    return spec.units // spec.partition_units


def _mode(dies: int, whole: int) -> str | None:
    if dies > whole or whole % dies:
        return None
    return "CPX" if dies == 1 < whole else _MODES.get(whole // dies)


def _of_architecture(architecture: str | None) -> tuple[DeviceSpec, ...]:
    wanted = (architecture or "").strip().lower()
    return tuple(row for row in load_devices() if row.arch == wanted and whole_dies(row))

"""What the page shows of a trace without a timeline: which sums, and how many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from traceflops.table import DEVICE_KINDS

if TYPE_CHECKING:
    from traceflops.timeline import Untimed

MOST_ROWS: Final = 100
_PARTS: Final = (
    ("totals", "Kernels and copies", DEVICE_KINDS),
    ("totals-calls", "CPU API calls", ("call",)),
    ("totals-marks", "Annotations", ("mark",)),
    ("totals-ranges", "GPU annotations", ("gpu_mark",)),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One table of sums: the rows that are shown, and how many there are."""

    id: str
    title: str
    rows: list[dict[str, Any]]
    total: int

    @property
    def has_bytes(self) -> bool:
        """Return whether a size is known of any row."""
        return any(row["bytes"] is not None for row in self.rows)


def untimed_parts(found: Untimed | None) -> list[Part]:
    """Return the tables of sums that have rows."""
    if found is None:
        return []
    tables = [(id_, title, found.of_kind(*kinds)) for id_, title, kinds in _PARTS]
    return [
        Part(id_, title, table.slice(0, MOST_ROWS).to_pylist(), table.num_rows)
        for id_, title, table in tables
        if table.num_rows
    ]

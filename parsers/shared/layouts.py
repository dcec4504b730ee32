"""TODO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

V1: Final = "v1"


V2: Final = "v2"


V3: Final = "v3"


COMPUTE: Final = "compute"


@dataclass(frozen=True, slots=True)
class Layout:
    """One table of one generation: the columns that it must have, all others are optional.

    `what` says how it is read, `name` what rocprof calls it, `release` what the columns tell.
    """

    what: str
    name: str
    generation: str
    release: str
    needs: frozenset[str]
    lacks: frozenset[str] = frozenset()

    @property
    def may_be_wide(self) -> bool:
        """Return whether further columns of it may be counters: rocprofv3 has a table for these."""
        return self.what in ("kernels", "untimed") and self.generation != V3

    def has(self, columns: frozenset[str]) -> bool:
        """Return whether these are the columns of such a table."""
        return self.needs <= columns and not self.lacks & columns

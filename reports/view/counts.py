"""Numbers in JSON that may be beyond 64 bits or not known."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec

from traceflops.flops.ledger import Count


def flop_count(name: str, value: Count | None) -> dict[str, Any]:
    """Return a count twice: as a number under `name` and, with `_text`, exactly.

    Integers of any size stay integers.
    """
    if value is None:
        return {name: None, f"{name}_text": None}
    whole = value.denominator == 1
    number = msgspec.Raw(str(int(value)).encode()) if whole else float(value)
    return {name: number, f"{name}_text": str(value)}


def as_float(value: Fraction | None) -> float | None:
    """Return a fraction as a float; what is not known stays so."""
    return float(value) if value is not None else None

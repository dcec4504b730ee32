"""Rows of the device table that are a line each: a series has what all of them share.

`series.toml` describes its form. A rate is units x FLOP per clock x boost clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

_MODELS: Final = frozenset({"name", "id", "called", "vector", "matrix", "models"})
"""Keys of a series that make rows and do not stand in them."""

_WORD: Final = re.compile(r"[a-z0-9]+")

_PER_TERA: Final = 10**6
"""FLOP per clock times MHz in one TFLOP/s."""

_MAKERS: Final = r"(?i)^(?:NVIDIA |AMD |Intel(?:\(R\))? )?"
_END: Final = r"(?:-\d{1,3}[ABCQ]| MIG .*)?$"
"""What may stand behind a name: a virtual GPU or a slice of it, which `variant` tells apart."""


def rows_of_series(series: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a series in the form of `devices.toml`."""
    shared = {key: value for key, value in series.items() if key not in _MODELS}
    matrix = series.get("matrix", {})
    for name, units, clock, gb, gbps, *more in series["models"]:
        own = more[0] if more else {}
        called = own.get("called") or series["called"].replace("{}", re.escape(name))
        words = _WORD.findall(name.lower())
        rates = {
            kind: {dtype: _rate(units * per_clock * clock) for dtype, per_clock in rates.items()}
            for kind in ("vector", "matrix")
            if (rates := series.get(kind))
        }
        yield {
            "id": series["id"].replace("{}", "-".join(words)),
            "product": series["name"].replace("{}", name),
            "series": f"{series['arch']} {series['name']}",
            "mark": next(word for word in words if word in called.lower()),
            "units": units,
            "clock_mhz": clock,
            "flops_per_clock": matrix.get("bf16") or matrix.get("fp16"),
            "memory_gb": gb if isinstance(gb, list) else [gb],
            "memory_gbps": gbps if isinstance(gbps, list) else [gbps],
            "one_device_is": "GPU",
            **shared,
            **rates,
            **own,
            "pattern": f"{_MAKERS}(?:{called}){_END}",
        }


def _rate(flops_per_us: int) -> Decimal:
    """Return a rate in TFLOP/s: to 0.1, below 10 to 0.01, below 1 to 0.001."""
    rate = Decimal(flops_per_us) / _PER_TERA
    return round(rate, 1 if rate >= 10 else 2 if rate >= 1 else 3)

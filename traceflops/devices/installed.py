"""Rows of the device table from installed packages, in the form of `devices.toml`, checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import date
from decimal import Decimal
from itertools import chain
from typing import Any, Final, Literal, NotRequired, TypedDict, TypeVar

from traceflops.categories.rules import toml_given
from traceflops.errors import UsageError
from traceflops.plugins import loaded

T = TypeVar("T")
Rates = dict[
    Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8"], Decimal | int
]
_LARGEST: Final = 1_000_000
"""No device has so many TFLOP/s, GB/s, GB or MHz: such a number is in another unit."""


class DeviceRow(TypedDict):
    """A row as `devices.toml` has them, where its keys are described."""

    id: str
    vendor: str
    product: str
    arch: str
    pattern: str
    memory_gb: list[int | Literal["shared"]]
    memory_gbps: list[int]
    one_device_is: str
    confidence: Literal["A", "B", "D"]
    source: str
    compute: NotRequired[tuple[int, int]]
    units: NotRequired[int]
    clock_mhz: NotRequired[int]
    flops_per_clock: NotRequired[int]
    vector: NotRequired[Rates]
    matrix: NotRequired[Rates]
    link_gbps: NotRequired[Decimal | int]
    host_link: NotRequired[str]
    partition_units: NotRequired[int]
    cores: NotRequired[int]
    date: NotRequired[date]
    note: NotRequired[str]


def installed_devices(make: Callable[[dict[str, Any]], T], taken: Collection[str]) -> list[T]:
    """Return `make` of each row of packages. Raises UsageError for an error or a `taken` id."""
    ids, made = {*taken}, []

    def read(given: Any, where: str, package: str) -> None:
        """Take in the rows of one package; `where` names it in errors."""
        document = toml_given(given, where)
        rows = document.get("device")
        if document.keys() != {"device"} or not isinstance(rows, list):
            raise UsageError(f"{where}: it must be [[device]] tables and nothing else", "")
        for number, row in enumerate(rows, 1):
            if problem := _problem(row, ids):
                raise UsageError(f"{where}, device {number}: {problem}", "")
            ids.add(row["id"])
            made.append(make(row | {"source": f"{row['source']} (package {package})"}))

    loaded("devices", read)
    return made


def _problem(row: Any, taken: Collection[str]) -> str | None:
    """Return what is wrong with a row, None if nothing is."""
    import msgspec

    try:
        msgspec.convert(row, DeviceRow)
        re.compile(row["pattern"])
    except (msgspec.ValidationError, re.error) as error:
        return str(error)
    unknown = row.keys() - DeviceRow.__annotations__.keys()
    # All numbers except the compute capability, whose minor number may be 0.
    others = (value for key, value in row.items() if key != "compute")
    lists = (value if isinstance(value, list) else [value] for value in others)
    rates = chain(row.get("vector", {}).values(), row.get("matrix", {}).values())
    numbers = [n for n in (*chain(*lists), *rates) if isinstance(n, int | Decimal)]
    lengths_differ = len(row["memory_gb"]) != len(row["memory_gbps"])
    is_plausible = all(Decimal(n).is_finite() and 0 < n < _LARGEST for n in numbers)
    problems = {
        f"unknown key {min(unknown, default='')!r}": unknown,
        f"the id {row['id']!r} is taken": row["id"] in taken,
        "its id must be of a-z, 0-9 and -": not re.fullmatch("[a-z0-9-]{1,40}", row["id"]),
        "its pattern matches every name": re.search(row["pattern"], ""),
        "memory_gb and memory_gbps must be as long": lengths_differ,
        "a number is not above 0, or too large": not is_plausible,
    }
    return next((text for text, is_wrong in problems.items() if is_wrong), None)

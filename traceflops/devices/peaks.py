"""Dense rates, memory bandwidths and names of devices, from `devices.toml` and `series.toml`.

Rates are whole FLOP per nanosecond (1,000 are 1 TFLOP/s; for int8 operations), bandwidths bytes per
nanosecond (1 is 1 GB/s). An unknown rate is None, never replaced by another; none is sparse.
"""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from traceflops.categories.rules import toml_given
from traceflops.errors import UsageError
from traceflops.plugins import loaded

DTYPES: Final = (
    *("fp64", "fp64_matrix", "fp32", "fp32_matrix", "tf32"),
    *("fp16", "bf16", "fp8", "fp6", "fp4", "int8"),
)
"""fp64 and fp32 are rates of the vector units, all others of the matrix units."""
_OF_VECTOR_UNITS: Final = frozenset({"fp64", "fp32"})
PER_TERA: Final = 1000  # FLOP per nanosecond in one TFLOP/s
WARP_SIZES: Final = {"nvidia": 32, "amd": 64}
UNIT_NAMES: Final[dict[str | None, str]] = {"nvidia": "SMs", "amd": "CUs"}
"""The units of a device that recordings count, by vendor; for other vendors they count others."""
_MODES: Final = {1: "SPX", 2: "DPX", 3: "TPX", 4: "QPX"}
"""AMD's names of modes by the number of partitions; partitions of one die each are CPX."""
_GIB = 1 << 30
_LEAST, _MOST = Fraction(90, 100), Fraction(1005, 1000)
"""Share of the nominal memory, read as GiB, that drivers report (0.91 to 1.00 in traces)."""


class Memory(Struct, frozen=True):
    """One version of a device's memory: GB (None: the machine's own), bytes per nanosecond."""

    gb: int | None
    bandwidth: int

    @property
    def size(self) -> str:
        """Return its size in GB as text."""
        return "shared" if self.gb is None else str(self.gb)

    def fits(self, seen_bytes: int) -> bool:
        """Return whether a driver may report so many bytes for this memory."""
        return self.gb is None or _LEAST <= Fraction(seen_bytes, self.gb * _GIB) <= _MOST


class HostLink(Struct, frozen=True):
    """A link between host and device: its name, and its bytes per nanosecond in one direction."""

    name: str
    bandwidth: Fraction


class DeviceSpec(Struct, frozen=True, kw_only=True):
    """One row of the table, or a row narrowed, scaled or overruled for one device.

    `units` are SMs or CUs (or named by the note). `confidence` is A for a document of the vendor,
    B for second-hand figures, D for none, U for the user's. `part` is the share of the device if
    the row is scaled. `partition_units` are the units of the smallest partition, a die.
    """

    id: str
    vendor: str
    product: str
    arch: str
    series: str = ""  # equal in all rows of a series, empty for a single row
    mark: str = ""
    """a word of every name that `pattern` fits, in lower case: spares compiling the pattern"""
    compute: tuple[int, int] | None = None
    units: int | None = None
    pattern: str = ""
    dense: Mapping[str, int]  # FLOP per nanosecond by data type; only the types that have a rate
    memories: tuple[Memory, ...] = ()
    link: Fraction | None = None  # bytes per nanosecond of all links together, both directions
    host_link: HostLink | None = None
    """the link of copies between host and device; None if it depends on the machine"""
    one_memory: bool = False  # the CPU uses the same memory
    clock_mhz: int | None = None
    flops_per_clock: int | None = None  # of one unit, bf16 (fp16 where there is no bf16)
    partition_units: int | None = None
    cores: int = 1
    one_device_is: str
    confidence: str
    source: str
    date: datetime.date | None = None
    note: str = ""
    part: Fraction = Fraction(1)

    def peak(self, dtype: str) -> int | None:
        """Return the dense rate for one of `DTYPES` in FLOP per nanosecond, None if unknown."""
        return self.dense.get(dtype)

    @property
    def bandwidth(self) -> int | None:
        """Return bytes per nanosecond; None if unknown or if it depends on the memory's version."""
        values = {memory.bandwidth for memory in self.memories}
        return values.pop() if len(values) == 1 else None

    def balance(self, dtype: str) -> Fraction | None:
        """Return the FLOP per byte above which the rate, not the bandwidth, is the limit."""
        peak, bandwidth = self.peak(dtype), self.bandwidth
        return Fraction(peak, bandwidth) if peak and bandwidth else None

    @property
    def formula(self) -> Fraction | None:
        """Return units x FLOP per clock x clock in FLOP per nanosecond, a check of the rate."""
        if not (self.units and self.flops_per_clock and self.clock_mhz):
            return None
        return Fraction(self.units * self.flops_per_clock * self.clock_mhz, 1000)

    @property
    def unit_name(self) -> str:
        """Return the name of its units: SMs, CUs, or units."""
        return UNIT_NAMES.get(self.vendor, "units")

    @property
    def warp_size(self) -> int | None:
        """Return the threads of a warp or wavefront, None for a device without them."""
        return 32 if self.arch.startswith("gfx1") else WARP_SIZES.get(self.vendor)

    @property
    def has_matrix_units(self) -> bool | None:
        """Return whether the device has matrix units; None if no rate is public."""
        return bool(self.dense.keys() - _OF_VECTOR_UNITS) if self.dense else None

    def counted(self, seen_units: int) -> int:
        """Return the CUs or SMs for a driver's count, which on AMD's graphics may be CU pairs."""
        is_of_pairs = self.arch.startswith("gfx1") and 2 * seen_units == self.units
        return 2 * seen_units if is_of_pairs else seen_units

    def with_memory(self, seen_bytes: int | None) -> DeviceSpec:
        """Return the row with only the memory version of that size, if one has it."""
        if seen_bytes is None:
            return self
        fitting = tuple(memory for memory in self.memories if memory.fits(seen_bytes))
        return replace(self, memories=fitting) if fitting else self

    def with_units(self, units: int) -> DeviceSpec:
        """Return the row of a part of the device: rates in proportion to `units`, rounded down."""
        share = Fraction(units, self.units or units)
        dense = {dtype: math.floor(rate * share) for dtype, rate in self.dense.items()}
        part = replace(self, dense=dense, part=self.part * share, units=units)
        # Memory and links of a part depend on how the device was split.
        return replace(part, memories=(), link=None, host_link=None, one_device_is="part")


class Variant(Struct, frozen=True):
    """Names of a version of a product, whose rates may differ from the product's row."""

    pattern: str
    what: str
    by_units: bool = False  # whether its rates are in proportion to its units


class UnclearNames(Struct, frozen=True):
    """Names of devices that are not those of one row; all but the patterns are in lower case.

    `generic_names` identify no product. `shared_names` are those that products of different rates
    have, with their ids. `variant` are the versions whose rates may differ from those of their row.
    """

    variant: tuple[Variant, ...]
    generic_names: frozenset[str]
    ambiguous_names: frozenset[str]
    """what people call several products"""
    shared_names: Mapping[str, tuple[str, ...]]


_Rates = dict[
    Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8"], Decimal | int
]
_LARGEST: Final = 1_000_000
"""No device has so many TFLOP/s, GB/s, GB or MHz: such a number is in another unit."""


class _DeviceRow(TypedDict):
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
    vector: NotRequired[_Rates]
    matrix: NotRequired[_Rates]
    link_gbps: NotRequired[Decimal | int]
    host_link: NotRequired[str]
    one_memory: NotRequired[bool]
    partition_units: NotRequired[int]
    cores: NotRequired[int]
    date: NotRequired[date]
    note: NotRequired[str]


def _installed(taken: Collection[str]) -> list[DeviceSpec]:
    """Return the rows of packages, all checked. Raises UsageError for an error or a `taken` id."""
    ids, installed = {*taken}, []

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
            installed.append(_device(row | {"source": f"{row['source']} (package {package})"}))

    loaded("devices", read)
    return installed


def _problem(row: Any, taken: Collection[str]) -> str | None:
    """Return what is wrong with a row, None if nothing is."""
    try:
        msgspec.convert(row, _DeviceRow)
        re.compile(row["pattern"])
    except (msgspec.ValidationError, re.error) as error:
        return str(error)
    unknown = row.keys() - _DeviceRow.__annotations__.keys()
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


@cache
def load_devices() -> tuple[DeviceSpec, ...]:
    """Return all devices, in the order in which their names are tried: those of packages first."""
    of_series = chain.from_iterable(map(_rows_of_series, document("series.toml")["series"]))
    rows = [*of_series, *document()["device"]]
    return (*_installed({row["id"] for row in rows}), *map(_device, rows))


@cache
def unclear_names() -> UnclearNames:
    """Return the names of `devices.toml` that are not those of one row."""
    return msgspec.convert(document(), UnclearNames)


def find(device_id: str) -> DeviceSpec | None:
    """Return the device with an id of the table, None if there is none."""
    return next((spec for spec in load_devices() if spec.id == device_id), None)


def rate_text(flop_per_ns: int) -> str:
    """Return a rate in TFLOP/s as text: "989.4", "0.25"."""
    return f"{Decimal(flop_per_ns) / PER_TERA:f}"


@cache
def document(name: str = "devices.toml") -> dict[str, Any]:
    """Return a TOML table of this folder, unchanged."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return tomllib.loads(text, parse_float=Decimal)


def _device(row: dict[str, Any]) -> DeviceSpec:
    """Return the device of a row; fp64 and fp32 of matrix units get special names."""
    vector, matrix = row.get("vector", {}), row.get("matrix", {})
    own_name = {"fp64": "fp64_matrix", "fp32": "fp32_matrix"}
    rates = vector | {own_name.get(dtype, dtype): rate for dtype, rate in matrix.items()}
    sizes = zip(row["memory_gb"], row["memory_gbps"], strict=True)
    host = row.get("host_link")
    host_gbps = document()["host_link"][host]["gbps"] if host else 0
    as_written = {name: row[name] for name in DeviceSpec.__struct_fields__ if name in row}
    read: dict[str, Any] = {
        "dense": {dtype: int(rates[dtype] * PER_TERA) for dtype in DTYPES if dtype in rates},
        "memories": tuple(Memory(None if gb == "shared" else gb, gbps) for gb, gbps in sizes),
        "compute": tuple(row["compute"]) if "compute" in row else None,
        "link": Fraction(row["link_gbps"]) if "link_gbps" in row else None,
        "host_link": HostLink(host, Fraction(host_gbps)) if host else None,
        "one_memory": row.get("one_memory", "shared" in row["memory_gb"]),
    }
    return DeviceSpec(**as_written | read)


class Partition(Struct, frozen=True):
    """A mode (SPX, CPX, ...), the dies of one partition, and those of the whole GPU (or None)."""

    mode: str
    dies: int
    whole: int | None

    @property
    def text(self) -> str:
        """Return the partition in words: "CPX, 1 of 8 dies"."""
        if self.whole is None:
            return f"{self.mode}, 1 die"
        share = "all" if self.dies == self.whole else f"{self.dies} of"
        return f"{self.mode}, {share} {self.whole} dies"


def partition(
    spec: DeviceSpec | None, architecture: str | None, dies: int | None
) -> Partition | None:
    """Return the partition that a device of `dies` dies is; None if unknown or not partitionable.

    `spec` is the row of the device. Without it, all products of the architecture must agree.
    """
    if dies is None or dies < 1:
        return None
    name = (architecture or "").strip().lower()
    rows = [spec] if spec is not None else [row for row in load_devices() if row.arch == name]
    # The possible numbers of dies of the whole GPU; `partition_units` are the CUs of one die.
    totals = {row.units // row.partition_units for row in rows if row.units and row.partition_units}
    fitting = [total for total in totals if total % dies == 0]
    names = {"CPX" if dies == 1 < total else _MODES.get(total // dies) for total in fitting}
    names.discard(None)  # a share of the dies without a name is no mode
    if len(names) != 1 or (mode := names.pop()) is None:
        return None
    whole = totals.pop() if len(totals) == 1 else None
    # In SPX the only partition is the whole, even if products differ in their dies.
    return Partition(mode, dies, dies if whole is None and mode == "SPX" else whole)


_MAKERS: Final = r"(?i)^(?:NVIDIA |AMD |Intel(?:\(R\))? )?"
_END: Final = r"(?:-\d{1,3}[ABCQ]| MIG .*)?$"
"""What may follow a name: the type of a virtual GPU or a slice, which `Variant` identifies."""


def _rows_of_series(series: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row as in `devices.toml` for each model of a series of `series.toml`.

    The beginning of that file describes the keys of a series.
    """

    def rates_of(unit: str, units: int, clock_mhz: int) -> dict[str, Decimal]:
        """Return the TFLOP/s by data type of "vector" or "matrix" units."""
        rates = {}
        for dtype, flops_per_clock in series.get(unit, {}).items():
            tflops = Decimal(units * flops_per_clock * clock_mhz) / 10**6
            rates[dtype] = round(tflops, 1 if tflops >= 10 else 2 if tflops >= 1 else 3)
        return rates

    to_make_rows = {"name", "id", "called", "vector", "matrix", "models"}
    shared = {key: value for key, value in series.items() if key not in to_make_rows}
    for name, units, clock_mhz, gb, gbps, *differences in series["models"]:
        own = differences[0] if differences else {}
        called = own.get("called") or series["called"].replace("{}", re.escape(name))
        words = re.findall("[a-z0-9]+", name.lower())
        rates = {unit: rates_of(unit, units, clock_mhz) for unit in ("vector", "matrix")}
        matrix = series.get("matrix", {})
        yield {
            "id": series["id"].replace("{}", "-".join(words)),
            "product": series["name"].replace("{}", name),
            "series": f"{series['arch']} {series['name']}",
            # A word of every name that the pattern matches: a quick test before it.
            "mark": next(word for word in words if word in called.lower()),
            "units": units,
            "clock_mhz": clock_mhz,
            "flops_per_clock": matrix.get("bf16") or matrix.get("fp16"),
            "memory_gb": gb if isinstance(gb, list) else [gb],
            "memory_gbps": gbps if isinstance(gbps, list) else [gbps],
            "one_device_is": "GPU",
            **shared,
            **rates,
            **own,
            "pattern": f"{_MAKERS}(?:{called}){_END}",
        }

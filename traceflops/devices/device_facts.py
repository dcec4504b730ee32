"""The facts on one device in a trace, as text, and the row of the table that a name means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from traceflops.devices import peaks
from traceflops.errors import UsageError

LONGEST_NAME = 256  # characters; drivers have fewer, so a longer text is the name of no device
_LONGEST_SHOWN = 80
_MODEL: Final = re.compile(r"[a-z]{1,2}[0-9]{2,4}[a-z]?")
"""A model's number in an id, such as r9700."""
_BINARY: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


class SeenDevice(Struct, frozen=True):
    """The facts on one device in a trace: None or below 1 if unknown; `units` are SMs or CUs."""

    name: str | None = None
    compute_major: int | None = None
    compute_minor: int | None = None
    units: int | None = None
    warp_size: int | None = None
    memory_bytes: int | None = None
    architecture: str | None = None
    clock_hz: int | None = None
    dies: int | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> SeenDevice:
        """Return the device of a row of a trace's `devices` table."""
        alike = [field for field in cls.__struct_fields__ if field not in ("name", "units")]
        named = {field: row.get(field) for field in alike}
        return cls(name=row.get("product"), units=row.get("sm_count"), **named)

    @property
    def instruction_set(self) -> str | None:
        """Return the architecture without its features: gfx942 of gfx942:sramecc+:xnack-."""
        return (self.architecture or "")[:LONGEST_NAME].partition(":")[0].strip().lower() or None

    @property
    def compute(self) -> tuple[int, int] | None:
        """Return compute capability (or gfx version), major and minor."""
        major, minor = self.compute_major, self.compute_minor
        return (major, minor) if major is not None and major > 0 and minor is not None else None

    @property
    def sharing(self) -> tuple[str, ...]:
        """Return the ids of the products if several of different rates have this name, else ()."""
        name = (self.name or "")[:LONGEST_NAME].strip().lower()
        names = peaks.unclear_names().shared_names
        return names.get(name) or names.get(name.removeprefix("nvidia "), ())

    def properties(self) -> str:
        """Return what is known besides the name: "compute capability 9.0, 132 SMs, 79.1 GiB"."""
        architecture = shown(self.instruction_set or "")
        if not architecture and self.compute:
            architecture = f"compute capability {dotted(self.compute)}"
        memory = gib(self.memory_bytes or 0) if is_known(self.memory_bytes) else ""
        return ", ".join(filter(None, (architecture, self.counted_units(), memory)))

    def counted_units(self) -> str:
        """Return "132 SMs" or "304 CUs", "" if their number is unknown."""
        called = peaks.UNIT_NAMES.get(self.maker(), "SMs or CUs")
        return f"{self.units} {called}" if is_known(self.units) else ""

    def maker(self) -> str | None:
        """Return the maker of the device: by name or instruction set, else by warp size."""
        first_word = (self.name or "").strip().partition(" ")[0].lower()
        if first_word in peaks.UNIT_NAMES:
            return first_word
        if (self.instruction_set or "").startswith("gfx"):
            return "amd"
        # Last, since RDNA of AMD has a warp size of 32, too.
        return {size: maker for maker, size in peaks.WARP_SIZES.items()}.get(self.warp_size or 0)


def dotted(compute: tuple[int, int]) -> str:
    """Return a version as text: "9.0"."""
    return f"{compute[0]}.{compute[1]}"


def gib(number: int) -> str:
    """Return a number of bytes as text: "79.2 GiB"."""
    unit, scale = next((row for row in _BINARY if number >= 0.95 * row[1]), _BINARY[-1])
    return f"{number / scale:.3g} {unit}"


def quoted(name: str | None) -> str:
    """Return a name from outside in quotes; see `shown`."""
    return f"'{shown(name or '')}'"


def shown(text: str) -> str:
    """Return text from a trace on one short line, without anything that acts on a terminal."""
    cut = text[: _LONGEST_SHOWN - 1] + "…" if len(text) > _LONGEST_SHOWN else text
    return "".join(char if char.isprintable() else "?" for char in cut)


def is_known(number: int | None) -> bool:
    """Return whether a number of a trace is known: some tools write 0 for unknown."""
    return number is not None and number > 0


@lru_cache(maxsize=1_000)  # most devices of a job are alike
def by_name(name: str | None) -> peaks.DeviceSpec | None:
    """Return the first row whose pattern is found in a device's name."""
    if not name or len(name) > LONGEST_NAME:
        return None
    marked = (spec for spec in peaks.load_devices() if spec.mark in name.lower())
    return next((spec for spec in marked if re.search(spec.pattern, name)), None)


def variant_of(seen: SeenDevice, spec: peaks.DeviceSpec | None = None) -> peaks.Variant | None:
    """Return the version of a product that a name states; None if the product of `spec` has it."""
    name, row = seen.name or "", spec.product if spec is not None else ""
    if len(name) > LONGEST_NAME:
        return None
    variants = peaks.unclear_names().variant
    fitting = (variant for variant in variants if re.search(variant.pattern, name))
    return next((v for v in fitting if not re.search(v.pattern, row)), None)


def is_full_name(text: str) -> bool:
    """Return whether a text is the name of a device of the table in traces: maker, then product."""
    name = text.strip()
    has_maker = name.partition(" ")[0].lower() in _makers()
    return has_maker and (by_name(name) is not None or bool(SeenDevice(name).sharing))


def asked_row(text: str) -> peaks.DeviceSpec:
    """Return the row that --device names. Raises UsageError, with similar ids, if that is none."""
    name = text[:LONGEST_NAME]
    if name == text and (spec := named_row(text.strip())) is not None:
        return spec
    # Suggest the row of a device's name, ids that contain the text, and ids that resemble it.
    ids, wanted = [spec.id for spec in peaks.load_devices()], _spelled(name)
    # A single character is in nearly every id.
    inside = [row_id for row_id in ids if len(wanted) > 1 and wanted in _spelled(row_id)]
    close = get_close_matches(name.strip().lower(), ids, n=4)
    of_name = [row.id for row in [by_name(name.upper())] if row is not None]
    near = list(dict.fromkeys([*of_name, *SeenDevice(name).sharing, *inside, *close]))[:6]
    similar = f"similar: {', '.join(near)}" if near else "nothing similar in the table"
    raise UsageError(
        f"--device {quoted(text)} does not match exactly one row of the device table; {similar}",
        "--gpu selects GPUs by number; --device names their model: traceflops devices lists the ids"
        if name.strip().isdecimal()
        else "traceflops devices lists the ids",
    )


def named_row(text: str) -> peaks.DeviceSpec | None:
    """Return the row that a text names in any spelling, None if it names none or may name several.

    The text is the id or product of a row, the number in one id ("R9700"), or the name of a device
    in a trace.
    """
    wanted, specs = _spelled(text), peaks.load_devices()
    rows = [spec for spec in specs if wanted in (_spelled(spec.id), _spelled(spec.product))]
    if len(rows) == 1:
        return rows[0]
    seen, ambiguous = SeenDevice(text), peaks.unclear_names().ambiguous_names
    if seen.sharing or variant_of(seen) is not None or text.lower() in ambiguous:
        return None
    # A part of an id may stand for several rows, unless it is a number or a name with the maker.
    with_part = [spec for spec in specs if wanted in _spelled(spec.id)]
    if len(with_part) == 1 and _MODEL.fullmatch(wanted) and with_part[0].id.endswith(f"-{wanted}"):
        return with_part[0]
    return by_name(text) if is_full_name(text) or not with_part else None


def _makers() -> frozenset[str]:
    return frozenset(spec.vendor for spec in peaks.load_devices())


def _spelled(text: str) -> str:
    """Return a name for comparison: letters and digits in lower case, without the maker."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return "".join(words[1:] if words and words[0] in _makers() else words)

"""The names of devices: those in traces, and those that people type; which row each stands for."""

from __future__ import annotations

import re
from difflib import get_close_matches

from traceflops.devices.device_facts import LONGEST_NAME, SeenDevice, quoted
from traceflops.devices.peaks import (
    DeviceSpec,
    Variant,
    ambiguous_names,
    load_devices,
    load_variants,
)
from traceflops.errors import UsageError


def by_name(name: str | None) -> DeviceSpec | None:
    """Return the first row whose pattern is found in a device's name."""
    if not name or len(name) > LONGEST_NAME:
        return None
    return next((spec for spec in load_devices() if re.search(spec.pattern, name)), None)


def variant_of(seen: SeenDevice) -> Variant | None:
    """Return the version of a product that a name says, whose rates may not be those of its row."""
    name = seen.name or ""
    if len(name) > LONGEST_NAME:
        return None
    return next((variant for variant in load_variants() if variant.is_named(name)), None)


def is_full_name(text: str) -> bool:
    """Return whether a text is what a trace calls a device of the table, the maker first."""
    maker = text.strip().partition(" ")[0].lower()
    return maker in _makers() and by_name(text.strip()) is not None


def asked_row(text: str) -> DeviceSpec:
    """Return the row that --device means: by its id or product, or by a device's name in a trace.

    Raises UsageError with the ids near it where that is none, or more than one.
    """
    spec = named_row(text.strip()) if len(text) <= LONGEST_NAME else None
    if spec is not None:
        return spec
    near = _near(text[:LONGEST_NAME])
    known = f"similar: {', '.join(near)}" if near else "nothing similar in the table"
    raise UsageError(
        f"--device {quoted(text)} does not match exactly one row of the device table; {known}",
        "traceflops devices lists the ids",
    )


def named_row(text: str) -> DeviceSpec | None:
    """Return the row that a text names in any spelling, None where several or none could be it."""
    wanted = _spelled(text)
    rows = {
        spec.id: spec
        for spec in load_devices()
        if wanted in (_spelled(spec.id), _spelled(spec.product))
    }
    if len(rows) == 1:
        return rows.popitem()[1]
    seen = SeenDevice(text)
    if seen.sharing or variant_of(seen) is not None or text.lower() in ambiguous_names():
        return None
    is_part = any(wanted in _spelled(spec.id) for spec in load_devices())
    return by_name(text) if is_full_name(text) or not is_part else None


def _makers() -> frozenset[str]:
    return frozenset(spec.vendor for spec in load_devices())


def _spelled(text: str) -> str:
    """Return a name as it is compared: letters and digits in lower case, without the maker."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return "".join(words[1:] if words and words[0] in _makers() else words)


def _near(text: str) -> list[str]:
    """Return ids that contain the text or resemble it, and those of the row it names."""
    ids = [spec.id for spec in load_devices()]
    wanted = _spelled(text)
    inside = [known for known in ids if len(wanted) > 1 and wanted in _spelled(known)]
    named = by_name(text.upper())
    first = [named.id] if named is not None else []
    close = get_close_matches(text.strip().lower(), ids, n=4)
    return list(dict.fromkeys([*first, *SeenDevice(text).sharing, *inside, *close]))[:6]

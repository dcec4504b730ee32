"""Which row of the device table a device of a trace is, and how sure that is.

Its name is tried first, then compute capability, units and memory. A row is `confirmed` if name and
properties agree, if the properties leave only rows of equal rates, or if the user chose it. Without
confirmation there is no peak: never a silent default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal

from traceflops.devices.device_facts import (
    SeenDevice,
    asked_row,
    by_name,
    dotted,
    gib,
    is_known,
    quoted,
    shown,
    variant_of,
)
from traceflops.devices.missing_input import ASK
from traceflops.devices.peaks import (
    DTYPES,
    UNIT_NAMES,
    DeviceSpec,
    HostLink,
    Partition,
    find,
    load_devices,
    partition,
    rate_text,
)
from traceflops.devices.user_rate import given_rate, rate_doubt

How = Literal["name", "fingerprint", "given"]
Confidence = Literal["high", "medium", "low", "none"]

_Check = tuple[str, str, bool]
"""A property that row and trace both have: what was seen, what the row says, if they agree."""

REFERENCE = ("bf16", "fp16")
"""Types that FLOP per clock in the table are of: the first that a device has."""

_SAME = Fraction(2, 1000)
"""Rates this close differ by rounding on data sheets: 181.0 and 181.05 for half an MI250."""

_FOUND: Final = {"given": "given", "fingerprint": "by its properties", "name": "by name"}


@dataclass(frozen=True, slots=True)
class Match:
    """The row found for a device, and why (`explanation`, one sentence).

    `spec` is the row, scaled for a part of a device; use it only if `confirmed`. `candidates` are
    the rows that the properties fit. `confidence` is high if name and all properties agree or the
    user chose, medium if only some could be compared, low if something disagrees or is open.
    `contradicts` is what the trace says against the user's choice.
    """

    seen: SeenDevice
    spec: DeviceSpec | None
    how: How | None
    confidence: Confidence
    confirmed: bool
    candidates: tuple[DeviceSpec, ...]
    explanation: str
    contradicts: str = ""

    def name(self, kind: str) -> str:
        """Return what a device is called: as the trace says, else as the table, and how found."""
        row = self.row if not self.seen.name or self.contradicts else None
        if row is not None:
            return f"{row.product} ({_FOUND[self.how or 'name']})"
        return self.seen.name or f"unknown {self.seen.architecture or kind.upper()}"

    @property
    def row(self) -> DeviceSpec | None:
        """Return the whole row of the table, None where that is not known for sure."""
        return find(self.spec.id) if self.confirmed and self.spec is not None else None

    @property
    def _row(self) -> DeviceSpec | None:
        return self.spec if self.confirmed else None

    def peak(self, dtype: str) -> int | None:
        """Return the dense rate in FLOP per nanosecond; None if unknown or not confirmed."""
        return self._row.peak(dtype) if self._row is not None else None

    @property
    def bandwidth(self) -> int | None:
        """Return memory bandwidth in bytes per nanosecond; None if unknown or not confirmed."""
        return self._row.bandwidth if self._row is not None else None

    @property
    def host_link(self) -> HostLink | None:
        """Return the link to the host; None if unknown or not confirmed."""
        return self._row.host_link if self._row is not None else None

    @property
    def by_clock(self) -> Fraction | None:
        """Return units x clock x FLOP per clock in FLOP per ns if known: a check of the rate."""
        spec, seen = self._row, self.seen
        if spec is None or not spec.flops_per_clock or not any(map(spec.peak, REFERENCE)):
            return None
        if not (is_known(seen.units) and is_known(seen.clock_hz)):
            return None
        units = spec.counted(seen.units or 0)
        return Fraction(units * spec.flops_per_clock * (seen.clock_hz or 0), 10**9)

    def why_no_peak(self, dtype: str) -> str | None:
        """Return a sentence that says why there is no rate for a data type, None if there is."""
        if self.peak(dtype) is not None:
            return None
        if self._row is None:
            return self.explanation
        return f"The dense {shown(dtype)} rate of {_titled(self._row)} is unknown; --peak sets one."


def by_fingerprint(seen: SeenDevice) -> tuple[DeviceSpec, ...]:
    """Return the rows that agree in compute capability, units, memory, and warp size if known.

    The device's own architecture replaces compute capability and memory where these are unknown.
    """
    named = seen.instruction_set is not None
    sized = is_known(seen.memory_bytes) or named
    maker = (seen.name or "").strip().partition(" ")[0].lower()
    if (seen.compute is None and not named) or not is_known(seen.units) or not sized:
        return ()
    return tuple(
        spec
        for spec in load_devices()
        if spec.compute is not None
        and spec.units is not None
        and (maker not in UNIT_NAMES or maker == spec.vendor)
        and all(agrees for *_, agrees in _checks(spec, seen))
    )


def match(seen: SeenDevice) -> Match:
    """Return the row of the table that a device is, or why none is taken."""
    if seen.is_generic or seen.sharing:
        return _unnamed(seen)
    named = by_name(seen.name)
    return _named(named, seen) if named is not None else _unknown(seen)


def chosen(device_id: str | None, peak_tflops: float | None, seen: SeenDevice) -> Match:
    """Return the match with --device and --peak before the table.

    Raises UsageError for an id that the table lacks and for a rate that cannot be meant.
    """
    matched = match(seen) if device_id is None else _given(asked_row(device_id), seen)
    return matched if peak_tflops is None else _with_rate(matched, given_rate(peak_tflops))


def _checks(spec: DeviceSpec, seen: SeenDevice) -> Iterator[_Check]:
    """Yield each property that row and trace both have, and whether they agree."""
    if seen.vendor and seen.vendor.lower() != spec.vendor:
        yield f"vendor {shown(seen.vendor)}", spec.vendor, False
    if seen.instruction_set is not None:
        yield shown(seen.instruction_set), spec.arch, seen.instruction_set == spec.arch
    elif seen.compute is not None and spec.compute is not None:
        text = f"compute capability {dotted(seen.compute)}"
        yield text, dotted(spec.compute), seen.compute == spec.compute
    if seen.units is not None and seen.units > 0 and spec.units and spec.vendor in UNIT_NAMES:
        mode, units = _partition(spec, seen), spec.counted(seen.units)
        dies = f" ({mode.text})" if mode is not None and mode.mode == "SPX" else ""
        yield f"{units} {spec.unit_name}{dies}", str(spec.units), units == spec.units
    if is_known(seen.warp_size) and spec.warp_size is not None:
        agrees = seen.warp_size == spec.warp_size
        yield f"warp size {seen.warp_size}", str(spec.warp_size), agrees
    if seen.memory_bytes is not None and seen.memory_bytes > 0 and spec.memories:
        sizes = " or ".join(memory.size for memory in spec.memories)
        fits = any(memory.fits(seen.memory_bytes) for memory in spec.memories)
        yield gib(seen.memory_bytes), f"{sizes} GB", fits


def _named(spec: DeviceSpec, seen: SeenDevice) -> Match:
    """Return the match of a device whose name is that of a row."""
    part, variant = _part(spec, seen), variant_of(seen, spec)
    checks, candidates = tuple(_checks(spec, seen)), by_fingerprint(seen)
    wrong = ", ".join(_objections(checks))
    because = f"The name matches {_titled(spec)}"
    override = f"--device {spec.id} uses it anyway, --peak sets another rate"
    mode = _partition(spec, seen) if variant is None else None
    if part is not None and mode is not None:
        because += (
            f"; this device is {_share(part)} ({mode.text}). Rates are in "
            "proportion, and its bandwidth is unknown."
        )
        return Match(seen, part, "name", "medium", True, (), because)
    if part is not None:
        what = variant.what if variant is not None else "a partition"
        because += f", but this is {what} with {_share(part)}: --device {spec.id} confirms it."
    elif variant is not None:
        because += f", but it is {variant.what}: {override}."
    elif wrong:
        because += f", but the trace says {wrong}: {override}."
    elif spec.cores > 1:
        because += f", but it may be one of its {spec.cores} cores: {override}."
    else:
        because += (
            f", and the trace agrees: {', '.join(text for text, *_ in checks)}"
            if checks
            else "; the trace has no properties to compare"
        )
        because += "." if spec.dense else "; its rates are not public, so --peak is needed."
        confidence: Confidence = "high" if spec in candidates else "medium"
        narrowed = spec.with_memory(seen.memory_bytes)
        return Match(seen, narrowed, "name", confidence, True, candidates, because)
    return Match(seen, part or spec, "name", "low", False, candidates, because)


def _unnamed(seen: SeenDevice) -> Match:
    """Return the match of a device whose name, if any, stands for no row: by its properties."""
    fitting = by_fingerprint(seen)
    name = (
        f"The name {quoted(seen.name)} identifies no product"
        if seen.name
        else "The trace has no GPU name"
    )
    if seen.sharing:
        name = f"The name {quoted(seen.name)} is shared by {' and '.join(seen.sharing)}"
        fitting = tuple(spec for spec in fitting if spec.id in seen.sharing)
    properties = seen.properties()
    if not fitting:
        alike = [spec for spec in load_devices() if seen.compute and spec.compute == seen.compute]
        parts = tuple(spec for spec in alike if _part(spec, seen) is not None)
        if parts:
            because = f"{name}; {seen.counted_units()} may be a partition of {_listed(parts)}"
        elif properties:
            because = f"{name}, and {properties} match no row of the table"
        elif seen.sharing:
            because = f"{name}, and no property identifies it"
        else:
            because = f"{name} and no other properties"
        return Match(seen, None, None, "none", False, parts, f"{because}: {ASK}.")
    by_clock = tuple(s for s in fitting if s.clock_mhz and s.clock_mhz * 10**6 == seen.clock_hz)
    if by_clock and not _have_same_rates(fitting):
        fitting = by_clock
        properties += f", {(seen.clock_hz or 0) // 10**6:,} MHz"
    ids = _listed(fitting)
    if not _have_same_rates(fitting):
        because = f"{name}, and {properties} match {ids} with different rates: {ASK}."
        return Match(seen, None, "fingerprint", "low", False, fitting, because)
    alike_rates = ", which have equal rates" if len(fitting) > 1 else ""
    because = f"{name}, but {properties} match only {ids}{alike_rates}."
    spec = _joined(fitting).with_memory(seen.memory_bytes)
    return Match(seen, spec, "fingerprint", "medium", True, fitting, because)


def _share(part: DeviceSpec) -> str:
    total = part.units / part.part if part.units else None
    return f"{part.units} of {total} {part.unit_name}"


def _objections(checks: Iterable[_Check]) -> list[str]:
    return [f"{seen} (not {expected})" for seen, expected, agrees in checks if not agrees]


def _unknown(seen: SeenDevice) -> Match:
    """A name that is no row's stays unknown even if the properties fit: A800 and A100, say."""
    fitting, variant = by_fingerprint(seen), variant_of(seen)
    because = f"No row of the table has the name {quoted(seen.name)}"
    if seen.properties():
        because += f" ({seen.properties()})"
    if variant is not None:
        because += f", which is {variant.what}"
    if fitting:
        because += f"; its properties match {_listed(fitting)}, but it may be another product"
    return Match(seen, None, None, "none", False, fitting, f"{because}: {ASK}.")


def _given(spec: DeviceSpec, seen: SeenDevice) -> Match:
    """Return the match of a row that the user chose, and what the trace says against it."""
    part, itself = _part(spec, seen), match(seen)
    wrong = _objections(_checks(spec, seen)) if part is None else []
    if itself.how == "name" and itself.spec is not None and itself.spec.id != spec.id:
        wrong = [quoted(seen.name)]
    elif wrong and itself.confirmed and itself.spec is not None:
        wrong = [f"{itself.spec.product} (by its properties)"]
    selects = f"--device selects {_titled(spec)}"
    present = f", with {_share(part)} present" if part is not None else ""
    against = f"{selects}, although the trace says {', '.join(wrong)}" if wrong else ""
    taken = part or spec.with_memory(seen.memory_bytes)
    because = f"{against or selects + present}."
    return Match(seen, taken, "given", "high", True, by_fingerprint(seen), because, against)


def _with_rate(matched: Match, rate: int) -> Match:
    """Return the match with one rate for all data types; the rest of a confirmed row stays."""
    row, seen = matched.spec if matched.confirmed else None, matched.seen
    dense = dict.fromkeys(DTYPES, rate)
    note = "one rate for all data types, set with --peak"
    because = f"--peak sets {rate_text(rate)} TFLOP/s"
    if row is None:
        spec = DeviceSpec(
            id="given",
            vendor=shown(seen.vendor or "unknown"),
            product=shown(seen.name) if seen.name else "unnamed GPU",
            arch="unknown",
            compute=seen.compute,
            units=seen.units if is_known(seen.units) else None,
            dense=dense,
            one_device_is="device",
            confidence="U",
            source="--peak",
            note=note,
        )
    else:
        spec = replace(row, dense=dense, confidence="U", source="--peak", date=None, note=note)
        doubt = rate_doubt(row, rate)
        because += f", and the rest is {_titled(row)}{f'; {doubt}' if doubt else ''}"
    given = replace(matched, spec=spec, how="given", confidence="high", confirmed=True)
    return replace(given, explanation=f"{because}.")


def _part(spec: DeviceSpec, seen: SeenDevice) -> DeviceSpec | None:
    """Return the row scaled to the units seen, where these are a MIG slice or a partition."""
    units = seen.units
    if units is None or spec.units is None or not 0 < units < spec.units:
        return None
    if seen.compute is not None and spec.compute not in (None, seen.compute):
        return None
    variant = variant_of(seen, spec)
    by_units = variant is not None and variant.by_units
    by_partition = spec.partition_units is not None and units % spec.partition_units == 0
    return spec.with_units(units) if by_units or by_partition else None


def _partition(spec: DeviceSpec, seen: SeenDevice) -> Partition | None:
    """Return which partition of a row a device is; None unless dies, units and name all say it."""
    mode = partition(spec, seen.instruction_set, seen.dies)
    if mode is None or spec.partition_units is None or seen.instruction_set != spec.arch:
        return None
    return mode if seen.units == mode.dies * spec.partition_units else None


def _have_same_rates(specs: tuple[DeviceSpec, ...]) -> bool:
    """Return whether the rates of each data type differ by rounding only, or are all unknown."""
    by_type = [[spec.peak(dtype) or 0 for spec in specs] for dtype in DTYPES]
    return all(max(rates) - min(rates) <= _SAME * max(rates) for rates in by_type)


def _joined(specs: tuple[DeviceSpec, ...]) -> DeviceSpec:
    """Return one row for products of the same rates; their bandwidth only where they agree."""
    memories = (memory for spec in specs for memory in spec.memories)
    links = {spec.link for spec in specs}
    hosts = {spec.host_link for spec in specs}
    return replace(
        specs[0],
        product=" or ".join(spec.product for spec in specs),
        memories=tuple(dict.fromkeys(memories)),
        link=links.pop() if len(links) == 1 else None,
        host_link=hosts.pop() if len(hosts) == 1 else None,
        one_device_is=" or ".join(dict.fromkeys(spec.one_device_is for spec in specs)),
        confidence=max(spec.confidence for spec in specs),
        source="; ".join(dict.fromkeys(spec.source for spec in specs)),
    )


def _titled(spec: DeviceSpec) -> str:
    return f"{spec.id} ({spec.product})"


def _listed(specs: tuple[DeviceSpec, ...]) -> str:
    *some, last = (spec.id for spec in specs)
    return f"{', '.join(some)} and {last}" if some else last

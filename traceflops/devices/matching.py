"""Which row of the device table a device of a trace is, and how certain that is.

The name is tried first, then compute capability, units and memory. A row is `confirmed` if name and
properties agree, if the properties leave only rows of equal rates, or if the user chose it. Without
confirmation there is no peak: never a silent default.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from traceflops.devices import device_facts, peaks
from traceflops.devices.device_facts import SeenDevice, is_known, quoted, shown, variant_of
from traceflops.devices.missing_input import GIVE_PEAK, MissingInput
from traceflops.devices.peaks import DeviceSpec, HostLink, Partition, load_devices
from traceflops.devices.user_rate import given_rate, rate_doubt
from traceflops.facts import Fact, Value, fact, in_words

How = Literal["name", "fingerprint", "given"]
Confidence = Literal["high", "medium", "low", "none"]
_Check = tuple[str, str, bool]
"""A property that trace and row both have: the trace's value, the row's, whether they agree."""
REFERENCE = ("bf16", "fp16")
"""Data types: FLOP per clock in the table are for the first one that a device has."""

_SAME = Fraction(2, 1000)
"""Rates this close differ only by rounding: 181.0 and 181.05 for half an MI250."""
_ASK: Final = fact("device.ask")  # options that give the rates of an unknown device
_FOUND: Final = {"given": "given", "fingerprint": "by its properties", "name": "by name"}


class Match(Struct, frozen=True):
    """The row found for a device, and `why`; `options` would confirm or replace it, if needed.

    `spec` is the row, scaled for a part of a device; use it only if `confirmed`. `how` is whether
    it was found by name, by properties (fingerprint), or given by the user. `candidates` are the
    rows that the properties fit. `confidence` is high if name and all properties agree or the user
    chose, medium if only some could be compared, low if something disagrees or is ambiguous.
    `contradicts` is how the trace contradicts the user's choice.
    """

    seen: SeenDevice
    spec: DeviceSpec | None
    how: How | None
    confidence: Confidence
    confirmed: bool
    candidates: tuple[DeviceSpec, ...]
    why: Fact
    options: Fact | None = None
    contradicts: Fact | None = None

    @property
    def explanation(self) -> str:
        """Return in one sentence why this row or none was found, and which options help."""
        return in_words(fact("device.explanation", why=self.why, options=self.options))

    @property
    def lack(self) -> MissingInput:
        """Return why there are no rates, and what would supply them."""
        return MissingInput(self.why, GIVE_PEAK if self.options in (None, _ASK) else self.options)

    def name(self, kind: str) -> str:
        """Return the name of the device by the trace, else by the table and how it was found."""
        row = self.row if not self.seen.name or self.contradicts else None
        if row is not None:
            return f"{row.product} ({_FOUND[self.how or 'name']})"
        return self.seen.name or f"unknown {self.seen.architecture or kind.upper()}"

    @property
    def row(self) -> DeviceSpec | None:
        """Return the unscaled row of the table, None if not confirmed."""
        return peaks.find(self.spec.id) if self.confirmed and self.spec is not None else None

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
    def one_memory(self) -> bool:
        """Return whether it is known that device and CPU use the same memory."""
        return self._row is not None and self._row.one_memory

    @property
    def by_clock(self) -> Fraction | None:
        """Return units x clock x FLOP per clock in FLOP per ns, to check the peak; or None."""
        spec, seen = self._row, self.seen
        if spec is None or not spec.flops_per_clock or not any(map(spec.peak, REFERENCE)):
            return None
        if not (is_known(seen.units) and is_known(seen.clock_hz)):
            return None
        units = spec.counted(seen.units or 0)
        return Fraction(units * spec.flops_per_clock * (seen.clock_hz or 0), 10**9)

    def why_no_peak(self, dtype: str) -> MissingInput | None:
        """Return why the rate of a data type is missing, None if it is not."""
        if self.peak(dtype) is not None:
            return None
        if self._row is None:
            return self.lack
        what = fact("device.rate-unknown", dtype=shown(dtype), row=_titled(self._row))
        return MissingInput(what, GIVE_PEAK)


def by_fingerprint(seen: SeenDevice) -> tuple[DeviceSpec, ...]:
    """Return the rows that agree in all known properties; () if too few are known.

    Units must be known, and either the instruction set, or compute capability and memory. If the
    name begins with a maker, only rows of this maker count.
    """
    has_compute = seen.compute is not None and is_known(seen.memory_bytes)
    if not is_known(seen.units) or not (has_compute or seen.instruction_set is not None):
        return ()
    maker = (seen.name or "").strip().partition(" ")[0].lower()
    return tuple(
        spec
        for spec in load_devices()
        # A row without compute capability or units would agree with any device.
        if spec.compute is not None
        and spec.units is not None
        and (maker not in peaks.UNIT_NAMES or maker == spec.vendor)
        and all(agrees for *_, agrees in _checks(spec, seen))
    )


def match(seen: SeenDevice) -> Match:
    """Return the match of a device with the table, from which rates are known or not."""
    name = seen.name or ""
    is_generic = name.strip().lower() in peaks.unclear_names().generic_names
    if is_generic or seen.sharing:  # only properties can tell which product it is
        return _unnamed(seen)
    if (named := device_facts.by_name(seen.name)) is not None:
        return _named(named, seen)
    # A device of another name is unknown even if the properties fit a row, as an A800 fits A100.
    fitting, variant = by_fingerprint(seen), variant_of(seen)
    why = fact(
        "device.no-row",
        name=quoted(seen.name),
        properties=seen.properties(),
        variant=variant.what if variant is not None else None,
        rows=_listed(fitting) if fitting else None,
    )
    return _unknown(seen, fitting, why)


def chosen(device_id: str | None, peak_tflops: float | None, seen: SeenDevice) -> Match:
    """Return the match by --device and --peak, else by the table. Raises UsageError for both."""
    matched = match(seen)
    if device_id is not None:  # the row that the user chose, and what contradicts it
        asked = device_facts.asked_row(device_id)
        part, title = _part(asked, seen), _titled(asked)
        # Units and memory of a part differ from the row's, which is no contradiction.
        wrong = _objections(_checks(asked, seen)) if part is None else ()
        # If the trace identifies another product, name this instead of each differing property.
        if matched.how == "name" and matched.spec is not None and matched.spec.id != asked.id:
            wrong = (quoted(seen.name),)
        elif wrong and matched.confirmed and matched.spec is not None:
            wrong = (fact("device.product-by-properties", product=matched.spec.product),)
        against = fact("device.contradicted", row=title, seen=wrong) if wrong else None
        share = _share(part) if part is not None else None
        why = against or fact("device.chosen", row=title, part=share)
        fitting, spec = by_fingerprint(seen), part or asked.with_memory(seen.memory_bytes)
        confirmed = Match(seen, spec, "given", "high", True, fitting, why)
        matched = replace(confirmed, contradicts=against)
    if peak_tflops is None:
        return matched
    # One rate for all data types; the other fields of a confirmed row stay.
    rate, row = given_rate(peak_tflops), matched.spec if matched.confirmed else None
    unknown = DeviceSpec(
        id="given",
        vendor="unknown",
        product=shown(seen.name) if seen.name else "unnamed GPU",
        arch="unknown",
        compute=seen.compute,
        units=seen.units if is_known(seen.units) else None,
        dense={},
        one_device_is="device",
        confidence="U",
        source="--peak",
    )
    dense, note = dict.fromkeys(peaks.DTYPES, rate), "one rate for all data types, set with --peak"
    spec = replace(row or unknown, dense=dense, confidence="U", note=note)
    spec = replace(spec, source="--peak", date=None)
    named, doubt = (_titled(row), rate_doubt(row, rate)) if row is not None else (None, None)
    why = fact("device.rate-given", rate=peaks.rate_text(rate), row=named, doubt=doubt)
    given = replace(matched, spec=spec, how="given", confidence="high", confirmed=True)
    return replace(given, why=why, options=None)


def _checks(spec: DeviceSpec, seen: SeenDevice) -> Iterator[_Check]:
    """Yield a check for each property that row and trace both have."""
    if seen.instruction_set is not None:
        yield shown(seen.instruction_set), spec.arch, seen.instruction_set == spec.arch
    elif seen.compute is not None and spec.compute is not None:
        seen_version, version = map(device_facts.dotted, (seen.compute, spec.compute))
        yield f"compute capability {seen_version}", version, seen.compute == spec.compute
    # Recordings of other vendors' devices do not count the units of the table.
    if seen.units is not None and seen.units > 0 and spec.units and spec.vendor in peaks.UNIT_NAMES:
        mode, units = _partition(spec, seen), spec.counted(seen.units)
        # In SPX, a single partition, these are the units of all dies.
        dies = f" ({mode.text})" if mode is not None and mode.mode == "SPX" else ""
        yield f"{units} {spec.unit_name}{dies}", str(spec.units), units == spec.units
    if is_known(seen.warp_size) and spec.warp_size is not None:
        agrees = seen.warp_size == spec.warp_size
        yield f"warp size {seen.warp_size}", str(spec.warp_size), agrees
    if seen.memory_bytes is not None and seen.memory_bytes > 0 and spec.memories:
        sizes = " or ".join(memory.size for memory in spec.memories)
        fits = any(memory.fits(seen.memory_bytes) for memory in spec.memories)
        yield device_facts.gib(seen.memory_bytes), f"{sizes} GB", fits


def _named(spec: DeviceSpec, seen: SeenDevice) -> Match:
    """Return the match of a device whose name is that of a row.

    It is not confirmed if the name is that of a version with other rates; if a property disagrees;
    if the device is a part of the product that no partition mode of AMD explains; or if each core
    of the product may be a device, so that this may be a core or the whole.
    """
    part, variant = _part(spec, seen), variant_of(seen, spec)
    checks, candidates = tuple(_checks(spec, seen)), by_fingerprint(seen)
    wrong, row = _objections(checks), _titled(spec)
    options = fact("device.override", id=spec.id)
    mode = _partition(spec, seen) if variant is None else None
    if part is not None and mode is not None:
        why = fact("device.named-part", row=row, part=_share(part), mode=mode.text)
        return Match(seen, part, "name", "medium", confirmed=True, candidates=(), why=why)
    if part is not None:
        what = variant.what if variant is not None else fact("device.a-partition")
        why = fact("device.named-slice", row=row, what=what, part=_share(part))
        options = fact("device.confirm", id=spec.id)
    elif variant is not None:
        why = fact("device.named-variant", row=row, what=variant.what)
    elif wrong:
        why = fact("device.named-otherwise", row=row, seen=wrong)
    elif spec.cores > 1:
        why = fact("device.named-core", row=row, cores=spec.cores)
    else:
        rates = None if spec.dense else fact("device.rates-not-public")
        why = fact("device.named-alone", row=row, rates=rates)
        if properties := tuple(text for text, *_ in checks):
            why = fact("device.named-agrees", row=row, properties=properties, rates=rates)
        confidence: Confidence = "high" if spec in candidates else "medium"
        narrowed = spec.with_memory(seen.memory_bytes)
        return Match(seen, narrowed, "name", confidence, True, candidates, why)
    return Match(seen, part or spec, "name", "low", False, candidates, why, options)


def _unnamed(seen: SeenDevice) -> Match:
    """Return the match by properties of a device without a name, or with a name of several rows."""
    fitting, quoted_name = by_fingerprint(seen), quoted(seen.name)
    name = fact("device.generic-name", name=quoted_name) if seen.name else fact("device.no-name")
    if seen.sharing:
        name = fact("device.shared-name", name=quoted_name, ids=tuple(seen.sharing))
        fitting = tuple(spec for spec in fitting if spec.id in seen.sharing)
    properties = seen.properties()
    if not fitting:
        alike = [spec for spec in load_devices() if seen.compute and spec.compute == seen.compute]
        parts = tuple(spec for spec in alike if _part(spec, seen) is not None)
        why = fact("device.not-identified" if seen.sharing else "device.nothing-known", name=name)
        if parts:
            rows, units = _listed(parts), seen.counted_units()
            why = fact("device.maybe-part", name=name, units=units, rows=rows)
        elif properties:
            why = fact("device.no-match", name=name, properties=properties)
        return _unknown(seen, parts, why)
    # If the rates differ, the clock may narrow down the rows.
    by_clock = tuple(s for s in fitting if s.clock_mhz and s.clock_mhz * 10**6 == seen.clock_hz)
    if by_clock and not _have_same_rates(fitting):
        fitting = by_clock
        properties += f", {(seen.clock_hz or 0) // 10**6:,} MHz"
    details: dict[str, Value] = {"name": name, "properties": properties, "rows": _listed(fitting)}
    if not _have_same_rates(fitting):
        why = Fact("device.ambiguous", details)
        return replace(_unknown(seen, fitting, why), how="fingerprint", confidence="low")
    is_single = len(fitting) == 1
    why = Fact("device.by-properties" if is_single else "device.by-properties-equal", details)
    spec = _as_one_row(fitting).with_memory(seen.memory_bytes)
    return Match(seen, spec, "fingerprint", "medium", confirmed=True, candidates=fitting, why=why)


def _unknown(seen: SeenDevice, candidates: tuple[DeviceSpec, ...], why: Fact) -> Match:
    """Return the match of a device that is no certain row of the table."""
    return Match(seen, None, None, "none", False, candidates, why, options=_ASK)


def _as_one_row(specs: tuple[DeviceSpec, ...]) -> DeviceSpec:
    """Return one row for products of the same rates, with links only if all have the same."""
    links, hosts = {spec.link for spec in specs}, {spec.host_link for spec in specs}
    return replace(
        specs[0],
        product=" or ".join(spec.product for spec in specs),
        memories=tuple(dict.fromkeys(memory for spec in specs for memory in spec.memories)),
        link=links.pop() if len(links) == 1 else None,
        host_link=hosts.pop() if len(hosts) == 1 else None,
        one_device_is=" or ".join(dict.fromkeys(spec.one_device_is for spec in specs)),
        confidence=max(spec.confidence for spec in specs),  # the worst: A is the best
        source="; ".join(dict.fromkeys(spec.source for spec in specs)),
    )


def _share(part: DeviceSpec) -> str:
    """Return the units of a part of a device in words: "66 of 132 SMs"."""
    total = part.units / part.part if part.units else None
    return f"{part.units} of {total} {part.unit_name}"


def _objections(checks: Iterator[_Check] | tuple[_Check, ...]) -> tuple[Value, ...]:
    """Return the properties that disagree, as facts."""
    wrong = [(seen, expected) for seen, expected, agrees in checks if not agrees]
    return tuple(fact("device.objection", seen=seen, expected=expected) for seen, expected in wrong)


def _part(spec: DeviceSpec, seen: SeenDevice) -> DeviceSpec | None:
    """Return the row scaled to the device's units, if these are a MIG slice or partition."""
    units = seen.units
    if units is None or spec.units is None or not 0 < units < spec.units:
        return None
    if seen.compute is not None and spec.compute not in (None, seen.compute):
        return None  # another product, no part of this one
    # A MIG slice has a special name; a partition of AMD has a multiple of the smallest one's units.
    variant = variant_of(seen, spec)
    by_units = variant is not None and variant.by_units
    by_partition = spec.partition_units is not None and units % spec.partition_units == 0
    return spec.with_units(units) if by_units or by_partition else None


def _partition(spec: DeviceSpec, seen: SeenDevice) -> Partition | None:
    """Return which partition of a row's product a device is; None if dies and units do not fit."""
    mode = peaks.partition(spec, seen.instruction_set, seen.dies)
    if mode is None or spec.partition_units is None or seen.instruction_set != spec.arch:
        return None
    return mode if seen.units == mode.dies * spec.partition_units else None


def _have_same_rates(specs: tuple[DeviceSpec, ...]) -> bool:
    """Return whether the rates of each data type differ only by rounding, or are all unknown."""
    by_type = [[spec.peak(dtype) or 0 for spec in specs] for dtype in peaks.DTYPES]
    return all(max(rates) - min(rates) <= _SAME * max(rates) for rates in by_type)


def _titled(spec: DeviceSpec) -> str:
    return f"{spec.id} ({spec.product})"


def _listed(specs: tuple[DeviceSpec, ...]) -> str:
    """Return the ids of rows in words: "a, b and c"."""
    *some, last = (spec.id for spec in specs)
    return f"{', '.join(some)} and {last}" if some else last

"""Clocks, power and temperature of GPUs, sampled by a tool during a recording and joined to it.

Samples may have local time without a zone. If there is only one zone in which the sampled
utilisation agrees with the work in the recording, it is used; else the user has to name one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import numpy as np
from msgspec.structs import replace

from traceflops.devices.side_records import calendar_shift, with_records
from traceflops.errors import InputError, UsageError
from traceflops.facts import Fact, Value, in_words
from traceflops.table.columns import BoolArray, IntArray, floats, is_one_of, numbers, take_rows
from traceflops.table.grouping import distinct, groups
from traceflops.table.trace import UTC_OFFSET, Note, NoteKind, Trace
from traceflops.timeline.intervals import Intervals
from traceflops.units import listed


class Sampled(StrEnum):
    """Sampled quantities and their names in the counters; THROTTLE has bits of THROTTLE_BITS."""

    SM_CLOCK = "gpu.sm_clock_mhz"
    MAX_SM_CLOCK = "gpu.max_sm_clock_mhz"
    MEMORY_CLOCK = "gpu.memory_clock_mhz"
    POWER = "gpu.power_w"
    POWER_LIMIT = "gpu.power_limit_w"
    TEMPERATURE = "gpu.temperature_c"
    UTILISATION = "gpu.busy_percent"
    MEMORY_UTILISATION = "gpu.memory_busy_percent"
    MEMORY_USED = "gpu.memory_used_bytes"
    THROTTLE = "gpu.throttle_mask"


THROTTLE_BITS: Final[Mapping[int, str]] = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
    1 << 16: "throttling without a reason",
    1 << 17: "thermal limit",
}
"""Reasons for a lower clock: NVIDIA's bits, and from 1 << 16 on less exact ones of other tools."""
LOCAL_TIME: Final = "local time"
TIME_OF_DAY: Final = "local time without a date"
"""Values of the fact `times` of samples in an unknown zone: times are ns since 1970, or since
midnight, of the wall clock."""
DAY_NS: Final = 86_400 * 10**9
_HOUR_NS: Final = 3_600 * 10**9
_ZONES: Final = range(-12 * _HOUR_NS, 14 * _HOUR_NS + 1, _HOUR_NS // 2)
_ZONE: Final = re.compile(r"(?:UTC)?([+-])(\d\d):?([0-5]\d)|UTC|Z")
_LEAST, _AGREE, _NEAR = 3, 0.9, 0.25
"""The fewest samples to compare; the share that must agree; how far utilisation may differ."""
_SHORTEST_NS, _LONGEST_NS = 166_000_000, 10**9
"""The shortest and the longest time before a sample over which drivers measure utilisation."""


def with_gpu_samples(trace: Trace, records: Trace, zone: str | None = None) -> Trace:
    """Return a trace with the samples of its GPUs during its time.

    Local times are in the given zone, else the recording's, else the only one in which utilisation
    agrees; without any, there is only a note. Raises InputError without samples or GPU work.
    """
    join = _Join(trace, records)
    zone_ns = None if zone is None else _zone_ns(zone)
    own = trace.source.facts.get(UTC_OFFSET)
    if records.source.origin_unix_ns is not None:
        zone_ns = 0  # the times are UTC
    elif zone_ns is None and own is not None:
        zone_ns = _zone_ns(own)
        join.say("assumed", "samples-zone.of-recording", zone=own)
    elif zone_ns is None:
        zone_ns = join.zone()
    if zone_ns is None:
        return replace(trace, notes=(*trace.notes, *join.notes))
    return join.joined(join.shift(zone_ns))


def _zone_ns(zone: str) -> int:
    """Return the ns by which a zone is ahead of UTC. Raises UsageError if it is no zone."""
    match = _ZONE.fullmatch(zone)
    if match is None:
        raise UsageError(f"not a time zone: {zone}", "give it as +02:00 or -05:30")
    hours, minutes = int(match[2] or 0), int(match[3] or 0)
    return (-1 if match[1] == "-" else 1) * (60 * hours + minutes) * _HOUR_NS // 60


def _zone_text(zone_ns: int) -> str:
    minutes = abs(zone_ns) * 60 // _HOUR_NS
    return f"{'-' if zone_ns < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def sampled_over_ns(time_ns: IntArray) -> int:
    """Return the time in ns before a sample that its utilisation covers."""
    interval_ns = int(np.median(np.diff(time_ns))) if len(time_ns) > 1 else 0
    return min(max(interval_ns, _SHORTEST_NS), _LONGEST_NS)


class _Join:
    """A join of samples (of GPUs) with a recording (of devices), and `notes` on it."""

    def __init__(self, trace: Trace, records: Trace) -> None:
        """Read the samples and the work of the trace. Raises InputError if one is missing.

        `work` has, by device, its busy time, first start and last end; `series`, by sampled GPU,
        its utilisation; `by_number`, by sampled GPU, the device of the same number.
        """
        self.by_number: dict[int, int] = {}
        # Undated samples count from 1970: the zone, or the day, is added by `shift`.
        dated = replace(records.source, origin_unix_ns=records.source.origin_unix_ns or 0)
        self.base_ns = calendar_shift(trace, replace(records, source=dated))
        self.trace, self.records = trace, records
        self.notes: list[Note] = []
        self.time_ns = numbers(records.counters["time_ns"])
        self.sampled = numbers(records.counters["device"])
        start, owner = (numbers(trace.activities[name]) for name in ("start_ns", "device"))
        end, types = start + numbers(trace.activities["dur_ns"]), trace.devices["type"].to_pylist()
        self.work = {
            device: (Intervals.of(start[rows], end[rows]), start[rows].min(), end[rows].max())
            for device, rows in groups(owner)
            if types[device] == "gpu"
        }
        if not self.work or not len(self.time_ns):
            what = "samples" if self.work else "work of a GPU in the trace"
            raise InputError(f"no {what}", "show each by itself")
        _, starts, ends = zip(*self.work.values(), strict=True)
        self.span = (min(starts), max(ends))
        busy = np.flatnonzero(is_one_of(records.counters["name"], Sampled.UTILISATION))
        share = floats(records.counters["value"]) / 100
        by_gpu = groups(self.sampled[busy])
        self.series = {gpu: (self.time_ns[busy[rows]], share[busy[rows]]) for gpu, rows in by_gpu}
        local = numbers(trace.devices["local_id"])
        own = {int(local[device]): device for device in self.work}
        numbered = enumerate(numbers(records.devices["local_id"]).tolist())
        if len(own) == len(self.work):  # else several devices have one number
            self.by_number = {gpu: own[number] for gpu, number in numbered if number in own}

    def say(self, kind: NoteKind, code: str, **values: Value) -> None:
        """Add a note with the text of `note.CODE`."""
        note = Fact(f"note.{code}", values)
        file = self.records.source.files[0].name
        self.notes.append(Note(kind, code.partition(".")[0], in_words(note), None, file))

    def shift(self, zone_ns: int) -> int:
        """Return the shift from times in a zone to the trace's clock, in ns."""
        shift = self.base_ns - zone_ns
        # Times without a date: the last day on which sampling began before the trace ended.
        if self.records.source.facts.get("times") == TIME_OF_DAY:
            shift += (self.span[1] - shift - int(self.time_ns[0])) // DAY_NS * DAY_NS
        return shift

    def zone(self) -> int | None:
        """Return the only zone in which utilisation agrees; else None, with a note."""
        # Without dates, zones a day apart have the same shift: keep the lower one.
        shifts = {self.shift(zone): zone for zone in reversed(_ZONES)}
        fitting = sorted(zone for shift, zone in shifts.items() if self.matched(shift))
        if len(fitting) == 1:
            self.say("assumed", "samples-zone", zone=_zone_text(fitting[0]))
            return fitting[0]
        few = tuple(map(_zone_text, fitting[:3])) + ("…",) * (len(fitting) > 3)
        why = "several" if fitting else "none"
        if not self.series:
            why = "no-utilisation"
        elif not any(self.within(shift).any() for shift in shifts):
            why = "other-time"
        self.say("dropped", f"samples-zone-unknown.{why}", zones=few)
        return None

    def within(self, shift_ns: int) -> BoolArray:
        """Return, per sample, whether it was taken during the recording."""
        time, (begin, end) = self.time_ns + shift_ns, self.span
        return np.asarray((time >= begin) & (time <= end))

    def agrees(self, gpu: int, device: int, shift_ns: int) -> bool | None:
        """Return whether a GPU's utilisation fits a device's work; None for too few samples."""
        if gpu not in self.series:
            return None
        sampled_ns, sampled_share = self.series[gpu]
        work, begin, end = self.work[device]
        over_ns, time_ns = sampled_over_ns(sampled_ns), sampled_ns + shift_ns
        # Leave out samples that mostly cover time before the device's work.
        inside = (time_ns >= begin + over_ns // 2) & (time_ns <= end)
        time_ns, sampled_share = time_ns[inside], sampled_share[inside]
        if len(time_ns) < _LEAST:
            return None
        since = np.maximum(time_ns - over_ns, begin)
        share = work.length_within(since, time_ns) / (time_ns - since)
        # A sample agrees if both shares are at least half, or both below, or if they are close.
        is_same_half = (share >= 0.5) == (sampled_share >= 0.5)
        is_close = np.abs(share - sampled_share) <= _NEAR
        return bool((is_same_half | is_close).mean() > _AGREE)

    def matched(self, shift_ns: int) -> dict[int, int]:
        """Return the device of each sampled GPU if utilisation agrees, {} if it does not.

        GPUs are paired by number. If these disagree, and the utilisation of as many GPUs as devices
        fits some device, they are paired in the order of ranks.
        """
        agree = [self.agrees(*pair, shift_ns) for pair in self.by_number.items()]
        if any(agree) and False not in agree:
            return self.by_number
        if len(self.series) < len(self.work):
            return {}
        busy = [g for g in self.series if any(self.agrees(g, d, shift_ns) for d in self.work)]
        if len(busy) != len(self.work):
            return {}
        sort_keys = []
        for device in self.work:
            row = self.trace.devices.slice(device, 1).to_pylist()[0]
            rank = self.trace.ranks[row["process"]]
            sort_keys.append((device if rank is None else rank, row["local_id"], device))
        by_rank = [device for *_, device in sorted(sort_keys)]
        in_order = dict(zip(sorted(busy), by_rank, strict=True))
        return in_order if all(self.agrees(*pair, shift_ns) for pair in in_order.items()) else {}

    def joined(self, shift_ns: int) -> Trace:
        """Return the trace with the samples of its devices, `shift_ns` later, and notes on them."""
        device_of = self.matched(shift_ns)  # by sampled GPU
        if not device_of:
            # Without a match by utilisation, pair GPUs and devices by number all the same.
            device_of = self.by_number
            agreements = [self.agrees(*pair, shift_ns) for pair in device_of.items()]
            if False in agreements:
                self.say("assumed", "samples-disagree")
            elif not device_of:
                self.say("dropped", "samples-unknown")
        elif device_of != self.by_number:
            gpus = listed(numbers(self.records.devices["local_id"])[list(device_of)].tolist())
            self.say("assumed", "samples-gpus", gpus=gpus)
        # The most instants at which a GPU was sampled; without GPUs there is another note.
        time_ns, is_within = self.time_ns + shift_ns, self.within(shift_ns)
        instants = [distinct(time_ns[is_within & (self.sampled == gpu)]) for gpu in device_of]
        most = max(map(len, instants), default=_LEAST)
        if most < _LEAST:
            is_local = self.records.source.origin_unix_ns is None
            self.say("missing", "samples-few.local" if is_local else "samples-few", samples=most)
        # Keep samples just outside of the recording: they may cover its first and last moments.
        begin_ns, end_ns = self.span
        is_near = (time_ns >= begin_ns - _LONGEST_NS) & (time_ns <= end_ns + _LONGEST_NS)
        keep = is_near & np.isin(self.sampled, list(device_of))
        kept = take_rows(self.records.counters, np.flatnonzero(keep))
        tables, notes = {**self.records.tables, "counters": kept}, self.records.notes
        records = replace(self.records, tables=tables, notes=(*notes, *self.notes))
        return with_records(self.trace, records, shift_ns, device_of)

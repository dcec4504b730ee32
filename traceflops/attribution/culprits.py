"""Who idle time is due to: all of it, by class and by the name that the owner of the code knows.

A name is a function at file:line, an operator, a label or a call; see `owners` and CLASSES.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Final

import numpy as np

from traceflops.attribution.host_events import (
    CALL,
    LABEL,
    OP,
    HostEvents,
    host_events,
)
from traceflops.attribution.idle_classes import (
    CLASSES,
    PLACES,
    REMEDIES,
    TAGS,
    class_of,
    owner_of,
    tags_of,
)
from traceflops.attribution.idle_slices import (
    HOST,
    GapLengths,
    GapParts,
    Slices,
    chosen_gaps,
    gap_lengths,
    gap_parts,
    idle_slices,
    innermost_of,
)
from traceflops.table import (
    BoolArray,
    IntArray,
    SmallArray,
    Trace,
    codes,
    distinct,
    group_rows,
    group_sums,
    groups,
    numbers,
    ranked,
    taken,
)
from traceflops.timeline import Gap, GapCulprit, Intervals
from traceflops.units import kernel_name
from traceflops.windows import DeviceReport, Prepared, chosen_time

_MOST: Final = 50
"""So many culprits are named; what is left of each class is one more."""
REST: Final = "(others)"
_CALLS: Final = ("sync_call", "blocking_copy", "memory_alloc", "slow_driver_call")
_KINDS: Final = tuple(CLASSES)
_TAGS: Final = (*TAGS, "")
_NEVER: Final = np.iinfo(np.int64).min
_MOST_OF_GAP: Final = 3
"""So many of each class are named of one gap."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """Idle time of one class and name in the chosen windows of all devices; times in ns.

    `gaps` counts those that it has a part of, `blocked_before_ns` is the part of `idle_ns` in gaps
    that began while the launching thread waited for the device. `evidence` are the names around the
    longest slice (`longest_ns`), the innermost first; `tag` is the one of TAGS that most of it has,
    "" without, and then the last of these.
    """

    kind: str
    label: str
    idle_ns: int
    gaps: int
    blocked_before_ns: int
    evidence: tuple[str, ...]
    tag: str = ""
    longest_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class IdleClass:
    """The culprits of one class, the largest first."""

    kind: str
    culprits: tuple[Culprit, ...]

    @property
    def idle_ns(self) -> int:
        """Return their idle time."""
        return sum(culprit.idle_ns for culprit in self.culprits)

    @property
    def remedy(self) -> str:
        """Return what to do about it: that of the tag that most of it has, or else of the class."""
        tags: Counter[str] = Counter()
        for culprit in self.culprits:
            tags[culprit.tag] += culprit.idle_ns
        [(tag, idle_ns)] = tags.most_common(1)
        return TAGS.get(tag if 2 * idle_ns >= self.idle_ns else "", REMEDIES[self.kind])


@dataclass(frozen=True, slots=True)
class IdleCulprits:
    """All idle time of some gaps: that of the culprits, largest first, and what has none.

    `histogram` is the gaps by length; idle time before the first and after the last work is in
    none.
    """

    culprits: tuple[Culprit, ...]
    unexplained_ns: int
    histogram: tuple[GapLengths, ...] = ()

    def by_class(self) -> list[IdleClass]:
        """Return the classes, the largest first."""
        of_kind: defaultdict[str, list[Culprit]] = defaultdict(list)
        for culprit in self.culprits:
            of_kind[culprit.kind].append(culprit)
        classes = [IdleClass(kind, tuple(mine)) for kind, mine in of_kind.items()]
        return sorted(classes, key=attrgetter("idle_ns"), reverse=True)


NO_CULPRITS: Final = IdleCulprits((), 0)


def idle_culprits(prepared: Prepared, idle_ns: int) -> IdleCulprits:
    """Return what the host did in all idle time of the chosen windows of the devices.

    Idle time that belongs to no gap, before the first and after the last work, is unexplained.
    """
    if not prepared.launch_records.is_judged:
        return IdleCulprits((), idle_ns)
    if not prepared.accounts:
        return IdleCulprits((), idle_ns)
    found = culprits_of(chosen_gaps(prepared), prepared.trace)
    explained_ns = sum(culprit.idle_ns for culprit in found.culprits)
    return replace(found, unexplained_ns=idle_ns - explained_ns)


def culprits_of_devices(
    choices: Sequence[Prepared], devices: Sequence[int]
) -> list[tuple[tuple[Culprit, ...], ...]]:
    """Return what the host did while each of some devices was idle, by choice of windows.

    All choices are of one trace.
    """
    if not devices or not all(one.launch_records.is_judged for one in choices):
        return [((),) * len(devices) for _ in choices]
    parts = [
        gap_parts(one.accounts[at], chosen_time(one.windows[at]))
        for one in choices
        for at in devices
    ]
    found = [one.culprits for one in _culprits_of_each(parts, choices[0].trace)]
    return [tuple(found[at : at + len(devices)]) for at in range(0, len(found), len(devices))]


def culprits_of(parts: GapParts, trace: Trace) -> IdleCulprits:
    """Return what the host did during parts of gaps."""
    (found,) = _culprits_of_each([parts], trace)
    return found


def _culprits_of_each(several: Sequence[GapParts], trace: Trace) -> Iterator[IdleCulprits]:
    """Yield what the host did during each of several sets of parts."""
    naming = _Naming.of(GapParts.joined(several), trace)
    of_part = np.repeat(np.arange(len(several)), [len(parts.start_ns) for parts in several])
    known: list[list[tuple[Culprit, int]]] = [[] for _ in several]
    for at, culprit, row in _grouped(naming, of_part):
        known[at].append((culprit, row))
    for parts, mine in zip(several, known, strict=True):
        mine.sort(key=lambda one: one[0].idle_ns, reverse=True)
        shown = [
            replace(culprit, evidence=(*naming.evidence(row), *culprit.evidence))
            for culprit, row in mine[:_MOST]
        ]
        rest = _rest([culprit for culprit, _ in mine[_MOST:]])
        length_ns = parts.end_ns - parts.start_ns
        unexplained_ns = int(length_ns.sum()) - sum(culprit.idle_ns for culprit, _ in mine)
        yield IdleCulprits((*shown, *rest), unexplained_ns, gap_lengths(length_ns))


def joined_culprits(parts: Sequence[IdleCulprits]) -> IdleCulprits:
    """Return the idle time of several recordings; of one name the longest tells the evidence."""
    every = (culprit for part in parts for culprit in part.culprits)
    of_name: defaultdict[tuple[str, str], list[Culprit]] = defaultdict(list)
    for culprit in sorted(every, key=attrgetter("idle_ns"), reverse=True):
        of_name[culprit.kind, culprit.label].append(culprit)
    rest = [culprit for (_, label), same in of_name.items() if label == REST for culprit in same]
    named = [_sum_of(same) for (_, label), same in of_name.items() if label != REST]
    named.sort(key=attrgetter("idle_ns"), reverse=True)
    histogram: dict[tuple[int, int], GapLengths] = {}
    for one in (one for part in parts for one in part.histogram):
        before = histogram.get((one.from_ns, one.to_ns), replace(one, gaps=0, idle_ns=0))
        gaps, idle_ns = before.gaps + one.gaps, before.idle_ns + one.idle_ns
        histogram[one.from_ns, one.to_ns] = replace(one, gaps=gaps, idle_ns=idle_ns)
    return IdleCulprits(
        (*named[:_MOST], *_rest([*named[_MOST:], *rest])),
        sum(part.unexplained_ns for part in parts),
        tuple(one for _, one in sorted(histogram.items())),
    )


def _sum_of(same: Sequence[Culprit]) -> Culprit:
    figures = ("idle_ns", "gaps", "blocked_before_ns")
    longest = max(same, key=attrgetter("longest_ns"))
    return replace(longest, **{name: sum(getattr(one, name) for one in same) for name in figures})


def with_culprits(prepared: Prepared, devices: Sequence[DeviceReport]) -> list[DeviceReport]:
    """Return devices with what the host did in all of each of their longest gaps."""
    listed = [(at, gap) for at, device in enumerate(devices) for gap in device.gaps]
    if not listed or not prepared.launch_records.is_judged:
        return [*devices]
    listed.sort(key=lambda one: (one[0], one[1].start_ns))
    parts = GapParts.joined(
        gap_parts(prepared.accounts[device.device], _time_of(device.gaps)) for device in devices
    )
    sums = _by_gap(_Naming.of(parts, prepared.trace))
    known = {
        (at, gap.start_ns): replace(gap, culprits=_of_gap(mine))
        for (at, gap), mine in zip(listed, sums, strict=True)
    }
    return [
        replace(device, gaps=tuple(known[at, gap.start_ns] for gap in device.gaps))
        for at, device in enumerate(devices)
    ]


def _time_of(gaps: Sequence[Gap]) -> Intervals:
    start, dur_ns = (
        np.array([getattr(gap, name) for gap in gaps]) for name in ("start_ns", "dur_ns")
    )
    return Intervals.of(start, start + dur_ns)


def _rest(culprits: list[Culprit]) -> list[Culprit]:
    """Return the sum of culprits by class, the largest first."""
    sums: dict[str, Culprit] = {}
    for one in culprits:
        before = sums.get(one.kind, Culprit(one.kind, REST, 0, 0, 0, ()))
        sums[one.kind] = replace(
            before,
            idle_ns=before.idle_ns + one.idle_ns,
            gaps=before.gaps + one.gaps,
            blocked_before_ns=before.blocked_before_ns + one.blocked_before_ns,
        )
    return sorted(sums.values(), key=attrgetter("idle_ns"), reverse=True)


@dataclass(frozen=True)  # without slots, so that there is a place for what is found on demand
class _Naming:
    """Slices, the class and owner of each, and what their names are taken from."""

    slices: Slices
    kind: SmallArray
    parts: GapParts
    events: HostEvents
    trace: Trace
    owner: IntArray

    @classmethod
    def of(cls, parts: GapParts, trace: Trace) -> _Naming:
        """Return the slices of gap parts."""
        events = host_events(trace, Intervals.of(parts.start_ns, parts.end_ns))
        slices = idle_slices(parts, events)
        kind = class_of(slices, parts, events, trace)
        return cls(slices, kind, parts, events, trace, owner_of(slices, kind, events))

    def tags(self) -> SmallArray:
        """Return the tag of each slice as its place in TAGS, -1 for none."""
        return tags_of(self.slices, self.kind, self.parts, self.events, self.trace)

    def culprits(self) -> Iterator[tuple[tuple[str, str], IntArray]]:
        """Yield each class and name with its slices."""
        by_name: defaultdict[tuple[str, str], list[IntArray]] = defaultdict(list)
        for rows in self.alike():
            by_name[_KINDS[self.kind[rows[0]]], self.name(int(rows[0]))].append(rows)
        for key, several in by_name.items():
            yield key, np.concatenate(several)

    def alike(self) -> list[IntArray]:
        """Return the slices of culprits, those of one class and name together."""
        named, inner = (taken(self.events.name, event) for event in (self.owner, self.inner))
        for kind, table, row in (
            ("launch_latency", "calls", self.parts.call),
            ("device_wait", "activities", self.parts.activity),
        ):
            mine = np.flatnonzero(self.kind == PLACES[kind])
            labels = codes(self.trace.table(table)["name"])
            named[mine] = taken(labels, row[self.slices.part[mine]])
        group, _ = group_rows((self.kind, named, inner))
        alike = [rows for _, rows in groups(group)]
        return [rows for rows in alike if self.kind[rows[0]] != PLACES["unexplained"]]

    def name(self, row: int) -> str:
        """Return the name of a slice."""
        part, kind = self.slices.part[row], _KINDS[self.kind[row]]
        if kind == "launch_latency":
            return self._text("calls", self.parts.call[part])
        if kind == "device_wait":
            return self._text("activities", self.parts.activity[part])
        owner = self.events.text(int(self.owner[row]))
        inner = self.events.text(int(self.inner[row]))
        return f"{inner} in {owner}" if inner and owner != inner else owner

    @cached_property
    def inner(self) -> IntArray:
        """Return the calls and functions that slices are named by besides their owners, or -1."""
        event, place = self.slices.event, self.events.tree.place
        is_step = self.kind == PLACES["optimizer_loop"]
        in_call = np.isin(self.kind, [PLACES[name] for name in _CALLS])
        in_label = self.events.is_kind(LABEL, self.owner) & ~is_step
        in_call |= in_label & (self.kind != PLACES["data_input"])
        helper = taken(self.events.function, event)
        helps = ~is_step & (taken(place, helper) > taken(place, self.owner))
        return np.select([in_call, helps], [event, helper], -1)

    def evidence(self, row: int) -> tuple[str, ...]:
        """Return the names around a slice: innermost, operator, function, label, launch, work."""
        events, part = self.events, self.slices.part[row]
        around = [*self._around(int(self.slices.event[row]))]
        ops = [event for event in around if events.kind[event] == OP]
        frames = [*events.function[around[:1]], *{self.owner[row]} & {*around}]
        told = [events.text(int(event)) for event in (*around[:1], *ops[-1:], *frames)]
        told += [self.events.text(self.slices.label[row])]
        if self.slices.role[row] != HOST:
            told += [
                self._text("calls", self.parts.call[part]),
                self._text("activities", self.parts.activity[part]),
            ]
        return tuple(dict.fromkeys(filter(None, told))) or (self._neighbours(row),)

    def _neighbours(self, row: int) -> str:
        """Return what the process did last before a slice and first after it, the outermost."""
        process = self.events.process_of_call[self.parts.call[self.slices.part[row]]]
        before, after = [(_NEVER, "the start")], [(_NEVER, "the end")]
        for table in (self.trace.ops, self.trace.calls):
            mine = np.flatnonzero(numbers(table["process"]) == process)
            start = numbers(table["start_ns"])[mine]
            end = start + numbers(table["dur_ns"])[mine]
            ended = np.where(end <= self.slices.start_ns[row], end, _NEVER)
            begun = np.where(start >= self.slices.end_ns[row], -start, _NEVER)
            for found, times in ((before, ended), (after, begun)):
                at = int(times.argmax()) if len(times) else -1
                if at >= 0 and times[at] > _NEVER:
                    found.append((int(times[at]), str(table["name"][int(mine[at])])))
        last, following = (max(one, key=itemgetter(0))[1] for one in (before, after))
        return f"between {last} and {following}"

    def _around(self, event: int) -> Iterator[int]:
        while event >= 0:
            yield event
            event = int(self.events.tree.parent[event])

    def _text(self, table: str, row: int) -> str:
        text = self.trace.table(table)["name"][int(row)].as_py()
        return kernel_name(text) if table == "activities" else str(text)

    def blocked(self) -> BoolArray:
        """Return which gaps began while the launching thread waited for the device or copied."""
        events, parts = self.events, self.parts
        every = np.arange(len(events.kind))
        waits = events.told("waits_for_device", every) | events.told("copies", every)
        waits &= (events.kind == CALL) & events.is_work
        thread = taken(events.thread_of_call, parts.call)
        return innermost_of(events, waits, events.thread, thread, parts.gap_start_ns) >= 0


def _by_gap(naming: _Naming) -> list[dict[tuple[str, str], int]]:
    """Return the idle time of each part of a gap by class and name."""
    sums: list[dict[tuple[str, str], int]] = [{} for _ in naming.parts.call]
    for culprit, rows in naming.culprits():
        part, which = ranked(naming.slices.part[rows])
        times = group_sums(which, naming.slices.dur_ns[rows], len(part))
        for place, idle_ns in zip(part.tolist(), times.tolist(), strict=True):
            sums[place][culprit] = sums[place].get(culprit, 0) + idle_ns
    return sums


def _of_gap(sums: Mapping[tuple[str, str], int]) -> tuple[GapCulprit, ...]:
    """Return the largest culprits of each class and the others; the largest class first."""
    of_kind: dict[str, dict[str, int]] = {}
    for (kind, name), idle_ns in sorted(sums.items(), key=itemgetter(1), reverse=True):
        shown = of_kind.setdefault(kind, {})
        label = name if len(shown) < _MOST_OF_GAP else REST
        shown[label] = shown.get(label, 0) + idle_ns
    classes = sorted(of_kind.items(), key=lambda one: sum(one[1].values()), reverse=True)
    return tuple(
        GapCulprit(kind, name, idle_ns)
        for kind, shown in classes
        for name, idle_ns in shown.items()
    )


def _grouped(naming: _Naming, of_part: IntArray) -> Iterator[tuple[int, Culprit, int]]:
    """Yield the slices of each class and name as a culprit for each set that parts belong to.

    Culprits are without evidence, and come with the set and the longest slice.
    """
    blocked, dur_ns, tags = naming.blocked(), naming.slices.dur_ns, naming.tags()
    for (kind, name), every in naming.culprits():
        for at, mine in groups(of_part[naming.slices.part[every]]):
            rows = every[mine]
            part, ns = naming.slices.part[rows], dur_ns[rows]
            blocked_ns = int(ns[blocked[part]].sum())
            tagged, idle_ns = group_sums(tags[rows], ns, len(TAGS)), int(ns.sum())
            tag = _TAGS[tagged.argmax()] if 2 * tagged.max() >= idle_ns else ""
            evidence = (tag,) if tag else ()
            longest, gaps = int(ns.argmax()), len(distinct(part))
            figures = (idle_ns, gaps, blocked_ns, evidence, tag, int(ns[longest]))
            yield at, Culprit(kind, name, *figures), int(rows[longest])

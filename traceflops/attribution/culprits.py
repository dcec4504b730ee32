"""Who idle time is due to: all of it, by class and by the name that the owner of the code knows.

A name is a function at file:line, an operator, a label or a call; see `owners` and CLASSES.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Final

import numpy as np

from traceflops.attribution.idle_classes import TAGS
from traceflops.attribution.idle_slices import (
    GapLengths,
    GapParts,
    chosen_gaps,
    gap_lengths,
    gap_parts,
)
from traceflops.attribution.launch_lead import leads
from traceflops.attribution.named_slices import NamedSlices
from traceflops.table import (
    IntArray,
    Trace,
    group_rows,
    group_sums,
    ranked,
    runs,
)
from traceflops.timeline import Gap, GapCulprit, Intervals
from traceflops.windows import DeviceReport, Prepared

_MOST: Final = 50
"""So many culprits are named; what is left of each class is one more."""
REST: Final = "(others)"
_TAGS: Final = (*TAGS, "")
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
    def is_nameless(self) -> bool:
        """Return whether nothing of the host is recorded, and no range around it."""
        return self.kind == "host_unrecorded" and not any(one.label for one in self.culprits)

    @property
    def remedy(self) -> str:
        """Return the code of what to do: that of the tag that most of it has, or of the class."""
        if self.is_nameless:
            return "idle.remedy.nameless"
        tags: Counter[str] = Counter()
        for culprit in self.culprits:
            tags[culprit.tag] += culprit.idle_ns
        [(tag, idle_ns)] = tags.most_common(1)
        is_tagged = tag in TAGS and 2 * idle_ns >= self.idle_ns
        return f"idle.remedy.{tag.replace(' ', '-') if is_tagged else self.kind}"


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


NO_CULPRITS: Final[IdleCulprits] = IdleCulprits((), 0)


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
    prepared: Prepared, asked: Sequence[Mapping[int, Intervals]]
) -> list[IdleCulprits]:
    """Return what the host did while devices were idle, by choice of devices and their time."""
    accounts = {device: prepared.accounts[device] for times in asked for device in times}
    if not accounts or not prepared.launch_records.is_judged:
        return [NO_CULPRITS] * len(asked)
    cap_ns = {device: leads(account).cap_ns for device, account in accounts.items()}
    parts = [
        GapParts.joined(gap_parts(accounts[at], time, cap_ns[at]) for at, time in times.items())
        for times in asked
    ]
    return list(_culprits_of_each(parts, prepared.trace))


def culprits_of(parts: GapParts, trace: Trace) -> IdleCulprits:
    """Return what the host did during parts of gaps."""
    (found,) = _culprits_of_each([parts], trace)
    return found


def named_times(parts: GapParts, trace: Trace) -> Counter[tuple[str, str]]:
    """Return how long the host did what during parts of gaps, by class and name.

    What is left of each class is one more, and what has none is not in it.
    """
    naming = NamedSlices.of(parts, trace)
    sums = Counter({key: int(naming.slices.dur_ns[at].sum()) for key, at in naming.culprits()})
    largest = sums.most_common()
    found = Counter(dict(largest[:_MOST]))
    for (kind, _), ns in largest[_MOST:]:
        found[kind, REST] += ns
    return found


def _culprits_of_each(several: Sequence[GapParts], trace: Trace) -> Iterator[IdleCulprits]:
    """Yield what the host did during each of several sets of parts; one may be in several."""
    parts = GapParts.joined(several)
    part = first = np.arange(len(parts.call))
    if len(several) > 1:
        part, first = group_rows((parts.activity, parts.start_ns, parts.end_ns))
    naming = NamedSlices.of(parts.only(first), trace)
    of_set = np.repeat(np.arange(len(several)), [len(one.call) for one in several])
    known: list[list[tuple[Culprit, int]]] = [[] for _ in several]
    for at, culprit, row in _grouped(naming, part, of_set):
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


@dataclass(frozen=True, slots=True, eq=False)
class NamedIdle:
    """Idle time of one device, slice by slice in order of time; `name` is a place in `names`.

    Those are classes and names. Idle time that has no culprit is in no slice.
    """

    start_ns: IntArray
    end_ns: IntArray
    name: IntArray
    names: tuple[tuple[str, str], ...]


def named_idle(prepared: Prepared, devices: Sequence[int]) -> dict[int, NamedIdle]:
    """Return what the host did in all gaps of devices, in chosen windows and elsewhere."""
    accounts = [prepared.accounts[device] for device in devices]
    several = [gap_parts(one, Intervals.one(*one.rows.span)) for one in accounts]
    parts, none = GapParts.joined(several), np.empty(0, dtype=np.int64)
    if not prepared.launch_records.is_judged or not len(parts.start_ns):
        return {device: NamedIdle(none, none, none, ()) for device in devices}
    naming = NamedSlices.of(parts, prepared.trace)
    found = dict(naming.culprits())
    rows = np.concatenate([none, *found.values()])
    name = np.repeat(np.arange(len(found)), [len(one) for one in found.values()])
    order = np.argsort(naming.slices.start_ns[rows], kind="stable")
    slices, name = naming.slices.only(rows[order]), name[order]
    place = np.repeat(np.arange(len(several)), [len(one.start_ns) for one in several])[slices.part]
    return {
        device: NamedIdle(slices.start_ns[mine], slices.end_ns[mine], name[mine], tuple(found))
        for at, device in enumerate(devices)
        for mine in [place == at]
    }


def main_culprits(
    prepared: Prepared, parts: GapParts
) -> tuple[IntArray, tuple[tuple[str, str], ...]]:
    """Return the place of the culprit of each part of a gap in classes and names, and these.

    It is the one that takes most of the class that takes most; -1 where nothing has a culprit.
    """
    main = np.full(len(parts.call), -1)
    if not len(main) or not prepared.launch_records.is_judged:
        return main, ()
    naming = NamedSlices.of(parts, prepared.trace)
    found = dict(naming.culprits())
    row = np.concatenate([main[:0], *found.values()])
    name = np.repeat(np.arange(len(found)), [len(rows) for rows in found.values()])
    part, ns = naming.slices.part[row], naming.slices.dur_ns[row]
    sums = []
    for of in (name, naming.kind[row]):
        group, first = group_rows((part, of))
        sums.append(group_sums(group, ns, len(first))[group])
    order = np.lexsort((*sums, part))
    last = order[np.append(np.diff(part[order]) > 0, True)[: len(order)]]
    main[part[last]] = name[last]
    return main, tuple(found)


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
    if not any(device.gaps for device in devices) or not prepared.launch_records.is_judged:
        return [*devices]
    several = [
        gap_parts(prepared.accounts[device.device], _time_of(device.gaps)) for device in devices
    ]
    parts = GapParts.joined(several)
    place = np.repeat(np.arange(len(several)), [len(one.call) for one in several]).tolist()
    known: defaultdict[tuple[int, int], Counter[tuple[str, str]]] = defaultdict(Counter)
    sums = _by_gap(NamedSlices.of(parts, prepared.trace))
    for at, start_ns, mine in zip(place, parts.gap_start_ns.tolist(), sums, strict=True):
        known[at, start_ns].update(mine)
    return [
        replace(
            device,
            gaps=tuple(
                replace(gap, culprits=_of_gap(known[at, gap.start_ns])) for gap in device.gaps
            ),
        )
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


def _by_gap(naming: NamedSlices) -> list[dict[tuple[str, str], int]]:
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


def _grouped(
    naming: NamedSlices, part: IntArray, of_set: IntArray
) -> Iterator[tuple[int, Culprit, int]]:
    """Yield the slices of each class and name as a culprit for each set that parts belong to.

    Culprits are without evidence, and come with the set and the longest slice. `part` are the parts
    of all sets, of which each is `of_set`.
    """
    known = list(naming.culprits())
    if not known:
        return
    every = np.concatenate([rows for _, rows in known])
    name = np.repeat(np.arange(len(known)), [len(rows) for _, rows in known])
    by_part = np.argsort(part, kind="stable")
    edges = np.searchsorted(part[by_part], np.arange(len(naming.parts.call) + 1))
    of_slice = naming.slices.part[every]
    place, again = runs(edges[of_slice], edges[of_slice + 1])
    row, name, at = every[again], name[again], of_set[by_part[place]]
    group, first = group_rows((name, at))
    count, ns, mine = len(first), naming.slices.dur_ns[row], naming.slices.part[row]
    idle_ns = group_sums(group, ns, count).tolist()
    blocked_ns = group_sums(group, np.where(naming.blocked()[mine], ns, 0), count).tolist()
    tag = naming.tags()[row]
    of_tag = np.where(tag < 0, -1, group * len(TAGS) + tag)
    tagged = group_sums(of_tag, ns, count * len(TAGS)).reshape(count, len(TAGS))
    gaps = np.bincount(group[group_rows((group, mine))[1]], minlength=count).tolist()
    longest = np.lexsort((-ns, group))[np.searchsorted(np.sort(group), np.arange(count))]
    for one in range(count):
        most = int(tagged[one].argmax())
        word = _TAGS[most] if 2 * tagged[one, most] >= idle_ns[one] else ""
        evidence, top = (word,) if word else (), int(longest[one])
        figures = (idle_ns[one], gaps[one], blocked_ns[one], evidence, word, int(ns[top]))
        (kind, label), _ = known[int(name[first[one]])]
        yield int(at[first[one]]), Culprit(kind, label, *figures), int(row[top])

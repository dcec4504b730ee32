"""What idle time is due to: all of it, by class and by the name that the owner of the code knows.

A name is a function at file:line, an operator, a label or a call; see `owners` and CLASSES.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Final

import numpy as np

from traceflops.attribution.idle_slices import (
    GapLengths,
    GapParts,
    chosen_gaps,
    gap_lengths,
    gap_parts,
)
from traceflops.attribution.launch_lead import leads
from traceflops.attribution.named_slices import NamedSlices
from traceflops.table.columns import IntArray
from traceflops.table.grouping import group_rows, group_sums, ranked, runs
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import GapCulprit
from traceflops.timeline.start_up import KINDS
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import DeviceReport

_MOST: Final = 50
"""At most so many culprits are named; the rest of each class is one more."""
REST: Final = "(others)"
_START_UP: Final = "start_up"
_SUMS: Final = ("idle_ns", "gaps", "blocked_before_ns", "short_ns")
SHORT_GAP_NS: Final = 200_000
"""In longer gaps Python does more than to start operators."""
_MOST_OF_GAP: Final = 3
"""At most so many of each class are named in one gap."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """Idle time of one class and name in the chosen windows of all devices; times in ns.

    `gaps` counts those that it has a part of, `blocked_before_ns` is the part of `idle_ns` in gaps
    that began while the launching thread waited for the device. `evidence` are the names around the
    longest slice (`longest_ns`), the innermost first. `short_ns` is the part of `idle_ns` in gaps
    shorter than SHORT_GAP_NS.
    """

    kind: str
    label: str
    idle_ns: int
    gaps: int
    blocked_before_ns: int
    evidence: tuple[str, ...]
    longest_ns: int = field(default=0, compare=False)
    short_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class IdleClass:
    """The culprits of one class, the largest first."""

    kind: str
    culprits: tuple[Culprit, ...]

    @property
    def idle_ns(self) -> int:
        """Their idle time."""
        return sum(culprit.idle_ns for culprit in self.culprits)

    @property
    def short_ns(self) -> int:
        """The part of it in short gaps."""
        return sum(culprit.short_ns for culprit in self.culprits)

    @property
    def is_nameless(self) -> bool:
        """Whether nothing of the host is recorded, and no range around it."""
        return self.kind == "host_unrecorded" and not any(c.label for c in self.culprits)

    @property
    def remedy(self) -> str:
        """Return the code of what to do."""
        return f"idle.remedy.{'nameless' if self.is_nameless else self.kind}"


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
        by_kind: defaultdict[str, list[Culprit]] = defaultdict(list)
        for culprit in self.culprits:
            by_kind[culprit.kind].append(culprit)
        classes = [IdleClass(kind, tuple(culprits)) for kind, culprits in by_kind.items()]
        return sorted(classes, key=attrgetter("idle_ns"), reverse=True)


NO_CULPRITS: Final[IdleCulprits] = IdleCulprits((), 0)


def idle_culprits(prepared: Prepared, idle_ns: int) -> IdleCulprits:
    """Return what the host did in all idle time of the chosen windows of the devices.

    Idle time that belongs to no gap, before the first and after the last work, is unexplained.
    """
    if not prepared.knows_host_work or not prepared.accounts:
        return IdleCulprits((), idle_ns)
    culprits = culprits_of(chosen_gaps(prepared), prepared.trace)
    explained_ns = sum(culprit.idle_ns for culprit in culprits.culprits)
    return replace(culprits, unexplained_ns=idle_ns - explained_ns)


def culprits_of_devices(
    prepared: Prepared, choices: Sequence[Mapping[int, Intervals]]
) -> list[IdleCulprits]:
    """Return what the host did while devices were idle, by choice of devices and their time."""
    accounts = {device: prepared.accounts[device] for times in choices for device in times}
    if not accounts or not prepared.knows_host_work:
        return [NO_CULPRITS] * len(choices)
    cap_ns = {device: leads(account).cap_ns for device, account in accounts.items()}
    parts = [
        GapParts.joined(gap_parts(accounts[d], time, cap_ns[d]) for d, time in times.items())
        for times in choices
    ]
    return list(_culprits_of_sets(parts, prepared.trace))


def culprits_of(parts: GapParts, trace: Trace) -> IdleCulprits:
    """Return what the host did during parts of gaps."""
    (culprits,) = _culprits_of_sets([parts], trace)
    return culprits


def named_times(parts: GapParts, trace: Trace) -> Counter[tuple[str, str]]:
    """Return how many ns the host did what during parts of gaps, by class and name.

    The rest of each class is one more name; time without a culprit is not counted.
    """
    naming = NamedSlices.of(parts, trace)
    sums = Counter({name: int(naming.slices.dur_ns[own].sum()) for name, own in naming.culprits()})
    largest = sums.most_common()
    times = Counter(dict(largest[:_MOST]))
    for (kind, _), ns in largest[_MOST:]:
        times[kind, REST] += ns
    return times


def _culprits_of_sets(sets: Sequence[GapParts], trace: Trace) -> Iterator[IdleCulprits]:
    """Yield what the host did during each of several sets of parts; sets may overlap.

    Each distinct part is looked at once, whatever sets it is in.
    """
    joined = GapParts.joined(sets)
    part = one_each = np.arange(len(joined.call))
    if len(sets) > 1:
        part, one_each = group_rows((joined.activity, joined.start_ns, joined.end_ns))
    naming = NamedSlices.of(joined.only(one_each), trace)
    set_of_part = np.repeat(np.arange(len(sets)), [len(parts.call) for parts in sets])
    by_set: list[list[tuple[Culprit, int]]] = [[] for _ in sets]
    for number, culprit, longest in _by_name_and_set(naming, part, set_of_part):
        by_set[number].append((culprit, longest))
    for parts, culprits in zip(sets, by_set, strict=True):
        culprits.sort(key=lambda item: item[0].idle_ns, reverse=True)
        shown = [
            replace(culprit, evidence=naming.evidence(longest))
            for culprit, longest in culprits[:_MOST]
        ]
        rest = _rest([culprit for culprit, _ in culprits[_MOST:]])
        length_ns = parts.end_ns - parts.start_ns
        unexplained_ns = int(length_ns.sum()) - sum(culprit.idle_ns for culprit, _ in culprits)
        yield IdleCulprits((*shown, *rest), unexplained_ns, gap_lengths(length_ns))


def _by_name_and_set(
    naming: NamedSlices, part: IntArray, set_of_part: IntArray
) -> Iterator[tuple[int, Culprit, int]]:
    """Yield set, culprit without evidence, and its longest slice, for each class and name.

    `part` and `set_of_part` are per part of all sets: its row in `naming.parts`, and its set.
    """
    names = list(naming.culprits())
    if not names:
        return
    # Each slice comes once for every set that its part is in.
    slice_row = np.concatenate([rows for _, rows in names])
    name = np.repeat(np.arange(len(names)), [len(rows) for _, rows in names])
    by_part = np.argsort(part, kind="stable")
    edges = np.searchsorted(part[by_part], np.arange(len(naming.parts.call) + 1))
    of_slice = naming.slices.part[slice_row]
    index, copy = runs(edges[of_slice], edges[of_slice + 1])
    row, name, sets = slice_row[copy], name[copy], set_of_part[by_part[index]]
    group, first = group_rows((name, sets))
    count, ns, own_part = len(first), naming.slices.dur_ns[row], naming.slices.part[row]
    idle_ns = group_sums(group, ns, count).tolist()
    blocked_ns = group_sums(group, np.where(naming.blocked()[own_part], ns, 0), count).tolist()
    gaps = np.bincount(group[group_rows((group, own_part))[1]], minlength=count).tolist()
    is_short = naming.parts.gap_end_ns - naming.parts.gap_start_ns < SHORT_GAP_NS
    short_ns = group_sums(group, np.where(is_short[own_part], ns, 0), count).tolist()
    longest = np.lexsort((-ns, group))[np.searchsorted(np.sort(group), np.arange(count))]
    for number in range(count):
        top = int(longest[number])
        sums = idle_ns[number], gaps[number], blocked_ns[number]
        (kind, label), _ = names[int(name[first[number]])]
        culprit = Culprit(kind, label, *sums, (), int(ns[top]), short_ns[number])
        yield int(sets[first[number]]), culprit, int(row[top])


@dataclass(frozen=True, slots=True, eq=False)
class NamedIdle:
    """Idle time and start-up of one device, in order of time; `name` is a place in `names`.

    `names` are classes and names. Idle time that has no culprit is in no slice.
    """

    start_ns: IntArray
    end_ns: IntArray
    name: IntArray
    names: tuple[tuple[str, str], ...]


def named_idle(prepared: Prepared, devices: Sequence[int]) -> dict[int, NamedIdle]:
    """Return what the host did in all gaps of devices, in chosen windows and elsewhere."""
    accounts = [prepared.accounts[device] for device in devices]
    several = [gap_parts(account, Intervals.one(*account.rows.span)) for account in accounts]
    parts, none = GapParts.joined(several), np.empty(0, dtype=np.int64)
    if not prepared.knows_host_work or not len(parts.start_ns):
        return {device: NamedIdle(none, none, none, ()) for device in devices}
    naming = NamedSlices.of(parts, prepared.trace)
    names, row, name = naming.slices_by_name()
    slices = naming.slices.only(row)
    owner = np.repeat(np.arange(len(several)), [len(own.start_ns) for own in several])[slices.part]
    all_names = (*names, *((_START_UP, words) for words in KINDS.values()))
    named = {}
    for number, (device, account) in enumerate(zip(devices, accounts, strict=True)):
        mine = owner == number
        pieces = [(slices.start_ns[mine], slices.end_ns[mine], name[mine])]
        for place, kind in enumerate(KINDS, len(names)):
            if (times := account.start_up_by_kind.get(kind)) is not None:
                pieces.append((times.start_ns, times.end_ns, np.full(len(times), place)))
        start, end, code = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        order = np.argsort(start, kind="stable")
        named[device] = NamedIdle(start[order], end[order], code[order], all_names)
    return named


def main_culprits(
    prepared: Prepared, parts: GapParts
) -> tuple[IntArray, tuple[tuple[str, str], ...]]:
    """Return, per part of a gap, the place of its culprit in classes and names, and these.

    It is the one that takes most of the class that takes most; -1 where nothing has a culprit.
    """
    main = np.full(len(parts.call), -1)
    if not len(main) or not prepared.knows_host_work:
        return main, ()
    naming = NamedSlices.of(parts, prepared.trace)
    names, row, name = naming.slices_by_name()
    part, ns = naming.slices.part[row], naming.slices.dur_ns[row]
    sums = []
    for key in (name, naming.kind[row]):
        group, first = group_rows((part, key))
        sums.append(group_sums(group, ns, len(first))[group])
    order = np.lexsort((*sums, part))
    main[part[order]] = name[order]  # the last one of each part stays
    return main, names


def joined_culprits(parts: Sequence[IdleCulprits]) -> IdleCulprits:
    """Return the idle time of several recordings; the evidence of a name is that of its longest."""
    culprits = (culprit for part in parts for culprit in part.culprits)
    by_name: defaultdict[tuple[str, str], list[Culprit]] = defaultdict(list)
    for culprit in sorted(culprits, key=attrgetter("idle_ns"), reverse=True):
        by_name[culprit.kind, culprit.label].append(culprit)
    named, rest = [], []
    for (_, label), same in by_name.items():
        if label == REST:
            rest += same
        else:
            named.append(_added(max(same, key=attrgetter("longest_ns")), same))
    named.sort(key=attrgetter("idle_ns"), reverse=True)
    decades: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for decade in (decade for part in parts for decade in part.histogram):
        decades[decade.from_ns, decade.to_ns][0] += decade.gaps
        decades[decade.from_ns, decade.to_ns][1] += decade.idle_ns
    histogram = tuple(GapLengths(*edges, *sums) for edges, sums in sorted(decades.items()))
    unexplained_ns = sum(part.unexplained_ns for part in parts)
    shown = (*named[:_MOST], *_rest([*named[_MOST:], *rest]))
    return IdleCulprits(shown, unexplained_ns, histogram)


def _added(culprit: Culprit, same: Sequence[Culprit]) -> Culprit:
    """Return a culprit with the sums of several."""
    sums = {name: sum(getattr(c, name) for c in same) for name in _SUMS}
    return replace(culprit, **sums)


def with_culprits(prepared: Prepared, devices: Sequence[DeviceReport]) -> list[DeviceReport]:
    """Return devices with what the host did in all of each of their longest gaps."""
    if not any(device.gaps for device in devices) or not prepared.knows_host_work:
        return [*devices]
    several = []
    for device in devices:
        spans = [(gap.start_ns, gap.start_ns + gap.dur_ns) for gap in device.gaps]
        gaps = Intervals.of(*np.array(spans, dtype=np.int64).reshape(-1, 2).T)
        several.append(gap_parts(prepared.accounts[device.device], gaps))
    parts = GapParts.joined(several)
    owner = np.repeat(np.arange(len(several)), [len(own.call) for own in several])
    naming = NamedSlices.of(parts, prepared.trace)
    times: defaultdict[tuple[int, int], Counter[tuple[str, str]]] = defaultdict(Counter)
    for name, rows in naming.culprits():
        part, which = ranked(naming.slices.part[rows])
        sums = group_sums(which, naming.slices.dur_ns[rows], len(part)).tolist()
        gap_starts = parts.gap_start_ns[part].tolist()
        for number, start_ns, idle_ns in zip(owner[part].tolist(), gap_starts, sums, strict=True):
            times[number, start_ns][name] += idle_ns
    for number, device in enumerate(devices):
        by_kind = prepared.accounts[device.device].start_up_by_kind
        for gap in device.gaps if by_kind else ():
            for kind, instants in by_kind.items():
                if ns := instants.within(gap.start_ns, gap.start_ns + gap.dur_ns).length_ns:
                    times[number, gap.start_ns][_START_UP, KINDS[kind]] += ns
    reports = []
    for number, device in enumerate(devices):
        culprits = [_largest(times[number, gap.start_ns]) for gap in device.gaps]
        named = zip(device.gaps, culprits, strict=True)
        reports.append(replace(device, gaps=tuple(replace(gap, culprits=c) for gap, c in named)))
    return reports


def _largest(sums: Mapping[tuple[str, str], int]) -> tuple[GapCulprit, ...]:
    """Return the largest culprits of each class and the others; the largest class first."""
    by_kind: dict[str, dict[str, int]] = {}
    for (kind, name), idle_ns in sorted(sums.items(), key=itemgetter(1), reverse=True):
        shown = by_kind.setdefault(kind, {})
        label = name if len(shown) < _MOST_OF_GAP else REST
        shown[label] = shown.get(label, 0) + idle_ns
    classes = sorted(by_kind.items(), key=lambda item: sum(item[1].values()), reverse=True)
    return tuple(
        GapCulprit(kind, name, idle_ns)
        for kind, shown in classes
        for name, idle_ns in shown.items()
    )


def _rest(culprits: Sequence[Culprit]) -> list[Culprit]:
    """Return the sums of culprits by class, the largest first."""
    by_kind: defaultdict[str, list[Culprit]] = defaultdict(list)
    for culprit in culprits:
        by_kind[culprit.kind].append(culprit)
    sums = [_added(Culprit(kind, REST, 0, 0, 0, ()), same) for kind, same in by_kind.items()]
    return sorted(sums, key=attrgetter("idle_ns"), reverse=True)

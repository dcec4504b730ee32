"""The culprits of idle time: what the host did meanwhile, by class and name.

A name is one that the owner of the code knows: a function at file:line, an operator, a label or a
call; see `owners`, and CLASSES for the classes.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.idle_slices import (
    GapLengths,
    GapParts,
    Slices,
    chosen_gaps,
    gap_lengths,
    gap_parts,
)
from traceflops.attribution.launch_lead import leads
from traceflops.attribution.named_slices import NamedSlices
from traceflops.table.columns import IntArray, numbers
from traceflops.table.grouping import group_rows, group_sums, groups, ranked, runs
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import GapCulprit
from traceflops.timeline.start_up import KINDS
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import DeviceReport

_MOST: Final = 50  # at most so many culprits are named; the others of each class become one
REST: Final = "(others)"
_START_UP: Final = "start_up"
UNRECORDED: Final = "host_unrecorded"
BESIDE: Final = "host_beside_gpu"
CALLS_BESIDE: Final = "calls_beside_gpu"
"""Classes of host time without a record; of such time while a GPU works, for which the host may
wait; and of driver calls while a GPU works, which wait for it or for room in a full queue."""
_CALLS: Final = ("memory_alloc", "slow_driver_call")
_BESIDE: Final = {UNRECORDED: BESIDE, **dict.fromkeys(_CALLS, CALLS_BESIDE)}
_SUMS: Final = ("idle_ns", "gaps", "blocked_before_ns", "short_ns")
SHORT_GAP_NS: Final = 200_000
"""Launching operators explains shorter gaps; in longer ones Python must have done more."""
_MOST_OF_GAP: Final = 3  # at most so many culprits of a class are named per gap


class Culprit(Struct, frozen=True):
    """Idle time of one class and name in the chosen windows of all devices; times in ns.

    `gaps` counts the gaps in which it took time, `blocked_before_ns` is the part of `idle_ns` in
    gaps that began while the launching thread waited for the device, `short_ns` the part in gaps
    shorter than SHORT_GAP_NS, `longest_ns` the most in one gap. `evidence` are the names around the
    longest slice, the innermost first.
    """

    kind: str
    label: str
    idle_ns: int
    gaps: int
    blocked_before_ns: int
    evidence: tuple[str, ...]
    longest_ns: int = 0
    short_ns: int = 0


class IdleClass(Struct, frozen=True):
    """The culprits of one class, the largest first."""

    kind: str
    culprits: tuple[Culprit, ...]

    @property
    def idle_ns(self) -> int:
        """Idle time of all culprits, in ns."""
        return sum(culprit.idle_ns for culprit in self.culprits)

    @property
    def short_ns(self) -> int:
        """Idle time in gaps shorter than SHORT_GAP_NS, in ns."""
        return sum(culprit.short_ns for culprit in self.culprits)

    @property
    def is_nameless(self) -> bool:
        """Whether neither host events nor a range around them are recorded."""
        return self.kind == UNRECORDED and not any(c.label for c in self.culprits)

    @property
    def remedy(self) -> str:
        """Return the code of the advice, "" for a slow call: no recording tells why it is slow."""
        if self.kind == "slow_driver_call":
            return ""
        return f"idle.remedy.{'nameless' if self.is_nameless else self.kind}"


class IdleCulprits(Struct, frozen=True):
    """Idle time by culprit, the largest first, and the time without a culprit; in ns.

    `histogram` counts gaps by length, without idle time before the first and after the last work.
    """

    culprits: tuple[Culprit, ...]
    unexplained_ns: int
    histogram: tuple[GapLengths, ...] = ()

    def by_class(self) -> list[IdleClass]:
        """Return the culprits grouped by class, the class with most idle time first."""
        by_kind: defaultdict[str, list[Culprit]] = defaultdict(list)
        for culprit in self.culprits:
            by_kind[culprit.kind].append(culprit)
        classes = [IdleClass(kind, tuple(culprits)) for kind, culprits in by_kind.items()]
        return sorted(classes, key=attrgetter("idle_ns"), reverse=True)


NO_CULPRITS: Final[IdleCulprits] = IdleCulprits((), 0)


def idle_culprits(prepared: Prepared, idle_ns: int) -> IdleCulprits:
    """Return the culprits of the idle time (`idle_ns` in total) in the chosen windows.

    Idle time before the first and after the last work is in no gap: it stays unexplained.
    """
    if not prepared.knows_host_work or not prepared.accounts:
        return IdleCulprits((), idle_ns)
    culprits = culprits_of(chosen_gaps(prepared), prepared.trace)
    explained_ns = sum(culprit.idle_ns for culprit in culprits.culprits)
    return replace(culprits, unexplained_ns=idle_ns - explained_ns)


def culprits_of_devices(
    prepared: Prepared, choices: Sequence[Mapping[int, Intervals]]
) -> list[IdleCulprits]:
    """Return idle culprits per choice; a choice has the times to look at, by device."""
    accounts = {device: prepared.accounts[device] for times in choices for device in times}
    if not accounts or not prepared.knows_host_work:
        return [NO_CULPRITS] * len(choices)
    cap_ns = {device: leads(account).cap_ns for device, account in accounts.items()}
    parts = [
        GapParts.joined(gap_parts(accounts[d], within, cap_ns[d]) for d, within in times.items())
        for times in choices
    ]
    return list(_culprits_of_sets(parts, prepared.trace))


def culprits_of(parts: GapParts, trace: Trace) -> IdleCulprits:
    """Return the culprits of the idle time in some parts of gaps."""
    return next(_culprits_of_sets([parts], trace))


def named_times(
    parts: GapParts, trace: Trace, busy: Mapping[int, Intervals]
) -> Counter[tuple[str, str]]:
    """Return the ns of host time per class and name of the culprit, for parts of gaps.

    Time of a class of _BESIDE that counts as beside GPU work (see `_beside_ns`) gets the class that
    _BESIDE has for it. `busy` is when GPUs work, by process. Only the _MOST largest are named; the
    others of a class are added up under REST. Time without a culprit is not counted.
    """
    naming = NamedSlices.of(parts, trace)
    sums: Counter[tuple[str, str]] = Counter()
    for (kind, name), rows in naming.culprits():
        whole_ns = int(naming.slices.dur_ns[rows].sum())
        beside_ns = 0
        if kind in _BESIDE:
            slices = naming.slices.only(rows)
            process = numbers(trace.calls["process"])[parts.call[slices.part]]
            for number, same in groups(process):
                working = busy.get(number, Intervals.empty())
                beside_ns += _beside_ns(slices.only(same), kind, parts, working)
        sums[_BESIDE.get(kind, kind), name] += beside_ns
        sums[kind, name] += whole_ns - beside_ns
    sums = +sums  # drops zeros
    largest = sums.most_common()
    times = Counter(dict(largest[:_MOST]))
    for (kind, _), ns in largest[_MOST:]:
        times[kind, REST] += ns
    return times


def _beside_ns(slices: Slices, kind: str, parts: GapParts, working: Intervals) -> int:
    """Return the ns of slices of one class and process in which GPUs of the process work.

    A slice without a record counts only if the host may have waited for the GPUs in its gap part:
    they work in at least half of the part, and no longer when the part ends.
    """
    working_ns = working.length_within(slices.start_ns, slices.end_ns)
    if kind == UNRECORDED:
        begin, end = parts.start_ns[slices.part], parts.end_ns[slices.part]
        is_mostly_working = 2 * working.length_within(begin, end) >= end - begin
        working_ns = working_ns[is_mostly_working & ~working.contains(end)]
    return int(working_ns.sum())


def _culprits_of_sets(sets: Sequence[GapParts], trace: Trace) -> Iterator[IdleCulprits]:
    """Yield the culprits of each set of gap parts; parts of several sets are analysed once."""
    joined = GapParts.joined(sets)
    # Per row, the number of its distinct part: sets [A B] and [B C]  ->  rows A B B C: [0 1 1 2].
    distinct = np.arange(len(joined.call))
    if len(sets) > 1:
        distinct, first_row = group_rows((joined.activity, joined.start_ns, joined.end_ns))
        joined = joined.only(first_row)
    naming = NamedSlices.of(joined, trace)
    by_set: list[list[tuple[Culprit, int]]] = [[] for _ in sets]  # culprit, row of longest slice
    for number, culprit, longest in _by_name_and_set(naming, distinct, _source_of_rows(sets)):
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
    """Yield per set, class and name: set number, culprit without evidence, its longest slice.

    `part` and `set_of_part` have an element per part of all sets: the row of the equal part in
    `naming.parts`, and the number of its set. The longest slice is a row of `naming.slices`.
    """
    names = list(naming.culprits())
    if not names:
        return
    # Each slice is in every set that contains its part. The parts of all sets are sorted by equal
    # part, so those equal to part p are at edges[p] to edges[p + 1]:
    # part [0 1 1 2], set_of_part [0 0 1 1]  ->  edges [0 1 3 4]: part 1 at 1 and 2, in both sets
    named_slice = np.concatenate([rows for _, rows in names])
    name_of_slice = np.repeat(np.arange(len(names)), [len(rows) for _, rows in names])
    by_part = np.argsort(part, kind="stable")
    edges = np.searchsorted(part[by_part], np.arange(len(naming.parts.call) + 1))
    slice_part = naming.slices.part[named_slice]
    place, index = runs(edges[slice_part], edges[slice_part + 1])
    # A row per pair of a slice and a set that contains it.
    row, name, set_number = named_slice[index], name_of_slice[index], set_of_part[by_part[place]]
    ns, slice_part = naming.slices.dur_ns[row], naming.slices.part[row]
    # Sums per name and set.
    group, first = group_rows((name, set_number))
    count, gap_ns = len(first), naming.parts.gap_end_ns - naming.parts.gap_start_ns
    ns_if_blocked = np.where(naming.blocked()[slice_part], ns, 0)
    ns_if_short = np.where((gap_ns < SHORT_GAP_NS)[slice_part], ns, 0)
    idle_ns, blocked_ns, short_ns = (
        group_sums(group, values, count).tolist() for values in (ns, ns_if_blocked, ns_if_short)
    )
    in_part, first_in_part = group_rows((group, slice_part))  # a gap is one part
    gaps = np.bincount(group[first_in_part], minlength=count).tolist()
    part_ns = group_sums(in_part, ns, len(first_in_part))
    longest_ns = np.zeros(count, dtype=np.int64)
    np.maximum.at(longest_ns, group[first_in_part], part_ns)
    # Sorted by group and then by length, the first of each group is its longest slice:
    # group [1 0 1], ns [5 7 9]  ->  order [1 2 0], groups begin at [0 1]: slices 1 and 2
    order, begins = np.lexsort((-ns, group)), np.searchsorted(np.sort(group), np.arange(count))
    longest = order[begins]
    for number, first_row in enumerate(first.tolist()):
        (kind, label), _ = names[int(name[first_row])]
        sums = idle_ns[number], gaps[number], blocked_ns[number]
        culprit = Culprit(kind, label, *sums, (), int(longest_ns[number]), short_ns[number])
        yield int(set_number[first_row]), culprit, int(row[longest[number]])


class NamedIdle(Struct, frozen=True, eq=False):
    """Named slices of idle time and start-up of one device, in order of time; times in ns.

    `name` is an index into `names`, which are pairs of class and name. Idle time without a culprit
    is left out.
    """

    start_ns: IntArray
    end_ns: IntArray
    name: IntArray
    names: tuple[tuple[str, str], ...]


def named_idle(prepared: Prepared, devices: Sequence[int]) -> dict[int, NamedIdle]:
    """Return per device the named slices of all its gaps, also those outside the chosen windows."""
    accounts = [prepared.accounts[device] for device in devices]
    by_device = [gap_parts(account, Intervals.one(*account.rows.span)) for account in accounts]
    parts, none = GapParts.joined(by_device), np.empty(0, dtype=np.int64)
    if not prepared.knows_host_work or not len(parts.start_ns):
        return {device: NamedIdle(none, none, none, ()) for device in devices}
    naming = NamedSlices.of(parts, prepared.trace)
    names, row, name = naming.slices_by_name()
    slices = naming.slices.only(row)
    device_number = _source_of_rows(by_device)[slices.part]
    all_names = (*names, *((_START_UP, words) for words in KINDS.values()))
    named = {}
    for number, (device, account) in enumerate(zip(devices, accounts, strict=True)):
        of_device = device_number == number
        pieces = [(slices.start_ns[of_device], slices.end_ns[of_device], name[of_device])]
        # The names of kinds of start-up follow those of culprits.
        for name_code, kind in enumerate(KINDS, len(names)):
            if (times := account.start_up_by_kind.get(kind)) is not None:
                pieces.append((times.start_ns, times.end_ns, np.full(len(times), name_code)))
        start, end, code = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        order = np.argsort(start, kind="stable")
        named[device] = NamedIdle(start[order], end[order], code[order], all_names)
    return named


def joined_culprits(parts: Sequence[IdleCulprits], most: int | None = _MOST) -> IdleCulprits:
    """Add up idle culprits of several recordings: the `most` largest by name, and the rest."""
    culprits = (culprit for part in parts for culprit in part.culprits)
    by_name: defaultdict[tuple[str, str], list[Culprit]] = defaultdict(list)
    for culprit in sorted(culprits, key=attrgetter("idle_ns"), reverse=True):
        by_name[culprit.kind, culprit.label].append(culprit)
    named, rest = [], []
    for (_, label), same in by_name.items():
        if label == REST:
            rest += same
        else:
            longest = max(same, key=attrgetter("longest_ns"))
            named.append(_with_sums_of(longest, same))
    named.sort(key=attrgetter("idle_ns"), reverse=True)
    decades: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])  # gaps, ns
    for decade in itertools.chain.from_iterable(part.histogram for part in parts):
        decades[decade.from_ns, decade.to_ns][0] += decade.gaps
        decades[decade.from_ns, decade.to_ns][1] += decade.idle_ns
    histogram = tuple(GapLengths(*edges, *sums) for edges, sums in sorted(decades.items()))
    unexplained_ns = sum(part.unexplained_ns for part in parts)
    others = [] if most is None else named[most:]
    return IdleCulprits((*named[:most], *_rest([*others, *rest])), unexplained_ns, histogram)


def _with_sums_of(culprit: Culprit, same: Sequence[Culprit]) -> Culprit:
    """Return a culprit with the fields of _SUMS summed over `same`."""
    return replace(culprit, **{name: sum(getattr(c, name) for c in same) for name in _SUMS})


def with_culprits(prepared: Prepared, devices: Sequence[DeviceReport]) -> list[DeviceReport]:
    """Return the device reports with the culprits of each of their longest gaps filled in."""
    if not any(device.gaps for device in devices) or not prepared.knows_host_work:
        return [*devices]
    by_device = []
    for device in devices:
        spans = [(gap.start_ns, gap.start_ns + gap.dur_ns) for gap in device.gaps]
        within = Intervals.of(*np.array(spans, dtype=np.int64).reshape(-1, 2).T)
        by_device.append(gap_parts(prepared.accounts[device.device], within))
    parts = GapParts.joined(by_device)
    device_number, naming = _source_of_rows(by_device), NamedSlices.of(parts, prepared.trace)
    # Idle ns per gap (number of its device, start) and culprit (class, name).
    times: defaultdict[tuple[int, int], Counter[tuple[str, str]]] = defaultdict(Counter)
    for name, rows in naming.culprits():
        part, part_index = ranked(naming.slices.part[rows])
        sums = group_sums(part_index, naming.slices.dur_ns[rows], len(part)).tolist()
        gap_starts = parts.gap_start_ns[part].tolist()
        numbers = device_number[part].tolist()
        for number, start_ns, idle_ns in zip(numbers, gap_starts, sums, strict=True):
            times[number, start_ns][name] += idle_ns
    # Start-up is no idle time, but it is shown beside the culprits.
    for number, device in enumerate(devices):
        for gap in device.gaps:
            for kind, instants in prepared.accounts[device.device].start_up_by_kind.items():
                if ns := instants.within(gap.start_ns, gap.start_ns + gap.dur_ns).length_ns:
                    times[number, gap.start_ns][_START_UP, KINDS[kind]] += ns
    reports = []
    for number, device in enumerate(devices):
        gaps = (replace(g, culprits=_largest(times[number, g.start_ns])) for g in device.gaps)
        reports.append(replace(device, gaps=tuple(gaps)))
    return reports


def _source_of_rows(joined: Sequence[GapParts]) -> IntArray:
    """Return, for each row of the joined parts, the number of the GapParts that it comes from."""
    return np.repeat(np.arange(len(joined)), [len(parts.call) for parts in joined])


def _largest(sums: Mapping[tuple[str, str], int]) -> tuple[GapCulprit, ...]:
    """Return the _MOST_OF_GAP largest culprits of each class, and REST; the largest class first."""
    by_kind: dict[str, dict[str, int]] = {}
    for (kind, name), idle_ns in sorted(sums.items(), key=itemgetter(1), reverse=True):
        shown = by_kind.setdefault(kind, {})
        label = name if len(shown) < _MOST_OF_GAP else REST
        shown[label] = shown.get(label, 0) + idle_ns
    classes = sorted(by_kind.items(), key=lambda item: sum(item[1].values()), reverse=True)
    return tuple(GapCulprit(kind, *figures) for kind, shown in classes for figures in shown.items())


def _rest(culprits: Sequence[Culprit]) -> list[Culprit]:
    """Add up culprits into one REST culprit per class, the largest first."""
    classes = IdleCulprits(tuple(culprits), 0).by_class()
    return [_with_sums_of(Culprit(c.kind, REST, 0, 0, 0, ()), c.culprits) for c in classes]

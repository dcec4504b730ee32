"""The time of the chosen windows charged to single activities, and to what launched them.

Of activities that run at once the one whose component comes first owns an instant, and of several
of one component the one that began first. So what is charged sums to the components exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import numpy as np

from traceflops.attribution.launching_ops import ops_that_launched
from traceflops.attribution.range_labels import range_names
from traceflops.attribution.scopes import launch_scopes
from traceflops.characters import kernel_name
from traceflops.table import (
    IntArray,
    Names,
    codes,
    group_rows,
    group_sums,
    names,
    ranked,
    runs,
    taken,
)
from traceflops.timeline import WORK, DeviceAccount, Window, is_top
from traceflops.windows import Prepared

MOST_ROWS: Final = 2_000
"""So many ways to launch kernels are told apart; the others of a kernel are one row."""
LEAST_SHARE: Final = 10_000
"""Ways with less time than one in so many parts of all are not told apart either."""
MOST_FIGURES: Final = 100_000
"""So many times of single steps are listed, those of the rows with most time."""
USUAL: Final = {
    **dict.fromkeys(("op", "shapes", "scope")),
    "backward": False,
    "group": None,
    "others": 0,
    **dict.fromkeys(("wait_ns", "at_ns", "steps_ns")),
}
"""What most rows have in some columns; JSON leaves it out."""
OF_KERNEL: Final = ("name", "kind", "top", "sub", "rule")
"""Columns that a row has in common with that of its kernel."""


@dataclass(frozen=True, slots=True)
class Charged:
    """Pieces of time: of which activity (a row), component (a place in WORK) and used window.

    `offset_ns` is when a piece begins in its window, `wait_ns` the part of it that the activity
    waited for other ranks, -1 where that is not known.
    """

    row: IntArray
    component: IntArray
    window: IntArray
    ns: IntArray
    offset_ns: IntArray
    wait_ns: IntArray


@dataclass(frozen=True, slots=True)
class RankTimes:
    """By row of activities how long a collective waited for other ranks, -1: unknown; its group."""

    wait_ns: IntArray
    group: IntArray
    groups: Sequence[str]


def charged(prepared: Prepared, waits: RankTimes | None = None) -> Charged:
    """Return the work of the chosen windows, each ns charged to one activity."""
    empty, before = np.empty(0, dtype=np.int64), 0
    pieces: list[tuple[IntArray, ...]] = [(empty,) * 6]
    for device, windows in _used_windows(prepared).items():
        rows = prepared.accounts[device].rows.row
        for place, name in enumerate(WORK):
            mine = np.flatnonzero(is_top(prepared.linked.categorised, name, rows))
            for row, at, *times in _owned(prepared.accounts[device], name, mine, windows, waits):
                pieces.append((row, np.full_like(row, place), at + before, *times))
        before += len(windows)
    return Charged(*map(np.concatenate, zip(*pieces, strict=True)))


def _used_windows(prepared: Prepared) -> dict[int, list[Window]]:
    """Return the chosen windows of each device, in order."""
    return {
        device: [window for window in prepared.windows[device] if window.used]
        for device in prepared.accounts
    }


def _owned(
    account: DeviceAccount,
    component: str,
    mine: IntArray,
    windows: Sequence[Window],
    waits: RankTimes | None,
) -> Iterator[tuple[IntArray, ...]]:
    """Yield row, window, ns, offset and wait of what the work of a component owns, if anything."""
    if not len(mine) or not windows:
        return
    rows, part = account.rows, account.timeline.parts[component]
    begin, stop = np.array([(one.start_ns, one.end_ns) for one in windows], dtype=np.int64).T
    started, end = rows.start_ns[mine], np.maximum.accumulate(rows.end_ns[mine])
    start = np.maximum(started, np.append(started[0], end[:-1]))
    touched = (np.searchsorted(*edges) for edges in ((stop, start, "right"), (begin, end, "left")))
    at, of = runs(*touched)
    row, started = rows.row[mine][of], started[of]
    start, end = np.maximum(start[of], begin[at]), np.minimum(end[of], stop[at])
    end = np.maximum(start, end)
    waited = np.full_like(row, -1)
    if waits is not None:
        until = np.clip(started + waits.wait_ns[row], start, end)
        waited = np.where(waits.wait_ns[row] >= 0, part.length_within(start, until), -1)
    ns = part.length_within(start, end)
    yield tuple(column[ns > 0] for column in (row, at, ns, start - begin[at], waited))


@dataclass(frozen=True, slots=True)
class ChargedKernel:
    """What a kernel was charged by what launched it, over the chosen windows.

    `op` with the `shapes` of its inputs launched it in a `scope`: classes of modules, or an
    annotation without its numbers; of `backward` it is that of the forward op. `group` are the
    ranks that it communicates with. All are None where that is unknown; where not all ways are told
    apart, a row stands for so many `others`. `count` are the activities that start in the windows.
    `charged_ns` holds `wait_ns`, the waiting for other ranks, None where that is unknown. `at_ns`
    is how far from the start of its window it runs on average, None without time. `steps_ns` is
    its time by used step, None beyond MOST_FIGURES.
    """

    name: str
    kind: str
    top: str
    sub: str
    rule: str
    op: str | None
    shapes: str | None
    scope: str | None
    backward: bool
    group: str | None
    others: int
    count: int
    charged_ns: int
    wait_ns: int | None
    at_ns: int | None
    steps_ns: tuple[int, ...] | None

    @property
    def order(self) -> tuple[object, ...]:
        """Return what rows are sorted by: time, then texts, so that no file's order counts."""
        texts = (self.name, self.op, self.shapes, self.scope, self.group, self.kind, self.rule)
        return -self.charged_ns, *(text or "" for text in texts), self.backward, self.others


def charged_kernels(
    prepared: Prepared, waits: RankTimes | None = None
) -> tuple[ChargedKernel, ...]:
    """Return what each kernel was charged by what launched it, the most time first.

    They sum to the work of the chosen windows, component by component.
    """
    ways, found, chosen = _ways(prepared, waits), charged(prepared, waits), prepared.chosen
    of_row = np.full(prepared.trace.activities.num_rows, -1, dtype=np.int64)
    way, each = group_rows([code for code, _ in ways.values()])
    of_row[chosen.row] = way
    sums = group_sums(of_row[found.row], found.ns, len(each))
    rare = np.argsort(np.argsort(-sums, kind="stable")) >= MOST_ROWS
    rare |= sums * LEAST_SHARE < sums.sum()
    codes_of = {
        name: code if name in OF_KERNEL else np.where(rare[way], -1, code)
        for name, (code, _) in ways.items()
    }
    group, first = group_rows([*codes_of.values(), rare[way].astype(np.int64)])
    of_row[chosen.row] = group
    texts = [
        [known[at] if at >= 0 else USUAL.get(name) for at in codes_of[name][first].tolist()]
        for name, (_, known) in ways.items()
    ]
    figures = [
        group_sums(group[each], rare.astype(np.int64), len(first)),
        group_sums(group, prepared.begins, len(first)),
    ]
    rows: Iterable[Any] = zip(*texts, *(one.tolist() for one in figures), strict=True)
    times: Iterable[Any] = _times(prepared, found, of_row[found.row], len(first))
    kernels = [ChargedKernel(*row, *time) for row, time in zip(rows, times, strict=True)]
    return tuple(sorted(kernels, key=attrgetter("order")))


def _ways(
    prepared: Prepared, waits: RankTimes | None
) -> dict[str, tuple[IntArray, Sequence[object]]]:
    """Return what tells apart the ways of each activity of the windows: codes and what they are."""
    launched, row = prepared.as_launched, prepared.chosen.row
    activities, ops = prepared.trace.activities, launched.trace.ops
    categorised = prepared.linked.categorised
    op, call = ops_that_launched(launched, row), launched.linked.links.call_of_activity[row]
    around = launch_scopes(launched.linked, call, op, prepared.selection.step_mark)
    place = Names()
    kernel = np.append(place.codes(map(kernel_name, names(activities["name"]))), -1)
    each = zip(around.texts, around.is_module, strict=True)
    scopes = Names()
    called = range_names(launched.trace)
    scope = scopes.codes(text if is_module else called(text) for text, is_module in each)
    category, categories = categorised.category[row], categorised.categories
    unknown = np.full(len(row), -1, dtype=np.int64)
    return {
        "name": (kernel[codes(activities["name"])[row]], [*place]),
        "kind": (codes(activities["kind"])[row], names(activities["kind"])),
        "top": (category, [one.top for one in categories]),
        "sub": (category, [one.sub for one in categories]),
        "rule": (categorised.rule[row], categorised.rules),
        "op": (taken(codes(ops["name"]), op), names(ops["name"])),
        "shapes": (taken(codes(ops["input_dims"]), op), names(ops["input_dims"])),
        "scope": (taken(scope, around.scope), [*scopes]),
        "backward": (around.backward.astype(np.int64), (False, True)),
        "group": (waits.group[row], waits.groups) if waits is not None else (unknown, ()),
    }


def _times(
    prepared: Prepared, found: Charged, group: IntArray, count: int
) -> Iterator[tuple[int, int | None, int | None, tuple[int, ...] | None]]:
    """Yield charged_ns, wait_ns, at_ns and steps_ns of each group of pieces."""
    charged_ns = group_sums(group, found.ns, count)
    pieces, known = (
        group_sums(group, one.astype(np.int64), count) for one in (found.ns > 0, found.wait_ns >= 0)
    )
    waited = group_sums(group, np.maximum(found.wait_ns, 0), count)
    offset = group_sums(group, found.offset_ns, count) // np.maximum(pieces, 1)
    order = np.argsort(-charged_ns, kind="stable")
    steps, of_window = ranked(_steps(prepared))
    listed = order[: MOST_FIGURES // max(len(steps), 1)]
    place = np.full(count, -1, dtype=np.int64)
    place[listed] = np.arange(len(listed))
    by_step = np.zeros((len(listed), len(steps)), dtype=np.int64)
    mine = place[group] >= 0
    np.add.at(by_step, (place[group][mine], of_window[found.window][mine]), found.ns[mine])
    columns = (charged_ns, waited, known, offset, pieces, place)
    for ns, wait, is_known, when, has, at in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        times = tuple(by_step[at].tolist()) if at >= 0 else None
        yield ns, wait if is_known else None, when if has else None, times


def _steps(prepared: Prepared) -> IntArray:
    """Return the step of each chosen window, -1 for none."""
    windows = (window for mine in _used_windows(prepared).values() for window in mine)
    return np.array([-1 if one.step is None else one.step for one in windows], dtype=np.int64)

"""The time of the chosen windows charged to single activities, and to what launched them.

Where activities overlap, the time is charged to the one whose component comes first in WORK; within
a component, to the one that began first. So charged times sum to the components exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.launching_ops import ops_that_launched
from traceflops.attribution.marks import range_names
from traceflops.attribution.scopes import launch_scopes
from traceflops.characters import kernel_name
from traceflops.table.columns import Columns, IntArray, Names, codes, names
from traceflops.table.grouping import group_rows, group_sums, ranked, runs
from traceflops.table.nesting import taken
from traceflops.timeline.device_span import is_top
from traceflops.timeline.records import WORK, Window
from traceflops.windows.prepared import Prepared

MOST_ROWS: Final = 2_000
"""At most so many launch paths get a row of their own; the others of a kernel share one row."""
LEAST_SHARE: Final = 10_000
"""Launch paths with less than 1/10,000 of all time share that row, too."""
MOST_FIGURES: Final = 100_000
"""At most so many times of single steps are listed, for the rows with most time."""
USUAL: Final = {
    **dict.fromkeys(("op", "shapes", "scope")),
    "backward": False,
    "group": None,
    "others": 0,
    **dict.fromkeys(("wait_ns", "at_ns", "steps_ns")),
}
"""Default values of columns; JSON leaves them out."""
OF_KERNEL: Final = ("name", "kind", "top", "sub", "rule")
"""Columns that a row shares with the row of its kernel."""


class Charged(Columns, frozen=True):
    """Pieces of time charged to one activity in one window, a row per piece; times in ns.

    `row` is the row of the activity, `component` an index into WORK, `window` the number of the
    used window, counted over all devices. `offset_ns` is from the start of the window to that of
    the piece, `wait_ns` how long the activity waited for other ranks in the piece, -1 if unknown.
    """

    row: IntArray
    component: IntArray
    window: IntArray
    ns: IntArray
    offset_ns: IntArray
    wait_ns: IntArray


class RankTimes(Struct, frozen=True):
    """Per activity, how long a collective waited for other ranks (-1: unknown), and its group."""

    wait_ns: IntArray
    group: IntArray
    groups: Sequence[str]


def charged(prepared: Prepared, waits: RankTimes | None = None) -> Charged:
    """Charge each ns of work to one activity; return a piece per activity and window."""
    windows_before = 0  # number of the used windows of earlier devices
    pieces = list[Charged]()
    for device in prepared.accounts:
        used = [window for window in prepared.windows[device] if window.used]
        for component in WORK if used else ():
            piece = _charged_component(prepared, device, component, used, waits)
            pieces.append(replace(piece, window=piece.window + windows_before))
        windows_before += len(used)
    return Charged.joined(pieces)


def _charged_component(
    prepared: Prepared, device: int, component: str, used: list[Window], waits: RankTimes | None
) -> Charged:
    """Return the pieces of one component of a device; `window` is an index into `used`."""
    account, categorised = prepared.accounts[device], prepared.linked.categorised
    selected = np.flatnonzero(is_top(categorised, component, account.rows.row))
    # Rows are sorted by start. An activity is charged its time after the latest end before it:
    # start [0 2 9], end [8 5 12]  ->  reach [8 8 12], own_start [0 8 9]: 8, 0 and 3 ns
    row, begun = account.rows.row[selected], account.rows.start_ns[selected]
    reach = np.maximum.accumulate(account.rows.end_ns[selected])
    own_start = np.maximum(begun, np.append(begun[:1], reach[:-1]))
    # Every pair of an activity (`index`) and a window that it overlaps, and the time they share.
    window_start = np.array([window.start_ns for window in used], dtype=np.int64)
    window_end = np.array([window.end_ns for window in used], dtype=np.int64)
    first_window = np.searchsorted(window_end, own_start, "right")
    stop_window = np.searchsorted(window_start, reach, "left")
    window, index = runs(first_window, stop_window)
    row, begun = row[index], begun[index]
    start = np.maximum(own_start[index], window_start[window])
    end = np.maximum(start, np.minimum(reach[index], window_end[window]))
    # Time that a component earlier in WORK covers is not visible.
    visible = account.timeline.parts[component]
    waited_ns = np.full_like(row, -1)
    if waits is not None:  # a collective waits first and then transfers
        wait_end = np.clip(begun + waits.wait_ns[row], start, end)
        is_known = waits.wait_ns[row] >= 0
        waited_ns = np.where(is_known, visible.length_within(start, wait_end), -1)
    code, ns = np.full_like(row, WORK.index(component)), visible.length_within(start, end)
    offset_ns = start - window_start[window]
    return Charged(row, code, window, ns, offset_ns, waited_ns).only(ns > 0)


class ChargedKernel(Struct, frozen=True):
    """Time charged to one kernel launched in one way, over the chosen windows; times in ns.

    `op`, with the `shapes` of its inputs, launched it inside `scope`: classes of modules, or an
    annotation without its numbers; with `backward`, it is the scope of the forward op. `group` are
    the ranks that it communicates with. All of these are None if unknown. `others` counts the
    launch paths of the kernel that share this row, 0 if it has a row of its own. `count` is the
    number of activities that start in the windows. `wait_ns` is the part of `charged_ns` that
    waited for other ranks, None if unknown. `at_ns` is the mean start of its pieces in their
    windows, None without time. `steps_ns` is its time by used step, None beyond MOST_FIGURES.
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
        """Return the sort key: time, then texts, so that the order of files does not matter."""
        texts = (self.name, self.op, self.shapes, self.scope, self.group, self.kind, self.rule)
        return -self.charged_ns, *(text or "" for text in texts), self.backward, self.others


def charged_kernels(
    prepared: Prepared, waits: RankTimes | None = None
) -> tuple[ChargedKernel, ...]:
    """Return the time in ns charged to each kernel and launch path, the most time first."""
    columns, pieces = _launch_paths(prepared, waits), charged(prepared, waits)
    chosen = prepared.chosen
    # Equal codes in all columns are one launch path.
    path, row_of_path = group_rows([code for code, _ in columns.values()])
    group_of_activity = np.full(prepared.trace.activities.num_rows, -1, dtype=np.int64)
    group_of_activity[chosen.row] = path
    sums = group_sums(group_of_activity[pieces.row], pieces.ns, len(row_of_path))
    # A path is rare if MOST_ROWS paths have more time, or its share is small. The rare paths of a
    # kernel share one row, whose other columns are unknown.
    # sums [5 9 7]  ->  argsort(-sums) [1 2 0]  ->  its argsort [2 0 1] = place of each path by time
    place_by_time = np.argsort(np.argsort(-sums, kind="stable"))
    is_rare = (place_by_time >= MOST_ROWS) | (sums * LEAST_SHARE < sums.sum())
    codes_of = {
        name: code if name in OF_KERNEL else np.where(is_rare[path], -1, code)
        for name, (code, _) in columns.items()
    }
    group, first = group_rows([*codes_of.values(), is_rare[path].astype(np.int64)])
    group_of_activity[chosen.row] = group
    texts = [
        [values[code] if code >= 0 else USUAL.get(name) for code in codes_of[name][first].tolist()]
        for name, (_, values) in columns.items()
    ]
    others = group_sums(group[row_of_path], is_rare.astype(np.int64), len(first)).tolist()
    counts = group_sums(group, prepared.begins, len(first)).tolist()
    rows: Iterable[Any] = zip(*texts, others, counts, strict=True)
    times: Iterable[Any] = _times(prepared, pieces, group_of_activity[pieces.row], len(first))
    kernels = [ChargedKernel(*row, *time) for row, time in zip(rows, times, strict=True)]
    return tuple(sorted(kernels, key=attrgetter("order")))


def _launch_paths(
    prepared: Prepared, waits: RankTimes | None
) -> dict[str, tuple[IntArray, Sequence[object]]]:
    """Return, by column of ChargedKernel, a code per chosen activity and the value of each code."""
    launches, row = prepared.as_launched, prepared.chosen.row
    activities, ops = prepared.trace.activities, launches.trace.ops
    categorised = prepared.linked.categorised
    op = ops_that_launched(launches, row)
    call = launches.linked.links.call_of_activity[row]
    around = launch_scopes(launches.linked, call, op, prepared.selection.step_mark)
    kernel_names, scope_names, range_name = Names(), Names(), range_names(launches.trace)
    # Name code -1 (no name) takes the last element of `kernel`, -1.
    kernel = np.append(kernel_names.codes(map(kernel_name, names(activities["name"]))), -1)
    scope = scope_names.codes(
        text if is_module else range_name(text)
        for text, is_module in zip(around.texts, around.is_module, strict=True)
    )
    category, categories = categorised.category[row], categorised.categories
    unknown = np.full(len(row), -1, dtype=np.int64)
    return {
        "name": (kernel[codes(activities["name"])[row]], [*kernel_names]),
        "kind": (codes(activities["kind"])[row], names(activities["kind"])),
        "top": (category, [c.top for c in categories]),
        "sub": (category, [c.sub for c in categories]),
        "rule": (categorised.rule[row], categorised.rules),
        "op": (taken(codes(ops["name"]), op), names(ops["name"])),
        "shapes": (taken(codes(ops["input_dims"]), op), names(ops["input_dims"])),
        "scope": (taken(scope, around.scope), [*scope_names]),
        "backward": (around.backward.astype(np.int64), (False, True)),
        "group": (waits.group[row], waits.groups) if waits is not None else (unknown, ()),
    }


def _times(
    prepared: Prepared, charged: Charged, group: IntArray, count: int
) -> Iterator[tuple[int, int | None, int | None, tuple[int, ...] | None]]:
    """Yield charged_ns, wait_ns, at_ns, steps_ns (see ChargedKernel) per group of pieces."""
    charged_ns = group_sums(group, charged.ns, count)
    pieces = group_sums(group, (charged.ns > 0).astype(np.int64), count)
    pieces_with_wait = group_sums(group, (charged.wait_ns >= 0).astype(np.int64), count)
    waited = group_sums(group, np.maximum(charged.wait_ns, 0), count)
    offset = group_sums(group, charged.offset_ns, count) // np.maximum(pieces, 1)
    windows = (w for device in prepared.accounts for w in prepared.windows[device] if w.used)
    step_of_window = np.array([-1 if w.step is None else w.step for w in windows], dtype=np.int64)
    steps, step = ranked(step_of_window)
    # By step, only the groups with most time are listed; other groups have row -1.
    # order [2 0 1], two may be listed  ->  listed [2 0]  ->  list_row of groups 0 to 2: [1 -1 0]
    order = np.argsort(-charged_ns, kind="stable")
    listed = order[: MOST_FIGURES // max(len(steps), 1)]
    list_row = np.full(count, -1, dtype=np.int64)
    list_row[listed] = np.arange(len(listed))
    by_step = np.zeros((len(listed), len(steps)), dtype=np.int64)
    row = list_row[group]
    is_listed = row >= 0
    indices = row[is_listed], step[charged.window][is_listed]
    np.add.at(by_step, indices, charged.ns[is_listed])
    columns = (charged_ns, waited, pieces_with_wait, offset, pieces, list_row)
    for ns, wait, is_known, at_ns, has_time, index in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        times = tuple(by_step[index].tolist()) if index >= 0 else None
        yield ns, wait if is_known else None, at_ns if has_time else None, times

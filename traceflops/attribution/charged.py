"""The time of the chosen windows charged to single activities, and to what launched them.

Of activities that run at once the one whose component comes first owns an instant, and of several
of one component the one that began first. So charged times sum to the components exactly.
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
from traceflops.table.columns import Columns, IntArray, Names, codes, names
from traceflops.table.grouping import group_rows, group_sums, ranked, runs
from traceflops.table.nesting import taken
from traceflops.timeline.device_span import is_top
from traceflops.timeline.records import WORK
from traceflops.windows.prepared import Prepared

MOST_ROWS: Final = 2_000
"""At most so many launch paths have a row of their own; the others of a kernel share one."""
LEAST_SHARE: Final = 10_000
"""So do launch paths with less than one part in so many of all time."""
MOST_FIGURES: Final = 100_000
"""At most so many times of single steps are listed, those of the rows with most time."""
USUAL: Final = {
    **dict.fromkeys(("op", "shapes", "scope")),
    "backward": False,
    "group": None,
    "others": 0,
    **dict.fromkeys(("wait_ns", "at_ns", "steps_ns")),
}
"""What most rows have in some columns; JSON leaves it out."""
OF_KERNEL: Final = ("name", "kind", "top", "sub", "rule")
"""Columns that a row shares with the row of its kernel."""


@dataclass(frozen=True, slots=True)
class Charged(Columns):
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
    """Per activity, how long a collective waited for other ranks (-1: unknown), and its group."""

    wait_ns: IntArray
    group: IntArray
    groups: Sequence[str]


def charged(prepared: Prepared, waits: RankTimes | None = None) -> Charged:
    """Return the work of the chosen windows in pieces, each ns charged to one activity.

    There is a piece per activity and window that it works in. Without `waits` all `wait_ns` are -1.
    """
    empty, before = np.empty(0, dtype=np.int64), 0
    pieces = [Charged(*[empty] * 6)]
    for device, account in prepared.accounts.items():
        rows = account.rows
        windows = [(w.start_ns, w.end_ns) for w in prepared.windows[device] if w.used]
        begin, stop = np.array(windows, dtype=np.int64).reshape(-1, 2).T
        for component, name in enumerate(WORK):
            own = np.flatnonzero(is_top(prepared.linked.categorised, name, rows.row))
            if not len(own) or not windows:
                continue
            # An activity owns what no earlier one of its component covers, less what is of an
            # earlier component.
            part = account.timeline.parts[name]
            started, end = rows.start_ns[own], np.maximum.accumulate(rows.end_ns[own])
            start = np.maximum(started, np.append(started[0], end[:-1]))
            first, last = np.searchsorted(stop, start, "right"), np.searchsorted(begin, end, "left")
            window, work = runs(first, last)
            row = rows.row[own][work]
            start, end = np.maximum(start[work], begin[window]), np.minimum(end[work], stop[window])
            end = np.maximum(start, end)
            waited = np.full_like(row, -1)
            if waits is not None:
                until = np.clip(started[work] + waits.wait_ns[row], start, end)
                waited = np.where(waits.wait_ns[row] >= 0, part.length_within(start, until), -1)
            ns, kind = part.length_within(start, end), np.full_like(row, component)
            offset = start - begin[window]
            pieces.append(Charged(row, kind, window + before, ns, offset, waited).only(ns > 0))
        before += len(windows)
    return Charged.joined(pieces)


@dataclass(frozen=True, slots=True)
class ChargedKernel:
    """What a kernel was charged by what launched it, over the chosen windows.

    `op` with the `shapes` of its inputs launched it in a `scope`: classes of modules, or an
    annotation without its numbers; of `backward` it is that of the forward op. `group` are the
    ranks that it communicates with. All are None where that is unknown. A row may stand for so many
    `others` of its kernel. `count` are the activities that start in the windows.
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
    paths, pieces = _launch_paths(prepared, waits), charged(prepared, waits)
    chosen = prepared.chosen
    of_row = np.full(prepared.trace.activities.num_rows, -1, dtype=np.int64)
    path, one_each = group_rows([code for code, _ in paths.values()])
    of_row[chosen.row] = path
    sums = group_sums(of_row[pieces.row], pieces.ns, len(one_each))
    rare = np.argsort(np.argsort(-sums, kind="stable")) >= MOST_ROWS
    rare |= sums * LEAST_SHARE < sums.sum()
    codes_of = {
        name: code if name in OF_KERNEL else np.where(rare[path], -1, code)
        for name, (code, _) in paths.items()
    }
    group, first = group_rows([*codes_of.values(), rare[path].astype(np.int64)])
    of_row[chosen.row] = group
    texts = [
        [known[code] if code >= 0 else USUAL.get(name) for code in codes_of[name][first].tolist()]
        for name, (_, known) in paths.items()
    ]
    others = group_sums(group[one_each], rare.astype(np.int64), len(first)).tolist()
    counts = group_sums(group, prepared.begins, len(first)).tolist()
    rows: Iterable[Any] = zip(*texts, others, counts, strict=True)
    times: Iterable[Any] = _times(prepared, pieces, of_row[pieces.row], len(first))
    kernels = [ChargedKernel(*row, *time) for row, time in zip(rows, times, strict=True)]
    return tuple(sorted(kernels, key=attrgetter("order")))


def _launch_paths(
    prepared: Prepared, waits: RankTimes | None
) -> dict[str, tuple[IntArray, Sequence[object]]]:
    """Return, by column, codes per activity of the chosen windows, and the values of the codes."""
    launched, row = prepared.as_launched, prepared.chosen.row
    activities, ops = prepared.trace.activities, launched.trace.ops
    categorised = prepared.linked.categorised
    op, call = ops_that_launched(launched, row), launched.linked.links.call_of_activity[row]
    around = launch_scopes(launched.linked, call, op, prepared.selection.step_mark)
    kernels, scopes, range_name = Names(), Names(), range_names(launched.trace)
    kernel = np.append(kernels.codes(map(kernel_name, names(activities["name"]))), -1)
    scope = scopes.codes(
        text if is_module else range_name(text)
        for text, is_module in zip(around.texts, around.is_module, strict=True)
    )
    category, categories = categorised.category[row], categorised.categories
    unknown = np.full(len(row), -1, dtype=np.int64)
    return {
        "name": (kernel[codes(activities["name"])[row]], [*kernels]),
        "kind": (codes(activities["kind"])[row], names(activities["kind"])),
        "top": (category, [known.top for known in categories]),
        "sub": (category, [known.sub for known in categories]),
        "rule": (categorised.rule[row], categorised.rules),
        "op": (taken(codes(ops["name"]), op), names(ops["name"])),
        "shapes": (taken(codes(ops["input_dims"]), op), names(ops["input_dims"])),
        "scope": (taken(scope, around.scope), [*scopes]),
        "backward": (around.backward.astype(np.int64), (False, True)),
        "group": (waits.group[row], waits.groups) if waits is not None else (unknown, ()),
    }


def _times(
    prepared: Prepared, charged: Charged, group: IntArray, count: int
) -> Iterator[tuple[int, int | None, int | None, tuple[int, ...] | None]]:
    """Yield charged_ns, wait_ns, at_ns and steps_ns of each group of pieces."""
    charged_ns = group_sums(group, charged.ns, count)
    pieces, known = (
        group_sums(group, has.astype(np.int64), count)
        for has in (charged.ns > 0, charged.wait_ns >= 0)
    )
    waited = group_sums(group, np.maximum(charged.wait_ns, 0), count)
    offset = group_sums(group, charged.offset_ns, count) // np.maximum(pieces, 1)
    windows = (w for device in prepared.accounts for w in prepared.windows[device] if w.used)
    step_of_window = np.array([-1 if w.step is None else w.step for w in windows], dtype=np.int64)
    steps, step = ranked(step_of_window)
    # By step only the groups with most time are listed.
    order = np.argsort(-charged_ns, kind="stable")
    listed = order[: MOST_FIGURES // max(len(steps), 1)]
    list_row = np.full(count, -1, dtype=np.int64)
    list_row[listed] = np.arange(len(listed))
    by_step = np.zeros((len(listed), len(steps)), dtype=np.int64)
    row = list_row[group]
    kept = row >= 0
    np.add.at(by_step, (row[kept], step[charged.window][kept]), charged.ns[kept])
    columns = (charged_ns, waited, known, offset, pieces, list_row)
    for ns, wait, is_known, at_ns, has, index in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        times = tuple(by_step[index].tolist()) if index >= 0 else None
        yield ns, wait if is_known else None, at_ns if has else None, times

"""The tree of a step as icicles: boxes as wide as their time, what is inside a box below it.

Everything is in percent and rows, so that the template only prints it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count as numbers_from
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.analysis.result import Analysis
from traceflops.attribution.scopes import module_class
from traceflops.attribution.time_tree import TREE_PHASES, TimeNode, time_trees
from traceflops.reports.page.kernels import kernel_places
from traceflops.reports.view import figures
from traceflops.reports.view.palette import LINE_LOOKS
from traceflops.reports.view.step_split import CULPRIT
from traceflops.reports.view.utilisation import recoverable_ns

_MOST_BOXES, _ROWS = 130, 7  # boxes of one lens, and rows of it
_LEAST: Final = 0.004  # share of the step below which boxes of one parent are drawn as one
_ALIKE: Final = 4  # so many modules of one class in one other are one box
_LETTER, _EDGE = 7.2, 12  # pixels of a letter and of the space around a label
_WIDTHS: Final = (340, 700, 1190)
"""Widths of the drawing, in pixels, from which on a label is shown if it fits there."""
_LEAST_LETTERS: Final = 14  # of a label that is cut
_LONGEST: Final = 70
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
_LENSES: Final = {"module": ("Module", 2), "python": ("Python", 3), "kernel": ("Kernel", 3)}
"""By lens its title, and the levels that a tree must have to tell anything."""

Box = dict[str, Any]
"""A box: `x` and `width` in percent of the drawing, its row, its texts.

`above` and `idle` are the parts at its right end, in percent of the drawing: time above the roof,
and idle time. `shows` is the width of the drawing in pixels from which on the label fits, `value`
whether its time fits beside it, `kernels` the numbers of its rows in the table of kernels.
"""


class _Kernels(Struct, frozen=True):
    """By kernel: the share of its time that it would save at its roof; its rows in the table."""

    share: Mapping[str, Fraction]
    rows: Mapping[str, Sequence[int]]

    def above_ns(self, node: TimeNode) -> int:
        """Return the part of a node's work that is above the roof."""
        times = ((ns, self.share.get(name)) for name, ns in node.kernels.items())
        return sum(int(ns * share) for ns, share in times if share)


def icicles(analysis: Analysis) -> list[dict[str, Any]]:
    """Return per lens its boxes, rows, and a sentence on what is largest; none without times."""
    if analysis.prepared is None or not analysis.components.window_ns:
        return []
    saved = ((row, recoverable_ns(analysis.measured, row)) for row in analysis.measured.kernels)
    # By kernel the share of its time that it would save at its roof.
    shares = {row.name: Fraction(ns, row.sum_ns) for row, ns in saved if ns and row.sum_ns}
    known = _Kernels(shares, kernel_places(analysis.kernels))
    drawn = []
    for lens, tree in time_trees(analysis.prepared).items():
        title, least_depth = _LENSES[lens]
        if _depth(tree, least_depth) < least_depth:
            continue
        boxes = list(_boxes(analysis, lens, tree, known))
        rows, sentence = max(box["row"] for box in boxes) + 1, ""
        inside = [one for one in _inside(_root(analysis, tree)) if one.node.kernels]
        if inside:
            largest = max(inside, key=lambda one: one.node.total_ns)
            time = _time(analysis, largest.node.total_ns)
            slow = known.above_ns(largest.node)
            above = f", {_time(analysis, slow)} of it above the roof" if slow else ""
            name = figures.kernel_label(largest.label, _LONGEST)
            sentence = f"Most time is in {name}: {time}{above}."
        drawn.append({"lens": lens, "title": title, "boxes": boxes, "rows": rows})
        drawn[-1]["sentence"] = sentence
    return drawn


def _depth(node: TimeNode, most: int) -> int:
    """Return how many levels of nodes with kernels are in a node, at most `most` + 1."""
    inside = [one for one in node.inside.values() if one.kernels and most]
    return max((1 + _depth(one, most - 1) for one in inside), default=0)


def _time(analysis: Analysis, ns: int) -> str:
    return figures.duration(analysis.mean_ns(ns))


class _Shown(Struct, frozen=True):
    """A node as drawn; one at the end of a chain of nodes may keep the label of the first."""

    label: str
    node: TimeNode
    keeps_label: bool = False
    is_merged: bool = False


def _boxes(analysis: Analysis, lens: str, tree: TimeNode, known: _Kernels) -> Iterator[Box]:
    """Yield the boxes of a tree, the largest known one first, at most _MOST_BOXES."""
    total, ties = tree.total_ns, numbers_from()
    # A heap of (-ns, tie, start_ns, row, node); ties are broken by the order of discovery.
    waiting = [(-total, next(ties), 0, 0, _root(analysis, tree))]
    for number in range(_MOST_BOXES):
        if not waiting:
            return
        _, _, start_ns, row, one = heappop(waiting)
        yield _box(analysis, f"tree={lens}-{number}", start_ns, row, one, total, known)
        if one.is_merged or row + 1 >= _ROWS:
            continue
        inside = _inside(one)  # the largest first, so the small ones are the last
        small = [inner for inner in inside if inner.node.total_ns < _LEAST * total]
        if len(small) > 1:
            rest = _Shown(f"{len(small)} more", _sum(s.node for s in small), is_merged=True)
            inside = [*inside[: len(inside) - len(small)], rest]
        for inner in inside:
            entry = (-inner.node.total_ns, next(ties), start_ns, row + 1, inner)
            heappush(waiting, entry)
            start_ns += inner.node.total_ns


def _root(analysis: Analysis, tree: TimeNode) -> _Shown:
    label = "step" if analysis.steps.seen else "window"
    return _end_of_chain(_Shown(label, tree, keeps_label=True))


def _inside(one: _Shown) -> list[_Shown]:
    """Return the nodes in a node, the largest first; _ALIKE or more of one module class are one."""
    alike: defaultdict[str, list[TimeNode]] = defaultdict(list)
    for label, node in one.node.inside.items():
        alike[module_class(label) if node.inside else label].append(node)
    found = []
    for label, nodes in alike.items():
        if len(nodes) < _ALIKE:
            found += [_Shown(node.label, node, node.label in TREE_PHASES) for node in nodes]
        else:
            found.append(
                _Shown(f"{len(nodes)} {_TIMES} {label}", _together(nodes), keeps_label=True)
            )
    found.sort(key=lambda each: (-each.node.total_ns, each.label))
    return [_end_of_chain(each) for each in found]


def _together(nodes: Sequence[TimeNode]) -> TimeNode:
    """Return the sum of several nodes; inside it, nodes of the same label are summed likewise."""
    if len(nodes) == 1:
        return nodes[0]
    alike: defaultdict[str, list[TimeNode]] = defaultdict(list)
    for node in nodes:
        for label, inner in node.inside.items():
            alike[label].append(inner)
    total = _sum(nodes)
    total.inside = {label: _together(same) for label, same in alike.items()}
    return total


def _sum(nodes: Iterable[TimeNode]) -> TimeNode:
    """Return one node with the time of several and the label of the last, with nothing inside."""
    total = TimeNode("")
    for node in nodes:
        total.label = node.label
        total.idle_ns += node.idle_ns
        total.components.update(node.components)
        total.kernels.update(node.kernels)
    return total


def _end_of_chain(one: _Shown) -> _Shown:
    """Skip nodes whose only child has all their time; stop above operators, the innermost nodes."""
    while len(one.node.inside) == 1:
        (inner,) = one.node.inside.values()
        if not inner.inside or inner.total_ns != one.node.total_ns:
            break
        one = replace(one, node=inner, label=one.label if one.keeps_label else inner.label)
    return one


def _box(
    analysis: Analysis, link: str, start: int, row: int, one: _Shown, total: int, known: _Kernels
) -> Box:
    """Return the box of a node; places are percent of `total` ns, `start` is ns from the left."""
    node, slow = one.node, known.above_ns(one.node)
    time, width = _time(analysis, node.total_ns), 100 * node.total_ns / total
    # White letters cannot be read on the grey of idle time: the label has the room of the work.
    # A box of idle time alone has dark letters: `CULPRIT`, as it has no component.
    work = width - 100 * node.idle_ns / total if node.components.total() else width
    # A label that fits, the least drawing for it in px, and whether its time fits, too.
    short = figures.kernel_text(one.label.removeprefix("aten::")).partition("<")[0] or one.label
    room = int((work / 100 * _WIDTHS[-1] - _EDGE) / _LETTER)  # letters, if the drawing is widest
    label, shows, has_time = "", 0, len(short) + 1 + len(time) <= room
    if room >= min(_LEAST_LETTERS, len(short)):
        time_letters = len(time) + 1 if has_time else 0
        label = figures.shorten_middle(short, room - time_letters)
        needed = ((len(label) + time_letters) * _LETTER + _EDGE) / work * 100
        shows = next((px for px in _WIDTHS if px >= needed), _WIDTHS[-1])
    ((component, _),) = node.components.most_common(1) or [(CULPRIT, 0)]
    look = component if component in LINE_LOOKS else "other"

    def percent_of(ns: int) -> float:
        return round(100 * ns / total, 3)

    facts = [f"{time}, {figures.percent(node.total_ns / total)}"]
    facts += [f"{_time(analysis, slow)} above the roof"] if slow else []
    facts += [f"{_time(analysis, node.idle_ns)} idle"] if node.idle_ns else []
    return {
        "link": link,
        "x": percent_of(start),
        "width": percent_of(node.total_ns),
        "row": row,
        "above": percent_of(slow),
        "idle": percent_of(node.idle_ns),
        "look": look if node.components.total() else CULPRIT,
        "label": label,
        "shows": shows,
        "value": has_time and shows > 0,
        "time": time,
        "text": f"{figures.kernel_label(one.label, _LONGEST)}: {'; '.join(facts)}",
        "kernels": sorted(number for name in node.kernels for number in known.rows.get(name, ())),
    }

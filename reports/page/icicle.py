"""The time of a step as a tree of boxes (an icicle): a box is as wide as its time.

Below a box are the boxes inside it. A lens is one of several trees of the same time: by module, by
Python function or by kernel. Positions are percent and rows, which the template only prints.
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

_MOST_BOXES, _ROWS = 130, 7  # per lens
_LEAST: Final = 0.004  # share of the step below which the boxes of a parent are drawn as one
_ALIKE: Final = 4  # so many modules of one class in the same module are drawn as one box
_LETTER, _EDGE = 7.2, 12  # pixels of a letter and of the space around a label
_WIDTHS: Final = (340, 700, 1190)
"""Widths of the drawing in pixels: a label is shown from the first at which it fits."""
_LEAST_LETTERS: Final = 14  # of a label that is cut
_LONGEST: Final = 70
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
_LENSES: Final = {"module": ("Module", 2), "python": ("Python", 3), "kernel": ("Kernel", 3)}
"""The title of each lens, and how many levels a tree must have to be of use."""

Box = dict[str, Any]
"""A box: `x` and `width` in percent of the drawing, its row, its texts.

`above` and `idle` are parts at its right end, in percent of the drawing: time beyond that at the
roof, and idle time. `shows` is the width of the drawing in pixels from which the label fits,
`value` whether its time fits beside it, `kernels` are its row numbers in the table of kernels.
"""


class _Kernels(Struct, frozen=True):
    """By kernel: the share of its time that it would save at its roof; its rows in the table."""

    share: Mapping[str, Fraction]
    rows: Mapping[str, Sequence[int]]

    def above_ns(self, node: TimeNode) -> int:
        """Return the time that the kernels of a node would save at their roofs."""
        times = ((ns, self.share.get(name)) for name, ns in node.kernels.items())
        return sum(int(ns * share) for ns, share in times if share)


def icicles(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the boxes of each lens, their rows, and a sentence on the largest; none if useless."""
    if not analysis.components.window_ns:
        return []
    saved = ((row, recoverable_ns(analysis.measured, row)) for row in analysis.measured.kernels)
    shares = {row.name: Fraction(ns, row.sum_ns) for row, ns in saved if ns and row.sum_ns}
    kernels = _Kernels(shares, kernel_places(analysis.kernels))
    drawn = []
    for lens, tree in time_trees(analysis.prepared).items():
        title, least_depth = _LENSES[lens]
        if _depth(tree, least_depth) >= least_depth:
            boxes = list(_boxes(analysis, lens, tree, kernels))
            icicle = {
                "lens": lens,
                "title": title,
                "boxes": boxes,
                "rows": max(box["row"] for box in boxes) + 1,
                "sentence": _sentence(analysis, tree, kernels),
            }
            drawn.append(icicle)
    return drawn


def _sentence(analysis: Analysis, tree: TimeNode, kernels: _Kernels) -> str:
    """Return where most time is, one level below the root, "" if there are no kernels."""
    inside = [shown for shown in _inside(_root(analysis, tree)) if shown.node.kernels]
    if not inside:
        return ""
    largest = max(inside, key=lambda shown: shown.node.total_ns)
    above_ns = kernels.above_ns(largest.node)
    above = f", {_time(analysis, above_ns)} of it above the roof" if above_ns else ""
    name = figures.kernel_label(largest.label, _LONGEST)
    return f"Most time is in {name}: {_time(analysis, largest.node.total_ns)}{above}."


def _depth(node: TimeNode, most: int) -> int:
    """Return how many levels of nodes with kernels are below a node; counting stops at `most`."""
    inside = [inner for inner in node.inside.values() if inner.kernels and most]
    return max((1 + _depth(inner, most - 1) for inner in inside), default=0)


def _time(analysis: Analysis, ns: int) -> str:
    return figures.duration(analysis.mean_ns(ns))


class _Shown(Struct, frozen=True):
    """A node as drawn.

    Of a chain of only children, the last node is drawn, with the label of the first if that
    `keeps_label`. A node `is_merged` if it stands for several small ones, and has nothing inside.
    """

    label: str
    node: TimeNode
    keeps_label: bool = False
    is_merged: bool = False


def _boxes(analysis: Analysis, lens: str, tree: TimeNode, kernels: _Kernels) -> Iterator[Box]:
    """Yield at most _MOST_BOXES boxes of a tree: always the largest one whose parent is drawn."""
    total_ns, ties = tree.total_ns, numbers_from()
    # A heap of (-ns, tie, start_ns, row, node); ties are broken by the order of discovery.
    candidates = [(-total_ns, next(ties), 0, 0, _root(analysis, tree))]
    for number in range(_MOST_BOXES):
        if not candidates:
            return
        _, _, start_ns, row, shown = heappop(candidates)
        yield _box(analysis, f"tree={lens}-{number}", start_ns, row, shown, total_ns, kernels)
        if shown.is_merged or row + 1 >= _ROWS:
            continue
        inside = _inside(shown)  # the largest first, so the small ones are the last
        small = [inner for inner in inside if inner.node.total_ns < _LEAST * total_ns]
        if len(small) > 1:
            merged = _Shown(f"{len(small)} more", _sum(s.node for s in small), is_merged=True)
            inside = [*inside[: len(inside) - len(small)], merged]
        for inner in inside:
            heappush(candidates, (-inner.node.total_ns, next(ties), start_ns, row + 1, inner))
            start_ns += inner.node.total_ns


def _root(analysis: Analysis, tree: TimeNode) -> _Shown:
    label = "step" if analysis.steps.seen else "window"
    return _end_of_chain(_Shown(label, tree, keeps_label=True))


def _inside(shown: _Shown) -> list[_Shown]:
    """Return the nodes in a node, the largest first; _ALIKE or more of one class become one."""
    alike: defaultdict[str, list[TimeNode]] = defaultdict(list)
    for label, node in shown.node.inside.items():
        alike[module_class(label) if node.inside else label].append(node)
    inside = []
    for label, nodes in alike.items():
        if len(nodes) < _ALIKE:
            inside += [_Shown(node.label, node, node.label in TREE_PHASES) for node in nodes]
        else:
            several = f"{len(nodes)} {_TIMES} {label}"
            inside.append(_Shown(several, _together(nodes), keeps_label=True))
    inside.sort(key=lambda inner: (-inner.node.total_ns, inner.label))
    return [_end_of_chain(inner) for inner in inside]


def _together(nodes: Sequence[TimeNode]) -> TimeNode:
    """Return the sum of several nodes; inside it, nodes with the same label are summed, too."""
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
    """Return a node with the time of several nodes, the label of the last, and nothing inside."""
    total = TimeNode("")
    for node in nodes:
        total.label = node.label
        total.idle_ns += node.idle_ns
        total.components.update(node.components)
        total.kernels.update(node.kernels)
    return total


def _end_of_chain(shown: _Shown) -> _Shown:
    """Skip nodes whose only child has all their time; stop above operators, the innermost nodes."""
    while len(shown.node.inside) == 1:
        (inner,) = shown.node.inside.values()
        if not inner.inside or inner.total_ns != shown.node.total_ns:
            break
        label = shown.label if shown.keeps_label else inner.label
        shown = replace(shown, node=inner, label=label)
    return shown


def _box(
    analysis: Analysis,
    link: str,
    start_ns: int,
    row: int,
    shown: _Shown,
    total_ns: int,
    kernels: _Kernels,
) -> Box:
    """Return the box of a node that begins `start_ns` from the left of `total_ns`."""
    node, above_ns = shown.node, kernels.above_ns(shown.node)
    time, has_work = _time(analysis, node.total_ns), node.components.total() > 0
    # White letters cannot be read on the grey of idle time: the label is put on the work. A box of
    # idle time alone has dark letters.
    width, idle_width = 100 * node.total_ns / total_ns, 100 * node.idle_ns / total_ns
    label_width = width - idle_width if has_work else width
    # Cut the label to what fits if the drawing is widest, and find the least drawing for it.
    name = figures.kernel_text(shown.label.removeprefix("aten::")).partition("<")[0] or shown.label
    room = int((label_width / 100 * _WIDTHS[-1] - _EDGE) / _LETTER)  # letters
    label, shows, has_time = "", 0, len(name) + 1 + len(time) <= room
    if room >= min(_LEAST_LETTERS, len(name)):
        time_letters = len(time) + 1 if has_time else 0
        label = figures.shorten_middle(name, room - time_letters)
        needed = ((len(label) + time_letters) * _LETTER + _EDGE) / label_width * 100
        shows = next((px for px in _WIDTHS if px >= needed), _WIDTHS[-1])
    look = CULPRIT
    if has_work:
        ((component, _),) = node.components.most_common(1)
        look = component if component in LINE_LOOKS else "other"

    def percent_of(ns: int) -> float:
        return round(100 * ns / total_ns, 3)

    facts = [f"{time}, {figures.percent(node.total_ns / total_ns)}"]
    facts += [f"{_time(analysis, above_ns)} above the roof"] if above_ns else []
    facts += [f"{_time(analysis, node.idle_ns)} idle"] if node.idle_ns else []
    return {
        "link": link,
        "x": percent_of(start_ns),
        "width": percent_of(node.total_ns),
        "row": row,
        "above": percent_of(above_ns),
        "idle": percent_of(node.idle_ns),
        "look": look,
        "label": label,
        "shows": shows,
        "value": has_time and shows > 0,
        "time": time,
        "text": f"{figures.kernel_label(shown.label, _LONGEST)}: {'; '.join(facts)}",
        "kernels": sorted(number for name in node.kernels for number in kernels.rows.get(name, ())),
    }

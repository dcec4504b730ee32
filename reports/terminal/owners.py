"""Whose work the devices did, as a table of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from traceflops.analysis import Analysis
from traceflops.attribution import Owner, WorkSum, work_owners
from traceflops.remedies import remedy
from traceflops.reports.terminal.lines import (
    LEAST_NAME,
    Style,
    cells,
    columns,
    heading,
    headline,
    paragraph,
)
from traceflops.reports.view import count, duration, percent, shorten_middle, unit, visible

_SHOWN: Final = 20
_NAME_WIDTH: Final = 64
_WIDTHS: Final = {"time": 11, "share": 9, "count": 10}
_OF_LAYERS: Final = {"each": 10, "slowest": 9}
_KINDS: Final = {
    "module": ("modules", "outside modules", "stacks"),
    "layer": ("kinds of layers", "outside modules", "stacks"),
    "op": ("operators", "without operator", "operators"),
    "shape": ("operators by shape", "without operator", "shapes"),
    "source": ("functions", "outside your functions", "stacks"),
    "range": ("annotations", "outside annotations", "annotations"),
}
"""By what: the owners, the work that has none, and what to record where there are none."""


def owner_lines(analysis: Analysis, by: str, style: Style) -> Iterator[Text]:
    """Yield the owners with most time, a tree in its order; all figures are means per window."""
    if analysis.prepared is None or analysis.attribution is None:
        return
    found, (title, without, lack) = work_owners(analysis.prepared.as_launched, by), _KINDS[by]
    every = range(len(found.owners))
    most = nlargest(_SHOWN, every, key=lambda place: found.owners[place].work.device_ns)
    more = len(found.owners) - len(most)
    top = f"Top of {count(len(found.owners))}" if more else "All"
    title = f"{top} {title} by {unit(analysis)} time"
    if not most:
        yield from headline(title)
        advice = remedy(analysis.source.format, lack)
        text = "The trace has none." + (f" To record them: {advice}." if advice else "")
        yield from paragraph(text, style.width, indent="  ")
        return
    widths = _WIDTHS | (_OF_LAYERS if by == "layer" else {})
    widths = columns(widths, style.width - 4 - LEAST_NAME, ("slowest", "each", "count"))
    room = min(_NAME_WIDTH, style.width - 4 - sum(widths.values()))
    yield Text()
    yield from heading(title, room + 3, widths)
    for owner in (found.owners[place] for place in sorted(most)):
        texts = _sums(owner.work, analysis) | _of_layers(owner, analysis)
        yield _row(_label(owner), texts, widths, room)
    if found.rest.device_ns:
        yield _row(f"({without})", _sums(found.rest, analysis), widths, room)


def _row(label: str, texts: Mapping[str, str], widths: Mapping[str, int], room: int) -> Text:
    name = shorten_middle(visible(label), room)
    shown = {head: texts.get(head, "") for head in widths}
    return Text(f"  {name}{' ' * (room - cell_len(name))} {cells(shown, widths)}".rstrip())


def _label(owner: Owner) -> str:
    number = f"{count(owner.instances)} × " if owner.instances > 1 else ""  # noqa: RUF001
    return f"{'  ' * owner.depth}{number}{owner.label}"


def _sums(work: WorkSum, analysis: Analysis) -> dict[str, str]:
    window_ns = analysis.components.window_ns
    return {
        "time": duration(analysis.mean_ns(work.device_ns)),
        "share": percent(work.device_ns / window_ns if window_ns else None),
        "count": f"{count(round(analysis.mean_ns(work.activities)))} ×",  # noqa: RUF001
    }


def _of_layers(owner: Owner, analysis: Analysis) -> dict[str, str]:
    if owner.instances == 1:
        return {}
    each = analysis.mean_ns(owner.work.device_ns) / owner.instances
    return {"each": duration(each), "slowest": owner.slowest.rpartition("_")[2]}

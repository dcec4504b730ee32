"""Whose work the devices did, as a table of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from traceflops.analysis import Analysis
from traceflops.attribution import HOST_OP, Owner, WorkSum, host_owners, work_owners
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
_MORE: Final = {"layer": {"each": 10, "slowest": 9}, HOST_OP: {"total": 11}}
_KINDS: Final = {
    "module": ("modules", "outside modules", "stacks"),
    "layer": ("kinds of layers", "outside modules", "stacks"),
    "op": ("operators", "without operator", "operators"),
    "shape": ("operators by shape", "without operator", "shapes"),
    "source": ("functions", "outside your functions", "stacks"),
    "range": ("annotations", "outside annotations", "annotations"),
    HOST_OP: ("operators", "others", "operators"),
}
"""By what: the owners, the work that has none, and what to record where there are none."""


def owner_lines(analysis: Analysis, by: str, style: Style) -> Iterator[Text]:
    """Yield the owners with most time, a tree in its order; all figures are means per window."""
    if analysis.prepared is None or analysis.attribution is None:
        return
    if by == HOST_OP:
        found, whose = host_owners(analysis.host_operators), "CPU"
    else:
        found, whose = work_owners(analysis.prepared.as_launched, by), unit(analysis)
    title, without, lack = _KINDS[by]
    every = range(len(found.owners))
    most = nlargest(_SHOWN, every, key=lambda place: found.owners[place].work.device_ns)
    known = "" if by == HOST_OP else f" of {count(len(found.owners))}"
    top = f"Top{known}" if len(most) < len(found.owners) else "All"
    title = f"{top} {title} by {whose} time"
    if not most:
        yield from headline(title)
        advice = remedy(analysis.source.format, lack)
        text = "The trace has none." + (f" To record them: {advice}." if advice else "")
        yield from paragraph(text, style.width, indent="  ")
        return
    widths = _WIDTHS | _MORE.get(by, {})
    widths = columns(widths, style.width - 4 - LEAST_NAME, ("slowest", "each", "count", "total"))
    room = min(_NAME_WIDTH, style.width - 4 - sum(widths.values()))
    yield Text()
    yield from heading(title, room + 3, widths)
    for owner in (found.owners[place] for place in sorted(most)):
        texts = _sums(owner.work, analysis) | _more(owner, analysis)
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


def _more(owner: Owner, analysis: Analysis) -> dict[str, str]:
    if owner.total_ns is not None:
        return {"total": duration(analysis.mean_ns(owner.total_ns))}
    if owner.instances == 1:
        return {}
    each = analysis.mean_ns(owner.work.device_ns) / owner.instances
    return {"each": duration(each), "slowest": owner.slowest.rpartition("_")[2]}

"""The longest gaps in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from traceflops.analysis.result import Analysis
from traceflops.reports.terminal.lines import Style, columns, cut_to, headline
from traceflops.reports.view.culprits import gap_cause, gap_culprits, waited_for
from traceflops.reports.view.figures import duration
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.wording import gap_place
from traceflops.timeline.records import Gap

_INDENT: Final = "  "
_GAP: Final = {"where": 16, "cause": 21, "device": 19}  # widths of columns
_LEAST_NAME: Final = 8
_WORTH_SHOWING: Final = 0.02  # share of idle time from which gaps are worth their lines
_FIRST_CELLS: Final = 13  # width of the indent, the duration, and two spaces behind it


def gap_lines(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield the two longest gaps, unless idle time is short or classes of it are listed."""
    gaps = analysis.gaps(2)
    idle = analysis.components.share("idle")
    is_profiler = analysis.recorded == "serialized"  # which causes the gaps itself
    if not gaps or is_profiler or idle is None or idle < _WORTH_SHOWING or waited_for(analysis):
        return
    yield from headline("Longest gaps")
    known = {"where": analysis.steps.seen, "cause": not analysis.on_host}
    known["device"] = len(analysis.devices) > 1
    all_widths = {name: width for name, width in _GAP.items() if known[name]}
    widths = columns(all_widths, style.width - _FIRST_CELLS, ("device", "where"))
    room = style.width - _FIRST_CELLS - sum(widths.values())
    texts = _ends(gaps, room)
    if analysis.on_host:  # what the CPU did says more, if it is known
        culprits = gap_culprits(gaps)
        longest_class = max(len(culprit_class) for culprit_class, _ in culprits)
        name_room = room - longest_class - 4
        names = [name for _, name in culprits]
        names = short_labels(names, name_room) if name_room >= _LEAST_NAME else [""] * len(names)
        for index, ((culprit_class, _), name) in enumerate(zip(culprits, names, strict=True)):
            if culprit_class:
                texts[index] = f"{culprit_class}: {name}" if name else culprit_class
    labels = cut_to([device.label for device in analysis.devices], _GAP["device"] - 1)
    label_of = {row.device: label for row, label in zip(analysis.devices, labels, strict=True)}
    for gap, text in zip(gaps, texts, strict=True):
        line = Text(f"{_INDENT}{duration(gap.dur_ns):>9}  ")
        line.append(f"{gap_place(gap):<16}" if "where" in widths else "")
        line.append(f"{gap_cause(gap):<20} " if "cause" in widths else "")
        line.append(f"{label_of[gap.device]} " if "device" in widths else "", "dim")
        yield line.append(text, "dim")


def _ends(gaps: Sequence[Gap], room: int) -> list[str]:
    """Return the work that ended each gap, and what the GPU waited for; "" without room."""
    name_room = room - len("until ")
    if any(gap.waited_for for gap in gaps):  # two names
        name_room = (name_room - len(", waited for ")) // 2
    if name_room < _LEAST_NAME:
        return [""] * len(gaps)
    ended_by = [gap.op or gap.before for gap in gaps]
    names = short_labels([*ended_by, *(gap.waited_for for gap in gaps)], name_room)
    texts = []
    for gap, until, awaited in zip(gaps, names, names[len(gaps) :], strict=False):
        waited = f", waited for {awaited}" if gap.waited_for else ""
        texts.append(f"until {until}{waited}")
    return texts

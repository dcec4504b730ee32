"""The longest gaps in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from traceflops.analysis.result import Analysis
from traceflops.reports.terminal.lines import Style, columns, cut_to, headline
from traceflops.reports.view.culprits import gap_culprits, waited_for
from traceflops.reports.view.figures import duration
from traceflops.reports.view.palette import CAUSE_LABELS
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.wording import gap_place

_INDENT: Final = "  "
_GAP: Final = {"where": 16, "cause": 21, "device": 19}
_LEAST_UNTIL: Final = 8
_WORTH_SHOWING: Final = 0.02  # share of idle time from which a gap is worth two lines
_FIRST_CELLS: Final = 13  # width of the indent, the duration, and two spaces behind it


def gap_lines(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield the two longest gaps, unless idle time hardly matters or is told by its causes."""
    gaps = analysis.gaps(2)
    idle = analysis.components.share("idle")
    is_own = analysis.recorded != "serialized"  # not the profiler's
    if not (gaps and is_own) or idle is None or idle < _WORTH_SHOWING or waited_for(analysis):
        return
    yield from headline("Longest gaps")
    known = {"where": analysis.steps.seen, "cause": not analysis.on_host}
    known["device"] = len(analysis.devices) > 1
    widths = {name: width for name, width in _GAP.items() if known[name]}
    widths = columns(widths, style.width - _FIRST_CELLS, ("device", "where"))
    room = style.width - _FIRST_CELLS - sum(widths.values())
    # Until what each gap lasted and for what the GPU waited, if there is room.
    texts, behind = [""] * len(gaps), room - len("until ")
    if any(gap.waited_for for gap in gaps):
        behind = (behind - len(", waited for ")) // 2
    if behind >= _LEAST_UNTIL:
        ends = [gap.op or gap.before for gap in gaps]
        short = short_labels([*ends, *(gap.waited_for for gap in gaps)], behind)
        texts = [
            f"until {until}{f', waited for {waited}' if gap.waited_for else ''}"
            for gap, until, waited in zip(gaps, short, short[len(gaps) :], strict=False)
        ]
    if analysis.on_host:  # what the CPU did says more, if it is known
        did = gap_culprits(gaps)
        longest_kind = max(len(kind) for kind, _ in did)
        names = short_labels([name for _, name in did], room - longest_kind - 4)
        texts = [
            f"{kind}{f': {name}' if name else ''}" if kind else until
            for (kind, _), name, until in zip(did, names, texts, strict=True)
        ]
    labels = cut_to([device.label for device in analysis.devices], _GAP["device"] - 1)
    of_device = {one.device: label for one, label in zip(analysis.devices, labels, strict=True)}
    for gap, text in zip(gaps, texts, strict=True):
        row = Text(f"{_INDENT}{duration(gap.dur_ns):>9}  ")
        row.append(f"{gap_place(gap):<16}" if "where" in widths else "")
        row.append(f"{CAUSE_LABELS[gap.causes.largest]:<20} " if "cause" in widths else "")
        row.append(f"{of_device[gap.device]} " if "device" in widths else "", "dim")
        yield row.append(text, "dim")

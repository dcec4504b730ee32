"""`traceflops what-if`: how long the steps would take if parts of them took another time."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from traceflops.cli.common import say, say_object, terminal_style
from traceflops.cli.options import AnalysisOptions, Brief, Json, argument
from traceflops.units import duration, percent, several

if TYPE_CHECKING:
    from traceflops.replay.what_if import Outcome, WhatIf

EXAMPLES = (
    "traceflops what-if trace.json.gz data_input=0",
    "traceflops what-if trace.json.gz kernel:softmax/2 launch_latency=5us",
    "traceflops what-if ranks/ 'rank 3=median' communication=hidden --json",
)
_MOST = 8
_NAME = 60
"""So many parts of the critical path are shown, and so many characters of their names."""
_NEXT = 3
"""So many components of the critical path are shown below an edit."""
_TOGETHER = "together"


def what_if(
    trace: str = argument(
        "TRACE", "Trace file, a folder of them (the ranks of one job), or - for standard input."
    ),
    edits: list[str] = argument(
        "EDIT...",
        "What is changed: kernel:REGEX/2, host:REGEX=0, data_input=0, sync=0, "
        "eager_overhead=0, launch_latency=5us, communication=hidden, recompute=off, "
        "'rank 4=median'; or what the GPU waits on, as reports call it: "
        "'launching operators=0'.",
    ),
    *,
    json: Json = False,
    brief: Brief = False,
    asked: AnalysisOptions,
) -> None:
    """Predict the step time if parts of a step took another time."""
    from traceflops.analysis.recipe import what_if
    from traceflops.replay.edits import parse_edits

    parse_edits(edits)  # before all is read: wrong usage is told first
    answer = what_if(asked.analyze([trace]), *edits)
    if json or brief:
        from traceflops.reports.json.comparison import what_if_object

        say_object(what_if_object(answer, brief=brief), brief=brief)
    else:
        say("\n".join(_lines(answer)))


def _lines(answer: WhatIf) -> Iterator[str]:
    """Yield the outcome of each edit and of all, doubts, refusals, and what is critical."""
    from traceflops.reports.view.critical import path_word
    from traceflops.reports.view.figures import shorten_middle
    from traceflops.reports.view.short_names import short_labels
    from traceflops.reports.view.texts import words

    together, width = answer.together, terminal_style().width
    mfu = f", MFU {together.mfu.text}" if together.mfu is not None else ""
    mean = duration(round(together.step_ns(together.before_ns) or 0))
    yield f"Mean step {mean} over {several(together.windows, 'window')}{mfu}"
    yield ""
    outcomes = [*answer.alone, *([together] if len(answer.alone) > 1 else [])]
    yield from _outcome_lines(outcomes, "MFU" if mfu else "", width)
    doubts = dict.fromkeys(words(doubt) for outcome in outcomes for doubt in outcome.doubts)
    for doubt in doubts:
        yield from textwrap.wrap(f"A range, not one value: {doubt}.", width)
    for why in answer.refused.values():
        yield from textwrap.wrap(f"{why[0].upper()}{why[1:]}.", width)
    # The longest parts of the recording's critical path, and the share of each rank.
    yield ""
    yield "Critical path of the recording"
    shown = answer.critical[:_MOST]
    names = short_labels([part.name for part in shown], _NAME)
    for part, name in zip(shown, names, strict=True):
        share = percent(part.ns / max(together.before_ns, 1))
        labels = [path_word(part.component), *filter(None, (name,))]
        yield shorten_middle(f"  {share:>7}  {': '.join(labels)}", max(width, 20))
    if len(answer.ranks) > 1:
        total_ns = max(sum(answer.ranks.values()), 1)
        ranks = [f"rank {rank} {percent(ns / total_ns)}" for rank, ns in answer.ranks.items()]
        yield _fitting("  on ", ranks, width)


def _outcome_lines(outcomes: Sequence[Outcome], mfu_title: str, width: int) -> Iterator[str]:
    """Yield a table of edits, step time, gain and MFU; below each row what is critical then."""
    from traceflops.reports.view.critical import path_word, sums_by_component
    from traceflops.reports.view.figures import shorten_middle

    rows = [("", "step", "gain", mfu_title), *map(_row, outcomes)]
    name_width, *figure_widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    # Two blanks before each of three columns of figures; the names get what is left, at least 10.
    name_width = max(min(name_width, width - sum(figure_widths) - 6), 10)
    for (name, *figures), outcome in zip(rows, [None, *outcomes], strict=True):
        label = shorten_middle(
            name, max(name_width, 20)
        )  # readable, even if the line gets too long
        cells = map(str.rjust, figures, figure_widths)
        yield "  ".join([label.ljust(name_width), *cells]).rstrip()
        if outcome is not None:
            sums = sums_by_component(outcome.critical)
            total_ns = max(sum(ns for _, ns in sums), 1)
            shares = [f"{path_word(kind)} {percent(ns / total_ns)}" for kind, ns in sums[:_NEXT]]
            yield _fitting("  then critical: ", shares, width)


def _row(outcome: Outcome) -> tuple[str, str, str, str]:
    """Return the cells of an outcome: edits, step time, gain, MFU; ranges as "least to most"."""

    def shown(*ends_ns: int) -> str:
        """Return the ends of a range, or one text for equal ones; `duration` takes no sign."""
        texts = [
            f"{'-' * (ns < 0)}{duration(abs(round(outcome.step_ns(ns) or 0)))}" for ns in ends_ns
        ]
        return " to ".join(dict.fromkeys(texts))

    least, most = outcome.least_ns, outcome.most_ns
    mfu = outcome.mfu_after(least, most)
    shares = [percent(float(share)) for share in (mfu.least, mfu.most)] if mfu else []
    return (
        outcome.edits[0] if len(outcome.edits) == 1 else _TOGETHER,
        shown(least, most),
        shown(outcome.before_ns - most, outcome.before_ns - least),
        " to ".join(dict.fromkeys(shares)),
    )


def _fitting(begin: str, parts: Sequence[str], width: int) -> str:
    """Return a line with as many parts as fit into `width`, but at least one; "" for no parts."""
    lines = (begin + ", ".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((line for line in lines if len(line) <= width), begin + parts[0] if parts else "")

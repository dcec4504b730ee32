"""`traceflops what-if`: how long the steps would take if parts of them took another time."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from traceflops.cli.common import failures, terminal_style
from traceflops.cli.options import Asked, Json
from traceflops.cli.printing import say, say_object

if TYPE_CHECKING:
    from traceflops.replay import Outcome, WhatIf

EXAMPLES = (
    "traceflops what-if trace.json.gz data_input=0",
    "traceflops what-if trace.json.gz kernel:softmax/2 launch_latency=5us",
    "traceflops what-if ranks/ 'rank 3=median' communication=hidden --json",
)
_MOST = 8
_NAME = 60
_NEXT = 3
_TOGETHER = "together"


def what_if(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="Trace file, a folder of them (the ranks of one job), or - for standard input.",
            show_default=False,
        ),
    ],
    edits: Annotated[
        list[str],
        typer.Argument(
            metavar="EDIT...",
            help="What is changed: kernel:REGEX/2, host:REGEX=0, data_input=0, sync=0, "
            "eager_overhead=0, launch_latency=5us, communication=hidden, recompute=off, "
            "'rank 4=median'; or what the GPU waits on, as reports call it: "
            "'launching operators=0'.",
            show_default=False,
        ),
    ],
    *,
    json: Json = False,
    asked: Asked,
) -> None:
    """Predict the step time if parts of a step took another time."""
    with failures(asked.reading, asked.privacy):
        from traceflops.analysis import what_if

        answer = what_if(asked.analyze([trace]), *edits)
        if json:
            from traceflops.reports.json import what_if_object

            say_object(what_if_object(answer))
        else:
            say("\n".join(_lines(answer)))


def _lines(answer: WhatIf) -> Iterator[str]:
    from traceflops.reports.view import path_word, short_labels
    from traceflops.units import duration, percent, several

    first, width = answer.together, terminal_style().width
    mfu = f", MFU {first.mfu.text}" if first.mfu is not None else ""
    mean = duration(round(first.step_ns(first.before_ns) or 0))
    yield f"Mean step {mean} over {several(first.windows, 'window')}{mfu}"
    yield ""
    outcomes = [*answer.alone, *([first] if len(answer.alone) > 1 else [])]
    rows = [("", "step", "gain", "MFU" if mfu else ""), *map(_row, outcomes)]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    widths[0] = max(min(widths[0], width - sum(widths[1:]) - 6), 10)
    for row, one in zip(rows, [None, *outcomes], strict=True):
        yield _columns(row, widths)
        if one is not None:
            yield _fitting("  then critical: ", _then(one), width)
    doubts = dict.fromkeys(doubt for one in outcomes for doubt in one.doubts)
    for doubt in doubts:
        yield from textwrap.wrap(f"A range, not one value: {doubt}.", width)
    for why in answer.refused.values():
        yield from textwrap.wrap(f"{why[0].upper()}{why[1:]}.", width)
    yield ""
    yield "Critical path of the recording"
    shown = answer.critical[:_MOST]
    names = short_labels([part.name for part in shown], _NAME)
    for part, name in zip(shown, names, strict=True):
        share = percent(part.ns / max(first.before_ns, 1))
        words = [path_word(part.component), *filter(None, (name,))]
        yield _cut(f"  {share:>7}  {': '.join(words)}", width)
    if len(answer.ranks) > 1:
        total = max(sum(answer.ranks.values()), 1)
        ranks = [f"rank {rank} {percent(ns / total)}" for rank, ns in answer.ranks.items()]
        yield _fitting("  on ", ranks, width)


def _row(one: Outcome) -> tuple[str, str, str, str]:
    from traceflops.units import duration, percent

    name = one.edits[0] if len(one.edits) == 1 else _TOGETHER

    def shown(low: int, high: int) -> str:
        ends = [duration(abs(round(one.step_ns(ns) or 0))) for ns in (low, high)]
        signs = ["-" if ns < 0 else "" for ns in (low, high)]
        texts = [sign + end for sign, end in zip(signs, ends, strict=True)]
        return " to ".join(dict.fromkeys(texts))

    least, most = one.least_ns, one.most_ns
    mfu = one.mfu_after(least, most)
    shares = [percent(float(share)) for share in (mfu.least, mfu.most)] if mfu else []
    gain = shown(one.before_ns - most, one.before_ns - least)
    return name, shown(least, most), gain, " to ".join(dict.fromkeys(shares))


def _fitting(begin: str, parts: Sequence[str], width: int) -> str:
    """Return a line with as many of the parts as it has room for, at least one."""
    lines = (begin + ", ".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((line for line in lines if len(line) <= width), begin + parts[0] if parts else "")


def _then(one: Outcome) -> list[str]:
    """Return what decides the time then, by component."""
    from traceflops.reports.view import path_word, sums_by_component
    from traceflops.units import percent

    sums = sums_by_component(one.critical)
    total = max(sum(ns for _, ns in sums), 1)
    return [f"{path_word(name)} {percent(ns / total)}" for name, ns in sums[:_NEXT]]


def _columns(row: tuple[str, ...], widths: list[int]) -> str:
    name, *figures = row
    cells = (f"{text:>{width}}" for text, width in zip(figures, widths[1:], strict=True))
    return "  ".join([f"{_cut(name, widths[0]):<{widths[0]}}", *cells]).rstrip()


def _cut(text: str, width: int) -> str:
    from traceflops.reports.view import shorten_middle

    return shorten_middle(text, max(width, 20))

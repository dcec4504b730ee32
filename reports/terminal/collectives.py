"""What collectives moved, as lines of the report in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rich.text import Text

from traceflops.analysis.result import Analysis
from traceflops.ranks.collectives import Collective
from traceflops.reports.view.figures import UNKNOWN, count, duration
from traceflops.reports.view.wording import collective_label, collective_rate, mean_message
from traceflops.units.words import several

_SHOWN: Final = 2
_INDENT: Final = "  "


def collective_lines(
    analysis: Analysis, listed: Callable[[Iterable[str], int], str], width: int
) -> Iterator[Text]:
    """Yield a line for each of the longest kinds; `listed` joins as many texts as have room."""
    rows = analysis.collectives
    for place, row in enumerate(rows[:_SHOWN]):
        parts = list(_parts(row))
        if place == _SHOWN - 1 and len(rows) > _SHOWN:
            parts.append(f"{several(len(rows) - _SHOWN, 'kind')} more")
        yield Text(_INDENT + listed(parts, width - len(_INDENT)), "dim")


def _parts(row: Collective) -> Iterator[str]:
    message = mean_message(row)
    times = f"{count(row.count)} ×"  # noqa: RUF001
    yield f"{collective_label(row)}: {times}{'' if message == UNKNOWN else f' {message}'}"
    yield duration(row.sum_ns)
    yield f"{duration(row.exposed_ns)} exposed"
    rate = collective_rate(row)
    if rate != UNKNOWN:
        yield rate

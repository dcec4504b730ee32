"""What of a table has room in a terminal, and lines that a terminal does not break."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rich.text import Text

from traceflops.reports.view.figures import unbroken

LEAST_NAME: Final = 20
"""Characters of a name; columns that can be left out give way to them."""
_LEAST_REMARK: Final = 20


def columns(widths: Mapping[str, int], room: int, less: Iterable[str]) -> dict[str, int]:
    """Return the columns that have room; those in `less` go first, in that order."""
    kept = dict(widths)
    for name in less:
        if sum(kept.values()) > room:
            kept.pop(name, None)
    return kept


def cells(texts: Mapping[str, str], widths: Mapping[str, int]) -> str:
    """Return the cells of a row, numbers at the right of their columns."""
    return "".join(f"{texts[name]:>{width}}" for name, width in widths.items())


def heading(title: str, name: int, widths: Mapping[str, int]) -> Iterator[Text]:
    """Yield the headings; a title wider than the names below it has a line of its own."""
    heads = cells({head: head for head in widths}, widths)
    if len(title) >= name:
        yield Text(title, "bold")
        title = ""
    yield Text(f"{title:<{name}}{heads}", "bold")


def wrapped(text: str, width: int) -> list[str]:
    """Return text in lines of at most so many characters; no line begins with a percent sign."""
    lines = textwrap.wrap(unbroken(text), width, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def remarked(line: Text, remark: str, width: int, style: str = "dim") -> Iterator[Text]:
    """Yield a line and a remark behind it, or below it where that has no room."""
    start = line.cell_len if width - line.cell_len >= _LEAST_REMARK else 2
    lines = wrapped(remark, width - start)
    if start == line.cell_len:
        line.append("".join(lines[:1]), style)
        lines = lines[1:]
    yield line
    yield from (Text(" " * start).append(more, style) for more in lines)


def joined(parts: Iterable[str], width: int) -> Iterator[str]:
    """Yield parts with dots between them, in lines that end between two where possible."""
    line = ""
    for part in parts:
        longer = f"{line} · {part}" if line else part
        if len(longer) > width and line:
            yield from wrapped(line, width)
            longer = part
        line = longer
    yield from wrapped(line, width)

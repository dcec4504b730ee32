"""Lines and tables in the width, characters and colours of a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.text import Text

from traceflops.flops.mfu_waterfall import Ledger
from traceflops.reports.view.figures import apportioned, visible, wrapped
from traceflops.reports.view.ledger import ledger_cells, ledger_rows
from traceflops.reports.view.palette import Look
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Cell, Name, ReportTable
from traceflops.reports.view.utilisation import Fact
from traceflops.units import several

LEAST_NAME: Final = 20
"""Names get at least so many characters; columns that can be left out give way."""
_NARROWEST: Final = 40  # rows are laid out for at least this width; a narrower terminal wraps them
_WIDEST_BAR: Final = 100
_LEAST_REMARK: Final = 20
_LEAST_LABEL: Final = 12
_FACT: Final = 18
_LEDGER_LABEL, _LEDGER_CELL, _LEDGER_SUM, _LEDGER_SHARE = 18, 11, 9, 8
"""Widths of a ledger's columns; with all passes they add up to 80."""
_PLAIN: Final = {"–": "-", "·": "|", "×": "x", "µ": "u", "…": "~", "→": "->", "≤": "<=", "≥": ">="}


class Style(Struct, frozen=True):
    """What the terminal can show: its width in columns, Unicode, colour."""

    width: int = 100
    unicode: bool = True
    colour: bool = True

    def wide_enough(self) -> Style:
        """Return the style, at least _NARROWEST wide."""
        return replace(self, width=max(self.width, _NARROWEST))

    def drawn(self, look: Look, cells: int = 1) -> Text:
        """Return a component's part of a bar, `cells` wide."""
        fill = look.ascii
        if self.unicode:
            fill = "█" if self.colour and look.hatch is None else look.block
        return Text(fill * cells, look.colour if self.colour else "")

    def bar(self, parts: Sequence[tuple[Look, int]], width: int = _WIDEST_BAR) -> Text:
        """Return a bar with parts as long as their amounts, at most as wide as the terminal."""
        numbers = apportioned([amount for _, amount in parts], min(width, self.width))
        looks = (look for look, _ in parts)
        return Text().join(self.drawn(look, n) for look, n in zip(looks, numbers, strict=True))

    def plain(self, text: str) -> str:
        """Return text in characters the terminal has."""
        if self.unicode:
            return text
        for fancy, simple in _PLAIN.items():
            text = text.replace(fancy, simple)
        return text.encode("ascii", errors="replace").decode()


def fitted(lines: Iterable[Text], style: Style) -> list[Text]:
    """Return lines (changed in place) in the terminal's characters and width, right-stripped."""
    shown = []
    for line in lines:
        if not style.unicode:
            plain, done = Text(), 0
            for span in sorted(line.spans, key=lambda span: span.start):  # which do not overlap
                plain.append(style.plain(line.plain[done : span.start]))
                plain.append(style.plain(line.plain[span.start : span.end]), str(span.style))
                done = span.end
            plain.append(style.plain(line.plain[done:]))
            line = plain
        line.rstrip()
        if line.cell_len > style.width:
            mark = style.plain("…")
            line.truncate(style.width - len(mark), overflow="crop")
            line.append(mark)
        shown.append(line)
    return shown


def headline(title: str) -> tuple[Text, Text]:
    """Return an empty line and a title."""
    return Text(), Text(title, "bold")


def paragraph(text: str, width: int, style: str = "dim", indent: str = "") -> Iterator[Text]:
    """Yield a text in lines of at most `width` columns, nothing for an empty text."""
    for line in wrapped(visible(text), width - len(indent)):
        yield Text(f"{indent}{line}", style)


def hanging(head: str, text: str, width: int, style: str = "") -> Iterator[Text]:
    """Yield a text behind its head; further lines are indented by the width of the head."""
    for place, line in enumerate(wrapped(visible(text), width - len(head))):
        yield Text(f"{'' if place else head:<{len(head)}}{line}", style)


def remarked(line: Text, remark: str, width: int) -> Iterator[Text]:
    """Yield a line with a remark behind it, or below it if there is no room."""
    start = line.cell_len if width - line.cell_len >= _LEAST_REMARK else 2
    lines = wrapped(visible(remark), width - start)
    if start == line.cell_len:
        line.append("".join(lines[:1]), "dim")
        lines = lines[1:]
    yield line
    yield from (Text(" " * start).append(more, "dim") for more in lines)


def fact_lines(facts: Iterable[Fact], width: int, label: int = _FACT) -> Iterator[Text]:
    """Yield figures with their labels and remarks; `label` is the width of the labels."""
    for fact in facts:
        line = Text(f"{fact.label:<{label}}{fact.value:<{_FACT - 1}} ")
        yield from remarked(line, fact.remark, width)


def note_lines(notes: Sequence[str], most: int, where: str, width: int) -> Iterator[Text]:
    """Yield the first `most` notes, and how many more are `where` the caller says."""
    if notes:
        yield Text()
    for note in notes[:most]:
        for place, line in enumerate(wrapped(visible(note), width - len("note "))):
            yield Text.assemble("     " if place else ("note ", "bold"), line)
    if len(notes) > most:
        more = f"{several(len(notes) - most, 'more note')} {where}"
        yield from hanging("note ", more, width, "dim")


def joined(parts: Iterable[str], width: int) -> Iterator[Text]:
    """Yield parts separated by dots; a line ends between two parts unless one is too long."""
    line = ""
    for part in parts:
        longer = f"{line} · {part}" if line else part
        if len(longer) > width and line:
            yield from paragraph(line, width)
            longer = part
        line = longer
    yield from paragraph(line, width)


def listed(items: Iterable[str], width: int) -> str:
    """Return as many of the items as fit in `width` columns, separated by commas."""
    text = ""
    for item in items:
        longer = f"{text}, {item}" if text else item
        if cell_len(longer) > width:
            break
        text = longer
    return text


def columns(widths: Mapping[str, int], room: int, less: Iterable[str]) -> dict[str, int]:
    """Return the columns that have room; those of `less` are left out first, in that order."""
    kept = dict(widths)
    for name in less:
        if sum(kept.values()) > room:
            kept.pop(name, None)
    return kept


def widened(widths: Mapping[str, int], rows: Iterable[Sequence[str]]) -> dict[str, int]:
    """Return the widths of columns, enlarged to their longest text and a space."""
    longest = [1 + max(map(cell_len, texts)) for texts in zip(*rows, strict=True)]
    pairs = zip(widths.items(), longest or [0] * len(widths), strict=True)  # without rows 0
    return {name: max(width, needed) for (name, width), needed in pairs}


def cells(texts: Mapping[str, str], widths: Mapping[str, int]) -> str:
    """Return the cells of a row, aligned to the right of their columns."""
    return "".join(f"{texts[name]:>{width}}" for name, width in widths.items())


def heading(title: str, name: int, widths: Mapping[str, int]) -> Iterator[Text]:
    """Yield the line of headings; a title wider than the column of names (`name`) comes before."""
    heads = cells({head: head for head in widths}, widths)
    if len(title) >= name:
        yield from paragraph(title, name + sum(widths.values()), "bold")
        title = ""
    yield Text(f"{title:<{name}}{heads}", "bold")


def cut_to(names: Sequence[str], width: int) -> list[str]:
    """Return the names of a table, each exactly `width` cells wide; see `short_labels`."""
    room = width
    short = short_labels(names, room)
    # Some characters are two cells wide: shorten the names that are still too wide.
    while room > 1 and any(cell_len(label) > width for label in short):
        room -= 1
        shorter = short_labels(names, room)
        pairs = zip(short, shorter, strict=True)
        short = [new if cell_len(old) > width else old for old, new in pairs]
        if len(set(map(str.strip, short))) < len(set(names)):
            short = shorter  # mixed, two names became equal
    return [label + " " * (width - cell_len(label)) for label in short]


def named_table(
    title: str,
    rows: Sequence[tuple[Cell, Sequence[str]]],
    widths: Mapping[str, int],
    less: Iterable[str],
    most: int,
    width: int,
    depths: Sequence[int] = (),
) -> Iterator[Text]:
    """Yield a table of rows (name, other cells) with the columns that have room.

    `widths` are the least widths of the other columns; those in `less` are left out first. Names
    have at most `most` cells; those of a tree are indented by their `depths`.
    """
    widths = widened(widths, [texts for _, texts in rows])
    kept = columns(widths, width - LEAST_NAME, less)
    name = max(min(most, width - sum(kept.values())), _LEAST_LABEL)
    yield Text()
    yield from heading(title, name, kept)
    # The deepest row must keep room for its label.
    deepest = max(depths, default=0)
    step = min(2, (name - _LEAST_LABEL) // max(deepest, 1))
    width = name - 1 - step * deepest
    labels = cut_to(_sharing_room([cell for cell, _ in rows], width), width)
    for label, (_, texts), depth in zip(labels, rows, depths or [0] * len(rows), strict=True):
        row = f"{' ' * step * depth}{label}{' ' * step * (deepest - depth)}"
        yield Text(f"{row} {cells(dict(zip(widths, texts, strict=True)), kept)}".rstrip())


def view_table(
    table: ReportTable, wide: int, less: Iterable[str], most: int, width: int, *without: str
) -> Iterator[Text]:
    """Yield a table of the view without some columns, others at least `wide`; see `named_table`."""
    title, *heads = (column.head for column in table.columns)
    kept = [at for at, head in enumerate(heads) if head not in without]
    heads = [heads[at] for at in kept]
    rows = []
    for name, *cells_ in table.rows:
        texts = [cell if isinstance(cell, str) else " ".join(cell) for cell in cells_]
        rows.append((name, [texts[at] for at in kept]))
    widths = {head: max(wide, len(head) + 2) for head in heads}
    yield from named_table(title, rows, widths, less, most, width, table.depths)


def _sharing_room(cells: Sequence[Cell], width: int) -> list[str]:
    """Return cells as texts; names in a cell that are too long together are shortened equally."""
    rooms = []  # the most that each name of a cell may have
    for cell in cells:
        room, pieces = width, (cell,) if isinstance(cell, str) else cell
        ordered = sorted((p for p in pieces if isinstance(p, Name)), key=len)
        left = width - len(" ".join(pieces)) + sum(map(len, ordered))
        for number, name in enumerate(ordered if len(pieces) > 1 else ()):
            room = max(left // (len(ordered) - number), 1)
            if len(name) > room:
                break
            room, left = width, left - len(name)  # short names leave room to long ones
        rooms.append(room)
    short: dict[tuple[str, int], str] = {}  # by name and room
    for room in set(rooms):
        of_room = [cell for cell, own in zip(cells, rooms, strict=True) if own == room]
        names = [p for cell in of_room if not isinstance(cell, str) for p in cell]
        names = [piece for piece in names if isinstance(piece, Name)]
        short |= zip(((name, room) for name in names), short_labels(names, room), strict=True)
    return [
        cell if isinstance(cell, str) else " ".join(short.get((p, room), p) for p in cell)
        for cell, room in zip(cells, rooms, strict=True)
    ]


def ledger_table(ledger: Ledger, unit: str, width: int = 80) -> Iterator[Text]:
    """Yield a ledger in one unit for all its cells; without room for the passes only sums."""
    rows = ledger_rows(ledger)
    if not rows:
        return
    table = ledger_cells(rows)
    # The longest head needs a cell more.
    widths = [_LEDGER_CELL + (head == "weight grad") for head in table.heads[:-2]]
    if width < _LEDGER_LABEL + sum(widths) + _LEDGER_SUM + _LEDGER_SHARE:
        table, widths = ledger_cells(rows, passes=False), []
    widths += [_LEDGER_SUM, _LEDGER_SHARE]
    total = [table.total] if table.total is not None else []
    lines = [(f"{table.prefix}FLOP per {unit}", table.heads), *table.rows, *total]
    for place, (label, texts) in enumerate(lines):
        row = "".join(f"{text:>{wide}}" for text, wide in zip(texts, widths, strict=True))
        shown = visible(label)[:_LEDGER_LABEL] if place else label
        yield Text(f"{shown:<{_LEDGER_LABEL}}{row}", "" if place else "bold")

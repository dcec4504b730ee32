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
"""Names get at least so many characters; if need be, other columns are left out for that."""
_NARROWEST: Final = 40  # rows have room for at least this width; a narrower terminal wraps them
_WIDEST_BAR: Final = 100
_LEAST_REMARK: Final = 20
_LEAST_LABEL: Final = 12
_FACT: Final = 18
_LEDGER_LABEL, _LEDGER_CELL, _LEDGER_SUM, _LEDGER_SHARE = 18, 11, 9, 8
"""Widths of a ledger's columns; with all passes they add up to 80."""
_PLAIN: Final = {"–": "-", "·": "|", "×": "x", "µ": "u", "…": "~", "→": "->", "≤": "<=", "≥": ">="}


class Style(Struct, frozen=True):
    """What the terminal can show: its width in characters, Unicode, colour."""

    width: int = 100
    unicode: bool = True
    colour: bool = True

    def wide_enough(self) -> Style:
        """Return the style, at least _NARROWEST wide."""
        return replace(self, width=max(self.width, _NARROWEST))

    def drawn(self, look: Look, cells: int = 1) -> Text:
        """Return a piece of a bar, `cells` wide, in the look of a component."""
        fill = look.ascii
        if self.unicode:
            fill = "█" if self.colour and look.hatch is None else look.block
        return Text(fill * cells, look.colour if self.colour else "")

    def bar(self, parts: Sequence[tuple[Look, int]], width: int = _WIDEST_BAR) -> Text:
        """Return a bar whose parts are in proportion to their amounts; it fits the terminal."""
        lengths = apportioned([amount for _, amount in parts], min(width, self.width))
        pairs = zip(parts, lengths, strict=True)
        return Text().join(self.drawn(look, length) for (look, _), length in pairs)

    def plain(self, text: str) -> str:
        """Return text in characters that the terminal has."""
        if self.unicode:
            return text
        for fancy, simple in _PLAIN.items():
            text = text.replace(fancy, simple)
        return text.encode("ascii", errors="replace").decode()


def fitted(lines: Iterable[Text], style: Style) -> list[Text]:
    """Return lines in the terminal's characters, cut to its width; they may be changed in place."""
    shown = []
    for line in lines:
        fitting = line if style.unicode else _ascii(line, style)
        fitting.rstrip()
        if fitting.cell_len > style.width:
            ellipsis = style.plain("…")
            fitting.truncate(style.width - len(ellipsis), overflow="crop")
            fitting.append(ellipsis)
        shown.append(fitting)
    return shown


def _ascii(line: Text, style: Style) -> Text:
    """Return a line in ASCII with the same styles; spans of styles do not overlap."""
    plain, end = Text(), 0
    for span in sorted(line.spans, key=lambda span: span.start):
        plain.append(style.plain(line.plain[end : span.start]))
        plain.append(style.plain(line.plain[span.start : span.end]), str(span.style))
        end = span.end
    return plain.append(style.plain(line.plain[end:]))


def headline(title: str) -> tuple[Text, Text]:
    """Return an empty line and a title."""
    return Text(), Text(title, "bold")


def paragraph(text: str, width: int, style: str = "dim", indent: str = "") -> Iterator[Text]:
    """Yield a text in lines of at most `width` columns, nothing for an empty text."""
    for line in wrapped(visible(text), width - len(indent)):
        yield Text(f"{indent}{line}", style)


def hanging(head: str, text: str, width: int, style: str = "") -> Iterator[Text]:
    """Yield a text after its head; further lines are indented by the width of the head."""
    for number, line in enumerate(wrapped(visible(text), width - len(head))):
        yield Text(f"{'' if number else head:<{len(head)}}{line}", style)


def remarked(line: Text, remark: str, width: int) -> Iterator[Text]:
    """Yield a line with a remark behind it, or below it if there is no room."""
    has_room = width - line.cell_len >= _LEAST_REMARK
    indent = line.cell_len if has_room else 2
    below = wrapped(visible(remark), width - indent)
    if has_room:
        line.append("".join(below[:1]), "dim")
        below = below[1:]
    yield line
    yield from (Text(" " * indent).append(text, "dim") for text in below)


def fact_lines(facts: Iterable[Fact], width: int, label: int = _FACT) -> Iterator[Text]:
    """Yield figures with their labels and remarks; `label` is the width of the labels."""
    for fact in facts:
        line = Text(f"{fact.label:<{label}}{fact.value:<{_FACT - 1}} ")
        yield from remarked(line, fact.remark, width)


def note_lines(notes: Sequence[str], most: int, where: str, width: int) -> Iterator[Text]:
    """Yield the first `most` notes and the number of the others; `where` says where these are."""
    if notes:
        yield Text()
    for note in notes[:most]:
        for number, line in enumerate(wrapped(visible(note), width - len("note "))):
            yield Text.assemble("     " if number else ("note ", "bold"), line)
    if len(notes) > most:
        others = f"{several(len(notes) - most, 'more note')} {where}"
        yield from hanging("note ", others, width, "dim")


def joined(parts: Iterable[str], width: int) -> Iterator[Text]:
    """Yield parts separated by dots; lines end between parts, unless a part is too long."""
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
    """Return the widths of columns; those of `less` are left out in order until all have room."""
    kept = dict(widths)
    for name in less:
        if sum(kept.values()) > room:
            kept.pop(name, None)
    return kept


def widened(widths: Mapping[str, int], rows: Iterable[Sequence[str]]) -> dict[str, int]:
    """Return the widths of columns, enlarged if needed to their longest text and a space."""
    needed = [1 + max(map(cell_len, texts)) for texts in zip(*rows, strict=True)]
    needed = needed or [0] * len(widths)  # without rows
    return {name: max(widths[name], least) for name, least in zip(widths, needed, strict=True)}


def cells(texts: Mapping[str, str], widths: Mapping[str, int]) -> str:
    """Return the cells of a row, each aligned to the right of its column."""
    return "".join(f"{texts[name]:>{width}}" for name, width in widths.items())


def heading(title: str, name_width: int, widths: Mapping[str, int]) -> Iterator[Text]:
    """Yield the line of heads; a title wider than the column of names comes on a line before it."""
    heads = cells({head: head for head in widths}, widths)
    fits = len(title) < name_width
    if not fits:
        yield from paragraph(title, name_width + sum(widths.values()), "bold")
    yield Text(f"{title if fits else '':<{name_width}}{heads}", "bold")


def cut_to(names: Sequence[str], width: int) -> list[str]:
    """Return the names of a table, each exactly `width` cells wide; see `short_labels`."""
    room = width
    labels = short_labels(names, room)
    # Some characters are two cells wide: shorten the labels that are still too wide.
    while room > 1 and any(cell_len(label) > width for label in labels):
        room -= 1
        shorter = short_labels(names, room)
        pairs = zip(labels, shorter, strict=True)
        labels = [new if cell_len(old) > width else old for old, new in pairs]
        if len(set(map(str.strip, labels))) < len(set(names)):
            labels = shorter  # labels of different lengths became equal
    return [label + " " * (width - cell_len(label)) for label in labels]


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
    needed = widened(widths, [texts for _, texts in rows])
    kept = columns(needed, width - LEAST_NAME, less)
    name_width = max(min(most, width - sum(kept.values())), _LEAST_LABEL)
    yield Text()
    yield from heading(title, name_width, kept)
    # Indent by at most 2 per level, so that the deepest row keeps room for its label.
    deepest = max(depths, default=0)
    indent = min(2, (name_width - _LEAST_LABEL) // max(deepest, 1))
    label_width = name_width - 1 - indent * deepest
    labels = cut_to(_sharing_room([cell for cell, _ in rows], label_width), label_width)
    for label, (_, texts), depth in zip(labels, rows, depths or [0] * len(rows), strict=True):
        row = f"{' ' * indent * depth}{label}{' ' * indent * (deepest - depth)}"
        yield Text(f"{row} {cells(dict(zip(needed, texts, strict=True)), kept)}".rstrip())


def view_table(
    table: ReportTable, wide: int, less: Iterable[str], most: int, width: int, *without: str
) -> Iterator[Text]:
    """Yield a table of the view without some columns, others at least `wide`; see `named_table`."""
    title, *heads = (column.head for column in table.columns)
    kept = [index for index, head in enumerate(heads) if head not in without]
    rows = []
    for name, *other_cells in table.rows:
        texts = [cell if isinstance(cell, str) else " ".join(cell) for cell in other_cells]
        rows.append((name, [texts[index] for index in kept]))
    widths = {heads[index]: max(wide, len(heads[index]) + 2) for index in kept}
    yield from named_table(title, rows, widths, less, most, width, table.depths)


def _sharing_room(cells: Sequence[Cell], width: int) -> list[str]:
    """Return cells as texts; names of a cell that are too long together are shortened equally."""
    rooms = [_room_of_name(cell, width) for cell in cells]
    short: dict[tuple[str, int], str] = {}  # by name and room
    for room in set(rooms):
        names = [
            piece
            for cell, own_room in zip(cells, rooms, strict=True)
            if own_room == room and not isinstance(cell, str)
            for piece in cell
            if isinstance(piece, Name)
        ]
        short |= zip(((name, room) for name in names), short_labels(names, room), strict=True)
    return [
        cell if isinstance(cell, str) else " ".join(short.get((p, room), p) for p in cell)
        for cell, room in zip(cells, rooms, strict=True)
    ]


def _room_of_name(cell: Cell, width: int) -> int:
    """Return how long each name in a cell may be so that all of the cell fits into `width`.

    Short names leave their room to long ones; it is `width` if no name is too long.
    """
    if isinstance(cell, str) or len(cell) == 1:
        return width
    names = sorted((piece for piece in cell if isinstance(piece, Name)), key=len)
    left = width - len(" ".join(cell)) + sum(map(len, names))
    for number, name in enumerate(names):
        room = max(left // (len(names) - number), 1)
        if len(name) > room:
            return room
        left -= len(name)
    return width


def ledger_table(ledger: Ledger, unit: str, width: int = 80) -> Iterator[Text]:
    """Yield a ledger with the same prefix in all cells; only sums if passes have no room."""
    rows = ledger_rows(ledger)
    if not rows:
        return
    table = ledger_cells(rows)
    # The longest head needs one more character.
    widths = [_LEDGER_CELL + (head == "weight grad") for head in table.heads[:-2]]
    if width < _LEDGER_LABEL + sum(widths) + _LEDGER_SUM + _LEDGER_SHARE:
        table, widths = ledger_cells(rows, passes=False), []
    widths += [_LEDGER_SUM, _LEDGER_SHARE]

    def line(label: str, texts: Sequence[str], style: str = "") -> Text:
        row = "".join(f"{text:>{wide}}" for text, wide in zip(texts, widths, strict=True))
        return Text(f"{label:<{_LEDGER_LABEL}}{row}", style)

    yield line(f"{table.prefix}FLOP per {unit}", table.heads, "bold")
    for label, texts in (*table.rows, *([table.total] if table.total is not None else ())):
        yield line(visible(label)[:_LEDGER_LABEL], texts)

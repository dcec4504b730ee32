"""A ledger as a table: a row per part of the model, a column per pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from rich.text import Text

from traceflops.flops import Count, Ledger, Line
from traceflops.reports.view.figures import UNKNOWN, flop_scale, percent, significant, visible

COLUMNS = {
    "forward": "forward",
    "input_grad": "input grad",
    "weight_grad": "weight grad",
    "gradient": "other grad",
    "recompute": "recompute",
}
"""Passes in a ledger's names, and what their columns are called."""

PASSES = {"backward": "input_grad", **{name: name for name in COLUMNS}}
"""Where the passes of a name stand: an attention core has no weights, only inputs' gradients."""

PARTS = {
    "attention": "attention matrices",
    "cross": "cross-attention",
    "ffn": "feed-forward",
    "shared": "shared experts",
    "mtp": "MTP modules",
    "head": "output head",
    "patch": "patches",
    "parameters": "all parameters",
    "conv": "convolutions",
    "matmul": "matrix products",
    "logits": "output head",
    "embedding": "input embedding",
}
_UNSPLIT = {"executed.matrix": "purpose unknown"}
"""Executed, and nothing tells what for."""

WHOLE = {
    **_UNSPLIT,
    "algorithmic.attention": "recomputed scores",
    "overcompute.mask": "masked pairs",
    "overcompute.optimizer": "in the optimizer",
    "overcompute.padding.tokens": "padding: tokens",
    "overcompute.padding.attention": "padding: attention",
    "overcompute.padding.vocab": "padding: vocab",
    "overcompute.padding.experts": "spare expert rows",
    "convention.attention": "attention, 4th-5th",
    "convention.vector": "vector work",
    "model.published": "published rate",
}
"""Lines that belong to no pass."""

CORE = "attention core"
_LABEL, _CELL, _SUM, _SHARE = 18, 11, 9, 8
"""Widths in columns: all of them are 80 with every pass there is."""

WIDEST = 80


@dataclass(slots=True)
class Row:
    """One part of the model: its FLOPs by pass, and in all."""

    passes: dict[str, Count] = field(default_factory=dict)
    total: Count = 0

    def add(self, line: Line, to: str | None) -> None:
        """Add a line of the ledger, to a pass if it belongs to one."""
        self.total += line.flops
        if to is not None:
            self.passes[to] = self.passes.get(to, 0) + line.flops


def ledger_table(ledger: Ledger, unit: str, width: int = WIDEST) -> Iterator[Text]:
    """Yield the table; all its cells are in one unit, and nothing that is not zero prints as 0.

    Where the passes have no room there are only the sums.
    """
    rows = ledger_rows(ledger)
    if not rows:
        return
    columns = columns_of(rows)
    if width < _LABEL + _CELL * len(columns) + ("weight_grad" in columns) + _SUM + _SHARE:
        columns = []
    scale, prefix = flop_scale(max(row.total for row in rows.values()))
    heads = "".join(f"{COLUMNS[name]:>{_CELL + (name == 'weight_grad')}}" for name in columns)
    title = f"{prefix}FLOP per {unit}"
    yield Text(f"{title:<{_LABEL}}{heads}{'sum':>{_SUM}}{'share':>{_SHARE}}", "bold")
    for label, row in rows.items():
        yield _line(label, row, columns, scale, ledger.executed)
    if len(rows) > 1:
        yield _line("executed", sum_of(rows), columns, scale, ledger.executed)


def is_unsplit(ledger: Ledger) -> bool:
    """Return whether a ledger has lines, and none tells what FLOPs were for."""
    return bool(ledger.lines) and all(line.name in _UNSPLIT for line in ledger.lines)


def columns_of(rows: dict[str, Row]) -> list[str]:
    """Return the passes in which any row has FLOPs, in the order of COLUMNS."""
    return [name for name in COLUMNS if any(name in row.passes for row in rows.values())]


def _line(label: str, row: Row, columns: list[str], scale: int, executed: Count) -> Text:
    cells = "".join(
        f"{scaled(row.passes.get(name), scale):>{_CELL + (name == 'weight_grad')}}"
        for name in columns
    )
    share = percent(float(Fraction(row.total) / Fraction(executed))) if executed else UNKNOWN
    total = scaled(row.total, scale)
    return Text(f"{visible(label)[:_LABEL]:<{_LABEL}}{cells}{total:>{_SUM}}{share:>{_SHARE}}")


def scaled(flops: Count | None, scale: int) -> str:
    """Return a count as a number of `scale` FLOPs, in four digits at most."""
    if not flops:
        return UNKNOWN
    value = Fraction(flops) / scale
    if abs(value) < Fraction(1, 10_000):
        return "<0.0001"
    return significant(value, 4 if value >= 1 else 3, zeros=True)


def sum_of(rows: dict[str, Row]) -> Row:
    """Return the sum of all rows."""
    found = Row()
    for row in rows.values():
        found.total += row.total
        for name, flops in row.passes.items():
            found.passes[name] = found.passes.get(name, 0) + flops
    return found


def ledger_rows(ledger: Ledger) -> dict[str, Row]:
    """Return the rows in the order in which their first lines stand; what is overhead last."""
    parts: dict[str, Row] = {}
    others: dict[str, Row] = {}
    for line in ledger.lines:
        part, to = _place(line.name)
        target = others if part in WHOLE.values() else parts
        target.setdefault(part, Row()).add(line, to)
    return {**parts, **others}


def _place(name: str) -> tuple[str, str | None]:
    """Return the row and the pass of a line."""
    if name in WHOLE:
        return WHOLE[name], None
    first, *words = name.split(".")
    if first == "model" and len(words) == 1:  # a forward product or a gradient of one
        return _part(words[0], words[0]), None
    kind, *rest = words
    if first == "recompute":
        part = rest[0] if rest else kind
        return _part(kind, part), "recompute"
    if first == "model" and rest:
        return _part(kind, rest[1] if len(rest) > 1 else kind), PASSES.get(rest[0])
    return name, None


def _part(kind: str, part: str) -> str:
    return CORE if kind == "attention" else PARTS.get(part, part)

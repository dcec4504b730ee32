"""A ledger (the FLOPs of a model line by line) as a table: a row per part, a column per pass."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from msgspec import Struct, field

from traceflops.analysis.result import Analysis
from traceflops.flops.mfu_waterfall import Count, Ledger, Line
from traceflops.reports.view.figures import UNKNOWN, flop_scale, percent, significant

COLUMNS = {
    "forward": "forward",
    "input_grad": "input grad",
    "weight_grad": "weight grad",
    "gradient": "other grad",
    "recompute": "recompute",
}
"""Heads of the columns by pass."""

PASSES = {"backward": "input_grad", **{name: name for name in COLUMNS}}
"""Column of each pass that names of lines have. Only an attention core has an unsplit "backward":
it has no weights, so all of it is input grad."""

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
_UNSPLIT = {"executed.matrix": "purpose unknown"}  # neither the part nor the pass is known

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
"""Labels of the lines that belong to no pass, by the name of the line."""

CORE = "attention core"


class LedgerRow(Struct):
    """One part of the model: its FLOPs by pass, and in all."""

    passes: dict[str, Count] = field(default_factory=dict)
    total: Count = 0


class LedgerCells(Struct, frozen=True):
    """A ledger as labels and texts, in FLOP with one prefix; several rows have a `total` below."""

    prefix: str
    heads: list[str]
    rows: list[tuple[str, list[str]]]
    total: tuple[str, list[str]] | None


def ledger_cells(rows: Mapping[str, LedgerRow], *, passes: bool = True) -> LedgerCells:
    """Return the rows as text, with a column per pass that any row has; none if not `passes`."""
    columns = [
        name for name in COLUMNS if passes and any(name in row.passes for row in rows.values())
    ]
    scale, prefix = flop_scale(max(row.total for row in rows.values()))
    total = LedgerRow(total=sum(row.total for row in rows.values()))
    for name in columns:
        total.passes[name] = sum(row.passes.get(name, 0) for row in rows.values())

    def cells(row: LedgerRow) -> list[str]:
        amounts = [scaled(row.passes.get(name), scale) for name in columns]
        share = float(Fraction(row.total) / Fraction(total.total)) if total.total else None
        return [*amounts, scaled(row.total, scale), percent(share)]

    heads = [*(COLUMNS[name] for name in columns), "sum", "share"]
    shown = [(label, cells(row)) for label, row in rows.items()]
    return LedgerCells(prefix, heads, shown, ("executed", cells(total)) if len(rows) > 1 else None)


def mean_ledger(analysis: Analysis) -> Ledger:
    """Return the executed FLOPs as means per window and device."""
    ledger, windows = analysis.measured.executed.ledger(), max(analysis.windows_used, 1)
    lines = tuple(Line(line.name, Fraction(line.flops) / windows) for line in ledger.lines)
    return Ledger(ledger.convention, lines)


def is_unsplit(ledger: Ledger) -> bool:
    """Return whether a ledger has lines, all with FLOPs of unknown purpose."""
    return bool(ledger.lines) and all(line.name in _UNSPLIT for line in ledger.lines)


def scaled(flops: Count | None, scale: int) -> str:
    """Return a count in units of `scale`, with at most four digits; a dash for None and 0."""
    if not flops:
        return UNKNOWN
    value = Fraction(flops) / scale
    if abs(value) < Fraction(1, 10_000):  # a figure that is not zero is never printed as 0
        return "<0.0001"
    return significant(value, 4 if value >= 1 else 3, zeros=True)


def ledger_rows(ledger: Ledger) -> dict[str, LedgerRow]:
    """Return the rows by label, in the order of the ledger's lines; those of WHOLE come last."""
    parts: dict[str, LedgerRow] = {}
    wholes: dict[str, LedgerRow] = {}
    for line in ledger.lines:
        label, column = _row_and_column(line.name)
        rows = wholes if label in WHOLE.values() else parts
        row = rows.setdefault(label, LedgerRow())
        row.total += line.flops
        if column is not None:
            row.passes[column] = row.passes.get(column, 0) + line.flops
    return {**parts, **wholes}


def _row_and_column(name: str) -> tuple[str, str | None]:
    """Return the label of the row that a line is in, and the column of its pass, if it has one.

    Names are "model.KIND[.PASS[.PART]]", "recompute.KIND[.PART]" or one of WHOLE.
    """
    if name in WHOLE:
        return WHOLE[name], None
    first, kind, *rest = name.split(".")
    if first == "recompute":
        return _part(kind, rest[0] if rest else kind), "recompute"
    if first == "model" and not rest:
        return _part(kind, kind), None
    if first == "model":
        return _part(kind, rest[1] if len(rest) > 1 else kind), PASSES.get(rest[0])
    return name, None


def _part(kind: str, part: str) -> str:
    """Return the label of a part; all parts of attention are its core."""
    return CORE if kind == "attention" else PARTS.get(part, part)

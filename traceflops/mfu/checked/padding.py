"""Padding taken out of what a trace shows: FLOPs on rows and pairs that no real token has.

No profiler records which rows are real. A description or marks tell it: then that share of the
products and of attention, forward, backward and computed again, is `overcompute.padding`. Products
grow with the rows, so their share is exact; that of attention is if the lengths are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from traceflops.flops import (
    NO_CHECKPOINT,
    ModelCard,
    Run,
    default_convention,
    model_flops,
    waterfall,
)
from traceflops.mfu.budget import device_budgets
from traceflops.mfu.checked.job_size import job_size
from traceflops.mfu.checked.passes import Passes, counts_of, of_job, passes_of, visible
from traceflops.mfu.checked.token_marks import is_ours, told_by_marks
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.cells import Cell
from traceflops.mfu.traced.executed import Executed
from traceflops.table import Note, names
from traceflops.units import exact_percent
from traceflops.windows import Prepared

PADDING: Final = "overcompute.padding"
Shares = tuple[tuple[str, Fraction], ...]
"""Last words of lines of padding, and which share of another line belongs there."""

EXPERTS: Final = ("experts",)
_FORWARD: Final = ("model.matmul.forward", "recompute.matmul")
_BACKWARD: Final = tuple(f"model.matmul.{n}" for n in ("input_grad", "weight_grad", "gradient"))
_ATTENTION: Final = ("model.attention.forward", "recompute.attention")


@dataclass(frozen=True, slots=True)
class Padding:
    """Which share of products and attention is padding, by pass.

    `head` is that of the products that the trace tells to be of the output head, None where they
    are as the others. `is_even` says that real tokens are taken to be shared out evenly among the
    sequences, because nothing tells their lengths; `of_rows` that only rows are told, not models.
    """

    forward: Shares
    backward: Shares
    attention_forward: Shares = ()
    attention_backward: Shares = ()
    head: Shares | None = None
    is_even: bool = False
    of_rows: bool = False

    def of(self, line: str) -> Shares:
        """Return which shares of a line of the ledger are padding."""
        if self.head is not None and line.endswith(".logits"):
            return self.head
        if line.startswith(_FORWARD):
            return self.forward
        if line.startswith(_BACKWARD):
            return self.backward
        if line.startswith(_ATTENTION):
            return self.attention_forward
        return self.attention_backward if line == "model.attention.backward" else ()

    @property
    def is_any(self) -> bool:
        """Return whether there is any."""
        every = (self.forward, self.backward, self.attention_forward, self.attention_backward)
        return any(share for shares in (*every, self.head or ()) for _, share in shares)


def padding_of_rows(real: Fraction, computed: Fraction) -> Padding:
    """Return the padding of products that compute so many rows for so many real tokens."""
    share = (("tokens", 1 - real / computed),)
    return Padding(share, share, of_rows=True)


def described_padding(card: ModelCard, run: Run, done: Executed) -> Padding | None:
    """Return the padding of a description, None where it has none.

    The run is counted four times: as computed, then without padded tokens, without padded rows of
    the output head, and without spare rows of the experts. Where the trace shows no attention of
    its own, that is among the products.
    """
    bare = replace(run, checkpoint=NO_CHECKPOINT)
    wide = replace(card, vocab=card.padded_vocab or card.vocab, padded_vocab=None)
    ledger = model_flops(card, bare, default_convention(card, bare))
    counted = [
        visible(card, run),
        passes_of(model_flops(wide, bare, default_convention(wide, bare)), EXPERTS),
        passes_of(ledger, EXPERTS),
        passes_of(ledger, ()),
    ]
    shown = done.ledger()
    if not shown.total("model.attention") and not shown.total("recompute.attention"):
        counted = [passes.merged() for passes in counted]
    padding = _shares(counted)
    if any(line.name.endswith(".logits") for line in shown.lines):
        padding = _head_apart(padding, card)
    if not padding.is_any:
        return None
    shape = run.shape(card)
    are_said = bool(run.documents) or run.sums is not None
    several = shape.padded and (shape.sequences or 0) > 1
    return replace(padding, is_even=several and not are_said and bool(card.cores()))


def _shares(counted: list[Passes]) -> Padding:
    """Return the shares from one run counted with less and less padding."""
    by_pass = [
        _differences([figures[number] for figures in map(tuple, counted)]) for number in range(4)
    ]
    pairs = [
        tuple(("attention", share) for name, share in shares if name == "tokens")
        for shares in by_pass[2:]
    ]
    return Padding(by_pass[0], by_pass[1], pairs[0], pairs[1])


def _differences(figures: list[Fraction]) -> Shares:
    """Return by which share of the first figure each is less than the one before it."""
    if not figures[0]:
        return ()
    pairs = zip(("tokens", "vocab", "experts"), figures, figures[1:], strict=False)
    return tuple((name, (more - less) / figures[0]) for name, more, less in pairs if more != less)


def _head_apart(padding: Padding, card: ModelCard) -> Padding:
    """Return the shares with padded rows of the output head in its own products alone.

    Where experts have spare rows, too, all products share both out.
    """
    names = {name for name, _ in (*padding.forward, *padding.backward)}
    if "vocab" not in names or "experts" in names or card.padded_vocab is None:
        return padding
    rows = tuple(share for share in padding.forward if share[0] == "tokens")
    real = 1 - sum((share for _, share in rows), Fraction(0))
    spare = Fraction(card.padded_vocab - card.vocab, card.padded_vocab)
    return replace(
        padding,
        forward=rows,
        backward=tuple(share for share in padding.backward if share[0] == "tokens"),
        head=(*rows, ("vocab", real * spare)),
    )


def without_padding(
    measured: Measurement, prepared: Prepared, padding: Padding, told_by: str
) -> Measurement:
    """Return the measurement with padding in lines of its own, and a note that says so.

    `told_by` says where it is from: "as described".
    """
    done = measured.executed.as_computed
    cells = tuple(_split(done.cells, padding))
    assert sum(cell.flops for cell in cells) == sum(cell.flops for cell in done.cells)
    apart = replace(done, cells=cells)
    share = Fraction(apart.padding_flops, apart.executed_flops or 1)
    apart = replace(apart, notes=(_note(share, padding, told_by), *done.notes))
    fall = measured.waterfall
    if fall is not None:
        fall = waterfall(device_budgets(prepared, apart, measured.rates))
    return replace(measured, executed=apart, waterfall=fall)


def _note(share: Fraction, padding: Padding, told_by: str) -> Note:
    text = (
        f"Padding, {told_by}, is not part of useful work and MFU: {exact_percent(share)} of "
        f"the executed FLOPs are {PADDING}."
    )
    if padding.is_even:
        text += (
            " For attention this is an upper estimate: sequence lengths are unknown "
            "and assumed to be equal."
        )
    elif padding.of_rows:
        text += " This covers products only; padding of attention needs a description of the model."
    return Note("assumed", "padding-taken-out", text)


def _split(cells: Iterable[Cell], padding: Padding) -> Iterator[Cell]:
    """Yield the cells, what is padding in each of them apart.

    Shares are rounded so that the sum over all cells of a line has the share of their sum.
    """
    so_far: defaultdict[tuple[str, str, bool], int] = defaultdict(int)
    for cell in cells:
        left = cell
        for name, share in padding.of(cell.line):
            key = (cell.line, name, cell.used)
            before = int(so_far[key] * share)
            so_far[key] += cell.flops
            flops = min(int(so_far[key] * share) - before, left.flops)
            if flops <= 0:
                continue
            rest = left.flops - flops
            least = min(int(cell.at_least * share), flops, left.at_least)
            least = max(least, left.at_least - rest)  # what is left keeps its bounds in order
            yield replace(
                cell,
                line=f"{PADDING}.{name}",
                flops=flops,
                at_least=least,
                open_flops=0,
                was=cell.line,
            )
            left = replace(
                left,
                flops=rest,
                at_least=left.at_least - least,
                open_flops=min(left.open_flops, rest),
            )
        yield left


def without_told_padding(measured: Measurement, prepared: Prepared) -> Measurement:
    """Return the measurement without the padding that the trace tells.

    A description counts if it agrees with what the trace shows; else marks that tell how many
    tokens are real, and how many are computed.
    """
    trace = prepared.trace
    tells = trace.source.description or any(map(is_ours, names(trace.marks["name"])))
    if not tells or not measured.executed.executed_flops:
        return measured
    # Models are only needed for the few traces that describe themselves.
    from traceflops.mfu.checked.trace_description import SelfDescribed, self_described

    said = self_described(prepared)
    if not isinstance(said, SelfDescribed):
        return without_marked_padding(measured, prepared)
    job = job_size(prepared, said.run.devices if said.run.devices > 1 else None)
    run = of_job(said.run, job)
    counts = counts_of(measured, said.card, run, job)
    agree = counts is not None and counts.agree
    padding = described_padding(said.card, run, measured.executed) if agree else None
    return (
        measured
        if padding is None
        else without_padding(measured, prepared, padding, "as described")
    )


def without_marked_padding(measured: Measurement, prepared: Prepared) -> Measurement:
    """Return the measurement without the padding that marks alone tell."""
    marked = told_by_marks(prepared)
    values = marked.values if marked is not None else {}
    real = values.get("seqlens.sum", values.get("tokens.real"))
    computed = values.get("tokens.padded")
    if real is None or computed is None or real >= computed:
        return measured
    padding = padding_of_rows(Fraction(real), Fraction(computed))
    return without_padding(measured, prepared, padding, "from annotations")

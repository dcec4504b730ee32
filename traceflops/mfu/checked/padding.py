"""Padding taken out of what a trace shows: FLOPs on rows and pairs of no real token.

No profiler records which rows are real. Where a description or marks state it, that share of the
products and of attention, forward, backward and recomputed, is `overcompute.padding`. The share is
exact for products, whose FLOPs grow with the rows, and for attention where lengths are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Final

from traceflops.flops.analytic.run import NO_CHECKPOINT, Run
from traceflops.flops.analytic.run_flops import default_convention, model_flops
from traceflops.flops.mfu_waterfall import waterfall
from traceflops.flops.model.card import ModelCard
from traceflops.mfu.budget import device_budgets
from traceflops.mfu.checked.job_size import job_size
from traceflops.mfu.checked.passes import Passes, counts_of, of_job, passes_of, visible
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.cells import Cell
from traceflops.mfu.traced.executed import Executed
from traceflops.mfu.traced.run_marks import is_ours, marked_tokens
from traceflops.table.columns import names
from traceflops.table.trace import note_of
from traceflops.windows.prepared import Prepared

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

    `head` is the padding of products of the output head, if the trace shows these apart. With
    `is_even`, lengths are unknown and taken to be equal; with `of_rows`, only rows are known.
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


def described_padding(card: ModelCard, run: Run, done: Executed) -> Padding | None:
    """Return the padding of a description, None where it has none.

    The run is counted four times: as computed, then without padded tokens, without padded rows of
    the output head, and without spare rows of the experts. What each leaves out is a share of the
    first. Where the trace shows no attention of its own, that is among the products.
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
        none = Fraction(0)
        counted = [
            Passes(forward + attention_forward, backward + attention_backward, none, none)
            for forward, backward, attention_forward, attention_backward in counted
        ]
    forward, backward, attention_forward, attention_backward = (
        tuple(
            (name, (more - less) / figures[0])
            for name, more, less in zip(
                ("tokens", "vocab", "experts"), figures, figures[1:], strict=False
            )
            if figures[0] and more != less
        )
        for figures in zip(*counted, strict=True)
    )
    attention_forward, attention_backward = (
        tuple(("attention", share) for name, share in shares if name == "tokens")
        for shares in (attention_forward, attention_backward)
    )
    head = None
    kinds = {name for name, _ in (*forward, *backward)}
    apart = any(line.name.endswith(".logits") for line in shown.lines)
    # The trace shows the products of the output head apart, so these alone have its padded rows.
    # Spare rows of experts are in no products of their own: then all products share both out.
    if apart and card.padded_vocab is not None and "vocab" in kinds and "experts" not in kinds:
        forward, backward = (
            tuple(share for share in shares if share[0] == "tokens")
            for shares in (forward, backward)
        )
        real = 1 - sum((share for _, share in forward), Fraction(0))
        spare = Fraction(card.padded_vocab - card.vocab, card.padded_vocab)
        head = (*forward, ("vocab", real * spare))
    of_passes = (forward, backward, attention_forward, attention_backward)
    if not any(share for _, share in chain(*of_passes, head or ())):
        return None
    shape = run.shape(card)
    has_lengths = bool(run.documents) or run.sums is not None
    several = shape.padded and (shape.sequences or 0) > 1
    is_even = several and not has_lengths and bool(card.cores())
    return Padding(*of_passes, head=head, is_even=is_even)


def without_padding(
    measured: Measurement, prepared: Prepared, padding: Padding, source: str
) -> Measurement:
    """Return the measurement with padding in lines of its own, and a note that says so.

    `source` says where it is from: "as described".
    """
    done = measured.executed.as_computed
    apart = replace(done, cells=tuple(_split(done.cells, padding)))
    assert apart.executed_flops == done.executed_flops
    share = Fraction(apart.padding_flops, apart.executed_flops or 1)
    variant = ".even" if padding.is_even else ".of-rows" if padding.of_rows else ""
    code = f"padding-taken-out{variant}"
    note = note_of("assumed", code, source=source, part=share, line=PADDING)
    apart = replace(apart, notes=(note, *done.notes))
    fall = measured.waterfall
    if fall is not None:
        fall = waterfall(device_budgets(prepared, apart, measured.rates))
    return replace(measured, executed=apart, waterfall=fall)


def _split(cells: Iterable[Cell], padding: Padding) -> Iterator[Cell]:
    """Yield the cells, each with its padding split off.

    Rounding is such that all cells of a line together have the share of their sum.
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


def without_stated_padding(measured: Measurement, prepared: Prepared) -> Measurement:
    """Return the measurement without the padding that the trace itself states.

    A description counts if it agrees with the trace; else marks with real and computed tokens do.
    """
    trace = prepared.trace
    states = trace.source.description or any(map(is_ours, names(trace.marks["name"])))
    if not states or not measured.executed.executed_flops:
        return measured
    # Models are only needed for the few traces that describe themselves.
    from traceflops.mfu.checked.trace_description import SelfDescribed, self_described

    described = self_described(prepared)
    if not isinstance(described, SelfDescribed):
        return without_marked_padding(measured, prepared)
    job = job_size(prepared, described.run.devices if described.run.devices > 1 else None)
    run = of_job(described.run, job)
    counts = counts_of(measured, described.card, run, job)
    agree = counts is not None and counts.agree
    padding = described_padding(described.card, run, measured.executed) if agree else None
    if padding is None:
        return measured
    return without_padding(measured, prepared, padding, "as described")


def without_marked_padding(measured: Measurement, prepared: Prepared) -> Measurement:
    """Return the measurement without the padding of products that marks alone state."""
    marked = marked_tokens(prepared)
    values = marked.values if marked is not None else {}
    real = values.get("seqlens.sum", values.get("tokens.real"))
    computed = values.get("tokens.padded")
    if real is None or computed is None or real >= computed:
        return measured
    share = (("tokens", 1 - real / computed),)
    padding = Padding(share, share, of_rows=True)
    return without_padding(measured, prepared, padding, "from annotations")

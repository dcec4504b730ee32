"""Descriptions that differ from the given one in what is easily mistaken: one change each.

None of them looks at what the trace shows, but those that solve for a size (layers, lengths, rows
of the head): these take the size at which the counts would agree, where it is a whole number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from traceflops.errors import TraceflopsError
from traceflops.flops import (
    CAUSAL,
    FULL,
    FULL_CHECKPOINT,
    SELECTIVE,
    Attention,
    Block,
    Experts,
    LatentAttention,
    Mask,
    ModelCard,
    Run,
    preset,
    preset_names,
)
from traceflops.mfu.checked.passes import Passes, plain_slots, visible, without_lengths
from traceflops.units import several

MOST_TOPK: Final = 16
MOST_DOCUMENTS: Final = 100_000
LARGEST_SIZE: Final = 10**9


@dataclass(frozen=True, slots=True)
class Variant:
    """A description, what is different in it, and what to do if it is the right one.

    `cost` says how much must be supposed. `grain` is by how much the FLOPs change with the next
    possible value, relative: a size that was solved for is only worth something if it is coarse.
    `factor` is by how much everything would be counted wrong.
    """

    code: str
    words: str
    remedy: str
    card: ModelCard
    run: Run
    cost: int
    grain: Fraction = Fraction(1)
    factor: Fraction = Fraction(1)
    recomputed: bool = False

    def passes(self) -> Passes | None:
        """Return what a trace of it would show of one device; None where it cannot be counted."""
        try:
            found = visible(self.card, self.run, recomputed=self.recomputed)
        except TraceflopsError:
            return None
        return found.times(self.factor / self.run.devices)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the trace shows of one device in one step: its passes, and lines that tell more.

    `adapters` and `logits` are the forward FLOPs of adapters and of the output head, 0 where none
    were recognised.
    """

    passes: Passes
    adapters: Fraction = Fraction(0)
    logits: Fraction = Fraction(0)


def as_described(card: ModelCard, run: Run) -> Variant:
    """Return the description itself."""
    return Variant("", "", "", card, run, 0)


def manners(card: ModelCard, run: Run) -> Iterator[Variant]:
    """Yield other ways of computing the same model on the same tokens."""
    yield from _attended(card, run)
    yield from _routed(card, run)
    yield from _recomputed(card, run)
    yield from _headless(card, run)
    yield from _unpadded(card, run)


def sizes(card: ModelCard, run: Run, seen: Seen) -> Iterator[Variant]:
    """Yield other sizes: of the sequences, the depth, the output head; and other models."""
    yield from _other_lengths(card, run, seen)
    yield from _other_rows(card, run, seen)
    yield from _other_depth(card, run, seen)
    yield from _other_models(card, run)


# How it is computed


def _attended(card: ModelCard, run: Run) -> Iterator[Variant]:
    kinds = {core.core.mask.kind for core in card.cores() if not core.core.cross}
    if kinds - {"full"}:
        words = "attention computes all pairs, including masked ones"
        remedy = 'check that a fused causal attention runs; mask = "full" in the card counts all'
        yield Variant("full-attention", words, remedy, with_mask(card, FULL), run, 2)
    if kinds - {"causal"}:
        words = "attention has a plain causal mask"
        remedy = 'mask = "causal" in the card'
        yield Variant("causal-attention", words, remedy, with_mask(card, CAUSAL), run, 2)


def with_mask(card: ModelCard, mask: Mask) -> ModelCard:
    """Return the card with one mask for all attention of its own blocks."""
    blocks = tuple((count, _masked(block, mask)) for count, block in card.blocks)
    return replace(card, blocks=blocks)


def _masked(block: Block, mask: Mask) -> Block:
    attention = block.attention
    if isinstance(attention, Attention | LatentAttention):
        return replace(block, attention=replace(attention, mask=mask))
    return block


def _routed(card: ModelCard, run: Run) -> Iterator[Variant]:
    """Yield other numbers of experts that one token goes through."""
    mixtures = [b.feed_forward for _, b in card.blocks if isinstance(b.feed_forward, Experts)]
    if not mixtures:
        return
    count, topk = mixtures[0].count, mixtures[0].topk
    words = f"every token uses all {count} experts"
    remedy = "look for a dense fallback of the experts; topk in the card counts used experts"
    yield Variant("all-experts", words, remedy, _with_topk(card, count), run, 1)
    for used in range(1, min(MOST_TOPK, count - 1) + 1):
        if used != topk:
            words = f"a token uses {used} experts, not {topk}"
            other = _with_topk(card, used)
            yield Variant("experts", words, f"topk = {used} in the card", other, run, 3)


def _with_topk(card: ModelCard, topk: int) -> ModelCard:
    def changed(block: Block) -> Block:
        experts = block.feed_forward
        if not isinstance(experts, Experts):
            return block
        fewer = replace(experts, topk=min(topk, experts.count))
        return replace(block, feed_forward=fewer)

    return replace(card, blocks=tuple((count, changed(block)) for count, block in card.blocks))


def _recomputed(card: ModelCard, run: Run) -> Iterator[Variant]:
    if run.forward_only:
        return
    for checkpoint in (FULL_CHECKPOINT, SELECTIVE):
        words = (
            f"the trace has recomputation ({checkpoint.name} checkpointing) that "
            "looks like forward work"
        )
        remedy = "record with shapes and without compilation to separate it"
        again = replace(run, checkpoint=checkpoint)
        yield Variant("recompute", words, remedy, card, again, 2, recomputed=True)


def _headless(card: ModelCard, run: Run) -> Iterator[Variant]:
    if card.head and card.vocab and card.blocks:
        words = "the output head is not in the trace"
        remedy = "head = false in the card, or select steps that include it"
        yield Variant("no-head", words, remedy, replace(card, head=False), run, 2)


def _unpadded(card: ModelCard, run: Run) -> Iterator[Variant]:
    shape = run.shape(card)
    if not shape.padded or shape.documents is None or (shape.sequences or 0) > MOST_DOCUMENTS:
        return
    lengths = tuple(length for length, count in shape.documents for _ in range(count))
    bare = replace(without_lengths(run), batch=None, seq=None, tokens=None)
    real = replace(bare, documents=lengths)
    words = "only real tokens are computed, without padding"
    yield Variant("no-padding", words, "remove the padded sizes", card, real, 1)


# Other sizes, solved for


def _other_rows(card: ModelCard, run: Run, seen: Seen) -> Iterator[Variant]:
    """Yield the output head with as many rows as the trace's logits have."""
    tokens = Fraction(run.shape(card).slot_tokens, run.devices)
    if not (card.head and card.hidden and card.blocks):
        return
    rows = seen.logits / (2 * tokens * card.hidden)
    if rows.denominator == 1 and 0 < rows != (card.padded_vocab or card.vocab):
        usual = card.padded_vocab or card.vocab
        words = f"the output head has {several(int(rows), 'row')}, not {usual:,}"
        remedy = f"--padded-vocab {int(rows)}" if rows > card.vocab else f"vocab = {int(rows)}"
        other = replace(card, vocab=int(rows), padded_vocab=None)
        yield Variant("head", words, remedy, other, run, 1)


def _other_lengths(card: ModelCard, run: Run, seen: Seen) -> Iterator[Variant]:
    """Yield sequences of another length: as many of them, or as many tokens in all."""
    slots = plain_slots(card, run)
    if slots is None:
        return
    length, batch = slots
    here = as_described(card, run).passes()
    if here is None or not here.forward:
        return
    longer = solved(seen.passes.forward / here.forward * length)
    if longer is not None and longer != length:
        what = "padding, or another --seq" if longer > length else "no padding"
        words = f"a sequence has {several(longer, 'token')}, not {length:,} ({what})"
        grain = Fraction(1, longer)
        other = _of_slots(run, batch, longer)
        yield Variant("sequence", words, f"--seq {longer}", card, other, 2, grain)
    if here.attention and seen.passes.attention:
        ratio = seen.passes.attention / here.attention
        for other_length in {solved(ratio * length), solved(ratio * (length + 1) - 1)}:
            yield from _regrouped(card, run, (length, batch), other_length)


def _regrouped(
    card: ModelCard, run: Run, slots: tuple[int, int], length: int | None
) -> Iterator[Variant]:
    tokens = slots[0] * slots[1]
    if length is None or length == slots[0] or tokens % length:
        return
    number = tokens // length
    words = f"the tokens of a step are {number:,} sequences of {length:,}, not {slots[1]:,} of "
    words += f"{slots[0]:,}"
    remedy = f"--batch {number} --seq {length}"
    yield Variant("sequence", words, remedy, card, _of_slots(run, number, length), 2)


def _of_slots(run: Run, batch: int, length: int) -> Run:
    return replace(without_lengths(run), batch=batch, seq=length, tokens=None)


def _other_depth(card: ModelCard, run: Run, seen: Seen) -> Iterator[Variant]:
    """Yield another number of layers, where all are alike."""
    if len(card.blocks) != 1:
        return
    ((layers, block),) = card.blocks
    here = as_described(card, run).passes()
    deeper = as_described(replace(card, blocks=((layers + 1, block),)), run).passes()
    if here is None or deeper is None or deeper.total == here.total:
        return
    each = deeper.total - here.total
    found = solved(layers + (seen.passes.total - here.total) / each)
    if found is not None and found != layers:
        words = f"the model has {found} layer{'s' * (found != 1)}, not {layers}"
        grain = each / seen.passes.total
        other = replace(card, blocks=((found, block),), params=None)
        yield Variant("layers", words, f"layers = {found}", other, run, 3, grain)


def solved(value: Fraction) -> int | None:
    """Return the whole number next to a size, if it can be one."""
    found = round(value)
    return found if 1 <= found <= LARGEST_SIZE else None


def _other_models(card: ModelCard, run: Run) -> Iterator[Variant]:
    """Yield the presets in place of the model."""
    for name in preset_names():
        other = preset(name)
        if other.name != card.name:
            words = f"the model is {other.name}, not {card.name}"
            yield Variant("model", words, f"--model {name}", other, run, 4)

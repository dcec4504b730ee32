"""Descriptions that differ from the given one in what is easily mistaken: one change each.

Here are other ways of training and of computing the same model on the same tokens. None of them
looks at what the trace shows, but those that solve for a size: these take the size at which the
counts would agree, where it is a whole number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from traceflops.errors import TraceflopsError
from traceflops.flops import (
    CAUSAL,
    FULL,
    FULL_CHECKPOINT,
    NO_CHECKPOINT,
    SELECTIVE,
    Experts,
    Lora,
    Mask,
    ModelCard,
    Run,
    default_convention,
    model_flops,
)
from traceflops.mfu.checked.passes import Passes, visible, without_lengths

_FROZEN: Final = "the base weights are frozen, as with LoRA: the trace has no gradients of them"
MOST_TOPK: Final = 16
MOST_DOCUMENTS: Final = 100_000
LARGEST_SIZE: Final = 10**9

_PARTS: Final = frozenset(
    {"attention", "cross", "ffn", "experts", "shared", "router", "head", "mtp"}
)

_MASKS: Final = (
    (
        FULL,
        "attention computes all pairs, including masked ones",
        'check that a fused causal attention runs; mask = "full" in the card counts all',
    ),
    (CAUSAL, "attention has a plain causal mask", 'mask = "causal" in the card'),
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A description, what is different in it, and what to do if it is the right one.

    `cost` says how much must be supposed. `grain` is by how much the FLOPs change with the next
    possible value, relative: a size that was solved for is only worth something if it is coarse.
    """

    card: ModelCard
    run: Run
    code: str = ""
    words: str = ""
    remedy: str = ""
    cost: int = 0
    grain: Fraction = Fraction(1)
    recomputed: bool = False

    def but(self, code: str, words: str, remedy: str, cost: int, **changes: Any) -> Variant:
        """Return it with one change more; two together cost more than either alone."""
        if self.code:
            code, words = f"{self.code}+{code}", f"{self.words}, and {words}"
            remedy, cost = f"{self.remedy}, {remedy}", self.cost + cost + 1
        return replace(self, code=code, words=words, remedy=remedy, cost=cost, **changes)

    def passes(self) -> Passes | None:
        """Return what a trace of it would show of one device; None where it cannot be counted."""
        try:
            shown = visible(self.card, self.run, recomputed=self.recomputed)
        except TraceflopsError:
            return None
        return shown.times(Fraction(1, self.run.devices))


@dataclass(frozen=True, slots=True)
class Seen:
    """What the trace shows of one device in one step: its passes, and lines that tell more.

    `adapters` and `logits` are the forward FLOPs of adapters and of the output head, 0 where none
    were recognised.
    """

    passes: Passes
    adapters: Fraction = Fraction(0)
    logits: Fraction = Fraction(0)


def ways(described: Variant, seen: Seen) -> Iterator[Variant]:
    """Yield other ways of training and computing the same model on the same tokens."""
    for way in _WAYS:
        yield from way(described, seen)


def solved(value: Fraction, other_than: int | None = None) -> int | None:
    """Return the whole number next to a size, if it can be one, and another than it was."""
    size = round(value)
    return size if 1 <= size <= LARGEST_SIZE and size != other_than else None


def repeated(described: Variant, once: Variant, seen: Seen) -> tuple[Fraction, Fraction] | None:
    """Return how many times a change would explain the difference, and its grain.

    None where the change changes nothing.
    """
    here, there = described.passes(), once.passes()
    if here is None or there is None or here.total == there.total or not seen.passes.total:
        return None
    each = there.total - here.total
    return (seen.passes.total - here.total) / each, abs(each) / seen.passes.total


# What is trained


def _plain(run: Run) -> Run:
    return replace(run, forward_only=False, frozen=frozenset(), frozen_layers=0, lora=None)


def _training(described: Variant, seen: Seen) -> Iterator[Variant]:
    run = described.run
    plain = _plain(run)
    if run.forward_only:
        words = "it is training: the trace has a backward pass"
        yield described.but("training", words, "add --no-forward-only", 1, run=plain)
    else:
        only = replace(plain, forward_only=True, checkpoint=NO_CHECKPOINT)
        words = "there is only a forward pass: inference, or steps without training"
        yield described.but("forward-only", words, "add --forward-only", 1, run=only)
    if run.is_frozen or run.frozen or run.frozen_layers:
        words = "no weights are frozen: the trace has gradients of all weights"
        yield described.but("not-frozen", words, "remove --lora and --frozen", 1, run=plain)


def _adapted(described: Variant, seen: Seen) -> Iterator[Variant]:
    """Yield adapters of the size that the trace shows, beside frozen weights."""
    card, run = described.card, described.run
    claimed = run.lora is not None and run.is_frozen
    code, before, add = ("lora", "the", "") if claimed else ("frozen", f"{_FROZEN}; its", "add ")
    for lora, size, remedy in sizes_of_adapters(card, run, seen.adapters):
        words = f"{before} adapters {size}"
        yield described.but(code, words, add + remedy, 1, run=replace(_plain(run), lora=lora))


def sizes_of_adapters(card: ModelCard, run: Run, seen: Fraction) -> Iterator[tuple[Lora, str, str]]:
    """Yield other adapters that have the forward FLOPs seen on a device, in words and as an option.

    By their rank where one fits, on the matrices described or on all; else by their weights.
    """
    said = run.lora
    if not seen or (said is not None and adapter_flops(card, run) == seen):
        return
    targets = said.targets if said is not None else ()
    sized = card.complete and bool(card.blocks)
    for names in dict.fromkeys((targets, ())) if sized else ():
        each = adapter_flops(card, replace(run, lora=Lora(rank=1, targets=names)))
        rank = _whole(seen / each) if each else None
        adapted = Lora(rank=1, targets=names).adapted(card)
        if rank is not None and all(rank <= at.linear.narrowest for at in adapted):
            yield Lora(rank=rank, targets=names), *_by_rank(rank, names, said)
            return
    weights = seen * run.devices / (2 * run.shape(card).slot_tokens)
    if weights.denominator == 1:
        instead = f", not {said.params:,}" if said is not None and said.params else ""
        words = f"have {int(weights):,} weights{instead}"
        yield Lora(params=int(weights)), words, f"--lora-params {int(weights)}"


def _by_rank(rank: int, names: tuple[str, ...], said: Lora | None) -> tuple[str, str]:
    """Return adapters of a rank in words, and the option for them."""
    differs = said is not None and said.rank not in (None, rank)
    words = f"have rank {rank}" + (f", not {said.rank}" if said is not None and differs else "")
    remedy = f"--lora-rank {rank}"
    if said is not None and said.targets != names:
        words += f"{',' * differs} and are on all matrices of the blocks"
        remedy += " without --lora-targets"
    return words, remedy


def adapter_flops(card: ModelCard, run: Run) -> Fraction:
    """Return the forward FLOPs of the adapters on one device, padding included."""
    shape = run.shape(card)
    ledger = model_flops(card, run, default_convention(card, run))
    return (
        Fraction(ledger.total("model.matmul.forward.adapters"))
        * shape.slot_tokens
        / (shape.tokens * run.devices)
    )


def _whole(value: Fraction) -> int | None:
    size = solved(value)
    return size if size is not None and abs(value - size) * 1000 <= size else None


def _base_frozen(described: Variant, seen: Seen) -> Iterator[Variant]:
    if not described.run.is_frozen:
        frozen = replace(_plain(described.run), frozen=frozenset({"all"}))
        yield described.but("frozen", _FROZEN, "add --lora, or --lora-rank R", 1, run=frozen)


def _parts_frozen(described: Variant, seen: Seen) -> Iterator[Variant]:
    """Yield a single part that is frozen, or that alone is trained."""
    card, plain = described.card, _plain(described.run)
    groups = sorted({at.linear.group for at in card.placed()} & _PARTS)
    for part in groups:
        others = [one for one in groups if one != part]
        words = f"the weights of {part} are frozen: the trace has no gradients of them"
        some = replace(plain, frozen=frozenset({part}))
        yield described.but("frozen", words, f"add --frozen {part}", 2 + bool(others), run=some)
        if len(others) > 1:
            words = f"only the weights of {part} are trained: the trace has no "
            words += "gradients of the others"
            some = replace(plain, frozen=frozenset(others))
            yield described.but("frozen", words, f"add --frozen {','.join(others)}", 3, run=some)


def _first_layers(described: Variant, seen: Seen) -> Iterator[Variant]:
    """Yield so many layers without any gradient as the trace lacks, where all are alike."""
    card, run = described.card, _plain(described.run)
    if len(card.blocks) != 1:
        return
    first = Variant(card, replace(run, frozen_layers=1))
    times, grain = repeated(Variant(card, run), first, seen) or (Fraction(0), Fraction(0))
    number = solved(times)
    if number is None or number > card.layers:
        return
    words = f"in the first {number} of {card.layers} layers nothing is trained"
    if number == card.layers:
        words = "in the layers nothing is trained, only behind them"
    fixed = replace(run, frozen_layers=number)
    remedy = f"add --frozen-layers {number}"
    yield described.but("frozen", words, remedy, 3, run=fixed, grain=grain)


# How it is computed


def _attended(described: Variant, seen: Seen) -> Iterator[Variant]:
    cores = (one.core for one in described.card.cores())
    kinds = {core.mask.kind for core in cores if not core.cross}
    for mask, words, remedy in _MASKS:
        if kinds - {mask.kind}:
            card = with_mask(described.card, mask)
            yield described.but(f"{mask.kind}-attention", words, remedy, 2, card=card)


def with_mask(card: ModelCard, mask: Mask) -> ModelCard:
    """Return the card with one mask for all attention of its own blocks."""
    return card.with_blocks(
        lambda block: (
            replace(block, attention=replace(block.attention, mask=mask))
            if block.attention is not None
            else block
        )
    )


def _routed(described: Variant, seen: Seen) -> Iterator[Variant]:
    """Yield other numbers of experts that one token goes through."""
    card = described.card
    mixtures = [b.feed_forward for _, b in card.blocks if isinstance(b.feed_forward, Experts)]
    if not mixtures:
        return
    count, topk = mixtures[0].count, mixtures[0].topk
    words = f"every token uses all {count} experts"
    remedy = "look for a dense fallback of the experts; topk in the card counts used experts"
    yield described.but("all-experts", words, remedy, 1, card=_with_topk(card, count))
    for used in range(1, min(MOST_TOPK, count - 1) + 1):
        if used != topk:
            words = f"a token uses {used} experts, not {topk}"
            other = _with_topk(card, used)
            yield described.but("experts", words, f"topk = {used} in the card", 3, card=other)


def _with_topk(card: ModelCard, topk: int) -> ModelCard:
    return card.with_experts(lambda experts: replace(experts, topk=min(topk, experts.count)))


def _recomputed(described: Variant, seen: Seen) -> Iterator[Variant]:
    for checkpoint in (FULL_CHECKPOINT, SELECTIVE) if not described.run.forward_only else ():
        words = (
            f"the trace has recomputation ({checkpoint.name} checkpointing) that "
            "looks like forward work"
        )
        remedy = "record with shapes and without compilation to separate it"
        again = replace(described.run, checkpoint=checkpoint)
        yield described.but("recompute", words, remedy, 2, run=again, recomputed=True)


def _headless(described: Variant, seen: Seen) -> Iterator[Variant]:
    card = described.card
    if card.head and card.vocab and card.blocks:
        words = "the output head is not in the trace"
        remedy = "head = false in the card, or select steps that include it"
        yield described.but("no-head", words, remedy, 2, card=replace(card, head=False))


def _unpadded(described: Variant, seen: Seen) -> Iterator[Variant]:
    shape = described.run.shape(described.card)
    if not shape.padded or shape.documents is None or (shape.sequences or 0) > MOST_DOCUMENTS:
        return
    lengths = tuple(length for length, count in shape.documents for _ in range(count))
    bare = replace(without_lengths(described.run), batch=None, seq=None, tokens=None)
    real = replace(bare, documents=lengths)
    words = "only real tokens are computed, without padding"
    yield described.but("no-padding", words, "remove the padded sizes", 1, run=real)


_WAYS: Final[tuple[Callable[[Variant, Seen], Iterator[Variant]], ...]] = (
    *(_training, _adapted, _base_frozen, _parts_frozen, _first_layers),
    *(_attended, _routed, _recomputed, _headless, _unpadded),
)

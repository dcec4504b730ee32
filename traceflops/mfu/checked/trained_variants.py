"""Descriptions that differ in what is trained: frozen parts, adapters, no training at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Final

from traceflops.flops import NO_CHECKPOINT, Lora, ModelCard, Run, default_convention, model_flops
from traceflops.mfu.checked.variants import Seen, Variant, as_described, solved

CLOSE: Final = Fraction(2, 100)
"""Parts whose gradients are so near to what is missing are worth counting anew, together."""

MOST_TOGETHER: Final = 3
"""Parts that are frozen, or that alone are trained, named together at most."""

_PARTS: Final = frozenset(
    {"attention", "cross", "ffn", "experts", "shared", "router", "head", "mtp"}
)
_ADAPTERS: Final = "model.matmul.forward.adapters"


def trained(card: ModelCard, run: Run, seen: Seen) -> Iterator[Variant]:
    """Yield other ways of training the same model on the same tokens."""
    plain = replace(run, forward_only=False, frozen=frozenset(), frozen_layers=0, lora=None)
    if run.forward_only:
        words = "it is training: the trace has a backward pass"
        yield Variant("training", words, "remove --forward-only", card, plain, 1)
    else:
        only = replace(plain, forward_only=True, checkpoint=NO_CHECKPOINT)
        words = "there is only a forward pass: inference, or steps without training"
        yield Variant("forward-only", words, "add --forward-only", card, only, 1)
    if run.is_frozen or run.frozen or run.frozen_layers:
        words = "no weights are frozen: the trace has gradients of all weights"
        remedy = "remove --lora and --frozen"
        yield Variant("not-frozen", words, remedy, card, plain, 1)
    yield from _adapted(card, run, plain, seen)
    if not run.is_frozen:
        words = "the base weights are frozen, as with LoRA: the trace has no gradients of them"
        frozen = replace(plain, frozen=frozenset({"all"}))
        yield Variant("frozen", words, "add --lora, or --lora-rank R", card, frozen, 1)
    yield from _partly(card, plain, seen)


# Adapters


def _adapted(card: ModelCard, run: Run, plain: Run, seen: Seen) -> Iterator[Variant]:
    """Yield adapters of the size that the trace shows, beside frozen weights."""
    claimed = run.lora is not None and run.is_frozen
    before = "the base weights are frozen, as with LoRA: the trace has no gradients of them; its "
    for lora, size, remedy in sizes_of_adapters(card, run, seen.adapters):
        words = f"the adapters {size}" if claimed else f"{before}adapters {size}"
        yield Variant(
            code="lora" if claimed else "frozen",
            words=words,
            remedy=remedy if claimed else f"add {remedy}",
            card=card,
            run=replace(plain, lora=lora),
            cost=1,
        )


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
        if rank is not None and rank <= _narrowest(card, names):
            yield Lora(rank=rank, targets=names), *_by_rank(rank, names, said)
            return
    weights = seen * run.devices / (2 * run.shape(card).slot_tokens)
    if weights.denominator == 1:
        instead = f", not {said.params:,}" if said is not None and said.params else ""
        words = f"have {int(weights):,} weights{instead}"
        yield Lora(params=int(weights)), words, f"--lora-params {int(weights)}"


def _narrowest(card: ModelCard, targets: tuple[str, ...]) -> int:
    """Return the least width of a matrix with an adapter; more than that is no rank."""
    adapted = Lora(rank=1, targets=targets).adapted(card)
    return min((min(one.linear.inputs, one.linear.outputs) for one in adapted), default=0)


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
    return Fraction(ledger.total(_ADAPTERS)) * shape.slot_tokens / (shape.tokens * run.devices)


def _whole(value: Fraction) -> int | None:
    """Return the whole number that a size is, None where it is none."""
    found = solved(value)
    return found if found is not None and abs(value - found) * 1000 <= found else None


# Frozen parts


def _partly(card: ModelCard, run: Run, seen: Seen) -> Iterator[Variant]:
    """Yield single frozen parts, several together, and first layers in which nothing is trained."""
    groups = sorted({one.linear.group for one in card.placed()} & _PARTS)
    for part in groups:
        yield _frozen(card, run, (part,), groups)
    for parts in _together(card, run, seen, groups):
        yield _frozen(card, run, parts, groups)
    yield from _first_layers(card, run, seen)


def _frozen(card: ModelCard, run: Run, parts: tuple[str, ...], groups: list[str]) -> Variant:
    """Return some parts frozen, in the fewest words: those frozen, or those trained."""
    others = [part for part in groups if part not in parts]
    words = f"the weights of {_listed(parts)} are frozen: the trace has no gradients of them"
    if len(parts) > 1 and len(others) <= len(parts):
        words = f"only the weights of {_listed(others)} are trained: the trace has no gradients of "
        words += "the others"
    some = replace(run, frozen=frozenset(parts))
    cost = 2 + min(len(parts), len(others))
    return Variant("frozen", words, f"add --frozen {','.join(parts)}", card, some, cost)


def _listed(parts: tuple[str, ...] | list[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _together(
    card: ModelCard, run: Run, seen: Seen, groups: list[str]
) -> Iterator[tuple[str, ...]]:
    """Yield several parts whose weight gradients are together what the trace lacks."""
    here = as_described(card, run).passes()
    if here is None or not here.backward or run.forward_only:
        return
    ledger = model_flops(card, run, default_convention(card, run))
    counted = {part: ledger.total(f"model.matmul.weight_grad.{part}") for part in groups}
    whole = sum((line.flops for line in ledger.lines if _is_gradient(line.name)), Fraction(0))
    if not whole:
        return
    lacking = (here.backward - seen.passes.backward) / here.backward
    for number in range(2, len(groups)):
        for parts in combinations(groups, number):
            share = sum((Fraction(counted[part]) for part in parts), Fraction(0)) / whole
            few = min(number, len(groups) - number) <= MOST_TOGETHER
            if few and abs(share - lacking) <= CLOSE:
                yield parts


def _is_gradient(name: str) -> bool:
    return name.startswith(("model.matmul.input_grad", "model.matmul.weight_grad", "model.conv."))


def _first_layers(card: ModelCard, run: Run, seen: Seen) -> Iterator[Variant]:
    """Yield so many layers without any gradient as the trace lacks, where all are alike."""
    if len(card.blocks) != 1 or run.forward_only:
        return
    here = as_described(card, run).passes()
    one = as_described(card, replace(run, frozen_layers=1)).passes()
    if here is None or one is None or here.total == one.total:
        return
    each = here.total - one.total
    number = solved((here.total - seen.passes.total) / each)
    if number is None or number > card.layers:
        return
    words = f"in the first {number} of {card.layers} layers nothing is trained"
    if number == card.layers:
        words = "in the layers nothing is trained, only behind them"
    fixed = replace(run, frozen_layers=number)
    remedy = f"add --frozen-layers {number}"
    yield Variant("frozen", words, remedy, card, fixed, 3, each / seen.passes.total)

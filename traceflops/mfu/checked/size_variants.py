"""Variants of other sizes: of the sequences, the depth, the head, the batch, the job; other models.

Each is solved for: it is the size at which the counts would agree, where that is a whole number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from traceflops.flops import Run, preset, preset_names
from traceflops.mfu.checked.passes import plain_slots, without_lengths
from traceflops.mfu.checked.variants import MOST_DOCUMENTS, Seen, Variant, repeated, solved
from traceflops.units import several


def sizes(described: Variant, seen: Seen) -> Iterator[Variant]:
    """Yield other sizes: of the sequences, the depth, the output head; and other models."""
    yield from _other_lengths(described, seen)
    yield from _other_rows(described, seen)
    yield from _other_depth(described, seen)
    for name in preset_names():
        card = preset(name)
        if card.name != described.card.name:
            words = f"the model is {card.name}, not {described.card.name}"
            yield described.but("model", words, f"--model {name}", 4, card=card)


def _other_rows(described: Variant, seen: Seen) -> Iterator[Variant]:
    """Yield the output head with as many rows as the trace's logits have."""
    card, run = described.card, described.run
    tokens = Fraction(run.shape(card).slot_tokens, run.devices)
    if not (card.head and card.hidden and card.blocks):
        return
    rows, usual = seen.logits / (2 * tokens * card.hidden), card.padded_vocab or card.vocab
    if rows.denominator == 1 and 0 < rows != usual:
        words = f"the output head has {several(int(rows), 'row')}, not {usual:,}"
        remedy = f"--padded-vocab {rows}" if rows > card.vocab else f"vocab = {rows}"
        other = replace(card, vocab=int(rows), padded_vocab=None)
        yield described.but("head", words, remedy, 1, card=other)


def _other_lengths(described: Variant, seen: Seen) -> Iterator[Variant]:
    """Yield sequences of another length: as many of them, or as many tokens in all."""
    run, slots, here = described.run, plain_slots(described.card, described.run), described.passes()
    if slots is None or here is None or not here.forward:
        return
    length, batch = slots
    longer = solved(seen.passes.forward / here.forward * length, length)
    if longer is not None:
        what = "padding, or another --seq" if longer > length else "no padding"
        words = f"a sequence has {several(longer, 'token')}, not {length:,} ({what})"
        other, grain = _of_slots(run, batch, longer), Fraction(1, longer)
        yield described.but("sequence", words, f"--seq {longer}", 2, run=other, grain=grain)
    if not here.attention or not seen.passes.attention:
        return
    ratio = seen.passes.attention / here.attention
    for other_length in {solved(ratio * length, length), solved(ratio * (length + 1) - 1, length)}:
        if other_length is not None and length * batch % other_length == 0:
            number = length * batch // other_length
            words = f"the tokens of a step are {number:,} sequences of {other_length:,}, not "
            words += f"{batch:,} of {length:,}"
            remedy = f"--batch {number} --seq {other_length}"
            regrouped = _of_slots(run, number, other_length)
            yield described.but("sequence", words, remedy, 2, run=regrouped)


def _of_slots(run: Run, batch: int, length: int) -> Run:
    return replace(without_lengths(run), batch=batch, seq=length, tokens=None)


def _other_depth(described: Variant, seen: Seen) -> Iterator[Variant]:
    """Yield another number of layers, where all are alike."""
    card = described.card
    if len(card.blocks) != 1:
        return
    ((layers, block),) = card.blocks
    deeper = replace(described, card=replace(card, blocks=((layers + 1, block),)))
    more = repeated(described, deeper, seen)
    number = solved(layers + more[0], layers) if more is not None else None
    if more is not None and number is not None:
        words = f"the model has {number} layer{'s' * (number != 1)}, not {layers}"
        other = replace(card, blocks=((number, block),), params=None)
        yield described.but("layers", words, f"layers = {number}", 3, card=other, grain=more[1])


# More or less of the same work


def scaled(variant: Variant, ratio: Fraction, known: tuple[int, ...]) -> Iterator[Variant]:
    """Yield a variant with so many times the work of a device: other batches, other devices."""
    slots = plain_slots(variant.card, variant.run)
    if slots is not None:
        yield from _more_sequences(variant, slots[1], ratio)
    else:
        yield from _more_tokens(variant, ratio)
        yield from _more_documents(variant, ratio)
    yield from _other_devices(variant, ratio, known)


def _more_sequences(variant: Variant, batch: int, ratio: Fraction) -> Iterator[Variant]:
    run, size = variant.run, solved(batch * ratio, batch)
    if size is None:
        return
    words, cost = f"a step has {several(size, 'sequence')}, not {batch:,}", 2
    if size == batch * run.devices:
        words = (
            f"{batch:,} is the batch of one GPU: a step of the job has {several(size, 'sequence')}"
        )
        cost = 1
    elif size < batch and batch % size == 0:
        words += f" (or each step marker covers one of {batch // size} micro-batches)"
    elif size > batch and size % batch:
        cost = 3
    real = max(round(run.real_tokens * ratio), 1) if run.real_tokens is not None else None
    more = replace(run, batch=size, tokens=None, real_tokens=real)
    yield variant.but("batch", words, f"--batch {size}", cost, run=more, grain=Fraction(1, size))


def _more_tokens(variant: Variant, ratio: Fraction) -> Iterator[Variant]:
    """Yield so many times the tokens, where only their number is known."""
    run = variant.run
    if run.tokens is None or run.shape(variant.card).slots is not None or run.sums is not None:
        return
    size = solved(run.tokens * ratio, run.tokens)
    if size is None:
        return
    words = f"a step has {several(size, 'token')}, not {run.tokens:,}"
    if size > run.tokens:
        words += " (includes padding, if these are real tokens)"
    more = replace(run, tokens=size, real_tokens=None)
    yield variant.but("tokens", words, f"--tokens {size}", 2, run=more, grain=Fraction(1, size))


def _more_documents(variant: Variant, ratio: Fraction) -> Iterator[Variant]:
    """Yield packed documents so many times over, such as those of every device."""
    run, times = variant.run, round(ratio)
    if not run.documents or times < 2 or times * len(run.documents) > MOST_DOCUMENTS:
        return
    words, cost = f"a step has {times} times the documents", 2
    if times == run.devices:
        words = f"the documents are those of one GPU: a step of the job has {times} times as many"
        cost = 1
    batch = run.batch * times if run.batch is not None else None
    more = replace(run, documents=run.documents * times, batch=batch, tokens=None, real_tokens=None)
    remedy = "give the documents of all GPUs"
    yield variant.but("batch", words, remedy, cost, run=more, grain=Fraction(1, times))


def _other_devices(variant: Variant, ratio: Fraction, known: tuple[int, ...]) -> Iterator[Variant]:
    run = variant.run
    size = solved(run.devices / ratio, run.devices)
    if size is None or size < min(known, default=1):
        return
    words = f"the job has {several(size, 'device')}, not {run.devices:,}"
    # That the trace names this number says more than how near the next whole number is.
    cost, grain = (1, Fraction(1)) if size in known else (3, Fraction(1, size))
    more = replace(run, devices=size)
    yield variant.but("devices", words, f"--gpus {size}", cost, run=more, grain=grain)

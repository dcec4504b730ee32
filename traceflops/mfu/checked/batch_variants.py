"""Variants with more or less of the same work: another batch, other devices, everything twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from traceflops.mfu.checked.passes import plain_slots
from traceflops.mfu.checked.variants import MOST_DOCUMENTS, Variant, solved
from traceflops.units import several


def scaled(one: Variant, ratio: Fraction, known: tuple[int, ...]) -> Iterator[Variant]:
    """Yield a variant with so many times the work of a device: other batches, other devices."""
    yield from _more_sequences(one, ratio)
    yield from _other_devices(one, ratio, known)
    yield from _twice(one, ratio)


def _joined(one: Variant, code: str, words: str, remedy: str, cost: int) -> Variant:
    """Return a variant with one change more, which costs more than either alone."""
    if not one.code:
        return replace(one, code=code, words=words, remedy=remedy, cost=cost)
    return replace(
        one,
        code=f"{one.code}+{code}",
        words=f"{one.words}, and {words}",
        remedy=f"{one.remedy}, {remedy}",
        cost=one.cost + cost + 1,
    )


def _more_sequences(one: Variant, ratio: Fraction) -> Iterator[Variant]:
    run, slots = one.run, plain_slots(one.card, one.run)
    if slots is None:
        yield from _more_tokens(one, ratio)
        yield from _more_documents(one, ratio)
        return
    _, batch = slots
    found = solved(batch * ratio)
    if found is None or found == batch:
        return
    words = f"a step has {several(found, 'sequence')}, not {batch:,}"
    cost = 2
    if found == batch * run.devices:
        words = (
            f"{batch:,} is the batch of one GPU: a step of the job has {several(found, 'sequence')}"
        )
        cost = 1
    elif found < batch and batch % found == 0:
        words += f" (or each step marker covers one of {batch // found} micro-batches)"
    elif found > batch and found % batch:
        cost = 3
    changed = replace(run, batch=found, tokens=None, real_tokens=_times(run.real_tokens, ratio))
    joined = _joined(one, "batch", words, f"--batch {found}", cost)
    yield replace(joined, run=changed, grain=Fraction(1, found))


def _times(count: int | None, ratio: Fraction) -> int | None:
    return max(round(count * ratio), 1) if count is not None else None


def _more_tokens(one: Variant, ratio: Fraction) -> Iterator[Variant]:
    """Yield so many times the tokens, where only their number is known."""
    run = one.run
    if run.tokens is None or run.shape(one.card).slots is not None or run.sums is not None:
        return
    found = solved(run.tokens * ratio)
    if found is None or found == run.tokens:
        return
    words = f"a step has {several(found, 'token')}, not {run.tokens:,}"
    if found > run.tokens:
        words += " (includes padding, if these are real tokens)"
    joined = _joined(one, "tokens", words, f"--tokens {found}", 2)
    changed = replace(run, tokens=found, real_tokens=None)
    yield replace(joined, run=changed, grain=Fraction(1, found))


def _more_documents(one: Variant, ratio: Fraction) -> Iterator[Variant]:
    """Yield packed documents so many times over, such as those of every device."""
    times = round(ratio)
    if not one.run.documents or times < 2 or times * len(one.run.documents) > MOST_DOCUMENTS:
        return
    words = f"a step has {times} times the documents"
    cost = 2
    if times == one.run.devices:
        words = f"the documents are those of one GPU: a step of the job has {times} times as many"
        cost = 1
    batch = one.run.batch * times if one.run.batch is not None else None
    more = replace(
        one.run, documents=one.run.documents * times, batch=batch, tokens=None, real_tokens=None
    )
    joined = _joined(one, "batch", words, "give the documents of all GPUs", cost)
    yield replace(joined, run=more, grain=Fraction(1, times))


def _other_devices(one: Variant, ratio: Fraction, known: tuple[int, ...]) -> Iterator[Variant]:
    found = solved(one.run.devices / ratio)
    if found is None or found == one.run.devices or found < min(known, default=1):
        return
    words = f"the job has {several(found, 'device')}, not {one.run.devices:,}"
    told = found in known
    joined = _joined(one, "devices", words, f"--gpus {found}", 1 if told else 3)
    # That the trace names this number says more than how near the next whole number is.
    grain = Fraction(1) if told else Fraction(1, found)
    yield replace(joined, run=replace(one.run, devices=found), grain=grain)


def _twice(one: Variant, ratio: Fraction) -> Iterator[Variant]:
    """Yield a confusion of multiply-adds with FLOPs: everything twice, or half."""
    if one.code:
        return
    words = "multiply-adds and FLOPs were confused in a size: everything differs by two"
    factor = Fraction(2) if ratio > 1 else Fraction(1, 2)
    joined = _joined(one, "multiply-adds", words, "one multiply-add is 2 FLOPs", 4)
    yield replace(joined, factor=factor)

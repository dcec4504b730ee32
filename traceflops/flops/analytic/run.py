"""A run of a model: its tokens, devices and time, and which weights were trained."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.facts import Fact
from traceflops.flops.analytic.lengths import Lengths, LengthSums, Sequences, sums_of
from traceflops.flops.model.blocks import ROUTING, Linear, require
from traceflops.flops.model.card import ModelCard, PlacedLinear
from traceflops.units import decimal, parse_share

Scope = Literal["blocks", "all"]
PARTS = (
    *("all", "encoder", "attention", "cross", "ffn", "experts", "shared", "router", "head", "mtp"),
    *("patch", "conv"),
)
"""Parts that can be frozen: all, the encoder, or the weights of one sub-name of the ledger."""
TOKEN_COUNTS = (
    *("batch", "seq", "tokens", "real_tokens", "seq_sum", "seq_square_sum", "sequences"),
    "encoder_seq",
)
MEASURES = ("step_seconds", "tokens_per_s", "samples_per_s", "achieved")
MOST_RECOMPUTED = 3


class Checkpoint(Struct, frozen=True):
    """Which share of the forward pass is computed again in the backward pass.

    `linear` is the share of matmuls and convolutions, `attention` that of attention cores. `scope`
    is where: in the blocks, or also in the head ("all"); None leaves it to the convention.
    """

    name: str = "none"
    linear: Fraction = Fraction(0)
    attention: Fraction = Fraction(0)
    scope: Scope | None = None

    def __post_init__(self) -> None:
        """Refuse shares below 0 or above 3; a share of 2 recomputes the forward pass twice."""
        least, most = sorted((self.linear, self.attention))
        require(least >= 0, "a recomputed share is negative", "give 0 (nothing) to 1 (all)")
        problem = f"{decimal(most * 100, 1)} % of the forward pass cannot be recomputed"
        require(most <= MOST_RECOMPUTED, problem, "give shares: 0.75,1 or 75%,100%")


NO_CHECKPOINT = Checkpoint()
SELECTIVE = Checkpoint("selective", Fraction(0), Fraction(1))
FULL_CHECKPOINT = Checkpoint("full", Fraction(1), Fraction(1))
CHECKPOINTS = {kind.name: kind for kind in (NO_CHECKPOINT, SELECTIVE, FULL_CHECKPOINT)}


def parse_checkpoint(option: str, text: str) -> Checkpoint:
    """Return a checkpointing by its name or its shares (`0.75,1`). Raises UsageError."""
    name = text.strip().casefold()
    if name in CHECKPOINTS:
        return CHECKPOINTS[name]
    linear, _, attention = (parse_share(part) for part in name.partition(","))
    if linear is None or attention is None:
        shares = "or the recomputed shares of matmuls and attention: 0.75,1"
        hint = f"use {', '.join(CHECKPOINTS)}, {shares}"
        raise UsageError(f"unknown {option}: {text[:60]!r}", hint)
    return Checkpoint(f"custom {name}", linear, attention)


class Lora(Struct, frozen=True):
    """Low-rank adapters: of `rank` on the matrices named in `targets`, or with `params` in all."""

    rank: int | None = None
    targets: tuple[str, ...] = ()
    params: int | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) == (self.params is None):
            raise UsageError("LoRA needs a rank or a parameter count", "give one of the two")

    def adapters(self, card: ModelCard) -> tuple[PlacedLinear, ...]:
        """Return the adapters: inputs x rank and rank x outputs per target. Raises UsageError."""
        if self.params is not None:
            count = Linear("adapters", self.params, 1, "adapters")
            return (PlacedLinear(count, in_blocks=True),)
        names, rank = {placed.linear.name for placed in card.placed()}, self.rank
        for target in self.targets:
            problem = f"the model has no matrix {target[:40]!r} to adapt"
            require(target in names, problem, f"known: {', '.join(sorted(names))}")
        assert rank is not None, "else it has params"
        pairs = []
        for placed in self.adapted(card):
            base = placed.linear
            for half, inputs, outputs in (("in", base.inputs, rank), ("out", rank, base.outputs)):
                name = f"{base.name}_{half}"
                copies = max(base.copies, 1)  # a tied head (0) has an adapter of its own
                adapter = Linear(name, inputs, outputs, "adapters", copies, base.used)
                pairs.append(replace(placed, linear=replace(adapter, reads=base.reads)))
        return tuple(pairs)

    def adapted(self, card: ModelCard) -> tuple[PlacedLinear, ...]:
        """Return the matrices that get an adapter: `targets`, else all in blocks except routers."""
        if self.rank is None:  # only the adapters' size is given
            return ()
        if self.targets:
            return tuple(m for m in card.placed() if m.linear.name in self.targets)
        in_blocks = (placed for placed in card.placed() if placed.in_blocks)
        return tuple(placed for placed in in_blocks if placed.linear.name not in ROUTING)

    def parameters(self, card: ModelCard) -> int:
        """Return the trained parameters of all adapters."""
        return sum(adapter.times * adapter.linear.stored for adapter in self.adapters(card))


class RunShape(Struct, frozen=True):
    """The sequences of one step: `documents` are the real ones, `slots` the computed (padded) ones.

    Both are (length, how many). `sums` replace documents and slots of unknown lengths. If all three
    are None, only the numbers of real and computed tokens are known.
    """

    tokens: int
    slot_tokens: int
    documents: Lengths | None = None
    slots: Lengths | None = None
    sums: LengthSums | None = None

    @property
    def sequences(self) -> int | None:
        """Return the number of real sequences, None if unknown."""
        if self.sums is not None:
            return self.sums.count
        return sums_of(self.documents).count if self.documents is not None else None

    @property
    def padded(self) -> bool:
        """Return whether each slot has one document, and some slots are longer than theirs."""
        if self.sequences is None or self.slots is None or self.slot_tokens == self.tokens:
            return False
        return self.sequences == sums_of(self.slots).count

    def of(self, real: bool) -> Sequences:
        """Return the real sequences, or the padded slots. Raises UsageError without lengths."""
        sequences = (self.documents if real else self.slots) or self.sums
        if sequences is None:
            hint = "set --seq, or choose a convention without attention (6N)"
            raise UsageError("the sequence length is unknown", hint)
        return sequences


class Run(Struct, frozen=True, kw_only=True):
    """One step, on all devices together.

    The tokens are given as `batch` sequences of `seq`; or as `tokens`; or as lengths of
    `documents`; or as their sums `seq_sum`, `seq_square_sum` and number `sequences`. Documents may
    be packed into batch x seq. `real_tokens` is the tokens without padding. With `cached` tokens
    before the queries, the step is one of decoding.

    The time is given as one of `step_seconds`, `tokens_per_s` (computed, all devices),
    `samples_per_s`, or `achieved` FLOP/s per device, counted by convention `achieved_basis` (None:
    the requested one). `forward_only` is None if unknown: it then depends on the trace, if any.
    """

    batch: int | None = None
    seq: int | None = None
    tokens: int | None = None
    documents: tuple[int, ...] = ()
    seq_sum: int | None = None
    seq_square_sum: int | None = None
    sequences: int | None = None
    real_tokens: int | None = None
    encoder_seq: int | None = None
    cached: int = 0
    devices: int = 1
    dtype: str | None = None
    step_seconds: Fraction | None = None
    tokens_per_s: Fraction | None = None
    samples_per_s: Fraction | None = None
    achieved: Fraction | None = None
    achieved_basis: str | None = None
    forward_only: bool | None = False
    frozen: frozenset[str] = field(default_factory=frozenset)
    frozen_layers: int = 0
    lora: Lora | None = None
    checkpoint: Checkpoint = NO_CHECKPOINT
    attention_kernel: Literal["flash", "unfused"] | None = None
    notes: tuple[Fact, ...] = ()

    def __post_init__(self) -> None:
        """Refuse counts below 1, contradictions, and sums that no lengths have."""
        for name in (*TOKEN_COUNTS, "devices"):
            count = getattr(self, name)
            problem = f"{name} is {count}"
            require(count is None or count >= 1, problem, f"give a {name} of at least 1")
        no_tokens = any(length < 1 for length in self.documents)
        require(not no_tokens, "a document has no tokens", "give lengths of at least 1")
        both = "set --seq-sum and --seq-square-sum"
        problem = "packed sequences need both sums: of lengths and of squared lengths"
        require((self.seq_sum is None) == (self.seq_square_sum is None), problem, both)
        problem = "a number of sequences needs the sums of their lengths"
        has_sums = self.seq_sum is not None or self.sequences is None
        require(has_sums, problem, f"{both}, or --batch and --seq")
        problem = "give either document lengths or sums of lengths, not both"
        require(not self.documents or self.seq_sum is None, problem, "remove one of them")
        measured = [name for name in MEASURES if getattr(self, name) is not None]
        problem = f"{' and '.join(measured)} exclude each other"
        require(len(measured) < 2, problem, "give one of them")
        for name in measured:
            is_above = getattr(self, name) > 0
            require(is_above, f"{name} must be above 0", "give the measured value")
        for part in sorted(self.frozen - {*PARTS}):
            problem = f"cannot freeze unknown part {part[:40]!r}"
            raise UsageError(problem, f"known: {', '.join(PARTS)}")
        assert self.sums is None or self.sums.tokens  # making the sums checks them

    @property
    def sums(self) -> LengthSums | None:
        """Return the sums of the packed sequences, None if they are not given."""
        if self.seq_sum is None or self.seq_square_sum is None:
            return None
        return LengthSums(self.seq_sum, self.seq_square_sum, self.sequences)

    @property
    def is_frozen(self) -> bool:
        """Return whether all base weights are frozen: as stated, or as adapters imply."""
        return "all" in self.frozen or (self.lora is not None and not self.frozen)

    def freezes(self, part: str) -> bool:
        """Return whether the weights of a part (a sub-name of the ledger) are frozen."""
        return self.is_frozen or part in self.frozen

    def shape(self, card: ModelCard) -> RunShape:
        """Return the sequences of a step. Raises UsageError if numbers contradict each other."""
        seq = self.seq if self.seq is not None else card.seq
        if self.documents or self.sums is not None:
            return self._packed(seq)
        if seq is None and self.batch is not None and self.tokens is not None:
            seq = _whole(self.tokens, self.batch, f"batch {self.batch}")
        if seq is not None:
            batch = self.batch
            if batch is None:
                batch = _whole(self.tokens, seq, f"sequences of {seq}") if self.tokens else 1
            computed = batch * seq
            slots = f"batch {batch} x {seq} = {computed}"
            hint = "correct one of them; for padding also set the real tokens"
            is_equal = self.tokens in (None, computed)
            require(is_equal, f"{self.tokens} tokens are not {slots}", hint)
            real_count = computed if self.real_tokens is None else self.real_tokens
            problem = f"{real_count} real tokens do not fit into {slots}"
            require(real_count <= computed, problem, "correct one of them")
            # Real tokens are spread as evenly as possible over the sequences.
            short, longer = divmod(real_count, batch)
            even = ((short, batch - longer), (short + 1, longer))
            documents = tuple((length, count) for length, count in even if length and count)
            return RunShape(real_count, computed, documents, ((seq, batch),))
        if self.tokens is None:
            hint = "set --batch and --seq, or --tokens"
            raise UsageError("the number of tokens per step is unknown", hint)
        return RunShape(self.real_tokens or self.tokens, self.tokens)

    def _packed(self, seq: int | None) -> RunShape:
        """Return the shape of packed documents (slots: batch x seq if known). Raises UsageError."""
        sums = self.sums
        documents = tuple(sorted(Counter(self.documents).items())) if sums is None else None
        real = sums_of(sums or documents or ()).tokens
        given = (self.tokens, self.real_tokens)
        different = [count for count in given if count is not None and count != real]
        # With sums, `tokens` may be the computed ones: more than the sum of the lengths.
        has_enough = self.tokens is not None and self.tokens >= real
        are_computed = self.seq_sum is not None and has_enough and self.real_tokens in (None, real)
        if different and not are_computed:
            problem = f"{min(different)} tokens contradict the {real} tokens of the documents"
            raise UsageError(problem, "correct one of them")
        if sums is not None and seq is not None:
            sums = replace(sums, longest=seq)
        if seq is None or self.batch is None:
            return RunShape(real, self.tokens or real, documents, documents, sums)
        slots, hint = f"batch {self.batch} x {seq}", "correct one of them"
        is_equal = sums is None or self.tokens in (None, real, seq * self.batch)
        require(is_equal, f"{self.tokens} tokens are not {slots}", hint)
        fits = real <= seq * self.batch and max(self.documents, default=0) <= seq
        require(fits, f"documents of {real} tokens do not fit into {slots}", hint)
        return RunShape(real, seq * self.batch, documents, ((seq, self.batch),), sums)

    def memory(self, card: ModelCard, shape: RunShape) -> RunShape:
        """Return the shape of the encoder's sequences: one for each sequence in `shape`."""
        encoder = card.encoder
        seq = self.encoder_seq or (encoder.seq if encoder is not None else None)
        if seq is None or shape.sequences is None:
            raise UsageError("the encoder's sequence length is unknown", "set --encoder-seq")
        lengths, tokens = ((seq, shape.sequences),), seq * shape.sequences
        return RunShape(tokens, tokens, lengths, lengths)

    def seconds(self, shape: RunShape) -> Fraction | None:
        """Return the time of a step in seconds, by the time or rate given; None without either."""
        if self.step_seconds is not None:
            return self.step_seconds
        if self.tokens_per_s is not None:
            return shape.slot_tokens / self.tokens_per_s
        if self.samples_per_s is None:
            return None
        if shape.sequences is None:
            problem = "--samples-per-s needs the number of sequences per step"
            raise UsageError(problem, "set --batch or --seq, or use --tokens-per-s")
        return shape.sequences / self.samples_per_s


def _whole(total: int, part: int, what: str) -> int:
    """Return `total` tokens / `part`, called `what`. Raises UsageError if that is not whole."""
    quotient, rest = divmod(total, part)
    problem = f"{total} tokens per step are not a whole number of {what}"
    require(not rest, problem, "correct one of them, or give document lengths")
    return quotient

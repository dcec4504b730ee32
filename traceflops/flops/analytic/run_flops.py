"""Model FLOPs from a description: the ledger of one step of a run, under one convention.

A matmul costs 2 FLOPs per weight and token forward, the same for the input gradient and for the
weight gradient. An attention core's backward pass is two forward passes; flash kernels compute the
scores once more (`algorithmic`). Recomputation and padding are executed, never model work.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from traceflops.errors import TraceflopsError, UsageError
from traceflops.flops.analytic import conventions
from traceflops.flops.analytic.conventions import DEFAULT, Convention, convention, needs_matrices
from traceflops.flops.analytic.lengths import Sequences, cut_by, pairs, sums_of
from traceflops.flops.analytic.run import FULL_CHECKPOINT, Checkpoint, Run, RunShape
from traceflops.flops.mfu_waterfall import Ledger, Line, collect, whole
from traceflops.flops.model.card import ModelCard, PlacedCore, PlacedLinear

VECTOR_FLOPS_OF_LEVANTER = 3  # per key and head: what Levanter charges for the mask and the softmax
ELSE = "choose another convention, or describe the model fully (preset, config.json, TOML card)"


def model_flops(card: ModelCard, run: Run, name: str = DEFAULT) -> Ledger:
    """Return the ledger of one step. Raises UsageError if the convention cannot be computed."""
    rule = convention(name)
    if (refused := refusal(card, run, name)) is not None:
        raise UsageError(f"{name} cannot be computed: {refused.message}", refused.hint)
    return _Count(card, run, rule, run.shape(card)).ledger()


def default_convention(card: ModelCard, run: Run) -> str:
    """Return the usual convention: the exact one if the model is fully described, else 6N or 4N."""
    if card.complete:
        return DEFAULT
    return "4N" if run.is_frozen else "6N"


def obstacle(card: ModelCard, run: Run, name: str) -> str | None:
    """Return in one line why a convention cannot be computed, or None if it can."""
    refused = refusal(card, run, name)
    return refused.message if refused is not None else None


def refusal(card: ModelCard, run: Run, name: str) -> TraceflopsError | None:
    """Return why a convention cannot be computed, with a hint; None if it can."""
    rule = convention(name)
    by_matrix = needs_matrices(rule, card)
    try:
        shape = run.shape(card)
        if rule.weights == "none":
            return UsageError("it needs measurements, not a description", ELSE)
        if card.lacks and (by_matrix or rule.weights in conventions.WITHOUT_EMBEDDINGS):
            return UsageError(f"the description lacks {', '.join(card.lacks)}", ELSE)
        if card.convs and not rule.convolutions:
            return UsageError("it is not defined for convolutions", ELSE)
        if card.encoder is not None and not by_matrix:
            return UsageError("encoder and decoder process different tokens", ELSE)
        if rule.context != "none" and not card.convs and not card.cores():
            return UsageError("the description lacks layers, heads and head_dim", ELSE)
        # Compute what the convention needs: this raises if something is unknown.
        if rule.context != "none" and not card.convs:
            shape.of(rule.real)
        if rule.weights == "square":
            conventions.square(card)
        if card.encoder is not None and needs_matrices(rule, card):
            run.memory(card, shape)
        if shape.sums is not None:
            _Count(card, run, rule, shape).ledger()  # raises if sums do not tell the pairs
    except TraceflopsError as error:
        return error
    return None


class _Passes(Struct, frozen=True):
    """Whether a matrix or core in `times` layers has gradients, beside its forward pass."""

    times: int
    input_grad: bool
    weight_grad: bool

    @property
    def backward(self) -> bool:
        return self.input_grad or self.weight_grad


class _Count(Struct, frozen=True):
    """Counts the FLOPs of a step of a run by a convention."""

    card: ModelCard
    run: Run
    rule: Convention
    shape: RunShape

    def ledger(self) -> Ledger:
        """Return all lines: of matrices, adapters, convolutions and attention."""
        card, run, rule = self.card, self.run, self.rule
        lines: list[Line] = []
        for weight in conventions.weights(rule, card):
            lines += self._matmul(weight)
        lora = run.lora
        for adapter in lora.adapters(card) if rule.adapters and lora is not None else ():
            lines += self._matmul(adapter)
        for conv in card.convs:
            forward = conv.flops * sums_of(self.shape.of(rule.real)).number()
            # "never": the convention counts as if nothing were frozen.
            is_trained = not run.freezes("conv") or rule.frozen == "never"
            has_backward = not run.forward_only
            # A stem reads the images, which need no gradient.
            passes = _Passes(1, has_backward and not conv.stem, has_backward and is_trained)
            # FlopCounterMode counts the weight gradient as if there were no groups.
            weight_grads = conv.groups if rule.id == "flopcounter" else 1
            lines += self._pass_lines("conv", "conv", forward, passes, weight_grads)
            recomputed = self._again(not conv.stem, passes) * self._checkpoint.linear * forward
            lines.append(Line("recompute.conv", recomputed))
        if rule.context != "none":
            squared = conventions.square(card) if rule.weights == "square" else card
            for core in squared.cores():
                lines += self._attention(core)
        ledger = collect(rule.id, lines, executed_only=rule.executed)
        if rule.id == "automodel-lora":
            # NeMo Automodel scales full training by (2 + adapters / frozen) / 3.
            adapters = lora.parameters(card) if lora else 0
            factor = (2 + Fraction(adapters, card.total)) / 3
            scaled = (Line(line.name, whole(line.flops * factor)) for line in ledger.lines)
            return replace(ledger, lines=tuple(scaled))
        return ledger

    def _matmul(self, placed: PlacedLinear) -> Iterator[Line]:
        """Yield the ledger lines of a matrix: model work, recomputation, padding."""
        linear, shape, card = placed.linear, self.shape, self.card
        # Rows are tokens, sequences, or patches: tokens without a class token per sequence.
        if placed.side == "encoder" or linear.reads == "memory":
            shape = self.run.memory(card, shape)
        rows = shape.tokens if self.rule.real else shape.slot_tokens
        if linear.reads not in ("token", "memory"):
            sequences = sums_of(shape.of(self.rule.real)).number()
            rows = sequences if linear.reads == "sequence" else rows - sequences
        for passes in self._passes(placed):
            forward = 2 * linear.active * rows * passes.times
            yield from self._pass_lines("matmul", linear.group, forward, passes)
            again = self._again(placed.in_blocks, passes) * self._checkpoint.linear * forward
            yield Line(f"recompute.matmul.{linear.group}", again)
            if self.rule.context != "exact":
                continue  # only an exact count is what devices execute, to which padding adds
            # Rows that are computed but not needed: unused rows of experts, padding.
            executed = forward * (1 + passes.input_grad + passes.weight_grad) + again
            yield Line("overcompute.padding.experts", (placed.capacity - 1) * executed)
            if linear.reads == "token" and placed.side == "decoder":
                padding = Fraction(self.shape.slot_tokens - self.shape.tokens, self.shape.tokens)
                yield Line("overcompute.padding.tokens", padding * executed)
            if card.padded_vocab is not None and linear.name == "head":
                padding = Fraction(card.padded_vocab, card.vocab) - 1
                yield Line("overcompute.padding.vocab", padding * executed)

    def _pass_lines(
        self, kind: str, group: str, forward: int, passes: _Passes, weight_grads: int = 1
    ) -> Iterator[Line]:
        """Yield the model work of each pass; the weight gradient counts `weight_grads` times."""
        yield Line(f"model.{kind}.forward.{group}", forward)
        if passes.input_grad:
            yield Line(f"model.{kind}.input_grad.{group}", forward)
        if passes.weight_grad:
            yield Line(f"model.{kind}.weight_grad.{group}", forward * weight_grads)

    def _passes(self, placed: PlacedLinear | PlacedCore) -> Iterator[_Passes]:
        """Yield the passes of a matrix or core: one item per group of layers with equal passes."""
        run, rule, times = self.run, self.rule, placed.times
        if run.forward_only:
            yield _Passes(times, False, False)
            return
        linear = placed.linear if isinstance(placed, PlacedLinear) else None
        is_adapter = linear is not None and linear.group == "adapters"
        # No gradient flows in its layers below the lowest trained one, which have no adapters.
        is_encoder_frozen, below = "encoder" in run.frozen, 0
        if rule.frozen == "as-run" and placed.side == "encoder":
            below = times if is_encoder_frozen else 0
        elif rule.frozen == "as-run" and placed.layer is not None:
            below = min(max(run.frozen_layers - placed.layer, 0), times)
        if below and not is_adapter:
            yield _Passes(below, False, False)
        if below >= times:
            return
        if linear is None or is_adapter or rule.frozen == "never":
            yield _Passes(times - below, True, True)
        elif rule.frozen == "all":
            yield _Passes(times - below, True, False)
        else:
            # Data, and the output of a frozen encoder, need no gradient.
            reads_data = "patch" in (linear.reads, linear.group)
            has_input_grad = not reads_data and not (linear.reads == "memory" and is_encoder_frozen)
            yield _Passes(times - below, has_input_grad, not run.freezes(linear.group))

    def _attention(self, placed: PlacedCore) -> Iterator[Line]:
        """Yield the ledger lines of an attention core: model work, recomputation, padding."""
        core, run, rule, cached = placed.core, self.run, self.rule, self.run.cached
        shape = run.memory(self.card, self.shape) if placed.side == "encoder" else self.shape
        twice = self._twice_pairs(placed, shape)
        scores_again = run.attention_kernel == "flash" or rule.id == "flopcounter"
        for passes in self._passes(placed):
            forward = core.flops(twice) * passes.times
            again = self._again(True, passes) * self._checkpoint.attention
            yield Line("model.attention.forward", forward)
            if passes.backward:
                yield Line("model.attention.backward", 2 * forward)
                # A convention may count other than 3 passes of attention: add the difference.
                yield Line("convention.attention", (rule.attention - 3) * forward)
            yield Line("recompute.attention", again * forward)
            if passes.backward and scores_again:
                yield Line("algorithmic.attention", core.scores(twice) * passes.times)
            if rule.context != "exact":
                continue
            # Pairs that are computed but not attended: of padding, and masked ones if unfused. They
            # are computed in the forward pass, in both gradients, and in recomputation.
            executions = passes.times * (1 + 2 * passes.backward + again)
            padded = twice
            if placed.side == "decoder" and shape.padded:
                padded = 2 * pairs(core.mask, shape.of(False), cached)
                yield Line("overcompute.padding.attention", core.flops(padded - twice) * executions)
            if run.attention_kernel == "unfused" and not core.cross:
                full = 2 * sums_of(shape.of(False)).full_pairs(cached)
                yield Line("overcompute.mask", core.flops(full - padded) * executions)
        if rule.id == "levanter":  # it also counts the mask and the softmax, in all three passes
            squares = sums_of(shape.of(rule.real)).squares
            times = core.heads * placed.times * (1 if run.forward_only else 3)
            yield Line("convention.vector", VECTOR_FLOPS_OF_LEVANTER * squares * times)

    def _twice_pairs(self, placed: PlacedCore, shape: RunShape) -> int:
        """Return twice the (query, key) pairs of a head in a step, since half a pair may count."""
        mask, context, cached = placed.core.mask, self.rule.context, self.run.cached
        sequences = shape.of(self.rule.real)
        if placed.core.cross:  # a query sees its whole encoder sequence
            ((memory_length, _),) = self.run.memory(self.card, self.shape).slots or ((0, 0),)
            return 2 * memory_length * sums_of(sequences).tokens
        if context == "exact":
            return 2 * pairs(mask, sequences, cached)
        # Pairs of sequences that a window or chunk cuts are counted exactly.
        cut: Sequences = ()
        if context == "half-window":
            cut, sequences = cut_by(mask, sequences, cached)
        sums = sums_of(sequences)
        twice_uncut = 2 * sums.full_pairs(cached)
        if context != "full" and mask.kind != "full":
            # Half a context: a query sees all cached tokens and half of the others.
            twice_uncut = sums.full_pairs(cached) + cached * sums.tokens
        return 2 * pairs(mask, cut, cached) + twice_uncut

    @property
    def _checkpoint(self) -> Checkpoint:
        return FULL_CHECKPOINT if self.rule.id == "sc21" else self.run.checkpoint

    def _again(self, in_blocks: bool, passes: _Passes) -> int:
        """Return 1 if checkpointing reaches a part (in or outside blocks) with a backward pass."""
        scope = self._checkpoint.scope or ("all" if self.rule.recompute_all else "blocks")
        return int(passes.backward and (in_blocks or scope == "all"))

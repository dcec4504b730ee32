"""Conventions: named rules for counting model FLOPs, as data.

Per token all are `a * 2 * W + b * A(ctx)`: W the weights that the convention counts, A the forward
pass of attention with `ctx` keys per query, a and b how often (3: forward, two gradients).
`weights` picks W, `run_flops.py` adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

from traceflops.errors import UsageError
from traceflops.flops.model.blocks import Attention, Block, Linear
from traceflops.flops.model.card import ModelCard, PlacedLinear

Context = Literal["none", "exact", "half", "half-window", "full"]
"""Keys per query: not counted; as the mask says; T/2 for every causal mask; T/2 but windows and
chunks as they are; all T."""

Frozen = Literal["as-run", "all", "never"]
"""Which base weights have no weight gradient: those frozen in the run, all of them, none."""


@dataclass(frozen=True, slots=True)
class Convention:
    """One rule: what it counts (`weights`, `context`), in `words`, and who counts so.

    `real` counts real tokens and documents, else padded slots. The figure of an `executed` rule is
    an HFU. `recompute_all` lets checkpointing recompute the head too. `attention` is b. `adapters`
    counts adapters beside frozen weights. `odd` rules are wrong, and explain figures made so.
    """

    id: str
    weights: str
    context: Context
    words: str
    used_by: str
    _: KW_ONLY
    attention: int = 3
    frozen: Frozen = "never"
    adapters: bool = False
    real: bool = False
    executed: bool = False
    recompute_all: bool = False
    convolutions: bool = False
    odd: bool = False


_RULES = (
    Convention(
        "exact-causal",
        "matmul+router",
        "exact",
        "real tokens, attended pairs exactly, router in, no gradient of frozen weights",
        "this project",
        frozen="as-run",
        adapters=True,
        real=True,
        convolutions=True,
    ),
    Convention(
        "megatron",
        "padded",
        "half-window",
        "router out, padded vocabulary, T/2 keys, windows exactly",
        "Megatron-LM, NeMo, Megatron-Bridge; TRL adjusted_mfu",
        real=True,
    ),
    Convention(
        "maxtext", "matmul+router", "half", "router in, T/2 keys", "MaxText since July 2025"
    ),
    Convention(
        "maxtext-full", "matmul+router", "full", "router in, T keys", "MaxText before July 2025"
    ),
    Convention("matmul-full", "matmul", "full", "router out, T keys", "TRL mfu, LLaMA-Factory"),
    Convention(
        "korthikanti", "matmul", "full", "the model FLOPs of matmul-full", "arXiv:2205.05198"
    ),
    Convention("primus", "matmul", "full", "the model FLOPs of matmul-full", "Primus"),
    Convention(
        "palm",
        "all",
        "full",
        "6N + 12 L H Q T, all parameters",
        "arXiv:2204.02311 appendix B",
        recompute_all=True,
    ),
    Convention(
        "nanogpt",
        "all-positions",
        "full",
        "as palm, without learned positions",
        "nanoGPT",
        recompute_all=True,
    ),
    Convention(
        "llm-foundry",
        "active",
        "full",
        "as palm, active parameters; HFU is 4/3 of it when checkpointing",
        "llm-foundry, Composer",
        recompute_all=True,
    ),
    Convention("llmc", "all", "half", "6N + 6 L C T", "llm.c", recompute_all=True),
    Convention(
        "torchtitan",
        "active-embedding",
        "full",
        "active parameters without an untied input embedding, T keys",
        "torchtitan",
    ),
    Convention(
        "levanter",
        "square",
        "full",
        "router in, T keys, heads as wide as the model, and 3 T H vector FLOPs",
        "Levanter",
    ),
    Convention(
        "verl",
        "matmul+embedding",
        "half",
        "router in, input embedding counted as a matmul, half of the sum of s^2",
        "verl since pull request 4959",
        real=True,
    ),
    Convention(
        "hf",
        "all-embeddings",
        "none",
        "6 x parameters without embeddings, no attention; padded tokens",
        "transformers Trainer floating_point_ops",
    ),
    Convention(
        "6N", "all", "none", "6 FLOPs per parameter and token", "rule of thumb", recompute_all=True
    ),
    Convention(
        "6N-active",
        "active",
        "none",
        "6 FLOPs per active parameter and token",
        "rule of thumb for mixtures of experts",
        recompute_all=True,
    ),
    Convention(
        "4N",
        "all",
        "none",
        "4 FLOPs per parameter and token: no weight gradient",
        "rule of thumb for frozen weights",
        frozen="all",
        recompute_all=True,
    ),
    Convention(
        "seed-matmul",
        "all",
        "none",
        "2N per pass: three passes, two where the weights are frozen",
        "posts on fine-tuning with LoRA",
        frozen="as-run",
        recompute_all=True,
    ),
    Convention(
        "lora-exact",
        "matmul+router",
        "exact",
        "4 per frozen weight, 6 per adapter weight, attention three times",
        "this project",
        frozen="all",
        adapters=True,
        real=True,
    ),
    Convention(
        "lora-matmul",
        "matmul-or-all",
        "none",
        "4 per weight, no attention",
        "Megatron-Bridge LoRA tables",
        frozen="all",
    ),
    Convention(
        "lora-full",
        "matmul-or-all",
        "full",
        "4 per weight, attention three times over T keys",
        "litgpt, corrected",
        frozen="all",
    ),
    Convention(
        "automodel-lora",
        "padded",
        "half-window",
        "megatron x (2 + adapter/frozen)/3, attention included (it has no weights)",
        "NeMo Automodel",
        real=True,
        odd=True,
    ),
    Convention(
        "litgpt",
        "matmul-or-all",
        "full",
        "2 (2 frozen + A) + 3 (2 trained + A): attention five times",
        "litgpt",
        attention=5,
        frozen="all",
        adapters=True,
        odd=True,
    ),
    Convention(
        "gptoss-pre2606",
        "two-matrix-experts",
        "half",
        "megatron with two matrices per expert and without windows: 11 to 17 % low",
        "Megatron-Bridge tables before release 26.06",
        odd=True,
    ),
    Convention(
        "sc21",
        "matmul",
        "full",
        "96 B T L h^2 (1 + T/6h + V/16Lh), including full recomputation of the blocks",
        "arXiv:2104.04473",
        executed=True,
    ),
    Convention(
        "flopcounter",
        "matmul+router",
        "full",
        "what runs, T keys, attention backward as five products",
        "torch.utils.flop_counter",
        executed=True,
        convolutions=True,
    ),
    Convention(
        "deepspeed",
        "none",
        "none",
        "measured forward pass x 3, including elementwise FLOPs",
        "DeepSpeed flops profiler, calflops",
    ),
    Convention(
        "published-tflops",
        "none",
        "none",
        "no FLOP count: a published FLOP/s divided by peak",
        "several tables",
    ),
)
CONVENTIONS: Mapping[str, Convention] = {rule.id: rule for rule in _RULES}
"""Every convention, the default first."""

DEFAULT = "exact-causal"
RULE_OF_THUMB = "6N"
RULE_OF_THUMB_FROZEN = "4N"


def convention(name: str) -> Convention:
    """Return the convention of that id. Raises UsageError with the known ones."""
    rule = CONVENTIONS.get(name)
    if rule is None:
        raise UsageError(f"unknown convention {name[:60]!r}", f"known: {', '.join(CONVENTIONS)}")
    return rule


Matrices = tuple[PlacedLinear, ...]


def weights(rule: Convention, card: ModelCard) -> Matrices:
    """Return the matrices that a convention counts; parameters as one in, one around blocks."""
    if needs_matrices(rule, card):
        return _MATRICES.get(rule.weights, _matmul)(card)
    count = inside = _PARAMETERS[rule.weights](card)
    if card.complete:
        inside = min(count, sum(m.active for m in card.placed() if m.in_blocks))
    return tuple(
        PlacedLinear(Linear("parameters", part, 1, "parameters"), in_blocks=within)
        for part, within in ((inside, True), (count - inside, False))
        if part
    )


def needs_matrices(rule: Convention, card: ModelCard) -> bool:
    """Return whether the convention counts single matrices, not the parameters as one."""
    return card.complete if rule.weights == "matmul-or-all" else rule.weights in _MATRICES


def _matmul(card: ModelCard) -> Matrices:
    return tuple(matrix for matrix in card.placed() if not matrix.routes)


def square(card: ModelCard) -> ModelCard:
    """Return the card with heads that share out the hidden width. Raises UsageError if none can."""

    def squared(block: Block) -> Block:
        attention = block.attention
        if not isinstance(attention, Attention) or card.hidden % attention.heads:
            raise UsageError(
                "its heads do not add up to the hidden width", "choose another convention"
            )
        head_dim = card.hidden // attention.heads
        return replace(block, attention=replace(attention, head_dim=head_dim))

    return card.with_blocks(squared)


_MATRICES: Mapping[str, Callable[[ModelCard], Matrices]] = {
    "matmul": _matmul,
    "matmul+router": ModelCard.placed,
    "padded": lambda card: tuple(
        replace(matrix, linear=replace(matrix.linear, outputs=card.padded_vocab or card.vocab))
        if matrix.linear.name == "head"
        else matrix
        for matrix in _matmul(card)
    ),
    "matmul+embedding": lambda card: (
        *card.placed(),
        PlacedLinear(Linear("embedding", card.vocab, card.hidden, "embedding")),
    ),
    "two-matrix-experts": lambda card: tuple(
        matrix for matrix in _matmul(card) if matrix.linear.name != "expert_gate"
    ),
    "square": lambda card: square(card).placed(),
}
WITHOUT_EMBEDDINGS: Mapping[str, Callable[[ModelCard], int]] = {
    "all-positions": lambda card: card.total - card.positions * card.hidden,
    "all-embeddings": lambda card: card.total - card.embedding - card.positions * card.hidden,
    "active-embedding": lambda card: card.active - (0 if card.tied else card.embedding),
}
"""Parameter counts that a bare number of parameters does not tell."""

_PARAMETERS: Mapping[str, Callable[[ModelCard], int]] = {
    **WITHOUT_EMBEDDINGS,
    "all": lambda card: card.total,
    "matmul-or-all": lambda card: card.total,
    "active": lambda card: card.active,
    "none": lambda card: 0,
}

"""Conventions: named rules for counting model FLOPs, as data.

All are `a * 2 * W + b * A(ctx)` per token: W the weights it counts, A the attention cores' forward
pass for `ctx` keys per query, a and b how often (3: forward, input gradient, weight gradient).
`weights` has the functions that pick W, `modelflops` does the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from traceflops.errors import UsageError

Context = Literal["none", "exact", "half", "half-window", "full"]
"""Keys per query: not counted; as the mask says; T/2 for every causal mask; T/2 but windows and
chunks as they are; all T."""

Frozen = Literal["as-run", "all", "never"]
"""Which base weights have no weight gradient: those frozen in the run, all of them, none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """One rule.

    `real` counts real tokens and documents, else padded slots. `executed` says that its figure is
    an HFU: recomputation is in it. `recompute_all` lets checkpointing recompute the head too.
    `attention` is b. `adapters` counts adapters beside the frozen weights. `odd` marks rules that
    are known to be wrong, kept to recognise figures made with them.
    """

    id: str
    weights: str = "none"
    context: Context = "none"
    attention: int = 3
    frozen: Frozen = "never"
    adapters: bool = False
    real: bool = False
    executed: bool = False
    recompute_all: bool = False
    convolutions: bool = False
    odd: bool = False
    words: str
    used_by: str


CONVENTIONS: Mapping[str, Convention] = {
    one.id: one
    for one in (
        Convention(
            id="exact-causal",
            weights="matmul+router",
            context="exact",
            frozen="as-run",
            adapters=True,
            real=True,
            convolutions=True,
            words="real tokens, attended pairs exactly, router in, no gradient of frozen weights",
            used_by="this project",
        ),
        Convention(
            id="megatron",
            weights="padded",
            context="half-window",
            real=True,
            words="router out, padded vocabulary, T/2 keys, windows exactly",
            used_by="Megatron-LM, NeMo, Megatron-Bridge; TRL adjusted_mfu",
        ),
        Convention(
            id="maxtext",
            weights="matmul+router",
            context="half",
            words="router in, T/2 keys",
            used_by="MaxText since July 2025",
        ),
        Convention(
            id="maxtext-full",
            weights="matmul+router",
            context="full",
            words="router in, T keys",
            used_by="MaxText before July 2025",
        ),
        Convention(
            id="matmul-full",
            weights="matmul",
            context="full",
            words="router out, T keys",
            used_by="TRL mfu, LLaMA-Factory",
        ),
        Convention(
            id="korthikanti",
            weights="matmul",
            context="full",
            words="the model FLOPs of matmul-full",
            used_by="arXiv:2205.05198",
        ),
        Convention(
            id="primus",
            weights="matmul",
            context="full",
            words="the model FLOPs of matmul-full",
            used_by="Primus",
        ),
        Convention(
            id="palm",
            weights="all",
            context="full",
            recompute_all=True,
            words="6N + 12 L H Q T, all parameters",
            used_by="arXiv:2204.02311 appendix B",
        ),
        Convention(
            id="nanogpt",
            weights="all-positions",
            context="full",
            recompute_all=True,
            words="as palm, without learned positions",
            used_by="nanoGPT",
        ),
        Convention(
            id="llm-foundry",
            weights="active",
            context="full",
            recompute_all=True,
            words="as palm, active parameters; HFU is 4/3 of it when checkpointing",
            used_by="llm-foundry, Composer",
        ),
        Convention(
            id="llmc",
            weights="all",
            context="half",
            recompute_all=True,
            words="6N + 6 L C T",
            used_by="llm.c",
        ),
        Convention(
            id="torchtitan",
            weights="active-embedding",
            context="full",
            words="active parameters without an untied input embedding, T keys",
            used_by="torchtitan",
        ),
        Convention(
            id="levanter",
            weights="square",
            context="full",
            words="router in, T keys, heads as wide as the model, and 3 T H vector FLOPs",
            used_by="Levanter",
        ),
        Convention(
            id="verl",
            weights="matmul+embedding",
            context="half",
            real=True,
            words="router in, input embedding counted as a matmul, half of the sum of s^2",
            used_by="verl since pull request 4959",
        ),
        Convention(
            id="hf",
            weights="all-embeddings",
            words="6 x parameters without embeddings, no attention; padded tokens",
            used_by="transformers Trainer floating_point_ops",
        ),
        Convention(
            id="6N",
            weights="all",
            recompute_all=True,
            words="6 FLOPs per parameter and token",
            used_by="rule of thumb",
        ),
        Convention(
            id="6N-active",
            weights="active",
            recompute_all=True,
            words="6 FLOPs per active parameter and token",
            used_by="rule of thumb for mixtures of experts",
        ),
        Convention(
            id="4N",
            weights="all",
            frozen="all",
            recompute_all=True,
            words="4 FLOPs per parameter and token: no weight gradient",
            used_by="rule of thumb for frozen weights",
        ),
        Convention(
            id="seed-matmul",
            weights="all",
            frozen="as-run",
            recompute_all=True,
            words="2N per pass: three passes, two where the weights are frozen",
            used_by="posts on fine-tuning with LoRA",
        ),
        Convention(
            id="lora-exact",
            weights="matmul+router",
            context="exact",
            frozen="all",
            adapters=True,
            real=True,
            words="4 per frozen weight, 6 per adapter weight, attention three times",
            used_by="this project",
        ),
        Convention(
            id="lora-matmul",
            weights="matmul-or-all",
            frozen="all",
            words="4 per weight, no attention",
            used_by="Megatron-Bridge LoRA tables",
        ),
        Convention(
            id="lora-full",
            weights="matmul-or-all",
            context="full",
            frozen="all",
            words="4 per weight, attention three times over T keys",
            used_by="litgpt, corrected",
        ),
        Convention(
            id="automodel-lora",
            weights="padded",
            context="half-window",
            real=True,
            odd=True,
            words="megatron x (2 + adapter/frozen)/3, attention included (it has no weights)",
            used_by="NeMo Automodel",
        ),
        Convention(
            id="litgpt",
            weights="matmul-or-all",
            context="full",
            attention=5,
            frozen="all",
            adapters=True,
            odd=True,
            words="2 (2 frozen + A) + 3 (2 trained + A): attention five times",
            used_by="litgpt",
        ),
        Convention(
            id="gptoss-pre2606",
            weights="two-matrix-experts",
            context="half",
            odd=True,
            words="megatron with two matrices per expert and without windows: 11 to 17 % low",
            used_by="Megatron-Bridge tables before release 26.06",
        ),
        Convention(
            id="sc21",
            weights="matmul",
            context="full",
            executed=True,
            words="96 B T L h^2 (1 + T/6h + V/16Lh), including full recomputation of the blocks",
            used_by="arXiv:2104.04473",
        ),
        Convention(
            id="flopcounter",
            weights="matmul+router",
            context="full",
            executed=True,
            convolutions=True,
            words="what runs, T keys, attention backward as five products",
            used_by="torch.utils.flop_counter",
        ),
        Convention(
            id="deepspeed",
            words="measured forward pass x 3, including elementwise FLOPs",
            used_by="DeepSpeed flops profiler, calflops",
        ),
        Convention(
            id="published-tflops",
            words="no FLOP count: a published FLOP/s divided by peak",
            used_by="several tables",
        ),
    )
}
"""Every convention, the default first."""

DEFAULT = "exact-causal"
RULE_OF_THUMB = "6N"
RULE_OF_THUMB_FROZEN = "4N"


def convention(name: str) -> Convention:
    """Return the convention of that id. Raises UsageError with the known ones."""
    found = CONVENTIONS.get(name)
    if found is None:
        raise UsageError(f"unknown convention {name[:60]!r}", f"known: {', '.join(CONVENTIONS)}")
    return found

"""The options of `traceflops mfu`, a group per heading of its help, and what they say together.

All numbers are taken as text, so that `405e9`, `16k` and `820ms` are exact and a slip gets the
same two lines as any other error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from traceflops.errors import UsageError

if TYPE_CHECKING:
    from traceflops.mfu.card import ModelCard
    from traceflops.mfu.run import Run

Text = str | None
T = TypeVar("T")

_MODEL = "Model"
_TOKENS = "Tokens of one step, all devices together"
_TIME = "Time (one of these)"
_DEVICES = "Devices and their peak"
_TRAINED = "What is trained, and how"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model."""

    model: Annotated[
        Text,
        typer.Option(
            metavar="NAME|FILE",
            help="Preset, Hugging Face config.json (or its folder), or TOML card.",
            rich_help_panel=_MODEL,
        ),
    ] = None
    params: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Parameters, if that is all you know: 405e9, 8.03B.",
            rich_help_panel=_MODEL,
        ),
    ] = None
    mtp: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Multi-token-prediction modules that run.",
            rich_help_panel=_MODEL,
        ),
    ] = None
    padded_vocab: Annotated[
        Text,
        typer.Option(
            metavar="ROWS",
            help="Rows of the output head, padding included.",
            rich_help_panel=_MODEL,
        ),
    ] = None
    expert_capacity: Annotated[
        Text,
        typer.Option(
            metavar="FACTOR",
            help="Rows the experts compute per row needed, 1 or more.",
            rich_help_panel=_MODEL,
        ),
    ] = None
    list_models: Annotated[
        bool,
        typer.Option("--list-models", help="Print the presets.", rich_help_panel=_MODEL),
    ] = False

    def card(self) -> ModelCard:
        """Return the model. Raises UsageError without one, InputError for a wrong one."""
        from traceflops.mfu.models import with_capacity, with_mtp, with_padded_vocab
        from traceflops.mfu.quantities import parse_count, parse_rate

        card = self._found()
        if self.mtp is not None:
            card = with_mtp(card, parse_count("--mtp", self.mtp))
        if self.padded_vocab is not None:
            card = with_padded_vocab(card, parse_count("--padded-vocab", self.padded_vocab))
        if self.expert_capacity is not None:
            capacity = parse_rate("--expert-capacity", self.expert_capacity, "1.25")
            card = with_capacity(card, capacity)
        return card

    def _found(self) -> ModelCard:
        from traceflops.mfu.models import bare_model, find_model
        from traceflops.mfu.quantities import parse_count

        one_of({"--model": self.model, "--params": self.params})
        if self.model is not None:
            return find_model(self.model)
        if self.params is not None:
            return bare_model(parse_count("--params", self.params))
        raise UsageError(
            "no model is given",
            "add --model NAME (--list-models has the names), --model config.json, or --params 8e9",
        )


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """What one step works on."""

    batch: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Sequences per step: the global batch.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    seq: Annotated[
        Text,
        typer.Option(
            metavar="TOKENS",
            help="Tokens per sequence, padding included.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    tokens: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Tokens per step, in place of --batch or --seq.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    real_tokens: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Tokens per step that are no padding.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    documents: Annotated[
        Text,
        typer.Option(
            metavar="LENGTHS",
            help="Tokens of each packed document: 512,1024,3x4096.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    encoder_seq: Annotated[
        Text,
        typer.Option(
            metavar="TOKENS",
            help="Tokens per sequence of the encoder.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    forward_only: Annotated[
        bool,
        typer.Option("--forward-only", help="Inference: no backward.", rich_help_panel=_TOKENS),
    ] = False
    cached: Annotated[
        Text,
        typer.Option(
            metavar="TOKENS",
            help="Decoding: tokens before those of --seq, in the KV cache.",
            rich_help_panel=_TOKENS,
        ),
    ] = None

    def settings(self, card: ModelCard) -> dict[str, Any]:
        """Return these fields of the run."""
        from traceflops.mfu.quantities import parse_lengths

        if self.cached is not None and not self.forward_only:
            raise UsageError("--cached is for decoding", "add --forward-only")
        if self.encoder_seq is not None and card.encoder is None:
            raise UsageError(f"{card.name} has no encoder", "leave out --encoder-seq")
        counts = {
            "batch": self.batch,
            "seq": self.seq,
            "tokens": self.tokens,
            "real_tokens": self.real_tokens,
            "encoder_seq": self.encoder_seq,
            "cached": self.cached,
        }
        found: dict[str, Any] = counted(counts)
        if self.documents is not None:
            found["documents"] = parse_lengths("--documents", self.documents)
        return {**found, "forward_only": self.forward_only}


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """How fast it was."""

    step_time: Annotated[
        Text,
        typer.Option(
            metavar="TIME",
            help="Time of a step: 30, 30s, 820ms. Without a unit: seconds.",
            rich_help_panel=_TIME,
        ),
    ] = None
    tokens_per_s: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Tokens per second of all devices.",
            rich_help_panel=_TIME,
        ),
    ] = None
    tokens_per_s_per_gpu: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Tokens per second of one device.",
            rich_help_panel=_TIME,
        ),
    ] = None
    samples_per_s: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Sequences per second of all devices.",
            rich_help_panel=_TIME,
        ),
    ] = None
    achieved: Annotated[
        Text,
        typer.Option(
            metavar="TFLOPS",
            help="Published TFLOP/s per device, with the next option.",
            rich_help_panel=_TIME,
        ),
    ] = None
    achieved_convention: Annotated[
        Text,
        typer.Option(
            metavar="ID",
            help="Convention by which --achieved was counted.",
            rich_help_panel=_TIME,
        ),
    ] = None

    def settings(self, devices: int) -> dict[str, Any]:
        """Return these fields of the run."""
        from traceflops.mfu.conventions import convention
        from traceflops.mfu.quantities import parse_rate, parse_seconds
        from traceflops.mfu.work import TERA

        one_of(
            {
                "--step-time": self.step_time,
                "--tokens-per-s": self.tokens_per_s,
                "--tokens-per-s-per-gpu": self.tokens_per_s_per_gpu,
                "--samples-per-s": self.samples_per_s,
                "--achieved": self.achieved,
            }
        )
        if self.achieved_convention is not None and self.achieved is None:
            raise UsageError("--achieved-convention is of --achieved", "add --achieved TFLOPS")
        given = {
            "step_seconds": maybe(parse_seconds, "--step-time", self.step_time),
            "tokens_per_s": maybe(parse_rate, "--tokens-per-s", self.tokens_per_s),
            "samples_per_s": maybe(parse_rate, "--samples-per-s", self.samples_per_s),
        }
        found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.tokens_per_s_per_gpu is not None:
            rate = parse_rate("--tokens-per-s-per-gpu", self.tokens_per_s_per_gpu)
            found["tokens_per_s"] = rate * devices
        if self.achieved is not None:
            found["achieved"] = parse_rate("--achieved", self.achieved, "430") * TERA
        if self.achieved_convention is not None:
            found["achieved_basis"] = convention(self.achieved_convention).id
        return found


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """On what it ran."""

    gpus: Annotated[
        Text,
        typer.Option(
            "--gpus",
            "--devices",
            metavar="N",
            help="Devices of the whole job. Default: 1.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    device: Annotated[
        Text,
        typer.Option(
            metavar="ID",
            help="Device, an id of `traceflops devices`: h100-sxm.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    dtype: Annotated[
        Text,
        typer.Option(
            metavar="TYPE",
            help="Data type of the matrix products: bf16, fp16, fp8, tf32, ...",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    peak: Annotated[
        Text,
        typer.Option(
            metavar="TFLOPS",
            help="Dense peak of one device in TFLOP/s, in place of the table's.",
            rich_help_panel=_DEVICES,
        ),
    ] = None

    @property
    def count(self) -> int:
        """Return how many devices there are."""
        from traceflops.mfu.quantities import parse_count

        return parse_count("--gpus", self.gpus) if self.gpus is not None else 1

    @property
    def tflops(self) -> Fraction | None:
        """Return the peak given, in TFLOP/s."""
        from traceflops.mfu.quantities import parse_rate

        return parse_rate("--peak", self.peak, "989.4") if self.peak is not None else None


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What of the model has gradients, and what is computed twice."""

    lora: Annotated[
        bool,
        typer.Option(
            "--lora",
            help="Base weights are frozen; adapters count only with a size.",
            rich_help_panel=_TRAINED,
        ),
    ] = False
    lora_rank: Annotated[
        Text,
        typer.Option(metavar="R", help="LoRA of this rank.", rich_help_panel=_TRAINED),
    ] = None
    lora_targets: Annotated[
        Text,
        typer.Option(
            metavar="LIST",
            help="Matrices with adapters: q,k,v,o. Default: all in the blocks.",
            rich_help_panel=_TRAINED,
        ),
    ] = None
    lora_params: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Parameters of all adapters, if you know these.",
            rich_help_panel=_TRAINED,
        ),
    ] = None
    frozen: Annotated[
        Text,
        typer.Option(
            metavar="PARTS",
            help="Frozen parts: all, or some of encoder,attention,ffn,head,...",
            rich_help_panel=_TRAINED,
        ),
    ] = None
    frozen_layers: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="First layers below which nothing is trained: forward only.",
            rich_help_panel=_TRAINED,
        ),
    ] = None
    checkpointing: Annotated[
        Text,
        typer.Option(
            metavar="HOW",
            help="Activation checkpointing: none, selective (attention), full (blocks), or the "
            "recomputed shares of matmuls and attention: 0.75,1.",
            rich_help_panel=_TRAINED,
        ),
    ] = None
    attention_kernel: Annotated[
        Text,
        typer.Option(
            metavar="KIND",
            help="For HFU: flash (scores computed again) or unfused (masked pairs too).",
            rich_help_panel=_TRAINED,
        ),
    ] = None

    def settings(self, card: ModelCard, forward_only: bool) -> dict[str, Any]:
        """Return these fields of the run."""
        from traceflops.mfu.quantities import parse_count
        from traceflops.mfu.run import parse_checkpoint

        found: dict[str, Any] = {"lora": self._adapters(card), "frozen": self._frozen()}
        if self.frozen_layers is not None:
            layers = parse_count("--frozen-layers", self.frozen_layers)
            if layers > card.layers:
                raise UsageError(
                    f"--frozen-layers {layers} is more than the layers known ({card.layers})",
                    "give at most these",
                )
            found["frozen_layers"] = layers
        if self.checkpointing is not None:
            if forward_only:
                raise UsageError(
                    "--checkpointing and --forward-only exclude each other",
                    "leave one out: what is never used in a backward pass is not recomputed",
                )
            found["checkpoint"] = parse_checkpoint("--checkpointing", self.checkpointing)
        if self.attention_kernel is not None:
            found["attention_kernel"] = _kernel(self.attention_kernel)
        return found

    def _frozen(self) -> frozenset[str]:
        parts = listed(self.frozen)
        unsized = self.lora and self.lora_rank is None and self.lora_params is None
        return frozenset(("all", *parts) if unsized else parts)

    def _adapters(self, card: ModelCard) -> Any:
        from traceflops.mfu.quantities import parse_count
        from traceflops.mfu.run import Lora

        one_of({"--lora-rank": self.lora_rank, "--lora-params": self.lora_params})
        if self.lora_targets is not None and self.lora_rank is None:
            raise UsageError("--lora-targets needs the rank of the adapters", "add --lora-rank R")
        if self.lora_params is not None:
            return Lora(params=parse_count("--lora-params", self.lora_params))
        if self.lora_rank is None:
            return None
        if not card.complete or not card.blocks:
            raise UsageError(
                f"--lora-rank says too little: the matrices of the {card.name} are not known",
                "give --lora-params, or describe the model with --model",
            )
        targets = listed(self.lora_targets)
        return Lora(rank=parse_count("--lora-rank", self.lora_rank), targets=targets)


def run_of(
    card: ModelCard,
    tokens: TokenOptions,
    time: TimeOptions,
    devices: DeviceOptions,
    training: TrainingOptions,
) -> Run:
    """Return the run that the options describe. Raises UsageError for what cannot be."""
    from traceflops.mfu.run import Run

    return Run(
        devices=devices.count,
        dtype=devices.dtype,
        **tokens.settings(card),
        **time.settings(devices.count),
        **training.settings(card, tokens.forward_only),
    )


def one_of(options: Mapping[str, object | None]) -> None:
    """Refuse options that exclude each other."""
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other", "give one of them")


def maybe(parse: Callable[[str, str], T], option: str, text: str | None) -> T | None:
    """Return what an option says, None where it is not given."""
    return parse(option, text) if text is not None else None


def counted(options: Mapping[str, str | None]) -> dict[str, int]:
    """Return the whole numbers of the options that are given, by the names of their fields."""
    from traceflops.mfu.quantities import parse_count

    return {
        name: parse_count(f"--{name.replace('_', '-')}", text)
        for name, text in options.items()
        if text is not None
    }


def listed(text: str | None) -> tuple[str, ...]:
    """Return the words of a list separated by commas."""
    return tuple(word for part in (text or "").split(",") if (word := part.strip()))


def _kernel(text: str) -> str:
    kind = text.strip().lower()
    if kind not in ("flash", "unfused"):
        raise UsageError(f"--attention-kernel is {text[:40]!r}", "write flash or unfused")
    return kind

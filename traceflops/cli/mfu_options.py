"""The options of `traceflops mfu`, a group per heading of its help, and what they say together.

All numbers are taken as text, so that `405e9`, `16k` and `820ms` are exact and a slip gets the
same two lines as any other error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from traceflops.errors import UsageError
from traceflops.units import one_of as one_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from traceflops.flops import ModelCard, Run
    from traceflops.mfu import Words

Text = str | None
T = TypeVar("T")

_MODEL = "Model"
_TOKENS = "Tokens per step, all devices together"
_TIME = "Time (choose one)"
_DEVICES = "Devices and their peak"
_TRAINED = "Training"


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
            help="Parameter count, if nothing else is known: 405e9, 8.03B.",
            rich_help_panel=_MODEL,
        ),
    ] = None
    mtp: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Number of active multi-token-prediction modules.",
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
            help="Rows computed per row routed to an expert, 1 or more.",
            rich_help_panel=_MODEL,
        ),
    ] = None
    list_models: Annotated[
        bool,
        typer.Option("--list-models", help="Print the presets.", rich_help_panel=_MODEL),
    ] = False

    def card(self) -> ModelCard:
        """Return the model. Raises UsageError without one, InputError for a wrong one."""
        from traceflops.mfu import adjusted

        return adjusted(self._found(), words_of(self))

    def _found(self) -> ModelCard:
        from traceflops.flops import bare_model, find_model
        from traceflops.units import parse_count

        one_of({"--model": self.model, "--params": self.params})
        if self.model is not None:
            return find_model(self.model)
        if self.params is not None:
            return bare_model(parse_count("--params", self.params))
        raise UsageError(
            "no model given",
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
            help="Tokens per step, instead of --batch or --seq.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    real_tokens: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Tokens per step without padding.",
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
    seq_sum: Annotated[
        Text,
        typer.Option(
            metavar="TOKENS",
            help="Packed sequences: sum of their lengths, with the next option.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    seq_square_sum: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Packed sequences: sum of their squared lengths.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    sequences: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Packed sequences: how many, if known.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    encoder_seq: Annotated[
        Text,
        typer.Option(
            metavar="TOKENS",
            help="Tokens per encoder sequence.",
            rich_help_panel=_TOKENS,
        ),
    ] = None
    forward_only: Annotated[
        bool,
        typer.Option(
            "--forward-only", help=("Inference: no backward pass."), rich_help_panel=_TOKENS
        ),
    ] = False
    cached: Annotated[
        Text,
        typer.Option(
            metavar="TOKENS",
            help="Decoding: tokens per sequence already in the KV cache.",
            rich_help_panel=_TOKENS,
        ),
    ] = None

    def settings(self, card: ModelCard) -> dict[str, Any]:
        """Return these fields of the run."""
        from traceflops.mfu import check_sums, token_settings

        words = words_of(self)
        check_sums(words)
        return token_settings(card, words)


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """How fast it was."""

    step_time: Annotated[
        Text,
        typer.Option(
            metavar="TIME",
            help="Step time: 30, 30s, 820ms. Without a unit: seconds.",
            rich_help_panel=_TIME,
        ),
    ] = None
    tokens_per_s: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Tokens per second, all devices.",
            rich_help_panel=_TIME,
        ),
    ] = None
    tokens_per_s_per_gpu: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Tokens per second per device.",
            rich_help_panel=_TIME,
        ),
    ] = None
    samples_per_s: Annotated[
        Text,
        typer.Option(
            metavar="N",
            help="Sequences per second, all devices.",
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
            help="Counting convention of --achieved.",
            rich_help_panel=_TIME,
        ),
    ] = None

    def settings(self, devices: int) -> dict[str, Any]:
        """Return these fields of the run."""
        from traceflops.devices import given_rate
        from traceflops.flops import TERA, convention
        from traceflops.units import parse_rate, parse_seconds

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
            raise UsageError("--achieved-convention needs --achieved", "add --achieved TFLOPS")
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
            achieved = parse_rate("--achieved", self.achieved, "430")
            given_rate(float(achieved), "--achieved")  # refuses another unit
            found["achieved"] = achieved * TERA
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
            help="Number of devices in the job. Default: 1.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    device: Annotated[
        Text,
        typer.Option(
            metavar="ID",
            help="Device: an id from `traceflops devices` such as h100-sxm, or its name.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    dtype: Annotated[
        Text,
        typer.Option(
            metavar="TYPE",
            help="Data type of matrix products: bf16, fp16, fp8, tf32, ...",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    peak: Annotated[
        Text,
        typer.Option(
            metavar="TFLOPS",
            help="Dense peak per device in TFLOP/s, instead of the table's.",
            rich_help_panel=_DEVICES,
        ),
    ] = None

    @property
    def count(self) -> int:
        """Return how many devices there are."""
        from traceflops.units import parse_count

        return parse_count("--gpus", self.gpus) if self.gpus is not None else 1

    @property
    def tflops(self) -> Fraction | None:
        """Return the peak given, in TFLOP/s."""
        from traceflops.units import parse_rate

        return parse_rate("--peak", self.peak, "989.4") if self.peak is not None else None


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What of the model has gradients, and what is computed twice."""

    lora: Annotated[
        bool,
        typer.Option(
            "--lora",
            help="Frozen base weights; adapters count only if their size is given.",
            rich_help_panel=_TRAINED,
        ),
    ] = False
    lora_rank: Annotated[
        Text,
        typer.Option(metavar="R", help="LoRA rank.", rich_help_panel=_TRAINED),
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
            help="Parameters of all adapters, if known.",
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
            help="Number of first layers that are not trained: forward only.",
            rich_help_panel=_TRAINED,
        ),
    ] = None
    checkpointing: Annotated[
        Text,
        typer.Option(
            metavar="HOW",
            help=(
                "Activation checkpointing: none, selective (attention), full (blocks), or "
                "recomputed shares of matrix products and attention: 0.75,1."
            ),
            rich_help_panel=_TRAINED,
        ),
    ] = None
    attention_kernel: Annotated[
        Text,
        typer.Option(
            metavar="KIND",
            help="For HFU: flash (recomputes scores) or unfused (computes masked pairs).",
            rich_help_panel=_TRAINED,
        ),
    ] = None

    def settings(self, card: ModelCard, forward_only: bool) -> dict[str, Any]:
        """Return these fields of the run."""
        from traceflops.mfu import Words, training_settings

        said = words_of(self)
        flags = said.flags | ({"forward_only"} if forward_only else frozenset())
        return training_settings(card, Words(said.values, flags, dashed=True))


def words_of(*groups: DataclassInstance) -> Words:
    """Return what the options of some groups say, as words that describe a run."""
    from traceflops.mfu import Words

    given = {one.name: getattr(group, one.name) for group in groups for one in fields(group)}
    texts = {name: value for name, value in given.items() if isinstance(value, str)}
    flags = frozenset(name for name, value in given.items() if value is True)
    return Words(texts, flags, dashed=True)


def run_of(
    card: ModelCard,
    tokens: TokenOptions,
    time: TimeOptions,
    devices: DeviceOptions,
    training: TrainingOptions,
) -> Run:
    """Return the run that the options describe. Raises UsageError for what cannot be."""
    from traceflops.flops import Run

    return Run(
        devices=devices.count,
        dtype=devices.dtype,
        **tokens.settings(card),
        **time.settings(devices.count),
        **training.settings(card, tokens.forward_only),
    )


def maybe(parse: Callable[[str, str], T], option: str, text: str | None) -> T | None:
    """Return what an option says, None where it is not given."""
    return parse(option, text) if text is not None else None

"""The options of `traceflops mfu`, a group per heading of its help, and what they say together.

All numbers are taken as text, so that `405e9`, `16k` and `820ms` are exact and a slip gets the
same two lines as any other error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from traceflops.cli.options import Text, flag, option, typed
from traceflops.errors import UsageError
from traceflops.units import one_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from traceflops.flops import ModelCard, Run
    from traceflops.mfu import Words


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model."""

    HEADING: ClassVar = "Model"

    model: Annotated[
        Text, option("NAME|FILE", "Preset, Hugging Face config.json (or its folder), or TOML card.")
    ] = None
    params: Annotated[
        Text, option("N", "Parameter count, if nothing else is known: 405e9, 8.03B.")
    ] = None
    mtp: Annotated[Text, option("N", "Number of active multi-token-prediction modules.")] = None
    padded_vocab: Annotated[Text, option("ROWS", "Rows of the output head, padding included.")] = (
        None
    )
    expert_capacity: Annotated[
        Text, option("FACTOR", "Rows computed per row routed to an expert, 1 or more.")
    ] = None
    list_models: Annotated[bool, flag("Print the presets.", "--list-models")] = False

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

    HEADING: ClassVar = "Tokens per step, all devices together"

    batch: Annotated[Text, option("N", "Sequences per step: the global batch.")] = None
    seq: Annotated[Text, option("TOKENS", "Tokens per sequence, padding included.")] = None
    tokens: Annotated[Text, option("N", "Tokens per step, instead of --batch or --seq.")] = None
    real_tokens: Annotated[Text, option("N", "Tokens per step without padding.")] = None
    documents: Annotated[
        Text, option("LENGTHS", "Tokens of each packed document: 512,1024,3x4096.")
    ] = None
    seq_sum: Annotated[
        Text, option("TOKENS", "Packed sequences: sum of their lengths, with the next option.")
    ] = None
    seq_square_sum: Annotated[
        Text, option("N", "Packed sequences: sum of their squared lengths.")
    ] = None
    sequences: Annotated[Text, option("N", "Packed sequences: how many, if known.")] = None
    encoder_seq: Annotated[Text, option("TOKENS", "Tokens per encoder sequence.")] = None
    forward_only: Annotated[bool, flag("Inference: no backward pass.", "--forward-only")] = False
    cached: Annotated[
        Text, option("TOKENS", "Decoding: tokens per sequence already in the KV cache.")
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

    HEADING: ClassVar = "Time (choose one)"

    step_time: Annotated[
        Text, option("TIME", "Step time: 30, 30s, 820ms. Without a unit: seconds.")
    ] = None
    tokens_per_s: Annotated[Text, option("N", "Tokens per second, all devices.")] = None
    tokens_per_s_per_gpu: Annotated[Text, option("N", "Tokens per second per device.")] = None
    samples_per_s: Annotated[Text, option("N", "Sequences per second, all devices.")] = None
    achieved: Annotated[
        Text, option("TFLOPS", "Published TFLOP/s per device, with the next option.")
    ] = None
    achieved_convention: Annotated[Text, option("ID", "Counting convention of --achieved.")] = None

    def settings(self, devices: int) -> dict[str, Any]:
        """Return these fields of the run."""
        from traceflops.devices import given_rate
        from traceflops.flops import TERA, convention
        from traceflops.units import parse_rate, parse_seconds

        one_of(typed(replace(self, achieved_convention=None)))
        if self.achieved_convention is not None and self.achieved is None:
            raise UsageError("--achieved-convention needs --achieved", "add --achieved TFLOPS")
        given = typed(self)
        parsers: dict[str, tuple[str, Callable[[str, str], Fraction]]] = {
            "step_seconds": ("--step-time", parse_seconds),
            "tokens_per_s": ("--tokens-per-s", parse_rate),
            "samples_per_s": ("--samples-per-s", parse_rate),
        }
        settings: dict[str, Any] = {
            name: parse(asked, given[asked])
            for name, (asked, parse) in parsers.items()
            if given[asked] is not None
        }
        if self.tokens_per_s_per_gpu is not None:
            rate = parse_rate("--tokens-per-s-per-gpu", self.tokens_per_s_per_gpu)
            settings["tokens_per_s"] = rate * devices
        if self.achieved is not None:
            achieved = parse_rate("--achieved", self.achieved, "430")
            given_rate(float(achieved), "--achieved")  # refuses another unit
            settings["achieved"] = achieved * TERA
        if self.achieved_convention is not None:
            settings["achieved_basis"] = convention(self.achieved_convention).id
        return settings


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """On what it ran."""

    HEADING: ClassVar = "Devices and their peak"

    gpus: Annotated[
        Text, option("N", "Number of devices in the job. Default: 1.", "--gpus", "--devices")
    ] = None
    device: Annotated[
        Text, option("ID", "Device: an id from `traceflops devices` such as h100-sxm, or its name.")
    ] = None
    dtype: Annotated[
        Text, option("TYPE", "Data type of matrix products: bf16, fp16, fp8, tf32, ...")
    ] = None
    peak: Annotated[
        Text, option("TFLOPS", "Dense peak per device in TFLOP/s, instead of the table's.")
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

    HEADING: ClassVar = "Training"

    lora: Annotated[
        bool, flag("Frozen base weights; adapters count only if their size is given.", "--lora")
    ] = False
    lora_rank: Annotated[Text, option("R", "LoRA rank.")] = None
    lora_targets: Annotated[
        Text, option("LIST", "Matrices with adapters: q,k,v,o. Default: all in the blocks.")
    ] = None
    lora_params: Annotated[Text, option("N", "Parameters of all adapters, if known.")] = None
    frozen: Annotated[
        Text, option("PARTS", "Frozen parts: all, or some of encoder,attention,ffn,head,...")
    ] = None
    frozen_layers: Annotated[
        Text, option("N", "Number of first layers that are not trained: forward only.")
    ] = None
    checkpointing: Annotated[
        Text,
        option(
            "HOW",
            "Activation checkpointing: none, selective (attention), full (blocks), or "
            "recomputed shares of matrix products and attention: 0.75,1.",
        ),
    ] = None
    attention_kernel: Annotated[
        Text,
        option("KIND", "For HFU: flash (recomputes scores) or unfused (computes masked pairs)."),
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

    given = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
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

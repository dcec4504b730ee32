"""The options of `traceflops mfu`, a group per heading of its help, and what they say together.

They say what a run is, and what is asked: a figure by one convention or all, or how a reported
figure came about.

Numbers are taken as text, so that `405e9`, `16k` and `820ms` are exact, and a typing error gets the
same two lines as any other error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from traceflops import units
from traceflops.cli.options import Text, changed, completed, flag, model_ids, option, typed
from traceflops.errors import TraceflopsError, UsageError
from traceflops.units import DESCRIPTION_WORDS, one_of, parse_rate

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from traceflops.devices.missing_input import MissingInput
    from traceflops.flops.analytic.explain_reported import Explanation
    from traceflops.flops.analytic.run import Run
    from traceflops.flops.analytic.run_utilisation import Utilisation
    from traceflops.flops.model.card import ModelCard
    from traceflops.mfu.checked.run_options import Words

_OF_THE_RUN: Final = frozenset(DESCRIPTION_WORDS) - {"gpus", "dtype"}
_TOKENS: Final = ({"batch", "seq"}, {"tokens"}, {"documents"}, {"seq_sum", "seq_square_sum"})
"""Sets of options each of which tells how many tokens a step has."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model."""

    HEADING: ClassVar = "Model"
    model: Text = option(
        "NAME|FILE",
        "Preset, Hugging Face config.json (or its folder), or TOML card.",
        **completed(model_ids),
    )
    params: Text = option("N", "Parameter count, if nothing else is known: 405e9, 8.03B.")
    mtp: Text = option("N", "Number of active multi-token-prediction modules.")
    padded_vocab: Text = option("ROWS", "Rows of the output head, padding included.")
    expert_capacity: Text = option(
        "FACTOR", "Rows computed per row routed to an expert, 1 or more."
    )
    list_models: bool = flag("Print the presets.")

    def card(self) -> ModelCard:
        """Return the model. Raises UsageError if none is given, InputError for a bad file."""
        from traceflops.flops.model.models import bare_model, find_model
        from traceflops.mfu.checked.run_options import adjusted

        one_of({"--model": self.model, "--params": self.params})
        if self.model is not None:
            card = find_model(self.model)
        elif self.params is not None:
            card = bare_model(units.parse_count("--params", self.params))
        else:
            raise UsageError(
                "no model given",
                "add --model NAME (--list-models has the names), --model config.json, or "
                "--params 8e9",
            )
        return adjusted(card, words_of(self))


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """The tokens of one step."""

    HEADING: ClassVar = "Tokens per step, all devices together"
    batch: Text = option("N", "Sequences per step: the global batch.")
    seq: Text = option("TOKENS", "Tokens per sequence, padding included.")
    tokens: Text = option("N", "Tokens per step, instead of --batch or --seq.")
    real_tokens: Text = option("N", "Tokens per step without padding.")
    documents: Text = option("LENGTHS", "Tokens of each packed document: 512,1024,3x4096.")
    seq_sum: Text = option(
        "TOKENS", "Packed sequences: sum of their lengths, with the next option."
    )
    seq_square_sum: Text = option("N", "Packed sequences: sum of their squared lengths.")
    sequences: Text = option("N", "Packed sequences: how many, if known.")
    encoder_seq: Text = option("TOKENS", "Tokens per encoder sequence.")
    forward_only: bool | None = flag(
        "Inference: no backward pass. Default: as the trace shows, else training.",
        default=None,
    )
    cached: Text = option("TOKENS", "Decoding: tokens per sequence already in the KV cache.")


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """The time of a step, or a rate."""

    HEADING: ClassVar = "Time (choose one)"
    step_time: Text = option("TIME", "Step time: 30, 30s, 820ms. Without a unit: seconds.")
    tokens_per_s: Text = option("N", "Tokens per second, all devices.")
    tokens_per_s_per_gpu: Text = option("N", "Tokens per second per device.")
    samples_per_s: Text = option("N", "Sequences per second, all devices.")
    achieved: Text = option("TFLOPS", "Published TFLOP/s per device, with the next option.")
    achieved_convention: Text = option("ID", "Counting convention of --achieved.")

    def settings(self, devices: int) -> dict[str, Any]:
        """Return the fields of `Run` that these options set; `devices` is their number."""
        from traceflops.devices.user_rate import given_rate
        from traceflops.flops.analytic.conventions import convention
        from traceflops.flops.analytic.rates import TERA

        one_of(typed(replace(self, achieved_convention=None)))
        if self.achieved_convention is not None and self.achieved is None:
            raise UsageError("--achieved-convention needs --achieved", "add --achieved TFLOPS")
        read, basis = words_of(self).read, self.achieved_convention
        per_gpu = read("tokens_per_s_per_gpu", parse_rate)
        # "430" is the example in an error: this rate is in TFLOP/s.
        achieved = read("achieved", lambda name, text: parse_rate(name, text, "430"))
        if achieved is not None:
            given_rate(float(achieved), "--achieved")  # raises if it cannot be in TFLOP/s
        step_seconds = read("step_time", units.parse_seconds)
        tokens_per_s = read("tokens_per_s", parse_rate)
        return {
            "step_seconds": step_seconds,
            "tokens_per_s": tokens_per_s if per_gpu is None else per_gpu * devices,
            "samples_per_s": read("samples_per_s", parse_rate),
            "achieved": achieved * TERA if achieved is not None else None,
            "achieved_basis": convention(basis).id if basis is not None else None,
        }


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The devices and their peak."""

    HEADING: ClassVar = "Devices and their peak"
    gpus: Text = option("N", "Number of devices in the job. Default: 1.", "--gpus", "--devices")
    device: Text = option(
        "ID", "Device: an id from `traceflops devices` such as h100-sxm, or its name."
    )
    dtype: Text = option("TYPE", "Data type of matrix products: bf16, fp16, fp8, tf32, ...")
    peak: Text = option("TFLOPS", "Dense peak per device in TFLOP/s, instead of the table's.")

    @property
    def tflops(self) -> Fraction | None:
        """Return the peak given, in TFLOP/s."""
        return parse_rate("--peak", self.peak, "989.4") if self.peak is not None else None


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Which parts are trained, and what is recomputed."""

    HEADING: ClassVar = "Training"
    lora: bool = flag("Frozen base weights; adapters count only if their size is given.")
    lora_rank: Text = option("R", "LoRA rank.")
    lora_targets: Text = option(
        "LIST", "Matrices with adapters: q,k,v,o. Default: all in the blocks."
    )
    lora_params: Text = option("N", "Parameters of all adapters, if known.")
    frozen: Text = option("PARTS", "Frozen parts: all, or some of encoder,attention,ffn,head,...")
    frozen_layers: Text = option("N", "Number of first layers that are not trained: forward only.")
    checkpointing: Text = option(
        "HOW",
        "Activation checkpointing: none, selective (attention), full (blocks), or "
        "recomputed shares of matrix products and attention: 0.75,1.",
    )
    attention_kernel: Text = option(
        "KIND", "For HFU: flash (recomputes scores) or unfused (computes masked pairs)."
    )


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What is asked about the run."""

    HEADING: ClassVar = "Output"
    convention: Text = option(
        "ID", "Counting convention. Default: exact-causal; with --params 6N, frozen 4N."
    )
    all_conventions: bool = flag("Print the figures of all conventions.")
    reported: Text = option("PERCENT", "Explain a published or logged MFU: 46.2%.")
    reported_hfu: Text = option("PERCENT", "Explain a published or logged HFU.")
    ignore_description: bool = flag(
        "Ignore the trace's own description of its run, and its annotations.",
    )

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        one_of({"--reported": self.reported, "--reported-hfu": self.reported_hfu})

    @property
    def explains(self) -> bool:
        """Return whether a figure is to be explained."""
        return self.reported is not None or self.reported_hfu is not None

    def explanation(self, figures: Utilisation, lacks: Sequence[MissingInput]) -> Explanation:
        """Return how the reported figure came about. Raises UsageError if inputs are missing."""
        from traceflops.flops.analytic.explain_reported import explain
        from traceflops.flops.analytic.run_utilisation import other_peaks

        metric: Literal["mfu", "hfu"] = "mfu" if self.reported is not None else "hfu"
        option = "--reported" if metric == "mfu" else "--reported-hfu"
        reported = units.parse_reported(option, self.reported or self.reported_hfu or "")
        choice = figures.choice
        # A rate above the peak is also among `lacks`, but just that may be explained.
        if lacks and (figures.rate is None or choice.peak is None):
            problem = f"a reported figure needs more to explain: {lacks[0].problem}"
            raise UsageError(problem, lacks[0].remedy)
        assert choice.peak is not None, "a missing peak is among `lacks`"
        return explain(
            figures.card, figures.run, reported, choice.peak, other_peaks(choice), metric
        )


@dataclass(frozen=True, slots=True)
class Description:
    """All options: what they say of a run, and what is asked about it."""

    model: ModelOptions
    tokens: TokenOptions
    time: TimeOptions
    devices: DeviceOptions
    training: TrainingOptions
    answer: AnswerOptions

    def card_and_run(self) -> tuple[ModelCard, Run]:
        """Return the model and a step of its run. Raises UsageError if they are impossible."""
        from traceflops.flops.analytic.run import Run
        from traceflops.mfu.checked.run_options import check_sums, run_settings

        card, words = self.model.card(), self.words()
        check_sums(words)
        settings = run_settings(card, words)
        return card, Run(**settings, **self.time.settings(settings["devices"]))

    def words(self) -> Words:
        """Return the description of the run in the words by which traces describe it, too."""
        return words_of(self.model, self.tokens, self.training, self._without_peak())

    def beside_trace(self, from_file: Collection[str]) -> Description:
        """Return the description to use beside a trace; `from_file` are parameters from a file.

        If the file has all options that describe the run, and these do not tell how many tokens a
        step has, they are left out: they are meant for runs without a trace.
        """
        answer = replace(self.answer, ignore_description=False)
        described = changed(self.model, self.tokens, self.training, answer)
        if not described <= set(from_file) or any(map(described.issuperset, _TOKENS)):
            return self
        answer = AnswerOptions(ignore_description=self.answer.ignore_description)
        return Description(
            ModelOptions(), TokenOptions(), self.time, self.devices, TrainingOptions(), answer
        )

    def refuse_without_run(self, problem: TraceflopsError | None) -> None:
        """Raise an error if options describe a run of which too little is known.

        `problem` is what the trace's own description lacks, None if it names no model.
        """
        if problem is None:
            # The trace may need a device or a peak by hand: these options describe no run.
            answer = replace(self.answer, ignore_description=False)
            options = typed(self.model, self.tokens, self.training, answer, self._without_peak())
            described = [name for name, value in options.items() if value not in (None, False)]
            if described:
                raise UsageError(
                    f"{described[0]} describes a run, but no model is given",
                    "add --model NAME, --model config.json or --params 8e9, or remove it",
                )
            return
        # A trace that describes itself badly is an error only if its description is needed.
        answer = self.answer
        needs_run = answer.explains or answer.all_conventions or answer.convention is not None
        if needs_run or not _OF_THE_RUN.isdisjoint(self.words().values):
            raise problem

    def _without_peak(self) -> DeviceOptions:
        return replace(self.devices, device=None, peak=None)


def words_of(*groups: DataclassInstance) -> Words:
    """Return the options of groups that were given as words that describe a run."""
    from traceflops.mfu.checked.run_options import TRAINS, Words

    given = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
    texts = {name: value for name, value in given.items() if isinstance(value, str)}
    flags = {name for name, value in given.items() if value is True}
    if given.get("forward_only") is False:  # --no-forward-only; None is no option at all
        flags.add(TRAINS)
    return Words(texts, frozenset(flags), dashed=True)

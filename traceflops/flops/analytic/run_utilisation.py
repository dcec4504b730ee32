"""The utilisation of a described run: its peak, its ledger, what is missing, every convention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from traceflops.devices import (
    DTYPES,
    NOT_A_PEAK,
    PER_TERA,
    DeviceSpec,
    MissingInput,
    SeenDevice,
    chosen,
    given_rate,
    load_devices,
    rate_doubt,
)
from traceflops.errors import UsageError
from traceflops.flops.analytic.conventions import CONVENTIONS, Convention
from traceflops.flops.analytic.rates import (
    PUBLISHED,
    TIME_HINT,
    DescribedWork,
    Peak,
    Rate,
    check_possible,
    check_speed,
    counted_by_nobody_knows_what,
    rate_of,
    work,
)
from traceflops.flops.analytic.run import Run
from traceflops.flops.analytic.run_flops import obstacle
from traceflops.flops.model.blocks import require
from traceflops.flops.model.card import ModelCard
from traceflops.units import decimal

DTYPE_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "float8": "fp8",
    "float4": "fp4",
}

HOW = "select one with --device ID and --dtype TYPE, or set it with --peak TFLOPS"


@dataclass(frozen=True, slots=True)
class PeakChoice:
    """The peak, or None with the problem and its remedy; `spec` is the row of the device."""

    peak: Peak | None
    spec: DeviceSpec | None = None
    dtype: str | None = None
    problem: str = ""
    remedy: str = ""
    notes: tuple[str, ...] = ()


def choose_peak(device: str | None, tflops: Fraction | None, dtype: str | None) -> PeakChoice:
    """Return the peak of one device: the rate given, else that of the table. Never a default.

    Raises UsageError for an id that the table lacks and for a rate that cannot be meant.
    """
    plain = plain_dtype(dtype) if dtype is not None else None
    spec = chosen(device, None, SeenDevice()).spec if device is not None else None
    if tflops is not None:
        return _given(spec, tflops, plain)
    if spec is None:
        return PeakChoice(None, None, plain, "no GPU is named", HOW)
    return _from_table(spec, plain)


def plain_dtype(text: str) -> str:
    """Return a data type in the words of the table: of `torch.bfloat16` it is `bf16`."""
    name = text.strip().lower().removeprefix("torch.").replace("-", "_")
    return DTYPE_ALIASES.get(name, name)


def fastest_rates(dtype: str | None) -> tuple[int, ...]:
    """Return the fastest dense rate of each device, of a data type if one is named."""
    types = [one for one in DTYPES if one not in NOT_A_PEAK and dtype in (None, one)]
    return tuple(
        max(rates)
        for spec in load_devices()
        if (rates := [rate for type_ in types if (rate := spec.peak(type_)) is not None])
    )


def other_peaks(choice: PeakChoice) -> tuple[Peak, ...]:
    """Return what may have been taken for the peak: other data types, other devices of the maker.

    Of devices only those are tried that are as much made for clusters: that have links, or none;
    and of rows of a series only those of the same one.
    """
    own = choice.spec
    if own is None or choice.dtype is None:
        return ()
    types = [
        Peak(Fraction(rate), f"{dtype} dense")
        for dtype, rate in own.dense.items()
        if dtype not in (*NOT_A_PEAK, choice.dtype)
    ]
    devices = [
        Peak(Fraction(rate), f"{choice.dtype} dense ({spec.id})", _unlikely(own, spec))
        for spec in load_devices()
        if (spec.vendor, spec.series) == (own.vendor, own.series)
        and (spec.link is None) == (own.link is None)
        and (rate := spec.peak(choice.dtype)) is not None
    ]
    best: dict[Fraction, Peak] = {}
    for peak in sorted((*types, *devices), key=lambda peak: peak.unlikely):
        best.setdefault(peak.flops_per_ns, peak)
    return tuple(best.values())


def _unlikely(own: DeviceSpec, other: DeviceSpec) -> int:
    """Return how far-fetched it is to take one device for the other: a board with slow memory."""
    slow = max((memory.bandwidth for memory in other.memories), default=0)
    fast = max((memory.bandwidth for memory in own.memories), default=0)
    return 1 + (2 * slow < fast)


def _given(spec: DeviceSpec | None, tflops: Fraction, dtype: str | None) -> PeakChoice:
    rate = given_rate(float(tflops))
    known = dtype if dtype in DTYPES else None
    doubt = rate_doubt(spec, rate, (known,) if known else ()) if spec is not None else None
    notes = (doubt,) if doubt is not None else ()
    if dtype != known:
        notes = (*notes, f"{dtype!r} is not in the table: the peak stands for it")
    label = f"{known} given" if known is not None else "given"
    return PeakChoice(Peak(Fraction(rate), label), spec, dtype, notes=notes)


def _from_table(spec: DeviceSpec, dtype: str | None) -> PeakChoice:
    if not spec.dense:
        problem = f"the rates of {spec.id} ({spec.product}) are not public"
        return PeakChoice(None, spec, dtype, problem, "set one with --peak TFLOPS")
    if dtype is None:
        return PeakChoice(None, spec, None, "the data type is not set", f"--dtype {_known(spec)}")
    rate = spec.peak(dtype)
    if rate is None or dtype in NOT_A_PEAK:
        problem = f"the dense {dtype[:20]!r} rate of {spec.id} in FLOP/s is unknown"
        remedy = f"set it with --peak TFLOPS; --dtype {_known(spec)}"
        return PeakChoice(None, spec, dtype, problem, remedy)
    return PeakChoice(Peak(Fraction(rate), f"{dtype} dense"), spec, dtype)


def _known(spec: DeviceSpec) -> str:
    """Return the types of a device and their rates, as `bf16 (989.4), fp8 (1,978.9)`."""
    rates = (
        f"{dtype} ({decimal(Fraction(rate, PER_TERA), 1)})"
        for dtype, rate in spec.dense.items()
        if dtype not in NOT_A_PEAK
    )
    return ", ".join(rates)


Unit = Literal["step", "sequence", "token", "second"]
"""What FLOPs are counted for: a step, or what there is of one where the batch is not known."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A run under one convention: its work and rate, or why there is none."""

    convention: Convention
    work: DescribedWork | None
    rate: Rate | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Utilisation:
    """What can be said of a run: `rate` is None where something lacks, the rest is there."""

    card: ModelCard
    run: Run
    unit: Unit
    work: DescribedWork
    rate: Rate | None
    choice: PeakChoice
    lacks: tuple[MissingInput, ...]
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]

    @property
    def is_possible(self) -> bool:
        """Return whether the devices can do what the rate says."""
        return self.rate is None or max(self.rate.mfu, self.rate.hfu) <= 1

    def check(self) -> None:
        """Raise InputError, with the likely reasons, for more than a device can do."""
        if self.rate is not None:
            check_possible(self.rate, self.card, self.run, self.choice.spec)
        check_speed(self.work)


def utilisation(
    card: ModelCard, run: Run, choice: PeakChoice, name: str | None = None
) -> Utilisation:
    """Return the utilisation of a run by a convention, the usual one where none is named.

    Raises UsageError where the FLOPs cannot be counted.
    """
    unit = unit_of(card, run)
    if unit == "token":
        run = replace(run, tokens=1)
    check_claims(card, run)
    done = work(card, run, name)
    return Utilisation(
        card=card,
        run=run,
        unit="second" if done.tokens is None else unit,
        work=done,
        rate=rate_of(done, choice.peak),
        choice=choice,
        lacks=tuple(_lacks(done, choice)),
        entries=tuple(_entry(card, run, choice, rule) for rule in CONVENTIONS.values()),
        notes=(
            *(*card.notes, *doubtful_claims(card, run), *choice.notes),
            *_doubts(card, run, choice, done, name),
        ),
    )


def unit_of(card: ModelCard, run: Run) -> Unit:
    """Return what FLOPs can be counted for. Raises UsageError for a step of unknown size."""
    if run.batch or run.tokens or run.documents or run.seq_sum is not None:
        return "step"
    known = run.seq is not None or card.seq is not None
    if run.step_seconds is not None and known:
        raise UsageError(
            "the number of sequences per step is unknown",
            "set the batch of all GPUs together (--batch) or the tokens per step (--tokens)",
        )
    needs_no_step = run.step_seconds is None and run.samples_per_s is None
    return "token" if needs_no_step and not known else "sequence"


def _lacks(done: DescribedWork, choice: PeakChoice) -> Iterator[MissingInput]:
    if done.seconds is None:
        yield MissingInput("the step time is unknown", TIME_HINT)
    if choice.peak is None:
        yield MissingInput(choice.problem, choice.remedy)


def _entry(card: ModelCard, run: Run, choice: PeakChoice, rule: Convention) -> Entry:
    problem: str | None = None
    if not counted_by_nobody_knows_what(run):
        problem = obstacle(card, run, rule.id)
    elif rule.id != PUBLISHED:
        problem = "the published rate does not say how FLOPs were counted (--achieved-convention)"
    if problem is not None:
        return Entry(rule, None, None, problem)
    done = work(card, run, rule.id)
    return Entry(rule, done, rate_of(done, choice.peak))


def _doubts(
    card: ModelCard, run: Run, choice: PeakChoice, done: DescribedWork, name: str | None
) -> Iterator[str]:
    if name is None and done.tokens is not None and not card.complete:
        yield (
            f"the description lacks {', '.join(card.lacks)}, so "
            f"{done.ledger.convention} counts all parameters equally and no "
            "attention; use --model for an exact count"
        )
    if not done.is_counted:
        yield (
            "a published rate is only divided by peak; model and tokens are ignored, "
            "because its FLOP convention is unknown (--achieved-convention ID)"
        )
    rate = rate_of(done, choice.peak)
    if rate is not None and rate.doubt is not None:
        yield rate.doubt
    if rate is None and (speed := done.tflops_per_device) is not None:
        yield from _too_fast(speed, choice)


def _too_fast(speed: Fraction, choice: PeakChoice) -> Iterator[str]:
    """Yield a note where no device of the table is as fast as a rate, of which no peak is known."""
    fastest = max(fastest_rates(choice.dtype), default=0)
    if fastest and speed * PER_TERA > fastest:
        kind = f"{choice.dtype} " if choice.dtype else ""
        yield (
            f"{decimal(speed, 0)} TFLOP/s per GPU exceeds the highest dense "
            f"{kind}rate in the device table "
            f"({decimal(Fraction(fastest, PER_TERA), 1)}): check time, tokens and GPU "
            "count"
        )


def check_claims(card: ModelCard, run: Run) -> None:
    """Refuse what the model makes impossible. Raises UsageError."""
    _check_frozen(card, run.frozen - {"all"})
    _check_adapters(card, run)
    if run.seq is not None and card.is_convolutional:
        raise UsageError(f"{card.name} has no sequences of tokens", "omit --seq and set --batch")


def doubtful_claims(card: ModelCard, run: Run) -> tuple[str, ...]:
    """Return what is said and does not fit the model, in sentences."""
    return (*card.doubts, *run.notes, *_doubtful_lengths(card, run))


def _check_frozen(card: ModelCard, parts: frozenset[str]) -> None:
    """Refuse parts that the model does not have: freezing them would change nothing."""
    absent = parts - {*card.parts}
    require(
        card.complete or not parts,
        f"the weights in {' or '.join(sorted(parts))} of {card.name} are unknown",
        "freeze all of them, or describe the model (preset, config.json, TOML card)",
    )
    require(
        not absent,
        f"{card.name} has no {' or '.join(sorted(absent))} to freeze",
        f"available: {', '.join(card.parts)}",
    )


def _check_adapters(card: ModelCard, run: Run) -> None:
    lora = run.lora
    if lora is None:
        return
    lora.adapters(card)  # refuses targets that the model lacks
    require(
        lora.params is None or lora.params <= card.total,
        f"adapters with {lora.params or 0:,} parameters are larger than the model ({card.total:,})",
        "give the parameters of the adapters only",
    )
    widest = max((one.linear.narrowest for one in lora.adapted(card)), default=0)
    require(
        lora.rank is None or lora.rank <= widest,
        f"LoRA rank {lora.rank} exceeds the width of every matrix ({widest})",
        "typical ranks are 8 to 256",
    )


def _doubtful_lengths(card: ModelCard, run: Run) -> Iterator[str]:
    """Yield which sequences are longer than the model's positions, or than it fixes them."""
    if card.seq is not None and run.seq not in (None, card.seq):
        yield (
            f"{card.name} has {card.seq:,} tokens per sequence by design; using "
            f"{run.seq:,} as given"
        )
        return
    longest = _longest(card, run)
    if 0 < card.positions < longest:
        yield (
            f"sequences of {longest:,} tokens exceed the {card.positions:,} learned "
            f"positions of {card.name}"
        )


def _longest(card: ModelCard, run: Run) -> int:
    """Return the tokens of the longest sequence, cache included; 0 where it is not known."""
    try:
        documents = run.shape(card).documents or ()
    except UsageError:
        documents = ()
    return max((length for length, _ in documents), default=-run.cached) + run.cached

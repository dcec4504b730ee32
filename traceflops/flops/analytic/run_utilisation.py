"""The utilisation of a described run: its peak, ledger and rate, by each convention."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.matching import chosen
from traceflops.devices.missing_input import MissingInput
from traceflops.devices.peaks import DTYPES, PER_TERA, DeviceSpec, load_devices
from traceflops.devices.user_rate import NOT_A_PEAK, given_rate, rate_doubt
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact
from traceflops.flops.analytic import rates
from traceflops.flops.analytic.conventions import CONVENTIONS, Convention
from traceflops.flops.analytic.rates import DescribedWork, Peak, Rate, rate_of
from traceflops.flops.analytic.run import Run
from traceflops.flops.analytic.run_flops import obstacle
from traceflops.flops.model.blocks import require
from traceflops.flops.model.card import ModelCard
from traceflops.units import decimal

DTYPE_ALIASES = {"bfloat16": "bf16", "half": "fp16"}
DTYPE_ALIASES |= {f"float{bits}": f"fp{bits}" for bits in (4, 8, 16, 32, 64)}


class PeakChoice(Struct, frozen=True):
    """The peak of one device, or what is missing for it (`lack`); `spec` is its row, if known."""

    peak: Peak | None
    spec: DeviceSpec | None = None
    dtype: str | None = None
    lack: MissingInput | None = None
    notes: tuple[Fact, ...] = ()


def choose_peak(device: str | None, tflops: Fraction | None, dtype: str | None) -> PeakChoice:
    """Return one device's peak: the user's `tflops`, else the table's. Raises UsageError."""
    dtype = plain_dtype(dtype) if dtype is not None else None
    spec = chosen(device, None, SeenDevice()).spec if device is not None else None
    if tflops is not None:
        rate = given_rate(float(tflops))
        known_type = dtype if dtype in DTYPES else None
        types_meant = (known_type,) if known_type else ()
        doubts = [rate_doubt(spec, rate, types_meant)] if spec is not None else []
        if dtype != known_type:
            doubts.append(fact("described.unknown-dtype", dtype=repr(dtype)))
        peak = Peak(Fraction(rate), " ".join((*types_meant, "given")))
        return PeakChoice(peak, spec, dtype, notes=tuple(filter(None, doubts)))
    if spec is None:
        unnamed = MissingInput(fact("missing.no-gpu-named"), fact("missing.select-device"))
        return PeakChoice(None, None, dtype, unnamed)
    if not spec.dense:
        what = fact("missing.not-public", row=f"{spec.id} ({spec.product})")
        return PeakChoice(None, spec, dtype, MissingInput(what, fact("missing.set-peak")))
    types = tuple(
        fact("missing.dtype-rate-choice", dtype=name, tflops=decimal(Fraction(rate, PER_TERA), 1))
        for name, rate in spec.dense.items()
        if name not in NOT_A_PEAK
    )
    if dtype is None:
        choose = fact("missing.choose-dtype", types=types)
        return PeakChoice(None, spec, None, MissingInput(fact("missing.dtype-not-set"), choose))
    dense = spec.peak(dtype)
    if dense is None or dtype in NOT_A_PEAK:
        what = fact("missing.dtype-rate", dtype=repr(dtype[:20]), id=spec.id)
        how = fact("missing.set-peak-or-dtype", types=types)
        return PeakChoice(None, spec, dtype, MissingInput(what, how))
    return PeakChoice(Peak(Fraction(dense), f"{dtype} dense"), spec, dtype)


def plain_dtype(text: str) -> str:
    """Return a data type as the table of devices has it: `bf16` for `torch.bfloat16`."""
    name = text.strip().lower().removeprefix("torch.").replace("-", "_")
    return DTYPE_ALIASES.get(name, name)


def other_peaks(choice: PeakChoice) -> tuple[Peak, ...]:
    """Return peaks that may have been used instead of this one: of other data types or devices.

    The devices have the same maker and series as the chosen one, and links between GPUs if that one
    has them. The chosen one is among them: its peak may differ from the rate that the user gave.
    """
    own = choice.spec
    if own is None or choice.dtype is None:
        return ()

    def bandwidth(spec: DeviceSpec) -> int:
        return max((memory.bandwidth for memory in spec.memories), default=0)

    other_types = [dtype for dtype in own.dense if dtype not in (*NOT_A_PEAK, choice.dtype)]
    peaks = [Peak(Fraction(own.dense[dtype]), f"{dtype} dense") for dtype in other_types]
    for spec in load_devices():
        is_alike = (spec.vendor, spec.series) == (own.vendor, own.series)
        is_alike &= (spec.link is None) == (own.link is None)
        if is_alike and (rate := spec.peak(choice.dtype)) is not None:
            # Another device (1) is less likely than another type of this one (0, the default); one
            # with memory of less than half the bandwidth is even less likely (2).
            unlikely = 1 + (2 * bandwidth(spec) < bandwidth(own))
            label = f"{choice.dtype} dense ({spec.id})"
            peaks.append(Peak(Fraction(rate), label, unlikely))
    best: dict[Fraction, Peak] = {}
    for peak in sorted(peaks, key=lambda peak: peak.unlikely):
        best.setdefault(peak.flops_per_ns, peak)
    return tuple(best.values())


Unit = Literal["step", "sequence", "token", "second"]
"""What FLOPs are counted for: a step or, if its size is unknown, a part of it."""


class Entry(Struct, frozen=True):
    """A run under one convention: its work and rate, or the `problem` why there is none."""

    convention: Convention
    work: DescribedWork | None
    rate: Rate | None
    problem: str = ""


class Utilisation(Struct, frozen=True):
    """A described run by all conventions (`entries`); `lacks` say why there is no `rate`."""

    card: ModelCard
    run: Run
    unit: Unit
    work: DescribedWork
    rate: Rate | None
    choice: PeakChoice
    lacks: tuple[MissingInput, ...]
    entries: tuple[Entry, ...]
    notes: tuple[Fact, ...]

    @property
    def is_possible(self) -> bool:
        """Return whether the rate is at most the peak, or unknown."""
        return self.rate is None or max(self.rate.mfu, self.rate.hfu) <= 1

    def check(self) -> None:
        """Raise InputError, with the likely reasons, if the rate is more than a device can do."""
        if self.rate is not None:
            rates.check_possible(self.rate, self.card, self.run, self.choice.spec)
        rates.check_speed(self.work)


def utilisation(
    card: ModelCard, run: Run, choice: PeakChoice, name: str | None = None
) -> Utilisation:
    """Return the utilisation of a run by a convention, or the usual one. Raises UsageError."""
    unit = unit_of(card, run)
    if unit == "token":
        run = replace(run, tokens=1)
    check_claims(card, run)
    done = rates.work(card, run, name)
    no_time = MissingInput(fact("missing.step-time"), fact("missing.set-time"))
    lacks = (no_time if done.seconds is None else None, choice.lack)
    # Every convention. A published rate of unknown basis has no other convention than PUBLISHED.
    entries = []
    for rule in CONVENTIONS.values():
        problem = obstacle(card, run, rule.id)
        if rates.is_of_unknown_basis(run):
            unknown = "the published rate does not say how FLOPs were counted"
            problem = f"{unknown} (--achieved-convention)" if rule.id != rates.PUBLISHED else None
        by_rule = rates.work(card, run, rule.id) if problem is None else None
        rate = rate_of(by_rule, choice.peak) if by_rule is not None else None
        entries.append(Entry(rule, by_rule, rate, problem or ""))
    claims = doubtful_claims(card, run)
    return Utilisation(
        card=card,
        run=run,
        unit="second" if done.tokens is None else unit,  # a published rate is a second's work
        work=done,
        rate=rate_of(done, choice.peak),
        choice=choice,
        lacks=tuple(filter(None, lacks)),
        entries=tuple(entries),
        notes=(*card.notes, *claims, *choice.notes, *_doubts(card, choice, done, name)),
    )


def unit_of(card: ModelCard, run: Run) -> Unit:
    """Return what FLOPs are counted for: a step, else a sequence, else a token.

    Without the size of a step it is a sequence; a token if the length of sequences is unknown, too.
    If a time or rate needs this length, the unit is "sequence" all the same: `Run.shape` raises
    later and asks for both. Raises UsageError if only the number of sequences is unknown.
    """
    if run.batch or run.tokens or run.documents or run.seq_sum is not None:
        return "step"
    has_length = run.seq is not None or card.seq is not None
    if run.step_seconds is not None and has_length:
        hint = "set the batch of all GPUs together (--batch) or the tokens per step (--tokens)"
        raise UsageError("the number of sequences per step is unknown", hint)
    needs_no_length = run.step_seconds is None and run.samples_per_s is None
    return "token" if needs_no_length and not has_length else "sequence"


def _doubts(
    card: ModelCard, choice: PeakChoice, done: DescribedWork, name: str | None
) -> Iterator[Fact]:
    """Yield doubts about count and rate; `name` is the requested convention, or None."""
    # A requested convention is no doubt; work without tokens is a published rate.
    if name is None and done.tokens is not None and not card.complete:
        rule = done.ledger.convention
        yield fact("described.rough-count", lacks=tuple(card.lacks), convention=rule)
    if not done.is_counted:
        yield fact("described.published-rate")
    rate = rate_of(done, choice.peak)
    if rate is not None and rate.doubt is not None:
        yield rate.doubt
    if rate is None and (speed := done.tflops_per_device) is not None:
        # Without a peak: is the speed above that of every device?
        dtype = choice.dtype
        names = [name for name in DTYPES if name not in NOT_A_PEAK and dtype in (None, name)]
        peaks = (spec.peak(name) for spec in load_devices() for name in names)
        fastest = max((peak for peak in peaks if peak is not None), default=0)
        if fastest and speed * PER_TERA > fastest:
            highest = decimal(Fraction(fastest, PER_TERA), 1)
            rates = {"speed": decimal(speed, 0), "highest": highest}
            yield fact("described.above-table", dtype=choice.dtype, **rates)


def check_claims(card: ModelCard, run: Run) -> None:
    """Raise UsageError for frozen parts, adapters or lengths that the model cannot have."""
    frozen = run.frozen - {"all"}
    absent = frozen - {*card.parts}
    problem = f"the weights in {' or '.join(sorted(frozen))} of {card.name} are unknown"
    hint = "freeze all of them, or describe the model (preset, config.json, TOML card)"
    require(card.complete or not frozen, problem, hint)
    problem = f"{card.name} has no {' or '.join(sorted(absent))} to freeze"
    require(not absent, problem, f"available: {', '.join(card.parts)}")
    if (lora := run.lora) is not None:
        lora.adapters(card)  # raises for targets that the model lacks
        size, own = lora.params or 0, f"({card.total:,})"
        problem = f"adapters with {size:,} parameters are larger than the model {own}"
        require(size <= card.total, problem, "give the parameters of the adapters only")
        matrices = [placed.linear for placed in lora.adapted(card)]
        widest = max((min(matrix.inputs, matrix.outputs) for matrix in matrices), default=0)
        problem = f"LoRA rank {lora.rank} exceeds the width of every matrix ({widest})"
        require((lora.rank or 0) <= widest, problem, "typical ranks are 8 to 256")
    if run.seq is not None and card.is_convolutional:
        raise UsageError(f"{card.name} has no sequences of tokens", "omit --seq and set --batch")


def doubtful_claims(card: ModelCard, run: Run) -> tuple[Fact, ...]:
    """Return doubts about statements on the run and the model that contradict each other."""
    claims = (*card.doubts, *run.notes)
    if card.seq is not None and run.seq not in (None, card.seq):
        # This covers lengths beyond the positions, too: these are of the fixed length.
        fixed = fact("described.fixed-length", model=card.name, tokens=card.seq, given=run.seq)
        return (*claims, fixed)
    try:
        documents = run.shape(card).documents or ()
    except UsageError:  # reported where FLOPs are counted
        documents = ()
    # Cached tokens come before each document. Without a table of positions (0) there is no limit.
    longest = max((length + run.cached for length, _ in documents), default=0)
    if not 0 < card.positions < longest:
        return claims
    sizes = {"longest": longest, "positions": card.positions}
    return (*claims, fact("described.beyond-positions", model=card.name, **sizes))

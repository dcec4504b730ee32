"""The peak that options ask for, or why there is none and which option gives one."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from traceflops.errors import UsageError
from traceflops.mfu.figures import decimal
from traceflops.mfu.matching import SeenDevice, chosen, given_rate
from traceflops.mfu.peaks import PER_TERA, DeviceSpec, load_devices, rate_text
from traceflops.mfu.rates import Peak

DTYPE_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "float8": "fp8",
    "float4": "fp4",
}

NOT_A_PEAK = ("int8",)
"""Rates that count operations on integers: no FLOP."""

TWICE = (Fraction(19, 10), Fraction(21, 10))
"""How much a 2:4 sparse figure is of the dense one, with what rounding on data sheets allows."""

HOW = "--device ID and --dtype TYPE take one from the table, --peak TFLOPS gives one"


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

    Raises UsageError for a rate that cannot be meant.
    """
    plain = plain_dtype(dtype) if dtype is not None else None
    if tflops is not None:
        return _given(device, tflops, plain)
    if device is None:
        return PeakChoice(None, None, plain, "no device is named", HOW)
    try:
        spec = _row(device)
    except UsageError as error:
        return PeakChoice(None, None, plain, error.message, f"{error.hint}; {HOW}")
    return _from_table(spec, plain)


def plain_dtype(text: str) -> str:
    """Return a data type in the words of the table: of `torch.bfloat16` it is `bf16`."""
    name = text.strip().lower().removeprefix("torch.").replace("-", "_")
    return DTYPE_ALIASES.get(name, name)


def other_peaks(choice: PeakChoice) -> tuple[Peak, ...]:
    """Return what may have been taken for the peak: other data types, other devices of the maker.

    Of devices only those are tried that are as much made for clusters: that have links, or none.
    """
    own = choice.spec
    if own is None or choice.dtype is None:
        return ()
    types = {
        rate: f"{dtype} dense"
        for dtype, rate in own.dense.items()
        if dtype not in (*NOT_A_PEAK, choice.dtype)
    }
    devices = {
        rate: f"{choice.dtype} dense ({spec.id})"
        for spec in load_devices()
        if spec.vendor == own.vendor
        and (spec.link is None) == (own.link is None)
        and (rate := spec.peak(choice.dtype)) is not None
    }
    return tuple(Peak(Fraction(rate), label) for rate, label in (devices | types).items())


def _row(device: str) -> DeviceSpec:
    """Return the row with that id. Raises UsageError with the ids near it."""
    spec = chosen(device, None, SeenDevice()).spec
    assert spec is not None, "an id of the table has a row"
    return spec


def _given(device: str | None, tflops: Fraction, dtype: str | None) -> PeakChoice:
    rate = given_rate(float(tflops))
    try:
        spec, notes = (_row(device) if device is not None else None), _doubts(device, rate, dtype)
    except UsageError as error:
        spec, notes = None, (f"{error.message}; the peak is the one given",)
    label = f"{dtype} given" if dtype is not None else "given"
    return PeakChoice(Peak(Fraction(rate), label), spec, dtype, notes=notes)


def _doubts(device: str | None, rate: int, dtype: str | None) -> tuple[str, ...]:
    """Return a note where the rate given is twice the dense one: probably a sparse figure."""
    dense = _row(device).peak(dtype) if device is not None and dtype is not None else None
    least, most = TWICE
    if dense is None or not least <= Fraction(rate, dense) <= most:
        return ()
    return (
        f"--peak {rate_text(rate)} is twice the dense {dtype} rate of {device} "
        f"({rate_text(dense)}): a 2:4 sparse figure is no peak of dense work",
    )


def _from_table(spec: DeviceSpec, dtype: str | None) -> PeakChoice:
    if not spec.dense:
        problem = f"no rate of {spec.id} ({spec.product}) is public"
        return PeakChoice(None, spec, dtype, problem, "--peak TFLOPS gives one")
    if dtype is None:
        return PeakChoice(None, spec, None, "no data type is named", f"--dtype {_known(spec)}")
    rate = spec.peak(dtype)
    if rate is None or dtype in NOT_A_PEAK:
        problem = f"no dense {dtype[:20]!r} rate of {spec.id} is known in FLOP/s"
        remedy = f"--peak TFLOPS gives one; --dtype {_known(spec)}"
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

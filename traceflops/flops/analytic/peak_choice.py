"""The peak that options ask for, or why there is none and which option gives one."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from traceflops.devices import (
    DTYPES,
    NOT_A_PEAK,
    PER_TERA,
    DeviceSpec,
    SeenDevice,
    chosen,
    given_rate,
    load_devices,
    rate_doubt,
)
from traceflops.flops.analytic.rates import Peak
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

    Of devices only those are tried that are as much made for clusters: that have links, or none.
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
        if spec.vendor == own.vendor
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

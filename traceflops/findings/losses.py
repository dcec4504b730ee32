"""Rule `loss`: each part of the device time that is not useful work, if it is large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.findings.finding import Finding, severity_of
from traceflops.words import percent

if TYPE_CHECKING:
    from traceflops.mfu.measurement import Measurement
    from traceflops.results import Account


@dataclass(frozen=True, slots=True)
class _Kind:
    """A loss: what it is called, where a report shows it, and whether it is inside compute."""

    words: str
    evidence: tuple[str, ...]
    takes: str = "takes"
    in_compute: bool = False


_KINDS: Final = {
    "communication": _Kind("exposed communication", ("communication", "timeline", "categories")),
    "idle": _Kind("idle time", ("idle",)),
    "memory": _Kind("memory-bound work", ("categories", "kernels")),
    "other": _Kind("kernels of unknown category", ("kernels",), "take"),
    "graph": _Kind("graph launches that show no kernels", ("categories",), "take"),
    "inefficiency": _Kind("slow compute kernels", ("kernels", "roofline"), "take", in_compute=True),
    "recompute": _Kind("recomputation", ("peak",), in_compute=True),
    "overcompute": _Kind("computing for masks and padding", ("peak",), in_compute=True),
}
"""By component, and by the lines of the waterfall that split the compute component."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of the device time that is lost: its name, its words and its share."""

    name: str
    words: str
    share: float


def losses(total: Account, measured: Measurement | None) -> tuple[Loss, ...]:
    """Return what takes device time and is no compute at the peak, the largest first.

    What compute loses is known only where the FLOPs are.
    """
    parts, window_ns = total.components.parts(), total.components.window_ns
    fall = measured.waterfall if measured is not None else None
    found = []
    for name, kind in _KINDS.items():
        if kind.in_compute:
            share = float(fall.share(name) or 0) if fall is not None else 0.0
        else:
            share = parts[name] / window_ns if window_ns else 0.0
        if share > 0:
            found.append(Loss(name, kind.words, share))
    return tuple(sorted(found, key=lambda loss: -loss.share))


def loss_findings(total: Account, measured: Measurement, of: str) -> Iterator[Finding]:
    """Give a finding per loss that matters; `of` says what the shares are of."""
    mfu = _exact_mfu(measured)
    for loss in losses(total, measured):
        severity = severity_of(loss.share)
        if severity is None:
            return
        words = f"{loss.words[:1].upper()}{loss.words[1:]}"
        kind = _KINDS[loss.name]
        yield Finding(
            rule=f"loss-{loss.name}",
            severity=severity,
            sentence=f"{words} {kind.takes} {percent(loss.share)} of {of}.",
            share=loss.share,
            mfu_without=mfu / (1 - loss.share) if mfu is not None and loss.share < 1 else None,
            evidence=kind.evidence,
        )


def _exact_mfu(measured: Measurement) -> float | None:
    """Return the MFU where it is one figure."""
    found = measured.mfu_range
    if found is None or not measured.is_exact or found.least != found.most:
        return None
    return float(found.most)

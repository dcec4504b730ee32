"""Rule `loss`: each part of the device time that is not useful work, if it is large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from traceflops.findings.finding import Finding, severity_of
from traceflops.words import percent

if TYPE_CHECKING:
    import pyarrow as pa

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


_MOVES: Final = {"copy": "copies", "migration": "copies", "memset": "fills"}
"""Kinds of memory work that move or set bytes; all others are kernels bound by the memory."""

_KERNELS: Final = "kernels"


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of the device time that is lost: its name, its words, its verb and its share."""

    name: str
    words: str
    takes: str
    share: float


def losses(
    total: Account, measured: Measurement | None, categories: pa.Table | None = None
) -> tuple[Loss, ...]:
    """Return what takes device time and is no compute at the peak, the largest first.

    What compute loses is known only where the FLOPs are. `categories` tell what memory work is.
    """
    parts, window_ns = total.components.parts(), total.components.window_ns
    fall = measured.waterfall if measured is not None else None
    found = []
    for name, kind in _KINDS.items():
        if kind.in_compute:
            share = float(fall.share(name) or 0) if fall is not None else 0.0
        else:
            share = parts[name] / window_ns if window_ns else 0.0
        if name == "idle" and _is_unrecorded(total):
            continue
        if share > 0:
            found.append(Loss(name, kind.words, kind.takes, share))
    named = [
        _memory_work(one, categories) if one.name == "memory" and categories is not None else one
        for one in found
    ]
    return tuple(sorted(named, key=lambda loss: -loss.share))


def _is_unrecorded(total: Account) -> bool:
    """Return whether most of the idle time may have been filled by work not in the trace."""
    return 2 * total.idle_causes.unrecorded_ns > total.components.idle_ns


def _memory_work(loss: Loss, categories: pa.Table) -> Loss:
    """Return the loss named after copies or fills where these have most of its activities' time."""
    times: dict[str, int] = {}
    for row in categories.to_pylist():
        if row["top"] == "memory" and row["sum_ns"]:
            what = _MOVES.get(row["sub"], _KERNELS)
            times[what] = times.get(what, 0) + row["sum_ns"]
    largest = max(times, key=lambda what: times[what], default=_KERNELS)
    if largest == _KERNELS or 2 * times[largest] <= sum(times.values()):
        return loss
    if len(times) == 1:
        return replace(loss, words=f"memory {largest}", takes="take")
    return replace(loss, words=f"memory work, mostly {largest}")


def loss_findings(
    total: Account, measured: Measurement, of: str, categories: pa.Table | None = None
) -> Iterator[Finding]:
    """Give a finding per loss that matters; `of` says what the shares are of."""
    mfu = _exact_mfu(measured)
    for loss in losses(total, measured, categories):
        severity = severity_of(loss.share)
        if severity is None:
            return
        words = f"{loss.words[:1].upper()}{loss.words[1:]}{',' if ', ' in loss.words else ''}"
        yield Finding(
            rule=f"loss-{loss.name}",
            severity=severity,
            sentence=f"{words} {loss.takes} {percent(loss.share)} of {of}.",
            share=loss.share,
            mfu_without=mfu / (1 - loss.share) if mfu is not None and loss.share < 1 else None,
            evidence=_KINDS[loss.name].evidence,
        )


def _exact_mfu(measured: Measurement) -> float | None:
    """Return the MFU where it is one figure."""
    found = measured.mfu_range
    if found is None or not measured.is_exact or found.least != found.most:
        return None
    return float(found.most)

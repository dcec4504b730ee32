"""Rule `loss`: each part of the device time that is not useful work, if it is large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from traceflops.findings.finding import Finding, severity_of
from traceflops.mfu.executed.coverage import ENOUGH, TOO_LITTLE
from traceflops.mfu.rooftimes import NO_ROOFS, RoofTime, RoofTimes
from traceflops.words import capitalized, percent

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.mfu.measurement import Measurement
    from traceflops.results import Account


@dataclass(frozen=True, slots=True)
class _Kind:
    """A loss: what it is called, where a report shows it, and whether it is inside compute.

    `is_judged` is False for work of which nothing says whether the program needs it.
    """

    words: str
    evidence: tuple[str, ...]
    takes: str = "takes"
    in_compute: bool = False
    is_judged: bool = True


_KINDS: Final = {
    "communication": _Kind("exposed communication", ("communication", "timeline", "categories")),
    "idle": _Kind("idle time", ("idle",)),
    "memory": _Kind("elementwise, norm and copy kernels", ("categories", "kernels"), "take"),
    "other": _Kind("uncategorized kernels", ("kernels",), "take", is_judged=False),
    "graph": _Kind(
        "graph launches without kernel records",
        ("categories",),
        "take",
        is_judged=False,
    ),
    "inefficiency": _Kind(
        "compute kernels below peak", ("kernels", "roofline"), "take", in_compute=True
    ),
    "recompute": _Kind("recomputation", ("peak",), in_compute=True),
    "overcompute": _Kind("work on masked and padded elements", ("peak",), in_compute=True),
}
"""By component, and by the lines of the waterfall that split the compute component."""


_MOVES: Final = {"copy": "copies", "migration": "copies", "memset": "fills"}
"""Kinds of memory work that move or set bytes; all others are kernels."""

_KERNELS: Final = "kernels"

_HARDLY_ANY: Final = 1e-9
"""Prints as less than any share, where bytes are known that need less than a nanosecond."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What bytes need at the peak bandwidth, as a share of the device time.

    It is the least they need where the bytes of some of the work are not known.
    """

    share: float
    is_least: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of the device time that is lost: its name, its words, its verb and its share.

    `needed` is the part that its bytes need, None where too little is known of them. A loss that
    is not judged does not lead a verdict; `doubt` says why.
    """

    name: str
    words: str
    takes: str
    share: float
    needed: Needed | None = None
    is_judged: bool = True
    doubt: str = "how much of that is useful is unknown"

    def sized(self, of: str = "") -> str:
        """Return its share, of what, and how much of it its bytes need."""
        share = f"{percent(self.share)}{f' of {of}' if of else ''}"
        if self.needed is None:
            return share
        least = "at least " if self.needed.is_least else ""
        needed = percent(self.needed.share or _HARDLY_ANY)
        return f"{share}, of which their bytes need {least}{needed}"


def losses(
    total: Account,
    measured: Measurement | None,
    categories: pa.Table | None = None,
    *,
    lacks_copies: bool = False,
) -> tuple[Loss, ...]:
    """Return what takes device time and is not compute at the peak, the largest first.

    What compute loses is known only where the FLOPs are. `categories` tell what memory work is.
    Idle time is not judged where the trace `lacks_copies`.
    """
    window_ns = total.components.window_ns
    found = []
    for name, kind in _KINDS.items():
        share = _share(name, kind, total, measured)
        if name == "idle" and not total.knows_idle:
            continue
        if share > 0:
            found.append(Loss(name, kind.words, kind.takes, share, is_judged=kind.is_judged))
    if lacks_copies:
        found = [_in_doubt(loss) if loss.name == "idle" else loss for loss in found]
    roofs = measured.roofs if measured is not None else NO_ROOFS
    named = [_named(loss, roofs, window_ns, categories) for loss in found]
    return tuple(sorted(named, key=lambda loss: -loss.share))


def _in_doubt(idle: Loss) -> Loss:
    """Return idle time that may be something else."""
    return replace(idle, is_judged=False, doubt="it may include copies, which the trace lacks")


def _share(name: str, kind: _Kind, total: Account, measured: Measurement | None) -> float:
    """Return a loss as a share of the device time."""
    if not kind.in_compute:
        return total.components.share(name) or 0.0
    fall = measured.waterfall if measured is not None else None
    return float(fall.share(name) or 0) if fall is not None else 0.0


def _named(loss: Loss, roofs: RoofTimes, window_ns: int, categories: pa.Table | None) -> Loss:
    """Return a loss named after what is known of its work, with what its bytes need."""
    if loss.name == "memory":
        named = _memory_work(loss, categories) if categories is not None else loss
        return replace(named, needed=_needed(roofs.memory, window_ns))
    if loss.name == "inefficiency":
        return _compute_work(replace(loss, needed=_needed(roofs.compute, window_ns)))
    return loss


def _needed(time: RoofTime, window_ns: int) -> Needed | None:
    """Return what bytes need beyond FLOPs, None where the bytes of most of the time are unknown."""
    if not window_ns or not time.known_ns or time.known_ns < TOO_LITTLE * time.time_ns:
        return None
    return Needed(time.bytes_ns / window_ns, time.known_ns < ENOUGH * time.time_ns)


def _compute_work(loss: Loss) -> Loss:
    """Return what compute loses: memory-bound where bytes need most of it, else slow."""
    if loss.needed is None:
        return loss
    if 2 * loss.needed.share >= loss.share:
        return replace(loss, words="memory-bound compute kernels")
    words = loss.words if loss.needed.is_least else "slow compute kernels"
    return replace(loss, words=words, needed=None)


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
        return replace(loss, words=f"memory {largest}")
    return replace(loss, words=f"{largest} and other memory work")


def loss_findings(
    total: Account,
    measured: Measurement,
    of: str,
    categories: pa.Table | None = None,
    *,
    lacks_copies: bool = False,
) -> Iterator[Finding]:
    """Give a finding per loss that matters; `of` says what the shares are of."""
    mfu = _exact_mfu(measured)
    for loss in losses(total, measured, categories, lacks_copies=lacks_copies):
        severity = severity_of(loss.share)
        if severity is None:
            return
        doubt = f"; {loss.doubt}" if loss.name == "idle" and not loss.is_judged else ""
        yield Finding(
            rule=f"loss-{loss.name}",
            severity=severity,
            sentence=f"{capitalized(loss.words)} {loss.takes} {loss.sized(of)}{doubt}.",
            share=loss.share,
            mfu_without=mfu / (1 - loss.share) if mfu is not None and loss.share < 1 else None,
            evidence=_KINDS[loss.name].evidence,
        )


def _exact_mfu(measured: Measurement) -> float | None:
    """Return the MFU where it is one figure."""
    mfu = measured.mfu_range
    if mfu is None or not measured.is_exact or mfu.least != mfu.most:
        return None
    return float(mfu.most)

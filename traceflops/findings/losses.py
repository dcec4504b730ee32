"""Rule `loss`: each part of the device time that is not useful work, if it is large."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from traceflops.attribution import (
    CLASSES,
    COPIES,
    KERNELS,
    MIGRATIONS,
    NO_CULPRITS,
    IdleClass,
    IdleCulprits,
)
from traceflops.findings.finding import WORTH_SAYING, Finding, severity_of, short_name
from traceflops.mfu import ENOUGH, NO_ROOFS, TOO_LITTLE, RoofTime
from traceflops.units import PART_NAMES, capitalized, duration, percent, several, significant

if TYPE_CHECKING:
    from traceflops.mfu import Measurement
    from traceflops.timeline import Account


LOSS: Final = "loss-"
"""What the rules of losses begin with."""
_USEFUL: Final = "how much of that is useful is unknown"
_UNRECORDED: Final = "time without recorded work"
_MISSING: Final = "earlier work or waits may be missing from the trace"
_NO_COPIES: Final = "it may include copies, which the trace lacks"
_SHORT_NS, _FEW_GAPS, _MANY_GAPS = 10_000, 10, 100
_LAUNCHED_ALONE: Final = (
    ", as between kernels launched one by one; fused kernels or a graph have fewer"
)


@dataclass(frozen=True, slots=True)
class _LossKind:
    """A loss: where a report shows it, what it is, and whether it is inside compute.

    `unknown` says why nobody can judge it: nothing says whether the program needs it.
    """

    evidence: tuple[str, ...]
    takes: str = "takes"
    gloss: str = ""
    unknown: str = ""
    in_compute: bool = False


_KINDS: Final = {
    "communication": _LossKind(("communication", "timeline", "categories")),
    "idle": _LossKind(("idle",)),
    "memory": _LossKind(("categories", "kernels"), gloss="elementwise, norm and copy kernels"),
    "other": _LossKind((), "take", unknown=_USEFUL),
    "graph": _LossKind((), "take", "no kernel records", _USEFUL),
    "inefficiency": _LossKind(("kernels", "roofline"), in_compute=True),
    "recompute": _LossKind(("peak",), in_compute=True),
    "overcompute": _LossKind(("peak",), "take", in_compute=True),
}
"""By component, and by the lines of the waterfall that split the compute component."""

_MOSTLY: Final = "mostly"
_NO_TIME: Final = RoofTime(0, 0, 0, 0)

_HARDLY_ANY: Final = 1e-9
"""Prints as less than any share, where bytes are known that need less than a nanosecond."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What bytes need at the peak bandwidth, as a share of the device time.

    `known` is the share of the work whose bytes are known, where these do not stand for all of it.
    """

    share: float
    known: float | None


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of the device time that is lost: its name, its words, its verb and its share.

    `gloss` says what it is made of, `needed` the part that its bytes need, None where too little is
    known of them, `rate` how fast its copies are where it is mostly these, `remedy` what most of it
    is and what to do. With `unknown` it is not judged: neither ranked, nor first in a verdict.
    """

    name: str
    words: str
    takes: str
    share: float
    gloss: str = ""
    unknown: str = ""
    needed: Needed | None = None
    rate: str = ""
    remedy: str = ""

    @property
    def taking(self) -> str:
        """Return what takes time: "Memory work (mostly fills) takes"."""
        gloss = f" ({self.gloss})" if self.gloss else ""
        return f"{capitalized(self.words)}{gloss} {self.takes}"

    def brief(self) -> Loss:
        """Return the same with no more words than what it is mostly."""
        gloss = self.gloss if self.gloss.startswith(_MOSTLY) else ""
        return replace(self, gloss=gloss, needed=None, rate="")

    def sized(self, of: str = "") -> str:
        """Return its share, and of what."""
        return f"{percent(self.share)}{f' of {of}' if of else ''}"

    def glossed(self, of: str) -> str:
        """Return its share after what it is; what is only most of it does not have that share."""
        if self.gloss.startswith(_MOSTLY):
            return f"{self.sized(of)}, {self.gloss}"
        return f"{self.gloss}: {self.sized(of)}" if self.gloss else self.sized(of)

    def at_peak(self, of: str) -> str:
        """Return what its bytes need in a sentence, "" where that is unknown."""
        if self.rate or self.needed is None:
            return self.rate
        needed, known = percent(self.needed.share or _HARDLY_ANY), self.needed.known
        if self.name == "inefficiency":
            least = "" if known is None else "at least "
            return f"Even at peak, compute would wait for its bytes {least}{needed} of {of}."
        if known is None:
            return f"At peak bandwidth, {self.words} would take {needed} of {of}."
        return (
            f"{capitalized(self.words)} with known bytes takes {percent(known)} of {of}; at peak "
            f"bandwidth it would take {needed}."
        )


def all_losses(
    total: Account,
    measured: Measurement | None,
    moved: Mapping[str, int] | None = None,
    waits: IdleCulprits = NO_CULPRITS,
    *,
    lacks_copies: bool = False,
    waiting: tuple[str, str] = ("", ""),
) -> tuple[Loss, ...]:
    """Return what takes device time and is not compute at the peak, the largest first.

    What compute loses is known only where the FLOPs are. `moved` is the time of memory work by what
    it is, `waits` whom idle time is due to. Idle time in which earlier work may be missing is a
    part of its own where there is enough of it; where the trace `lacks_copies`, no idle time is
    judged. `waiting` is for whom communication mostly waits, and how much of it that is.
    """
    roofs = measured.roofs if measured is not None else NO_ROOFS
    times = {"memory": roofs.memory, "inefficiency": roofs.compute}
    found: list[Loss] = []
    for name, kind in _KINDS.items():
        loss = Loss(
            name,
            PART_NAMES[name],
            kind.takes,
            _share(name, kind, total, measured),
            _moving(moved, kind.gloss) if name == "memory" else kind.gloss,
            kind.unknown,
            _needed(times.get(name, _NO_TIME), total.components.window_ns),
            _copy_rate(measured, moved) if name == "memory" else "",
        )
        if name == "communication" and waiting[0]:
            loss = replace(loss, gloss=f"{_MOSTLY} waiting for {waiting[0]}", remedy=waiting[1])
        if name == "idle":
            found.extend(_by_cause(loss, total, waits, lacks_copies=lacks_copies))
        else:
            found.append(_explained(loss))
    return tuple(sorted((one for one in found if one.share > 0), key=lambda one: -one.share))


def _explained(loss: Loss) -> Loss:
    """Return a loss without what its bytes need, where that is not why compute is below peak."""
    if loss.name != "inefficiency" or loss.needed is None or 2 * loss.needed.share >= loss.share:
        return loss
    return replace(loss, needed=None)


def _by_cause(
    idle: Loss, total: Account, waits: IdleCulprits, *, lacks_copies: bool
) -> tuple[Loss, ...]:
    """Return idle time in two parts where enough of it may be work that is not in the trace.

    Whom the rest of it is due to is not told then.
    """
    if lacks_copies:
        gaps = _gaps(waits, total.components.idle_ns).removesuffix(".")
        return (replace(idle, unknown=f"{_NO_COPIES}{f'. {gaps}' if gaps else ''}"),)
    missing_ns, window_ns = total.idle_causes.unrecorded_ns, total.components.window_ns
    if missing_ns < WORTH_SAYING * window_ns or not window_ns:
        return (_due(idle, waits, total.components.idle_ns),)
    rest = (total.components.idle_ns - missing_ns) / window_ns
    missing = replace(idle, words=_UNRECORDED, share=missing_ns / window_ns, unknown=_MISSING)
    return replace(idle, share=rest), missing


def _gaps(waits: IdleCulprits, idle_ns: int) -> str:
    """Return that most idle time is a few long gaps, or many short ones; "" for others."""
    lengths = waits.histogram
    longest = [lengths[-count:] for count in range(1, len(lengths) + 1)]
    short = tuple(one for one in lengths if one.to_ns <= _SHORT_NS)
    for some in (*longest, short) if sum(one.gaps for one in lengths) >= _MANY_GAPS else ():
        gaps, gaps_ns = sum(one.gaps for one in some), sum(one.idle_ns for one in some)
        is_few = gaps <= _FEW_GAPS
        if idle_ns <= 2 * gaps_ns and (is_few or (some is short and gaps >= _MANY_GAPS)):
            mean = f"{duration(gaps_ns // gaps)}{' on average' * (gaps > 1)}"
            said = f"Most of it is {several(gaps, 'gap')} of {mean}"
            return f"{said}{'' if is_few else _LAUNCHED_ALONE}."
    return ""


def _due(idle: Loss, waits: IdleCulprits, idle_ns: int) -> Loss:
    """Return idle time with what most of it is due to, and with what to do."""
    if not waits.culprits:
        return replace(idle, remedy=_gaps(waits, idle_ns))
    largest = waits.by_class()[0]
    words, is_most = CLASSES[largest.kind], 2 * largest.idle_ns >= idle_ns
    gloss = f"{_MOSTLY} {words}" if is_most else ""
    return replace(idle, gloss=gloss, remedy=_remedy(largest, idle_ns))


def _remedy(largest: IdleClass, idle_ns: int) -> str:
    """Return what a class of culprits takes of the idle time, its largest name, and its remedy."""
    kind, name = largest.kind, short_name(largest.culprits[0].label)
    share, own = (percent(one.idle_ns / idle_ns) for one in (largest, largest.culprits[0]))
    part = f"; largest part: {name}{f', {own}' if own != share else ''}" if name else ""
    blocked_ns = sum(culprit.blocked_before_ns for culprit in largest.culprits)
    waited = " Most of it follows a wait for the GPU." if 2 * blocked_ns > largest.idle_ns else ""
    return f"Of that, {share} is {CLASSES[kind]}{part}.{waited} {capitalized(largest.remedy)}."


def _share(name: str, kind: _LossKind, total: Account, measured: Measurement | None) -> float:
    if not kind.in_compute:
        return total.components.share(name) or 0.0
    fall = measured.waterfall if measured is not None else None
    return float(fall.share(name) or 0) if fall is not None else 0.0


def _needed(time: RoofTime, window_ns: int) -> Needed | None:
    """Return what bytes need beyond FLOPs, None where the bytes of most of the time are unknown."""
    if not window_ns or not time.known_ns or time.known_ns < TOO_LITTLE * time.time_ns:
        return None
    known = None if time.known_ns >= ENOUGH * time.time_ns else time.known_ns / window_ns
    return Needed(time.bytes_ns / window_ns, known)


def _copy_rate(measured: Measurement | None, moved: Mapping[str, int] | None) -> str:
    """Return how fast copies between CPU and GPU are where memory work is mostly these, else ""."""
    rows = [
        row.measured
        for row in (measured.kernels if measured else ())
        if row.path == "host" and row.category.sub == "copy"
    ]
    if measured is None or 2 * sum(row.time_ns for row in rows) <= sum((moved or {}).values()):
        return ""
    copies = sum(rows[1:], rows[0])
    links = {one.match.host_link for one in measured.devices}
    link = links.pop() if len(links) == 1 else None
    if (rate := copies.bytes_per_ns) is None:
        return ""
    of = f", {percent(float(rate / link.bandwidth))} of {link.name}" if link else ""
    return f"Copies between CPU and GPU run at {significant(rate, 3)} GB/s{of}."


def _moving(moved: Mapping[str, int] | None, otherwise: str) -> str:
    """Return what most of the memory work is, where that is copies or fills."""
    times = dict(moved or {})
    copies = sum(ns for what, ns in times.items() if what.endswith(COPIES))
    moves = times.get(MIGRATIONS, 0) + copies
    for what, ns in (*times.items(), (COPIES, copies), (f"{COPIES} and {MIGRATIONS}", moves)):
        if what != KERNELS and 2 * ns > sum(times.values()):
            return what if ns == sum(times.values()) else f"{_MOSTLY} {what}"
    return otherwise


def loss_findings(found: Iterable[Loss], measured: Measurement, of: str) -> Iterator[Finding]:
    """Give a finding per loss that matters and can be judged; `of` is what the shares are of."""
    mfu = _exact_mfu(measured)
    for loss in found:
        severity, shown = severity_of(loss.share), replace(loss, gloss="") if loss.remedy else loss
        if severity is None or loss.unknown:
            continue
        yield Finding(
            rule=f"{LOSS}{loss.name}",
            severity=severity,
            sentence=f"{shown.taking} {loss.sized(of)}. {loss.at_peak(of)}{loss.remedy}".rstrip(),
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

"""Rule `loss`: each part of the device time that is not useful work, if it is large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.culprits import NO_CULPRITS, IdleCulprits
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.kernels import COPIES, KERNELS, MIGRATIONS
from traceflops.facts import Fact, Value, fact, quoted
from traceflops.findings.copy_sizes import host_link
from traceflops.findings.finding import (
    WORTH_SAYING,
    Finding,
    function_of,
    severity_of,
    short_name,
)
from traceflops.findings.rules import all_rules, rule_of, statement, thresholds
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.roof_times import NO_ROOFS, RoofTime
from traceflops.mfu.traced.coverage import ENOUGH, TOO_LITTLE
from traceflops.table.trace import Trace
from traceflops.timeline.host_work import draws, frame_ns
from traceflops.timeline.records import Account, Components
from traceflops.units import PART_NAMES

LOSS: Final = "loss-"  # how the names of the rules of losses begin
_MOST_PARTS, _LARGE = 3, 0.1
"""Of memory work at most so many parts are named, each of at least this share of it."""
_SHORT_NS, _FEW_GAPS, _MANY_GAPS = 10_000, 10, 100
_LAUNCH_NS: Final = 100_000  # at most so long is a gap in which the host only launches
_NEARLY_EACH: Final = 0.75
"""The longest gap that is called short; the most gaps that are few; the fewest that are many."""


class _LossKind(Struct, frozen=True):
    """A kind of loss: whether its name is plural (`many`), what it is made of, why it is unjudged.

    With `in_compute` it is a line of the waterfall, which splits the compute component.
    """

    many: bool = False
    gloss: Fact | None = None
    unknown: Fact | None = None
    in_compute: bool = False


_USEFULNESS: Final = fact("loss.usefulness")
_KINDS: Final = {
    "communication": _LossKind(),
    "idle": _LossKind(),
    "memory": _LossKind(),
    "other": _LossKind(many=True, unknown=_USEFULNESS),
    "graph": _LossKind(many=True, gloss=fact("loss.no-records"), unknown=_USEFULNESS),
    "inefficiency": _LossKind(in_compute=True),
    "recompute": _LossKind(in_compute=True),
    "overcompute": _LossKind(many=True, in_compute=True),
}
"""By component, and by line of the waterfall. Whether some work is useful, nothing tells."""

_FRAMES: Final = "loss.frames"
_MOSTLY: Final = ("loss.mostly", "loss.mostly-waiting")
_NO_TIME: Final = RoofTime(0, 0, 0, 0)

_HARDLY_ANY: Final = 1e-9
"""Prints as "less than" the least share: for known bytes that need less than a nanosecond."""


class Loss(Struct, frozen=True):
    """A part of the device time that is lost: its name, what texts call it, and its share.

    gloss       what the part is made of
    unknown     why it is not judged; then it is neither ranked, nor first in a verdict
    needed      the share of time that its bytes need at the peak bandwidth, None if unknown
    known       the share of time whose bytes are known, None if that stands for all
    rate        how fast its copies are, if it is mostly copies
    details     what most of it is
    advice      what to do
    rule        the rule of what most of it is, "" for none
    of_compute  the share of time that belongs to the compute component as well
    """

    name: str
    part: Fact | str
    many: bool
    share: float
    gloss: Fact | None = None
    unknown: Fact | None = None
    needed: float | None = None
    known: float | None = None
    rate: Fact | None = None
    details: tuple[Fact, ...] = ()
    advice: Fact | None = None
    rule: str = ""
    of_compute: float = 0.0

    @property
    def headline(self) -> str:
        """Return the class of a report that begins with this loss."""
        if self.rule:
            return rule_of(self.rule).headline
        row = all_rules().rules.get(f"{LOSS}{self.name}")
        return row.headline if row is not None else "gpu-compute"

    @property
    def has_class(self) -> bool:
        """Return whether the class of a report may be that of the loss."""
        return self.unknown is None or bool(self.rule)

    @property
    def is_mostly(self) -> bool:
        """Return whether the gloss names only the larger part of the loss."""
        return self.gloss is not None and self.gloss.code in _MOSTLY

    def brief(self) -> Loss:
        """Return the loss for a short sentence, which tells only what it mostly is."""
        gloss = self.gloss if self.is_mostly else None
        return replace(self, gloss=gloss, needed=None, rate=None)

    def claim(self, of: Fact | None = None) -> Fact:
        """Return the statement that the loss takes its share; `of` names the whole."""
        return self._fact("claim", of=of)

    def sized(self, of: Fact | None = None) -> Fact:
        """Return the name and the share; the gloss, too, unless it is about a part only."""
        return self._fact("sized-of" if self.gloss and not self.is_mostly else "sized", of=of)

    def unjudged(self) -> Fact:
        """Return the statement that the loss takes its share, and why that is not judged."""
        return self._fact("unjudged", why=self.unknown)

    def at_peak(self, of: Fact) -> tuple[Fact, ...]:
        """Return the rate of the copies, else the share of time that the bytes need at the peak.

        The result is empty if both are unknown. `of` names the time that shares are of.
        """
        if self.rate is not None:
            return (self.rate,)
        if self.needed is None:
            return ()
        if self.name == "inefficiency":
            code = "compute-bytes" if self.known is None else "compute-bytes-at-least"
        else:
            code = "at-peak" if self.known is None else "at-peak-of-known"
        share = self.needed or _HARDLY_ANY  # never 0: bytes are known
        return (fact(f"loss.{code}", part=self.part, share=share, known=self.known, of=of),)

    def _fact(self, code: str, **values: Value) -> Fact:
        own = {"part": self.part, "many": 2 if self.many else 1, "share": self.share}
        return Fact(f"loss.{code}", own | {"gloss": self.gloss} | values)


def all_losses(
    total: Account,
    measured: Measurement | None,
    moved: Mapping[str, int] | None = None,
    waits: IdleCulprits = NO_CULPRITS,
    *,
    lacks_copies: bool = False,
    drawing: Fact | None = None,
    beside: Fact | None = None,
    waiting: tuple[Fact, tuple[Fact, ...]] | None = None,
) -> tuple[Loss, ...]:
    """Return the parts of the device time that are not compute at the peak, the largest first.

    Losses inside compute need known FLOPs. `moved` is the time of memory work by what moves,
    `waits` are the causes of idle time. Idle time that may hide lost records is a loss of its own;
    `drawing` says if the GPU may draw then. If the trace `lacks_copies`, no idle time is judged,
    and `beside` names files that may tell its cause. `waiting` tells for whom communication mostly
    waits, with statements on how much.
    """
    roofs, moved = measured.roofs if measured is not None else NO_ROOFS, moved or {}
    times = {"memory": roofs.memory, "inefficiency": roofs.compute}
    fall = measured.waterfall if measured is not None else None
    window_ns = total.components.window_ns
    losses: list[Loss] = []
    for name, kind in _KINDS.items():
        if kind.in_compute:
            share = float(fall.share(name) or 0) if fall is not None else 0.0
        else:
            share = total.components.share(name) or 0.0
        time, needed, known = times.get(name, _NO_TIME), None, None
        if window_ns and time.known_ns and time.known_ns >= TOO_LITTLE * time.time_ns:
            known = None if time.known_ns >= ENOUGH * time.time_ns else time.known_ns / window_ns
            needed = time.bytes_ns / window_ns
        part = PART_NAMES[name]
        loss = Loss(name, part, kind.many, share, kind.gloss, kind.unknown, needed, known)
        if name == "idle":
            losses.extend(
                _by_cause(loss, total, waits, beside, lacks_copies=lacks_copies, drawing=drawing)
            )
            continue
        if name == "other":
            loss = replace(loss, gloss=_longest(measured, total.components))
        if name == "memory":
            loss = replace(loss, gloss=_made_of(moved))
            if 2 * _copies_ns(moved) > sum(moved.values()):
                loss = replace(loss, rate=_copy_rate(measured), rule="host-copies")
        if name == "communication" and waiting is not None:
            whom, details = waiting
            loss = replace(loss, gloss=fact("loss.mostly-waiting", whom=whom), details=details)
        if name == "inefficiency" and needed is not None and 2 * needed < loss.share:
            loss = replace(loss, needed=None)  # bytes do not explain why compute is below its peak
        losses.append(loss)
    return tuple(sorted((loss for loss in losses if loss.share > 0), key=lambda loss: -loss.share))


def drawn(trace: Trace) -> Fact | None:
    """Return what a program that shares memory with graphics draws, None for any other."""
    if not draws(trace):
        return None
    each_ns = frame_ns(trace)
    return fact(_FRAMES, each_ns=each_ns, rate=1e9 / each_ns) if each_ns else fact("loss.may-draw")


def _by_cause(
    idle: Loss,
    total: Account,
    waits: IdleCulprits,
    beside: Fact | None,
    *,
    lacks_copies: bool,
    drawing: Fact | None,
) -> tuple[Loss, ...]:
    """Return idle time as one loss, or as two if much of it may be work that is not recorded.

    In that case no cause is told, since nothing tells which gaps hold that work.
    """
    components = total.components
    if components.start_up_ns >= WORTH_SAYING * components.window_ns > 0:
        idle = replace(idle, part=fact("loss.idle-beside-start-up"))
    if lacks_copies:
        details = (*_gaps(waits, total), *filter(None, [beside]))
        return (replace(idle, unknown=fact("loss.no-copies"), details=details),)
    missing_ns, window_ns = total.idle_causes.unrecorded_ns, total.components.window_ns
    if missing_ns < WORTH_SAYING * window_ns or not window_ns:
        return (_with_largest_cause(idle, waits, total),)
    rest = (total.components.idle_ns - missing_ns) / window_ns
    missing = replace(
        idle,
        part=fact("loss.unrecorded"),
        share=missing_ns / window_ns,
        unknown=drawing or fact("loss.missing"),
        rule="external-wait" if drawing is not None and drawing.code == _FRAMES else "",
    )
    return replace(idle, share=rest), missing


def _gaps(waits: IdleCulprits, total: Account) -> tuple[Fact, ...]:
    """Return that most of the idle time is in few long gaps or in many short ones, else nothing.

    After nearly each of many short operations, gaps count as short that are somewhat longer, too.
    """
    idle_ns = total.components.idle_ns
    bins = waits.histogram  # by length, the longest gaps last
    if sum(own.gaps for own in bins) < _MANY_GAPS:
        return ()  # so few gaps do not tell how idle time is spread
    for count in range(1, len(bins) + 1):
        gaps = sum(own.gaps for own in bins[-count:])
        gaps_ns = sum(own.idle_ns for own in bins[-count:])
        if gaps <= _FEW_GAPS and idle_ns <= 2 * gaps_ns:
            code = "gaps" if gaps > 1 else "gap"
            return (fact(f"loss.{code}", count=gaps, mean_ns=gaps_ns // gaps),)
    short = [own for own in bins if own.to_ns <= _SHORT_NS]
    gaps, gaps_ns = sum(own.gaps for own in short), sum(own.idle_ns for own in short)
    if gaps >= _MANY_GAPS and idle_ns <= 2 * gaps_ns:
        return (fact("loss.short-gaps", count=gaps, mean_ns=gaps_ns // gaps),)
    short = [own for own in bins if own.to_ns <= _LAUNCH_NS]
    gaps, gaps_ns = sum(own.gaps for own in short), sum(own.idle_ns for own in short)
    busy_ns = total.components.window_ns - idle_ns - total.components.start_up_ns
    are_each = gaps >= max(_MANY_GAPS, _NEARLY_EACH * total.activities)
    if not are_each or idle_ns > 2 * gaps_ns or busy_ns >= _SHORT_NS * total.activities:
        return ()
    each_ns = busy_ns // total.activities
    return (fact("loss.launch-bound", count=gaps, mean_ns=gaps_ns // gaps, each_ns=each_ns),)


def _with_largest_cause(idle: Loss, waits: IdleCulprits, total: Account) -> Loss:
    """Return idle time with its largest class and culprit, and what to do about these."""
    if not waits.culprits:
        return replace(idle, details=_gaps(waits, total))
    idle_ns = total.components.idle_ns
    largest = waits.by_class()[0]
    culprit, kind = largest.culprits[0], CLASSES[largest.kind]
    is_alone = culprit.idle_ns == largest.idle_ns
    largest_cause = fact(
        "loss.culprits",
        share=largest.idle_ns / idle_ns,
        kind=kind,
        name=short_name(culprit.label),
        own=culprit.idle_ns / idle_ns if culprit.label and not is_alone else None,
    )
    blocked_ns = sum(culprit.blocked_before_ns for culprit in largest.culprits)
    waited = (fact("loss.after-wait"),) * (2 * blocked_ns > largest.idle_ns)
    is_most, rule = 2 * largest.idle_ns >= idle_ns, largest.kind.replace("_", "-")
    return replace(
        idle,
        gloss=fact("loss.mostly", what=kind) if is_most else None,
        rule=rule if is_most and rule in all_rules().rules else "",  # some classes have no rule
        details=(largest_cause, *waited),
        advice=fact("sentence", text=Fact(largest.remedy)) if largest.remedy else None,
    )


def _copy_rate(measured: Measurement | None) -> Fact | None:
    """Return the rate of copies between CPU and GPU, None if unknown or if launches limit it."""
    copies = [
        row
        for row in (measured.kernels if measured else ())
        if row.path == "host" and row.category.sub == "copy"
    ]
    if measured is None or not copies:
        return None
    first, *others = (row.measured for row in copies)
    moved = sum(others, first)
    small = thresholds()["host-copies"]["small_bytes"] * sum(row.counted for row in copies)
    if (moved.min_bytes or 0) <= small or (rate := moved.bytes_per_ns) is None:
        return None
    link = host_link(measured)
    reached = float(rate / link.bandwidth) if link else None
    return fact("loss.copy-rate", rate=rate, reached=reached, link=link.name if link else None)


def _longest(measured: Measurement | None, components: Components) -> Fact | None:
    """Return the longest uncategorized kernels, None if one of them is a finding of its own.

    A single one has the share of all. If other work hides a part of them, none is named.
    """
    window_ns, times = components.window_ns, Counter[str]()
    for row in measured.kernels if measured else ():
        times[function_of(row.name)] += row.sum_ns if row.category.top == "other" else 0
    longest = times.most_common(_MOST_PARTS)
    if not longest or longest[0][1] >= thresholds()["main-kernel"]["least_share"] * window_ns:
        return None
    if 9 * times.total() > 10 * components.other_ns:
        return None
    is_single = longest[0][1] == times.total()
    parts = (
        fact("loss.kernel", name=short_name(name), share=None if is_single else time_ns / window_ns)
        for name, time_ns in longest
        if time_ns >= _LARGE * window_ns
    )
    return fact("loss.kernels", parts=kernels) if (kernels := tuple(parts)) else None


def _copies_ns(moved: Mapping[str, int]) -> int:
    return sum(ns for what, ns in moved.items() if what.endswith(COPIES))


def _made_of(moved: Mapping[str, int]) -> Fact | None:
    """Return what memory work is: copies or moved pages if these are most, else its large parts.

    Large parts are sorted by time; kernels are one part. None if they are not most of the work.
    """
    total_ns, copies_ns = sum(moved.values()), _copies_ns(moved)
    moves_ns = moved.get(MIGRATIONS, 0) + copies_ns
    moves = ((what, ns) for what, ns in moved.items() if not what.endswith(KERNELS))
    for what, ns in (*moves, (COPIES, copies_ns), (f"{COPIES} and {MIGRATIONS}", moves_ns)):
        if 2 * ns > total_ns:
            return quoted(what) if ns == total_ns else fact("loss.mostly", what=what)
    parts = sorted(moved.items(), key=lambda part: -part[1])
    large = {what: ns for what, ns in parts[:_MOST_PARTS] if ns >= _LARGE * total_ns}
    if 2 * sum(large.values()) <= total_ns:
        return None
    # Kernels of several kinds become one part, such as "norm and elementwise kernels".
    times = {what: ns for what, ns in large.items() if not what.endswith(KERNELS)}
    kernels = [what.removesuffix(KERNELS).strip() for what in large if what.endswith(KERNELS)]
    if kernels:
        *first, last = kernels
        name = f"{', '.join(first)} and {last} {KERNELS}" if first else f"{last} {KERNELS}"
        times[name] = sum(large.values()) - sum(times.values())
    what = ", ".join(sorted(times, key=lambda name: -times[name]))
    return quoted(what) if len(large) == len(moved) else fact("loss.mostly", what=what)


def loss_findings(losses: Iterable[Loss], measured: Measurement, of: Fact) -> Iterator[Finding]:
    """Give a finding per loss that matters and can be judged; `of` says what shares are of."""
    mfus = measured.mfu_range
    is_exact = measured.is_exact and mfus is not None and mfus.least == mfus.most
    mfu = float(mfus.most) if mfus is not None and is_exact else None
    for loss in losses:
        if severity_of(loss.share) is None or loss.unknown:
            continue
        shown = replace(loss, gloss=None) if loss.details else loss  # details say the same
        yield statement(
            f"{LOSS}{loss.name}",
            loss.share,
            details=(*loss.at_peak(of), *loss.details),
            claim=shown.claim(of),
            advice=loss.advice,
            mfu_without=mfu / (1 - loss.share) if mfu is not None and loss.share < 1 else None,
        )

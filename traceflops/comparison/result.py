"""`compare`: what changed from one recording to another, by how much, why, and how sure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from traceflops.analysis.recipe import analyze
from traceflops.analysis.result import Analysis
from traceflops.attribution.marks import numberless
from traceflops.comparison import difference, matching
from traceflops.comparison.counted import KernelChange, kernel_changes, largest_change
from traceflops.comparison.difference import Cause, rounded
from traceflops.comparison.matching import Match, Unlike, matches
from traceflops.comparison.promise import UNJUDGED, Promise, judged_promise
from traceflops.comparison.reasons import Reason, caveats, reasons_of, statement
from traceflops.comparison.side import Side, side_of
from traceflops.comparison.spread import Interval, interval
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact, in_words
from traceflops.table.trace import Trace
from traceflops.units import listed
from traceflops.windows.device_records import NO_DEVICE_RECORDS

_LOST: Final = ("dropped", "repaired", NO_DEVICE_RECORDS)
"""Kinds and codes of notes on what is not in the figures."""
ALLOCATED, EARLIER, UNTOLD = "allocated", "earlier", "untold"
"""Memory allocated by an operator of the recording, before the recording, or unknown which."""
_UNTOLD: Final = (UNTOLD, "", "")


class MemoryPart(Struct, frozen=True):
    """Memory held at the peak that one operator under one module allocated; "" is unknown."""

    kind: str
    op: str
    scope: str
    before_bytes: int
    after_bytes: int

    @property
    def bytes(self) -> int:
        """Return how much more is held."""
        return self.after_bytes - self.before_bytes


class MemoryChange(Struct, frozen=True):
    """The highest peak of a GPU on each side, in bytes; of several GPUs, of that which held most.

    `parts` are those that changed, the largest first; they sum to the difference exactly.
    """

    before_bytes: int
    after_bytes: int
    parts: tuple[MemoryPart, ...]

    @property
    def difference_bytes(self) -> int:
        """Return how much more is held."""
        return self.after_bytes - self.before_bytes


class MfuChange(Struct, frozen=True):
    """MFU on both sides, and how much of its change is due to FLOPs, to time and to the peak."""

    before: Fraction
    after: Fraction
    flops: Fraction
    time: Fraction
    peak: Fraction


class Comparison(Struct, frozen=True, dict=True):
    """What changed from `before` to `after`; times are ns per window: a step, as a rule.

    If the two cannot be compared, `obstacle` says why, and there are no figures. `components` are
    the differences by component, `causes` their causes: both sum to `difference_ns` exactly.
    `interval` holds the difference with a confidence of 95 %; None if a side has one step, or if
    both are one recording. `unlike` is what else differs. `fix` is the rule of the finding that was
    to be fixed, None if it is not said.
    """

    before: Side
    after: Side
    obstacle: Fact | None
    unlike: tuple[Unlike, ...]
    interval: Interval | None
    components: dict[str, int]
    causes: tuple[Cause, ...]
    matches: tuple[Match, ...]
    fix: str | None = None

    @property
    def is_same(self) -> bool:
        """Return whether both are one recording."""
        return matching.is_same(self.before, self.after)

    @property
    def difference_ns(self) -> int:
        """Return how much longer a window takes, in whole ns."""
        return sum(self.components.values())

    @cached_property
    def sentence(self) -> str:
        """Return what changed, by how much, why and how sure, in words."""
        return in_words(*self.caveats, self.statement)

    @cached_property
    def statement(self) -> Fact:
        """Return what changed, by how much, why and how sure."""
        if self.obstacle:
            counted = largest_change(self.kernel_changes)
            return counted or fact("comparison.obstacle", why=self.obstacle)
        if self.is_same:
            return fact("comparison.same-recording")
        return statement(self.before, self.after, self.difference_ns, self.interval, self.reasons)

    @cached_property
    def promise(self) -> Promise | None:
        """Return what the findings before promised, and what came; None if nothing was promised.

        Raises UsageError if `fix` is no finding of the recording before.
        """
        old, new = self.before, self.after
        if self.obstacle or self.is_same:
            return None
        judged = (old, new, self.difference_ns, self.interval, self.fix)
        return judged_promise(judged, [other.what for other in self.unjudged], self.matches)

    @cached_property
    def unjudged(self) -> tuple[Unlike, ...]:
        """Return what differs so that a difference in time says nothing of the program.

        Other shapes with as many FLOPs, as of smaller microbatches, are the same work.
        """
        is_same_work = matching.has_same_flops(self.before, self.after)
        told = UNJUDGED - {matching.SHAPE} if is_same_work else UNJUDGED
        return tuple(other for other in self.unlike if other.what in told)

    @cached_property
    def kernel_changes(self) -> tuple[KernelChange, ...]:
        """Return counted kernels before and after, in the place of steps; else none."""
        return kernel_changes(self.before, self.after)

    @cached_property
    def caveats(self) -> tuple[Fact, ...]:
        """Return caveats: records are incomplete, or the work differs."""
        if self.obstacle or self.is_same:
            return ()
        old, new = self.before, self.after
        shares = matching.shares_in_common(old, new, self.matches, matching.OF_ANY_WORK)
        return caveats(old, new, self.unlike, shares)

    @cached_property
    def reasons(self) -> list[Reason]:
        """Return the reasons worth naming, the largest first."""
        return reasons_of(self.before, self.after, self.difference_ns, self.causes)

    @cached_property
    def mfu(self) -> MfuChange | None:
        """Return the change of MFU and its parts, None where a side has no MFU."""
        old, new = self.before, self.after
        if self.obstacle or not old.mfu or not new.mfu or not old.model_flops:
            return None
        time_ratio = new.mean_ns / old.mean_ns
        work_ratio = matching.work_ratio(old, new) or Fraction(1)  # unknown: as if it were the same
        # MFU is FLOPs / (time x peak): replace one factor after the other by its new value.
        with_new_flops = old.mfu * work_ratio
        with_new_time = with_new_flops / time_ratio
        by_flops, by_time = with_new_flops - old.mfu, with_new_time - with_new_flops
        return MfuChange(old.mfu, new.mfu, by_flops, by_time, new.mfu - with_new_time)

    @cached_property
    def memory(self) -> MemoryChange | None:
        """Return the change of a GPU's peak memory, None where a side has none recorded."""
        return None if self.obstacle else memory_change(self.before, self.after)

    @cached_property
    def per_unit(self) -> tuple[PerUnit, ...]:
        """Return the time per sample and token, of the units that both sides count."""
        if self.obstacle or self.is_same:
            return ()
        return tuple(
            PerUnit(unit, old.count, new.count, old.ns / old.count, new.ns / new.count)
            for unit, old in self.before.counts.items()
            if (new := self.after.counts.get(unit)) is not None
        )

    @property
    def notes(self) -> list[str]:
        """Return what was lost or repaired on one side only, each after the side's name."""
        sides = ((self.before, self.after), (self.after, self.before))
        return [
            f"{side.name}: {text}"
            for side, other in sides
            for kind, code, text in side.notes
            if (kind in _LOST or code in _LOST) and (kind, code, text) not in other.notes
        ]

    def tables(self) -> dict[str, pa.Table]:
        """Return causes, their parts, the steps, what else differs and memory as Arrow tables."""
        causes = [
            {
                **{name: getattr(cause, name) for name in ("component", "kind", "subject", "ns")},
                "low_ns": cause.interval.low_ns if cause.interval is not None else None,
                "high_ns": cause.interval.high_ns if cause.interval is not None else None,
                "is_noise": cause.is_noise,
            }
            for cause in self.causes
        ]
        steps = [
            {"side": name, "step": step, "ns": ns}
            for name, side in (("before", self.before), ("after", self.after))
            # Not strict: a side without windows has no times.
            for step, ns in zip(side.steps or (None,), side.series().tolist(), strict=False)
        ]
        parts = self.memory.parts if self.memory is not None else ()
        rows = {
            "causes": causes,
            "parts": self.part_rows(),
            "steps": steps,
            "unlike": [to_builtins(unlike) for unlike in self.unlike],
            "memory": [{**to_builtins(part), "bytes": part.bytes} for part in parts],
        }
        return {name: pa.Table.from_pylist(rows[name], schema=_SCHEMAS[name]) for name in rows}

    def part_rows(self) -> list[dict[str, Any]]:
        """Return the parts of all causes, a row each, the largest first."""
        parts = [part for cause in self.causes for part in cause.parts]
        return [
            {
                **{name: getattr(part, name) for name in ("component", "kind", "subject", "ns")},
                "before_ns": rounded(part.before_ns),
                "after_ns": rounded(part.after_ns),
                "before_calls": float(part.calls[0]) if part.calls is not None else None,
                "after_calls": float(part.calls[1]) if part.calls is not None else None,
                "before": list(part.names[0]),
                "after": list(part.names[1]),
                "scopes": list(part.scopes),
                "way": part.way,
            }
            for part in sorted(parts, key=lambda part: -abs(part.ns))
        ]

    def to_json(self) -> str:
        """Return it as JSON (schema traceflops.comparison/1)."""
        from traceflops.reports import render_comparison

        return render_comparison(self)

    def save(self, path: str | Path) -> None:
        """Write it as .html, .json or .md, replacing only a file of ours."""
        from traceflops.reports import save_comparison

        save_comparison(self, path)

    def __repr__(self) -> str:
        """Return the sentence."""
        return f"<Comparison: {self.sentence}>"


_TEXTS, _NS = pa.list_(pa.string()), pa.int64()
_WHO = {name: pa.string() for name in ("kind", "op", "scope")}
_BYTES = {name: pa.int64() for name in ("before_bytes", "after_bytes", "bytes")}
_CAUSE = {"component": pa.string(), "kind": pa.string(), "subject": pa.string(), "ns": _NS}
_SCHEMAS = {
    "causes": pa.schema(
        _CAUSE | {"low_ns": pa.float64(), "high_ns": pa.float64(), "is_noise": pa.bool_()}
    ),
    "parts": pa.schema(
        _CAUSE
        | {"before_ns": _NS, "after_ns": _NS}
        | {"before_calls": pa.float64(), "after_calls": pa.float64()}
        | {"before": _TEXTS, "after": _TEXTS, "scopes": _TEXTS, "way": pa.string()}
    ),
    "steps": pa.schema({"side": pa.string(), "step": pa.int64(), "ns": pa.float64()}),
    "unlike": pa.schema({"what": pa.string(), "before": pa.string(), "after": pa.string()}),
    "memory": pa.schema(_WHO | _BYTES),
}


def compare(
    before: Trace | Analysis | Side,
    after: Trace | Analysis | Side,
    names: Sequence[str] | None = None,
    fix: str | None = None,
) -> Comparison:
    """Return what changed from one recording to another, which are called `names`.

        change = tf.compare(tf.read("before.json.gz"), tf.read("after.json.gz"), ("main", "branch"))
        print(change.sentence, change.difference_ns, change.tables()["causes"])
        change.save("change.html")  # or .md, .json

    Each is a trace, an analysis (for other steps or ranks), or a baseline, which
    `traceflops.comparison.report_side.side_of_report` makes of a report's JSON. Times are in ns per
    window: a step, as a rule. Of jobs with different ranks only the common ones are compared; of a
    report, or of summaries, all are. `fix` is the rule of the finding that the change is about
    ("data-input"); `Comparison.promise` checks what it promised. Raises UsageError if `names` are
    not two, or if what is given is none of these.
    """
    given: tuple[object, ...] = (before, after)
    for recording in given:
        if not isinstance(recording, Trace | Analysis | Side):
            type_name = type(recording).__name__
            problem = f"compare takes traces, analyses or sides of reports, not {type_name}"
            raise UsageError(problem, "read a file with tf.read(path)")
    analyzed = [analyze(side) if isinstance(side, Trace) else side for side in (before, after)]
    if names is not None and len(names) != len(analyzed):
        raise UsageError(f"names needs 2 names, not {len(names)}", 'give ("before", "after")')
    labels = names if names is not None else (None, None)
    labelled = [*zip(analyzed, labels, strict=True)]
    old, new = (_side(side, name) for side, name in labelled)
    if common := old.ranks & new.ranks:
        old, new = (_side(side, name, common) for side, name in labelled)
    if old.name == new.name:
        old, new = replace(old, name=f"{old.name} (1)"), replace(new, name=f"{new.name} (2)")

    has_kernels = old.work is not None and new.work is not None
    matched = tuple(matches(old, new)) if has_kernels and old.windows and new.windows else ()
    is_one_recording = matching.is_same(old, new)
    obstacle = matching.obstacle(old, new, matched)
    unlike = () if is_one_recording else matching.unlikeness(old, new, matched)
    if obstacle is not None:
        return Comparison(old, new, obstacle, unlike, None, {}, (), matched, fix)
    components = difference.component_differences(old, new)
    if is_one_recording:
        return Comparison(old, new, None, unlike, None, components, (), matched, fix)
    causes = tuple(difference.causes_of(old, new, difference.parts_of(old, new, matched)))
    spread = interval(old.series(), new.series())
    return Comparison(old, new, None, unlike, spread, components, causes, matched, fix)


def memory_change(before: Side, after: Side) -> MemoryChange | None:
    """Return the change of the peak memory by allocating operator; None where unknown."""
    old, new = before.memory_bytes, after.memory_bytes
    if old is None or new is None:
        return None
    # Bytes [before, after] by kind, operator and scope: "layers.3" and "layers.4" are one scope.
    held: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    if before.held and after.held:
        for index, side in enumerate((before, after)):
            for holder in side.held:
                kind = ALLOCATED if holder.recorded else EARLIER
                held[kind, holder.op, numberless(holder.scope)][index] += holder.bytes
    else:  # a side does not tell who allocated: there is a single part
        held[_UNTOLD] = [old, new]
    parts = [MemoryPart(*who, *sizes) for who, sizes in held.items()]
    changed = [part for part in parts if part.bytes]
    return MemoryChange(old, new, tuple(sorted(changed, key=lambda part: -abs(part.bytes))))


def _side(given: Analysis | Side, name: str | None, common: frozenset[int] = frozenset()) -> Side:
    """Return a side; of an analysis, only the `common` ranks, if any, with a note on the others.

    An analysis of summaries stays whole: its sums are of all ranks.
    """
    if isinstance(given, Side):
        return given if name is None else replace(given, name=name)
    side = side_of(given, name)
    others = side.ranks - common
    if not common or not others or not given.has_events:
        return side
    side = side_of(given, name, common)
    ranks = f"rank{'s' * (len(others) > 1)} {listed(sorted(others))}"
    text = f"{ranks} left out, as the other recording has none"
    return replace(side, notes=(*side.notes, ("dropped", "ranks-left-out", text)))


class PerUnit(Struct, frozen=True):
    """Time per unit, such as a sample; counts are per step of the whole job, or per pass."""

    unit: str
    before_count: Fraction
    after_count: Fraction
    before_ns: Fraction
    after_ns: Fraction

    @property
    def share(self) -> Fraction:
        """Return the change of the time per unit as a share of that before."""
        return self.after_ns / self.before_ns - 1

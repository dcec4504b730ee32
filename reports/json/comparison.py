"""What differs, as JSON: traceflops.comparison/1 of recordings (see comparison.schema.json).

And traceflops.what-if/1 of one recording and what it would be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from traceflops._version import __version__
from traceflops.comparison.counted import KernelChange
from traceflops.comparison.difference import Cause
from traceflops.comparison.held import MemoryChange
from traceflops.comparison.result import Comparison
from traceflops.comparison.side import Side
from traceflops.comparison.spread import Interval
from traceflops.reports.json.measured import share_object
from traceflops.reports.json.report import encode
from traceflops.reports.view.figures import as_float, fields, flop_count
from traceflops.reports.view.texts import words

if TYPE_CHECKING:
    from traceflops.mfu.budget import ShareRange
    from traceflops.replay.critical_path import PathPart
    from traceflops.replay.what_if import Outcome, WhatIf

SCHEMA: Final = "traceflops.comparison/1"
SCHEMA_OF_SEVERAL: Final = "traceflops.comparisons/1"
SCHEMA_OF_WHAT_IF: Final = "traceflops.what-if/1"


def render_comparison(comparison: Comparison) -> str:
    """Return a comparison as one JSON object, indented by two."""
    return encode(comparison_object(comparison))


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain dicts and lists. Times are ns per window."""
    mfu = comparison.mfu
    return {
        "schema": SCHEMA,
        "traceflops_version": __version__,
        "sentence": comparison.sentence,
        "obstacle": words(comparison.obstacle) or None,
        "same": comparison.is_same,
        "before": _side(comparison.before),
        "after": _side(comparison.after),
        "unlike": [asdict(one) for one in comparison.unlike],
        "difference_ns": None if comparison.obstacle else comparison.difference_ns,
        "interval": _interval(comparison.interval),
        "components_ns": comparison.components or None,
        "causes": [_cause(cause) for cause in comparison.causes],
        "parts": comparison.part_rows(),
        "matched": _matched(comparison),
        "counted_kernels": [_counted(change) for change in comparison.kernel_changes],
        "mfu": fields(mfu, "before", "after", "flops", "time", "peak") if mfu is not None else None,
        "per_unit": [
            fields(one, "unit", "before_count", "after_count", "before_ns", "after_ns")
            for one in comparison.per_unit
        ],
        "memory": _memory(comparison.memory) if comparison.memory is not None else None,
    }


def comparisons_object(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return several recordings against one."""
    return {
        "schema": SCHEMA_OF_SEVERAL,
        "traceflops_version": __version__,
        "baseline": comparisons[0].before.name,
        "comparisons": [comparison_object(one) for one in comparisons],
    }


def _side(side: Side) -> dict[str, Any]:
    flops = side.model_flops / len(side.windows) if side.model_flops and side.windows else None
    times = zip(side.steps, side.series().tolist(), strict=False)
    return {
        "name": side.name,
        "windows": len(side.windows),
        "mean_ns": float(side.mean_ns) if side.windows else None,
        "components_ns": side.components.parts(),
        "steps": [{"step": step, "ns": ns} for step, ns in times],
        "ranks": sorted(side.ranks),
        "mfu": as_float(side.mfu),
        **flop_count("model_flops", flops),
        "memory_bytes": side.memory_bytes,
        "facts": dict(side.facts),
        "notes": [{"kind": kind, "code": code, "text": text} for kind, code, text in side.notes],
    }


def _counted(change: KernelChange) -> dict[str, Any]:
    sides = (change.before, change.after)
    before, after = (one.name if one is not None else None for one in sides)
    return {
        "before_name": before,
        "after_name": after,
        "before_ns": change.before_ns,
        "after_ns": change.after_ns,
    }


def _memory(change: MemoryChange) -> dict[str, Any]:
    return {
        **fields(change, "before_bytes", "after_bytes", "difference_bytes"),
        "parts": [asdict(part) | {"bytes": part.bytes} for part in change.parts],
    }


def _interval(found: Interval | None) -> dict[str, float] | None:
    return fields(found, "low_ns", "high_ns") if found is not None else None


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        **fields(cause, "component", "kind", "subject", "ns"),
        "interval": _interval(cause.interval),
        "within_spread": cause.is_noise,
    }


def _matched(comparison: Comparison) -> list[dict[str, Any]]:
    """Return how much of the charged time was matched, and by what."""
    before, after, count = Counter[str](), Counter[str](), Counter[str]()
    for match in comparison.matches:
        count[match.way] += 1
        before[match.way] += sum(one.charged_ns for one in match.before)
        after[match.way] += sum(one.charged_ns for one in match.after)
    return [
        {
            "way": way or None,
            "matches": number,
            "before_ns": before[way],
            "after_ns": after[way],
        }
        for way, number in count.items()
    ]


def what_if_object(answer: WhatIf) -> dict[str, Any]:
    """Return an answer as JSON has it."""
    return {
        "schema": SCHEMA_OF_WHAT_IF,
        "windows": answer.together.windows,
        "before_ns": answer.together.before_ns,
        **_mfu(answer.together.mfu),
        "critical": _path_parts(answer.critical),
        "ranks": [{"rank": rank, "ns": ns} for rank, ns in answer.ranks.items()],
        "alone": [_outcome(one) for one in answer.alone],
        "together": _outcome(answer.together),
        "refused": [{"edit": edit, "reason": why} for edit, why in answer.refused.items()],
    }


def _mfu(known: ShareRange | None) -> dict[str, Any]:
    exact = known.least if known is not None and known.least == known.most else None
    return share_object("mfu", exact, known)


def _outcome(one: Outcome) -> dict[str, Any]:
    mfu = _mfu(one.mfu_after(one.least_ns, one.most_ns))
    point = None if one.after_ns is None else one.mfu_after(one.after_ns, one.after_ns)
    return {
        "edits": list(one.edits),
        "after_ns": {"low": one.least_ns, "point": one.after_ns, "high": one.most_ns},
        "gain_ns": {
            "low": one.before_ns - one.most_ns,
            "point": one.before_ns - one.after_ns if one.after_ns is not None else None,
            "high": one.before_ns - one.least_ns,
        },
        "mfu": {
            "low": mfu["mfu_at_least"],
            "point": _mfu(point)["mfu"],
            "high": mfu["mfu_at_most"],
        },
        "doubts": list(map(words, one.doubts)),
        "critical": _path_parts(one.critical),
    }


def _path_parts(parts: Iterable[PathPart]) -> list[dict[str, Any]]:
    return [{"component": one.component, "name": one.name, "ns": one.ns} for one in parts]

"""Comparisons as JSON (fields: comparison.toml).

traceflops.comparison/1 compares two recordings, traceflops.comparisons/1 several with one baseline,
and traceflops.what-if/1 a recording with its replay after edits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from msgspec import to_builtins

from traceflops._version import __version__
from traceflops.comparison.promise import Promise
from traceflops.comparison.result import Comparison
from traceflops.comparison.side import Side
from traceflops.comparison.spread import Interval
from traceflops.mfu.budget import ShareRange
from traceflops.replay.critical_path import PathPart
from traceflops.replay.what_if import Outcome, WhatIf
from traceflops.reports.json.brief import Some
from traceflops.reports.json.measured import share_object
from traceflops.reports.json.report import encode
from traceflops.reports.view.figures import as_float, fields, flop_count
from traceflops.reports.view.texts import words

SCHEMA: Final = "traceflops.comparison/1"
SCHEMA_OF_SEVERAL: Final = "traceflops.comparisons/1"
SCHEMA_OF_WHAT_IF: Final = "traceflops.what-if/1"
_FEW: Final = 6
_OF_A_PART: Final = ("component", "name", "ns")


def render_comparison(comparison: Comparison) -> str:
    """Return a comparison as one JSON object, indented by two."""
    return encode(comparison_object(comparison))


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain dicts and lists. Times are ns per window."""
    mfu, memory = comparison.mfu, comparison.memory
    # By the way in which kernels were matched: the number of matches, and the time of each side.
    matches, before_ns, after_ns = Counter[str](), Counter[str](), Counter[str]()
    for match in comparison.matches:
        matches[match.way] += 1
        before_ns[match.way] += sum(kernel.charged_ns for kernel in match.before)
        after_ns[match.way] += sum(kernel.charged_ns for kernel in match.after)
    return {
        "schema": SCHEMA,
        "traceflops_version": __version__,
        "sentence": comparison.sentence,
        "obstacle": words(comparison.obstacle) or None,
        "same": comparison.is_same,
        "before": _side(comparison.before),
        "after": _side(comparison.after),
        "unlike": list(map(to_builtins, comparison.unlike)),
        "difference_ns": None if comparison.obstacle else comparison.difference_ns,
        "interval": _interval(comparison.interval),
        "components_ns": comparison.components or None,
        "causes": [
            {
                **fields(cause, "component", "kind", "subject", "ns"),
                "interval": _interval(cause.interval),
                "within_spread": cause.is_noise,
            }
            for cause in comparison.causes
        ],
        "parts": comparison.part_rows(),
        "matched": [
            {
                "way": way or None,
                "matches": number,
                "before_ns": before_ns[way],
                "after_ns": after_ns[way],
            }
            for way, number in matches.items()
        ],
        "counted_kernels": [
            {
                "before_name": change.before.name if change.before is not None else None,
                "after_name": change.after.name if change.after is not None else None,
                **fields(change, "before_ns", "after_ns"),
            }
            for change in comparison.kernel_changes
        ],
        "promise": _promise(comparison.promise),
        "mfu": fields(mfu, "before", "after", "flops", "time", "peak") if mfu is not None else None,
        "per_unit": [
            fields(unit, "unit", "before_count", "after_count", "before_ns", "after_ns")
            for unit in comparison.per_unit
        ],
        "memory": memory
        and {
            **fields(memory, "before_bytes", "after_bytes", "difference_bytes"),
            "parts": [to_builtins(part) | {"bytes": part.bytes} for part in memory.parts],
        },
    }


def comparisons_object(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the comparisons of several recordings with one baseline."""
    return {
        "schema": SCHEMA_OF_SEVERAL,
        "traceflops_version": __version__,
        "baseline": comparisons[0].before.name,
        "comparisons": list(map(comparison_object, comparisons)),
    }


def _side(side: Side) -> dict[str, Any]:
    """Return one side of a comparison; windows that are no steps have a mean, but no list."""
    flops = side.model_flops / len(side.windows) if side.model_flops and side.windows else None
    are_steps = all(window.step is not None for window in side.windows)
    times = zip(side.steps, side.series().tolist(), strict=True) if are_steps else ()
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


def _promise(promise: Promise | None) -> dict[str, Any] | None:
    if promise is None:
        return None
    return {
        **fields(promise, "outcome", "low_ns", "high_ns", "gained_ns"),
        "sentence": promise.sentence,
        "findings": [finding.rule for finding in promise.findings],
        "interval": _interval(promise.interval),
        "next": promise.next.rule if promise.next is not None else None,
    }


def _interval(interval: Interval | None) -> dict[str, float] | None:
    return fields(interval, "low_ns", "high_ns") if interval is not None else None


def what_if_object(answer: WhatIf, *, brief: bool = False) -> dict[str, Any]:
    """Return the gains of edits of a recording, each alone and all together, in ns per window.

    A `brief` answer has only the longest parts of the critical paths.
    """
    together = answer.together
    return {
        "schema": SCHEMA_OF_WHAT_IF,
        **fields(together, "windows", "before_ns"),
        **_mfu(together.mfu),
        "critical": _path(answer.critical, brief),
        "ranks": [{"rank": rank, "ns": ns} for rank, ns in answer.ranks.items()],
        "alone": [_outcome(outcome, brief) for outcome in answer.alone],
        "together": _outcome(together, brief),
        "refused": [{"edit": edit, "reason": why} for edit, why in answer.refused.items()],
    }


def _mfu(bounds: ShareRange | None) -> dict[str, Any]:
    """Return an MFU and its bounds; the MFU itself is null if the bounds differ."""
    exact = bounds.least if bounds is not None and bounds.least == bounds.most else None
    return share_object("mfu", exact, bounds)


def _path(critical: Sequence[PathPart], brief: bool) -> Any:
    parts = [fields(part, *_OF_A_PART) for part in critical]
    return Some(parts[:_FEW], len(parts)) if brief else parts


def _outcome(outcome: Outcome, brief: bool) -> dict[str, Any]:
    """Return time, gain and MFU after edits, each as a range and, if known, a single value."""
    least_ns, after_ns, most_ns = outcome.least_ns, outcome.after_ns, outcome.most_ns
    mfu = _mfu(outcome.mfu_after(least_ns, most_ns))
    point = None if after_ns is None else outcome.mfu_after(after_ns, after_ns)
    return {
        "edits": list(outcome.edits),
        "after_ns": {"low": least_ns, "point": after_ns, "high": most_ns},
        "gain_ns": {
            "low": outcome.before_ns - most_ns,
            "point": outcome.before_ns - after_ns if after_ns is not None else None,
            "high": outcome.before_ns - least_ns,
        },
        "mfu": {
            "low": mfu["mfu_at_least"],
            "point": _mfu(point)["mfu"],
            "high": mfu["mfu_at_most"],
        },
        "doubts": list(map(words, outcome.doubts)),
        "critical": _path(outcome.critical, brief),
    }

"""The report as JSON: traceflops.report/1 (fields: report.toml and docs/json.md)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import msgspec
from msgspec import to_builtins

from traceflops._version import __version__
from traceflops.analysis.result import Analysis
from traceflops.characters import visible_json
from traceflops.facts import Fact
from traceflops.findings.finding import Finding, Gain, ids_of
from traceflops.memory.usage import Series, holders, memory_use
from traceflops.reports.json import devices
from traceflops.reports.json.brief import has_room
from traceflops.reports.json.measured import kernel_objects, measured_object, sampled_objects
from traceflops.reports.view import step_split
from traceflops.reports.view.critical import critical_object
from traceflops.reports.view.figures import fields
from traceflops.reports.view.findings import headline, title_sentence
from traceflops.reports.view.texts import words
from traceflops.reports.view.wording import steps_used
from traceflops.windows.prepared import Prepared

SCHEMA: Final = "traceflops.report/1"
FINDINGS_SCHEMA: Final = "traceflops.findings/1"
_MOST_FILES: Final = 6
_SHARES: Final = {
    "module_share": ("module", "backward_module"),
    "annotation_share": ("annotation", "compiled_region", "communication"),
    "op_share": ("op", "gradient_accumulation"),
    "none_share": ("none",),
}
"""Rules of attribution, by the field for their share of the operations."""
_OF_A_PHASE: Final = ("verdict", "launches", "starved_share", "lead_median_ns")
_OF_A_PASS_KIND: Final = (
    *("kind", "passes", "p50_ns", "p99_ns", "tokens", "tokens_per_s", "cycle_ns", "followed"),
    *("communication_ns", "exposed_ns"),
)


def render_json(analysis: Analysis) -> str:
    """Return the report as one JSON object, indented by two."""
    return encode(report_object(analysis))


def encode(value: dict[str, Any]) -> str:
    """Return JSON, indented by two; invisible characters are escaped, lone surrogates are `?`."""
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_encodable(value))
    return visible_json(msgspec.json.format(text, indent=2).decode())


def _encodable(value: Any) -> Any:
    """Return a JSON value in which `?` stands for each character that UTF-8 cannot encode."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value


def findings_object(analysis: Analysis) -> dict[str, Any]:
    """Return the first findings in words, as many as fit in MOST_BYTES of JSON."""
    findings = finding_objects(analysis)
    for finding in findings:
        del finding["facts"]  # its words say the same, and there is little room
    scope = [steps_used(analysis), *step_split.scope(analysis)]
    for kept in range(len(findings), -1, -1):
        content = {
            "schema": FINDINGS_SCHEMA,
            "traceflops_version": __version__,
            "files": [file.name for file in analysis.source.files[:_MOST_FILES]],
            "verdict": title_sentence(analysis),
            "scope": list(filter(None, scope)),
            "findings": findings[:kept],
            "left_out": len(findings) - kept,
        }
        if has_room(content):
            break
    return content


def finding_objects(analysis: Analysis) -> list[dict[str, Any]]:
    """Return all findings, each with its id."""
    pairs = zip(ids_of(analysis.findings), analysis.findings, strict=True)
    return [{"id": id_, **finding_object(finding)} for id_, finding in pairs]


def finding_object(finding: Finding) -> dict[str, Any]:
    """Return a finding: its fields, its words, and the facts from which the words were made."""
    confidence, left_out = finding.confidence, ("name", "claim", "details", "advice", "confidence")
    return {
        **{
            name: to_builtins(getattr(finding, name))
            for name in finding.__struct_fields__
            if name not in left_out
        },
        **fields(finding, "title", "sentence", "remedy"),
        "gain": finding.gain and gain_object(finding.gain),
        "confidence": confidence
        and {"level": confidence.level, "reasons": list(map(words, confidence.reasons))},
        "facts": [_plain(fact) for fact in (finding.claim, *finding.details)],
    }


def gain_object(gain: Gain) -> dict[str, Any]:
    """Return a gain in ns, as a range and, if known, a point."""
    return fields(gain, "low_ns", "high_ns", "point_ns", "may_be_more", "most_ns", "further_ns")


def _plain(value: Any) -> Any:
    """Return a fact, or a value of a fact, as plain JSON."""
    if isinstance(value, Fact):
        values = {name: _plain(inner) for name, inner in value.values.items()}
        return {"code": value.code, "values": values}
    if isinstance(value, tuple):
        return list(map(_plain, value))
    return float(value) if isinstance(value, Fraction) else value


def report_object(analysis: Analysis) -> dict[str, Any]:
    """Return the report as plain dicts and lists. Times are ns, shares 0 to 1, unknown is null."""
    first, untimed, counts = headline(analysis), analysis.untimed, analysis.step_counts
    window_ns = analysis.components.window_ns
    return {
        **report_head(analysis, SCHEMA),
        "headline": {"class": first.cls, **fields(first, "code", "sentence", "finding")},
        "verdict": {
            **fields(analysis.verdict, "loss", "share"),
            "sentence": title_sentence(analysis),
        },
        "findings": finding_objects(analysis),
        "critical_path": critical_object(analysis),
        "total": devices.account_object(analysis.total),
        "utilisation": measured_object(analysis.measured),
        "devices": [devices.device_object(device) for device in analysis.devices],
        "categories": analysis.categories.to_pylist(),
        "kernels": kernel_objects(analysis),
        "collectives": [
            {
                **to_builtins(row),
                "share": row.sum_ns / window_ns if window_ns else None,
                "bytes_per_ns": row.bytes_per_ns,
            }
            for row in analysis.collectives
        ],
        "memory": _memory(analysis.prepared),
        "gpu_samples": list(sampled_objects(analysis)),
        "untimed": untimed
        and {
            "rows": untimed.rows.to_pylist(),
            "categories": untimed.categories.to_pylist(),
            "counted": untimed.counted.to_pylist(),
            **fields(untimed, "counters", "record"),
        },
        "jobs": [
            {
                **fields(job, "number", "format", "files", "ranks", "chosen", "devices"),
                "total": devices.account_object(job.total) if job.total is not None else None,
                "verdict": job.verdict,
            }
            for job in analysis.jobs
        ],
        **_host(analysis),
        "ranks": devices.ranks_object(analysis.ranks) if analysis.ranks.are_several else None,
        "step_counts": counts if any(counts.values()) else None,
        "passes": list(map(to_builtins, analysis.serving.passes)),
        "pass_kinds": [
            {
                **fields(kind, *_OF_A_PASS_KIND),
                "idle_between_ns": kind.between_ns,
                "idle_between": devices.culprits_object(kind.waits, kind.between_ns),
            }
            for kind in analysis.serving.kinds
        ],
        **_attribution(analysis),
    }


def report_head(analysis: Analysis, schema: str) -> dict[str, Any]:
    """Return the first fields of every object about a trace: source, selection, steps, notes."""
    source, selection, spread = analysis.source, analysis.selection, analysis.spread
    return {
        "schema": schema,
        "traceflops_version": __version__,
        "source": {
            **fields(source, "format", "tool"),
            "files": [fields(file, "name", "bytes", "text_bytes") for file in source.files],
            "origin_unix_ns": source.origin_unix_ns,
            "facts": dict(source.facts),
            "event_counts": dict(source.event_counts),
        },
        "selection": {
            "steps": selection.steps,
            "ranks": sorted(selection.ranks) if selection.ranks is not None else None,
            "gpus": sorted(selection.gpus) if selection.gpus is not None else None,
            **fields(selection, "from_ns", "to_ns", "step_mark", "run", "job"),
        },
        "steps": {
            **to_builtins(analysis.steps),
            "times": spread
            and {
                **fields(spread, "mean_ns", "p95_ns"),
                "longest": spread.longest.step,
                "longest_ns": spread.longest.ns,
                "beyond_median_ns": spread.beyond_median_ns,
            },
        },
        "notes": [note.as_dict() for note in analysis.notes],
    }


def _memory(prepared: Prepared) -> list[dict[str, Any]]:
    """Return memory over time and at its peak, per device and CPU process."""
    return [
        {
            **fields(use, "rank", "file", "device", "on_host", "is_total", "device_bytes"),
            "share_of_device": use.share_of_device,
            "spare_at_peak_bytes": use.unused_at_peak,
            "largest_free_bytes": use.largest_free,
            "allocated": _series(use.allocated),
            "reserved": _series(use.reserved) if use.reserved is not None else None,
            "at_peak": list(map(to_builtins, holders(prepared, use))),
        }
        for use in memory_use(prepared)
    ]


def _series(series: Series) -> dict[str, Any]:
    """Return memory over time: its extremes, and the bytes of each step."""
    return {
        "changes": series.curve.changes,
        "first_bytes": series.first,
        "last_bytes": series.last,
        "peak_bytes": series.peak,
        **fields(series, "peak_ns", "peak_step"),
        "growth_bytes": series.growth,
        "steps": [
            {"step": step.step, "most_bytes": step.most, "at_end_bytes": step.at_end}
            for step in series.steps
        ],
    }


def _host(analysis: Analysis) -> dict[str, Any]:
    """Return what the CPU did: during idle time, launches, copies and waits, operators."""
    pace, launches = analysis.host_bound, analysis.launches
    return {
        "idle": devices.culprits_object(analysis.idle, analysis.components.idle_ns),
        "host_bound": pace
        and {
            **fields(pace, *_OF_A_PHASE, "lead_p10_ns", "floor_ns"),
            "phases": [
                {"phase": name, **fields(phase, *_OF_A_PHASE)}
                for name, phase in pace.phases.items()
            ],
        },
        "launches": launches
        and {
            "short_ns": launches.short_ns,
            "total": to_builtins(launches.total),
            "devices": [
                {"device": device, **to_builtins(sums)} for device, sums in launches.devices.items()
            ],
        },
        "host_operators": list(map(to_builtins, analysis.host_operators)),
        "memory_operations": list(map(to_builtins, analysis.memory_operations)),
        "synchronisations": list(map(to_builtins, analysis.synchronisations)),
        "outside": None if analysis.outside is None else to_builtins(analysis.outside),
    }


def _attribution(analysis: Analysis) -> dict[str, Any]:
    """Return the share of work attributed by each rule, and the work of each module."""
    work = analysis.attribution
    if not work:
        return {"attribution": None, "modules": []}
    by_rule = {
        rule: {**to_builtins(attributed), "share": work.share(rule)}
        for rule, attributed in work.by_rule.items()
    }
    return {
        "attribution": {name: work.share(*rules) for name, rules in _SHARES.items()}
        | {"by_rule": by_rule},
        "modules": list(map(to_builtins, work.modules)),
    }

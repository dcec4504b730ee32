"""The report as JSON, schema traceflops.report/1 (see report.schema.json and docs/json.md)."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import msgspec

from traceflops._version import __version__
from traceflops.analysis.result import Analysis
from traceflops.attribution.device_work import DeviceWork
from traceflops.characters import visible_json
from traceflops.devices.jobs import JobReport
from traceflops.facts import Fact, Value
from traceflops.memory.usage import Series, holders, memory_use
from traceflops.mfu.checked.trace_description import counts_of_step
from traceflops.ranks.collectives import Collective
from traceflops.reports.json.measured import kernel_objects, measured_object, sampled_objects
from traceflops.reports.view.critical import critical_object
from traceflops.reports.view.figures import fields
from traceflops.reports.view.findings import headline, title_sentence
from traceflops.reports.view.texts import words
from traceflops.table.trace import Source
from traceflops.timeline.records import Account, Gap, WholeSpan
from traceflops.windows.records import DeviceReport
from traceflops.windows.selection import Selection

if TYPE_CHECKING:
    from traceflops.attribution.culprits import IdleCulprits
    from traceflops.attribution.launch_lead import HostBound, Launches
    from traceflops.findings.finding import Finding
    from traceflops.mfu.serving_passes import PassKind
    from traceflops.ranks.who_waits import RankReport
    from traceflops.timeline.aggregates import Untimed
    from traceflops.windows.prepared import Prepared

SCHEMA: Final = "traceflops.report/1"
FINDINGS_SCHEMA: Final = "traceflops.findings/1"
MOST_BYTES: Final = 8_192
"""So long is the JSON of findings on their own, so that programs can hand all of it on."""
_OF_A_DEVICE: Final = (
    *("device", "label", "rank", "ranks", "file", "type", "local_id", "product", "memory_bytes"),
    *("sm_count", "architecture", "partition"),
)
_OF_A_SPAN: Final = (
    *("start_ns", "end_ns", "span_ns", "busy_ns", "idle_ns", "sum_ns", "streams", "zero_length"),
    *("same_stream_overlaps", "same_stream_overlap_max_ns"),
)
_OF_A_WINDOW: Final = (
    *("role", "step", "start_ns", "end_ns"),
    *("used", "left_out", "launched", "unfinished"),
)
_SHARES: Final = {
    "module_share": ("module", "backward_module"),
    "annotation_share": ("annotation", "compiled_region", "communication"),
    "op_share": ("op", "gradient_accumulation"),
    "none_share": ("none",),
}
_OF_A_GAP: Final = ("start_ns", "dur_ns", "step", "before_step", "after", "before", "call", "op")
_OF_A_PHASE: Final = ("verdict", "launches", "starved_share", "lead_median_ns")
_OF_A_PASS_KIND: Final = (
    *("kind", "passes", "p50_ns", "p99_ns", "tokens", "tokens_per_s", "cycle_ns", "followed"),
    *("communication_ns", "exposed_ns"),
)
_MOST_COLLECTIVES: Final = 20_000
"""So many collectives are listed, those with most waiting."""


def render_json(analysis: Analysis) -> str:
    """Return the report as one JSON object, indented by two."""
    return encode(report_object(analysis))


def encode(value: dict[str, Any]) -> str:
    """Return JSON, indented by two; hidden characters are escapes, half a surrogate pair is ?."""
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_encodable(value))
    return visible_json(msgspec.json.format(text, indent=2).decode())


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value


def findings_object(analysis: Analysis) -> dict[str, Any]:
    """Return the findings on their own in at most MOST_BYTES of JSON; `left_out` counts the rest.

    Those left out are the last: those of least gain and share.
    """
    found = [_without_facts(finding_object(finding)) for finding in analysis.findings]
    for kept in range(len(found), -1, -1):
        content = {
            "schema": FINDINGS_SCHEMA,
            "traceflops_version": __version__,
            "verdict": title_sentence(analysis),
            "findings": found[:kept],
            "left_out": len(found) - kept,
        }
        if len(encode(content).encode()) <= MOST_BYTES:
            break
    return content


def finding_object(finding: Finding) -> dict[str, Any]:
    """Return a finding in words, and the facts that they are of."""
    sure, left_out = finding.confidence, {"name", "claim", "details", "advice", "confidence"}
    own = {name: value for name, value in asdict(finding).items() if name not in left_out}
    level = sure and {"level": sure.level, "reasons": list(map(words, sure.reasons))}
    texts = {"title": finding.title, "sentence": finding.sentence, "remedy": finding.remedy}
    facts = [_fact(fact) for fact in (finding.claim, *finding.details)]
    return own | texts | {"confidence": level, "facts": facts}


def _without_facts(finding: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in finding.items() if name != "facts"}


def _fact(fact: Fact) -> dict[str, Any]:
    return {"code": fact.code, "values": {name: _value(one) for name, one in fact.values.items()}}


def _value(value: Value) -> Any:
    if isinstance(value, tuple):
        return list(map(_value, value))
    if isinstance(value, Fact):
        return _fact(value)
    return float(value) if isinstance(value, Fraction) else value


def _headline(analysis: Analysis) -> dict[str, Any]:
    first = headline(analysis)
    return {
        "class": first.cls,
        "code": first.code,
        "sentence": first.sentence,
        "finding": first.finding,
    }


def report_object(analysis: Analysis) -> dict[str, Any]:
    """Return the report as plain dicts and lists. Times are ns, shares 0 to 1, unknown is null."""
    return {
        **report_head(analysis, SCHEMA),
        "headline": _headline(analysis),
        "verdict": fields(analysis.verdict, "loss", "share")
        | {"sentence": title_sentence(analysis)},
        "findings": [finding_object(finding) for finding in analysis.findings],
        "critical_path": critical_object(analysis),
        "total": _account(analysis.total),
        "utilisation": measured_object(analysis.measured),
        "devices": [_device(device) for device in analysis.devices],
        "categories": analysis.categories.to_pylist(),
        "kernels": kernel_objects(analysis),
        "collectives": [
            _collective(row, analysis.components.window_ns) for row in analysis.collectives
        ],
        "memory": _memories(analysis.prepared) if analysis.prepared else [],
        "gpu_samples": sampled_objects(analysis),
        "untimed": _untimed(analysis.untimed) if analysis.untimed is not None else None,
        "jobs": [_job(job) for job in analysis.jobs],
        "idle": _culprits(analysis.idle, analysis.components.idle_ns),
        "host_bound": _host_bound(analysis.host_bound) if analysis.host_bound else None,
        "launches": _launches(analysis.launches) if analysis.launches else None,
        "host_operators": [asdict(one) for one in analysis.host_operators],
        "memory_operations": [asdict(one) for one in analysis.memory_operations],
        "synchronisations": [asdict(one) for one in analysis.synchronisations],
        "ranks": ranks_object(analysis.ranks) if analysis.ranks is not None else None,
        "step_counts": _step_counts(analysis),
        "passes": [asdict(one) for one in analysis.serving.passes],
        "pass_kinds": [_pass_kind(one) for one in analysis.serving.kinds],
        "attribution": _attribution(analysis.attribution) if analysis.attribution else None,
        "modules": list(map(asdict, analysis.attribution.modules if analysis.attribution else ())),
    }


def _step_counts(analysis: Analysis) -> dict[str, int | None] | None:
    said = counts_of_step(analysis.prepared) if analysis.prepared is not None else {}
    return said if any(said.values()) else None


def _host_bound(pace: HostBound) -> dict[str, Any]:
    """Return whether the CPU is fast enough, in all and by phase of the step."""
    return {
        **fields(pace, *_OF_A_PHASE, "lead_p10_ns", "floor_ns"),
        "phases": [
            {"phase": name, **fields(one, *_OF_A_PHASE)} for name, one in pace.phases.items()
        ],
    }


def _launches(found: Launches) -> dict[str, Any]:
    """Return the launches of all devices and of each."""
    return {
        "short_ns": found.short_ns,
        "total": asdict(found.total),
        "devices": [{"device": at, **asdict(one)} for at, one in found.devices.items()],
    }


def _pass_kind(one: PassKind) -> dict[str, Any]:
    """Return what there is to say of the passes of one kind."""
    return {
        **fields(one, *_OF_A_PASS_KIND),
        "idle_between_ns": one.between_ns,
        "idle_between": _culprits(one.waits, one.between_ns),
    }


def _attribution(work: DeviceWork) -> dict[str, Any]:
    """Return how much of the work each rule attributes."""
    return {
        **{name: work.share(*rules) for name, rules in _SHARES.items()},
        "by_rule": {
            rule: {**asdict(found), "share": work.share(rule)}
            for rule, found in work.by_rule.items()
        },
    }


def _culprits(idle: IdleCulprits, idle_ns: int) -> dict[str, Any]:
    return {
        "culprits": [
            {
                "class": culprit.kind,
                **fields(culprit, "label", "idle_ns"),
                "share": culprit.idle_ns / idle_ns,
                **fields(culprit, "evidence", "gaps", "blocked_before_ns"),
            }
            for culprit in idle.culprits
        ],
        "unexplained_ns": idle.unexplained_ns,
        "histogram": [asdict(lengths) for lengths in idle.histogram],
    }


def report_head(analysis: Analysis, schema: str) -> dict[str, Any]:
    """Return what every object about a trace begins with: what it is of."""
    return {
        "schema": schema,
        "traceflops_version": __version__,
        "source": _source(analysis.source),
        "selection": _selection(analysis.selection),
        "steps": {**asdict(analysis.steps), "times": _times(analysis)},
        "notes": [note.as_dict() for note in analysis.notes],
    }


def _times(analysis: Analysis) -> dict[str, Any] | None:
    """Return how the times of the steps used differ."""
    if (spread := analysis.spread) is None:
        return None
    return {
        **fields(spread, "mean_ns", "p95_ns"),
        "longest": spread.longest.step,
        "longest_ns": spread.longest.ns,
        "beyond_median_ns": spread.beyond_median_ns,
    }


def _source(source: Source) -> dict[str, Any]:
    return {
        **fields(source, "format", "tool"),
        "files": [fields(file, "name", "bytes", "text_bytes") for file in source.files],
        "origin_unix_ns": source.origin_unix_ns,
        "facts": dict(source.facts),
        "event_counts": dict(source.event_counts),
    }


def _selection(selection: Selection) -> dict[str, Any]:
    return {
        "steps": selection.steps,
        "ranks": sorted(selection.ranks) if selection.ranks is not None else None,
        "gpus": sorted(selection.gpus) if selection.gpus is not None else None,
        **fields(selection, "from_ns", "to_ns", "step_mark", "run", "job"),
    }


def _job(job: JobReport) -> dict[str, Any]:
    return {
        **fields(job, "number", "format", "files", "ranks", "chosen", "devices"),
        "total": _account(job.total) if job.total is not None else None,
        "verdict": job.verdict,
    }


def _collective(row: Collective, device_time_ns: int) -> dict[str, Any]:
    return {
        **asdict(row),
        "share": row.sum_ns / device_time_ns if device_time_ns else None,
        "bytes_per_ns": row.bytes_per_ns,
    }


def _account(account: Account) -> dict[str, Any]:
    return {
        "window_ns": account.components.window_ns,
        "components_ns": account.components.parts(),
        "hidden_communication_ns": account.hidden_communication_ns,
        "idle_causes_ns": account.idle_causes.parts(),
        "launch_latency_parts_ns": account.idle_causes.launch_latency_parts(),
        **fields(account, "activities", "launched_activities", "launches"),
        "activities_per_launch": account.activities_per_launch,
    }


def _device(device: DeviceReport) -> dict[str, Any]:
    return {
        **fields(device, *_OF_A_DEVICE),
        "chosen": _account(device.chosen),
        "whole": _whole(device.whole),
        "windows": [
            {**fields(window, *_OF_A_WINDOW), **_account(window.account)}
            for window in device.windows
        ],
        "gaps": [_gap(gap) for gap in device.gaps],
    }


def _whole(whole: WholeSpan) -> dict[str, Any]:
    return {
        **fields(whole, *_OF_A_SPAN),
        "kinds": {kind: asdict(sums) for kind, sums in whole.kinds.items()},
        "categories": {name: asdict(sums) for name, sums in whole.categories.items()},
        "communication": {
            **asdict(whole.communication),
            "exposed_ns": whole.exposed_communication_ns,
            "hidden_ns": whole.hidden_communication_ns,
        },
        "copies": {direction: asdict(copies) for direction, copies in whole.copies.items()},
        "unlinked": whole.unlinked,
        "account": _account(whole.account),
    }


def _gap(gap: Gap) -> dict[str, Any]:
    return {
        **fields(gap, *_OF_A_GAP),
        "causes_ns": gap.causes.parts(),
        "launch_latency_parts_ns": gap.causes.launch_latency_parts(),
        "waited_for": gap.waited_for,
        "culprits": [
            {"class": one.kind, **fields(one, "label", "idle_ns")} for one in gap.culprits
        ],
        "unexplained_ns": gap.unexplained_ns,
    }


def _untimed(untimed: Untimed) -> dict[str, Any]:
    return {
        "rows": untimed.rows.to_pylist(),
        "categories": untimed.categories.to_pylist(),
        "counted": untimed.counted.to_pylist(),
        **fields(untimed, "counters", "record"),
    }


def _memories(prepared: Prepared) -> list[dict[str, Any]]:
    return [
        {
            **fields(one, "rank", "file", "device", "on_host", "is_total", "device_bytes"),
            "share_of_device": one.share_of_device,
            "spare_at_peak_bytes": one.unused_at_peak,
            "largest_free_bytes": one.largest_free,
            "allocated": _series(one.allocated),
            "reserved": _series(one.reserved) if one.reserved is not None else None,
            "at_peak": [asdict(held) for held in holders(prepared, one)],
        }
        for one in memory_use(prepared)
    ]


def _series(one: Series) -> dict[str, Any]:
    return {
        "changes": one.curve.changes,
        "first_bytes": one.first,
        "last_bytes": one.last,
        "peak_bytes": one.peak,
        "peak_ns": one.peak_ns,
        "peak_step": one.peak_step,
        "growth_bytes": one.growth,
        "steps": [
            {"step": each.step, "most_bytes": each.most, "at_end_bytes": each.at_end}
            for each in one.steps
        ],
    }


def ranks_object(ranks: RankReport) -> dict[str, Any]:
    """Return what there is to say of the ranks of a job."""
    found = sorted(ranks.collectives(), key=lambda one: -one.wait_ns)[:_MOST_COLLECTIVES]
    return {
        "alignment": _alignment(ranks),
        "matched": ranks.matches.count,
        "unmatched": ranks.unmatched,
        "impossible": ranks.matches.impossible,
        "partial": ranks.partial,
        "collectives": [asdict(one) for one in sorted(found, key=lambda one: one.index)],
        "waits": [asdict(one) for one in ranks.by_rank()],
        "rates": [asdict(one) for one in ranks.rates()],
        "pipeline": asdict(ranks.pipeline) if ranks.pipeline is not None else None,
        "experts": [asdict(one) for one in ranks.experts()] or None,
        "slowdown": _slowdown(ranks),
        "culprit": asdict(ranks.slow) if ranks.slow is not None else None,
    }


def _alignment(ranks: RankReport) -> dict[str, Any]:
    found = ranks.alignment
    bounds = [column.tolist() for column in (found.earliest_ns, found.latest_ns)]
    if found.residual_p95_ns is None:
        bounds = [[None] * len(ranks.records.ranks)] * 2
    of_ranks = zip(ranks.records.ranks, found.offset_ns.tolist(), *bounds, strict=True)
    return {
        "basis": found.basis or None,
        **fields(found, "residual_median_ns", "residual_p95_ns"),
        "offsets": [
            {"rank": rank, "offset_ns": offset, "error_at_least_ns": low, "error_at_most_ns": high}
            for rank, offset, low, high in of_ranks
        ],
    }


def _slowdown(ranks: RankReport) -> dict[str, Any]:
    cycles = ranks.cycles
    return {
        "overall": cycles.overall,
        "steps": [
            {"step": step, "slowdown": slowdown, "own_ns": own}
            for step, slowdown, own in zip(
                cycles.steps, cycles.slowdown.tolist(), cycles.own_ns.tolist(), strict=True
            )
        ],
    }

"""The inventory of a trace as text and as JSON (schema traceflops.info/1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import to_builtins

from traceflops.devices.processes import ranks_text
from traceflops.facts import fact
from traceflops.recording.inventory import DeviceEntry, Inventory
from traceflops.reports.view.figures import UNKNOWN, count, fields, shorten_middle, size, visible
from traceflops.reports.view.texts import words
from traceflops.reports.view.wording import some_files
from traceflops.units import several

SCHEMA: Final = "traceflops.info/1"
_LABEL = 12
_FILES_SHOWN = 8
_DEVICES_SHOWN = 16
_RANKS_SHOWN = 16
_COUNTS_SHOWN = 14


def info_object(inventory: Inventory) -> dict[str, Any]:
    """Return the inventory as plain dicts and lists."""
    source = inventory.source
    of_jobs = inventory.of_jobs or (None,) * len(inventory.jobs)
    return {
        "schema": SCHEMA,
        **fields(source, "format", "tool"),
        "files": [to_builtins(file) for file in source.files],
        "facts": dict(source.facts),
        "ranks": list(inventory.ranks),
        **_contents_object(inventory),
        "event_counts": dict(source.event_counts),
        "jobs": [
            {
                **fields(job, "number", "format", "files", "ranks", "chosen"),
                **_contents_object(own_inventory),
            }
            for job, own_inventory in zip(inventory.jobs, of_jobs, strict=True)
        ],
        "notes": [note.as_dict() for note in inventory.notes],
    }


def _contents_object(inventory: Inventory | None) -> dict[str, Any]:
    """Return what is in a trace and what is missing; all null if no part of it is selected."""
    if inventory is None:
        return dict.fromkeys(("world_size", "devices", "rows", "steps", "missing", "record"))
    return {
        "world_size": inventory.world_size,
        "devices": [to_builtins(device) for device in inventory.devices],
        "rows": inventory.rows,
        "steps": list(inventory.steps),
        "missing": [
            {
                "what": words(fact(f"lack.{missing.code}.what")),
                "cost": words(fact(f"lack.{missing.code}.cost")),
                "remedy": missing.how.text,
            }
            for missing in inventory.missing
        ],
        "record": inventory.record,
    }


def render_info(inventory: Inventory) -> list[str]:
    """Return the lines of the inventory; if there are several jobs, job by job."""
    jobs = []
    for job in inventory.jobs:
        ranks = f", {ranks_text(job.ranks)}" if job.ranks else ""
        text = f"{some_files(job.files, 3)} ({job.format}{ranks}){', chosen' if job.chosen else ''}"
        jobs.append(_line(f"job {job.number}", text))
    notes = [f"note        {visible(note.text)}" for note in inventory.notes]
    if not inventory.of_jobs:
        return [*jobs, *_inventory(inventory), *notes]
    lines = []
    for job_line, own_inventory in zip(jobs, inventory.of_jobs, strict=True):
        lines += [job_line, *_inventory(own_inventory), ""]
    return [*lines, *notes]


def _inventory(inventory: Inventory | None) -> Iterator[str]:
    """Yield the source of a recording, its devices, its contents, and what is missing."""
    if inventory is None:
        yield _line("", "nothing of it is selected")
        return
    source = inventory.source
    yield _line("format", f"{source.format} ({source.tool or UNKNOWN})")
    for file in source.files[:_FILES_SHOWN]:
        text = f" ({size(file.text_bytes)} unpacked)" if file.text_bytes != file.bytes else ""
        yield _line("file", f"{shorten_middle(file.name, 70)}, {size(file.bytes)}{text}")
        if file.sha256 is not None:
            yield _line("", f"sha256 {file.sha256}")
    if len(source.files) > _FILES_SHOWN:
        yield _line("", f"… {several(len(source.files) - _FILES_SHOWN, 'more file')} in --json")
    if source.facts:
        facts = ", ".join(f"{k} {visible(v)}" for k, v in sorted(source.facts.items()))
        yield _line("recorded", facts)
    if inventory.ranks:
        shown_ranks = inventory.ranks[:_RANKS_SHOWN]
        ranks = ", ".join("unknown" if r is None else str(r) for r in shown_ranks)
        more = f", … ({len(inventory.ranks)} total)" if len(inventory.ranks) > _RANKS_SHOWN else ""
        yield _line("ranks", f"{ranks}{more} of {inventory.world_size or 'unknown'}")
    if not inventory.devices:
        yield _line("devices", "none with GPU operations")
    for device in inventory.devices[:_DEVICES_SHOWN]:
        yield _line("device", _device(device))
    if len(inventory.devices) > _DEVICES_SHOWN:
        more = several(len(inventory.devices) - _DEVICES_SHOWN, "more device")
        yield _line("", f"… {more} in --json")
    steps = inventory.steps
    listed = f"{steps[0]} to {steps[-1]} ({len(steps)}), " if steps else ""
    yield _line("steps", f"{listed}{inventory.steps_text}")
    filled = [f"{name} {count(rows)}" for name, rows in inventory.rows.items() if rows]
    yield _line("tables", ", ".join(filled) or "all empty")
    ranked = sorted(source.event_counts.items(), key=lambda item: -item[1])
    shown = [f"{visible(name)} {count(number)}" for name, number in ranked[:_COUNTS_SHOWN]]
    yield _line("events", ", ".join(shown) or "none")
    for missing in inventory.missing:
        what, cost = (words(fact(f"lack.{missing.code}.{part}")) for part in ("what", "cost"))
        yield _line("missing", f"{what}: {cost}")
        if missing.how.text:
            yield _line("", f"to record it: {missing.how.text}")
    if inventory.record is not None:
        yield _line("record all", inventory.record)


def _device(device: DeviceEntry) -> str:
    """Return the rank of a device, its properties, and the number of its operations."""
    ranks = device.ranks or ((device.rank,) if device.rank is not None else ())
    where = ranks_text(ranks) or "rank unknown"
    if device.run is not None:
        where += f", run {device.run} of {device.runs}"
    properties = [shorten_middle(device.name, 70)]
    if device.architecture is not None and device.architecture not in device.name:
        properties.append(visible(device.architecture))
    if device.sm_count is not None:
        # An architecture is only recorded for GPUs with CUs.
        properties.append(f"{device.sm_count} {'CUs' if device.architecture else 'SMs/CUs'}")
    if device.partition is not None:
        properties.append(f"partition {device.partition}")
    if device.clock_hz is not None:
        properties.append(f"{device.clock_hz / 10**6:,.0f} MHz")
    if device.memory_bytes is not None:
        properties.append(size(device.memory_bytes, binary=True))
    operations = several(device.activities, f"{device.type.upper()} operation")
    return f"{where}, {device.type} {device.local_id}: {', '.join(properties)}, {operations}"


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"

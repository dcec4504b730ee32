"""From a CSV page of Nsight Compute to its trace: counters of kernels, and no times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from traceflops.errors import InputError
from traceflops.parsers.csvfiles.notes import text_notes
from traceflops.parsers.gathered import DeviceFacts, Gathered, ProcessFacts
from traceflops.parsers.inputs import ByteSource
from traceflops.parsers.nsight.ncu.read import NcuFile, read_ncu
from traceflops.parsers.overflow import overflow_notes
from traceflops.rows import ABSENT
from traceflops.trace import Note, NoteKind, Source, SourceFile, Trace
from traceflops.words import several

FORMAT: Final = "ncu CSV"


def read_pages(sources: Sequence[ByteSource]) -> list[Trace]:
    """Return the traces of some pages. Raises InputError for one without a value."""
    return [trace_of(read_ncu(source)) for source in sources]


def trace_of(file: NcuFile) -> Trace:
    """Return the trace of a page. Raises InputError where it holds no value."""
    if not file.table.count:
        raise _nothing(file)
    gathered = Gathered()
    _place(file, gathered)
    launches = _launches(file)
    gathered["kernel_counters"].absorb(file.table)
    overflowed = gathered.overflowed
    counts = {"launches": launches, **file.rows}
    source = Source(
        format=FORMAT,
        files=(SourceFile(file.source.name, file.source.stored_bytes, file.source.text_bytes),),
        tool="Nsight Compute (ncu)",
        facts={"page": ", ".join(file.pages)},
        event_counts={name: count for name, count in sorted(counts.items()) if count},
        identities=tuple(host for host in file.hosts if host),
    )
    notes = [*_notes(file), *overflow_notes(overflowed, file.source.name)]
    return Trace(source, gathered.finish(), tuple(replace(n, file=file.source.name) for n in notes))


def _place(file: NcuFile, gathered: Gathered) -> None:
    """Put the numbers of processes and devices in the place of their ids."""
    pids = np.unique(file.table.column("process")).tolist()
    name = file.source.name
    processes = {
        pid: gathered.process(
            pid, ProcessFacts(name, None, None, None, None if pid == ABSENT else pid)
        )
        for pid in pids
    }
    devices = np.array(
        [
            gathered.device(text, processes[pids[0]], *_device(text, file.facts.get(text, {})))
            for text in file.devices
        ],
        np.int64,
    )
    process = file.table.column("process")
    distinct, place = np.unique(process, return_inverse=True)
    numbers = np.array([processes[pid] for pid in distinct.tolist()], np.int64)
    file.table.replace("process", numbers[place.reshape(-1)])
    file.table.replace("device", devices[file.table.column("device")])


def _device(text: str, facts: Mapping[str, str]) -> tuple[int, DeviceFacts]:
    """Return the number of a device and what the page says of it: compute capability, product."""
    number, _, capability = text.partition("|")
    major, _, minor = capability.strip().partition(".")
    known = _is_small(major) and _is_small(minor)
    units = facts.get("device__attribute_multiprocessor_count", "").replace(",", "")
    return (
        int(number) if _is_small(number.strip()) else 0,
        DeviceFacts(
            product=facts.get("device__attribute_display_name") or None,
            compute_major=int(major) if known else None,
            compute_minor=int(minor) if known else None,
            sm_count=int(units) if _is_small(units) else None,
            architecture=f"sm{int(major)}{int(minor)}" if known else None,
        ),
    )


def _is_small(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6


def _launches(file: NcuFile) -> int:
    table = file.table
    keys = np.stack([table.column("process"), table.column("dispatch"), table.column("name")])
    return int(np.unique(keys, axis=1).shape[1])


def _nothing(file: NcuFile) -> InputError:
    name = file.source.name
    if file.rows["metrics"] or file.rows["kernels"]:
        return InputError(
            f"no metric in it has a value: {name}",
            "profile again on a device that has them (ncu --query-metrics lists them)",
        )
    if file.rows["rules"]:
        return InputError(
            f"only rules and no metric are in it: {name}",
            "export again with ncu --import FILE --csv --page raw",
        )
    if file.damage.dropped_rows or file.damage.cut_bytes:
        return InputError(
            f"no row of it could be read: {name}",
            "export again with ncu --import FILE --csv --page raw",
        )
    return InputError(
        f"no row in it: {name} (only a header)", "profile again; no kernel was profiled"
    )


_ODD: Final[tuple[tuple[str, NoteKind, str, str, str], ...]] = (
    ("none", "missing", "not-available", "value", "n/a: not counted on this device, or not used"),
    ("instances", "dropped", "instances-unread", "metric", "a list of instances without a total"),
    ("text", "dropped", "no-number", "value", "a word and no number"),
)


def _notes(file: NcuFile) -> Iterator[Note]:
    yield from text_notes(file.damage, file.source.cut)
    bad = sum(file.damage.bad_cells.values())
    if bad:
        text = f"{several(bad, 'number')} could not be read and are left out."
        yield Note("dropped", "bad-cells", text, bad)
    for what, kind, code, noun, sentence in _ODD:
        count = file.odd[what]
        if count:
            verb = "is" if count == 1 else "are"
            text = f"{several(count, noun)} {verb} {sentence}: left out."
            yield Note(kind, code, text, count)
    if file.odd["scaled"]:
        yield Note("assumed", "values-rounded", _ROUNDED, file.odd["scaled"])
    if file.comma:
        yield Note("assumed", "decimal-commas", _COMMAS)
    yield Note("missing", "no-timeline", _NO_TIMES)


_ROUNDED: Final = (
    "Values stand in the file in units with a prefix (Mbyte, us) and a few digits, so they are as "
    "exact as that; ncu --import FILE --csv --page raw --print-units base writes them whole."
)
_COMMAS: Final = "Numbers were printed with a decimal comma: the point is the mark of thousands."
_NO_TIMES: Final = (
    "Nsight Compute runs kernels one at a time, repeatedly, with emptied caches and mostly locked "
    "clocks: its durations are not used, and there is no timeline. Give these counters to a timed "
    "run of the same program: traceflops report RUN --pair FILE."
)

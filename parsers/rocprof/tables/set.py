"""Reads CSV files of rocprof, all of them at once: a run is a set of files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import ByteSource
from traceflops.parsers.rocprof.tables.names import hosts, place_of, same_run
from traceflops.parsers.rocprof.tables.notes import file_notes
from traceflops.parsers.rocprof.tables.processes import Placed
from traceflops.parsers.rocprof.tables.read import read_table
from traceflops.parsers.rocprof.tables.runs import runs_of
from traceflops.parsers.rocprof.tables.trace import Assembly
from traceflops.parsers.shared import TableFile
from traceflops.table import Note, Trace
from traceflops.units import several

_MOST_NEIGHBOURS: Final = 10_000
_DESCRIBING: Final = {"agents", "system"}


def read_tables(sources: Sequence[ByteSource]) -> list[Trace]:
    """Return the traces of the runs that some CSV files of rocprof are of.

    A file that cannot be read is a note as long as another can. Raises InputError where none has a
    row that can be used.
    """
    placed: list[Placed] = []
    failed: list[tuple[str, InputError]] = []
    for source in sources:
        try:
            file = read_table(source)
        except InputError as error:
            failed.append((source.label, error))
            continue
        finally:
            source.close()
        placed.append(Placed(file, place_of(source.folder, source.name)))
    if not placed:
        raise failed[0][1]
    runs = runs_of(placed)
    named = hosts(one.place for one in placed)
    used = [run for run in runs if run.processes]
    if not used:
        raise _nothing([one.file for one in placed])
    unused = [file for run in runs if not run.processes for file in run.files]
    traces = [Assembly(run, named.get(run.root)).trace() for run in used]
    notes = [*_failures(failed), *_unused_notes(unused), *_neighbour_notes(placed)]
    return [replace(traces[0], notes=(*notes, *traces[0].notes)), *traces[1:]]


def _nothing(files: Sequence[TableFile]) -> InputError:
    """Return what to say of files without a record of work."""
    name = files[0].source.label
    kinds = {kind for file in files for kind in file.kinds}
    if kinds and kinds <= _DESCRIBING:
        return NotATrace(
            f"only a list of the machine's GPUs: {name}",
            "give the other tables of the run, such as ..._kernel_trace.csv; a launcher process "
            "writes only this one",
        )
    if "untimed" in kinds:
        return InputError(
            f"rocprof table without times or counters: {name}",
            "record with rocprofv3 --kernel-trace, or with --timestamp on or counters",
        )
    if any(file.damage.bad_cells for file in files):
        return InputError(
            f"no row has a valid time: {name}",
            "a spreadsheet may have rounded the times; give the file as rocprof wrote it",
        )
    if any(file.damage.dropped_rows or file.damage.cut_bytes for file in files):
        return InputError(f"no readable row: {name}", "copy the file again or record again")
    return InputError(
        f"no rows: {name} (header only)", "nothing was launched while recording; record again"
    )


def _failures(failed: Sequence[tuple[str, InputError]]) -> list[Note]:
    return [
        Note("dropped", "file-not-read", f"{name} could not be read: {error.message}.", 1, name)
        for name, error in failed
    ]


def _unused_notes(files: Sequence[TableFile]) -> list[Note]:
    """Give the notes of files of which no run has anything."""
    notes = [note for file in files for note in file_notes(file)]
    return [
        *notes,
        *(
            Note("missing", "no-rows", "The file has no records.", None, file.source.label)
            for file in files
            if not file.agents
        ),
    ]


def _neighbour_notes(placed: Sequence[Placed]) -> list[Note]:
    """Say which tables of the same process lie beside those that were given."""
    given: dict[Path, set[str]] = {}
    keys: dict[Path, dict[str, str]] = {}
    for one in placed:
        path = one.file.source.path
        if path is not None:
            given.setdefault(path.parent, set()).add(path.name)
            keys.setdefault(path.parent, {})[one.place.key] = path.name
    notes = []
    for folder, names in given.items():
        others = sorted(set(_names_in(folder)) - names)
        for key, name in keys[folder].items():
            beside = same_run(others, key)
            if beside:
                notes.append(_neighbours(folder, beside, name))
    return notes


def _neighbours(folder: Path, beside: Sequence[str], name: str) -> Note:
    listed = ", ".join(beside[:4]) + (", …" if len(beside) > 4 else "")
    text = (
        f"{several(len(beside), 'table')} of the same process beside this file not read: "
        f"{listed}. Give the folder {folder.resolve().name or folder} to read all."
    )
    return Note("missing", "siblings-not-read", text, len(beside), name)


def _names_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, _MOST_NEIGHBOURS)]
    except OSError:
        return []

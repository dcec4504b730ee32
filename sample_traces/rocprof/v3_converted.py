"""CSV files that `rocpd convert` makes of databases: all processes in one set, told by a Guid."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sample_traces.kineto_text import Digits
from sample_traces.machines import MACHINES
from sample_traces.records import Run
from sample_traces.rocprof.agents import agents
from sample_traces.rocprof.capture import captures
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.text import Cell, save, table
from sample_traces.rocprof.v3_csv import Table, agent_table, tables

_COUNTERS: Final = "counter_collection"


def write_converted_csv(run: Run, folder: Path, options: RocprofOptions) -> list[Path]:
    """Write `out_<what>.csv` for all ranks together."""
    nodes = agent_table(agents(MACHINES[run.config.machine], run.config.ranks))
    merged: dict[str, Table] = {}
    for one in captures(run, options):
        made = {"agent_info": nodes} | tables(one, "7.0", "logical", options)
        for what, (header, rows) in made.items():
            # The counters' first column is called Pid and holds the guid all the same, bare.
            first, guid = ("Pid", Digits(one.guid)) if what == _COUNTERS else ("Guid", one.guid)
            identified: list[list[Cell]] = [[guid, *row] for row in rows]
            merged.setdefault(what, ((first, *header), []))[1].extend(identified)
    start = folder / "rocpd-output-data"
    return [save(start / f"out_{what}.csv", table(*rows)) for what, rows in merged.items()]

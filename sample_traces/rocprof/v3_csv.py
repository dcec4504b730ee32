"""rocprofv3: a folder of CSV files per process, in the columns of each release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sample_traces.kineto_text import Digits
from sample_traces.machines import MACHINES
from sample_traces.records import Run
from sample_traces.rocprof.agents import CPUS, Agent, agents
from sample_traces.rocprof.capture import Capture, Dispatch, HostRange, Transfer, captures
from sample_traces.rocprof.names import written
from sample_traces.rocprof.options import NameForm, RocprofOptions
from sample_traces.rocprof.text import Cell, save, table
from sample_traces.rocprof.v3_columns import (
    AGENT_WORDS,
    COPIES,
    COUNTERS,
    DIRECTIONS,
    DOMAINS,
    FILES,
    KERNELS,
    NESTED,
    RANGES,
    SIZES,
    Release,
)

AgentForm = Literal["node", "logical", "type"]
"""An agent as a bare number, as "Agent 4", or as "GPU 2", counted within its type."""

Table = tuple[tuple[str, ...], list[list[Cell]]]
"""The columns of a file and its rows."""

_LDS_UNIT: Final = 512


def write_v3_csv(
    run: Run,
    folder: Path,
    options: RocprofOptions,
    release: Release = "7.0",
    agent_form: AgentForm | None = None,
) -> list[Path]:
    """Write `<host>/<pid>_<what>.csv` for each rank, as without --output-file."""
    form = agent_form or ("logical" if release == "7.0" else "node")
    nodes = agents(MACHINES[run.config.machine], run.config.ranks)
    paths = []
    for one in captures(run, options):
        made = {"agent_info": agent_table(nodes)}
        made |= tables(one, release, form, options)
        start = folder / options.host
        paths += [
            save(start / f"{one.process}_{what}.csv", table(*rows)) for what, rows in made.items()
        ]
    return paths


def agent_table(nodes: Iterable[Agent]) -> Table:
    """Return the columns and rows of the node's agents."""
    header = ["_".join(map(str.capitalize, word.split("_"))) for word in AGENT_WORDS]
    header[header.index("Type")] = "Agent_Type"
    return tuple(header), [[_agent_cell(agent, word) for word in AGENT_WORDS] for agent in nodes]


def _agent_cell(agent: Agent, word: str) -> Cell:
    if word == "type":
        return "GPU" if agent["type"] == 2 else "CPU"
    if word.endswith(("_x", "_y", "_z")):
        return int(agent[word[:-2]][word[-1]])
    value: Any = agent[word]
    return int(value[NESTED[word]]) if word in NESTED else value


def agent_text(node: int, form: AgentForm) -> Cell:
    """Return how an agent is named in a row."""
    if form == "node":
        return node
    if form == "logical":
        return f"Agent {node}"
    return f"CPU {node}" if node < CPUS else f"GPU {node - CPUS}"


def fixed(value: int) -> Digits:
    """Return a counter's value as rocprofv3 prints doubles."""
    return Digits(f"{value}.000000" if value >= 1 else "0.00000000e+00")


def tables(
    capture: Capture, release: Release, form: AgentForm, options: RocprofOptions
) -> dict[str, Table]:
    """Return the columns and rows of each file of one process that has any."""
    return _Tables(capture, release, form, options.names).files(options.times)


@dataclass(frozen=True, slots=True)
class _Tables:
    """Makes the tables of one process."""

    capture: Capture
    release: Release
    agent_form: AgentForm
    names: NameForm

    def files(self, timed: bool) -> dict[str, Table]:
        """Return the tables by the ends of their files' names, those without rows left out."""
        release, capture = self.release, self.capture
        kernels = capture.dispatches if timed else []
        made = {
            "kernel_trace": (
                KERNELS[release],
                [self._row(KERNELS[release], self._kernel(one)) for one in kernels],
            ),
            "memory_copy_trace": (
                COPIES[release],
                [self._row(COPIES[release], self._copy(one)) for one in capture.transfers],
            ),
            "counter_collection": (COUNTERS[release], list(self._counted())),
        }
        for domain, what in FILES.items():
            rows = [self._range(one) for one in capture.ranges if one.domain == domain]
            made[what] = RANGES, rows
        return {what: rows for what, rows in made.items() if rows[1]}

    def _row(self, header: Iterable[str], values: Mapping[str, Cell]) -> list[Cell]:
        return [values[name] for name in header]

    def _kernel(self, one: Dispatch) -> dict[str, Cell]:
        sizes = dict(zip(SIZES, (*one.workgroup, *one.grid), strict=True))
        block = -(-one.work.shared_bytes // _LDS_UNIT) * _LDS_UNIT
        return {
            "Kind": "KERNEL_DISPATCH",
            "Agent_Id": agent_text(self.capture.node, self.agent_form),
            "Queue_Id": one.queue,
            "Stream_Id": one.stream,
            "Thread_Id": one.thread,
            "Process_Id": self.capture.process,
            "Dispatch_Id": one.dispatch_id,
            "Kernel_Id": one.kernel.kernel_id,
            "Kernel_Name": written(one.kernel.name, self.names),
            "Correlation_Id": one.correlation,
            "Start_Timestamp": one.start_ns,
            "End_Timestamp": one.end_ns,
            "Private_Segment_Size": 0,
            "Group_Segment_Size": one.work.shared_bytes,
            "LDS_Block_Size": block,
            "Scratch_Size": 0,
            "VGPR_Count": one.work.registers,
            "Accum_VGPR_Count": 0,
            "SGPR_Count": 112,
            **sizes,
        }

    def _counted(self) -> Iterable[list[Cell]]:
        header = COUNTERS[self.release]
        for one in self.capture.in_order_of_dispatch():
            values = self._kernel(one)
            width, height, depth = one.workgroup
            across, down, deep = one.grid
            values |= {
                "Grid_Size": across * down * deep,
                "Workgroup_Size": width * height * depth,
            }
            for name, value in sorted(one.counters.items()):
                values |= {"Counter_Name": name, "Counter_Value": fixed(value)}
                yield self._row(header, values)

    def _copy(self, one: Transfer) -> dict[str, Cell]:
        return {
            "Kind": "MEMORY_COPY",
            "Direction": DIRECTIONS[one.work.direction or ""],
            "Stream_Id": one.stream,
            "Source_Agent_Id": agent_text(one.source, self.agent_form),
            "Destination_Agent_Id": agent_text(one.target, self.agent_form),
            "Correlation_Id": one.correlation,
            "Start_Timestamp": one.start_ns,
            "End_Timestamp": one.end_ns,
        }

    def _range(self, one: HostRange) -> list[Cell]:
        return [
            DOMAINS[self.release][one.domain],
            one.name,
            self.capture.process,
            one.thread,
            one.correlation,
            one.start_ns,
            one.end_ns,
        ]

"""rocprofv3: a database in SQLite per process, as rocpd defines it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from sample_traces.machines import MACHINES
from sample_traces.records import Run
from sample_traces.rocprof.agents import DIES, Agent, agents
from sample_traces.rocprof.capture import (
    Capture,
    Dispatch,
    HostRange,
    Symbol,
    Transfer,
    captures,
    instances,
)
from sample_traces.rocprof.names import mangled, truncated
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.rocpd_schema import Version, statements, suffix_of
from sample_traces.rocprof.v3_csv import DIRECTIONS
from sample_traces.rocprof.v3_json import MARKED, kind_of

_NODE: Final = 3_289_078_373
_PARENT: Final = 4_000
_METADATA_VERSION: Final[dict[Version, str]] = {"3.0.0": "3", "3.0.2": "3.0.2", "3.0.3": "3.0.3"}

Value = str | int | float | None


def write_rocpd(
    run: Run,
    folder: Path,
    options: RocprofOptions,
    version: Version = "3.0.0",
    views: bool = True,
    page_bytes: int = 4096,
) -> list[Path]:
    """Write `<host>/<pid>_results.db` for each rank; `page_bytes` is the size of its pages."""
    nodes = agents(MACHINES[run.config.machine], run.config.ranks)
    paths = []
    for one in captures(run, options):
        path = folder / options.host / f"{one.process}_results.db"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA page_size = {page_bytes}")
            for statement in statements(one.guid, version, views):
                connection.execute(statement)
            writer = _Writer(connection, one, options, version, suffix_of(one.guid))
            writer.write(nodes, run.config.ranks)
            connection.commit()
        paths.append(path)
    return paths


class _Writer(Struct):
    """Fills the tables of one process."""

    connection: sqlite3.Connection
    capture: Capture
    options: RocprofOptions
    version: Version
    suffix: str
    strings: dict[str, int] = field(default_factory=dict)
    events: int = 0

    @property
    def own(self) -> dict[str, Value]:
        """What says whose a row is."""
        return {"nid": _NODE, "pid": self.capture.process}

    def write(self, nodes: list[Agent], ranks: int) -> None:
        """Write everything."""
        for tag, value in (
            ("schema_version", _METADATA_VERSION[self.version]),
            ("uuid", self.suffix),
            ("guid", self.capture.guid),
        ):
            self._insert("metadata", tag=tag, value=value)
        self._node_and_process(ranks)
        for agent in nodes:
            self._agent(agent)
        self._insert("info_code_object", id=1, **self.own, agent_id=self.capture.node)
        for symbol in self.capture.symbols:
            self._symbol(symbol)
        for one in self.capture.ranges:
            self._range(one)
        self._dispatches()
        for copy in self.capture.transfers:
            self._copy(copy)
        if self.version != "3.0.0":
            self._graphs()

    def _insert(self, table: str, /, **values: Value) -> None:
        names = ", ".join(f'"{name}"' for name in values)
        places = ", ".join("?" * len(values))
        self.connection.execute(
            f"INSERT INTO `rocpd_{table}{self.suffix}` ({names}) VALUES ({places})",
            tuple(values.values()),
        )

    def _string(self, text: str) -> int:
        """Return the number of a text, writing it down at its first use."""
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self._insert("string", id=self.strings[text], string=text)
        return self.strings[text]

    def _event(self, category: str, correlation: int, extdata: str = "{}") -> int:
        self.events += 1
        self._insert(
            "event",
            id=self.events,
            category_id=self._string(category),
            stack_id=correlation,
            parent_stack_id=correlation,
            correlation_id=0,
            extdata=extdata,
        )
        return self.events

    def _node_and_process(self, ranks: int) -> None:
        capture = self.capture
        self._insert(
            "info_node",
            id=_NODE,
            hash=1_551_281_588_254_545_923,
            machine_id="0123456789abcdef0123456789abcdef",
            system_name="Linux",
            hostname=self.options.host,
        )
        environment = {"RANK": str(capture.rank), "WORLD_SIZE": str(ranks), "LANG": "C.UTF-8"}
        times: dict[str, Value] = {"init": capture.init_ns, "fini": capture.fini_ns}
        self._insert(
            "info_process",
            id=capture.process,
            **self.own | {"ppid": _PARENT} | times,
            start=capture.init_ns,
            end=capture.fini_ns,
            command="python3 train.py",
            environment=json.dumps(environment),
        )
        threads = {one.thread for one in capture.dispatches} | {
            one.thread for one in capture.ranges
        }
        for thread in sorted(threads | {capture.process}):
            self._insert("info_thread", id=thread, **self.own, ppid=_PARENT, tid=thread)
        for what in ("Queue", "Stream"):
            for number in range(4):
                name = f"{what} {number - 1}" if number else f"Default {what}"
                self._insert(f"info_{what.lower()}", id=number, **self.own, name=name)

    def _agent(self, agent: Agent) -> None:
        self._insert(
            "info_agent",
            id=agent["node_id"],
            **self.own,
            type="GPU" if agent["type"] == 2 else "CPU",
            absolute_index=agent["node_id"],
            logical_index=agent["logical_node_id"],
            type_index=agent["logical_node_type_id"],
            uuid=agent["device_id"],
            name=agent["name"],
            model_name=agent["model_name"],
            vendor_name=agent["vendor_name"],
            product_name=agent["product_name"],
            user_name=agent["product_name"],
            extdata=json.dumps(agent, separators=(",", ":")),
        )

    def _symbol(self, one: Symbol) -> None:
        names = {"demangled_kernel_name": one.name, "truncated_kernel_name": truncated(one.name)}
        self._insert(
            "info_kernel_symbol",
            id=one.kernel_id,
            **self.own,
            code_object_id=1,
            kernel_name=mangled(one.name),
            display_name=one.name,
            group_segment_size=one.work.shared_bytes if one.work else 0,
            private_segment_size=0,
            sgpr_count=112,
            arch_vgpr_count=one.work.registers if one.work else 8,
            accum_vgpr_count=0,
            extdata=json.dumps({"kernel_id": one.kernel_id, **names}, separators=(",", ":")),
        )

    def _range(self, one: HostRange) -> None:
        kind = kind_of(one.domain, "7.0")
        # Of a marker the name is the function that made it; its text is beside the event.
        message = json.dumps({"message": one.name}) if one.domain == "marker" else "{}"
        event = self._event(kind, one.correlation, message)
        for position, (type_, name, value) in enumerate(one.arguments):
            self._insert(
                "arg", event_id=event, position=position, type=type_, name=name, value=value
            )
        self._insert(
            "region",
            id=one.correlation,
            **self.own,
            tid=one.thread,
            start=one.start_ns,
            end=one.end_ns,
            name_id=self._string(MARKED.get(kind, one.name)),
            event_id=event,
        )

    def _dispatches(self) -> None:
        counters = self._counters()
        for one in self.capture.dispatches:
            event = self._event("KERNEL_DISPATCH", one.correlation)
            self._dispatch(one, event)
            for name, value in one.counters.items():
                for part in instances(name, value, DIES):
                    self._insert(
                        "pmc_event", event_id=event, pmc_id=counters[name], value=float(part)
                    )

    def _dispatch(self, one: Dispatch, event: int) -> None:
        graph: dict[str, Value] = {}
        if self.version != "3.0.0":
            graph = {"graph_exec_id": int(one.graph_node > 0), "graph_node_id": one.graph_node}
        sizes = {"workgroup_size": one.workgroup, "grid_size": one.grid}
        self._insert(
            "kernel_dispatch",
            id=one.dispatch_id,
            **self.own,
            tid=one.thread,
            agent_id=self.capture.node,
            kernel_id=one.kernel.kernel_id,
            dispatch_id=one.dispatch_id,
            queue_id=one.queue,
            stream_id=one.stream,
            start=one.start_ns,
            end=one.end_ns,
            private_segment_size=0,
            group_segment_size=one.work.shared_bytes,
            **{f"{name}_{axis}": n for name, size in sizes.items() for axis, n in _axes(size)},
            **graph,
            region_name_id=self._string(""),
            event_id=event,
        )

    def _counters(self) -> Mapping[str, int]:
        """Describe the counters and return their numbers."""
        names = self.capture.dispatches[0].counters if self.capture.dispatches else {}
        numbers = {name: number for number, name in enumerate(names, start=1)}
        for name, number in numbers.items():
            self._insert(
                "info_pmc",
                id=number,
                **self.own,
                agent_id=self.capture.node,
                target_arch="GPU",
                name=name,
                symbol=name,
                component="rocm",
                value_type="ABS",
                block=name.split("_")[0],
                is_constant=0,
                is_derived=int(name.endswith("_sum")),
            )
        return numbers

    def _copy(self, one: Transfer) -> None:
        event = self._event("MEMORY_COPY", one.correlation)
        self._insert(
            "memory_copy",
            **self.own,
            tid=one.thread,
            start=one.start_ns,
            end=one.end_ns,
            name_id=self._string(DIRECTIONS[one.work.direction or ""]),
            dst_agent_id=one.target,
            src_agent_id=one.source,
            size=one.work.bytes,
            stream_id=one.stream,
            event_id=event,
        )

    def _graphs(self) -> None:
        """Write one row per launch of a graph: from its first kernel to its last."""
        nodes = [one for one in self.capture.in_order_of_dispatch() if one.graph_node]
        for correlation, group in groupby(nodes, key=lambda one: one.correlation):
            kernels = list(group)
            self._insert(
                "graph_launch",
                **self.own,
                tid=kernels[0].thread,
                agent_id=self.capture.node,
                queue_id=kernels[0].queue,
                start=min(one.start_ns for one in kernels),
                end=max(one.end_ns for one in kernels),
                graph_exec_id=1,
                kernel_dispatch_count=len(kernels),
                event_id=self._event("HIP_GRAPH", correlation),
            )


def _axes(size: tuple[int, int, int]) -> zip[tuple[str, int]]:
    return zip("xyz", size, strict=True)

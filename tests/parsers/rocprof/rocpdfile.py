"""Makes rocpd databases as rocprofv3 and rocprof-sys write them, a row at a time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GUID = "00000a10-7bc0-7bc0-a1ef-6b94d43555c0"
ENDING = "_" + GUID.replace("-", "_")
SECRET = "env-value-removed"
PID, TID, NODE = 4242, 4243, 77

TABLES = {
    "metadata": "tag TEXT NOT NULL, value TEXT NOT NULL",
    "string": "guid TEXT, string TEXT NOT NULL UNIQUE ON CONFLICT ABORT",
    "info_node": "guid TEXT, hash BIGINT, machine_id TEXT, system_name TEXT, hostname TEXT",
    "info_process": "guid TEXT, nid INTEGER, ppid INTEGER, pid INTEGER, init BIGINT, fini BIGINT,"
    ' start BIGINT, "end" BIGINT, command TEXT, environment JSONB, extdata JSONB',
    "info_thread": "guid TEXT, nid INTEGER, ppid INTEGER, pid INTEGER, tid INTEGER, name TEXT",
    "info_agent": "guid TEXT, nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER,"
    " logical_index INTEGER, type_index INTEGER, name TEXT, product_name TEXT, extdata JSONB",
    "info_kernel_symbol": "guid TEXT, kernel_name TEXT, display_name TEXT, arch_vgpr_count INTEGER",
    "info_pmc": "guid TEXT, agent_id INTEGER, name TEXT, symbol TEXT",
    "track": "guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, name_id INTEGER",
    "event": "guid TEXT, category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER,"
    " correlation_id INTEGER, extdata JSONB DEFAULT '{}'",
    "arg": "guid TEXT, event_id INTEGER, position INTEGER, type TEXT, name TEXT, value TEXT",
    "pmc_event": "guid TEXT, event_id INTEGER, pmc_id INTEGER, value REAL",
    "region": "guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT, "
    '"end" BIGINT, name_id INTEGER, event_id INTEGER',
    "sample": "guid TEXT, track_id INTEGER, timestamp BIGINT, event_id INTEGER",
    "kernel_dispatch": "guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, agent_id INTEGER,"
    " kernel_id INTEGER, dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT,"
    ' "end" BIGINT, group_segment_size INTEGER, workgroup_size_x INTEGER, workgroup_size_y INTEGER,'
    " workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER,"
    " region_name_id INTEGER, event_id INTEGER",
    "memory_copy": 'guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT, "end" BIGINT,'
    " name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, queue_id INTEGER,"
    " stream_id INTEGER, event_id INTEGER",
    "memory_allocate": "guid TEXT, nid INTEGER, pid INTEGER, type TEXT, level TEXT, start BIGINT, "
    '"end" BIGINT, size INTEGER, event_id INTEGER',
}
GRAPHS = ", graph_exec_id INTEGER NOT NULL DEFAULT 0, graph_node_id INTEGER NOT NULL DEFAULT 0"
NEWER = {
    "kernel_dispatch": TABLES["kernel_dispatch"] + GRAPHS,
    "memory_copy": TABLES["memory_copy"] + GRAPHS,
    "pmc_event": TABLES["pmc_event"] + ", sample_id INTEGER, xcc INTEGER, instance INTEGER",
    "graph_launch": "guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, agent_id INTEGER,"
    ' queue_id INTEGER, start BIGINT, "end" BIGINT, graph_exec_id INTEGER,'
    " kernel_dispatch_count INTEGER, event_id INTEGER",
}
"""What schema 3.0.4 has more than 3.0.0."""

AGENT = {
    "type": 2,
    "cu_count": 304,
    "wave_front_size": 64,
    "num_xcc": 8,
    "gfx_target_version": 90402,
    "max_engine_clk_fcompute": 2100,
    "max_engine_clk_ccompute": 3700,
    "local_mem_size": 0,
    "mem_banks": [{"size_in_bytes": 206158430208}],
}


class RocpdFile:
    """One database while it is written; `ending` is that of the names of its tables."""

    def __init__(
        self,
        path: Path,
        *,
        ending: str = ENDING,
        version: str | None = "3",
        newer: bool = False,
        views: bool = True,
        without: tuple[str, ...] = (),
    ) -> None:
        self.ending = ending
        self.connection = sqlite3.connect(path)
        tables = TABLES | (NEWER if newer else {})
        for name, columns in tables.items():
            if name in without:
                continue
            self.connection.execute(
                f'CREATE TABLE "rocpd_{name}{ending}"'
                f" (id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, {columns})"
            )
            if views:
                self.connection.execute(
                    f'CREATE VIEW "rocpd_{name}" AS SELECT * FROM "rocpd_{name}{ending}"'
                )
        self._strings: dict[str, int] = {}
        if version is not None:
            self.add("metadata", tag="schema_version", value=version)

    def close(self) -> None:
        self.connection.commit()
        self.connection.close()

    def add(self, table: str, **values: Any) -> int:
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        cursor = self.connection.execute(
            f'INSERT INTO "rocpd_{table}{self.ending}" ({names}) VALUES ({marks})',
            tuple(values.values()),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = self.add("string", string=text)
        return self._strings[text]

    def machine(self, gpus: int = 1, **agent: Any) -> None:
        """Add a node, a process with its secrets, its thread, a CPU (0) and GPUs (1, 2, ...)."""
        self.add("info_node", id=NODE, hash=1, machine_id="m4ch1ne", hostname="node-of-somebody")
        self.add(
            "info_process",
            id=PID,
            nid=NODE,
            pid=PID,
            command=f"/home/somebody/train.py --token {SECRET}",
            environment=json.dumps({"TOKEN": SECRET}),
        )
        self.add("info_thread", id=TID, nid=NODE, pid=PID, tid=TID)
        self.add("info_agent", id=0, type="CPU", absolute_index=0, name="EPYC", extdata="{}")
        for number in range(1, gpus + 1):
            self.add(
                "info_agent",
                id=number,
                type="GPU",
                absolute_index=number,
                name="gfx942",
                product_name="AMD Instinct MI300X",
                extdata=json.dumps(AGENT | agent),
            )

    def symbol(self, name: str, *, id: int | None = None, mangled: str = "_Z1kv.kd") -> int:
        values = {"kernel_name": mangled, "display_name": name, "arch_vgpr_count": 32}
        return self.add("info_kernel_symbol", **values, **({} if id is None else {"id": id}))

    def event(self, category: str = "KERNEL_DISPATCH", stack: int = 0, text: str = "{}") -> int:
        return self.add(
            "event",
            category_id=self.string(category),
            stack_id=stack,
            correlation_id=0,
            extdata=text,
        )

    def dispatch(self, kernel: int, start: Any, end: Any, **values: Any) -> int:
        event = self.event(stack=values.pop("stack", 0))
        grid, block = values.pop("grid", (256, 1, 1)), values.pop("block", (64, 1, 1))
        sizes = {f"grid_size_{axis}": n for axis, n in zip("xyz", grid, strict=True)}
        sizes |= {f"workgroup_size_{axis}": n for axis, n in zip("xyz", block, strict=True)}
        usual = {"pid": PID, "tid": TID, "agent_id": 1, "queue_id": 1, "stream_id": 0}
        row = {"start": start, "end": end, "kernel_id": kernel, "event_id": event}
        self.add("kernel_dispatch", **(row | usual | sizes | values))
        return event

    def copy(self, name: str, source: int, target: int, start: int, end: int, **values: Any) -> int:
        event = self.event("MEMORY_COPY", values.pop("stack", 0))
        row = {"name_id": self.string(name), "src_agent_id": source, "dst_agent_id": target}
        row |= {"start": start, "end": end, "event_id": event, "pid": PID, "size": 4096}
        self.add("memory_copy", **(row | values))
        return event

    def region(
        self, category: str, name: str, start: int, end: int, *, stack: int = 0, text: str = "{}"
    ) -> int:
        event = self.event(category, stack, text)
        row = {"pid": PID, "tid": TID, "start": start, "end": end, "event_id": event}
        self.add("region", **row, name_id=self.string(name))
        return event

    def sample(self, category: str, time: int, *, text: str = "{}", track: str = "") -> int:
        event = self.event(category, 0, text)
        name = self.string(track or category)
        of = self.add("track", pid=PID, tid=TID, name_id=name)
        self.add("sample", track_id=of, timestamp=time, event_id=event)
        return event

    def counter(self, event: int, name: str, *values: float, **more: Any) -> None:
        """Add the values that the instances of a counter have for an event."""
        number = self.add("info_pmc", agent_id=1, name=name, symbol=name)
        for value in values:
            self.add("pmc_event", event_id=event, pmc_id=number, value=value, **more)


@contextmanager
def rocpd(path: Path, **options: Any) -> Iterator[RocpdFile]:
    """Give a database that is written to a path; `machine` is added unless it is given as False."""
    with_machine = options.pop("machine", True)
    gpus = options.pop("gpus", 1)
    file = RocpdFile(path, **options)
    if with_machine:
        file.machine(gpus)
    try:
        yield file
    finally:
        file.close()

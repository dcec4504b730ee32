"""XPlane files of a simulated run, as XLA's profiler writes them for JAX; what they can hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from sample_traces.machines import MACHINES, Machine
from sample_traces.messages import number, part
from sample_traces.records import Activity, Call, Mark, RankRun, Run, Work

HOST: Final = "sim-node-0"
MODULE: Final = "jit_train_step"
_LEAD_NS: Final = 1_500_000
"""From the start of the profiler to that of the run."""
_STEP: Final = re.compile(r"ProfilerStep#(\d+)")
_FRAME: Final = re.compile(r"(.+\.py)\((\d+)\): (.+)")
_GRAPH: Final = 1

Said = int | str
"""What a stat says; a text that begins with & is the name of another stat."""


class Carries(Struct, frozen=True):
    """What the format has a place for: all but the model of the GPU, operators and graph nodes."""

    bytes: bool = True
    links: bool = True
    streams: bool = True
    product: bool = False
    memory: bool = True


CARRIES: Final = Carries()


def part_of(run: Run) -> Run:
    """Return the run without what the format cannot hold, and with the names that it gives."""
    return Run(run.config, tuple(map(_part, run.ranks)))


def _part(rank: RankRun) -> RankRun:
    return replace(
        rank,
        activities=tuple(replace(one, op=None) for one in rank.activities),
        calls=tuple(replace(call, op=None) for call in rank.calls),
        marks=tuple(
            replace(mark, name=_STEP.sub(r"train step \1", mark.name)) for mark in rank.marks
        ),
        ops=(),
        allocations=(),
    )


def xla_op(work: Work) -> tuple[str, str]:
    """Return the op of XLA that a kernel is of, and its path in the program."""
    return f"{work.sub}_fusion.{work.grid[0]}", f"jit(train_step)/{work.top}/{work.sub}"


class PlaneWriter(Struct):
    """A plane while it is written: names of events and stats have keys in it.

    `shown` are the names that events show instead, by name.
    """

    name: str
    shown: Mapping[str, str] = {}
    events: dict[str, int] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)

    def event(self, name: str, start_ps: int, dur_ps: int, said: Mapping[str, Said]) -> bytes:
        """Return an event of a line."""
        key = self.events.setdefault(name, len(self.events) + 1)
        stats = b"".join(part(4, self.stat(stat, value)) for stat, value in said.items())
        return number(1, key) + number(2, start_ps) + number(3, dur_ps) + stats

    def stat(self, name: str, value: Said) -> bytes:
        """Return a stat of an event or of the plane."""
        key = number(1, self._stat_key(name))
        if isinstance(value, int):
            return key + number(3, value)
        if value.startswith("&"):
            return key + number(7, self._stat_key(value[1:]))
        return key + part(5, value.encode())

    def _stat_key(self, name: str) -> int:
        return self.stats.setdefault(name, len(self.stats) + 1)

    def message(self, lines: Iterable[bytes], facts: Mapping[str, Said]) -> bytes:
        """Return the plane; its names are known once all events are."""
        told = [self.stat(name, value) for name, value in facts.items()]
        written = b"".join(part(3, line) for line in lines)
        for kind, names in ((4, self.events), (5, self.stats)):
            entries = (
                number(1, key) + part(2, number(1, key) + part(2, name.encode()) + shown)
                for name, key in names.items()
                for shown in [part(4, self.shown[name].encode()) if name in self.shown else b""]
            )
            written += b"".join(part(kind, entry) for entry in entries)
        return part(2, self.name.encode()) + written + b"".join(part(6, one) for one in told)


def line(key: int, name: str, start_ns: int, events: Iterable[bytes]) -> bytes:
    """Return a line of a plane."""
    content = b"".join(part(4, event) for event in events)
    return number(1, key) + part(2, name.encode()) + number(3, start_ns) + content


def write_xplane(run: Run, folder: Path, python: bool = False) -> list[Path]:
    """Write `rank<n>.xplane.pb` for each rank; `python`: with the functions of the program."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in run.ranks:
        paths.append(folder / f"rank{rank.rank}.xplane.pb")
        paths[-1].write_bytes(xspace(rank, MACHINES[run.config.machine], python=python))
    return paths


def xspace(rank: RankRun, machine: Machine, *, python: bool = False) -> bytes:
    """Return the file of a rank."""
    metadata = part(2, b"/host:metadata") + part(
        4, number(1, 7) + part(2, part(2, MODULE.encode()))
    )
    began = PlaneWriter("Task Environment").message(
        (), {"profile_start_time": rank.origin_unix_ns - _LEAD_NS}
    )
    planes = (metadata, _gpu(rank, machine), _host(rank, python=python), began)
    return b"".join(part(1, plane) for plane in planes) + part(4, HOST.encode())


def _gpu(rank: RankRun, machine: Machine) -> bytes:
    plane = PlaneWriter(f"/device:GPU:{rank.rank}")
    facts = {
        "device_vendor": "Nvidia" if machine.width == 32 else "AMD",
        "clock_rate": 1_980_000,
        "core_count": machine.units,
        "memory_size": machine.memory_bytes,
        "compute_cap_major": int(machine.properties["computeMajor"]),
        "compute_cap_minor": int(machine.properties["computeMinor"]),
    }
    return plane.message(_device_lines(rank, plane), facts)


def _device_lines(rank: RankRun, plane: PlaneWriter) -> Iterator[bytes]:
    """Give the lines of streams, and those that repeat their time: nothing may count them."""
    for stream in sorted({one.stream for one in rank.activities}):
        mine = [one for one in rank.activities if one.stream == stream]
        start_ns = _LEAD_NS + mine[0].start_ns
        events = [
            plane.event(
                _name(one), 1000 * (one.start_ns - mine[0].start_ns), 1000 * one.dur_ns, _said(one)
            )
            for one in mine
        ]
        yield line(stream, f"Stream #{stream}(Compute,MemcpyH2D)", start_ns, events)
    whole = plane.event(MODULE, 0, 1000 * rank.end_ns, {})
    yield line(10**6, "XLA Modules", _LEAD_NS, [whole])
    ops = [one for one in rank.activities if one.work.kind == "kernel"]
    repeated = [
        plane.event(xla_op(one.work)[0], 1000 * one.start_ns, 1000 * one.dur_ns, {}) for one in ops
    ]
    yield line(10**6 + 1, "XLA Ops", _LEAD_NS, repeated)


def _name(activity: Activity) -> str:
    work = activity.work
    ways = {"HtoD": "MemcpyH2D", "DtoH": "MemcpyD2H"}
    others = {"memset": "Memset", "graph": "CudaGraph", "memcpy": ways.get(work.direction or "")}
    return others.get(work.kind) or work.name


def _said(activity: Activity) -> dict[str, Said]:
    """Return what the stats of an activity say."""
    work = activity.work
    said: dict[str, Said] = {"correlation_id": activity.correlation}
    if activity.graph_node is not None:
        said["cuda_graph_id"] = _GRAPH
    if work.kind == "kernel":
        op, path = xla_op(work)
        grid, block = (",".join(map(str, size)) for size in (work.grid, work.block))
        said["kernel_details"] = (
            f"regs:{work.registers} static_shared:0 dynamic_shared:{work.shared_bytes} "
            f"grid:{grid} block:{block} occ_pct:50"
        )
        said |= {"hlo_module": f"&{MODULE}", "hlo_op": f"&{op}", "name": f"&{path}"}
    elif work.kind != "graph":
        said[f"{work.kind}_details"] = f"kind:pinned size:{work.bytes} dest:0 async:1"
    return said


def _host(rank: RankRun, *, python: bool) -> bytes:
    plane = PlaneWriter("/host:CPU")
    marks = [mark for mark in rank.marks if mark.is_range or (python and mark.kind == "python")]
    recorded: list[Call | Mark] = sorted((*rank.calls, *marks), key=lambda one: one.start_ns)
    lines = []
    for thread in sorted({one.thread for one in recorded}):
        events = [_host_event(plane, one) for one in recorded if one.thread == thread]
        lines.append(line(thread, f"Host Threads/{thread}", _LEAD_NS, events))
    return plane.message(lines, {})


def _host_event(plane: PlaneWriter, one: Call | Mark) -> bytes:
    said: dict[str, Said] = {}
    name = one.name
    if isinstance(one, Call):
        said["correlation_id"] = one.correlation
    elif step := _STEP.fullmatch(name):
        name, said = "train", {"step_num": int(step[1]), "_r": 1}
    elif frame := _FRAME.fullmatch(name):
        name = f"${frame[1]}:{frame[2]} {frame[3]}"
    return plane.event(name, 1000 * one.start_ns, 1000 * one.dur_ns, said)

"""Perfetto traces of rocprofv3, and of rocprof-sys with what it samples of the GPU.

As the library that both use writes them: one sequence of packets, whose times are steps from the
packet before, or absolute where they would go back; names are interned where they are constants.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, field

from sample_traces.messages import fixed, number, part
from sample_traces.records import Run, Triple
from sample_traces.rocprof.agents import CPUS
from sample_traces.rocprof.capture import Capture, Dispatch, HostRange, Transfer, captures
from sample_traces.rocprof.names import written
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.v3_csv import DIRECTIONS

Layout = Literal["by stream", "by queue", "rocprof-sys"]
"""How work stands on tracks: those of rocprofv3 by stream (the default) or queue; rocprof-sys."""

Said = dict[str, int | str]
SECRET: Final = "sk-secret-of-the-command-line"
"""Stands in the command line of the process."""
_SEQUENCE: Final = 2
_BOOT, _MONOTONIC, _REALTIME, _STEPS = 6, 3, 1, 64
_SLEPT_NS: Final = 5_000_000_000
_CALENDAR_NS: Final = 1_700_000_000_000_000_000
_BEGIN, _END, _COUNTER = 1, 2, 4
_CATEGORIES, _NAMES, _ANNOTATIONS = 1, 2, 3
_SAMPLE_NS: Final = 10_000_000
_GAUGES: Final = {
    "device_busy_gfx": ("GFX Busy", "%", 91.0),
    "device_temp": ("Temperature", "deg C", 64.0),
    "device_power": ("Current Power", "watts", 512.5),
    "device_memory_usage": ("Memory Usage", "megabytes", 1234.5),
}
"""What rocprof-sys samples of a GPU by category: name, unit, and a value that stays."""


def write_perfetto(
    run: Run, folder: Path, options: RocprofOptions, layout: Layout = "by stream"
) -> list[Path]:
    """Write `<host>/<pid>_results.pftrace` for each rank, of rocprof-sys `perfetto-trace-<n>`."""
    paths = []
    for capture in captures(run, options):
        is_sys = layout == "rocprof-sys"
        name = f"perfetto-trace-{capture.rank}.proto" if is_sys else None
        path = folder / options.host / (name or f"{capture.process}_results.pftrace")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_File(capture, options, layout).data())
        paths.append(path)
    return paths


class _File(Struct):
    """Makes the packets of one process."""

    capture: Capture
    options: RocprofOptions
    layout: Layout
    packets: list[bytes] = field(default_factory=list)
    now_ns: int = 0
    tracks: dict[str, int] = field(default_factory=dict)
    interned: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def is_sys(self) -> bool:
        """Whether it is of rocprof-sys."""
        return self.layout == "rocprof-sys"

    def data(self) -> bytes:
        """Return the file."""
        self._begin()
        for one in self.capture.ranges:
            self._range(one)
        for copy in self.capture.transfers:
            self._copy(copy)
        for kernel in self.capture.dispatches if self.options.times else ():
            self._kernel(kernel)
        if self.is_sys:
            self._samples()
        return b"".join(part(1, packet) for packet in self.packets)

    def _begin(self) -> None:
        """Add the clocks of the machine and of the sequence, and what holds for it."""
        self.now_ns = now = self.capture.init_ns
        shown = {_BOOT: now, _MONOTONIC: now - _SLEPT_NS, _REALTIME: now + _CALENDAR_NS}
        self.packets.append(part(6, b"".join(_clock(*one) for one in shown.items())))
        own = part(
            6, _clock(_BOOT, now) + part(1, number(1, _STEPS) + number(2, now) + number(3, 1))
        )
        process = number(1, self.capture.process) + part(2, SECRET.encode()) + part(6, b"python3")
        defaults = number(58, _STEPS) + part(11, number(11, _uuid("process")))
        self._add(number(13, 1) + own + part(59, defaults))
        self._add(part(60, number(1, _uuid("process")) + part(3, process)))

    def _add(self, content: bytes) -> None:
        self.packets.append(content + number(10, _SEQUENCE))

    def _timed(self, time_ns: int, content: bytes) -> None:
        """Add a packet with its step from the one before, or with its time if that is later."""
        if time_ns < self.now_ns:
            self._add(number(8, time_ns) + number(58, _BOOT) + content)
            return
        self._add(number(8, time_ns - self.now_ns) + content)
        self.now_ns = time_ns

    def _track(self, name: str, content: bytes = b"") -> int:
        """Return a track, which is described when it is first used."""
        if name not in self.tracks:
            self.tracks[name] = uuid = _uuid(f"{self.capture.process} {name}")
            named = content or part(2, name.encode())
            self._add(part(60, number(1, uuid) + number(5, _uuid("process")) + named))
        return self.tracks[name]

    def _thread(self, thread: int) -> int:
        """Return the track of a thread; rocprofv3 describes only the main one as a thread."""
        name = f"THREAD 1 ({thread})"
        if self.is_sys or thread == self.capture.process:
            ids = number(1, self.capture.process) + number(2, thread)
            return self._track(name, part(4, ids + part(5, b"python3")))
        return self._track(name)

    def _id(self, kind: int, text: str) -> tuple[int, bytes]:
        """Return the id of a text, and what defines it where it is new."""
        known = self.interned.get((kind, text))
        if known is not None:
            return known, b""
        iid = self.interned[kind, text] = 1 + sum(own == kind for own, _ in self.interned)
        return iid, part(kind, number(1, iid) + part(2, text.encode()))

    def _slice(
        self, track: int, category: str, name: str, times: tuple[int, int], said: Said
    ) -> None:
        """Add the begin of a slice with its annotations, and its end."""
        start_ns, end_ns = times
        event = number(9, _BEGIN) + number(11, track)
        event += fixed(47, struct.pack("<Q", hash((self.capture.process, said["corr_id"])) % 2**64))
        category_id, new = self._id(_CATEGORIES, f"rocm_{category}" if self.is_sys else category)
        event += number(3, category_id)
        if self.is_sys:
            event += part(23, name.encode())
        else:
            name_id, new_name = self._id(_NAMES, name)
            event, new = event + number(10, name_id), new + new_name
        ends: Said = {"begin_ns": start_ns, "end_ns": end_ns, "delta_ns": end_ns - start_ns}
        for key, value in (ends | said).items():
            content = part(6, value.encode()) if isinstance(value, str) else number(3, value)
            if self.is_sys:
                event += part(4, part(10, key.encode()) + content)
            else:
                key_id, new_key = self._id(_ANNOTATIONS, key)
                event, new = event + part(4, number(1, key_id) + content), new + new_key
        self._timed(start_ns, (part(12, new) if new else b"") + part(11, event))
        self._timed(end_ns, part(11, number(9, _END) + number(11, track)))

    def _range(self, one: HostRange) -> None:
        said: Said = {"tid": one.thread, "kind": 11, "operation": 7, "corr_id": one.correlation}
        said |= {f"arg {name}": value for _, name, value in one.arguments}
        category = "rccl" if self.is_sys and one.domain == "rccl" else f"{one.domain}_api"
        self._slice(self._thread(one.thread), category, one.name, (one.start_ns, one.end_ns), said)

    def _copy(self, one: Transfer) -> None:
        kind = "CPU" if one.target < CPUS else "GPU"
        track = f"COPY to AGENT [{one.target}] STREAM [{one.stream}] ({kind})"
        ends: Said = {"src_agent": _agent(one.source), "dst_agent": _agent(one.target)}
        ends |= {"copy_bytes": one.work.bytes, "operation": 2, "tid": one.thread}
        if self.is_sys:
            track = f"GPU Memory Copy to Agent [{one.target}] Thread 0"
            ends = {"src_agent_id": one.source, "dst_agent_id": one.target}
            ends |= {"bytes": one.work.bytes, "stream_id": one.stream}
        name = DIRECTIONS[one.work.direction or ""]
        said = ends | {"kind": 10, "corr_id": one.correlation}
        self._slice(self._track(track), "memory_copy", name, (one.start_ns, one.end_ns), said)

    def _kernel(self, one: Dispatch) -> None:
        node = self.capture.node
        track = {
            "by stream": f"COMPUTE AGENT [{node}] STREAM [{one.stream}] (GPU)",
            "by queue": f"COMPUTE AGENT [{node}] QUEUE [{one.queue}] GPU",
            "rocprof-sys": f"GPU Kernel Dispatch [{node - CPUS}] Queue {one.queue}",
        }[self.layout]
        said: Said = {"kind": 11, "corr_id": one.correlation, "queue": one.queue}
        said |= {"kernel_id": one.kernel.kernel_id, "private_segment_size": 0}
        said |= {"group_segment_size": one.work.shared_bytes}
        if self.is_sys:
            said |= {"workgroup_size": _text(one.workgroup), "grid_size": _text(one.grid)}
        else:
            said |= {"agent": _agent(node), "tid": one.thread}
            said |= {"workgroup_size": prod(one.workgroup), "grid_size": prod(one.grid)}
        name = written(one.kernel.name, self.options.names)
        self._slice(self._track(track), "kernel_dispatch", name, (one.start_ns, one.end_ns), said)

    def _samples(self) -> None:
        """Add what is sampled of the GPU while it works."""
        first = min((one.start_ns for one in self.capture.dispatches), default=self.now_ns)
        for at in range(first, self.capture.fini_ns, _SAMPLE_NS):
            for category, (what, unit, value) in _GAUGES.items():
                name = f"GPU {what} [{self.capture.node - CPUS}] (S)"
                track = self._track(name, part(2, name.encode()) + part(8, part(6, unit.encode())))
                content = number(9, _COUNTER) + number(11, track) + part(22, category.encode())
                self._timed(at, part(11, content + fixed(44, struct.pack("<d", value))))


def _clock(clock: int, time_ns: int) -> bytes:
    return part(1, number(1, clock) + number(2, time_ns))


def _agent(node: int) -> str:
    return f"{'CPU' if node < CPUS else 'GPU'}-{node}"


def _text(sizes: Triple) -> str:
    return "({},{},{})".format(*sizes)


def _uuid(text: str) -> int:
    """Return a track's number, of 64 bits as those of the library are."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "little")

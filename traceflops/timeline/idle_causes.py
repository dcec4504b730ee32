"""Idle time by cause, as frozen values in integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, attrgetter
from typing import Final

IDLE_CAUSES: Final = ("host_late", "queued", "launch_latency", "unknown")
_FIELDS_NS = attrgetter(
    *(f"{name}_ns" for name in (*IDLE_CAUSES, "in_launch_call", "stream_wait", "unrecorded"))
)


@dataclass(frozen=True, slots=True)
class IdleCauses:
    """Idle time by what the next activity was waiting for; the causes sum to the idle time.

    host_late: its launch call had not begun. queued: launched, held back by another stream.
    launch_latency: launched, its stream free, not yet started. unknown: no launch in the trace.

    `in_launch_call_ns` and `stream_wait_ns` are parts of the launch latency. `unrecorded_ns` is the
    part of the unknown in which launched work waited for something that is not in the trace.
    """

    host_late_ns: int = 0
    queued_ns: int = 0
    launch_latency_ns: int = 0
    unknown_ns: int = 0
    in_launch_call_ns: int = 0
    stream_wait_ns: int = 0
    unrecorded_ns: int = 0

    @property
    def idle_ns(self) -> int:
        """Return the idle time that is explained."""
        return sum(self.parts().values())

    @property
    def unrecorded(self) -> IdleCauses:
        """Return the same time where all of it may be work that is not in the trace."""
        return IdleCauses(unknown_ns=self.idle_ns, unrecorded_ns=self.idle_ns)

    def parts(self) -> dict[str, int]:
        """Return the parts by cause, in the order of IDLE_CAUSES."""
        return {name: getattr(self, f"{name}_ns") for name in IDLE_CAUSES}

    def launch_latency_parts(self) -> dict[str, int]:
        """Return the launch latency: in the launch call, held by a stream wait, and after both."""
        after = self.launch_latency_ns - self.in_launch_call_ns - self.stream_wait_ns
        return {
            "in_launch_call": self.in_launch_call_ns,
            "stream_wait": self.stream_wait_ns,
            "launch_to_start": after,
        }

    def detailed(self) -> dict[str, int]:
        """Return the parts by cause, with those of the launch latency in its place."""
        parts = self.parts()
        host_late, queued, unknown = (parts[name] for name in ("host_late", "queued", "unknown"))
        known = {"host_late": host_late, "queued": queued}
        return {**known, **self.launch_latency_parts(), "unknown": unknown}

    @property
    def largest(self) -> str:
        """Return the cause, of those in detail, that has most of the time."""
        return max(self.detailed().items(), key=lambda item: item[1])[0]

    def __add__(self, other: IdleCauses) -> IdleCauses:
        """Return the sum, cause by cause."""
        return IdleCauses(*map(add, _FIELDS_NS(self), _FIELDS_NS(other)))

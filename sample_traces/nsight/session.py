"""A recording of some processes: what is asked of it, its clock and ids, whose GPU is whose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal
from uuid import NAMESPACE_OID, uuid5

from msgspec import Struct, field

from sample_traces.records import RankRun, Run

Markers = Literal["none", "steps", "all"]
Nccl = Literal["none", "ranges", "payloads"]


class NsightOptions(Struct, frozen=True):
    """What is recorded beside device work, as far as the format has a place for it."""

    calls: bool = True
    """Calls of the runtime and the driver, and waits (--trace=cuda has them always)."""
    markers: Markers = "steps"
    """NVTX ranges: none, one per step, or every annotation of the program."""
    ops: bool = False
    """Operators with the sizes of their inputs (torch.autograd.profiler.emit_nvtx)."""
    nccl: Nccl = "none"
    """Ranges that NCCL makes in a domain of its own, maybe with their payloads
    (nsys export --include-json=true)."""
    driver_calls: bool = False
    """Launches by the runtime contain one by the driver that has the same correlation id."""
    lead_ns: int = 2_500_000_000
    """From the start of the session to that of the run; below 0 times may be negative."""
    host: str = "sim-node-0"


Visible = Literal["all", "own"]
"""Which GPUs a process sees: all of the machine, or its own alone, which it then calls 0."""

VM: Final = 1 << 48
CONTEXT: Final = 1


class Session(Struct):
    """One report. Texts get numbers as they are asked for; the first are always there."""

    run: Run
    ranks: tuple[RankRun, ...]
    options: NsightOptions
    visible: Visible = "all"
    texts: dict[str, int] = field(default_factory=lambda: {"[Unknown]": 0, "[Max depth]": 1})

    @property
    def start_unix_ns(self) -> int:
        """Unix time of the session's time 0."""
        first = self.ranks[0]
        # Sessions of ranks do not begin together.
        return first.origin_unix_ns - self.options.lead_ns - 1_234_567 * first.rank

    def time(self, rank: RankRun, time_ns: int) -> int:
        """Return a moment of a rank on the clock of the session."""
        return rank.origin_unix_ns + time_ns - self.start_unix_ns

    def text(self, text: str) -> int:
        """Return the number of a text."""
        return self.texts.setdefault(text, len(self.texts))

    def device(self, rank: RankRun) -> int:
        """Return the number that a process has for its GPU."""
        return rank.rank if self.visible == "all" else 0

    def numbers(self, rank: RankRun) -> Mapping[int, int]:
        """Return the GPUs that a process sees, by the numbers that it has for them."""
        if self.visible == "own":
            return {0: rank.rank}
        return {gpu: gpu for gpu in range(self.run.config.ranks)}


def global_pid(rank: RankRun) -> int:
    """Return the id of a process."""
    return VM | rank.process << 24


def global_tid(rank: RankRun, thread: int) -> int:
    """Return the id of a thread."""
    return global_pid(rank) | thread


def uuid_of(gpu: int) -> str:
    """Return the identity of a GPU."""
    return str(uuid5(NAMESPACE_OID, f"gpu {gpu}"))


def sessions(
    run: Run, options: NsightOptions, together: bool, visible: Visible = "all"
) -> list[Session]:
    """Return the reports of a run: one of all its processes, or one of each."""
    if run.config.machine != "h100":
        raise ValueError("Nsight runs on NVIDIA's devices: simulate one (RunConfig())")
    groups = [run.ranks] if together else [(rank,) for rank in run.ranks]
    return [Session(run, ranks, options, visible) for ranks in groups]

"""TODO."""

from __future__ import annotations

from dataclasses import dataclass, replace

from traceflops.devices.processes import ranks_text
from traceflops.timeline.records import Account, Gap, WholeSpan, Window


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device: what it is, its whole span, its windows and the chosen ones added up.

    Unknown properties are None; `partition` says which part of a card it is. `chosen` is the
    account of the windows with `used` set. `ranks` are those of all processes that worked on it,
    of which `rank` is that of the one it is listed for. `owner` is what stands for the process in
    the label, "" for its ranks or file; `apart` is what else tells the device from others.
    """

    device: int
    rank: int | None
    process: int
    file: str
    type: str
    local_id: int
    product: str | None
    memory_bytes: int | None
    sm_count: int | None
    whole: WholeSpan
    windows: tuple[Window, ...]
    chosen: Account
    gaps: tuple[Gap, ...]
    owner: str = ""
    apart: str = ""
    architecture: str | None = None
    partition: str | None = None
    ranks: tuple[int, ...] = ()

    @property
    def rank_text(self) -> str:
        """Return the ranks that worked on the device in words, "" where none is known."""
        return ranks_text(self.ranks or ((self.rank,) if self.rank is not None else ()))

    @property
    def with_idle_unrecorded(self) -> DeviceReport:
        """Return the same where any of the idle time may be work that is not in the trace."""
        return replace(
            self,
            whole=replace(self.whole, account=self.whole.account.with_idle_unrecorded),
            windows=tuple(
                replace(one, account=one.account.with_idle_unrecorded) for one in self.windows
            ),
            chosen=self.chosen.with_idle_unrecorded,
            gaps=tuple(replace(gap, causes=gap.causes.unrecorded) for gap in self.gaps),
        )

    @property
    def label(self) -> str:
        """Return what to call the device in a table."""
        owner = self.rank_text or self.file
        device = self.type if self.type == "cpu" else f"{self.type} {self.local_id}"
        apart = f" · {self.apart}" if self.apart else ""
        return f"{self.owner or owner} · {device}{apart}"

    @property
    def steps(self) -> tuple[Window, ...]:
        """Return the windows that are steps."""
        return tuple(window for window in self.windows if window.role == "step")


@dataclass(frozen=True, slots=True)
class StepChoice:
    """How steps were found and which of them the figures are about.

    `source` is markers, mark-regex, annotation, optimizer, copies, signature or none; `text`
    says it in words. `seen` and `used` are step numbers, merged over the ranks. `typical_ns` is the
    median time of the steps used, None where none is used or windows have no accounts yet.
    """

    source: str
    text: str
    seen: tuple[int, ...]
    used: tuple[int, ...]
    typical_ns: int | None = None

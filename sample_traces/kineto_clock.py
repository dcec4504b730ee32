"""How the numbers of a rank are written: times, ids, process and thread names."""

from __future__ import annotations

from dataclasses import dataclass

from sample_traces.kineto_options import KinetoOptions
from sample_traces.kineto_text import Digits, micros
from sample_traces.records import RankRun

# Kineto rounds the base down to a quarter of a Julian year.
_BASE_UNIT_NS = 7_889_238 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Numbers:
    """Writes the numbers of one rank's trace as the options ask."""

    rank: RankRun
    options: KinetoOptions

    @property
    def base_unix_ns(self) -> int:
        """Unix ns that every time of the file is relative to."""
        if self.options.base_unix_ns is not None:
            return self.options.base_unix_ns
        return self.rank.origin_unix_ns // _BASE_UNIT_NS * _BASE_UNIT_NS

    @property
    def device(self) -> int:
        """Device number of the rank's events."""
        return self.rank.rank + self.options.device_offset

    def time(self, time_ns: int) -> Digits:
        """Return the text of a moment given in ns since the run began."""
        unix_ns = self.rank.origin_unix_ns + time_ns
        if self.options.times == "absolute":
            return Digits(unix_ns // 1000)
        return micros(unix_ns - self.base_unix_ns)

    def duration(self, dur_ns: int) -> Digits:
        """Return the text of a duration in ns."""
        return Digits(dur_ns // 1000) if self.options.times == "absolute" else micros(dur_ns)

    def id(self, number: int) -> int | str:
        """Return a correlation or external id."""
        return str(number) if self.options.ids == "string" else number

    def thread(self, thread: int) -> int | str:
        """Return a host thread's name."""
        return str(thread) if self.options.legacy else thread

    def stream(self, stream: int) -> int | str:
        """Return a stream's name in the place of a thread."""
        return f"stream {stream}" if self.options.legacy else stream

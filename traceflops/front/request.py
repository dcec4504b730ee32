"""The options of an analysis of files, as commands and `tf.analyze` pass them on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from traceflops.errors import UsageError
from traceflops.mfu.budget import FROM_THE_TRACE, PeakOptions
from traceflops.table.trace import Trace
from traceflops.windows.selection import Selection


class Request(Struct, frozen=True):
    """All that an analysis depends on besides the files; worker processes get a copy.

    `pair` is a recording that provides FLOPs, or its paths. `reading` has keyword arguments of
    `read`, without `watch`. `dask` is the address of a cluster, or "local".
    """

    selection: Selection = field(default_factory=Selection)
    peaks: PeakOptions = FROM_THE_TRACE
    pair: Trace | Sequence[str] = ()
    rules: Path | None = None
    finding_rules: Path | None = None
    include_environment: bool = False
    redact: bool = False
    reading: Mapping[str, Any] = field(default_factory=dict)
    dask: str | None = None

    def check_reducible(self) -> None:
        """Raise UsageError for options that do not work with summaries."""
        if self.redact:
            raise UsageError("--redact does not work with summaries", "give the traces to report")
        self.refuse_side_files("summaries")
        if self.pair:
            raise UsageError("--pair does not work with summaries", "give the traces to report")

    def refuse_side_files(self, several: str) -> None:
        """Raise UsageError if there are side files; `several` names what they do not work with."""
        if option := self.side_option:
            raise UsageError(
                f"{option} does not work with {several}",
                f"join them first: traceflops pack TRACE {option} FILE",
            )

    @property
    def side_option(self) -> str | None:
        """Return the option that names files beside the trace, None if there are none."""
        options = {"memory": "--memory", "gpu_samples": "--gpu-samples"}
        return next((text for name, text in options.items() if self.reading.get(name)), None)

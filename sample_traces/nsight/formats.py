"""All formats of Nsight that a run can be written in: timelines, sums, and pages of counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from sample_traces.nsight.ncu import write_details, write_raw
from sample_traces.nsight.nsys import write_folders, write_sqlite
from sample_traces.nsight.options import NsightOptions
from sample_traces.nsight.stats import write_traces
from sample_traces.nsight.sums import write_sums
from sample_traces.records import Run

Writer = Callable[[Run, Path, NsightOptions], list[Path]]

WRITERS: Final[Mapping[str, Writer]] = {
    "nsys 2020": partial(write_sqlite, era="2020"),
    "nsys 2020 together": partial(write_sqlite, era="2020", together=True),
    "nsys 2023": partial(write_sqlite, era="2023"),
    "nsys 2023 together": partial(write_sqlite, era="2023", together=True),
    "nsys 2026": write_sqlite,
    "nsys 2026 together": partial(write_sqlite, together=True),
    "nsys 2026 of own GPUs": partial(write_sqlite, together=True, visible="own"),
    "nsys parquetdir": write_folders,
    "nsys arrowdir": partial(write_folders, form="arrow"),
    "stats 2021": partial(write_traces, release="2021"),
    "stats": write_traces,
    "stats in us": partial(write_traces, unit="us"),
    "stats in ms": partial(write_traces, unit="ms"),
    "stats together": partial(write_traces, together=True),
}
"""Timelines, by the names of `CARRIES`."""

SUMS: Final[Mapping[str, Writer]] = {
    "sums 2021": partial(write_sums, release="2021"),
    "sums": write_sums,
    "sums in ms": partial(write_sums, unit="ms"),
    "sums as text": partial(write_sums, form="console"),
}
"""Sums by name, of all processes."""

PAGES: Final[Mapping[str, Callable[[Run, Path], Path]]] = {
    "raw": write_raw,
    "raw in scaled units": partial(write_raw, units="auto"),
    "details 2020": partial(write_details, layout="2020"),
    "details": write_details,
    "details with rules": partial(write_details, layout="rules"),
    "details in full": partial(write_details, layout="full"),
    "details in base units": partial(write_details, units="base"),
}
"""Pages of counters."""

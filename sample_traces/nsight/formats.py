"""All formats of Nsight that a run can be written in: timelines, sums, and pages of counters.

What of a run each format can hold, and the part of a run that remains.

A format's files and a PyTorch trace of the part that it holds say the same, and so does the truth
about that part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from sample_traces.nsight.names import demangled
from sample_traces.nsight.ncu import write_details, write_raw
from sample_traces.nsight.ncu_report import write_report
from sample_traces.nsight.nsys import write_folders, write_sqlite
from sample_traces.nsight.report import write_reports
from sample_traces.nsight.session import NsightOptions
from sample_traces.nsight.stats import write_traces
from sample_traces.nsight.sums import write_sums
from sample_traces.records import Activity, RankRun, Run


class Carries(Struct, frozen=True):
    """What a format has a place for. Times, names, sizes, streams and calls it always has.

    `bytes` of copies and fills are exact. `links` lead from work to what asked for it. Of the GPU:
    which `product` it is and how many multiprocessors it has, its `memory`. `anchor` is the time
    of day of the session. `ops` are operators with the sizes of their inputs, `payloads` what NCCL
    says of its messages, `graphs` replays of graphs whose kernels were not recorded, `graph_nodes`
    which node of a graph a kernel is. `gpus` tells apart GPUs that processes call by one number.
    `host` is the name of the machine.
    """

    bytes: bool = True
    links: bool = True
    streams: bool = True
    product: bool = True
    memory: bool = True
    anchor: bool = True
    ops: bool = True
    payloads: bool = True
    graphs: bool = True
    graph_nodes: bool = True
    mangled: bool = True
    gpus: bool = True
    host: bool = True

    @property
    def steps(self) -> bool:
        """Whether steps can be those of the ranges: these need work to be linked to calls."""
        return self.links


_OF_2020: Final = Carries(anchor=False, graphs=False, mangled=False, host=False)
_REPORT: Final = Carries(payloads=False, graph_nodes=False, host=False)
_STATS: Final = Carries(
    bytes=False,
    product=False,
    memory=False,
    anchor=False,
    ops=False,
    payloads=False,
    graphs=False,
    graph_nodes=False,
    mangled=False,
    host=False,
)

CARRIES: Final[Mapping[str, Carries]] = {
    "nsys 2020": _OF_2020,
    "nsys 2020 together": _OF_2020,
    "nsys 2023": Carries(),
    "nsys 2023 together": Carries(),
    "nsys 2026": Carries(),
    "nsys 2026 together": Carries(),
    "nsys 2026 of own GPUs": Carries(),
    "nsys parquetdir": Carries(),
    "nsys arrowdir": Carries(),
    "nsys report 2023": _REPORT,
    "nsys report together": _REPORT,
    "stats 2021": _STATS,
    "stats": _STATS,
    "stats in us": _STATS,
    "stats in ms": _STATS,
    "stats together": replace(_STATS, links=False),
}
"""By format, of several processes. Without a process in the table of device work, its rows are of
none that calls."""


def carries_of(name: str, run: Run) -> Carries:
    """Return what a format holds of a run; work of the only process there is has its calls."""
    return replace(CARRIES[name], links=True) if len(run.ranks) == 1 else CARRIES[name]


def part_of(run: Run, carries: Carries) -> Run:
    """Return the run without what the format cannot hold, and with the names that it gives."""
    return Run(run.config, tuple(_part(rank, carries) for rank in run.ranks))


_NO_CALL: Final = 10_000_000


def _part(rank: RankRun, carries: Carries) -> RankRun:
    return replace(
        rank,
        activities=tuple(_as_written(one, carries) for one in rank.activities),
        calls=tuple(replace(call, op=None) for call in rank.calls) if carries.links else (),
        marks=rank.marks if carries.links else (),
        ops=(),
        allocations=(),
    )


def _as_written(activity: Activity, carries: Carries) -> Activity:
    work = activity.work
    if work.kind == "kernel":
        work = replace(work, name=demangled(work.name))
    if carries.links:
        return replace(activity, work=work, op=None)
    # A number that no call has.
    unlinked = activity.correlation + _NO_CALL
    return replace(activity, work=work, op=None, call=None, correlation=unlinked)


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
    "nsys report 2023": partial(write_reports, writer="2023"),
    "nsys report together": partial(write_reports, together=True),
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
    "report": write_report,
    "report of 2019": partial(write_report, writer="2019"),
}
"""Pages of counters, and reports that hold the same."""

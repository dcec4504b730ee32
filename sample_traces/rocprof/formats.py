"""All formats of rocprof that a run can be written in, by the names of `CARRIES`.

What of a run each format can hold, and the part of a run that remains.

A format's files and a PyTorch trace of the part that it holds say the same, and so does the truth
about that part.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from sample_traces.records import Activity, Call, RankRun, Run, Work
from sample_traces.rocprof.capture import submitted_ns
from sample_traces.rocprof.names import cloned, truncated
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.perfetto import write_perfetto
from sample_traces.rocprof.rocpd import write_rocpd
from sample_traces.rocprof.v1_csv import write_v1_csv
from sample_traces.rocprof.v1_db import write_v1_api_db, write_v1_db
from sample_traces.rocprof.v1_json import FILL_NAME, write_v1_api_json, write_v1_json
from sample_traces.rocprof.v2 import write_v2_csv, write_v2_ops_csv
from sample_traces.rocprof.v3_csv import write_converted_csv, write_v3_csv
from sample_traces.rocprof.v3_json import write_v3_json

Names = Literal["as they are", "with .kd", "truncated"]


class Carries(Struct, frozen=True):
    """What a format has a place for. The times of kernels, their names and sizes it always has.

    Kernels stand in hardware queues (`streams`), copy engines in none, so that a copy's stream is
    never told apart. Of kernels: their `geometry`, if not only its product. Of copies: `copies`
    at all and their `bytes`. Of the host: `calls`, or the `moments` at which kernels were put
    into their queues; `threads` of calls; `links` from work to what asked for it; `markers`;
    calls of `collectives`, maybe with their `sizes`. Of the GPU: which `device` it was, its
    `product`, its `memory`. `fills` says whether a fill is a kernel or a record of its own kind.
    """

    copies: bool = True
    bytes: bool = True
    calls: bool = True
    moments: bool = False
    threads: bool = True
    links: bool = True
    markers: bool = True
    collectives: bool = True
    sizes: bool = False
    streams: bool = True
    geometry: bool = True
    device: bool = True
    product: bool = True
    memory: bool = True
    counters: bool = True
    graph_nodes: bool = False
    names: Names = "as they are"
    fills: Literal["kernel", "memset"] = "kernel"

    @property
    def steps(self) -> bool:
        """Whether steps can be those of the markers: these need work to be linked to calls."""
        return self.markers and self.links


_V1 = Carries(
    copies=False,
    bytes=False,
    calls=False,
    moments=True,
    geometry=False,
    markers=False,
    collectives=False,
    product=False,
    memory=False,
    names="with .kd",
)
_V1_CALLS = Carries(
    bytes=False,
    collectives=False,
    geometry=False,
    product=False,
    memory=False,
    counters=False,
    fills="memset",
)
_V2 = replace(
    _V1, copies=True, calls=True, moments=False, threads=False, markers=True, names="truncated"
)
_V3_CSV = Carries(bytes=False, memory=False)
_PFTRACE = Carries(geometry=False, product=False, memory=False, counters=False)

CARRIES: Final[Mapping[str, Carries]] = {
    "v1 csv, to ROCm 5.2": _V1,
    "v1 csv": _V1,
    "v1 csv with sums": _V1,
    "v1 json": replace(_V1, product=True, memory=True),
    "v1 json of calls": replace(_V1_CALLS, bytes=True, product=True, memory=True),
    "v1 database": _V1,
    "v1 database of calls": _V1_CALLS,
    "v2 csv, ROCm 5.7": _V2,
    "v2 csv": _V2,
    "v2 csv of operations": replace(
        _V2, streams=False, device=False, counters=False, fills="memset"
    ),
    "v3 csv, ROCm 6.2": _V3_CSV,
    "v3 csv, ROCm 6.3": _V3_CSV,
    "v3 csv": _V3_CSV,
    "v3 csv by type": _V3_CSV,
    "v3 csv converted": _V3_CSV,
    "v3 json, ROCm 6.2": Carries(),
    "v3 json": Carries(),
    "v3 json together": Carries(),
    "v3 json, ROCm 7.13": Carries(graph_nodes=True),
    "rocpd 3.0.0": Carries(sizes=True),
    "rocpd 3.0.2": Carries(sizes=True, graph_nodes=True),
    "rocpd 3.0.3": Carries(sizes=True, graph_nodes=True),
    "pftrace": _PFTRACE,
    "pftrace by queue": _PFTRACE,
    "pftrace of rocprof-sys": replace(_PFTRACE, geometry=True),
}
"""By format. Ranks stand in no format; the collective's kind only where RCCL was traced."""


def part_of(run: Run, carries: Carries) -> Run:
    """Return the run without what the format cannot hold, and with the names that it gives."""
    return Run(run.config, tuple(_part(rank, carries) for rank in run.ranks))


def _part(rank: RankRun, carries: Carries) -> RankRun:
    held = [_as_written(one, carries) for one in rank.activities if _is_held(one, carries)]
    calls: list[Call] = []
    if carries.moments:
        calls = [_moment(rank, one, number) for number, one in enumerate(held)]
        held = [
            replace(one, call=number, correlation=calls[number].correlation)
            for number, one in enumerate(held)
        ]
    elif carries.calls:
        calls = [replace(call, op=None) for call in rank.calls]
    return replace(
        rank,
        activities=tuple(held),
        calls=tuple(calls),
        marks=rank.marks if carries.markers else (),
        ops=(),
        allocations=(),
    )


def _moment(rank: RankRun, activity: Activity, number: int) -> Call:
    """Return the call of no length that stands for a kernel being put into its queue."""
    return Call(
        submitted_ns(rank, activity),
        0,
        "hipLaunchKernel",
        rank.main_thread,
        "launch",
        number,
        None,
        activity.step,
        activity.stream,
        None,
    )


def _is_held(activity: Activity, carries: Carries) -> bool:
    return carries.copies or activity.work.kind != "memcpy"


def _as_written(activity: Activity, carries: Carries) -> Activity:
    work = _work(activity.work, carries)
    if carries.links:
        return replace(activity, work=work, op=None)
    # A number that no call has.
    unlinked = activity.correlation + _NO_CALL
    return replace(activity, work=work, op=None, call=None, correlation=unlinked)


_NO_CALL: Final = 10_000_000
_FORMS: Final[dict[Names, Callable[[str], str]]] = {
    "as they are": str,
    "with .kd": cloned,
    "truncated": truncated,
}


def _work(work: Work, carries: Carries) -> Work:
    if work.kind != "kernel":
        return work
    if carries.fills == "memset" and work.sub == "memset":
        return replace(work, name=FILL_NAME, kind="memset")
    return replace(work, name=_FORMS[carries.names](work.name))


Writer = Callable[[Run, Path, RocprofOptions], list[Path]]

WRITERS: Final[Mapping[str, Writer]] = {
    "v1 csv, to ROCm 5.2": partial(write_v1_csv, columns="vgpr"),
    "v1 csv": write_v1_csv,
    "v1 csv with sums": partial(write_v1_csv, stats=True),
    "v1 json": write_v1_json,
    "v1 json of calls": write_v1_api_json,
    "v1 database": write_v1_db,
    "v1 database of calls": write_v1_api_db,
    "v2 csv, ROCm 5.7": partial(write_v2_csv, columns="5.7"),
    "v2 csv": write_v2_csv,
    "v2 csv of operations": write_v2_ops_csv,
    "v3 csv, ROCm 6.2": partial(write_v3_csv, release="6.2"),
    "v3 csv, ROCm 6.3": partial(write_v3_csv, release="6.3"),
    "v3 csv": write_v3_csv,
    "v3 csv by type": partial(write_v3_csv, agent_form="type"),
    "v3 csv converted": write_converted_csv,
    "v3 json, ROCm 6.2": partial(write_v3_json, release="6.2"),
    "v3 json": write_v3_json,
    "v3 json together": partial(write_v3_json, together=True),
    "v3 json, ROCm 7.13": partial(write_v3_json, release="7.13"),
    "rocpd 3.0.0": write_rocpd,
    "rocpd 3.0.2": partial(write_rocpd, version="3.0.2"),
    "rocpd 3.0.3": partial(write_rocpd, version="3.0.3"),
    "pftrace": write_perfetto,
    "pftrace by queue": partial(write_perfetto, layout="by queue"),
    "pftrace of rocprof-sys": partial(write_perfetto, layout="rocprof-sys"),
}


def compressed(path: Path) -> Path:
    """Replace a file by its compressed form, without a date in it."""
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()
    return packed

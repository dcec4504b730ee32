"""All formats of rocprof that a run can be written in, by the names of `CARRIES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from sample_traces.records import Run
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.rocpd import write_rocpd
from sample_traces.rocprof.v1_csv import write_v1_csv
from sample_traces.rocprof.v1_db import write_v1_api_db, write_v1_db
from sample_traces.rocprof.v1_json import write_v1_api_json, write_v1_json
from sample_traces.rocprof.v2 import write_v2_csv, write_v2_ops_csv
from sample_traces.rocprof.v3_converted import write_converted_csv
from sample_traces.rocprof.v3_csv import write_v3_csv
from sample_traces.rocprof.v3_json import write_v3_json

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
}

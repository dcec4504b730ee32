"""Parquet files of recipes of Nsight Systems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import traceflops as tf
from tests.conftest import shared_file
from traceflops.errors import InputError, NotATrace

RANGES: dict[str, Any] = {
    "Name": [None, "step 1", "x"],
    "Projected Start": [5.0, 10.0, None],
    "Projected Duration": [100, 50, 7],
    "PID": [42, 42, 43],
    "TID": [42, 44, 43],
    "NumGPUOps": [3, 2, 1],
    "Rank": [0.0, 0.0, 1.0],
}


def write(folder: Path, columns: dict[str, Any], name: str = "trace.parquet") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / name)
    return folder / name


def test_the_real_recipe_meets_its_figures() -> None:
    expected = json.loads(shared_file("traces/expected.json").read_text())["traces"]
    figures = expected["nsight/jax_nvtx_gpu_proj_trace.parquet"]
    trace = tf.read(
        [
            shared_file(f"traces/nsight/jax_{name}.parquet")
            for name in ("nvtx_gpu_proj_trace", "device_metadata")
        ]
    )
    marks = trace.marks
    assert marks.num_rows == figures["rows"] == 14_305
    assert pc.sum(marks["dur_ns"]).as_py() == figures["sum_projected_duration_ns"]
    bounds = pc.min_max(marks["start_ns"]).as_py()
    assert bounds["min"] == figures["min_projected_start_ns"]
    assert bounds["max"] == figures["max_projected_start_ns"]
    assert len(marks["name"].unique()) == figures["distinct_names_including_null"]
    assert trace.source.event_counts["GPU operations in ranges"] == figures["sum_NumGPUOps"]
    assert marks["kind"].unique().to_pylist() == ["gpu_annotation"]
    assert {note.code: note.count for note in trace.notes}["nameless-ranges"] == 1
    assert trace.ranks == (0,)
    gpu = expected["nsight/jax_device_metadata.parquet"]
    facts = trace.source.facts
    assert facts["gpu"] == gpu["gpu"]
    assert facts["gpu_memory_bytes_per_s"] == str(gpu["memoryBandwidth"])
    assert facts["gpu_clock_hz"] == str(gpu["clockRate"])
    assert facts["gpu_sm_count"] == str(gpu["smCount"])


def test_integers_as_doubles_and_a_first_name_of_null(tmp_path: Path) -> None:
    trace = tf.read(write(tmp_path / "any name", RANGES))
    columns = ("name", "start_ns", "dur_ns", "thread", "process")
    found = list(zip(*(trace.marks[name].to_pylist() for name in columns), strict=True))
    assert found == [("(unnamed range)", 5, 100, 42, 0), ("step 1", 10, 50, 44, 0)]
    assert trace.processes["pid"].to_pylist()[0] == 42
    codes = {note.code: note.count for note in trace.notes}
    assert (codes["nameless-ranges"], codes["no-time"]) == (1, 1)


def test_devices_beside_the_ranges_are_facts(tmp_path: Path) -> None:
    write(tmp_path / "run" / "nvtx_gpu_proj_trace", RANGES)
    device = {"('TARGET_INFO_GPU', 'name')": ["NVIDIA H100"], "('TARGET_INFO_GPU', 'uuid')": ["u"]}
    write(tmp_path / "run", device, "device-metadata.parquet")
    trace = tf.read(tmp_path)
    assert trace.source.facts == {"gpu": "NVIDIA H100"}
    assert len(trace.source.files) == 2


def test_devices_alone_are_no_trace(tmp_path: Path) -> None:
    path = write(tmp_path, {"('TARGET_INFO_GPU', 'name')": ["NVIDIA H100"]})
    with pytest.raises(NotATrace, match="only a list of the machine's GPUs"):
        tf.read(path)


def test_other_parquet_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match="unknown"):
        tf.read(write(tmp_path, {"a": [1]}))


@pytest.mark.parametrize("keep", [4, 100, -4])
def test_a_cut_file_says_so(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path, RANGES)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="damaged or cut"):
        tf.read(path)


def test_columns_of_odd_types(tmp_path: Path) -> None:
    odd = {
        "Name": pa.array(["a", "a", "b"]).dictionary_encode(),
        "Projected Start": pa.array([1, 2, 3], pa.uint64()),
        "Projected Duration": pa.array([1, 2, 3], pa.int32()),
        "PID": ["x", "y", "z"],
        "TID": [True, False, None],
        "Rank": pa.array([None, None, None]),
    }
    trace = tf.read(write(tmp_path, odd))
    assert trace.marks["name"].to_pylist() == ["a", "a", "b"]
    assert trace.marks["thread"].null_count == 3
    assert trace.ranks == (None,)


def test_ranges_without_a_time(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no range with a valid time"):
        tf.read(write(tmp_path, RANGES | {"Projected Start": [None, float("nan"), 1e300]}))

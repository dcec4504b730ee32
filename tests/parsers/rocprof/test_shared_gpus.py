"""A GPU that several processes used, in every format of rocprof: as CSV, as JSON, as rocpd."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import traceflops as tf
from tests.parsers.rocprof.jsonfile import dispatch, document, process
from tests.parsers.rocprof.rocpdfile import rocpd
from tests.parsers.rocprof.tablefiles import kernel, kernels
from traceflops.table.trace import Trace

T = 63_857_982_592_000
MS = 10**6
Work = tuple[int, int]
"""The number of a process, and when its kernel of 100 ns begins."""


def as_csv(folder: Path, *works: Work) -> None:
    for pid, start in works:
        text = kernels(kernel(start, start + 100, Queue_Id=1))
        (folder / f"{pid}_kernel_trace.csv").write_text(text)


def _process(pid: int, start: int) -> dict[str, object]:
    metadata = {"node": {"machine_id": "m", "hostname": "h"}, "pid": pid}
    return process(dispatch(start, start + 100), metadata=metadata)


def as_json(folder: Path, *works: Work) -> None:
    for pid, start in works:
        (folder / f"{pid}_results.json").write_text(json.dumps(document(_process(pid, start))))


def as_one_json(folder: Path, *works: Work) -> None:
    whole = document(*(_process(pid, start) for pid, start in works))
    (folder / "results.json").write_text(json.dumps(whole))


def as_rocpd(folder: Path, *works: Work) -> None:
    for pid, start in works:
        with rocpd(folder / f"{pid}_results.db", machine=False) as file:
            file.add("info_node", id=1, machine_id="m", hostname="h")
            file.add("info_process", id=pid, nid=1, pid=pid)
            file.add("info_agent", id=5, type="GPU", absolute_index=2, name="gfx942")
            symbol = file.symbol("k")
            file.dispatch(symbol, start, start + 100, agent_id=5, pid=pid, queue_id=1)


WAYS: list[Callable[..., None]] = [as_csv, as_json, as_one_json, as_rocpd]


def codes(trace: Trace) -> set[str]:
    return {note.code for note in trace.notes}


@pytest.mark.parametrize("write", WAYS)
def test_its_queues_are_those_of_two_processes(write: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path, (11, T), (12, T + 40))
    trace = tf.read(tmp_path)
    found = tf.analyze(trace)
    (device,) = found.devices
    assert (device.whole.span_ns, device.whole.busy_ns) == (140, 140)
    assert (device.whole.streams, device.whole.same_stream_overlaps) == (2, 0)
    assert codes(trace) >= {"device-shared", "streams-renumbered", "rank-unknown"}
    assert "overlap-on-stream" not in {note.code for note in found.notes}


@pytest.mark.parametrize("write", WAYS)
@pytest.mark.parametrize("pause_ns", [50 * MS, 9_000 * MS])
def test_no_idle_time_lies_between_runs_one_after_the_other(
    pause_ns: int, write: Callable[..., None], tmp_path: Path
) -> None:
    write(tmp_path, (11, T), (12, T + 100 + pause_ns))
    trace = tf.read(tmp_path)
    for run in (1, 2):
        found = tf.analyze(trace, tf.Selection(run=run))
        assert [device.whole.span_ns for device in found.devices] == [100]
        assert found.components.idle_ns == 0
    assert "runs-on-one-gpu" in codes(trace)
    assert "device-shared" not in codes(trace)


@pytest.mark.parametrize("write", [as_json, as_rocpd])
@pytest.mark.parametrize("copy", ["b/{}", "{} (1){}", "copy of {}{}"])
def test_a_copy_of_a_file_is_no_second_recording(
    copy: str, write: Callable[..., None], tmp_path: Path
) -> None:
    write(tmp_path, (11, T))
    (made,) = tmp_path.iterdir()
    target = tmp_path / (
        copy.format(made.name) if "/" in copy else copy.format(made.stem, made.suffix)
    )
    target.parent.mkdir(exist_ok=True)
    shutil.copy(made, target)
    trace = tf.read(tmp_path)
    assert trace.activities.num_rows == 1
    (note,) = [note for note in trace.notes if note.code == "same-run"]
    assert (note.kind, note.count) == ("dropped", 1)
    assert f"from {made.name}" in note.text
    assert "device-shared" not in codes(trace)


def test_two_processes_of_one_number_at_one_time_on_two_machines_are_two(tmp_path: Path) -> None:
    for host in ("a", "b"):
        with rocpd(tmp_path / f"{host}.db", machine=False) as file:
            file.add("info_node", id=1, machine_id="m", hostname=host)
            file.add("info_process", id=7, nid=1, pid=7)
            file.add("info_agent", id=5, type="GPU", absolute_index=2, name="gfx942")
            file.dispatch(file.symbol("k"), T, T + 100, agent_id=5, pid=7)
    assert tf.read(tmp_path).activities.num_rows == 2


def test_a_stretch_counts_on_each_machine_from_its_own_first_activity(tmp_path: Path) -> None:
    processes = []
    for host, start in (("a", T), ("b", 7 * T)):
        metadata = {"node": {"machine_id": "m", "hostname": host}, "pid": 5}
        works = (dispatch(start, start + 100), dispatch(start + 150, start + 200))
        processes.append(process(*works, metadata=metadata))
    (tmp_path / "results.json").write_text(json.dumps(document(*processes)))
    found = tf.analyze(tf.read(tmp_path), tf.Selection(from_ns=80, to_ns=180))
    # [80, 180): idle from 100 to 150 on each.
    parts = [device.chosen.components for device in found.devices]
    assert [(part.window_ns, part.idle_ns) for part in parts] == [(100, 50), (100, 50)]
    assert "range-by-clock" in {note.code for note in found.notes}

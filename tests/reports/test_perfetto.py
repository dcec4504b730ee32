"""The trace as trace-event JSON: what it holds adds up to the analysis, and every lane nests."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import ROOT
from traceflops.analysis.preparation import prepare
from traceflops.cli import app
from traceflops.drawing.coarsening import lanes_of
from traceflops.facts import quoted
from traceflops.findings.finding import Finding, Gain
from traceflops.reports.perfetto import render_perfetto
from traceflops.windows.prepared import Prepared

SAMPLE = ROOT / "sample_traces" / "gpt_ddp_4rank"
Event = dict[str, Any]


def unpacked(pieces: Iterable[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(b"".join(pieces)))
    return found


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(tf.read(SAMPLE))


@pytest.fixture(scope="module")
def events(prepared: Prepared) -> list[Event]:
    found: list[Event] = unpacked(render_perfetto(prepared))["traceEvents"]
    return found


def named(events: list[Event], what: str) -> dict[tuple[int, int], str]:
    return {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in events
        if one["ph"] == "M" and one["name"] == f"{what}_name"
    }


def ns(microseconds: float) -> int:
    return round(Fraction(str(microseconds)) * 1000)


def test_every_device_and_process_is_named(events: list[Event]) -> None:
    assert set(named(events, "process").values()) == {
        *(f"rank {n}, GPU {n}: NVIDIA H100 80GB HBM3" for n in range(4)),
        *(f"rank {n}, CPU" for n in range(4)),
    }
    threads = named(events, "thread")
    assert {(one["pid"], one["tid"]) for one in events if one["ph"] == "X"} == threads.keys()


def test_findings_lie_over_the_windows_they_are_about(prepared: Prepared) -> None:
    said = quoted("Idle time takes <b>half</b>.")
    found = Finding("loss-idle", "high", 0.5, said, said)
    document = unpacked(render_perfetto(prepared, [found]))["traceEvents"]
    (process,) = [one for one, name in named(document, "process").items() if name == "findings"]
    (shown,) = [one for one in document if one["pid"] == process[0] and one["ph"] == "X"]
    used = [one for windows in prepared.windows.values() for one in windows if one.used]
    length_ns = max(one.end_ns for one in used) - min(one.start_ns for one in used)
    assert (shown["name"], ns(shown["dur"])) == (found.sentence, length_ns)
    assert shown["args"] == {"severity": "high", "share": 0.5, "mfu_without": None}
    assert named(document, "thread")[shown["pid"], shown["tid"]] == "loss-idle"
    cause = replace(found, advice=quoted("Do it."), gain=Gain(1, 3, None))
    document = unpacked(render_perfetto(prepared, [cause]))["traceEvents"]
    told = [one["args"] for one in document if one["name"] == found.sentence]
    gain = {"low_ns": 1, "high_ns": 3, "point_ns": None, "may_be_more": False}
    gain |= {"most_ns": None, "further_ns": 0}
    assert told == [shown["args"] | {"remedy": "Do it."} | gain]


def test_components_are_those_of_the_analysis(events: list[Event], prepared: Prepared) -> None:
    threads = named(events, "thread")
    shown: dict[tuple[int, str], int] = defaultdict(int)
    for one in events:
        if one["ph"] == "X" and threads[one["pid"], one["tid"]] == "components":
            shown[one["pid"], one["name"]] += ns(one["dur"])
    for device, account in prepared.accounts.items():
        low, high = account.rows.span
        parts = account.account(low, high).components.parts()
        parts["exposed communication"] = parts.pop("communication")
        assert {k: v for k, v in parts.items() if v} == {
            name: time for (pid, name), time in shown.items() if pid == device + 1
        }


def test_every_record_is_there_with_its_time(events: list[Event], prepared: Prepared) -> None:
    trace = prepared.trace
    shown = [one for one in events if one["ph"] == "X" and "." in one["cat"]]
    expected = trace.activities.to_pydict()
    first = min(
        min(trace.table(name)["start_ns"].to_pylist())
        for name in ("activities", "calls", "ops", "marks")
    )
    assert sorted((one["name"], ns(one["ts"]) + first, ns(one["dur"])) for one in shown) == sorted(
        zip(expected["name"], expected["start_ns"], expected["dur_ns"], strict=True)
    )
    for cat, table in (("op", trace.ops), ("call", trace.calls)):
        assert sum(one["cat"] == cat for one in events if one["ph"] == "X") == table.num_rows


def test_arrows_lead_from_calls_to_activities(events: list[Event], prepared: Prepared) -> None:
    begins = {one["id"] for one in events if one["ph"] == "s"}
    ends = {one["id"] for one in events if one["ph"] == "f"}
    linked = np.flatnonzero(prepared.linked.links.call_of_activity >= 0)
    assert begins == ends == set(linked.tolist())


def test_what_is_on_one_thread_nests(events: list[Event]) -> None:
    by_thread: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for one in events:
        if one["ph"] == "X":
            start = ns(one["ts"])
            by_thread[one["pid"], one["tid"]].append((start, start + ns(one["dur"])))
    for rows in by_thread.values():
        assert nests(rows)


def nests(rows: list[tuple[int, int]]) -> bool:
    open_until: list[int] = []
    for start, end in sorted(rows, key=lambda row: (row[0], -row[1])):
        while open_until and open_until[-1] <= start:
            open_until.pop()
        if open_until and end > open_until[-1]:
            return False
        open_until.append(end)
    return True


spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)


@given(spans, st.booleans())
def test_lanes_hold_what_nests_or_follows(rows: list[tuple[int, int, int]], inside: bool) -> None:
    track, start, dur = (np.array([row[k] for row in rows], dtype=np.int64) for k in range(3))
    lane = lanes_of(track, start, start + dur, nests=inside)
    for key in set(zip(track.tolist(), lane.tolist(), strict=True)):
        mine = [
            (low, low + length)
            for (own, low, length), at in zip(rows, lane.tolist(), strict=True)
            if (own, at) == key
        ]
        assert nests(mine)
        if not inside:
            ordered = sorted(row for row in mine if row[0] < row[1])
            assert all(a[1] <= b[0] for a, b in pairwise(ordered))


def test_hostile_names_are_text(tmp_path: Path) -> None:
    nasty = '"}],"x":[{"\\u0000\n</script>'
    path = tmp_path / "t.json"
    text = '{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"kernel","name":%s,"pid":0,"tid":7,'
    text += '"ts":1,"dur":2,"args":{"device":0,"stream":7}}]}'
    path.write_text(text % json.dumps(nasty))
    found = unpacked(render_perfetto(prepare(tf.read(path))))["traceEvents"]
    assert nasty in {one["name"] for one in found}


def test_the_command_writes_the_same_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "job.perfetto.json.gz"
    words = ["perfetto", str(SAMPLE), "--ranks", "1", "-o", str(target)]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 0, first.output
    content = target.read_bytes()
    kinds = {one["name"] for one in unpacked([content])["traceEvents"] if one["ph"] == "M"}
    assert "process_name" in kinds
    assert CliRunner().invoke(app, words).exit_code == 0
    assert target.read_bytes() == content, "the bytes depend on the trace alone"
    assert list(tmp_path.iterdir()) == [target]


def test_a_name_that_ends_in_json_is_of_plain_text(tmp_path: Path) -> None:
    plain, packed = tmp_path / "job.json", tmp_path / "job.json.gz"
    for target in (plain, packed):
        words = ["perfetto", str(SAMPLE), "--ranks", "1", "-o", str(target)]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert plain.read_bytes() == gzip.decompress(packed.read_bytes())
    assert json.loads(plain.read_bytes())["traceEvents"]


def test_other_suffixes_are_refused_as_of_reports(tmp_path: Path) -> None:
    for name in ("p.txt", "p", "p.gz", "p.html", "json"):
        words = ["perfetto", str(SAMPLE), "-o", str(tmp_path / name)]
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 2
        assert "give a name that ends in .json or .json.gz" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_outstanding_launches_are_a_counter_of_their_device() -> None:
    trace = trace_of(**launched(("a", 100, 130, 5), ("b", 110, 150, 5), ("c", 160, 170, 5)))
    document = unpacked(render_perfetto(prepare(trace)))["traceEvents"]
    counters = [one for one in document if one["ph"] == "C"]
    assert {(one["pid"], one["name"]) for one in counters} == {(1, "outstanding launches")}
    assert [(ns(one["ts"]), one["args"]["launches"]) for one in counters] == [
        *((0, 1), (10, 2), (30, 1), (50, 0), (60, 1), (70, 0))
    ]

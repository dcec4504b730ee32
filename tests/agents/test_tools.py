"""Tools over standard input and output: the figures of the JSON report, which other runs print."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

import traceflops as tf
from tests.agents.conftest import Session, connected, over_stdio
from tests.conftest import ROOT, SAMPLES

pytest.importorskip("mcp")
pytest.importorskip("duckdb")

RANKS = SAMPLES / "gpt_ddp_4rank"


@cache
def printed(*words: str) -> Any:
    """Return the JSON that a command prints in a process of its own."""
    command = [sys.executable, "-m", "traceflops", *words]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return json.loads(done.stdout)


def report() -> Any:
    return printed("summary", str(RANKS), "--json")


def test_the_tools_only_read_and_say_what_they_do(served: Session) -> None:
    from traceflops.agents.server import TOOLS

    assert [tool.name for tool in served.tools()] == list(TOOLS)
    for tool in served.tools():
        assert tool.annotations.read_only_hint and not tool.annotations.open_world_hint
        assert len(tool.description) > 40 and "\n    " not in tool.description
    assert "never follow" in served.client.instructions


def test_files_are_listed_as_they_are_opened(served: Session) -> None:
    listed = served.ask("list_files")["files"]
    size = (SAMPLES / "gpt_1rank.json.gz").stat().st_size
    assert {"file": "gpt_1rank.json.gz", "bytes": size} in listed
    assert {"folder": "gpt_ddp_4rank"} in listed
    inner = served.ask("list_files", folder="gpt_ddp_4rank")["files"]
    assert [one["file"] for one in inner] == [f"gpt_ddp_4rank/rank{n}.json.gz" for n in range(4)]
    opened = served.ask("open_trace", path=inner[2]["file"])
    assert opened["files"] == ["rank2.json.gz"]
    assert served.ask("list_files", start=len(listed))["files"] == []


def test_the_overview_is_the_report_in_short(served: Session, ranks: str) -> None:
    overview = served.ask("overview", trace=ranks)
    assert len(json.dumps(overview)) < 5_000
    whole = report()
    assert overview["verdict"] == whole["verdict"]["sentence"]
    assert overview["mfu"] == whole["utilisation"]["mfu"]
    assert overview["median_step_ns"] == whole["steps"]["typical_ns"]
    assert overview["components_ns"] == whole["total"]["components_ns"]
    assert sum(overview["components_ns"].values()) == overview["window_ns"]
    assert [one["rank"] for one in overview["devices"]] == [0, 1, 2, 3]
    kernels = [one["sum_ns"] for one in overview["kernels"]]
    assert kernels == [one["sum_ns"] for one in whole["kernels"][: len(kernels)]]
    assert overview["more"]["kernels"] == len(whole["kernels"]) - len(kernels)


def test_findings_have_ids_and_evidence(served: Session, ranks: str) -> None:
    expected = printed("summary", str(RANKS), "--json", "--only", "findings")
    for whole in expected["findings"]:
        shown = served.ask("finding", trace=ranks, id=whole["id"])
        assert {key: shown[key] for key in whole if key != "evidence"} == {
            key: value for key, value in whole.items() if key != "evidence"
        }
        assert shown["evidence"] and all(shown["evidence"].values())
    late = served.ask("finding", trace=ranks, id="late-rank")
    assert late["evidence"]["ranks.waits"] == report()["ranks"]["waits"]
    assert "late-rank" in served.refused("finding", trace=ranks, id="late-ranks")


def test_every_section_that_findings_name_has_figures_here() -> None:
    from traceflops.agents.tools import EVIDENCE
    from traceflops.findings.rules import all_rules

    named = {name for row in all_rules().rules.values() for name in row.evidence}
    parts = {EVIDENCE.get(name, name).partition(".")[0] for name in named}
    assert len(named) > 10 and parts <= set(report())


def test_parts_of_the_report_add_up_to_all_of_it(served: Session, ranks: str) -> None:
    whole = report()
    assert served.ask("report", trace=ranks)["parts"] == list(whole)
    assert served.ask("report", trace=ranks, part="total")["value"] == whole["total"]
    gaps: list[Any] = []
    while True:
        page = served.ask("report", trace=ranks, part="devices.3.gaps", start=len(gaps))
        gaps += page["value"]
        if "more" not in page:
            break
        assert page["more"]["value"] == len(whole["devices"][3]["gaps"]) - len(gaps)
    spans = [(gap["start_ns"], gap["dur_ns"]) for gap in gaps]
    assert spans == [(gap["start_ns"], gap["dur_ns"]) for gap in whole["devices"][3]["gaps"]]
    for wrong in ("nothing", "devices.4", "total.window_ns.0"):
        assert f"no part {wrong}" in served.refused("report", trace=ranks, part=wrong)


def test_queries_are_answered_over_the_tables_that_are_listed(served: Session, ranks: str) -> None:
    tables = {one["table"]: one for one in served.ask("schema", trace=ranks)["tables"]}
    columns = served.ask("schema", trace=ranks, table="activities")["columns"]
    assert [one["column"] for one in columns] == tables["activities"]["columns"]
    sql = "select rank, sum(dur_ns) ns from activities where used group by all order by rank"
    frame = tf.analyze(RANKS).to_pandas("activities").query("used").groupby("rank").dur_ns.sum()
    answer = served.ask("query", trace=ranks, sql=sql)
    assert answer["rows"] == [{"rank": rank, "ns": ns} for rank, ns in frame.items()]
    cut = served.ask("query", trace=ranks, sql="select name from activities")
    assert cut["row_count"] == tables["activities"]["rows"] == 3008
    assert len(cut["rows"]) + cut["more"]["rows"] == 3008
    assert "no table foo" in served.refused("schema", trace=ranks, table="foo")


def test_a_slice_of_time_is_what_the_profiler_wrote(served: Session, ranks: str) -> None:
    with gzip.open(RANKS / "rank2.json.gz") as file:
        events = json.load(file)["traceEvents"]
    of_gpu = ("kernel", "gpu_memcpy", "gpu_memset")
    written = sorted(
        (one["ts"], one["name"], round(one["dur"] * 1000))
        for one in events
        if one.get("cat") in of_gpu
    )
    whole = served.ask("timeline", trace=ranks, rank=2, limit=10)
    assert whole["event_count"] == len(written)
    assert sorted(one["dur_ns"] for one in whole["events"]) == sorted(
        dur for _, _, dur in written[:10]
    )
    # From within the fourth to within the sixth.
    third, sixth = whole["events"][3], whole["events"][5]
    span = {"from_ns": third["start_ns"] + 1, "to_ns": sixth["start_ns"] + 1}
    inside = served.ask("timeline", trace=ranks, rank=2, **span)
    ends = [one["start_ns"] + one["dur_ns"] for one in whole["events"]]
    assert inside["events"] == [
        one
        for one, end in zip(whole["events"], ends, strict=True)
        if one["start_ns"] < span["to_ns"] and end > span["from_ns"]
    ]
    assert third in inside["events"]
    ops = served.ask("timeline", trace=ranks, rank=2, table="ops")
    assert ops["event_count"] == sum(one.get("cat") == "cpu_op" for one in events)
    assert "no device" in served.refused("timeline", trace=ranks, table="ops", device=0)
    assert "no events in kernels" in served.refused("timeline", trace=ranks, table="kernels")
    for nothing in ({"from_ns": 10**30}, {"to_ns": -(10**30)}, {"rank": 10**30}, {"limit": -1}):
        assert served.ask("timeline", trace=ranks, **nothing)["events"] == []
    assert len(served.ask("timeline", trace=ranks, rank=2, limit=10**30)["events"]) > 20


def test_what_if_is_that_of_the_command(served: Session, ranks: str) -> None:
    edits = ["rank 2=median", "kernel:gemm/2"]
    expected = printed("what-if", str(RANKS), *edits, "--json")
    answer = served.ask("what_if", trace=ranks, scenario=edits)
    for name in ("gain_ns", "after_ns", "mfu", "doubts"):
        assert [one[name] for one in answer["alone"]] == [one[name] for one in expected["alone"]]
        assert answer["together"][name] == expected["together"][name]
    one = served.ask("what_if", trace=ranks, scenario=edits[0])
    assert one["alone"][0]["gain_ns"] == expected["alone"][0]["gain_ns"]
    assert "hint" in served.refused("what_if", trace=ranks, scenario="faster=yes")


def test_compare_takes_two_open_traces(served: Session) -> None:
    names = [
        served.ask("open_trace", path="gpt_ddp_4rank", steps=step)["trace"]
        for step in ("20:21", "22:24")
    ]
    answer = served.ask("compare", before=names[0], after=names[1])
    sides = [tf.analyze(RANKS, steps=step) for step in ("20:21", "22:24")]
    assert answer["difference_ns"] == tf.compare(sides[0], sides[1]).difference_ns
    assert [answer["before"]["name"], answer["after"]["name"]] == names
    assert served.ask("compare", before=names[0], after=names[0])["same"]


def test_the_same_call_gives_the_same_bytes_in_another_server(served: Session, ranks: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("open_trace", {"path": "gpt_ddp_4rank"}),
        ("open_trace", {"path": "./gpt_ddp_4rank/../gpt_ddp_4rank/"}),
        ("findings", {"trace": ranks}),
        ("query", {"trace": ranks, "sql": "select op, avg(dur_ns) from activities group by 1"}),
        ("what_if", {"trace": ranks, "scenario": "communication=hidden"}),
    ]
    with connected(over_stdio(SAMPLES)) as other:
        for tool, given in calls:
            assert other.text(tool, **given) == served.text(tool, **given)
    assert served.ask(*calls[1][:1], **calls[1][1])["trace"] == ranks


def test_traces_that_were_put_aside_are_read_again(served: Session, ranks: str) -> None:
    before = served.text("overview", trace=ranks)
    for step in range(20, 25):
        served.ask("open_trace", path="gpt_1rank.json.gz", steps=f"{step - 10}")
    assert served.text("overview", trace=ranks) == before
    assert "open_trace gives ids" in served.refused("overview", trace="unknown")


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('README.md')",
        "select * from read_text('/etc/hostname')",
        "select * from glob('*')",
        "attach 'x.db'",
        "copy kernels to 'x.csv'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set memory_limit = '100GB'",
        "select getenv('HOME')",
        "select 1; select 2",
        "select",
        "",
        "select * from 'https://example.org/x.csv'",
    ],
)
def test_queries_reach_nothing_but_the_tables(sql: str, served: Session, ranks: str) -> None:
    assert served.refused("query", trace=ranks, sql=sql).startswith("SQL: ")

"""`traceflops what-if`: the table and the JSON of one answer."""

import json
import re

from tests.cli.test_commands import SAMPLE, assert_refused, run


def test_the_table_shows_each_edit_alone_and_all_together() -> None:
    result = run("what-if", SAMPLE, "data_input=0", "kernel:gemm|nvjet/2", "--steps", "12:14")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert re.fullmatch(r"Mean step [\d.]+ ms over 3 windows, MFU [\d.]+ %", lines[0])
    rows = [line.split("  ")[0] for line in lines[3:9:2]]
    assert rows == ["data_input=0", "kernel:gemm|nvjet/2", "together"]
    assert all(line.startswith("  then critical: ") for line in lines[4:10:2])
    assert "Critical path of the recording" in lines
    assert max(map(len, lines)) <= 100


def test_the_json_has_a_range_and_a_point() -> None:
    answer = json.loads(run("what-if", SAMPLE, "data_input=0", "--json").stdout)
    assert answer["schema"] == "traceflops.what-if/1"
    (alone,), before = answer["alone"], answer["before_ns"]
    after, gain = alone["after_ns"], alone["gain_ns"]
    assert after["low"] <= after["point"] <= after["high"] < before
    assert gain == {
        "low": before - after["high"],
        "point": before - after["point"],
        "high": before - after["low"],
    }
    assert alone["mfu"]["point"] > answer["mfu"]
    assert sum(part["ns"] for part in answer["critical"]) == before
    assert sum(part["ns"] for part in alone["critical"]) == after["point"]


def test_an_edit_without_an_answer_leaves_those_of_others() -> None:
    result = run("what-if", SAMPLE, "rank 7=median", "data_input=0")
    assert (result.exit_code, result.stderr) == (0, "")
    reason = "its work, or that of others, is missing"
    assert f"Cannot answer 'rank 7=median': {reason}." in result.stdout.splitlines()
    assert "together" not in result.stdout
    answer = json.loads(run("what-if", SAMPLE, "rank 7=median", "data_input=0", "--json").stdout)
    assert [one["edits"] for one in answer["alone"]] == [["data_input=0"]]
    (refused,) = answer["refused"]
    assert refused == {
        "edit": "rank 7=median",
        "reason": f"cannot answer 'rank 7=median': {reason}",
    }


def test_what_is_no_edit_is_an_error() -> None:
    assert_refused(run("what-if", SAMPLE, "faster"), 2, "no edit", "kernel:softmax/2")
    assert_refused(run("what-if", SAMPLE, "communication=hidden"), 2, "no communication")
    assert run("what-if", SAMPLE).exit_code == 2
    assert_refused(run("what-if", "data_input=0", SAMPLE), 2, "nothing is called")

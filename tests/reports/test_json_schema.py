"""The JSON report keeps to its published schema, for every trace there is to try."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import traceflops as tf
from tests.conftest import SAMPLES, shared_file
from tests.reports import factory
from tests.schemas import SCHEMAS, VALIDATORS
from traceflops.reports.json.schema import field_tables

SCHEMA = SCHEMAS["traceflops.report/1"]
VALIDATOR = VALIDATORS["traceflops.report/1"]
NAMES = ("gpt_1rank.json.gz", "gpt_ddp_4rank", "torch_cpu_train.json.gz")
SELECTIONS = {
    "steady": tf.Selection(),
    "steps": tf.Selection(steps=(11, None)),
    "time": tf.Selection(from_ns=1_000_000, to_ns=5_000_000),
    "rank": tf.Selection(ranks=frozenset({1, 3})),
}


def report_of(path: Path, selection: tf.Selection | None = None) -> Any:
    return json.loads(tf.analyze(tf.read(path), selection).to_json())


@pytest.fixture(scope="module")
def one_rank() -> Any:
    return report_of(SAMPLES / "gpt_1rank.json.gz")


@pytest.mark.parametrize("name", NAMES)
def test_reports_of_the_samples_follow_the_schema(name: str) -> None:
    report = report_of(SAMPLES / name)
    VALIDATOR.validate(report)
    assert_accounts_add_up(report)


@pytest.mark.parametrize(
    ("name", "selection"),
    [
        ("gpt_1rank.json.gz", "steps"),
        ("gpt_1rank.json.gz", "time"),
        ("gpt_ddp_4rank", "rank"),
    ],
)
def test_reports_of_a_selection_follow_the_schema(name: str, selection: str) -> None:
    report = report_of(SAMPLES / name, SELECTIONS[selection])
    VALIDATOR.validate(report)
    assert_accounts_add_up(report)


@pytest.mark.parametrize(
    "analysis",
    [factory.without_steps(), factory.without_devices(), factory.ranks(2)],
    ids=["without-steps", "without-devices", "ranks"],
)
def test_reports_of_odd_analyses_follow_the_schema(analysis: tf.Analysis) -> None:
    VALIDATOR.validate(json.loads(analysis.to_json()))


def test_hostile_texts_do_not_change_the_shape() -> None:
    """The hostile analysis also says things where only certain words are allowed, on purpose."""
    report = json.loads(factory.hostile().to_json())
    assert {e.validator for e in errors(report)} <= {"enum", "pattern"}


def test_reports_of_real_traces_follow_the_schema() -> None:
    paths = sorted(shared_file("traces/pytorch").glob("*.json.gz"))
    assert paths
    for path in paths:
        report = report_of(path)
        assert [f"{path.name}: {e.json_path}: {e.message}" for e in errors(report)] == []
        assert_accounts_add_up(report)


def errors(report: Any) -> list[jsonschema.ValidationError]:
    return list(VALIDATOR.iter_errors(report))


def assert_accounts_add_up(report: Any) -> None:
    """Every window is the sum of its components, and its idle time the sum of the causes."""
    seen = 0
    for account in accounts(report):
        components = account["components_ns"]
        assert sum(components.values()) == account["window_ns"]
        assert sum(account["idle_causes_ns"].values()) == components["idle"]
        latency = account["idle_causes_ns"]["launch_latency"]
        assert sum(account["launch_latency_parts_ns"].values()) == latency
        seen += 1
    assert seen > 1 or not report["devices"]  # of a graph capture nothing is accounted for
    for device in report["devices"]:
        windows = [w for w in device["windows"] if w["role"] != "range"]
        # The first step may begin at its mark, before all work.
        total_ns = device["whole"]["end_ns"] - windows[0]["start_ns"]
        assert sum(w["window_ns"] for w in windows) == total_ns >= device["whole"]["span_ns"]
        assert all(w["end_ns"] - w["start_ns"] == w["window_ns"] for w in device["windows"])
    chosen = [device["chosen"]["window_ns"] for device in report["devices"]]
    assert report["total"]["window_ns"] == sum(chosen)


def accounts(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every object that has components, wherever it stands."""
    if isinstance(node, dict):
        if "components_ns" in node:
            yield node
        for value in node.values():
            yield from accounts(value)
    elif isinstance(node, list):
        for value in node:
            yield from accounts(value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


def test_every_field_is_described_and_says_its_unit() -> None:
    for table, fields in field_tables().items():
        for field, row in fields.items() if table not in ("types", "documents") else ():
            if field != "extends":
                kind, about = row
                assert about.endswith((".", ")")), f"{table}.{field}"
                if kind.strip("[]?") in ("ns", "instant"):
                    assert re.search(r"\bns\b|_ns\b", about), f"{table}.{field}"


def test_every_table_is_part_of_a_schema() -> None:
    tables = field_tables()
    used = {table for table, _ in tables["documents"].values()} | {"types", "documents"}
    used |= {name for schema in SCHEMAS.values() for name in schema["$defs"]}
    for name in list(used):
        used |= bases(name)
    assert used == set(tables)


def bases(table: str) -> set[str]:
    found = set(field_tables()[table].get("extends", ()))
    return found.union(*map(bases, found))


@pytest.mark.parametrize("name", SCHEMAS)
def test_objects_require_all_their_fields_and_allow_no_others(name: str) -> None:
    optional = set()
    for path, schema in objects(SCHEMAS[name], ""):
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
            if set(schema["properties"]) != set(schema["required"]):
                optional.add(path.rpartition("/")[2])
    # Of charged there may be thousands; findings on their own have no facts.
    assert optional <= {"charged", "finding"}


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("schema",), "traceflops.report/2"),
        (("total", "window_ns"), 1.5),
        (("total", "components_ns", "idle"), -1),
        (("total", "components_ns", "waiting"), 0),
        (("devices", 0, "windows", 0, "role"), "epoch"),
        (("devices", 0, "whole", "kinds", "coffee"), {"count": 0, "sum_ns": 0, "union_ns": 0}),
        (("kernels", 0, "top"), "misc"),
        (("steps", "source"), "guess"),
    ],
)
def test_a_report_that_breaks_the_schema_is_refused(
    one_rank: Any, where: tuple[str | int, ...], value: object
) -> None:
    broken = copy.deepcopy(one_rank)
    parent = broken
    for key in where[:-1]:
        parent = parent[key]
    parent[where[-1]] = value
    assert errors(broken)


def objects(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every schema of the tree that is of an object, with where it stands."""
    if not isinstance(node, dict):
        return
    if "object" in node.get("type", ()):
        yield path, node
    for key, value in node.items():
        yield from objects(value, f"{path}/{key}")

"""Damaged traces are read or refused; and whatever else happened, the fuzzer would see it."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

import traceflops as tf
from tests.conftest import SAMPLES, every, examples, some
from tests.fuzz.__main__ import keep, main
from tests.fuzz.bench import Bench, Job, Result, Runner
from tests.fuzz.cases import COMMANDS, INPUT, Maker, Order
from tests.fuzz.checks import report_problems
from tests.fuzz.command import CommandLine
from tests.fuzz.damage import MOST_BYTES
from tests.fuzz.hunt import hunt, reduced
from tests.fuzz.packing import FORMS, packed
from tests.fuzz.seeds import SIZES, Seed, load_seeds

pytestmark = pytest.mark.slow
COUNT = 500
SHARED = os.environ.get("TRACEFLOPS_SHARED")


@pytest.fixture(scope="module")
def seeds() -> tuple[Seed, ...]:
    return load_seeds(Path(SHARED) if SHARED else None)


@pytest.mark.parametrize(("columns", "by_night"), [(False, 1000), (True, 800)])
def test_damaged_traces_are_read_or_refused(
    seeds: tuple[Seed, ...], columns: bool, by_night: int
) -> None:
    tried = examples(by_night) // every(2)
    job = Job(Maker(1, tuple(seed for seed in seeds if seed.is_columns or not columns)))
    results = list(hunt(job, range(tried), jobs=2))
    assert sorted(result.order.number for result in results) == list(range(tried))
    assert [f"--replay 1:{r.order.number}: {r.problem}" for r in results if r.problem] == []
    endings = [result.code for result in results]
    # Of columns more is refused: false content behind right checksums.
    assert endings.count(0) > tried / (5 if columns else 4)
    assert endings.count(3) > tried / 10


# The inputs


def test_the_same_number_is_the_same_input(seeds: tuple[Seed, ...]) -> None:
    numbers = range(60)
    first = [Maker(5, seeds).make(Order(number)) for number in numbers]
    maker = Maker(5, seeds)
    assert [maker.make(Order(number)) for number in reversed(numbers)] == first[::-1]
    assert [Maker(6, seeds).make(Order(number)) for number in numbers] != first


def test_inputs_differ_and_stay_small(seeds: tuple[Seed, ...]) -> None:
    cases = [Maker(1, seeds).make(Order(number)) for number in range(COUNT)]
    texts = {seed.text for seed in seeds}
    damaged = {tuple(case.files.values()) for case in cases} - {(text,) for text in texts}
    assert len(damaged) > 0.85 * COUNT
    assert max(len(data) for case in cases for data in case.files.values()) <= MOST_BYTES
    assert {case.command for case in cases} == {command for _, command in COMMANDS}
    steps = [step for case in cases for step in case.steps]
    assert {f"as {form}" for form in FORMS[1:]} <= set(steps)


def test_a_mutation_can_be_left_out(seeds: tuple[Seed, ...]) -> None:
    maker = Maker(1, seeds)
    number = next(n for n in range(COUNT) if maker.make(Order(n)).mutations == 3)
    whole = maker.make(Order(number)).steps
    fewer = maker.make(Order(number, without=frozenset({0, 1, 2}))).steps
    assert [step for step in whole if step in fewer] == list(fewer)
    assert len(whole) == len(fewer) + 3


def test_seeds_are_whole_and_sound(seeds: tuple[Seed, ...], tmp_path: Path) -> None:
    databases = [seed for seed in seeds if seed.text.startswith(b"SQLite")]
    texts = [seed for seed in seeds if seed not in databases]
    assert {len(seed.text) <= max(SIZES) for seed in texts} == {True}
    assert {len(seed.text) < 200_000 for seed in databases} == {True}  # cut, they were damaged
    thinned = [seed for seed in seeds if "~" in seed.name]
    assert len(thinned) >= 2 * 4
    for seed in (*thinned, *databases):
        path = tmp_path / "trace.json"
        path.write_bytes(seed.text)
        report = json.loads(tf.analyze(tf.read(path)).to_json())
        assert report_problems(report, thorough=True) == [], seed.name
        if seed.name.startswith(("gpt", "rank")):
            assert (len(report["steps"]["seen"]) > 1, report["total"]["activities"] > 0) == (
                True,
                True,
            )


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form: str, seeds: tuple[Seed, ...], tmp_path: Path) -> None:
    text = next(seed.text for seed in seeds if seed.name == "gpt_1rank~12000")
    path = tmp_path / "trace"
    path.write_bytes(packed(text, form))
    assert tf.read(path).activities.num_rows > 0


# Planted failures: the product is replaced by something that fails

TINY = (Seed("tiny", b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 2}]}'),)


def raises() -> NoReturn:
    raise ValueError("planted")


def exits_with(code: int, text: str = "") -> NoReturn:
    sys.stderr.write(text)
    raise SystemExit(code)


def warns() -> None:
    warnings.warn("planted", RuntimeWarning, stacklevel=1)


def waits() -> None:
    while True:
        time.sleep(0.01)


def spins() -> None:
    while True:
        pass


def dies() -> None:
    os.abort()


def takes_all_memory() -> None:
    list(range(10**9))


def writes_from_c() -> None:
    os.write(2, b"free(): invalid pointer\n")


def says_nothing() -> None:
    return None


def reports(change: Callable[[Any], None]) -> None:
    report = one_report()
    change(report)
    print(json.dumps(report))


@cache
def written_report() -> str:
    return tf.analyze(tf.read(SAMPLES / "gpt_ddp_4rank" / "rank0.json.gz")).to_json()


def one_report() -> Any:
    return json.loads(written_report())


def test_a_report_has_no_wrong_figure() -> None:
    assert report_problems(one_report(), thorough=False) == []


def wrong_sum(report: Any) -> None:
    report["devices"][0]["windows"][2]["components_ns"]["compute"] += 1


def wrong_shape(report: Any) -> None:
    report["surprise"] = 1


def no_change(_: Any) -> None:
    return None


PLANTED: dict[str, tuple[Callable[[], object], str | None]] = {
    "traceback": (raises, "a traceback: ValueError: planted"),
    "exit code 1": (partial(exits_with, 1, "error: a fault\nhint: none\n"), "exit code 1: error: "),
    "exit code 2": (partial(exits_with, 2, "error: no\nhint: none\n"), "exit code 2: error: no"),
    "no hint": (partial(exits_with, 3, "error: no\n"), "not one error and one hint"),
    "two errors": (partial(exits_with, 3, "error: a\nerror: b\nhint: c\n"), "not one error and"),
    "warning": (warns, "exit code 0 with words on stderr: "),
    "C code that writes": (writes_from_c, "exit code 0 with words on stderr: free()"),
    "waits": (waits, "a hang: over 0.2 s"),
    "spins": (spins, "a hang: over 0.2 s"),
    "crash": (dies, "the process died: SIGABRT"),
    "memory": (takes_all_memory, "a traceback: MemoryError"),
    "no JSON": (says_nothing, "stdout is not JSON"),
    "wrong sum": (partial(reports, wrong_sum), "sum: the components of .devices[].windows[] are"),
    "wrong shape": (partial(reports, wrong_shape), "schema: $: Additional properties"),
    "all well": (partial(reports, no_change), None),
    "a refusal": (partial(exits_with, 3, "error: no trace\nhint: give one\n"), None),
}


def planted(main: Callable[[], object]) -> Runner:
    """Return what runs `main` in place of the product's own, with all the rest as it is."""
    import traceflops.cli

    traceflops.cli.main = main  # type: ignore[assignment]
    return CommandLine()


def planted_job(kind: str) -> Job:
    memory = 1 << 30 if kind == "memory" else 3 << 30
    limit = 0.2 if kind in ("waits", "spins") else 10.0
    return Job(Maker(1, TINY), partial(planted, PLANTED[kind][0]), limit, memory)


@pytest.mark.parametrize("kind", some(PLANTED, 3))
def test_a_planted_failure_is_seen(kind: str) -> None:
    bench = Bench(planted_job(kind))
    order = Order(2, command=("summary", INPUT, "--json"))
    results = [bench.ask(order), bench.ask(order)]  # a bench goes on after whatever happened
    bench.close()
    wanted = PLANTED[kind][1]
    for result in results:
        if wanted is None:
            assert result.problem is None
        else:
            assert (result.problem or "").startswith(wanted)


def test_a_hang_does_not_keep_the_others_from_being_tried() -> None:
    results = list(hunt(planted_job("spins"), range(3), jobs=2))
    assert sorted((r.order.number, r.problem) for r in results) == [
        (number, "a hang: over 0.2 s") for number in range(3)
    ]


@pytest.mark.parametrize(
    ("where", "by"),
    [
        (("total", "components_ns", "idle"), 1),
        (("total", "idle_causes_ns", "queued"), 1),
        (("total", "launch_latency_parts_ns", "stream_wait"), 1),
        (("total", "activities"), 1),
        (("devices", 0, "chosen", "hidden_communication_ns"), 1),
        (("devices", 0, "whole", "account", "components_ns", "memory"), 1),
        (("devices", 0, "whole", "busy_ns"), 1),
        (("devices", 0, "whole", "kinds", "kernel", "count"), 1),
        (("devices", 0, "whole", "categories", "compute", "sum_ns"), -1),
        (("devices", 0, "whole", "communication", "exposed_ns"), 1),
        (("devices", 0, "windows", 1, "window_ns"), 1),
        (("devices", 0, "windows", 1, "idle_causes_ns", "host_late"), 1),
        (("devices", 0, "windows", 1, "end_ns"), 1),
        (("devices", 0, "windows", -1, "end_ns"), 1),
        (("devices", 0, "gaps", 0, "causes_ns", "host_late"), 1),
        (("devices", 0, "gaps", 0, "launch_latency_parts_ns", "in_launch_call"), 1),
        (("kernels", 0, "count"), 1),
        (("devices", 0, "whole", "zero_length"), -(10**12)),
        (("devices", 0, "whole", "span_ns"), 0.5),
        (("kernels", 0, "mean_ns"), 10**12),
        (("kernels", 0, "sum_ns"), 1),
        (("source", "event_counts", "kernel"), 0.5),
    ],
)
def test_every_wrong_figure_is_seen(where: tuple[str | int, ...], by: float) -> None:
    report = parent = one_report()
    for key in where[:-1]:
        parent = parent[key]
    parent[where[-1]] += by
    assert report_problems(report, thorough=False) != []


def needle() -> None:
    """Fail where the input has a word in it, however much is around it."""
    if b"kernel" in Path(sys.argv[2]).read_bytes():
        raise ValueError("found")
    sys.stderr.write("error: no\nhint: none\n")
    raise SystemExit(3)


def test_a_failing_input_is_made_small() -> None:
    job = Job(Maker(1, TINY), partial(planted, needle))
    order = Order(7, command=("summary", INPUT))
    problem = "a traceback: ValueError: found"
    small = reduced(job, Result(order, problem, 0.0))
    assert replace(small, without=frozenset()) == replace(order, data=b"kernel", alone=True)


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (["--count", "1", "--jobs", "1"], "most memory of a process: "),
        (["--replay", "1:2"], "traceflops "),
        (["--replay", "TINY"], "traceflops summary - --json: exit code 0 ("),
    ],
)
def test_the_command(
    words: list[str],
    last: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TINY[0].text)
    monkeypatch.delenv("TRACEFLOPS_SHARED", raising=False)
    named = [str(path) if word == "TINY" else word for word in words]
    monkeypatch.setattr(sys, "argv", ["fuzz", *named, "--keep", str(tmp_path / "kept")])
    code, lines = main(), capsys.readouterr().out.splitlines()
    assert code == 0, lines
    assert lines[-1].startswith(last)


def test_a_failing_input_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(Maker(1, TINY), partial(planted, needle))
    failed = next(result for result in hunt(job, range(100), jobs=1) if result.problem)
    keep(job, failed, tmp_path)
    (kept,) = tmp_path.iterdir()
    assert f"kept in {kept}" in capsys.readouterr().out
    what = (kept / "what.txt").read_text(encoding="utf-8").splitlines()
    assert what[0] == "a traceback: ValueError: found"
    assert f"--replay 1:{failed.order.number}" in what[1]
    assert [path.read_bytes() for path in (kept / "small").iterdir()] == [b"kernel"]
    assert list((kept / "whole").iterdir())

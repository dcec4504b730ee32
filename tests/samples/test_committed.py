"""The committed samples are what their programs write, small, and free of private names."""

import gzip
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sample_traces.make import HERE, SAMPLES, main, make
from sample_traces.record_torch_cpu import NAME, STEPS, scrub
from sample_traces.simulate import simulate
from sample_traces.truth import DeviceTruth, truth

SUFFIXES = (".gz", ".csv", ".db", ".sqlite")
COMMITTED = sorted(path.relative_to(HERE) for path in HERE.rglob("*") if path.suffix in SUFFIXES)


def text_of(path: Path) -> str:
    """Return what stands in a sample: other builds of zlib and SQLite pack it differently."""
    if path.suffix in (".db", ".sqlite"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
            return "\n".join(database.iterdump())
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("ascii")


def test_make_writes_the_committed_files(tmp_path: Path) -> None:
    made = [path.relative_to(tmp_path) for path in make(tmp_path)]
    assert sorted([*made, Path(NAME)]) == COMMITTED
    for name in made:
        again = f"{name}: run python -m sample_traces.make"
        assert text_of(tmp_path / name) == text_of(HERE / name), again


@pytest.mark.parametrize(("option", "code"), [("--help", 0), ("-h", 0), ("--nothing", 2)])
def test_an_option_is_no_folder(
    option: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([option])
    assert ended.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_files_are_small() -> None:
    for name in COMMITTED:
        assert (HERE / name).stat().st_size <= 250_000, name


@pytest.mark.parametrize("name", [name for name in COMMITTED if name.suffix == ".gz"], ids=str)
def test_compressed_files_carry_neither_time_nor_name(name: Path) -> None:
    data = (HERE / name).read_bytes()
    flags, modified = data[3], data[4:8]
    assert (flags, modified) == (0, b"\0\0\0\0")


def test_all_samples_together_stay_small() -> None:
    assert sum((HERE / name).stat().st_size for name in COMMITTED) <= 1_650_000


def test_no_private_names() -> None:
    for name in COMMITTED:
        text = text_of(HERE / name)
        assert not re.search(r"/home/|/root/|/work/|/tmp/|site-packages", text)
        assert set(re.findall(r'"(?:host_name|username)": "([^"]*)"', text)) <= {""}, name


def devices(stem: str) -> tuple[DeviceTruth, ...]:
    sample = next(sample for sample in SAMPLES if sample.stem == stem)
    return truth(simulate(sample.config)).ranks


def test_the_single_rank_shows_its_data_stall() -> None:
    (device,) = devices("gpt_1rank")
    late = {step.step: step.idle_causes["host_late"] for step in device.steps()}
    stalled = late.pop(13)
    assert stalled > 4_000_000 > 10 * max(late.values())
    assert device.unlinked > 0


def test_the_four_ranks_wait_for_the_straggler_and_hide_part_of_their_communication() -> None:
    ranks = devices("gpt_ddp_4rank/rank{rank}")
    exposed = [device.components["communication"] / device.span_ns for device in ranks]
    assert min(exposed[0], exposed[1], exposed[3]) > 0.12 > 0.06 > exposed[2]
    assert all(device.hidden_communication_ns > device.span_ns // 20 for device in ranks)


def test_the_recording_is_a_genuine_cpu_profile() -> None:
    document = json.loads(gzip.decompress((HERE / NAME).read_bytes()))
    named = [event.get("name") for event in document["traceEvents"]]
    steps = [name for name in named if str(name).startswith("ProfilerStep#")]
    assert len(steps) == STEPS
    assert "autograd::engine::evaluate_function: AddmmBackward0" in named
    assert document["record_shapes"] == 1
    assert not any(event.get("cat") == "kernel" for event in document["traceEvents"])


def test_scrub_removes_names_of_machine_and_folders() -> None:
    text = f'{{"host_name": "box", "traceName": "/a/b.json", "x": "{Path.home()}/train.py"}}'
    scrubbed = json.loads(scrub(text))
    assert scrubbed["host_name"] == ""
    assert scrubbed["traceName"] == "trace.json"
    assert str(Path.home()) not in scrubbed["x"]

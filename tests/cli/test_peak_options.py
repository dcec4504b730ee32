"""--device and --peak of `report` and `summary`, and the line that says why there is no MFU."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import SAMPLE, assert_refused, run
from tests.conftest import shared_file


def changed(path: Path, change: Any) -> Path:
    """Write the sample with every event changed."""
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    change(trace)
    path.write_text(json.dumps(trace))
    return path


def without_shapes(trace: dict[str, Any]) -> None:
    for event in trace["traceEvents"]:
        for name in [name for name in event.get("args", {}) if name.startswith("Input")]:
            del event["args"][name]


def unknown_device(trace: dict[str, Any]) -> None:
    for device in trace["deviceProperties"]:
        device["name"] = "Quantum 9000"


def mfu(*words: str | Path) -> float | None:
    found = json.loads(run("summary", *words, "--json").stdout)["utilisation"]["mfu"]
    return None if found is None else float(found)


def test_a_given_peak_scales_the_figure() -> None:
    """The sample is of an H100, 989.4 TFLOP/s dense in bf16."""
    own = mfu(SAMPLE)
    assert own is not None
    assert mfu(SAMPLE, "--peak", "1978.8") == pytest.approx(own / 2, rel=1e-12)
    assert mfu(SAMPLE, "--device", "h100-sxm") == own
    # A B200 has 2,250 TFLOP/s dense in bf16.
    assert mfu(SAMPLE, "--device", "b200") == pytest.approx(own * 989.4 / 2_250, rel=1e-12)


def test_the_page_and_its_command_have_them(tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    done = run(
        "report", SAMPLE, "-o", page, "--device", "b200", "--peak", "1978.8", "--link", "400"
    )
    assert re.search(r"\bMFU 15\.2 %(\n| · )", done.stdout)
    text = page.read_text()
    assert f"traceflops report {SAMPLE.name} --device b200 --peak 1978.8 --link 400" in text
    assert "given 1,978.8 TFLOP/s" in text


@pytest.mark.parametrize("command", ["report", "summary"])
def test_what_cannot_be_meant_is_refused_before_reading(command: str) -> None:
    rates = (("--peak", "1e9"), ("--peak", "nan"), ("--peak", "0"), ("--link", "nan"))
    for words in (*rates, ("--link", "450e9"), ("--link", "-1"), ("--device", "foo")):
        assert_refused(run(command, "no-such-file.json", *words), 2, words[0])


def test_no_shapes_are_said_once(tmp_path: Path) -> None:
    shown = run("summary", changed(tmp_path / "bare.json", without_shapes)).stdout
    text = " ".join(shown.split())
    assert (
        "No MFU: the operators have no shapes, so FLOPs are unknown; record with "
        "record_shapes=True next time." in text
    )
    assert text.count("record_shapes") == 1
    assert "useful work" not in text
    assert "largest loss" not in text


def test_an_unknown_device_is_said_with_what_supplies_its_peak(tmp_path: Path) -> None:
    path = changed(tmp_path / "strange.json", unknown_device)
    text = " ".join(run("summary", path).stdout.split())
    assert "No MFU: no row of the table has the name 'Quantum 9000'" in text
    assert "--peak TFLOPS sets one for all data types" in text
    own = mfu(SAMPLE)
    assert own == pytest.approx(mfu(path, "--peak", "989.4"), rel=1e-12)


def test_without_device_work_only_the_verdict_speaks(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert "No MFU" not in run("summary", path).stdout


def test_recordings_without_shapes() -> None:
    text = run("summary", shared_file("traces/pytorch/a100_hta_nccl_rank0.json.gz")).stdout
    assert "No MFU: the operators have no shapes" in text
    assert text.count("record_shapes") == 1


@pytest.mark.parametrize(
    ("peak", "words"),
    [
        ("1978.8", "--peak 1978.8 is twice the dense bf16 rate of h100-sxm (989.4)"),
        ("9894", "--peak 9894 is 10 times the dense bf16 rate of h100-sxm (989.4)"),
        ("900", None),
    ],
)
def test_an_odd_peak_for_the_devices_of_a_trace_is_noted(peak: str, words: str | None) -> None:
    notes = json.loads(run("mfu", SAMPLE, "--peak", peak, "--json").stdout)["notes"]
    found = [note["text"] for note in notes if "--peak" in note["text"]]
    assert len(found) == (words is not None)
    assert words is None or found[0].startswith(words)
    text = " ".join(run("mfu", SAMPLE, "--peak", peak).stdout.split())
    assert (words is None) == ("rate of h100-sxm" not in text)

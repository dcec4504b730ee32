"""What identifies a machine or a person does not get into anything that is shared."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import traceflops as tf
from tests.conftest import shared_file
from tests.core.build import step_marks, trace_of
from traceflops.cli import app
from traceflops.privacy import redacted

CANARY = "env-value-removed"


def made(folder: Path) -> Path:
    """Write a trace that names its host, its user and homes wherever a profiler may put them."""
    frames = [
        "/home/alice/project/train.py(7): main",
        "/Users/bob smith/x.py(1): f",
        "C:\\Users\\carol\\x.py(1): g",
        "/root/.venv/lib/torch/nn.py(3): h",
        "worker on secrethost-17 by alice77",
    ]
    events = [
        {"ph": "X", "cat": "python_function", "name": f, "pid": 1, "tid": 1, "ts": 1, "dur": 1}
        for f in frames
    ]
    events.append(
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k_secrethost-17_x",
            "pid": 0,
            "tid": 7,
            "ts": 2,
            "dur": 3,
            "args": {"device": 0, "stream": 7, "correlation": 1},
        }
    )
    document = {
        "schemaVersion": 1,
        "host_name": "secrethost-17",
        "username": "alice77",
        "hostname_alias": CANARY,
        "metadata": {"system": {"env": {"TOKEN": CANARY}}},
        "traceEvents": events,
    }
    path = folder / "secrethost-17_4242.1700000000000.pt.trace.json"
    path.write_text(json.dumps(document))
    return path


SECRETS = ("alice", "bob smith", "carol", "/root", "secrethost", CANARY)


def outputs(path: Path, folder: Path, *options: str) -> dict[str, str]:
    """Return everything every command makes of a trace, by command."""
    runner = CliRunner()
    found: dict[str, str] = {}
    commands = {
        "summary": ["summary"],
        "summary json": ["summary", "--json"],
        "info": ["info"],
        "info json": ["info", "--json"],
        "report": ["report", "-o", str(folder / "o.html"), "-f", "-q"],
        "report json": ["report", "-o", str(folder / "o.json"), "-f", "-q"],
        "export": ["export", "-o", str(folder / "tables"), "--format", "csv", "-f"],
        "arrow": ["export", "-o", str(folder / "tables"), "--format", "arrow", "-f"],
    }
    for name, words in commands.items():
        result = runner.invoke(app, [words[0], str(path), *words[1:], *options])
        assert result.exit_code == 0, result.output
        found[name] = result.output if name in ("summary", "info") else result.stdout
    for file in [folder / "o.html", folder / "o.json", *(folder / "tables").iterdir()]:
        found[file.name] = file.read_bytes().decode(errors="replace")
    return found


def test_nothing_shared_identifies_anybody(tmp_path: Path) -> None:
    path = made(tmp_path)
    for name, text in outputs(path, tmp_path).items():
        for secret in SECRETS:
            assert secret not in text, f"{secret} in {name}"


def test_what_replaces_it_still_tells_what_it_was(tmp_path: Path) -> None:
    trace = redacted(tf.read(made(tmp_path)))
    names = trace.marks["name"].to_pylist()
    assert names[0] == "~/project/train.py(7): main"
    assert names[3] == "~/.venv/lib/torch/nn.py(3): h"
    assert names[4] == "worker on [name] by [name]"
    assert trace.processes["host"].to_pylist() == [None]
    assert trace.source.identities == ()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/N/x.py", "~/x.py"),
        ("/data/users/N/x.py", "~/x.py"),
        ("/mnt/data/users/N", "~"),
        ("/fsx/home2/N/a b", "~/a b"),
        ("/u/N/x", "~/x"),
        ("/scratch/users/N/x", "~/x"),
        ("(/HOME/N/x)", "(~/x)"),
        ("file:/Users/N/x", "file:~/x"),
        ("/opt/u/lib/x", "/opt/u/lib/x"),
        ("/rooted/x", "/rooted/x"),
        ("/usr/lib/home.py", "/usr/lib/home.py"),
        ("void f(int*)/home", "void f(int*)/home"),
    ],
)
def test_homes_of_all_kinds(path: str, shown: str) -> None:
    trace = trace_of(marks=step_marks((path, 1, 1)))
    assert redacted(trace).marks["name"].to_pylist() == [shown]


def test_asked_for_it_is_kept_but_never_the_environment(tmp_path: Path) -> None:
    texts = outputs(made(tmp_path), tmp_path, "--include-environment")
    assert "alice" in texts["marks.csv"]
    assert "secrethost-17" in texts["processes.csv"]
    assert all(CANARY not in text for text in texts.values())


def test_ordinary_paths_and_names_are_left_alone(tmp_path: Path) -> None:
    trace = tf.read(made(tmp_path))
    kept = "/opt/conda/lib/python3.11/site-packages/torch/_ops.py(3): homework at /homeless/x"
    document = json.loads(next(tmp_path.glob("*.json")).read_text())
    document["traceEvents"][0]["name"] = kept
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    assert redacted(tf.read(other)).marks["name"][0].as_py() == kept
    assert trace.marks["name"][0].as_py() == "/home/alice/project/train.py(7): main"


@pytest.mark.parametrize(
    "name", ["h100_qwen15_infer", "v100_kineto_resnet50_nw4", "b200_vllm_gptoss_prefill"]
)
def test_public_traces_leak_neither_environment_nor_homes(name: str, tmp_path: Path) -> None:
    path = shared_file(f"traces/pytorch/{name}.json.gz")
    for output, text in outputs(path, tmp_path).items():
        assert CANARY not in text, output
        assert "/home/" not in text, output
        assert "/Users/" not in text, output

"""What identifies a machine or a person does not get into anything that is shared."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import traceflops as tf
from tests.build import step_marks, trace_of
from tests.conftest import shared_file
from traceflops.cli import app
from traceflops.privacy.environment import redacted

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
        "perfetto": ["perfetto", "-o", str(folder / "o.perfetto.json"), "-f"],
        "markdown": ["report", "-o", str(folder / "o.md"), "-f", "-q"],
        "mfu": ["mfu", "--json"],
        "arrow": ["export", "-o", str(folder / "tables"), "--format", "arrow", "-f"],
    }
    for name, words in commands.items():
        result = runner.invoke(app, [words[0], str(path), *words[1:], *options])
        assert result.exit_code == 0, result.output
        found[name] = result.output if name in ("summary", "info") else result.stdout
    files = [folder / f"o.{end}" for end in ("html", "json", "md", "perfetto.json")]
    for file in [*files, *(folder / "tables").iterdir()]:
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
    assert names[0] == "train.py(7): main"
    assert names[1] == "x.py(1): f"
    assert names[3] == "nn.py(3): h"
    assert names[4] == "worker on [name] by [name]"
    assert trace.processes["host"].to_pylist() == [None]
    assert trace.source.identities == ()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/N", "~"),
        ("in /home/N: 3", "in ~: 3"),
        ("/data/users/N", "~"),
        ("/mnt/data/users/N", "~"),
        ("/u/N", "~"),
        ("(/HOME/N)", "(~)"),
        ("C:\\Users\\N", "~"),
        ("/home/N/x.py", "x.py"),
        ("/fsx/home2/N/a b", "a b"),
        ("file:/Users/N/x", "file:x"),
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/anna/train.py(7): main", "train.py(7): main"),
        ("/data/anna (old)/my code/train.py(7): main", "train.py(7): main"),
        ("D:\\work\\my code\\train.py(7): main", "train.py(7): main"),
        ("/a/b.py(3): f at /c/d.py(4): g", "b.py(3): f at d.py(4): g"),
        ("~/project/train.py(7): main", "train.py(7): main"),
        (
            "/opt/conda/lib/python3.11/site-packages/torch/_ops.py(3): call at /homeless/x",
            "torch/_ops.py(3): call at x",
        ),
        (
            "/work/anna/pytorch/torch/utils/checkpoint.py(9): backward",
            "torch/utils/checkpoint.py(9): backward",
        ),
        ("/data/torch/secret/train.py(9): main", "train.py(9): main"),
        ("load /mnt/x", "load x"),
        ("load /mnt/big data/x", "load x"),
        ("see /mnt/anna/b.py and/or c", "see b.py and/or c"),
        ("open C:\\work\\my code\\train.py now", "open train.py now"),
        ("\\\\server\\share\\anna\\x.bin", "x.bin"),
        ("file:///data/anna/x.pt", "x.pt"),
        ("train --out=/data/anna/run/ -I/data/anna/include", "train --out=run -Iinclude"),
        ("f(lambda at /data/anna/foo.cu:12:3)", "f(lambda at foo.cu:12:3)"),
        ("init tcp://10.1.2.3:29500", "init tcp://[address]"),
        ("peer 192.168.7.9:500", "peer [address]"),
    ],
)
def test_of_an_absolute_path_its_last_part_is_left(text: str, shown: str) -> None:
    trace = trace_of(marks=step_marks((text, 1, 1)))
    assert redacted(trace).marks["name"].to_pylist() == [shown]


@pytest.mark.parametrize(
    "text",
    [
        "torch/nn/modules/module.py(1501): _call_impl",
        "./train.py(3): f",
        "../code/train.py",
        "tokens/s, 12 GB/s / 3",
        "a/b/c and/or d",
        "jit(step)/jit(main)/layer_0/dot_general",
        "/model/layers.0/self_attn/MatMul",
        "at::native::operator/(float, float)",
        "void k<f>(int*)/x/y",
        "std::pair<int, A::B>::~pair()",
        "https://example.org/a/b",
        "meta-llama/Llama-3-8B",
        "cudnn 9.1.0.70",
        "step 3/10",
        "[1/2] x // y",
    ],
)
def test_what_is_no_absolute_path_is_left_alone(text: str) -> None:
    trace = trace_of(marks=step_marks((text, 1, 1)))
    assert redacted(trace).marks["name"].to_pylist() == [text]


PATHS = ("/data/users/anna/project/train.py", "C:\\work\\anna\\train.py", "/mnt/anna/train.py")


@pytest.mark.parametrize("path", PATHS)
def test_paths_in_annotations_are_in_no_output(path: str, tmp_path: Path) -> None:
    made(tmp_path)
    document = json.loads(next(tmp_path.glob("*.json")).read_text())
    mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    document["traceEvents"].append({**mark, "name": f"load {path}"})
    document["traceEvents"].append({**mark, "cat": "gpu_user_annotation", "name": path})
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    texts = outputs(other, tmp_path)
    assert "load train.py" in texts["marks.csv"]
    assert all("anna" not in text for text in texts.values())
    kept = outputs(other, tmp_path, "--include-environment")
    assert path in kept["marks.csv"]


@pytest.mark.parametrize(
    "name", ["h100_qwen15_infer", "v100_kineto_resnet50_nw4", "b200_vllm_gptoss_prefill"]
)
def test_public_traces_leak_neither_environment_nor_homes(name: str, tmp_path: Path) -> None:
    path = shared_file(f"traces/pytorch/{name}.json.gz")
    for output, text in outputs(path, tmp_path).items():
        assert CANARY not in text, output
        assert "/home/" not in text, output
        assert "/Users/" not in text, output

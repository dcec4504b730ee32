"""`tf.record`: the steps of a real loop, what the file says of them, and faults of all kinds."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import traceflops as tf
from tests.conftest import ROOT, by_night, some
from traceflops.cli import app
from traceflops.recording.inventory import take_inventory
from traceflops.recording.recorder import Recorder

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

CARD = {"hidden": 32, "layers": 1, "heads": 2, "ffn": 48, "glu": False, "vocab": 50}
BATCH, SEQ = 2, 16


class Tiny(nn.Module):
    """A transformer of one block, as CARD describes it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
        self.qkv, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)
        self.up, self.down = nn.Linear(32, 48, bias=False), nn.Linear(48, 32, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        q, k, v = (
            part.view(BATCH, SEQ, 2, 16).transpose(1, 2) for part in self.qkv(x).split(32, dim=2)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(BATCH, SEQ, 32))
        return self.head(x + self.down(F.gelu(self.up(x))))


def stepping(model: Any) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(50, (BATCH, SEQ))

    def step() -> None:
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()

    return step


def run(
    recorder: Recorder, steps: int, step: Callable[[], object] = lambda: torch.ones(2) + 1
) -> int:
    """Return how many steps a loop got to make."""
    done = 0
    with recorder as rec:
        for _ in range(steps):
            step()
            rec.step()
            done += 1
    return done


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# What is recorded


def test_a_loop_is_recorded_and_agrees_with_its_description(tmp_path: Path) -> None:
    model = Tiny()
    rec = tf.record(
        tmp_path / "new" / "trace.json.gz",
        model=CARD,
        batch=BATCH,
        seq=SEQ,
        wait=4,
        warmup=1,
        active=3,
        describe={"checkpointing": "none"},
    )
    assert run(rec, 12, stepping(model)) == 12
    path = tmp_path / "new" / "trace.json.gz"
    assert (rec.path, rec.problem) == (path, None)
    assert [file.name for file in path.parent.iterdir()] == ["trace.json.gz"]
    assert take_inventory(tf.read(path)).steps == (5, 6, 7)
    said = CliRunner().invoke(app, ["mfu", str(path), "--steps", "5:7", "--json"])
    described = json.loads(said.stdout)["described"]
    # Each weight takes a multiply-add forward and two backward, for each token; a causal mask
    # leaves 136 pairs of 16, for scores and for values, forward and twice backward, in 2 heads.
    products = 6 * BATCH * SEQ * (4 * 32 * 32 + 2 * 32 * 48 + 32 * 50)
    attention = 3 * 2 * 2 * BATCH * 2 * 136 * 16
    assert described["model_flops"] == products + attention
    assert described["counted_flops"] == 3 * (products + attention)
    assert described["agree"]


def test_the_file_says_what_it_is_and_not_where_it_is_from(tmp_path: Path) -> None:
    rec = tf.record(tmp_path / "trace.json", tokens_per_step=64, model=Tiny(), wait=3, active=2)
    run(rec, 7, lambda: rec.tokens(30, padded=32))
    text = (tmp_path / "trace.json").read_text(encoding="utf-8")
    known = json.loads(text)
    assert known["traceflops"] == {
        "gpus": 1,
        "params": 2 * 50 * 32 + 4 * 32 * 32 + 2 * 32 * 48,
        "tokens": 64,
    }
    assert known["pytorch_version"] == str(torch.__version__)
    assert socket.gethostname() not in (known.get("host_name"), known["traceName"])
    assert str(tmp_path) not in text
    assert text.count("traceflops.tokens|real=30|padded=32") == 2
    trace = tf.read(tmp_path / "trace.json")
    assert {note.code for note in trace.notes} == {"no-device-work", "recording-cost"}
    assert trace.ranks == (0,)
    cost = rec.overhead
    assert cost is not None
    assert known["traceflops_recording"]["recorded_step_ns"] == cost.recorded_step_ns > 0


def test_lengths_are_told_by_their_sums(tmp_path: Path) -> None:
    rec = tf.record(tmp_path / "trace.json.gz", wait=0, warmup=1, active=1)
    run(rec, 2, lambda: rec.lengths([3, 5]))
    text = gzip.decompress((tmp_path / "trace.json.gz").read_bytes())
    assert text.count(b"traceflops.seqlens|sum=8|sumsq=34|count=2") == 1


def test_steps_after_the_last_cost_nothing(tmp_path: Path) -> None:
    rec = tf.record(tmp_path / "trace.json.gz", wait=0, warmup=0, active=1)
    with rec:
        rec.step()
        assert rec.path is not None
        written = rec.path.stat().st_mtime_ns
        held = {id(value) for value in vars(rec).values()}
        rec.step()
        assert rec._profiler is None
        assert {id(value) for value in vars(rec).values()} == held
    assert rec.path.stat().st_mtime_ns == written


def test_the_device_is_waited_for_only_between_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec, at = tf.record(tmp_path / "t.json", wait=4, warmup=2, active=3), []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: at.append(rec._done))
    run(rec, 20)
    assert at == [2, 4, 6, 9]
    text = (tmp_path / "t.json").read_text(encoding="utf-8")
    assert len(set(re.findall(r"ProfilerStep#\d+", text))) == 3


@pytest.mark.parametrize("memory", [False, True])
def test_options_reach_the_profiler(tmp_path: Path, memory: bool) -> None:
    rec = tf.record(
        tmp_path / "t.json", wait=0, warmup=1, active=2, stacks=memory, shapes=memory, memory=memory
    )
    run(rec, 3)
    trace = tf.read(tmp_path / "t.json")
    keys = {"with_stack", "record_shapes", "profile_memory"}
    assert keys & trace.source.facts.keys() == (keys if memory else set())


# A loop that ends early, or fails


@pytest.mark.parametrize(("steps", "recorded"), [(3, (2,)), (4, (2, 3))])
def test_a_loop_that_ends_early_leaves_what_it_recorded(
    tmp_path: Path, steps: int, recorded: tuple[int, ...]
) -> None:
    rec = tf.record(tmp_path / "trace.json.gz", wait=1, warmup=1, active=3)
    run(rec, steps)
    assert (rec.problem, rec.overhead) == (None, None)
    assert take_inventory(tf.read(tmp_path / "trace.json.gz")).steps == recorded


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_loop_too_short_to_record_is_told_once(tmp_path: Path, steps: int) -> None:
    rec = tf.record(tmp_path / "trace.json.gz", wait=1, warmup=1, active=3)
    with pytest.warns(RuntimeWarning, match=f"ended after {steps} steps") as told:
        run(rec, steps)
    assert len(told) == 1
    assert list(tmp_path.iterdir()) == []
    run(tf.record(tmp_path / "next.json", wait=0, warmup=1, active=1), 2)  # nothing is left on
    assert (tmp_path / "next.json").exists()


def test_the_exception_of_a_loop_goes_on_and_the_steps_before_it_are_kept(tmp_path: Path) -> None:
    error = KeyboardInterrupt("stopped")
    rec = tf.record(tmp_path / "trace.json.gz", wait=0, warmup=1, active=5)
    with pytest.raises(KeyboardInterrupt) as caught, rec:
        for number in range(5):
            if number == 3:
                raise error
            rec.step()
    assert caught.value is error
    assert caught.value.__context__ is None
    assert take_inventory(tf.read(tmp_path / "trace.json.gz")).steps == (1, 2)


# Faults


def raising(*_args: object, **_named: object) -> None:
    raise RuntimeError("a fault")


@pytest.mark.parametrize(
    "method",
    [
        *("__init__", "prepare_trace", "start_trace", "stop_trace"),
        *("export_chrome_trace", "add_metadata_json"),
    ],
)
def test_a_fault_of_the_profiler_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.profiler.profile, method, raising)
        rec = tf.record(tmp_path / "trace.json.gz", wait=1, warmup=1, active=2)
        with pytest.warns(RuntimeWarning, match="a fault") as told:
            assert run(rec, 6) == 6
    assert (len(told), rec.path, rec._profiler) == (1, None, None)
    assert list(tmp_path.iterdir()) == []
    if method == "stop_trace":
        torch.autograd._disable_profiler()
    assert not torch.autograd._profiler_enabled()
    run(tf.record(tmp_path / "next.json", wait=0, warmup=1, active=1), 2)
    assert (tmp_path / "next.json").exists()


def test_a_fault_of_a_mark_or_of_a_device_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target, name in ((torch.profiler.record_function, "__enter__"), (Recorder, "_idle_ns")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, raising)
            with pytest.warns(RuntimeWarning, match="a fault") as told:
                assert run(tf.record(tmp_path / "t.json", wait=3, warmup=1, active=2), 9) == 9
        assert len(told) == 1
    assert list(tmp_path.iterdir()) == []


ANOTHER = """
import gc, sys, warnings
import torch
import traceflops as tf

gc.disable()  # PyTorch 2.13 may crash where garbage is collected while the inner profiler stops
begin, end, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
other, seen = torch.profiler.profile(), 0
rec = tf.record(path, wait=1, warmup=2, active=3)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with rec:
        for number in range(10):
            if number == begin:
                other.start()
            torch.ones(2)
            seen += begin <= number <= end
            if number == end:
                other.stop()
            rec.step()
assert ["another profiler" in str(one.message) for one in told] == [True], told
assert rec.path is None
assert sum(event.name == "aten::ones" for event in other.events()) == seen
"""


@pytest.mark.parametrize(("begin", "end"), some([(4, 5), (0, 9), (2, 9)], 3))
def test_another_profiler_goes_on_and_ends_this_one(tmp_path: Path, begin: int, end: int) -> None:
    """Used inside one another, profilers of PyTorch lose what they recorded, or crash.

    In a process of its own: PyTorch may crash beside other threads of the tests.
    """
    command = [sys.executable, "-c", ANOTHER, str(begin), str(end), str(tmp_path / "trace.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_place_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rec = tf.record(tmp_path / "file" / "trace.json.gz", wait=0, warmup=1, active=1)
    with pytest.warns(RuntimeWarning, match="file") as told:
        assert run(rec, 4) == 4
    assert (len(told), rec.path) == (1, None)


def test_warnings_that_are_errors_do_not_end_the_loop(tmp_path: Path) -> None:
    rec = tf.record(tmp_path / "trace.json.gz", describe={"colour": "red"}, wait=0, active=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(rec, 4) == 4
    assert rec.problem == "left out of the description: colour"
    assert rec.path is not None


class Odd(nn.Module):
    """A module that breaks where it is asked for what it does not have."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def test_a_word_that_is_no_json_is_text(tmp_path: Path) -> None:
    odd = {"batch": torch.tensor(3), "seq": float("nan"), "dtype": 'a"\\é', "lora": {"rank": (2,)}}
    rec = tf.record(tmp_path / "t.json", describe=odd, wait=0, warmup=1, active=1)
    run(rec, 2)
    found = tf.read(tmp_path / "t.json").source.description
    text = {"batch": "tensor(3)", "seq": "nan", "dtype": "a???", "lora": {"rank": [2]}}
    assert found == {"gpus": 1, **text}


def test_a_module_that_cannot_be_asked_is_left_out(tmp_path: Path) -> None:
    rec = tf.record(tmp_path / "t.json", model=Odd(), batch=2, seq=8, wait=0, warmup=1, active=1)
    with pytest.warns(RuntimeWarning, match="does not describe the model") as told:
        run(rec, 3)
    assert len(told) == 1
    assert tf.read(tmp_path / "t.json").source.description == {"batch": 2, "seq": 8}


@pytest.mark.parametrize(
    "wrong", [{"wait": -1}, {"active": 0}, {"path": "trace.html"}, {"path": "trace.gz"}]
)
def test_what_is_asked_wrongly_is_refused_before_the_loop(wrong: dict[str, Any]) -> None:
    with pytest.raises(tf.UsageError):
        tf.record(**{"path": "trace.json", **wrong})


# Several ranks


def rank(number: int, folder: str) -> None:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=number, world_size=2)
    model = DistributedDataParallel(Tiny())
    rec = tf.record(f"{folder}/ranks/", model=model, batch=2 * BATCH, seq=SEQ, wait=1, active=2)
    run(rec, 6, stepping(model))
    distributed.destroy_process_group()
    # gloo's threads may still hold tensors, and abort a process that lets go of Python meanwhile.
    os._exit(0)


@by_night()
def test_each_rank_of_a_job_writes_a_file(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(rank, args=(str(tmp_path),), nprocs=2)
    files = sorted(path.name for path in (tmp_path / "ranks").iterdir())
    assert files == ["rank0.json.gz", "rank1.json.gz"]
    trace = tf.read(tmp_path / "ranks")
    assert trace.ranks == (0, 1)
    assert trace.processes["world_size"].to_pylist() == [2, 2]
    assert len(set(trace.processes["host"].to_pylist())) == 1
    expected = {"gpus": 2, "params": 2 * 50 * 32 + 4 * 32 * 32 + 2 * 32 * 48}
    assert trace.source.description == {**expected, "batch": 2 * BATCH, "seq": SEQ}
    assert not [note for note in trace.notes if note.code.startswith("description")]

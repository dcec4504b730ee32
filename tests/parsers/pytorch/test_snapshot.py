"""Memory snapshots: the curve, peak and holders of the run they are of, also of a part of it."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import KinetoOptions, write_pytorch
from sample_traces.make import SAMPLES
from sample_traces.memory_snapshot import SnapshotOptions, write_snapshot
from sample_traces.records import Allocation, Run
from sample_traces.simulate import simulate
from tests.conftest import ROOT, examples
from traceflops.analysis.preparation import prepare
from traceflops.errors import InputError, NotATrace
from traceflops.memory.usage import MemoryUse, holders, memory_use
from traceflops.parsers.pytorch.snapshot import _BACKWARD
from traceflops.reports.page.memory import memory_page
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal
from traceflops.table.trace import Trace

ALLOCATED: Final = "device_memory.allocated_bytes"


@pytest.fixture(scope="module")
def run() -> Run:
    return simulate(SAMPLES[0].config)


def read(value: object, folder: Path, name: str = "s.pickle") -> Trace:
    (folder / name).write_bytes(pickle.dumps(value))
    return tf.read(folder / name)


def series(trace: Trace, name: str = ALLOCATED) -> list[tuple[int, int]]:
    rows = trace.counters.to_pylist()
    return [(row["time_ns"], int(row["value"])) for row in rows if row["name"] == name]


def codes(trace: Trace) -> list[str]:
    return [note.code for note in trace.notes]


def use_of(trace: Trace) -> tuple[MemoryUse, dict[tuple[str, str], int]]:
    prepared = prepare(trace)
    (use,) = memory_use(prepared)
    return use, {(one.op, one.scope): one.bytes for one in holders(prepared, use)}


def who(run: Run, at: Allocation) -> tuple[str, str]:
    """Return the outermost operator around an allocation, and the Python functions, by the run."""
    rank = run.ranks[0]
    records: list[Any] = [*rank.ops, *rank.marks]
    around = [
        one
        for one in records
        if one.thread == at.thread and one.start_ns <= at.time_ns < one.end_ns
    ]
    ops = [one for one in around if one in rank.ops]
    frames = [
        one.name for one in around if getattr(one, "kind", "") == "python" and "(" in one.name
    ]
    return min(ops, key=lambda one: one.start_ns).name, " < ".join(reversed(frames))


def test_the_curve_peak_and_holders_are_those_of_the_run(run: Run, tmp_path: Path) -> None:
    write_snapshot(run, 0, tmp_path / "s.pickle")
    trace = tf.read(tmp_path / "s.pickle")
    rank = run.ranks[0]
    at = [(rank.origin_unix_ns + one.time_ns) // 1000 * 1000 for one in rank.allocations]
    assert series(trace) == [*zip(at, (a.total_bytes for a in rank.allocations), strict=True)]
    assert trace.source.origin_unix_ns == 0
    use, held = use_of(trace)
    peak = max(rank.allocations, key=lambda one: one.total_bytes)
    blocks: dict[int, Allocation] = {}
    for one in rank.allocations[: rank.allocations.index(peak) + 1]:
        blocks[one.address] = one
    expected: Counter[tuple[str, str]] = Counter()
    for one in blocks.values():
        expected[who(run, one)] += max(one.bytes, 0)
    assert use.allocated.peak == peak.total_bytes
    assert held == {key: size for key, size in expected.items() if size}
    assert use.unused_at_peak == -peak.total_bytes % 2**21
    assert codes(trace) == []


@pytest.mark.parametrize("expandable", [True, False])
@pytest.mark.parametrize("most", [1, 7, 150, 400, 797])
def test_what_was_before_a_full_ring_is_undone(
    run: Run, most: int, expandable: bool, tmp_path: Path
) -> None:
    options = SnapshotOptions(most, expandable=expandable)
    found = write_snapshot(run, 0, tmp_path / "s.pickle", options)
    trace = tf.read(tmp_path / "s.pickle")
    events = [one["action"] in ("alloc", "free_requested") for one in found["device_traces"][0]]
    kept = run.ranks[0].allocations[-sum(events) :] if any(events) else ()
    totals = [value for _, value in series(trace)]
    assert totals[len(totals) - len(kept) :] == [one.total_bytes for one in kept]
    assert len(set(totals[: len(totals) - len(kept)])) <= 1
    _, last = series(trace, "device_memory.reserved_bytes")[-1]
    assert last == sum(one["total_size"] for one in found["segments"])
    assert not {"events-contradict", "state-differs"} & {*codes(trace)}


def test_the_same_run_with_the_profilers_events_has_the_same_memory(
    run: Run, tmp_path: Path
) -> None:
    (path,) = write_pytorch(run, tmp_path, KinetoOptions(memory=True, python_functions=True))
    write_snapshot(run, 0, tmp_path / "s.pickle")
    joined = tf.read(path, memory=tmp_path / "s.pickle")
    assert "own-memory" in codes(joined)
    (alone,), (both,) = (memory_use(prepare(one)) for one in (tf.read(path), joined))
    assert (both.allocated.peak, both.allocated.peak_step) == (
        (alone.allocated.peak, alone.allocated.peak_step)
    )
    assert [(s.step, s.most) for s in both.allocated.steps] == [
        (s.step, s.most) for s in alone.allocated.steps
    ]
    assert abs(both.allocated.peak_ns - alone.allocated.peak_ns) <= 1_000


def test_without_times_or_stacks_the_order_still_tells(run: Run, tmp_path: Path) -> None:
    write_snapshot(run, 0, tmp_path / "s.pickle", SnapshotOptions(times=False, stacks=False))
    trace = tf.read(tmp_path / "s.pickle")
    assert trace.source.origin_unix_ns is None
    assert codes(trace) == ["no-times"]
    use, held = use_of(trace)
    assert use.allocated.peak == max(one.total_bytes for one in run.ranks[0].allocations)
    assert sum(held.values()) == use.allocated.peak
    (path,) = write_pytorch(run, tmp_path)
    with pytest.raises(InputError, match="no calendar time"):
        tf.read(path, memory=tmp_path / "s.pickle")


def test_a_snapshot_of_another_time_is_joined_with_a_note(run: Run, tmp_path: Path) -> None:
    (path,) = write_pytorch(run, tmp_path)
    far = {"segments": [], "device_traces": [[event("alloc", 1, 1, time_us=1)]]}
    (tmp_path / "far.pickle").write_bytes(pickle.dumps(far))
    assert "apart" in codes(tf.read(path, memory=tmp_path / "far.pickle"))
    with pytest.raises(InputError, match="not PyTorch memory snapshot"):
        tf.read(path, memory=path)


def test_a_snapshot_joins_its_own_rank_alone_and_once(tmp_path: Path) -> None:
    """Each process sees its GPU as number 0."""
    many = simulate(RunConfig(ranks=2, layers=1, steps=2))
    first, _ = write_pytorch(many, tmp_path)
    at_us = many.ranks[0].origin_unix_ns // 1000
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(of_gpu(0, at_us)))
    (tmp_path / "rank1.pickle").write_bytes(pickle.dumps(of_gpu(0, at_us)))
    (tmp_path / "rank0_late.pickle").write_bytes(pickle.dumps(of_gpu(0, at_us + 9)))
    (tmp_path / "other.pickle").write_bytes(pickle.dumps(of_gpu(5, at_us)))
    assert series(tf.read(first, memory=tmp_path / "rank0.pickle"))
    with pytest.raises(InputError, match="rank 1 is not in the trace"):
        tf.read(first, memory=tmp_path / "rank1.pickle")
    with pytest.raises(InputError, match="its GPU is not in the trace"):
        tf.read(first, memory=tmp_path / "other.pickle")
    with pytest.raises(InputError, match="a second snapshot of the same GPU"):
        tf.read(first, memory=[tmp_path / "rank0.pickle", tmp_path / "rank0_late.pickle"])


def test_a_folder_of_snapshots_joins_each_to_its_rank(tmp_path: Path) -> None:
    ranks, snapshots = tmp_path / "ranks", tmp_path / "snapshots"
    snapshots.mkdir()
    run = simulate(RunConfig(steps=2, layers=1, ranks=2))
    write_pytorch(run, ranks)
    for rank in (0, 1):
        write_snapshot(run, rank, snapshots / f"rank{rank}.pickle")
    joined = tf.read(ranks, memory=snapshots)
    peaks = {use.rank: use.allocated.peak for use in memory_use(prepare(joined))}
    assert peaks == {
        rank: max(at.total_bytes for at in one.allocations) for rank, one in enumerate(run.ranks)
    }
    with pytest.raises(InputError, match="traces are of 2 jobs") as error:
        tf.read([ranks, ROOT / "sample_traces/rocpd"], memory=snapshots / "rank0.pickle")
    assert "one job" in error.value.hint


def of_gpu(gpu: int, time_us: int) -> dict[str, Any]:
    events = [event("segment_alloc", 0, 8, time_us=time_us), event("alloc", 1, 1, time_us=time_us)]
    return {"segments": [], "device_traces": [*([] for _ in range(gpu)), events]}


CELL: Final = 512


def event(action: str, cell: int, cells: int, **more: Any) -> dict[str, Any]:
    frames = [{"filename": "/x/torch/a.py", "name": "f", "line": 1}]
    place = {"addr": cell * CELL, "size": cells * CELL, "stream": 0, "frames": frames}
    return {"action": action, **place, **more}


@settings(max_examples=examples(400), deadline=None)
@given(data=st.data())
def test_the_largest_free_block_is_that_of_a_map_of_cells(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cells hold the number of their segment, and whether they are allocated."""
    owner, taken = np.zeros(48, np.int64), np.zeros(48, np.bool_)
    blocks: dict[int, int] = {}
    events, states = [], {-1: (owner.copy(), taken.copy())}
    for number in range(1, data.draw(st.integers(2, 24))):
        at, size = data.draw(st.integers(0, 46)), data.draw(st.integers(1, 12))
        cells = slice(at, at + size)
        kind = data.draw(st.sampled_from(("segment_alloc", "alloc", "alloc", "free_requested")))
        if kind == "segment_alloc" and at + size <= 48 and not owner[cells].any():
            owner[cells] = number
        elif (
            kind == "alloc" and len(set(owner[cells])) == 1 and owner[at] and not taken[cells].any()
        ):
            size = len(owner[cells])
            taken[cells], blocks[at] = True, size
        elif kind == "free_requested" and blocks:
            at = data.draw(st.sampled_from(sorted(blocks)))
            size = blocks.pop(at)
            taken[at : at + size] = False
        else:
            continue
        events.append(event(kind, at, size, time_us=number))
        states[len(states) - 1] = owner.copy(), taken.copy()
    segments = [
        {
            "device": 0,
            "address": int(np.argmax(owner == one)) * CELL,
            "total_size": int((owner == one).sum()) * CELL,
            "blocks": [
                {"address": at * CELL, "size": size * CELL, "state": "active_allocated"}
                for at, size in blocks.items()
                if owner[at] == one
            ],
        }
        for one in sorted({*owner.tolist()} - {0})
    ]
    if not events:
        return
    kept = data.draw(st.integers(1, len(events)))
    ring = {"segments": segments, "device_traces": [events[len(events) - kept :]]}
    trace = read(ring, tmp_path_factory.mktemp("s"))
    changes = [n for n, one in enumerate(events) if one["action"] in ("alloc", "free_requested")]
    begin = len(events) - kept - 1
    peak = max([begin, *(n for n in changes if n > begin)], key=lambda n: (states[n][1].sum(), -n))
    owner, taken = states[peak]
    free = np.where(taken, 0, owner)
    runs = np.split(free, np.flatnonzero(np.diff(free)) + 1)
    largest = max(len(run) for run in runs if run[0]) if free.any() else 0
    assert max(value for _, value in series(trace)) == taken.sum() * CELL
    assert series(trace, "device_memory.largest_free_bytes")[0][1] == largest * CELL


BLOCK: Final = {"address": 512, "size": 512, "requested_size": 500, "state": "active_allocated"}
SEGMENT: Final = {"device": 3, "address": 0, "total_size": 4096, "blocks": [BLOCK]}


def test_a_snapshot_without_events_tells_its_own_time(tmp_path: Path) -> None:
    # The last is what torch.cuda.memory_snapshot() returns.
    for whole in ({"segments": [SEGMENT], "device_traces": []}, [SEGMENT]):
        trace = read(whole, tmp_path, "rank5.pickle")
        assert series(trace) == [(0, 512)]
    assert series(trace, "device_memory.largest_free_bytes") == [(0, 4096 - 1024)]
    assert trace.ranks == (5,)
    assert "no-history" in codes(trace)
    page = memory_page(tf.analyze(trace))
    assert page is not None and page.held is None  # nobody is known to hold anything
    assert (
        "GPU 3 has 512 B allocated as the snapshot is taken. Its peak is not recorded. Another "
        "3.5 KiB is reserved" in tf.analyze(trace).verdict.sentence
    )


def test_blocks_of_pytorch_2_0_have_their_frames_in_a_history(tmp_path: Path) -> None:
    frames = [{"filename": "/x/weights.py", "name": "load", "line": 7}]
    past = [{"addr": 1024, "real_size": 300, "frames": frames}, {"addr": 1024, "frames": []}]
    blocks = [
        {"size": 1024, "state": "inactive"},
        {"size": 512, "state": "active_allocated", "history": past},
    ]
    segment = {**SEGMENT, "device": 0, "blocks": blocks}
    old = {"segments": [segment], "device_traces": [[{"action": "snapshot"}]]}
    trace = read(old, tmp_path)
    assert [row["address"] for row in trace.counters.to_pylist() if row["address"]] == [1024, 1024]
    use, held = use_of(trace)
    assert held == {("weights.py(7): load", ""): 512}
    assert use.unused_at_peak == 4096 - 512
    page = memory_page(tf.analyze(trace))
    assert page is not None and page.held is not None and page.held.is_state
    assert "no-history" in codes(trace)


@pytest.mark.parametrize("use", [None, 5, {"real_size": "300"}, {"real_size": -1}])
def test_a_history_of_a_block_that_is_none_is_refused(use: Any, tmp_path: Path) -> None:
    block = {"size": 512, "state": "active_allocated", "history": [use]}
    with pytest.raises(NotATrace, match="not a memory snapshot"):
        read({"segments": [{**SEGMENT, "blocks": [block]}], "device_traces": []}, tmp_path)


def test_helpers_of_packages_are_left_out_and_their_modules_are_not(tmp_path: Path) -> None:
    """Frames are innermost first; PyTorch calls a module's forward."""
    helper, module = "/v/site-packages/einops/einops.py", "/v/site-packages/hf/model.py"
    own, called = ("/x/net.py", "forward"), ("/v/site-packages/torch/nn/module.py", "_call")
    stacks = [
        [(helper, "einsum"), (helper, "fold"), own, called, ("/x/main.py", "main")],
        [(helper, "einsum"), (module, "forward"), called, ("/x/main.py", "main")],
    ]
    events = [
        event("alloc", at, 1, time_us=at)
        | {"frames": [{"filename": file, "name": name, "line": 1} for file, name in stack]}
        for at, stack in enumerate(stacks)
    ]
    trace = read({"segments": [], "device_traces": [events]}, tmp_path)
    stacks_told = {row["stack"] for row in trace.counters.to_pylist()} - {None}
    assert stacks_told == {
        "net.py(1): forward < main.py(1): main",
        "einops.py(1): einsum < model.py(1): forward < main.py(1): main",
    }


def test_what_was_before_the_recording_is_told_if_it_is_most(tmp_path: Path) -> None:
    frames = [{"filename": "net.py", "name": "forward", "line": 3}]
    held = [{**BLOCK, "size": 4096 * n, "requested_size": 4096 * n} for n in (1,)]
    begun = {**event("alloc", 99, 1, time_us=1), "frames": frames}
    freed = {**event("free_requested", 99, 1, time_us=2), "frames": []}
    segment = {**SEGMENT, "device": 0, "blocks": held}
    trace = read({"segments": [segment], "device_traces": [[begun, freed]]}, tmp_path)
    assert tf.analyze(trace).verdict.sentence.startswith(
        "GPU 0 has 4.5 KiB allocated at its peak, 4 KiB from before the recording, 512 B by forward"
    )


def allocated(at: int, gib: int, *frames: tuple[str, str]) -> dict[str, Any]:
    stack = [{"filename": file, "line": 1, "name": name} for file, name in frames]
    size = gib << 30
    return {"action": "alloc", "addr": at << 40, "size": size, "time_us": at, "frames": stack}


def test_scores_of_attention_are_known_by_their_size_in_the_backward_pass(tmp_path: Path) -> None:
    exp = ("", "at::_ops::exp::call("), ("a.py", "softmax"), ("a.py", "main")
    back = ("", "at::_ops::div::call("), ("", "torch::autograd::DivBackward0::apply(")
    events = [allocated(1, 8, *exp), *(allocated(at, 8, *back) for at in (2, 3, 4))]
    output = ("", "at::_ops::bmm::call("), ("a.py", "dot_product_attention"), ("a.py", "main")
    events += [allocated(5, 1, *output), allocated(6, 1, *output[:1], *back[1:])]
    sentence = tf.analyze(read({"segments": [], "device_traces": [events]}, tmp_path)).verdict
    assert "Attention stores its scores, 32 GiB" in sentence.sentence


def test_a_history_with_gaps_says_so(tmp_path: Path) -> None:
    events = [event("alloc", 8, 1), event("alloc", 8, 1), event("wink", 1, 1)]
    trace = read({"segments": [SEGMENT], "device_traces": [[], [], [], events]}, tmp_path)
    assert {*codes(trace)} >= {"events-contradict", "state-differs", "unknown-action"}


SHARED: Final = [dict(BLOCK)] * 1_000
DOUBLED: list[Any] = []
for _ in range(50):
    DOUBLED = [DOUBLED, DOUBLED]
HELD: Final = {"size": 512, "state": "active_allocated"}
FAR: Final = [{"size": 9, "state": "inactive"}, HELD]
BAD: Final = {
    "a number as history": {"segments": [{**SEGMENT, "blocks": [{**HELD, "history": [5]}]}]},
    "blocks beyond all": {"segments": [{**SEGMENT, "address": 2**62, "blocks": FAR}]},
    "one list of events in many places": {
        "segments": [],
        "device_traces": [[event("a", 1, 1)]] * 9,
    },
    "one list of blocks in many places": {"segments": [{**SEGMENT, "blocks": SHARED}] * 1_000},
    "lists in lists": {"segments": DOUBLED, "device_traces": DOUBLED},
    "lists as events": {"segments": [], "device_traces": [DOUBLED]},
    "a size below 0": {"segments": [], "device_traces": [[event("alloc", 1, -1)]]},
    "a huge size": {"segments": [], "device_traces": [[event("alloc", 1, 2**60)]]},
    "a text as size": {"segments": [{**SEGMENT, "total_size": "9"}]},
    "a device far away": {"segments": [{**SEGMENT, "device": 10**9}]},
    "a time far away": {"segments": [], "device_traces": [[event("alloc", 1, 1, time_us=2**62)]]},
    "no segments": {"segments": 3},
}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_other_structures_are_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match="not a memory snapshot"):
        read(value, tmp_path)


def test_stacks_of_any_shape_are_texts_or_none(tmp_path: Path) -> None:
    frames = [[], "x", [3], [{}], [{"filename": 3, "name": [], "line": "x"}], DOUBLED]
    frames += [[{"filename": "C:\\a\\b.py", "name": "f", "line": 4}] * 50]
    events = [event("alloc", n, 1, time_us=n) | {"frames": one} for n, one in enumerate(frames)]
    trace = read({"segments": [], "device_traces": [events]}, tmp_path)
    told = [
        row["stack"] for row in trace.counters.to_pylist() if row["name"].endswith("change_bytes")
    ]
    assert told[-1] == " < ".join(["b.py(4): f"] * 8)
    assert told[:2] == [None, None]


def test_a_chain_of_namespaces_is_looked_at_once() -> None:
    outer = "torch::autograd::"
    name = f"{outer}{outer}generated::MmBackward0::apply(std::vector<at::Tensor>&&)"
    assert (found := _BACKWARD.search(name)) is not None
    assert (found.start(), found[1]) == (0, "MmBackward0")
    assert _BACKWARD.match(name, len(outer)) is None


def test_what_failed_is_said_with_its_size_and_stack(tmp_path: Path) -> None:
    frames = [{"filename": "/x/model.py", "name": "attention", "line": 78}]
    failed = {"action": "oom", "stream": 0, "device_free": 5, "frames": frames}
    events = [event("alloc", 1, 1, time_us=1)]
    events += [failed | {"time_us": at, "size": at << 30} for at in (8, 12)]
    trace = read({"segments": [], "device_traces": [events]}, tmp_path)
    assert series(trace, "device_memory.failed_bytes") == [(8_000, 8 << 30), (12_000, 12 << 30)]
    assert tf.analyze(trace).verdict.sentence.startswith(
        "2 allocations failed: out of memory; the last asked for 12 GiB, by attention (model.py:"
    )
    one = read({"segments": [], "device_traces": [events[:2]]}, tmp_path)
    assert "failed: out of memory; it asked for 8 GiB" in tf.analyze(one).verdict.sentence


def test_several_ranks_and_gpus_are_told_apart(tmp_path: Path) -> None:
    for rank, cells in enumerate((2, 9)):
        found = of_gpu(0, 1)
        found["device_traces"][0][1]["size"] = cells * CELL
        (tmp_path / f"rank{rank}.pickle").write_bytes(pickle.dumps(found))
    analysis = tf.analyze(tf.read([tmp_path / "rank0.pickle", tmp_path / "rank1.pickle"]))
    assert analysis.verdict.sentence.startswith("GPU 0 of rank 1 has 4.5 KiB allocated")


def test_a_joined_snapshot_is_in_the_summary(run: Run, tmp_path: Path) -> None:
    (path,) = write_pytorch(run, tmp_path)
    write_snapshot(run, 0, tmp_path / "s.pickle")
    texts = [
        "\n".join(line.plain for line in render_terminal(tf.analyze(trace), Style(width=200)))
        for trace in (tf.read(path), tf.read(path, memory=tmp_path / "s.pickle"))
    ]
    peak = max(one.total_bytes for one in run.ranks[0].allocations) >> 20
    assert "Held at the peak" not in texts[0]
    assert f"GPU 0 has {peak} MiB allocated at its peak" in texts[1]
    assert "Held at the peak" in texts[1]


def test_parts_of_the_peak_are_told_with_what_makes_the_largest_smaller(tmp_path: Path) -> None:
    """Of 40 GiB at the peak the optimizer has 24, backward 10, forward 6; the keys are reversed."""
    zeros = ("", "at::_ops::zeros_like::call(at::Tensor const&)")
    events = [
        allocated(1, 6, ("", "at::_ops::mm::call("), ("model.py", "forward")),
        allocated(2, 10, ("", "at::_ops::mm::call("), ("", "torch::autograd::MmBackward0::apply(")),
        allocated(3, 24, zeros, ("/x/torch/optim/adamw.py", "_init_group"), ("train.py", "main")),
    ]
    trace = read({"device_traces": [events], "segments": []}, tmp_path)
    sentence = tf.analyze(trace).verdict.sentence
    assert (
        "Of what is allocated, the optimizer holds 24 GiB, backward passes hold 10 GiB, forward "
        "passes hold 6 GiB. To need less, keep the states of the optimizer in 8 or 16 bits"
        in sentence
    )


def test_what_is_made_for_a_moment_has_a_remedy_of_its_own(tmp_path: Path) -> None:
    def said(*events: dict[str, Any]) -> str:
        trace = read({"device_traces": [[*events]], "segments": []}, tmp_path)
        return tf.analyze(trace).verdict.sentence

    def of(name: str, *around: str) -> list[tuple[str, str]]:
        backward = (f"torch::autograd::generated::{one}::apply(" for one in around)
        return [("", f"at::_ops::{name}::call("), *(("", one) for one in backward)]

    loss = allocated(2, 2, *of("cross_entropy_loss"))
    backward = allocated(3, 1, *of("nll_loss_backward", "NllLossBackward0"))
    assert "The loss takes 3 GiB" in said(allocated(1, 5, *of("linear")), loss, backward)
    assert "The loss takes" not in said(allocated(1, 10, *of("linear")), loss, backward)
    scores = allocated(2, 9, *of("_log_softmax"))
    assert "The loss takes" not in said(allocated(1, 5, *of("linear")), scores)
    assert "The loss takes 10 GiB" in said(backward, scores)
    step = ("optimizer.py", "step")
    made = [allocated(at, 1, *of("mul_Tensor"), step) for at in (3, 4)]
    assert "makes 2 GiB of temporary" in said(allocated(2, 9, *of("zeros_like"), step), *made)
    assert "temporary" not in said(allocated(2, 19, *of("zeros_like"), step), *made)
    file = "/lib/python3.9/site-packages/torch/optim/adam.py"
    inner = [(file, name) for name in ("_multi_tensor_adam", "adam", "step")]
    for op, is_told in (("_foreach_sqrt", True), ("addmm", False)):
        own = allocated(3, 2, *of(op), *inner, ("/x/train.py", "main"))
        text = said(allocated(1, 4, *of("mm")), own)
        assert "the optimizer holds 2 GiB" in text and ("temporary" in text) == is_told
    load, run = ("net.py", "load_weights"), ("net.py", "forward")
    loaded = said(allocated(1, 4, *of("empty"), load, ("main.py", "__call__")))
    assert "loaded weights or data hold 4 GiB" in loaded and "no_grad" not in loaded
    assert "forward passes hold 4 GiB" in said(allocated(1, 4, *of("mm"), run, load))
    conv, relu = allocated(1, 4, *of("conv2d")), of("relu")
    assert "aten::relu takes 4 GiB beside an input" in said(conv, allocated(2, 4, *relu))
    assert "inplace" not in said(conv, allocated(2, 3, *relu))


def test_gpus_that_hold_far_less_than_the_one_that_is_full_are_told(tmp_path: Path) -> None:
    failed = {"action": "oom", "size": 9, "time_us": 9}
    full = [allocated(1, 8), failed]
    for gib, is_told in ((3, True), (5, False)):
        trace = read({"device_traces": [full, [allocated(1, gib)]], "segments": []}, tmp_path)
        text = f"None of its other GPUs holds more than {gib} GiB"
        assert (text in tf.analyze(trace).verdict.sentence) == is_told
    elsewhere = [[allocated(1, 8)], [allocated(1, 3), failed]]
    trace = read({"device_traces": elsewhere, "segments": []}, tmp_path)
    assert "divide the work evenly" not in tf.analyze(trace).verdict.sentence
    nothing = read({"device_traces": [[failed]], "segments": []}, tmp_path)
    assert "failed" in tf.analyze(nothing).verdict.sentence


def test_no_part_of_the_program_holds_nothing(tmp_path: Path) -> None:
    frames = [{"filename": "m.py", "line": 1, "name": "forward"}]
    empty = {"action": "alloc", "addr": 1 << 40, "size": 0, "time_us": 1, "frames": frames}
    trace = read({"segments": [], "device_traces": [[empty]]}, tmp_path)
    assert tf.analyze(trace).verdict.sentence == (
        "GPU 0 has 0 B allocated as the snapshot is taken. Its peak is not recorded."
    )

"""What only shortens never lengthens: not alone, not beside other edits, in no reading."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.simulate import simulate
from tests.conftest import examples, shared_file
from tests.samples.strategies import run_configs
from traceflops import Analysis, analyze, read, what_if
from traceflops.replay.what_if import Outcome, Replay
from traceflops.windows.selection import Selection, parse_steps

SHORTER = (
    *("kernel:gemm|nvjet=0", "kernel:.*/2", "kernel:elementwise=0", "kernel:nccl/3"),
    *("host:.*=0", "host:aten/2", "eager_overhead=0", "data_input=0", "sync=0"),
    *("launch_latency=0", "communication=0", "communication/3", "communication=hidden"),
)
TINY = RunConfig(
    seed=0,
    ranks=2,
    steps=2,
    first_step=0,
    layers=1,
    hidden=64,
    heads=1,
    sequence=16,
    batch=1,
    vocab=100,
    gradient_buckets=1,
    overlap=False,
    host_op_ns=1,
    launch_call_ns=1,
    launch_latency_ns=0,
    dispatch_gap_ns=0,
    event_wait_ns=0,
    python_overhead_ns=0,
)


def part_of(config: RunConfig, files: int) -> Analysis:
    """Return the analysis of the later steps of some of the ranks of a run."""
    with TemporaryDirectory() as folder:
        paths = write_pytorch(simulate(config), Path(folder))
        chosen = Selection(steps=parse_steps(f"{config.first_step + 1}:"))
        return analyze(read([str(path) for path in paths[:files]]), chosen)


def target_of(edit: str) -> str:
    """Return what an edit is about; two of one target are refused."""
    return re.split(r"[=/*](?=[^=/*]*$)", edit)[0]


def ends(outcome: Outcome) -> tuple[int, int]:
    return outcome.least_ns, outcome.most_ns


@settings(max_examples=examples(30))
@example(TINY, ["kernel:.*/2", "host:aten/2"], 1)
@given(
    run_configs(steps=2, layers=1),
    st.lists(st.sampled_from(SHORTER), min_size=1, max_size=3, unique_by=target_of),
    st.integers(1, 3),
)
def test_one_more_edit_that_only_shortens_never_lengthens(
    config: RunConfig, edits: list[str], files: int
) -> None:
    analysis = part_of(config, files)
    before = what_if(analysis).together
    assert ends(before) == (before.before_ns, before.before_ns)
    for edit in edits:
        try:
            alone = what_if(analysis, edit).together
        except Exception as error:
            assert "cannot answer" in str(error)
            continue
        after = what_if(analysis, *before.edits, edit).together
        for one in (alone, before):
            assert all(now <= then for now, then in zip(ends(after), ends(one), strict=True))
        before = after


@settings(max_examples=examples(10))
@given(
    run_configs(ranks=2, steps=2, layers=1, batch=1, hidden=1024),
    st.integers(1, 2),
    st.sampled_from(["kernel:gemm/2", "host:.*/2", "kernel:gemm*2", "kernel:nccl/2"]),
)
def test_hidden_communication_gains_no_more_than_none(
    config: RunConfig, files: int, other: str
) -> None:
    analysis = part_of(config, files)
    for edits in ((), (other,)):
        kept, hidden, none = (
            what_if(analysis, *edits, *more).together
            for more in ((), ("communication=hidden",), ("communication=0",))
        )
        for some, more, most in zip(ends(none), ends(hidden), ends(kept), strict=True):
            assert some <= more <= most


def test_hidden_communication_still_takes_its_time_as_edited() -> None:
    analysis = part_of(
        RunConfig(seed=3, ranks=2, steps=3, layers=1, link_bytes_per_s=2_000_000_000), 2
    )
    hidden = what_if(analysis, "communication=hidden").together
    assert hidden.after_ns is not None
    assert 0.9 * analysis.components.communication_ns <= hidden.after_ns < hidden.before_ns
    both = what_if(analysis, "communication=hidden", "kernel:.*=0", "host:.*=0").together
    without = what_if(analysis, "kernel:.*=0", "host:.*=0").together
    assert both.after_ns == without.after_ns


@pytest.mark.parametrize("name", ["mi300x_resnet18_ddp_train", "a100_hta_control_rank3"])
def test_each_reading_of_a_recording_takes_its_time(name: str) -> None:
    analysis = analyze(read([str(shared_file(f"traces/pytorch/{name}.json.gz"))]))
    replay = analysis.replay
    assert isinstance(replay, Replay)
    assert len(replay.readings) == 4
    totals = {replay.replayed(way, ()).total_ns for way in replay.readings}
    assert totals == {analysis.components.window_ns}


def test_hidden_collectives_of_a_recording_take_their_time() -> None:
    """Of 18.99 ms per step the collectives, one after another, take 15.9 ms."""
    path = shared_file("traces/pytorch/mi300x_resnet18_ddp_train.json.gz")
    answer = what_if(analyze(read([str(path)])), "communication=hidden", "communication=0")
    hidden, none = answer.alone
    assert 2 * 15_880_000 < hidden.least_ns < 2 * 15_920_000
    assert none.least_ns < 2 * 8_000_000
    assert hidden.most_ns == none.most_ns == hidden.before_ns


def test_what_cannot_be_answered_leaves_the_other_answers() -> None:
    analysis = part_of(RunConfig(seed=3, steps=3, layers=1), 1)
    answer = what_if(analysis, "kernel:gemm/2", "rank 7=median", "data_input=0")
    assert [one.edits for one in answer.alone] == [("kernel:gemm/2",), ("data_input=0",)]
    assert answer.together.edits == ("kernel:gemm/2", "data_input=0")
    assert list(answer.refused) == ["rank 7=median"]
    assert "is missing" in answer.refused["rank 7=median"]

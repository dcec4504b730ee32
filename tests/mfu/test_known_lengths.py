"""Attention on packed sequences is exact where marks tell their lengths."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.build import launched, step_marks, trace_of
from tests.mfu.counting import part_of
from tests.mfu.test_measurement import H100, H100_BF16
from traceflops.analysis.preparation import prepare
from traceflops.flops.ops.attention import Band
from traceflops.mfu.budget import ShareRange
from traceflops.mfu.measurement import Measurement, measure
from traceflops.mfu.traced.executed import executed
from traceflops.table.trace import Trace
from traceflops.windows.prepared import Prepared
from traceflops.windows.selection import Selection

HEADS, WIDTH, STEP = 4, 32, 100_000
FORWARD = "flash_attn::_flash_attn_varlen_forward"
BACKWARD = "flash_attn::_flash_attn_varlen_backward"
KERNELS = {FORWARD: "flash_fwd_kernel", BACKWARD: "flash_bwd_kernel"}
_OFFSETS = {FORWARD: (3, 4), BACKWARD: (9, 10)}
_LONGEST = {FORWARD: (5, 6), BACKWARD: (11, 12)}
_CAUSAL = {FORWARD: 9, BACKWARD: 15}

Step = list[tuple[str, int, int]]
"""The attention operators of a step: name, tokens, sequences."""


def varlen(
    name: str, tokens: int, documents: int, causal: bool = True, left: int = -1
) -> dict[str, Any]:
    """Return an attention on packed sequences as an op of a trace."""
    dims: list[Any] = [[]] * 20
    first = int(name == BACKWARD)
    for place in (0, first, first + 1, first + 2):
        dims[place] = [tokens, HEADS, WIDTH]
    for place in _OFFSETS[name]:
        dims[place] = [documents + 1]
    values = [""] * 20
    for place in _LONGEST[name]:
        values[place] = str(tokens)
    at = _CAUSAL[name]
    values[at], values[at + 1], values[at + 2] = str(causal), str(left), "-1"
    return {
        "name": name,
        "dur_ns": 100,
        "input_dims": json.dumps(dims),
        "input_types": json.dumps(["c10::BFloat16" if shape else "" for shape in dims]),
        "concrete_inputs": json.dumps(values),
    }


def steps(works: list[Step], marks: list[list[str]], **how: Any) -> Trace:
    """Return a trace of steps, each with its attention operators and marks."""
    ops, kernels = [], []
    named = [(f"ProfilerStep#{number}", STEP * number, STEP) for number in range(len(works))]
    for number, work in enumerate(works):
        for place, (name, tokens, documents) in enumerate(work):
            start = STEP * number + 1_000 + 2_000 * place
            ops.append(varlen(name, tokens, documents, **how) | {"start_ns": start})
            kernels.append((KERNELS[name], start + 10, start + 20, 1_500))
        named += [(text, STEP * number + 5, 3) for text in marks[number]]
    return trace_of(**launched(*kernels), ops=ops, marks=step_marks(*named), devices=[H100])


def seqlens(lengths: list[int], *, count: bool = True) -> str:
    text = f"traceflops.seqlens|sum={sum(lengths)}|sumsq={sum(n * n for n in lengths)}"
    return f"{text}|count={len(lengths)}" if count else text


def all_steps(trace: Trace) -> Prepared:
    return prepare(trace, Selection(steps=(0, 99)))


def forward(lengths: list[int]) -> int:
    """Return the FLOPs of one causal attention, pair by pair."""
    pairs = sum(query + 1 for length in lengths for query in range(length))
    return 4 * pairs * HEADS * WIDTH


def measured(trace: Trace) -> Measurement:
    return measure(all_steps(trace))


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(st.lists(LENGTHS, min_size=2, max_size=4), st.integers(1, 3), st.booleans())
def test_each_step_is_counted_by_its_own_mark(
    documents: list[list[int]], layers: int, counted: bool
) -> None:
    works = [
        [(name, sum(each), len(each)) for name in (FORWARD, BACKWARD) for _ in range(layers)]
        for each in documents
    ]
    found = executed(all_steps(steps(works, [[seqlens(d, count=counted)] for d in documents])))
    lines = {line.name: line.flops for line in found.ledger().lines}
    once = layers * sum(map(forward, documents))
    assert lines == {
        "model.attention.forward": once,
        "model.attention.backward": 2 * once,
        "algorithmic.attention": once // 2,
    }
    assert found.executed_at_least == found.executed_flops
    for number, each in enumerate(documents):
        assert part_of(found, 0, number).ledger().total(
            "model.attention.forward"
        ) == layers * forward(each)


def test_micro_batches_of_one_size_share_out_the_operators() -> None:
    """Two micro-batches of 60 tokens in 2 sequences: 10 and 50, 30 and 30."""
    first, second = [10, 50], [30, 30]
    work = [(name, 60, 2) for _ in range(2) for name in (FORWARD, FORWARD, BACKWARD, BACKWARD)]
    found = executed(all_steps(steps([work, work], [[seqlens(first), seqlens(second)]] * 2)))
    once = 2 * 2 * (forward(first) + forward(second))
    assert found.ledger().total("model.attention.forward") == once
    assert found.ledger().total("model.attention.backward") == 2 * once
    assert found.executed_at_least == found.executed_flops


def test_micro_batches_of_other_sizes_are_told_apart() -> None:
    first, second = [10, 50], [30, 30, 7]
    work = [(FORWARD, 67, 3), (FORWARD, 60, 2)]
    found = executed(all_steps(steps([work, work], [[seqlens(first), seqlens(second)]] * 2)))
    assert found.executed_flops == 2 * (forward(first) + forward(second))


def test_padding_behind_the_last_sequence_attends_to_nothing() -> None:
    lengths = [10, 14, 3]
    padded = f"traceflops.tokens|real={sum(lengths)}|padded=32"
    works = [[(FORWARD, 32, 3)]] * 2
    found = executed(all_steps(steps(works, [[seqlens(lengths), padded]] * 2)))
    assert found.executed_at_least == found.executed_flops == 2 * forward(lengths)
    without = executed(all_steps(steps(works, [[seqlens(lengths)]] * 2)))
    assert without.executed_at_least < without.executed_flops


def test_marks_of_other_sequences_are_not_used() -> None:
    works: list[Step] = [[(FORWARD, 60, 2)]] * 2
    for lengths in ([10, 51], [10, 20, 30]):
        found = executed(all_steps(steps(works, [[seqlens(lengths)]] * 2)))
        assert found.executed_at_least < found.executed_flops
        assert {note.code for note in found.notes} == {
            *("lengths-of-marks-do-not-fit", "flops-between-bounds"),
        }
    three = executed(all_steps(steps([[(FORWARD, 60, 2)] * 3] * 2, [[seqlens([9, 51])] * 2] * 2)))
    assert three.executed_at_least < three.executed_flops, "three operators of two micro-batches"


def test_a_window_may_cut_what_sums_do_not_tell() -> None:
    """So many tokens to the left: fewer than a sequence may have, or all of them."""
    lengths = [10, 50]
    for left, exact in ((20, False), (59, True)):
        trace = steps([[(FORWARD, 60, 2)]] * 2, [[seqlens(lengths)]] * 2, left=left)
        found = executed(all_steps(trace))
        assert (found.executed_at_least == found.executed_flops) is exact
    assert Band(20, 0).cuts(60)
    assert not Band(59, 0).cuts(60)
    assert not Band(None, 0).cuts(60)
    assert Band(None, 5).cuts(60)


def test_without_a_mask_all_pairs_count() -> None:
    trace = steps([[(FORWARD, 60, 2)]] * 2, [[seqlens([10, 50])]] * 2, causal=False)
    found = executed(all_steps(trace))
    assert found.executed_flops == found.executed_at_least == 2 * 4 * 2_600 * HEADS * WIDTH


def test_impossible_marks_are_not_used() -> None:
    wrong = "traceflops.seqlens|sum=60|sumsq=7200|count=2"
    found = executed(all_steps(steps([[(FORWARD, 60, 2)]] * 2, [[wrong]] * 2)))
    assert found.executed_at_least < found.executed_flops


def test_every_figure_follows() -> None:
    """MFU is one figure, the row of the kernel is exact, and a note says why."""
    lengths = [10, 50]
    trace = steps([[(FORWARD, 60, 2)]] * 2, [[seqlens(lengths)]] * 2)
    found = measured(trace)
    flops = 2 * forward(lengths)
    assert found.waterfall is not None
    assert found.mfu == found.hfu
    assert found.mfu is not None
    assert found.mfu_range == ShareRange(found.mfu, found.mfu)
    assert found.waterfall.amount("useful") == flops
    (row,) = found.kernels
    assert (row.measured.flops, row.measured.at_least) == (flops, flops)
    assert [note.code for note in found.notes] == ["lengths-from-marks"]
    assert found.notes[0].count == 2
    bare = measured(steps([[(FORWARD, 60, 2)]] * 2, [[]] * 2))
    hfu = bare.hfu_range
    assert hfu is not None
    assert hfu.least < hfu.most == bare.hfu
    assert bare.mfu_range == hfu
    (row,) = bare.kernels
    assert not row.measured.is_exact
    budget = bare.waterfall.budget if bare.waterfall is not None else 0
    assert hfu.least * budget == 2 * forward([30, 30])
    assert hfu.most * budget == 2 * forward([60])
    assert budget % H100_BF16 == 0

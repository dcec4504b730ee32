"""Padding that a description or marks tell is overcompute, in the ledger and in the waterfall."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_traces.config import RunConfig
from sample_traces.make import SAMPLES as MADE
from tests.build import launched, step_marks, table_of, trace_of
from tests.mfu.counting import part_of
from tests.mfu.test_known_lengths import FORWARD, KERNELS, seqlens, varlen
from tests.mfu.test_measurement import GEMM, H100
from tests.mfu.test_reconciliation import (
    ONE,
    described,
    found_of,
    of_run,
    recomputing,
    sample,
    simulated,
)
from traceflops.analysis.preparation import prepare
from traceflops.analysis.recipe import analyze
from traceflops.flops.analytic.run import FULL_CHECKPOINT, Run
from traceflops.flops.model.models import preset
from traceflops.mfu.checked.padding import Padding, without_padding
from traceflops.mfu.checked.passes import visible
from traceflops.mfu.checked.reconciliation import Reconciliation, reconcile
from traceflops.mfu.measurement import Measurement, measure
from traceflops.mfu.traced.executed import Executed
from traceflops.table.trace import Trace
from traceflops.windows.selection import Selection

CODE = "padding-taken-out"
WIDTHS = {"hidden": 1024, "layers": 3, "ffn": 4096, "heads": 16, "glu": False, "vocab": 16_384}


def lines(done: Executed) -> dict[str, int]:
    return {line.name: int(line.flops) for line in done.ledger().lines}


def weights(config: RunConfig = ONE) -> int:
    return 12 * config.layers * config.hidden**2 + config.vocab * config.hidden


def core(lengths: list[int], config: RunConfig = ONE) -> int:
    """Return the forward FLOPs of attention on such causal sequences."""
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    return 4 * config.layers * config.hidden * pairs


def check(found: Measurement) -> None:
    """Check that nothing was lost and that all lines add up."""
    done, fall = found.executed, found.waterfall
    assert fall is not None
    assert sum(lines(done).values()) == done.executed_flops == done.as_computed.executed_flops
    assert sum(line.amount for line in fall.lines) == fall.budget
    assert fall.amount("useful") == done.model_flops
    assert found.mfu == Fraction(done.model_flops, fall.budget)
    assert found.hfu == Fraction(done.executed_flops, fall.budget)


def test_documents_of_known_lengths_are_exact() -> None:
    """Four sequences in slots of 1,024: products by rows, attention by pairs."""
    lengths = [1024, 700, 512, 13]
    found = found_of(of_run(documents=tuple(lengths)))
    windows, real = found.job.windows, sum(lengths)
    check(found.measured)
    done = lines(found.measured.executed)
    assert found.measured.executed.model_flops == windows * 3 * (
        2 * real * weights() + core(lengths)
    )
    padded = ONE.tokens - real
    assert done["overcompute.padding.tokens"] == windows * 3 * 2 * padded * weights()
    assert done["overcompute.padding.attention"] == windows * 3 * (core([1024] * 4) - core(lengths))
    assert found.gap == 0
    (note,) = [one for one in found.measured.notes if one.code == CODE]
    assert note.text.endswith("of the executed FLOPs are overcompute.padding.")


def test_real_tokens_alone_leave_attention_an_estimate() -> None:
    found = found_of(of_run(real_tokens=3000))
    (note,) = [one for one in found.measured.notes if one.code == CODE]
    assert "For attention this is an upper estimate" in note.text
    assert lines(found.measured.executed)["model.attention.forward"] == found.job.windows * core(
        [750] * 4
    )


def test_all_ranks_share_out_the_padding() -> None:
    config = MADE[1].config
    prepared, measured = sample("gpt_ddp_4rank")
    card, run = described(config)
    assert run.batch is not None
    real = run.batch * 1500
    found = reconcile(measured, prepared, card, replace(run, real_tokens=real))
    check(found.measured)
    assert found.gap == 0
    flops = 3 * (2 * real * weights(config) + core([1500] * run.batch, config))
    assert found.measured.executed.model_flops == found.job.windows // 4 * flops
    by_device = [
        part_of(found.measured.executed, device).ledger().total("model") for device in range(4)
    ]
    assert max(by_device) - min(by_device) <= 20, "to the FLOP, but for rounding of each line"


def test_what_is_recomputed_has_padding_too() -> None:
    prepared, measured = sample()
    more = recomputing(Fraction(1), Fraction(1))
    cells = tuple(one for cell in measured.executed.cells for one in more(cell))
    again = replace(measured, executed=replace(measured.executed, cells=cells))
    card, run = described(ONE)
    run = replace(run, documents=(512,) * 4, checkpoint=FULL_CHECKPOINT)
    found = reconcile(again, prepared, card, run)
    blocks = 2 * 2048 * 12 * ONE.layers * ONE.hidden**2
    assert found.recomputation is not None
    assert found.recomputation.mismatch is None
    windows = found.job.windows
    assert lines(found.measured.executed)["recompute.matmul"] == windows * blocks
    assert lines(found.measured.executed)["recompute.attention"] == windows * core([512] * 4)


def test_spare_rows_of_experts_and_of_the_head_are_padding() -> None:
    """Half of the rows that experts compute are spare; the trace does not tell them apart."""
    padding = Padding((("experts", Fraction(1, 4)),), (("experts", Fraction(1, 4)),))
    prepared, measured = sample()
    found = without_padding(measured, prepared, padding, "as described")
    check(found)
    whole = sum(flops for name, flops in lines(measured.executed).items() if ".matmul." in name)
    assert lines(found.executed)["overcompute.padding.experts"] == whole // 4


def test_padding_of_a_description_that_does_not_agree_stays() -> None:
    found = found_of(of_run(batch=8, real_tokens=6000))
    assert found.agree is False
    assert found.measured.executed.padding_flops == 0
    assert found.sentence.endswith(
        "The figures from the trace still include the described padding."
    )
    assert not any(note.code == CODE for note in found.measured.notes)


def test_what_was_taken_out_can_be_put_back() -> None:
    prepared, measured = sample()
    card, run = described(ONE)
    first = reconcile(measured, prepared, card, replace(run, real_tokens=3000))
    again = reconcile(first.measured, prepared, card, replace(run, real_tokens=2000))
    assert (
        again.measured.executed.model_flops
        == found_of(of_run(real_tokens=2000)).measured.executed.model_flops
    )
    assert [note.code for note in again.measured.notes].count(CODE) == 1
    assert first.measured.executed.as_computed.ledger() == measured.executed.ledger()
    plain = reconcile(first.measured, prepared, card, run)
    assert plain.residual == 0


@given(
    st.lists(st.integers(0, 10**15), min_size=1, max_size=9),
    st.fractions(0, 1),
    st.fractions(0, 1),
)
def test_shares_are_exact_for_each_line(counts: list[int], share: Fraction, part: Fraction) -> None:
    """The sum over all cells of a line has the share of the sum, rounded once."""
    prepared, measured = sample()
    cell = next(c for c in measured.executed.cells if c.line == "model.matmul.forward" and c.used)
    cells = tuple(
        replace(cell, flops=flops, at_least=int(flops * part), open_flops=flops // 3)
        for flops in counts
    )
    bare = replace(measured, waterfall=None, executed=replace(measured.executed, cells=cells))
    padding = Padding((("tokens", share),), ())
    done = without_padding(bare, prepared, padding, "as described").executed
    assert done.executed_flops == sum(counts)
    assert done.padding_flops == int(sum(counts) * share)
    assert all(0 <= c.at_least <= c.flops and 0 <= c.open_flops <= c.flops for c in done.cells)
    assert done.executed_at_least == sum(int(flops * part) for flops in counts)


# A trace that says it itself


def saying(trace: Trace, *marks: str, said: dict[str, Any] | None = None) -> Trace:
    """Return a trace with such marks in each of its steps, and a description."""
    steps = [m for m in trace.marks.to_pylist() if m["name"].startswith("ProfilerStep#")]
    steps = [m for m in steps if m["kind"] == "annotation"]
    rows = [(text, m["start_ns"] + 1, 10) for m in steps for text in marks]
    known = [{k: v for k, v in m.items() if v is not None} for m in trace.marks.to_pylist()]
    table = table_of("marks", [*known, *step_marks(*rows)])
    source = replace(trace.source, description=said)
    return replace(trace, source=source, tables={**trace.tables, "marks": table})


def one_rank() -> Trace:
    config = replace(ONE, data_stall_steps=())
    return simulated(config)


def test_the_report_and_the_comparison_say_the_same() -> None:
    said = {"model": WIDTHS, "batch": 4, "seq": 1024}
    trace = saying(one_rank(), "traceflops.tokens|real=3000|padded=4096", said=said)
    analysis = analyze(trace)
    by_options: Reconciliation = reconcile(
        measure(prepare(one_rank())),
        prepare(one_rank()),
        *_with_real(3000),
    )
    assert analysis.measured.mfu == by_options.measured.mfu
    assert analysis.measured.figure is not None
    assert analysis.verdict.sentence.startswith(analysis.measured.figure)
    assert any(note.code == CODE for note in analysis.notes)
    check(analysis.measured)


def _with_real(real: int) -> tuple[Any, Run]:
    card, run = described(ONE)
    return card, replace(run, real_tokens=real)


def test_marks_alone_tell_the_padding_of_products() -> None:
    trace = saying(one_rank(), "traceflops.tokens|real=3072|padded=4096")
    found = analyze(trace).measured
    plain = analyze(one_rank()).measured
    check(found)
    before, after = lines(plain.executed), lines(found.executed)
    for name, flops in before.items():
        share = Fraction(3, 4) if ".matmul." in name else 1
        assert after[name] == flops * share
    (note,) = [one for one in found.notes if one.code == CODE]
    assert "from annotations" in note.text
    assert "products only" in note.text


@pytest.mark.parametrize(
    "mark", ["traceflops.tokens|real=4096|padded=4096", "traceflops.tokens|real=3000", "mine"]
)
def test_without_padding_nothing_is_taken_out(mark: str) -> None:
    found = analyze(saying(one_rank(), mark)).measured
    assert found.executed.padding_flops == 0
    assert found == analyze(one_rank()).measured or found.notes == ()


def test_a_description_that_does_not_agree_takes_nothing_out() -> None:
    said = {"model": WIDTHS, "batch": 4, "seq": 4096, "real_tokens": 3000}
    found = analyze(saying(one_rank(), said=said)).measured
    assert found.executed.padding_flops == 0


def test_packed_sequences_with_a_padded_tail() -> None:
    """32 rows, 27 of them in 3 sequences: products on all rows, attention on the sequences."""
    lengths, rows, width, vocab = [10, 14, 3], 32, 128, 64
    ops, kernels, marks = [], [], []
    for number in range(3):
        start = 100_000 * number
        marks.append((f"ProfilerStep#{number}", start, 100_000))
        marks += [
            (seqlens(lengths), start + 5, 3),
            (f"traceflops.tokens|real={sum(lengths)}|padded={rows}", start + 9, 3),
        ]
        sizes = [(width, 3 * width), None, (width, width), (width, width), (width, vocab)]
        for place, size in enumerate(sizes):
            at = start + 1000 + 2000 * place
            op = _product(rows, *size) if size is not None else varlen(FORWARD, rows, 3)
            ops.append(op | {"start_ns": at, "dur_ns": 100})
            name = GEMM if size is not None else KERNELS[FORWARD]
            kernels.append((name, at + 10, at + 20, 1500))
    trace = trace_of(**launched(*kernels), ops=ops, marks=step_marks(*marks), devices=[H100])
    sizes_said = {"hidden": width, "layers": 1, "heads": 4, "head_dim": 32, "vocab": vocab}
    model = {**sizes_said, "ffn": width // 2, "glu": False}
    trace = replace(
        trace, source=replace(trace.source, description={"model": model, "forward_only": True})
    )
    found = analyze(trace, Selection(steps=(0, 2))).measured
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    matrix = width * 3 * width + 2 * width * width + width * vocab
    done = lines(found.executed)
    assert done["model.attention.forward"] == 3 * 4 * pairs * width
    assert done["model.matmul.forward"] == 3 * 2 * 27 * matrix
    assert done["overcompute.padding.tokens"] == 3 * 2 * 5 * matrix


def _product(rows: int, inputs: int, outputs: int) -> dict[str, Any]:
    return {
        "name": "aten::mm",
        "input_dims": f"[[{rows},{inputs}],[{inputs},{outputs}]]",
        "input_types": '["c10::BFloat16","c10::BFloat16"]',
    }


def test_padding_of_rows() -> None:
    share = (("tokens", Fraction(1, 4)),)
    padding = Padding(share, share, of_rows=True)
    assert padding.of("model.matmul.forward.logits") == share
    assert padding.of("recompute.matmul") == padding.of("model.matmul.weight_grad") == share
    assert padding.of("model.attention.forward") == padding.of("algorithmic.attention") == ()
    assert padding.of("overcompute.mask") == padding.of("model.conv.forward") == ()


def test_rows_of_padding_are_visible_however_it_came_about() -> None:
    card = preset("llama-3-8b")
    packed = visible(card, Run(batch=2, seq=64, documents=(5, 30, 7, 60)))
    padded = visible(card, Run(batch=2, seq=64, real_tokens=102))
    full = visible(card, Run(batch=2, seq=64))
    for passes in (packed, padded):
        assert (passes.forward, passes.backward) == (full.forward, full.backward)
    assert full.forward == 2 * card.weights() * 128
    # No document attends to another one; the padded sequences are computed in full.
    of_packed, of_padded, of_full = (
        passes.attention_forward + passes.attention_backward for passes in (packed, padded, full)
    )
    assert of_packed < of_padded == of_full

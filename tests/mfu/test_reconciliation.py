"""A description held against a trace: simulated runs of known size, mistakes made on purpose."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.make import SAMPLES as MADE
from sample_traces.simulate import simulate
from tests.build import launched, step_marks, trace_of
from tests.conftest import SAMPLES, examples, shared_file
from tests.mfu.test_measurement import GEMM, H100, H100_BF16, MATMUL, matmul
from tests.samples.strategies import run_configs
from traceflops.analysis.preparation import prepare
from traceflops.errors import UsageError
from traceflops.facts import fact, in_words
from traceflops.flops.analytic.run import FULL_CHECKPOINT, Lora, Run, parse_checkpoint
from traceflops.flops.model.blocks import Attention, Block, FeedForward
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.models import bare_model, find_model, preset
from traceflops.mfu.budget import FROM_THE_TRACE, PeakOptions
from traceflops.mfu.checked.passes import visible
from traceflops.mfu.checked.reconciliation import Reconciliation, reconcile
from traceflops.mfu.measurement import Measurement, measure
from traceflops.mfu.traced.cells import Cell
from traceflops.reports.terminal.measured import described_facts
from traceflops.table.trace import Trace
from traceflops.windows.prepared import Prepared

ONE = MADE[0].config
"""The run of the sample of one rank: 3 layers of width 1024, 4 sequences of 1024."""


def described(config: RunConfig) -> tuple[ModelCard, Run]:
    """Return the description of a simulated run, written from its sizes."""
    block = Block(
        attention=Attention(
            heads=config.heads, kv_heads=config.heads, head_dim=config.hidden // config.heads
        ),
        feed_forward=FeedForward(width=4 * config.hidden, glu=False),
    )
    card = ModelCard(
        name="GPT",
        hidden=config.hidden,
        vocab=config.vocab,
        blocks=((config.layers, block),),
        norm="layernorm",
        positions=config.sequence,
    )
    return card, Run(batch=config.batch * config.ranks, seq=config.sequence)


def step_flops(config: RunConfig) -> int:
    """Return the model FLOPs of one rank in one step, by the formulas of a transformer."""
    weights = 12 * config.layers * config.hidden**2 + config.vocab * config.hidden
    pairs = config.batch * config.sequence * (config.sequence + 1) // 2
    return 3 * (2 * config.tokens * weights + 4 * config.layers * config.hidden * pairs)


@cache
def sample(name: str = "gpt_1rank.json.gz") -> tuple[Prepared, Measurement]:
    prepared = prepare(tf.read(SAMPLES / name))
    return prepared, measure(prepared)


def simulated(config: RunConfig, **options: bool) -> Trace:
    with TemporaryDirectory() as folder:
        written = KinetoOptions(compression="none", **options)  # type: ignore[arg-type]
        write_pytorch(simulate(config), Path(folder), options=written)
        return tf.read(folder)


def found_in(
    trace: Trace,
    card: ModelCard,
    run: Run,
    convention: str | None = None,
    gpus: int | None = None,
    peaks: PeakOptions = FROM_THE_TRACE,
    selection: tf.Selection | None = None,
) -> Reconciliation:
    prepared = prepare(trace, selection)
    return reconcile(measure(prepared, peaks), prepared, card, run, convention, gpus)


def found_of(
    change: Callable[[ModelCard, Run], tuple[ModelCard, Run]] | None = None,
    gpus: int | None = None,
    convention: str | None = None,
) -> Reconciliation:
    """Return what a changed description of the sample gives."""
    prepared, measured = sample()
    card, run = described(ONE)
    card, run = change(card, run) if change is not None else (card, run)
    return reconcile(measured, prepared, card, run, convention, gpus)


# What is right agrees


@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(config=run_configs(cuda_graph=False))
def test_every_simulated_run_agrees_with_its_description(config: RunConfig) -> None:
    """To the FLOP: no convention and no rounding is between the two."""
    found = found_in(simulated(config), *described(config))
    job = found.job
    assert job.devices == config.ranks
    assert found.counts is not None
    assert found.counts.expected == found.counts.counted == job.windows * step_flops(config)
    assert found.residual == 0
    assert found.agree
    assert found.sentence == "Description and trace agree to the FLOP."


@pytest.mark.parametrize("place", [0, 1])
def test_the_samples_agree_with_their_descriptions(place: int) -> None:
    config, name = MADE[place].config, ("gpt_1rank.json.gz", "gpt_ddp_4rank")[place]
    prepared, measured = sample(name)
    found = reconcile(measured, prepared, *described(config))
    windows = [w for ws in prepared.windows.values() for w in ws if w.used]
    time_ns = sum(window.dur_ns for window in windows)
    flops = len(windows) * step_flops(config)
    assert found.rate is not None
    assert found.rate.mfu == measured.mfu == Fraction(flops, time_ns * H100_BF16)
    assert found.needed == flops
    assert found.gap == 0
    assert found.described.run.seconds(found.described.run.shape(found.described.card)) == Fraction(
        time_ns, len(windows) * 10**9
    )
    assert found.rate.sentence == f"{measured.figure} (exact-causal, bf16 dense 989.4 TFLOP/s)"
    assert found.lacks == ()
    assert found.waterfall is None


def test_the_host_has_a_figure_of_its_own() -> None:
    """Over ProfilerStep#10 to 15, as the marks of the trace say."""
    trace = tf.read(SAMPLES / "gpt_1rank.json.gz")
    marks = trace.marks.to_pylist()
    names = {f"ProfilerStep#{number}" for number in range(10, 16)}
    time_ns = sum(m["dur_ns"] for m in marks if m["name"] in names and m["kind"] == "annotation")
    found = found_of()
    assert found.job.windows == 6
    assert found.job.host_ns == time_ns
    assert found.host_mfu == Fraction(6 * step_flops(ONE), time_ns * H100_BF16)
    unmarked = simulated(RunConfig(steps=5, layers=1))
    bare = Trace(unmarked.source, {k: t for k, t in unmarked.tables.items() if k != "marks"})
    inferred = found_in(bare, *described(RunConfig(steps=5, layers=1)))
    assert (inferred.job.host_ns, inferred.host_mfu) == (None, None)


def test_a_host_that_runs_ahead_has_no_figure() -> None:
    """Its markers are as short as its launches, not as the work."""
    found = found_of()
    ahead = replace(found, job=replace(found.job, host_ns=found.job.window_ns // 10))
    assert not found.host_ran_ahead
    assert (ahead.host_mfu, ahead.host_ran_ahead) == (None, True)
    (line,) = [fact for fact in described_facts(ahead) if fact.label == "MFU (host)"]
    assert line.value == "\N{EN DASH}"


def test_one_rank_of_four_has_a_quarter_of_the_job() -> None:
    config = MADE[1].config
    trace = tf.read(SAMPLES / "gpt_ddp_4rank")
    chosen = tf.Selection(ranks=frozenset({1}), steps=(21, 22))
    found = found_in(trace, *described(config), selection=chosen)
    assert (found.job.devices, found.job.shown, found.job.windows) == (4, 1, 2)
    assert found.needed == 2 * step_flops(config)
    assert found.agree
    by = fact("job-size.world-size")
    assert found.described.notes[0] == fact("job-size.assumed", devices=4, by=by, shown=1)


def test_a_convention_is_counted_over_the_device_windows() -> None:
    """matmul-full: the whole square of attention, no mask."""
    prepared, measured = sample()
    full = 3 * (
        2 * ONE.tokens * (12 * ONE.layers * ONE.hidden**2 + ONE.vocab * ONE.hidden)
        + 4 * ONE.layers * ONE.hidden * ONE.batch * ONE.sequence**2
    )
    found = found_of(convention="matmul-full")
    time_ns = found.job.window_ns
    assert found.rate is not None
    assert found.rate.mfu == Fraction(found.job.windows * full, time_ns * H100_BF16)
    assert found.agree, "the check is exact, whatever convention the figure is of"
    assert measured.mfu is not None
    assert found.gap == found.rate.mfu - measured.mfu > 0
    entries = {one.convention.id: one for one in found.described.entries}
    for name in ("matmul-full", "korthikanti", "primus"):
        rate = entries[name].rate
        assert rate is not None
        assert rate.mfu == found.rate.mfu
    assert {w.used for ws in prepared.windows.values() for w in ws} == {True, False}


# What is wrong is said


Change = Callable[[ModelCard, Run], tuple[ModelCard, Run]]
CHECK = "Check its model, tokens, GPUs and steps."


def of_run(**values: object) -> Change:
    return lambda card, run: (card, replace(run, **values))


def of_card(**values: object) -> Change:
    return lambda card, run: (replace(card, **values), run)


@pytest.mark.parametrize(
    ("change", "residual", "words"),
    [
        (of_run(batch=8), Fraction(1), "2 times what the trace shows"),
        (of_run(batch=3), Fraction(-1, 4), "25.0 % less than the trace shows"),
        (of_run(forward_only=True), Fraction(-2, 3), "66.7 % less than the trace shows"),
    ],
)
def test_a_wrong_description_is_told_by_how_much(
    change: Change, residual: Fraction, words: str
) -> None:
    found = found_of(change)
    assert found.agree is False
    assert found.residual == residual
    assert found.sentence == f"The description needs {words}. {CHECK}"


@pytest.mark.parametrize("gpus", [8, 2, 1])
def test_a_wrong_number_of_devices(gpus: int) -> None:
    prepared, measured = sample("gpt_ddp_4rank")
    found = reconcile(measured, prepared, *described(MADE[1].config), gpus=gpus)
    assert found.residual == Fraction(4, gpus) - 1
    assert (found.job.devices, found.job.told_by) == (gpus, fact("job-size.option"))


def test_another_model_altogether() -> None:
    found = found_of(lambda card, run: (find_model("llama-3-8b"), run))
    assert found.agree is False
    assert found.sentence.endswith(CHECK)
    assert found.rate is None
    (lack,) = found.lacks
    assert "of peak (exact-causal)" in lack.problem


def test_packed_documents_that_fill_their_slots() -> None:
    """Two sequences of 2,048 per device are documents that fill their slots."""
    prepared, measured = sample("gpt_ddp_4rank")
    card, _ = described(MADE[1].config)
    every = reconcile(measured, prepared, card, Run(documents=(2048,) * 8))
    assert every.residual == 0
    sums = Run(seq_sum=8 * 2048, seq_square_sum=8 * 2048**2, sequences=8)
    assert reconcile(measured, prepared, card, sums).residual == 0
    half = reconcile(measured, prepared, card, Run(seq_sum=4 * 2048, seq_square_sum=4 * 2048**2))
    assert half.agree is False


def test_tokens_without_lengths() -> None:
    """Enough for a rule of thumb, too little for a comparison."""
    prepared, measured = sample()
    card = replace(described(ONE)[0], params=56_000_000)
    found = reconcile(measured, prepared, card, Run(tokens=4096), "6N")
    assert found.counts is None
    assert found.rate is not None
    assert found.rate.mfu == Fraction(
        found.job.windows * 6 * 56_000_000 * 4096, found.job.window_ns * H100_BF16
    )
    assert any("the sequence length is unknown" in in_words(n) for n in found.described.notes)


# Traces of other kinds, made from the sample by leaving out lines


def doctored(change: Callable[[Cell], Cell | None]) -> tuple[Prepared, Measurement]:
    prepared, measured = sample()
    cells = tuple(new for cell in measured.executed.cells if (new := change(cell)) is not None)
    return prepared, replace(measured, executed=replace(measured.executed, cells=cells))


def held_against(change: Callable[[Cell], Cell | None], run: Run | None = None) -> Reconciliation:
    prepared, measured = doctored(change)
    card, usual = described(ONE)
    return reconcile(measured, prepared, card, run or usual)


def test_adapters_are_counted() -> None:
    """A million weights in adapters: forward, input gradient and weight gradient."""
    prepared, measured = sample()
    flops = 2 * ONE.tokens * 1_000_000
    cell = next(c for c in measured.executed.cells if c.line == "model.matmul.forward" and c.used)
    windows = {c.window for c in measured.executed.cells if c.used}
    adapters = tuple(
        replace(cell, window=at, line=f"model.matmul.{one}.adapter", flops=flops, at_least=flops)
        for at in windows
        for one in ("forward", "input_grad", "weight_grad")
    )
    base = tuple(c for c in measured.executed.cells if "weight_grad" not in c.line)
    lora = replace(measured, executed=replace(measured.executed, cells=base + adapters))
    card, run = described(ONE)
    assert reconcile(lora, prepared, card, run).agree is False
    right = reconcile(lora, prepared, card, replace(run, lora=Lora(params=1_000_000)))
    assert right.residual == 0


def test_a_trace_of_inference() -> None:
    found = held_against(lambda c: c if c.line.split(".")[2:3] == ["forward"] else None)
    assert found.residual == 2
    assert "3 times what the trace shows" in found.sentence


# What a trace leaves open


@pytest.mark.parametrize(("batch", "agree"), [(4, True), (3, True), (2, False), (8, False)])
def test_between_the_bounds_of_a_trace_nothing_is_wrong(batch: int, agree: bool) -> None:
    """Lengths that no profiler records: from three quarters of what is counted to all of it."""
    found = held_against(
        lambda cell: replace(cell, at_least=cell.flops * 3 // 4), Run(batch=batch, seq=1024)
    )
    assert found.agree is agree
    assert ("leaves open" in found.sentence) is agree
    if batch == 3:
        # The trace shows 3 to 4 sequences' work.
        assert (
            "as much as is certain in the trace and 25.0 % less than it shows at" in found.sentence
        )
    if not agree:
        apart = {
            2: "33.3 % less than is certain in the trace",
            8: "2 times what the trace shows at most",
        }
        assert f"needs {apart[batch]}" in found.sentence


@pytest.mark.parametrize(("unknown", "agree"), [(100, False), (1_000, True), (5_000, None)])
def test_compute_of_unknown_flops_may_be_the_difference(unknown: int, agree: bool | None) -> None:
    """A product of 4,000 ns is counted; a kernel nobody knows may have done the rest."""
    trace = trace_of(
        **launched((GEMM, 10, 100, 4_000), ("cutlass_gemm_of_nobody", 20, 4_100, unknown)),
        ops=[MATMUL | {"dur_ns": 15}],
        devices=[H100],
        marks=step_marks(("ProfilerStep#0", 0, 50)),
    )
    # a model of 1000 x 1000 weights, 1,100 tokens, one pass; counted were 1,000 of them
    card = ModelCard(name="one matrix", hidden=1000, vocab=1000, params=10**6, missing=())
    prepared = prepare(trace)
    measured = measure(prepared)
    found = reconcile(measured, prepared, card, Run(tokens=1_100, forward_only=True))
    assert found.agree is agree


# Padding


def test_described_padding_is_in_what_a_trace_shows() -> None:
    """3,000 of 4,096 tokens are real: MFU is of those, the trace shows all."""
    found = found_of(of_run(real_tokens=3000))
    assert found.agree
    assert found.rate is not None
    weights = 12 * ONE.layers * ONE.hidden**2 + ONE.vocab * ONE.hidden
    core = 4 * ONE.layers * ONE.hidden * 4 * (750 * 751 // 2)
    useful = 3 * (2 * 3000 * weights + core)
    assert found.described.work.ledger.model == useful
    assert found.counts is not None
    assert found.counts.expected == found.counts.counted == found.job.windows * step_flops(ONE)
    budget = found.measured.waterfall.budget if found.measured.waterfall is not None else 0
    padding = found.counts.counted - found.job.windows * useful
    assert found.gap == -Fraction(padding, budget)
    assert found.sentence == (
        "Description and trace agree to the FLOP. "
        "The figures from the trace include the described padding."
    )


def test_padded_rows_of_the_head_are_in_what_a_trace_shows() -> None:
    found = found_of(of_card(vocab=15_000, padded_vocab=16_384))
    assert found.residual == 0
    assert found.is_padded


@pytest.mark.parametrize("packing", [{"documents": (5, 30, 7, 60)}, {"real_tokens": 102}])
def test_rows_of_padding_are_visible_however_it_came_about(packing: dict[str, Any]) -> None:
    card = preset("llama-3-8b")
    full = visible(card, Run(batch=2, seq=64))
    padded = visible(card, Run(batch=2, seq=64, **packing))
    # No document attends to another one; the padded sequences are computed in full.
    assert padded > 6 * card.weights() * 128
    assert padded < full if "documents" in packing else padded == full


def test_padding_that_is_not_computed() -> None:
    """A trace of sequences of 512, described as 512 real tokens in 1,024."""
    config = replace(ONE, sequence=512, steps=3, data_stall_steps=(), first_step=0)
    card, run = described(config)
    padded = replace(run, seq=1024, real_tokens=run.batch * 512 if run.batch else None)
    found = found_in(simulated(config), card, padded)
    assert found.sentence.endswith("The figures from the trace include the described padding.")


# What is missing


@pytest.mark.parametrize("graph", [False, True])
def test_without_shapes_the_description_alone_gives_the_waterfall(graph: bool) -> None:
    config = RunConfig(ranks=2, steps=4, layers=2, cuda_graph=graph)
    card, run = described(config)
    trace = simulated(config, shapes=graph)
    without = found_in(trace, card, run)
    assert (without.rate, without.counts, without.sentence) == (None, None, "")
    assert "data type" in without.lacks[0].problem
    assert "--dtype" in without.lacks[0].remedy
    run = replace(run, dtype="bf16", checkpoint=FULL_CHECKPOINT, attention_kernel="flash")
    found = found_in(trace, card, run)
    fall = found.waterfall
    assert fall is not None
    assert found.rate is not None
    assert fall.unit == "FLOP"
    assert fall.budget == H100_BF16 * found.job.window_ns
    assert sum(line.amount for line in fall.lines) == fall.budget
    windows = found.job.windows
    core = 4 * 2 * config.hidden * config.batch * config.sequence * (config.sequence + 1) // 2
    blocks = 2 * config.tokens * 12 * 2 * config.hidden**2
    assert fall.amount("useful") == windows * step_flops(config)
    assert fall.amount("recompute") == windows * (blocks + core)
    assert fall.amount("algorithmic") == windows * core // 2
    assert fall.mfu == found.rate.mfu
    assert fall.hfu == found.rate.hfu
    assert fall.errors == ()
    compute = fall.amount("inefficiency") + sum(
        fall.amount(name) for name in ("useful", "recompute", "algorithmic", "overcompute")
    )
    prepared = prepare(trace)
    time_ns = sum(
        w.account.components.compute_ns for ws in prepared.windows.values() for w in ws if w.used
    )
    assert compute == H100_BF16 * time_ns


def test_fractions_of_a_flop_stay_exact() -> None:
    """Seven devices share out a step of a batch that they do not divide."""
    config = RunConfig(ranks=1, steps=3, layers=1)
    card, run = described(config)
    trace = simulated(config, shapes=False)
    found = found_in(trace, card, replace(run, dtype="bf16"), gpus=7)
    fall = found.waterfall
    assert fall is not None
    assert fall.unit == "1/7 FLOP"
    assert fall.budget == 7 * H100_BF16 * found.job.window_ns
    assert fall.amount("useful") == found.job.windows * step_flops(config)


def test_more_work_than_the_compute_kernels_could_do() -> None:
    config = RunConfig(ranks=1, steps=3, layers=1)
    card, run = described(config)
    trace = simulated(config, shapes=False)
    assert run.batch is not None
    found = found_in(trace, card, replace(run, batch=2 * run.batch, dtype="bf16"))
    assert (found.waterfall, found.rate) == (None, None)
    assert "above peak" in found.lacks[-1].problem


def test_a_trace_without_steps() -> None:
    card, run = described(ONE)
    found = found_in(matmul(4_000), card, run)
    assert (found.rate, found.counts, found.needed) == (None, None, None)
    assert "no steps" in found.lacks[0].problem
    assert "--step-mark" in found.lacks[0].remedy
    assert found.described.work.ledger.model == step_flops(ONE)
    ranged = found_in(
        tf.read(SAMPLES / "gpt_1rank.json.gz"),
        card,
        run,
        selection=tf.Selection(from_ns=0, to_ns=4_000_000),
    )
    assert "--steps" in ranged.lacks[0].remedy
    assert ranged.counts is None


def test_an_unknown_device_and_a_trace_without_any() -> None:
    card, run = described(ONE)
    unknown = found_in(matmul(4_000, device={"product": "Quantum 9000"}), card, run)
    assert any("Quantum 9000" in lack.problem for lack in unknown.lacks)
    nothing = found_in(trace_of(), card, run)
    assert "no GPU operations" in nothing.lacks[-1].problem


def test_a_given_peak_and_a_named_type() -> None:
    prepared = sample()[0]
    card, run = described(ONE)
    measured = measure(prepared, PeakOptions(tflops=1000))
    given = reconcile(measured, prepared, card, run)
    assert given.rate is not None
    assert given.rate.mfu == Fraction(
        given.job.windows * step_flops(ONE), given.job.window_ns * 1_000_000
    )
    assert given.rate.sentence.endswith("(exact-causal, given 1,000 TFLOP/s)")
    named = found_of(of_run(dtype="fp8"))
    assert named.rate is not None
    assert "fp8 dense" in named.rate.sentence
    assert fact("reconciliation.other-dtype", shown="bf16", dtype="fp8") in named.described.notes
    odd = found_of(of_run(dtype="fp12"))
    assert "the dense fp12 rate of H100 SXM 80 GB HBM3 is unknown" in odd.lacks[0].problem


# Recomputation: a claim of its own


def recomputing(products: Fraction, attention: Fraction) -> Callable[[Cell], list[Cell]]:
    """Return what adds so much of the blocks' forward pass computed again to a trace."""

    def more(cell: Cell) -> list[Cell]:
        share = {"model.matmul.forward": products, "model.attention.forward": attention}
        flops = int(cell.flops * share.get(cell.line, Fraction(0)))
        again = f"recompute.{cell.line.split('.')[1]}"
        extra = replace(cell, line=again, rule="R1", flops=flops, at_least=flops)
        return [cell, extra] if flops else [cell]

    return more


def recomputed(run: Run, products: Fraction, attention: Fraction) -> Reconciliation:
    prepared, measured = sample()
    more = recomputing(products, attention)
    cells = tuple(one for cell in measured.executed.cells for one in more(cell))
    lines = replace(measured, executed=replace(measured.executed, cells=cells))
    return reconcile(lines, prepared, described(ONE)[0], run)


def code_of(found: Reconciliation) -> str:
    """Return how recomputation differs from its description, "" where it does not."""
    assert found.recomputation is not None
    mismatch = found.recomputation.mismatch
    return mismatch.code if mismatch is not None else ""


NOTHING, ALL, MOST = Fraction(0), Fraction(1), Fraction(3, 4)
CLAIMS: list[tuple[str, Fraction, Fraction, str, str]] = [
    ("none", NOTHING, NOTHING, "", ""),
    ("full", ALL, ALL, "", ""),
    ("full", MOST, ALL, "", ""),  # checkpoints that stop early
    ("selective", NOTHING, ALL, "", ""),
    ("0.75,1", MOST, ALL, "", ""),
    ("full", NOTHING, NOTHING, "missing-recompute", "nothing is recomputed"),
    ("selective", NOTHING, NOTHING, "missing-recompute", "--checkpointing none"),
    ("full", NOTHING, ALL, "missing-recompute", "is recomputed"),
    ("full", Fraction(1, 4), ALL, "missing-recompute", "is recomputed"),
    ("none", ALL, ALL, "recompute-not-described", "FLOPs are recomputed"),
    ("none", MOST, ALL, "recompute-not-described", "FLOPs are recomputed"),
    ("none", NOTHING, ALL, "recompute-not-described", "FLOPs are recomputed"),
    ("selective", ALL, ALL, "recompute-not-described", "FLOPs are recomputed"),
    ("0.5,1", ALL, ALL, "recompute-not-described", "FLOPs are recomputed"),
]


@pytest.mark.parametrize(("claim", "products", "attention", "code", "words"), CLAIMS)
def test_a_claim_of_checkpointing_is_checked(
    claim: str, products: Fraction, attention: Fraction, code: str, words: str
) -> None:
    run = replace(described(ONE)[1], checkpoint=parse_checkpoint("--checkpointing", claim))
    found = recomputed(run, products, attention)
    assert found.residual == 0
    assert found.agree
    assert found.recomputation is not None
    blocks = 2 * ONE.tokens * 12 * ONE.layers * ONE.hidden**2
    core = 4 * ONE.layers * ONE.hidden * ONE.batch * ONE.sequence * (ONE.sequence + 1) // 2
    windows = found.job.windows
    shares = run.checkpoint
    assert found.recomputation.described == windows * (
        shares.linear * blocks + shares.attention * core
    )
    assert found.recomputation.counted == windows * (products * blocks + attention * core)
    assert code_of(found) == code
    assert words in found.sentence
    agree = "Description and trace agree to the FLOP"
    if not code:
        assert found.sentence == f"{agree}."
    elif code == "missing-recompute":
        assert found.sentence.startswith(f"{agree}, but recomputation is missing: ")
    else:
        assert found.sentence.startswith(f"{agree}, but recomputation is not as described: ")


def test_a_claim_is_checked_where_other_things_are_wrong_too() -> None:
    found = found_of(of_run(batch=8, checkpoint=FULL_CHECKPOINT))
    assert found.agree is False
    assert code_of(found) == "missing-recompute"
    assert ". And recomputation is missing: full checkpointing would recompute" in found.sentence


def test_a_number_of_parameters_is_only_an_estimate() -> None:
    prepared, measured = sample()
    found = reconcile(measured, prepared, bare_model(10**9), Run(tokens=4096))
    assert found.rate is None or found.rate.ledger.convention == "6N"
    assert "describe the model (--model)" in found.sentence


def test_descriptions_that_say_too_little_are_refused() -> None:
    card, _ = described(ONE)
    for run in (Run(), Run(seq=1024)):
        with pytest.raises(UsageError):
            found_of(lambda _, __, run=run: (card, run))  # type: ignore[misc]


# Real runs


def resnet18() -> ModelCard:
    """Return ResNet-18 as published (arXiv:1512.03385), for pictures of 224 x 224."""
    from traceflops.flops.model.card_table import build, parse_toml

    rows = [
        "{channels = [3, 64], input = [224, 224], kernel = 7, stride = 2, padding = 3, stem = true}"
    ]
    rows.append("{channels = [64, 64], input = [56, 56], kernel = 3, padding = 1, count = 4}")
    for width, size in ((128, 56), (256, 28), (512, 14)):
        half = f"channels = [{width // 2}, {width}], input = [{size}, {size}], stride = 2"
        rows.append(f"{{{half}, kernel = 3, padding = 1}}")
        rows.append(f"{{{half}, kernel = 1}}")
        same = f"channels = [{width}, {width}], input = [{size // 2}, {size // 2}]"
        rows.append(f"{{{same}, kernel = 3, padding = 1, count = 3}}")
    named = [row.replace("{", f'{{name = "c{at}", ', 1) for at, row in enumerate(rows)]
    text = f'name = "ResNet-18"\nconv = [{", ".join(named)}]\n'
    text += 'linear = [{name = "fc", inputs = 512, outputs = 1000}]\n'
    return build(parse_toml(text, "resnet18"), "resnet18")


def test_resnet18_on_one_of_eight_devices() -> None:
    """10 pictures per device, of 80; the checkpoints are recognised."""
    trace = tf.read(str(shared_file("traces/pytorch/mi300x_resnet18_ddp_train.json.gz")))
    found = found_in(trace, resnet18(), Run(batch=80))
    assert (found.job.devices, found.job.shown) == (8, 1)
    assert found.counts is not None
    assert found.counts.counted == 2 * 106_484_121_600
    assert found.residual == 0
    assert code_of(found) == "recompute-not-described"
    right = found_in(trace, resnet18(), Run(batch=80, checkpoint=FULL_CHECKPOINT))
    assert right.residual == 0
    assert code_of(right) == ""


def test_resnet50_is_recognised() -> None:
    """32 pictures of 224 x 224 in a step, of 2021."""
    trace = tf.read(str(shared_file("traces/pytorch/v100_kineto_resnet50_nw4.json.gz")))
    right = found_in(trace, find_model("resnet-50"), Run(batch=32))
    assert right.counts is not None
    forward, stem = 8_174_272_512, 2 * 112 * 112 * 64 * 3 * 49
    step = 32 * (3 * forward - stem + 3 * 2 * 2048 * 1000)
    assert right.counts.expected == right.counts.counted == right.job.windows * step
    said = [fact.label for fact in described_facts(right)]
    assert "samples per s" in said
    assert "tokens per s" not in said


def test_a_forward_pass_without_its_head() -> None:
    """Qwen1.5 0.5B: what was recorded ends before the output head."""
    trace = tf.read(str(shared_file("traces/pytorch/h100_qwen15_infer.json.gz")))
    block = Block(
        attention=Attention(heads=16, kv_heads=16, head_dim=64),
        feed_forward=FeedForward(width=2816, glu=True),
    )
    card = ModelCard(name="Qwen1.5 0.5B", hidden=1024, vocab=151_936, blocks=((24, block),))
    run = Run(batch=16, seq=559, forward_only=True)
    found = found_in(trace, card, run)
    assert found.agree is False
    right = found_in(trace, replace(card, head=False), run)
    assert right.agree
    assert right.residual is not None
    assert abs(right.residual) < Fraction(1, 10**6)
    assert right.rate is not None
    trains = found_in(trace, card, replace(run, forward_only=False))
    assert trains.agree is False

"""Prefill, decode and MBU: rules on small traces made by hand, and recordings of real servers."""

from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import analysis_of_sample, shared_file
from tests.mfu.test_measurement import GEMM, H100
from traceflops.analysis.preparation import prepare
from traceflops.facts import Fact, fact
from traceflops.flops.analytic.run import Run
from traceflops.flops.model.card_table import build
from traceflops.mfu.checked.reconciliation import reconcile
from traceflops.mfu.checked.run_options import TRAINS, Words
from traceflops.mfu.checked.trace_description import SelfDescribed, self_described
from traceflops.mfu.forward_passes import NO_CACHE, NO_RULE
from traceflops.mfu.inference import BY_LACK, BY_MARKS, Inference, PhaseUse
from traceflops.mfu.measurement import measure
from traceflops.table.trace import Trace
from traceflops.windows.engine_passes import ServingMark, serving_marks

H100_BYTES_PER_NS = 3_350
BF16 = "c10::BFloat16"
TABLE = 5_000


def product(start_ns: int, rows: int, k: int = 512, n: int = 256) -> dict[str, Any]:
    dims, types = f"[[{rows},{k}],[{k},{n}]]", f'["{BF16}","{BF16}"]'
    return op("aten::mm", start_ns, dims, types)


def op(name: str, start_ns: int, dims: str, types: str) -> dict[str, Any]:
    row = {"name": name, "start_ns": start_ns, "dur_ns": 8}
    return {**row, "input_dims": dims, "input_types": types}


def lookup(start_ns: int, indices: str) -> dict[str, Any]:
    dims, types = f"[[{TABLE},512],{indices},[],[],[]]", f'["{BF16}","long int","","",""]'
    return op("aten::embedding", start_ns, dims, types)


def cache(start_ns: int) -> dict[str, Any]:
    """Return an op that writes keys and values into a cache."""
    return op("_C_cache_ops::reshape_and_cache_flash", start_ns, "[]", "[]")


def made(*ops: dict[str, Any], **more: Any) -> Trace:
    """Return a trace in which every product runs 1,000 ns, one right behind the other."""
    works = [one for one in ops if one["name"] == "aten::mm"]
    tables = launched(
        *((GEMM, one["start_ns"] + 1, 10_000 + 1_000 * i, 1_000) for i, one in enumerate(works))
    )
    return trace_of(**tables, ops=list(ops), devices=[H100], **more)


def found(trace: Trace) -> Inference:
    inference = tf.analyze(trace).measured.inference
    assert inference is not None
    return inference


def only(trace: Trace) -> PhaseUse:
    (phase,) = found(trace).phases
    return phase


def test_token_indices_tell_decode_from_prefill() -> None:
    """A prefill of 4 x 64 tokens, and two decodes of 4; each decode moves 270,336 bytes at least.

    512 x 256 weights, 4 x 512 inputs and 4 x 256 outputs, two bytes each.
    """
    inference = found(
        made(
            *(lookup(100, "[4,64]"), product(110, 256), cache(120)),
            *(lookup(200, "[4,1]"), product(210, 4), cache(220)),
            *(lookup(300, "[4,1]"), product(310, 4), cache(320)),
        )
    )
    assert inference.rule == BY_LACK
    prefill, decode = inference.phase("prefill"), inference.phase("decode")
    assert prefill is not None
    assert decode is not None
    assert (prefill.passes, prefill.sequences, prefill.queries) == (1, 4, 256)
    assert prefill.rules == ((fact("pass.token-indices", sequences=4, tokens=64), 1),)
    assert (decode.passes, decode.sequences, decode.queries) == (2, 8, 8)
    assert (prefill.time_ns, decode.time_ns) == (1_000, 2_000)
    assert prefill.flops == 2 * 256 * 512 * 256
    assert decode.moved.weights == 2 * 512 * 256 * 2
    each = 2 * (512 * 256 + 4 * 512 + 4 * 256)
    assert decode.moved.total == 2 * each
    assert decode.mbu == Fraction(2 * each, 2_000 * H100_BYTES_PER_NS)
    assert decode.coverage == 1


@pytest.mark.parametrize(
    ("ops", "kind", "rule"),
    [
        ([product(110, 1), product(130, 1)], "decode", fact("pass.one-row")),
        ([product(110, 8), product(130, 8)], None, NO_RULE),
        ([lookup(100, "[8]"), product(110, 8)], None, NO_RULE),
        (
            [lookup(100, "[8]"), product(110, 8), product(130, 1, 256, TABLE)],
            "prefill",
            fact("pass.logits", rows=1, others=8),
        ),
        (
            [lookup(100, "[8]"), product(110, 8), product(130, 8, 256, TABLE)],
            None,
            NO_RULE,
        ),
    ],
)
def test_rows_of_products_tell_where_they_can(
    ops: list[dict[str, Any]], kind: str | None, rule: Fact
) -> None:
    phase = only(made(*ops, cache(140)))
    assert (phase.kind, phase.rules) == (kind, ((rule, 1),))
    without = only(made(*ops))
    assert (without.kind, without.rules) == (None, ((NO_CACHE, 1),))


def attention(start_ns: int, queries: int, keys: int) -> dict[str, Any]:
    q, kv = f"[3,8,{queries},64]", f"[3,8,{keys},64]"
    dims = f"[{q},{kv},{kv},[],[],[],[]]"
    types = f'["{BF16}","{BF16}","{BF16}","","Scalar","Scalar","Scalar"]'
    core = op("aten::_scaled_dot_product_flash_attention", start_ns, dims, types)
    return {**core, "concrete_inputs": '["","","","0.","False","False",""]'}


def attending(*sizes: tuple[int, int], more: list[dict[str, Any]]) -> Trace:
    """Return a trace of attention over so many queries and keys, one after the other."""
    starts = [110 + 10 * n for n in range(len(sizes))]
    tables = launched(*(("flash_fwd", at + 1, 10 * at, 1_000) for at in starts))
    cores = [attention(at, *one) for at, one in zip(starts, sizes, strict=True)]
    return trace_of(**tables, ops=[*cores, *more], devices=[H100])


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ([(576, 576)], None),  # a vision tower
        ([(4096, 4096), (4096, 77), (64, 64), (64, 77)], None),  # diffusion, with a prompt
        ([(576, 576), (1, 576)], None),  # a tower that ends in attention pooling
        ([(1, 101), (1, 101)], "decode"),
    ],
)
def test_only_a_pass_with_a_cache_is_prefill_or_decode(
    sizes: list[tuple[int, int]], kind: str | None
) -> None:
    assert only(attending(*sizes, more=[])).kind == kind
    embedding = lookup(100, "[3,576]")  # as BERT has one, too
    assert only(attending(*sizes, more=[embedding])).kind == kind


def test_a_prefill_fills_a_cache() -> None:
    assert only(attending((576, 576), more=[cache(105)])).kind == "prefill"
    frame = {"kind": "python", "start_ns": 105, "dur_ns": 1}
    name = "transformers/cache_utils.py(398): update"
    trace = attending((576, 576), more=[])
    marks = trace_of(marks=[{**frame, "name": name}]).marks
    assert only(replace(trace, tables={**trace.tables, "marks": marks})).kind == "prefill"


@pytest.mark.parametrize(("queries", "kind"), [(1, "decode"), (7, "prefill")])
def test_queries_per_sequence_tell(queries: int, kind: str) -> None:
    phase = only(attending((queries, 100), more=[]))
    assert (phase.kind, phase.sequences, phase.queries) == (kind, 3, 3 * queries)
    assert phase.keys == 300
    assert phase.moved.cache == 300 * 8 * (64 + 64) * 2


TRAINING: dict[str, dict[str, Any]] = {
    "a backward node": {"ops": [op("MmBackward0", 300, "[]", "[]")]},
    "gradients on": {"ops": [{**product(300, 1), "sequence": 5}]},
    "an optimizer": {"marks": [{"name": "Optimizer.step#SGD.step", "start_ns": 400, "dur_ns": 5}]},
}


@pytest.mark.parametrize("why", TRAINING)
def test_what_may_be_training_is_not_called_inference(why: str) -> None:
    more = dict(TRAINING[why])
    trace = made(product(110, 1), *more.pop("ops", []), **more)
    assert tf.analyze(trace).measured.inference is None


def test_samples_of_training_are_none() -> None:
    assert analysis_of_sample("gpt_1rank.json.gz").measured.inference is None
    assert tf.analyze(trace_of()).measured.inference is None


def test_marks_go_before_shapes_and_need_no_operator() -> None:
    mark = {"name": "step[DECODE bs=32]", "start_ns": 100, "dur_ns": 500}
    inference = found(made(product(110, 8), marks=[mark]))
    assert inference.rule == BY_MARKS
    (phase,) = inference.phases
    assert (phase.kind, phase.sequences, phase.queries, phase.keys) == ("decode", 32, 32, None)


def test_bytes_of_less_than_half_of_the_time_give_no_mbu() -> None:
    for dur_ns, known in ((900, True), (1_100, False)):
        trace = made(
            product(110, 1),
            marks=[{"name": "step[DECODE bs=1]", "start_ns": 100, "dur_ns": 500}],
        )
        tables = {name: table.to_pylist() for name, table in trace.tables.items()}
        tables["calls"].append({"start_ns": 120, "correlation": 9})
        tables["activities"].append(
            {"name": "someones", "start_ns": 11_000, "dur_ns": dur_ns, "correlation": 9}
        )
        phase = only(trace_of(**{k: [_given(r) for r in v] for k, v in tables.items()}))
        assert phase.coverage == Fraction(1_000, 1_000 + dur_ns)
        assert (phase.mbu is not None) is known


def _given(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


MIXED = ServingMark("mixed", 32, 121)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "execute_context_1(888_788544)_generation_0(0)",
            ServingMark("prefill", 1, 888, None),
        ),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)",
            ServingMark("decode", 32, 32, 32_785, 32_785),
        ),
        (
            "execute_6_context_2(sq5sk8sqsq13sqsk22)_generation_1(sq1sk7sqsq1sqsk7)",
            ServingMark("mixed", 3, 6, 15, 25),
        ),
        ("execute_context_2(600)_generation_30(30)", ServingMark("mixed", 32, 630, None)),
        ("execute_context_0(0)_generation_0(0)", ServingMark(None, 0, 0, None)),
        ("step[DECODE bs=32]", ServingMark("decode", 32, 32)),
        ("step[EXTEND bs=4 toks=900]", ServingMark("prefill", 4, 900)),
        ("step[TARGET_VERIFY bs=4]", ServingMark(None, 4)),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12]",
            ServingMark("mixed", 2, 6, 20),
        ),
        (
            "step[EXTEND bs=2 toks=5 c_sq=5 c_sqsq=13 c_sqsk=22 c_sk=8]",
            ServingMark("prefill", 2, 5, 8, 18),
        ),
        ("execute_new_2_cached_0", ServingMark("prefill", 2)),
        ("execute_new_0_cached_32", ServingMark(None, 32)),
        (
            "decode[bs=117/128 tok=117 d=117 sqsq=117 sqsk=9 sk=7]",
            ServingMark("decode", 117, 117, 7),
        ),
        ("decode[bs=3 tok=9 p=1 d=2]", ServingMark("mixed", 3, 9)),
        ("prefill[bs=6 tok=700 ctx=[400, 100]...+4]", ServingMark("prefill", 6, 700)),
        ("[Executor] _forward_step 7: 1 ctx reqs, 90 ctx tokens, 31 gen reqs", MIXED),
        ("[Executor] _forward_step 8: 0 ctx reqs, 32 gen reqs", ServingMark("decode", 32, 32)),
        ("gpu_model_runner: forward", ServingMark(None)),
        ("step[DECODE bs=32] x", None),
        ("ProfilerStep#6", None),
        ("execute_context_" + "9" * 5_000, None),
    ],
)
def test_what_annotations_say(name: str, said: ServingMark | None) -> None:
    assert serving_marks(["aten::mm", name]).get(1) == said


@pytest.mark.parametrize(
    "name",
    [
        "[Executor] _forward_step 7: 1 ctx reqs, 90 ctx tokens, 31 gen reqs",
        "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12]",
        "prefill[bs=2 tok=900 ctx=[600, 300]]",
        "gpu_model_runner: forward",
    ],
)
def test_redaction_leaves_what_annotations_of_passes_say(name: str) -> None:
    mark = {"name": name, "start_ns": 100, "dur_ns": 500}
    trace = made(product(110, 8), marks=[mark])
    plain, redacted = (tf.analyze(trace, redact=one).measured.inference for one in (False, True))
    assert plain is not None
    assert plain == redacted


def test_a_prefill_of_16_x_559_tokens() -> None:
    """Qwen1.5-0.5B without its head: 24 layers of 4 x 1024 x 1024 + 3 x 1024 x 2816 weights."""
    trace = tf.read(shared_file("traces/pytorch/h100_qwen15_infer.json.gz"))
    phase = only(trace)
    assert (phase.kind, phase.sequences, phase.queries) == ("prefill", 16, 16 * 559)
    assert phase.moved.weights == 24 * (4 * 1024 * 1024 + 3 * 1024 * 2816) * 2
    assert phase.moved.cache == 24 * 16 * 559 * 16 * (64 + 64) * 2
    assert found(trace).rule == BY_LACK


def test_annotations_of_servers() -> None:
    prefill = only(tf.read(shared_file("traces/pytorch/b200_vllm_gptoss_prefill.json.gz")))
    assert (prefill.kind, prefill.sequences, prefill.queries) == ("prefill", 1, 888)
    assert prefill.mbu is None
    decode = only(tf.read(shared_file("traces/pytorch/mi300x_sglang_qwen3_decode_graph.json.gz")))
    assert (decode.kind, decode.passes) == ("decode", 1)
    assert (decode.sequences, decode.queries, decode.keys) == (32, 32, 32_785)
    assert decode.mbu is None  # a graph launched it: no operator says what was read


def test_a_capture_tells_what_replayed_kernels_move() -> None:
    """Qwen3-8B, kernel by kernel: weights and cache are 19.97 of the 20.44 GB."""
    graph, capture = (
        tf.read(shared_file(f"traces/pytorch/mi300x_sglang_qwen3_decode_{one}.json.gz"))
        for one in ("graph", "capture")
    )
    inference = tf.analyze(graph, pair=capture).measured.inference
    assert inference is not None
    (decode,) = inference.phases
    hidden, q, kv, wide, words, batch = 4_096, 32 * 128, 8 * 128, 12_288, 151_936, 32
    weights = hidden * (q + 2 * kv) + q * hidden + 3 * hidden * wide
    norms = 2 * (4 * batch * hidden + hidden) + 2 * batch * (q + kv) + 2 * 128
    products = (hidden + q + 2 * kv) + (q + hidden) + (hidden + 2 * wide) + (wide + hidden)
    rotary, store, gate = 2 * (q + kv) + 128, 4 * kv, 3 * wide
    attention, copies = 2 * q, 2 * (q + kv)
    each = products + rotary + store + gate + attention + copies
    layer = weights + 2 * kv * 32_785 + norms + batch * each
    logits = hidden * words + batch * (hidden + words) + batch * words * (1 + 2)  # to 4 bytes
    ends = 2 * batch * hidden * 2 + hidden + batch * words * 2  # embedding, last norm, sampling
    places = decode.moved.total - 2 * (36 * layer + logits + ends)
    assert 0 <= places < 37 * 600  # positions, and places in the cache, of 8 bytes
    assert decode.mbu == Fraction(decode.moved.total, decode.possible or 0)


def test_recordings_of_training_are_none() -> None:
    trace = tf.read(shared_file("traces/pytorch/mi300x_resnet18_ddp_train.json.gz"))
    assert tf.analyze(trace).measured.inference is None


SIZES = {"hidden": 512, "layers": 1, "heads": 4, "ffn": 64, "glu": False, "vocab": 99}
SERVED = [{"name": "execute_context_0(0)_generation_8(8)", "start_ns": 100, "dur_ns": 50}]
SHOWN = fact("reconciliation.forward-only", rule=BY_MARKS)
ASSUMED = fact("reconciliation.training")
WAYS: list[tuple[list[dict[str, Any]], dict[str, Any], Words, bool | None, Fact | None]] = [
    (SERVED, {}, Words({}), True, SHOWN),
    (SERVED, {"forward_only": False}, Words({}), False, None),
    (SERVED, {"forward_only": True}, Words({}, frozenset({TRAINS})), False, None),
    (SERVED, {}, Words({"checkpointing": "none"}), False, None),
    ([], {"forward_only": True}, Words({}), True, None),
    ([], {}, Words({}), None, ASSUMED),
]


@pytest.mark.parametrize(("marks", "told", "options", "forward", "note"), WAYS)
def test_a_described_run_counts_as_what_the_trace_shows_unless_it_says(
    marks: list[dict[str, Any]],
    told: dict[str, Any],
    options: Words,
    forward: bool | None,
    note: Fact | None,
) -> None:
    """Three times as much is needed with input and weight gradients of all products."""
    trace = trace_of(**launched((GEMM, 110, 120, 1_000)), marks=marks, devices=[H100])
    told = {"model": SIZES, "tokens": 8, "seq": 1} | told
    prepared = prepare(replace(trace, source=replace(trace.source, description=told)))
    said = self_described(prepared, options=options)
    assert isinstance(said, SelfDescribed)
    described = reconcile(measure(prepared), prepared, said.card, said.run).described
    assert described.run.forward_only is forward
    ours = [each for each in described.notes if each in (SHOWN, ASSUMED)]
    assert ours == ([note] if note else [])
    each = 2 * 8 * (4 * 512 * 512 + 2 * 512 * 64 + 512 * 99)  # and attention: one key per query
    assert described.work.ledger.figure == (each + 8 * 4 * 512) * (1 if forward else 3)


def test_of_what_has_gradients_nothing_is_assumed() -> None:
    trace = made(product(110, 8) | {"sequence": 7})
    prepared = prepare(trace)
    run = Run(tokens=8, seq=1, forward_only=None)
    found = reconcile(measure(prepared), prepared, build(SIZES, "model"), run).described
    assert found.run.forward_only is None
    assert ASSUMED not in found.notes

"""Passes that a serving engine annotates: their times, the idle time between, what is shown."""

import gzip
import json
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traceflops as tf
from sample_traces.plants import PLANTS
from sample_traces.serving import pass_truth
from sample_traces.simulate import simulate
from tests.attribution.test_planted_culprits import WAYS
from tests.build import launched, trace_of
from tests.conftest import analysis_of_sample, examples, shared_file
from tests.mfu.test_inference import made, product
from tests.samples.strategies import run_configs
from traceflops.analysis.result import Analysis
from traceflops.mfu.serving_passes import PassKind
from traceflops.reports.json.report import report_object
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal
from traceflops.table.trace import Trace
from traceflops.windows.selection import Selection

US = 1_000
SCHEDULE = "vllm/v1/core/sched/scheduler.py(204): schedule"
PREFILL, DECODE = "execute_context_1(64)_generation_0(0)", "execute_context_0(0)_generation_3(3)"
ENGINES = {
    "vLLM": (PREFILL, DECODE),
    "SGLang": ("step[EXTEND bs=1 toks=64]", "step[DECODE bs=3]"),
    "ATOM": ("prefill[bs=1 tok=64 ctx=[64]]", "decode[bs=3/4 tok=3 d=3]"),
    "TensorRT-LLM": (
        "[Executor] _forward_step 7: 1 ctx reqs, 64 ctx tokens, 0 gen reqs",
        "[Executor] _forward_step 8: 0 ctx reqs, 3 gen reqs",
    ),
}


def row(name: str, start_us: int, end_us: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, **more}


def rows_of(name: str, at: int, first: int) -> dict[str, list[dict[str, Any]]]:
    """Return a pass at `at` us: 10 of a copy, model 20 to 220, all-reduce to 260, sampling to 300.

    The first three are launched in the annotation. From 310 on the scheduler runs, up to 1,000.
    """
    works = (
        ("Memcpy HtoD (Pinned -> Device)", 1, 5, 10),
        ("gemm", 10, 20, 200),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20, 200, 60),
        ("sampling", 150, 260, 40),
    )
    spans = [(work, (at + a) * US, (at + b) * US, c * US) for work, a, b, c in works]
    tables = launched(*spans, first=first)
    tables["activities"][0]["kind"] = "memcpy"
    tables["activities"][2]["stream"] = 8
    frame = row(SCHEDULE, at + 310, at + 1_000, kind="python")
    return {**tables, "marks": [row(name, at, at + 100), frame]}


def served(*names: str, ranks: int = 1, **more: Any) -> Trace:
    """Return a trace with a pass per name, 1,000 us apart, the same on each rank."""
    tables: dict[str, list[dict[str, Any]]] = {"activities": [], "calls": [], "marks": []}
    for rank in range(ranks):
        tables.setdefault("processes", []).append({"rank": rank})
        tables.setdefault("devices", []).append({"process": rank, "device": rank, "local_id": rank})
        for number, name in enumerate(names):
            for table, rows in rows_of(name, 1_000 * number, 10 * number + 1).items():
                owner = {"process": rank} | ({"device": rank} if table == "activities" else {})
                tables[table] += [row | owner for row in rows]
    return trace_of(**{**tables, **more})


def kinds(analysis: Analysis) -> dict[str | None, PassKind]:
    return {one.kind: one for one in analysis.serving.kinds}


@pytest.mark.parametrize("engine", ENGINES)
def test_passes_of_each_engine(engine: str) -> None:
    """The last of four passes is not chosen: nothing bounds it."""
    prefill, decode = ENGINES[engine]
    analysis = tf.analyze(served(prefill, decode, decode, decode))
    assert report_object(analysis)["passes"] == [
        {
            "kind": kind,
            "device": 0,
            "start_ns": start * US,
            "duration_ns": 240 * US,
            "batch": batch,
            "tokens": tokens,
        }
        for kind, start, batch, tokens in [
            ("prefill", 20, 1, 64),
            ("decode", 1_020, 3, 3),
            ("decode", 2_020, 3, 3),
        ]
    ]


def test_sums_of_a_kind() -> None:
    """Between two passes all is idle but sampling and the copy: 300 to 1,005, 1,015 to 1,020."""
    found = kinds(tf.analyze(served(PREFILL, DECODE, DECODE, DECODE)))
    prefill, decode = found["prefill"], found["decode"]
    assert (prefill.passes, prefill.followed, prefill.cycle_ns) == (1, 1, 1_000 * US)
    assert (decode.passes, decode.followed, decode.cycle_ns) == (2, 1, 1_240 * US)
    assert (prefill.tokens_per_s, prefill.tokens) == (64_000, 64)
    assert decode.tokens_per_s == pytest.approx(6e9 / 1_240_000)
    assert [one.between_ns for one in (prefill, decode)] == [710 * US] * 2
    assert (decode.communication_ns, decode.exposed_ns) == (2 * 60 * US, 2 * 40 * US)


@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from(sorted(WAYS)), st.sampled_from(sorted(ENGINES)))
def test_passes_of_random_runs_are_those_of_the_run(
    data: st.DataObject, name: str, engine: Any
) -> None:
    """Of each rank all but the last; the idle time between them, to the nanosecond."""
    way = WAYS[name]
    fixed = {"machine": way.machine, "engine": engine, "cuda_graph": False, "lead_in": False}
    plants = tuple(data.draw(st.lists(st.sampled_from(sorted(PLANTS)), max_size=3)))
    steps = data.draw(st.integers(4, 8))
    run = simulate(data.draw(run_configs(**fixed, steps=steps, plants=plants, ranks=1)))
    truth = pass_truth(run.config, run.ranks[0])
    serving = tf.analyze(way.trace(run)).serving
    zero = serving.passes[0].start_ns - truth[0].start_ns
    assert [
        (one.kind, one.batch, one.tokens, one.start_ns - zero, one.duration_ns)
        for one in serving.passes
    ] == [
        (one.kind, one.batch, one.tokens, one.start_ns, one.end_ns - one.start_ns)
        for one in truth[:-1]
    ]
    between: Counter[str | None] = Counter()
    for one in truth[:-2]:
        between[one.kind] += one.idle_after_ns or 0
    assert {one.kind: one.between_ns for one in serving.kinds} == {
        one.kind: between[one.kind] for one in truth[:-1]
    }


def test_idle_time_between_passes_has_culprits() -> None:
    waits = kinds(tf.analyze(served(PREFILL, DECODE, DECODE, DECODE)))["prefill"].waits
    most = waits.culprits[0]
    assert (most.kind, most.label, most.idle_ns) == ("host_code", SCHEDULE, 690 * US)
    assert sum(one.idle_ns for one in waits.culprits) + waits.unexplained_ns == 710 * US


def test_percentiles_are_those_of_the_passes() -> None:
    """Pass n of 200 lasts n ns; one more is last and not chosen."""
    works = [("gemm", 1_000 * n + 1, 1_000 * n + 10, n) for n in range(1, 202)]
    marks = [{"name": DECODE, "start_ns": 1_000 * n, "dur_ns": 500} for n in range(1, 202)]
    (decode,) = tf.analyze(trace_of(**launched(*works), marks=marks)).serving.kinds
    assert (decode.passes, decode.p50_ns, decode.p99_ns) == (200, 100, 198)


def test_only_passes_of_the_chosen_time_count() -> None:
    trace = served(PREFILL, DECODE, DECODE, DECODE)
    steps = tf.analyze(trace, Selection(steps=(0, 1))).serving
    assert [one.start_ns for one in steps.passes] == [20 * US, 1_020 * US]
    assert [one.followed for one in steps.kinds] == [1, 0]
    assert [one.between_ns for one in steps.kinds] == [710 * US, 0]
    early = tf.analyze(trace, Selection(to_ns=1_500 * US)).serving
    assert [one.kind for one in early.passes] == ["prefill", "decode"]


def test_passes_in_steps_of_another_marker() -> None:
    """The only step is around the last two of four passes."""
    names = [DECODE] * 4
    marks = [row("ProfilerStep#1", 2_000, 3_990)]
    rows = [one for n, name in enumerate(names) for one in rows_of(name, 1_000 * n, 1)["marks"]]
    trace = served(*names, marks=[*marks, *rows])
    steps = tf.analyze(trace, Selection(steps=(1, 1))).serving
    assert [one.start_ns for one in steps.passes] == [2_020 * US, 3_020 * US]
    early = tf.analyze(trace, Selection(to_ns=500 * US)).serving
    assert [one.start_ns for one in early.passes] == [20 * US]


def test_ranks_compute_the_same_tokens() -> None:
    """Tokens per second are those of one device: two ranks do not double them."""
    (alone,), (decode,) = (
        tf.analyze(served(DECODE, DECODE, DECODE, ranks=ranks)).serving.kinds for ranks in (1, 2)
    )
    assert (alone.passes, alone.tokens, decode.passes, decode.tokens) == (2, 6, 4, 12)
    assert decode.tokens_per_s == alone.tokens_per_s


def test_without_launches_work_is_of_the_annotation_in_which_it_starts() -> None:
    found = tf.analyze(served(DECODE, DECODE, DECODE, calls=[])).serving.passes
    assert [(one.start_ns, one.duration_ns) for one in found] == [
        (20 * US, 200 * US),
        (1_020 * US, 200 * US),
    ]


def test_a_pass_that_tells_no_counts() -> None:
    marks = [row("gpu_model_runner: forward", 0, 100)]
    analysis = tf.analyze(served(DECODE, marks=marks))
    (one,), (kind,) = analysis.serving.passes, analysis.serving.kinds
    assert (one.kind, one.batch, one.tokens) == (None, None, None)
    assert (kind.tokens, kind.tokens_per_s, kind.p50_ns) == (None, None, 240 * US)


def card(analysis: Analysis, width: int = 100) -> list[str]:
    lines = [str(line) for line in render_terminal(analysis, Style(width))]
    first = next((at for at, line in enumerate(lines) if line.startswith("Serving pass")), None)
    return [] if first is None else lines[first : lines.index("", first)]


def test_the_card_in_the_terminal() -> None:
    head, prefill, decode, *waits = card(tf.analyze(served(PREFILL, DECODE, DECODE, DECODE)), 120)
    assert " ".join(head.split()) == (
        "Serving pass Count Tokens p50 p99 Tokens/s Idle after Comm Exposed"
    )
    assert " ".join(prefill.split()) == "prefill 1 64 240 µs 240 µs 64,000 710 µs 60.0 µs 40.0 µs"
    assert " ".join(decode.split()) == "decode 2 6 240 µs 240 µs 4,840 710 µs 60.0 µs 40.0 µs"
    assert waits == [
        f"  Idle after {kind}: host code 97.2 %, schedule (scheduler.py:204)"
        for kind in ("prefill", "decode")
    ]


def test_the_card_has_the_bandwidth_used() -> None:
    """A product reads 1 x 512 and 512 x 256 and writes 1 x 256 of bf16 in 1,000 ns, at 3,350 B/ns.

    That is 263,680 of 3,350,000 bytes.
    """
    marks = [{"name": "step[DECODE bs=1]", "start_ns": 100, "dur_ns": 500}]
    head, decode = card(tf.analyze(made(product(110, 1), marks=marks)))
    assert (head.split()[-1], decode.split()[-2:]) == ("MBU", ["7.9", "%"])


def test_no_passes_no_card() -> None:
    analysis = analysis_of_sample("gpt_1rank.json.gz")
    assert report_object(analysis)["passes"] == []
    assert not card(analysis)
    assert "Serving pass" not in render_markdown(analysis)


def test_the_table_in_markdown() -> None:
    text = render_markdown(tf.analyze(served(PREFILL, DECODE, DECODE, DECODE)))
    assert "| Serving pass | Count | Tokens | p50 | p99 |" in text
    assert "| prefill | 1 | 64 | 240 µs | 240 µs | 64,000 | 710 µs | 60.0 µs | 40.0 µs |" in text


def test_the_table_on_the_page() -> None:
    page = render_html(tf.analyze(served(PREFILL, DECODE, DECODE, DECODE)))
    section = page.split('<section id="serving">')[1].split("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section)
    texts = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]
    times = "710 µs 60.0 µs 40.0 µs host code 97.2 % schedule (scheduler.py:204)"
    assert texts == [
        "Serving pass Count Tokens p50 p99 Tokens/s Idle after Comm Exposed Waits on",
        f"prefill 1 64 240 µs 240 µs 64,000 {times}",
        f"decode 2 6 240 µs 240 µs 4,840 {times}",
    ]
    assert f'<code title="{SCHEDULE}">' in section


def test_redaction_hides_what_runs_between_and_keeps_the_passes() -> None:
    trace = served(PREFILL, DECODE, DECODE, DECODE)
    plain, redacted = (tf.analyze(trace, redact=one).serving for one in (False, True))
    assert plain.passes == redacted.passes
    assert "scheduler" in str(plain.kinds)
    assert "scheduler" not in str(redacted.kinds)


def launched_kernels(path: Any, label: str) -> tuple[int, int]:
    """Return start and end in ns of the kernels launched in an annotation, from the file itself."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    (mark,) = [e for e in events if e.get("cat") == "user_annotation" and e["name"] == label]
    within = mark["ts"], mark["ts"] + mark["dur"]
    calls = {
        e["args"]["correlation"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and within[0] <= e["ts"] < within[1]
    }
    works = [e for e in events if e.get("cat") == "kernel" and e["args"]["correlation"] in calls]
    start, end = min(e["ts"] for e in works), max(e["ts"] + e["dur"] for e in works)
    return round(start * US), round(end * US)


@pytest.mark.parametrize(
    ("name", "label", "told"),
    [
        (
            "b200_vllm_gptoss_prefill",
            "execute_context_1(888_788544)_generation_0(0)",
            ("prefill", 1, 888),
        ),
        (
            "mi300x_vllm_gptoss_decode_graph",
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            ("decode", 32, 32),
        ),
    ],
)
def test_recorded_passes(name: str, label: str, told: tuple[str, int, int]) -> None:
    path = shared_file(f"traces/pytorch/{name}.json.gz")
    (one,) = tf.analyze(tf.read(path)).serving.passes
    assert (one.kind, one.batch, one.tokens) == told
    start, end = launched_kernels(path, label)
    assert one.start_ns == pytest.approx(start, abs=1)
    assert one.start_ns + one.duration_ns == pytest.approx(end, abs=1)


def test_communication_of_a_recorded_tensor_parallel_pass() -> None:
    """All its communication is in the one pass, and next to none of it is hidden."""
    analysis = tf.analyze(tf.read(shared_file("traces/pytorch/b200_vllm_gptoss_prefill.json.gz")))
    (kind,) = analysis.serving.kinds
    assert kind.exposed_ns == analysis.components.communication_ns
    assert kind.communication_ns >= kind.exposed_ns


def test_a_pass_does_not_begin_before_time_that_is_not_recorded() -> None:
    """In this recording 463 ms lie between the first kernels of the pass and the others."""
    path = shared_file("traces/pytorch/mi300x_sglang_qwen3_decode_graph.json.gz")
    (one,) = tf.analyze(tf.read(path)).serving.passes
    assert (one.kind, one.batch, one.tokens) == ("decode", 32, 32)
    assert 10_000 * US < one.duration_ns < 11_000 * US

"""Rules of communication, ranks and serving: planted in the simulator, absent without the fault."""

from collections.abc import Mapping, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig
from tests.build import launched, step_marks, trace_of
from tests.conftest import shared_file, some
from tests.findings.scenarios import reach_ns
from tests.findings.test_diagnosis import ROUNDING, SMALL, analysis_of, of_rule, step_ns
from traceflops.facts import in_words
from traceflops.findings.decode import decode
from traceflops.findings.finding import Finding
from traceflops.findings.late_rank import late_rank_reason
from traceflops.ranks.slow_rank import SlowRank

US = 1_000
JOB: Mapping[str, Any] = {**SMALL, "ranks": 4, "steps": 3}
LARGE = {"overlap": False, "hidden": 2048, "batch": 1}
TINY = {
    "ranks": 2,
    "layers": 3,
    "hidden": 256,
    "heads": 4,
    "batch": 8,
    "vocab": 1024,
    "overlap": False,
}
QUICK = {"host_op_ns": 1_000, "launch_call_ns": 1_000}
HOT = {"expert_ranks": 4, "on_rank": {2: {"expert_percent": 900}}}
STAGES = {"stages": 4, "microbatches": 2, "batch": 8, "steps": 2}
PASSES = {"engine": "vLLM", "ranks": 1, "batch": 32, "sequence": 64, "hidden": 4096, "heads": 32}
"""What is planted, the same repaired, the rule, and the owner."""
CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], str, str]] = {
    "links": ({**LARGE, "link_percent": 12}, {"link_percent": 60}, "slow-collectives", "cluster"),
    "buckets": (
        {**TINY, **QUICK, "gradient_buckets": 200},
        {"gradient_buckets": 3},
        "small-collectives",
        "framework",
    ),
    "experts": (
        HOT,
        {"on_rank": {rank: {"expert_percent": 300} for rank in range(4)}},
        "expert-imbalance",
        "yours",
    ),
    "stages": (STAGES, {"microbatches": 4, "batch": 4}, "pipeline-bubble", "yours"),
    "between": (
        {**PASSES, "steps": 4, "plants": ("python",) * 4, "plant_ns": 400_000},
        {"plant_ns": 1_000},
        "between-passes",
        "configuration",
    ),
    "weights": (
        {**PASSES, **QUICK, "steps": 4, "passes": ("decode",)},
        {"slow_category": "gemm", "slow_category_percent": 60},
        "decode-weights",
        "configuration",
    ),
    "prompts": (
        {**PASSES, "steps": 8, "passes": ("mixed", "decode", "decode", "decode")},
        {"passes": ("decode",)},
        "mixed-passes",
        "configuration",
    ),
}


def wasting(plant: str, time_ns: int) -> Mapping[str, Any]:
    """Return a job whose rank 2 wastes time in each step."""
    return {"steps": 4, "ranks": 3, "on_rank": {2: {"plants": (plant,) * 4, "plant_ns": time_ns}}}


def stalled(time_ns: int) -> Mapping[str, Any]:
    """Return a job whose rank 2 waits for its loader in each step."""
    rank = {"data_stall_steps": (0, 1, 2, 3), "data_stall_ns": time_ns}
    return {"steps": 4, "ranks": 3, "on_rank": {2: rank}}


"""What makes a rank late, the same repaired, the cause, and the owner."""
LATE: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], str, str]] = {
    "clock": (
        {"steps": 4, "ranks": 3, "straggler_rank": 2, "straggler_percent": 160},
        {"steps": 4, "ranks": 3},
        "slow_clock",
        "cluster",
    ),
    "more work": (
        {"steps": 4, "ranks": 3, "on_rank": {2: {"batch": 8}}},
        {"steps": 4, "ranks": 3},
        "more_work",
        "yours",
    ),
    "pause": (wasting("collector", 3_000_000), wasting("collector", 1_000), "gc_pause", "yours"),
    "memory": (
        wasting("allocate", 3_000_000),
        wasting("allocate", 1_000),
        "memory_pressure",
        "yours",
    ),
    "loader": (stalled(3_000_000), stalled(1), "data_input", "input pipeline"),
}


def config_of(planted: Mapping[str, Any]) -> RunConfig:
    return RunConfig(**{**JOB, **planted})


def rules(analysis: tf.Analysis) -> set[str]:
    return {one.rule for one in analysis.findings}


def holds(one: Finding, gained: float, before: float) -> bool:
    """Return whether the range of a gain holds what a repair gained."""
    assert one.gain is not None
    low, high = one.gain.low_ns - ROUNDING * before, reach_ns(one.gain) + ROUNDING * before
    return low <= gained <= high


@pytest.mark.parametrize("name", CASES)
def test_what_is_planted_is_found_and_gains_what_the_repair_does(name: str) -> None:
    planted, change, rule, owner = CASES[name]
    config = config_of(planted)
    analysis, repaired = analysis_of(config), analysis_of(replace(config, **change))
    found, before = of_rule(analysis.findings, rule), step_ns(analysis)
    gained = before - step_ns(repaired)
    assert gained > 0.05 * before
    assert holds(found, gained, before)
    assert (found.owner, found.priority) == (owner, "high")
    assert found.rows
    assert found.remedy.endswith(".")


HEALTHY: Mapping[str, tuple[Mapping[str, Any], set[str]]] = {
    "links": (LARGE, {"slow-collectives", "small-collectives"}),
    "few buckets": ({**TINY, **QUICK, "gradient_buckets": 3}, {"small-collectives"}),
    "hidden": ({**TINY, "overlap": True, "gradient_buckets": 200}, {"small-collectives"}),
    "tensors": ({**TINY, "ranks": 4, "tensor_ranks": 4, "layers": 4}, {"small-collectives"}),
    "experts": ({"expert_ranks": 4}, {"expert-imbalance", "pipeline-bubble"}),
    "passes": (PASSES, {"between-passes"}),
}


@pytest.mark.parametrize("name", some(HEALTHY, 2))
def test_nothing_is_said_without_the_fault(name: str) -> None:
    planted, absent = HEALTHY[name]
    assert not absent & rules(analysis_of(config_of(planted)))


@pytest.mark.parametrize("name", some(LATE, 3))
def test_a_late_rank_gains_what_its_repair_does_whatever_its_cause(name: str) -> None:
    """The first step is left out: what held up the rank before its first call is not recorded."""
    planted, healthy, cause, owner = LATE[name]
    analysis, repaired = (analysis_of(config_of(one), "1:3") for one in (planted, healthy))
    assert analysis.ranks.slow is not None
    assert analysis.ranks.slow.cause == cause
    found, before = of_rule(analysis.findings, "late-rank"), step_ns(analysis)
    gained = before - step_ns(repaired)
    assert gained > 0.2 * before
    assert holds(found, gained, before)
    assert found.owner == owner
    assert ("num_workers" in found.remedy) == (name == "loader")


def test_exposed_communication_is_told_by_group() -> None:
    analysis = analysis_of(config_of({"tensor_ranks": 2, "overlap": False}))
    found = of_rule(analysis.findings, "exposed-communication")
    assert {row.name for row in found.rows} == {"all-reduce of tp", "all-reduce of dp"}
    exposed = analysis.components.communication_ns
    assert sum(row.time_ns for row in found.rows) == pytest.approx(exposed, rel=0.05)
    largest = "_micro_pipeline_tp" if "tp" in found.rows[0].name else "bucket_cap_mb"
    assert largest in found.remedy


@pytest.mark.parametrize(
    ("kind", "range_", "product", "said"),
    [
        ("AllReduce", "ProfilerStep#{}", "wgrad_gemm", "bucket_cap_mb"),
        ("AllReduce", "ProfilerStep#{}", "sm90_gemm", "_micro_pipeline_tp"),
        ("AllGather", "ProfilerStep#{}", "sm90_gemm", "Start communication earlier"),
        ("SendRecv", "ProfilerStep#{}", "sm90_gemm", "ScheduleInterleaved1F1B"),
        ("AllReduce", "execute_context_0(0)_generation_3(3)", "sm90_gemm", "fuse_allreduce_rms"),
    ],
)
def test_the_remedy_of_communication_is_that_of_its_kind(
    kind: str, range_: str, product: str, said: str
) -> None:
    """A product and a collective take turns on one stream."""
    works, marks = [], []
    for step in range(4):
        at = 3_000_000 * (step + 1)
        marks.append((range_.format(step), 10_000 * step, 9_000))
        works.append((product, 10_000 * step + 100, at, 2_000_000))
        name = f"ncclDevKernel_{kind}_Sum_bf16_RING_LL"
        works.append((name, 10_000 * step + 900, at + 2_000_000, 1_000_000))
    analysis = tf.analyze(trace_of(**launched(*works), marks=step_marks(*marks)))
    assert said in of_rule(analysis.findings, "exposed-communication").remedy


def test_tensors_split_over_ranks_are_told_of_their_own_remedy() -> None:
    analysis = analysis_of(config_of({"tensor_ranks": 2, "batch": 16}))
    found = of_rule(analysis.findings, "exposed-communication")
    assert found.rows[0].name == "all-reduce of tp"
    assert "_micro_pipeline_tp" in found.remedy


def test_the_bubble_of_a_pipeline_is_not_communication() -> None:
    found = rules(analysis_of(config_of(STAGES)))
    assert "pipeline-bubble" in found
    assert "exposed-communication" not in found


def test_a_rank_alone_says_that_its_collectives_may_be_waiting() -> None:
    path = shared_file("traces/pytorch/mi300x_resnet18_ddp_train.json.gz")
    found = of_rule(tf.analyze(tf.read(path)).findings, "exposed-communication")
    assert "would take 0.5 % of the time; the rest may be waiting for other ranks" in found.sentence
    assert found.remedy.startswith("Record all ranks")


def gathering(
    *times_us: int, mark: str = "layer", work_us: int = 1_000, ops: Sequence[dict[str, Any]] = ()
) -> Finding:
    """Return what is found of all-gathers of 64 MiB on one rank of two, work beside."""
    works, free = [], 50_000
    for at, spent in enumerate(times_us):
        works.append(("ncclDevKernel_AllGather_RING_LL", 1_000 * at, free, 1_000 * spent))
        free += 1_000 * spent
    rows = launched(*works, ("sm90_gemm_bf16", 90_000, free, 1_000 * work_us))
    sizes = {"collective_in_elements": 2**23, "collective_out_elements": 2**24}
    for row in rows["activities"][:-1]:
        row |= {"collective": "_allgather_base", "collective_dtype": "Float", **sizes}
        row |= {"collective_group": "0", "collective_group_size": 2}
    marks = [{"name": mark, "start_ns": 0, "dur_ns": 95_000}]
    found = tf.analyze(trace_of(**rows, marks=marks, ops=ops)).findings
    return of_rule(found, "exposed-communication")


def test_collectives_that_all_take_as_long_are_limited_by_the_link() -> None:
    """64 MiB, half of them over the link, in 10 ms are 3.36 GB/s; half the bytes take half as long.

    There is only 1 ms to hide it under, which bounds another remedy.
    """
    found = gathering(10_000, 10_100, 10_200, 14_000)
    assert found.gain is not None
    assert found.gain.high_ns == pytest.approx((10.0 + 10.1 + 10.2 + 14.0) / 2 * 1e6, rel=0.01)
    assert "The fastest all-gather of 64 MiB moves 3.36 GB/s over the link" in found.sentence
    assert found.remedy.startswith("Send fewer bytes")
    assert found.title == "Communication takes most of the time"


@pytest.mark.parametrize(("work_us", "is_told"), [(300, False), (8_000, True)])
def test_communication_is_started_earlier_only_beside_other_work(
    work_us: int, *, is_told: bool
) -> None:
    found = gathering(10_000, 21_000, work_us=work_us)
    assert ("Start communication earlier" in found.remedy) == is_told


@pytest.mark.parametrize(
    ("work_us", "title"),
    [
        (3_000, "Communication takes most of the time"),
        (30_000, "Communication is not hidden"),
    ],
)
@pytest.mark.parametrize("late_us", [0, 20_000])
def test_with_little_to_hide_it_under_fewer_bytes_are_the_lever(
    late_us: int, work_us: int, title: str
) -> None:
    """On each of two ranks 1 GiB is gathered in 60 ms, half of it over the link, after 2 MiB.

    The first rank may also wait for the other one, which is late.
    """
    gather: dict[str, Any] = {
        "name": "ncclDevKernel_AllGather_RING_LL",
        "collective": "_allgather_base",
    }
    gather |= {"collective_dtype": "Float", "collective_group": "0", "collective_group_size": 2}
    rows: list[dict[str, Any]] = []
    for rank in range(2):
        of_rank = {"process": rank, "device": rank}
        rows.append({**of_rank, "name": "gemm", "start_ns": 0, "dur_ns": 1_000 * work_us})
        second_us = work_us + 5_000 + late_us * rank
        waits_us = late_us * (1 - rank)
        for at_us, dur_us, mib in ((work_us, 5_000, 2), (second_us, 60_000 + waits_us, 1_024)):
            sizes = {"collective_in_elements": mib << 17, "collective_out_elements": mib << 18}
            times = {"start_ns": 1_000 * at_us, "dur_ns": 1_000 * dur_us}
            rows.append({**of_rank, **gather, **times, **sizes})
    ranks = [{"process": rank, "rank": rank} for rank in range(2)]
    devices = [{"device": rank, "process": rank} for rank in range(2)]
    found = tf.analyze(trace_of(processes=ranks, devices=devices, activities=rows)).findings
    one = of_rule(found, "exposed-communication")
    assert one.title == title
    single = "A single all-gather takes 60.0 ms: 1.07 GB at 8.95 GB/s of bus bandwidth."
    assert (single in one.sentence) == one.remedy.startswith("Send fewer bytes")
    assert (single in one.sentence) == (work_us == 3_000)


def test_what_equal_collectives_take_beyond_the_fastest_is_waiting() -> None:
    """Of 41.1 ms, all but four times 1 ms is waiting; 1 ms of other work makes 42.1 ms."""
    found = gathering(1_000, 9_000, 1_100, 30_000)
    assert found.title.endswith("waits for other ranks")
    assert f"most likely {37.1 / 42.1:.1%}".replace("%", " %") in found.sentence
    assert found.gain is not None
    assert (found.gain.low_ns, found.gain.high_ns) == (0, 37_100_000)
    assert found.remedy.startswith("Record all ranks to see for whom it waits, then balance")


def test_a_long_first_collective_of_one_step_is_no_loss_to_mend() -> None:
    found = gathering(30_000, 1_000, 1_100, 1_200)
    assert "The first all-gather takes 30.0 ms: the ranks reached it at" in found.sentence
    assert found.gain is None
    assert found.remedy == "Record several steps of all ranks, after a warm-up."


@pytest.mark.parametrize(("mark", "is_told"), [("FSDP::all_gather", True), ("layer", False)])
def test_only_who_shards_parameters_is_told_to_gather_them_earlier(
    mark: str, *, is_told: bool
) -> None:
    found = gathering(10_000, 10_000, mark=mark)
    assert ("forward_prefetch" in found.remedy) == is_told


def test_decode_that_reads_weights_at_the_roof() -> None:
    found = analysis_of(config_of(PASSES), "1:2").findings
    weights, batch = (of_rule(found, one) for one in ("decode-weights", "decode-batch"))
    assert weights.gain is not None
    products = sum(row.time_ns for row in weights.rows) / 2
    assert weights.gain.high_ns == pytest.approx(products / 2, rel=0.02)
    assert weights.gain.low_ns == pytest.approx(products / 4, rel=0.02)
    assert "computes 32 tokens" in batch.sentence
    assert "weight of 16 bits" in batch.sentence
    assert batch.gain is None
    assert weights.owner == batch.owner == "configuration"


def test_few_tokens_of_experts_and_of_one_request_are_told_so() -> None:
    analysis = analysis_of(config_of(PASSES), "1:2")
    kernels = tuple(
        replace(row, name="fused_moe_kernel" if row.category.sub == "gemm" else "quant_e4m3")
        for row in analysis.measured.kernels
    )
    passes = tuple(replace(one, batch=1) for one in analysis.serving.passes)
    case = replace(
        analysis,
        measured=replace(analysis.measured, kernels=kernels),
        serving=replace(analysis.serving, passes=passes),
    )
    [told] = [one for one in decode(case) if one.rule == "decode-batch"]
    assert in_words(told.claim).endswith(
        "Reading a weight takes as long as computing many tokens with it; more tokens per pass "
        "also read the weights of more experts."
    )
    assert in_words(told.advice).startswith("Send more requests at once")
    # Without passes nobody knows how many requests there were.
    unknown = replace(case, serving=replace(analysis.serving, passes=()))
    for one in decode(unknown):
        assert "single request" not in in_words(one.advice)


FP4 = "device_kernel<MainloopSm120<float_e2m1_t>, SM120_16x8x64_TN_VS<float_e2m1_t, {}>>"


@pytest.mark.parametrize(
    ("name", "peak", "bits"),
    [
        ("marlin_gemm", "bf16", 4),
        ("gemm_e4m3", "fp8", 8),
        (FP4.format("float_e2m1_t"), "fp4", 4),
        (FP4.format("bfloat16_t"), None, 4),
        ("_ZN7cutlassI12float_e2m1_t20SM120_16x8x64_TN_VSISJ_SJ_fE", "fp4", 4),
    ],
)
@pytest.mark.parametrize("has_fp4", [True, False])
def test_tokens_are_computed_at_the_peak_of_their_products(
    name: str, peak: str | None, bits: int, *, has_fp4: bool
) -> None:
    """At 1,000 bytes per ns, as many tokens take as long as reading as peak x bits / 16,000."""
    analysis = analysis_of(config_of(PASSES), "1:2")
    rates = {"bf16": 2_000_000, "fp8": 4_000_000, **({"fp4": 8_000_000} if has_fp4 else {})}
    kernels = tuple(
        replace(row, name=name) for row in analysis.measured.kernels if row.category.sub == "gemm"
    )
    device = SimpleNamespace(rates=rates, bandwidth=1_000)
    measured = SimpleNamespace(
        kernels=kernels, devices=[device], inference=analysis.measured.inference
    )
    case = replace(analysis, measured=measured)
    [told] = [one for one in decode(case) if one.rule == "decode-batch"]
    tokens = rates[peak] * bits // 16_000 if peak in rates else None
    many = f"{tokens:,} tokens" if tokens else "many tokens"
    assert f"as computing {many} with it" in in_words(told.claim)


def test_prefill_is_no_decode() -> None:
    found = rules(analysis_of(config_of(PASSES), "0"))
    assert not found & {"decode-weights", "decode-batch", "mixed-passes"}


def test_prompts_delay_the_tokens_of_others() -> None:
    found = analysis_of(config_of({**PASSES, "steps": 8}), "0:7")
    delayed = of_rule(found.findings, "mixed-passes")
    assert delayed.sentence.startswith("A mixed pass takes")
    assert delayed.gain is not None
    assert (delayed.gain.low_ns, delayed.gain.point_ns) == (0, None)
    mixed, plain = (
        [one.duration_ns for one in found.serving.passes if one.kind == kind]
        for kind in ("mixed", "decode")
    )
    most = (sum(mixed) - len(mixed) * median(plain)) / found.windows_used
    assert delayed.gain.high_ns == pytest.approx(most, rel=1e-3)


def engine(*passes: tuple[int, int]) -> set[str]:
    """Return the rules of passes that read and generate so many requests; reading takes 500 us."""
    works, marks, free = [], [], 50_000
    for at, (reads, generates) in enumerate(passes):
        works.append(("sm90_gemm", 1_000 * at, free, 500_000 if reads else 50_000))
        free += works[-1][-1]
        name = f"execute_context_{reads}({256 * reads})_generation_{generates}({generates})"
        marks.append((name, 1_000 * at, 900))
    return rules(tf.analyze(trace_of(**launched(*works), marks=step_marks(*marks))))


@pytest.mark.parametrize(
    ("passes", "told"),
    [
        ([(1, 0), *[(0, 1)] * 9], set()),  # one request
        ([*[(0, 1)] * 4, (1, 0), *[(0, 1)] * 5], set()),  # one after another
        ([*[(0, 1)] * 4, (1, 0), *[(0, 2)] * 5], {"mixed-passes"}),
        ([*[(0, 2)] * 4, (2, 2), *[(0, 4)] * 5], {"mixed-passes"}),
    ],
)
def test_prompts_delay_only_others_that_generate(
    passes: list[tuple[int, int]], told: set[str]
) -> None:
    """Nor is a pass that reads a prompt a slow step."""
    assert engine(*passes) & {"mixed-passes", "uneven-steps"} == told


def test_time_without_any_record_is_low_coverage() -> None:
    def found(**more: Any) -> list[str]:
        works = launched(("gemm", 0, 5_000, 400_000), ("gemm", 900_000, 905_000, 400_000))
        return [one.title for one in tf.analyze(trace_of(**works, **more)).findings]

    python = {"kind": "python", "name": "a.py(1): f", "start_ns": 1_000, "dur_ns": 898_000}
    assert "Much of the window has no record" in found()
    assert "Much of the window has no record" not in found(marks=[python])


@pytest.mark.parametrize(("steps", "said"), [(2, True), (4, False)])
def test_few_steps_are_said(steps: int, said: bool) -> None:
    analysis = analysis_of(RunConfig(**{**SMALL, "steps": steps, "layers": 4}))
    assert ("Few steps are recorded" in {one.title for one in analysis.findings}) == said


def said_of(kind: str, name: str) -> set[str]:
    """Return what is said of a GPU that does the same all the time."""
    works = launched(*((name, 1_000 * at, 1_000 * at + 5, 990) for at in range(6)))
    for row in works["activities"]:
        row |= {
            "kind": kind,
            **({"bytes": 20_000, "direction": "HtoD"} if kind == "memcpy" else {}),
        }
    return rules(tf.analyze(trace_of(**works)))


def test_copies_and_unknown_graphs_are_not_nothing() -> None:
    assert "kernels-unjudged" in said_of("kernel", "sm90_gemm")
    assert "kernels-unjudged" not in said_of("memcpy", "Memcpy HtoD (Pinned -> Device)")
    assert "kernels-unjudged" not in said_of("graph", "graph launch")  # what is inside is unknown


@pytest.mark.parametrize(("machine", "link"), [("h100", "NVLink"), ("mi300x", "XGMI")])
def test_links_are_called_what_the_vendor_calls_them(machine: str, link: str) -> None:
    config = config_of({**LARGE, "link_percent": 12, "machine": machine})
    assert (
        f"P2P, {link} or GPUDirect"
        in of_rule(analysis_of(config).findings, "slow-collectives").remedy
    )


@pytest.mark.parametrize(("ranks", "pins"), [((3,), False), ((0, 3), True)])
def test_several_ranks_that_are_late_in_what_all_do_are_not_told_to_change_that(
    ranks: tuple[int, ...], *, pins: bool
) -> None:
    slow = SlowRank(3, ranks, "", "host_code", "forward", None, 9, 1.0, 9, 0, 9, False, ())
    why, advice = late_rank_reason(slow)
    assert ("(forward)" in in_words(why)) != pins  # no name is at fault in what all ranks do
    assert ("numactl" in in_words(advice)) == pins
    assert ("the named function" in in_words(advice)) != pins


@pytest.mark.parametrize(("each_us", "is_told"), [(10, True), (60, False)])
def test_many_short_collectives_of_a_decode_pass_are_latency(each_us: int, is_told: bool) -> None:
    """Three passes of 40 layers: a kernel of 100 us, then a collective with nothing beside."""
    works, marks, free = [], [], 50_000
    for at in range(3):
        for layer in range(40):
            start = 1_000_000 * at + 2_000 * layer
            end, name = free + 100 * US, "ncclDevKernel_ReduceScatter"
            works.append(("sm90_gemm_bf16", start, free, 100 * US))
            works.append((name, start + US, end, each_us * US))
            free = end + each_us * US
        marks.append(("execute_context_0(0)_generation_1(1)", 1_000_000 * at, 99_000))
    analysis = tf.analyze(trace_of(**launched(*works), marks=step_marks(*marks)))
    found = of_rule(analysis.findings, "exposed-communication")
    said = "40 collectives per step take 10.0 µs each (median): at that length mostly latency"
    assert (said in found.sentence) == is_told
    assert ("one-shot (custom) all-reduce" in found.remedy) == is_told
    assert ("Start communication earlier" in found.remedy) != is_told


def test_an_exchange_with_neighbours_is_hidden_at_most_under_the_other_work() -> None:
    """50 rounds of 12 us and 3 us of computing and 26 us of exchange; the clocks are 1 s apart."""
    exchange = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    works: list[tuple[str, int, int, int]] = []
    at = 10**9
    for _ in range(50):
        for name, length_us in (("stencil_calc", 12), ("vector_norm", 3), (exchange, 26)):
            works.append((name, 3_000 * len(works), at, length_us * US))
            at += length_us * US
    trace = trace_of(**launched(*works))
    analysis = tf.analyze(replace(trace, source=replace(trace.source, format="nsys-sqlite")))
    found = analysis.findings[0]
    assert (found.rule, found.owner) == ("exposed-communication", "yours")
    assert "neighbours" in found.remedy
    assert found.gain is not None
    assert found.gain.high_ns == 50 * 15 * US  # not 50 * 26 us

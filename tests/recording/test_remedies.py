"""What a trace lacks is said with the options of the tool that recorded it, and no other's."""

import re
from itertools import chain, combinations
from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import trace_of
from tests.conftest import some
from traceflops import analyze
from traceflops.cli.recipe import known_recipes
from traceflops.comparison.side import side_of
from traceflops.facts import fact, in_words
from traceflops.findings.finding import Verdict
from traceflops.findings.rules import advice_of, all_rules
from traceflops.findings.verdicts import led_by
from traceflops.recording.inventory import Inventory, take_inventory
from traceflops.remedies import advice, command, family, remedy
from traceflops.reports.terminal.info import render_info
from traceflops.reports.view.findings import opening
from traceflops.reports.view.texts import all_texts
from traceflops.reports.view.wording import products
from traceflops.table.trace import Note, SourceFile, Trace

OP = {"name": "aten::mm", "start_ns": 0, "dur_ns": 9}
KERNEL = {"name": "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", "start_ns": 0}
RCCL = {"name": "ncclDevKernel_Generic_1", "start_ns": 20}


def made(format_: str, *, kinds_apart: bool = False, **tables: Any) -> Trace:
    trace = trace_of(**tables)
    source = replace(trace.source, format=format_, kinds_apart=kinds_apart)
    return replace(trace, source=source)


def lacks(trace: Trace) -> dict[str, str]:
    return {one.code: one.how.text for one in take_inventory(trace).missing}


def inventory(**tables: Any) -> Inventory:
    return take_inventory(made("rocprof", **tables))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pytorch", "pytorch"),
        ("rocprof", "rocprof"),
        ("rocprofv3-json", "rocprof"),
        ("rocpd", "rocprof"),
        ("rpd", "rocprof"),
        ("nsight", "nsight"),
        ("xplane", "xla"),
        ("made", "other"),
    ],
)
def test_formats_belong_to_tools(name: str, expected: str) -> None:
    assert family(name) == expected


def test_rocprof_is_not_told_of_arguments_of_pytorch() -> None:
    found = lacks(made("rocprof", kinds_apart=True, activities=[KERNEL]))
    told = " ".join(found.values())
    assert not [word for word in ("activities=", "record_shapes", "prof.step") if word in told]
    assert found["copies"] == "--memory-copy-trace"
    assert "--runtime-trace" in found["calls"]
    assert found["steps"].endswith("--marker-trace")
    assert "operators" not in found
    of_torch = {**KERNEL, "name": "void at::native::vectorized_elementwise_kernel<4>"}
    found = lacks(made("rocprof", kinds_apart=True, activities=[of_torch]))
    assert "--pair" in found["operators"]
    assert "stacks" not in found
    assert "memory" not in found


@pytest.mark.parametrize(
    ("counts", "is_told"),
    [
        ({}, True),  # nothing tells
        ({"KERNEL": 3, "CUDA_GRAPH_NODE_EVENTS": 0}, False),
        ({"KERNEL": 3, "GRAPH_TRACE": 1}, True),
        ({"KERNEL": 0, "CUDA_GRAPH_NODE_EVENTS": 0}, True),
    ],
)
def test_graphs_are_to_be_recorded_by_node_unless_there_are_none(
    counts: dict[str, int], *, is_told: bool
) -> None:
    trace = made("nsys", activities=[KERNEL])
    trace = replace(trace, source=replace(trace.source, event_counts=counts))
    told = remedy(trace, "calls")
    assert told is not None
    assert ("--cuda-graph-trace=node" in told) == is_told
    assert told.startswith("nsys profile --trace=cuda,nvtx,osrt")


@pytest.mark.parametrize(
    ("category", "member"),
    [
        ("xpu_scope_profiler", "XPU"),
        ("mtia_insight", "MTIA"),
        ("privateuse1_counters", "PrivateUse1"),
        ("cpu_op", "CUDA"),
    ],
)
def test_the_activity_to_record_is_that_of_the_accelerator(category: str, member: str) -> None:
    trace = made("pytorch", ops=[OP])
    trace = replace(trace, source=replace(trace.source, event_counts={category: 3}))
    for lack in ("device work", "device records", "calls"):
        told = str(remedy(trace, lack))
        assert told.startswith(f"activities=[ProfilerActivity.CPU, ProfilerActivity.{member}]"), (
            lack
        )
    first = str(remedy(trace, "first work"))
    assert ("torch.cuda" in first) == (member == "CUDA")


@pytest.mark.parametrize(
    ("categories", "told"),
    [
        (("cuda_runtime",), "GPU tracing was on: look for errors of CUPTI or roctracer"),
        (("xpu_driver",), "GPU tracing was on: look for errors of the profiler"),
        (("cuda_driver", "cuda_profiler_range"), "record without profiler_metrics"),
    ],
)
def test_where_calls_are_recorded_the_gpu_was_traced(
    categories: tuple[str, ...], told: str
) -> None:
    trace = made("pytorch", ops=[OP])
    trace = replace(trace, source=replace(trace.source, event_counts=dict.fromkeys(categories, 3)))
    assert advice(trace, "device records").startswith(told)
    assert advice(trace, "device work") == ""


@pytest.mark.parametrize(("driver", "may_be_old"), [("13000", False), ("11080", True), ("", True)])
def test_a_driver_that_is_as_new_as_the_runtime_is_not_too_old(
    driver: str, *, may_be_old: bool
) -> None:
    facts = {"cuda_runtime_version": "12010", "cuda_driver_version": driver}
    trace = made("pytorch", ops=[OP])
    source = replace(trace.source, event_counts={"cuda_runtime": 3}, facts=facts)
    told = advice(replace(trace, source=source), "device records")
    assert ("driver may be too old" in told) == may_be_old
    assert "permission" in told


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"gpus_listed": "1", "cupti_version": "130000"}, "look for errors of CUPTI in the output"),
        ({"schemaVersion": "1"}, "see whether torch.profiler.supported_activities() has CUDA"),
        ({"schemaVersion": "1", "gpus_listed": "0"}, ""),
        ({}, ""),
    ],
)
def test_why_nothing_came_of_a_gpu_that_was_used_is_told_by_the_header(
    facts: dict[str, str], told: str
) -> None:
    """`aten::cudnn_convolution` runs on a GPU only; no GPU work and no call is recorded."""
    trace = made("pytorch", ops=[OP | {"name": "aten::cudnn_convolution"}])
    trace = replace(trace, source=replace(trace.source, facts=facts))
    (lack,) = analyze(trace).measured.lacks
    assert "ProfilerActivity.CUDA" in lack.remedy
    assert told in lack.remedy
    assert ("if these were set" in lack.remedy) == bool(told)


FACTS = {
    "torch",
    "ml",
    "amd",
    "nvidia",
    "other-gpu",
    "allocator-async",
    "allocator-full",
    "allocator-uncached",
}
"""Facts of a program, and of PyTorch's allocator; others are of the case at hand."""


_MOST_FACTS = 4  # of a rule are tried together


def test_remedies_of_cuda_are_not_told_of_other_accelerators() -> None:
    of_cuda = re.compile("cuda|nccl|nvlink|gpudirect|cublas|nvidia|hip|miopen", re.IGNORECASE)
    told = {}
    for rule, row in all_rules().rules.items():
        facts_of_rule = frozenset().union(*(one.fits | one.not_if for one in row.remedies))
        # A clock of NVIDIA's tool, and an allocator set by CUDA's variable, are no other's.
        known = sorted(
            facts_of_rule
            - {"amd", "nvidia", "other-gpu", "power"}
            - {"allocator-async", "allocator-full", "allocator-uncached"}
        )
        for facts in some(chain(*(combinations(known, n) for n in range(_MOST_FACTS + 1))), 5):
            advice = advice_of(rule, frozenset({"other-gpu", *facts}))
            if advice is not None and rule != "low-clock":
                told[advice.code] = all_texts()[advice.code].replace("{platform}", "CUDA")
    assert len(told) > 20
    assert {code: text for code, text in told.items() if of_cuda.search(text)} == {}


@pytest.mark.parametrize(
    ("programs", "of_others"),
    [
        ([set(), {"nvidia"}, {"amd"}], r"torch\b|DataLoader|Distributed|zero_grad|\bitem\(\)"),
        ([{"amd"}, {"amd", "ml"}], "nvidia|nvlink|cublas|cuda_|nsight|flashattention-3"),
        ([{"nvidia"}, {"nvidia", "ml"}], "amd-|rocm|rocprof|hipblas|xgmi"),
    ],
)
def test_remedies_fit_programs_without_pytorch_and_their_gpus(
    programs: list[set[str]], of_others: str
) -> None:
    told = {}
    for rule, row in all_rules().rules.items():
        known = sorted(frozenset().union(*(one.fits | one.not_if for one in row.remedies)) - FACTS)
        for facts in some(chain(*(combinations(known, n) for n in range(_MOST_FACTS + 1))), 5):
            for program in programs:
                advice = advice_of(rule, frozenset({*program, *facts}))
                if advice is not None:
                    told[advice.code] = all_texts()[advice.code].replace("{platform}", "")
    assert {code: text for code, text in told.items() if re.search(of_others, text, re.I)} == {}


@pytest.mark.parametrize(
    ("format_", "told", "other"),
    [
        ("ncu", "nsys profile", "rocprofv3"),
        ("rocprof", "rocprofv3", "nsys"),
        ("acme-log", "in another run and combine", "("),
    ],
)
def test_counters_are_to_be_timed_by_the_tool_of_their_vendor(
    format_: str, told: str, other: str
) -> None:
    found = in_words(fact("missing.record-times", how=remedy(made(format_), "timeline")))
    assert told in found
    assert other not in found


@pytest.mark.parametrize("lack", ["device work", "steps", "stacks", "host work", "ranges"])
def test_xplane_files_of_tensorflow_are_told_of_its_own_profiler(lack: str) -> None:
    told = str(remedy(made("xplane"), lack))
    assert "jax.profiler." in told
    assert "tf.profiler.experimental." in told


def test_pytorch_is_not_told_of_options_of_rocprof() -> None:
    told = " ".join(lacks(made("pytorch", activities=[KERNEL])).values())
    assert "--" not in told
    assert "record_shapes" not in told  # there are no operators, which comes first
    assert take_inventory(made("pytorch", activities=[KERNEL])).record is None


def test_the_command_has_the_options_for_all_that_one_run_can_record() -> None:
    assert inventory(activities=[KERNEL]).record == (
        "rocprofv3 --runtime-trace --rccl-trace --output-format rocpd -d run -- COMMAND"
    )
    assert str(inventory(activities=[KERNEL]).record) in known_recipes()["rocprof"].commands


def test_what_is_there_is_not_missing() -> None:
    full = inventory(
        activities=[
            KERNEL | {"correlation": 1},
            RCCL | {"collective": "allreduce"},
            {"name": "copy", "kind": "memcpy", "start_ns": 40, "bytes": 5},
        ],
        calls=[{"start_ns": 0, "correlation": 1, "api": "hip"}],
        marks=[{"name": "step 1", "start_ns": 0, "dur_ns": 90}],
    )
    assert full.record is None
    assert {"collectives", "copies", "sizes-of-copies", "steps"}.isdisjoint(
        one.code for one in full.missing
    )


def test_copies_without_sizes_and_collectives_without_kinds() -> None:
    rows = [RCCL, {"name": "copy", "kind": "memcpy", "start_ns": 40}]
    found = lacks(made("rocprof", activities=rows))
    assert found["collectives"] == "--rccl-trace"
    assert "rocpd" in found["sizes-of-copies"]


def test_moments_of_queueing_are_no_calls() -> None:
    calls = [{"name": "dispatch", "start_ns": 0, "dur_ns": 0, "api": "hsa"}]
    assert "calls-but-moments" in lacks(made("rocprof", activities=[KERNEL], calls=calls))


@pytest.mark.parametrize(
    ("architectures", "expected"),
    [
        (["gfx942"], "--pmc FETCH_SIZE, --pmc WRITE_SIZE (each in a separate run)"),
        (["gfx1201"], "RDNA 4 (gfx12) counts no matrix work"),
        (["gfx942", "gfx1201"], "etc. for FLOPs"),
        ([None], "etc. for FLOPs"),
    ],
)
def test_counters_are_those_of_the_device(architectures: list[str], expected: str) -> None:
    devices = [
        {"device": at, "local_id": at, "architecture": name}
        for at, name in enumerate(architectures)
    ]
    found = lacks(made("rocprof", activities=[KERNEL], devices=devices))
    assert expected in found["kernel-counters"]


def test_sums_alone_lack_a_timeline() -> None:
    found = lacks(made("rocprof", devices=[], totals=[{"name": "Cijk_x", "total_ns": 5}]))
    assert "timeline" in found
    assert "device-work" not in found


@pytest.mark.parametrize(
    ("format_", "word"),
    [("pytorch", "prof.step()"), ("rocprof", "roctxRangePush"), ("nsight", "nvtxRangePush")],
)
def test_the_note_on_steps_is_in_the_words_of_the_tool(format_: str, word: str) -> None:
    notes = analyze(made(format_, activities=[KERNEL])).notes
    (note,) = [note for note in notes if note.code == "no-steps"]
    assert word in note.text


def test_every_tool_has_a_cell_or_none() -> None:
    of_torch, nsight = made("pytorch"), made("nsight")
    assert remedy(of_torch, "copies") is None
    assert command(of_torch) is None
    assert str(command(nsight)) in known_recipes()["nsys"].commands


def test_of_the_format_of_a_plug_in_only_what_is_missing_is_said() -> None:
    found = lacks(made("acme-log", activities=[KERNEL]))
    assert found.pop("device") == "name the device with --device"
    assert "steps" in found
    assert set(found.values()) == {""}
    assert "activities=" not in str(analyze(made("acme-log", ops=[OP])).verdict)
    (note,) = [
        one for one in analyze(made("acme-log", activities=[KERNEL])).notes if "steps" in one.code
    ]
    assert note.text.endswith("one window.")
    lines = render_info(take_inventory(made("acme-log", activities=[KERNEL])))
    assert sum("to record it" in line for line in lines) == 1


def test_what_tf_record_recorded_is_told_no_arguments_of_torch_profiler() -> None:
    trace = made("pytorch", ops=[OP])
    trace = replace(trace, source=replace(trace.source, facts={"recorder": "tf.record"}))
    found = lacks(trace)
    assert found["device-work"] == ""
    assert "tf.record" in found["shapes"]
    analysis = analyze(trace)
    said = [one.remedy for one in analysis.findings]
    said += [one.remedy for one in analysis.measured.lacks]
    assert not [one for one in said if "activities=" in one or "with_stack" in one]


@pytest.mark.parametrize("code", ["input-cut", "text-cut", "tail-cut", "log-cut"])
@pytest.mark.parametrize(
    ("format_", "tables"),
    [("pytorch", {"ops": [OP]}), ("rocprof", {"activities": [KERNEL]}), ("nsight", {})],
)
def test_a_file_that_is_cut_is_to_be_copied_again(
    code: str, format_: str, tables: dict[str, Any]
) -> None:
    whole = made(format_, **tables)
    cut = replace(whole, notes=(*whole.notes, Note("dropped", code, "It ends early.")))
    analysis = analyze(cut)
    assert analysis.verdict.sentence.startswith("The file is cut off: copy it again.")
    first = replace(whole.source.files[0], name="a")
    files = replace(cut.source, files=(first, replace(first, name="b")))
    of_two = replace(cut, source=files, notes=(Note("dropped", code, "It ends early.", file="b"),))
    assert analyze(of_two).verdict.sentence.startswith("A file, b, is cut off: copy it again.")
    of_both = replace(of_two, notes=(*of_two.notes, replace(of_two.notes[0], file="a")))
    assert analyze(of_both).verdict.sentence.startswith("2 files are cut off: copy them again.")
    assert "cut off" in opening(analysis).title
    assert "cut off" not in analyze(whole).verdict.sentence
    may_be_lost = {"device-work", "device-records", "calls", "steps"}
    told = {how for what, how in lacks(cut).items() if what in may_be_lost}
    assert all(how.startswith("copy the file again") for how in told)
    assert take_inventory(cut).record is None
    assert not [one for one in analysis.measured.lacks if "activities=" in one.remedy]


@pytest.mark.parametrize(("names", "told"), [("ab", "copy the file"), ("a", "profile_memory")])
def test_what_a_whole_file_lacks_is_no_matter_of_copying(names: str, told: str) -> None:
    whole = made("pytorch", ops=[OP])
    files = tuple(SourceFile(name, None, None) for name in "ab")
    cut = tuple(Note("dropped", "input-cut", f"{name} ends early.", 1, name) for name in names)
    trace = replace(whole, source=replace(whole.source, files=files), notes=cut)
    assert lacks(trace)["memory"].startswith(told)


def test_a_program_of_xla_has_no_trace_of_pytorch() -> None:
    (lack,) = analyze(made("xplane", activities=[{**KERNEL, "dur_ns": 9}])).measured.lacks
    assert "XLA" in lack.problem
    assert "--model" in lack.remedy and "PyTorch" not in lack.remedy


def test_the_figure_comes_before_the_cut() -> None:
    figure, idle, cut = fact("verdict.figure", text="MFU 40 %"), fact("x"), fact("verdict.cut")
    found = led_by(Verdict((figure, idle), "sync"), cut)
    assert found == Verdict((figure, cut, idle), "cut-file")


def test_who_names_the_device_is_not_told_that_it_is_unknown() -> None:
    trace = made("nsight", activities=[KERNEL])
    trace = replace(trace, notes=(Note("missing", "gpu-unknown", "The GPU is not named."),))
    assert "gpu-unknown" in {note.code for note in analyze(trace).notes}
    assert "gpu-unknown" not in {note.code for note in analyze(trace, device="h100-sxm").notes}


def test_one_gpu_has_one_name_in_info_report_and_compare() -> None:
    """An MI300X by its properties: 304 compute units, 192 GB, wavefronts of 64."""
    properties = {"sm_count": 304, "memory_bytes": 206_141_652_992, "warp_size": 64}
    device = {"device": 0, "local_id": 0, "compute_major": 9, "compute_minor": 4, **properties}
    nameless = made("pytorch", activities=[KERNEL | {"dur_ns": 9}], devices=[device])
    named = made(
        "pytorch",
        activities=[KERNEL | {"dur_ns": 9}],
        devices=[device | {"product": "AMD Instinct MI300X"}],
    )
    found = take_inventory(nameless)
    assert found.devices[0].name == "Instinct MI300X (by its properties)"
    assert "device" not in {one.code for one in found.missing}
    assert found.devices[0].name in products(analyze(nameless))
    sides = [side_of(analyze(one)).facts["GPUs"] for one in (nameless, named)]
    assert sides == ["1 x Instinct MI300X"] * 2


def test_a_very_long_name_of_a_gpu_is_cut_in_info() -> None:
    device = {"device": 0, "local_id": 0, "product": "G" * 4_000}
    lines = render_info(take_inventory(made("pytorch", activities=[KERNEL], devices=[device])))
    (line,) = (line for line in lines if line.startswith("device"))
    assert "G…G" in line and len(line) < 150

"""Launch calls without a device record: all of them, some of them, or those of a capture."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.conftest import SAMPLES, shared_file
from traceflops import Analysis, Selection, analyze
from traceflops.analysis.preparation import prepare
from traceflops.recording.inventory import take_inventory
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.html import render_html
from traceflops.reports.page.overview import document_title
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.culprits import pace_sentence
from traceflops.table.trace import Note, Trace
from traceflops.windows.device_records import CallRecords, LaunchRecords, launch_calls, timed_work

OPS = [{"name": "aten::mm", "start_ns": 0, "dur_ns": 100}]


def trace(*calls: str, format_: str = "pytorch", **tables: Any) -> Trace:
    rows = [{"name": name, "start_ns": 10 + at} for at, name in enumerate(calls)]
    made = trace_of(**{"devices": [], "calls": rows, **tables})
    return replace(made, source=replace(made.source, format=format_))


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchKernel",
        "cudaLaunchKernelExC_v11060",
        "cudaLaunchCooperativeKernel",
        "cudaGraphLaunch",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cuGraphLaunch_ptsz",
        "hipLaunchKernel",
        "hipExtLaunchKernel",
        "hipModuleLaunchKernel",
        "hipExtModuleLaunchKernel",
        "hipGraphLaunch",
        "zeCommandListAppendLaunchKernel",
        "urEnqueueKernelLaunch",
    ],
)
def test_calls_that_launch_gpu_work_are_known_by_name(name: str) -> None:
    assert launch_calls(trace(name, name)) == 2


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchHostFunc",
        "cuLaunchHostFunc",
        "hipLaunchHostFunc",
        "cudaMalloc",
        "cudaGetDevice",
        "cudaDeviceSynchronize",
        "hsa_queue_create",
        "ncclGroupEnd",
    ],
)
def test_other_calls_launch_none(name: str) -> None:
    assert launch_calls(trace(name)) == 0


@pytest.mark.parametrize(
    ("format_", "how"),
    [
        ("pytorch", "ProfilerActivity.CUDA"),
        ("rocprofv3-csv", "rocprofv3 --runtime-trace"),
        ("nsys-sqlite", "update the driver and nsys"),
    ],
)
def test_operators_and_launch_calls_without_device_records_are_no_cpu_run(
    format_: str, how: str
) -> None:
    made = trace("cudaLaunchKernel", "cudaLaunchKernel", format_=format_, ops=OPS)
    analysis = analyze(made)
    sentence = analysis.verdict.sentence
    assert sentence.startswith("GPU records are missing: the trace has 2 launch calls but ")
    assert how in sentence
    assert "CPU" not in sentence.split(how)[0].replace("ProfilerActivity.CPU", "")
    assert analysis.verdict.loss is None
    assert "CPU" not in document_title(analysis)
    (missing,) = [lack for lack in take_inventory(made).missing if lack.code == "device-records"]
    assert how in missing.how.text


@pytest.mark.parametrize("kernels", [0, 1])
def test_a_kernel_that_never_ended_is_not_said_to_be_none(kernels: int) -> None:
    """Copies run to the end of the recording; the last launch has no record."""
    rows = launched(
        ("Memcpy HtoD (Pageable -> Device)", 0, 10, 1_000),
        *[("saxpy", 1_000 + 9_000 * at, 2_000 + 9_000 * at, 500) for at in range(kernels)],
        ("Memcpy HtoD (Pageable -> Device)", 90_000, 90_010, 10_000),
    )
    for call in rows["calls"]:
        call["name"] = "cudaLaunchKernel" if call["start_ns"] % 90_000 else "cudaMemcpyAsync"
    for one in rows["activities"]:
        one.update({"kind": "memcpy", "direction": "HtoD"} if "Memcpy" in one["name"] else {})
    last = {"name": "cudaLaunchKernel", "start_ns": 95_000, "dur_ns": 10, "correlation": 999}
    rows["calls"].append(last)
    analysis = analyze(trace_of(**rows))
    is_said = "No kernel of 1 launch was recorded" in analysis.verdict.sentence
    assert is_said == (not kernels)
    (lack,) = analysis.measured.lacks
    assert ("before the program ends" in lack.remedy) == is_said
    assert "only copied" not in render_markdown(analysis)


def without_operators(analysis: Analysis) -> str:
    assert not analysis.devices
    return analysis.verdict.sentence


def test_calls_alone_are_said_to_lack_device_records_too() -> None:
    sentence = without_operators(analyze(trace("hipGraphLaunch", format_="rocpd")))
    assert sentence.startswith("GPU records are missing: the trace has 1 launch call but ")


def test_a_summary_of_calls_lacks_no_records_but_the_other_summary() -> None:
    totals = [{"kind": "call", "name": "cudaLaunchKernel", "count": 1_862, "total_ns": 9}]
    sentence = without_operators(analyze(trace(totals=totals, format_="nsys-stats")))
    assert "a summary of API calls alone" in sentence
    assert sentence.endswith("cudaLaunchKernel takes 100.0 % of the time of calls.")
    once = [{"kind": "call", "name": "hipStreamCreate", "count": 1, "total_ns": 198_000_000}]
    sentence = without_operators(analyze(trace(totals=once, format_="nsys-stats")))
    assert sentence.endswith("in a single call of 198 ms.")
    untimed = [{"kind": "call", "name": "hipStreamCreate", "count": 1}]
    sentence = without_operators(analyze(trace(totals=untimed, format_="nsys-stats")))
    assert sentence.endswith("together with the summary of kernels.")


@pytest.mark.parametrize(
    ("names", "said", "lacks"),
    [
        ((), "This trace has no GPU operations, only CPU operators", True),
        (("cudaGetDeviceCount", "cudaDeviceSynchronize"), "The model ran on the CPU: ", False),
        (("hipMalloc", "hipGetDevicePropertiesR0600"), "The model ran on the CPU: ", False),
        (("hsa_signal_create",), "This trace has no GPU operations, only CPU operators", True),
    ],
)
def test_a_run_without_calls_that_start_work_is_a_cpu_run(
    names: tuple[str, ...], said: str, *, lacks: bool
) -> None:
    made = trace(*names, ops=OPS)
    analysis = analyze(made)
    assert said in analysis.verdict.sentence
    assert ("device-work" in [lack.code for lack in take_inventory(made).missing]) == lacks
    remedy = "to use a GPU, move model and inputs there"
    assert [one.remedy == remedy for one in analysis.measured.lacks] == [not lacks]


def test_a_copy_that_has_no_record_is_work_of_the_gpu() -> None:
    made = trace("cudaGetDevice", "cudaMemcpy", ops=OPS)
    assert "ran on the CPU" not in analyze(made).verdict.sentence


def test_launch_calls_with_device_records_are_as_before() -> None:
    run = launched(("a", 0, 100, 50))
    run["calls"][0]["name"] = "cudaLaunchKernel"
    made = trace_of(**run, ops=OPS)
    assert "missing" not in analyze(made).verdict.sentence
    assert "device-records" not in [lack.code for lack in take_inventory(made).missing]


SAMPLE = SAMPLES / "gpt_1rank.json.gz"
KERNELS = ("cudaLaunchKernel",)
ALL = (*KERNELS, "cudaMemcpyAsync", "cudaMemsetAsync")
THINNED = [
    (slice(0, 3), KERNELS, 714),
    (slice(-3, None), ALL, 750),
    (slice(None, None, 2), ALL, 750),
    (slice(0, 383), ALL, 750),
]
"""The first records (no copy), the last, every second, the first half; calls that count."""


def thinned(path: Path, kept: slice) -> Trace:
    """Return a trace of which only these device records are left."""
    whole = tf.read(path)
    rows = range(whole.activities.num_rows)[kept]
    return replace(whole, tables={**whole.tables, "activities": whole.activities.take(list(rows))})


def without_record(whole: Trace, counted: Sequence[str] = ALL) -> int:
    recorded = set(whole.activities["correlation"].to_pylist())
    pairs = zip(*(whole.calls[one].to_pylist() for one in ("name", "correlation")), strict=True)
    return sum(name in counted and id_ not in recorded for name, id_ in pairs)


@pytest.mark.parametrize(("kept", "counted", "every"), THINNED)
def test_a_trace_that_lost_device_records_is_not_judged(
    kept: slice, counted: Sequence[str], every: int
) -> None:
    made = thinned(SAMPLE, kept)
    analysis = analyze(made)
    lost = without_record(made, counted)
    share = f"no device record for {lost:,} of {every} launch calls"
    assert analysis.verdict.sentence.startswith(f"GPU records are incomplete: {share}")
    assert (analysis.verdict.loss, analysis.verdict.share, analysis.losses) == (None, None, ())
    assert analysis.measured.figure is None
    (note,) = [one for one in analysis.notes if one.code == "device-records-missing"]
    assert note.text == f"N{share[1:]}; their work is missing from the figures."
    (lack,) = analysis.measured.lacks
    assert (
        "wait for the GPU before recording ends" in lack.remedy
    )  # too few records to fill a buffer
    assert note.count == lost
    causes = analysis.total.idle_causes
    assert causes.unknown_ns == analysis.components.idle_ns
    assert analysis.host_bound is None or analysis.host_bound.verdict is None
    assert pace_sentence(analysis) == ""
    assert "| idle or not recorded |" in render_markdown(analysis)
    assert "no loss reaches" not in render_html(analysis) + render_markdown(analysis)
    assert document_title(analysis).startswith("Incomplete device records")


def test_the_selected_steps_are_judged_by_themselves() -> None:
    made = thinned(SAMPLE, slice(0, 383))
    numbers = [window.step for window in analyze(made).devices[0].steps]
    early = analyze(made, Selection(steps=(numbers[0], numbers[0])))
    assert early.verdict.loss is not None
    assert "device-records-missing" not in [note.code for note in early.notes]


def test_few_lost_records_are_but_a_note() -> None:
    whole = tf.read(SAMPLE)
    kept = [row for row in range(whole.activities.num_rows) if row % 40]
    few = replace(whole, tables={**whole.tables, "activities": whole.activities.take(kept)})
    analysis = analyze(few)
    assert analysis.verdict.loss == analyze(whole).verdict.loss
    (note,) = [one for one in analysis.notes if one.code == "device-records-missing"]
    assert note.count == without_record(few)
    assert "| idle |" in render_markdown(analysis)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([("runtime", 1), ("driver", 1)], 1),
        ([("runtime", 1), ("driver", 2)], 2),
        ([("runtime", 1), ("runtime", 1)], 2),
        ([("runtime", None), ("driver", None)], 2),
        ([("driver", 1)], 1),
    ],
)
def test_the_drivers_half_of_a_launch_is_no_launch_of_its_own(
    pairs: list[tuple[str, int | None]], expected: int
) -> None:
    names = {"runtime": "urEnqueueKernelLaunchWithArgsExp", "driver": "zeCommandListAppendLaunch"}
    rows = [
        {"name": f"{names[api]}Kernel", "start_ns": at, "api": api, "correlation": correlation}
        for at, (api, correlation) in enumerate(pairs)
    ]
    made = trace_of(devices=[], calls=rows, ops=OPS)
    assert launch_calls(made) == expected
    assert records(made).lost == expected


def records(made: Trace) -> LaunchRecords:
    return prepare(made).launch_records


def calls(*names: str, at: int = 0, first: int = 0) -> list[dict[str, Any]]:
    """Return a call each 10 ns, with a correlation of its own."""
    return [
        {"name": name, "start_ns": at + 10 * place, "correlation": first + place}
        for place, name in enumerate(names)
    ]


def kernels(*correlations: int | None, at: int = 1_000, **more: Any) -> list[dict[str, Any]]:
    return [
        {"name": "k", "start_ns": at + 100 * place, "correlation": one, **more}
        for place, one in enumerate(correlations)
    ]


LAUNCH = ["cudaLaunchKernel"] * 10
FAILED = [
    {**call, "error_code": 700}
    for call in calls("cudaMemcpyAsync", "cudaLaunchKernel", at=50, first=5)
]
LATE = {"name": "cudaFree", "start_ns": 5_000_000, "correlation": 99}
"""A call long after all work."""


@pytest.mark.parametrize(
    ("api", "work", "lost"),
    [
        pytest.param([*calls(*LAUNCH), LATE], kernels(*range(0, 10, 2)), 5, id="every second"),
        pytest.param([*calls(*LAUNCH), LATE], kernels(0, 1, 2), 7, id="the rest"),
        pytest.param(calls(*LAUNCH), kernels(0, 1, 2), 0, id="stopped while the GPU was busy"),
        pytest.param(calls(*LAUNCH), kernels(2, 0, 9), 7, id="stopped, and lost some before"),
        pytest.param([*calls(*LAUNCH), LATE], kernels(None, None), 0, id="no links"),
        pytest.param(
            [*calls(*LAUNCH), LATE], kernels(0, 1, *[None] * 8), 0, id="as many without a link"
        ),
        pytest.param(
            [*calls(*LAUNCH), LATE], kernels(0, 1, *[None] * 7), 8, id="fewer without a link"
        ),
        pytest.param([*calls(*LAUNCH), LATE], kernels(70, 71), 10, id="only earlier work is left"),
        pytest.param(
            [*calls("cudaMemcpyAsync", "cudaLaunchKernel"), LATE], kernels(1), 0, id="no copies"
        ),
        pytest.param(
            [*calls("cudaMemcpyAsync", "cudaLaunchKernel"), LATE],
            kernels(0, kind="memcpy"),
            1,
            id="only copies",
        ),
        pytest.param(
            [*calls("cudaMemcpyAsync", "cudaMemsetAsync", "cudaMemcpy"), LATE],
            kernels(0, kind="memcpy"),
            0,
            id="fills prove nothing, copies that block are not asked",
        ),
        pytest.param(
            [*calls("cudaMemcpyAsync"), *FAILED, LATE], kernels(0, kind="memcpy"), 0, id="failed"
        ),
        pytest.param(
            [*calls("cudaGraphLaunch"), LATE], kernels(0, 0, 0, 0), 0, id="many kernels of a graph"
        ),
        pytest.param(
            [*calls(*LAUNCH), *calls(*LAUNCH, at=5)], kernels(*range(10)), 0, id="nested calls"
        ),
    ],
)
def test_calls_whose_work_must_be_there_are_counted(
    api: Sequence[dict[str, Any]], work: Sequence[dict[str, Any]], lost: int
) -> None:
    assert records(trace_of(calls=api, activities=work)).lost == lost


@pytest.mark.parametrize(
    ("lost", "state", "words"),
    [
        ({"fill": 9}, "complete", ""),
        ({"kernel": 3, "fill": 9}, "few missing", ""),
        ({"kernel": 5}, "incomplete", "5 of 140 launch calls"),
        ({"graph": 1}, "few missing", ""),
        ({"copy": 6}, "few missing", ""),
        ({"copy": 8}, "incomplete", "8 of 20 copies"),
    ],
    ids=str,
)
def test_what_a_missing_record_changes_depends_on_its_kind(
    lost: dict[str, int], state: str, words: str
) -> None:
    """100 kernels, 10 graphs, 20 copies, 10 fills: those behind the first have no record."""
    counts = {"kernel": 100, "graph": 10, "copy": 20, "fill": 10}
    names = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")
    api: list[dict[str, Any]] = []
    work: list[dict[str, Any]] = []
    for name, (kind, count) in zip(names, counts.items(), strict=True):
        mine = calls(*[name] * count, first=len(api), at=10 * len(api))
        recorded = [one["correlation"] for one in mine[:1] + mine[1 + lost.get(kind, 0) :]]
        on = {"copy": "memcpy", "fill": "memset"}.get(kind, kind)
        api += mine
        work += kernels(*recorded, at=10_000 * (1 + len(api)), kind=on)
    analysis = analyze(trace_of(calls=[*api, LATE], activities=work))
    assert analysis.recorded == state
    noted = [one.count for one in analysis.notes if one.code == "device-records-missing"]
    assert noted == ([] if state == "complete" else [sum(lost.values())])
    sentence = analysis.verdict.sentence
    assert sentence.startswith("GPU records are incomplete") == bool(words)
    assert words in sentence
    assert analysis.total.knows_idle == (state != "incomplete")


@pytest.mark.parametrize(("late", "at", "lost"), [(2, 4_000, 0), (3, 4_000, 3)])
def test_a_few_launches_behind_all_work_are_not_awaited(late: int, at: int, lost: int) -> None:
    """The work of 20 launches ends at 2,900 ns; a tenth of them or more follow without a record."""
    api = [*calls(*LAUNCH, *LAUNCH), *calls(*LAUNCH[:late], at=at, first=20), LATE]
    found = records(trace_of(calls=api, activities=kernels(*range(20))))
    assert (found.lost, found.queued) == (lost, late - lost)
    assert found.is_judged == (not lost)


@pytest.mark.parametrize(
    ("late", "at", "missing", "lost"),
    [(19, 2_000, [], 0), (20, 2_000, [], 20), (19, 2_800, [], 19), (19, 2_000, [7], 20)],
)
def test_what_was_launched_while_the_gpu_lagged_is_not_lost(
    late: int, at: int, missing: list[int], lost: int
) -> None:
    """The program ran on for long after work that ends at 2,900 ns, the last with a record.

    What follows was launched before that, so it ran later: not so if it is most, if one call came
    when the GPU was idle, or if one before lost its record, too.
    """
    api = [
        *calls(*["cudaLaunchKernel"] * 20),
        *calls(*["cudaLaunchKernel"] * late, at=at, first=20),
    ]
    work = [one for one in kernels(*range(20)) if one["correlation"] not in missing]
    found = records(trace_of(calls=[*api, LATE], activities=work))
    assert (found.lost, found.queued) == (lost, late + len(missing) - lost)


@pytest.mark.parametrize(("recorded", "queued", "share"), [(3, 7, 1.0), (8, 2, 0.2), (10, 0, None)])
def test_launches_whose_work_came_after_the_recording_are_counted(
    recorded: int, queued: int, share: float | None
) -> None:
    """The GPU works until the last call: the work of later launches is not lost, but not there."""
    made = trace_of(calls=calls(*LAUNCH), activities=kernels(*range(recorded)))
    assert (records(made).lost, records(made).queued) == (0, queued)
    told = [note for note in analyze(made).notes if note.code == "launches-queued"]
    assert [note.share for note in told] == ([] if share is None else [share])
    assert all(f"the work of {queued} of 10 launch calls is not in it" in n.text for n in told)


@pytest.mark.parametrize(
    ("lost", "launches", "counted"),
    [
        pytest.param([0, 1, 2], 10, 0, id="before the first with a record"),
        pytest.param([0, 1, 5], 10, 3, id="one later"),
        pytest.param(range(5), 10, 5, id="as many as there are records"),
        pytest.param(range(4_000), 10_000, 4_000, id="as many as fill a buffer"),
    ],
)
def test_launches_while_the_profiler_started_are_before_the_window(
    lost: Sequence[int], launches: int, counted: int
) -> None:
    api = calls(*["cudaLaunchKernel"] * launches)
    work = kernels(*(one for one in range(launches) if one not in lost), at=100)
    analysis = analyze(trace_of(calls=[*api, LATE], activities=work))
    told = {note.code: note.count for note in analysis.notes}
    assert told.get("device-records-missing", 0) == counted
    assert told.get("launches-early", 0) == (0 if counted else len(lost))
    assert analysis.total.knows_idle == (not counted)


def test_a_launch_in_a_marked_step_is_lost_there() -> None:
    """The first step begins at its mark, before its first launch, whose work has no record."""
    works = [("k", at, at + 10, 10) for at in range(1_000_000, 5_000_000, 1_000_000)]
    rows = launched(*works)
    for call in rows["calls"]:
        call["name"] = "cudaLaunchKernel"
    marks = step_marks(("ProfilerStep#1", 0, 2_500_000), ("ProfilerStep#2", 2_500_000, 2_500_000))
    made = trace_of(calls=rows["calls"], activities=rows["activities"][1:], marks=marks)
    assert records(made).lost == 1


def test_few_missing_records_are_weighed() -> None:
    """2 of 101 kernels of 100 ns each are missing from a window of 10 us."""
    api = calls(*["cudaLaunchKernel"] * 101)
    work = kernels(*range(50), *range(52, 101), dur_ns=100)
    analysis = analyze(trace_of(calls=[*api, LATE], activities=work))
    (note,) = [one for one in analysis.notes if one.code == "device-records-missing"]
    assert note.text.endswith("figures: 2.0 % of the time if it is like the recorded work.")


CAPTURED = ["hipStreamBeginCapture", *["hipLaunchKernel"] * 8, "hipStreamEndCapture"]


@pytest.mark.parametrize("begin", [0, 1])
def test_what_is_captured_into_a_graph_is_not_lost(begin: int) -> None:
    """Also where the recording began inside the capture, or another thread launches."""
    api = calls("hipLaunchKernel", *CAPTURED[begin:])[begin:]
    api[3]["thread"] = 2
    found = records(trace_of(calls=[*api, LATE], activities=kernels(0)))
    assert (found.lost, found.captured, found.state) == (0, 8, "capture")


def test_a_capture_is_said_to_be_one_and_how_to_use_it() -> None:
    made = trace_of(calls=[*calls("hipLaunchKernel", *CAPTURED), LATE], activities=kernels(0))
    analysis = analyze(made)
    sentence = analysis.verdict.sentence
    assert sentence.startswith("This trace is a graph capture: 8 of 9 launch calls were captured")
    assert "--pair" in sentence
    assert (analysis.verdict.loss, analysis.losses) == (None, ())
    assert "--steps" not in " ".join(lack.remedy for lack in analysis.measured.lacks)
    assert "graph-capture" in [note.code for note in analysis.notes]
    assert document_title(analysis).startswith("Graph capture")


def shown(analysis: Analysis) -> str:
    """Return what terminal, Markdown and page say, the page without its scripts."""
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]+>", " ", render_html(analysis))
    terminal = "\n".join(line.plain for line in render_terminal(analysis))
    return "\n".join((terminal, render_markdown(analysis), page.split("Whole recording")[0]))


def without_figures(analysis: Analysis) -> bool:
    found = (analysis.devices, analysis.steps.seen, analysis.kernels.num_rows)
    return found == ((), (), 0) and not re.search(r"\d %|\bidle\b|\bsteps? ", shown(analysis))


def test_a_capture_has_no_figure_of_steps_or_shares() -> None:
    made = trace_of(calls=[*calls("hipLaunchKernel", *CAPTURED), LATE], activities=kernels(0))
    assert without_figures(analyze(made))


def test_a_run_that_captures_and_replays_is_no_capture() -> None:
    api = calls(*CAPTURED, "hipGraphLaunch")
    found = records(trace_of(calls=[*api, LATE], activities=kernels(*[10] * 8)))
    assert (found.calls, found.captured, found.state) == (1, 8, "complete")


def test_other_steps_are_advised_only_where_there_are_some() -> None:
    ops = [{"name": "aten::relu", "start_ns": 0, "dur_ns": 100, "input_dims": "[[2]]"}]
    (lack,) = analyze(trace_of(**launched(("a", 0, 100, 50)), ops=ops)).measured.lacks
    assert "no operator with matrix work" in lack.problem
    assert "--steps" not in lack.remedy


@pytest.mark.parametrize(
    ("model", "calls_"), [("sglang_qwen3", "544 of 546"), ("vllm_gptoss", "421 of 431")]
)
def test_a_public_capture_is_said_to_be_one(model: str, calls_: str) -> None:
    path = shared_file(f"traces/pytorch/mi300x_{model}_decode_capture.json.gz")
    analysis = analyze(tf.read(path))
    sentence = analysis.verdict.sentence
    assert sentence.startswith(f"This trace is a graph capture: {calls_} launch calls")
    without_memory = replace(analysis, prepared=prepare(trace_of()))
    assert without_figures(without_memory)


@pytest.mark.parametrize("kept", [slice(0, 3), slice(None, None, 2), slice(0, 853)])
def test_a_public_trace_that_lost_device_records_is_not_judged(kept: slice) -> None:
    made = thinned(shared_file("traces/pytorch/h100_qwen15_infer.json.gz"), kept)
    analysis = analyze(made)
    assert analysis.verdict.sentence.startswith("GPU records are incomplete")
    assert analysis.total.idle_causes.unknown_ns == analysis.components.idle_ns


COMPLETE = {
    "nsight/nsys_h100x2_1s.sqlite": 0,  # 2,280 launches were still queued when it stopped
    "nsight/nsys_h100x2_mfu_before.sqlite": 22,
    "nsight/nsys_rtx3060_graph.sqlite": 0,
    "nsight/nsys_t4_power_iteration.sqlite": 0,
    "pytorch/a100_hta_nccl_rank0.json.gz": 0,
    "pytorch/a100_hta_simple_add.json.gz": 0,
    "pytorch/b200_vllm_gptoss_prefill.json.gz": 0,
    "pytorch/h100_qwen15_infer.json.gz": 0,
    "pytorch/mi210_gpu_only.json.gz": 0,
    "pytorch/mi300x_resnet18_ddp_train.json.gz": 0,
    "pytorch/mi300x_sglang_qwen3_decode_graph.json.gz": 0,
    "pytorch/mi300x_vllm_gptoss_decode_graph.json.gz": 0,
    "pytorch/v100_kineto_resnet50_nw4.json.gz": 0,
    "rocprof/v1_r9700_llamacpp/results.csv": 0,
}
"""Calls that start work and have no record in public traces."""


@pytest.mark.parametrize("name", COMPLETE)
def test_a_complete_public_trace_is_not_accused(name: str) -> None:
    found = records(tf.read(shared_file(f"traces/{name}")))
    assert (found.lost, found.is_judged) == (COMPLETE[name], True)


@pytest.mark.parametrize("size", [60_000, 85_000], ids=["no GPU work is left", "some is"])
def test_a_rank_that_is_cut_off_says_nothing_of_the_others(tmp_path: Path, size: int) -> None:
    whole = {file.name: file.read_bytes() for file in (SAMPLES / "gpt_ddp_4rank").iterdir()}
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content[:size] if "rank2" in name else content)
    analysis = analyze(tf.read(tmp_path))
    others = analyze(tf.read(SAMPLES / "gpt_ddp_4rank"), Selection(ranks=frozenset({0, 1, 3})))
    assert analysis.recorded == "complete"
    assert analysis.components == others.components
    assert analysis.measured.mfu == others.measured.mfu is not None
    (note,) = (one for one in analysis.notes if one.code == "processes-left-out")
    assert note.text.startswith("GPU records of 1 process (rank 2) are incomplete")


def of_lengths(*lengths: int, notes: Sequence[str] = (), count: int | None = None) -> Analysis:
    """Return the analysis of launched kernels of these durations.

    The reader gave these notes, each on so many records.
    """
    works = [("k", 1_000 * at, 1_000 * at + 10, dur) for at, dur in enumerate(lengths)]
    made = trace_of(**launched(*works))
    told = tuple(Note("repaired", code, "", count) for code in notes)
    return analyze(replace(made, notes=(*made.notes, *told)))


@pytest.mark.parametrize(
    ("unknown", "notes", "is_told"),
    [
        (20, (), True),
        (10, (), True),
        (9, (), False),  # very short ones
        (1, ("no-duration",), True),
        (1, ("negative-duration",), True),
        (0, ("no-duration",), False),  # of other records
    ],
)
def test_kernels_without_a_duration_say_nothing_of_time(
    unknown: int, notes: Sequence[str], *, is_told: bool
) -> None:
    analysis = of_lengths(*[0] * unknown, *[500] * (20 - unknown), notes=notes)
    told = f"GPU records are incomplete: {unknown} of 20 GPU operations ha"
    assert analysis.verdict.sentence.startswith(told) == is_told
    assert (analysis.recorded == "incomplete") == is_told
    assert (analysis.launches is None) == is_told


@pytest.mark.parametrize(("missing", "is_told"), [(1, False), (3, True)])
def test_fewer_missing_durations_than_zeros_are_of_other_records(
    missing: int, *, is_told: bool
) -> None:
    analysis = of_lengths(0, 0, 0, *[500] * 17, notes=("no-duration",), count=missing)
    assert (analysis.recorded == "incomplete") == is_told
    causes = [one for one in analysis.findings if one.confidence is not None]
    assert not (is_told and causes)


def test_fills_and_copies_of_a_mixed_trace_count_as_their_kind() -> None:
    """A fill of 0 ns is no reason to doubt kernels; a copy takes time."""
    made = trace_of(
        activities=[
            {"name": "k", "start_ns": 0, "dur_ns": 10},
            {"name": "fill", "kind": "memset", "start_ns": 20, "dur_ns": 0},
            {"name": "fill", "kind": "memset", "start_ns": 30, "dur_ns": 0},
            {"name": "copy", "kind": "memcpy", "start_ns": 40, "dur_ns": 0},
        ]
    )
    assert timed_work(made) == CallRecords(2, 1)

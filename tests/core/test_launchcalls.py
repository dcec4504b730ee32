"""Launch calls of a GPU without any device record: no CPU run, and the report says so."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.build import launched, trace_of
from traceflops import Analysis, analyze
from traceflops.inventory import take_inventory
from traceflops.launchcalls import launch_calls
from traceflops.reports.page.shown import document_title
from traceflops.trace import Trace

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
        ("rocprofv3-csv", "--kernel-trace"),
        ("nsys-sqlite", "nsys profile --trace=cuda"),
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
    (missing,) = [lack for lack in take_inventory(made).missing if lack.what == "device records"]
    assert how in missing.remedy


def without_operators(analysis: Analysis) -> str:
    assert not analysis.devices
    return analysis.verdict.sentence


def test_calls_alone_are_said_to_lack_device_records_too() -> None:
    sentence = without_operators(analyze(trace("hipGraphLaunch", format_="rocpd")))
    assert sentence.startswith("GPU records are missing: the trace has 1 launch call but ")


def test_launches_that_a_table_of_sums_counts_are_told_too() -> None:
    totals = [{"kind": "call", "name": "cudaLaunchKernel", "count": 1_862, "total_ns": 9}]
    sentence = without_operators(analyze(trace(totals=totals, format_="nsys-stats")))
    assert "the trace has 1,862 launch calls but " in sentence


def test_a_run_without_launch_calls_is_a_cpu_run() -> None:
    made = trace("cudaGetDeviceCount", ops=OPS)
    assert "only CPU operators" in analyze(made).verdict.sentence
    assert next(lack.what for lack in take_inventory(made).missing) == "device work"


def test_launch_calls_with_device_records_are_as_before() -> None:
    run = launched(("a", 0, 100, 50))
    run["calls"][0]["name"] = "cudaLaunchKernel"
    made = trace_of(**run, ops=OPS)
    assert "missing" not in analyze(made).verdict.sentence
    assert "device records" not in [lack.what for lack in take_inventory(made).missing]

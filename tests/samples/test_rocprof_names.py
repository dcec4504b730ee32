"""Names of kernels in the forms that rocprof has for them, and the options of a recording."""

from __future__ import annotations

import re

import pytest

from sample_traces.config import on_mi300x
from sample_traces.machines import MACHINES
from sample_traces.records import Run
from sample_traces.rocprof.agents import agents
from sample_traces.rocprof.capture import captures, instances
from sample_traces.rocprof.names import cloned, mangled, truncated
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate
from traceflops.categories.classify import load


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("plain_kernel", "plain_kernel"),
        ("add(float*, int)", "add"),
        ("void at::native::f<4, g<int>, std::array<char*, 2ul> >(int, g<int>)", "f"),
        ("void at::native::(anonymous namespace)::norm<float>(int)", "norm"),
        ("void f<a::b()::{lambda(float)#1}>(int) const", "const"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic_1"),
    ],
)
def test_truncated_names_are_bare_identifiers(name: str, short: str) -> None:
    assert truncated(name) == short


def test_only_c_names_have_a_bare_suffix() -> None:
    assert cloned("__amd_rocclr_copyBuffer") == "__amd_rocclr_copyBuffer.kd"
    assert cloned("f<int>(float*)") == "f<int>(float*) [clone .kd]"
    assert mangled("__amd_rocclr_copyBuffer") == "__amd_rocclr_copyBuffer.kd"
    assert re.fullmatch(r"_ZN2at6native1fILi\d+EEEvT_\.kd", mangled("void at::native::f<2>(int)"))


def run_of(**settings: object) -> Run:
    return simulate(on_mi300x(layers=1, steps=2, ranks=2, **settings))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_every_kernel_has_one_name_in_each_form(dtype: str) -> None:
    names = {
        a.work.name for a in run_of(dtype=dtype).ranks[0].activities if a.work.kind == "kernel"
    }
    assert len({mangled(name) for name in names}) == len({cloned(n) for n in names}) == len(names)
    assert len({truncated(name) for name in names}) < len(names)


def test_every_kernel_keeps_its_category_with_the_suffix() -> None:
    classifier = load()
    for activity in run_of().ranks[0].activities:
        work = activity.work
        if work.kind == "kernel":
            found = classifier.kernel(cloned(work.name)).category
            assert (found.top, found.sub) == (work.top, work.sub)


def test_markers_are_those_that_were_asked_for() -> None:
    run = run_of()
    steps = ["ProfilerStep#0", "ProfilerStep#1"]
    for markers, fits in (("none", 0), ("steps", 2)):
        (capture, _) = captures(run, RocprofOptions(markers=markers))  # type: ignore[arg-type]
        assert [one.name for one in capture.of("marker")] == steps[:fits]
    (capture, _) = captures(run, RocprofOptions(markers="all"))
    names = [one.name for one in capture.of("marker")]
    assert set(steps) < set(names)
    assert "Optimizer.step#AdamW.step" in names
    assert not any("train.py" in name for name in names)


def test_correlation_ids_are_unique_within_a_process() -> None:
    for capture in captures(run_of(), RocprofOptions(markers="all", collectives=True)):
        ids = [one.correlation for one in capture.ranges]
        assert len(set(ids)) == len(ids)
        assert len({one.dispatch_id for one in capture.dispatches}) == len(capture.dispatches)
        assert all(one.submitted_ns <= one.start_ns for one in capture.dispatches)


def test_a_node_has_more_gpus_than_a_run_uses() -> None:
    nodes = agents(MACHINES["mi300x"], ranks=2)
    gpus = [agent for agent in nodes if agent["type"] == 2]
    assert [agent["node_id"] for agent in nodes] == list(range(10))
    assert len(gpus) == 8
    for agent in gpus:
        assert (agent["cu_count"], agent["num_xcc"], agent["wave_front_size"]) == (304, 8, 64)
        assert (agent["name"], agent["product_name"]) == ("gfx942", "AMD Instinct MI300X")
        assert agent["max_engine_clk_fcompute"] != agent["max_engine_clk_ccompute"]
        assert agent["mem_banks"][0]["size_in_bytes"] == 206_141_652_992
    assert len({agent["location_id"] for agent in gpus}) == 8


def test_instances_add_up() -> None:
    assert sum(instances("SQ_WAVES", 1003, 8)) == 1003
    assert len(instances("SQ_WAVES", 3, 8)) == 8
    assert instances("TCC_BUBBLE_sum", 17, 8) == [17]

"""Start-up: exact times of each kind, and what only looks like it."""

import re
from typing import Any

import numpy as np
import pytest

from tests.build import launched, trace_of
from traceflops import analyze, what_if
from traceflops.analysis.preparation import prepare
from traceflops.timeline.records import COMPONENTS
from traceflops.windows.selection import Selection

US, MS = 1_000, 1_000_000


def run(
    *calls: dict[str, Any],
    gap_us: int = 10_000,
    first: str = "new",
    launch_us: int = 5,
    **tables: list[dict[str, Any]],
) -> dict[str, int]:
    """Return start-up by kind in us, of ten short kernels and one a gap later, and ten more.

    The kernel after the gap is launched by a call of `launch_us` that ends with the gap.
    """
    works = [("k", 20 * US * n, (20 * n + 6) * US, 10 * US) for n in range(10)]
    begin = works[-1][2] + works[-1][3]
    late = begin + gap_us * US
    works.append((first, late - launch_us * US, late, 10 * US))
    works += [("k", late + 20 * US * n, late + (20 * n + 6) * US, 10 * US) for n in range(1, 11)]
    made = launched(*works)
    for call in made["calls"]:
        call["dur_ns"] = 5 * US
    made["calls"][10]["dur_ns"] = launch_us * US
    placed = [{**call, "start_ns": begin + call["start_ns"]} for call in calls]
    made["calls"] += placed
    tables = {
        name: [{**row, "start_ns": begin + row["start_ns"]} for row in rows]
        for name, rows in tables.items()
    }
    trace = trace_of(**made, **tables)
    [account] = prepare(trace, Selection()).accounts.values()
    parts = account.account(*account.rows.span).components
    assert sum(parts.parts().values()) == parts.window_ns
    assert [*parts.parts()] == [*COMPONENTS]
    times = {kind: part.length_ns for kind, part in account.start_up_by_kind.items()}
    assert parts.start_up_ns == sum(times.values())
    return {kind: ns // US for kind, ns in times.items() if ns}


def call(name: str, start_us: int, end_us: int, **more: Any) -> dict[str, Any]:
    """Return a call, in us after the gap has begun."""
    return {"name": name, "start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, **more}


def test_the_first_launch_of_a_kernel_takes_what_later_ones_do_not() -> None:
    assert run(launch_us=9_000, gap_us=9_000) == {"first-launch": 8_995}


@pytest.mark.parametrize(("again", "beyond_us"), [(3, 1_995), (0, 2_000)])
def test_first_launches_do_not_tell_what_is_usual(again: int, beyond_us: int) -> None:
    """Six kernels take 2 ms to launch at first; the device works from the end of the first on."""
    works = [(f"k{n}", 3 * MS * n, 3 * MS * n + 2 * MS, 10 * US) for n in range(6)]
    works += [("k0", 20 * MS + n * MS, 20 * MS + n * MS + 5 * US, US) for n in range(again)]
    made = launched(*works)
    for row, (name, launch, *_) in zip(made["calls"], works, strict=True):
        row["dur_ns"] = 5 * US if name == "k0" and launch else 2 * MS
    [account] = prepare(trace_of(**made), Selection()).accounts.values()
    assert account.start_up_by_kind["first-launch"].length_ns == 5 * beyond_us * US


@pytest.mark.parametrize(("looked_up", "kinds"), [(40, {"first-call": 9_992}), (4, {})])
def test_an_operator_that_looks_up_many_functions_chooses_a_kernel(
    looked_up: int, kinds: dict[str, int]
) -> None:
    """It takes all of the gap, and operators that launch usually take 8 us."""
    calls = [call("cudaFuncGetAttributes", n * 200, n * 200 + 50) for n in range(looked_up)]
    begins_us = [0, *(10_000 + 20 * n - 1 for n in range(1, 11))]
    ops = [call("aten::relu", begin, begin + 8) for begin in begins_us]
    ops[0] |= {"name": "aten::convolution", "dur_ns": 10_000 * US}
    assert run(*calls, first="k", ops=ops) == kinds


def test_an_operator_that_looks_up_functions_each_time_starts_up_once() -> None:
    """Three calls of the same shapes take 3 ms each: what the first takes beyond 8 us counts."""
    begins = (0, 3_300, 6_600)
    lookups = [
        call("cudaFuncGetAttributes", at + n * 70, at + n * 70 + 50)
        for at in begins
        for n in range(40)
    ]
    launches = [
        {"name": "cudaLaunchKernel", "start_ns": (at + 2_900) * US, "dur_ns": 5 * US}
        for at in begins
    ]
    ops = [call("aten::convolution", at, at + 3_000, input_dims="[[1, 3]]") for at in begins]
    ops += [call("aten::relu", 10_020 + 20 * n - 1, 10_020 + 20 * n + 7) for n in range(10)]
    assert run(*lookups, *launches, first="k", ops=ops)["first-call"] == 2_992


def test_a_slow_launch_of_a_known_kernel_is_none() -> None:
    assert run(launch_us=9_000, gap_us=9_000, first="k") == {}


def test_a_first_launch_that_waits_for_a_place_in_the_queue_is_none() -> None:
    """While it waits, the device works, with short gaps."""
    works = [("k", 20 * US * n, (20 * n + 6) * US, 10 * US) for n in range(30)]
    made = launched(*works, ("new", 100 * US, 606 * US, 10 * US))
    for row in made["calls"]:
        row["dur_ns"] = 5 * US
    made["calls"][-1]["dur_ns"] = 400 * US
    [account] = prepare(trace_of(**made), Selection()).accounts.values()
    assert not any(part.length_ns for part in account.start_up_by_kind.values())


@pytest.mark.parametrize(
    ("name", "first", "kinds"),
    [
        ("cuModuleLoadData", "new", {"load": 3_000, "gap": 7_000}),
        ("hsa_executable_load_agent_code_object", "new", {"load": 3_000, "gap": 7_000}),
        ("cuLibraryLoadData", "k", {"load": 3_000, "gap": 7_000}),  # another variant of k
        ("cuLinkComplete", "k", {"load": 3_000, "gap": 7_000}),
        ("cudaMalloc", "new", {"first-call": 3_000, "hole": 6_995}),
        ("cudaMalloc", "k", {"first-call": 3_000, "hole": 6_995}),
        ("cudaDeviceSynchronize", "new", {}),
        ("cudaMemcpy", "new", {}),  # nothing to compare it with
    ],
)
def test_a_call_of_which_there_is_no_other(name: str, first: str, kinds: dict[str, int]) -> None:
    assert run(call(name, 0, 3_000), first=first) == kinds


def test_calls_that_take_as_long_again_are_none() -> None:
    often = [call("cudaMalloc", 1_000 * n, 1_000 * n + 900) for n in range(9)]
    assert run(*often, first="k") == {}
    often[0]["dur_ns"] = 300 * US
    assert run(*often, first="k") == {}


def test_the_first_of_many_calls_takes_longer() -> None:
    often = [call("cudaMalloc", 0, 3_000)]
    often += [call("cudaMalloc", 3_000 + 100 * n, 3_010 + 100 * n) for n in range(5)]
    assert run(*often, first="k")["first-call"] == 2_990
    assert run(*often)["first-call"] == 3_000  # before a first launch all of it is


def test_allocations_before_first_launches_are_start_up_unless_later_ones_take_as_long() -> None:
    several = [call("cuMemAlloc_v2", 1_000 * n, 1_000 * n + 300) for n in range(4)]
    assert run(*several)["first-call"] == 1_200
    assert "first-call" not in run(*several, call("cuMemAlloc_v2", 10_050, 10_350))


def test_a_gap_in_which_code_is_loaded_is_start_up_as_a_whole_whatever_the_host_waits_for() -> None:
    wait = {"name": "epoll_pwait", "kind": "system", "start_ns": 0, "dur_ns": 5_000 * US}
    load = call("cuModuleLoadDataEx", 6_000, 6_100)
    assert run(load, marks=[wait]) == {"load": 100, "gap": 9_900}
    # A function says what it does; code that is loaded once more was unloaded before.
    assert run(load, marks=[wait | {"kind": "python"}]) == {"load": 100, "gap": 4_900}
    unload = call("cuModuleUnload", 5_500, 5_501)
    assert run(unload, load, marks=[wait], first="k") == {}
    assert run(load, unload | {"start_ns": 9_000 * US}, marks=[wait], first="k")["load"] == 100


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("ncclCommInitRank", {"communicator": 8_000, "hole": 1_995}), ("ncclAllReduce", {})],
)
def test_a_communicator_is_made_once_whatever_is_called_in_it(
    name: str, kinds: dict[str, int]
) -> None:
    mark = {"name": name, "kind": "annotation", "start_ns": 0, "dur_ns": 8_000 * US}
    pinned = [call("cudaHostAlloc", 100 + 800 * n, 800 + 800 * n) for n in range(9)]
    assert run(*pinned, marks=[mark], first="k") == kinds


@pytest.mark.parametrize(("loading", "is_start_up"), [(6, True), (7, False)])
def test_gaps_that_load_code_may_be_most_but_not_nearly_all(
    loading: int, *, is_start_up: bool
) -> None:
    """Of 8 gaps, those without loading tell how long one usually is."""
    works, loads, at = [("k", 0, 6 * US, 10 * US)], [], 0
    for number in range(8):
        at += 2 * MS if number < loading else 30 * US
        works.append((f"k{number}", at, at + 6 * US, 10 * US))
        if number < loading:
            loads.append({"name": "cuModuleLoadData", "start_ns": at - MS, "dur_ns": 200 * US})
    made = launched(*works)
    for row in made["calls"]:
        row["dur_ns"] = 5 * US
    made["calls"] += loads
    [account] = prepare(trace_of(**made), Selection()).accounts.values()
    assert (account.start_up_by_kind["gap"].length_ns > 0) is is_start_up


@pytest.mark.parametrize(
    ("name", "first", "kind"),
    [
        ("FusionKernelRuntime::compileKernel", "new", "compile"),
        ("executor_utils::NVRTC", "new", "compile"),
        ("torch/utils/cpp_extension.py(1222): load", "new", "load"),
        ("FusionKernelRuntime::compileKernel", "k", None),
        ("Torch-Compiled Region: 0/0", "new", None),
    ],
)
def test_ranges_that_compile_or_load_are_named_so(name: str, first: str, kind: str | None) -> None:
    mark = {"name": name, "kind": "annotation", "start_ns": 0, "dur_ns": 8_000 * US}
    expected = {kind: 8_000, "gap": 2_000} if kind else {}
    assert run(marks=[mark], first=first) == expected


@pytest.mark.parametrize(("first", "waits_us"), [("new", 7_900), ("k", 0)])
def test_a_child_process_before_a_first_launch_is_waited_for_once(
    first: str, waits_us: int
) -> None:
    rows = (("read", 0, 3_000), ("waitpid", 3_100, 8_000), ("read", 9_100, 9_900))
    waits = [call(name, start, end, kind="system") for name, start, end in rows]
    assert run(marks=waits, first=first).get("children", 0) == waits_us


def test_a_run_that_waits_for_a_build_is_to_be_recorded_again() -> None:
    works = [("k", 0, 10_000, 10_000), ("new", 1_000 * MS, 1_000 * MS + 10_000, 10_000)]
    wait = {"name": "waitpid", "kind": "system", "start_ns": 1 * MS, "dur_ns": 990 * MS}
    works += [("new", (1_001 + n) * MS, (1_001 + n) * MS + 10_000, 500_000) for n in range(20)]
    found = analyze(trace_of(**launched(*works), marks=[wait])).findings[0]
    assert "mostly child processes" in found.sentence
    assert found.remedy.startswith("Record another run")


@pytest.mark.parametrize(
    ("took_us", "first_us"),
    [
        ((55_000, 53_000), 0),  # as long again: the price of each
        ((2_000, 34_000), 0),  # the second waits or works
        ((34_000, 2_000), 32_000),
        ((34_000, 55_000, 10, 10, 10), 33_990 + 54_990),  # it cannot wait: nothing was launched
        ((55_000, 34_000, 10, 10, 10), 54_990 + 33_990),
    ],
)
def test_of_few_calls_the_first_is_what_takes_longer_than_later_ones(
    took_us: tuple[int, ...], first_us: int
) -> None:
    begins = range(0, 60_000 * len(took_us), 60_000)
    places = [*zip(begins, took_us, strict=True)]
    calls = [call("cudaEventCreate", at, at + took) for at, took in places]
    times = run(*calls, gap_us=60_000 * len(took_us))
    assert times.get("first-call", 0) == first_us


@pytest.mark.parametrize(("next_", "start_up_us"), [("new", 32 * 20), ("k", 0)])
def test_streams_are_made_once_before_a_kernel_that_is_new(next_: str, start_up_us: int) -> None:
    """A library makes a pool of 32 streams, each within 20 us; a loop may make them each time."""
    calls = [call("cudaStreamCreateWithPriority", at, at + 20) for at in range(0, 32 * 30, 30)]
    assert run(*calls, gap_us=1_000, first=next_).get("first-call", 0) == start_up_us


def test_to_free_has_no_price_where_nothing_was_launched_to_wait_for() -> None:
    calls = [
        call("cudaFree", 60_000 * n, 60_000 * n + took) for n, took in ((0, 55_000), (1, 53_000))
    ]
    assert run(*calls, gap_us=120_000)["first-call"] == 55_000 + 53_000
    launch = call("cudaLaunchKernel", 58_000, 58_005)
    assert run(*calls, launch, gap_us=120_000)["first-call"] == 55_000


def test_a_later_call_that_takes_longer_than_the_first_may_wait_for_what_is_launched() -> None:
    launch = call("cudaLaunchKernel", 40_000, 40_005)
    calls = [
        call("cudaFree", 60_000 * n, 60_000 * n + took)
        for n, took in enumerate((34_000, 55_000, 10, 10))
    ]
    assert run(*calls, launch, gap_us=240_000)["first-call"] == 34_000


@pytest.mark.parametrize(
    ("kinds", "first_us"),
    [
        (["memset"] * 20, 5_000),
        (["kernel"] * 20, 0),
        (["memset"] + ["kernel"] * 19, 1_500),
        (["memset"] * 2 + ["kernel"] * 18, 5_000),
    ],
)
def test_what_only_copies_and_fills_is_still_being_set_up(kinds: list[str], first_us: int) -> None:
    works = launched(*(("x", 10 * MS * n, 10 * MS * n + 6 * US, 10 * US) for n in range(20)))
    for row, launch, kind in zip(works["activities"], works["calls"], kinds, strict=True):
        row["kind"] = kind
        launch["name"] = "cudaLaunchKernel" if kind == "kernel" else "cudaMemsetAsync"
    works["calls"] += [call("cudaHostAlloc", 1_000, 2_500), call("cudaHostAlloc", 11_000, 14_500)]
    [account] = prepare(trace_of(**works), Selection()).accounts.values()
    times = {k: part.length_ns // US for k, part in account.start_up_by_kind.items() if part}
    assert times.get("first-call", 0) == first_us


def test_a_silent_gap_like_those_that_come_later_is_none() -> None:
    # Sixteen rounds: ten short gaps, then 40 ms of which nothing is recorded.
    works = [
        ("k", at, at + 6 * US, 10 * US)
        for round_ms in range(0, 16 * 41, 41)
        for at in range(round_ms * MS, round_ms * MS + 200 * US, 20 * US)
    ]
    made = launched(*works)
    made["calls"].append({"name": "cudaMalloc", "start_ns": MS, "dur_ns": 5 * MS})
    [account] = prepare(trace_of(**made), Selection()).accounts.values()
    assert {k: v.length_ns for k, v in account.start_up_by_kind.items() if v} == {
        "first-call": 5 * MS
    }


def test_on_a_cpu_the_first_call_of_any_name_is_start_up_inside_its_operator() -> None:
    ops = [
        {"name": "aten::randn", "start_ns": 0, "dur_ns": 50 * MS},
        {"name": "aten::empty_strided", "start_ns": 50 * MS, "dur_ns": 252 * MS},
        {"name": "aten::pow", "start_ns": 302 * MS, "dur_ns": 36 * MS},
        {"name": "aten::mm", "start_ns": 50 * MS, "dur_ns": 252 * MS, "thread": 2},
    ]
    calls = [
        call("cudaDeviceGetStreamPriorityRange", 51_000, 300_000),
        call("cudaLaunchKernel", 303_000, 337_000),  # nothing says what it launched
        *(call("cudaLaunchKernel", 337_000 + 10 * n, 337_005 + 10 * n) for n in range(3)),
    ]
    analysis = analyze(trace_of(devices=[], ops=ops, calls=calls))
    times = {row["name"]: row["sum_ns"] // US for row in analysis.kernels.to_pylist()}
    assert times == {
        "aten::mm": 252_000,
        "aten::randn": 50_000,
        "aten::empty_strided": 3_000,
        "aten::pow": 2_005,
    }
    # Of the other thread the operator goes on, so only the launch is start-up of the process.
    assert analysis.components.start_up_ns == 33_995 * US
    assert analysis.components.idle_ns == 0


def test_what_is_recorded_is_no_hole() -> None:
    marks = [{"name": "a.py(1): f", "kind": "python", "start_ns": 4 * MS, "dur_ns": 6 * MS}]
    assert run(call("cudaMalloc", 0, 3_000), marks=marks) == {"first-call": 3_000, "hole": 1_000}


def test_a_stretch_without_a_record_is_none_where_nothing_or_little_starts_up() -> None:
    assert run() == {}
    assert run(call("cudaMalloc", 0, 2_000)) == {"first-call": 2_000}
    # The first launch takes a small part of the gap that it ends.
    assert run(launch_us=1_000) == {"first-launch": 995}


@pytest.mark.parametrize(
    ("names", "once_ms"),
    [
        ("k" * 10 + "g" * 10, 50),
        ("k" * 10 + "gg" + "k" * 8, 0),  # too few of them to compare with
        ("k" * 20, 0),  # it has run before
    ],
)
def test_without_a_record_of_the_host_the_first_of_many_is_waited_for_once(
    names: str, once_ms: int
) -> None:
    begins = [20 * US * n + (50 * MS - 10 * US) * (n >= 10) for n in range(len(names))]
    works = [
        {"name": name, "start_ns": at, "dur_ns": 10 * US}
        for name, at in zip(names, begins, strict=True)
    ]
    for marks in ([], [{"name": "a.py(1): f", "kind": "python", "start_ns": 0, "dur_ns": MS}]):
        trace = trace_of(activities=works, marks=marks)
        [account] = prepare(trace, Selection()).accounts.values()
        assert account.start_up.length_ns == (0 if marks else once_ms * MS)


@pytest.mark.parametrize(
    ("work", "once_ms"),
    [
        ("aa 10b 14c abc", 24),
        ("aa 10b c abc", 0),  # one such gap may be chance
        ("aa 10b 14c ab", 0),  # nothing tells what is usual before c
        ("aa 10b 14c abc 5a", 0),  # other gaps are nearly as long
        ("aa 10b 14c a 5b c", 0),  # also before a later b
        ("aa 10bb 14cc 12dd", 0),  # one kernel after another is timed; the host checks results
    ],
)
def test_without_a_record_of_the_host_gaps_before_first_runs_load_code(
    work: str, once_ms: int
) -> None:
    """A number is the gap in ms before a kernel of that name; the others run one after another."""
    at, works = 0, []
    for gap, name in re.findall(r"(\d*)([a-z])", work):
        at += int(gap or 0) * MS
        works.append({"name": name, "start_ns": at, "dur_ns": 100 * US})
        at += 100 * US
    [account] = prepare(trace_of(activities=works), Selection()).accounts.values()
    assert account.start_up.length_ns == once_ms * MS
    # Each process loads code for itself, also for what another one ran before.
    earlier = [{"name": name, "start_ns": -100 * US, "dur_ns": 100 * US} for name in "abc"]
    works = [*earlier, *({**work, "process": 1} for work in works)]
    both = trace_of(activities=works, processes=[{"process": 0}, {"process": 1}])
    [account] = prepare(both, Selection()).accounts.values()
    assert account.start_up.length_ns == once_ms * MS


def test_capture_before_the_first_graph() -> None:
    capture = [call("cudaStreamBeginCapture", 0, 10), call("cudaStreamEndCapture", 2_990, 3_000)]
    assert run(*capture)["capture"] == 3_000
    launched_before = [call("cudaGraphLaunch", -100, -90)]
    assert "capture" not in run(*launched_before, *capture)


def test_first_copies_take_more_than_later_ones_of_as_many_bytes() -> None:
    def copies(*sizes: int) -> dict[str, int]:
        works = [("k", 20 * US * n, (20 * n + 6) * US, 10 * US) for n in range(10)]
        made, at = launched(*works), works[-1][2] + 10 * US
        for place, size in enumerate(sizes):
            took = 5 * MS if place == 0 else 100 * US
            made["calls"].append(
                {"name": "cudaMemcpy", "start_ns": at, "dur_ns": took, "correlation": 100 + place}
            )
            made["activities"].append(
                {
                    "kind": "memcpy",
                    "direction": "HtoD",
                    "bytes": size,
                    "name": "Memcpy HtoD",
                    "start_ns": at + took - 10 * US,
                    "dur_ns": 10 * US,
                    "correlation": 100 + place,
                }
            )
            at += took
        [account] = prepare(trace_of(**made), Selection()).accounts.values()
        return {k: part.length_ns // US for k, part in account.start_up_by_kind.items() if part}

    assert copies(1_000, 1_000, 8_000)["first-copy"] == 4_890
    assert "first-copy" not in copies(9_000, 1_000, 8_000)


def test_without_start_up_a_run_is_shorter_by_it() -> None:
    works = launched(*(("k", 20 * US * n, (20 * n + 6) * US, 10 * US) for n in range(30)))
    late = works["calls"][20:]
    for row in (*late, *works["activities"][20:]):
        row["start_ns"] += 5 * MS
    begin = works["activities"][19]["start_ns"] + 10 * US
    works["calls"].append(
        {"name": "cudaMalloc", "start_ns": begin, "dur_ns": 4 * MS, "correlation": 99}
    )
    analysis = analyze(trace_of(**works), Selection(from_ns=0))
    assert analysis.components.start_up_ns >= 4 * MS
    asked = what_if(analysis, "start_up=0").together
    assert asked.before_ns - asked.most_ns >= 0.9 * analysis.components.start_up_ns


@pytest.mark.parametrize(
    ("later_us", "setting_up_us", "is_told"),
    [(50, 0, True), (50, 4_000, True), (2_000, 0, False)],
)
def test_the_first_operator_of_a_name_starts_up(
    later_us: int, setting_up_us: int, *, is_told: bool
) -> None:
    """It takes 5 ms and launches at its end; the GPU is idle meanwhile, and has run before.

    A call in it may be known to set up already: the rest of the operator still does.
    """
    works, ops, at = [("k", 0, US, 10 * US)], [], 100 * US
    inner = {"name": "cudaMalloc", "start_ns": at + MS // 2, "correlation": 99}
    for number in range(4):
        dur = (later_us if number else 5_000) * US
        ops.append({"name": "aten::linear", "start_ns": at, "dur_ns": dur})
        works.append(("k", at + dur - 5 * US, at + dur, 10 * US))
        at += dur + 20 * US
    made = launched(*works)
    if setting_up_us:
        made["calls"].append({**inner, "dur_ns": setting_up_us * US})
    analysis = analyze(trace_of(**made, ops=ops))
    told = (5_000 - later_us - 5) * US if is_told else 0
    assert analysis.components.start_up_ns == pytest.approx(told, abs=10 * US)


def test_an_operator_that_launches_a_kernel_first_loads_code_even_if_it_is_the_only_one() -> None:
    op = {"name": "aten::cudnn_convolution", "start_ns": 0, "dur_ns": 9_998 * US}
    inner = {"name": "aten::empty", "start_ns": MS, "dur_ns": 50 * US}
    many = [
        {"name": "aten::mm", "start_ns": (10_020 + 20 * n) * US - 2_000, "dur_ns": 10 * US}
        for n in range(10)
    ]
    assert run(ops=[op, inner, *many])["first-call"] == pytest.approx(9_985, abs=10)
    assert run(ops=[op, inner, *many], first="k") == {}
    assert run(ops=[op, inner | {"dur_ns": 5 * MS}, *many]) == {}  # which may be its own work


@pytest.mark.parametrize(("later_us", "is_told"), [((12, 15, 400), True), ((12, 15, 900), False)])
def test_the_first_range_of_a_name_starts_up_if_no_other_takes_a_tenth(
    later_us: tuple[int, ...], *, is_told: bool
) -> None:
    lengths = (8_000, *later_us)
    marks = [
        {"name": "Execute", "start_ns": 12 * MS * n, "dur_ns": us * US, "thread": 2}
        for n, us in enumerate(lengths)
    ]
    found = run(marks=marks)
    assert found.get("first-call", 0) == (8_000 - 15 if is_told else 0)


@pytest.mark.parametrize(("loaders", "start_up_ms"), [(1, 2 + 49 + 5), (3, 0)])
def test_workers_of_a_loader_start_and_stop_once(loaders: int, start_up_ms: int) -> None:
    """Each starts a worker in 2 ms; its first batch takes 50 ms, others 1 ms; it stops in 5 ms."""
    frames = (
        ("multiprocessing/process.py(110): start", 2),
        ("torch/utils/data/dataloader.py(1448): _next_data", 50),
        *(("torch/utils/data/dataloader.py(1448): _next_data", 1),) * 3,
        ("torch/utils/data/dataloader.py(1572): _shutdown_workers", 5),
    )
    ops, marks, at = [], [], 0
    for name, took in frames * loaders:
        ops.append({"name": "aten::mm", "start_ns": at, "dur_ns": MS})
        row = {"name": name, "kind": "python", "start_ns": at + MS, "dur_ns": took * MS}
        marks.append(row)
        at += (1 + took) * MS
    ops.append({"name": "aten::mm", "start_ns": at, "dur_ns": MS})
    analysis = analyze(trace_of(ops=ops, marks=marks))
    assert analysis.components.start_up_ns == start_up_ms * MS
    said = "start-up (loader workers) takes" in analysis.verdict.sentence
    assert said == (loaders == 1)


@pytest.mark.parametrize(("kind", "start_up_ms"), [("memcpy", 8), ("kernel", 0)])
def test_without_calls_gaps_before_the_first_kernel_are_loading(
    kind: str, start_up_ms: int
) -> None:
    """Four pieces of work of 1 ms, each 2 ms after the last, then kernels close to one another."""
    first = [{"name": "load", "kind": kind, "start_ns": 3 * MS * n, "dur_ns": MS} for n in range(4)]
    first = [row | ({"direction": "HtoD"} if kind == "memcpy" else {}) for row in first]
    then = [{"name": "k", "start_ns": 12 * MS + 20 * US * n, "dur_ns": 10 * US} for n in range(9)]
    [account] = prepare(trace_of(activities=[*first, *then]), Selection()).accounts.values()
    assert account.start_up.length_ns == start_up_ms * MS


@pytest.mark.parametrize(("kind", "read_ms"), [("memset", 6), ("kernel", 0)])
def test_files_read_before_the_first_kernel_are_start_up(kind: str, read_ms: int) -> None:
    """Of a gap of 40 ms, 10 ms allocate and 6 ms read a file; of the rest nothing is recorded."""
    works = launched(*(("x", 40 * MS * n, 40 * MS * n + 6 * US, 10 * US) for n in range(2)))
    works["activities"][0]["kind"] = kind
    works["calls"].append(call("cudaHostAlloc", 1_000, 11_000))
    read = {"name": "read", "kind": "system", "start_ns": 20 * MS, "dur_ns": 6 * MS}
    [account] = prepare(trace_of(**works, marks=[read]), Selection()).accounts.values()
    [within_ns] = account.start_up.length_within(np.array([20 * MS]), np.array([26 * MS]))
    assert within_ns == read_ms * MS

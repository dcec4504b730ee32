"""Rounds that repeat are steps only where they are iterations, and marks that are never closed."""

from typing import Any

import pytest

from tests.build import launched, step_marks, trace_of
from traceflops import Analysis, Selection, analyze
from traceflops.attribution.outside_work import OutsideGpuWork
from traceflops.reports.view.findings import opening
from traceflops.reports.view.step_split import outside, scope
from traceflops.reports.view.wording import steps_used

US = 1_000
ROUNDS = 10


def rounds(
    before: int = 0, after: str = "", growth: float = 1.0, copies_us: int = 10
) -> list[dict[str, Any]]:
    """Return ten rounds of a copy and five kernels, and what runs before and after them, in us."""
    made: list[dict[str, Any]] = []
    now = 0

    def add(name: str, us: float, **more: Any) -> None:
        nonlocal now
        made.append({"name": name, "start_ns": now * US, "dur_ns": round(us * US), **more})
        now += round(us) + 5

    for _ in range(before):
        add("init", 1_000)
    for number in range(ROUNDS):
        add("Memcpy HtoD", copies_us, kind="memcpy", direction="HtoD")
        for name in "abcde":
            add(name, 50 * growth**number)
    add("Memcpy HtoD", copies_us, kind="memcpy", direction="HtoD")
    if after:
        add(after, 50)
    return made


def seen(works: list[dict[str, Any]]) -> int:
    analysis: Analysis = analyze(trace_of(activities=works))
    return len(analysis.steps.seen)


def test_rounds_of_a_loop_are_steps() -> None:
    assert seen(rounds()) == ROUNDS
    assert seen(rounds(after="a")) == ROUNDS


def test_layers_of_a_pass_that_ends_with_its_head_are_none() -> None:
    assert seen(rounds(after="head")) == 0


@pytest.mark.parametrize(("layers", "is_seen"), [(0, True), (30, False)])
def test_rounds_of_a_backward_pass_after_much_other_work_are_no_steps(
    layers: int, *, is_seen: bool
) -> None:
    """300 rounds of a backward pass; as a rule, a forward pass of 30 layers runs before it."""
    made: list[dict[str, Any]] = []
    for name in [f"aten::layer{number}" for number in range(layers) for _ in range(40)]:
        made.append({"name": name, "start_ns": 10 * len(made), "dur_ns": 10})
    for name in ["Add", "Mul", "Tanh", "Addmm", "T", "View", "Sigmoid"] * 300:
        label = f"autograd::engine::evaluate_function: {name}Backward0"
        made.append({"name": label, "start_ns": 10 * len(made), "dur_ns": 10})
    assert bool(analyze(trace_of(devices=[], ops=made)).steps.seen) == is_seen


def test_copies_of_the_weights_of_each_layer_begin_no_steps() -> None:
    """Five passes: an embedding, 12 layers that each get their weights, and the choice of a token.

    The last pass has no next one that bounds it.
    """
    works: list[dict[str, Any]] = []
    for _ in range(5):
        for name in ("embed", *("weights", *"abcd") * 12, "norm", "head", "softmax", "pick"):
            works.append({"name": name, "start_ns": len(works) * 60 * US, "dur_ns": 50 * US})
            if name == "weights":
                works[-1] |= {"kind": "memcpy", "direction": "HtoD"}
    steps = analyze(trace_of(activities=works)).steps
    assert (steps.source, len(steps.seen)) == ("signature", 4)


@pytest.mark.parametrize(
    ("frame_us", "source", "steps"),
    [(60, "signature", 5), (10, "copies", 95)],
    ids=["frames", "a log now and then"],
)
def test_rounds_of_a_frame_are_parts_of_it(frame_us: int, source: str, steps: int) -> None:
    """Six frames of 16 rounds of 151 us each; three kernels of `frame_us` run once in a frame."""
    works: list[dict[str, Any]] = []
    for frame in range(6):
        now_us = frame * 10_000
        once = [(name, frame_us) for name in ("init", "clear", "shade")]
        of_rounds = [*((name, 15) for name in "abcdefghij"), ("Memcpy DtoH", 1)] * 16
        for name, us in (*once[:2], *of_rounds, once[2]):
            works.append({"name": name, "start_ns": now_us * US, "dur_ns": us * US})
            now_us += us + 2
            if name == "Memcpy DtoH":
                works[-1] |= {"kind": "memcpy", "direction": "DtoH"}
    found = analyze(trace_of(activities=works)).steps
    assert (found.source, len(found.seen)) == (source, steps)


@pytest.mark.parametrize(("growth", "steps"), [(1.05, ROUNDS), (1.5, 0)])
def test_a_sweep_of_sizes_has_no_steps(growth: float, steps: int) -> None:
    assert seen(rounds(growth=growth)) == steps


@pytest.mark.parametrize(("before", "steps"), [(2, ROUNDS), (4, 0)])
def test_rounds_with_less_than_half_of_the_work_are_no_steps(before: int, steps: int) -> None:
    assert seen(rounds(before)) == steps


@pytest.mark.parametrize(("main_us", "steps"), [(1_000, ROUNDS), (10_000, 0)])
def test_set_up_before_a_main_kernel_has_no_steps(main_us: int, steps: int) -> None:
    """Ten rounds of 260 us; the copy that returns the result bounds a last one with that kernel."""
    works = rounds()
    main_ns = works[-1]["start_ns"] + 20 * US
    end = {**works[-1], "start_ns": main_ns + main_us * US + US}
    main = {"name": "a", "start_ns": main_ns, "dur_ns": main_us * US}
    fill = [{**main, "start_ns": main_ns - (5 - n) * US, "dur_ns": 500} for n in range(4)]
    assert seen([*works, *fill, main, end]) == steps + bool(steps)


def test_ranges_that_are_never_closed_last_until_the_next() -> None:
    """Each ends with the recording; the last has no next."""
    works = [{"name": "k", "start_ns": 100 * US * n + US, "dur_ns": 50 * US} for n in range(6)]
    marks = step_marks(*((f"iteration{n}", 100 * US * n, (600 - 100 * n) * US) for n in range(6)))
    analysis = analyze(trace_of(activities=works, marks=marks))
    [device] = analysis.devices
    times = [(window.step, window.dur_ns) for window in device.windows if window.used]
    assert times == [(n, 100 * US) for n in range(5)]


def test_the_work_that_is_left_out_is_told_with_its_share() -> None:
    works = [{"name": "init", "start_ns": 0, "dur_ns": 300 * US}]
    works += [{"name": "k", "start_ns": (400 + 100 * n) * US, "dur_ns": 50 * US} for n in range(4)]
    marks = step_marks(*((f"step {n}", (390 + 100 * n) * US, 90 * US) for n in range(4)))
    analysis = analyze(trace_of(activities=works, marks=marks))
    busy_us, used_us = 300 + 4 * 50, 4 * 50
    assert analysis.left_out == pytest.approx(1 - used_us / busy_us)
    assert analyze(trace_of(activities=works[1:], marks=marks)).left_out is None


def test_what_is_recorded_outside_the_work_is_told_with_the_call_that_takes_it() -> None:
    """Of 10 ms, 8 before the first copy and 1 after the last; 7 of these in one call."""
    calls = [
        {"name": "cudaMallocHost", "start_ns": 500 * US, "dur_ns": 7_000 * US},
        {"name": "cudaMemcpyAsync", "start_ns": 7_990 * US, "correlation": 1},
    ]
    copy = {"name": "Memcpy HtoD", "kind": "memcpy", "start_ns": 8_000 * US, "dur_ns": 1_000 * US}
    marks = [{"name": "main", "start_ns": 0, "dur_ns": 10_000 * US}]
    analysis = analyze(trace_of(activities=[{**copy, "correlation": 1}], calls=calls, marks=marks))
    outside = OutsideGpuWork(8_000 * US, 1_000 * US, 10_000 * US, "cudaMallocHost", 7_000 * US)
    assert analysis.outside == outside
    assert scope(analysis) == ["No kernel was recorded, only copies or fills of memory."]
    assert opening(analysis).title.startswith(
        "Of 10.0 ms recorded, 8.00 ms (80 %) before the first GPU operation and 1.00 ms after the "
        "last are left out, mostly cudaMallocHost. "
    )
    chosen = analyze(analysis.prepared.trace, Selection(from_ns=0, to_ns=100 * US))
    assert chosen.outside is None


def test_a_large_part_of_what_is_left_out_is_told_with_its_time() -> None:
    """3 of 8 ms before the only kernel are the first batch; the range around all tells nothing."""
    work = {"name": "k", "start_ns": 8_000 * US, "dur_ns": 1_000 * US}
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    marks = step_marks(("main", 0, 9_000 * US), (loader, 1_000 * US, 3_000 * US))
    title = opening(analyze(trace_of(activities=[work], marks=marks))).title
    assert "left out, 3.00 ms of it in enumerate(DataLoader)" in title
    assert "Record several batches: whether loading keeps up is not recorded." in title


@pytest.mark.parametrize(
    ("other", "told"), [("cudaMemGetInfo", "cudaMemGetInfo"), ("cudaEventSynchronize", "cudaFree")]
)
def test_calls_of_threads_that_launch_nothing_count_before_the_others_begin(
    other: str, told: str
) -> None:
    """Of 9 ms before the only kernel 5 are in a call of another thread; its wait tells nothing."""
    work = {"name": "k", "start_ns": 9_000 * US, "dur_ns": 1_000 * US, "correlation": 1}
    calls = [
        {"name": other, "start_ns": 0, "dur_ns": 5_000 * US, "thread": 2},
        {"name": "cudaMalloc", "start_ns": 5_500 * US, "dur_ns": 3_000 * US, "thread": 2},
        {"name": "cudaFree", "start_ns": 5_100 * US, "dur_ns": 3_500 * US, "thread": 1},
        {"name": "cudaLaunchKernel", "start_ns": 8_990 * US, "correlation": 1, "thread": 1},
    ]
    analysis = analyze(trace_of(activities=[work], calls=calls))
    assert analysis.outside is not None
    assert analysis.outside.call == told


def test_overhead_of_the_profiler_after_the_work_is_no_recorded_time() -> None:
    work = {"name": "k", "start_ns": 5_000 * US, "dur_ns": 1_000 * US, "correlation": 1}
    calls = [{"name": "cudaLaunchKernel", "start_ns": 0, "correlation": 1}]
    flushing = {"name": "profiler: flushing buffers", "kind": "overhead", "dur_ns": 10 * US}
    marks = [{**flushing, "start_ns": 90_000 * US}]
    analysis = analyze(trace_of(activities=[work], calls=calls, marks=marks))
    assert analysis.outside is not None
    assert (analysis.outside.recorded_ns, analysis.outside.after_ns) == (6_000 * US, 0)


def test_time_of_nested_ranges_and_of_several_threads_counts_once() -> None:
    """Of 8 ms before the only kernel 2 are of a range: nested in itself, and on two threads."""
    work = {"name": "k", "start_ns": 8_000 * US, "dur_ns": 1_000 * US}
    marks = step_marks(("main", 0, 9_000 * US), *[("load", 1_000 * US, 2_000 * US)] * 3)
    marks[-1]["thread"] = 2
    analysis = analyze(trace_of(activities=[work], marks=marks))
    assert analysis.outside == OutsideGpuWork(8_000 * US, 0, 9_000 * US, "load", 2_000 * US)


@pytest.mark.parametrize(("init_us", "unused_us"), [(300, 345), (0, 0)])
def test_time_in_no_used_step_is_told_unless_it_is_as_many_usual_steps(
    init_us: int, unused_us: int
) -> None:
    """Before the first of five steps is the set-up."""
    works = [{"name": "init", "start_ns": 0, "dur_ns": init_us * US}] * (init_us > 0)
    begin = init_us + 50 * (init_us > 0)
    works += [
        {"name": "k", "start_ns": (begin + 100 * n) * US, "dur_ns": 50 * US} for n in range(5)
    ]
    marks = step_marks(
        *((f"step {n}", (begin + 100 * n - 5) * US, 90 * US) for n in range(5)),
        ("main", 0, (begin + 450) * US),
    )
    analysis = analyze(trace_of(activities=works, marks=marks))
    told = analysis.outside
    assert (told.unused_ns if told else 0) == unused_us * US
    if told:
        assert outside(analysis).endswith(" outside the used steps are left out.")


def test_what_steps_that_begin_at_marks_use_is_not_left_out() -> None:
    """Each step begins 90 us before its first work, and all of both is used."""
    works = [{"name": "k", "start_ns": (90 + 100 * n) * US, "dur_ns": 10 * US} for n in range(2)]
    calls = [{"name": "launch", "start_ns": (88 + 100 * n) * US, "dur_ns": US} for n in range(2)]
    for number, (work, call) in enumerate(zip(works, calls, strict=True)):
        work["correlation"] = call["correlation"] = number
    marks = step_marks(*((f"step {n}", 100 * n * US, 100 * US) for n in range(2)))
    analysis = analyze(trace_of(activities=works, calls=calls, marks=marks))
    assert [window.dur_ns for window in analysis.devices[0].windows] == [100 * US] * 2
    assert outside(analysis) == ""


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("activities", "uncategorized kernels"),
        ("ops", "dispatch and uncategorized operators"),
    ],
)
def test_steps_that_are_left_out_as_slow_are_named(table: str, what: str) -> None:
    begins, lengths = (0, 300, 400, 500), (300, 100, 100, 100)
    works = [
        {"name": "k", "start_ns": at * US, "dur_ns": (us - 10) * US}
        for at, us in zip(begins, lengths, strict=True)
    ]
    marks = step_marks(
        *((f"step {n}", at * US, 90 * US) for n, at in enumerate(begins)),
    )
    devices: dict[str, Any] = {"devices": []} if table == "ops" else {}
    analysis = analyze(trace_of(**{table: works}, marks=marks, **devices))
    told = f"; step 0, 300 µs, left out as far longer (mostly {what})"
    assert told in steps_used(analysis)


def test_a_step_that_is_left_out_as_slow_is_named_with_what_takes_longer() -> None:
    """Five steps of two kernels each; in the first memory is freed for 200 us between them."""
    begins = [0, *range(300, 700, 100)]
    works = [(at + 10, at + 20 + (200 if not at else 0)) for at in begins]
    made = launched(
        *(("k", (at - 6) * US, at * US, 8 * US) for pair in works for at in pair),
    )
    made["calls"] += [
        {"name": "cudaFree", "start_ns": 19 * US, "dur_ns": 190 * US},
        *({"name": "cudaFree", "start_ns": (at + 30) * US, "dur_ns": 60 * US} for at in begins[1:]),
    ]
    marks = step_marks(*((f"step {n}", at * US, 90 * US) for n, at in enumerate(begins)))
    told = "; step 0, 300 µs, left out as far longer (mostly allocating or freeing memory)"
    assert told in steps_used(analyze(trace_of(**made, marks=marks)))


@pytest.mark.parametrize("calls", [8, 2])
def test_calls_of_a_scripted_model_are_steps_on_a_cpu(calls: int) -> None:
    """Each call has other operators, so no names repeat from call to call."""
    ops: list[dict[str, Any]] = []
    for call in range(calls):
        ops.append({"name": "forward", "start_ns": 10_000 * call, "dur_ns": 9_000})
        ops += [
            {"name": f"pack::run_{call}", "start_ns": 10_000 * call + at, "dur_ns": 1_300}
            for at in range(100, 8_000, 1_400)
        ]
    steps = analyze(trace_of(devices=[], ops=ops)).steps
    assert len(steps.seen) == (8 if calls == 8 else 0)
    assert ("each step is a call of forward" in steps.text) == (calls == 8)


@pytest.mark.parametrize(("cut", "seen"), [(0, 300), (4, 299)])
def test_passes_at_both_ends_of_work_on_a_cpu_are_steps_if_they_are_whole(
    cut: int, seen: int
) -> None:
    """300 passes of seven operators; the last may be cut."""
    names = ["Add", "Mul", "Tanh", "Addmm", "T", "View", "Sigmoid"] * 300
    made = [
        {"name": f"aten::{name}", "start_ns": 10 * at, "dur_ns": 10}
        for at, name in enumerate(names[: len(names) - cut])
    ]
    steps = analyze(trace_of(devices=[], ops=made)).steps
    assert (len(steps.seen), len(steps.used)) == (seen, seen)

"""A recording of hardly any GPU work tells nothing of how the program runs."""

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from traceflops.findings.little_work import failed_launches
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.findings import headline, opening

US, MS = 1_000, 1_000_000
BEFORE = 300 * MS


def run(
    kernels: int, *, kernel_ns: int = 10 * US, gap_ns: int = 100 * US, steps: int = 0
) -> tf.Analysis:
    """Return a run that allocates for 300 ms and then launches some kernels, idle between them."""
    starts = [BEFORE + number * (kernel_ns + gap_ns) for number in range(kernels)]
    rows = launched(*(("saxpy", at - 5 * US, at, kernel_ns) for at in starts))
    rows["calls"].append({"name": "cudaMalloc", "start_ns": 0, "dur_ns": BEFORE - 50 * US})
    marks = [(f"ProfilerStep#{n}", at - 6 * US, 100 * US) for n, at in enumerate(starts[:steps])]
    return tf.analyze(trace_of(**rows, marks=step_marks(*marks)))


def test_time_of_which_nothing_is_recorded_is_not_called_start_up() -> None:
    rows = launched(("saxpy", BEFORE - 5 * US, BEFORE, 60 * US))
    marks = step_marks(("profiler", 0, BEFORE + MS), ("set up", 0, MS))
    said = headline(tf.analyze(trace_of(**rows, marks=marks))).sentence
    assert "after 300 ms of which little or nothing is recorded: too little" in said
    assert "start-up" not in said


def test_start_up_with_hardly_any_work_behind_it_is_all_that_is_said() -> None:
    analysis = run(20)
    said = headline(analysis)
    assert said.cls == "start-up"
    assert said.sentence.startswith(
        "The recording holds 200 µs of GPU work, within 2.10 ms, after 300 ms of start-up"
    )
    assert [one for one in analysis.findings if one.gain is not None] == []
    assert analysis.losses == ()
    printed = "\n".join(line.plain for line in render_terminal(analysis))
    assert "Critical path" not in printed  # nor a bar


def test_beside_nothing_but_start_up_the_rest_is_not_split() -> None:
    """Of 512 ms, 500 ms are start-up before a kernel of its own; the figures are of all."""
    works = launched(("a", 0, 6 * US, MS), ("b", 502 * MS, 503 * MS, 8 * MS))
    works["calls"].append({"name": "cudaMalloc", "start_ns": 2 * MS, "dur_ns": 499 * MS})
    opened = opening(tf.analyze(trace_of(**works)))
    assert opened.title.startswith("Start-up takes 50")
    assert "he figures are of" not in opened.title
    assert opened.rest == ""


@pytest.mark.parametrize(
    "more",
    [
        {"kernels": 200},  # a window of 22 ms
        {"kernels": 2, "kernel_ns": 2 * MS},
        {"kernels": 20, "steps": 20},
        {"kernels": 300, "kernel_ns": 5 * MS},  # a server: 300 ms of loading, then 1.5 s of work
    ],
)
def test_longer_work_is_judged_whatever_comes_before(more: dict[str, int]) -> None:
    assert "The recording holds" not in headline(run(**more)).sentence


@pytest.mark.parametrize(("rounds", "is_told"), [(5, True), (12, False)])
def test_a_few_rounds_of_hardly_any_work_are_no_steps(rounds: int, *, is_told: bool) -> None:
    """Each copies and runs three kernels, 5 us each, within 50 us, as a test does."""
    names, starts = ("Memcpy HtoD", *"abc"), [BEFORE + at * 50 * US for at in range(rounds)]
    works = [(name, at + n * 9 * US) for at in starts for n, name in enumerate(names)]
    rows = launched(*((name, start - 5 * US, start, 5 * US) for name, start in works))
    for one in rows["activities"][::4]:
        one |= {"kind": "memcpy", "bytes": 4000, "direction": "HtoD"}
    rows["calls"].append({"name": "cudaMalloc", "start_ns": 0, "dur_ns": BEFORE - 50 * US})
    analysis = tf.analyze(trace_of(**rows))
    assert analysis.steps.used
    assert headline(analysis).sentence.startswith("The recording holds 100 µs of GPU") == is_told


@pytest.mark.parametrize(
    ("names", "launch_ns", "is_told"),
    [("abcd", 400 * US, True), ("abca", 400 * US, False), ("abcd", 20 * US, False)],
)
def test_kernels_that_run_once_each_behind_slow_launches_are_one_cold_call(
    names: str, launch_ns: int, is_told: bool
) -> None:
    works = launched(*((one, at * MS, at * MS + 500 * US, 10 * US) for at, one in enumerate(names)))
    for call in works["calls"]:
        call["dur_ns"] = launch_ns
    analysis = tf.analyze(trace_of(**works))
    # 4 x 400 us of launching; 40 us of work from 0.5 ms to 3.51 ms.
    said = (
        "This is one cold call, all start-up: each of 4 kernels runs once, and launching them for "
        "the first time takes 1.60 ms, against 40.0 µs of GPU work within 3.01 ms."
    )
    assert headline(analysis).sentence.startswith(said) == is_told
    if is_told:
        assert [one for one in analysis.findings if one.gain is not None] == []


@pytest.mark.parametrize(("first_us", "is_told"), [(900, True), (100, False)])
def test_first_calls_that_take_most_time_of_operators_are_start_up(
    first_us: int, *, is_told: bool
) -> None:
    """Two operators, four calls each, 1 ms apart: later calls take 20 us."""
    starts = range(0, 8 * MS, MS)
    works = launched(*(("saxpy", at + 5 * US, at + 10 * US, 10 * US) for at in starts))
    ops = [
        {"name": "ab"[n % 2], "start_ns": at, "dur_ns": (first_us if n < 2 else 20) * US}
        for n, at in enumerate(starts)
    ]
    analysis = tf.analyze(trace_of(**works, ops=ops))
    # Of 2 x 900 + 6 x 20 us, 2 x (900 - 20) us; 8 kernels of 10 us in 7 ms.
    said = (
        "This is start-up: first calls of operators take 1.76 ms of the 1.92 ms of all, each more "
        "than 10 times as long as later ones; the GPU works for 80.0 µs within 7.01 ms."
    )
    assert headline(analysis).sentence.startswith(said) == is_told
    if is_told:
        assert [one for one in analysis.findings if one.gain is not None] == []


@pytest.mark.parametrize(
    ("more", "dur_ms", "is_set_up"),
    [
        ("", 1, True),
        ("", 19, False),  # a measurement of copies
        ("sizes", 19, True),  # no copy repeats another
        ("cudaMalloc", 19, True),
        ("cudaMalloc cudaFree", 19, False),
        ("DtoH", 1, False),
        ("cudaLaunchKernel", 1, False),
    ],
)
def test_uploads_without_a_launch_are_set_up(more: str, dur_ms: int, *, is_set_up: bool) -> None:
    """Four copies of 1 MB to the GPU begin 20 ms apart; something else may be recorded."""
    starts = range(0, 80 * MS, 20 * MS)
    works = launched(*(("Memcpy HtoD", at, at + US, dur_ms * MS) for at in starts))
    for number, one in enumerate(works["activities"]):
        direction = "DtoH" if more == "DtoH" and number == 3 else "HtoD"
        size = 400_000 * (number + 1) if more == "sizes" else 1_000_000
        one |= {"kind": "memcpy", "bytes": size, "direction": direction}
    for call in works["calls"]:
        call["name"] = "cudaMemcpyAsync"
    if more.startswith("cuda"):
        works["calls"] += [
            {"name": name, "start_ns": at + 10 * US, "dur_ns": US}
            for at in starts
            for name in more.split()
        ]
    analysis = tf.analyze(trace_of(**works))
    said = headline(analysis).sentence
    is_told = said.startswith("No kernel was recorded, and nothing came back from the GPU: within")
    assert is_told == is_set_up
    if is_told:
        assert f"within {60 + dur_ms}.0 ms it only received 4 copies of 4.00 MB in all." in said
        assert [one for one in analysis.findings if one.gain is not None] == []


@pytest.mark.parametrize(("allocations", "is_set_up"), [(0, True), (1, True), (4, False)])
def test_tiny_uploads_are_set_up_unless_each_has_memory_of_its_own(
    allocations: int, *, is_set_up: bool
) -> None:
    """Four copies of 28 bytes begin 3 ms apart, some after an allocation."""
    starts = range(0, 12 * MS, 3 * MS)
    works = launched(*(("Memcpy HtoD", at, at + 20 * US, US) for at in starts))
    for one, call in zip(works["activities"], works["calls"], strict=True):
        one |= {"kind": "memcpy", "bytes": 28, "direction": "HtoD"}
        call["name"] = "cudaMemcpyAsync"
    works["calls"] += [
        {"name": "cudaMalloc", "start_ns": at + MS, "dur_ns": US} for at in starts[:allocations]
    ]
    said = headline(tf.analyze(trace_of(**works))).sentence
    assert ("it only received 4 copies of 112 B in all." in said) == is_set_up


@pytest.mark.parametrize(
    ("kernel", "is_loading"), [("fill_kernel(int, float*)", True), ("saxpy", False)]
)
def test_uploads_and_kernels_that_fill_are_loading(kernel: str, *, is_loading: bool) -> None:
    """Four copies of 1 MB begin 20 ms apart; a kernel follows the first."""
    copies = [("Memcpy HtoD", at, at + US, MS) for at in range(0, 80 * MS, 20 * MS)]
    works = launched(*copies, (kernel, 5 * MS, 6 * MS, MS))
    for one, call in zip(works["activities"][:4], works["calls"][:4], strict=True):
        one |= {"kind": "memcpy", "bytes": 1_000_000, "direction": "HtoD"}
        call["name"] = "cudaMemcpyAsync"
    analysis = tf.analyze(trace_of(**works))
    sentence = headline(analysis).sentence
    said = "No computing kernel was recorded, and nothing came back from the GPU: within 61.0 ms"
    assert sentence.startswith(said) == is_loading
    codes = [part.code for part in analysis.verdict.parts]
    assert ("little-work.load" in codes) == is_loading
    if is_loading:
        assert [one for one in analysis.findings if one.gain is not None] == []


def test_a_graph_is_one_launch_of_many_kernels() -> None:
    works = launched(*((f"k{at}", 0, 500 * US + at * MS, 10 * US) for at in range(20)))
    works["calls"] = [{**works["calls"][0], "name": "cudaGraphLaunch", "dur_ns": 200 * US}]
    for one in works["activities"]:
        one["correlation"] = works["calls"][0]["correlation"]
    assert "cold call" not in headline(tf.analyze(trace_of(**works))).sentence


def test_a_fill_before_the_first_kernel_is_start_up_not_work() -> None:
    """A pool of memory is filled in 25 ms; 20 kernels of 10 us follow, after it and before it."""
    for fill_at, is_little in ((BEFORE - 30 * MS, True), (BEFORE + 10 * MS, False)):
        kernels = [
            ("saxpy", at - 5 * US, at, 10 * US) for at in range(BEFORE, BEFORE + 2 * MS, 100 * US)
        ]
        rows = launched(*kernels, ("Memset (Device)", fill_at - 5 * US, fill_at, 25 * MS))
        rows["activities"][-1]["kind"] = "memset"
        rows["calls"].append({"name": "cudaMallocAsync", "start_ns": 0, "dur_ns": 200 * MS})
        rows["calls"].append(
            {"name": "cudaFree", "start_ns": BEFORE + 40 * MS, "dur_ns": 9_000 * MS}
        )
        said = headline(tf.analyze(trace_of(**rows))).sentence
        told = "200 µs of GPU work besides fills of memory (25.0 ms), within 1.91 ms"
        assert (told in said) == is_little


def test_the_work_of_all_devices_is_told() -> None:
    rows = launched(*(("saxpy", BEFORE - 5 * US, BEFORE, 60 * US) for _ in range(3)))
    rows["devices"] = [{"device": number, "local_id": number} for number in range(3)]
    for number, row in enumerate(rows["activities"]):
        row["device"] = number
    rows["calls"].append({"name": "cudaMalloc", "start_ns": 0, "dur_ns": 200 * MS})
    said = headline(tf.analyze(trace_of(**rows))).sentence
    assert said.startswith("The recording holds 180 µs of GPU work, within 60.0 µs, after 300 ms")


@pytest.mark.parametrize(("before_s", "is_first"), [(36, True), (9, False), (1, False)])
def test_what_nearly_all_of_a_recording_is_comes_first(before_s: int, *, is_first: bool) -> None:
    """The GPU works for 3 s, without steps; the host did other things for longer."""
    at = before_s * 1_000 * MS
    works = [("saxpy", at + n * 100 * MS, at + n * 100 * MS + 10 * US, 100 * MS) for n in range(30)]
    marks = [{"name": "load", "start_ns": 0, "dur_ns": 500 * MS}]
    analysis = tf.analyze(trace_of(**launched(*works), marks=marks))
    said = headline(analysis).sentence
    told = "Of 39.0 s recorded, 36.0 s (92 %) before the first GPU operation are left out."
    assert said.startswith(told) == is_first
    printed = "\n".join(line.plain for line in render_terminal(analysis))
    assert printed.count("before the first GPU operation") <= 1


def test_what_a_program_does_after_its_gpu_work_comes_first_too() -> None:
    """The GPU works for 3 s, without steps; the host goes on for 36 s."""
    works = [("saxpy", n * 100 * MS, n * 100 * MS + 10 * US, 100 * MS) for n in range(30)]
    marks = [{"name": "write", "start_ns": 38_500 * MS, "dur_ns": 500 * MS}]
    said = headline(tf.analyze(trace_of(**launched(*works), marks=marks))).sentence
    assert said.startswith("Of 39.0 s recorded, 36.0 s (92 %) after the last GPU operation")


def test_a_launch_whose_kernel_is_recorded_has_not_failed() -> None:
    """An error of earlier work may be what the call returns."""
    tables = launched(*(("saxpy", 10_000 * n, 10_000 * n + 100, 900) for n in range(20)))
    for call in tables["calls"]:
        call |= {"name": "cudaLaunchKernel", "error_code": 600}
    assert not failed_launches(trace_of(**tables))


@pytest.mark.parametrize(
    ("times", "dur_us", "is_told"), [(2, 40, True), (3, 40, False), (2, 9_000, False)]
)
def test_a_few_operations_far_apart_tell_nothing_without_the_host(
    times: int, dur_us: int, *, is_told: bool
) -> None:
    works = [
        {"name": name, "start_ns": (number * 100 + place * 10) * MS, "dur_ns": dur_us * US}
        for place, name in enumerate("ab")
        for number in range(times)
    ]
    said = headline(tf.analyze(trace_of(activities=works))).sentence
    told = "The recording holds 160 µs of GPU work, in 4 operations within 110 ms, and nothing of"
    assert said.startswith(told) == is_told


@pytest.mark.parametrize(
    ("works", "dur_us", "is_told"), [(1, 8, True), (2, 8, False), (1, 1_100, False)]
)
def test_a_single_short_kernel_tells_nothing(works: int, dur_us: int, *, is_told: bool) -> None:
    rows = launched(*(("saxpy", at * MS, at * MS + 49 * US, dur_us * US) for at in range(works)))
    said = headline(tf.analyze(trace_of(**rows))).sentence
    told = "The recording holds a single kernel, saxpy, of 8.00 µs: too little to tell"
    assert said.startswith(told) == is_told


def test_a_single_kernel_may_have_no_name() -> None:
    said = headline(tf.analyze(trace_of(**launched(("", 0, 9 * US, US))))).sentence
    assert said.startswith("The recording holds a single kernel of 1.00 µs: too little to tell")


def test_a_kernel_beside_totals_of_others_is_not_the_only_one() -> None:
    totals = [{"name": "big", "kind": "kernel", "count": 3, "total_ns": 9 * MS}]
    rows = launched(("saxpy", 0, 9 * US, US))
    assert "a single kernel" not in headline(tf.analyze(trace_of(**rows, totals=totals))).sentence

"""The window of a program without steps: what follows start-up, where that is steady work."""

import re
from collections.abc import Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import launched, step_marks, trace_of
from traceflops import Analysis, Selection, analyze
from traceflops.analysis.rank_summary import summary_of
from traceflops.analysis.summary_files import held, packed
from traceflops.analysis.summary_sums import placed, sum_of
from traceflops.reports.view.findings import headline
from traceflops.reports.view.step_split import scope

US, MS = 1_000, 1_000_000
_GAP_NS: Final = 50 * MS


def run(
    kernels: int,
    *,
    kinds: int = 3,
    every_ns: int = 20 * US,
    first_ns: int = 4 * US,
    new: int = 0,
    ranges: Sequence[tuple[str, int, int]] = (),
    redact: bool = False,
) -> Analysis:
    """Return a fill, 50 ms in which cudaMalloc takes 40, then kernels that run half of the time.

    The last `new` of them have a name of their own. Each of `ranges` has a name, and the numbers of
    the first kernel in it and of the first behind.
    """
    begin = _GAP_NS + 10 * US
    works = [("fill", 0, 10 * US - first_ns, first_ns)]
    for number in range(kernels):
        start = begin + every_ns * number
        name = f"k{number % kinds}" if number < kernels - new else "new"
        works.append((name, start - 5 * US, start, every_ns // 2))
    made = launched(*works)
    made["calls"].append({"name": "cudaMalloc", "start_ns": 20 * US, "dur_ns": 40 * MS})
    spans = [
        (name, begin + low * every_ns - 6 * US, (up - low) * every_ns) for name, low, up in ranges
    ]
    return analyze(trace_of(**made, marks=step_marks(*spans)), redact=redact)


@pytest.mark.parametrize(
    ("new", "ranges", "measured"),
    [
        (0, [("timed", 60, 160)], "timed"),
        (0, [("timed", 60, 160), ("inner", 70, 80), ("inner", 80, 90)], "timed"),
        (0, [("warm", 10, 60), ("timed", 60, 160)], None),
        (0, [("all", 0, 160), ("Warm-up", 10, 60), ("timed", 60, 160)], "timed"),
        (0, [("warmup step 1", 10, 30), ("warmup step 2", 30, 60), ("timed", 60, 160)], "timed"),
        (0, [("timed", 60, 150)], None),  # work follows
        (0, [("timed", 90, 160)], None),  # less than half
        (0, [("all", 0, 160)], None),
        (0, [("all", -2_000, 160)], None),
        (50, [("timed", 60, 160)], None),  # half of it did not run before
    ],
)
def test_a_last_range_that_repeats_what_ran_before_is_what_the_user_measures(
    new: int, ranges: list[tuple[str, int, int]], measured: str | None
) -> None:
    analysis = run(160, new=new, ranges=ranges)
    assert analysis.steps.measured == measured
    since_us = 10 + 60 * 20 - 6 if measured else 5  # from its begin, or the end of start-up, on
    assert analysis.devices[0].windows[-1].start_ns == _GAP_NS + since_us * US
    if measured:
        assert "The figures are of the 2.00 ms in timed, without 1.2" in " ".join(
            finding.sentence for finding in analysis.findings
        )


@pytest.mark.parametrize(("works_on", "measured"), [(True, "timed"), (False, None)])
def test_a_range_in_which_a_device_has_no_work_is_none(
    works_on: bool, measured: str | None
) -> None:
    """Another device runs beside the warm-up, and once more in the range or not at all."""
    begins_us = [50_000 + 20 * n for n in range(160)]
    others_us = [50_105 + 20 * n for n in range(20)] + [53_000] * works_on
    made = launched(
        ("fill", 0, 6 * US, 4 * US),
        *((f"k{n % 3}", (t - 5) * US, t * US, 10 * US) for n, t in enumerate(begins_us)),
        *(("k0", (t - 5) * US, t * US, 10 * US) for t in others_us),
    )
    for number, row in enumerate(made["activities"]):
        row["device"] = int(number > 160)
    made["calls"].append({"name": "cudaMalloc", "start_ns": 20 * US, "dur_ns": 40 * MS})
    devices = [{"device": n, "process": 0, "local_id": n, "type": "gpu"} for n in range(2)]
    marks = step_marks(("timed", 51_194 * US, 2_000 * US))
    analysis = analyze(trace_of(**made, marks=marks, devices=devices))
    assert analysis.steps.measured == measured
    for device in analysis.devices:
        assert all(window.dur_ns > 0 for window in device.windows)


@pytest.mark.parametrize(
    ("names", "measured", "how"),
    [
        (("timed", "timed"), "timed", "the timed range after a warm-up"),
        (("timed", None), None, "what follows start-up"),
        ((None, "timed"), None, "what follows start-up"),
        (("timed", "other"), None, "the timed range after a warm-up"),
    ],
)
def test_ranks_have_a_range_in_common_or_none(
    names: tuple[str | None, ...], measured: str | None, how: str
) -> None:
    runs = [run(160, ranges=[(name, 60, 160)] if name else ()) for name in names]
    parts = [held(packed(summary_of(analysis)), {}) for analysis in runs]
    choice = sum_of(placed(parts)).choice
    assert choice.measured == measured
    assert choice.text == f"no steps found; {how} is one window"


def test_the_name_of_the_range_is_redacted() -> None:
    analysis = run(160, ranges=[("secret", 60, 160)], redact=True)
    assert analysis.steps.measured == "annotation 1"
    assert "secret" not in analysis.to_json()


def test_the_window_begins_where_start_up_is_over() -> None:
    analysis = run(160)
    before, span = analysis.devices[0].windows
    assert (before.role, before.used) == ("before", False)
    assert (span.role, span.used) == ("span", True)
    assert (before.start_ns, span.start_ns) == (6 * US, _GAP_NS + 5 * US)
    assert span.end_ns - span.start_ns == 5 * US + 160 * 20 * US - 10 * US
    assert analysis.steps.after_start_up
    # Shares and gains are of the window; start-up is said first, and of all of the time.
    assert analysis.components.other_ns == 160 * 10 * US
    assert analysis.components.start_up_ns == 0
    said = headline(analysis)
    assert said.cls == "start-up"
    assert said.sentence.startswith("Start-up takes 50.0 ms of the 53.2 ms from the first GPU op")
    assert re.search(r"The figures are of the 3\.(19|20) ms after it\.$", said.sentence)  # 3.195
    assert "(mostly launch latency) takes 49.9 %" in analysis.verdict.sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"kernels": 7},  # too few to tell
        {"kernels": 160, "kinds": 160},  # nothing repeats
        {"kernels": 12, "every_ns": 25 * MS},  # start-up is a small part
        {"kernels": 8, "every_ns": 1 * US, "first_ns": 9 * US},  # little work follows
    ],
)
def test_else_the_window_is_the_whole_span(changes: dict[str, Any]) -> None:
    analysis = run(**changes)
    assert [window.role for window in analysis.devices[0].windows] == ["span"]
    assert not analysis.steps.after_start_up


def test_little_time_with_nearly_all_of_the_work_is_judged() -> None:
    """Behind 50 ms of start-up with a fill of 4 us, 70 kernels of 10 us take 2.7 % of the time."""
    analysis = run(70)
    assert analysis.steps.after_start_up
    assert analysis.components.window_ns == 5 * US + 70 * 20 * US - 10 * US


@given(
    pauses=st.lists(st.integers(0, 40), min_size=12, max_size=24),
    allocating=st.sets(st.integers(0, 11), max_size=4),
    first_ms=st.integers(5, 60),
)
def test_start_up_and_the_rest_are_the_whole(
    pauses: list[int], allocating: set[int], first_ms: int
) -> None:
    """Kernels after pauses, some filled by one long call that is the first of its name."""
    begin, works, calls = first_ms * MS + 20 * US, [("fill", 0, 5 * US, US)], []
    calls.append({"name": "cudaMalloc", "start_ns": 10 * US, "dur_ns": first_ms * MS})
    for number, pause in enumerate(pauses):
        begin += pause * 100 * US
        works.append((f"k{number % 2}", begin - 5 * US, begin, MS))
        if number in allocating and pause:
            start = begin - pause * 100 * US + 10 * US
            calls.append(
                {"name": f"cudaFirst{number}", "start_ns": start, "dur_ns": pause * 95_000}
            )
        begin += MS
    made = launched(*works)
    analysis = analyze(trace_of(activities=made["activities"], calls=[*made["calls"], *calls]))
    [device] = analysis.devices
    parts = [window.account.components for window in device.windows]
    assert sum(part.window_ns for part in parts) == begin - 5 * US
    said: list[Any] = [one.claim.values for one in analysis.findings if one.rule == "start-up"]
    if analysis.steps.after_start_up:
        assert analysis.components.start_up_ns == 0
        for values in said:
            told_ns = sum(values[name] or 0 for name in ("time_ns", "rest_ns", "beside_ns"))
            untold_ns = values["window_ns"] - told_ns
            assert values["window_ns"] == begin - 5 * US
            assert untold_ns == 0 if values["beside_ns"] else 0 <= untold_ns < begin / 100
    else:
        assert len(parts) == 1


def collectives(*first_ms: int) -> Analysis:
    """Return a first launch of 40 ms, then collectives that take turns with GEMMs of 1 ms."""
    works, at = [("fill", 0, 5 * US, US)], 40 * MS
    for took in (*first_ms, *(10,) * 6):
        works.append(("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at - 5 * US, at, took * MS))
        works.append(("sgemm", at, at + took * MS, MS))
        at += (took + 1) * MS
    made = launched(*works)
    made["calls"].append({"name": "cudaMalloc", "start_ns": 10 * US, "dur_ns": 39 * MS})
    return analyze(trace_of(**made))


@pytest.mark.parametrize(("first_ms", "begins_us"), [(30, 60_000), (19, 39_995)])
def test_a_first_collective_sets_up(first_ms: int, begins_us: int) -> None:
    """One that takes over twice as long as all others: what it takes beyond the usual 10 ms."""
    analysis = collectives(first_ms)
    assert analysis.devices[0].windows[-1].start_ns == begins_us * US
    [start_up] = [one for one in analysis.findings if one.rule == "start-up"]
    in_calls_us, set_up_us = 39_985, 20_000 * (first_ms == 30)
    assert start_up.claim.values["time_ns"] == (in_calls_us + set_up_us) * US


def test_a_chosen_time_is_what_was_chosen() -> None:
    made = launched(
        *(("k", t - 5 * US, t, 10 * US) for t in (6 * US, *range(50 * MS, 53 * MS, 20 * US)))
    )
    made["calls"].append({"name": "cudaMalloc", "start_ns": 20 * US, "dur_ns": 40 * MS})
    trace = trace_of(**made)
    assert analyze(trace).steps.after_start_up
    chosen = analyze(trace, Selection(from_ns=0))
    assert not chosen.steps.after_start_up
    assert chosen.components.start_up_ns >= 40 * MS


def uploaded(*, back: int = 0, kinds: int = 3, marks: Sequence[str] = ()) -> Analysis:
    """Return 40 ms of copies HtoD of 4 ms each, 1 ms apart; then 10 ms of kernels, half the time.

    `back` of the last kernels are copies DtoH of 4 ms instead; `marks` are around the first launch.
    """
    works = [("copy", t, t + US, 4 * MS) for t in range(0, 50 * MS, 5 * MS)]
    works += [
        (f"k{t // (20 * US) % kinds}", t, t + 5 * US, 10 * US)
        for t in range(50 * MS, 60 * MS, 20 * US)
    ]
    works += [("copy", t * MS, t * MS + US, 4 * MS) for t in range(70, 70 + 5 * back, 5)]
    made = launched(*works)
    for number, row in enumerate(made["activities"]):
        if row["name"] == "copy":
            way = "HtoD" if number < 10 else "DtoH"
            row |= {"kind": "memcpy", "name": f"Memcpy {way}", "direction": way, "bytes": 40 * MS}
    ranges = step_marks(*((name, 0, US) for name in marks))
    return analyze(trace_of(**made, marks=ranges))


def test_data_that_are_uploaded_once_are_start_up() -> None:
    analysis = uploaded()
    before, span = analysis.devices[0].windows
    assert (before.role, before.used, span.used) == ("before", False, True)
    assert span.start_ns == 50 * MS + 5 * US
    assert headline(analysis).cls == "start-up"
    assert "mostly loading data onto the GPU" in headline(analysis).sentence


@pytest.mark.parametrize(("every_us", "is_left_out"), [(101, True), (200, False)])
def test_data_that_the_host_prepares_for_a_busy_loop_are_start_up(
    every_us: int, *, is_left_out: bool
) -> None:
    """Two copies of 1 ms begin 10 ms apart, and 300 kernels of 100 us from 20 ms on."""
    works = [("copy", t, t + US, MS) for t in (0, 10 * MS)]
    works += [
        ("k", 20 * MS + n * every_us * US, 20 * MS + n * every_us * US + US, 100 * US)
        for n in range(300)
    ]
    made = launched(*works)
    for row in made["activities"][:2]:
        row |= {"kind": "memcpy", "name": "Memcpy HtoD", "direction": "HtoD", "bytes": MS}
    windows = analyze(trace_of(**made)).devices[0].windows
    assert [window.role for window in windows] == ["before"] * is_left_out + ["span"]


def test_the_input_of_a_single_pass_is_no_start_up() -> None:
    """The same copies, but each layer has kernels of its own; or a data loader gave the batch."""
    one_pass = uploaded(kinds=200)
    loaded = uploaded(marks=["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"])
    for analysis in (one_pass, loaded):
        assert [window.role for window in analysis.devices[0].windows] == ["span"]


def test_data_that_come_back_are_work() -> None:
    analysis = uploaded(back=2)
    assert [window.role for window in analysis.devices[0].windows] == ["span"]


@pytest.mark.parametrize(
    ("first", "times"), [(60, ("2.00", "1.19")), (90, ("1.40", "1.79")), (91, ()), (0, ())]
)
def test_a_range_measures_without_start_up_as_well(first: int, times: tuple[str, ...]) -> None:
    """A warm-up, a kernel every 20 us, of 20 to set up and others; then a range around the rest.

    The range must launch half of the 140 others.
    """
    names = [*["init"] * 20, *(f"k{n % 3}" for n in range(140))]
    works = [(name, (20 * n + 4) * US, (20 * n + 10) * US, 10 * US) for n, name in enumerate(names)]
    begin = works[first][1] - US
    marks = step_marks(("timed", begin, works[-1][1] + US - begin))
    analysis = analyze(trace_of(**launched(*works), marks=marks))
    assert analysis.steps.measured == ("timed" if times else None)
    # The range begins at 1,203 or 1,803 us, the first kernel at 10; the last one ends at 3,200.
    text = "The figures are of the {} ms in timed, without {} ms before it."
    assert not times or text.format(*times) in scope(analysis)


@pytest.mark.parametrize(
    ("times", "launches", "is_set_up"), [(1, 240, True), (1, 90, False), (2, 240, False)]
)
def test_a_kernel_that_runs_once_before_a_loop_sets_up(
    times: int, launches: int, *, is_set_up: bool
) -> None:
    """It takes 40 ms, and a loop of short kernels follows, during half of which the GPU is idle."""
    makes = [
        ("make_data(float*)", n, 10 * US + 20 * MS * n, 40 * MS // times) for n in range(times)
    ]
    loop = ((f"k{n % 3}", 45 * MS + 100 * US * n) for n in range(launches))
    works = [*makes, *((name, ns - 5 * US, ns, 50 * US) for name, ns in loop)]
    analysis = analyze(trace_of(**launched(*works)))
    assert analysis.steps.after_start_up == is_set_up
    once = "mostly make_data, which runs once, before the loop. The figures are of the 2"
    assert any(once in finding.sentence for finding in analysis.findings) == is_set_up
    assert headline(analysis).cls != "start-up"


@pytest.mark.parametrize("is_kernel", [False, True])
def test_migrations_are_no_loop_behind_the_only_kernel(*, is_kernel: bool) -> None:
    """The host reads the result of 100 ms page by page; as many kernels would be a loop."""
    page = {"name": "page", "kind": "memcpy", "direction": "migration DtoH"}
    piece = {"name": "k"} if is_kernel else page
    loop = [{**piece, "start_ns": (105 + n) * MS, "dur_ns": MS // 2} for n in range(240)]
    works = [{"name": "add(float*)", "start_ns": 0, "dur_ns": 100 * MS}, *loop]
    assert analyze(trace_of(activities=works)).steps.after_start_up == is_kernel


@pytest.mark.parametrize(("copies", "is_left_out"), [(120, True), (20, False)])
def test_many_copies_before_the_first_kernel_of_a_single_pass_load_weights(
    copies: int, *, is_left_out: bool
) -> None:
    """Copies take 5 ms of 100, then 10 kernels of names of their own follow."""
    each_ns = 5 * MS // copies
    weights = [
        {"name": "Memcpy HtoD", "kind": "memcpy", "direction": "HtoD", "bytes": 1 << 20}
    ] * copies
    rows = [{**row, "start_ns": each_ns * n, "dur_ns": each_ns} for n, row in enumerate(weights)]
    rows += [{"name": f"k{n}", "start_ns": (5 + 9 * n) * MS, "dur_ns": 8 * MS} for n in range(10)]
    analysis = analyze(trace_of(activities=rows))
    window_ns = analysis.components.window_ns
    assert window_ns == (94 if not is_left_out else 89) * MS
    told = "Start-up takes 5.00 ms of the 94.0 ms from the first GPU operation to the last (5.3 %)"
    assert any(told in finding.sentence for finding in analysis.findings) == is_left_out


def test_a_kernel_that_runs_once_is_no_start_up_where_figures_begin_with_it() -> None:
    """Weights take 100 ms; then one kernel runs once and a loop follows, for 900 ms."""
    row = {"name": "Memcpy HtoD", "kind": "memcpy", "direction": "HtoD", "bytes": 1 << 20}
    rows: list[dict[str, Any]] = [
        {**row, "start_ns": n * MS, "dur_ns": 900 * US} for n in range(100)
    ]
    rows.append({"name": "make_data", "start_ns": 100 * MS, "dur_ns": 60 * MS})
    rows += [
        {"name": f"k{n % 3}", "start_ns": 160 * MS + 2_800 * US * n, "dur_ns": 2_700 * US}
        for n in range(300)
    ]
    findings = analyze(trace_of(activities=rows)).findings
    [starts] = [finding for finding in findings if finding.rule == "start-up"]
    assert "from the first kernel on" in starts.sentence
    assert "make it faster" not in starts.remedy


def test_weights_of_one_gpu_do_not_leave_out_the_work_of_another() -> None:
    """One GPU runs kernels from 100 to 1,000 ms; another gets weights until 900 ms."""
    row = {"name": "Memcpy HtoD", "kind": "memcpy", "direction": "HtoD", "bytes": 1 << 20}
    rows: list[dict[str, Any]] = []
    for device, each_ns, copies in ((0, MS, 100), (1, 5 * MS, 180)):
        rows += [
            {**row, "device": device, "start_ns": each_ns * n, "dur_ns": each_ns // 5 * 4}
            for n in range(copies)
        ]
        rows += [
            {"name": f"k{at}", "device": device, "start_ns": at, "dur_ns": 8 * MS}
            for at in range(each_ns * copies, 1_000 * MS, 9 * MS)
        ]
    devices = [{"device": number, "local_id": number} for number in (0, 1)]
    steps = analyze(trace_of(activities=rows, devices=devices)).steps
    assert steps.text == "no steps found; the whole trace is one window"


@pytest.mark.parametrize(("before", "begins"), [(4, True), (20, False)])
def test_a_short_loop_after_start_up_counts_if_nearly_all_work_is_in_it(
    before: int, *, begins: bool
) -> None:
    """Kernels of 10 us that make data, 9 s of nothing, then 60 of 2 us: less than 90 % of work."""
    made = [("data", 20 * US * n, 10 * US) for n in range(before)]
    loop = [("norm", 9_000 * MS + 26 * US * n, 2 * US) for n in range(60)]
    columns = ("name", "start_ns", "dur_ns")
    works = [dict(zip(columns, work, strict=True)) for work in (*made, *loop)]
    analysis = analyze(trace_of(activities=works))
    assert (analysis.devices[0].windows[-1].start_ns >= 9_000 * MS) is begins

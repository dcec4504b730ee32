"""Steps and windows on traces whose every nanosecond is known."""

import shlex
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.build import launched, step_marks, trace_of
from tests.conftest import shared_file
from traceflops import Analysis, Selection, UsageError, analyze
from traceflops.facts import fact
from traceflops.parsers.reading import read
from traceflops.reports.page.steps import window_rows
from traceflops.reports.view.wording import basis
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import EMPTY_ACCOUNT, Components, Window, WindowRole
from traceflops.windows.periodicity import lossy, steady
from traceflops.windows.tiling import Behind, tile

GEMM = "ampere_sgemm_128x64_nt"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<x>(int)"


def edges(analysis: Analysis, device: int = 0) -> list[tuple[str, int, int]]:
    return [(w.label, w.start_ns, w.end_ns) for w in analysis.devices[device].windows]


def used(analysis: Analysis) -> list[int | None]:
    return [w.step for w in analysis.devices[0].windows if w.used]


def window(analysis: Analysis, step: int) -> Window:
    (found,) = [w for w in analysis.devices[0].windows if w.step == step]
    return found


def run_of(lengths: list[int], name: str = "ProfilerStep#{}") -> dict[str, Any]:
    """Return a run whose step k lasts lengths[k] on the device, issued 5 ns before it starts."""
    works, marks, now = [], [], 1000
    for number, length in enumerate(lengths):
        works.append((GEMM, now - 5, now, length))
        marks.append((name.format(number), now - 9, 8))
        now += length
    return {**launched(*works), "marks": step_marks(*marks)}


@pytest.mark.parametrize(
    ("early_ns", "first", "second"), [(50, 200, 399), (150, 250, 399), (199, 300, 400)]
)
def test_windows_tile_the_span_and_steps_have_the_time_before_their_work(
    early_ns: int, first: int, second: int
) -> None:
    """They begin at their marks or after earlier work, or at their own where it is hardly later."""
    analysis = analyze(
        trace_of(
            **launched(
                ("early", 0, 100, early_ns),
                (GEMM, 210, 300, 40),
                (GEMM, 220, 350, 49),
                (GEMM, 310, 400, 100),
                ("late", 390, 600, 20),
            ),
            marks=step_marks(("ProfilerStep#7", 200, 100), ("ProfilerStep#8", 300, 50)),
        )
    )
    assert edges(analysis) == [
        ("before", 100, first),
        ("step 7", first, second),
        ("step 8", second, 500),
        ("after", 500, 620),
    ]
    assert window(analysis, 7).launched == 2


def test_work_without_a_launch_counts_in_the_window_it_lies_in() -> None:
    run = run_of([100, 100])
    run["activities"].append({"name": "lost", "start_ns": 1100, "dur_ns": 30, "stream": 8})
    step = window(analyze(trace_of(**run)), 1)
    assert step.account.activities == 2
    assert step.account.launched_activities == 1


def test_a_later_step_that_starts_early_on_another_stream_never_makes_time_run_backwards() -> None:
    works = launched((GEMM, 10, 500, 100), (GEMM, 110, 300, 100))
    marks = step_marks(("ProfilerStep#0", 0, 50), ("ProfilerStep#1", 100, 50))
    analysis = analyze(trace_of(**works, marks=marks))
    assert edges(analysis) == [
        ("before", 300, 500),
        ("step 0", 500, 500),
        ("step 1", 500, 500),
        ("after", 500, 600),
    ]
    (note,) = [note for note in analysis.notes if note.code == "steps-overlap"]
    assert note.count == 2


@pytest.mark.parametrize(("apart", "begins"), [(100, 1_050), (1_000, 1_006)])
def test_copies_that_run_ahead_begin_no_step(apart: int, begins: int) -> None:
    """The host launches a copy and 900 of work per step: each 100, or as fast as they run."""
    activities, calls, marks, free = [], [], [], 0
    for step in range(8):
        at = 1_000 + apart * step
        free = max(free, at + 50)
        marks.append((f"ProfilerStep#{step}", at, 90))
        for turn, start, dur in ((0, at + 6, 30), (1, free, 900)):
            one = {"start_ns": start, "dur_ns": dur, "correlation": 2 * step + turn}
            copies = {"name": "Memcpy HtoD", "kind": "memcpy", "stream": 20}
            activities.append(one | ({"name": GEMM} if turn else copies))
            calls.append({"start_ns": at + 1 + turn, "correlation": 2 * step + turn})
        free += 910
    analysis = analyze(trace_of(activities=activities, calls=calls, marks=step_marks(*marks)))
    lasts = max(apart, 910)
    steps = [begins + lasts * at for at in range(1, 8)]
    assert edges(analysis)[:8] == [
        ("step 0", 1_006, steps[0]),
        *((f"step {at}", *steps[at - 1 : at + 1]) for at in range(1, 7)),
        ("step 7", steps[-1], free - 10),
    ]
    assert [one.launched for one in analysis.devices[0].steps] == [2] * 8


def test_warm_up_and_the_last_step_are_left_out_and_said() -> None:
    analysis = analyze(trace_of(**run_of([126, 140, 100, 100, 100, 60])))
    assert used(analysis) == [2, 3, 4]
    assert window(analysis, 0).left_out == fact("left-out.warm-up", times=1.25)
    assert window(analysis, 5).left_out == fact("left-out.last-step")
    assert analysis.steps.seen == (0, 1, 2, 3, 4, 5)
    assert analysis.components.window_ns == 300


def test_exactly_a_quarter_longer_is_no_warm_up() -> None:
    assert used(analyze(trace_of(**run_of([125, 100, 100, 100])))) == [0, 1, 2]


def test_a_slow_step_in_the_middle_is_used() -> None:
    assert used(analyze(trace_of(**run_of([100, 900, 100, 100])))) == [0, 1, 2]


def test_of_two_steady_steps_the_last_is_kept() -> None:
    assert used(analyze(trace_of(**run_of([100, 100])))) == [0, 1]


def test_a_lone_step_is_used_with_a_note() -> None:
    analysis = analyze(trace_of(**run_of([100])))
    assert used(analysis) == [0]
    assert "one-step" in [note.code for note in analysis.notes]


def test_an_unfinished_last_step_is_flagged() -> None:
    run = run_of([100, 100, 100, 100])
    extra = launched(*((GEMM, 995 + 100 * k, 1000 + 100 * k, 0) for k in range(3)), first=50)
    for table, rows in extra.items():
        run[table].extend(rows)
    analysis = analyze(trace_of(**run))
    assert [w.unfinished for w in analysis.devices[0].steps] == [False, False, False, True]


def test_chosen_steps_include_both_ends_and_warm_up() -> None:
    trace = trace_of(**run_of([500, 100, 100, 100, 100]))
    assert used(analyze(trace, Selection(steps=(0, 1)))) == [0, 1]
    assert used(analyze(trace, Selection(steps=(3, None)))) == [3, 4]
    with pytest.raises(UsageError, match="none of the selected steps"):
        analyze(trace, Selection(steps=(9, 12)))


def test_a_stretch_of_time_is_counted_from_the_first_activity() -> None:
    trace = trace_of(**run_of([100, 100]))
    analysis = analyze(trace, Selection(from_ns=50, to_ns=150))
    (chosen,) = [w for w in analysis.devices[0].windows if w.used]
    assert (chosen.role, chosen.start_ns, chosen.end_ns) == ("range", 1050, 1150)
    assert analysis.components.compute_ns == 100
    assert analysis.kernels["sum_ns"].to_pylist() == [100]
    assert analysis.kernels["count"].to_pylist() == [1]
    with pytest.raises(UsageError, match="outside"):
        analyze(trace, Selection(from_ns=10_000))


def test_time_in_which_only_another_device_worked_is_idle_for_unknown_reasons() -> None:
    run = run_of([100])
    run["activities"].append({"name": "other", "start_ns": 1150, "dur_ns": 100, "device": 1})
    trace = trace_of(**run, devices=[{}, {"device": 1, "local_id": 1}])
    first, second = analyze(trace, Selection(from_ns=0, to_ns=250)).devices
    assert first.chosen.components.idle_ns == 150
    assert first.chosen.idle_causes.unknown_ns == 150
    assert second.chosen.idle_causes.unknown_ns == 150


def test_a_window_does_not_reach_beyond_the_recording() -> None:
    analysis = analyze(trace_of(**run_of([100])), Selection(to_ns=10**9))
    assert analysis.components.window_ns == 100
    assert "range-clipped" in [note.code for note in analysis.notes]


def test_each_rank_leaves_out_its_own_last_step() -> None:
    short, long = run_of([100] * 4), run_of([100] * 6)
    rows: dict[str, Any] = {"processes": [{}, {"process": 1}]}
    rows["devices"] = [{}, {"device": 1, "process": 1}]
    for table in ("activities", "calls", "marks"):
        others = [row | {"process": 1} for row in long[table]]
        rows[table] = short[table] + others
    for row in rows["activities"][4:]:
        row["device"] = 1
    first, second = analyze(trace_of(**rows)).devices
    assert [w.step for w in first.windows if w.used] == [0, 1, 2]
    assert [w.step for w in second.windows if w.used] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["step {}", "Iteration#{}", "train_step_{}", "training iter: {}"])
def test_annotations_that_name_a_step(name: str) -> None:
    analysis = analyze(trace_of(**run_of([100, 100], name)))
    assert analysis.steps.source == "annotation"
    assert analysis.steps.seen == (0, 1)


@pytest.mark.parametrize("name", ["forward", "Optimizer.step#SGD.step", "steps taken", "layer {}"])
def test_annotations_that_name_no_step(name: str) -> None:
    assert analyze(trace_of(**run_of([100, 100], name))).steps.seen == ()


def test_step_mark_names_them() -> None:
    trace = trace_of(**run_of([100, 100], "batch<{}>"))
    analysis = analyze(trace, Selection(step_mark=r"batch<\d+>"))
    assert analysis.steps.source == "mark-regex"
    assert analysis.steps.seen == (0, 1)
    with pytest.raises(UsageError, match="no step starts"):
        analyze(trace, Selection(step_mark="nothing"))
    for text in ("(", "(?=a)", "a)|(b", "\udcff"):
        with pytest.raises(UsageError, match="not a valid regular expression"):
            Selection(step_mark=text)


def test_a_group_of_the_step_mark_gives_the_number() -> None:
    trace = trace_of(**run_of([100, 100], "lr 3 batch {} of 7"))
    assert analyze(trace, Selection(step_mark=r"lr \d+ batch (\d+).*")).steps.seen == (0, 1)


def test_marks_without_a_number_are_counted_from_zero() -> None:
    run = run_of([100, 100], "again")
    assert analyze(trace_of(**run), Selection(step_mark="again")).steps.seen == (0, 1)


def test_markers_on_several_threads_and_repeated_numbers() -> None:
    run = run_of([100, 100])
    run["marks"].append({"name": "ProfilerStep#0", "start_ns": 990, "dur_ns": 8, "thread": 2})
    analysis = analyze(trace_of(**run))
    assert analysis.steps.seen == (0, 1)
    assert "steps-on-other-threads" in [note.code for note in analysis.notes]
    twice = analyze(trace_of(**run_of([100, 100, 100], "ProfilerStep#5")))
    assert twice.steps.seen == (0, 1, 2)
    assert "repeated-step-numbers" in [note.code for note in twice.notes]


def test_marks_of_a_thread_that_launches_nothing_do_not_win() -> None:
    """A loader counts steps of its own, more of them than there are of the loop."""
    run = run_of([100, 100, 100], "step {}")
    for number in range(9):
        run["marks"].append(
            {
                "name": f"loader step {number}",
                "start_ns": 990 + number * 30,
                "dur_ns": 20,
                "thread": 2,
            }
        )
    analysis = analyze(trace_of(**run))
    assert analysis.steps.seen == (0, 1, 2)
    (note,) = [one for one in analysis.notes if one.code == "steps-on-other-threads"]
    assert note.count == 9
    run["marks"] = run["marks"][3:]  # where no other thread marks steps, its marks are all there is
    assert analyze(trace_of(**run)).steps.source == "annotation"


def test_a_device_whose_process_marks_no_steps_is_named() -> None:
    run = run_of([100, 100, 100])
    run["processes"] = [{"rank": 0, "file": "a"}, {"process": 1, "rank": 4, "file": "a"}]
    run["devices"] = [{"process": 0, "local_id": 0}, {"device": 1, "process": 1, "local_id": 3}]
    other = {"name": GEMM, "start_ns": 1000, "dur_ns": 400, "device": 1, "process": 1}
    run["activities"].append(other)
    analysis = analyze(trace_of(**run))
    (note,) = [one for one in analysis.notes if one.code == "devices-without-steps"]
    assert note.count == 1
    assert "rank 4 (gpu 3)" in note.text
    assert [device.local_id for device in analysis.devices_used] == [0]
    assert basis(analysis).startswith("Averages per step and GPU (2 steps")


def test_without_steps_the_whole_span_is_the_window() -> None:
    run = run_of([100, 100])
    analysis = analyze(trace_of(**{**run, "marks": []}))
    assert edges(analysis) == [("span", 1000, 1200)]
    assert analysis.components.window_ns == 200
    assert "no-steps" in [note.code for note in analysis.notes]


def unmarked(name: str, lengths: list[int]) -> Any:
    """Return a run whose range k, called `name`, lasts lengths[k] and has one kernel, 5 ns late."""
    works, marks, now = [], [], 1000
    for number, length in enumerate(lengths):
        works.append((GEMM, now, now + 5, length - 5))
        marks.append((name.format(number, 10 * number), now, length - 1))
        now += length
    return {**launched(*works), "marks": step_marks(*marks)}


def no_steps(run: Any) -> str:
    """Return what is said of a run without steps."""
    (found,) = [note.text for note in analyze(trace_of(**run)).notes if note.code == "no-steps"]
    return found


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("Step {0} to {1}", r"'Step \d+ to \d+'"),
        ("Epoch {}", r"'Epoch \d+'"),
        ("train(x)[{}]'s", r"""'train\(x\)\[\d+\]'"'"'s'"""),
        ("train_step", "train_step"),
        ("MoE[experts=64, call={}]", r"'MoE\[experts=64, call=\d+\]'"),
    ],
)
def test_ranges_that_look_like_steps_are_named_as_the_option(name: str, option: str) -> None:
    """Copied into a command, the option finds a step per range."""
    run = unmarked(name, [100, 120, 100, 90, 100])
    assert no_steps(run).endswith(f" Some ranges look like steps: try --step-mark {option}.")
    (mark,) = shlex.split(option)
    found = analyze(trace_of(**run), selection=Selection(step_mark=mark))
    assert len(found.steps.seen) == 5


@pytest.mark.parametrize(
    "name",
    [
        "MPI_Recv",
        "PMPI_Allreduce",
        "ncclGroupEnd",
        "## backward ##",
        "Optimizer {}",
        "backend_compile_and_load",
    ],
)
def test_calls_of_a_library_and_parts_of_a_step_do_not_look_like_steps(name: str) -> None:
    assert "look like steps" not in no_steps(unmarked(name, [100, 120, 100, 90, 100]))


def tokens(name: str, numbers: list[int], layers: int) -> Any:
    """Return a run of ranges, each of layers of five kernels, which differ."""
    works, marks, now = [], [], 1000
    for number in numbers:
        marks.append((name.format(number), now, layers * 500))
        begins = range(now, now + layers * 500, 100)
        works += [(f"{GEMM}{at // 100 % 5}", at, at + 5, 90) for at in begins]
        now = begins.stop
    return {**launched(*works), "marks": step_marks(*marks)}


@pytest.mark.parametrize(
    ("name", "numbers", "layers", "steps"),
    [
        ("token_{}_processing", [7, 8, 9, 10], 4, [7, 8, 9, 10]),
        ("token_{}_of_4", [0, 1, 2, 3], 4, [0, 1, 2, 3]),
        ("token_{}_processing", [7, 8, 10, 11], 4, []),
        ("token_{}_processing", [7, 8], 4, []),
        ("token_{}_processing", [7, 8, 9, 10], 1, []),
        ("decoder_layer_{}_forward", [7, 8, 9, 10], 4, []),
        ("epoch {} of 9", [7, 8, 9, 10], 4, []),
        ("{}th token", [2**63 + n for n in range(4)], 4, [0, 1, 2, 3]),
    ],
    ids=[
        "numbered",
        "another number",
        "not consecutive",
        "few",
        "no layers",
        "layers",
        "epochs",
        "long",
    ],
)
def test_numbered_ranges_that_hold_layers_are_steps(
    name: str, numbers: list[int], layers: int, steps: list[int]
) -> None:
    analysis = analyze(trace_of(**tokens(name, numbers, layers)))
    assert list(analysis.steps.seen) == steps


@pytest.mark.parametrize(("beside_ns", "steps"), [(7_000, 4), (8_000, 0)])
def test_numbered_ranges_hold_half_of_the_time_of_all_work(beside_ns: int, steps: int) -> None:
    """Four ranges of 20 kernels of 90 ns run beside one; it takes less than they do, or more."""
    run = tokens("token_{}_processing", [*range(4)], 4)
    run["activities"].insert(0, {"name": "one", "start_ns": 990, "dur_ns": beside_ns})
    assert len(analyze(trace_of(**run)).steps.seen) == steps


@pytest.mark.parametrize(
    ("first", "name", "steps"),
    [("WARM_UP", "forward", 4), ("set-up", "forward", 0), ("WARM_UP", "decoder layer", 0)],
)
def test_ranges_of_one_name_after_a_warm_up_are_steps(first: str, name: str, steps: int) -> None:
    """A copy of weights takes longer than the four ranges, and two ranges' time warms up."""
    run = tokens(name, [*range(6)], 4)
    run["marks"] = [*step_marks((first, 1000, 4000)), *run["marks"][2:]]
    weights = {"name": "weights", "start_ns": -20_000, "dur_ns": 20_000}
    run["activities"].insert(0, weights)
    assert len(analyze(trace_of(**run)).steps.seen) == steps


def test_callbacks_of_another_thread_do_not_look_like_steps() -> None:
    run = unmarked("Event::Execute", [100] * 5)
    run["marks"] = [{**mark, "thread": 2} for mark in run["marks"]]
    assert "--step-mark Event" not in no_steps(run)
    run["calls"] = []  # without launches nothing tells
    assert "--step-mark Event::Execute" in no_steps(run)


@pytest.mark.parametrize(
    "marks",
    [
        [("Epoch 1", 1000, 100), ("Epoch 2", 1100, 100)],
        [(f"Epoch {n}", 1000 + 100 * n, 20 + 20 * n) for n in range(5)],
        [(f"Epoch {n}", 1000 + 100 * n, 40) for n in range(5)],
        [(f"Epoch {n}", 1000 + n, 90) for n in range(5)],
    ],
    ids=["few", "uneven", "less than half of the time", "at once"],
)
def test_other_ranges_are_not_taken_for_steps(marks: list[tuple[str, int, int]]) -> None:
    run = {**unmarked("", [100] * 5), "marks": step_marks(*marks)}
    assert "name the annotations that begin a step with --step-mark." in no_steps(run)


def test_ranges_that_are_not_there_cannot_be_named_as_steps() -> None:
    told = no_steps({**unmarked("", [100] * 5), "marks": []})
    assert told.endswith(" Call prof.step() once per iteration when recording.")


@pytest.mark.parametrize("name", ["", "\x1b[31m {}", "\u202eEpoch {}", "long " * 20 + "{}"])
def test_what_nobody_would_type_is_no_option(name: str) -> None:
    assert "try" not in no_steps(unmarked(name, [100] * 5))


def test_training_steps_are_inferred_from_optimizer_kernels() -> None:
    works, now = [], 1000
    for _ in range(5):
        for name in (*[GEMM] * 8, ADAM, ADAM):
            works.append((name, now - 5, now, 10))
            now += 10
    analysis = analyze(trace_of(**launched(*works)))
    assert analysis.steps.source == "optimizer"
    assert edges(analysis) == [
        ("before", 1000, 1100),
        ("step 0", 1100, 1200),
        ("step 1", 1200, 1300),
        ("step 2", 1300, 1400),
        ("after", 1400, 1500),
    ]
    assert "steps-inferred" in [note.code for note in analysis.notes]


def decode_run(tokens: list[int]) -> Any:
    """Return tokens of `n` kernels each, every one ending in a copy of the result to the host."""
    rows, now = [], 1000
    for kernels in tokens:
        for name in ["embed", *[f"layer{k % 3}" for k in range(kernels)]]:
            rows.append({"name": name, "start_ns": now})
            now += 10
        copy = {"name": "Memcpy DtoH", "kind": "memcpy", "direction": "DtoH", "start_ns": now}
        rows.append(copy)
        now += 10
    return trace_of(activities=rows)


def test_decoding_steps_are_inferred_from_copies() -> None:
    analysis = analyze(decode_run([9] * 6))
    assert analysis.steps.source == "copies"
    assert len(analysis.steps.seen) == 5


def test_repeated_layers_are_not_taken_for_steps() -> None:
    rows = [{"name": f"layer{k % 3}", "start_ns": 1000 + 10 * k} for k in range(60)]
    assert analyze(trace_of(activities=rows)).steps.source == "none"


def test_irregular_repetition_is_not_taken_for_steps() -> None:
    assert analyze(decode_run([9, 30, 5, 17, 60, 11])).steps.source == "none"


def test_a_device_on_which_no_step_launched_anything_is_left_out() -> None:
    run = run_of([100, 100])
    run["activities"].append({"name": "lost", "start_ns": 0, "dur_ns": 9, "device": 1})
    devices: list[dict[str, Any]] = [{}, {"device": 1, "local_id": 1}]
    analysis = analyze(trace_of(**run, devices=devices))
    (only,) = analysis.devices[1].windows
    assert (only.role, only.used) == ("span", False)
    assert analysis.components.window_ns == 200


def without_calls(lengths: list[int], ahead: int = 0) -> dict[str, Any]:
    """Return kernels and marks of steps only; the host is `ahead` ns of the device."""
    run = run_of(lengths)
    for mark in run["marks"]:
        number = int(mark["name"].partition("#")[2])
        begin = 1000 + sum(lengths[:number])
        mark.update(start_ns=begin - ahead, dur_ns=lengths[number])
    return {"activities": run["activities"], "marks": run["marks"]}


def test_without_any_launch_work_belongs_to_the_step_in_which_it_started() -> None:
    analysis = analyze(trace_of(**without_calls([100, 120, 90])))
    assert edges(analysis) == [
        ("step 0", 1000, 1100),
        ("step 1", 1100, 1220),
        ("step 2", 1220, 1310),
    ]
    (note,) = [note for note in analysis.notes if note.code == "steps-by-device-time"]
    assert "started on the GPU" in note.text
    assert analysis.devices[0].whole.unlinked is None
    assert analysis.total.launches is None


def test_work_outside_all_marks_belongs_to_no_step() -> None:
    run = without_calls([100, 120, 90])
    run["activities"].append({"name": "late", "start_ns": 2000, "dur_ns": 50})
    windows = edges(analyze(trace_of(**run)))
    assert windows[-1] == ("after", 1310, 2050)


def test_a_few_known_launches_are_better_than_times() -> None:
    run = without_calls([100, 120, 90])
    run["calls"] = [{"start_ns": 1101, "correlation": 3}]
    analysis = analyze(trace_of(**run))
    assert "steps-by-device-time" not in [note.code for note in analysis.notes]
    assert analysis.steps.seen == (1,)


def test_each_process_has_its_own_way() -> None:
    run = run_of([100, 100])
    own = without_calls([100, 100])
    for row in own["activities"]:
        row.update(process=1, device=1)
    for row in own["marks"]:
        row.update(process=1)
    analysis = analyze(
        trace_of(
            processes=[{}, {"process": 1}],
            devices=[{}, {"device": 1, "process": 1}],
            activities=run["activities"] + own["activities"],
            calls=run["calls"],
            marks=run["marks"] + own["marks"],
        )
    )
    assert [w.step for w in analysis.devices[1].windows] == [0, 1]
    assert "steps-by-device-time" in [note.code for note in analysis.notes]


@pytest.mark.parametrize("kind", ["annotation", "instant"])
def test_a_step_of_instants_lasts_until_the_next(kind: str) -> None:
    run = run_of([100, 100, 100], "step {}")
    for mark in run["marks"]:
        mark.update(dur_ns=0, kind=kind)
    analysis = analyze(trace_of(**run))
    assert edges(analysis) == [
        ("step 0", 1000, 1100),
        ("step 1", 1100, 1200),
        ("step 2", 1200, 1300),
    ]


def test_work_without_length_at_the_end_counts_once_in_steps_without_length() -> None:
    """Both steps hold the same moment: that of their only work, which ends the recording."""
    run = run_of([100, 100, 100], "step {}")
    for activity in run["activities"][-2:]:
        activity.update(start_ns=1400, dur_ns=0)
    analysis = analyze(trace_of(**run))
    counts = [window.account.activities for window in analysis.devices[0].windows]
    assert sum(counts) == len(run["activities"])


def on_device(*starts: int, name: str = GEMM) -> list[dict[str, Any]]:
    return [{"name": name, "start_ns": start, "dur_ns": 40} for start in starts]


def test_markers_that_end_before_their_work_begins_last_until_the_next() -> None:
    """Without API calls only times tell: the host was done with a step before the device began."""
    marks = step_marks(("step 10", 90, 5), ("step 11", 190, 5), ("step 12", 290, 5))
    analysis = analyze(trace_of(activities=on_device(100, 150, 200, 250, 300, 350), marks=marks))
    assert edges(analysis) == [("step 10", 90, 190), ("step 11", 190, 290), ("step 12", 290, 390)]
    assert "steps-until-next" in {note.code for note in analysis.notes}


def test_markers_in_whose_time_nothing_begins_are_said_to_be_there() -> None:
    """The host issued all steps before the device began with the first."""
    marks = step_marks(*((f"step {n}", 10 * n, 5) for n in range(6)))
    works = [
        {"name": ADAM if n % 5 == 4 else f"k{n % 5}", "start_ns": 1000 + 50 * n, "dur_ns": 40}
        for n in range(30)
    ]
    analysis = analyze(trace_of(activities=works, marks=marks))
    notes = {note.code: note for note in analysis.notes}
    assert notes["markers-without-work"].count == 6
    assert "no step markers" not in " ".join(note.text for note in analysis.notes)
    assert analysis.steps.source == "optimizer"


def nested(*inner: tuple[str, int, int], around: tuple[str, int, int] | None = None) -> Analysis:
    """Return what is found of two steps of 100 ns, each with four kernels, and marks in them."""
    works = [
        (GEMM, 100 * s + 20 * k + 5, 100 * s + 20 * k + 10, 8) for s in (0, 1) for k in range(4)
    ]
    outer = [("step 0", 0, 99), ("step 1", 100, 99)]
    marks = sorted((*outer, *inner, *([around] if around else [])), key=lambda one: one[1])
    return analyze(trace_of(**launched(*works), marks=step_marks(*marks)))


def test_of_step_marks_within_each_other_the_outer_are_the_steps() -> None:
    """The work launched behind "iter 1", at 65 and 165, is of the step around it."""
    analysis = nested(
        *(("iter 0", 0, 30), ("iter 1", 30, 30), ("iter 0", 100, 30), ("iter 1", 130, 30))
    )
    assert edges(analysis) == [("step 0", 0, 100), ("step 1", 100, 178)]
    (note,) = [note for note in analysis.notes if note.code == "steps-nested"]
    assert note.count == 4
    assert "steps-on-other-threads" not in {note.code for note in analysis.notes}


def test_one_mark_around_all_steps_is_none() -> None:
    analysis = nested(around=("iteration 7", -1, 300))
    assert analysis.steps.seen == (0, 1)
    (note,) = [note for note in analysis.notes if note.code == "steps-nested"]
    assert note.count == 1


PASSES = {
    "vLLM": ("execute_context_1(64)_generation_0(0)", "execute_context_0(0)_generation_3(3)"),
    "vLLM 0.11": ("execute_new_1_cached_0", "execute_new_0_cached_3"),
    "SGLang": ("step[EXTEND bs=1 toks=64]", "step[DECODE bs=3]"),
    "ATOM": ("prefill[bs=1 tok=64 ctx=[64]]", "decode[bs=3/4 tok=3 d=3]"),
}


@pytest.mark.parametrize("engine", PASSES)
def test_annotated_passes_are_the_steps_whatever_repeats_inside(engine: str) -> None:
    """Pass p is launched at 1000 p, by graph: 6 blocks of 23 kernels, of 10 ns each."""
    block = [*range(6), *range(6), *range(6), *range(20, 25)]
    tables: dict[str, list[dict[str, Any]]] = {"activities": [], "calls": [], "marks": []}
    for number, name in enumerate([PASSES[engine][0], *[PASSES[engine][1]] * 2]):
        at = 10_000 * number
        tables["marks"].append({"name": name, "start_ns": at, "dur_ns": 500})
        tables["calls"].append({"start_ns": at + 100, "correlation": number})
        for place, kernel in enumerate(block * 6):
            start, row = at + 1_000 + 10 * place, {"name": f"kernel {kernel}"}
            tables["activities"].append({**row, "start_ns": start, "correlation": number})
    analysis = analyze(trace_of(**tables))
    assert (analysis.steps.source, len(analysis.steps.seen)) == ("annotation", 3)
    lengths = [window.dur_ns for window in analysis.devices[0].steps]
    assert lengths == [10_000, 10_000, 6 * len(block) * 10]


def test_a_long_pass_at_the_beginning_is_no_warm_up() -> None:
    """A prefill does other work than a decode: it is used."""
    works = [
        ("prefill", 100, 1_000, 5_000),
        *(("decode", 10_000 * n, 10_100 * n, 100) for n in (1, 2)),
    ]
    names = ["step[EXTEND bs=1 toks=64]", "step[DECODE bs=1]", "step[DECODE bs=1]"]
    marks = [{"name": one, "start_ns": 10_000 * n, "dur_ns": 500} for n, one in enumerate(names)]
    steps = analyze(trace_of(**launched(*works), marks=marks)).steps
    assert steps.used == (0, 1)


MODEL, SAMPLING, OTHER = ("model", 600), ("sampling", 100), ("another model", 300)
NO_STRANGER = [[MODEL, SAMPLING]] * 3


@pytest.mark.parametrize(
    ("passes", "lengths"),
    [
        (NO_STRANGER, [1_000, 1_000, 600]),
        ([[MODEL, SAMPLING, OTHER], *NO_STRANGER[1:]], [700, 1_000, 600]),
        ([[MODEL, MODEL], [MODEL], [MODEL]], [600, 1_000, 600]),
        ([[MODEL, MODEL], [MODEL, MODEL], [MODEL, MODEL]], [600, 600, 600]),
        ([[MODEL, SAMPLING, ("copy", 6)], *NO_STRANGER[1:]], [1_000, 1_000, 600]),
    ],
)
def test_a_pass_without_annotation_is_not_of_the_one_before_it(
    passes: list[list[tuple[str, int]]], lengths: list[int]
) -> None:
    """Pass p starts at 1,000 p; what is behind its first kernel is launched behind its mark."""
    works, marks = [], []
    for number, kernels in enumerate(passes):
        at = start = 1_000 * (number + 1)
        marks.append({"name": "step[DECODE bs=3]", "start_ns": at - 500, "dur_ns": 20})
        for place, (kernel, length) in enumerate(kernels):
            works.append((kernel, at - 490 + 20 * place, start, length))
            start += length
    trace = trace_of(**launched(*works), marks=marks)
    analysis = analyze(trace)
    assert [window.dur_ns for window in analysis.devices[0].steps] == lengths
    assert sum(window.dur_ns for window in analysis.devices[0].windows) == start - 1_000
    between = 2_000 - sum(lengths[:2])
    inference = analysis.measured.inference
    assert inference is not None
    assert inference.outside_ns == between
    assert sum(one.time_ns for one in inference.phases) == sum(lengths[:-1])
    assert "work-outside-steps" in [note.code for note in analysis.notes]
    whole = analyze(trace, Selection(from_ns=0)).measured.inference
    assert whole is not None
    assert (whole.outside_ns, whole.phases[0].time_ns) == (between, start - 1_000 - between)


def test_a_pass_that_ran_before_an_earlier_one_has_no_time() -> None:
    """Pass 0 runs at 100, pass 1 at 50, other work behind it at 70, pass 2 at 200."""
    start, place = np.array([100, 50, 70, 200]), np.array([0, 1, -1, 2])
    behind = Behind(np.array([0, 1, 1, 2]), np.array([0, 0, 1, 0]), Intervals.empty())
    found = tile(start, start + 10, place, (50, 210), start > 0, behind)
    assert [(one.role, one.start_ns, one.end_ns) for one in found] == [
        ("before", 50, 100),
        ("step", 100, 100),
        ("step", 100, 100),
        ("between", 100, 200),
        ("step", 200, 210),
    ]


@pytest.mark.parametrize(
    ("before_ns", "begins_ns"),
    [
        (10, 900),  # 10 of 1,000 ns of work lie before the time without records: a trifle
        (11, 50),
    ],
)
def test_a_first_pass_does_not_begin_with_time_without_recorded_work(
    before_ns: int, begins_ns: int
) -> None:
    start, place = np.array([50, 900, 2_000]), np.array([0, 0, 1])
    end = start + np.array([before_ns, 1_000 - before_ns, 10])
    unrecorded = Intervals.one(60, 900)
    behind = Behind(np.array([0, 0, 1]), np.array([0, 1, 1]), unrecorded)
    found = tile(start, end, place, (50, 2_010), start > 0, behind)
    assert [(one.start_ns, one.end_ns) for one in found if one.role == "step"] == [
        (begins_ns, 2_000),
        (2_000, 2_010),
    ]
    assert [(one.start_ns, one.end_ns) for one in found if one.role == "before"] == (
        [(50, 900)] if begins_ns == 900 else []
    )


def test_a_real_pass_begins_with_its_recorded_work() -> None:
    """A kernel of 4 us, 463.3 ms without any record, then the pass."""
    path = shared_file("traces/pytorch/mi300x_sglang_qwen3_decode_graph.json.gz")
    analysis = analyze(read([path]))
    (device,) = analysis.devices
    assert [(one.role, one.start_ns - device.whole.start_ns) for one in device.windows] == [
        ("before", 0),
        ("step", 463_299_651),
    ]
    assert device.chosen.idle_causes.unrecorded_ns == 0


def test_the_page_has_a_row_for_work_between_two_passes() -> None:
    def window(role: WindowRole, step: int | None, start_ns: int, end_ns: int) -> Window:
        account = replace(EMPTY_ACCOUNT, components=Components(idle_ns=end_ns - start_ns))
        return Window(role, step, start_ns, end_ns, False, None, None, False, account)

    trace = trace_of(activities=[{"name": "k", "start_ns": 0, "dur_ns": 1}])
    windows = (
        *(window("step", 4, 0, 10), window("between", None, 10, 30)),
        *(window("step", 5, 30, 40), window("between", None, 40, 45)),
        *(window("step", 6, 45, 50), window("after", None, 50, 60)),
    )
    device = replace(analyze(trace).devices[0], windows=windows)
    assert [(row.label, row.devices, row.dur_ns) for row in window_rows([device])] == [
        *(("4", 1, 10), ("before 5", 1, 20), ("5", 1, 10)),
        *(("before 6", 1, 5), ("6", 1, 5), ("after", 1, 10)),
    ]


def test_work_outside_of_all_steps_is_said() -> None:
    """300 ns before the only step and 100 ns after it, of 1,400 ns in all."""
    works = [("a", 10, 100, 300), ("b", 1_000, 1_010, 1_000), ("c", 2_900, 3_000, 100)]
    mark = {"name": "ProfilerStep#1", "start_ns": 900, "dur_ns": 1_000}
    notes = analyze(trace_of(**launched(*works), marks=[mark])).notes
    (note,) = [one for one in notes if one.code == "work-outside-steps"]
    assert note.text.startswith("400 ns of GPU work (28.6 %) runs outside the steps")


@pytest.mark.parametrize("mark", [True, False])
def test_operators_on_a_cpu_are_no_gpu_work(*, mark: bool) -> None:
    """Six rounds of operators, marked or not, between work before and after them."""
    round_of = ("aten::addmm", "aten::relu", "aten::sum", "aten::mul", "aten::_fused_adam_")
    names = ["aten::empty"] * 9 + [*round_of] * 6 + ["aten::cat"] * 9
    ops = [
        {"name": name, "start_ns": 100 * at, "dur_ns": 90, "external_id": at}
        for at, name in enumerate(names)
    ]
    marks = step_marks(*((f"ProfilerStep#{k}", 900 + 500 * k, 499) for k in range(6)))
    analysis = analyze(trace_of(devices=[], ops=ops, marks=marks if mark else []))
    assert len(analysis.steps.seen) == 6 if mark else len(analysis.steps.seen) >= 5
    said = " ".join([analysis.steps.text, *(note.text for note in analysis.notes)])
    said = said.replace("The trace has no GPU operations", "")
    assert "of CPU work" in said
    assert "GPU" not in said
    assert ("repetition on the CPU: each ends with its optimizer operators" in said) != mark


@pytest.mark.parametrize(
    ("later_ns", "left_out"),
    [([130, *[80] * 9], 2), ([130, *[80] * 8], 1), ([250, *[80] * 9], 2), ([250, *[80] * 7], 0)],
)
def test_steps_are_no_warm_up_where_later_ones_often_take_as_long(
    later_ns: list[int], left_out: int
) -> None:
    """The first two take 200 and 120 ns, and the one with `later_ns` follows a usual one."""
    lengths = [200, 120, 80, *later_ns]
    why = steady(np.array(lengths), has_end=True)
    assert [number for number, reason in enumerate(why) if reason is not None] == [*range(left_out)]


@pytest.mark.parametrize(
    ("first_ns", "before_ns", "used"),
    [(30, 30, [1, 2]), (30, 10, [0, 1, 2]), (70, 30, [0, 1, 2]), (30, 0, [0, 1, 2])],
)
def test_a_first_step_that_the_recording_cuts_is_not_used(
    first_ns: int, before_ns: int, used: list[int]
) -> None:
    """Steps of 80 ns; what the first lacks may be in the work of no step before it."""
    why = steady(np.array([first_ns, 80, 80]), before_ns, has_end=True)
    assert [number for number, reason in enumerate(why) if reason is None] == used


@pytest.mark.parametrize(
    ("cut", "lost", "used_steps"),
    [
        ({4, 5, 6, 7}, True, [0, 1, 2]),
        ({3}, True, [0, 1, 4, 5, 6]),
        ({4, 5, 6, 7}, False, [*range(7)]),
    ],
)
def test_steps_whose_forward_pass_lost_its_records_are_left_out(
    cut: set[int], lost: bool, used_steps: list[int]
) -> None:
    """A step runs 4 ms forward, 4 ms backward, 1 ms optimizer; in some the first is cut.

    It is lost with its call, or it only starts as late as what the stream waits for ends. The step
    before would last until the first work that is left.
    """
    works, marks, ms = [], [], 1_000_000
    for number in range(8):
        at = 1_000 + 10 * number * ms
        is_cut = number in cut
        early = [("forward", at, at + 10_000, 4 * ms)] if not is_cut else []
        late = [("forward", at, at + 4 * ms, 10_000)] if is_cut and not lost else []
        works += [*early, *late, ("backward", at + 9_000, at + 4 * ms + 20_000, 4 * ms)]
        works.append((ADAM, at + 10_000, at + 8 * ms + 30_000, ms))
        marks.append((f"ProfilerStep#{number}", at, 9 * ms))
    analysis = analyze(trace_of(**launched(*works), marks=step_marks(*marks)))
    assert used(analysis) == used_steps
    notes = {note.code: note.count for note in analysis.notes}
    assert notes.get("steps-lossy") == (7 - len(used_steps) if lost else None)
    assert (analysis.verdict.parts[0].code == "verdict.lossy-steps") == lost


def test_a_step_of_no_length_has_no_late_work() -> None:
    launched, late_ns, durations_ns = np.array([[10] * 4 + [2], [0] * 5, [9] * 4 + [0]])
    assert not lossy(launched, late_ns, late_ns, durations_ns).any()


@pytest.mark.parametrize(("between_ns", "is_apart"), [(300_000_000, True), (5_000_000, False)])
def test_a_step_that_gpus_run_far_apart_is_a_part_of_one(between_ns: int, is_apart: bool) -> None:
    """Each GPU works 20 ms in the only step, on its own."""
    long, second = 20_000_000, 21_000_000 + between_ns
    rows = launched(("dropout", 100, 1_000_000, long), ("dropout", 200, second, long))
    for device, row in enumerate(rows["activities"]):
        row["device"] = device
    gpus = [{"device": n, "process": 0, "local_id": n, "type": "gpu"} for n in range(2)]
    times = ("device", "start_ns", "dur_ns")
    marks = [
        {"name": "0", "kind": "gpu_step"} | {name: row[name] for name in times}
        for row in rows["activities"]
    ]
    analysis = analyze(trace_of(devices=gpus, marks=marks, **rows))
    (note,) = (note for note in analysis.notes if note.code == "one-step")
    assert ("one after the other" in note.text) == (note.share == 1) == is_apart

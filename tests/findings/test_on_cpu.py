"""What is said of recordings whose only work is operators of CPUs: what leads, and of the GPU."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import trace_of
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.step_split import step_parts
from traceflops.table.trace import Note

FLOATS = '["float", "float"]'
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def ops(*rows: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"name": name, "start_ns": start, "dur_ns": dur} for name, start, dur in rows]


def label(name: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "start_ns": start, "dur_ns": dur, **more}


def analysis(**tables: Any) -> tf.Analysis:
    return tf.analyze(trace_of(devices=[], **tables))


def parts(of: tf.Analysis) -> dict[str, int]:
    return {part.label: part.ns for part in step_parts(of)}


def test_time_between_operators_is_that_of_the_range_around_it() -> None:
    # 100 of loading, 50 in a range, 30 in the optimizer, and 20 of which nothing is recorded.
    work = [(f"aten::mm{n}", at, 100) for n, at in enumerate((0, 200, 350, 480, 600))]
    marks = [
        label(LOADER, 100, 100),
        label("model_forward", 290, 70),
        label("Optimizer.step#SGD.step", 440, 50),
        label("not of this thread", 580, 20, thread=9),
    ]
    found = analysis(ops=ops(*work), marks=marks)
    assert {one.kind: (one.idle_ns, one.culprits[0].label) for one in found.idle.by_class()} == {
        "data_input": (100, LOADER),
        "host_code": (50, "model_forward"),
        "optimizer_loop": (30, "Optimizer.step#SGD.step"),
    }
    assert found.idle.unexplained_ns == 20
    assert found.components.idle_ns == 200
    between = {"loading data": 100, "host code": 50, "the optimizer": 30}
    assert parts(found).items() >= (between | {"time between operators": 20}).items()


def test_a_python_function_between_operators_is_host_code_however_short_it_is() -> None:
    frame = label("train.py(3): step", 0, 300, kind="python")
    found = analysis(ops=ops(("aten::mm", 0, 100), ("aten::mm", 110, 100)), marks=[frame])
    [only] = found.idle.by_class()
    assert (only.kind, only.idle_ns, only.culprits[0].label) == (
        "host_code",
        10,
        "train.py(3): step",
    )


@pytest.mark.parametrize(("until", "is_told"), [(160, True), (120, False)])
def test_a_gap_goes_by_a_range_that_holds_most_of_it(until: int, *, is_told: bool) -> None:
    """A program that waits after its range `predict` does not wait in it."""
    work = ops(("aten::mm", 0, 100), ("aten::add", 200, 100))
    lines = [*map(str, render_terminal(analysis(ops=work, marks=[label("predict", 0, until)])))]
    assert any("100 ns  host code: predict" in line for line in lines) == is_told
    assert any("100 ns  until aten::add" in line for line in lines) != is_told


def test_the_first_sentence_names_what_leads() -> None:
    work = ops(
        *(("aten::mkldnn_convolution", at, 300) for at in (0, 300)), ("aten::relu", 600, 100)
    )
    found = analysis(ops=[*work, *ops(("aten::add", 950, 50))], marks=[label(LOADER, 650, 300)])
    assert found.verdict.sentence == (
        "On the CPU, aten::mkldnn_convolution takes 60.0 % and loading data in "
        f"{LOADER} takes 30.0 % of the time. The data loader works in the main thread: with "
        "num_workers above 0 it loads the next batch while the model works on this one, if CPU "
        "cores are free. This trace has no GPU operations, only CPU operators."
    )
    lines = [line.plain.strip() for line in render_terminal(found)]
    assert f"250 ns  loading data: {LOADER}" in lines


@pytest.mark.parametrize(
    ("longest", "begins", "told"),
    [
        (100, 0, ""),
        (
            900,
            0,
            "The first call of aten::copy_ takes most of its time, 900 ns, perhaps to set up:",
        ),
        (900, 2_000, "One call of aten::copy_ takes most of its time: 900 ns."),
    ],
)
def test_one_call_that_is_most_of_an_operator_is_told(longest: int, begins: int, told: str) -> None:
    calls = [("aten::copy_", longest + 50 * at, 50) for at in range(11)]
    calls.append(("aten::copy_", begins, longest))
    said = analysis(ops=ops(*calls)).verdict.sentence
    assert "On the CPU, aten::copy_ takes " in said
    assert told in said
    assert ("takes most of its" in said) == bool(told)


@pytest.mark.parametrize(
    ("name", "last", "is_same"),
    [
        ("aten::mm", {}, True),
        ("aten::mm", {"input_dims": "[[9, 9], [9, 9]]"}, False),
        ("aten::mm", {"input_types": '["double", "double"]'}, False),
        ("aten::repeat", {"concrete_inputs": '["", "[999, 1]"]'}, False),
        ("gloo:all_reduce", {}, False),  # it waits for its peers
    ],
)
def test_a_call_far_longer_than_others_with_the_same_inputs_was_held_up(
    name: str, last: dict[str, str], *, is_same: bool
) -> None:
    """Calls of 1 ms, and one of 1 s: of the same inputs, of other ones, or with communication."""
    calls = ops(*((name, 10**6 * at, 10**6) for at in range(4)), (name, 10**7, 10**9))
    rows = [{**row, "input_dims": "[[8, 8], [8, 8]]", "input_types": FLOATS} for row in calls]
    rows[-1] |= last
    said = analysis(ops=rows).verdict.sentence
    assert ("took 1.00 s, others with the same inputs at most 1.00 ms" in said) == is_same
    assert (f"One call of {name} takes most of its time" in said) != is_same
    assert not is_same or ("computes at" not in said and "far longer than a launch" not in said)


def test_shapes_tell_how_fast_the_leading_operator_is() -> None:
    convolution = {
        "name": "aten::mkldnn_convolution",
        "start_ns": 0,
        "dur_ns": 1_000_000,
        "input_dims": "[[8, 3, 32, 32], [16, 3, 3, 3], [16], [], [], [], []]",
        "input_types": '["float", "float", "float", "ScalarList", "ScalarList", "ScalarList", ""]',
        "concrete_inputs": '["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]',
    }
    # 8 images of 32 x 32 points, 16 channels of 3 x 3 x 3 products: 7.08 MFLOP in 1 ms.
    said = analysis(ops=[convolution]).verdict.sentence
    assert "100.0 % of the time. aten::mkldnn_convolution computes at 7.08 GFLOP/s." in said


def test_operators_of_a_kind_are_told_together_and_communication_goes_by_its_name() -> None:
    work = ops(("gloo:recv", 0, 500), ("gloo:send", 500, 300), ("aten::add", 800, 200))
    assert analysis(ops=work).verdict.sentence.startswith(
        "On the CPU, communication (gloo:recv, gloo:send) takes 80.0 % and aten::add takes 20.0 %"
    )


def test_ranges_of_threads_that_exchange_are_communication() -> None:
    """Gradients are exchanged for 700, beside 200 of the backward pass; then nothing else runs."""
    work = ops(("aten::mm", 0, 300), ("aten::mm", 300, 200), ("aten::add", 900, 100))
    marks = [
        label("gloo:all_reduce", 200, 700, thread=9),
        label("gloo:all_reduce", 250, 500, thread=8),
    ]
    marks.append(label("DistributedDataParallel.forward", 0, 100))
    found = analysis(ops=work, marks=marks)
    assert found.components.communication_ns == 400
    assert found.components.idle_ns == 0
    assert found.verdict.sentence.startswith(
        "On the CPU, aten::mm takes 50.0 % and communication with nothing beside it "
        "(gloo:all_reduce) takes 40.0 % of the time. Exchange less: larger batches, no_sync()"
    )


@pytest.mark.parametrize(("first", "columns"), [(900, 100), (900, 100_000), (100, 100)])
def test_a_first_exchange_waits_for_its_peers_and_small_messages_for_latency(
    first: int, columns: int
) -> None:
    """Three messages of 400 B or 400 KB; the first takes as long as the others, or 9 times."""
    starts = (0, first, first + 100)
    rows = ops(*zip(["gloo:recv"] * 3, starts, (first, 100, 100), strict=True))
    said = analysis(ops=[{**row, "input_dims": f"[[{columns}]]"} for row in rows]).verdict.sentence
    assert ("waits until its peers start" in said) == (first == 900)
    assert ("Latency limits such small messages" in said) == (columns == 100)


@pytest.mark.parametrize("first", [900, 100])
def test_fewer_exchanges_do_not_help_where_the_first_waits_for_its_peers(first: int) -> None:
    rows = ops(
        *zip(["gloo:all_reduce"] * 3, (0, first, first + 100), (first, 100, 100), strict=True)
    )
    marks = [label("DistributedDataParallel.forward", 0, first + 200)]
    said = analysis(ops=rows, marks=marks).verdict.sentence
    assert ("waits until its peers start" in said, "Exchange less" in said) == (
        first == 900,
        first == 100,
    )


@pytest.mark.parametrize(("late", "is_told"), [(900, True), (600, False)])
def test_all_others_wait_for_a_process_that_computes_longer(late: int, *, is_told: bool) -> None:
    """Both exchange until 1,000, one from 500 on, the other when it is done."""
    times = ((0, 500), (1, late))
    work = [
        {**row, "process": process}
        for process, computes in times
        for row in ops(("aten::mm", 0, computes), ("gloo:all_reduce", computes, 1_000 - computes))
    ]
    marks = [
        label("DistributedDataParallel.forward", 0, computes, process=process)
        for process, computes in times
    ]
    ranks = [{"rank": process} for process, _ in times]
    said = analysis(ops=work, marks=marks, processes=ranks).verdict.sentence
    assert ("waiting for rank 1:" in said, "Exchange less" in said) == (is_told, not is_told)


def test_an_exchange_beside_other_operators_is_no_part_of_the_optimizer() -> None:
    """It exchanges in 0 to 1,000, while another thread computes, and does nothing until 1,500."""
    work = ops(("gloo:all_reduce", 0, 1_000), ("aten::mm", 0, 1_000), ("aten::add", 1_500, 100))
    work[1]["thread"] = 2
    marks = [label("Optimizer.step#Adam.step", 0, 1_500)]
    said = analysis(ops=work, marks=marks).verdict.sentence
    assert (
        "aten::mm takes 62.5 % and the optimizer in Optimizer.step#Adam.step takes 31.2 %" in said
    )


def test_what_an_operator_takes_around_one_of_its_kind_is_dispatch() -> None:
    work = ops(("aten::linear", 0, 80), ("aten::addmm", 20, 20), ("aten::relu", 80, 20))
    found = analysis(ops=[*work, *ops(("aten::empty", 85, 5))])
    assert found.verdict.sentence.startswith(
        "On the CPU, dispatch within operators (aten::linear) takes 60.0 % and aten::addmm takes "
        "20.0 % of the time."
    )
    assert (found.components.compute_ns, found.components.memory_ns) == (20, 15)


def test_an_operator_that_calls_one_of_its_kind_may_do_the_work_itself() -> None:
    calls = [(name, at, ns) for at in (0, 110_000) for name, ns in (("cat", 100_000), ("view", 40))]
    found = analysis(ops=ops(*((f"aten::{name}", at, ns) for name, at, ns in calls)))
    assert found.verdict.sentence.startswith("On the CPU, aten::cat takes 95.2 % of the time.")


def test_operators_beside_each_other_are_not_given_shares_of_the_time() -> None:
    work = [*ops(("aten::mm", 0, 100)), *ops(("aten::mm", 0, 100))]
    work[1]["thread"] = 2
    said = analysis(ops=work).verdict.sentence
    assert said == "This trace has no GPU operations, only CPU operators."


@pytest.mark.parametrize("name", ["aten::cudnn_convolution", "aten::_flash_attention_forward"])
def test_operators_that_only_gpus_run_tell_that_the_gpu_is_not_recorded(name: str) -> None:
    found = analysis(ops=ops((name, 0, 10), ("aten::copy_", 10, 90)))
    assert found.verdict.headline == "records-missing"
    assert found.verdict.sentence == (
        f"GPU records are missing: {name} runs on a GPU, so CPU operators launch its work or wait "
        "for it. On the CPU, aten::copy_ takes 90.0 % of the time."
    )
    whole = trace_of(devices=[], ops=ops((name, 0, 10), ("aten::copy_", 10, 90)))
    cut = replace(whole, notes=(Note("dropped", "input-cut", "It ends early."),))
    assert tf.analyze(cut).verdict.headline == "cut-file"
    assert tf.analyze(cut).only_launches


@pytest.mark.parametrize(
    ("alone", "again", "is_told"),
    [("zeros", 10, True), ("nonzero", 10, False), ("zeros", 2_000, False)],
)
def test_first_calls_that_only_launch_set_up_the_gpu(
    alone: str, again: int, *, is_told: bool
) -> None:
    """Two of 2 s each, one of them the only one of its name; `nonzero` waits for the GPU.

    Convolutions of other sizes follow: a first call tells nothing of how long a launch takes.
    """
    later = (("aten::cudnn_convolution", 4_000 + n * again, again) for n in range(5))
    calls = ops((f"aten::{alone}", 0, 2_000), ("aten::cudnn_convolution", 2_000, 2_000), *later)
    works = [
        {**row, "start_ns": 10**6 * row["start_ns"], "dur_ns": 10**6 * row["dur_ns"]}
        | {"input_dims": f"[[{number}, 9]]"}
        for number, row in enumerate(calls)
    ]
    said = analysis(ops=works).verdict.sentence
    told = (
        "wait for it. First calls of operators, mostly aten::zeros, aten::cudnn_convolution, take "
        "3.98 s (98.3 % of the time): they set up the GPU (context, libraries). Record after a "
        "warm-up."
    )
    assert said.endswith(told) == is_told
    assert ("computes on the CPU" in said) == (again == 2_000)


@pytest.mark.parametrize(("on_gpu", "is_told"), [(512, True), (64, False)])
def test_operators_that_allocate_on_a_gpu_launch_its_work(on_gpu: int, is_told: bool) -> None:
    changes = (("host", 256), ("device", on_gpu), ("device", -on_gpu), ("host", -256))
    memory = [
        {"name": f"{on}_memory.change_bytes", "process": 0, "time_ns": at, "value": value}
        for at, (on, value) in enumerate(changes)
    ]
    found = analysis(ops=ops(("aten::mm", 0, 90)), counters=memory)
    assert found.only_launches == is_told
    assert ("GPU records are missing: most of the memory" in found.verdict.sentence) == is_told


@pytest.mark.parametrize(
    ("gpus", "name", "is_told"), [("1", "mm", True), ("0", "mm", False), ("1", "mkldnn_x", False)]
)
def test_a_file_that_lists_a_gpu_and_is_cut_off_may_have_lost_its_records(
    gpus: str, name: str, is_told: bool
) -> None:
    whole = trace_of(devices=[], ops=ops((f"aten::{name}", 0, 90)))
    listed = replace(whole, source=replace(whole.source, facts={"gpus_listed": gpus}))
    cut = replace(listed, notes=(Note("dropped", "input-cut", "It ends early."),))
    assert not tf.analyze(listed).only_launches
    assert tf.analyze(cut).only_launches == is_told
    assert ("may be missing" in tf.analyze(cut).verdict.sentence) == is_told


@pytest.mark.parametrize("name", ["aten::linear_backward", "aten::_mps_convolution"])
def test_operators_of_apple_gpus_tell_that_times_are_of_launching_and_waiting(name: str) -> None:
    work = ops((name, 0, 10), ("aten::mul", 10, 60), ("aten::_local_scalar_dense", 70, 30))
    found = analysis(ops=work)
    assert found.only_launches
    assert found.verdict.sentence == (
        f"The GPU was not recorded: {name} runs on Apple's GPU (MPS), so the times of CPU "
        "operators are those of launching its work or waiting for it. aten::_local_scalar_dense, "
        "which brings a value to the CPU and waits for it, takes 30.0 % of the time."
    )
    said = "\n".join(line.plain for line in render_terminal(found))
    assert "Instruments" in said and "CUDA" not in said and "compute" not in said
    nested = analysis(ops=[*work, *ops(("aten::_nested_tensor_size", 100, 1))])
    assert nested.only_launches == (name != "aten::linear_backward")


@pytest.mark.parametrize(
    ("thread", "step", "is_told"),
    [(2, "aten::_foreach_add_", True), (1, "aten::_foreach_add_", False), (2, "aten::add_", False)],
)
def test_a_thread_of_its_own_for_the_backward_pass_is_that_of_a_gpu(
    thread: int, step: str, is_told: bool
) -> None:
    backward = "autograd::engine::evaluate_function: AddBackward0"
    work = ops(("aten::copy_", 0, 50), (backward, 50, 20), (step, 70, 10))
    work[1]["thread"] = thread
    found = analysis(ops=work)
    assert (found.verdict.headline == "records-missing") == is_told
    assert ("backward pass has a thread of its own" in found.verdict.sentence) == is_told


def test_attention_of_the_cpu_is_none_of_a_gpu() -> None:
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert analysis(ops=ops((name, 0, 20))).verdict.headline == "no-gpu-work"


def calls(*rows: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"name": name, "start_ns": start, "dur_ns": dur} for name, start, dur in rows]


def test_where_gpu_records_are_missing_the_cpu_says_whether_it_waited() -> None:
    work = ops(("aten::randn", 0, 900), ("aten::relu", 900, 40))
    made = calls(("cudaLaunchKernel", 910, 10), ("cudaDeviceSynchronize", 980, 20))
    # 900 and 20 of 1000: what waits after the last operator counts for both.
    assert analysis(ops=work, calls=made).verdict.sentence.endswith(
        "On the CPU, aten::randn takes 90.0 % of the recording. Calls that may wait for the GPU "
        "take 2.0 % of the recording, so the CPU sets the pace."
    )
    made = calls(("cudaLaunchKernel", 910, 10), ("cudaFree", 1000, 500))
    made += calls(("cudaDeviceSynchronize", 1500, 500))
    waits = "Calls that may wait for the GPU take 50.0 % of the recording, mostly cudaFree."
    assert analysis(ops=work, calls=made).verdict.sentence.endswith(waits)


@pytest.mark.parametrize("in_operator", [False, True])
def test_memory_that_no_operator_frees_is_emptied_by_the_program(*, in_operator: bool) -> None:
    """The allocator frees in the operator that asks for memory, empty_cache() outside of any."""
    work = ops(("aten::mm", 0, 100), ("aten::mm", 900, 100))
    work += ops(("aten::empty", 95, 710)) if in_operator else []
    made = calls(("cudaLaunchKernel", 10, 10), ("cudaFree", 100, 700))
    made += calls(("cudaDeviceSynchronize", 1_000, 100))
    said = analysis(ops=work, calls=made).verdict.sentence
    assert ("torch.cuda.empty_cache()" in said) != in_operator


@pytest.mark.parametrize(
    ("name", "dur_us", "says"),
    [
        ("aten::mm", 5_000, "torch.set_num_threads"),
        ("aten::mm", 50, ""),
        ("aten::sort", 5_000, ""),
        ("aten::_slow_conv2d_forward", 5_000, "oneDNN"),
    ],
)
def test_a_faster_device_or_library_is_told_of_large_products_alone(
    name: str, dur_us: int, says: str
) -> None:
    work = [(name, at * dur_us * 1_000, dur_us * 1_000) for at in range(4)]
    said = analysis(ops=ops(*work)).verdict.sentence
    told = [text for text in ("torch.set_num_threads", "oneDNN") if text in said]
    assert told == ([says] if says else [])


def test_products_of_two_kinds_are_large_together_and_have_one_remedy() -> None:
    """Convolutions take 40 % of the time, GEMMs 30 %, each less than half."""
    work = [("aten::mkldnn_convolution", at, 20) for at in (0, 20)]
    work += [*(("aten::mm", at, 15) for at in (40, 55)), ("aten::sort", 70, 30)]
    made = ops(*((name, at * 10**6, dur * 10**6) for name, at, dur in work))
    assert analysis(ops=made).verdict.sentence.count("torch.set_num_threads") == 1
    whole = trace_of(devices=[], ops=made)
    listed = replace(whole, source=replace(whole.source, facts={"gpus_listed": "1"}))
    said = tf.analyze(listed).verdict.sentence
    assert said.count("The profiler lists a GPU: ") == 1 > said.count("torch.set_num_threads")


def test_without_a_wait_after_the_last_launch_nobody_knows_how_far_the_gpu_was() -> None:
    made = calls(("cudaDeviceSynchronize", 0, 10), ("cudaLaunchKernel", 50, 10))
    said = analysis(ops=ops(("aten::relu", 40, 30)), calls=made).verdict.sentence
    assert "may wait for the GPU" not in said
    assert "On the CPU, aten::relu takes 100.0 % of the time." in said


@pytest.mark.parametrize(("dur_ns", "is_said"), [(400_000_000, True), (400_000, False)])
def test_a_product_that_takes_no_launch_s_time_ran_on_the_cpu(dur_ns: int, is_said: bool) -> None:
    works = [("aten::addmm", at * dur_ns, dur_ns) for at in range(4)]
    sentence = analysis(ops=ops(*works)).verdict.sentence
    assert ("move the model and its inputs there" in sentence) == is_said


def product(start: int, columns: int, dur_ns: int = 30_000) -> dict[str, Any]:
    sizes, types = f"[[1024, 512], [512, {columns}]]", '["c10::BFloat16", "c10::BFloat16"]'
    return label("aten::mm", start, dur_ns, input_dims=sizes, input_types=types)


@pytest.mark.parametrize(("dur_ns", "is_told"), [(30_000, True), (300_000, False)])
def test_products_that_take_as_long_for_less_work_only_launch_it(
    dur_ns: int, is_told: bool
) -> None:
    # 2 x 1024 x 512 x 5120 = 5.37 GFLOP in 30 us are 179 TFLOP/s; 512 columns are a tenth of it.
    found = analysis(ops=[product(0, 512), product(30_000, 5120, dur_ns)])
    assert found.only_launches == is_told
    said = (
        "GPU records are missing: a call of aten::mm would compute at 179 TFLOP/s, too fast for a "
        "CPU, and takes no longer than those of 10 times less work. So CPU operators launch work "
        "or wait for it."
    )
    assert found.verdict.sentence.startswith(said) == is_told
    assert ("if the program uses a GPU" in found.measured.lacks[0].remedy) != is_told


@pytest.mark.parametrize("call", ["cudaLaunchKernel", "cudaMalloc"])
def test_an_operator_that_launches_has_no_rate(call: str) -> None:
    # 2 x 1024 x 512 x 512 = 537 MFLOP in 1 ms.
    made = calls((call, 10, 10), ("cudaLaunchKernel", 2_000_000, 10))
    made += calls(("cudaDeviceSynchronize", 2_000_020, 10))
    found = analysis(ops=[product(0, 512, 1_000_000)], calls=made)
    assert "aten::mm takes" in found.verdict.sentence
    rate = "aten::mm computes at 537 GFLOP/s."
    assert (rate in found.verdict.sentence) == (call == "cudaMalloc")


def test_a_fast_product_alone_may_be_one_of_a_cpu() -> None:
    assert not analysis(ops=[product(0, 5120), product(30_000, 2560)]).only_launches


def test_calls_whose_length_is_lost_are_not_fast() -> None:
    lost = [product(0, 512, 0), product(30_000, 5120, 0), product(60_000, 512)]
    assert not analysis(ops=lost).only_launches


def test_a_figure_of_a_kind_does_not_go_by_the_name_of_a_part() -> None:
    work = ops(("aten::add", 0, 30), ("aten::mul", 30, 25), ("aten::div", 55, 20))
    marks = [label("solve", 75, 20), label("predict", 100, 10)]
    found = analysis(ops=[*work, *ops(("aten::mm", 95, 5), ("aten::mm", 110, 1))], marks=marks)
    assert found.verdict.sentence.startswith(
        "On the CPU, elementwise operators (mostly aten::add and aten::mul) take 67.6 % and host "
        "code (mostly in solve) takes 27.0 %"
    )
    kinds = ("add", "mul", "div", "exp", "sin")
    many = [(f"aten::{name}", 10 * at, 10) for at, name in enumerate(kinds)]
    said = analysis(ops=ops(*many)).verdict.sentence
    assert "elementwise operators (5 kinds) take 100.0 %" in said


@pytest.mark.parametrize("turns", [120, 60])
def test_many_turns_of_a_loop_are_one_statement(turns: int) -> None:
    starts = range(100_000, 100_000 + 12_000 * turns, 12_000)
    work = [("aten::cudnn_batch_norm", 0, 100_000)]
    work += [("aten::ge", start, 1_000) for start in starts]
    work += [("aten::where", start + 1_000, 10_000) for start in starts]
    work += [("aten::nonzero", start + 1_010, 9_000) for start in starts]
    said = analysis(ops=sorted(ops(*work), key=lambda row: row["start_ns"])).verdict.sentence
    # From the first to the last operator of 120 turns: 119 x 12 us + 11 us, of 100 us more.
    told = (
        "A loop of 120 turns takes 93.5 % of the time (aten::ge, aten::where); aten::nonzero waits "
        "for the GPU in each turn."
    )
    assert ((told in said), "A loop" in said) == (turns == 120, turns == 120)


def test_loops_are_told_of_one_process_and_wait_in_their_own_thread() -> None:
    starts = range(100_000, 1_540_000, 12_000)
    work = [("aten::cudnn_batch_norm", 0, 100_000)]
    work += [("aten::ge", start, 1_000) for start in starts]
    alone = ops(*work)
    other = [{**one, "thread": 9} for one in ops(*(("aten::nonzero", at, 9_000) for at in starts))]
    said = analysis(ops=sorted([*alone, *other], key=lambda row: row["start_ns"])).verdict.sentence
    assert "A loop of 120 turns" in said and "waits for the GPU in each turn" not in said
    two = [*alone, *({**one, "process": 1} for one in alone)]
    both = analysis(ops=sorted(two, key=lambda row: row["start_ns"]), processes=[{}, {}])
    assert "A loop" not in both.verdict.sentence


def test_what_an_operator_shares_out_to_threads_is_no_loop() -> None:
    norms = [("native_batch_norm", at, 9_000_000) for at in range(0, 40_000_000, 10_000_000)]
    selects = [("select", start + own, 2) for _, start, _ in norms for own in range(99)]
    work = [*ops(*norms), *({**one, "thread": 9} for one in ops(*selects))]
    said = analysis(ops=sorted(work, key=lambda row: row["start_ns"])).verdict.sentence
    assert said.startswith("On the CPU, native_batch_norm takes") and "A loop" not in said


@pytest.mark.parametrize("passes", [1, 2])
def test_one_pass_of_a_model_is_told(passes: int) -> None:
    shapes = [3, *[64] * 8, 99]
    work = [
        {**one, "input_dims": f"[[8, {width}, 9, 9]]"}
        for turn in range(passes)
        for at, width in enumerate(shapes)
        for one in ops(("aten::mkldnn_convolution", 1_000 * (10 * turn + at), 1_000))
    ]
    assert ("Only one pass seems" in analysis(ops=work).verdict.sentence) == (passes == 1)


def test_a_loader_has_the_time_of_its_loop_which_reads_values_of_the_cpu() -> None:
    loop = [row for at in range(0, 600_000, 6_000) for row in (("aten::select", at, 2_000),)]
    loop += [("aten::_local_scalar_dense", at + 2_000, 2_000) for at in range(0, 600_000, 6_000)]
    work = ops(*sorted(loop, key=lambda row: row[1]), ("aten::cudnn_convolution", 600_000, 400_000))
    said = analysis(ops=work, marks=[label(LOADER, 0, 600_000)]).verdict.sentence
    assert f"loading data in {LOADER} takes 60.0 %" in said and "A loop" not in said
    # Without a loader in its thread it is a loop, which waits for nothing.
    for marks in ([], [label(LOADER, 0, 600_000, thread=9)]):
        said = analysis(ops=work, marks=marks).verdict.sentence
        assert "A loop of 100 turns takes 59.8 % of the time (aten::select, aten::_loc" in said
        assert "waits for the GPU" not in said


def test_a_loader_that_works_ahead_in_its_own_thread_has_no_operators_of_another() -> None:
    work = ops(*(("aten::mm", at, 90) for at in range(0, 1_000, 100)))
    ahead = label("enumerate(DataLoader)#_MultiProcessingDataLoaderIter", 0, 990, thread=9)
    said = analysis(ops=work, marks=[label(LOADER, 90, 10), ahead]).verdict.sentence
    assert said.startswith("On the CPU, aten::mm takes 90.9 % of the time.")


def test_of_an_optimizer_without_operators_nobody_knows_how_it_works() -> None:
    work = ops(("aten::mm", 0, 100), ("aten::mm", 900, 100))
    said = analysis(ops=work, marks=[label("Optimizer.step#AdamW.step", 100, 800)]).verdict.sentence
    assert "the optimizer in Optimizer.step#AdamW.step takes 80.0 %" in said
    assert "one tensor after the other" not in said


@pytest.mark.parametrize(
    ("name", "optimizer", "is_slow"),
    [("mul", "Adam", True), ("_fused_adam_", "Adam", False), ("mul", "Own", False)],
)
def test_operators_in_the_step_of_an_optimizer_are_part_of_it(
    name: str, optimizer: str, *, is_slow: bool
) -> None:
    step = f"Optimizer.step#{optimizer}.step"
    name = f"aten::{name}"
    work = ops(("aten::mm", 0, 400), (name, 400, 250), (name, 700, 250), ("aten::mm", 950, 50))
    said = analysis(ops=work, marks=[label(step, 400, 550)]).verdict.sentence
    assert said.startswith(
        f"On the CPU, the optimizer in {step} takes 55.0 % and aten::mm takes 45.0 % of the time."
    )
    assert ("create it with fused=True" in said) == is_slow


def test_many_small_launches_are_counted() -> None:
    names = random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=1_200)
    work = [(f"aten::{name}", 2_000 * at, 1_000) for at, name in enumerate(names)]
    said = analysis(ops=ops(*work, ("aten::cudnn_convolution", 2_400_000, 1_000))).verdict.sentence
    # 2,401 us of 1,201 operators.
    assert (
        "The program runs 1,201 operators, one in 2.00 µs on average, and the longest call itself"
        in said
    )


@pytest.mark.parametrize(
    ("dur_ns", "every_ns", "is_said"),
    [(1_500, 1_500, True), (1_500, 20_000, True), (20_000, 20_000, False)],
)
def test_a_few_milliseconds_of_overhead_are_too_little_to_judge(
    dur_ns: int, every_ns: int, *, is_said: bool
) -> None:
    """Nor does it matter how long the program takes between operators that do next to nothing."""
    work = [("aten::mul", at * every_ns, dur_ns) for at in range(201)]
    found = analysis(ops=ops(*work))
    whole = {1_500: "302 µs", 20_000: "4.00 ms"}[every_ns]
    little = f"Only {whole} of CPU work is recorded, in 201 operators, one in "
    assert found.verdict.sentence.startswith(little) == is_said


def test_calls_that_wait_in_steps_go_by_the_largest_name_there() -> None:
    """The longest wait follows the last step; of each, 40 of 100 ns are in another call."""
    work = ops(*(("aten::relu", 100 * at, 50) for at in range(4)))
    made = calls(*(("cudaStreamSynchronize", 100 * at + 55, 40) for at in range(4)))
    made += calls(("cudaLaunchKernel", 10, 5), ("cudaDeviceSynchronize", 500, 900))
    marks = [label(f"ProfilerStep#{at}", 100 * at, 100) for at in range(4)]
    waits = "take 40.0 % of the step time, mostly cudaStreamSynchronize."
    assert waits in analysis(ops=work, calls=made, marks=marks).verdict.sentence
    made = calls(("cudaLaunchKernel", 10, 5), ("cudaDeviceSynchronize", 500, 900))
    alone = "Calls that may wait for the GPU take 0.0 % of the step time."
    assert alone in analysis(ops=work, calls=made, marks=marks).verdict.sentence


@pytest.mark.parametrize(
    "made", [[], calls(("cudaLaunchKernel", 5, 0), ("cudaDeviceSynchronize", 5, 0))]
)
def test_a_recording_of_no_length_has_no_shares(made: list[dict[str, Any]]) -> None:
    assert "%" not in analysis(ops=ops(("aten::mm", 5, 0)), calls=made).verdict.sentence

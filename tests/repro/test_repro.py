"""Scripts that repeat recorded work: what they call, what they refuse, and that they run."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import traceflops as tf
from tests import aten_keywords
from tests.build import trace_of
from tests.conftest import SAMPLES
from traceflops import Analysis, analyze
from traceflops.cli import app
from traceflops.errors import InputError, UsageError
from traceflops.reports.scripts.choice import chosen_work
from traceflops.reports.scripts.scripts import Work, script
from traceflops.repro.calls import Call, TensorList, calls
from traceflops.repro.chains import Chain, Loading, chain

torch = pytest.importorskip("torch")
GPT = SAMPLES / "gpt_1rank.json.gz"


def loaded(work: Work, analysis: Analysis, name: str = "script") -> dict[str, Any]:
    """Return the names of a script that is loaded; it runs if its name is __main__."""
    names: dict[str, Any] = {"__name__": name}
    exec(compile(script(work, analysis, "x.py"), "script", "exec"), names)
    return names


def values_of(names: dict[str, Any], resize: Callable[[int], int] = lambda size: size) -> list[Any]:
    """Return the arguments that a script makes on the CPU."""
    make = functools.partial(names["random_tensor"], "cpu", resize)
    values: list[Any] = names["arguments"](make)
    return values


def recorded(program: Callable[[], object], folder: Path) -> tf.Trace:
    """Return what PyTorch's profiler records of a program on the CPU."""
    path = folder / "trace.json"
    with torch.profiler.profile(record_shapes=True) as profile:
        program()
    profile.export_chrome_trace(str(path))
    return tf.read(path)


def network() -> None:
    """Train a small network with operators of many kinds for one step."""
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 24),
        torch.nn.LayerNorm(24),
    )
    table = torch.nn.Embedding(50, 24)
    optimizer = torch.optim.AdamW([*layers.parameters(), *table.parameters()], foreach=True)
    words = table(torch.randint(0, 50, (4, 6)))
    mixed = words + layers(torch.randn(4, 3, 16, 16))[:, None]
    seen = torch.nn.functional.scaled_dot_product_attention(mixed, mixed, mixed)
    scores = torch.bmm(seen, mixed.transpose(1, 2)).softmax(-1)
    masked = scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), 0.0)
    loss = torch.nn.functional.cross_entropy(masked.flatten(0, 1), torch.randint(0, 6, (24,)))
    loss.backward()
    optimizer.step()
    torch.cat([seen, mixed], 1).sum(1, dtype=torch.float64)


def assert_short(text: str) -> None:
    assert 40 <= text.count("\n") <= 80
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("sample", ["gpt_1rank", "torch_cpu_train"])
def test_no_script_is_longer_than_80_lines(sample: str) -> None:
    analysis = analyze(SAMPLES / f"{sample}.json.gz")
    for call in calls(analysis):
        if not call.refused:
            assert_short(script(call, analysis, "x.py"))


def test_pytorch_records_the_same_call_of_a_script_again(tmp_path: Path) -> None:
    analysis = analyze(recorded(network, tmp_path))
    found = [call for call in calls(analysis) if (call.op or "").startswith("aten::")]
    assert [call.op for call in found if call.refused] == []
    # PyTorch detaches no view in place, which all tensors of scripts are; that computes nothing.
    found = [call for call in found if call.op != "aten::detach_"]
    scripts = [loaded(call, analysis) for call in found]

    def repeat() -> None:
        for names in scripts:
            with torch.no_grad():
                names["call"](*values_of(names))

    rows = recorded(repeat, tmp_path).ops.to_pylist()
    again = {(row["name"], row["input_dims"]) for row in rows}
    before = {(row["name"], row["input_dims"]) for row in analysis.prepared.trace.ops.to_pylist()}
    names_again = {name for name, _ in again & before}
    assert [call.op for call in found if call.op not in names_again] == []


def test_a_script_has_the_shapes_and_flops_of_the_operator() -> None:
    analysis = analyze(GPT)
    work, _ = chosen_work(analysis, op="linear")
    names = loaded(work, analysis)
    left, right = values_of(names)
    assert (left.dtype, [*left.shape], [*right.shape]) == (
        torch.bfloat16,
        [4, 1024, 1024],
        [16384, 1024],
    )
    flops = 2 * 4 * 1024 * 1024 * 16384  # takes longer than the bytes: 138.9 us at 989.4 TFLOP/s
    elements = 4 * 1024 * 1024 + 16384 * 1024 + 4 * 1024 * 16384  # two inputs and the output
    text = script(work, analysis, "x.py")
    assert f"{flops:_} / 9.894e+14, {2 * elements:_} / 3.35e+12" in text
    assert names["ROOF"] == "138.9 us"


def test_the_times_of_calls_add_up_to_those_of_kernels() -> None:
    analysis = analyze(GPT)
    kernels = [row for row in analysis.kernels.to_pylist() if row["kind"] == "kernel"]
    assert sum(call.sum_ns for call in calls(analysis)) == sum(row["sum_ns"] for row in kernels)


def op_row(**columns: Any) -> tf.Trace:
    """Return a trace of one kernel that one operator launched."""
    dims = json.dumps([[8, 4], [4, 2]])
    op = {"name": "aten::mm", "start_ns": 0, "dur_ns": 9, "input_dims": dims}
    op |= {"input_types": '["float","float"]', "concrete_inputs": '["",""]', **columns}
    return trace_of(
        ops=[op],
        calls=[{"start_ns": 1, "correlation": 1}],
        activities=[{"name": "k", "start_ns": 20, "correlation": 1}],
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"name": "mine::mm"}, "it is of an extension, or generated code"),
        ({"name": 'aten::mm"""\nimport os\n"""'}, "it is of an extension, or generated code"),
        ({"input_dims": None}, "shapes of its inputs were not recorded"),
        ({"input_types": '["float",""]'}, "type of a tensor was not recorded"),
        ({"input_types": '["float","c10::qint32"]'}, "type of a tensor was not recorded"),
        (
            {
                "input_dims": "[[8, 4], []]",
                "input_types": '["float","Scalar"]',
                "concrete_inputs": None,
            },
            "value of an argument",
        ),
    ],
)
def test_what_was_not_recorded_is_refused_with_the_reason(
    columns: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        chosen_work(analyze(op_row(**columns)))


def test_infinity_and_unknown_numbers_make_no_script_that_fails() -> None:
    dims, types = "[[8],[8],[]]", '["float","bool","Scalar"]'
    row = {"name": "aten::masked_fill", "input_dims": dims, "input_types": types}
    analysis = analyze(op_row(**row, concrete_inputs='["","","-inf"]'))
    names = loaded(chosen_work(analysis)[0], analysis)
    filled = names["call"](torch.zeros(2), torch.tensor([True, False]))
    assert filled.tolist() == [float("-inf"), 0.0]
    softmax = {"name": "aten::softmax", "input_dims": "[[8],[],[]]"}
    softmax |= {"input_types": '["float","Scalar","Scalar"]', "concrete_inputs": '["","0","99"]'}
    with pytest.raises(InputError, match="value of an argument"):
        chosen_work(analyze(op_row(**softmax)))


def test_a_resized_tensor_keeps_the_order_of_its_dimensions() -> None:
    columns = {"input_strides": json.dumps([[1, 8], [2, 1]])}
    analysis = analyze(op_row(**columns))
    names = loaded(chosen_work(analysis, kernel="k")[0], analysis)
    left, right = values_of(names, lambda size: 3 if size == 8 else size)
    assert ([*left.shape], left.stride()) == ([3, 4], (1, 3))
    assert ([*right.shape], right.stride()) == ([4, 2], (2, 1))


def test_a_collective_is_repeated_with_its_sizes_and_group() -> None:
    analysis = analyze(SAMPLES / "gpt_ddp_4rank")
    names = loaded(chosen_work(analysis, kernel="AllReduce")[0], analysis)
    assert names["RANKS"] == 4
    assert names["ELEMENTS"]["input"] == names["ELEMENTS"]["output"] > 0
    assert names["DTYPE"] in (torch.bfloat16, torch.float32)


def test_a_copy_is_repeated_with_its_size() -> None:
    copy = {"kind": "memcpy", "direction": "HtoD", "bytes": 4096, "dur_ns": 2_000}
    copy |= {"name": "Memcpy HtoD", "start_ns": 0}
    analysis = analyze(trace_of(activities=[copy]))
    names = loaded(chosen_work(analysis, kernel="HtoD")[0], analysis)
    assert (names["BYTES"], names["RECORDED_US"]) == (4096, 2.0)


def test_the_command_writes_a_script_but_not_over_another_file(tmp_path: Path) -> None:
    target = tmp_path / "slow.py"
    words = ["repro", str(GPT), "--op", "aten::mm", "-o", str(target)]
    for _ in range(2):  # its own script may be replaced
        assert CliRunner().invoke(app, words).exit_code == 0
    assert "call = torch.ops.aten.mm\n" in target.read_text(encoding="utf-8")
    target.write_text("print()\n", encoding="utf-8")
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert "did not write" in refused.stderr


def test_a_finding_about_data_is_a_loader_beside_a_step() -> None:
    analysis = analyze(GPT)
    work, note = chosen_work(analysis, "data-input")
    assert isinstance(work, Loading)
    assert note == ""
    share = analysis.findings[0].share
    step_ns = analysis.total.components.window_ns / 6  # steps, on one GPU
    assert (work.step_ns, work.wait_ns) == (int(step_ns), round(share * int(step_ns)))
    copied = analysis.to_pandas("activities").query("used and direction == 'HtoD'")["bytes"]
    assert work.bytes * 6 == copied.sum()


def test_a_finding_that_cannot_be_repeated_gives_one_that_can() -> None:
    work, note = chosen_work(analyze(GPT), "host-waits")
    assert isinstance(work, Loading)
    assert note.endswith("finding 1 (data-input) can be, and is.")
    with pytest.raises(UsageError, match="there is no finding 99"):
        chosen_work(analyze(GPT), "99")
    _, note = chosen_work(analyze(SAMPLES / "tutorials" / "cuda"), "norm-bandwidth")
    kernel = "at::native::<unnamed>::layer_norm_grad_input_kernel"  # other kernels take longer
    assert note.startswith(f"Of what can be repeated, this takes the most time: {kernel}")


def test_a_chain_is_the_operators_whose_launching_costs_most() -> None:
    ops = [  # host time, device time; the last three cost most
        *[(10_000, 9_000)] * 3,
        *[(40_000, 2_000)] * 3,
    ]
    starts = [100_000 * at for at in range(len(ops))]
    common = {"name": "aten::add", "input_dims": "[[8, 4], [8, 4], []]", "thread": 1}
    common |= {"input_types": '["float","float","Scalar"]', "concrete_inputs": '["","","1"]'}
    analysis = analyze(
        trace_of(
            ops=[
                common | {"start_ns": start, "dur_ns": host_ns}
                for start, (host_ns, _) in zip(starts, ops, strict=True)
            ],
            calls=[
                {"start_ns": start + 1, "correlation": at + 1} for at, start in enumerate(starts)
            ],
            activities=[
                {"name": "k", "start_ns": start + 50_000, "dur_ns": ns, "correlation": at + 1}
                for at, (start, (_, ns)) in enumerate(zip(starts, ops, strict=True))
            ],
        )
    )
    found = chain(analysis)
    assert found is not None
    assert (len(found.calls), found.wall_ns, found.sum_ns) == (6, 150_000, 33_000)


def test_long_lists_of_tensors_make_short_lines_of_the_same_tensors() -> None:
    """Those of an optimizer: all lists are ordered alike, so that each tensor keeps its state."""
    analysis = analyze(GPT)
    work = chosen_work(analysis, op="_fused_adamw_")[0]
    assert isinstance(work, Call)
    lists = [value.tensors for value in work.arguments if isinstance(value, TensorList)]
    made = loaded(work, analysis)["arguments"](lambda _, shape: tuple(shape))
    recorded = [[tuple(tensor.shape) for tensor in tensors] for tensors in lists if tensors]
    assert [sorted(shapes) for shapes in made] == [sorted(shapes) for shapes in recorded]
    assert sorted(zip(*made, strict=True)) == sorted(zip(*recorded, strict=True))
    assert max(map(len, script(work, analysis, "x.py").splitlines())) <= 100


def test_lists_whose_order_means_something_keep_it() -> None:
    """The weights of three layers, each with two matrices and two biases."""
    weights = 3 * [[256, 64], [256, 64], [256], [256]]
    weights[0] = [256, 32]
    row: dict[str, Any] = {"name": "aten::lstm"}
    row["concrete_inputs"] = '["","","","True","3","0.","True","False","False"]'
    row["input_dims"] = json.dumps([[10, 4, 32], 2 * [[3, 4, 64]], weights, *6 * [[]]])
    row["input_types"] = json.dumps(["float", "TensorList", "TensorList", *6 * ["Scalar"]])
    analysis = analyze(op_row(**row))
    made = loaded(chosen_work(analysis)[0], analysis)["arguments"](lambda _, shape: shape)
    assert made[2] == weights


def test_sizes_of_matrices_are_rounded_up_as_scaled_and_batches_are_not() -> None:
    row = {"name": "aten::bmm", "input_types": '["c10::BFloat16","c10::BFloat16"]'}
    analysis = analyze(op_row(**row, input_dims=json.dumps([[16, 559, 100], [16, 100, 559]])))
    names = loaded(chosen_work(analysis)[0], analysis)

    def make(resize: Callable[[int], int], _: object, shape: list[int]) -> list[int]:
        return [resize(size) for size in shape]

    made = dict(names["variants"](make, lambda size: 2 if size == 16 else size))
    assert made["sizes rounded up to 64"] == [[2, 576, 128], [2, 128, 576]]


CASES: dict[str, Callable[[Analysis], Work]] = {
    "attention": lambda analysis: chosen_work(analysis, op="scaled_dot_product_attention")[0],
    "product": lambda analysis: chosen_work(analysis, op="linear")[0],
    "softmax": lambda analysis: chosen_work(analysis, kernel="softmax")[0],
    "copy": lambda analysis: chosen_work(analysis, kernel="HtoD")[0],
    "data": lambda analysis: chosen_work(analysis, "1")[0],
    "launching": lambda analysis: found if (found := chain(analysis)) else chosen_work(analysis)[0],
}


@pytest.mark.parametrize("case", CASES)
def test_a_script_is_short_and_runs_on_the_cpu(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis = analyze(GPT)
    work = CASES[case](analysis)
    text = script(work, analysis, "x.py")
    assert_short(text)
    assert "gpt" not in text and "train.py" not in text  # nothing of the recording but its figures
    few = ["--steps", "4", "--workers", "0"] if isinstance(work, Loading) else ["--repeats", "3"]
    words = ["x.py", "--device", "cpu", "--scale", "0.01", *few]
    compiles = not isinstance(work, Loading) and case != "copy"
    # What compiles is tried without its back end, which takes a minute.
    monkeypatch.setattr(torch, "compile", lambda run: run)
    monkeypatch.setattr("sys.argv", [*words, *["--compile"] * compiles])
    loaded(work, analysis, "__main__")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("recorded: ")
    assert any(" us" in line for line in printed[1:])
    if isinstance(work, Chain):
        assert [line.partition(":")[0] for line in printed[1:]] == [
            "one by one",
            "as a CUDA graph",
            "compiled",
        ]


def test_the_names_of_arguments_are_those_of_pytorch() -> None:
    if not torch.__version__.startswith("2.13."):
        pytest.skip("the table is of torch 2.13")
    kept = aten_keywords.PATH.read_text(encoding="utf-8").splitlines()
    assert kept[-len(rows := [*aten_keywords.lines()]) :] == rows

"""Made traces of a device: which ops count, whose kernels are whose, and what stands outside."""

from __future__ import annotations

from typing import Any

import pytest

from tests.build import step_marks, trace_of
from tests.flops.ops.made import BF16, op
from tests.mfu.counting import part_of
from tests.mfu.traced.recording import lines
from traceflops.analysis.preparation import prepare
from traceflops.mfu.roof_times import moved_bytes
from traceflops.mfu.traced.executed import Executed, executed
from traceflops.mfu.traced.work_tables import kernel_rows, op_rows
from traceflops.table.trace import Trace

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
ODD = "zzz_nobody_knows_this"
NODE = "autograd::engine::evaluate_function: MmBackward0"


def mm(start: int, dur: int, m: int = 4, k: int = 8, n: int = 2, **more: Any) -> dict[str, Any]:
    dims = [[m, k], [k, n]]
    return op("mm", dims, BF16, **{"start_ns": start, "dur_ns": dur, **more})


def plain(name: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "start_ns": start, "dur_ns": dur, **more}


def launches(*kernels: tuple[str, int, int, int], lost: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return kernels (name, launched at, started at, duration), and launches without a kernel."""
    calls = [
        plain("cudaLaunchKernel", at, 1, correlation=i) for i, (_, at, *_) in enumerate(kernels)
    ]
    calls += [plain("cudaLaunchKernel", at, 1, correlation=900 + at) for at in lost]
    activities = [
        {"name": name, "start_ns": start, "dur_ns": dur, "correlation": i}
        for i, (name, _, start, dur) in enumerate(kernels)
    ]
    return {"calls": calls, "activities": activities}


def found(ops: list[dict[str, Any]], work: dict[str, Any], **tables: Any) -> tuple[Trace, Executed]:
    trace = trace_of(ops=ops, **work, **tables)
    return trace, executed(prepare(trace))


ONE = 2 * 4 * 8 * 2


def test_wrappers_around_an_op_do_not_count() -> None:
    linear = op("linear", [[4, 8], [2, 8], []], BF16, start_ns=0, dur_ns=30)
    matmul = op("matmul", [[4, 8], [8, 2]], BF16, start_ns=1, dur_ns=28)
    _, one = found([linear, matmul, mm(2, 20)], launches((GEMM, 5, 100, 50)))
    assert lines(one) == {"model.matmul.forward": ONE}
    assert one.coverage == 1
    assert one.outside.not_counted == ()


def test_a_wrapper_counts_where_nothing_below_it_is_known() -> None:
    linear = op("linear", [[4, 8], [2, 8], []], BF16, start_ns=0, dur_ns=30)
    _, one = found([linear, plain("my::gemm", 2, 20)], launches((GEMM, 5, 100, 50)))
    assert lines(one) == {"model.matmul.forward": ONE}


def test_an_op_of_several_kernels_counts_once_and_has_all_their_time() -> None:
    work = launches((GEMM, 5, 100, 50), (ADD, 7, 150, 10), ("splitKreduce_kernel", 9, 160, 90))
    trace, one = found([mm(0, 30), plain("aten::copy_", 6, 2)], work)
    assert lines(one) == {"model.matmul.forward": ONE}
    prepared = prepare(trace)
    moved = moved_bytes(prepared, one.attribution)
    [row] = op_rows(prepared, moved)
    assert (row.count, row.launches, row.measured.flops, row.measured.time_ns) == (1, 3, ONE, 150)
    assert row.dtypes == ("bf16",)
    assert row.measured.min_bytes == 2 * (4 * 8 + 8 * 2 + 4 * 2)
    kernels = kernel_rows(prepared, moved)
    flops = {row.name: row.measured.flops for row in kernels}
    assert [row.dtypes for row in kernels] == [(), ("bf16",), ()]
    assert flops == {GEMM: ONE, ADD: 0, "splitKreduce_kernel": 0}


def test_a_ghost_has_no_kernel_and_no_launch() -> None:
    work = launches((GEMM, 5, 100, 50), lost=(65,))
    _, one = found([mm(0, 20), mm(30, 20), mm(60, 20)], work)
    assert one.executed_flops == ONE
    assert [(o.why, o.count, o.flops) for o in one.outside.not_counted] == [
        ("ghost", 1, ONE),
        ("lost", 1, ONE),
    ]
    assert [note.code for note in one.notes] == ["kernels-of-ops-missing"]


def test_dispatch_modes_double_ops_or_leave_them_out() -> None:
    ops = [
        mm(0, 40),
        plain("PythonDispatchMode", 2, 30),
        mm(4, 20),
        mm(100, 40),
        plain("PythonDispatchMode", 102, 30),
    ]
    _, one = found(ops, launches((GEMM, 5, 200, 50)))
    assert one.executed_flops == ONE
    assert {(o.why, o.count) for o in one.outside.not_counted} == {("duplicate", 1), ("cached", 1)}


def test_only_elementwise_kernels_below_an_op_are_no_product() -> None:
    _, one = found([mm(0, 30)], launches((ADD, 5, 100, 50)))
    assert one.executed_flops == 0
    assert one.coverage is None


def test_a_kernel_of_unknown_name_below_a_lone_op_is_its_product() -> None:
    _, one = found([mm(0, 30)], launches((ODD, 5, 100, 50)))
    [cell] = one.cells
    assert (cell.flops, cell.component) == (ONE, "other")
    linear = op("linear", [[4, 8], [2, 8], []], BF16, start_ns=0, dur_ns=60)
    _, both = found([linear, mm(2, 20)], launches((GEMM, 5, 100, 50), (ODD, 40, 150, 10)))
    assert both.executed_flops == ONE


def test_compute_kernels_without_a_known_op_are_unattributed() -> None:
    work = launches((GEMM, 5, 100, 50), (GEMM, 45, 140, 30), (GEMM, 75, 300, 20))
    ops = [mm(0, 20), plain("my::moe", 40, 20), plain("aten::mm", 70, 10)]
    _, one = found(ops, work)
    assert one.executed_flops == ONE
    whys = {(o.why, o.count, o.sum_ns) for o in one.outside.unattributed}
    assert whys == {("no-modelled-op", 1, 30), ("no-shapes", 1, 20)}
    assert one.coverage is not None
    assert one.coverage.as_integer_ratio() == (1, 2)
    assert sum(time.uncounted_ns for time in one.times if time.used) == 20 + 20, (
        "10 of the 30 ns the counted kernel runs, too"
    )


def test_flops_go_to_the_step_that_launched_the_kernel() -> None:
    """The kernel of the first step runs on into the window of the second."""
    work = launches((GEMM, 5, 1000, 500), (GEMM, 105, 1200, 400), (GEMM, 205, 1600, 100))
    marks = step_marks(*((f"ProfilerStep#{i}", 100 * i, 90) for i in range(3)))
    ops = [mm(0, 20), mm(100, 20, m=8), mm(200, 20, m=16)]
    _, one = found(ops, work, marks=marks)
    sums = {c.window: c.flops for c in one.cells}
    assert sums == {0: ONE, 1: 2 * ONE, 2: 4 * ONE}


def test_backward_ops_with_gradients_on_are_a_forward_again() -> None:
    ops = [
        mm(0, 10, sequence=5),
        plain(NODE, 100, 100, sequence=5, forward_thread=1),
        plain("MmBackward0", 101, 98, sequence=5, forward_thread=1),
        mm(110, 10, sequence=9),
        mm(130, 10, m=4, k=2, n=8),
        mm(150, 10, m=8, k=4, n=2),
    ]
    work = launches(*((GEMM, at, 1000 + 10 * at, 9) for at in (5, 115, 135, 155)))
    _, one = found(ops, work)
    assert lines(one) == {
        "model.matmul.forward": ONE,
        "model.matmul.input_grad": ONE,
        "model.matmul.weight_grad": ONE,
        "recompute.matmul": ONE,
    }
    assert one.rules("recompute") == {"R1": (1, ONE)}


@pytest.mark.parametrize("engine", [True, False])
@pytest.mark.parametrize(
    "node",
    [
        "torch::autograd::CppNode<MyLinear>",
        "torch::jit::(anonymous namespace)::DifferentiableGraphBackward",
        "MyLinearBackward",
    ],
)
def test_nodes_of_functions_of_users_are_backward_nodes(node: str, engine: bool) -> None:
    """The node carries a sequence number itself; its products are gradients all the same."""
    call = "autograd::engine::evaluate_function: "
    ops = [
        mm(0, 10, m=12, k=8, n=4, sequence=5),
        *([plain(f"{call}{node}", 20, 40, sequence=5)] if engine else []),
        plain(node, 21, 38, sequence=5),
        mm(22, 10, m=12, k=4, n=8),
        mm(34, 10, m=8, k=12, n=4),
    ]
    kernels = launches(*((f"k{at}", at, at + 100, 10) for at in (1, 23, 35)))
    _, executed = found(ops, kernels)
    assert {line.name: line.flops for line in executed.ledger().lines} == {
        "model.matmul.forward": 2 * 12 * 8 * 4,
        "model.matmul.input_grad": 2 * 12 * 8 * 4,
        "model.matmul.weight_grad": 2 * 12 * 8 * 4,
    }


def test_frames_of_the_checkpoint_module_that_disagree_are_a_note() -> None:
    ops = [
        plain(NODE, 100, 100, sequence=5, forward_thread=1),
        mm(110, 10, sequence=9),
        mm(150, 10, sequence=10),
    ]
    frame = {
        "kind": "python",
        "name": "torch/utils/checkpoint.py(1130): recompute_fn",
        "start_ns": 105,
        "dur_ns": 20,
    }
    work = launches((GEMM, 115, 2000, 9), (GEMM, 155, 2100, 9))
    _, one = found(ops, work, marks=[frame])
    assert lines(one) == {"recompute.matmul": 2 * ONE}
    assert [(note.code, note.count) for note in one.notes] == [("recompute-rules-disagree", 1)]


def test_optimizers_in_a_closure_do_not_swallow_the_model() -> None:
    """Some loops run forward and backward inside the optimizer's step."""
    ops = [
        mm(0, 10, sequence=5),
        plain(NODE, 30, 30, sequence=5, forward_thread=1),
        mm(40, 10, m=4, k=2, n=8),
        mm(70, 10, m=8, k=8, n=8),
    ]
    marks = [plain("Optimizer.step#Muon.step", 0, 100)]
    work = launches(*((GEMM, at, 1000 + 10 * at, 9) for at in (5, 45, 75)))
    _, one = found(ops, work, marks=marks)
    assert lines(one) == {
        "model.matmul.forward": ONE,
        "model.matmul.input_grad": ONE,
        "overcompute.optimizer": 2 * 8 * 8 * 8,
    }


def test_cpu_runs_without_proofs_say_that_ghosts_cannot_be_told() -> None:
    one = executed(prepare(trace_of(ops=[mm(0, 10)])))
    assert part_of(one, used=False).ledger().executed == ONE
    assert [note.code for note in one.notes] == ["ghosts-not-told"]


def test_a_trace_without_ops_has_an_empty_ledger() -> None:
    _, one = found([], launches((GEMM, 5, 100, 50)))
    assert one.executed_flops == 0
    assert one.coverage == 0
    assert executed(prepare(trace_of())).cells == ()


def test_counts_between_bounds_are_bounds_of_the_ledger_too() -> None:
    heads = [[1, 4, 16, 8]] * 3
    name = "_scaled_dot_product_flash_attention"
    unknown = op(name, [*heads, [], []], BF16, start_ns=0, dur_ns=20)
    _, one = found([unknown], launches((GEMM, 5, 100, 50)))
    full = 2 * 4 * 16 * 16 * 16
    assert one.executed_flops == full
    assert one.executed_at_least == 2 * 4 * (16 * 17 // 2) * 16
    assert [note.code for note in one.notes] == ["flops-between-bounds"]


def test_an_inner_op_that_does_not_show_its_mask_leaves_the_count_to_the_outer_one() -> None:
    outer = op(
        "_scaled_dot_product_flash_attention",
        [*[[1, 4, 16, 8]] * 3, [], []],
        BF16,
        values=[None, None, None, 0.0, True],
        start_ns=0,
        dur_ns=20,
    )
    inner = op("_flash_attention_forward", [[1, 16, 4, 8]] * 3, BF16, start_ns=1, dur_ns=18)
    _, one = found([outer, inner], launches((GEMM, 5, 100, 50)))
    assert one.executed_flops == one.executed_at_least == 2 * 4 * (16 * 17 // 2) * 16

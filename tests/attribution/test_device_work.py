"""Whose work the devices did: each rule, modules and layers, exact sums, labelled recordings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.attribution.test_culprits import LABELLED, LABELS, WORK, host_rows
from tests.build import launched, trace_of
from tests.conftest import analysis_of_sample, examples, shared_file
from traceflops import Analysis, Trace, analyze, read
from traceflops.analysis.preparation import prepare
from traceflops.attribution.device_work import RULES, WorkSum, attributed
from traceflops.attribution.device_work_tables import BY, WorkOwners
from traceflops.attribution.time_tree import TimeNode, time_trees
from traceflops.reports.tables import save_tables

ENGINE = 2
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
ACCUMULATE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def event(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "start_ns": start, "dur_ns": end - start, **more}


def module(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return event(f"nn.Module: {name}", start, end, kind="module", **more)


def frame(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return event(name, start, end, kind="python", **more)


def made(*, kernel: str = "k", thread: int = 1, **host: list[dict[str, Any]]) -> Trace:
    """Return a kernel of 10 ns that a thread launches at 100 ns, and a host."""
    run = launched((kernel, 100, 200, 10))
    run["calls"][0]["thread"] = thread
    return trace_of(**run | host)


def backward_of(mark: dict[str, Any]) -> Trace:
    """Return a kernel of a backward node, whose forward operator ran inside a mark."""
    ops = [
        event("aten::mm", 10, 20, sequence=5),
        event(BACKWARD, 90, 300, sequence=5, forward_thread=1, thread=ENGINE),
    ]
    return made(thread=ENGINE, marks=[mark], ops=ops)


CASES: dict[str, tuple[Trace, str]] = {
    "a module": (made(marks=[module("A_0", 0, 400), module("B_3", 90, 300)]), "module"),
    "one of another thread": (made(marks=[module("A_0", 0, 400)], thread=2), "call"),
    "the module of the forward op": (backward_of(module("A_0", 0, 60)), "backward_module"),
    "gradients added up": (made(ops=[event(ACCUMULATE, 90, 300)]), "gradient_accumulation"),
    "a collective of a hook there": (
        made(kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL", ops=[event(ACCUMULATE, 90, 300)]),
        "communication",
    ),
    "the optimizer by its annotation": (
        made(marks=[event("Optimizer.step#Adam.step", 90, 300)]),
        "optimizer",
    ),
    "the optimizer by its frame": (
        made(marks=[frame("torch/optim/adam.py(3): step", 90, 300)]),
        "optimizer",
    ),
    "a function of the user": (
        made(marks=[frame("a.py(1): f", 0, 400), frame("torch/functional.py(9): mm", 90, 300)]),
        "user_function",
    ),
    "functions of libraries alone": (
        made(marks=[frame("torch/functional.py(9): mm", 90, 300)]),
        "call",
    ),
    "an annotation": (made(marks=[event("attention", 90, 300)]), "annotation"),
    "the annotation of the forward op": (backward_of(event("attention", 0, 60)), "annotation"),
    "a step": (made(marks=[event("ProfilerStep#3", 90, 300)]), "call"),
    "a compiled region": (
        made(ops=[event("Torch-Compiled Region: 0/0", 90, 300)]),
        "compiled_region",
    ),
    "a compiled kernel": (made(kernel="triton_poi_fused_add_0"), "compiled_region"),
    "an operator": (made(ops=[event("aten::mm", 90, 300)]), "op"),
    "a call": (made(), "call"),
    "nothing": (made(calls=[]), "none"),
}


@pytest.mark.parametrize("case", CASES)
def test_work_belongs_to_the_first_rule_that_fits(case: str) -> None:
    trace, rule = CASES[case]
    work = analyze(trace).attribution
    assert work is not None
    assert {rule: one for rule, one in work.by_rule.items() if one.activities} == {
        rule: WorkSum(1, 10)
    }
    assert work.share(rule) == 1


def model(layers: int = 3) -> Analysis:
    """Return layers of which each launches a kernel itself, longer each time, and one in a norm."""
    marks, works = [module("Model_0", 0, 1_000 * layers)], []
    for layer in range(layers):
        at = 1_000 * layer
        marks += [
            module(f"Layer_{layer}", at, at + 900),
            module(f"Norm_{layer}", at + 200, at + 400),
        ]
        works += [("a", at + 100, at + 110, 10 + layer), ("b", at + 300, at + 310, 5)]
    works.append(("c", 1_000 * layers + 50, 1_000 * layers + 60, 7))
    return analyze(trace_of(**launched(*works), marks=marks))


@pytest.mark.parametrize(
    ("case", "share"),
    [
        ("the module of the forward op", "module_share"),
        ("a collective of a hook there", "annotation_share"),
        ("gradients added up", "op_share"),
    ],
)
def test_collectives_count_as_annotated_and_gradients_as_of_operators(
    case: str, share: str
) -> None:
    told = json.loads(str(analyze(CASES[case][0]).to_json()))["attribution"]
    del told["by_rule"]
    assert {name for name, value in told.items() if value} == {share}


def test_modules_have_their_full_path_and_only_what_they_launched_themselves() -> None:
    work = model().attribution
    assert work is not None
    assert [(one.path, one.count, one.device_ns, one.flops) for one in work.modules] == [
        *((f"Model_0/Layer_{layer}", 1, 10 + layer, None) for layer in (2, 1, 0)),
        *((f"Model_0/Layer_{layer}/Norm_{layer}", 1, 5, None) for layer in range(3)),
    ]


def table(analysis: Analysis, by: str) -> WorkOwners:
    return BY[by](analysis.prepared)


def test_layers_fold_instances_of_one_class_in_one_other() -> None:
    found = table(model(), "layer")
    assert [(one.depth, one.instances, one.label, one.work) for one in found.owners] == [
        (0, 1, "Model", WorkSum(6, 48)),
        (1, 3, "Layer", WorkSum(6, 48)),
        (2, 3, "Norm", WorkSum(3, 15)),
    ]
    assert found.owners[1].slowest == "Layer_2"
    assert found.rest == WorkSum(1, 7)


def test_modules_are_a_tree_with_what_is_inside_them() -> None:
    assert [
        (one.depth, one.label, one.work.device_ns) for one in table(model(), "module").owners
    ] == [
        (0, "Model_0", 48),
        *((1, "Layer_2", 17), (2, "Norm_2", 5)),
        *((1, "Layer_1", 16), (2, "Norm_1", 5)),
        *((1, "Layer_0", 15), (2, "Norm_0", 5)),
    ]


def test_many_modules_of_one_class_are_one_and_the_slowest_in_it() -> None:
    times = (10, 10, 30, 10)
    works = [("a", 1_000 * n + 100, 1_000 * n + 110, dur) for n, dur in enumerate(times)]
    marks = [module("Model_0", 0, 4_000)]
    for n in range(4):
        marks += [module(f"Layer_{n}", 1_000 * n + 10, 1_000 * n + 900)]
        marks += [module(f"Norm_{n}", 1_000 * n + 20, 1_000 * n + 800)]
    found = table(analyze(trace_of(**launched(*works), marks=marks)), "module")
    assert [
        (one.depth, one.label, one.work.device_ns, one.instances, one.slowest)
        for one in found.owners
    ] == [
        (0, "Model_0", 60, 1, "Model_0"),
        (1, "Layer", 60, 4, "Layer_2"),
        (2, "Layer_2", 30, 1, "Layer_2"),
        (3, "Norm_2", 30, 1, "Norm_2"),
    ]


def test_redacted_layers_are_told_apart_and_folded_alike() -> None:
    run = launched(*(("a", 1_000 * at + 100, 1_000 * at + 110, 10) for at in range(4)))
    names = ("Secret_0", "Secret_1", "Other_0", "Secret_2")
    marks = [module(name, 1_000 * at, 1_000 * at + 900) for at, name in enumerate(names)]
    found = table(analyze(trace_of(**run, marks=marks), redact=True), "layer")
    assert [(one.instances, one.work.device_ns) for one in found.owners] == [(3, 30), (1, 10)]
    assert not any("Secret" in one.label for one in found.owners)


def test_flops_are_those_of_the_operators_in_a_module() -> None:
    shapes = {"input_dims": "[[2,3],[3,5]]", "input_types": '["float","float"]'}
    trace = made(
        kernel="gemm_f32", marks=[module("A_0", 0, 400)], ops=[event("aten::mm", 90, 300, **shapes)]
    )
    work = analyze(trace).attribution
    assert work is not None
    assert [one.flops for one in work.modules] == [2 * 2 * 3 * 5]


def test_modules_are_among_the_tables_of_a_report(tmp_path: Path) -> None:
    save_tables(model(layers=1), tmp_path, "csv")
    assert (tmp_path / "modules.csv").read_text().splitlines()[1:] == [
        '"Model_0/Layer_0",1,10,',
        '"Model_0/Layer_0/Norm_0",1,5,',
    ]


def test_a_very_deep_path_names_the_innermost_modules() -> None:
    marks = [module(f"M_{at}", at // 2, 1_000 - at) for at in range(150)]
    work = analyze(made(marks=marks)).attribution
    assert work is not None
    levels = work.modules[0].path.split("/")
    assert (len(levels), levels[0], levels[-1]) == (101, "…", "M_149")


def test_what_a_kernel_says_itself_comes_before_what_is_around_its_launch() -> None:
    """As PyTorch's tools add it: the annotation of a graph's node, the source of fused operators.

    A kernel of fused operators stands for them, whatever launched it; others have their operator.
    """
    fused = "triton_red_fused_add_mean_0"
    run = launched((fused, 100, 200, 10), ("gemm", 110, 210, 5), ("triton_mine", 120, 220, 1))
    run["activities"][0] |= {"source": "model.py(12): forward", "annotation": "encoder"}
    host = {
        "ops": [event("Torch-Compiled Region: 0/0", 0, 300), event("CompiledFunction", 50, 250)],
        "marks": [
            frame("run.py(1): main", 0, 300),
            frame("triton/runtime/jit.py(9): run", 115, 300),
            frame("/x/site-packages/triton/backends/amd/driver.py(9): __call__", 118, 300),
        ],
    }
    prepared = prepare(trace_of(**run, **host))
    found = {by: BY[by](prepared) for by in ("op", "source", "range")}
    assert {by: {one.label: one.work for one in each.owners} for by, each in found.items()} == {
        "op": {fused: WorkSum(1, 10), "CompiledFunction": WorkSum(2, 6)},
        "source": {"model.py(12): forward": WorkSum(1, 10), "run.py(1): main": WorkSum(2, 6)},
        "range": {"encoder": WorkSum(1, 10), "Torch-Compiled Region: 0/0": WorkSum(2, 6)},
    }


def test_annotations_that_differ_only_in_numbers_are_one() -> None:
    run = launched(("k", 100, 200, 10), ("k", 110, 210, 5), ("k", 120, 220, 1))
    names = ("Compute 10", "Compute 20", "Copy 20")
    marks = [event(name, 100 + 10 * at, 109 + 10 * at) for at, name in enumerate(names)]
    owners = BY["range"](prepare(trace_of(**run, marks=marks))).owners
    assert [(one.label, one.instances, one.slowest, one.work) for one in owners] == [
        ("Compute", 2, "Compute 10", WorkSum(2, 15)),
        ("Copy 20", 1, "", WorkSum(1, 1)),
    ]


NAMES = ("nn.Module: A_0", "nn.Module: A_1", "f.py(1): f", "x", "aten::mm", ACCUMULATE, BACKWARD)


@settings(max_examples=examples(50), deadline=None)
@given(host_rows(("module", "python", "annotation", "op"), NAMES), WORK)
def test_rules_modules_and_tables_sum_to_the_kernels(
    host: list[tuple[str, dict[str, Any]]], work: dict[str, list[dict[str, Any]]]
) -> None:
    tables: dict[str, list[dict[str, Any]]] = {"marks": [], "ops": []} | work
    for kind, row in host:
        if kind == "op":
            tables["ops"].append(row | {"sequence": row["start_ns"] % 3, "forward_thread": 1})
        else:
            tables["marks"].append(row | {"kind": kind})
    analysis = analyze(trace_of(**tables))
    every = WorkSum(*(sum(analysis.kernels[name].to_pylist()) for name in ("count", "sum_ns")))
    found = analysis.attribution
    assert found is not None
    assert sum(found.by_rule.values(), start=WorkSum(0, 0)) == every
    of_modules = found.by_rule["module"] + found.by_rule["backward_module"]
    told = (WorkSum(one.count, one.device_ns) for one in found.modules)
    assert sum(told, start=WorkSum(0, 0)) == of_modules
    for by in BY:
        owners = table(analysis, by)
        outermost = (one.work for one in owners.owners if one.depth == 0)
        assert sum(outermost, start=owners.rest) == every


ALIKE = {
    "module (launch stack)": ["module"],
    "module (backward→forward op)": ["backward_module"],
    "optimizer": ["optimizer"],
    "no launch link": ["none"],
    "launch call only": ["call"],
    "user Python frame": ["user_function"],
    "Python frame of forward op": ["user_function"],
    "annotation": ["annotation", "compiled_region", "communication"],
    "op only": ["op", "gradient_accumulation"],
    "forward op only": ["op", "gradient_accumulation"],
}
"""The rules of the labels and ours; they have no bucket for collectives nor for gradients."""


@pytest.mark.parametrize("name", LABELLED)
def test_labelled_recordings(name: str) -> None:
    labels = json.loads(shared_file(LABELS).read_text())
    key = next(key for key in labels["attribution"] if f"/{name}." in key)
    meta, expected = labels["meta"][key], labels["attribution"][key]
    prepared = prepare(read(shared_file(f"traces/{key}")))
    first = min(account.rows.span[0] for account in prepared.accounts.values())
    found = []
    for rows in (account.rows for account in prepared.accounts.values()):
        inside = rows.start_ns <= first + meta["to_ns"]
        inside &= rows.start_ns >= first + meta["from_ns"]
        found += [rows.row, rows.row[inside]]
    mine = min(found, key=lambda row: abs(len(row) - expected["n"]))  # one device, some windows
    assert len(mine) == expected["n"]
    count = np.bincount(attributed(prepared, mine)[0], minlength=len(RULES))
    more = {}
    for rules in {tuple(rules) for rules in ALIKE.values()}:
        label = sum(
            best[0] for what, best in expected["best"].items() if ALIKE[what] == list(rules)
        )
        more[rules[0]] = sum(int(count[RULES.index(rule)]) for rule in rules) - label
    # What autograd's own thread launches is in the range around backward(), which labels leave out.
    slack = 0.005 * expected["n"]
    assert more["annotation"] >= -slack and more["op"] <= slack, more
    more["annotation"], more["op"] = 0, more["op"] + more["annotation"]
    assert all(abs(rows) <= slack for rows in more.values()), more


def nodes_of(tree: TimeNode) -> list[TimeNode]:
    return [tree, *(inner for one in tree.inside.values() for inner in nodes_of(one))]


def test_each_instant_is_in_one_path_of_the_tree() -> None:
    """A product of 100 ns, one of 80 ns that begins 60 ns later, 40 ns idle, a copy of 20 ns."""
    run = launched(("gemm", 0, 100, 100), ("gemm_2", 10, 160, 80), ("memcpy", 20, 280, 20))
    marks = [module("Model_0", 0, 15), module("Layer_0", 5, 15)]
    tree = time_trees(prepare(trace_of(**run, marks=marks)))["module"]
    model = tree.inside["Model_0"]
    assert (tree.total_ns, tree.idle_ns) == (200, 40)
    assert model.inside["gemm"].total_ns == 100
    assert (model.inside["Layer_0"].total_ns, model.idle_ns) == (40, 0)
    assert model.total_ns == 140
    assert (tree.inside["memcpy"].total_ns, tree.inside["memcpy"].idle_ns) == (60, 40)


@pytest.mark.parametrize("name", ["gpt_1rank.json.gz", "gpt_ddp_4rank", "rocprofv3_json"])
def test_all_that_is_in_a_node_sums_to_it(name: str) -> None:
    analysis = analysis_of_sample(name)
    parts = analysis.components.parts()
    for lens, tree in time_trees(analysis.prepared).items():
        assert tree.total_ns == analysis.components.window_ns, lens
        assert tree.idle_ns == parts["idle"]
        assert all(tree.components[one] == ns for one, ns in parts.items() if one != "idle")
        for node in nodes_of(tree):
            inside = list(node.inside.values())
            assert sum(node.kernels.values()) == node.total_ns - node.idle_ns
            if inside and node is not tree:  # what is before and after all work is the step's own
                assert sum(one.total_ns for one in inside) == node.total_ns
                assert sum(one.idle_ns for one in inside) == node.idle_ns

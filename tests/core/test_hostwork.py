"""A run recorded without a GPU: leaf operators are the activities of the device cpu."""

from tests.core.build import trace_of
from traceflops import analyze


def test_leaf_operators_are_the_work_and_callers_are_not_counted_again() -> None:
    ops = [
        {"name": "aten::linear", "start_ns": 0, "dur_ns": 100},
        {"name": "aten::addmm", "start_ns": 10, "dur_ns": 60},
        {"name": "aten::copy_", "start_ns": 80, "dur_ns": 15},
        {"name": "aten::mm", "start_ns": 40, "dur_ns": 50, "thread": 2},
    ]
    analysis = analyze(trace_of(ops=ops, devices=[]))
    (cpu,) = analysis.devices
    assert (cpu.type, cpu.label) == ("cpu", "made.json · cpu")
    assert cpu.whole.kinds["op"].count == 3
    assert cpu.whole.kinds["op"].sum_ns == 60 + 15 + 50
    parts = analysis.components
    assert (parts.compute_ns, parts.memory_ns, parts.idle_ns) == (80, 5, 0)
    assert cpu.whole.unlinked is None
    assert analysis.total.launches is None


def test_an_empty_trace_has_no_device_and_says_so() -> None:
    analysis = analyze(trace_of(devices=[]))
    assert analysis.devices == ()
    assert analysis.verdict.sentence == "There is no device work in this trace."
    assert analysis.components.window_ns == 0
    assert analysis.kernels.num_rows == 0
    assert analysis.to_json()

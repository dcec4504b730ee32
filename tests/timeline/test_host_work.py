"""A run recorded without a GPU: operators are the activities of the device cpu."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.build import trace_of
from traceflops import analyze
from traceflops.timeline.host_work import with_host_activities

OPS: list[dict[str, Any]] = [
    {"name": "aten::linear", "start_ns": 0, "dur_ns": 100},
    {"name": "aten::addmm", "start_ns": 10, "dur_ns": 60},
    {"name": "aten::view", "start_ns": 30, "dur_ns": 0},
    {"name": "aten::copy_", "start_ns": 80, "dur_ns": 15},
    {"name": "aten::mm", "start_ns": 40, "dur_ns": 50, "thread": 2},
]


def test_each_instant_of_a_thread_belongs_to_its_innermost_operator() -> None:
    analysis = analyze(trace_of(ops=OPS, devices=[]))
    (cpu,) = analysis.devices
    assert (cpu.type, cpu.label) == ("cpu", "CPU")
    times = dict(zip(*(analysis.kernels[c].to_pylist() for c in ("name", "sum_ns")), strict=True))
    assert times == {
        "aten::addmm": 60,
        "aten::mm": 50,
        "aten::linear": 10 + 10 + 5,
        "aten::copy_": 15,
        "aten::view": 0,
    }
    counts = dict(zip(*(analysis.kernels[c].to_pylist() for c in ("name", "count")), strict=True))
    assert set(counts.values()) == {1}
    linear = analysis.kernels.to_pylist()[[*times].index("aten::linear")]
    assert (linear["min_ns"], linear["mean_ns"], linear["max_ns"]) == (25, 25, 25)
    assert cpu.whole.kinds["op"].count == analysis.total.activities == 5
    # aten::addmm and aten::mm compute for 60 and 50 of 95; what aten::linear has itself is dispatch
    parts = analysis.components
    assert (parts.compute_ns, parts.memory_ns, parts.other_ns, parts.idle_ns) == (80, 5, 15, 0)
    assert cpu.whole.unlinked is None
    assert analysis.total.launches is None


@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.integers(0, 20), st.integers(0, 15)), min_size=1, max_size=9
    )
)
def test_pieces_cover_what_the_operators_cover_once_per_thread(
    ops: list[tuple[int, int, int]],
) -> None:
    rows = [{"name": "x", "thread": t, "start_ns": s, "dur_ns": n} for t, s, n in ops]
    work = with_host_activities(trace_of(ops=rows, devices=[])).activities.to_pylist()
    for thread in (1, 2):
        covered = {i for t, s, n in ops if t == thread for i in range(s, s + n)}
        pieces = [
            i
            for row in work
            if row["stream"] == thread
            for i in range(row["start_ns"], row["start_ns"] + row["dur_ns"])
        ]
        assert sorted(pieces) == sorted(covered)


def test_an_empty_trace_has_no_device_and_says_so() -> None:
    analysis = analyze(trace_of(devices=[]))
    assert analysis.devices == ()
    assert analysis.verdict.sentence.endswith("This trace has no GPU operations.")
    assert analysis.components.window_ns == 0
    assert analysis.kernels.num_rows == 0
    assert analysis.to_json()

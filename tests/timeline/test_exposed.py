"""The kernel with most of a component: only time in which the component has the device."""

import traceflops as tf
from tests.build import launched, trace_of
from traceflops.analysis.preparation import prepare
from traceflops.reports.page.evidence import places, step_rows
from traceflops.windows.prepared import Prepared, most_exposed

GEMM, REDUCE, GATHER = "sm90_gemm_bf16", "ncclDevKernel_AllReduce_Sum", "ncclDevKernel_AllGather"
BOTH = frozenset({REDUCE, GATHER})


def prepared(*works: tuple[str, int, int]) -> Prepared:
    """Return kernels by name, start and duration, each on a stream of its own."""
    made = launched(*((name, start - 1, start, dur) for name, start, dur in works))
    for stream, row in enumerate(made["activities"], 7):
        row["stream"] = stream
    return prepare(trace_of(**made))


def test_hidden_time_is_left_out() -> None:
    """The reduce takes 80 ns, 60 of them beside a product; the gather 30 ns, all of them alone."""
    run = prepared((GEMM, 100, 100), (REDUCE, 140, 80), (GATHER, 300, 30))
    assert most_exposed(run, "communication", BOTH) == (GATHER, 30)
    assert most_exposed(run, "communication", {REDUCE}) == (REDUCE, 20)


def test_a_kernel_that_runs_twice_at_once_counts_once() -> None:
    """Two reduces of 40 ns at the same time are 40 ns of the device, less than a gather of 50."""
    run = prepared((GEMM, 100, 10), (REDUCE, 200, 40), (REDUCE, 200, 40), (GATHER, 300, 50))
    assert most_exposed(run, "communication", BOTH) == (GATHER, 50)


def test_what_is_hidden_or_not_there_is_no_part() -> None:
    run = prepared((GEMM, 100, 100), (REDUCE, 140, 20))
    assert most_exposed(run, "communication", BOTH) is None
    assert most_exposed(run, "memory", BOTH) is None
    assert most_exposed(run, "compute", {GEMM}) == (GEMM, 100)


def test_the_evidence_of_a_loss_is_never_more_than_the_loss() -> None:
    works = ((GEMM, 99, 100, 100), (REDUCE, 139, 140, 100), (GEMM, 299, 300, 100))
    made = launched(*works)
    made["activities"][1]["stream"] = 8
    analysis = tf.analyze(trace_of(**made))
    found = next(one for one in analysis.losses if one.rule == "loss-communication")
    assert analysis.components.communication_ns == 40
    texts = [(one.text, one.name) for one in places(analysis, found, step_rows(analysis))]
    assert ("largest part: 40 ns total in", REDUCE) in texts

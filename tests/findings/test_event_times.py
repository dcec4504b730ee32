"""Times between events around operators: they tell who waits for whom, not how busy the GPU is."""

import pytest

import traceflops as tf
from tests.parsers.pytorch.test_legacy import event, read, work


def timed(late: float) -> tf.Analysis:
    """Return ten operators of 50 us each, which the GPU starts so much later in turn."""
    ops = [event("aten::mm", 60.0 * at, 50.0, 1) for at in range(10)]
    timed_ops = (
        (op, *work(op, op["ts"] + 3 + late * at, 48.0 + late, at)) for at, op in enumerate(ops)
    )
    return tf.analyze(read([one for some in timed_ops for one in some]))


def test_a_gpu_that_starts_operators_at_once_waits_for_the_host() -> None:
    analysis = timed(0.0)
    assert analysis.verdict.headline == "launch-bound"
    assert analysis.verdict.sentence.startswith(
        "The GPU waits for the host: 100.0 % of operators start on the GPU within 10.0 µs of their "
        "start on the CPU, and it is done as soon as the CPU is. Record with torch.profiler "
    )
    assert "Operators cover 81.6 % of the time" in analysis.verdict.sentence
    assert "larger batches, torch.compile or graphs" in analysis.verdict.sentence
    assert not [one for one in analysis.losses if one.rule != "trace-health"]


@pytest.mark.parametrize("late", [0.0, 12.0])
def test_no_busy_share_is_told_of_times_between_events(late: float) -> None:
    said = timed(late).verdict.sentence
    assert "busy" not in said
    assert ("waits for the host" in said) == (not late)


def test_operators_of_the_cpu_alone_have_no_times_between_events() -> None:
    analysis = tf.analyze(read([event("aten::mm", 60.0 * at, 50.0, 1) for at in range(10)]))
    assert analysis.verdict.headline == "no-gpu-work"

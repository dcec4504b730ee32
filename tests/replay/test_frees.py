"""Calls that free memory wait for the device: a wait before them gains nothing when it goes."""

import pytest
from msgspec.structs import replace

from sample_traces.config import RunConfig
from tests.build import launched, trace_of
from tests.findings.faults import DRAINED, step_ns
from tests.findings.scenarios import ROUNDING, WAYS, analysis_of
from traceflops import analyze, what_if

US = 1_000


def left(free: str, *, waits: bool = True) -> float:
    """Return what is left of a loop without its cudaDeviceSynchronize, where it frees memory then.

    Each round launches a kernel of 100 us, waits for it, frees, and works on the host for 50 us.
    Where the call does not wait, there is one of it while a kernel runs, too.
    """
    works = [("k", 200 * US * n, (200 * n + 10) * US, 100 * US) for n in range(20)]
    made = launched(*works)
    for place, row in enumerate(list(made["calls"])):
        row |= {"name": "cudaLaunchKernel", "dur_ns": 5 * US}
        at = row["start_ns"]
        made["calls"] += [
            {
                "name": "cudaDeviceSynchronize",
                "start_ns": at + 8 * US,
                "dur_ns": 104 * US,
                "correlation": 100 + place,
            },
            {
                "name": free,
                "start_ns": at + (114 if waits else 6) * US,
                "dur_ns": (5 if waits else 1) * US,
                "correlation": 200 + place,
            },
        ]
        # The host works until it launches again.
        made.setdefault("ops", []).append(
            {"name": "prepare", "start_ns": at + 120 * US, "dur_ns": 79 * US}
        )
    asked = what_if(analyze(trace_of(**made)), "sync:^cudaDeviceSynchronize$=0").together
    return asked.most_ns / asked.before_ns


@pytest.mark.parametrize("free", ["cudaFree", "hipFree", "cudaFreeHost", "cuMemFree_v2"])
def test_a_free_behind_a_wait_waits_itself(free: str) -> None:
    assert left(free) > 0.9


def test_a_call_that_returns_while_work_runs_does_not_wait() -> None:
    assert left("cudaFree", waits=False) < 0.7
    assert left("cudaFreeAsync") < 0.7


def test_of_a_wait_and_a_free_behind_it_only_both_together_hold_up_a_run() -> None:
    """The host is ahead in a step that waits nowhere: the head of the model takes long."""
    base = RunConfig(steps=6, steady_draws=True, host_op_ns=8_000, **DRAINED)
    run = replace(base, sync_each_step=True, free_each_step=True)
    analysis, gained = analysis_of(run, WAYS["nsys"]), []
    read, free = "cudaStreamSynchronize", "cudaFree"
    for calls in (read, free, f"{read}|{free}"):
        repaired = replace(base, sync_each_step=calls == free, free_each_step=calls == read)
        gained.append((step_ns(run) - step_ns(repaired)) / step_ns(run))
        told = what_if(analysis, f"sync:^({calls})$=0").together
        assert told.most_ns / told.before_ns == pytest.approx(1 - gained[-1], abs=ROUNDING)
    assert max(gained[:2]) < 0.01 < 0.2 < gained[2]

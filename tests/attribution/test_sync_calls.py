"""Calls in which the host waits for the device: their sites, times, and the idle time after."""

from typing import Any

from tests.attribution.test_culprits import US, event, frame, made
from tests.build import launched, trace_of
from traceflops import analyze
from traceflops.attribution.host_calls import Synchronisation


def found(**host: list[dict[str, Any]]) -> tuple[Synchronisation, ...]:
    """Return the synchronising calls of a host, between two kernels that end at 20 and 1,020 us."""
    return analyze(made(**host)).synchronisations


def test_a_wait_is_told_with_its_site_and_the_idle_time_after_it() -> None:
    calls = [event("cudaStreamSynchronize", 12, 25), event("cudaStreamSynchronize", 500, 530)]
    ops = [event("aten::item", 11, 26), event("aten::is_nonzero", 499, 531)]
    ops.append(event("aten::_local_scalar_dense", 499, 531))
    assert found(calls=calls, ops=ops) == (
        Synchronisation("cudaStreamSynchronize", "aten::is_nonzero", 1, 30 * US, 0),
        Synchronisation("cudaStreamSynchronize", "aten::item", 1, 13 * US, 13 * US),
    )


def test_a_wait_costs_the_idle_time_until_the_host_is_ahead_again() -> None:
    """It blocks 40 us: of the gaps behind it, from 49, 85, 120 and 230 us on, 40 us."""
    wait = {"name": "cudaStreamSynchronize", "start_ns": 10 * US, "dur_ns": 40 * US}
    launches = [(0, 5, 44), (55, 65, 20), (90, 100, 20), (110, 130, 90), (120, 220, 10)]
    launches += [(300, 310, 10)]
    kernels = launched(*(("sgemm", US * at, US * start, US * dur) for at, start, dur in launches))
    kernels["calls"].append(wait)
    (found_wait,) = analyze(trace_of(**kernels)).synchronisations
    assert found_wait.idle_after_ns == 40 * US


def test_calls_of_one_site_are_one() -> None:
    calls = [event("hipDeviceSynchronize", at, at + 5) for at in (18, 100, 200)]
    marks = [frame("train.py(3): log", 15, 400), event("epoch 3", 15, 400)]
    assert found(calls=calls, marks=marks) == (
        Synchronisation("hipDeviceSynchronize", "train.py(3): log", 3, 15 * US, 5 * US),
    )


def test_copies_count_where_the_host_waits_for_them() -> None:
    calls = [event("hipMemcpyWithStream", 100, 105), event("hipMemcpyAsync", 200, 205)]
    calls += [event("hipMemcpyAsync", 300, 350), event("hsa_signal_wait_relaxed", 101, 104)]
    marks = [event("Copy 12", 90, 400)]
    assert found(calls=calls, marks=marks) == (
        Synchronisation("hipMemcpyAsync", "Copy", 1, 50 * US, 0),
        Synchronisation("hipMemcpyWithStream", "Copy", 1, 5 * US, 0),
    )


def test_only_the_time_in_the_chosen_windows_counts() -> None:
    calls = [event("cudaDeviceSynchronize", 1_015, 5_000), event("cudaMemcpy", 6_000, 7_000)]
    calls.append(event("cudaMemcpy", 500, 500))
    assert found(calls=calls) == (Synchronisation("cudaDeviceSynchronize", "", 1, 5 * US, 0),)


def test_beyond_fifty_sites_the_rest_is_one() -> None:
    calls = [event("cudaEventSynchronize", at, at + 5) for at in range(100, 700, 10)]
    ops = [event(f"aten::op{at}", at - 1, at + 6) for at in range(100, 700, 10)]
    known = found(calls=calls, ops=ops)
    assert (len(known), known[-1]) == (51, Synchronisation("(others)", "", 10, 50 * US, 0))

"""Pages of managed memory that the host brings back: what runs between, and who asked first."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from traceflops.findings.finding import Finding

MS, US = 1_000_000, 1_000
PAGE = 1 << 20


def found(
    *,
    asked: int = 0,
    again: int = 0,
    samples_us: Sequence[int] = (),
    thread: int | None = None,
    gpus: int = 1,
) -> Finding:
    """Return the finding on ten pages that come back, 1 ms apart, before a kernel of 2 ms.

    Before that, `asked` pages are prefetched; `again` pages move back while the kernel runs. The
    CPU is sampled at `samples_us` after the first page, on the thread that launches if no other is
    given. All is on the last one of so many GPUs; the others run a kernel before and after it.
    """
    pages = [("prefetch HtoD", MS + number, 1) for number in range(asked)]
    pages += [("DtoH", 2 * MS + number * MS, 10 * US) for number in range(10)]
    pages += [("HtoD", 13 * MS + number * 20 * US, 10 * US) for number in range(again)]
    begins = (20 * US, 15 * MS - US)
    others = [(f"k{gpu}", at - 5 * US, at, US) for at in begins for gpu in range(gpus - 1)]
    run = launched(
        ("first", 0, 10 * US, 10 * US), ("own_kernel", 12 * MS, 13 * MS, 2 * MS), *others
    )
    for activity in run["activities"]:
        name = activity["name"]
        activity["device"] = int(name[1:]) if name[1:].isdigit() else gpus - 1
    moved: list[dict[str, Any]] = [
        {
            "kind": "memcpy",
            "direction": f"migration {name[-4:]}",
            "name": f"Unified memory {name}",
            "bytes": PAGE,
            "start_ns": start,
            "dur_ns": length,
            "stream": 9,
            "device": gpus - 1,
        }
        for name, start, length in pages
    ]
    run["activities"] += moved
    own = {"thread": thread} if thread is not None else {}
    sample = {"kind": "sample", "name": "app!fill(int)", "dur_ns": 0, **own}
    run["marks"] = [{**sample, "start_ns": 2 * MS + at * US} for at in samples_us]
    trace = trace_of(**run, devices=[{"device": n, "local_id": n} for n in range(gpus)])
    trace = replace(trace, source=replace(trace.source, format="nsys-sqlite"))
    (one,) = (one for one in tf.analyze(trace).findings if one.rule == "host-page-faults")
    return one


def test_time_between_pages_is_not_sold_as_page_faults() -> None:
    one = found()
    assert one.share == pytest.approx(9 * 0.99 / 15, rel=0.01)  # of the 15 ms to the kernel's end
    assert (one.gain, one.title) == (None, "The host reads managed memory page by page")
    assert "How much of that is page faults is not recorded." in one.sentence
    assert "prefetched" not in one.remedy


def worked_on(each_us: int) -> Finding:
    """Return the finding on 24 pages of 5 us; after n KiB the host works n x `each_us` + 40 us."""
    sizes = [64, 32, 128, 64, 16, 128] * 4
    run = launched(("first", 0, 10 * US, 5 * MS), ("last", 40 * MS, 40 * MS + 10 * US, 2 * MS))
    at = 5_100 * US
    for kib in sizes:
        page = {"kind": "memcpy", "direction": "migration DtoH", "name": "Unified memory DtoH"}
        more: dict[str, Any] = {"bytes": kib << 10, "start_ns": at, "dur_ns": 5 * US, "stream": 9}
        run["activities"].append(page | more)
        at += (5 + each_us * kib + 40) * US
    trace = trace_of(**run, devices=[{"device": 0, "local_id": 0}])
    trace = replace(trace, source=replace(trace.source, format="nsys-sqlite"))
    (one,) = (one for one in tf.analyze(trace).findings if one.rule == "host-page-faults")
    return one


def test_time_that_grows_with_the_bytes_is_work_on_them_and_no_page_fault() -> None:
    """Faults take 40 us, 23 times. How fast the pages could move is unknown: all may be gained."""
    one = worked_on(1)
    assert "mostly on its data: 1.00 µs per KiB" in one.sentence
    assert one.gain is not None and one.gain.low_ns == 0
    assert one.gain.high_ns == pytest.approx((23 * 40 + 24 * 5) * US, rel=0.01)


def test_where_faults_are_little_the_work_on_the_data_is_what_to_mend() -> None:
    one = worked_on(10)
    assert one.gain is None
    assert one.remedy.startswith("Do the host's work on the data on the GPU")
    assert one.remedy.endswith("saves at most 1.04 ms.")


def test_samples_as_dense_as_elsewhere_tell_of_code_between_pages() -> None:
    every = range(100, 9_000, 300)  # of these thirty three fall into pages
    one = found(samples_us=every)
    assert "of 27 CPU samples are in app. Most frequent: fill (100.0 %)" in one.sentence
    assert one.title == "Host code holds up the GPU"
    assert one.gain is not None  # at most all of it: nine times 990 us
    assert (one.gain.low_ns, one.gain.high_ns) == (0, 9 * 990 * US)
    # Outside, the CPU is sampled every 10 us: between pages it mostly does something else.
    dense = (*every, *range(11_000, 12_000, 10))
    assert found(samples_us=dense).title == "The host reads managed memory page by page"


@pytest.mark.parametrize(
    ("asked", "again", "is_told"), [(10, 10, True), (10, 2, False), (0, 10, False)]
)
def test_a_prefetch_before_the_host_is_done_moves_pages_three_times(
    asked: int, again: int, *, is_told: bool
) -> None:
    for gpus in (1, 2, 3):
        one = found(asked=asked, again=again, gpus=gpus)
        assert ("10.5 MB are prefetched" in one.remedy) == is_told


def test_samples_of_threads_that_call_no_gpu_tell_nothing() -> None:
    one = found(samples_us=range(100, 9_000, 300), thread=99)
    assert one.title == "The host reads managed memory page by page"

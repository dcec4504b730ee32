"""Findings that are parts of the device time: which are listed, in what order, with what gain."""

import pytest

import traceflops as tf
from tests.build import launched, trace_of
from tests.mfu.test_measurement import matmul
from traceflops.findings.finding import severity_of
from traceflops.mfu.budget import PeakOptions


def of(**works: int) -> tf.Analysis:
    """Return the analysis of kernels that run one after the other for so many ns."""
    names = {
        "gemm": "sm90_gemm_bf16",
        "copy": "Memcpy HtoD (Pinned -> Device)",
        "fill": "Memset (Device)",
        "norm": "vectorized_layer_norm_kernel",
        "odd": "my_kernel",
        "odd2": "my_other_kernel",
    }
    rows, start = [], 1_000
    for place, (work, dur) in enumerate(works.items()):
        if work != "idle":
            rows.append((names[work], place, start, dur))
        start += dur
    return tf.analyze(trace_of(**launched(*rows)))


def test_losses_are_listed_by_size_with_their_share() -> None:
    found = of(gemm=500, idle=200, norm=300).findings
    assert [(one.rule, one.severity, one.share) for one in found] == [
        ("loss-memory", "high", 0.3),
        ("loss-idle", "high", 0.2),
    ]
    assert found[1].sentence == "Idle time takes 20.0 % of the total time."
    assert found[0].sentence == (
        "Memory work (elementwise, norm and copy kernels) takes 30.0 % of the total time."
    )
    assert {one.mfu_without for one in found} == {None}  # no MFU in this trace


def test_what_is_small_is_not_listed() -> None:
    assert [one.rule for one in of(gemm=971, norm=29).findings] == []
    assert [one.rule for one in of(gemm=97, norm=3).findings] == ["loss-memory"]


def test_what_cannot_be_judged_is_no_finding_and_has_no_severity() -> None:
    """Nothing says whether the program needs its uncategorized kernels."""
    assert of(gemm=500, odd=500).findings == ()


@pytest.mark.parametrize(
    ("share", "severity"),
    [(0.2, "high"), (0.1999, "medium"), (0.1, "medium"), (0.0999, "low"), (0.03, "low")],
)
def test_the_severity_goes_by_the_share(share: float, severity: str) -> None:
    assert severity_of(share) == severity
    assert severity_of(0.0299) is None


def test_without_a_loss_mfu_would_be_that_much_higher() -> None:
    """A product that takes twice as long as at the peak: MFU 50 %, and 100 % if it did not."""
    found = tf.analyze(matmul(4_000), peaks=PeakOptions(tflops=1000)).findings
    assert [(one.rule, one.share, one.mfu_without) for one in found] == [
        ("loss-inefficiency", 0.5, 1.0)
    ]


def test_a_trace_without_devices_or_length_has_no_findings() -> None:
    assert tf.analyze(trace_of()).findings == ()
    assert tf.analyze(trace_of(**launched(("k", 0, 10, 0)))).findings == ()


@pytest.mark.parametrize(
    ("works", "words"),
    [
        ({"copy": 900}, "copies"),
        ({"copy": 600, "norm": 300}, "mostly copies"),
        ({"copy": 300, "norm": 600}, "elementwise, norm and copy kernels"),
        ({"norm": 900}, "elementwise, norm and copy kernels"),
        ({"copy": 450, "norm": 450}, "elementwise, norm and copy kernels"),
        ({"fill": 900}, "fills"),
    ],
)
def test_memory_work_is_called_what_most_of_it_is(works: dict[str, int], words: str) -> None:
    found = of(gemm=100, **works)
    sentence = f"Memory work ({words}) takes 90.0 % of the total time."
    assert found.findings[0].sentence == sentence
    assert found.verdict.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("ways", "words"),
    [
        (("HtoD", "HtoD"), "host-to-device copies"),
        (("HtoD", "DtoH"), "copies"),
        (("DtoH", "DtoH"), "device-to-host copies"),
        (("DtoD", None), "copies"),
        (("migration HtoD", "HtoD"), "host-to-device copies"),
    ],
)
def test_copies_are_called_by_their_direction(ways: tuple[str | None, ...], words: str) -> None:
    tables = launched(("Memcpy", 0, 100, 50), ("Memcpy", 1, 150, 50))
    for row, way in zip(tables["activities"], ways, strict=True):
        row |= {"kind": "memcpy", "direction": way}
    assert tf.analyze(trace_of(**tables)).verdict.sentence == (
        f"Memory work ({words}) takes 100.0 % of the total time."
    )

"""What is said of recordings that hold a part of the work: only what that part tells."""

import re
from typing import Any

import pytest

from tests.build import trace_of
from traceflops import Analysis, analyze
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.summary import render_terminal

US = 1_000


def ranks(*names: str, launched: bool = False) -> Analysis:
    """Return two ranks with 12 kernels each, by turns of these names; rank 1 comes 150 us late."""
    work: list[dict[str, Any]] = []
    api = []
    for rank in range(2):
        for at in range(12):
            begin, end = at * 1_000 + 150 * rank, at * 1_000 + 300
            row = {"start_ns": begin * US, "dur_ns": (end - begin) * US, "correlation": at}
            name = names[at % len(names)]
            told = {"collective": "allreduce", "collective_group": "0"} if "nccl" in name else {}
            more = {"process": rank, "device": rank, "name": name}
            work.append(row | told | more)
            call = {"process": rank, "start_ns": begin * US, "correlation": at}
            api += [call | {"name": "cudaLaunchKernel"}] * launched
    processes = [{"process": rank, "rank": rank, "world_size": 2} for rank in range(2)]
    devices = [{"device": rank, "process": rank} for rank in range(2)]
    return analyze(trace_of(activities=work, calls=api, processes=processes, devices=devices))


def said(found: Analysis) -> str:
    """Return all that terminal, Markdown and page say, without tags and scripts."""
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]+>", " ", render_html(found))
    terminal = "\n".join(line.plain for line in render_terminal(found))
    return "\n".join((terminal, render_markdown(found), page))


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def test_of_collectives_alone_nothing_is_said_about_what_hides_them() -> None:
    found = ranks(ALL_REDUCE)
    assert found.recorded == "collectives"
    assert found.verdict.sentence.startswith("Only collectives are recorded, no other kernels: ")
    assert not found.total.knows_idle
    assert found.measured.mfu is None
    rules = {one.rule for one in found.findings}
    assert "exposed-communication" not in rules
    assert not any(rule.startswith("loss-") for rule in rules)
    text = said(found)
    assert "is not hidden" not in text
    assert "backward pass" not in text
    assert " exposed" not in "\n".join(line.plain for line in render_terminal(found))
    assert found.collectives[0].count == 24


@pytest.mark.parametrize(
    ("names", "launched", "state"),
    [
        ((ALL_REDUCE, "gemm_kernel"), False, "complete"),
        ((ALL_REDUCE,), True, "complete"),
        (("gemm_kernel",), False, "complete"),
    ],
)
def test_other_recordings_are_judged(names: tuple[str, ...], state: str, *, launched: bool) -> None:
    """Where all launches are recorded, collectives were all that ran."""
    found = ranks(*names, launched=launched)
    assert found.recorded == state
    rules = {one.rule for one in found.findings}
    assert ("exposed-communication" in rules) == (len(names) == 2)


def test_no_kernel_takes_more_than_all_the_time() -> None:
    """Three processes keep one GPU busy for 1 ms with a kernel of 1 ms each."""
    work = [
        {"name": "serve_kernel", "start_ns": at, "dur_ns": 1_000_000 - at, "process": at}
        for at in range(3)
    ]
    found = analyze(trace_of(activities=work, processes=[{"process": at} for at in range(3)]))
    (row,) = found.kernels.to_pylist()
    assert 2.9 < row["share"] < 3
    text = said(found)
    assert [float(one) for one in re.findall(r"([\d.]+) %", text) if float(one) > 100] == []
    assert text.count("≤ 100 %") >= 3
    assert "overlaps count twice" in text

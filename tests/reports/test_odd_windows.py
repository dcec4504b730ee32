"""Traces in which hardly anything can be said: no time in the window, names of nothing to see."""

from __future__ import annotations

import re

import traceflops as tf
from tests.build import trace_of
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.html import render_html


def analysis_of(name: str, dur_ns: int) -> tf.Analysis:
    return tf.analyze(trace_of(activities=[{"name": name, "start_ns": 10, "dur_ns": dur_ns}]))


def test_nothing_is_said_of_shares_of_no_time() -> None:
    page = render_html(analysis_of("gemm_kernel", 0))
    text = re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert "1 of 1 GPU operation has no duration (missing, unreadable or 0)" in text
    assert "Uncategorized" not in text
    assert "No idle time" not in text
    page = render_html(analysis_of("gemm_kernel", 5))
    assert "Uncategorized" in page
    assert "No idle time" in page


def test_a_name_of_blanks_has_a_row_that_can_be_read() -> None:
    analysis = analysis_of("  \t", 5)
    assert r"\x20\x20\x09" in render_html(analysis)
    assert r"\x20\x20\x09" in render_markdown(analysis)

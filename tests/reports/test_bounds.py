"""Where counts lie between bounds, no figure shows the upper one as if it were a fact."""

from __future__ import annotations

import json

import pytest

from tests.mfu.test_known_lengths import FORWARD, forward, seqlens, steps
from tests.reports.test_json_schema import errors
from traceflops.analysis.recipe import analyze
from traceflops.analysis.result import Analysis
from traceflops.reports.json.report import encode, report_object
from traceflops.reports.terminal.measured import render_measured
from traceflops.reports.view.utilisation import bounds_sentence, facts, rate_words
from traceflops.windows.selection import Selection


def analysis(*lengths: int) -> Analysis:
    """Return two steps of attention on 60 tokens in 2 sequences, of lengths that marks tell."""
    marks = [seqlens([*lengths])] if lengths else []
    trace = steps([[(FORWARD, 60, 2)]] * 2, [marks] * 2)
    return analyze(trace, Selection(steps=(0, 1)))


def test_the_terminal_says_the_range_everywhere() -> None:
    text = "\n".join(line.plain for line in render_measured(analysis()))
    found = analysis().measured
    assert found.mfu_range is not None
    both = found.mfu_range.text
    assert " to " in both
    assert text.splitlines()[0].startswith(f"MFU {both} (from trace")
    for label in ("HFU", "busy MFU"):
        (row,) = [line for line in text.splitlines() if line.startswith(f"{label} ")]
        assert " to " in row
        assert label != "HFU" or both in row
    joined = " ".join(text.split())
    assert "Some FLOPs are known only as a range; upper bounds are shown." in joined
    assert "executed ≤ " in joined
    assert "Ledger, waterfall and tables show upper bounds." in joined
    rows = [line for line in text.splitlines() if "flash_fwd_kernel" in line]
    assert rows
    assert all("≤" in row for row in rows)


def test_with_known_lengths_nothing_is_marked() -> None:
    found = analysis(10, 50)
    text = "\n".join(line.plain for line in render_measured(found))
    assert "≤" not in text
    assert "bounds" not in text
    assert bounds_sentence(found.measured) == ""


def test_words_of_one_row() -> None:
    (row,) = analysis().measured.kernels
    rate, share, intensity = rate_words(row.measured, 989_400)
    assert {word[0] for word in (rate, share, intensity)} == {"≤"}
    (exact,) = analysis(10, 50).measured.kernels
    assert not any("≤" in word for word in rate_words(exact.measured, 989_400))
    assert next(facts(analysis(10, 50))).value.count("%") == 1


def test_json_has_both_bounds() -> None:
    found = json.loads(encode(report_object(analysis())))["utilisation"]
    for name in ("mfu", "hfu", "busy_mfu"):
        assert found[f"{name}_at_least"] < found[f"{name}_at_most"] == found[name]
    least, most = 2 * forward([30, 30]), 2 * forward([60])
    assert (found["model_flops_at_least"], found["model_flops"]) == (least, most)
    for rows in ("kernels", "ops", "ledger"):
        assert [(row["flops_at_least"], row["flops"]) for row in found[rows]] == [(least, most)]
    exact = json.loads(encode(report_object(analysis(10, 50))))["utilisation"]
    assert exact["hfu_at_least"] == exact["hfu"] == exact["hfu_at_most"]


@pytest.mark.parametrize("lengths", [(), (10, 50)])
def test_the_schema_allows_it(lengths: tuple[int, ...]) -> None:
    assert errors(json.loads(encode(report_object(analysis(*lengths))))) == []

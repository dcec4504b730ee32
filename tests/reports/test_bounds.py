"""Where counts lie between bounds, no figure shows the upper one as if it were a fact."""

from __future__ import annotations

import json

import pytest

from tests.build import launched, step_marks, trace_of
from tests.mfu.test_measurement import H100
from tests.reports.test_json_schema import errors
from traceflops.analysis.recipe import analyze
from traceflops.analysis.result import Analysis
from traceflops.reports.json.report import encode, report_object
from traceflops.reports.terminal.measured import render_measured
from traceflops.reports.view.utilisation import bounds_sentence, facts, rate_words
from traceflops.windows.selection import Selection

HEADS, WIDTH, TOKENS, STEP = 4, 32, 60, 100_000


def forward(*lengths: int) -> int:
    """Return the FLOPs of one causal attention on packed sequences."""
    return 4 * HEADS * WIDTH * sum(length * (length + 1) // 2 for length in lengths)


def analysis(sequences: int = 2) -> Analysis:
    """Return two steps of attention on 60 tokens: exact of one sequence, else a range."""
    dims: list[list[int]] = [[TOKENS, HEADS, WIDTH]] * 3 + [[sequences + 1]] * 2 + [[]] * 15
    values = [""] * 20
    values[5:7], values[9:12] = [str(TOKENS)] * 2, ["True", "-1", "-1"]
    op = {
        "name": "flash_attn::_flash_attn_varlen_forward",
        "dur_ns": 100,
        "input_dims": json.dumps(dims),
        "input_types": json.dumps(["c10::BFloat16" if shape else "" for shape in dims]),
        "concrete_inputs": json.dumps(values),
    }
    starts = [STEP * number + 1_000 for number in range(2)]
    trace = trace_of(
        **launched(*(("flash_fwd_kernel", at + 10, at + 20, 1_500) for at in starts)),
        ops=[op | {"start_ns": at} for at in starts],
        marks=step_marks(*((f"ProfilerStep#{n}", STEP * n, STEP) for n in range(2))),
        devices=[H100],
    )
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
    found = analysis(1)
    text = "\n".join(line.plain for line in render_measured(found))
    assert "≤" not in text
    assert "bounds" not in text
    assert bounds_sentence(found.measured) == ""


def test_words_of_one_row() -> None:
    (row,) = analysis().measured.kernels
    rate, share, intensity = rate_words(row.measured, 989_400)
    assert {word[0] for word in (rate, share, intensity)} == {"≤"}
    (exact,) = analysis(1).measured.kernels
    assert not any("≤" in word for word in rate_words(exact.measured, 989_400))
    assert next(facts(analysis(1))).value.count("%") == 1


def test_json_has_both_bounds() -> None:
    found = json.loads(encode(report_object(analysis())))["utilisation"]
    for name in ("mfu", "hfu", "busy_mfu"):
        assert found[f"{name}_at_least"] < found[f"{name}_at_most"] == found[name]
    least, most = 2 * forward(30, 30), 2 * forward(60)
    assert (found["model_flops_at_least"], found["model_flops"]) == (least, most)
    for rows in ("kernels", "ops", "ledger"):
        assert [(row["flops_at_least"], row["flops"]) for row in found[rows]] == [(least, most)]
    exact = json.loads(encode(report_object(analysis(1))))["utilisation"]
    assert exact["hfu_at_least"] == exact["hfu"] == exact["hfu_at_most"]


@pytest.mark.parametrize("sequences", [1, 2])
def test_the_schema_allows_it(sequences: int) -> None:
    assert errors(json.loads(encode(report_object(analysis(sequences))))) == []

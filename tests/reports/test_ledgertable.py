"""The ledger as a table: every line has a place, one unit, and sums that hold."""

from __future__ import annotations

import pytest

from traceflops.flops.analytic.run import Checkpoint, Lora, Run
from traceflops.flops.analytic.run_flops import model_flops
from traceflops.flops.mfu_waterfall import Ledger, Line
from traceflops.flops.model.models import preset
from traceflops.reports.terminal.lines import ledger_table
from traceflops.reports.view.figures import flops, significant

NUMBERS = [
    (0, "0"),
    (2488, "2,488"),
    (12346, "12,350"),
    (51.471, "51.47"),
    (0.035214, "0.03521"),
    (7.0, "7"),
    (999.96, "1,000"),
]


@pytest.mark.parametrize(("number", "text"), NUMBERS)
def test_four_digits(number: float, text: str) -> None:
    assert significant(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 FLOP"),
        (12, "12.00 FLOP"),
        (2_488_320_000_000_000, "2.488 PFLOP"),
        (999_999, "1.000 MFLOP"),
        (16 * 10**18, "16.00 EFLOP"),
        (10**28, "10,000 YFLOP"),
    ],
)
def test_flops_with_their_prefix(number: int, text: str) -> None:
    assert flops(number) == text


def test_a_table_by_part_and_pass() -> None:
    ledger = Ledger(
        "x",
        (
            Line("model.matmul.forward.ffn", 4000),
            Line("model.matmul.input_grad.ffn", 4000),
            Line("model.attention.forward", 1000),
            Line("model.attention.backward", 2000),
            Line("recompute.attention", 1),
            Line("overcompute.padding.tokens", 2000),
            Line("something.new", 3000),
        ),
    )
    assert [line.plain for line in ledger_table(ledger, "step")] == [
        "kFLOP per step        forward input grad  recompute      sum   share",
        "feed-forward            4.000      4.000          –    8.000  50.0 %",
        "attention core          1.000      2.000    0.00100    3.001  18.8 %",
        "something.new               –          –          –    3.000  18.7 %",
        "padding: tokens             –          –          –    2.000  12.5 %",
        "executed                5.000      6.000    0.00100    16.00 100.0 %",
    ]


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "deepseek-v3", "resnet-50", "t5-small", "vit-base-16"]
)
def test_every_line_that_there_is_has_a_name_in_words(name: str) -> None:
    run = Run(
        batch=2,
        seq=None if name in ("resnet-50", "vit-base-16") else 64,
        encoder_seq=32,
        checkpoint=Checkpoint("all"),
        lora=None if name == "resnet-50" else Lora(params=1000),
        attention_kernel="flash",
    )
    ledger = model_flops(preset(name), run)
    rows = [line.plain for line in ledger_table(ledger, "step")]
    assert not [row for row in rows if "." in row.split()[0]]
    assert max(map(len, rows)) <= 80

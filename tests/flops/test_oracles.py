"""Published figures are recomputed within their printed digits; known misprints stay misprints."""

from __future__ import annotations

from fractions import Fraction

from msgspec.structs import replace

from tests.flops.oracles import THRICE, Oracle, oracles
from traceflops.flops.analytic.explain_reported import Explanation, Metric, explain
from traceflops.units import parse_reported

INDEPENDENT = Fraction(1, 10**8)
"""The independent calculation is printed to ten digits."""


def of_status(status: str) -> list[Oracle]:
    found = [one for one in oracles() if one["status"] == status]
    assert found
    return found


def test_every_figure_that_can_be_reproduced_is() -> None:
    rows = of_status("matches")
    assert [(one["id"], float(one.value())) for one in rows if not one.agrees(one.value())] == []


def test_every_figure_agrees_with_an_independent_calculation() -> None:
    far = [
        (one["id"], float(one.value()), one["reference"])
        for one in oracles()
        if abs(one.value() / Fraction(one["reference"]) - 1) > INDEPENDENT
    ]
    assert far == []


def printed(one: Oracle) -> Fraction:
    """Return the figure by the rule that the table says the misprint was made with."""
    rule = one["reproduced_by"]
    if rule == THRICE:
        return one.value(run=replace(one.run, checkpoint=one.checkpoint(Fraction(3))))
    return one.value(rule)


def test_misprints_are_off_and_their_reason_gives_the_printed_figure() -> None:
    rows = of_status("known-misprint")
    assert {one["reproduced_by"] for one in rows} == {THRICE, "gptoss-pre2606", "litgpt"}
    assert [one["id"] for one in rows if one.agrees(one.value())] == []
    assert [one["id"] for one in rows if not one.agrees(printed(one))] == []


def test_the_direction_of_the_misprints() -> None:
    for one in of_status("known-misprint"):
        too_high = one["reproduced_by"] in (THRICE, "litgpt")
        assert (one.value() < one.expected) == too_high, one["id"]


def test_nothing_is_tuned_to_the_figures_nobody_can_explain() -> None:
    assert [one["id"] for one in of_status("unexplained") if one.agrees(one.value())] == []


def test_a_reported_figure_leads_back_to_its_convention() -> None:
    rows = [
        one
        for one in of_status("matches")
        if one["kind"] in ("mfu", "hfu") and one["exercise"] == "formula"
    ]
    missed = []
    for one in rows[::5]:
        found = explanation(one)
        if one["convention"] not in found.candidates[0].conventions:
            missed.append((one["id"], found.sentence))
    assert missed == []


def explanation(one: Oracle) -> Explanation:
    reported = parse_reported("--reported", f"{one['expected']}%")
    metric: Metric = "hfu" if one["kind"] == "hfu" else "mfu"
    return explain(one.card, one.run, reported, one.peak, metric=metric)

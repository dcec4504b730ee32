"""Explaining a reported figure: rule, peak, recomputation, and the usual mistakes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.flops.analytic.explain_reported import Candidate, Explanation, Metric, explain
from traceflops.flops.analytic.rates import Peak, raw_rate
from traceflops.flops.analytic.run import FULL_CHECKPOINT, SELECTIVE, Run
from traceflops.flops.analytic.run_utilisation import choose_peak, other_peaks
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.models import preset
from traceflops.units import Reported, exact_percent, parse_reported

H100 = Peak(Fraction(989_500), "bf16 dense")
FP8 = Peak(Fraction(1_979_000), "fp8 dense")
A100 = Peak(Fraction(312_000), "A100 bf16 dense")
LLAMA = preset("llama-3-8b")
RUN = Run(batch=64, seq=8192, devices=8, step_seconds=Fraction("5.2"))
FROZEN = replace(RUN, frozen=frozenset({"all"}))


def printed(
    run: Run, convention: str, factor: Fraction = Fraction(1), *, hfu: bool = False
) -> Reported:
    found = raw_rate(LLAMA, run, H100, convention)
    share = (found.hfu if hfu else found.figure) * factor
    return parse_reported("--reported", f"{float(100 * share):.3f}%")


def explained(reported: Reported, run: Run = RUN, metric: Metric = "mfu") -> Explanation:
    return explain(LLAMA, run, reported, H100, (FP8, A100), metric)


@pytest.mark.parametrize(
    "convention", ["exact-causal", "matmul-full", "palm", "verl", "llmc", "hf", "6N", "levanter"]
)
def test_the_convention_is_found(convention: str) -> None:
    best = explained(printed(RUN, convention)).candidates[0]
    assert convention in best.conventions
    assert (best.treatment, best.peak, best.reproduces) == ("", H100, True)


def test_another_peak_is_found() -> None:
    halved = explained(printed(RUN, "exact-causal", Fraction(1, 2))).candidates[0]
    assert halved.peak.text == "bf16 sparse 1,979 TFLOP/s"
    tripled = explained(printed(RUN, "exact-causal", Fraction(989_500, 312_000))).candidates[0]
    assert tripled.peak == A100
    assert "exact-causal" in tripled.conventions


def test_recomputation_in_the_numerator_is_found() -> None:
    run = replace(RUN, checkpoint=FULL_CHECKPOINT)
    reported = printed(run, "exact-causal", hfu=True)
    hidden = explained(reported).candidates[0]
    assert hidden.treatment == "with the blocks recomputed"
    known = explained(reported, run, "hfu").candidates[0]
    assert known.treatment == "with its recomputation (full)"
    assert known.cost == 0


def test_frozen_weights_counted_as_trained_are_found() -> None:
    found = explained(printed(FROZEN, "6N"), FROZEN)
    assert "6N" in found.candidates[0].conventions
    assert found.honest.mfu < raw_rate(LLAMA, FROZEN, H100, "6N").mfu * Fraction(4, 5)


def test_multiply_adds_counted_as_one() -> None:
    found = explain(LLAMA, RUN, printed(RUN, "exact-causal", Fraction(1, 2)), H100)
    texts = [one.treatment for one in found.candidates if one.reproduces]
    assert "counting a multiply-add as one FLOP" in texts


def test_the_sentence_says_what_is_honest() -> None:
    found = explained(printed(RUN, "palm"))
    honest = raw_rate(LLAMA, RUN, H100).sentence
    assert found.sentence.startswith(
        f"{found.said} is palm (as nanogpt, llm-foundry), of bf16 dense 989.5"
    )
    assert found.sentence.endswith(f"; the honest figure is {honest}.")
    assert found.sentence.count("\n") == 0


def test_a_figure_that_nothing_gives() -> None:
    found = explained(parse_reported("--reported", "99.987%"))
    assert not any(one.reproduces for one in found.candidates)
    assert found.sentence.startswith("No known method gives 99.987 %; ")
    assert " off; the honest figure is MFU " in found.sentence


def test_candidates_are_ranked_by_error_and_then_by_what_they_suppose() -> None:
    found = explained(printed(RUN, "palm"))
    count = sum(one.reproduces for one in found.candidates)
    fitting, rest = found.candidates[:count], found.candidates[count:]
    assert fitting == found.candidates[: len(fitting)]
    assert [one.cost for one in fitting] == sorted(one.cost for one in fitting)
    scores = [round(one.error + Fraction(one.cost, 100), 3) for one in rest]
    assert scores == sorted(scores)


def test_a_cut_off_digit_counts_as_printed() -> None:
    exact = 100 * raw_rate(LLAMA, RUN, H100, "palm").mfu
    cut = parse_reported("--reported", f"{int(exact)}%")
    assert any("palm" in one.conventions for one in explained(cut).candidates if one.reproduces)


def test_an_impossible_run_is_said_to_be_one() -> None:
    run = replace(RUN, step_seconds=Fraction("0.0052"))
    found = explained(parse_reported("--reported", "40%"), run)
    assert "is impossible: check time, tokens, GPUs and peak" in found.sentence


def test_a_published_rate_of_unknown_counting_is_only_divided() -> None:
    card = ModelCard(name="m", params=10**9)
    run = Run(achieved=Fraction(430) * 10**12, devices=8)
    found = explain(card, run, parse_reported("--reported", "43.5%"), H100)
    assert found.candidates[0].conventions == ("published-tflops",)
    assert "; the published rate is MFU 43.5 % (published-tflops" in found.sentence
    assert found.sentence.endswith("how its FLOPs were counted is unknown.")


def test_after_an_hfu_the_honest_figure_is_an_hfu() -> None:
    run = replace(RUN, checkpoint=SELECTIVE)
    exact = raw_rate(LLAMA, run, H100)
    found = explained(parse_reported("--reported-hfu", "67.7%"), run, "hfu")
    assert exact.hfu > exact.mfu
    assert found.sentence.endswith(
        f"; the honest figure is HFU {exact_percent(exact.hfu)} (exact-causal, bf16 dense 989.5 "
        f"TFLOP/s), beside MFU {exact_percent(exact.mfu)}."
    )


def test_the_own_figure_comes_before_what_supposes_much() -> None:
    run = replace(RUN, checkpoint=SELECTIVE)
    own = raw_rate(LLAMA, run, H100).hfu
    for off in (Fraction(99, 100), Fraction(101, 100)):
        reported = parse_reported("--reported-hfu", f"{float(own * off * 100):.2f}%")
        best = explained(reported, run, "hfu").candidates[0]
        assert best.treatment == "with its recomputation (selective)"
        assert (best.peak, "exact-causal" in best.conventions or best.error < 0.02) == (H100, True)


@pytest.mark.parametrize(
    ("text", "said", "value"),
    [
        ("0.80", "0.80 (read as 0.80 %)", Fraction(8, 1000)),
        ("0.0080", "0.0080 (read as 0.80 %)", Fraction(8, 1000)),
        ("0.80%", "0.80 %", Fraction(8, 1000)),
        ("1", "1 (read as 1 %)", Fraction(1, 100)),
    ],
)
def test_a_figure_without_a_sign_is_read_as_what_is_simpler(
    text: str, said: str, value: Fraction
) -> None:
    card = ModelCard(name="m", params=405_000_000_000)
    run = Run(tokens=1024, devices=8, step_seconds=Fraction(30))  # 6N: 0.798 %
    found = explain(card, run, parse_reported("--reported", text), Peak(Fraction(1_300_000)))
    assert found.sentence.startswith(f"{said} {'could be' if text == '1' else 'is'} 6N (as ")
    assert found.reported.value == value


def test_a_figure_is_printed_with_its_own_digits() -> None:
    found = explained(parse_reported("--reported", "41.25%"))
    assert found.said == "41.25 %"
    assert found.shown(Fraction("0.4126")) == "41.26 %"
    assert explained(parse_reported("--reported", "43%")).said == "43 %"


def test_conventions_that_are_not_named_are_counted() -> None:
    names = ("a", "b", "c", "d", "e", "f")
    one = Candidate(names, H100, "", Fraction(1), Fraction(0), True, 0)
    assert one.text == "a (as b, c, d and 2 more), of bf16 dense 989.5 TFLOP/s"
    certain = Explanation(parse_reported("-r", "40%"), (one,), raw_rate(LLAMA, RUN, H100))
    assert certain.sentence.startswith("40 % could be a (as b, c, d and 2 more)")
    fewer = replace(certain, candidates=(replace(one, conventions=names[:4]),))
    assert fewer.sentence.startswith("40 % is a (as b, c, d), of")


def test_recomputation_of_what_is_not_there_is_no_way() -> None:
    card = ModelCard(name="m", params=405_000_000_000)
    run = Run(tokens=1024, devices=8, step_seconds=Fraction(30))
    peak = Peak(Fraction(1_300_000))
    found = explain(card, run, parse_reported("--reported", "0.80%"), peak)
    assert {one.treatment for one in found.candidates if "recompu" in one.treatment} == {
        "with the blocks recomputed"  # of a number of parameters the blocks are everything
    }


def test_other_boards_with_slow_memory_are_far_fetched() -> None:
    choice = choose_peak("a100-sxm-80", None, "bf16")
    unlikely = {one.label: one.unlikely for one in other_peaks(choice)}
    assert unlikely["bf16 dense (h100-pcie)"] == 1
    assert unlikely["bf16 dense (a40)"] == 2
    assert unlikely["fp16 dense"] == unlikely["tf32 dense"] == 0
    run = Run(batch=4, seq=8192, devices=8, step_seconds=Fraction("1.5"))
    found = explain(
        *(LLAMA, run, parse_reported("--reported", "41%"), choice.peak or H100),
        other_peaks(choice),
    )
    shown = " ".join(one.text for one in found.likely[:6])
    assert "a40" not in shown and "rtx-a6000" not in shown and "sparse (h20)" not in shown


def test_a_parameter_count_alone() -> None:
    card = ModelCard(name="m", params=405_000_000_000)
    run = Run(tokens=1024, devices=8, step_seconds=Fraction(30), frozen=frozenset({"all"}))
    peak = Peak(Fraction(1_300_000))
    found = explain(card, run, parse_reported("--reported", "0.80%"), peak)
    assert found.candidates[0].conventions[0] == "6N"
    assert found.honest.sentence == "MFU 0.53 % (4N, given 1,300 TFLOP/s)"


def test_a_run_without_tokens_cannot_be_explained() -> None:
    with pytest.raises(UsageError, match="does not allow any convention"):
        explain(LLAMA, Run(step_seconds=Fraction(1)), parse_reported("-r", "40%"), H100)

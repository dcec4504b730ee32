"""Names that are too long are cut between arguments, and leave no bracket open."""

from __future__ import annotations

import pytest

from traceflops.characters import _Bracketed, shortened, shortened_around

MOE = "MoE[experts=64, tokens=16, topk=2, hidden=512, intermediate=1024]"
KERNEL = "vectorized<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, float)"


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        (MOE, len(MOE), MOE),
        (MOE, 48, "MoE[experts=64, tokens=16, …, intermediate=1024]"),
        (MOE, 20, "MoE[experts=64, …]"),
        (KERNEL, 24, "vectorized<4, at::nati…>"),
        ("f('it is, a long text', x)(y)", 20, "f('…', x)(y)"),
        ("outer[one_argument_that_is_too_long]", 24, "outer[one_argu…too_long]"),
        ("a -> b, as in a_name_without_brackets", 20, "a -> b, as i…rackets"),
        ("opened(by the recorder itself, which cut", 20, "opened(by th…ich cut"),
        ("[abc]", 1, "…"),
    ],
)
def test_a_long_name_keeps_whole_arguments_and_closes_its_brackets(
    text: str, width: int, shown: str
) -> None:
    assert shortened(text, width) == shown


def test_what_tells_names_apart_stays_and_brackets_are_closed() -> None:
    assert shortened_around(MOE, MOE.index("hidden"), 20, 40) == "MoE[experts=64, …hidden=512, …]"


def test_no_width_leaves_a_bracket_open() -> None:
    for width in range(4, len(KERNEL)):
        for shown in (shortened(KERNEL, width), shortened(MOE, width)):
            assert len(shown) <= width
            assert all(shown.count(one) == shown.count(other) for one, other in ("<>", "()", "[]"))


def test_nested_brackets_cost_what_the_width_does(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[tuple[int, int], ...]] = []

    def joined(_: _Bracketed, *kept: tuple[int, int]) -> str:
        tried.append(kept)
        return "x" * 99

    monkeypatch.setattr(_Bracketed, "joined", joined)
    shortened_around("(" * 2_000 + ")" * 2_000, 1_000, 20, 40)
    assert 0 < len(tried) <= 2 * 40

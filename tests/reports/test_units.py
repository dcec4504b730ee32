import pytest

from traceflops.characters import function_name
from traceflops.reports.page.axes import time_ticks
from traceflops.reports.view import figures


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (1, "1 ns"),
        (950, "950 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (1_234, "1.23 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (4_100_000, "4.10 ms"),
        (4_123_456, "4.12 ms"),
        (9_996_000, "10.0 ms"),
        (5.5, "5.50 ns"),
        (41_230_000, "41.2 ms"),
        (182_400_000, "182 ms"),
        (1_230_000_000, "1.23 s"),
        (100_000_000_000, "100 s"),
        (1_234_567_000_000_000, "1,234,567 s"),
        (-4_100_000, "-4.10 ms"),
        (None, figures.UNKNOWN),
    ],
)
def test_a_duration_has_three_digits_and_its_unit(ns: int | None, text: str) -> None:
    assert figures.duration(ns) == text


def test_no_duration_is_scientific_or_reads_as_a_thousand() -> None:
    for power in range(19):
        for first in (1, 9, 94, 95, 99, 995, 999, 9995, 99_949, 99_950, 999_499, 999_999):
            text = figures.duration(first * 10**power // 1_000)
            assert "e" not in text.split()[0]
            if not text.endswith(" s"):
                assert float(text.split()[0]) < 1_000


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, figures.UNKNOWN),
        (0.0, "0.0 %"),
        (0.535, "53.5 %"),
        (1.0, "100.0 %"),
        (0.0004, "<0.1 %"),
        (1e-12, "<0.1 %"),
        (0.0006, "0.1 %"),
        (1.7, "170.0 %"),
    ],
)
def test_a_percentage(share: float | None, text: str) -> None:
    assert figures.percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, figures.UNKNOWN),
        (1.0, "1.00"),
        (12.345, "12.3"),
        (345.6, "346"),
        (12_345.6, "12,346"),
    ],
)
def test_a_ratio(value: float | None, text: str) -> None:
    assert figures.ratio(value) == text


def test_a_count() -> None:
    assert figures.count(1_234_567) == "1,234,567"
    assert figures.count(None) == figures.UNKNOWN


@pytest.mark.parametrize(
    ("number", "binary", "text"),
    [
        (0, False, "0 B"),
        (999, False, "999 B"),
        (1_771_264, False, "1.77 MB"),
        (999_600, False, "1.00 MB"),
        (85_899_345_920, True, "80.0 GiB"),
        (None, False, figures.UNKNOWN),
    ],
)
def test_a_size(number: int | None, binary: bool, text: str) -> None:
    assert figures.size(number, binary=binary) == text


def test_a_long_text_keeps_both_ends() -> None:
    text = figures.shorten_middle("sm90_xmma_gemm_bf16bf16_bf16f32_tn_n_tilesize128_cublas", 24)
    assert len(text) == 24
    assert text.startswith("sm90_xmma_gemm")
    assert text.endswith("28_cublas")
    assert text.count("…") == 1


@pytest.mark.parametrize("width", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("text", ["", "a", "ab" * 50, "\x1b" * 50, "a\ud800" * 20, "\u202e" * 9])
def test_a_shortened_text_never_exceeds_its_width(text: str, width: int) -> None:
    assert len(figures.shorten_middle(text, width)) <= width


def test_a_short_text_is_left_alone() -> None:
    assert figures.shorten_middle("größe_核", 10) == "größe_核"
    assert figures.shorten_middle("[red]", 5) == "[red]"


def test_shortening_is_the_same_as_shortening_what_is_visible() -> None:
    text = "\x1b[31m" * 40 + "end"
    assert figures.shorten_middle(text, 60) == figures.shorten_middle(figures.visible(text), 60)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc\rd", "a b c d"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("nul\0", "nul\\x00"),
        ("\u202eabc", "\\u202eabc"),
        ("lone \ud800", "lone \\ud800"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\U000e0041", "\\U000e0041"),
        ("filler\u3164 selector\U000e0100", "filler\\u3164 selector\\U000e0100"),
    ],
)
def test_hidden_characters_are_shown(text: str, shown: str) -> None:
    assert figures.visible(text) == shown
    assert figures.visible(text).encode("utf-8")


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        ("aten::mm", 20, "aten::mm"),
        ("void f(int)", 20, "f(int)"),
        ("void ns::(anonymous namespace)::kernel<4>(int, float const*)", 20, "ns::kernel<4>"),
        ("void kernel(std::function<void (int)>, long)", 20, "kernel"),
        ("copy(double*, int) [clone .kd]", 40, "copy(double*, int)"),
        ("copy(double*, int) (.kd)", 12, "copy"),
        ("Cijk_Alik_Bljk.kd", 40, "Cijk_Alik_Bljk"),
        ("(unbalanced))" + "x" * 20 + ")", 12, "(unbal…xxx)"),
        ("(((((((((((((((((((((", 6, "(((…(("),
    ],
)
def test_kernel_label_keeps_what_tells_kernels_apart(name: str, width: int, expected: str) -> None:
    label = figures.kernel_label(name, width)
    assert len(label) <= width
    if "…" not in expected:
        assert label == expected
    else:
        assert "…" in label


@pytest.mark.parametrize(
    ("ns", "length", "text"),
    [
        (0, None, "0 ns"),
        (640, None, "640 ns"),
        (6_000, None, "6.000 µs"),
        (219_400, None, "219.400 µs"),
        (999_999, None, "999.999 µs"),
        (30_235_499, None, "30.235 ms"),
        (30_235_500, None, "30.236 ms"),
        (999_999_999, None, "1.000000 s"),
        (12_345_678_901, None, "12.345679 s"),
        (12_345_678_901, 9_999, "12.345678901 s"),
        (1_234_567_890_123, 10_000, "1,234.567890 s"),
        (-5_000, None, "−5.000 µs"),
    ],
)
def test_a_place_in_time_has_the_digits_to_find_it(ns: int, length: int | None, text: str) -> None:
    assert figures.place(ns, length) == text


@pytest.mark.parametrize(
    ("low", "high", "most", "texts"),
    [
        (200_000, 300_000, 7, ["200 µs", "220 µs", "240 µs", "260 µs", "280 µs", "300 µs"]),
        (-500, 1_500, 5, ["−0.5 µs", "0.0 µs", "0.5 µs", "1.0 µs", "1.5 µs"]),
        (12_340_000_000, 12_360_000_000, 3, ["12.34 s", "12.35 s", "12.36 s"]),
        (5, 5, 7, ["5 ns"]),
        (1, 18, 4, ["10 ns"]),
    ],
)
def test_ticks_of_time_are_round_and_have_one_unit(
    low: int, high: int, most: int, texts: list[str]
) -> None:
    assert [text for _, text in time_ticks(low, high, most)] == texts


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("   ", r"\x20\x20\x20"),
        ("\t\n", r"\x09\x0a"),
        ("\u00a0", r"\xa0"),
        ("\u3000", r"\u3000"),
        ("", ""),
        (" a ", " a "),
    ],
)
def test_a_name_of_blanks_is_seen(name: str, shown: str) -> None:
    assert figures.visible(name) == shown
    assert figures.shorten_middle(name, 60) == shown


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("transformers/image_transforms.py(312): resize", "resize (image_transforms.py:312)"),
        ("queue.py(154): get", "get (queue.py:154)"),
        ("<string>(2): dynamic_func", "dynamic_func (<string>:2)"),
        ("cudaMalloc in a/b.py(1): <listcomp>", "cudaMalloc in <listcomp> (b.py:1)"),
        ("<ipython-input-3-1a2b>(5): train", "train (<notebook cell 3>:5)"),
        ("/tmp/ipykernel_123/456.py(7): <lambda>", "<lambda> (<notebook cell>:7)"),
        ("17393155.py(9): <cell line: 0>", "<cell line: 0> (<notebook cell>:9)"),
        ("<frozen importlib._bootstrap>(241): _call", "_call (<frozen importlib._bootstrap>:241)"),
        ("train.py(1): <module>", "<module> (train.py:1)"),
        (r"C:\\work\\train.py(1): main", "main (train.py:1)"),
        ("aten::conv2d", "aten::conv2d"),
        ("my_range(3): part", "my_range(3): part"),
        ("a" * 300_000, "a" * 300_000),  # in linear time; a quadratic one takes minutes
        ("/a" * 150_000, "/a" * 150_000),
    ],
    ids=lambda text: text[:40],
)
def test_a_function_is_told_before_its_file(name: str, expected: str) -> None:
    assert function_name(name) == expected


def test_the_file_of_a_function_is_no_parameter_list() -> None:
    label = figures.kernel_label("trtllm_fp4_block_scale_moe (core.py:1633)", 24)
    assert label == "trtll…moe (core.py:1633)"

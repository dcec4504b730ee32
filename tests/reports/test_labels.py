"""Labels of the rows of a table: what is left of a name, and what tells it from others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

import traceflops as tf
from tests.build import launched, trace_of
from traceflops.categories.kernel_names import without_return_type
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page import axes as timeaxis
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.lines import Style, cut_to, named_table
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.culprits import gap_cause
from traceflops.reports.view.figures import kernel_label, kernel_text, wrapped
from traceflops.reports.view.short_names import Label, kernel_labels, labels, short_labels
from traceflops.timeline.records import Gap, IdleCauses

FLASH = "void pytorch_flash::flash_{0}_kernel<pytorch_flash::Traits<64, 128>, {1}>(Params)"
COPY = "void at::native::elementwise_kernel<128, {0}, at::native::MulFunctor<{1}> >(int)"


def seen(label: Label) -> str:
    """Return what is seen of a label in a narrow column."""
    return label.head[:12] + label.tail if label.tail else label.head[:28]


def test_a_name_begins_with_the_function_s_own() -> None:
    names = [FLASH.format("fwd", "true"), FLASH.format("bwd", "true")]
    assert kernel_labels(names) == [
        Label("flash_fwd_kernel<Traits<64, 128>, true>"),
        Label("flash_bwd_kernel<Traits<64, 128>, true>"),
    ]


def test_names_that_begin_alike_keep_what_differs() -> None:
    names = [FLASH.format("fwd", "one_policy"), FLASH.format("fwd", "other_policy")]
    one, other = kernel_labels(names)
    assert one.head == other.head == "flash_fwd_kernel<Traits<64, 128>, "
    assert (one.tail, other.tail) == ("one_policy>", "other_policy>")


def test_names_of_one_short_form_have_what_differs_behind_it() -> None:
    names = [COPY.format(4, "float"), COPY.format(2, "float"), COPY.format(2, "double")]
    found = kernel_labels(names)
    assert len({seen(one) for one in found}) == 3
    for one in found:
        assert (one.head + one.tail).startswith("elementwise_kernel<")
        assert "MulFunctor" in one.head + one.tail


def test_what_is_added_to_a_name_ends_with_a_mark_where_it_is_cut() -> None:
    names = [COPY.format(4, "c10::complex<float>"), COPY.format(4, "c10::complex<double>, true")]
    one, other = (label.head + label.tail for label in kernel_labels(names))
    assert (one[-1], other[-1]) == (")", "…")


def test_the_piece_that_stays_has_no_mark_of_a_cut_where_the_one_before_it_has() -> None:
    names = [
        f"void at::native::vectorized_elementwise_kernel<4, at::native::{what}<float>, X>(int)"
        for what in ("MulFunctor", "CUDAFunctor_add", "GeluCUDAKernelImpl")
    ]
    found = [(one.head[-1], one.tail[:4]) for one in kernel_labels(names)]
    assert found == [("<", "MulF"), ("<", "CUDA"), ("<", "4, G")]


@pytest.mark.parametrize("number", [2, 40])
def test_labels_differ_where_names_do(number: int) -> None:
    """Names that differ early, late, in their namespace and in their parameters only."""
    names = [f"void a::kernel_of_some_length<{n}, {n % 3}>(int)" for n in range(number)]
    names += [f"void a{n}::another_kernel_of_some_length<1>(int)" for n in range(number)]
    names += [f"void a::third_kernel_of_some_length<1>(T{n})" for n in range(number)]
    found = kernel_labels(names)
    assert len({(one.head, one.tail, one.more) for one in found}) == len(names)
    assert len({seen(one) for one in found}) == len(names)


def test_the_same_name_has_the_same_label() -> None:
    one, other = labels(["aten::mm", "aten::mm"])
    assert one == other == Label("aten::mm")


TILES = (
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{0}x64_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_"
    "ASEM1_CLR1_CADS0_DTLA0_DTLB0_DTVA0_DTVB0_EPS0_FDSI0_GRPM1_GRVWA8_GRVWB8_GSU0_WS64_WG64_4_1"
)


def test_a_name_is_cut_where_it_is_equal_to_others() -> None:
    names = [TILES.format(tile) for tile in ("320x224", "256x224", "256x96")]
    for width in (32, 52, 90):
        found = short_labels([*names, "other_kernel"], width)
        for label, tile in zip(found, ("MT320x224", "MT256x224", "MT256x96"), strict=False):
            assert label.startswith("Cijk_")
            assert tile in label
            assert len(label) <= width
    alone = short_labels(names[:1], 52)
    assert alone == [kernel_label(names[0], 52)], "what looks like no other keeps its usual form"


@given(
    st.lists(st.text("ab<>:(,)… \x1b\u4e00", max_size=90) | st.text(), unique=True, max_size=12),
    st.integers(12, 60),
)
def test_short_labels_differ_where_names_do(names: list[str], width: int) -> None:
    for found in (short_labels(names, width), cut_to(names, width)):
        assert len({label.strip() for label in found}) == len(names)
    assert all(len(label) <= width for label in short_labels(names, width))
    assert all(cell_len(label) == width for label in cut_to(names, width))


def test_a_wide_name_shortens_no_other() -> None:
    assert cut_to(["\u5e73" * 30, "narrow kernel"], 20)[1] == "narrow kernel".ljust(20)


def test_a_kernel_without_a_name_is_unknown() -> None:
    lines = render_terminal(tf.analyze(trace_of(activities=[{"name": "", "start_ns": 5}])))
    assert any(line.plain.startswith("  unknown ") for line in lines)


def test_figures_are_neither_cut_nor_joined() -> None:
    rows = [("gemm", ["1,200,000 s", "100.0 %", "12,345,678 x"])]
    widths = {"time": 9, "share": 7, "count": 10}
    *_, line = named_table("", rows, widths, (), 40, 60)
    assert line.plain.split("  ")[0] == "gemm"
    assert line.plain.endswith(" 1,200,000 s 100.0 % 12,345,678 x")
    day_ns = 86_400 * 10**9
    work = {"name": "gemm", "dur_ns": 20 * day_ns, "start_ns": 0}
    for width in (60, 80):
        lines = render_terminal(tf.analyze(trace_of(activities=[work])), Style(width))
        (row,) = (one.plain for one in lines if one.plain.startswith("  gemm"))
        assert row.split()[-(2 if width < 80 else 4) :][:2] == ["100.0", "%"]
        assert "1,728,000 s" in row


@pytest.mark.parametrize("render", [render_terminal, render_markdown])
def test_no_two_kernels_of_a_report_look_alike(
    render: Callable[[tf.Analysis], str | list[Text]], tmp_path: Path
) -> None:
    names = [TILES.format(f"{size}x224") for size in (320, 256, 192)]
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 9}
    events = [
        kernel | {"name": name, "ts": 10 * n, "args": {"device": 0, "stream": 7}}
        for n, name in enumerate(names)
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    shown = render(tf.analyze(tf.read(path)))
    text = shown if isinstance(shown, str) else "\n".join(line.plain for line in shown)
    for size in (320, 256, 192):
        assert f"MT{size}x224" in text


CALL = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 2}


def page_of_alike_names(path: Path) -> str:
    """Return the page of kernels of which only the middle differs, a gap before each."""
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 9}
    events = []
    for n, size in enumerate((320, 256, 192, 128, 96)):
        told = {"device": 0, "stream": 7, "correlation": n + 1}
        named = kernel | {"name": TILES.format(f"{size}x224"), "ts": 40 * n + 20, "args": told}
        op = f"module::an_operator_with_a_long_name_of_{size}_rows_that_many_others_have, too"
        call = CALL | {"ts": 40 * n + 2, "args": {"correlation": n + 1}}
        outer = {"ph": "X", "cat": "cpu_op", "name": op, "pid": 1, "tid": 1, "dur": 9}
        events += [named, call, outer | {"ts": 40 * n, "args": {}}]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return render_html(tf.analyze(tf.read(path)))


def page_of_alike_totals(_: Path) -> str:
    names = [TILES.format(f"{size}x224") for size in (320, 256, 192)]
    sums = [{"name": name, "count": 2, "total_ns": 10} for name in names]
    counted = [
        {"name": name, "dispatch": at, "counter": "SQ_WAVES", "value": 1.0}
        for at, name in enumerate(names)
    ]
    return render_html(tf.analyze(trace_of(activities=[], totals=sums, kernel_counters=counted)))


@pytest.mark.parametrize("make", [page_of_alike_names, page_of_alike_totals])
def test_names_of_a_table_of_the_page_differ_where_whole_ones_do(
    make: Callable[[Path], str], tmp_path: Path
) -> None:
    page = make(tmp_path / "t.json")
    blocks = [
        *re.findall(r"<table.*?</table>", page, re.S),
        re.sub("<table.*?</table>", "", page, flags=re.S),
    ]
    several = 0
    for block in blocks:
        pairs = set(re.findall(r'<code title="([^"]*)">([^<]*)</code>', block))
        assert len({whole for whole, _ in pairs}) == len({shown for _, shown in pairs})
        several += len(pairs) > 2
    assert several >= 2


def test_kernels_that_gaps_end_with_differ_in_the_terminal() -> None:
    """Both gaps are equally long; only the tile of what ends them differs."""
    names = [TILES.format(f"{size}x224") for size in (64, 320, 256)]
    kernels = [{"name": name, "start_ns": 1000 * n, "dur_ns": 100} for n, name in enumerate(names)]
    analysis = tf.analyze(trace_of(activities=kernels))
    for width in (80, 100):
        lines = [line.plain for line in render_terminal(analysis, Style(width=width))]
        at = lines.index("Longest gaps")
        assert "MT320x224" in lines[at + 1]
        assert "MT256x224" in lines[at + 2]


@pytest.mark.parametrize(("start_up_ns", "label"), [(60, "start-up"), (40, "in launch call")])
def test_a_gap_that_is_mostly_start_up_is_called_so(start_up_ns: int, label: str) -> None:
    causes = IdleCauses(launch_latency_ns=3, in_launch_call_ns=3)
    gap = Gap(0, 0, 100, None, "", "", "", "", causes, start_up_ns=start_up_ns)
    assert gap_cause(gap) == label


def test_in_a_narrow_terminal_classes_of_gaps_go_without_names() -> None:
    """One process waits in a call for 18 ms, and then is busy; the other one is not recorded."""
    ms, processes = 10**6, [{"process": 0}, {"process": 1}]
    starts = [(0, 0), (0, 20), (0, 22), (1, 0), (1, 15), (1, 40)]
    ops = [
        {"name": "aten::mm", "process": process, "start_ns": at * ms, "dur_ns": 2 * ms}
        for process, at in starts
    ]
    calls = [{"name": "cudaDeviceSynchronize", "start_ns": 2 * ms, "dur_ns": 18 * ms}]
    analysis = tf.analyze(trace_of(devices=[], processes=processes, ops=ops, calls=calls))
    for width, is_named in ((100, True), (40, False)):
        lines = [line.plain for line in render_terminal(analysis, Style(width=width))]
        gaps = lines[lines.index("Longest gaps") + 1 :][:2]
        (shown,) = [gap for gap in gaps if "waiting" in gap]
        assert ("cuda" in shown) is is_named, gaps


def test_what_is_in_brackets_behind_a_space_is_no_list_of_parameters() -> None:
    assert kernel_text("Memcpy DtoH (Device -> Pinned)") == "Memcpy DtoH (Device -> Pinned)"
    assert kernel_text("ns::f(int)") == "f"
    assert kernel_text("(anonymous namespace)::(x)") == "(x)"


@pytest.mark.parametrize(
    "returned",
    [
        "void",
        "__global__ static void",
        "std::enable_if_t<((8) > (0)) && ns::ok<int, 4>::value, void>",
        "typename std::enable_if<!T7, void>::type",
        "std::enable_if<T2>(int)0&&ns::ok<T1>::exists, void>::type",
        "decltype(f(1, 2))",
        "static __global__ void __launch_bounds__(256, 2)",
        "unsigned int *",
    ],
)
def test_what_a_function_returns_is_no_part_of_its_label(returned: str) -> None:
    name = f"{returned} ns::(anonymous namespace)::my_kernel<int, 4>(int*, std::pair<int, int>)"
    assert kernel_text(name) == "my_kernel<int, 4>"
    assert kernel_label(name, 30) == "ns::my_kernel<int, 4>"
    assert without_return_type(name).startswith("ns::(anonymous namespace)::my_kernel<int, 4>(")
    long = name.replace("my_kernel<", f"my_kernel<{'int, ' * 2_000}")
    assert without_return_type(long).startswith("ns::")


@pytest.mark.parametrize(
    "name",
    [
        "Memcpy HtoD (Pinned -> Device)",
        "all reduce step",
        "kernel<int> (int)",
        "my_kernel(int, float)",
        "f<(a > b), int>(int)",
        "void",
        "std::enable_if<unfinished void k(",
    ],
)
def test_other_names_begin_where_they_did(name: str) -> None:
    assert without_return_type(name) == name


def test_a_cut_label_has_the_whole_of_the_function_s_own_name() -> None:
    """The name and its bracket take 25 of 29 characters, the mark one, the end three."""
    name = "void at::native::vectorized_gather_kernel<16, long, at::native::Big<int> >(char*)"
    assert kernel_label(name, 29) == "vectorized_gather_kernel<…> >"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0, 10_400_000, "0.000 to 10.400 ms"),
        (30_130_000, 40_730_000, "30.130 to 40.730 ms"),
        (5, 25, "5 to 25 ns"),
        (999, 1_001, "0.999 to 1.001 µs"),
        (1_999_999_000, 2_000_000_000, "1.999999000 to 2.000000000 s"),
        (-39_949, 10_410_000, "\N{MINUS SIGN}0.040 to 10.410 ms"),
    ],
)
def test_a_stretch_has_one_unit_and_as_many_digits_at_both_ends(
    low: int, high: int, text: str
) -> None:
    assert timeaxis.stretch(low, high) == text


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "run: ncu --metrics a__one.sum,b__two.sum,c.avg CMD",
            ["run: ncu --metrics", "a__one.sum,b__two.sum,", "c.avg CMD"],
        ),
        (
            "in (enumerate(DataLoader)#_MultiIter.__next__, 5)",
            ["in (enumerate(DataLoader)#", "_MultiIter.__next__, 5)"],
        ),
        ("x" * 30, ["x" * 26, "xxxx"]),
    ],
)
def test_a_line_ends_behind_a_mark_in_what_is_longer(text: str, lines: list[str]) -> None:
    assert wrapped(text, 26) == lines


@given(st.text("ab ,.)#-%1\n", max_size=120), st.integers(8, 40))
def test_no_character_is_lost_between_lines(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(len(line) <= width for line in lines)


def test_no_output_shows_the_return_type_of_a_kernel() -> None:
    works = [("void step_kernel(float*)", at, at + 100, 5_000) for at in range(0, 90_000, 9_000)]
    analysis = tf.analyze(trace_of(**launched(*works)))
    lines = "\n".join(line.plain for line in render_terminal(analysis, Style(width=120)))
    for text in (lines, render_markdown(analysis)):
        assert "step_kernel(float" in text
        assert "void " not in text

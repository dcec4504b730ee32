"""The tables of the page: what they say, how they sort, filter, unfold and go into a CSV."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import analysis_of_sample, page_of_sample
from tests.reports import factory
from tests.reports.test_browser import Opened, opened
from traceflops.analysis.result import Analysis
from traceflops.reports.page import kernels, steps
from traceflops.reports.page.html import render_html
from traceflops.reports.page.section import DeepLinks
from traceflops.reports.page.steps import window_rows
from traceflops.reports.view.recorded_shapes import shape_words, type_words
from traceflops.units import duration
from traceflops.windows.step_times import most_and_least, own_times

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", '="a"', 'plain, and "quoted"')


def section(text: str, name: str) -> str:
    return text.split(f'<section id="{name}">')[1].split("</section>")[0]


def steps_of(analysis: Analysis) -> dict[str, Any]:
    return steps.steps_page(analysis, window_rows(analysis.devices))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[4096],[4096,1024],[],[]]", "4096, 4096×1024"),
        ("[[[46157824]],[]]", "(46157824)"),
        ("[[[2,3],[4]],[]]", "2 tensors (2×3, 4)"),
        (
            "[[[1024,1024],[1024]," * 1 + "[1024],[4096,1024],[4096],[1024,4096],[1024],[1024]]]",
            "8 tensors (1024×1024, 1024, 1024, 4096×1024, 4096, 1024×4096, 1024 and 1 more)",
        ),
        ("[]", ""),
        ("[[1],[2],[3],[4],[5],[6],[7],[8]]", "1, 2, 3, 4, 5, 6, 7, 8"),
        (
            str([[10**9 + i] for i in range(20)]),
            f"{', '.join(str(10**9 + i) for i in range(13))} and 7 more",
        ),
        (f"[[{'1,' * 200}1]]", "1×" * 48 + "…" + "1×" * 31 + "1"),
        ("[[1,2", "[[1,2"),
        ("[" * 500, "[" * 96 + "…" + "[" * 63),
    ],
)
def test_shapes_in_words(text: str, words: str) -> None:
    assert shape_words(text) == words


def test_types_in_words() -> None:
    assert type_words('["c10::BFloat16","c10::BFloat16","long int","Scalar",""]') == "bf16, int64"
    assert type_words('["TensorList"]') == ""


def test_a_link_holds_the_whole_name_and_is_there_once() -> None:
    links = DeepLinks("kernel")
    assert links.of('a "b" <c> ü\0') == "kernel=a%20%22b%22%20%3Cc%3E%20%C3%BC%00"
    assert links.of('a "b" <c> ü\0') == ""
    assert links.of("x" * 300_000) == ""


def test_each_category_keeps_its_longest_kernels() -> None:
    names = [(f"kernel_{i}", "memory", "elementwise") for i in range(130)]
    names += [(f"copy_{i}", "memory", "copy") for i in range(5)]
    page = kernels.kernels_page(factory.analysis(names=names))
    shown = [kernel["row"]["name"] for kernel in page["rows"]]
    assert shown == [f"kernel_{i}" for i in range(100)] + ["copy_0", "copy_1", "copy_2"]
    assert (page["of_categories"], page["hidden"]) == (3, 32)
    left = [row["sum_ns"] for row in factory.analysis(names=names).kernels.to_pylist()]
    assert page["hidden_ns"] == sum(left[100:130]) + sum(left[133:])


def test_categories_of_one_name_have_links_of_their_own() -> None:
    rows = [{"top": "memory", "sub": "copy"}, {"top": "other", "sub": "copy"}]
    assert kernels.category_link("memory", "copy", rows) == "category=memory/copy"
    assert kernels.category_link("memory", "copy", rows[:1]) == "category=copy"


def test_work_stands_beside_its_kernel_and_is_left_out_where_nothing_is_known() -> None:
    four = section(page_of_sample("gpt_ddp_4rank"), "kernels")
    assert "TFLOP/s</th>" in four
    assert 'compute <span class="by">by shapes</span>' in four
    amd = section(page_of_sample("rocprofv3_json"), "kernels")
    assert "TFLOP/s</th>" not in amd
    assert "hipExtModuleLaunchKernel" in amd
    assert "Not in the trace: operators, modules and shapes of the launches." in amd


def test_launchers_are_there_without_scripts() -> None:
    text = section(page_of_sample("gpt_1rank.json.gz"), "kernels")
    assert "<summary>What launched each kernel</summary>" in text
    assert 'GPT/Block <span class="by">3 modules, backward</span>' in text
    assert "4096×4096, 4096×1024" in text


def test_without_launches_the_section_says_so_once() -> None:
    rows = [{"name": f"k{i}", "start_ns": 100 * i, "dur_ns": 10} for i in range(4)]
    text = render_html(tf.analyze(trace_of(activities=rows)))
    assert text.count("The trace does not record what launched them.") == 1
    assert 'id="operators"' not in text


def test_operators_say_what_they_add_up_to() -> None:
    text = section(page_of_sample("gpt_1rank.json.gz"), "operators")
    names = re.findall(r'<code class="ends" title="([^"]*)"', text)
    assert names[:2] == ["aten::mm", "aten::addmm"]
    own, rest = text.split("By shape")[0].split('id="operator-rest"')
    assert 'data-value="0" title="0 ns total"' not in own.split("<tbody>")[1]
    rows = rest.count('<td class="name">')
    assert f"{rows} more operators without self time" in own
    assert rest.count('title="0 ns total">0 ns</td>') >= rows
    assert "Of peak" in own.split("<thead>")[1]
    assert "Of peak" not in rest, "a column of dashes"
    assert "GPU time by launching operator, per step and GPU: 3.73 ms." in text


def test_operators_by_shape_sum_to_the_same_time() -> None:
    made = analysis_of_sample("gpt_1rank.json.gz")
    text = section(render_html(made), "operators").split("By shape of the inputs")[1]
    rows = [re.sub(r"<[^>]+>", "|", row).split("|") for row in text.split("<tr>")[2:]]
    first = [cell.replace("\xa0", " ") for cell in rows[0] if cell.strip()]
    # Worked out from single activities: the optimizer has all parameters at once.
    assert first[0].startswith("aten::_fused_adamw_")
    links = made.prepared.linked.links.op_of_activity
    ops, work = made.prepared.trace.ops.to_pylist(), made.prepared.trace.activities.to_pylist()
    window = [w for w in made.devices[0].windows if w.used]
    sums: dict[tuple[str, str], int] = {}
    for row, op in zip(work, links.tolist(), strict=True):
        end = row["start_ns"] + row["dur_ns"]
        inside = sum(
            max(0, min(end, one.end_ns) - max(row["start_ns"], one.start_ns)) for one in window
        )
        if op >= 0:
            key = (ops[op]["name"], ops[op]["input_dims"] or "")
            sums[key] = sums.get(key, 0) + inside
    most = max(sums.values())
    assert duration(most / made.windows_used) in first
    nobody = sum("without" in row[2] for row in rows)
    assert sum(ns > 0 for ns in sums.values()) == len(rows) - nobody


def test_a_step_stands_against_the_median_of_the_steps_used() -> None:
    page = steps_of(factory.analysis([factory.device(0, factory.windows(24, slow=17))]))
    # 23 steps are used; 17 has 96 ms more communication than the 74 ms of every other one.
    assert page["medians"]["communication"] == 74_000_000
    shown = {one["row"].label: one for one in page["rows"]}
    place = page["components"].index("communication")
    part = shown["17"]["parts"][place]
    assert part == {"ns": 170_000_000, "more": "+96.0 ms", "is_much": True}
    assert shown["3"]["parts"][place]["more"] == "±0"
    assert shown["before"]["parts"][place]["more"] == ""
    assert [one["row"].label for one in page["rows"] if one["slowest"]] == ["17"]
    assert shown["17"]["link"] == "step=17"
    assert shown["before"]["link"] == ""


def test_of_1500_steps_the_first_and_the_longest_are_shown() -> None:
    made = factory.analysis([factory.device(0, factory.windows(1_500, slow=417))])
    page = steps_of(made)
    labels = [one["row"].label for one in page["rows"]]
    assert (len(labels), page["total"], page["first"], page["worst"]) == (200, 1_502, 50, 150)
    assert labels[:50] == ["before", *map(str, range(49))]
    assert "417" in labels
    assert labels[50:] == sorted(labels[50:], key=int)
    text = render_html(made)
    assert len(section(text, "steps").encode()) < 300_000
    assert "Showing the first 50 and the 150 longest of 1,502 rows." in text


def devices_with(communication: list[int], work: list[int], count: int = 5) -> list[Any]:
    """Return devices whose steps all have these milliseconds of communication and compute."""
    made = []
    for number, (waits, works) in enumerate(zip(communication, work, strict=True)):
        mine = factory.windows(count)
        parts = factory.account(works, 0, waits, 0, 0)
        mine = tuple(
            replace(w, account=parts, end_ns=w.start_ns + (works + waits) * 1_000_000)
            for w in mine
            if w.role == "step"
        )
        made.append(factory.device(number, mine))
    return made


def test_ranks_whose_steps_take_equally_long_are_told_apart_by_their_own_time() -> None:
    devices = devices_with([40, 40, 10, 40], [60, 60, 90, 60])
    assert {w.dur_ns for device in devices for w in device.steps} == {100_000_000}
    times = own_times(devices)
    assert times.ns.tolist() == [[60e6] * 5, [60e6] * 5, [90e6] * 5, [60e6] * 5]
    text = section(render_html(factory.analysis(devices)), "ranks")
    assert "Largest deviation: rank 2, step 0 (+50.0\u00a0%)." in text
    alike = section(render_html(factory.analysis(devices_with([40, 40], [60, 60]))), "ranks")
    assert "All ranks are equally fast in every step." in alike


def test_of_many_ranks_those_with_most_and_with_least_own_time_are_shown() -> None:
    works = [50 + at * 7 % 40 for at in range(40)]  # 50 to 89, each once
    devices = devices_with([100 - each for each in works], works)
    by_work = sorted(range(40), key=lambda at: -works[at])
    assert most_and_least(devices, 32) == by_work[:16] + by_work[24:]
    assert most_and_least(devices, 40) == list(range(40))
    made = factory.analysis(devices)
    text = section(render_html(made), "ranks")
    assert "Showing 32 of 40 GPUs: the 16 slowest and the 16 fastest without exposed" in text


def test_steps_that_some_ranks_lack_have_no_cell() -> None:
    made = [factory.device(0, factory.windows(4)), factory.device(1, factory.windows(3))]
    times = own_times(made)
    assert times.steps == (0, 1, 2, 3)
    assert np.isnan(times.ns[1, 3])
    assert not np.isnan(times.medians).any()


# In a browser.


def long_trace() -> Analysis:
    """Return a trace whose names are hostile, formulas among them."""
    names = [*FORMULAS, "</script><b>x", "n" * 5_000, "\u202egnp.exe", "a%20b&c=d#e"]
    tables = launched(*((name, 10 * i, 1_000 * i, 900 - i) for i, name in enumerate(names, 1)))
    return tf.analyze(trace_of(**tables))


@pytest.fixture(scope="module")
def sample(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    path = tmp_path_factory.mktemp("tables") / "sample.html"
    text = page_of_sample("gpt_ddp_4rank")
    found = opened(browser, path, text)
    yield found
    assert found.complaints == []
    found.page.context.close()


@pytest.fixture(scope="module")
def hostile(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    path = tmp_path_factory.mktemp("tables") / "hostile.html"
    found = opened(browser, path, render_html(long_trace()))
    yield found
    assert found.complaints == []
    found.page.context.close()


def go_to(found: Opened, link: str) -> None:
    found.page.evaluate("link => { location.hash = link; }", link)
    found.page.wait_for_timeout(100)


def csv_of(found: Opened, table: str) -> list[list[str]]:
    """Return what the button of a table hands to the clipboard."""
    found.page.evaluate(
        "() => { Object.defineProperty(navigator, 'clipboard', { configurable: true,"
        " value: { writeText: async (text) => { window.taken = text; } } }); }"
    )
    found.page.locator(f".tools[data-table={table}] button[data-csv=copy]").click()
    found.page.wait_for_timeout(50)
    return list(csv.reader(io.StringIO(found.page.evaluate("window.taken"), newline="")))


def test_a_row_unfolds_by_keyboard_and_names_what_launched_it(sample: Opened) -> None:
    row = sample.page.locator("#kernel-table tbody tr", has_text="coopA_NNT").first
    toggle = row.locator("button.unfold")
    assert toggle.get_attribute("aria-expanded") == "false"
    toggle.focus()
    sample.page.keyboard.press("Enter")
    assert toggle.get_attribute("aria-expanded") == "true"
    panel = sample.page.locator(f"#{toggle.get_attribute('aria-controls')}")
    assert "aten::mm" in panel.inner_text()
    assert "4096×8192, 8192×2048" in panel.inner_text()
    sample.page.keyboard.press("Space")
    assert not panel.is_visible()


def test_what_is_unfolded_moves_with_its_row(sample: Opened) -> None:
    row = sample.page.locator("#kernel-table > tbody > tr").first
    row.locator("button.unfold").click()
    for _ in range(2):
        heads = sample.page.locator("#kernel-table").get_by_role("button")
        heads.filter(has_text=re.compile("^Time")).click()
        apart = sample.page.locator("#kernel-table tbody tr.unfolded").first.evaluate(
            "row => row.id.replace('-row', '') === row.previousElementSibling.dataset.about"
        )
        assert apart
    row.locator("button.unfold").click()


def test_numbers_sort_and_the_unknown_stays_last(sample: Opened) -> None:
    head, mean = (
        sample.page.locator("#kernel-table thead th", has_text=name) for name in ("TFLOP/s", "Mean")
    )
    assert (head.is_visible(), mean.is_visible()) == (True, False)
    sample.page.get_by_label("All columns").check(force=True)
    column = head.evaluate("cell => cell.cellIndex")
    cells = f"rows => rows.map(row => row.cells[{column}].dataset.value)"
    for order in ("descending", "ascending"):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == order
        rows = sample.page.locator("#kernel-table > tbody > tr:not(.unfolded)")
        values = rows.evaluate_all(cells)
        known = [float(value) for value in values if value]
        assert known == sorted(known, reverse=order == "descending")
        assert not any(values[len(known) :])
        assert len(known) < len(values)


def test_a_category_leads_to_its_kernels_and_back(sample: Opened) -> None:
    sample.page.evaluate("location.hash = 'categories'")  # the drawer opens for what is in it
    sample.page.locator("#category-table a", has_text="gemm").click()
    sample.page.wait_for_timeout(100)
    rows = sample.page.locator("#kernel-table > tbody > tr:visible")
    tops = set(rows.evaluate_all("rows => rows.map(row => row.dataset.category)"))
    assert tops == {"compute/gemm"}
    assert "in category gemm" in sample.page.locator("#kernel-found").inner_text()
    sample.page.get_by_role("button", name="Show all").click()
    assert rows.count() > 5


def test_the_first_fifteen_kernels_are_shown_and_all_without_scripts(
    browser: "Browser", tmp_path: Path
) -> None:
    names = [(f"kernel_{i}", "memory", "elementwise") for i in range(40)]
    text = render_html(factory.analysis(names=names))
    for scripts in (True, False):
        found = opened(browser, tmp_path / "many.html", text, scripts=scripts)
        rows = found.page.locator("#kernel-table > tbody > tr:visible")
        assert rows.count() == 15
        found.page.get_by_label("Show all 40").check(force=True)
        assert rows.count() == 40
        found.page.context.close()


def test_a_dot_of_the_roofline_leads_to_its_kernel(sample: Opened) -> None:
    classic = sample.page.locator("[data-lens=roofline]")
    assert not classic.is_visible()
    sample.page.get_by_role("radio", name="FLOP per byte").check(force=True)
    assert classic.is_visible()
    sample.page.get_by_role("radio", name="Time and share of roof").check(force=True)
    dots = sample.page.locator("[data-lens=reach] svg.wide a")
    assert dots.locator("text").count() == 5
    dots.first.focus()
    sample.page.keyboard.press("Enter")
    sample.page.wait_for_timeout(100)
    wanted = sample.page.locator("#kernel-table tr.wanted")
    assert f"#{wanted.get_attribute('id')}" == dots.first.get_attribute("href")


def test_a_box_of_the_tree_leads_to_its_kernels(sample: Opened) -> None:
    """Of the boxes of operators the one of products has gemm kernels and nothing else."""
    box = sample.page.locator(".icicle a", has_text="aten::mm:").first
    box.focus()
    sample.page.keyboard.press("Enter")
    sample.page.wait_for_timeout(100)
    assert sample.page.evaluate("location.hash") == f"#{box.get_attribute('id')}"
    rows = sample.page.locator("#kernel-table > tbody > tr:not(.unfolded):visible")
    tops = set(rows.evaluate_all("rows => rows.map(row => row.dataset.category)"))
    assert tops == {"compute/gemm"}
    assert "in aten::mm" in sample.page.locator("#kernel-found").inner_text()
    assert sample.page.locator("#tree-found").inner_text().startswith("aten::mm: ")
    dots = sample.page.locator("[data-lens=reach] svg.wide a")
    pale = sample.page.locator("[data-lens=reach] svg.wide a.dim")
    kept = rows.evaluate_all("rows => rows.map(row => `#${row.id}`)")
    assert pale.count() == dots.count() - len(
        [
            link
            for link in dots.evaluate_all("all => all.map(a => a.getAttribute('href'))")
            if link in kept
        ]
    )
    assert 0 < pale.count() < dots.count()
    # What is chosen is cleared at the table and at the tree alike.
    for name in ("Show all", "Clear the selection"):
        go_to(sample, str(box.get_attribute("id")))
        assert sample.page.locator(".icicle a.chosen").count() == 1
        sample.page.get_by_role("button", name=name).click()
        assert rows.count() > 5
        assert pale.count() == sample.page.locator(".icicle a.chosen").count() == 0
        assert not sample.page.locator("#tree-found").is_visible()
        assert sample.page.evaluate("location.hash") == "#attribution"
    go_to(sample, "tree=kernel-0")
    assert sample.page.locator("[data-lens=kernel]").is_visible()


def test_a_step_and_a_rank_have_links(sample: Opened) -> None:
    go_to(sample, "step=22")
    assert sample.page.locator("#step-table").is_visible()
    assert sample.page.locator("tr.wanted th").inner_text() == "22"
    go_to(sample, "rank=3")
    assert sample.page.locator("tr.wanted th").inner_text().endswith("rank 3 · gpu 3")
    go_to(sample, "step=999")
    assert "No step “999” on this page" in sample.page.locator("#missed").inner_text()
    assert sample.page.locator("tr.wanted").count() == 0


@pytest.mark.parametrize("name", ["a%20b&c=d#e", "</script><b>x", "\u202egnp.exe", '="a"'])
def test_a_link_to_a_kernel_finds_the_whole_name(hostile: Opened, name: str) -> None:
    hostile.page.fill("#kernel-filter", "nothing has this name")
    go_to(hostile, f"kernel={quote(name, safe='')}")
    row = hostile.page.locator("tr.wanted")
    assert row.is_visible()
    shown = hostile.page.locator("tr.wanted + tr.unfolded .whole code")
    assert shown.text_content() == name


def test_a_csv_has_whole_names_raw_numbers_and_no_formula(hostile: Opened) -> None:
    hostile.page.fill("#kernel-filter", "")
    head, *rows = csv_of(hostile, "kernel-table")
    assert head[:3] == ["name", "time_ns", "count"]
    assert head[-5:] == ["category", "share", "mean_ns", "min_ns", "max_ns"]
    found = {row[0]: row for row in rows}
    for name in FORMULAS:
        written = name if name.startswith("plain") else f"'{name}"
        assert written in found
    assert not [name for name in found if name[0] in "=+-@\t\r"]
    assert "n" * 5_000 in found
    assert found["'=1+1"][1] == "899"
    assert hostile.page.locator("#kernel-found").inner_text() == f"Copied {len(rows)} rows."


def test_a_csv_of_steps_is_in_nanoseconds(sample: Opened) -> None:
    go_to(sample, "step=22")
    head, *rows = csv_of(sample, "step-table")
    assert head[:3] == ["step", "time_ns", "compute_ns"]
    times = {row[0]: int(row[1]) for row in rows}
    analysis = analysis_of_sample("gpt_ddp_4rank")
    expected = {row.label: row.dur_ns for row in window_rows(analysis.devices)}
    assert {re.split(r"\s", label)[0]: ns for label, ns in times.items()} == expected


def test_where_copying_is_forbidden_the_name_is_selected(hostile: Opened) -> None:
    go_to(hostile, "kernel=" + "n" * 5_000)
    hostile.page.evaluate(
        "() => { Object.defineProperty(navigator, 'clipboard',"
        " { configurable: true, value: undefined }); }"
    )
    bar = hostile.page.locator("tr.wanted + tr.unfolded .whole")
    bar.get_by_role("button", name="Copy name").click()
    assert hostile.page.evaluate("getSelection().toString()") == "n" * 5_000
    assert "Selected" in bar.get_by_role("status").inner_text()


def test_without_scripts_what_is_behind_a_row_can_be_read(
    browser: "Browser", tmp_path: Path
) -> None:
    text = page_of_sample("gpt_1rank.json.gz")
    found = opened(browser, tmp_path / "plain.html", text, scripts=False)
    found.page.locator("summary", has_text="What launched each kernel").click()
    found.page.locator("details.about summary").first.click()
    assert found.page.locator("details.about").get_by_text("aten::mm").first.is_visible()
    assert not found.page.locator(".tools").first.is_visible()
    found.page.context.close()

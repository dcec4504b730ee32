"""The page as text: what it says, that nothing in it acts, that it stays small."""

import base64
import hashlib
import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import SAMPLES, analysis_of_sample, page_of_sample
from tests.reports import factory
from traceflops.analysis.result import Analysis
from traceflops.facts import quoted
from traceflops.findings.finding import Finding
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page import overview
from traceflops.reports.page.html import render_html
from traceflops.reports.page.steps import drawn_bars, window_rows
from traceflops.reports.view.author_notes import base_names
from traceflops.reports.view.figures import duration
from traceflops.reports.write import save
from traceflops.table.trace import Note, Trace
from traceflops.timeline.records import COMPONENTS, Components

COMMAND = "traceflops report /home/someone/runs/rank0.json.gz -o /tmp/x.html"


class Tree(HTMLParser):
    """Elements with their attributes, and the text of those that are asked for."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, dict[str, str], str]] = []
        self._open: list[tuple[str, dict[str, str]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = (tag, {name: value or "" for name, value in attrs})
        self.elements.append(found)
        self._open.append(found)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((*self._open[-1], data))

    def text(self, tag: str, **attributes: str) -> list[str]:
        wanted = attributes.items()
        return [
            data.strip()
            for name, found, data in self.texts
            if name == tag and wanted <= found.items()
        ]


@pytest.fixture(scope="module")
def one() -> Analysis:
    return factory.analysis()


@pytest.fixture(scope="module")
def one_page(one: Analysis) -> str:
    return render_html(one, COMMAND)


@pytest.fixture(scope="module")
def hostile_page() -> str:
    return render_html(factory.hostile(), "traceflops report " + factory.HOSTILE[0])


def without_data(text: str) -> str:
    return re.sub(r'(<script type="application/octet-stream"[^>]*>)[^<]*', r"\1", text)


def test_the_title_begins_with_the_key_figure_and_the_heading_is_the_gravest_finding(
    one: Analysis, one_page: str
) -> None:
    tree = Tree(one_page)
    assert tree.text("title")[0].startswith(f"{one.measured.figure} · rank0.json.gz")
    assert tree.text("h1")[0].startswith("Communication is not hidden. For ")
    assert one.verdict.sentence in tree.text("a")  # it leads to its rows


def test_the_tiles_and_the_analysis_agree(one: Analysis, one_page: str) -> None:
    tree = Tree(one_page)
    largest = max(one.components.idle_ns, one.components.communication_ns)
    assert largest > one.components.idle_ns
    shown = {
        found["data-tile"]: text.strip() for _, found, text in tree.texts if "data-tile" in found
    }
    assert shown["MFU"] == f"{100 * float(one.measured.mfu or 0):.1f}"
    assert shown["Step time"] == duration(one.steps.typical_ns).split()[0]
    lost = duration(one.mean_ns(largest)).split()[0]
    assert lost in tree.text("span", **{"class": "value"})[-2]
    assert 'class="chip"' not in one_page
    assert tree.text("title")[0].split(" · ")[0] == f"MFU {shown['MFU']} %"


def parts_of(page: str) -> list[tuple[str, int, int]]:
    """Return name, time and drawn width of each part of the bar."""
    found = re.findall(r'data-part="(\w+)" data-ns="(\d+)" style="flex:(\d+) 0 0', page)
    return [(name, int(ns), int(width)) for name, ns, width in found]


@pytest.mark.parametrize(
    "name", ["gpt_1rank.json.gz", "gpt_ddp_4rank", "rocprofv3_csv", "torch_cpu_train.json.gz"]
)
def test_the_parts_of_the_bar_sum_to_the_mean_step_to_the_ns(name: str) -> None:
    analysis = analysis_of_sample(name)
    parts = parts_of(render_html(analysis))
    step_ns = sum(device.chosen.components.window_ns for device in analysis.devices_used)
    assert sum(ns for _, ns, _ in parts) == round(step_ns / analysis.windows_used)
    assert all(ns == width > 0 for _, ns, width in parts)
    idle_ns = sum(ns for name, ns, _ in parts if name in ("idle", "culprit"))
    assert idle_ns == pytest.approx(analysis.components.idle_ns / analysis.windows_used, abs=1)
    if analysis.measured.mfu is not None:
        useful = {name: ns for name, ns, _ in parts}["useful"]
        assert useful == pytest.approx(analysis.measured.mfu * step_ns / analysis.windows_used)


def test_idle_time_is_split_by_what_the_gpu_waits_on() -> None:
    """Of 990 us between two kernels of 10 us a function has 980, the launch the rest."""
    _, page, _ = waiting_page()
    labels = re.findall(r'aria-label="([^"]*)"><span class="name">', page)
    assert labels[-2:] == [
        "Host code: 980 µs, 97.0 %",
        "Other idle: 10.0 µs, 1.0 %",
    ]


def test_no_tile_is_zero_or_unknown() -> None:
    """Nothing is lost and no FLOPs are known: only the length of the window is."""
    analysis = tf.analyze(trace_of(**launched(("k", 0, 100, 1_000))))
    shown = re.findall(r'data-tile="([^"]*)"', render_html(analysis))
    assert shown == ["Window"]


def test_hidden_communication_stands_beside_exposed() -> None:
    page = page_of_sample("gpt_ddp_4rank")
    assert "1.38 ms exposed, 2.33 ms hidden (62.8 %)" in page


def test_provenance_names_file_product_rank_and_steps(one_page: str) -> None:
    listed = one_page.split('<ul class="provenance">')[1].split("</ul>")[0]
    for text in ("rank0.json.gz", "1 × NVIDIA H100 80GB HBM3", "rank 0", "23 of 24 steps"):
        assert text in listed


@pytest.mark.parametrize(
    "parts",
    [
        Components(182, 61, 2, 0, 74, 0, 23),
        Components(1, 1, 1, 1, 1, 1, 1),
        Components(1, 0, 0, 0, 0, 0, 10**15),
        Components(333_333, 333_333, 333_334),
        Components(10**12 + 1, *[10**12] * 6),
        Components(compute_ns=1),
    ],
)
def test_the_widths_of_a_bar_are_whole_and_sum_to_1000(parts: Components) -> None:
    found = overview.segments(parts)
    assert sum(each.units for each in found) == 1000
    assert [each.start for each in found] == [
        sum(each.units for each in found[:i]) for i in range(len(found))
    ]
    for each in found:
        exact = parts.parts()[each.component] * 1000 / parts.window_ns
        assert abs(each.units - exact) < 1


def test_a_bar_without_length_has_no_parts() -> None:
    assert overview.segments(Components()) == []


def test_findings_link_to_sections_that_are_there(one: Analysis) -> None:
    said = quoted("Idle time takes 9.9 % of <b>.")
    losses = Finding("loss-idle", "high", 0.099, said, said, evidence=("no", "idle"))
    gone = replace(losses, evidence=("no",))
    text = render_html(replace(one, losses=(losses, gone)))
    found = text.split('<ul class="findings">')[1].split("</section>")[0]
    links = re.findall(r'href="#([^"]*)"', found)
    assert links[0] == "idle"
    assert all(f' id="{link}"' in text for link in links)
    assert "33.0" not in found, "only a remedy has a gain"
    assert "of &lt;b&gt;." in found


def test_no_findings_is_a_result_too(one: Analysis) -> None:
    nothing = replace(one)
    vars(nothing)["findings"] = ()
    text = render_html(nothing)
    found = text.split('<section id="findings">')[1].split("</section>")[0]
    assert "None: no known loss reaches 3 % of the step time" in found


def test_every_bar_of_the_page_is_full_and_has_a_text_alternative() -> None:
    text = render_html(factory.ranks(3))
    bars = re.findall(r'<svg class="bar[^>]*>.*?</svg>', text, re.DOTALL)
    assert len(bars) == 3 + 1 + 6  # ranks, all of them, steps
    for bar in bars:
        assert sum(int(units) for units in re.findall(r'data-units="(\d+)"', bar)) == 1000
        widths = [float(w) for w in re.findall(r'width="([\d.]+)%" height="\d+" fill="#', bar)]
        assert sum(widths) == pytest.approx(100, abs=1e-9)
        assert 'role="img"' in bar
        assert re.search("compute (?:4[89]|5)", re.findall(r'aria-label="([^"]*)"', bar)[0])


def test_the_policy_allows_each_script_by_its_hash_and_nothing_else(one_page: str) -> None:
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', one_page)[0]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    inline = re.findall(r"<script>(.*?)</script>", one_page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in inline]
    assert set(rules["script-src"].split()) == {f"'sha256-{digest}'" for digest in digests}
    assert len(inline) == 6


def test_nothing_is_fetched_and_no_attribute_runs(one_page: str, hostile_page: str) -> None:
    for text in (one_page, hostile_page):
        bare = without_data(text)
        assert not re.search(r"(?:src|href)\s*=\s*[\"']?\s*(?:https?:)?//", bare)
        assert not re.search(r"url\(\s*[\"']?(?!#)", bare)
        for tag, attributes in Tree(bare).elements:
            assert tag not in ("img", "iframe", "object", "embed", "form", "base")
            assert not [name for name in attributes if name.startswith("on")]
            assert attributes.get("href", "#").startswith(("#", "data:image/svg+xml"))


def test_hostile_text_is_shown_and_adds_no_element(hostile_page: str) -> None:
    tree, harmless = Tree(hostile_page), Tree(render_html(factory.ranks(3, 25)))
    scripts, expected = (
        sum(tag == "script" for tag, _ in each.elements) for each in (tree, harmless)
    )
    assert scripts == expected
    assert tree.text("h1") == [factory.HOSTILE[0]]
    assert factory.HOSTILE[0] in tree.text("p")
    names = tree.text("code")
    for text in ("[red]", "{{7*7}}", "$$x$$", "\\u202egnp.exe", "nul \\x00 escape \\x1b[31m"):
        assert text in names
    assert "49" not in names
    titles = [found["title"] for tag, found in tree.elements if tag == "code" and "title" in found]
    assert factory.HOSTILE[2] in titles
    assert max(map(len, titles)) <= 2_000


def test_hostile_text_never_enters_a_script_or_style(hostile_page: str) -> None:
    acting = "".join(re.findall(r"<(?:script|style)>.*?</(?:script|style)>", hostile_page, re.S))
    for text in ("alert", "onerror", "7*7", "xxxxxxxx", "@value{custom}"):
        assert text not in acting


def test_a_page_can_be_encoded_whatever_a_name_holds(one: Analysis) -> None:
    lone = replace(one, notes=(Note("assumed", "a", "lone \udc80 here", None, "\ud800"),))
    assert b"lone \\udc80 here" in render_html(lone).encode("utf-8")


def test_pages_are_small() -> None:
    assert len(render_html(factory.analysis()).encode()) < 1_000_000
    assert len(render_html(factory.hostile()).encode()) < 3_000_000


def test_of_100_devices_32_are_shown_and_the_page_says_which() -> None:
    made = factory.ranks(100, 4)
    text = render_html(made)
    assert "Showing 32 of 100 GPUs: the 16 slowest and the 16 fastest without exposed" in text
    assert text.count('<svg class="bar mini"') == 32 + 1 + 4  # ranks, all of them, steps
    assert "ranks 0\N{EN DASH}99" in text
    assert "All 100 GPUs" in text


def test_1000_steps_are_drawn_as_200_bars_and_the_page_says_so() -> None:
    made = factory.analysis([factory.device(0, factory.windows(1000, slow=417))])
    text = render_html(made)
    assert len(text.encode()) < 1_000_000
    assert "Each of the 200 bars averages 5 consecutive steps." in text
    assert "Longest used step: 417 (433 ms, " in text
    assert "Showing the first 50 and the 150 longest of 1,002 rows." in text


@pytest.mark.parametrize("steps", [0, 1, 199, 200, 201, 1000])
def test_bars_cover_every_step_once(steps: int) -> None:
    rows = window_rows([factory.device(0, factory.windows(steps))])
    bars = drawn_bars(rows)
    assert len(bars) <= 200
    assert sum(bar.rows for bar in bars) == steps


def test_a_row_is_the_mean_over_devices_and_keeps_its_sum() -> None:
    made = factory.ranks(3, 4)
    rows = {row.label: row for row in window_rows(made.devices)}
    assert list(rows) == ["before", "0", "1", "2", "3", "after"]
    lengths = [d.steps[0].dur_ns for d in made.devices]
    assert rows["0"].dur_ns == pytest.approx(sum(lengths) / 3, abs=len(COMPONENTS))
    assert rows["0"].longest_ns == max(lengths)
    assert rows["0"].activities == 3 * 1_200
    assert not rows["0"].used


def test_without_steps_the_window_is_one_bar_and_a_sentence() -> None:
    text = render_html(factory.without_steps())
    assert "No steps found; the whole trace is one window." in text
    rows = text.split('<ul class="step-rows"')[1].split("</ul>")[0]
    assert rows.count("<li") == 1
    assert "width:100.0%" in rows


def test_without_devices_the_page_says_what_there_is() -> None:
    text = render_html(factory.without_devices())
    assert "No GPU operations in this file" in text
    assert "python_function" in text
    assert "99,000" in text
    assert len(text.encode()) < 60_500


def test_a_window_without_time_has_no_plot_and_says_so() -> None:
    text = render_html(factory.analysis([factory.device(0, ())]))
    assert "No GPU operation ran in the chosen window" in text
    assert "step-chart" not in text.split("</style>")[1]


def test_kernels_beyond_the_limit_are_counted(one: Analysis) -> None:
    names = [(f"kernel_{i}", "memory", "elementwise") for i in range(130)]
    text = render_html(factory.analysis(names=names))
    assert "kernel_99<" in text
    assert "kernel_100<" not in text
    assert re.search(r"Top 100 by time. Only in the JSON report: 30 with [\d.]+ m?s,", text)


def test_the_share_of_other_is_said_plainly(one: Analysis, one_page: str) -> None:
    shares = [row["share"] for row in one.categories.to_pylist() if row["top"] == "other"]
    said = f"Uncategorized (<b>other</b>): {100 * sum(shares):.1f} %."
    assert sum(shares) > 0.001
    assert said in one_page
    assert overview.other_share(factory.without_devices().categories) is None


def test_notes_are_listed_with_kind_and_count(one: Analysis) -> None:
    text = render_html(replace(one, notes=(Note("dropped", "x", "Two records lack a time.", 2),)))
    assert "<b>dropped</b>" in text
    assert "Two records lack a time." in text
    assert "<small>(2)</small>" in text


def test_no_line_ends_inside_an_option(one: Analysis) -> None:
    text = 'Mark them with --step-mark "<b>" (--steps 1-2) or a-b --<i>.'
    page = render_html(replace(one, notes=(Note("missing", "x", text),)))
    assert (
        'Mark them with <span class="tight">--step-mark</span> &#34;&lt;b&gt;&#34; '
        '(<span class="tight">--steps</span> 1-2) or a-b --&lt;i&gt;.'
    ) in page


def test_too_many_notes_are_counted(one: Analysis) -> None:
    notes = tuple(Note("missing", "x", f"Note {i}.") for i in range(5_000))
    text = render_html(replace(one, notes=notes))
    assert "Showing the first 200 of 5,000; the JSON report has all." in text


def test_the_command_shows_base_names_only(one_page: str) -> None:
    assert "traceflops report rank0.json.gz -o x.html" in one_page
    assert "someone" not in one_page


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("traceflops report C:\\\\runs\\\\a.json", "traceflops report a.json"),
        ("traceflops report 'a b/c d.json'", "traceflops report 'c d.json'"),
        ("traceflops --output=/tmp/x.html", "traceflops --output=x.html"),
        ("traceflops --step-mark 'a/b'", "traceflops --step-mark a/b"),
        ("traceflops --step-mark=a/b", "traceflops --step-mark=a/b"),
        ("traceflops 'unbalanced /x/y", "traceflops ''\"'\"'unbalanced' y"),
        ("traceflops report runs/", "traceflops report runs"),
        ("traceflops report /", "traceflops report /"),
    ],
)
def test_base_names(command: str, shown: str) -> None:
    assert base_names(command) == shown


def test_files_of_one_name_are_called_the_same_everywhere(tmp_path: Path) -> None:
    """Their folder tells them apart, in the command line, too."""
    for folder, rank in (("a", 0), ("b", 1)):
        target = tmp_path / "runs" / folder / "trace.json.gz"
        target.parent.mkdir(parents=True)
        target.write_bytes((SAMPLES / f"gpt_ddp_4rank/rank{rank}.json.gz").read_bytes())
    paths = [str(tmp_path / "runs" / folder / "trace.json.gz") for folder in "ab"]
    analysis = tf.analyze(tf.read(paths))
    command = f"traceflops report {' '.join(paths)} -o runs/x.md"
    for suffix in ("html", "md"):
        save(analysis, tmp_path / f"x.{suffix}", command=command)
        text = (tmp_path / f"x.{suffix}").read_text(encoding="utf-8")
        assert "traceflops report a/trace.json.gz b/trace.json.gz -o x.md" in text
        assert set(re.findall(r"(?<![\w.])[\w./]*trace\.json\.gz", text)) == {
            "a/trace.json.gz",
            "b/trace.json.gz",
        }


def test_two_pages_of_one_analysis_are_equal(one: Analysis) -> None:
    assert render_html(one) == render_html(one)


def test_the_page_is_recognised_as_ours(one_page: str) -> None:
    start = one_page[: 1 << 16]
    assert 'content="traceflops.report/1"' in start
    assert 'name="generator" content="traceflops ' in start


def test_few_steps_are_rows_and_more_are_columns() -> None:
    """Each as long as it takes, against the longest."""
    text = render_html(factory.ranks(1, 20))
    rows = text.split('<ul class="step-rows"')[1].split("</ul>")[0]
    widths = [float(width) for width in re.findall(r'<div style="width:([\d.]+)%">', rows)]
    lengths = [step.dur_ns for step in factory.ranks(1, 20).devices[0].steps]
    assert widths == pytest.approx([100 * ns / max(lengths) for ns in lengths], abs=0.01)
    assert re.findall(r'href="#(step=\d+)"', rows) == [f"step={number}" for number in range(20)]
    columns = render_html(factory.ranks(1, 21)).split('<figure class="step-chart">')[1]
    titles = re.findall("<title>(step [^:]+): ", columns.split("</figure>")[0])
    assert titles == [f"step {number}" for number in range(21)]


def test_rendering_prints_nothing_and_imports_its_libraries_late() -> None:
    program = (
        "import sys, traceflops.reports.page.html as html\n"
        "early = {'holoviews', 'bokeh', 'jinja2', 'pandas', 'panel'} & set(sys.modules)\n"
        "from tests.reports import factory\n"
        "html.render_html(factory.ranks(2))\n"
        "early |= {'holoviews', 'bokeh', 'panel'} & set(sys.modules)\n"
        "import json; print(json.dumps(sorted(early)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(done.stdout) == []
    assert done.stderr == ""


def test_idle_time_of_unknown_cause_is_not_split_by_causes() -> None:
    """Two kernels of 100 ns with 300 ns between them, that no call launched."""
    rows = [{"name": "k", "start_ns": start, "dur_ns": 100} for start in (0, 400)]
    text = render_html(tf.analyze(trace_of(activities=rows)))
    found = text.split('<section id="idle">')[1].split("</section>")[0]
    assert "Cause unknown: no launch records." in found
    assert "GPU waiting for CPU</th>" not in found
    assert "Longest gaps" in found


def waiting_page() -> tuple[tf.Analysis, str, str]:
    """Return two kernels 980 us apart, a hostile function in between; its page and section."""
    us = 1_000
    run = launched(("first", 0, 10 * us, 10 * us), ("second", 1_000 * us, 1_010 * us, 10 * us))
    frame = "<b>/x.py(7): <i>zoom"
    run["marks"] = [
        {"name": frame, "start_ns": 15 * us, "dur_ns": 985 * us, "kind": "python"},
    ]
    analysis = tf.analyze(trace_of(**run))
    page = render_html(analysis)
    return analysis, page, page.split('<section id="idle">')[1].split("</section>")[0]


def test_the_idle_section_begins_with_culprits_and_their_remedies() -> None:
    analysis, page, found = waiting_page()
    table, lengths, *_ = re.findall(r"<table.*?</table>", found, re.DOTALL)
    assert [
        html.unescape(name) for name in re.findall(r"<summary><code[^>]*>(.*?)</code>", table)
    ] == [
        "<i>zoom (x.py:7)",
        "launch",
    ]
    assert re.findall(r'data-value="(\d+)" title="[^"]*">980', table) == ["980000"] * 2
    assert "Move the named function off the critical thread" in table
    assert "100 µs to 1 ms" in lengths
    longest = found.split("Longest gaps</h3>")[1]
    assert "<td>host code <code>&lt;i&gt;zoom (x.py:7)</code></td>" in longest
    assert "Gap 1, 990 µs, host code" in page
    assert "<i>" not in found
    assert "median lead" not in found  # two launches have no pace
    assert analysis.idle.culprits[0].idle_ns == 980_000


def test_a_wait_of_the_host_is_listed_with_its_site() -> None:
    run = launched(("first", 0, 10_000, 10_000), ("second", 900_000, 910_000, 10_000))
    wait = {"name": "cudaStreamSynchronize", "start_ns": 15_000, "dur_ns": 30_000}
    op = {"name": "aten::item", "start_ns": 14_000, "dur_ns": 32_000}
    analysis = tf.analyze(trace_of(**run | {"calls": [*run["calls"], wait], "ops": [op]}))
    found = render_html(analysis).split("<h3>Synchronizing calls</h3>")[1].split("</table>")[0]
    texts = re.sub(r"<[^>]+>", " ", found).split()
    assert " ".join(texts).endswith("cudaStreamSynchronize aten::item 1 30.0 µs 30.0 µs")
    row = "| `cudaStreamSynchronize` | `aten::item` | 1 | 30.0 µs | 30.0 µs |"
    assert row in render_markdown(analysis)


def modules_of_two_layers() -> Trace:
    marks = [{"kind": "module", "name": "nn.Module: Model_0", "start_ns": 0, "dur_ns": 9_000}]
    for layer in range(2):
        name = f"nn.Module: <Layer>_{layer}"
        marks.append({"kind": "module", "name": name, "start_ns": 1_000 * layer, "dur_ns": 900})
    works = [("k", 1_000 * n + 100, 1_000 * n + 200, 100 + 200 * n) for n in range(2)]
    op = {"name": "aten::mm", "start_ns": 50, "dur_ns": 100, "input_dims": "[[2,3],[3,5]]"}
    return trace_of(**launched(*works), marks=marks, ops=[op])


def test_whose_work_it_is_is_a_tree_and_folded_tables() -> None:
    """Layers of 100 ns and 300 ns in a window of 1,300 ns; the first has an operator."""
    analysis = tf.analyze(modules_of_two_layers())
    page = render_html(analysis)
    found = page.split('<section id="attribution">')[1].split("</section>")[0]
    head, *folded = re.split("<h3>", found)
    first = folded[0]
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in re.findall(r"<tr>.*?</tr>", first)]
    assert "GPU time attributed to: modules 100.0 %." in head
    assert [" ".join(map(html.unescape, row)) for row in rows] == [
        "Kinds of layers Time Of window GPU operations Each Slowest",
        "Model 400 ns 30.8 % 2",
        "2 × <Layer> 400 ns 30.8 % 2 200 ns 1",
    ]
    assert '<code title="Model/&lt;Layer&gt;">' in first
    assert '<rect width="30.77%"' in first
    titles = [each.partition("</h3>")[0] for each in folded]
    assert titles == ["Kinds of layers", "Modules"]
    by_shape = page.split("By shape of the inputs")[1].split("</section>")[0]
    assert '<code title="aten::mm [[2,3],[3,5]]">aten::mm 2×3, 3×5</code>' in by_shape
    text = render_markdown(analysis)
    assert "| &emsp;2 × `<Layer>` | 400 ns | 30.8 % | 2 | 200 ns | 1 |" in text
    assert "| `aten::mm 2×3, 3×5` | 100 ns | 7.7 % | 1 |" in text


def test_operators_without_shapes_are_not_said_to_have_any() -> None:
    op = {"name": "aten::mm", "start_ns": 50, "dur_ns": 100}
    page = render_html(tf.analyze(trace_of(**launched(("k", 60, 200, 10)), ops=[op])))
    found = page.split('<section id="attribution">')[1].split("</section>")[0]
    assert re.findall(r'<th scope="col">(.*?)</th>', found) == ["Operators"]


def test_work_of_nobody_known_is_told_by_its_kernels() -> None:
    page = render_html(tf.analyze(trace_of(**launched(("k", 0, 100, 10)))))
    found = page.split('<section id="attribution">')[1].split("</section>")[0]
    assert re.findall(r'<label for="(.*?)"', found) == ["lens-kernel"]
    assert "<table" not in found
    assert "Synchronizing calls" not in page


def test_a_page_without_culprits_has_no_table_of_them() -> None:
    rows = [{"name": "k", "start_ns": start, "dur_ns": 100} for start in (0, 400)]
    found = render_html(tf.analyze(trace_of(activities=rows)))
    assert "GPU waits on</th>" not in found
    assert "Gaps by length" in found


def test_a_line_of_items_can_break_between_all_of_them() -> None:
    """The last item tells of time that is left out: 200 of 1,100 us after the GPU's work."""
    traced = trace_of(
        activities=[
            {"name": "k", "start_ns": at, "dur_ns": 90_000} for at in (0, 200_000, 800_000)
        ],
        calls=[{"name": "cudaFree", "start_ns": 890_000, "dur_ns": 210_000}],
    )
    items = render_html(tf.analyze(traced)).split('<ul class="provenance">')[1].split("</ul>")[0]
    assert "are left out" in items
    assert items.count("<li>") == len(re.findall(r"\s<li>", items)) >= 4

"""The page for those who do not see it, or see its colours otherwise: what axe-core says."""

import html
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.text import Text

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import analysis_of_sample, by_night, every, some
from tests.reports import factory
from tests.reports.test_counted import by_counters
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.case import case_lines
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.measured import render_measured
from traceflops.reports.terminal.summary import render_terminal

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    "rules": {"color-contrast": {"enabled": every(2) == 1}},
}
"""What axe checks; contrast takes it most of the time, and by day only our own test looks at it."""


CONTRASTS = """() => {
    const parsed = (text) => {
        const [r, g, b, alpha = 1] = text.match(/[\\d.]+(?:e-?\\d+)?/g).map(Number);
        return text.startsWith('color') ? [r, g, b, alpha] : [r / 255, g / 255, b / 255, alpha];
    };
    const over = (top, ground) =>
        [0, 1, 2].map((at) => top[at] * top[3] + ground[at] * (1 - top[3])).concat(1);
    const behind = (element) => {
        const box = element.closest('g[data-component]')?.querySelector('rect');
        if (box) return parsed(getComputedStyle(box).fill);
        const own = parsed(getComputedStyle(element).backgroundColor);
        if (own[3] === 1) return own;
        const below = element.parentElement ? behind(element.parentElement) : [1, 1, 1, 1];
        return over(own, below);
    };
    const light = (colour) => {
        const [r, g, b] = colour.map((one) =>
            one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [];
    for (const element of document.querySelectorAll('body *')) {
        const own = [...element.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
        const { width } = element.getBoundingClientRect();
        if (!own || width < 2 || ['SCRIPT', 'STYLE', 'OPTION', 'title'].includes(element.tagName))
            continue;
        const style = getComputedStyle(element), ground = behind(element);
        const ink = over(parsed(element.tagName === 'text' ? style.fill : style.color), ground);
        const [low, high] = [light(ink), light(ground)].sort((a, b) => a - b);
        found.push([(high + 0.05) / (low + 0.05), element.outerHTML.slice(0, 120)]);
    }
    return found;
}"""


PAGES: dict[str, Callable[[], tf.Analysis]] = {
    "one rank": factory.analysis,
    "four ranks": lambda: analysis_of_sample("gpt_ddp_4rank"),
    "AMD": lambda: analysis_of_sample("rocprofv3_csv"),
    "without MFU": lambda: tf.analyze(trace_of(**launched(("my_kernel", 0, 10, 50)))),
    "without devices": factory.without_devices,
    "hostile names": factory.hostile,
}


@cache
def markup(name: str) -> str:
    return render_html(PAGES[name]())


UNIT = re.compile(r"[\d.,]+ ?(?:%|[nµm]?s\b|[kMGT]?i?B\b)")
SAMPLE_FILES = [
    *("gpt_1rank.json.gz", "gpt_ddp_4rank", "torch_cpu_train.json.gz", "rocprofv3_csv"),
    *(
        "rocprof_v1",
        "rocpd",
        "nsight_h100",
        "nsight_h100/run.sqlite",
        "nsight_h100/kernels.ncu.csv",
    ),
]


def sentences(text: str) -> Iterator[str]:
    """Give the sentences of a text without its figures; what stands between dots is one, too."""
    plain = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())
    yield from re.split(r"(?<=\.) | · ", UNIT.sub("0", plain))


def captions(page: str) -> Iterator[str]:
    """Give what stands beside tables and figures, without names from the trace."""
    yield from introductions(page)
    page = re.sub(r"<(script|style|header|footer|code)\b.*?</\1>", "", page, flags=re.S)
    page = re.sub(r'<section id="(notes|method)">.*?</section>', "", page, flags=re.S)
    for _, attributes, text in re.findall(r"<(p|figcaption)\b([^>]*)>(.*?)</\1>", page, re.S):
        if 'class="said"' not in attributes:  # a finding
            yield from sentences(text)


def introductions(page: str) -> Iterator[str]:
    """Give what stands open below the headings of sections before the drawer, whole."""
    page = re.sub(r"<footer.*?</footer>|<header.*?</header>", "", page, flags=re.S)
    for section in page.split('id="method-and-notes"')[0].split("<section ")[1:]:
        shown = re.sub(r"<(details|code)\b.*?</\1>|</details>", "", section, flags=re.S)
        for attributes, text in re.findall(r"<p\b([^>]*)>(.*?)</p>", shown, re.S):
            if "said" not in attributes and not section.startswith(
                ('id="findings"', 'id="untimed')
            ):
                yield " ".join(UNIT.sub("0", re.sub(r"<[^>]+>", " ", html.unescape(text))).split())


def is_dim(line: Text) -> bool:
    """Return whether all of a line is dim."""
    spans = [(span.start, span.end, str(span.style)) for span in line.spans]
    return str(line.style) == "dim" or spans == [(0, len(line), "dim")]


def remarks(lines: list[Text]) -> Iterator[str]:
    """Give the dim lines below tables and bars; those on files and devices are above the first.

    Why there is no MFU is no caption: it follows the causes of idle time where these come first.
    """
    first = next(at for at, line in enumerate(lines) if not line.plain)
    text = "\n".join(line.plain if is_dim(line) else "" for line in lines[first:])
    for block in text.split("\n\n"):
        found = sentences(" ".join(block.split()))
        yield from (each for each in found if not each.startswith("No MFU: "))


@pytest.mark.parametrize("sample", some([None, *SAMPLE_FILES], 2))
def test_captions_have_twelve_words_at_most(sample: str | None) -> None:
    analysis = analysis_of_sample(sample) if sample else by_counters()
    shown = [*captions(render_html(analysis))]
    for render in (render_terminal, render_measured):
        said = {line.plain for line in case_lines(analysis, Style(width=400))} - {""}
        shown += remarks([x for x in render(analysis, Style(width=400)) if x.plain not in said])
    words = {each: len(re.findall(r"[^\W\d][\w'/-]*", each)) for each in shown}
    assert {each: number for each, number in words.items() if number > 12} == {}
    assert sum(number > 4 for number in words.values()) >= 4


VIEWS = [("light", 1280), ("dark", 1280), ("light", 360)]
BY_DAY = {("four ranks", "light", 1280), ("hostile names", "light", 360)}
"""The page with most sections, and that with most in a row; other tests try dark ones."""


@pytest.mark.parametrize(
    ("name", "theme", "width"),
    [
        pytest.param(name, *view, marks=() if (name, *view) in BY_DAY else by_night())
        for name in PAGES
        for view in VIEWS
    ],
)
def test_axe_finds_nothing(
    browser: "Browser", tmp_path: Path, name: str, width: int, theme: Any
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    path = tmp_path / "page.html"
    path.write_text(markup(name), encoding="utf-8")
    context = browser.new_context(
        offline=True,
        bypass_csp=True,  # axe is put into the page, which its policy forbids
        color_scheme=theme,
        reduced_motion="reduce",
        viewport={"width": width, "height": 900},
    )
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_timeout(500)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    found = Axe().run(page, options=RULES).response["violations"]
    too_wide = page.evaluate("document.documentElement.scrollWidth") - width
    context.close()
    assert [(each["id"], each["nodes"][0]["html"][:300]) for each in found] == []
    assert too_wide <= 0


@pytest.mark.parametrize(
    ("name", "theme"),
    some(product(("four ranks", "without MFU", "one rank"), ("light", "dark")), 3),
)
def test_text_stands_out_from_what_is_behind_it(
    browser: "Browser", tmp_path: Path, name: str, theme: Any
) -> None:
    """Also the text of drawings, of which axe says nothing; by the colours that are computed."""
    path = tmp_path / "page.html"
    path.write_text(markup(name), encoding="utf-8")
    context = browser.new_context(offline=True, color_scheme=theme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    found = page.evaluate(CONTRASTS)
    context.close()
    assert len(found) > 100
    assert [(round(ratio, 2), text) for ratio, text in found if ratio < 4.5] == []


def test_a_long_name_in_a_finding_stays_on_a_telephone(browser: "Browser", tmp_path: Path) -> None:
    run = launched(("first", 0, 10_000, 10_000), ("second", 1_000_000, 1_010_000, 10_000))
    loader = "enumerate(DataLoader)#_" + "Long" * 20 + "Iter.__next__"
    marks = [{"name": loader, "start_ns": 15_000, "dur_ns": 985_000}]
    path = tmp_path / "page.html"
    path.write_text(render_html(tf.analyze(trace_of(**run, marks=marks))), encoding="utf-8")
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto(path.as_uri())
    right = page.locator(".causes h3, .findings summary").evaluate_all(
        "found => found.map((one) => one.getBoundingClientRect().right)"
    )
    page.close()
    assert len(right) >= 2
    assert max(right) <= 360

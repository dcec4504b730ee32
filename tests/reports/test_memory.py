"""The section on memory: what is drawn, what stands in its table, and what is not known."""

from __future__ import annotations

import json
import re

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.conftest import analysis_of_sample, shared_file
from tests.memory.test_usage import counter, totals
from traceflops.reports.json.report import report_object
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.html import render_html
from traceflops.reports.page.memory import MOST_DRAWN, MOST_ROWS, memory_page
from traceflops.table.trace import Trace

MIB = 1 << 20


def trace(*rows: dict[str, object], **more: object) -> Trace:
    work = launched(("k", 100, 100, 100), ("k", 200, 200, 100), ("k", 300, 300, 50))
    marks = step_marks(("ProfilerStep#4", 90, 100), ("ProfilerStep#5", 190, 100))
    tables = work | {"marks": marks, "counters": list(rows)} | more
    return trace_of(**tables)  # type: ignore[arg-type]


def test_without_memory_there_is_no_section() -> None:
    text = render_html(tf.analyze(trace()))
    assert 'id="memory"' not in text
    assert 'href="#memory"' not in text


def test_the_numbers_of_the_table_are_those_of_the_trace() -> None:
    rows = totals(
        (80, 100 * MIB, 400 * MIB), (110, 300 * MIB, 400 * MIB), (250, 120 * MIB, 500 * MIB)
    )
    analysis = tf.analyze(trace(*rows, devices=[{"memory_bytes": 1_000 * MIB}]))
    text = render_html(analysis)
    section = text[text.index('<section id="memory">') :]
    for bytes_ in (100, 300, 120, 500, 1_000):
        assert f"{bytes_ * MIB:,} bytes" in section
    assert "10 ns, step 4" in section, "the peak, from the first activity"
    assert "50.0 %" in section
    assert 'aria-label="GPU 0: peak 300 MiB allocated, peak 500 MiB reserved"' in section


def test_the_markdown_has_the_peaks() -> None:
    rows = totals((80, 100 * MIB, 400 * MIB), (110, 300 * MIB, 500 * MIB))
    text = render_markdown(tf.analyze(trace(*rows, devices=[{"memory_bytes": 1_000 * MIB}])))
    (line,) = [
        line for line in text.splitlines() if line.startswith("| GPU 0") and "300 MiB" in line
    ]
    assert "| 500 MiB |" in line
    assert "50.0 %" in line


def test_the_page_says_who_holds_the_memory_at_the_peak() -> None:
    analysis = analysis_of_sample("gpt_1rank.json.gz")
    text = render_html(analysis)
    table = text.split('<table id="held-table">')[1].split("</table>")[0]
    held = [int(number.replace(",", "")) for number in re.findall(r'title="([\d,]+) bytes"', table)]
    assert sum(held) == 805_306_368 == 768 * 2**20
    first = re.sub(r"<[^>]+>", " ", table.split("<tbody>")[1].split("</tr>")[0]).split()
    assert first == ["aten::linear", "GPT/Block", "216", "MiB", "28.1", "%", "12"]
    (of_json,) = (one["at_peak"] for one in report_object(analysis)["memory"] if one["at_peak"])
    assert sum(one["bytes"] for one in of_json) == 768 * 2**20
    most = {"op": "aten::linear", "scope": "GPT/Block", "bytes": 216 * 2**20, "blocks": 12}
    assert of_json[0] == most | {"recorded": True}
    assert "| `aten::linear` | `GPT/Block` | 216 MiB | 12 |" in render_markdown(analysis)


def test_a_curve_is_made_of_steps() -> None:
    rows = totals((100, MIB, 4 * MIB), (200, 4 * MIB, 4 * MIB), (300, 2 * MIB, 4 * MIB))
    page = memory_page(tf.analyze(trace(*rows)))
    assert page is not None
    (plot,) = page.plots
    # From the left edge: 1/4 of the height, all of it at the middle, half of it at the right.
    assert plot["allocated"] == "M74 138H460V12H846V96H846"
    # Only what is filled goes down to 0: nothing was released at its ends.
    assert plot["area"] == "M74 180V138H460V12H846V96H846V180"
    assert plot["reserved"].count("V") == 0
    assert [tick.text for tick in plot["steps"]] == ["step 5"]


def test_what_is_small_or_one_value_is_a_row_and_no_plot() -> None:
    page = memory_page(tf.analyze(trace(counter("host_memory.allocated_bytes", 100, 16, None))))
    assert page is not None
    assert (page.plots, len(page.rows), page.low) == ([], 1, 1)
    assert not page.rows[0]["is_total"]


def test_many_devices_are_cut_and_said() -> None:
    devices = [{"device": n, "local_id": n} for n in range(40)]
    rows = [
        counter("device_memory.allocated_bytes", time, (1 + n) * time * MIB, n)
        for n in range(40)
        for time in (100, 200)
    ]
    work = [{"name": "k", "start_ns": 100, "device": n} for n in range(40)]
    made = trace(*rows, devices=devices, activities=work, calls=[])
    page = memory_page(tf.analyze(made))
    assert page is not None
    assert (len(page.plots), len(page.rows), page.total) == (MOST_DRAWN, MOST_ROWS, 40)
    assert page.rows[0]["label"].endswith("GPU 39")
    text = " ".join(render_html(tf.analyze(made)).split())
    assert "Showing 8 of 40, highest peak first." in text
    assert "Showing 32 of 40, highest peak first." in text


def test_the_json_has_the_same() -> None:
    rows = totals((80, 100, 400), (110, 300, 400), (250, 120, 500))
    found = json.loads(tf.analyze(trace(*rows)).to_json())["memory"]
    assert [one["allocated"]["peak_bytes"] for one in found] == [300]
    assert found[0]["reserved"]["peak_bytes"] == 500
    assert found[0]["allocated"]["growth_bytes"] == 120 - 300
    assert report_object(tf.analyze(trace()))["memory"] == []


@pytest.mark.parametrize("name", ["h100_qwen15_infer", "v100_kineto_resnet50_nw4"])
def test_public_traces_have_a_section(name: str) -> None:
    analysis = tf.analyze(tf.read(shared_file(f"traces/pytorch/{name}.json.gz")))
    text = render_html(analysis)
    section = text[text.index('<section id="memory">') :].split("</section>")[0]
    assert section.count("<figure") >= 1
    assert re.search(r"[12]\.\d\d GiB", section)
    assert len(section) < 60_000

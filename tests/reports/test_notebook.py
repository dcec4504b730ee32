"""What a trace and an analysis show in a notebook, and their charts as HoloViews elements."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

import traceflops as tf
from docs import notebook
from tests.build import trace_of
from tests.conftest import SAMPLES, analysis_of_sample
from tests.reports import factory
from tests.reports.test_browser import opened
from traceflops.analysis.result import Analysis
from traceflops.table.trace import SourceFile

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PARTS = ("compute", "memory", "other", "graph", "communication", "idle")


@pytest.fixture(scope="module")
def one() -> Analysis:
    return analysis_of_sample("gpt_1rank.json.gz")


@pytest.fixture(scope="module")
def four() -> Analysis:
    return analysis_of_sample("gpt_ddp_4rank")


def rendered(element: Any) -> Any:
    """Return the Bokeh figure of an element."""
    import holoviews as hv

    return hv.renderer("bokeh").get_plot(element).state


def column(element: Any, name: str) -> list[Any]:
    found: list[Any] = element.dimension_values(name, flat=True).tolist()
    return found


def sums_by(labels: list[Any], values: list[Any]) -> dict[str, float]:
    """Return the sum of the values of each label, in the order of the labels."""
    return {
        label: sum(value for at, value in zip(labels, values, strict=True) if at == label)
        for label in dict.fromkeys(labels)
    }


def test_the_bars_of_steps_are_as_long_as_the_steps(four: Analysis) -> None:
    element = four.plot.steps()
    tops = sums_by(column(element, "label"), column(element, "value"))
    lengths = [
        [window.dur_ns for window in device.windows if window.role == "step"]
        for device in four.devices
    ]
    assert list(tops.values()) == pytest.approx(np.mean(lengths, axis=0) / 1e6, rel=1e-5)
    assert rendered(element).renderers


def test_the_bars_of_devices_are_their_components(four: Analysis) -> None:
    element = four.plot.components()
    sums = sums_by(column(element, "label"), column(element, "value"))
    for device, total in zip(four.devices, sums.values(), strict=True):
        used = sum(window.dur_ns for window in device.windows if window.used)
        assert total * 1e6 == pytest.approx(used)
    assert rendered(element).renderers


def test_the_map_of_ranks_has_their_own_times(four: Analysis) -> None:
    element = four.plot.ranks()
    cycles = four.ranks.cycles
    own = cycles.length_ns[:, None] - cycles.exposed_ns  # steps by ranks
    expected = {
        (str(step), f"rank {rank}"): float(own[at, rank])
        for at, step in enumerate(cycles.steps)
        for rank in range(4)
    }
    rows = zip(*(column(element, name) for name in ("step", "rank", "own_ns")), strict=True)
    assert {(step, rank): ns for step, rank, ns in rows} == expected
    off = dict(zip(column(element, "own_ns"), column(element, "off median"), strict=True))
    for step in own:
        for ns in step.tolist():
            assert off[ns] == pytest.approx(ns / float(np.median(step)) - 1)
    assert rendered(element).renderers


def test_the_memory_is_that_of_the_recorded_events(one: Analysis) -> None:
    element = one.plot.memory()
    counters = one.prepared.trace.counters.to_pylist()
    rows = [row for row in counters if row["name"] == "device_memory.allocated_bytes"]
    curve = next(each for each in element if each.label.endswith("allocated"))
    assert max(column(curve, "bytes")) == max(row["value"] for row in rows)
    assert set(column(curve, "bytes")) <= {row["value"] for row in rows}
    assert column(curve, "GiB")[0] == column(curve, "bytes")[0] / 1024**3
    assert rendered(element).renderers


def test_the_gaps_have_all_idle_time_between_work() -> None:
    starts = np.cumsum([0, 1_500, 6_000, 7_000, 2_001_000])  # kernels of 1,000 ns
    kernels = [
        {"name": "k", "start_ns": start, "dur_ns": 1_000, "kind": "kernel"} for start in starts
    ]
    element = tf.analyze(trace_of(activities=kernels)).plot.gaps()
    names = ("from_ns", "to_ns", "gaps", "idle_ns", "ms")
    boxes = [row for row in zip(*(column(element, name) for name in names), strict=True) if row[2]]
    assert boxes == [
        (100, 1_000, 1, 500, 0.0005),
        (1_000, 10_000, 2, 11_000, 0.011),
        (1_000_000, 10_000_000, 1, 2_000_000, 2.0),
    ]
    assert rendered(element).renderers


def test_the_roofline_has_the_kernels_with_known_work(one: Analysis) -> None:
    *roofs, kernels = one.plot.roofline()
    assert [curve.label for curve in roofs]
    rate = dict(zip(column(kernels, "name"), column(kernels, "rate"), strict=True))
    of = {row.name: row.measured for row in one.measured.kernels}
    for name, found in rate.items():
        work = of[name]
        assert work.flops is not None
        assert work.time_ns is not None
        assert found == pytest.approx(work.flops / work.time_ns / 1e3)
    assert max(rate.values()) <= max(max(column(curve, "rate")) for curve in roofs)
    assert rendered(one.plot.roofline()).renderers


def test_what_is_not_recorded_is_no_empty_chart(one: Analysis, four: Analysis) -> None:
    with pytest.raises(tf.UsageError, match="no memory events"):
        four.plot.memory()
    with pytest.raises(tf.UsageError, match="fewer than two ranks"):
        one.plot.ranks()
    with pytest.raises(tf.UsageError, match="no device"):
        factory.without_devices().plot.steps()


def test_the_card_is_the_case_and_small(four: Analysis) -> None:
    text = four._repr_html_()
    assert len(text) < 6_000
    assert "Rank 2 is late: 1.18 to 1.21\u00a0ms of each 10.1\u00a0ms step can be saved." in text
    assert "MFU 35.0 %" in text
    parts = [int(ns) for ns in re.findall(r'data-ns="(\d+)"', text)]
    step_ns = sum(device.chosen.components.window_ns for device in four.devices)
    assert sum(parts) == round(step_ns / four.windows_used)
    assert not re.search(r"<script|<style|<link|<img|https?:|url\(", text)


def test_a_trace_says_what_it_holds() -> None:
    trace = tf.read(SAMPLES / "gpt_1rank.json.gz")
    text = trace._repr_html_()
    assert len(text) < 3_000
    assert "gpt_1rank.json.gz" in text
    assert f"activities <b>{trace.activities.num_rows:,}</b>" in text


def test_a_trace_escapes_what_is_in_it() -> None:
    hostile = "<img src=x onerror=alert(1)>\u202e"
    made = trace_of(activities=[])
    source = replace(made.source, files=(SourceFile(hostile, 1, 1),), tool=hostile)
    text = replace(made, source=source)._repr_html_()
    assert "<img" not in text
    assert text.isprintable()
    assert text.count("&lt;img src=x onerror=alert(1)&gt;\\u202e") == 2


def test_the_notebook_of_the_documents_shows_what_is_kept_in_it() -> None:
    kept = json.loads(notebook.PAGE.read_text(encoding="utf-8"))
    assert notebook.executed(kept) == kept, "run python -m docs.notebook"


def test_the_notebook_of_the_documents_runs_in_jupyter() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    page = nbformat.read(notebook.PAGE, as_version=4)
    nbclient.NotebookClient(page, resources={"metadata": {"path": notebook.PAGE.parent}}).execute()


@pytest.mark.parametrize("chart", ["steps", "components", "roofline"])
def test_charts_of_two_recordings_zoom_together(chart: str, one: Analysis) -> None:
    from bokeh.models import Plot

    element = getattr(one.plot, chart)() + getattr(one.plot, chart)()
    first, second = rendered(element).select({"type": Plot})
    assert first.x_range is second.x_range
    assert any("ZoomTool" in type(tool).__name__ for tool in first.toolbar.tools)


@pytest.mark.parametrize("name", ["without_steps", "without_devices", "hostile"])
def test_there_is_always_something_to_show(name: str) -> None:
    assert getattr(factory, name)()._repr_html_().strip().startswith("<div")


def test_hostile_names_stay_text_and_nothing_is_fetched(browser: "Browser", tmp_path: Path) -> None:
    text = factory.hostile()._repr_html_()
    page = f"<!doctype html><body style='background:#111;color:#ddd'>{text}</body>"
    found = opened(browser, tmp_path / "cell.html", page)
    assert found.requests == [found.page.url]
    assert found.complaints == []
    assert factory.HOSTILE[0] in found.page.locator("body").inner_text()
    assert found.page.locator("script, img, iframe").count() == 0
    # The ink is that of the notebook.
    ink = found.page.evaluate("getComputedStyle(document.querySelector('b')).color")
    assert ink == "rgb(221, 221, 221)"
    found.page.context.close()


def test_nobodys_settings_are_read(tmp_path: Path) -> None:
    """Bokeh has a file of them in the home folder; HoloViews runs one that a variable names."""
    settings = tmp_path / ".bokeh/bokeh.yaml"
    settings.parent.mkdir()
    settings.write_text("minified: false\n")
    code = tmp_path / "rc.py"
    code.write_text("print('run')")
    script = f"""
import os, sys
home, opened = os.environ["HOME"], []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
import traceflops as tf
analysis = tf.analyze({str(SAMPLES / "gpt_1rank.json.gz")!r})
analysis.plot.steps()
analysis.save({str(tmp_path / "o.html")!r})
from bokeh.settings import settings
assert settings.minified() and os.environ["HOME"] == home
print([name for name in opened if name.startswith(home) and not name.endswith(".traceflops-part")])
"""
    env = {**os.environ, "HOME": str(tmp_path), "HOLOVIEWSRC": str(code)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "[]\n")

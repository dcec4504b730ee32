"""Two recordings of counters: kernels before and after, in the place of steps."""

from __future__ import annotations

import traceflops as tf
from tests.build import trace_of
from tests.mfu.test_kernel_speeds import NAMES, launch
from traceflops.comparison.result import compare
from traceflops.facts import fact
from traceflops.reports.json.comparison import comparison_object
from traceflops.reports.markdown import render_comparison as as_markdown
from traceflops.reports.page.comparison import render_comparison_page
from traceflops.reports.terminal.comparison import render_comparison, render_runs
from traceflops.reports.terminal.lines import Style


def test_sides_without_a_timeline_have_counted_kernels_in_its_place() -> None:
    def counted(*kernels: tuple[str, float]) -> tf.Analysis:
        rows = [
            launch(at, NAMES | {"gpu__time_duration.sum": ns}, name=name)
            for at, (name, ns) in enumerate(kernels)
        ]
        return tf.analyze(trace_of(kernel_counters=[one for each in rows for one in each]))

    before = counted(("scale_rows", 3000.0), ("sum_rows", 900.0), ("sum_rows", 1100.0))
    after = counted(("sum_rows", 400.0), ("scale_rows", 4500.0), ("new_kernel", 70.0))
    found = compare(before, after, ("a", "b"))
    times = "scale_rows: 3.00 µs → 4.50 µs per launch (+50.0 %)"
    assert found.sentence == f"{times}, DRAM 19.7 % of peak, by counters alone."
    assert found.obstacle == fact("comparison.no-timelines")
    assert comparison_object(found)["counted_kernels"][0] == {
        "before_name": "scale_rows",
        "after_name": "scale_rows",
        "before_ns": 3000.0,
        "after_ns": 4500.0,
    }
    same = compare(before, before, ("a", "b")).sentence
    assert same == "No kernel takes another time per launch, by counters alone."
    lines = [line.plain.split() for line in render_comparison(found, Style(width=80))]
    (at,) = [at for at, row in enumerate(lines) if row[:3] == ["Kernels", "by", "counters"]]
    assert lines[at][3:] == ["Before", "After", "Change", "Nearest", "roof", "Occupancy"]
    assert [row[:6] for row in lines[at + 1 : at + 4]] == [
        ["scale_rows", "3.00", "µs", "4.50", "µs", "+50.0"],
        ["sum_rows", "1.00", "µs", "400", "ns", "−60.0"],
        ["new_kernel", "–", "70", "ns", "–", "–"],
    ]
    renamed = compare(counted(("tile_64x32", 800.0)), counted(("tile_128x64", 400.0)), ("a", "b"))
    told = "tile_64x32 → tile_128x64: 800 ns → 400 ns per launch (−50.0 %)"
    assert renamed.sentence.startswith(told)
    for text in (render_comparison_page([renamed]), as_markdown(renamed)):
        assert "400 ns" in text
    runs = [line.plain for line in render_runs([found, renamed], Style(width=80))]
    assert max(map(len, runs)) <= 80
    assert len([line for line in runs if line.startswith("Kernels by counters")]) == 2
    other = compare(counted(("softmax", 800.0)), counted(("copy_rows", 400.0)))
    assert other.sentence == "Not compared: no kernel with counters is in both."
    assert [one.share for one in other.kernel_changes] == [None, None]
    timed = tf.analyze(trace_of(activities=[{"name": "k", "start_ns": 0, "dur_ns": 9}]))
    for side in (compare(before, timed), compare(timed, after)):
        assert side.obstacle is not None and side.obstacle.code == "comparison.no-gpu-time"


def test_of_kernels_of_which_only_times_are_known_times_are_compared() -> None:
    before, after = (
        tf.analyze(trace_of(kernel_counters=launch(1, {"gpu__time_duration.sum": ns}, name="sums")))
        for ns in (200.0, 100.0)
    )
    found = compare(before, after)
    told = "sums: 200 ns → 100 ns per launch (−50.0 %), by counters alone."
    assert found.sentence == told
    text = "\n".join(line.plain for line in render_comparison(found, Style(width=80)))
    assert "Nearest roof" not in text

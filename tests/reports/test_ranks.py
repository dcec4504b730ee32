"""The section on ranks: its tables, its map, and the collectives that the map leads to."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import traceflops as tf
from tests.build import trace_of
from tests.conftest import analysis_of_sample, page_of_sample
from tests.reports.test_browser import Opened, opened
from tests.reports.test_tables import section
from traceflops.analysis.result import Analysis
from traceflops.ranks.who_waits import Turn
from traceflops.reports.page import ranks
from traceflops.reports.page.html import render_html
from traceflops.reports.page.rank_map import NO_LINKS, MapLinks, RankMap, rank_map
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.tables import Cell, ReportTable, table_of
from traceflops.reports.view.who_waits import (
    ranks_table,
    rates_table,
    waiting_table,
    worst_collectives,
)
from traceflops.table.columns import FloatArray
from traceflops.windows.step_times import OwnTimes

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def cells_of(table: ReportTable, head: str) -> list[Cell]:
    at = [column.head for column in table.columns].index(head)
    return [row[at] for row in table.rows]


def test_the_ranks_of_the_sample_are_as_worked_out_independently() -> None:
    """The mock-up's figures: rank 2 is 0.70 ms off; three ranks wait 2.7 ms, 0.7 ms exposed."""
    made = analysis_of_sample("gpt_ddp_4rank")
    table = ranks_table(made, 4)
    assert cells_of(table, "Rank")[0] == "2"
    assert cells_of(table, "Own vs median")[0] == "+701 µs"
    assert cells_of(table, "Exposed") == ["0 ns", "711 µs", "692 µs", "709 µs"]
    assert "Means of 5 steps." in table.remark
    assert "residual 0 ns, p95 0 ns, bound ±" in table.remark
    whom = waiting_table(made)
    assert [column.head for column in whom.columns] == ["Waits", "for rank 2", "In all"]
    assert cells_of(whom, "for rank 2") == ["2.73 ms", "2.69 ms", "2.72 ms"]
    rates = rates_table(made)
    assert cells_of(rates, "Busbw") == ["310", "301", "302", "297", "296"]
    assert cells_of(rates, "5th to 95th")[0] == "302 to 313"
    text = section(render_html(made), "ranks")
    said = "The other ranks wait for rank 2: 1.24\u00a0ms of each step (12.3\u00a0%)."
    assert f"<b>{said}</b> All its" in text
    assert "Check clocks, power and temperature" in text
    assert "Slowdown S (step time by mean own time): 1.055, most in step 25 (1.058)." in text


def job(*ranks: list[tuple[int, int]]) -> Analysis:
    """Return the analysis of all-reduces, start and end in µs by rank, beside a short kernel."""
    rows = [
        {"process": rank, "device": rank, "name": "k", "start_ns": 1_000 * kernels[0][0]}
        for rank, kernels in enumerate(ranks)
    ] + [
        {
            "process": rank,
            "device": rank,
            "name": "ncclDevKernel_AllReduce_Sum",
            "start_ns": 1_000 * start,
            "dur_ns": 1_000 * (end - start),
        }
        for rank, kernels in enumerate(ranks)
        for start, end in kernels
    ]
    numbers = range(len(ranks))
    return tf.analyze(
        trace_of(
            processes=[{"process": rank, "rank": rank} for rank in numbers],
            devices=[{"device": rank, "process": rank} for rank in numbers],
            activities=rows,
        )
    )


def test_of_many_ranks_the_largest_waits_are_shown_and_the_others_together() -> None:
    # In turn each of 20 ranks is late by 5 ms and its number in µs; the first is in no cycle.
    late = [
        [(10_000 * at + (5_000 + at if at == rank else 0), 10_000 * at + 6_000) for at in range(20)]
        for rank in range(20)
    ]
    whom = waiting_table(job(*late))
    heads = [column.head for column in whom.columns]
    assert heads == ["Waits", *(f"for rank {at}" for at in range(12, 20)), "for others", "In all"]
    assert len(whom.rows) == 13
    assert whom.rows[-1][0] == "others"
    assert cells_of(whom, "for rank 19")[0] == "5.02 ms"
    # Rank 0 waits for all others: 19 times 5 ms and 1 + ... + 19 µs.
    assert cells_of(whom, "In all")[0] == "95.2 ms"


def test_waiting_in_the_first_collective_is_said_and_blames_nobody() -> None:
    # Rank 0 waits 900 µs, of 1,300 µs in collectives; both own 250 µs after the first one.
    after = [(1_100, 1_150), (1_200, 1_250)]
    made = job([(0, 1_000), *after], [(900, 1_000), *after])
    assert made.ranks.slow is None
    table = ranks_table(made, 4)
    assert cells_of(table, "Own time") == ["250 µs", "250 µs"]
    assert table.remark.startswith(
        "Totals from the end of the first collective to that of the last; "
        "outside it, 900 µs of waiting."
    )
    (said,) = (one.sentence for one in made.losses if one.rule == "loss-communication")
    waiting = (
        "Of the time in collectives, 69.2 % is waiting, mostly for rank 1 to arrive. "
        "Most of it is in the first collective; ranks may have begun recording apart."
    )
    assert said.endswith(waiting)
    shown = " ".join(" ".join(line.plain for line in render_terminal(made)).split())
    assert f"{waiting} Clocks" in shown
    assert "mostly waiting for rank 1 to arrive" in made.verdict.sentence


def test_waiting_for_each_other_in_turn_is_for_other_ranks() -> None:
    late = [
        [(1_000 * at + (300 if at % 3 == rank else 0), 1_000 * at + 320) for at in range(18)]
        for rank in range(3)
    ]
    assert "mostly for other ranks to arrive." in next(
        one.sentence for one in job(*late).losses if one.rule == "loss-communication"
    )


def test_a_tie_blames_nobody_and_is_said() -> None:
    together = [(0, 50), (100, 140), (200, 240), (300, 350)]
    apart = [(0, 50), (110, 142), (210, 238), (302, 350)]
    whom = waiting_table(job(together, apart))
    assert whom.remark.endswith("2.00 µs of it in ties: the last two start together.")


def test_a_job_that_lacks_ranks_says_what_its_waits_are() -> None:
    each = [(0, 50), (100, 140), (200, 240)]
    extra = job([*each, (300, 340)], each)
    assert (
        "1 of 7 communication kernels match none of another rank." in ranks_table(extra, 4).remark
    )


def test_without_common_clocks_nobody_is_said_to_cause_waiting() -> None:
    day = 86_400_000_000
    made = job([(0, 50), (100, 140)], [(day, day + 20), (day + 100, day + 140)])
    assert waiting_table(made).rows == []
    table = ranks_table(made, 4)
    assert [column.head for column in table.columns] == ["Rank", "Waits", "Exposed", "Transfer"]
    assert table.rows[0] == ["0", "30.0 µs", "30.0 µs", "60.0 µs"]
    assert "Clocks cannot be aligned" in table.remark


def test_of_many_ranks_in_a_collective_the_first_and_the_last_are_drawn() -> None:
    turns = [Turn(rank, 10 * rank, 10 * (39 - rank), 110) for rank in range(40)]
    found = ranks.lanes("collective=3", "said", turns)
    lanes = found["lanes"]
    assert [lane["label"] for lane in lanes] == [
        f"rank {rank}" for rank in [*range(4), *range(36, 40)]
    ]
    assert (found["total"], found["length"]) == (40, "500 ns")
    # All wait until the last one starts, 390 of 500 ns, and then transfer until the end.
    assert {round(lane["start"] + lane["wait"]) for lane in lanes} == {780}
    assert {lane["transfer"] for lane in lanes} == {220}
    first, last = lanes[0], lanes[-1]
    assert (first["starts"], first["waits"], first["transfers"]) == ("0 ns", "390 ns", "110 ns")
    assert (last["starts"], last["waits"]) == ("+390 ns", "–")


NO_TABLE = table_of((), ())


def map_of(ns: list[list[float]] | FloatArray, links: MapLinks = NO_LINKS) -> RankMap:
    """Return the map of own times by rank and step."""
    times = OwnTimes(tuple(range(np.shape(ns)[1])), np.array(ns))
    return rank_map(times, [f"rank {at}" for at in range(len(ns))], NO_TABLE, links)


def test_the_map_shows_each_step_against_its_median_the_farthest_rank_first() -> None:
    found = map_of([[100, 100], [100, 100], [98, 130]], MapLinks(np.array([[-1, 4]] * 3), {4}))
    assert [row.label for row in found.rows] == ["rank 2", "rank 0", "rank 1"]
    assert [row.figures for row in found.rows] == [["+14 ns"], ["0 ns"], ["0 ns"]]
    early, late = found.rows[0].cells
    assert (early.shade, early.title, early.link) == (
        "low-1",
        "rank 2, step 0: −2.0 % (−2 ns)",
        "",
    )
    assert (late.shade, late.title, late.link) == (
        "high-3",
        "rank 2, step 1: +30.0 % (+30 ns)",
        "collective=4",
    )
    assert [cell.text for cell in found.rows[1].cells] == ["0 %", "0 %"]
    assert found.others is None


def test_of_a_rank_without_own_times_nothing_is_said() -> None:
    found = map_of([[100, 100], [np.nan, np.nan], [104, 104]])
    assert {row.label: row.figures for row in found.rows} == {
        "rank 2": ["+2 ns"],
        "rank 0": ["−2 ns"],
        "rank 1": ["–"],
    }


def test_of_many_ranks_the_farthest_have_rows_and_the_others_are_one_map() -> None:
    ns = np.full((512, 60), 100.0)
    ns[317] = 106.0
    ns[77, 43] = 150.0  # in one step only, so 0.8 on average, the second farthest
    ns[300, 5] = np.nan
    found = map_of(ns)
    assert [row.label for row in found.rows[:2]] == ["rank 317", "rank 77"]
    assert len(found.rows) == 20
    assert {len(row.cells) for row in found.rows} == {30}
    assert (found.each, found.columns) == (2, 30)
    shades = [cell.shade for cell in found.rows[1].cells]
    assert [at for at, shade in enumerate(shades) if shade == "high-3"] == [21]
    assert found.rows[1].cells[21].title.startswith("rank 77, step 43: +50.0 %")
    assert found.others is not None
    assert [found.others[name] for name in ("count", "each", "rows")] == [492, 13, 38]
    # All others are alike, so the map is one colour: a box from end to end in each of its rows.
    assert found.others["paths"] == [("even", "".join(f"M0 {at}h30v1h-30z" for at in range(38)))]


def test_a_rank_late_in_one_step_of_many_has_a_row() -> None:
    ns = np.random.default_rng(1).normal(1e6, 1e3, (64, 400))
    ns[:30] += 4e4 * np.arange(30)[:, None] / 30  # so that others are farther off on average
    ns[50, 333] += 3e5
    assert "rank 50" in [row.label for row in map_of(ns).rows]


def test_noise_has_no_colour_and_the_map_stays_small() -> None:
    noise = np.random.default_rng(1).normal(100, 10, (512, 300))
    found = map_of(noise)
    assert found.shades[3] == ("even", "within 10 %")
    assert found.others is not None
    assert sum(len(path) for _, path in found.others["paths"]) < 60_000


def test_two_ranks_that_differ_always_are_told_apart() -> None:
    found = map_of([[100, 100, 100], [115, 115, 115]])
    assert {cell.shade for cell in found.rows[0].cells} | {
        cell.shade for cell in found.rows[1].cells
    } == {"low-2", "high-2"}


def test_each_cell_leads_to_the_collective_of_its_rank_with_most_waiting() -> None:
    """Worked out from single records, rank by rank and step by step."""
    made = analysis_of_sample("gpt_ddp_4rank")
    report = made.ranks.in_cycles()
    found, met = worst_collectives(made, 3)
    records, waited = report.records, report.waits
    total: dict[int, int] = {}
    mine: dict[tuple[int, int], set[int]] = {}
    for at, row in enumerate(waited.row.tolist()):
        one = int(waited.collective[at])
        total[one] = total.get(one, 0) + int(waited.wait_ns[at])
        cycle = int(report.cycles.of_collective[one])
        mine.setdefault((cycle, int(records.place[row])), set()).add(one)
    assert found.shape == (5, 4)
    for (cycle, rank), some in mine.items():
        if cycle >= 0:
            assert found[cycle, rank] == max(some, key=lambda one: (total[one], -one))
    worst = sorted({int(one) for one in found.ravel()}, key=lambda one: -total[one])
    assert list(met) == worst[:3]
    for one, (_, turns) in met.items():
        assert sum(turn.wait_ns for turn in turns) == total[one]


# In a browser.


@pytest.fixture(scope="module")
def page_text() -> str:
    return page_of_sample("gpt_ddp_4rank")


@pytest.fixture(scope="module")
def sample(
    browser: "Browser", tmp_path_factory: pytest.TempPathFactory, page_text: str
) -> Iterator[Opened]:
    found = opened(browser, tmp_path_factory.mktemp("ranks") / "sample.html", page_text)
    yield found
    assert found.complaints == []
    found.page.context.close()


def said(found: Opened) -> list[str]:
    """Return what is said of the collectives that are seen."""
    shown = found.page.locator(".met:visible > p")
    return [text.split(":")[0].replace("\xa0", " ") for text in shown.all_inner_texts()]


def test_a_cell_opens_the_ranks_of_its_collective(sample: Opened) -> None:
    assert said(sample) == ["Step 25, all-reduce of 92.3 MB"]
    cells = sample.page.locator(".rank-map tbody tr").nth(0).locator(".cells a")
    assert [text.replace("\xa0", " ") for text in cells.all_inner_texts()] == [
        "+6.8 %",
        "+7.3 %",
        "+7.5 %",
        "+7.6 %",
        "+7.9 %",
    ]
    cells.nth(1).click()
    assert said(sample) == ["Step 22, all-reduce of 92.3 MB"]
    rows = sample.page.locator(".met:visible tbody tr")
    assert rows.nth(3).locator("th").inner_text() == "rank 2"
    assert rows.nth(3).locator("td").nth(2).inner_text() == "–"
    # The map stays in sight, and what it leads to begins in it.
    for place in (cells.nth(1), rows.nth(0)):
        box = place.bounding_box()
        assert box is not None
        assert 0 < box["y"] < sample.page.evaluate("innerHeight")
    assert sample.page.evaluate(
        "[...document.querySelectorAll('.met-here')].map(e => e.title.split(':')[0])"
    ) == [f"rank {rank}, step 22" for rank in (2, 0, 1, 3)]


def test_keys_go_from_cell_to_cell_and_open_one(sample: Opened) -> None:
    cells = sample.page.locator(".rank-map .cells a")
    tabs = cells.evaluate_all("cells => cells.filter(cell => cell.tabIndex === 0).length")
    assert tabs == 1
    cells.nth(0).focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowUp"):
        sample.page.keyboard.press(key)
    focused = sample.page.evaluate("document.activeElement.title").replace("\xa0", " ")
    assert focused.startswith("rank 2, step 23: +7.5 % (")
    sample.page.keyboard.press("Enter")  # the browser goes there when it likes
    assert said(sample) == ["Step 23, all-reduce of 92.3 MB"]


def test_without_scripts_links_open_collectives_too(
    browser: "Browser", tmp_path: Path, page_text: str
) -> None:
    found = opened(browser, tmp_path / "still.html", page_text, scripts=False)
    assert said(found) == ["Step 25, all-reduce of 92.3 MB"]
    found.page.locator(".rank-map .cells a").nth(0).click()
    assert said(found) == ["Step 21, all-reduce of 92.3 MB"]
    found.page.context.close()


def test_on_a_phone_the_texts_of_cells_are_whole(
    browser: "Browser", tmp_path: Path, page_text: str
) -> None:
    found = opened(browser, tmp_path / "phone.html", page_text)
    found.page.set_viewport_size({"width": 390, "height": 800})
    cut = "all => all.filter(cell => cell.scrollWidth > cell.clientWidth).length"
    assert found.page.locator(".rank-map .cells a").evaluate_all(cut) == 0
    assert found.page.evaluate("document.documentElement.scrollWidth") == 390
    found.page.context.close()


def test_the_map_of_steps_says_where_they_end() -> None:
    """Step 25 has its last collective and no end; step 20 follows no collective of another."""
    page = page_of_sample("gpt_ddp_4rank")
    shown = page[page.index('<section id="ranks">') :].split("</section>")[0]
    assert "Own time until the last collective of each step" in shown
    assert [f">{step}</span>" in shown for step in range(20, 27)] == [False, *[True] * 5, False]

"""Counters and pairs in the reports: plain, aligned, and nothing claimed that is not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.conftest import SAMPLES, some
from tests.mfu.counting import ADD, FLOPS, GEMM, MI300X, TYPES, counted, rocprof, timed
from tests.mfu.test_pair import without_ops
from tests.reports.factory import HOSTILE
from tests.schemas import VALIDATORS
from traceflops.analysis.recipe import analyze
from traceflops.analysis.result import Analysis
from traceflops.mfu.budget import PeakOptions
from traceflops.parsers.reading import read
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.measured import render_measured
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.counted import counted_table
from traceflops.reports.view.figures import UNKNOWN
from traceflops.reports.view.tables import Name
from traceflops.table.trace import Note

BYTES = {"FETCH_SIZE": 3_000.0, "WRITE_SIZE": 200.0}


def by_counters() -> Analysis:
    return analyze(rocprof(timed(50), counted(50, more=BYTES)))


def counters_only() -> Analysis:
    return analyze(rocprof((), counted(5, more=BYTES), file="counters.csv"))


def with_parts() -> Analysis:
    """Return an analysis in which shapes, a pair and counters all say something."""
    sample = read([SAMPLES / "gpt_1rank.json.gz"])
    return analyze(without_ops(sample), pair=sample)


ANALYSES = [by_counters, counters_only, with_parts]


def printed(analysis: Analysis, width: int = 100) -> str:
    style = Style(width=width, unicode=True, colour=False)
    return "\n".join(line.plain for line in render_measured(analysis, style))


@pytest.mark.parametrize("make", ANALYSES)
def test_the_json_follows_the_schema(make: Any) -> None:
    found = json.loads(make().to_json())
    VALIDATORS["traceflops.report/1"].validate(found)


def test_the_json_says_where_flops_are_from() -> None:
    found = json.loads(by_counters().to_json())["utilisation"]
    assert (found["mfu"], found["mfu_at_least"], found["model_flops"]) == (None, None, None)
    assert found["hfu"] == found["hfu_at_least"] == found["hfu_at_most"] > 0
    assert found["executed_flops"] == found["unsplit_flops"] == 50 * FLOPS
    assert found["sources"] == ["counters"]
    (join,) = found["joins"]
    assert (join["origin"], join["file"], join["launches"], join["known"]) == (
        *("counters", None, 50, 50),
    )
    assert join["parts"] == [{"how": "order", "launches": 50, "time_ns": 50 * 4_000}]
    assert sum(part["launches"] for part in join["parts"]) == join["launches"]
    gemm = next(row for row in found["counted_kernels"] if row["name"] == GEMM)
    assert gemm["flops"] == gemm["flops_by_type"]["bf16"] == 50 * FLOPS
    assert gemm["vector_flops"] is None
    assert (gemm["read_bytes"], gemm["written_bytes"]) == (50 * 3_000 * 1024, 50 * 200 * 1024)
    lines = {line["line"] for line in found["waterfall"]["lines"]}
    assert "executed" in lines


def test_the_terminal_claims_no_mfu_from_counters() -> None:
    text = printed(by_counters())
    first, second, *_ = text.splitlines()
    assert first == "HFU 27.4 % (from counters, bf16 dense 1,307.4 TFLOP/s)"
    assert second.startswith("No MFU: counters do not split executed FLOPs")
    assert "from counters     50 of 50          compute kernel launches, 100.0 %" in text
    assert "executed                     27.4 %" in text
    assert "useful work" not in text
    summary = render_terminal(by_counters(), Style(width=100, unicode=True, colour=False))
    assert summary[1].plain.endswith("  HFU 27.4 %")


def test_a_run_that_the_profiler_serialized_has_no_utilisation_in_its_title() -> None:
    """Its budget contains the time that reading counters takes."""
    trace = rocprof(timed(50), counted(50, more=BYTES))
    note = Note("assumed", "timed-one-by-one", "kernels ran one by one")
    analysis = analyze(replace(trace, notes=(*trace.notes, note)))
    summary = "\n".join(line.plain for line in render_terminal(analysis))
    assert analysis.measured.figure == "HFU 27.4 %"
    assert "HFU" not in summary
    assert "TFLOP/s" in summary


MI210 = {"product": "AMD Instinct MI210", "sm_count": 104, "architecture": "gfx90a"}


@pytest.mark.parametrize(
    ("device", "told"),
    [(MI210, "819 GB/s (50.0 % of the memory's peak)."), (MI300X, "819 GB/s.")],
)
def test_only_without_a_cache_behind_it_the_fabric_tells_the_memorys_share(
    device: dict[str, Any], told: str
) -> None:
    """3,200 KiB in 4,000 ns are 819 bytes per ns, half of the 1,638 of an MI210."""
    moved = {"FETCH_SIZE": 3_000.0, "WRITE_SIZE": 200.0}
    trace = rocprof(timed(1), counted(1, more=moved), device=device)
    note = Note("assumed", "timed-one-by-one", "kernels ran one by one")
    analysis = analyze(replace(trace, notes=(*trace.notes, note)))
    assert told in analysis.verdict.sentence
    codes = {note.code for note in analysis.notes}
    assert ("fabric-bytes" in codes) == (device is MI300X)


@pytest.mark.parametrize("width", [64, 80, 100, 160])
def test_the_table_is_aligned_and_no_wider_than_the_terminal(width: int) -> None:
    lines = printed(by_counters(), width).splitlines()
    assert max(map(len, lines)) <= width
    head = next(at for at, line in enumerate(lines) if line.startswith("Kernels by counters"))
    assert len({len(line) for line in lines[head : head + 3]}) == 1


def test_counters_without_times_have_a_table_of_their_own() -> None:
    text = printed(counters_only())
    assert text.startswith("No MFU: 10 launches with counters ran one by one")
    summary = render_terminal(counters_only(), Style(width=100, unicode=True, colour=False))
    assert any(line.plain.startswith("Kernels by counters") for line in summary)
    page = render_html(counters_only())
    assert 'id="counters"' in page
    assert "<h2>Hardware counters</h2>" in page


def test_bytes_and_times_of_a_table_of_counters_are_a_rate(tmp_path: Path) -> None:
    """2,000 requests of 64 bytes in 1,000 ns, twice: 128 GB/s of the 1,229 of an MI100."""
    counters = "TCC_EA_RDREQ_sum,TCC_EA_RDREQ_32B_sum,TCC_EA_WRREQ_sum,TCC_EA_WRREQ_64B_sum"
    path = tmp_path / "pmc_perf.csv"
    path.write_text(
        "Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,Kernel_Name,"
        f"{counters},Start_Timestamp,End_Timestamp\n"
        + "".join(f"{n},0,64,64,k,1000,0,1000,1000,{n}9000,{n + 1}0000\n" for n in (1, 2))
    )
    analysis = analyze(read(path), peaks=PeakOptions(device="mi100"))
    table = counted_table(analysis.measured, 5)
    (row,) = table.rows
    cells = dict(zip([one.head for one in table.columns][1:], row[1:], strict=True))
    assert cells == {
        "Launches": "2",
        "Read": "64.0 kB",
        "Written": "64.0 kB",
        "Time": "1.00 µs",
        "Rate": "128 GB/s",
        "Of bandwidth": "10.4 %",
    }
    (kernel,) = json.loads(analysis.to_json())["utilisation"]["counted_kernels"]
    assert (kernel["time_ns"], kernel["bytes_per_ns"]) == (2_000, 128.0)
    assert kernel["share_of_bandwidth"] == pytest.approx(128 / 1229, abs=0.0001)
    assert "128 GB/s" in printed(analysis)


def test_figures_are_of_a_launch_and_marked_where_launches_differ() -> None:
    """Three launches that read 1,024, 1,024 and 4,096 bytes, and write 2,048 each."""
    rows = [
        {"name": "k", "dispatch": at, "counter": counter, "value": value}
        for at, read_kib in enumerate((1.0, 1.0, 4.0))
        for counter, value in (("FETCH_SIZE", read_kib), ("WRITE_SIZE", 2.0))
    ]
    cells = cells_of(analyze(rocprof((), rows, file="counters.csv")))["k"]
    assert cells == {"Launches": "3", "Read": "~2.05 kB", "Written": "2.05 kB"}


def test_the_page_has_what_the_terminal_has() -> None:
    page = render_html(by_counters())
    assert "<title>HFU 27.4 %" in page
    for words in ("from counters, bf16 dense", "by counters", 'id="counters"', "No MFU"):
        assert words in page
    for head in ("Launches", "Matrix", "Read", "Written", "FLOP/B"):
        assert f"{head}</th>" in page
    assert "Least GB/s" not in page


def test_a_paired_trace_is_named_where_the_figure_is() -> None:
    analysis = with_parts()
    assert analysis.measured.figure is not None
    assert analysis.measured.figure.startswith("MFU ")
    text = printed(analysis)
    assert "from the paired trace" in text.splitlines()[0]
    assert "gpt_1rank.json.gz" in text
    assert "from the pair" in text


def cells_of(analysis: Analysis) -> dict[str, dict[str, Any]]:
    table = counted_table(analysis.measured, 10)
    heads = [column.head for column in table.columns[1:]]
    found = {}
    for name, *cells in table.rows:
        assert isinstance(name, Name)
        found[name.whole] = dict(zip(heads, cells, strict=True))
    return found


def test_what_was_never_counted_has_no_column_and_unknown_is_a_dash() -> None:
    found = analyze(rocprof(timed(5), counted(5, types=TYPES[:2], more={"FETCH_SIZE": 1.0})))
    cells = cells_of(found)
    for name in (GEMM, ADD):
        assert cells[name].keys().isdisjoint({"Matrix", "Written", "Matrix busy", "FLOP/B"})
        assert cells[name]["Read"] == "1.02 kB"
    rows = [
        row
        for row in counted(5, more=BYTES)
        if row["name"] == GEMM or row["counter"] != "FETCH_SIZE"
    ]
    cells = cells_of(analyze(rocprof(timed(5), rows)))
    assert cells[ADD]["Matrix"] == "0 FLOP"
    assert (cells[ADD]["Read"], cells[GEMM]["Read"]) == (UNKNOWN, "3.07 MB")


@pytest.mark.parametrize("name", some(HOSTILE, 5))
def test_hostile_names_are_harmless(name: str, tmp_path: Path) -> None:
    name = name.encode("utf-8", "replace").decode()
    rows = [{**row, "name": name} for row in counted(2)]
    works = [{**row, "name": name} for row in timed(2)]
    analysis = analyze(rocprof(works, rows, file=name))
    page = render_html(analysis)
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    json.loads(analysis.to_json())
    assert "\x1b" not in printed(analysis)


def test_counted_kernels_beyond_those_of_the_page_are_in_the_json_as_it_says() -> None:
    rows = [{**row, "name": f"{row['name']}_{row['dispatch']}"} for row in counted(40, more=BYTES)]
    found = analyze(rocprof((), rows, file="counters.csv"))
    assert "50 more rows in the JSON report." in render_html(found)
    assert len(json.loads(found.to_json())["untimed"]["counted"]) == 80

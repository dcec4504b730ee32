"""Pages of Nsight Compute: four layouts of details, the raw page, and binary reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import traceflops as tf
from tests.conftest import shared_file
from traceflops.errors import InputError, NotATrace

OLD = "ID|Process ID|Process Name|Host Name|Kernel Name|Kernel Time|Context|Stream"
NEW = (
    "ID|Process ID|Process Name|Host Name|Kernel Name|Context|Stream|Block Size|Grid Size|Device|CC"
)
METRIC = "Section Name|Metric Name|Metric Unit|Metric Value"
RULES = "Rule Name|Rule Type|Rule Description|Estimated Speedup Type|Estimated Speedup"
SPEED = "GPU Speed Of Light Throughput"
MEMORY = "Memory Workload Analysis"


def line(*cells: str) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)


def header(*parts: str) -> str:
    return line(*"|".join(parts).split("|"))


def launched(number: int = 0, name: str = "void gemm<4>(T1::Params)") -> list[str]:
    sizes = ["(384, 1, 1)", "(33, 4, 1)", "0", "9.0"]
    return [str(number), "77", "python3", "some-host", name, "1", "7", *sizes]


def read(folder: Path, *lines: str, name: str = "kernels.csv") -> tf.Trace:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tf.read(path)


def values(trace: tf.Trace) -> dict[str, float]:
    table = trace.kernel_counters
    return dict(zip(table["counter"].to_pylist(), table["value"].to_pylist(), strict=True))


def noted(trace: tf.Trace) -> dict[str, int | None]:
    return {note.code: note.count for note in trace.notes}


SCALES = {"Ghz": ("Hz", 10**9), "us": ("ns", 10**3), "%": ("%", 1), "Gbyte/s": ("byte/s", 10**9)}


@pytest.mark.parametrize("number", ["0001", "0004"])
def test_real_pages_meet_their_figures(number: str) -> None:
    name = f"ncu_rtx5090_kernel{number}_details.csv"
    expected = json.loads(shared_file("traces/expected.json").read_text())["traces"]
    figures = expected[f"nsight/{name}"]
    trace = tf.read(shared_file(f"traces/nsight/{name}"))
    counts = trace.source.event_counts
    assert counts["metrics"] == figures["metric_rows"] == 44
    assert counts["rules"] == figures["rule_rows"] == 4
    assert counts["metrics"] + counts["rules"] == figures["rows"] == 48
    assert counts["launches"] == figures["launch_ids"]
    assert trace.kernel_counters["name"].unique().to_pylist() == figures["kernels"]
    assert noted(trace)["not-available"] == figures["unparsable_values"] == 3
    assert trace.kernel_counters.num_rows == figures["metric_rows"] - 3
    assert "rows-dropped" not in noted(trace)
    ruled = trace.kernel_rules
    assert ruled["rule"].to_pylist()[:2] == ["SOLBottleneck", "SOLFPRoofline"]
    assert ruled["kind"].to_pylist() == ["OPT", "INF", "OPT", "OPT"]
    assert ruled["speedup_kind"].to_pylist() == [None, None, "local", "global"]
    assert ruled["speedup_share"].to_pylist()[:2] == [None, None]
    found = values(trace)
    for key, text in figures["values"].items():
        section, label, unit = key.split("|")
        base, scale = SCALES[unit]
        assert found[f"{section}|{label}|{base}"] == pytest.approx(float(text) * scale, rel=1e-15)
    assert trace.activities.num_rows == 0
    assert trace.devices["architecture"].to_pylist() == ["sm120"]


def test_the_page_of_2020_with_a_byte_order_mark(tmp_path: Path) -> None:
    row = ["0", "77", "app", "host", "k", "2020-Oct-01 10:00:00", "1", "7"]
    trace = read(
        tmp_path,
        "\ufeff" + header(OLD, METRIC),
        line(*row, "Launch Statistics", "Block Size", "", "256"),
        line(*row, "Launch Statistics", "Grid Size", "", "1,024"),
        line(*row, SPEED, "Duration", "usecond", "2.50"),
        line(*row, SPEED, "SM Frequency", "cycle/nsecond", "1.41"),
    )
    found = values(trace)
    assert found[f"{SPEED}|Duration|ns"] == 2_500
    assert found[f"{SPEED}|SM Frequency|Hz"] == 1_410_000_000
    table = trace.kernel_counters
    assert set(table["threads"].to_pylist()) == {256 * 1_024}
    assert set(table["block_threads"].to_pylist()) == {256}


def test_metric_rows_are_shorter_than_the_header_and_rules_are_apart(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        header(NEW, METRIC, RULES),
        line(*launched(), "Occupancy", "Block Limit SM", "block", "24") + ",",
        line(*launched(), "Occupancy", "", "", "", "Limit", "OPT", 'a, "b"', "global", "80.3"),
        line(*launched(1), "Occupancy", "Block Limit SM", "block", "32"),
    )
    table = trace.kernel_counters
    assert table["value"].to_pylist() == [24, 32]
    assert table["dispatch"].to_pylist() == [0, 1]
    assert table["threads"].to_pylist() == [384 * 33 * 4] * 2
    assert table["block_threads"].to_pylist() == [384] * 2
    assert trace.source.event_counts == {"launches": 2, "metrics": 2, "rules": 1}
    assert trace.kernel_rules.to_pylist() == [
        {
            "process": 0,
            "device": 0,
            "name": "void gemm<4>(T1::Params)",
            "dispatch": 0,
            "section": "Occupancy",
            "rule": "Limit",
            "kind": "OPT",
            "text": 'a, "b"',
            "speedup_share": 0.803,
            "speedup_kind": "global",
        }
    ]
    assert noted(trace).keys() == {"no-timeline"}


def test_a_message_of_a_rule_tells_the_busiest_pipe(tmp_path: Path) -> None:
    said = "Shared is the highest-utilized pipeline (60.5%). It's dominated by its Tensor pipeline."
    trace = read(
        tmp_path,
        header(NEW, METRIC, RULES),
        line(*launched(), "Occupancy", "Block Limit SM", "block", "24") + ",",
        line(*launched(), "Compute Workload Analysis", "", "", "", "A", "OPT", said, "", ""),
    )
    tensor = "Compute Workload Analysis|Tensor|%"
    assert values(trace) == {"Occupancy|Block Limit SM|block": 24, tensor: 60.5}


def test_a_column_of_labels_of_items(tmp_path: Path) -> None:
    full = METRIC.replace("Metric Name", "Body Item Label|Metric Name")
    trace = read(
        tmp_path,
        header(NEW, full),
        line(*launched(), "Occupancy", "Table", "Achieved Occupancy", "%", "11.5"),
    )
    assert values(trace) == {"Occupancy|Achieved Occupancy|%": 11.5}


def test_values_of_every_kind(tmp_path: Path) -> None:
    own = "Command line profiler metrics"
    trace = read(
        tmp_path,
        "==PROF== Connected to process 77 (/usr/bin/python3)",
        "step 1, loss 0.5",
        "==WARNING== Note: Running with uncontrolled GPU caches",
        header(NEW, METRIC),
        line(*launched(), own, "flop_count_hp.sum", "", "n/a"),
        line(*launched(), own, "sm__inst_executed.sum", "inst", "1,205,003"),
        line(*launched(), own, "dram__bytes_read.sum", "Mbyte", "2.33"),
        line(*launched(), own, "dram__bytes_write.sum", "Gbyte", "1,205.00"),
        line(*launched(), own, "lts__t_bytes.sum", "byte", "12 (5; 7)"),
        line(*launched(), own, "sm__ctas.sum", "block", "(5; 7)"),
        line(*launched(), own, "launch__func_cache_config", "", "CachePreferNone"),
        line(*launched(), SPEED, "Memory Throughput", "%", "19.66"),
        line(*launched(), MEMORY, "Memory Throughput", "Tbyte/s", "1.5"),
        line(*launched(), MEMORY, "Memory Throughput", "Gbyte/second", "2.5"),
        "==PROF== Disconnected from process 77",
    )
    table = trace.kernel_counters
    found = list(zip(table["counter"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert found == [
        ("sm__inst_executed.sum", 1_205_003),
        ("dram__bytes_read.sum", 2_330_000),
        ("dram__bytes_write.sum", 1_205 * 10**9),
        ("lts__t_bytes.sum", 12),
        (f"{SPEED}|Memory Throughput|%", 19.66),
        (f"{MEMORY}|Memory Throughput|byte/s", 1.5e12),
        (f"{MEMORY}|Memory Throughput|byte/s", 2.5e9),
    ]
    told = noted(trace)
    assert (told["not-available"], told["instances-unread"], told["no-number"]) == (1, 1, 1)
    assert told["values-rounded"] == 4
    assert "rows-dropped" not in told


def test_decimal_commas(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        header(NEW, METRIC),
        line(*launched(), SPEED, "Elapsed Cycles", "cycle", "13.485"),
        line(*launched(), SPEED, "Duration", "us", "6,75"),
    )
    assert values(trace) == {f"{SPEED}|Elapsed Cycles|cycle": 13_485, f"{SPEED}|Duration|ns": 6_750}
    assert "decimal-commas" in noted(trace)


def test_the_second_row_of_a_raw_page_is_units(tmp_path: Path) -> None:
    metrics = "dram__bytes_read.sum|gpu__time_duration.sum|device__attribute_display_name"
    trace = read(
        tmp_path,
        header(NEW, metrics, "smsp__inst_executed.sum"),
        line(*[""] * 11, "Kbyte", "ms", "", "inst"),
        line(*launched(0), "32.77", "1.5", "NVIDIA H100", "1,000"),
        line(*launched(1, "other"), "n/a", "2", "NVIDIA H100", "7"),
    )
    table = trace.kernel_counters
    columns = ("dispatch", "name", "counter", "value")
    found = set(zip(*(table[column].to_pylist() for column in columns), strict=True))
    gemm = "void gemm<4>(T1::Params)"
    assert found == {
        (0, gemm, "dram__bytes_read.sum", 32_770.0),
        (0, gemm, "gpu__time_duration.sum", 1_500_000.0),
        (0, gemm, "smsp__inst_executed.sum", 1_000.0),
        (1, "other", "gpu__time_duration.sum", 2_000_000.0),
        (1, "other", "smsp__inst_executed.sum", 7.0),
    }
    assert trace.devices["product"].to_pylist() == ["NVIDIA H100"]
    assert trace.source.event_counts["kernels"] == 2


def test_host_and_program_names_stay_inside(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        header(NEW, METRIC),
        line(*launched(), "Occupancy", "Block Limit SM", "block", "1"),
    )
    told = json.dumps([table.to_pylist() for table in trace.to_arrow().values()], default=str)
    assert "some-host" not in told
    assert "python3" not in told
    assert trace.source.identities == ("some-host",)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "header only"),
        ([["Occupancy", "", "", ""]], "rules only"),
        ([["Occupancy", "Block Limit SM", "block", "n/a"]], "no metric"),
    ],
)
def test_pages_without_a_value(tmp_path: Path, rows: Sequence[Sequence[str]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, header(NEW, METRIC), *(line(*launched(), *row) for row in rows))


def test_what_ncu_prints_without_a_table(tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match="console output") as caught:
        read(tmp_path, "==PROF== Connected to process 7", "  gemm (1, 1, 1)x(128, 1, 1)")
    assert "ncu --set full -o" in caught.value.hint


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (b"\0\x012025@3@1@40-353v0.", "Nsight Systems 2025.3.1"),
        (b" 1.0", "format 1.0"),
        (b"\xff", ""),
    ],
)
def test_a_report_of_nsys_names_the_command(tmp_path: Path, version: bytes, told: str) -> None:
    path = tmp_path / "run.qdrep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report" + version + bytes(99))
    with pytest.raises(NotATrace) as caught:
        tf.read(path)
    assert told in caught.value.message
    assert f"nsys export --type sqlite --include-json=true {path}" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        b"\x89HDF\r\n\x1a\n" + bytes(99),
        b'{"data":["a","b"]}\n',
        b'{"Type":48,"CudaEvent":{"startNs":"1"}}\n',
    ],
)
def test_other_exports_say_what_to_export(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "run.out"
    path.write_bytes(text)
    with pytest.raises(NotATrace) as caught:
        tf.read(path)
    assert "nsys export --type sqlite" in caught.value.hint


def test_a_report_as_json_says_how_to_write_a_table(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('[\n {"Time (%)": 24.7, "Total Time (ns)": 1, "Name": "k"}\n]')
    with pytest.raises(NotATrace) as caught:
        tf.read(path)
    assert "--format csv" in caught.value.hint

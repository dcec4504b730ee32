"""`traceflops devices`: the table, one row of it, a name, and the devices of a trace."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.cli.test_commands import JOB, assert_refused
from tests.conftest import SAMPLES
from tests.parsers.rocprof.rocpdfile import rocpd
from traceflops.cli import app
from traceflops.devices.peaks import load_devices


def run(*words: str | Path, width: int = 400) -> Result:
    return CliRunner().invoke(app, ["devices", *map(str, words)], env={"COLUMNS": str(width)})


def printed(*words: str | Path, width: int = 400) -> list[str]:
    result = run(*words, width=width)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert "\x1b" not in result.stdout
    return result.stdout.splitlines()


def trace_of(folder: Path, *properties: dict[str, object]) -> Path:
    """Return a trace with one kernel on each device."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": n, "tid": 7, "ts": 1, "dur": 1}
        | {"args": {"device": n, "stream": 7}}
        for n in range(len(properties))
    ]
    entries = [{"id": n} | one for n, one in enumerate(properties)]
    path = folder / "trace.json"
    path.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": entries, "traceEvents": events})
    )
    return path


def properties(name: str, *numbers: int) -> dict[str, object]:
    keys = ("computeMajor", "computeMinor", "numSms", "warpSize", "totalGlobalMem")
    return {"name": name, **dict(zip(keys, numbers, strict=True))}


CPX = properties("AMD Instinct MI300X", 9, 4, 38, 64, 206_141_652_992)


def test_the_whole_table() -> None:
    lines = printed()
    ids = [spec.id for spec in load_devices()]
    assert [line.split()[0] for line in lines[1 : len(ids) + 1]] == ids
    assert lines[0].split() == ["id", "product", "fp16", "bf16", "fp8", "GB", "GB/s", "src"]
    assert max(len(line) for line in lines) <= 100
    assert lines[len(ids) + 2].startswith(f"{len(ids)} devices. Rates are dense TFLOP/s;")


def test_rows_with_a_text() -> None:
    ids = [line.split()[0] for line in printed("h100")[1:5]]
    assert ids == ["h100-nvl", "h100-pcie", "h100-sxm", "h100-96-hbm2e"]
    assert "mi250x-gcd" in "\n".join(printed("GFX90A"))
    assert f"{len(load_devices())} devices." in "\n".join(printed(""))


def test_one_row_in_full() -> None:
    assert printed("h100-sxm") == [
        "id         h100-sxm",
        "product    H100 SXM 80 GB HBM3; nvidia, sm90, compute capability 9.0, 132 SMs, "
        "one device is a GPU",
        "dense      fp64 34, fp64_matrix 67, fp32 67, tf32 494.7, fp16 989.4, bf16 989.4, "
        "fp8 1978.9, int8 1978.9 TFLOP/s",
        "memory     80 GB at 3350 GB/s; links 900 GB/s",
        "host link  PCIe Gen 5 x16, 63 GB/s each way",
        "balance    fp16 295, bf16 295, fp8 591 FLOP per byte",
        "check      132 SMs x 4096 FLOP per clock x 1830 MHz = 989.4 TFLOP/s",
        "source     NVIDIA H100 datasheet, half of its sparse figures "
        "(confidence A, taken over 2026-11-21)",
        "note       1979 (bf16) and 3958 (fp8) TFLOP/s on the datasheet are sparse",
        "pattern    H100 80GB HBM3$|H100[- ]SXM",
    ]
    assert "dense      no public figure" in printed("mi308x")
    assert "memory     96 GB at 4000 GB/s or 144 GB at 4900 GB/s; links 900 GB/s" in printed(
        "gh200"
    )


@pytest.mark.parametrize("width", [60, 80, 100])
def test_lines_are_no_wider_than_asked(width: int) -> None:
    for words in ((), ("h100",), ("h100-sxm",), ("NVIDIA A100-SXM4-80GB",)):
        lines = printed(*words, width=width)
        assert max(len(line) for line in lines) <= width
        assert " ".join(lines).count("h100-nvl") == (words in ((), ("h100",)))
    assert ("H100 NVL" in "\n".join(printed(width=width))) == (width == 100)


@pytest.mark.parametrize(
    ("name", "device_id"),
    [
        ("NVIDIA H20", "h20"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA H100", "h100-96-hbm2e"),
        ("NVIDIA H200", "h200-sxm"),
        ("AMD Instinct MI250", "mi250-gcd"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_name_is_tried_before_rows_with_that_text(name: str, device_id: str) -> None:
    assert printed(name)[:2] == [
        f"name       {name}",
        f"match      {device_id} by name, confidence medium",
    ]


@pytest.mark.parametrize("text", ["rtx4090", "RTX4090", "GeForce RTX4090"])
def test_a_name_in_another_spelling_is_found(text: str) -> None:
    assert printed(text)[0] == "id         rtx-4090"


def test_part_of_a_name_lists_rows() -> None:
    for text, least in (("NVIDIA", 30), ("H200", 2), ("nvidia a100", 4), ("MI250", 2)):
        assert len([line for line in printed(text) if " TFLOP/s" not in line]) > least


def test_names_that_do_not_vouch_for_a_row() -> None:
    shared = run("AMD Instinct MI250X/MI250")
    assert_refused(shared, 2, "is shared by mi250x-gcd and mi250-gcd, and no property identifies")
    assert printed("NVIDIA H800 NVL")[1] == "match      none without confirmation; may be h800"
    shared = run("NVIDIA GeForce RTX 3080")
    assert_refused(shared, 2, "is shared by rtx-3080-12gb and rtx-3080-10gb, and no property")
    assert_refused(run("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), 2, "which is a MIG slice")


WHERE = "--device ID and --peak TFLOPS are options of `traceflops report`, `summary` and `mfu`."


def test_a_name_as_it_stands_in_a_trace() -> None:
    lines = printed("NVIDIA A100-SXM4-80GB")
    assert lines[:3] == [
        "name       NVIDIA A100-SXM4-80GB",
        "match      a100-sxm-80 by name, confidence medium",
        "because    The name matches a100-sxm-80 (A100 SXM 80 GB); the trace has no properties to "
        "compare.",
    ]
    virtual = printed("NVIDIA A10-24Q")
    assert virtual[1] == "match      none without confirmation; may be a10"
    assert virtual[3:] == ["", WHERE]


def test_a_device_without_matrix_units_says_so() -> None:
    assert "no matrix units" in printed("p100-pcie-16gb")[1]
    assert json.loads(run("--json", "titan-v").stdout)["devices"][0]["matrix_units"] is True


@pytest.mark.parametrize("text", ["GeForce RTX 9999", "[bold]\x1b[31m", "x" * 5000])
def test_what_is_no_device_is_refused(text: str) -> None:
    assert_refused(run(text), 2, "No row of the table has the name", "lists the table")


def test_as_json() -> None:
    content = json.loads(run("--json").stdout)
    assert content["schema"] == "traceflops.devices/1"
    assert len(content["devices"]) == len(load_devices())
    (v100,) = json.loads(run("v100-sxm2", "--json").stdout)["devices"]
    assert v100["dense_tflops"] == {"fp64": 7.8, "fp32": 15.7, "fp16": 125.0}
    assert v100["memories"] == [
        {"gb": 32, "bandwidth_gbps": 900},
        {"gb": 16, "bandwidth_gbps": 900},
    ]
    assert (v100["compute_capability"], v100["units"]) == ([7, 0], 80)
    (named,) = json.loads(run("NVIDIA A100-SXM4-80GB", "--json").stdout)["seen"]
    assert (named["match"]["id"], named["confirmed"]) == ("a100-sxm-80", True)


def test_the_devices_of_a_trace() -> None:
    lines = printed("--trace", JOB)
    assert lines[:5] == [
        "devices    rank 0 gpu 0, rank 1 gpu 1, rank 2 gpu 2, rank 3 gpu 3",
        "name       NVIDIA H100 80GB HBM3",
        "properties compute capability 9.0, 132 SMs, 79.2 GiB",
        "match      h100-sxm by name, confidence high",
        "because    The name matches h100-sxm (H100 SXM 80 GB HBM3), and the trace agrees: "
        "compute capability 9.0, 132 SMs, warp size 32, 79.2 GiB.",
    ]
    assert lines[5].startswith("dense      fp64 34,")
    (seen,) = json.loads(run("--trace", JOB, "--json").stdout)["seen"]
    assert seen["devices"] == [f"rank {n} gpu {n}" for n in range(4)]
    assert (seen["how"], seen["match"]["id"]) == ("name", "h100-sxm")
    assert seen["candidates"] == ["h100-sxm", "h800"]


def test_unlike_devices_of_a_trace_are_explained_one_by_one(tmp_path: Path) -> None:
    unnamed = properties("", 9, 4, 304, 64, 206_141_652_992)
    hostile = properties("\x1b[31m[bold]A100\nhint: no", 8, 0, 1, 32, 1)
    text = "\n".join(printed("--trace", trace_of(tmp_path, CPX, CPX, unnamed, hostile)))
    first, second, third, last = text.split("\n\n")
    assert last == WHERE
    assert "gpu 0, gpu 1" in first
    assert "match      none without confirmation; may be mi300x" in first
    assert "a partition with 38 of 304 CUs: --device mi300x confirms it." in first
    assert "dense" not in first
    assert "name       not in the trace" in second
    assert "match      mi300x by fingerprint, confidence medium" in second
    assert "match      none without confirmation" in third
    assert len(third.splitlines()) == 5


def test_a_trace_without_devices() -> None:
    path = SAMPLES / "torch_cpu_train.json.gz"
    assert printed("--trace", path) == ["The trace has no GPU."]
    assert json.loads(run("--trace", path, "--json").stdout)["seen"] == []


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    assert_refused(run("h100", "--trace", JOB), 2, "mutually exclusive")
    assert_refused(run("--trace", tmp_path / "absent.json"), 3, "no such file")


def test_help_has_examples() -> None:
    assert "traceflops devices --trace" in " ".join(run("--help").stdout.split())


def test_units_are_called_what_their_maker_calls_them(tmp_path: Path) -> None:
    """RDNA devices have 32 threads in a wave, as NVIDIA's have in a warp."""
    rdna = properties("AMD Radeon AI PRO R9700", 12, 0, 64, 32, 32 * 2**30)
    other = properties("NVIDIA H100 80GB HBM3", 9, 0, 132, 32, 85_000_000_000)
    lines = "\n".join(printed("--trace", trace_of(tmp_path, rdna, other)))
    assert "64 CUs" in lines
    assert "132 SMs" in lines
    assert "64 SMs" not in lines


def test_the_check_is_with_the_clock_that_the_trace_names(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with rocpd(path, machine=False) as file:
        file.machine(max_engine_clk_fcompute=1200)
        file.dispatch(file.symbol("k"), 10, 20)
    (line,) = [line for line in printed("--trace", path) if line.startswith("check")]
    # 304 x 2048 x 1.2 GHz = 747.1 TFLOP/s
    assert "1200 MHz (from the trace) = 747.1 TFLOP/s (bf16)" in line
    assert "1307.4" in line

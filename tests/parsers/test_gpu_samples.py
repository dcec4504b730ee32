"""Samples of nvidia-smi and amd-smi become counters, whatever their layout; others are refused."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_traces.config import RunConfig
from sample_traces.gpu_samples import SamplingOptions, write_gpu_samples
from sample_traces.simulate import simulate
from tests.conftest import examples
from traceflops import analyze
from traceflops.errors import InputError
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

MIDNIGHT = 1_710_806_400 * 10**9
"""2024-03-19 00:00 UTC."""
QUERY = """\
timestamp, index, name, clocks.sm [MHz], power.draw [W], power.limit [W], temperature.gpu, \
utilization.gpu [%], memory.used [MiB], clocks_event_reasons.active, \
clocks_throttle_reasons.sw_power_cap
2024/03/19 00:00:01.500, 1, NVIDIA H100, 1410 MHz, 512.25 W, 700.00 W, 66, 98 %, 3 MiB, \
0x0000000000000040, Active
2024/03/19 00:00:01.501, 0, NVIDIA H100, 345 MHz, [N/A], 700.00 W, 30, 0 %, 0 MiB, \
0x0000000000000001, Not Active
"""
DMON = """\
#Date       Time        gpu   pwr gtemp mtemp    sm   mem  mclk  pclk pviol tviol
#YYYYMMDD   HH:MM:SS    Idx     W     C     C     %     %   MHz   MHz     %  bool
 20240319   00:00:01      0   239    33     -     6     1  6250  1695     5     0

#Date       Time        gpu   pwr gtemp mtemp    sm   mem  mclk  pclk pviol tviol
#YYYYMMDD   HH:MM:SS    Idx     W     C     C     %     %   MHz   MHz     %  bool
 20240319   00:00:02      0     -    34     -     7     1  6250  1690     0     1
"""
AMD = """\
timestamp,gpu,gfx_activity,socket_power,throttle_status,gfx_0_clk,gfx_0_max_clk,gfx_1_clk,edge,\
hotspot,mem,used_vram
1710806400,0,95,350,UNTHROTTLED,1980,2100,1960,N/A,72,65,2
1710806401,0,N/A,350,THROTTLED,1980,2100,N/A,41,N/A,65,2
"""

Told = dict[str, Any]
Values = dict[tuple[int, str, int], float]
"""By GPU, counter and ns."""


def written(folder: Path, text: str, name: str = "smi.csv") -> Trace:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read(path)


def values(trace: Trace, since_ns: int = MIDNIGHT) -> Values:
    numbers = trace.devices["local_id"].to_pylist()
    return {
        (numbers[row["device"]], row["name"], row["time_ns"] - since_ns): row["value"]
        for row in trace.counters.to_pylist()
    }


def at(gpu: int, time_ns: int, /, **told: Any) -> Values:
    return {(gpu, f"gpu.{name}", time_ns): value for name, value in told.items()}


def test_queried_samples(tmp_path: Path) -> None:
    trace = written(tmp_path, QUERY)
    assert trace.source.origin_unix_ns is None  # local time, in no known zone
    common: Told = {"power_limit_w": 700.0}
    assert values(trace) == at(
        *(1, 1_500_000_000),
        sm_clock_mhz=1410.0,
        power_w=512.25,
        temperature_c=66.0,
        busy_percent=98.0,
        **{"memory_used_bytes": 3.0 * 2**20, "throttle_mask": 0x44, **common},
    ) | at(
        *(0, 1_501_000_000),
        sm_clock_mhz=345.0,
        temperature_c=30.0,
        busy_percent=0.0,
        **{"memory_used_bytes": 0.0, "throttle_mask": 1, **common},
    )


@pytest.mark.parametrize("text", [DMON, DMON.replace("  ", ",").replace(" ", ",")])
def test_dmon(tmp_path: Path, text: str) -> None:
    if "," in text:
        text = "\n".join(",".join(filter(None, line.split(","))) for line in text.splitlines())
    common: Told = {"memory_busy_percent": 1.0, "memory_clock_mhz": 6250.0}
    first: Told = {
        "power_w": 239.0,
        "temperature_c": 33.0,
        "busy_percent": 6.0,
        "sm_clock_mhz": 1695.0,
    }
    second: Told = {"temperature_c": 34.0, "busy_percent": 7.0, "sm_clock_mhz": 1690.0}
    trace = written(tmp_path, text)
    assert values(trace) == at(0, 10**9, throttle_mask=4, **common, **first) | at(
        0, 2 * 10**9, throttle_mask=1 << 17, **common, **second
    )
    assert trace.notes == ()


def test_times_of_the_day_go_on_behind_midnight(tmp_path: Path) -> None:
    rows = "#Time gpu pwr\n#HH:MM:SS Idx W\n 23:59:59 0 1\n 00:00:01 0 2\n"
    day = 86_400 * 10**9
    found = values(written(tmp_path, rows), 0)
    assert found == at(0, day - 10**9, power_w=1.0) | at(0, day + 10**9, power_w=2.0)


def test_parts_of_an_amd_gpu_are_averaged_and_times_are_absolute(tmp_path: Path) -> None:
    trace = written(tmp_path, AMD)
    assert trace.source.origin_unix_ns == 0
    common: Told = {
        "max_sm_clock_mhz": 2100.0,
        "power_w": 350.0,
        "memory_used_bytes": 2.0 * 2**20,
    }
    assert values(trace) == at(
        *(0, 0),
        **common,
        sm_clock_mhz=1970.0,
        busy_percent=95.0,
        temperature_c=72.0,
        throttle_mask=0,
    ) | at(0, 10**9, **common, sm_clock_mhz=1980.0, temperature_c=41.0, throttle_mask=1 << 16)


def test_commas_in_quotes_are_of_one_cell(tmp_path: Path) -> None:
    """amd-smi writes a list in one cell for engines that a GPU has several of."""
    head = "timestamp,gpu,gfx_activity,jpeg_activity,vcn_activity,socket_power\n"
    lists = "\"['N/A', 'N/A']\",\"[0, 0, 0, 0]\""
    trace = written(tmp_path, f"{head}1710806400,3,95,{lists},640\n\n")
    assert values(trace) == at(3, 0, busy_percent=95.0, power_w=640.0)
    assert trace.notes == ()


def test_gpus_without_numbers_are_those_of_the_bus(tmp_path: Path) -> None:
    rows = "timestamp, pci.bus_id, power.draw [W]\n"
    rows += "2024/03/19 00:00:00.000, 00000000:8A:00.0, 2\n"
    rows += "2024/03/19 00:00:00.001, 00000000:1B:00.0, 1\n"
    trace = written(tmp_path, rows)
    assert values(trace) == at(1, 0, power_w=2.0) | at(0, 1_000_000, power_w=1.0)
    assert [note.code for note in trace.notes] == ["gpus-by-bus", "no-utilisation"]


def test_what_cannot_be_read_is_counted(tmp_path: Path) -> None:
    rows = DMON + " 20240332 00:00:03 0 1 1 1 1 1 1 1 1 1\n 20240319 00:00:04 0 1\n"
    rows += " 20240319 00:00:05 0 x 33 - 999 1 6250 1695 5 0\n"
    notes = {note.code: note.count for note in written(tmp_path, rows).notes}
    assert notes == {"rows-lost": 2, "bad-cells": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (QUERY.splitlines()[0] + "\n", "no row with a time"),
        ("index, power.draw [W]\n0, 5\n", "no row with a time"),
        ("timestamp, index, power.draw [W]\n2024/03/19 00:00:01.000, 0, [N/A]\n", "no value"),
        (
            "timestamp, power.draw [W]\n"
            + "".join(f"2024/03/19 00:00:0{i // 2}.00{i % 2}, {i}\n" for i in range(8)),
            "several GPUs without their numbers",
        ),
        (QUERY.partition("\n")[2], "without a header"),
        ("power.draw [W]\n13.61 W\n13.61 W\n", "without the column timestamp"),
        ("utilization.gpu, memory.used\n5, 20\n", "without the column timestamp"),
        ("clocks.current.graphics [MHz]\n1410 MHz\n", "without the column timestamp"),
    ],
)
def test_others_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        written(tmp_path, text)
    assert error.value.hint


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.integers(0, 10**11), st.integers(0, 7), st.none() | st.integers(0, 20_000)),
        unique_by=lambda row: row[:2],
        min_size=1,
    )
)
def test_every_value_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int | None]]
) -> None:
    text = "timestamp,gpu,gfx_0_clk,edge\n" + "".join(
        f"{1_710_806_400 + ns // 10**9}.{ns % 10**9:09},{gpu},{'N/A' if mhz is None else mhz},20\n"
        for ns, gpu, mhz in rows
    )
    found = values(written(tmp_path_factory.mktemp("rows"), text))
    clocks = [at(gpu, ns, sm_clock_mhz=mhz) for ns, gpu, mhz in rows if mhz is not None]
    warm = [at(gpu, ns, temperature_c=20) for ns, gpu, _ in rows]
    assert found == {key: value for one in (*clocks, *warm) for key, value in one.items()}


def test_layouts_of_one_run_say_the_same(tmp_path: Path) -> None:
    run = simulate(RunConfig(ranks=2, layers=1, steps=2, straggler_rank=1, straggler_percent=150))
    second = 10**9

    def sampled(layout: str) -> Values:
        options = SamplingOptions(layout=layout, more_gpus=1, around_ns=3 * second)  # type: ignore
        found = values(read(write_gpu_samples(run, tmp_path / f"{layout}.csv", options)))
        names = ("sm_clock_mhz", "power_w", "busy_percent", "temperature_c")
        return {
            (gpu, name, ns // second): value
            for (gpu, name, ns), value in found.items()
            if name.removeprefix("gpu.") in names
        }

    first = sampled("query")
    assert len(first) == 3 * 4 * 7  # GPUs, counters, samples from 3 s before to 3 s after
    assert all(sampled(one) == first for one in ("query nounits", "dmon", "dmon csv", "amd-smi"))


def test_times_with_their_zone_and_text_in_utf16(tmp_path: Path) -> None:
    """09:26:50 UTC on 8 September 2025 is 1,757,323,610 s after 1970; a redirect wrote UTF-16."""
    text = (
        "timestamp,gpu,index,memory.used\n"
        "2025-09-08T17:26:50+08:00,3, 0, 4\n"
        "2025-09-08T04:26:51.5-0500,1, 0, 5\n"
        "2025-09-08T09:26:52Z,1, 0, 6\n"
    )
    start = 1_757_323_610 * 10**9
    used = "memory_used_bytes"
    expected = {(3, used, 0): 4, (1, used, 3 * 10**9 // 2): 5, (1, used, 2 * 10**9): 6}
    plain = written(tmp_path, text)
    (tmp_path / "wide.csv").write_bytes(text.encode("utf-16"))
    (tmp_path / "wide.csv.gz").write_bytes(gzip.compress(text.encode("utf-16")))
    for trace in (plain, read(tmp_path / "wide.csv"), read(tmp_path / "wide.csv.gz")):
        found = values(trace, start)
        counter = next(iter(found))[1]
        assert counter.endswith(used)
        assert found == {(gpu, counter, at): mib * 2**20 for (gpu, _, at), mib in expected.items()}
        assert trace.source.origin_unix_ns == 0


def test_how_long_a_gpu_was_busy_and_idle_is_said_first(tmp_path: Path) -> None:
    """Of 9 samples 4 are at 100 %; the longest idle piece is from the fourth to the eighth."""
    percents = (100, 100, 0, 4, 0, 1, 0, 100, 100)
    rows = (f"2024/03/19 00:00:0{at}, {percent} %" for at, percent in enumerate(percents))
    trace = written(tmp_path, "timestamp, utilization.gpu [%]\n" + "\n".join(rows) + "\n")
    assert analyze(trace).verdict.sentence.startswith(
        "The GPU is busy for 45.0 % of the 8.00 s sampled, and idle for 4.00 s in one piece."
    )


def test_gpus_that_are_sampled_at_different_times(tmp_path: Path) -> None:
    """Each is sampled for 4 s, the second one an hour after the first."""
    rows = (f"2024/03/19 0{gpu}:00:0{at}, {gpu}, 50 %" for gpu in (0, 1) for at in range(5))
    trace = written(tmp_path, "timestamp, index, utilization.gpu [%]\n" + "\n".join(rows) + "\n")
    sentence = analyze(trace).verdict.sentence
    assert sentence.startswith("The GPUs are busy for 50.0 % of the 4.00 s sampled.")

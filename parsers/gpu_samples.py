"""Reads what nvidia-smi and amd-smi sampled of GPUs: clocks, power, temperature, utilisation.

Tables of CSV with a header (nvidia-smi --query-gpu, amd-smi) and those of nvidia-smi dmon become
counters. Only the time, the GPU and the columns of _COUNTERS and _REASONS are read.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.devices.gpu_samples import DAY_NS, LOCAL_TIME, TIME_OF_DAY, Sampled
from traceflops.devices.side_records import GPU_SAMPLES
from traceflops.errors import InputError
from traceflops.parsers.io.csv_lines import Damage, line_blocks
from traceflops.parsers.io.csv_text import text_notes
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.shared import trace_builder
from traceflops.parsers.shared.formats import Format
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import FloatArray, IntArray
from traceflops.table.trace import Source, SourceFile, Trace

_COUNTERS: Final[Mapping[Sampled, tuple[str, ...]]] = {
    Sampled.SM_CLOCK: (r"clocks\.(current\.)?sm|dmon pclk", r"gfx_\d+_clk|gfx_clk|gfx_clock"),
    Sampled.MAX_SM_CLOCK: (r"clocks\.max\.sm|gfx_\d+_max_clk",),
    Sampled.MEMORY_CLOCK: (r"clocks\.(current\.)?mem(ory)?|dmon mclk", "mem_0_clk|mem_clock"),
    Sampled.POWER: (
        r"power\.draw\.instant",
        r"power\.draw(\.average)?|dmon pwr|socket_power|power_usage",
    ),
    Sampled.POWER_LIMIT: (r"enforced\.power\.limit", r"power\.limit|max_power"),
    Sampled.TEMPERATURE: (r"temperature\.gpu|dmon g?temp", "hotspot(_temperature)?", "edge"),
    Sampled.UTILISATION: (r"utilization\.gpu|dmon sm|gfx_activity", "gfx"),
    Sampled.MEMORY_UTILISATION: (r"utilization\.memory|dmon mem|umc_activity",),
    Sampled.MEMORY_USED: (r"memory\.used|dmon fb|used_vram|vram_used",),
}
"""Patterns of column names by counter, the best first; columns that match the same are averaged."""
_MOST: Final = {"mhz": 2e4, "w": 1e4, "c": 200.0, "percent": 100.0, "bytes": 1e9}
"""The largest plausible cell for each unit of a counter ("bytes" are MiB in a cell)."""
_NAMES: Final = (*_COUNTERS, Sampled.THROTTLE)
_BLOCK_BYTES: Final = 1 << 20
_MOST_MASK: Final = 2.0**53  # a double holds smaller masks exactly
_IN_TURN: Final = 4
"""Samples of a single GPU are evenly spaced: their mean gap is below 4 times the shortest one."""
_NVIDIA: Final = r"clocks_(throttle|event)_reasons\."
_REASONS: Final[Mapping[str, int]] = {
    f"{_NVIDIA}active": 0,
    f"{_NVIDIA}gpu_idle": 0x1,
    f"{_NVIDIA}applications_clocks_setting": 0x2,
    f"{_NVIDIA}sw_power_cap|dmon pviol": 0x4,
    f"{_NVIDIA}hw_slowdown": 0x8,
    f"{_NVIDIA}sync_boost": 0x10,
    f"{_NVIDIA}sw_thermal_slowdown": 0x20,
    f"{_NVIDIA}hw_thermal_slowdown": 0x40,
    f"{_NVIDIA}hw_power_brake_slowdown": 0x80,
    "throttle_status": 1 << 16,
    "dmon tviol": 1 << 17,
}
"""Columns of throttle reasons, and the bit that each sets if it is on. 0: the cell is a mask."""
_KEYS: Final = {
    "time": "timestamp|dmon time",
    "date": "dmon date",
    "gpu": "index|gpu|dmon gpu",
    "bus": r"gpu_bus_id|pci\.bus_id",
}
_UNIT: Final = re.compile(r"\[[^][]*\]$")
_QUOTED: Final = re.compile(r'"([^"]*)"')
_NUMBER: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(?: ?(?:%|[A-Za-z]{1,4}))?")
_MASK: Final = re.compile(r"0x[0-9a-fA-F]{1,13}|0x0{3}[0-9a-fA-F]{13}")
_FLAGS: Final = {"active": 1, "throttled": 1, "not active": 0, "unthrottled": 0}
_NULL: Final = re.compile(r"|-|n/a|none|\[.*")
_GPU: Final = re.compile(r"(?:\d{1,4})?|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d")
_TIME: Final = re.compile(
    r"(?:((?:19|20)\d\d)[-/]?(\d\d)[-/]?(\d\d)[ T]+)?(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?|(?P<unix>\d{9,10})(?:\.(?P<part>\d{1,9}))?"
)
_EPOCH: Final = date(1970, 1, 1).toordinal()
_UNIX_TIME: Final = "seconds since 1970"
_ZONED: Final = "times with their zone"
_MOST_COLUMNS, _MOST_TRIES, _LINES_LOOKED_AT = 200, 1_000, 20
_AGAIN: Final = "record again with times and GPU numbers: see docs/parsers/gpu_samples.md"
_NOTES: Final = NoteTable(
    dropped={"bad-cells": "{n} [value|values] ignored: not a number, or impossible."},
    assumed={
        "gpus-by-bus": "GPUs without numbers are numbered by PCI bus, as nvidia-smi does.",
        "one-gpu": "The samples do not name a GPU: all are taken as those of GPU 0.",
    },
    missing={
        "no-utilisation": "The samples have no utilisation: by themselves they do not say when a "
        "GPU works. Add utilization.gpu."
    },
)


class _Header(Struct, frozen=True):
    """What the columns of a table are, by index.

    `width` is the number of columns, `keys` has the column of each role of _KEYS, `counters` the
    columns of each counter (a list per pattern that matches any), `reasons` the bit by column.
    """

    width: int
    keys: Mapping[str, int]
    counters: Mapping[Sampled, list[list[int]]]
    reasons: Mapping[int, int]

    @classmethod
    def of(cls, cells: Sequence[str]) -> _Header | None:
        """Return what the columns with these titles are, None if the cells are not a header."""
        titles = [_UNIT.sub("", cell).rstrip().lower() for cell in cells[:_MOST_COLUMNS]]

        def columns(pattern: str) -> list[int]:
            return [n for n, title in enumerate(titles) if re.fullmatch(pattern, title)]

        keys = {role: found[0] for role, pattern in _KEYS.items() if (found := columns(pattern))}
        counters = {
            counter: [found for pattern in patterns if (found := columns(pattern))]
            for counter, patterns in _COUNTERS.items()
        }
        reasons = {n: bit for pattern, bit in _REASONS.items() for n in columns(pattern)}
        # A header has a counter, and a time or a GPU: any line may have one of these by chance.
        is_header = any(counters.values()) and len(keys) > 0
        return cls(len(cells), keys, counters, reasons) if is_header else None


class _Samples(Struct):
    """The rows read so far, in flat arrays.

    `rows` has the time in ns and the GPU's number of each row, `values` a value per row and name
    of _NAMES. `time_kind` is the kind of time of all rows, `gpus` maps GPU texts to numbers,
    `named` is whether any row names its GPU. `lost` counts rows and `bad` cells that are ignored.
    """

    time_kind: str = ""
    rows: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    gpus: dict[str, int] = field(default_factory=dict)
    named: bool = False
    lost: int = 0
    bad: int = 0

    def add(self, header: _Header, cells: Sequence[str]) -> None:
        """Append a row; if it has no time or GPU that can be read, count it as lost instead."""
        keys = {role: cells[n] for role, n in header.keys.items() if n < len(cells)}
        time = _time(" ".join(keys[role] for role in ("date", "time") if role in keys))
        gpu = keys.get("gpu", keys.get("bus", ""))
        self.named |= bool(gpu)
        is_whole = len(cells) == header.width and _GPU.fullmatch(gpu)
        # All rows of a file have times of one kind: a day cannot be compared with a time of day.
        if time is None or not is_whole or self.time_kind not in ("", time[0]):
            self.lost += 1
            return
        self.time_kind, time_ns = time
        self.rows.extend((time_ns, self.gpus.setdefault(gpu, len(self.gpus))))
        self.values.extend(self._values(header, cells))

    def _values(self, header: _Header, cells: Sequence[str]) -> Iterator[float]:
        """Yield a value per counter, the mean of its columns, then the throttle mask; NaN: none."""
        for counter, column_lists in header.counters.items():
            most = _MOST[counter.rpartition("_")[2]]  # a counter's name ends with its unit
            unit = 2**20 if counter == Sampled.MEMORY_USED else 1  # its cells are MiB
            given: list[float] = []
            for columns in column_lists:  # the first list that has a value counts
                values = [self._cell(cells[n], _number(cells[n]), most) for n in columns]
                if given := [value for value in values if not np.isnan(value)]:
                    break
            yield unit * sum(given) / len(given) if given else np.nan
        mask: int | None = None
        for column, bit in header.reasons.items():
            text = cells[column]
            hexadecimal = float(int(text, 16)) if _MASK.fullmatch(text) else np.nan
            number = _FLAGS.get(text.lower(), _number(text)) if bit else hexadecimal
            value = self._cell(text, number, _MOST_MASK)
            if not np.isnan(value):
                mask = (mask or 0) | (bit * (value > 0) if bit else int(value))
        yield np.nan if mask is None else mask

    def _cell(self, text: str, value: float, most: float) -> float:
        """Return a cell's value; NaN if above `most`, counted as bad unless the cell says null."""
        if value <= most:
            return value
        self.bad += not _NULL.fullmatch(text.lower())
        return np.nan


@lru_cache(maxsize=1 << 12)
def _number(text: str) -> float:
    number = _NUMBER.fullmatch(text)
    return float(number[1]) if number else np.nan


def _time(text: str) -> tuple[str, int] | None:
    """Return the kind of a time (such as TIME_OF_DAY) and the time in ns, None for other texts."""
    time = _TIME.fullmatch(text)
    if time is None:
        return None
    if time["unix"]:
        # Digits, not a float, which has no ns: the fraction is filled with zeros to nine digits.
        return _UNIX_TIME, int(time["unix"] + f"{time['part'] or '':0<9}")
    hour, minute, second = map(int, time.group(4, 5, 6))
    time_of_day_ns = int(f"{(hour * 60 + minute) * 60 + second}{time[7] or '':0<9}")
    if not time[1]:
        return TIME_OF_DAY, time_of_day_ns
    try:
        day = date(*map(int, time.group(1, 2, 3))).toordinal() - _EPOCH
    except ValueError:
        return None
    if time["zone"] is None:
        return LOCAL_TIME, day * DAY_NS + time_of_day_ns
    sign, zone = (-1 if time["zone"][0] == "-" else 1), f"{time['zone'].replace(':', ''):0<5}"
    ahead_ns = sign * (int(zone[1:3]) * 60 + int(zone[3:])) * 60 * 10**9
    return _ZONED, day * DAY_NS + time_of_day_ns - ahead_ns


def _split(line: str) -> list[str]:
    """Return the cells of a line. Cells of a header of dmon (#) get the prefix "dmon ".

    Cells are separated by commas or, if there is none, by spaces. Commas in quotes (lists of
    amd-smi) do not separate cells: they become semicolons.
    """
    is_dmon = line.startswith("#")
    unquoted = _QUOTED.sub(lambda quoted: quoted[1].replace(",", ";"), line)
    cells = unquoted.removeprefix("#").split("," if "," in unquoted else None)
    return [f"dmon {cell.strip()}" if is_dmon else cell.strip() for cell in cells]


def _samples(source: ByteSource, damage: Damage) -> _Samples:
    """Return the rows of a file, each read by the last header above it; count damage of the text.

    Lines that do not begin with a digit are tried as headers, at most _MOST_TRIES of them: dmon
    repeats its header after each screenful.
    """
    samples, header, header_line, tries = _Samples(), None, "", 0
    blocks = (text for text, _ in line_blocks(source, _BLOCK_BYTES, damage))
    for line in (line.strip() for block in blocks for line in block.decode().splitlines()):
        is_dmon_units = line.startswith("#") and "gpu" not in line  # the second header line
        if not line or line == header_line or is_dmon_units:
            continue
        cells = _split(line)
        new_header = None
        if not line[0].isdigit() and tries < _MOST_TRIES:
            new_header = _Header.of(cells)
            tries += 1
        if new_header is not None:
            header, header_line = new_header, line
        elif header is not None:
            samples.add(header, cells)
    return samples


def _is_samples(head: bytes) -> bool:
    """Return whether one of the first lines is a header of samples."""
    lines = head.decode(errors="replace").splitlines()[:_LINES_LOOKED_AT]
    return any(_Header.of(_split(line.strip())) for line in lines if not line[:1].isdigit())


GPU_SAMPLES_TEXT: Final = Format(
    GPU_SAMPLES, _is_samples, lambda sources, _: [_trace(source) for source in sources]
)


def _trace(source: ByteSource) -> Trace:
    """Return the trace of a file of samples. Raises InputError if nothing in it can be used."""
    damage = Damage()
    samples = _samples(source, damage)
    damage.dropped_rows += samples.lost
    time_ns, gpu = np.array(samples.rows, np.int64).reshape(-1, 2).T
    values = np.array(samples.values).reshape(-1, len(_NAMES)).T
    if problem := _problem(samples, time_ns, values):
        raise InputError(f"{problem} in the samples: {source.label}", _AGAIN)
    if samples.time_kind == TIME_OF_DAY:
        # A large step back is midnight: all later rows are a day later.
        is_new_day = np.diff(time_ns, prepend=time_ns[0]) < -DAY_NS // 2
        time_ns += DAY_NS * np.cumsum(is_new_day)
    # Devices are numbered in the order of their PCI bus, or of the GPU numbers that are given.
    has_bus = any(":" in text for text in samples.gpus)
    gpu_texts = sorted(samples.gpus, key=str if has_bus else lambda text: int(text or 0))
    device_of = np.empty(len(gpu_texts), np.int64)  # by the number in `samples.gpus`
    device_of[[samples.gpus[text] for text in gpu_texts]] = np.arange(len(gpu_texts))
    counters = TableBuilder("counters")
    for name, value in zip(_NAMES, values, strict=True):
        is_value = ~np.isnan(value)
        counters.add(
            int(is_value.sum()),
            process=0,
            name=counters.names["name"][name],
            device=device_of[gpu[is_value]],
            time_ns=time_ns[is_value],
            value=value[is_value],
        )
    numbers = [n if has_bus else int(text or 0) for n, text in enumerate(gpu_texts)]
    devices = [(0, number, trace_builder.NOTHING_KNOWN) for number in numbers]
    tables = {
        "processes": trace_builder.processes_table([trace_builder.ProcessFacts(source.label)]),
        "devices": trace_builder.devices_table(devices),
        "counters": trace_builder.in_order_of_time(counters),
    }
    counts_from_1970 = samples.time_kind in (_UNIX_TIME, _ZONED)
    about = Source(
        format=GPU_SAMPLES,
        files=(SourceFile(source.label, source.stored_bytes, source.text_bytes),),
        tool="amd-smi" if samples.time_kind == _UNIX_TIME else "nvidia-smi",
        origin_unix_ns=0 if counts_from_1970 else None,  # the time zone of local times is unknown
        facts={"times": samples.time_kind},
        event_counts={"samples": len(gpu)},
    )
    notes = [*text_notes(damage, source.cut)]
    notes += _NOTES.counted({"bad-cells": samples.bad}, "bad-cells")
    if has_bus:
        notes.append(_NOTES.note("gpus-by-bus"))
    if not samples.named:
        notes.append(_NOTES.note("one-gpu"))
    if np.isnan(values[[_NAMES.index(n) for n in (Sampled.UTILISATION, Sampled.THROTTLE)]]).all():
        notes.append(_NOTES.note("no-utilisation"))
    return Trace(about, tables, tuple(replace(note, file=source.label) for note in notes))


def _problem(samples: _Samples, time_ns: IntArray, values: FloatArray) -> str | None:
    """Return why samples cannot be used, None if they can. `values` has a row per name."""
    if not len(time_ns):
        return "no row with a time"
    if np.isnan(values).all():
        return "no value"
    # Rows of several GPUs come in bunches: some gaps are much shorter than the mean.
    gaps_ns = np.diff(np.sort(time_ns))
    if not samples.named and len(gaps_ns) and _IN_TURN * gaps_ns.min() < gaps_ns.mean():
        return "several GPUs without their numbers"
    return None

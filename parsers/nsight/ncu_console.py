"""Turns what ncu prints on a console into the CSV of its details page.

      kernel(float *) (64, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.6   # a launch
        Section: GPU Speed Of Light Throughput
        ---------------- ------------- ------------
        Metric Name        Metric Unit Metric Value     # versions before 2022 lack this line,
        ---------------- ------------- ------------     # and the sizes of the launch
        Duration               usecond         5.98
        ---------------- ------------- ------------

Lines of dashes tell where columns are. Messages of rules are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.nsight.stats_text import csv_line, whole_lines

_LAUNCH: Final = re.compile(
    r" {2}(\S.{0,20000}?)(?: (\(\d+, \d+, \d+\))x(\(\d+, \d+, \d+\)))?"
    r"(?:, \d{4}-\w{3}-\d\d [\d:]{5,8})?, Context \d+, Stream \d+"
    r"(?:, Device (\d+), CC ([\d.]+))?\s*"
)
_PROCESS: Final = re.compile(r"\[(\d+)\] (.{1,1000})@(\S{1,300})\s*")
_SECTION: Final = re.compile(r" {4}Section: (.{1,300})")
_DASHES: Final = re.compile(r" {4}(-+) (-+) (-+)\s*")
_SIGN: Final = re.compile(rb"(?m)^  \S.{0,20000}, Context \d+, Stream \d+.{0,40}$")
_COLUMNS: Final = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Block Size", "Grid Size"),
    *("Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"),
)
_HEADER_ROW: Final = ["Metric Name", "Metric Unit", "Metric Value"]


def is_console(head: bytes) -> bool:
    """Return whether a text has a launch and a section as ncu prints them."""
    return b"\n    Section: " in head and _SIGN.search(head) is not None


class _Place(Struct):
    """Where a line is: its process, launch and section; `ends` are those of columns, () outside.

    `has_rows` tells whether the table has had metrics: then the next dashes close it.
    """

    process: tuple[str, str, str] = ("", "", "")
    launch: tuple[str, ...] = ()
    number: int = -1
    section: str = ""
    ends: tuple[int, ...] = ()
    has_rows: bool = False


def console_rows(source: ByteSource) -> Iterator[bytes]:
    """Yield the metrics in a text as lines of CSV, a header first."""
    yield csv_line(_COLUMNS)
    place = _Place()
    for block in whole_lines(source):
        for line in block.decode(errors="replace").splitlines():
            cells = _metric(line, place)
            if cells is not None:
                yield csv_line(
                    [str(place.number), *place.process, *place.launch, place.section, *cells]
                )


def _metric(line: str, place: _Place) -> list[str] | None:
    """Return the name, unit and value in a line, None if it has none; it may move `place`."""
    if (dashes := _DASHES.fullmatch(line)) is not None:
        is_end = place.ends and place.has_rows
        place.ends = () if is_end else (dashes.end(1), dashes.end(2))
        place.has_rows = False
    elif (launch := _LAUNCH.fullmatch(line)) is not None:
        name, grid, block, device, capability = (text or "" for text in launch.groups())
        place.launch, place.number = (name, block, grid, device, capability), place.number + 1
        place.section, place.ends = "", ()
    elif (section := _SECTION.fullmatch(line)) is not None:
        place.section, place.ends = section[1].strip(), ()
    elif (process := _PROCESS.fullmatch(line)) is not None:
        place.process = process[1], process[2], process[3]
    elif not line.strip():
        place.ends = ()
    elif place.ends and place.launch and place.section:
        name_end, unit_end = place.ends
        cells = [line[:name_end].strip(), line[name_end:unit_end].strip(), line[unit_end:].strip()]
        place.has_rows = cells != _HEADER_ROW
        return cells if all(cells[::2]) and place.has_rows else None
    return None

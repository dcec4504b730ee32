"""Turns what ncu prints on a console into the CSV of its details page.

      kernel(float *) (64, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.6   # a launch
        Section: GPU Speed Of Light Throughput
        ---------------- ------------- ------------
        Metric Name        Metric Unit Metric Value     # versions before 2022 lack this line,
        ---------------- ------------- ------------     # and the sizes of the launch
        Duration               usecond         5.98
        ---------------- ------------- ------------

Lines of dashes tell where columns are. Of messages of rules, only the busiest pipes are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
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
_MESSAGE: Final = re.compile(r" {4}(?:(?:INF|WRN|OPT|ERR) {3}(\S.*)| {6}(\S.*))")
"""A line of a rule's message: its first one, or a later one."""
_MOST_MESSAGE: Final = 5000
PIPES: Final = "Compute Workload Analysis"
"""The section with the message on pipes."""
_PIPE: Final = "(ALU|FMA|FP16|FP64|LSU|Shared|Tensor|XU)"
_BUSIEST: Final = re.compile(
    rf"(?:\b{_PIPE}(?: \(\w+\))? is the highest-utilized pipeline|highest utilized pipeline)"
    rf" \((\d{{1,3}}(?:[.,]\d{{1,2}})?)%\)(?: is {_PIPE}\b)?"
)
_PART: Final = re.compile(rf"dominated by its {_PIPE}\b")
_HEADER_ROW: Final = ["Metric Name", "Metric Unit", "Metric Value"]


def is_console(head: bytes) -> bool:
    """Return whether a text has a launch and a section as ncu prints them."""
    return b"\n    Section: " in head and _SIGN.search(head) is not None


class _Place(Struct):
    """Where a line is: its process, launch and section; `ends` are those of columns, () outside.

    `has_rows` tells whether the table has had metrics: then the next dashes close it. `message` is
    that of a rule so far, "" outside.
    """

    process: tuple[str, str, str] = ("", "", "")
    launch: tuple[str, ...] = ()
    number: int = -1
    section: str = ""
    ends: tuple[int, ...] = ()
    has_rows: bool = False
    message: str = ""


def console_rows(source: ByteSource) -> Iterator[bytes]:
    """Yield the metrics in a text as lines of CSV, a header first."""
    yield csv_line(_COLUMNS)
    place = _Place()
    blocks = (block.decode(errors="replace").splitlines() for block in whole_lines(source))
    for line in chain(chain.from_iterable(blocks), [""]):  # the last line ends a message
        for cells in (*_pipes(line, place), _metric(line, place)):
            if cells is not None:
                yield csv_line(
                    [str(place.number), *place.process, *place.launch, place.section, *cells]
                )


def busiest_pipes(message: str) -> dict[str, str]:
    """Return the percentages of the pipes of SMs that a rule's message calls the busiest.

    Of two pipes, one executes most instructions, the other is active in most cycles. A pipe that is
    shared by others is called by that which uses it most.
    """
    shares: dict[str, str] = {}
    for before, share, after in _BUSIEST.findall(message):
        name = before or after
        if name == "Shared":
            name = part[1] if (part := _PART.search(message)) else ""
        if name:
            shares[name] = max(shares.get(name, "0"), share, key=_number)
    return shares


def _number(text: str) -> float:
    return float(text.replace(",", "."))


def _pipes(line: str, place: _Place) -> Iterator[list[str]]:
    """Yield pipes as metrics where a line ends a message; other lines may move `place`."""
    part = _MESSAGE.fullmatch(line)
    if part is not None and (part[1] or place.message):
        place.message = f"{place.message} {part[1] or part[2]}"[:_MOST_MESSAGE]
    elif place.message:
        message, place.message = " ".join(place.message.split()), ""
        if place.launch and place.section == PIPES:
            yield from ([name, "%", share] for name, share in busiest_pipes(message).items())


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

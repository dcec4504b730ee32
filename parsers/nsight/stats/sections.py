"""The sections of what `nsys stats` prints: each is of one profile, where a line before it says so.

`nsys stats` names the profile and the report before each table, unless it was asked to be quiet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import PureWindowsPath
from typing import Final

from traceflops.parsers.io import ByteSource, Tables
from traceflops.parsers.nsight.stats.console import Console
from traceflops.parsers.nsight.stats.text import Filter, Filtered, is_row, plain_tables, whole_lines

_SAID: Final = re.compile(
    rb"^(?:Processing \[([^\]\r\n]{1,4096})\] with \[([^\]\r\n]{0,4096})\]"
    rb"|Running \[([^\]\r\n]{1,4096}\.py)\s+([^\]\r\n]{1,4096})\])[^\r\n]*",
    re.M,
)
_BEGINNINGS: Final = (b"Processing [", b"Running [")
_MOST: Final = 500


@dataclass(frozen=True, slots=True)
class Section:
    """Some tables of one profile; `profile` and `report` are empty where nothing names them."""

    profile: str
    report: str
    source: ByteSource


@dataclass(frozen=True, slots=True)
class _Said:
    number: int
    profile: str = ""
    report: str = ""


def sections(source: ByteSource, tables: Tables, console: Console) -> Iterator[Section]:
    """Yield the sections of a source, each to be read before the next."""
    for said, blocks in groupby(_said(source), key=itemgetter(0)):
        console.begin(said.report)
        plain = plain_tables((text for _, text in blocks), tables, console)
        yield Section(said.profile, said.report, Filtered(source, _given(plain)))
    console.begin("")


def _given(blocks: Iterator[bytes]) -> Filter:
    """Return a filter that has its blocks already."""
    return lambda _: blocks


def _said(source: ByteSource) -> Iterator[tuple[_Said, bytes]]:
    """Yield the content, each part behind what the line before it says."""
    said = _Said(0)
    for place, block in enumerate(whole_lines(source)):
        if not place:
            block = block.removeprefix(b"\xef\xbb\xbf")
        at = 0
        if any(word in block for word in _BEGINNINGS):
            for found in _SAID.finditer(block):
                if said.number >= _MOST or is_row(found[0]):
                    continue
                if found.start() > at:
                    yield said, block[at : found.start()]
                profile, script = (found[1], found[2]) if found[1] else (found[4], found[3])
                said = _Said(said.number + 1, _text(profile), _report(_text(script)))
                at = found.end()
        yield said, block[at:]


def _text(text: bytes) -> str:
    return text.decode(errors="replace").strip()


def _report(script: str) -> str:
    """Return the report that a script writes, by its path: reports/cuda_gpu_trace.py."""
    return PureWindowsPath(script).name.partition(".py")[0]


def shown_profile(profile: str) -> str:
    """Return the name of a profile without the folders it lay in."""
    return PureWindowsPath(profile).name

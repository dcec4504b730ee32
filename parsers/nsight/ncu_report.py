"""A report of Nsight Compute itself (.ncu-rep) as what a page holds: metrics and rules of kernels.

The vendor documents how its parts are framed, not what is in them; that was found by comparing
files (docs/parsers/nsight.md). Only the fields that are named here are read: others hold command
lines, environment, hosts and folders.
"""

from __future__ import annotations

import shlex
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite, prod
from typing import Final, TypeAlias

import numpy as np

from traceflops.errors import NotATrace
from traceflops.parsers.io import ByteSource, fields, last_fields, message_text, parts_of
from traceflops.parsers.nsight.ncu_layouts import Page
from traceflops.parsers.nsight.ncu_pages import (
    FACTS,
    UNNAMED,
    NcuFile,
    NcuPage,
    fill_sizes,
)
from traceflops.parsers.nsight.ncu_rules import KINDS, SPEEDUP_KINDS, plain_text
from traceflops.table import ABSENT, Array

MAGIC: Final = b"NVR\x00"
_VERSION: Final = 7
_LENGTH_BYTES: Final = 4
_SOURCES, _RESULTS, _SESSION, _TEXTS, _PAYLOAD, _PROCESS, _RANGES = range(1, 8)
"""Fields of the header of a block."""
_CREATED, _GPU, _TOOL = 2, 6, 8
"""Fields of what a block says of the session."""
_WRITER: Final = "Nsight Compute Target"
_NAMES: Final = (7, 6, 5)
"""Fields of a result that may hold the kernel's name: demangled, short, mangled."""
_GRID, _BLOCK, _METRIC, _RULE = 10, 11, 13, 19
_INDEX, _VALUE, _INSTANCE = 1, 2, 3
"""Fields of a metric."""
_RULE_ID, _BODY, _SECTION = 1, 3, 4
_SAID, _SPEEDUP = 1, 10
"""Fields of an item of a rule's body."""
_FLOATS: Final = {2: "<f", 3: "<d"}
_WHOLE: Final = (4, 5)
_OWN_GRID: Final = tuple(f"launch__grid_dim_{axis}" for axis in "xyz")
_CAPABILITY: Final = tuple(f"device__attribute_compute_capability_{x}" for x in ("major", "minor"))
_DEVICE: Final = "launch__device_id"
_THREADS, _SIZE = "launch__thread_count", "launch__grid_size"
_MOST: Final = 2**31
_MOST_SECONDS: Final = 2**33
_TEXT: Final = 1
_UNKNOWN: Final = (ABSENT, ABSENT, ABSENT)

Content: TypeAlias = int | bytes
Value: TypeAlias = float | str | None
Metrics: TypeAlias = dict[str, Value]
Triple: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Result:
    """A profiled kernel as it stands in the file: its process, the texts it refers to, itself."""

    process: int
    texts: Sequence[str]
    message: bytes


@dataclass(slots=True)
class _Report:
    """What a file holds. `devices` are facts by number; `odd` counts what could not be read."""

    results: list[_Result] = field(default_factory=list)
    devices: dict[int, dict[str, Value]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    odd: Counter[str] = field(default_factory=Counter)


def read_report(source: ByteSource) -> NcuFile:
    """Return what a report says. Raises NotATrace where it is of a version that is not known."""
    data = b"".join(source.blocks())
    report = _Report()
    try:
        head, at = _counted(data, len(MAGIC))
        version = dict(fields(head)).get(1)
    except (EOFError, ValueError):
        version, at = None, len(data)
    if version != _VERSION:
        raise _refused(source, version)
    _read_blocks(data, at, report)
    page = NcuPage(source, Page("", {}), odd=report.odd)
    for number, result in enumerate(report.results):
        try:
            _add(number, result, report, page)
        except ValueError:
            report.odd["rows-lost"] += 1
    page.table.join()
    page.rules.join()
    fill_sizes(page.table)
    return NcuFile(source, [page], facts=report.facts)


def _refused(source: ByteSource, version: object) -> NotATrace:
    known = "cut off" if version is None else f"format version {version}, not {_VERSION}"
    argument = "REPORT.ncu-rep" if source.path is None else shlex.quote(str(source.path))
    return NotATrace(
        f"{source.path or source.label} is a binary Nsight Compute report (.ncu-rep) of an unknown "
        f"layout ({known})",
        f"export it: ncu --import {argument} --csv --page raw > kernels.csv",
    )


def _counted(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes behind their length, and where they end. Raises EOFError where cut."""
    begin = at + _LENGTH_BYTES
    end = begin + int.from_bytes(data[at:begin], "little")
    if max(begin, end) > len(data):
        raise EOFError
    return data[begin:end], end


def _read_blocks(data: bytes, at: int, report: _Report) -> None:
    """Read one block after the other, as far as they are whole."""
    texts: Sequence[str] = ()
    try:
        while at < len(data):
            message, at = _counted(data, at)
            head = dict(fields(message))
            if not head:
                raise EOFError
            table, _ = parts_of(_bytes(head.get(_TEXTS)), 1)
            texts = [message_text(text) for text in table] or texts
            _take_session(_bytes(head.get(_SESSION)), report)
            payload = data[at : at + _count(head, _PAYLOAD)]
            at += _count(head, _PAYLOAD)
            _take_payload(head, payload, texts, report)
    except (EOFError, ValueError):
        at = len(data) + 1
    report.odd["input-cut"] += at > len(data)


def _take_payload(
    head: Mapping[int, Content], payload: bytes, texts: Sequence[str], report: _Report
) -> None:
    """Keep the results, which stand behind sources and before ranges. Raises EOFError where cut."""
    process = _small(last_fields(_bytes(head.get(_PROCESS))).get(1))
    before, wanted, ranges = (_count(head, number) for number in (_SOURCES, _RESULTS, _RANGES))
    at = place = 0
    while at < len(payload):
        message, at = _counted(payload, at)
        if not message:
            raise EOFError
        if before <= place < before + wanted:
            report.results.append(_Result(process, texts, message))
        report.odd["ranges-unread"] += place >= before + wanted
        place += 1
    if place != before + wanted + ranges:
        raise EOFError


def _take_session(session: bytes, report: _Report) -> None:
    """Keep what a block says of the recording: when it was made, by which version, on which GPU."""
    created = last_fields(session).get(_CREATED)
    if isinstance(created, int) and 0 < created < _MOST_SECONDS:
        report.facts["created"] = f"{datetime.fromtimestamp(created, UTC):%Y-%m-%d %H:%M:%S} UTC"
    for tool in map(last_fields, parts_of(session, _TOOL)[0]):
        version = message_text(tool.get(2)).split()
        if message_text(tool.get(1)) == _WRITER and version:
            report.facts["tool_version"] = version[0]
    for gpu in parts_of(session, _GPU)[0]:
        known = report.devices.setdefault(_small(last_fields(gpu).get(1, 0)), {})
        for attribute in map(last_fields, parts_of(gpu, 3)[0]):
            name = message_text(attribute.get(1))
            if name in (*FACTS, *_CAPABILITY):
                known[name] = _value(_bytes(attribute.get(2)))


def _add(number: int, result: _Result, report: _Report, page: NcuPage) -> None:
    """Add the metrics and the rules of a kernel. Raises ValueError where its message is damaged."""
    said: dict[int, Content] = {}
    metrics, rules = [], []
    for place, content in fields(result.message):
        if place == _METRIC:
            metrics.append(_bytes(content))
        elif place == _RULE:
            rules.append(_bytes(content))
        else:
            said[place] = content
    found = _metrics(metrics, result.texts, report.odd)
    name = next(filter(None, (message_text(said.get(place)) for place in _NAMES)), UNNAMED)
    launch = {
        "process": result.process,
        "device": page.devices[_device(found, report, page)],
        "dispatch": number,
    }
    page.rows["kernels"] += 1
    counters = {counter: value for counter, value in found.items() if isinstance(value, float)}
    page.table.add(
        len(counters),
        **launch,
        **_sizes(said, found, len(counters), "tool_version" not in report.facts),
        name=page.table.names["name"][name],
        counter=page.table.names["counter"].codes(counters),
        value=np.fromiter(counters.values(), np.float64),
    )
    for message in rules:
        _add_rule(last_fields(message), launch, name, page)


def _metrics(messages: Sequence[bytes], texts: Sequence[str], odd: Counter[str]) -> Metrics:
    """Return the values of metrics: numbers or texts. Of one that is there twice the last counts.

    Raises ValueError where a message is damaged.
    """
    found: Metrics = {}
    for message in messages:
        index, value, instances = 0, b"", 0
        for place, content in fields(message):
            instances += place == _INSTANCE
            if place == _INDEX:
                index = content if isinstance(content, int) else len(texts)
            elif place == _VALUE:
                value = _bytes(content)
        if index >= len(texts):
            odd["names-lost"] += 1
            continue
        odd["instances-apart"] += instances
        one = found[texts[index]] = _value(value)
        if not isinstance(one, float):
            lacks = "instances-unread" if instances else "not-available"
            odd["no-number" if isinstance(one, str) else lacks] += 1
    return found


def _value(message: bytes) -> Value:
    """Return a value; None where there is none. Raises ValueError where the message is damaged."""
    found: Value = None
    for place, content in fields(message):
        if isinstance(content, int):
            found = float(content) if place in _WHOLE else None
        elif place == _TEXT:
            found = message_text(content)
        else:
            found = _decimal(content, _FLOATS.get(place))
    return found


def _decimal(content: object, form: str | None = "<d") -> float | None:
    """Return a number of fixed size; None where it is none, or none that is finite."""
    if not isinstance(content, bytes) or form is None or len(content) != struct.calcsize(form):
        return None
    value = float(struct.unpack(form, content)[0])
    return value if isfinite(value) else None


def _device(found: Metrics, report: _Report, page: NcuPage) -> str:
    """Return the number and the compute capability of a kernel's device, and keep its facts."""
    number = found.get(_DEVICE)
    if number is None and len(report.devices) == 1:
        (number,) = report.devices
    known = report.devices.get(int(number), {}) if isinstance(number, int | float) else {}
    own = {name: found.get(name) for name in (*FACTS, *_CAPABILITY)}
    known = known | {name: value for name, value in own.items() if value is not None}
    capability = ".".join(_shown(known.get(name)) for name in _CAPABILITY)
    text = f"{_shown(number)}|{capability}"
    page.facts.setdefault(text, {name: _shown(known.get(name)) for name in FACTS})
    return text


def _shown(value: Value) -> str:
    """Return a value as a page prints it."""
    return "" if value is None else value if isinstance(value, str) else f"{value:.0f}"


def _sizes(
    said: Mapping[int, Content], found: Metrics, rows: int, is_old: bool
) -> dict[str, Array | int]:
    """Return the columns with the sizes of a launch."""
    block = _triple(said.get(_BLOCK))
    grid = _grid(_triple(said.get(_GRID)), block, found, is_old)
    block_threads, threads = prod(block), prod(grid) * prod(block)
    return {
        "threads": threads if 0 < threads < 2**62 else ABSENT,
        "block_threads": block_threads if 0 < block_threads < 2**62 else ABSENT,
        "grid": np.tile(np.array(grid if prod(grid) else _UNKNOWN, np.int64), (rows, 1)),
        "block": np.tile(np.array(block if prod(block) else _UNKNOWN, np.int64), (rows, 1)),
    }


def _grid(grid: Triple, block: Triple, found: Metrics, is_old: bool) -> Triple:
    """Return the blocks of a launch; zeros where they are not known.

    Writers of 2018 and 2019 have threads in the place of blocks, which tell by their number.
    """
    own = tuple(found.get(name) for name in _OWN_GRID)
    if all(isinstance(axis, float) and 0 < axis < _MOST for axis in own):
        return tuple(int(axis) for axis in own if isinstance(axis, float))
    threads, size = found.get(_THREADS), found.get(_SIZE)
    if size == prod(grid) or not (is_old or threads == prod(grid)):
        return grid
    fits = threads == prod(grid) and all(b and not g % b for g, b in zip(grid, block, strict=True))
    return tuple(g // b for g, b in zip(grid, block, strict=True)) if fits else (0, 0, 0)


def _triple(message: object) -> Triple:
    said = last_fields(_bytes(message))
    return tuple(max(0, _small(said.get(axis, 0))) for axis in (1, 2, 3))


def _add_rule(
    rule: Mapping[int, Content], launch: Mapping[str, int], name: str, page: NcuPage
) -> None:
    """Add what a rule says of a kernel, which may be nothing."""
    for item in map(last_fields, parts_of(_bytes(rule.get(_BODY)), 1)[0]):
        told, speedup = (last_fields(_bytes(item.get(place))) for place in (_SAID, _SPEEDUP))
        if 1 not in told:
            continue
        percent = _decimal(speedup.get(2))
        texts = {
            "name": name,
            "section": message_text(rule.get(_SECTION)),
            "rule": message_text(rule.get(_RULE_ID)),
            "kind": _of(KINDS, told.get(2)),
            "text": plain_text(message_text(told[1])),
            "speedup_kind": _of(SPEEDUP_KINDS, speedup.get(1)),
        }
        page.rows["rules"] += 1
        page.rules.add(
            1,
            **launch,
            **{role: page.rules.names[role][text] for role, text in texts.items() if text},
            speedup_share=np.array([np.nan if percent is None else percent / 100]),
        )


def _of(words: Sequence[str], number: object) -> str:
    """Return the word with a number, counted from 1; "" where there is none."""
    return words[number - 1] if isinstance(number, int) and 0 < number <= len(words) else ""


def _bytes(content: object) -> bytes:
    return content if isinstance(content, bytes) else b""


def _count(head: Mapping[int, Content], number: int) -> int:
    content = head.get(number)
    return content if isinstance(content, int) else 0


def _small(content: object) -> int:
    """Return a number of a process, a device or a size; ABSENT for what is none."""
    return content if isinstance(content, int) and content < _MOST else ABSENT

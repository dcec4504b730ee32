"""Reads the binary report of Nsight Compute (.ncu-rep) as a page: metrics and rules of kernels.

The vendor documents how its parts are framed, not what is in them; that was found by comparing
files (docs/parsers/nsight.md). Only the fields named here are read: others may be private.
"""

from __future__ import annotations

import re
import shlex
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite, prod
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct, field

from traceflops.errors import NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.messages import fields, last_fields, message_text, parts_of
from traceflops.parsers.nsight import ncu_pages
from traceflops.table.columns import ABSENT, Array
from traceflops.table.trace import DEBUG_BUILD

MAGIC: Final = b"NVR\x00"
_FORMAT: Final = 1
"""The field of the file's head with the version of its layout."""
_VERSION: Final = 7
_SOURCES, _RESULTS, _SESSION, _TEXTS, _PAYLOAD, _PROCESS, _RANGES = range(1, 8)
"""Fields of the header of a block."""
_CREATED, _GPU, _TOOL = 2, 6, 8
"""Fields of a session."""
_TOOL_NAME, _TOOL_VERSION = 1, 2
_GPU_NUMBER, _GPU_FACTS = 1, 3
_FACT_NAME, _FACT = 1, 2
"""Fields of a tool, of a GPU, and of a fact about it."""
_NAMES: Final = (7, 6, 5)
"""Fields of a result that may have the kernel's name: demangled, short, mangled."""
_MANGLED: Final = 5
_GRID, _BLOCK, _METRIC, _RULE = 10, 11, 13, 19
_INDEX, _VALUE, _INSTANCE = 1, 2, 3
"""Fields of a metric."""
_RULE_ID, _BODY, _SECTION = 1, 3, 4
_MESSAGE, _SPEEDUP = 1, 10
"""Fields of an item of a rule's body."""
_ADVICE, _ADVICE_KIND = 1, 2
_SPEEDUP_KIND, _PERCENT = 1, 2
"""Fields of an item's message, and of its speed-up."""
_FLOATS: Final = {2: "<f", 3: "<d"}
_WHOLE: Final = (4, 5)
_OWN_GRID: Final = tuple(f"launch__grid_dim_{axis}" for axis in "xyz")
_CAPABILITY: Final = tuple(f"device__attribute_compute_capability_{x}" for x in ("major", "minor"))
_THREADS, _SIZE = "launch__thread_count", "launch__grid_size"
_MOST: Final = 2**31
_TEXT: Final = 1
_OF_DEBUGGER: Final = b"nv_debug_info_reg_sass\0"
"""The name of a section that only code made by nvcc -G has; -lineinfo adds tables of lines."""
_UNKNOWN: Final = (ABSENT, ABSENT, ABSENT)
_LINK: Final = re.compile(r"@url:([^:@]*):([^@]*)@")
_REFERENCE: Final = re.compile(r"@\w+:(?:[^:@]*:)?([^:@]*)@")
"""Addresses in texts of reports (text, address), and references into the report."""
Content: TypeAlias = int | bytes
Message: TypeAlias = Mapping[int, Content]
Value: TypeAlias = float | str | None
Metrics: TypeAlias = dict[str, Value]


class _Report(Struct):
    """The content of a file. `odd` counts what is unreadable, by the code of its note.

    `results` has process, table of texts and encoded message of each profiled kernel; `devices`
    has the facts about each GPU by its number; `facts` describe the recording. `debugged` is the
    machine code that was built for the debugger.
    """

    debugged: list[bytes] = field(default_factory=list)
    results: list[tuple[int, Sequence[str], bytes]] = field(default_factory=list)
    devices: dict[int, dict[str, Value]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    odd: Counter[str] = field(default_factory=Counter)
    debug_builds: dict[bytes, bool] = field(default_factory=dict)

    def is_debug_build(self, mangled: bytes) -> bool:
        """Return whether the kernel of a mangled name was built for the debugger; kept by name."""
        if mangled not in self.debug_builds:
            section = b"\0.text." + mangled + b"\0"
            is_found = bool(mangled) and any(section in code for code in self.debugged)
            self.debug_builds[mangled] = is_found
        return self.debug_builds[mangled]


def read_report(source: ByteSource) -> ncu_pages.NcuFile:
    """Return the content of a report. Raises NotATrace if its version is unknown."""
    data = b"".join(source.blocks())
    version: object = None
    try:
        head, begin = _counted(data, len(MAGIC))
        version = dict(fields(head)).get(_FORMAT)
    except (EOFError, ValueError):
        begin = len(data)
    if version != _VERSION:
        reason = "cut off" if version is None else f"format version {version}, not {_VERSION}"
        argument = "REPORT.ncu-rep" if source.path is None else shlex.quote(str(source.path))
        raise NotATrace(
            f"{source.path or source.label} is a binary Nsight Compute report (.ncu-rep) of an "
            f"unknown layout ({reason})",
            f"export it: ncu --import {argument} --csv --page raw > kernels.csv",
        )
    report = _Report()
    _read_blocks(data, begin, report)
    page = ncu_pages.NcuPage(source, "", {}, odd=report.odd)
    for number, (process, texts, message) in enumerate(report.results):
        try:
            _add({"process": process, "dispatch": number}, texts, message, report, page)
        except ValueError:
            report.odd["rows-lost"] += 1
    page.table.join()
    page.rules.join()
    ncu_pages.fill_sizes(page.table)
    return ncu_pages.NcuFile(source, [page], facts=report.facts)


def _counted(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return the message after its length at `offset`, and its end. Raises EOFError if cut."""
    begin = offset + 4
    end = begin + int.from_bytes(data[offset:begin], "little")
    if max(begin, end) > len(data):
        raise EOFError
    return data[begin:end], end


def _read_blocks(data: bytes, offset: int, report: _Report) -> None:
    """Read the blocks from `offset` on into `report`, up to the first that is damaged or cut."""
    texts: list[str] = []  # one table for the whole file: blocks add to it, also after results
    try:
        while offset < len(data):
            message, offset = _counted(data, offset)
            head = dict(fields(message))
            if not head:  # nothing but padding: no block
                raise EOFError
            texts += map(message_text, parts_of(_bytes(head.get(_TEXTS)), 1)[0])
            _keep_facts(_bytes(head.get(_SESSION)), report)
            process = _small(last_fields(_bytes(head.get(_PROCESS))).get(1))
            counts = (head.get(key) for key in (_SOURCES, _RESULTS, _RANGES, _PAYLOAD))
            sources, results, ranges, size = (n if isinstance(n, int) else 0 for n in counts)
            payload = data[offset : offset + size]
            offset += size
            position = messages_read = 0  # its messages: sources, then results, then ranges
            while position < len(payload):
                message, position = _counted(payload, position)
                if not message:  # each has content: the rest of the payload is damaged
                    raise EOFError
                if messages_read < sources and _OF_DEBUGGER in message:
                    report.debugged.append(message)
                is_range = messages_read >= sources + results
                if messages_read >= sources and not is_range:
                    report.results.append((process, texts, message))
                report.odd["ranges-unread"] += is_range
                messages_read += 1
            if messages_read != sources + results + ranges:
                raise EOFError
    except (EOFError, ValueError):
        offset = len(data) + 1  # counts as cut
    report.odd["input-cut"] += offset > len(data)


def _keep_facts(session: bytes, report: _Report) -> None:
    """Add the facts in a session's message to the report: its time, ncu's version, the GPUs."""
    created = last_fields(session).get(_CREATED)
    if isinstance(created, int) and 0 < created < 2**33:  # later is damage
        report.facts["created"] = f"{datetime.fromtimestamp(created, UTC):%Y-%m-%d %H:%M:%S} UTC"
    for tool in map(last_fields, parts_of(session, _TOOL)[0]):
        version = message_text(tool.get(_TOOL_VERSION)).split()
        if message_text(tool.get(_TOOL_NAME)) == "Nsight Compute Target" and version:
            report.facts["tool_version"] = version[0]
    for gpu in parts_of(session, _GPU)[0]:
        facts = report.devices.setdefault(_small(last_fields(gpu).get(_GPU_NUMBER, 0)), {})
        for attribute in map(last_fields, parts_of(gpu, _GPU_FACTS)[0]):
            name = message_text(attribute.get(_FACT_NAME))
            if name in (*ncu_pages.FACTS, *_CAPABILITY):
                facts[name] = _value(_bytes(attribute.get(_FACT)))


def _add(
    launch: dict[str, int],
    texts: Sequence[str],
    message: bytes,
    report: _Report,
    page: ncu_pages.NcuPage,
) -> None:
    """Add the metrics and rules in a kernel's `message` to `page`. Raises ValueError at damage.

    `launch` has the kernel's process and number (`dispatch`); its device is added.
    """
    kernel: dict[int, Content] = {}  # the fields that occur once
    metric_messages, rule_messages = [], []
    for key, content in fields(message):
        if key == _METRIC:
            metric_messages.append(_bytes(content))
        elif key == _RULE:
            rule_messages.append(_bytes(content))
        else:
            kernel[key] = content
    metrics = _metrics(metric_messages, texts, report.odd)
    name = next(filter(None, (message_text(kernel.get(key)) for key in _NAMES)), ncu_pages.UNNAMED)
    launch["device"] = page.devices[_device(metrics, report, page)]
    page.rows["kernels"] += 1
    counters = {counter: value for counter, value in metrics.items() if isinstance(value, float)}
    if report.is_debug_build(_bytes(kernel.get(_MANGLED))):
        page.rows[DEBUG_BUILD] += 1
        counters[DEBUG_BUILD] = 1.0  # as a counter, so that it is known by kernel
    page.table.add(
        len(counters),
        **launch,
        **_sizes(kernel, metrics, len(counters), is_old="tool_version" not in report.facts),
        name=page.table.names["name"][name],
        counter=page.table.names["counter"].codes(counters),
        value=np.fromiter(counters.values(), np.float64),
    )
    for rule in map(last_fields, rule_messages):
        for item in map(last_fields, parts_of(_bytes(rule.get(_BODY)), 1)[0]):
            _add_rule(rule, item, launch, name, page)


def _add_rule(
    rule: Message, item: Message, launch: Mapping[str, int], name: str, page: ncu_pages.NcuPage
) -> None:
    """Add an item of a rule's body to `page`: advice on a launch of the kernel `name`."""
    advice, speedup = (last_fields(_bytes(item.get(key))) for key in (_MESSAGE, _SPEEDUP))
    if _ADVICE not in advice:
        return
    # As CSV pages do, print a link as "text (address)" and only the text of a reference.
    text = _LINK.sub(r"\1 (\2)", message_text(advice[_ADVICE]))
    columns = {
        "name": name,
        "section": message_text(rule.get(_SECTION)),
        "rule": message_text(rule.get(_RULE_ID)),
        "kind": _word(ncu_pages.RULE_KINDS, advice.get(_ADVICE_KIND)),
        "text": _REFERENCE.sub(r"\1", text),
        "speedup_kind": _word(ncu_pages.SPEEDUP_KINDS, speedup.get(_SPEEDUP_KIND)),
    }
    codes = {role: page.rules.names[role][word] for role, word in columns.items() if word}
    percent = _decimal(speedup.get(_PERCENT), "<d")
    share = np.array([np.nan if percent is None else percent / 100])
    page.rows["rules"] += 1
    page.rules.add(1, **launch, **codes, speedup_share=share)


def _metrics(messages: Sequence[bytes], texts: Sequence[str], odd: Counter[str]) -> Metrics:
    """Return each metric's value by its name, None if it has no value. Counts odd ones in `odd`.

    Of a name that occurs twice the last value counts. Raises ValueError if a message is damaged.
    """
    metrics: Metrics = {}
    for message in messages:
        name_index, value_message, instances = 0, b"", 0
        for key, content in fields(message):
            instances += key == _INSTANCE
            if key == _INDEX:
                name_index = content if isinstance(content, int) else len(texts)
            elif key == _VALUE:
                value_message = _bytes(content)
        if name_index >= len(texts):
            odd["names-lost"] += 1
            continue
        odd["instances-apart"] += instances
        value = metrics[texts[name_index]] = _value(value_message)
        if isinstance(value, str):
            odd["no-number"] += 1
        elif value is None:
            odd["instances-unread" if instances else "not-available"] += 1
    return metrics


def _value(message: bytes) -> Value:
    """Return the value in a message, None if it has none. Raises ValueError if it is damaged."""
    value: Value = None
    for key, content in fields(message):
        if isinstance(content, int):
            value = float(content) if key in _WHOLE else None
        else:
            value = message_text(content) if key == _TEXT else _decimal(content, _FLOATS.get(key))
    return value


def _decimal(content: object, struct_format: str | None) -> float | None:
    """Return the finite number in bytes of a `struct` format; None if they do not hold one."""
    if not isinstance(content, bytes) or struct_format is None:
        return None
    if len(content) != struct.calcsize(struct_format):
        return None
    value = float(struct.unpack(struct_format, content)[0])
    return value if isfinite(value) else None


def _device(metrics: Metrics, report: _Report, page: ncu_pages.NcuPage) -> str:
    """Return a kernel's device as "number|compute capability"; add its facts to the page."""

    def printed(value: Value) -> str:
        if isinstance(value, str):
            return value
        return "" if value is None else f"{value:.0f}"

    number = metrics.get("launch__device_id")
    if number is None and len(report.devices) == 1:
        (number,) = report.devices
    facts: dict[str, Value] = {}
    if isinstance(number, int | float):
        facts |= report.devices.get(int(number), {})
    for name in (*ncu_pages.FACTS, *_CAPABILITY):
        if (value := metrics.get(name)) is not None:
            facts[name] = value
    capability = ".".join(printed(facts.get(name)) for name in _CAPABILITY)
    device = f"{printed(number)}|{capability}"
    page.facts.setdefault(device, {name: printed(facts.get(name)) for name in ncu_pages.FACTS})
    return device


def _sizes(kernel: Message, metrics: Metrics, rows: int, *, is_old: bool) -> dict[str, Array | int]:
    """Return the columns with the sizes of a launch; those by axis are repeated in `rows` rows.

    The grid comes from the metrics of its axes, else from the kernel's message. ncu of 2018 and
    2019 (`is_old`) wrote the grid in threads, not blocks. If the metrics confirm that, the grid is
    divided by the block; if they fit neither unit, the grid is unknown.
    """
    messages = [last_fields(_bytes(kernel.get(key))) for key in (_GRID, _BLOCK)]
    grid, block = ([max(0, _small(m.get(axis, 0))) for axis in (1, 2, 3)] for m in messages)
    grid_metrics = [size for size in map(metrics.get, _OWN_GRID) if isinstance(size, float)]
    is_in_threads = metrics.get(_THREADS) == prod(grid)
    is_in_blocks = metrics.get(_SIZE) == prod(grid)
    if len(grid_metrics) == 3 and all(0 < size < _MOST for size in grid_metrics):
        grid = [int(size) for size in grid_metrics]
    elif not is_in_blocks and (is_old or is_in_threads):
        axes = list(zip(grid, block, strict=True))
        is_divisible = all(b and g % b == 0 for g, b in axes)
        grid = [g // b for g, b in axes] if is_in_threads and is_divisible else [0, 0, 0]
    block_threads, all_threads = prod(block), prod(grid) * prod(block)
    return {
        "threads": all_threads if 0 < all_threads < ncu_pages.TOO_MANY else ABSENT,
        "block_threads": block_threads if 0 < block_threads < ncu_pages.TOO_MANY else ABSENT,
        "grid": np.tile(np.array(grid if prod(grid) else _UNKNOWN, np.int64), (rows, 1)),
        "block": np.tile(np.array(block if prod(block) else _UNKNOWN, np.int64), (rows, 1)),
    }


def _word(words: Sequence[str], number: object) -> str:
    """Return the word at a position counted from 1; "" if there is none."""
    return words[number - 1] if isinstance(number, int) and 0 < number <= len(words) else ""


def _bytes(content: object) -> bytes:
    return content if isinstance(content, bytes) else b""


def _small(content: object) -> int:
    """Return a process id, device number or size; ABSENT if the content cannot be one."""
    return content if isinstance(content, int) and content < _MOST else ABSENT

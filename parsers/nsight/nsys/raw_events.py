"""Turns events of a report (a type and a payload each) into rows of the tables of its export.

Only the fields listed here are read: others may hold paths, command lines, environment variables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from traceflops.parsers.io.messages import Block, Columns, Messages
from traceflops.parsers.nsight.nsys.raw_file import Parts
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    IntArray,
    bytes_column,
    count_true,
    flag_column,
    number_column,
)

Numbers = tuple[tuple[int, str], ...]
"""Field numbers of a message, each with the export's column for it. A missing field means 0."""
_CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
_TYPE: Final = 1
_CALL, _WORK, _NVTX, _DIAGNOSTIC, _FAULT, _SAMPLE = 108, 107, 102, 110, 125, 104
"""Fields of an event: its type, and its payload of one of these kinds."""


def numbered(text: str) -> Numbers:
    """Return field numbers with their columns, from a text such as "1 start 2 end"."""
    words = text.split()
    return tuple((int(n), name) for n, name in zip(words[::2], words[1::2], strict=True))


_OF_WORK: Final = numbered(
    "1 start 2 end 3 correlationId 4 deviceId 5 contextId 6 streamId 8 globalPid"
)
_OF_KERNEL: Final = numbered(
    "1 demangledName 2 shortName 3 mangledName 10 gridX 11 gridY 12 gridZ 13 blockX 14 blockY "
    "15 blockZ 16 staticSharedMemory 17 dynamicSharedMemory 21 registersPerThread"
)
_OF_COPY: Final = numbered("1 bytes 2 copyKind 4 srcKind 5 dstKind 10 migrationCause")
_SYNC, _LATER = "syncType", "syncType since 2025"


class _Work(NamedTuple):
    """A kind of device work: its table, and the payload's field with its details (`numbers`)."""

    table: str
    part: int
    numbers: Numbers = ()


_WORKS: Final[Mapping[int, tuple[_Work, ...]]] = {
    79: (_Work(f"{_CUPTI}KERNEL", 101, _OF_KERNEL),),
    80: (
        _Work(f"{_CUPTI}MEMCPY", 102, _OF_COPY),
        _Work(f"{_CUPTI}MEMSET", 103, numbered("1 bytes 4 memKind")),
    ),
    106: (_Work(f"{_CUPTI}SYNCHRONIZATION", 105, ((2, _SYNC), (4, _LATER))),),
    127: (_Work(f"{_CUPTI}CUDA_EVENT", 106),),
    130: (_Work(f"{_CUPTI}GRAPH_TRACE", 107, numbered("1 graphId 2 graphExecId")),),
}
"""The kinds of work that an event of each type may be."""
_CALLS: Final = (47, 48)
_OF_CALL: Final = numbered(
    "1 start 2 end 3 correlationId 6 eventClass 7 nameId 8 returnValue 13 globalTid"
)
_CLASSES: Final[Mapping[int, str]] = {
    **dict.fromkeys((0, 1), f"{_CUPTI}RUNTIME"),
    3: "PROFILER_OVERHEAD",
    **dict.fromkeys((27, 31, 32), "OSRT_API"),
    48: f"{_CUPTI}OPENACC_OTHER",
    103: f"{_CUPTI}OVERHEAD",
}
"""The table of a call by its class."""
_CLASSES_PASSED: Final = frozenset({6, 7, 8, 9, 10, 11, 28, 29, 102})
"""Classes of calls that are skipped: library calls, and the start and end of tracing one."""


class _Plain(NamedTuple):
    """Types of events that each become a row of `table`; `payload` is the field with the payload.

    `numbers` and `text` are its fields. Missing numbers of the columns `maybe` are unknown, not 0.
    """

    table: str
    types: tuple[int, ...]
    payload: int
    numbers: Numbers
    maybe: tuple[str, ...] = ()
    text: tuple[int, ...] = ()


_OF_RANGE: Final = numbered("1 eventType 2 start 9 globalTid 10 end 12 textId 13 domainId")
_OF_FAULT: Final = numbered("1 start 2 end 3 deviceId 4 globalPid")
_PLAIN: Final = (
    _Plain("NVTX_EVENTS", (34, 39, 59, 60, 75), _NVTX, _OF_RANGE, ("textId", "end"), (7,)),
    _Plain("DIAGNOSTIC_EVENT", (49,), _DIAGNOSTIC, numbered("3 severity"), text=(4,)),
    _Plain("CUDA_UM_GPU_PAGE_FAULT_EVENTS", (120,), _FAULT, _OF_FAULT),
)
_SAMPLED: Final = 31
_OF_SAMPLE: Final = numbered("1 start 11 globalTid")
_FRAME, _OF_FRAME = 4, numbered("1 symbol 2 module")
_PASSED: Final = frozenset({27, 28, 31, 41, 76})
"""Types of events that are skipped: processes, modules, scheduling of the CPU, CPU samples without
a stack, ends of domains."""
UNREAD: Final[Mapping[str, str]] = {
    "113": "CUDA graphs being made",
    "117": "device memory usage",
    "119": "page faults of the CPU",
    "130": "CUDA graph launches as a whole",
    **dict.fromkeys(("131", "132", "133", "149"), "CUDA graphs being made"),
    **dict.fromkeys(("142", "151", "152", "153", "154"), "newer CUDA calls, copies or overheads"),
}
"""Descriptions of unread events, by type, or by the class of a call."""


class Events(Struct):
    """The rows of events by table, and counts of events that are unread or damaged.

    `unread` counts by the keys of UNREAD. `damaged` counts damaged events, `unknown` those of them
    whose type is damaged, too. `damaged_tables` lack rows. `samples` counts samples so far.
    """

    tables: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    unread: Counter[str] = field(default_factory=Counter)
    damaged: int = 0
    unknown: int = 0
    damaged_tables: set[str] = field(default_factory=set)
    samples: int = 0

    def add(self, parts: Parts) -> None:
        """Add the events in a block to the tables; count those of other types as unread."""
        events = Messages(Block(parts.data), parts.begin, parts.end)
        columns = events.columns((_TYPE,), (_CALL, _WORK, _NVTX, _DIAGNOSTIC, _FAULT, _SAMPLE))
        self.unknown += count_true(~columns.sound)
        self.damaged += count_true(~columns.sound)
        kind = np.where(columns.sound, columns.numbers[_TYPE], ABSENT)
        is_work = np.isin(kind, [*_WORKS]) & columns.has(_WORK)
        is_call = np.isin(kind, _CALLS) & columns.has(_CALL)
        # Events that are skipped on purpose, or damaged, do not count as unread.
        is_done = is_work | is_call | np.isin(kind, [*_PASSED]) | ~columns.sound
        if is_work.any():
            self._add_work(columns.part(_WORK, is_work), kind[is_work])
        if is_call.any():
            self._add_calls(columns.part(_CALL, is_call))
        for table, types, payload, numbers, maybe, text in _PLAIN:
            is_plain = np.isin(kind, types) & columns.has(payload)
            is_done |= is_plain
            if is_plain.any():
                payloads = columns.part(payload, is_plain)
                contents = payloads.columns(_keys(numbers), text)
                texts = [payloads.block.texts(contents.begins[n], contents.ends[n]) for n in text]
                self._add_rows(table, _named(contents, numbers, maybe), contents.sound, *texts)
        is_sample = (kind == _SAMPLED) & columns.has(_SAMPLE)
        if is_sample.any():
            self._add_samples(columns.part(_SAMPLE, is_sample))
        self._count_unread(kind[~is_done])

    def _add_calls(self, payloads: Messages) -> None:
        """Add calls to the tables of their classes; count those of unknown classes as unread."""
        calls = payloads.columns(_keys(_OF_CALL))
        of_calls = _named(calls, _OF_CALL)
        classes = of_calls["eventClass"]
        # The class of a damaged call is unknown; most calls are of this table.
        self._drop(count_true(~calls.sound), f"{_CUPTI}RUNTIME")
        for table in dict.fromkeys(_CLASSES.values()):
            rows = calls.sound & np.isin(classes, [c for c in _CLASSES if _CLASSES[c] == table])
            if rows.any():
                self._add_rows(table, {name: column[rows] for name, column in of_calls.items()})
        unknown = calls.sound & ~np.isin(classes, [*_CLASSES, *_CLASSES_PASSED])
        self._count_unread(classes[unknown], "class ")

    def _add_work(self, payloads: Messages, kind: IntArray) -> None:
        """Add device work to the tables of its kinds; `kind` is the type of each event."""
        parts = sorted({work.part for works in _WORKS.values() for work in works})
        common = payloads.columns(_keys(_OF_WORK), parts)
        common_columns = _named(common, _OF_WORK)
        is_done = ~common.sound  # damaged events count as dropped, not as unread
        for event_type, works in _WORKS.items():
            is_of_type = kind == event_type
            for work in works:
                self._drop(count_true(is_of_type & ~common.sound), work.table)
                is_work = is_of_type & common.sound & common.has(work.part)
                is_done |= is_work
                if not is_work.any():
                    continue
                details = common.part(work.part, is_work).columns(_keys(work.numbers))
                columns = {name: values[is_work] for name, values in common_columns.items()}
                columns |= _named(details, work.numbers, (_SYNC,))
                if _SYNC in columns:  # the kind of a wait moved to another field in 2025
                    old, new = columns[_SYNC], columns.pop(_LATER)
                    columns[_SYNC] = np.where(old == ABSENT, new, old)
                self._add_rows(work.table, columns, details.sound)
        self._count_unread(kind[~is_done])

    def _add_samples(self, payloads: Messages) -> None:
        """Add CPU samples that have a stack, and the innermost (first) frame of each stack."""
        samples = payloads.columns(_keys(_OF_SAMPLE), repeated=_FRAME)
        sample, first = np.unique(samples.owner, return_index=True)
        frames = Messages(samples.each.block, samples.each.begin[first], samples.each.end[first])
        frame_columns = frames.columns(_keys(_OF_FRAME))
        ids = self.samples + np.arange(len(sample))
        self.samples += len(sample)
        rows = {name: values[sample] for name, values in _named(samples, _OF_SAMPLE).items()}
        self._add_rows("COMPOSITE_EVENTS", rows | {"id": ids}, frame_columns.sound)
        rows = _named(frame_columns, _OF_FRAME) | {"id": ids, "stackDepth": np.zeros_like(ids)}
        self._add_rows("SAMPLING_CALLCHAINS", rows, frame_columns.sound)

    def _count_unread(self, kinds: IntArray, prefix: str = "") -> None:
        values, counts = np.unique(kinds, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self.unread[f"{prefix}{value}" if value != ABSENT else "unknown"] += count

    def _drop(self, count: int, table: str) -> None:
        self.damaged += count
        if count:
            self.damaged_tables.add(table)

    def _add_rows(
        self,
        table: str,
        columns: Mapping[str, IntArray],
        sound: BoolArray | None = None,
        texts: list[bytes | None] | None = None,
    ) -> None:
        """Add a row per message to a table: `columns`, and `texts` as the column `text`.

        Only messages that are `sound` (None: all) are added; the others are counted as damaged.
        """
        arrays = {}
        for name, values in columns.items():
            narrow = values.astype(np.int32)
            fits = bool((narrow == values).all())  # 32 bits take half the memory
            integer_type = pa.int32() if fits else pa.int64()
            arrays[name] = number_column(narrow if fits else values, integer_type)
        if texts is not None:
            arrays["text"] = bytes_column(texts)
        batch = pa.RecordBatch.from_arrays([*arrays.values()], names=[*arrays])
        if sound is not None and not sound.all():
            self._drop(count_true(~sound), table)
            batch = batch.filter(flag_column(sound))
        if batch.num_rows:
            self.tables[table].append(batch)


def _keys(numbers: Numbers) -> list[int]:
    return [number for number, _ in numbers]


def _named(columns: Columns, numbers: Numbers, maybe: Collection[str] = ()) -> dict[str, IntArray]:
    """Return the columns of `numbers` by name; a missing field is 0, or ABSENT if in `maybe`."""
    named = {name: columns.numbers[number] for number, name in numbers}
    return {
        name: values if name in maybe else np.where(values == ABSENT, 0, values)
        for name, values in named.items()
    }

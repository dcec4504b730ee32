"""Reads a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot) into a Trace.

Counters are named like those of the profiler's memory events and have the stack of the allocation;
marks are the allocator's calls for GPU memory. What was held before the recorded events follows
from the state at the snapshot by undoing them. Sizes are as requested, without events those of
whole blocks. See docs/parsers/memory_snapshot.md.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from traceflops.devices.side_records import MEMORY_SNAPSHOT
from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.io.pickled import unpickled
from traceflops.parsers.io.places import rank_in_name
from traceflops.parsers.pytorch.allocator import ALLOC, FREE, SEGMENTS, Blocks, History
from traceflops.parsers.pytorch.values import typed_integers
from traceflops.parsers.shared import trace_builder
from traceflops.parsers.shared.formats import Format
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, LIMIT_NS, Array, IntArray
from traceflops.table.trace import Note, Source, SourceFile, Trace, rank_from_name

_SIGN: Final = re.compile(
    rb"\x80[\x02-\x05][\s\S]{0,40}?[\x8cX]"
    rb"(?:\x08(?:\x00\x00\x00)?segments|\x0d(?:\x00\x00\x00)?device_traces"
    rb"|\x06(?:\x00\x00\x00)?device[\s\S]{1,12}?[\x8cX]\x07(?:\x00\x00\x00)?address)"
)
_NOTES: Final = NoteTable(
    repaired={
        "times-ordered": "{n} [event is|events are] earlier than the one before: moved to its time."
    },
    dropped={"unknown-action": "{n} [event|events] of unknown kinds ignored."},
    assumed={
        "events-contradict": "{n} [event does|events do] not fit the one before at the same "
        "address: the history has gaps, and totals may be wrong.",
        "state-differs": "GPU {gpu}: the events do not add up to the state at the snapshot, which "
        "holds {count} bytes more or less. Recording may have stopped before it.",
        "no-times": "Events have no times (PyTorch before 2.1): they are shown in order, 1 µs "
        "apart.",
    },
    missing={
        "no-history": "The snapshot has no history, so only its own time is shown. Call "
        "torch.cuda.memory._record_memory_history(max_entries=100000) before the work.",
        "held-before": "Who allocated {n} [block|blocks] is not recorded: it was before the "
        "events begin. To know, raise max_entries of _record_memory_history(), or call it earlier.",
    },
)
_IGNORED: Final = ("free_completed", "snapshot", "user_defined")
"""Ignored actions. A block counts as free when the program asks for it, not when that completes."""
_HELD, _OTHER = "active_allocated", "other"
_MOST_FRAMES: Final = 8
_LONGEST: Final = 100
_OWN, _PACKAGE, _TORCH, _OPERATION, _OTHER_FRAME, _WRAPPER, _CHECKPOINT = range(7)
"""Kinds of frames: Python of the program, of packages, of PyTorch; operator or backward; other.

_WRAPPER is PyTorch's wrapper of functions under no_grad or inference_mode, _CHECKPOINT that of
checkpointing, which runs a forward pass again in the backward pass.
"""
_WRAPPERS: Final = (
    (_WRAPPER, re.compile(r"(?:_contextlib|grad_mode)\.py: (?:decorate|generator)_context")),
    (_CHECKPOINT, re.compile(r"checkpoint\.py: (?:unpack_hook|backward)")),
)
_SEPARATOR: Final = r"[/\\]"
_OF_TORCH: Final = re.compile(r"(?:^|[/\\])torch[/\\](?!optim[/\\])")
_OF_PYTHON: Final = re.compile(r"\.pyx?$|^<")
_INSTALLED: Final = re.compile(
    r"[/\\](?:(?:site|dist)-packages|lib[/\\]python3[.\d]*)[/\\](?!.*\btorch[/\\]optim[/\\])"
)
_OPERATOR: Final = re.compile(r"\bat::_ops::(\w+)::call\(")
_BACKWARD: Final = re.compile(r"(?<!::)\btorch::autograd::(?:\w++::)*(\w++)::apply\(")
"""Frames of PyTorch, of Python files, of installed packages; C++ that names an operator, or a
backward function. PyTorch's optimizers count as the program's: they hold their state.
"""
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**44)]
_Address = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Event(msgspec.Struct, gc=False):
    """One event; `frames` is converted later, once for all events that share the list."""

    action: str
    size: _Size = 0
    addr: _Address | None = None
    time_us: Annotated[int, msgspec.Meta(ge=0, le=LIMIT_NS // 1000)] | None = None
    frames: Any = None


class _Use(msgspec.Struct, gc=False):
    """What took a block, in snapshots of PyTorch before 2.1."""

    real_size: _Size | None = None
    frames: Any = None


class _Block(msgspec.Struct, gc=False):
    """One block of a segment; `history` has what took it, last first."""

    size: _Size
    state: str
    address: _Address | None = None
    requested_size: _Size | None = None
    frames: Any = None
    history: Any = ()

    @property
    def asked(self) -> int:
        """The size as requested; the oldest versions have only the size of the block."""
        return self.size if self.requested_size is None else self.requested_size


class _Segment(msgspec.Struct, gc=False):
    """Memory that the allocator took from the GPU in one piece."""

    device: Annotated[int, msgspec.Meta(ge=0, lt=1024)]
    address: _Address
    total_size: _Size
    blocks: Any
    is_expandable: bool = False


class _Snapshot(msgspec.Struct, gc=False):
    """A snapshot: segments, and a list of events per device."""

    segments: list[Any]
    device_traces: Annotated[list[Any], msgspec.Meta(max_length=1024)] = []


_KEYS: Final = frozenset({"name", "filename", "line"}).union(
    *(kind.__struct_fields__ for kind in (_Event, _Use, _Block, _Segment, _Snapshot))
)


def read_snapshot(source: ByteSource) -> Trace:
    """Return a snapshot as a trace. Raises InputError if it is damaged or not a snapshot."""
    value = unpickled(source, _KEYS)
    if isinstance(value, list):  # the result of torch.cuda.memory_snapshot()
        value = {"segments": value}
    try:
        snapshot = msgspec.convert(value, _Snapshot)
        segments = msgspec.convert(snapshot.segments, list[_Segment])
        # A pickle may contain a list many times. Refuse that: a small file could become huge.
        lists = [*snapshot.device_traces, *(segment.blocks for segment in segments)]
        list_ids = [id(items) for items in lists if items.__class__ is list and items]
        if len(set(list_ids)) < len(list_ids):
            raise msgspec.ValidationError("lists in several places at once")
        blocks = [msgspec.convert(segment.blocks, list[_Block]) for segment in segments]
        traces = [msgspec.convert(events, list[_Event]) for events in snapshot.device_traces]
        for segment, blocks_inside in zip(segments, blocks, strict=True):
            _complete(segment, blocks_inside)
    except msgspec.ValidationError as error:
        raise NotATrace(
            f"not a memory snapshot of PyTorch: {source.label} ({str(error)[:200]})",
            "give what torch.cuda.memory._dump_snapshot wrote",
        ) from None
    segments_of: defaultdict[int, list[_Segment]] = defaultdict(list)  # by device
    held_blocks_of: defaultdict[int, list[_Block]] = defaultdict(list)
    for segment, blocks_inside in zip(segments, blocks, strict=True):
        segments_of[segment.device].append(segment)
        held_blocks_of[segment.device] += [b for b in blocks_inside if b.state == _HELD]
    reader = _Reader(source)
    for device in sorted({*segments_of, *(n for n, events in enumerate(traces) if events)}):
        events = traces[device] if device < len(traces) else []
        reader.add(device, events, segments_of[device], held_blocks_of[device])
    return reader.trace()


def _complete(segment: _Segment, blocks: Sequence[_Block]) -> None:
    """Add what blocks of PyTorch before 2.1 lack: addresses, and frames outside of the history.

    Raises ValidationError if these cannot be.
    """
    address = segment.address
    for block in blocks:
        if block.address is None:
            block.address = msgspec.convert(address, _Address)
            if block.history.__class__ is list and block.history:
                use = msgspec.convert(block.history[0], _Use)
                block.frames = use.frames
                block.requested_size = block.requested_size or use.real_size
        address += block.size


class _Reader:
    """Collects the rows of all devices of a snapshot."""

    def __init__(self, source: ByteSource) -> None:
        """Begin without rows; `source` is named in errors and in the trace."""
        self._source = source
        self._tables = {name: TableBuilder(name) for name in ("counters", "marks")}
        # By `id` of a decoded list of frames its code; by that of a frame its text and kind.
        self._stacks: dict[int, int] = {}
        self._frames: dict[int, tuple[str, int]] = {}
        self._devices: list[int] = []
        self._notes: list[Note] = []
        self._counts: Counter[str] = Counter()  # events, by action
        self._odd: Counter[str] = Counter()  # what is wrong, by the code of its note
        self._has_times = False

    def add(
        self,
        device: int,
        events: Sequence[_Event],
        segments: Sequence[_Segment],
        blocks: Sequence[_Block],
    ) -> None:
        """Add counters and marks of one device; `blocks` are those held at the snapshot."""
        recorded_us = _column(events, "time_us")
        if (recorded_us == ABSENT).any():  # the writer gave no times: use the order of the events
            times_us = np.arange(len(events))
        else:
            # recorded_us [5 9 7 8]: one step back  ->  times_us [5 9 9 9]
            self._has_times |= bool(len(events))
            self._odd["times-ordered"] += int(np.count_nonzero(np.diff(recorded_us) < 0))
            times_us = np.maximum.accumulate(recorded_us)
        # Events have sizes as requested; a state alone has those that the allocator counts.
        has_history = any(_CODES.get(event.action) in (ALLOC, FREE) for event in events)
        history = History(
            action=np.array([_CODES.get(event.action, 0) for event in events], np.int64),  # 0: none
            time_ns=times_us * 1_000,
            address=_column(events, "addr"),
            size=_column(events, "size"),
            stack=self._stack_codes(events),
            held=Blocks(
                address=_column(blocks, "address"),
                size=_column(blocks, "asked" if has_history else "size"),
                code=self._stack_codes(blocks),
            ),
            segments=Blocks(
                address=_column(segments, "address"),
                size=_column(segments, "total_size"),
                code=_column(segments, "is_expandable"),
            ),
        )
        if history.moved > 2**60:  # sums of sizes must fit in an int64
            raise InputError(f"impossible sizes: {self._source.label}", "dump the snapshot again")
        self._counts.update(e.action if e.action in _CODES else _OTHER for e in events)
        if events:
            self._odd["events-contradict"] += history.contradictions
            self._odd["held-before"] += int(np.count_nonzero(history.held_at_start.code < 0))
            if missing := abs(history.missing):
                self._notes.append(_NOTES.note("state-differs", missing, gpu=device))
        self._add_history(history)
        self._devices.append(device)

    def _add_history(self, history: History) -> None:
        """Add counters, the series of a history and the sizes of requests that failed, and marks.

        The number of the device is that of the devices before it.
        """
        is_failed = history.action == _FAILED
        failed: dict[str, Array] = {
            "time_ns": history.time_ns[is_failed],
            "value": history.size[is_failed].astype(np.float64),
            "stack": history.stack[is_failed].astype(np.int32),
        }
        number, counters = len(self._devices), self._tables["counters"]
        for quantity, series in (*history.series(), ("failed", failed)):
            name = counters.names["name"][f"device_memory.{quantity}_bytes"]
            count = len(series["time_ns"])
            counters.add(count, process=0, device=number, name=name, **series)
        marks = self._tables["marks"]
        kind = marks.names["kind"]["event"]
        for code, action in _MARKED.items():
            start = history.time_ns[history.action == code]
            name = marks.names["name"][action]
            marks.add(len(start), process=0, start_ns=start, dur_ns=0, kind=kind, name=name)

    def trace(self) -> Trace:
        """Return the trace of the collected rows."""
        source, rank = self._source, rank_in_name(self._source.name)
        process = trace_builder.ProcessFacts(source.label, rank)
        devices = [(0, device, trace_builder.NOTHING_KNOWN) for device in self._devices]
        tables = {
            "processes": trace_builder.processes_table([process]),
            "devices": trace_builder.devices_table(devices),
            **{name: trace_builder.in_order_of_time(table) for name, table in self._tables.items()},
        }
        self._odd["unknown-action"] = self._counts[_OTHER]
        notes = [rank_from_name([rank])] if rank is not None else []
        notes += [*_NOTES.counted(self._odd, *self._odd), *self._notes]
        if not self._counts.keys() & {"alloc", "free_requested"}:
            notes.append(_NOTES.note("no-history"))
        elif not self._has_times:
            notes.append(_NOTES.note("no-times"))
        notes = [replace(note, file=source.label) for note in notes]
        return Trace(
            source=Source(
                format=MEMORY_SNAPSHOT,
                tool="PyTorch",
                files=(SourceFile(source.label, source.stored_bytes, source.text_bytes),),
                origin_unix_ns=0 if self._has_times else None,  # its times count from 1970
                event_counts=dict(sorted(self._counts.items())),
            ),
            tables=tables,
            notes=(*notes, *trace_builder.overflow_notes(self._tables.values(), source.label)),
        )

    def _stack_codes(self, rows: Sequence[_Event] | Sequence[_Block]) -> IntArray:
        """Return the code of each row's stack, -1 for none; shared lists are converted once."""
        codes = np.full(len(rows), -1, np.int64)
        names = self._tables["counters"].names["stack"]
        for index, frames in enumerate(row.frames for row in rows):
            if frames.__class__ is list and frames:
                if id(frames) not in self._stacks:
                    self._stacks[id(frames)] = names[self._stack_text(frames)]
                codes[index] = self._stacks[id(frames)]
        return codes

    def _stack_text(self, frames: Sequence[Any]) -> str:
        """Return a stack as a text of at most _MOST_FRAMES frames, innermost first.

        `frames` are innermost first. The text has the first of these that the stack has:
        1. The operator that Python called, and Python frames of the program and of packages.
        2. The operator that Python called, and Python frames of PyTorch.
        3. Operators and backward functions (a thread without Python), else all frames.
        Frames of packages inside of the program's innermost frame are left out: numpy/core.py <
        train.py is "train.py". Not if PyTorch called the package: its modules are what runs, so
        package/model.py < torch/module.py < train.py is "package/model.py < train.py".
        A wrapper of program frames (checkpointing's, else no_grad's) is kept, last if far out.
        """
        texts_by_kind: list[list[str]] = [[], [], [], [], []]
        program, _, torch, operators, others = texts_by_kind
        texts_by_kind[_PACKAGE] = program  # one list for Python of the program and of packages
        may_drop_packages, wrapper, is_again = True, "", False
        for frame in frames:
            if id(frame) not in self._frames:
                self._frames[id(frame)] = _frame(frame)
            text, kind = self._frames[id(frame)]
            if kind in (_WRAPPER, _CHECKPOINT):
                if program and not is_again and (kind == _CHECKPOINT or not wrapper):
                    wrapper, is_again = text, kind == _CHECKPOINT
                    program += [text] * (len(program) < _MOST_FRAMES)
                kind = _TORCH
            if len(program) == _MOST_FRAMES:
                continue
            if kind == _OWN and may_drop_packages:
                program.clear()
            if kind == _OWN or (kind == _TORCH and program):  # PyTorch called these packages
                may_drop_packages = False
            # Outside of the innermost Python frame only Python counts.
            if kind <= _TORCH or not (program or torch):
                texts_by_kind[kind].append(text)
        python = program or torch
        shown = [*operators[-1:], *python] if python else operators or others
        if wrapper and wrapper not in shown[:_MOST_FRAMES]:
            shown = [*shown[: _MOST_FRAMES - 1], wrapper]
        return " < ".join(shown[:_MOST_FRAMES])


def _column(rows: Sequence[Any], name: str) -> IntArray:
    values = (getattr(row, name) for row in rows)
    return typed_integers([ABSENT if value is None else int(value) for value in values])


_FAILED: Final = 7
_MARKED: Final = {**SEGMENTS, _FAILED: "oom"}
_CODES: Final = {
    "alloc": ALLOC,
    "free_requested": FREE,
    **{name: code for code, name in _MARKED.items()},
    **dict.fromkeys(_IGNORED, 0),
}


def _frame(frame: Any) -> tuple[str, int]:
    """Return a frame's text and its kind, such as ("train.py(12): step", _OWN)."""
    fields = frame if isinstance(frame, dict) else {}
    texts = (fields.get(key) for key in ("filename", "name"))
    path, name = (text if isinstance(text, str) else "" for text in texts)
    kind = _OTHER_FRAME
    if _OF_PYTHON.search(path):
        kind = _TORCH if _OF_TORCH.search(path) else _PACKAGE if _INSTALLED.search(path) else _OWN
        if kind == _TORCH:
            called = f"{re.split(_SEPARATOR, path)[-1]}: {name}"
            kind = next((one for one, its in _WRAPPERS if its.fullmatch(called)), kind)
    elif (operator := _OPERATOR.search(name)) is not None:
        return f"aten::{operator[1][:_LONGEST]}", _OPERATION
    elif (backward := _BACKWARD.search(name)) is not None:
        return backward[1][:_LONGEST], _OPERATION
    file, line = re.split(_SEPARATOR, path)[-1][:_LONGEST], fields.get("line")
    where = f"{file}({line})" if isinstance(line, int) and 0 < line < 10**9 else file
    return ": ".join(filter(None, (where, name[:_LONGEST]))), kind


SNAPSHOT: Final = Format(
    MEMORY_SNAPSHOT,
    lambda head: _SIGN.match(head) is not None,
    lambda sources, _: [read_snapshot(source) for source in sources],
)

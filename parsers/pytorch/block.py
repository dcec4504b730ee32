"""Reads blocks of text, each with many events, into rows of tables.

No block depends on another, so any process can read them, in any order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final, TypeVar, Union, cast

import msgspec
import numpy as np

from traceflops.parsers.io.json_text import UNDECODABLE, list_decoder, valid_utf8
from traceflops.parsers.pytorch import events as kineto
from traceflops.parsers.pytorch import legacy
from traceflops.parsers.pytorch.tables import Group, KinetoRows
from traceflops.parsers.pytorch.values import (
    DigitsLost,
    as_text,
    integer,
    integers,
    nanoseconds,
    trailing_integer,
)
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, IntArray

A = TypeVar("A", bound=kineto.Args)
_STEP_NAME = "ProfilerStep#"
_PATIENCE = 4
_METADATA_BYTES: Final = 1 << 16
"""How near the end of a text to look for names of processes and threads (without category)."""
_NO_ARGS: Final = kineto.Args()
_TABLES: Final = ("activities", "calls", "ops", "marks", "counters")


class KinetoBlock:
    """The rows and counts of a block of decoded events.

    `flows` are ids and times of the arrows between calls and device work, as (2, n) arrays;
    `legacy_ops` counts operators of old files. Raises DigitsLost if times must be read exactly.
    """

    def __init__(self, events: list[Any], python_stacks: bool) -> None:
        """Add the events to the tables, one category and phase after the other."""
        unwanted = kineto.IGNORED if python_stacks else kineto.IGNORED | kineto.PYTHON_CATEGORIES
        self.rows = KinetoRows()
        self.counts: Counter[str] = Counter()
        self.flows: list[IntArray] = []
        self.legacy_ops = 0
        for category, phase, group in self._groups(events):
            self.counts[category or f"phase {phase}"] += len(group)
            if category in unwanted:
                continue
            # Count events that are skipped for their category or phase.
            is_arrow = category in kineto.FLOW_CATEGORIES or category == legacy.ARROWS
            used_phases = ("s", "t", "f") if is_arrow else ("X", "i")
            if category in kineto.KNOWN_CATEGORIES | legacy.CATEGORIES:
                self.rows.odd["odd-phase"] += 0 if phase in used_phases else len(group)
            elif not category and phase == "X":
                self.rows.odd["no-category"] += len(group)
            if phase == "X" and category in _ADDERS:
                _ADDERS[category](self.rows, group)
            elif phase == "i":
                has_memory = isinstance(group.args[0], kineto.MemoryArgs)  # all are of one type
                is_memory = [has_memory and event.name == "[memory]" for event in group.events]
                memory, instants = group.parted(is_memory)
                if len(memory):
                    self.rows.add_memory(memory)
                if len(instants):
                    self.rows.add_instants(instants)
            elif phase in ("s", "f") and category in kineto.FLOW_CATEGORIES:
                time, has_time = nanoseconds([event.ts for event in group.events])
                rows = np.stack([integers([event.id for event in group.events]), time])
                self.flows.append(rows[:, has_time])

    def _groups(self, events: list[Any]) -> Iterator[tuple[str, str, Group]]:
        """Yield (category, phase, events with their arguments) for each category and phase."""
        by_type: defaultdict[Any, list[Any]] = defaultdict(list)
        for event in events:
            by_type[event.__class__].append(event)
        for event_type, events_of_type in by_type.items():
            if event_type in (kineto.LooseEvent, kineto.ExactEvent):
                yield from self._loose_groups(events_of_type)
                continue
            # These were decoded by category: each has a type of its own.
            has_args = "args" in event_type.__struct_fields__
            for phase, same in _by_phase(events_of_type):
                args = [event.args for event in same] if has_args else [_NO_ARGS] * len(same)
                yield event_type.__struct_config__.tag, phase, Group(same, args)

    def _loose_groups(self, events: list[Any]) -> Iterator[tuple[str, str, Group]]:
        """Yield the groups of events of any category, whose arguments are still text."""
        by_category: defaultdict[str, list[Any]] = defaultdict(list)
        categories = [legacy.category(event) for event in events]
        for event, category in zip(events, categories, strict=True):
            by_category[category].append(event)
        if legacy.OPS in by_category or legacy.WORK in by_category:
            self.legacy_ops += legacy.number_ops(events, categories)
        for category, members in by_category.items():
            for phase, same in _by_phase(members):
                args_type: type[kineto.Args] = kineto.ARGS.get(category, kineto.Args)
                if phase == "i" and category not in kineto.KNOWN_CATEGORIES:
                    args_type = kineto.MemoryArgs  # old files write these without a category
                texts = [event.args for event in same]
                args: list[Any] = _read_args(texts, args_type, self.rows.odd)
                if category in (legacy.OPS, legacy.WORK):
                    # Ids (see `legacy.number_ops`) and devices are beside the arguments.
                    for own_args, event in zip(args, same, strict=True):
                        own_args.external_id = event.id
                        if category == legacy.WORK:
                            own_args.device = trailing_integer(event.tid)
                yield category, phase, Group(same, args)


class Collected:
    """The rows and counts of all blocks of one file."""

    def __init__(self) -> None:
        self.tables = {name: TableBuilder(name) for name in _TABLES}
        self.counts: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.flows: list[IntArray] = []

    def absorb(self, block: KinetoBlock) -> None:
        """Add a block. Blocks must come in the order of the text: it numbers old operators."""
        if block.legacy_ops or legacy.WORK in block.counts:
            # A block numbers its operators from 0; its -1 is the last operator of the block before.
            # Number on: after 3 operators, [-1 0 1 ABSENT] -> [2 3 4 ABSENT]. ABSENT is below 0.
            operators_before = self.counts[legacy.OPS]
            for count, columns in (*block.rows.ops.pieces, *block.rows.activities.pieces):
                in_block = np.asarray(columns.get("external_id", ABSENT), dtype=np.int64)
                in_file = in_block + operators_before
                in_file = np.where(in_file < 0, ABSENT, in_file)
                columns["external_id"] = np.broadcast_to(in_file, count)
        for name, table in self.tables.items():
            table.absorb(getattr(block.rows, name))
        self.counts.update(block.counts)
        self.odd.update(block.rows.odd)
        self.flows.extend(block.flows)


class KinetoReader:
    """Reads blocks of text, also in worker processes.

    Most blocks can be decoded with a type per category. After _PATIENCE blocks in a row that
    cannot, all further ones are decoded as LooseEvent; after DigitsLost, as ExactEvent.
    """

    element = kineto.ExactEvent

    def __init__(self, python_stacks: bool = True) -> None:
        self._python_stacks = python_stacks
        self._exact = False
        self._odd_blocks = 0

    def read(self, text: bytes | memoryview) -> KinetoBlock | None:
        """Return the rows of a JSON list of events, None if it cannot be decoded."""
        if not self._exact and self._odd_blocks < _PATIENCE:
            try:
                block = KinetoBlock(self._usual_events(text), self._python_stacks)
                self._odd_blocks = 0
                return block
            except UNDECODABLE:
                self._odd_blocks += 1
            except DigitsLost:
                self._exact = True
        event_types = (kineto.LooseEvent, kineto.ExactEvent)
        for event_type in event_types[1:] if self._exact else event_types:
            try:
                return KinetoBlock(list_decoder(event_type).decode(text), self._python_stacks)
            except DigitsLost:
                self._exact = True
            except UNDECODABLE:  # as an ExactEvent, times too large for a double can be decoded
                continue
        return None

    def _usual_events(self, text: bytes | memoryview) -> list[Any]:
        """Return the events of a JSON list, each of the type of its category.

        From the first metadata event (phase M) near the end on, they are LooseEvents.
        Example: [{"ph":"X"},{"ph":"M"},{"ph":"s"}] is decoded as two lists,
        [{"ph":"X"}] as usual and [{"ph":"M"},{"ph":"s"}] as LooseEvents.
        """
        event_types = kineto.tagged_events(self._python_stacks)
        usual = list_decoder(Union[event_types])  # noqa: UP007
        end = bytes(text[-_METADATA_BYTES:])
        begin = end.rfind(b"{", 0, end.find(b'"M"') + 1)  # of the metadata event; -1 without "M"
        if begin < 0:
            return usual.decode(text)
        before = len(text) - len(end) + len(end[:begin].rstrip(b", \t\r\n"))  # without the comma
        events: list[Any] = usual.decode(b"".join((text[:before], b"]")))
        events += list_decoder(kineto.LooseEvent).decode(b"[" + end[begin:])
        return events


def _by_phase(events: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each phase with its events; an event with a duration but no phase is complete (X)."""
    phases = [event.ph for event in events]
    first = phases[0]
    if first.__class__ is str and phases.count(first) == len(phases):
        yield first, events
        return
    groups: defaultdict[str, list[Any]] = defaultdict(list)
    for event in events:
        is_complete = event.ph is None and getattr(event, "dur", None) is not None
        phase = "X" if is_complete else event.ph
        # A phase that is not a text is wrong, and may be long once it is printed.
        groups[phase if phase.__class__ is str else str(phase)[:20]].append(event)
    yield from groups.items()


def _add_ops(rows: KinetoRows, group: Group) -> None:
    """Add ops, except step markers, which old files write as ops: these become annotations."""
    ops = group
    texts = {name for name in [event.name for event in group.events] if name.__class__ is str}
    if any(text.startswith(_STEP_NAME) for text in texts):
        is_step = [as_text(event.name).startswith(_STEP_NAME) for event in group.events]
        steps, ops = group.parted(is_step)
        rows.add_host_marks(steps, "annotation")
    rows.add_ops(ops)


_ADDERS: Final[dict[str, Callable[[KinetoRows, Group], None]]] = {
    **{c: partial(KinetoRows.add_activities, kind=k) for c, k in kineto.ACTIVITY_KINDS.items()},
    **{c: partial(KinetoRows.add_calls, api=api) for c, api in kineto.CALL_APIS.items()},
    **{c: partial(KinetoRows.add_host_marks, kind=k) for c, k in kineto.HOST_MARKS.items()},
    **{c: partial(KinetoRows.add_device_marks, kind=k) for c, k in kineto.DEVICE_MARKS.items()},
    **dict.fromkeys(kineto.PYTHON_CATEGORIES, KinetoRows.add_python),
    **dict.fromkeys((*kineto.OP_CATEGORIES, legacy.OPS), _add_ops),
    legacy.WORK: partial(KinetoRows.add_activities, kind="op"),
}
"""The function that adds complete events (phase X) of a category."""


def _read_args(texts: Sequence[msgspec.Raw], args_type: type[A], odd: Counter[str]) -> list[A]:
    """Return the arguments of each event; the defaults if an event has none or unreadable ones.

    Three ways are tried, the fastest first: 1. all at once, exactly as `args_type`; 2. all at once,
    with any JSON value in the fields; 3. one by one. `odd` counts those unreadable or repaired.
    """
    if args_type is kineto.Args:  # no table needs arguments of this category
        return [args_type()] * len(texts)
    objects = [bytes(text) or b"{}" for text in texts]
    together = b"[" + b",".join(objects) + b"]"
    with suppress(*UNDECODABLE):
        return cast(list[A], list_decoder(args_type).decode(together))
    with suppress(*UNDECODABLE):
        return _narrowed(list_decoder(_loose(args_type)).decode(together), args_type)
    args: list[A] = []
    for text in objects:
        if text == b"null":
            args.append(args_type())
            continue
        decoded = [args_type()]
        for candidate in (text, valid_utf8(text)):  # as it is, or with invalid UTF-8 replaced
            with suppress(*UNDECODABLE):
                loose = list_decoder(_loose(args_type)).decode(b"[" + candidate + b"]")
                decoded = _narrowed(loose, args_type)
                odd["arguments-repaired"] += candidate != text
                break
        else:
            odd["bad-arguments"] += 1
        args += decoded[:1]  # damaged text may read as several objects
    return args


@cache
def _loose(args_type: type[kineto.Args]) -> Any:
    """Return a type of arguments like `args_type` that accepts any JSON value in its fields."""
    fields = [
        (field.name, Any, msgspec.field(name=field.encode_name, default=field.default))
        for field in msgspec.structs.fields(args_type)
        if field.type is not msgspec.Raw
    ]
    return msgspec.defstruct(args_type.__name__, fields, bases=(args_type,), gc=False)


def _narrowed(loose: list[A], args_type: type[A]) -> list[A]:
    """Convert the integer fields of arguments to integers, in place; return the arguments."""
    fields = msgspec.structs.fields(args_type)
    names = [f.name for f in fields if f.type in (int, int | None)]
    for args in loose:
        for name in names:
            value = getattr(args, name)
            if value.__class__ is not int:
                setattr(args, name, integer(value))
    return loose

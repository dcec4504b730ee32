"""Reads blocks of the text of many events into rows.

A block depends on no other, so blocks can be read in any order and by any process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final, TypeVar, Union, cast

import msgspec
import numpy as np

from traceflops.parsers.io.json_mend import valid_utf8
from traceflops.parsers.io.json_window import UNDECODABLE, list_decoder
from traceflops.parsers.pytorch import events as kineto
from traceflops.parsers.pytorch import legacy
from traceflops.parsers.pytorch.tables import Group, KinetoRows
from traceflops.parsers.pytorch.values import DigitsLost, as_text, integer, integers, nanoseconds
from traceflops.table.columns import IntArray

A = TypeVar("A", bound=kineto.Args)
_STEP_NAME = "ProfilerStep#"
_PATIENCE = 4
_METADATA_BYTES: Final = 1 << 16
"""How near the end of a text to look for names of processes and threads (without category)."""
_NO_ARGS: Final = kineto.Args()


class KinetoBlock:
    """The rows and counts of a block of decoded events. Raises DigitsLost (see ExactEvent)."""

    def __init__(self, events: list[Any], python_stacks: bool) -> None:
        """Add the events to the tables, one category and phase after the other."""
        self._unwanted = (
            kineto.IGNORED if python_stacks else kineto.IGNORED | kineto.PYTHON_CATEGORIES
        )
        self.rows = KinetoRows()
        self.counts: Counter[str] = Counter()
        self.flows: list[IntArray] = []
        """Ids and times of the arrows between calls and device work, as (2, n) arrays."""
        self.legacy_ops = 0
        for category, phase, group in self._groups(events):
            self.counts[category or f"phase {phase}"] += len(group)
            if category in self._unwanted:
                continue
            # Count events that are skipped for their category or phase.
            is_arrow = category in kineto.FLOW_CATEGORIES or category == legacy.ARROWS
            if category in kineto.KNOWN_CATEGORIES | legacy.CATEGORIES:
                is_used = phase in (("s", "t", "f") if is_arrow else ("X", "i"))
                self.rows.odd["odd-phase"] += 0 if is_used else len(group)
            elif not category and phase == "X":
                self.rows.odd["no-category"] += len(group)
            if phase == "X":
                adder = _ADDERS.get(category)
                if adder is not None:
                    adder(self.rows, group)
            elif phase == "i":
                may_be = isinstance(
                    group.args[0], kineto.MemoryArgs
                )  # all arguments are of one type
                memory, instants = group.parted(
                    [may_be and event.name == "[memory]" for event in group.events]
                )
                if len(memory):
                    self.rows.add_memory(memory)
                if len(instants):
                    self.rows.add_instants(instants)
            elif phase in ("s", "f") and category in kineto.FLOW_CATEGORIES:
                time, has_time = nanoseconds([event.ts for event in group.events])
                rows = np.stack([integers([event.id for event in group.events]), time])
                self.flows.append(rows[:, has_time])

    def _groups(self, events: list[Any]) -> Iterator[tuple[str, str, Group]]:
        """Yield each category and phase, with its events and their arguments."""
        by_type: defaultdict[Any, list[Any]] = defaultdict(list)
        for event in events:
            by_type[event.__class__].append(event)
        for kind, group in by_type.items():
            # Events decoded by category have a type of their own for each.
            if kind not in (kineto.LooseEvent, kineto.ExactEvent):
                has_args = "args" in kind.__struct_fields__
                for phase, same in _by_phase(group):
                    args = [event.args for event in same] if has_args else [_NO_ARGS] * len(same)
                    yield kind.__struct_config__.tag, phase, Group(same, args)
                continue
            # Decoded without regard to the category, which is found here; arguments are still text.
            by_category: defaultdict[str, list[Any]] = defaultdict(list)
            categories = [legacy.category(event) for event in group]
            for event, category in zip(group, categories, strict=True):
                by_category[category].append(event)
            if legacy.OPS in by_category or legacy.WORK in by_category:
                self.legacy_ops += legacy.number_ops(group, categories)
            for category, members in by_category.items():
                for phase, same in _by_phase(members):
                    # Old files write memory events without a category.
                    is_memory = phase == "i" and category not in kineto.KNOWN_CATEGORIES
                    args_type = (
                        kineto.MemoryArgs if is_memory else kineto.ARGS.get(category, kineto.Args)
                    )
                    args = _read_args([event.args for event in same], args_type, self.rows.odd)
                    if category in (legacy.OPS, legacy.WORK):
                        legacy.add_ids(args, same, category == legacy.WORK)
                    yield category, phase, Group(same, args)


class KinetoReader:
    """Reads blocks of text, also in worker processes.

    Most blocks can be decoded with the types of their categories. After _PATIENCE blocks in a row
    that cannot, all are decoded as LooseEvent; after DigitsLost, as ExactEvent.
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
                block = KinetoBlock(self._usual(text), self._python_stacks)
                self._odd_blocks = 0
                return block
            except UNDECODABLE:
                self._odd_blocks += 1
            except DigitsLost:
                self._exact = True
        for element in (
            (kineto.ExactEvent,) if self._exact else (kineto.LooseEvent, kineto.ExactEvent)
        ):
            try:
                return KinetoBlock(list_decoder(element).decode(text), self._python_stacks)
            except DigitsLost:
                self._exact = True
            except UNDECODABLE:  # as an ExactEvent, times too large for a double can be decoded
                continue
        return None

    def _usual(self, text: bytes | memoryview) -> list[Any]:
        """Return the events of a list, by the types of their categories.

        From the first metadata event (phase M) near the end on, events are decoded as LooseEvent:
        such events have no category.
        """
        usual, last = _usual_decoder(self._python_stacks), bytes(text[-_METADATA_BYTES:])
        begin = last.rfind(b"{", 0, last.find(b'"M"') + 1)
        if begin < 0:
            return usual.decode(text)
        # Decode the list up to that event, and the rest as another list.
        before = len(text) - len(last) + len(last[:begin].rstrip(b", \t\r\n"))
        events: list[Any] = usual.decode(b"".join((text[:before], b"]")))
        events += list_decoder(kineto.LooseEvent).decode(b"[" + last[begin:])
        return events


def _by_phase(events: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each phase with its events; one without phase but with a duration is complete (X)."""
    phases = [event.ph for event in events]
    first = phases[0]
    if first.__class__ is str and phases.count(first) == len(phases):
        yield first, events
        return
    groups: defaultdict[str, list[Any]] = defaultdict(list)
    for event in events:
        is_complete = event.ph is None and getattr(event, "dur", None) is not None
        phase = "X" if is_complete else event.ph
        # A phase that is no text is wrong, and its text may be long.
        groups[phase if phase.__class__ is str else str(phase)[:20]].append(event)
    yield from groups.items()


@cache
def _usual_decoder(python_stacks: bool) -> msgspec.json.Decoder[list[Any]]:
    return list_decoder(Union[tuple(kineto.tagged_events(python_stacks))])  # noqa: UP007


def _add_ops(rows: KinetoRows, group: Group) -> None:
    """Add ops, except step markers, which old files write as ops: these become annotations."""
    texts = {name for name in [event.name for event in group.events] if name.__class__ is str}
    if any(text.startswith(_STEP_NAME) for text in texts):
        is_step = [as_text(event.name).startswith(_STEP_NAME) for event in group.events]
        steps, group = group.parted(is_step)
        rows.add_host_marks(steps, "annotation")
    rows.add_ops(group)


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
    """Return the arguments of each event, decoded all at once if that works, else one by one.

    An event without arguments, or with unreadable ones (counted in `odd`), gets the defaults.
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
        decoded = [args_type()]
        # First as it is, then with invalid UTF-8 replaced.
        for candidate in (text, valid_utf8(text)) if text != b"null" else ():
            with suppress(*UNDECODABLE):
                loose = list_decoder(_loose(args_type)).decode(b"[" + candidate + b"]")
                decoded = _narrowed(loose, args_type)
                odd["arguments-repaired"] += candidate != text
                break
        else:
            odd["bad-arguments"] += text != b"null"
        args += decoded[:1]  # damaged text may read as several objects
    return args


@cache
def _loose(args_type: type[kineto.Args]) -> Any:
    """Return a type of arguments that accepts any JSON value in its fields, except raw ones."""
    fields = [
        (field.name, Any, msgspec.field(name=field.encode_name, default=field.default))
        for field in msgspec.structs.fields(args_type)
        if field.type is not msgspec.Raw
    ]
    return msgspec.defstruct(args_type.__name__, fields, bases=(args_type,), gc=False)


def _narrowed(loose: list[A], args_type: type[A]) -> list[A]:
    """Return the arguments with their integer fields converted to integers, in place."""
    fields = msgspec.structs.fields(args_type)
    names = [f.name for f in fields if f.type in (int, int | None)]
    for args in loose:
        for name in names:
            value = getattr(args, name)
            if value.__class__ is not int:
                setattr(args, name, integer(value))
    return loose

"""Chrome trace-event JSON as a stream: an object with a list of events, a list, or bare events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.json_blocks import WHOLE, Boundaries, Members, Path, Records, Shape
from traceflops.parsers.io.json_lists import Document
from traceflops.parsers.io.json_text import EVENT_START
from traceflops.parsers.io.worker_pool import BLOCK_BYTES, BlockReader, WorkerPool

B = TypeVar("B")
_KEY_BEFORE: Final = re.compile(rb'"traceEvents"\s*:\s*')
_EVENT_SIGN: Final = re.compile(rb'"ph"\s*:\s*"[A-Za-z]"')
_EVENTS: Final = Boundaries(
    EVENT_START,
    re.compile(rb"[]}]\s*(?:,\s*)?(?P<next>" + EVENT_START.pattern + rb")"),
    re.compile(rb'\}\s*+(?P<next>\]\s*+(?:\}\s*+(?:[\[{]|\Z)|[\[{]|,\s*+"|\Z))'),
    msgspec.defstruct(
        "Event", [(name, msgspec.Raw) for name in ("ph", "name", "pid", "tid", "ts")]
    ),
)
"""Where an object ends and one that looks like an event begins, with or without a comma."""


class EventStream(Document, Generic[B]):
    """The events of one input, read in blocks of about BLOCK_BYTES of text.

    After iteration `header` has the values of the top-level `keys` as raw JSON; `damage` says what
    was mended, dropped or cut off. Raises InputError if the text has no events.
    """

    def __init__(
        self,
        source: ByteSource,
        reader: BlockReader[B],
        pool: WorkerPool,
        keys: Iterable[str],
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Prepare to read `source`, whose events `reader` decodes in the processes of `pool`."""
        self._events = Records(reader, _EVENTS)
        root = Members({"traceEvents": self._events, **dict.fromkeys(keys, WHOLE)})
        super().__init__(source, root, pool, block_bytes)
        self.header: dict[str, msgspec.Raw] = {}

    def __iter__(self) -> Iterator[B]:
        """Yield the results of blocks in the order of the text."""
        for path, value in self.parts():
            if isinstance(value, msgspec.Raw):
                self.header[str(path[0])] = value
            else:
                yield value
        if self.lists:
            self.damage.repaired["second event list read like the first"] += self.lists - 1
        elif self.source.cut or (self.cut_in is not None and not self._broken):
            hint = "nothing can be recovered; record or copy the trace again"
            raise InputError(f"cut off before its first complete event: {self.source.label}", hint)
        else:
            raise NotATrace(
                f"no events: {self.source.label} (JSON without a traceEvents list)",
                "give a torch.profiler trace (prof.export_chrome_trace)",
            )

    def _begin_document(self) -> None:
        """Enter a list of events, or the object around it."""
        self._window.ensure(1 << 16)  # of a small text all is in sight, also behind damage
        self._begin(self._events if self._window.sign() == b"[" else self._root, ())

    def _value(self, shape: Shape, path: Path) -> None:
        if shape is self._events and self._window.sign():
            hint = "another tool changed the file; export the trace again"
            raise InputError(f"traceEvents is not a list: {self.source.label}", hint)
        super()._value(shape, path)

    def _has_ended(self) -> bool:
        """Return whether no event follows soon, except events of another trace."""
        window = self._window
        window.ensure(1 << 12)
        event = window.search(_EVENT_SIGN, window.at)
        return event is None or bool(_KEY_BEFORE.search(window.text, window.at, event.end()))

    def _cut(self, rest: bytes, more: int = 0, *, is_broken: bool = False) -> None:
        """End the document here; the text that is cut off is events, or else behind the events."""
        in_events = bool(self._frames) and self._frames[-1].shape is self._events
        super()._cut(rest, more, is_broken=is_broken)
        damage = self.damage
        if in_events:
            damage.tail_cut = False
        elif self.lists:  # what is cut is behind the events
            damage.tail_bytes, damage.cut_bytes = damage.cut_bytes or 0, None
            damage.tail_events, damage.cut_events = damage.cut_events, 0

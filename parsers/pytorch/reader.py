"""Reads one PyTorch profiler trace (Kineto JSON) into a Trace.

Format: the trace-event JSON that torch.profiler writes through Kineto, from 2020 to PyTorch 2.13.
What the categories mean and where they go stands in docs/parsers/pytorch.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from itertools import compress

import numpy as np

from traceflops.builder import ABSENT, TableBuilder
from traceflops.columns import IntArray
from traceflops.errors import InputError
from traceflops.parsers.inputs import ByteSource
from traceflops.parsers.jsonevents import BLOCK_BYTES, EventStream
from traceflops.parsers.pytorch.assemble import assemble
from traceflops.parsers.pytorch.events import (
    ACTIVITY_KINDS,
    CALL_APIS,
    DEVICE_MARKS,
    FLOW_CATEGORIES,
    HOST_MARKS,
    KNOWN_CATEGORIES,
    OP_CATEGORIES,
    PYTHON_CATEGORIES,
    Event,
    ExactEvent,
)
from traceflops.parsers.pytorch.notes import printable
from traceflops.parsers.pytorch.tables import Events, KinetoTables
from traceflops.parsers.pytorch.values import integers, nanoseconds, needs_digits
from traceflops.trace import Trace

_STEP_NAME = "ProfilerStep#"
_MEMORY_NAME = "[memory]"
Group = list[Event | ExactEvent]


def read_pytorch(source: ByteSource, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Return the trace in `source`. Raises InputError where it is not a PyTorch trace."""
    reader = _FileReader(source, block_bytes)
    reader.read_events()
    return reader.finish()


class _FileReader:
    def __init__(self, source: ByteSource, block_bytes: int) -> None:
        self.source = source
        self.stream: EventStream[Event | ExactEvent] = EventStream(source, Event, block_bytes)
        self.tables = KinetoTables()
        self.flows = _Flows()
        self.counts: Counter[str] = Counter()
        self._exact = False
        self._adders = self._adders_by_category()

    def read_events(self) -> None:
        for block in self.stream:
            events = block
            if not self._exact and _need_digits(block):
                events = self.stream.switch_type(ExactEvent)
                self._exact = True
            for (phase, category), group in _grouped(events).items():
                self.counts[category or f"phase {phase}"] += len(group)
                self._add(phase, category, group)

    def _add(self, phase: str, category: str, group: Group) -> None:
        if phase == "X":
            adder = self._adders.get(category)
            if adder is not None:
                adder(group)
        elif phase == "i":
            self._add_instants(group)
        elif phase in ("s", "f") and category in FLOW_CATEGORIES:
            self.flows.add(group)

    def _add_instants(self, group: Group) -> None:
        memory = [event for event in group if event.name == _MEMORY_NAME]
        other = [event for event in group if event.name != _MEMORY_NAME]
        if memory:
            self.tables.add_memory(memory)
        if other:
            self.tables.add_instants(other)

    def _add_ops(self, group: Group) -> None:
        """Add ops; old files write step markers as ops."""
        is_step = [isinstance(e.name, str) and e.name.startswith(_STEP_NAME) for e in group]
        if any(is_step):
            self.tables.add_host_marks("annotation", list(compress(group, is_step)))
            group = [e for e, step in zip(group, is_step, strict=True) if not step]
        self.tables.add_ops(group)

    def _adders_by_category(self) -> dict[str, Callable[[Group], None]]:
        tables = self.tables
        return {
            **{c: partial(tables.add_activities, k) for c, k in ACTIVITY_KINDS.items()},
            **{c: partial(tables.add_calls, api) for c, api in CALL_APIS.items()},
            **{c: partial(tables.add_host_marks, k) for c, k in HOST_MARKS.items()},
            **{c: partial(tables.add_device_marks, k) for c, k in DEVICE_MARKS.items()},
            **dict.fromkeys(PYTHON_CATEGORIES, tables.add_python),
            **dict.fromkeys(OP_CATEGORIES, self._add_ops),
        }

    def finish(self) -> Trace:
        """Return the trace of what was read."""
        self._refuse_foreign()
        self.flows.lend_correlations(self.tables.activities, self.tables.calls)
        return assemble(self.source, self.stream, self.tables, self.counts)

    def _refuse_foreign(self) -> None:
        if KNOWN_CATEGORIES & self.counts.keys() or self._is_empty_kineto():
            return
        damage = self.stream.damage
        if not self.counts and (self.source.cut or damage.cut_bytes is not None):
            raise InputError(
                f"cut off before its first complete event: {self.source.name}",
                "nothing can be saved from it; record or copy the trace again",
            )
        seen = ", ".join(printable(name) for name in sorted(self.counts)[:8]) or "none at all"
        raise InputError(
            f"not a PyTorch trace: {self.source.name} (event categories: {seen[:200]})",
            "give a trace written by torch.profiler (prof.export_chrome_trace)",
        )

    def _is_empty_kineto(self) -> bool:
        return (
            not self.counts
            and "schemaVersion" in self.stream.header
            and self.stream.damage.array_closed
        )


class _Flows:
    """Arrows between calls and device work, for files whose events carry no correlation."""

    def __init__(self) -> None:
        self._pieces: list[IntArray] = []

    def add(self, group: Group) -> None:
        time, known = nanoseconds([event.ts for event in group])
        rows = np.stack([integers([event.id for event in group]), time])
        self._pieces.append(rows[:, known])

    def lend_correlations(self, *tables: TableBuilder) -> None:
        """Give rows without correlation the id of the arrow that starts or ends at their time.

        An instant at which several arrows begin lends nothing: times could meet by chance.
        """
        if not self._pieces:
            return
        ids, times = np.concatenate(self._pieces, axis=1)
        instants, first, counts = np.unique(times, return_index=True, return_counts=True)
        instants, ids = instants[counts == 1], ids[first[counts == 1]]
        if not len(instants):
            return
        for table in tables:
            correlation, start = table.column("correlation"), table.column("start_ns")
            at = np.minimum(np.searchsorted(instants, start), len(instants) - 1)
            lends = (correlation == ABSENT) & (instants[at] == start)
            if lends.any():
                table.replace("correlation", np.where(lends, ids[at], correlation))


def _need_digits(events: Events) -> bool:
    return needs_digits([e.ts for e in events]) or needs_digits([e.dur for e in events])


def _grouped(events: Events) -> dict[tuple[str, str], Group]:
    groups: defaultdict[tuple[str, str], Group] = defaultdict(list)
    for event in events:
        phase, category = event.ph, event.cat
        if phase.__class__ is not str:
            phase = "X" if phase is None and event.dur is not None else str(phase)[:20]
        groups[phase, category if category.__class__ is str else ""].append(event)
    return groups

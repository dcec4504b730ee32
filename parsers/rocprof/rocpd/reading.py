"""What is at hand while a run of a rocpd database is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
import numpy as np

from traceflops.parsers.io import UNDECODABLE, Among, Lookup, TextsById, Wanted
from traceflops.parsers.rocprof.rocpd.facts import RunFacts
from traceflops.parsers.rocprof.rocpd.schema import RocpdRun
from traceflops.parsers.rocprof.rocpd.trace import Tallies
from traceflops.parsers.shared import Gathered
from traceflops.table import ABSENT, IntArray


@dataclass(frozen=True, slots=True)
class RunReading:
    """A run, what is known of it, and what was gathered and counted."""

    run: RocpdRun
    gathered: Gathered
    facts: RunFacts
    events: Events
    tallies: Tallies = field(default_factory=Tallies)

    @property
    def odd(self) -> Counter[str]:
        """Return the counts of odd records."""
        return self.tallies.odd

    @property
    def counts(self) -> Counter[str]:
        """Return the counts of all records."""
        return self.tallies.counts


def reading_of(run: RocpdRun) -> RunReading:
    """Return the beginning of reading a run."""
    gathered = Gathered()
    return RunReading(run, gathered, RunFacts(run, gathered), Events(run))


# The events of a rocpd database: what joins a dispatch to the call that launched it.


class _Message(msgspec.Struct):
    message: str


class Events:
    """Correlations and categories of events by their ids; the latter only where they are asked."""

    def __init__(self, run: RocpdRun) -> None:
        self._run = run
        # Only what runs on the host is told apart by category.
        self.with_categories = run.has_rows("region") or run.has_rows("sample")
        columns = ("id", "stack_id", *(("category_id",) if self.with_categories else ()))
        rows = run.whole("event", Wanted(integers=columns))
        self._correlation = Lookup(
            rows["id"], np.where(rows["stack_id"] == 0, ABSENT, rows["stack_id"])
        )
        self._category = Lookup(rows["id"], rows["category_id"]) if self.with_categories else None

    def correlations(self, ids: IntArray) -> IntArray:
        """Return the correlation of each event; 0 stands for none in these databases."""
        return self._correlation(ids)

    def categories(self, ids: IntArray) -> IntArray:
        """Return the ids of the names of the events' categories."""
        return np.full(len(ids), ABSENT) if self._category is None else self._category(ids)

    def messages(self, category: int) -> TextsById:
        """Return the messages of the events of a category, where they have one."""
        ids, texts = [np.empty(0, np.int64)], []
        wanted = Wanted(integers=("id",), texts=("extdata",))
        for batch in self._run.batches("event", wanted, Among("category_id", (category,))):
            ids.append(batch["id"])
            texts += [_message(text) for text in batch.texts["extdata"]]
        return TextsById(np.concatenate(ids), texts)


def _message(text: str | None) -> str | None:
    if not text or text == "{}":
        return None
    try:
        return msgspec.json.decode(text, type=_Message).message or None
    except UNDECODABLE:
        return None

"""What is at hand while a run of a rocpd database is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from traceflops.parsers.rocprof.rocpd.events import Events
from traceflops.parsers.rocprof.rocpd.facts import RunFacts
from traceflops.parsers.rocprof.rocpd.schema import Run
from traceflops.parsers.rocprof.rocpd.trace import Tallies
from traceflops.parsers.shared.trace_builder import Gathered


@dataclass(frozen=True, slots=True)
class RunReading:
    """A run, what is known of it, and what was gathered and counted."""

    run: Run
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


def reading_of(run: Run) -> RunReading:
    """Return the beginning of reading a run."""
    gathered = Gathered()
    return RunReading(run, gathered, RunFacts(run, gathered), Events(run))

"""What a trace without a timeline says, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceflops.timeline.aggregates import Untimed


def untimed_object(found: Untimed | None) -> dict[str, Any] | None:
    """Return it as plain dicts and lists; None for a trace with a timeline."""
    if found is None:
        return None
    return {
        "rows": found.rows.to_pylist(),
        "categories": found.categories.to_pylist(),
        "counted": found.counted.to_pylist(),
        "counters": list(found.counters),
        "record": found.record,
    }

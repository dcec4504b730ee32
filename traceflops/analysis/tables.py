"""The tables of an analysis by name; those that take time are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from traceflops.analysis.activity_table import FOUND, activity_table, ranks_of
from traceflops.analysis.step_tables import GAPS, STEPS, gap_table, step_table

if TYPE_CHECKING:
    from traceflops.windows import DeviceReport, Prepared


@dataclass(frozen=True)  # without slots, so that there is a place for the table
class OnDemand:
    """A table that is made when its rows are asked for; Arrow's peers ask for its columns first."""

    schema: pa.Schema
    make: Callable[[], pa.Table]

    @cached_property
    def table(self) -> pa.Table:
        """Return the table, made once."""
        return self.make()

    def __arrow_c_schema__(self) -> object:
        """Export the columns."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows."""
        return self.table.__arrow_c_stream__(requested_schema)


class Tables(Mapping[str, pa.Table]):
    """Tables by name. `sources` are the same, but for those that were not asked for."""

    def __init__(self, sources: Mapping[str, pa.Table | OnDemand]) -> None:
        """Take tables and what makes them."""
        self.sources = sources

    def __getitem__(self, name: str) -> pa.Table:
        source = self.sources[name]
        return source.table if isinstance(source, OnDemand) else source

    def __contains__(self, name: object) -> bool:
        return name in self.sources

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __repr__(self) -> str:
        """Return the names."""
        return f"<Tables {', '.join(self)}>"


def tables_of(
    report: Mapping[str, pa.Table], devices: Sequence[DeviceReport], prepared: Prepared | None
) -> Tables:
    """Return the tables of a report and of its devices, and of the recording where it was kept."""
    found = {**report, "steps": OnDemand(STEPS, partial(step_table, devices))}
    if prepared is None:
        return Tables(found)
    found["gaps"] = OnDemand(GAPS, partial(gap_table, prepared, devices))
    ranks = prepared.trace.ranks
    recorded = {n: _with_ranks(t, ranks) for n, t in prepared.trace.to_arrow().items()}
    own = {"activities": activity_table(prepared), "ops": _numbered(recorded["ops"])}
    return Tables({**found, **recorded, **own})


def _with_ranks(table: pa.Table, ranks: Sequence[int | None]) -> pa.Table:
    if "rank" in table.column_names:
        return table
    field = pa.field("rank", pa.int64(), metadata={"meaning": FOUND["rank"]})
    return table.append_column(field, ranks_of(table, ranks))


def _numbered(ops: pa.Table) -> pa.Table:
    """Return the table `ops` with the number of each row, to which `op_row` of activities leads."""
    field = pa.field("op_row", pa.int64(), metadata={"meaning": "row of this table"})
    return ops.append_column(field, pa.array(np.arange(ops.num_rows)))

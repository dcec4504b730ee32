"""The work of a paired recording, launch by launch, from the shapes of its operators."""

from __future__ import annotations

import numpy as np

from traceflops.attribution import Attribution, attribute, types_of_ops
from traceflops.mfu.counted.launches import (
    UNKNOWN,
    Kind,
    Launches,
    LaunchWork,
    WorkPart,
    launches_of,
)
from traceflops.mfu.counted.serving_kernels import with_serving_kinds
from traceflops.mfu.roof_times import moved_bytes
from traceflops.mfu.traced.executed import parts_of
from traceflops.mfu.traced.known_lengths import with_told_lengths
from traceflops.mfu.traced.work_tables import main_ops
from traceflops.table import IntArray, group_rows, taken
from traceflops.windows import Prepared


def paired_work(pair: Prepared) -> LaunchWork | None:
    """Return what the launches of a trace with shapes did, None where it tells no FLOPs."""
    attribution, _ = with_told_lengths(pair, attribute(pair.linked))
    launches = launches_of(pair)
    if not len(attribution.executed) or not launches.count:
        return None
    op = main_ops(attribution, pair.trace.activities.num_rows)[launches.row]
    helps = (attribution.owner[launches.row] >= 0) & (op < 0)
    of_op, kinds = _kinds(pair, attribution)
    kind = np.where(helps, len(kinds), taken(of_op, op, UNKNOWN))
    size = taken(attribution.work.of_ops(attribution.work.min_bytes), op, UNKNOWN)
    unknown = np.full(launches.count, UNKNOWN, dtype=np.int64)
    size = np.where(helps, 0, np.where(kind < 0, _moved_alone(pair, attribution, launches), size))
    work = LaunchWork("pair", launches, kind, (*kinds, ()), size, unknown)
    return with_serving_kinds(pair, work, kind < 0)


def _moved_alone(pair: Prepared, attribution: Attribution, launches: Launches) -> IntArray:
    """Return the bytes of launches that are all of an op without matrix work, else UNKNOWN."""
    moved = moved_bytes(pair, attribution)
    unit = moved.unit[launches.row]
    alone = np.bincount(unit[unit >= 0], minlength=len(moved.op_size)) == 1
    return taken(np.where(alone, moved.op_size, UNKNOWN), unit, UNKNOWN)


def _kinds(pair: Prepared, attribution: Attribution) -> tuple[IntArray, tuple[Kind, ...]]:
    parts, _ = parts_of(pair, attribution)
    dtype, labels = types_of_ops(pair, attribution)
    rows = attribution.executed
    group, first = group_rows([parts.case, dtype[rows]])
    done: dict[int, list[WorkPart]] = {op: [] for op in rows[first].tolist()}
    for row in np.flatnonzero(np.isin(parts.op, rows[first])).tolist():
        op, line = int(parts.op[row]), parts.lines[int(parts.line[row])]
        flops, at_least = int(parts.flops[row]), int(parts.at_least[row])
        done[op].append(WorkPart(line, labels[int(dtype[op])], flops, at_least))
    kinds = [tuple(done[op]) for op in rows[first].tolist()]
    places = {kind: at for at, kind in enumerate(dict.fromkeys(kinds))}
    of_op = np.full(pair.trace.ops.num_rows, UNKNOWN, dtype=np.int64)
    of_op[rows] = np.array([places[kind] for kind in kinds], dtype=np.int64)[group]
    return of_op, tuple(places)

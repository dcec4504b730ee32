"""What each launch of a paired trace did by the shapes of its operators.

The FLOPs of an operator belong to its main kernel; the kernels that help it do none themselves.
"""

from __future__ import annotations

import numpy as np

from traceflops.attribution.datatypes import types_of_ops
from traceflops.attribution.op_kernels import Attribution, attribute
from traceflops.mfu.counted.launch_work import UNKNOWN, Kind, LaunchWork, WorkPart
from traceflops.mfu.counted.launches import launches_of, rank_in_group
from traceflops.mfu.traced.executed import parts_of
from traceflops.mfu.traced.known_lengths import with_told_lengths
from traceflops.mfu.traced.lines import PartTable
from traceflops.table.columns import IntArray
from traceflops.table.grouping import group_rows
from traceflops.table.op_tree import taken
from traceflops.windows.prepared import Prepared


def paired_work(pair: Prepared) -> LaunchWork | None:
    """Return what the launches of a trace with shapes did, None where it tells no FLOPs."""
    attribution, _ = with_told_lengths(pair, attribute(pair.linked))
    launches = launches_of(pair)
    if not len(attribution.executed) or not launches.count:
        return None
    op = _main_of(attribution, pair.trace.activities.num_rows)[launches.row]
    helps = (attribution.owner[launches.row] >= 0) & (op < 0)
    of_op, kinds = _kinds(pair, attribution)
    nothing = len(kinds)
    kind = np.where(helps, nothing, taken(of_op, op, UNKNOWN))
    size = taken(attribution.work.of_ops(attribution.work.min_bytes), op, UNKNOWN)
    return LaunchWork(
        "pair",
        launches,
        kind,
        (*kinds, ()),
        np.where(helps, 0, size),
        np.full(launches.count, UNKNOWN, dtype=np.int64),
    )


def _main_of(attribution: Attribution, count: int) -> IntArray:
    """Return, per activity, the op whose main kernel it is, -1 for none."""
    found = np.full(count, -1, dtype=np.int64)
    ops = attribution.executed[attribution.main[attribution.executed] >= 0]
    found[attribution.main[ops]] = ops
    return found


def _kinds(pair: Prepared, attribution: Attribution) -> tuple[IntArray, tuple[Kind, ...]]:
    """Return the kind of each op, and what the kinds are."""
    parts, _ = parts_of(pair, attribution)
    dtype, labels = types_of_ops(pair, attribution)
    columns = [parts.line, dtype[parts.op], parts.flops, parts.at_least]
    same, _ = group_rows(columns)
    nth = rank_in_group(parts.op)
    signature = np.full(pair.trace.ops.num_rows, -1, dtype=np.int64)
    for place in range(int(nth.max()) + 1 if len(nth) else 0):
        part = np.full(len(signature), -1, dtype=np.int64)
        part[parts.op[nth == place]] = same[nth == place]
        signature, _ = group_rows([signature, part])
    _, one = np.unique(signature[attribution.executed], return_index=True)
    examples = attribution.executed[one]
    place_of = {int(signature[op]): at for at, op in enumerate(examples.tolist())}
    codes = np.array(
        [place_of.get(code, UNKNOWN) for code in range(int(signature.max(initial=-1)) + 1)],
        dtype=np.int64,
    )
    made = _parts_of(parts, examples, labels, dtype)
    return taken(codes, signature, UNKNOWN), made


def _parts_of(
    parts: PartTable, examples: IntArray, labels: list[str], dtype: IntArray
) -> tuple[Kind, ...]:
    """Return the parts of some ops."""
    found: dict[int, list[WorkPart]] = {op: [] for op in examples.tolist()}
    for row in np.flatnonzero(np.isin(parts.op, examples)).tolist():
        op = int(parts.op[row])
        found[op].append(
            WorkPart(
                parts.lines[int(parts.line[row])],
                labels[int(dtype[op])],
                int(parts.flops[row]),
                int(parts.at_least[row]),
            )
        )
    return tuple(tuple(found[op]) for op in examples.tolist())

"""Executed FLOPs of a trace: its ledger by device, window, component and data type.

`executed(prepare(trace))` attributes every op to its kernels, finds its phase and adds up FLOPs.
The lines of a ledger sum exactly to what was executed. `Outside` has what the ledger does not:
ghosts, duplicates, vector work and the time of kernels without counted FLOPs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.op_kernels import Attribution, attribute, named
from traceflops.attribution.products import product_roles
from traceflops.attribution.scopes import Phases, phases
from traceflops.flops.mfu_waterfall import UNSPLIT, Ledger, Line
from traceflops.flops.ops.arguments import Shape, Shapes, read_shapes
from traceflops.flops.ops.work import Product
from traceflops.mfu.traced.cells import Cell, PartTable, cells_of, cells_of_kinds, part_table
from traceflops.mfu.traced.coverage import ComputeTime, compute_times, window_of_activity
from traceflops.mfu.traced.uncounted import Outside, outside
from traceflops.table.columns import BoolArray, codes, names, numbers
from traceflops.table.grouping import distinct
from traceflops.table.nesting import taken
from traceflops.table.trace import Note, note_of
from traceflops.windows.prepared import Prepared

if TYPE_CHECKING:
    from traceflops.mfu.counted.joins import MeasuredWork

_LOSSES: Final = frozenset({"aten::cross_entropy_loss", "aten::_log_softmax"})
"""Ops whose first argument is logits: rows x classes."""
LINE_ORDER: Final = ("model", "recompute", "algorithmic", "overcompute", UNSPLIT)
"""Families of lines: `model` is F_model of the trace, all families together are F_executed.

FLOPs of the last family are of unknown purpose: they may belong to any other.
"""
_UNTOLD: Final = Note(
    "assumed",
    "ghosts-not-told",
    "The trace has no GPU operations, and no product calls aten::resolve_conj, so "
    "unexecuted operators cannot be detected: all operators are counted.",
)


class Executed(Struct, frozen=True, dict=True):
    """The executed work of a trace.

    `cells` hold all FLOPs of the devices, `times` the compute times of every device and window; the
    properties below are sums over the chosen windows (`used`). `outside` is what the ledger does
    not count. `attribution` has the FLOPs by op, `work` those by counters or a paired run, or None.
    """

    cells: tuple[Cell, ...]
    times: tuple[ComputeTime, ...]
    outside: Outside
    notes: tuple[Note, ...]
    attribution: Attribution
    phases: Phases
    work: MeasuredWork | None = None

    @cached_property
    def used_cells(self) -> tuple[Cell, ...]:
        """Return the cells of the chosen windows."""
        return tuple(cell for cell in self.cells if cell.used)

    @cached_property
    def flops_by_type(self) -> Counter[str]:
        """Return the FLOPs of the chosen windows by data type, without types that have none."""
        flops: Counter[str] = Counter()
        for cell in self.used_cells:
            flops[cell.dtype] += cell.flops
        return +flops

    @property
    def dtypes(self) -> frozenset[str]:
        """Return the data types of the FLOPs of the chosen windows."""
        return frozenset(self.flops_by_type)

    def ledger(self) -> Ledger:
        """Return the ledger in LINE_ORDER; its lines sum to F_executed of the chosen windows."""
        sums: Counter[str] = Counter()
        for cell in self.used_cells:
            sums[cell.line] += cell.flops
        order = sorted(sums, key=lambda name: (LINE_ORDER.index(name.split(".")[0]), name))
        return Ledger("trace", tuple(Line(name, sums[name]) for name in order if sums[name]))

    @property
    def model_flops(self) -> int:
        """Return F_model of the chosen windows: the sum of the model lines, upper bounds."""
        return int(self.ledger().total("model"))

    @property
    def model_at_least(self) -> int:
        """Return the least that F_model of the chosen windows can be."""
        return sum(cell.at_least for cell in self.used_cells if cell.line.startswith("model."))

    @property
    def executed_flops(self) -> int:
        """Return F_executed of the chosen windows; the most where counts are not exact."""
        return sum(cell.flops for cell in self.used_cells)

    @property
    def unsplit_flops(self) -> int:
        """Return the executed FLOPs of unknown purpose in the chosen windows."""
        return int(self.ledger().total(UNSPLIT))

    @property
    def executed_at_least(self) -> int:
        """Return the least that F_executed of the chosen windows can be."""
        return sum(cell.at_least for cell in self.used_cells)

    @cached_property
    def coverage(self) -> Fraction | None:
        """Return the share of compute-kernel time with counted FLOPs; None without any."""
        total = sum(time.kernels_ns for time in self.times if time.used)
        counted = sum(time.counted_kernels_ns for time in self.times if time.used)
        return Fraction(counted, total) if total else None

    def rules(self, family: str) -> dict[str, tuple[int, int]]:
        """Return (parts of ops, FLOPs) by rule that decided the line, of the lines of a family."""
        by_rule: dict[str, tuple[int, int]] = {}
        for cell in self.used_cells:
            if f"{cell.line}.".startswith(f"{family}."):
                ops, flops = by_rule.get(cell.rule, (0, 0))
                by_rule[cell.rule] = (ops + cell.ops, flops + cell.flops)
        return by_rule


def executed(
    prepared: Prepared, measure_others: Callable[[Attribution], MeasuredWork | None] | None = None
) -> Executed:
    """Return the executed work; `measure_others` gives that of kernels without shapes."""
    attribution = attribute(prepared.linked)
    parts, phase = parts_of(prepared, attribution)
    windows = window_of_activity(prepared)
    cells = cells_of(prepared, attribution, parts, windows)
    # Check: all FLOPs of executed ops on the chosen devices are in the cells.
    rows, flops = attribution.executed, attribution.work.flops
    device = taken(numbers(prepared.trace.activities["device"]), attribution.main[rows])
    total = attribution.work.total(flops, rows[np.isin(device, list(prepared.accounts))])
    assert sum(cell.flops for cell in cells) == total
    work = measure_others(attribution) if measure_others is not None else None
    counted = attribution.owner >= 0
    if work is not None:
        cells = (*cells, *cells_of_kinds(prepared, work, windows))
        counted = counted | (work.kind >= 0)
    notes = [_UNTOLD] if attribution.untold else []
    if doubtful := int((parts.flops != parts.at_least).sum()):
        notes.append(note_of("assumed", "flops-between-bounds", count=doubtful))
    if lost := int(attribution.has("lost").sum()):
        notes.append(note_of("missing", "kernels-of-ops-missing", count=lost))
    if phase.unconfirmed:
        notes.append(note_of("assumed", "recompute-rules-disagree", count=phase.unconfirmed))
    times, beside = compute_times(prepared, counted), outside(prepared, attribution, work)
    return Executed(cells, times, beside, tuple(notes), attribution, phase, work)


def parts_of(prepared: Prepared, attribution: Attribution) -> tuple[PartTable, Phases]:
    """Return the FLOPs of all executed ops by ledger line, and the phase of each op."""
    trace, tree, work = prepared.trace, attribution.tree, attribution.work
    phase = phases(trace, attribution)
    roles = product_roles(trace, attribution, phase)
    # Which ops compute logits, the input of a cross entropy: products with the shape of one.
    dims = trace.ops["input_dims"]
    texts, matrices = names(dims), set[Shape]()
    for code in distinct(codes(dims)[named(trace.ops, _LOSSES) & (codes(dims) >= 0)]).tolist():
        shape = (read_shapes(texts[code]) or ((),))[0]
        if not isinstance(shape, Shapes) and len(shape) == 2:
            matrices.add(shape)
    sizes = map(work.signature, range(len(work.works)))
    fits = [isinstance(size, Product) and (size.m, size.n) in matrices for size in sizes]
    # The work of wrappers counts in the ops inside them.
    is_forward = roles.is_a("forward") & ~attribution.has("wrapper", "none")
    logits: BoolArray = is_forward & np.array(fits, dtype=np.bool_)[work.place]
    # A gradient belongs to the logits if its forward op computes them.
    has_forward = roles.forward >= 0
    logits[has_forward] = logits[roles.forward[has_forward]]
    # An executed op inside a duplicate of the same work: the duplicate's gradient decides for both.
    rows = np.flatnonzero(attribution.has("executed") & roles.is_a("forward") & ~logits)
    around = taken(tree.nearest(attribution.has("duplicate")), tree.parent[rows])
    is_same = taken(work.place, around) == work.place[rows]
    logits[rows] = is_same & (taken(1 * logits, around, 0) > 0)
    return part_table(attribution, phase, roles, logits), phase

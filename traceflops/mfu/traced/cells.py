"""FLOPs by device, window, component, data type and ledger line: all sums are of these cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.datatypes import types_of_ops
from traceflops.attribution.op_kernels import Attribution
from traceflops.attribution.products import PRODUCT_ROLES, ProductRole, ProductRoles
from traceflops.attribution.scopes import PHASES, Phases
from traceflops.flops.ops.count import OpWork
from traceflops.flops.ops.work import Core, FlopsPart, Kind, PartName, Work
from traceflops.mfu.counted.joins import MeasuredWork
from traceflops.mfu.traced.coverage import NO_WINDOW, on_chosen_device
from traceflops.table.columns import BoolArray, IntArray, numbers
from traceflops.table.grouping import exact_sums, group_rows, runs
from traceflops.table.nesting import taken
from traceflops.windows.prepared import Prepared

OPTIMIZER: Final = "overcompute.optimizer"
"""Products of an optimizer (Muon, Shampoo): executed, but no part of the model."""
MASK: Final = "overcompute.mask"
GRADIENTS: Final[tuple[ProductRole, ...]] = ("input_grad", "weight_grad", "gradient")

_PRODUCT_LINES: Final[dict[ProductRole, str]] = {
    **{role: f"model.matmul.{role}" for role in ("forward", *GRADIENTS)},
    "recompute": "recompute.matmul",
    "optimizer": OPTIMIZER,
}
_UNFUSED_LINES: Final[dict[ProductRole, str]] = {
    "forward": "model.attention.forward",
    **dict.fromkeys(GRADIENTS, "model.attention.backward"),
    "recompute": "recompute.attention",
    "optimizer": OPTIMIZER,
}
"""Products of an attention that no fused kernel computes."""
_FAMILIES: Final[dict[Kind, str]] = {
    "convolution": "conv",
    "convolution_backward": "conv",
    "attention": "attention",
    "attention_backward": "attention",
}
_PART_LINES: Final[dict[PartName, str]] = {
    "forward": "model.{}.forward",
    "input_grad": "model.{}.input_grad",
    "weight_grad": "model.{}.weight_grad",
    "backward": "model.{}.backward",
    "algorithmic": "algorithmic.{}",
    "mask": MASK,
}
RULES_USED: Final = ("", "R1", "R3")
"""The rules of docs/executed.md by which a part may get its line; "": by the op itself."""
Parts = list[tuple[str, str, FlopsPart]]  # line, rule and FLOPs of each part of an op


class Cell(Struct, frozen=True):
    """FLOPs of one line on one device in one window, of one component and data type.

    `window` is an index of the device's windows, None outside the chosen range; `used` is whether
    it is chosen. `flops` is the most and `at_least` the least; `open_flops` is the part that may
    belong to another line. `rule` decided the line (see RULES_USED). `ops` counts parts of ops.
    """

    device: int
    window: int | None
    used: bool
    component: str
    dtype: str
    line: str
    rule: str
    flops: int
    at_least: int
    open_flops: int
    ops: int


def cells_of(
    prepared: Prepared, attribution: Attribution, parts: PartTable, window: IntArray
) -> tuple[Cell, ...]:
    """Return the cells of all parts of ops on chosen devices; `window` is by activity."""
    activity = attribution.main[parts.op]
    device = taken(numbers(prepared.trace.activities["device"]), activity)
    category = taken(prepared.linked.categorised.category, activity)
    dtype, dtypes = types_of_ops(prepared, attribution)
    flops = (parts.flops, parts.at_least, np.where(parts.is_open, parts.flops, 0))
    on_device = np.isin(device, list(prepared.accounts))
    keys = (device, taken(window, activity, NO_WINDOW), category, dtype[parts.op])
    columns = [column[on_device] for column in (*keys, parts.line, parts.rule)]
    sums = [column[on_device] for column in flops]
    return tuple(_summed(prepared, dtypes, parts.lines, columns, sums))


def cells_of_kinds(prepared: Prepared, work: MeasuredWork, window: IntArray) -> tuple[Cell, ...]:
    """Return the cells of activities whose work is known by counters or a paired run."""
    device = numbers(prepared.trace.activities["device"])
    rows = np.flatnonzero((work.kind >= 0) & on_chosen_device(prepared))
    category = prepared.linked.categorised.category
    cells: list[Cell] = []
    for line, dtype, most, least in work.columns():
        with_flops = rows[most[work.kind[rows]] > 0]
        kind, zeros = work.kind[with_flops], np.zeros(len(with_flops), dtype=np.int64)
        # Data type and line are the first ones passed, the rule is "", and no FLOPs are open: 0.
        keys = [*(column[with_flops] for column in (device, window, category)), *(zeros,) * 3]
        cells += _summed(prepared, [dtype], (line,), keys, [most[kind], least[kind], zeros])
    return tuple(cells)


def _summed(
    prepared: Prepared,
    dtypes: Sequence[str],
    lines: Sequence[str],
    keys: list[IntArray],
    flops: list[IntArray],
) -> Iterator[Cell]:
    """Yield a cell per distinct device, window, component, data type, line and rule.

    `keys` are these columns as codes, with categories in place of components. `flops` are the
    columns to add: `flops`, `at_least` and `open_flops` of a cell.
    """
    tops = prepared.linked.categorised.top()
    components = list(dict.fromkeys(tops))
    device, window, category, *rest = keys
    component = np.array([components.index(top) for top in tops], dtype=np.int64)[category]
    columns = [device, window, component, *rest]
    group, first = group_rows(columns)
    sums = [exact_sums(group, column, len(first)) for column in flops]
    ops = np.bincount(group, minlength=len(first)).tolist()
    distinct = zip(*(column[first].tolist() for column in columns), *sums, ops, strict=True)
    for number, window_number, component_number, dtype, line, rule, *counts in distinct:
        is_inside = window_number != NO_WINDOW
        yield Cell(
            number,
            window_number if is_inside else None,
            is_inside and prepared.windows[number][window_number].used,
            components[component_number],
            dtypes[dtype],
            lines[line],
            RULES_USED[rule],
            *counts,
        )


class PartTable(Struct, frozen=True):
    """The parts of all executed ops, one row each; `line` and `rule` are indices of their tables.

    `is_open`: the part may belong to another line. `case` is equal for executed ops of equal parts.
    """

    op: IntArray
    line: IntArray
    lines: tuple[str, ...]
    rule: IntArray
    flops: IntArray
    at_least: IntArray
    is_open: BoolArray
    case: IntArray


def part_table(
    attribution: Attribution, phases: Phases, roles: ProductRoles, logits: BoolArray
) -> PartTable:
    """Return the parts of every executed op; `logits` is, per op, whether it computes logits."""
    work, tree = attribution.work, attribution.tree
    rows = attribution.executed
    # The unfused attention (work with a part "mask") around an op, or around its forward op.
    parts_of = [done.parts if isinstance(done, Work) else () for done in work.works]
    unfused = [any(part.name == "mask" for part in parts) for parts in parts_of]
    nearest = tree.nearest(np.array(unfused, dtype=np.bool_)[work.place])
    around = taken(nearest, tree.parent[rows])
    of_forward = taken(nearest, taken(tree.parent, roles.forward[rows]))
    core = taken(work.place, np.where(around >= 0, around, of_forward))
    # Ops that are equal in all of this have equal parts: compute these once per case.
    columns = [
        *(column[rows] for column in (work.place, phases.phase, roles.role, 1 * logits)),
        core,
        1 * roles.by_shapes[rows],
    ]
    group, first = group_rows(columns)
    distinct_cases = zip(*(column[first].tolist() for column in columns), strict=True)
    parts_of_cases = [_parts(work, *case) for case in distinct_cases]
    flat = [part for parts in parts_of_cases for part in parts]
    end = np.cumsum(np.array([len(parts) for parts in parts_of_cases], dtype=np.int64))
    begin = np.append(np.int64(0), end)[: len(end)]
    # Per part of an op: its row in `flat`, and the index of the op in `rows`.
    part_row, op_index = runs(begin[group], end[group])
    lines = tuple(dict.fromkeys(line for line, _, _ in flat))
    figures = [
        (lines.index(line), RULES_USED.index(rule), part.flops, part.at_least)
        for line, rule, part in flat
    ]
    line, by_rule, flops, at_least = np.array(figures, dtype=np.int64).reshape(-1, 4).T
    # A part of an unfused attention has its line for sure, even if its role is open.
    has_open_role = np.logical_or.reduce([*roles.open.values()])
    return PartTable(
        op=rows[op_index],
        line=line[part_row],
        lines=lines,
        rule=by_rule[part_row],
        flops=flops[part_row],
        at_least=at_least[part_row],
        is_open=has_open_role[rows[op_index]] & (core[op_index] < 0),
        case=group,
    )


def _parts(
    works: OpWork, work_number: int, phase: int, role: int, logits: int, core: int, by_shapes: int
) -> Parts:
    """Return (line, rule, FLOPs) of each part of an op.

    The `role` of a product gives its line, to which `logits` (0 or 1) adds a word. `core` is the
    work of the unfused attention around it, or -1. `by_shapes`: rule R3 decided the role.
    """
    work, name = works.works[work_number], PRODUCT_ROLES[role]
    assert isinstance(work, Work)  # only ops of known work are executed
    if name == "none":  # the op is no product
        parts: Parts = []
        for part in work.parts:
            line, rule = _PART_LINES[part.name].format(_FAMILIES[work.kind]), ""
            if PHASES[phase] == "optimizer":
                line = OPTIMIZER
            elif part.name == "forward" and PHASES[phase] in ("recompute", "backward"):
                # A forward part in a backward phase is recomputation.
                rule = "R1" if PHASES[phase] == "recompute" else "R3"
                line = f"recompute.{_FAMILIES[work.kind]}"
            parts.append((line, rule, part))
        return parts
    rule = "R3" if by_shapes else "R1" if name == "recompute" else ""
    (product,) = work.parts
    attention = works.signature(core)
    if isinstance(attention, Core):
        # If its FLOPs are a multiple of all pairs of query and key, split the product into the
        # pairs that the mask leaves, and those that it hides.
        pairs = attention.batch * attention.queries * attention.keys
        if pairs and not product.flops % pairs:
            per_pair = product.flops // pairs
            at_least = per_pair * attention.pairs_at_least
            model = FlopsPart("product", per_pair * attention.pairs, at_least)
            hidden = product.flops - model.flops
            masked = FlopsPart("mask", hidden, hidden)
            return [(_UNFUSED_LINES[name], rule, model), (MASK, rule, masked)]
    return [(_PRODUCT_LINES[name] + logits * ".logits", rule, product)]

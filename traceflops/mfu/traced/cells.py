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
    window_of_part = taken(window, activity, NO_WINDOW)
    keys = (device, window_of_part, category, dtype[parts.op], parts.line, parts.rule)
    of_devices = [column[on_device] for column in keys]
    flops_of_devices = [column[on_device] for column in flops]
    return tuple(_summed(prepared, dtypes, parts.lines, of_devices, flops_of_devices))


def cells_of_kinds(prepared: Prepared, work: MeasuredWork, window: IntArray) -> tuple[Cell, ...]:
    """Return the cells of activities whose work is known by counters or a paired run."""
    device = numbers(prepared.trace.activities["device"])
    rows = np.flatnonzero((work.kind >= 0) & on_chosen_device(prepared))
    category = prepared.linked.categorised.category
    cells: list[Cell] = []
    for line, dtype, most, least in work.columns():
        with_flops = rows[most[work.kind[rows]] > 0]
        kind, zeros = work.kind[with_flops], np.zeros(len(with_flops), dtype=np.int64)
        # Data type, line and rule are the first of their tables, and no FLOPs are open: all are 0.
        keys = [device[with_flops], window[with_flops], category[with_flops], zeros, zeros, zeros]
        cells += _summed(prepared, [dtype], [line], keys, [most[kind], least[kind], zeros])
    return tuple(cells)


def _summed(
    prepared: Prepared,
    dtypes: Sequence[str],
    lines: Sequence[str],
    keys: list[IntArray],
    flops: list[IntArray],
) -> Iterator[Cell]:
    """Yield a cell per distinct device, window, component, data type, line and rule.

    `keys` are device, window, category, data type, line and rule, a code per row. `flops` are the
    `flops`, `at_least` and `open_flops` per row, which are added up.
    """
    component_of = prepared.linked.categorised.top()  # by category
    components = list(dict.fromkeys(component_of))
    # Categories of the components compute, compute, memory -> code_of [0 0 1]
    code_of = np.array([components.index(one) for one in component_of], dtype=np.int64)
    device, window, category, *rest = keys
    columns = [device, window, code_of[category], *rest]
    group, first = group_rows(columns)
    sums = [exact_sums(group, column, len(first)) for column in flops]
    counts = np.bincount(group, minlength=len(first)).tolist()
    rows = zip(*(column[first].tolist() for column in columns), *sums, counts, strict=True)
    for number, index, component, dtype, line, rule, most, at_least, open_flops, ops in rows:
        yield Cell(
            device=number,
            window=index if index != NO_WINDOW else None,
            used=index != NO_WINDOW and prepared.windows[number][index].used,
            component=components[component],
            dtype=dtypes[dtype],
            line=lines[line],
            rule=RULES_USED[rule],
            flops=most,
            at_least=at_least,
            open_flops=open_flops,
            ops=ops,
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
    # The work of the unfused attention (it has a part "mask") around an op, else around its forward
    # op, else -1.
    parts_of = [done.parts if isinstance(done, Work) else () for done in work.works]
    unfused = [any(part.name == "mask" for part in parts) for parts in parts_of]
    nearest = tree.nearest(np.array(unfused, dtype=np.bool_)[work.place])
    around = taken(nearest, tree.parent[rows])
    of_forward = taken(nearest, taken(tree.parent, roles.forward[rows]))
    core = taken(work.place, np.where(around >= 0, around, of_forward))
    # Ops that are equal in all of this (the arguments of `_parts`) are one case, of equal parts.
    columns = [column[rows] for column in (work.place, phases.phase, roles.role, 1 * logits)]
    columns += [core, 1 * roles.by_shapes[rows]]
    case, first = group_rows(columns)
    distinct_cases = zip(*(column[first].tolist() for column in columns), strict=True)
    parts_of_cases = [_parts(work, *arguments) for arguments in distinct_cases]
    all_parts = [part for parts in parts_of_cases for part in parts]
    counts = np.array([len(parts) for parts in parts_of_cases], dtype=np.int64)
    end = np.cumsum(counts)
    # Per part of an op: its row in `all_parts`, and the index of the op in `rows`.
    # Case 0 has part 0, case 1 has parts 1 and 2: counts [1 2], end [1 3]. Ops of the cases [1 0]
    # -> part_row [1 2 0], op_index [0 0 1]
    part_row, op_index = runs((end - counts)[case], end[case])
    lines = tuple(dict.fromkeys(line for line, _, _ in all_parts))
    figures = [
        (lines.index(line), RULES_USED.index(rule), part.flops, part.at_least)
        for line, rule, part in all_parts
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
        case=case,
    )


def _parts(
    works: OpWork, work_number: int, phase: int, role: int, logits: int, core: int, by_shapes: int
) -> Parts:
    """Return (line, rule, FLOPs) of each part of an op.

    `phase` and `role` are indices of PHASES and PRODUCT_ROLES. `logits` is 1 if a product computes
    logits, `by_shapes` is 1 if its role is by rule R3. `core` is the number of the work of the
    unfused attention around it, or -1.

    1. No product (a convolution, an attention): each part has its own line. In an optimizer it is
       OPTIMIZER; a forward part in a phase of recomputation or backward is recomputation.
    2. A product of an unfused attention, if each pair of query and key has equal FLOPs: of 1000 for
       10 x 10 pairs, of which a causal mask leaves 55, 550 are attention and 450 MASK.
    3. Another product: the line of its role.
    """
    work, phase_name, role_name = works.works[work_number], PHASES[phase], PRODUCT_ROLES[role]
    assert isinstance(work, Work)  # only ops of known work are executed
    if role_name == "none":  # the op is no product
        parts: Parts = []
        for part in work.parts:
            line, rule = _PART_LINES[part.name].format(_FAMILIES[work.kind]), ""
            if phase_name == "optimizer":
                line = OPTIMIZER
            elif part.name == "forward" and phase_name in ("recompute", "backward"):
                # A forward part in a backward phase is recomputation.
                rule = "R1" if phase_name == "recompute" else "R3"
                line = f"recompute.{_FAMILIES[work.kind]}"
            parts.append((line, rule, part))
        return parts
    rule = "R3" if by_shapes else "R1" if role_name == "recompute" else ""
    (product,) = work.parts
    attention = works.signature(core)
    if isinstance(attention, Core):
        pairs = attention.batch * attention.queries * attention.keys
        if pairs and not product.flops % pairs:
            per_pair = product.flops // pairs
            at_least = per_pair * attention.pairs_at_least
            left = FlopsPart("product", per_pair * attention.pairs, at_least)
            hidden = FlopsPart.exact("mask", product.flops - left.flops)
            return [(_UNFUSED_LINES[role_name], rule, left), (MASK, rule, hidden)]
    line = _PRODUCT_LINES[role_name]
    return [(f"{line}.logits" if logits else line, rule, product)]

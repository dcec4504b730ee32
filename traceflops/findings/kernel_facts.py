"""What rules on kernels look at (`KernelFacts`), and how such a rule makes a cause."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.datatypes import types_of_ops
from traceflops.attribution.launching_ops import ops_that_launched
from traceflops.attribution.marks import range_names
from traceflops.attribution.scopes import Scopes, launch_scopes
from traceflops.characters import kernel_name
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.finding import MOST_ROWS, Cause, Row, Where, row_name, short_name
from traceflops.findings.rules import rule_of
from traceflops.flops.ops.arguments import Shapes, read_shapes
from traceflops.flops.ops.work import Work
from traceflops.mfu.budget import DevicePeaks
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    FloatArray,
    IntArray,
    codes,
    is_one_of,
    matching,
    names,
    numbers,
)
from traceflops.table.grouping import group_rows, in_order
from traceflops.table.nesting import taken
from traceflops.windows.prepared import Prepared

PRODUCTS = ("compute/gemm", "compute/convolution", "compute/attention")
OF_VECTORS: Final = re.compile(r"gemv|mat_?vec|mul_?vec|^triton_(?:red|per)_fused", re.IGNORECASE)
_MOST_NAMES, _MOST_SHAPES = 50, 3
_COMPILED: Final = "CompiledFxGraph"
"""A part of the names of ranges of compiled graphs, whose hashes name no place in the code."""


class KernelFacts(Struct, frozen=True, dict=True):
    """The kernels and copies of the chosen windows, sorted by queue and start.

    Columns and masks have a value per kernel or copy; without GPU work, per part of an operator of
    the CPU. The product of a kernel is the op (matmul, convolution, attention) that it works for.
    """

    case: Case

    @property
    def prepared(self) -> Prepared:
        """Return the recording of the case."""
        return self.case.prepared

    @cached_property
    def _places(self) -> IntArray:
        """Return the indices of the kernels in the columns of the chosen activities."""
        chosen, activities = self.prepared.chosen, self.prepared.trace.activities
        kernel = np.flatnonzero(is_one_of(activities["kind"], "kernel", "memcpy", "op")[chosen.row])
        keys = (
            numbers(activities[name], ABSENT)[chosen.row[kernel]]
            for name in ("device", "stream", "start_ns")
        )
        return kernel[in_order(*keys)]

    @cached_property
    def row(self) -> IntArray:
        """Return their rows in the table of activities."""
        return self.prepared.chosen.row[self._places]

    @cached_property
    def ns(self) -> IntArray:
        """Return their times inside the windows, in ns."""
        return self.prepared.chosen.inside_ns[self._places]

    @cached_property
    def name(self) -> IntArray:
        """Return the codes of their names."""
        return codes(self.prepared.trace.activities["name"])[self.row]

    def named(self, test: Callable[[str], object]) -> BoolArray:
        """Return which have a name that passes a test."""
        return matching(self.prepared.trace.activities["name"], test)[self.row]

    def is_sub(self, *subs: str) -> BoolArray:
        """Return which are kernels of these categories, such as `compute/gemm`."""
        categorised, kind = self.prepared.linked.categorised, self.prepared.trace.activities["kind"]
        wanted = [f"{category.top}/{category.sub}" in subs for category in categorised.categories]
        of_code = np.array([*wanted, False])
        return of_code[categorised.category[self.row]] & is_one_of(kind, "kernel")[self.row]

    @cached_property
    def op(self) -> IntArray:
        """Return the op that launched each kernel, -1 for unknown; for a part of an op, that op."""
        return ops_that_launched(self.prepared, self.row)

    def by_op(self, ops: BoolArray) -> BoolArray:
        """Return which were launched by these ops, given as a mask of rows."""
        return taken(ops.astype(np.int8), self.op, 0) > 0

    def within(self, ops: BoolArray) -> BoolArray:
        """Return which were launched by these ops (a mask of rows), or by ops inside them."""
        return self.by_op(self.prepared.linked.op_tree.nearest(ops) >= 0)

    def in_phase(self, phase: str) -> BoolArray:
        """Return which were launched in a phase of training."""
        return self.by_op(self.case.measured.executed.phases.is_in(phase))  # type: ignore

    @cached_property
    def product(self) -> IntArray:
        """Return the product of each kernel, -1 for none."""
        return self.case.measured.executed.attribution.owner[self.row]

    def of_works(self, figure: Callable[[Work], float], missing: float) -> FloatArray:
        """Return a figure of the product of each kernel, `missing` if its work is not known."""
        work = self.case.measured.executed.attribution.work
        figures = [figure(done) if isinstance(done, Work) else missing for done in work.works]
        return np.append(figures, missing)[taken(work.place, self.product, len(figures))]

    @cached_property
    def dtype(self) -> tuple[IntArray, list[str]]:
        """Return the data type of each product, as an index or -1 for none, and all types."""
        code, types = types_of_ops(self.prepared, self.case.measured.executed.attribution)
        return taken(code, self.product), types

    def is_type(self, *wanted: str) -> BoolArray:
        """Return which have a product of one of these data types."""
        code, types = self.dtype  # -1 is the last entry below
        return np.array([*(dtype in wanted for dtype in types), False])[code]

    @cached_property
    def peaks(self) -> DevicePeaks | None:
        """Return the peaks that all devices have, None if they are unknown or differ."""
        devices = self.case.measured.devices
        alike = len({(*sorted(device.rates.items()), device.bandwidth) for device in devices}) == 1
        return devices[0] if alike and devices[0].rates else None

    def rate(self, dtype: str) -> float:
        """Return the peak of a data type in FLOP per ns, 0 if it is unknown or devices differ.

        If a device may be one of several models, it is known if these agree.
        """
        if self.peaks:
            return float(self.peaks.rates.get(dtype, 0))
        matches = [device.match for device in self.case.measured.devices]
        peaks = {row.peak(dtype) for match in matches for row in match.candidates}
        is_known = len(peaks) == 1 and all(match.candidates for match in matches)
        return float(peaks.pop() or 0) if is_known else 0.0

    @cached_property
    def own_rate(self) -> FloatArray:
        """Return the peak for the data type of the product in FLOP per ns, 0 if it is unknown."""
        code, types = self.dtype
        return np.array([*map(self.rate, types), 0.0])[code]

    @cached_property
    def flops(self) -> FloatArray:
        """Return the FLOPs of the product, 0 if they are unknown."""
        return self.of_works(lambda work: float(work.flops), 0.0)

    @cached_property
    def bytes_ns(self) -> FloatArray:
        """Return how long the bytes of the product take at the peak, 0 if that is unknown."""
        rate = self.peaks.bandwidth if self.peaks else None
        return self.of_works(lambda work: float(work.min_bytes or 0), 0.0) / (rate or np.inf)

    @cached_property
    def roof_ns(self) -> FloatArray:
        """Return the time that the product needs at the peaks, 0 if FLOPs or rate are unknown.

        Bytes alone would give too short a time.
        """
        is_known = (self.own_rate > 0) & (self.flops > 0)
        flops_ns = np.divide(self.flops, self.own_rate, out=np.zeros(len(is_known)), where=is_known)
        return np.where(is_known, np.maximum(flops_ns, self.bytes_ns), 0.0)

    @cached_property
    def product_ns(self) -> FloatArray:
        """Return the ns of all kernels of the same product, or of the kernel alone; at least 1."""
        has_product, product = self.product >= 0, np.maximum(self.product, 0)
        sums = np.bincount(product, np.where(has_product, self.ns, 0), 1)
        return np.maximum(np.where(has_product, sums[product], self.ns), 1.0)

    @cached_property
    def scopes(self) -> Scopes:
        """Return the modules or the annotation around launches; for graphs, around the capture."""
        linked = self.prepared.as_launched.linked
        call, op = linked.links.call_of_activity[self.row], linked.links.op_of_activity[self.row]
        return launch_scopes(linked, call, op, self.prepared.selection.step_mark)


def kernel_cause(
    facts: KernelFacts,
    rule: str,
    rows: BoolArray,
    kept: FloatArray,
    host: tuple[str, ...] = (),
    knows: frozenset[str] = frozenset(),
    values: Mapping[str, Value] | None = None,
) -> Iterator[Cause]:
    """Give a cause if kernels take enough time and the remedy saves enough of it.

    Per kernel, `rows` tells whether the rule is about it, and `kept` which share of its time the
    whole remedy leaves. `host` are edits of launching them. `values` fill the claim, which names
    the largest kernel if they have a `name`: else a detail does. `knows` are further facts that
    choose the remedy.
    """
    time = np.where(rows, facts.ns, 0)
    saved = time * (1 - np.clip(kept, 0, 1))
    share = share_of_window(facts.case, int(time.sum()))
    saves = share_of_window(facts.case, int(saved.sum()))
    if saves < limit(facts.case, "priority", "low") or not takes_enough(facts.case, share):
        return
    largest, where = largest_of(facts, saved)
    sure_part = limit(facts.case, "kernel-faults", "least_part")
    # The share of time left by name, of the kernels that save most
    labels = names(facts.prepared.trace.activities["name"])
    saves_ns, takes_ns = (np.bincount(facts.name, ns, len(labels)) for ns in (saved, facts.ns))
    saves_most = np.argsort(-saves_ns, kind="stable")[:_MOST_NAMES]
    left = {
        labels[code]: 1 - saves_ns[code] / takes_ns[code]
        for code in saves_most
        if saves_ns[code] > 0
    }
    on_path = rule_of(rule).on_path
    most_ns = float(saved.sum()) * min(1.0, _busy_ns(facts) / time.sum())
    most_ns = min(most_ns, _busy_beside_copies_ns(facts))
    # Without operators, no edit is for launching fewer kernels, which the remedy does as well.
    frees = bool(host) and not facts.prepared.trace.ops.num_rows
    host = () if frees else host
    yield cause(
        facts.case,
        rule,
        share,
        values,
        () if "name" in (values or {}) else (largest,),
        knows,
        rows=rows_of(facts, time),
        where=where,
        edits=(*host, *_edits(left, 1.0)),
        on_path=on_path | frozenset({"eager_overhead", "optimizer_loop"} if host else ()),
        kernels={kernel_name(name): share_left for name, share_left in left.items()},
        partly=_edits(left, sure_part),
        direct_ns=None if host else int(most_ns),  # launches take time beside the kernels
        frees=frees,
    )


def _busy_ns(facts: KernelFacts) -> int:
    """Return how long GPUs are busy: kernels that run at the same time cannot save more."""
    components = facts.case.total.components
    return components.window_ns - components.idle_ns - components.start_up_ns


def _busy_beside_copies_ns(facts: KernelFacts) -> int:
    """Return how long GPUs are busy beyond the copies of one direction, which run one by one."""
    rows, chosen = facts.prepared.trace.activities, facts.prepared.chosen
    busy_ns, copies_ns = _busy_ns(facts), 0
    for direction in ("HtoD", "DtoH"):
        is_copy = is_one_of(rows["kind"], "memcpy") & is_one_of(rows["direction"], direction)
        copies_ns = max(copies_ns, int(chosen.inside_ns[is_copy[chosen.row]].sum()))
    return busy_ns - copies_ns if copies_ns <= busy_ns else busy_ns


def _edits(left: dict[str, float], part: float) -> tuple[str, ...]:
    """Return edits that save a `part` of what kernels can save, one edit per share of time left.

    `left` is the share left by name if all is saved.
    """
    by_share: defaultdict[str, list[str]] = defaultdict(list)
    for name, share in left.items():
        by_share[f"{1 - part * (1 - share):.3f}"].append(re.escape(name))
    return tuple(f"kernel:^(?:{'|'.join(same)})$*{share}" for share, same in by_share.items())


def rows_of(facts: KernelFacts, time: FloatArray) -> tuple[Row, ...]:
    """Return rows of the names with most time; `time` is per kernel, in ns."""
    labels = names(facts.prepared.trace.activities["name"])
    sums = np.bincount(facts.name, time, len(labels))
    count = np.bincount(facts.name[time > 0], minlength=len(labels))
    longest = np.argsort(-sums, kind="stable")[:MOST_ROWS]
    return tuple(
        Row(row_name(labels[code]), int(sums[code]), int(count[code]))
        for code in longest
        if sums[code] > 0
    )


def takes_enough(case: Case, share: float) -> bool:
    """Return whether kernels take enough time to be told of."""
    return share >= limit(case, "kernel-faults", "least_share")


def largest_of(facts: KernelFacts, time: FloatArray) -> tuple[Fact, Where]:
    """Return which kernel or op takes most time, and where; `time` is per kernel, in ns, not all 0.

    Kernels are added up by op and shapes, without an op by name, and by the scope of their launch.
    The place is the module of that scope if it has half of the time. Vectors' shapes are left out.
    """
    launched, scopes = facts.prepared.as_launched.linked, facts.scopes
    ops, timed = launched.trace.ops, np.flatnonzero(time > 0)
    owner = launched.links.op_of_activity[facts.row[timed]]
    if facts.prepared.replays is None:  # else products are rows of another table of ops
        owner = np.where(facts.product[timed] >= 0, facts.product[timed], owner)
    op_keys = [taken(codes(ops[column]), owner) for column in ("name", "input_dims")]
    name_key = np.where(owner >= 0, -1, facts.name[timed])
    # Scopes with the same text count as the first of them; -1, the last entry, is for no scope.
    name_of = range_names(facts.prepared.trace)
    texts = [
        text if is_module else name_of(text)
        for text, is_module in zip(scopes.texts, scopes.is_module, strict=True)
    ]
    first_of: dict[str, int] = {}
    same_text = [first_of.setdefault(text, place) for place, text in enumerate(texts)]
    scope_of = np.array([*same_text, -1])[scopes.scope[timed]]
    group, first = group_rows((*op_keys, scope_of, name_key))
    largest = int(first[np.argmax(np.bincount(group, time[timed]))])
    row, scope = int(owner[largest]), int(scope_of[largest])
    kernel = names(facts.prepared.trace.activities["name"])[facts.name[timed[largest]]]
    dims = read_shapes(ops["input_dims"][row].as_py() or "[]") if row >= 0 else None
    tensors = [shape for shape in dims or () if not isinstance(shape, Shapes) and len(shape) > 1]
    longest = fact(
        "kernels.largest",
        name=ops["name"][row].as_py() if row >= 0 else short_name(kernel),
        shapes=tuple("×".join(map(str, shape)) for shape in tensors[:_MOST_SHAPES]),
        scope=texts[scope] if scope >= 0 and _COMPILED not in texts[scope] else None,
    )
    if scope < 0 or not scopes.is_module[scope]:
        return longest, Where()
    is_most = 2 * time[timed[scope_of == scope]].sum() >= time.sum()
    return longest, Where(module=texts[scope] if is_most else None)

"""What rules on kernels look at, and how such a rule becomes a cause. See `KernelFacts`."""

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
_MOST_NAMES, _MOST_SHAPES = 50, 3
_COMPILED: Final = "CompiledFxGraph"
"""In the names of ranges of compiled graphs: the rest is a hash, which names no place in code."""


class KernelFacts(Struct, frozen=True, dict=True):
    """The kernels and copies of the chosen windows, by queue and start; columns are per kernel.

    Without work of GPUs they are the parts of operators of CPUs.
    """

    case: Case
    prepared: Prepared

    @cached_property
    def _places(self) -> IntArray:
        """Return the place of each among the chosen activities."""
        chosen, activities = self.prepared.chosen, self.prepared.trace.activities
        kernel = np.flatnonzero(is_one_of(activities["kind"], "kernel", "memcpy", "op")[chosen.row])
        keys = (
            numbers(activities[name], ABSENT)[chosen.row[kernel]]
            for name in ("device", "stream", "start_ns")
        )
        return kernel[in_order(*keys)]

    @cached_property
    def row(self) -> IntArray:
        """Return the row of each in the table of activities."""
        return self.prepared.chosen.row[self._places]

    @cached_property
    def ns(self) -> IntArray:
        """Return the time inside the windows."""
        return self.prepared.chosen.inside_ns[self._places]

    @cached_property
    def name(self) -> IntArray:
        """Return the code of the name."""
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
        """Return the op that launched it, -1 for unknown; a part of an op is of that."""
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
        """Return the op (matmul, convolution or attention) that it works for, -1 for none."""
        return self.case.measured.executed.attribution.owner[self.row]

    def of_works(self, fact: Callable[[Work], float], missing: float) -> FloatArray:
        """Return a figure of the work of its product; `missing` without a product or known work."""
        work = self.case.measured.executed.attribution.work
        facts = [fact(each) if isinstance(each, Work) else missing for each in work.works]
        return np.append(facts, missing)[taken(work.place, self.product, len(facts))]

    @cached_property
    def dtype(self) -> tuple[IntArray, list[str]]:
        """Return the number of the data type of its product, -1 for none, and the types."""
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
        """Return the peak for the data type of its product, 0 if it is unknown."""
        code, types = self.dtype
        return np.array([*map(self.rate, types), 0.0])[code]

    @cached_property
    def flops(self) -> FloatArray:
        """Return the FLOPs of its product, 0 if they are unknown."""
        return self.of_works(lambda work: float(work.flops), 0.0)

    @cached_property
    def bytes_ns(self) -> FloatArray:
        """Return how long the bytes of its product take at the peak, 0 if that is unknown."""
        rate = self.peaks.bandwidth if self.peaks else None
        return self.of_works(lambda work: float(work.min_bytes or 0), 0.0) / (rate or np.inf)

    @cached_property
    def roof_ns(self) -> FloatArray:
        """Return the time that its product needs at the peaks, 0 if FLOPs or their rate is unknown.

        Bytes alone would give too short a time.
        """
        bounded = (self.own_rate > 0) & (self.flops > 0)
        of_flops = np.divide(self.flops, self.own_rate, out=np.zeros(len(bounded)), where=bounded)
        return np.where(bounded, np.maximum(of_flops, self.bytes_ns), 0.0)

    @cached_property
    def product_ns(self) -> FloatArray:
        """Return the time of all kernels of its product, or its own without one; at least 1."""
        products = np.maximum(self.product, 0)
        times = np.bincount(products, np.where(self.product >= 0, self.ns, 0), 1)
        return np.maximum(np.where(self.product >= 0, times[products], self.ns), 1.0)

    @cached_property
    def scopes(self) -> Scopes:
        """Return the modules or the annotation around its launch, of replays at the capture."""
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
    least: FloatArray | None = None,
) -> Iterator[Cause]:
    """Give a cause if kernels take enough time and the remedy saves enough of it.

    `rows` and `kept` are per kernel: whether the rule is about it, and the share of its time that
    the whole remedy leaves; `least` is the least share it may leave, if that is less. `host` are
    edits for launching them. `values` fill the claim: with a `name`, it names the largest kernel,
    else a detail does. `knows` are further facts that choose the remedy.
    """
    time = np.where(rows, facts.ns, 0)
    saved = time * (1 - np.clip(kept, 0, 1))
    share = share_of_window(facts.case, int(time.sum()))
    saves = share_of_window(facts.case, int(saved.sum()))
    if saves < limit(facts.case, "priority", "low") or not takes_enough(facts.case, share):
        return
    largest, where = largest_of(facts, saved)
    sure_part = limit(facts.case, "kernel-faults", "least_part")
    # By name, the share of time left of the kernels that save most
    labels = names(facts.prepared.trace.activities["name"])
    saves_ns, takes_ns = (np.bincount(facts.name, ns, len(labels)) for ns in (saved, facts.ns))
    first = np.argsort(-saves_ns, kind="stable")[:_MOST_NAMES]
    changes = {
        labels[code]: 1 - saves_ns[code] / takes_ns[code] for code in first if saves_ns[code] > 0
    }
    on_path = rule_of(rule).on_path
    most = saved if least is None else time * (1 - np.clip(least, 0, 1))
    yield cause(
        facts.case,
        rule,
        share,
        values,
        () if "name" in (values or {}) else (largest,),
        knows,
        rows=rows_of(facts, time),
        where=where,
        edits=(*host, *_edits(changes, 1.0)),
        on_path=on_path | frozenset({"eager_overhead", "optimizer_loop"} if host else ()),
        kernels={kernel_name(name): left for name, left in changes.items()},
        partly=_edits(changes, sure_part),
        direct_ns=None if host else int(most.sum()),  # launches take time beside the kernels
    )


def _edits(left: dict[str, float], part: float) -> tuple[str, ...]:
    """Return edits that save a part of what kernels can save; `left` is the share left, by name."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name, share in left.items():
        alike[f"{1 - part * (1 - share):.3f}"].append(re.escape(name))
    return tuple(f"kernel:^(?:{'|'.join(some)})$*{share}" for share, some in alike.items())


def rows_of(facts: KernelFacts, time: FloatArray) -> tuple[Row, ...]:
    """Return rows of the names with most time; `time` is per kernel, in ns."""
    labels = names(facts.prepared.trace.activities["name"])
    sums = np.bincount(facts.name, time, len(labels))
    count = np.bincount(facts.name[time > 0], minlength=len(labels))
    first = np.argsort(-sums, kind="stable")[:MOST_ROWS]
    return tuple(
        Row(row_name(labels[number]), int(sums[number]), int(count[number]))
        for number in first
        if sums[number] > 0
    )


def takes_enough(case: Case, share: float) -> bool:
    """Return whether kernels take enough time to be told of."""
    return share >= limit(case, "kernel-faults", "least_share")


def largest_of(facts: KernelFacts, time: FloatArray) -> tuple[Fact, Where]:
    """Return which kernel or op takes most time, and where; `time` is per kernel, in ns, not all 0.

    Kernels are added up by op and shapes, or else by name, and by scope. The place is a module, if
    that has half of the time. Shapes are those of the first tensors, without vectors and lists.
    """
    launched, scopes = facts.prepared.as_launched.linked, facts.scopes
    ops, timed = launched.trace.ops, np.flatnonzero(time > 0)
    owner = launched.links.op_of_activity[facts.row[timed]]
    if facts.prepared.replays is None:  # else products are rows of another table of ops
        owner = np.where(facts.product[timed] >= 0, facts.product[timed], owner)
    keys = [taken(codes(ops[column]), owner) for column in ("name", "input_dims")]
    label = np.where(owner >= 0, -1, facts.name[timed])
    called = range_names(facts.prepared.trace)
    texts = [
        text if is_module else called(text)
        for text, is_module in zip(scopes.texts, scopes.is_module, strict=True)
    ]
    # Of scopes with the same text, only the first is used; -1, the last entry, is for none.
    first_of: dict[str, int] = {}
    places = [first_of.setdefault(text, place) for place, text in enumerate(texts)]
    scope_place = np.array([*places, -1])[scopes.scope[timed]]
    group, first = group_rows((*keys, scope_place, label))
    largest = int(first[np.argmax(np.bincount(group, time[timed]))])
    row, scope = int(owner[largest]), int(scope_place[largest])
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
    is_most = 2 * time[timed[scope_place == scope]].sum() >= time.sum()
    return longest, Where(module=texts[scope] if is_most else None)

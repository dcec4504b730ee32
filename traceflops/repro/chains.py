"""What findings about the host are about: operators launched one by one, and batches waited for."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.attribution.launching_ops import ops_that_launched
from traceflops.findings.finding import Finding
from traceflops.flops.ops.arguments import Tensor
from traceflops.repro.calls import Call, Refusal, TensorList, outermost, with_arguments
from traceflops.repro.transfers import copies
from traceflops.table.arrays import IntArray
from traceflops.table.columns import is_one_of, numbers
from traceflops.table.grouping import group_rows, group_sums, in_order

_LENGTHS: Final = (6, 4, 3)
"""Operators of a chain: so few can be read, and show the cost of launching each."""
_TRIES: Final = 200
_MOST_TENSORS, _MOST_IN_ALL = 6, 18  # of one operator, and of a chain
_READS: Final = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
"""Operators that wait for the GPU, which no graph can hold."""
_OF_WORKERS: Final = "MultiProcessing"


class Chain(Struct, frozen=True):
    """Operators that launched work one after another in a thread, which took `wall_ns` there.

    `sum_ns` is the time of their work on the device.
    """

    calls: tuple[Call, ...]
    wall_ns: int
    sum_ns: int
    device: int

    op: ClassVar[None] = None
    count: ClassVar[int] = 1
    refused: ClassVar[Refusal | None] = None

    @property
    def mean_ns(self) -> int:
        """Return the time on the host, which is what is repeated."""
        return self.wall_ns

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the names of their kernels."""
        return tuple(name for call in self.calls for name in call.kernels)


class Loading(Struct, frozen=True):
    """Steps that wait for data: `wait_ns` of `step_ns` on average, for `bytes` of each batch.

    `has_workers`: other processes prepare the batches.
    """

    step_ns: int
    wait_ns: int
    bytes: int
    has_workers: bool
    count: int
    device: int

    op: ClassVar[None] = None
    refused: ClassVar[Refusal | None] = None
    kernels: ClassVar[tuple[str, ...]] = ()

    @property
    def mean_ns(self) -> int:
        """Return the time that a step waits."""
        return self.wait_ns

    @property
    def sum_ns(self) -> int:
        """Return the time that all steps wait."""
        return self.wait_ns * self.count


def loading(analysis: Analysis, finding: Finding) -> Loading | None:
    """Return how a mean step waits for data, by a finding on the input; None without steps."""
    windows = analysis.windows_used
    if not windows or not analysis.devices:
        return None
    # Sums over the windows of all devices, by their number.
    step_ns = analysis.total.components.window_ns // windows
    sent = sum(copy.count * copy.bytes for copy in copies(analysis) if copy.direction == "HtoD")
    return Loading(
        step_ns=step_ns,
        wait_ns=round(finding.share * step_ns),
        bytes=sent // windows,
        has_workers=any(_OF_WORKERS in row.name for row in finding.rows),
        count=windows,
        device=analysis.devices[0].device,
    )


def chain(analysis: Analysis) -> Chain | None:
    """Return the operators in a row whose host time most exceeds that of their kernels.

    They lie in one thread and can all be repeated; None if there are too few such.
    """
    prepared = analysis.prepared
    ops, activities, chosen = prepared.trace.ops, prepared.trace.activities, prepared.chosen
    asked = np.flatnonzero(is_one_of(activities["kind"], "kernel")[chosen.row])
    launcher = ops_that_launched(prepared, chosen.row[asked])
    asked, launcher = asked[launcher >= 0], launcher[launcher >= 0]
    op, first, group = np.unique(outermost(ops)[launcher], return_index=True, return_inverse=True)
    work_ns = group_sums(group, chosen.inside_ns[asked], len(op))
    place = [numbers(ops[name], -1)[op] for name in ("process", "thread", "start_ns")]
    order = in_order(*place)
    excess = np.maximum(numbers(ops["dur_ns"])[op] - work_ns, 0)[order]
    thread, _ = group_rows(place[:2])
    device = numbers(activities["device"])[chosen.row[asked]][first]
    known: dict[int, Call] = {}

    def call(at: int) -> Call:
        """Return the call of the op at a place in the order."""
        if at not in known:
            row, of_device = int(op[order[at]]), int(device[order[at]])
            bare = Call(None, 1, int(work_ns[order[at]]), of_device, ())
            known[at] = with_arguments(bare, ops.slice(row, 1))
        return known[at]

    for length in _LENGTHS:
        for begin in _best(excess, thread[order], length):
            calls = [call(at) for at in range(begin, begin + length)]
            if all(map(_is_plain, calls)) and sum(map(_tensors, calls)) <= _MOST_IN_ALL:
                rows = op[order[begin : begin + length]]
                wall_ns = int(numbers(ops["dur_ns"])[rows].sum())
                sum_ns = sum(one.sum_ns for one in calls)
                return Chain(tuple(calls), wall_ns, sum_ns, calls[0].device)
    return None


def _best(excess: IntArray, thread: IntArray, length: int) -> list[int]:
    """Return where runs of `length` in one thread begin, those with the largest sums first."""
    if len(excess) < length:
        return []
    ends = np.concatenate([[0], np.cumsum(excess)])
    sums = ends[length:] - ends[:-length]
    within = thread[length - 1 :] == thread[: len(thread) - length + 1]
    found = np.flatnonzero(within & (sums > 0))
    best = found[np.argsort(-sums[found], kind="stable")]
    return [int(begin) for begin in best[:_TRIES]]


def _is_plain(call: Call) -> bool:
    """Return whether a call can be repeated in a line, without waiting for the GPU."""
    has_lists = any(isinstance(value, TensorList) for value in call.arguments)
    fits = not has_lists and 0 < _tensors(call) <= _MOST_TENSORS
    return call.refused is None and fits and call.op not in _READS


def _tensors(call: Call) -> int:
    return sum(isinstance(value, Tensor) for value in call.arguments)

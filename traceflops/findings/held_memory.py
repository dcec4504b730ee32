"""The verdict on a memory snapshot: the peak, which part of the program holds it, and remedies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceflops.facts import Fact, fact
from traceflops.findings.finding import Verdict
from traceflops.findings.forward_memory import (
    FORWARD,
    asker,
    forward_remedies,
    program_frames,
    scores_by_softmax,
)
from traceflops.memory.usage import (
    BETWEEN,
    AllocationRows,
    Holder,
    MemoryUse,
    fullest_gpu,
    holders,
    memory_use,
)
from traceflops.table.columns import IntArray, codes, floats, is_one_of, names, numbers
from traceflops.table.trace import Trace
from traceflops.windows.prepared import Prepared

_BACKWARD: Final = re.compile(
    r"(?:.*: )?(?:\w*Backward\d*|backward|AccumulateGrad)$|checkpoint\.py.*: unpack_hook$"
)
_GRADIENTS: Final = "AccumulateGrad"
_STEP: Final = re.compile(r"(?P<file>.*)\(\d+\): (?:step|_init_group|_?init_state)$")
_OPTIMIZER: Final = re.compile(r"optim|adam|sgd|lion|muon|shampoo|adafactor", re.IGNORECASE)
_FILLED: Final = re.compile(r"aten::(?:zeros|empty|full)")
_COMPUTED: Final = re.compile(
    r"aten::(?:_foreach_)?(?:add(?:cdiv|cmul)?|sub|mul|div|r?sqrt|pow|square)(?:_[A-Z]\w*)?$"
)
_SCORES: Final = re.compile(r": \w*(?:softmax|dot_product_attention|eager_attention)\w*$")
_FUSED: Final = re.compile(r"flash|efficient|scaled_dot_product|cudnn_attention")
_LOSS: Final = re.compile(
    r"aten::_?(?:cross_entropy_loss|nll_loss|log_softmax)|.*: \w*cross_entropy"
)
_SURE_LOSS: Final = re.compile("cross_entropy|nll_loss")
_IN_PLACE: Final = re.compile(r"aten::(?:relu|leaky_relu|elu|hardtanh)$")
_LOADS: Final = re.compile(r": \w*(?:load|from_pretrained|from_single_file)(?:_\w*)?$")
_FEWER_BITS: Final = 4  # scores in 8 bits, as masks are, beside scores in 32
_INNER: Final = 2  # frames that tell whether an allocation is of attention's scores
_TAKES: Final = ("segment_alloc", "segment_map")
_GIVES: Final = ("segment_free", "segment_unmap")
"""Marks of a memory snapshot: calls that take memory of the GPU, and that give it back."""
_ROUNDS, _NEARLY_ALL = 10, 0.9
"""Calls are told if memory was given back this often before more was taken, and nearly all of it.
"""
_HALF, _MUCH, _SAID = 0.5, 0.25, 0.10
"""A part of the peak from which what holds less is told, and one from which the part is told.

GPUs are uneven if the others hold at most half of what the fullest one holds.
"""


def memory_verdict(prepared: Prepared) -> Verdict | None:
    """Return what a memory snapshot says, None for a recording with a timeline or of no memory."""
    facts = () if prepared.accounts else memory_facts(prepared)
    return Verdict(facts, "memory-use") if facts else None


def memory_facts(prepared: Prepared) -> tuple[Fact, ...]:
    """Return statements on the memory of the fullest GPU, nothing if that is unknown.

    They are about failed allocations, the peak, unused bytes, and calls for more memory.
    """
    used, trace = memory_use(prepared), prepared.trace
    use = fullest_gpu(used)
    if use is None:
        return ()
    at_peak = holders(prepared, use)
    most = next((held for held in at_peak if held.recorded and held.op), None)
    named = "snapshot.gpu" if use.local_id is not None else "snapshot.gpu-of-unknown-number"
    rank = use.rank if len(trace.ranks) > 1 else None
    before = sum(held.bytes for held in at_peak if not held.recorded)
    is_gradient = most is not None and _is_gradient(most)
    part = sum(map(_gradients, at_peak)) if is_gradient else most.bytes if most else 0
    peak = fact(
        "snapshot.state" if use.allocated.is_state else "snapshot.peak",
        gpu=fact(named, number=use.local_id, rank=rank),
        bytes=use.allocated.peak,
        before=before if most and before > part else None,
        part=part if most else None,
        gradients=fact("snapshot.gradients") if is_gradient else None,
        asker=asker(most.op, most.scope) if most and not is_gradient else None,
    )
    facts = [*_failed(trace, use.process), peak]
    if use.unused_at_peak:
        largest = use.largest_free or None
        facts.append(fact("snapshot.unused", bytes=use.unused_at_peak, largest=largest))
    gpus = [gpu for gpu in used if gpu.process == use.process and not gpu.on_host]
    # Where memory ran out on one GPU, others may have much left.
    others = max((gpu.allocated.peak for gpu in gpus if gpu is not use), default=0)
    most_held, failed_on = use.allocated.peak, numbers(trace.counters["device"])
    is_full = (failed_on[_failures(trace, use.process)] == use.device).any()
    if is_full and _SAID * most_held < others <= _HALF * most_held:
        facts.append(fact("snapshot.uneven", bytes=others))
    parts = _parts_of_peak(at_peak, use, trace)
    return (*facts, *parts, *_emptied(trace, use.process, len({gpu.device for gpu in gpus})))


def _emptied(trace: Trace, process: int, gpus: int) -> Iterator[Fact]:
    """Give how often a process took memory of its GPUs, if it gave it back again and again."""
    is_own = is_one_of(trace.marks["kind"], "event") & is_one_of(
        trace.marks["name"], *_TAKES, *_GIVES
    )
    is_own &= numbers(trace.marks["process"]) == process
    is_taking = is_one_of(trace.marks["name"], *_TAKES)[is_own]  # in order of time
    taken, given = int(is_taking.sum()), int((~is_taking).sum())
    rounds = int((~is_taking[:-1] & is_taking[1:]).sum())
    if rounds >= _ROUNDS and given >= _NEARLY_ALL * taken:
        whose = fact("snapshot.the-gpu" if gpus < 2 else "snapshot.its-gpus")
        yield fact("snapshot.emptied", whose=whose, count=taken, given=given)


def _failures(trace: Trace, process: int) -> IntArray:
    """Return the rows of the counters that are failed allocations of a process."""
    is_failure = is_one_of(trace.counters["name"], "device_memory.failed_bytes")
    return np.flatnonzero(is_failure & (numbers(trace.counters["process"]) == process))


def _failed(trace: Trace, process: int) -> Iterator[Fact]:
    """Give how many allocations of a process failed, if any, and size and caller of the last."""
    table, rows = trace.counters, _failures(trace, process)
    if not len(rows):
        return
    (size,), stack = floats(table["value"])[rows[-1:]], int(codes(table["stack"])[rows[-1]])
    op, _, callers = (names(table["stack"])[stack] if stack >= 0 else "").partition(BETWEEN)
    yield fact(
        "snapshot.failed",
        count=len(rows),
        which=fact("snapshot.last" if len(rows) > 1 else "snapshot.this"),
        bytes=int(size),
        asker=asker(op, callers) if op else None,
    )


def _parts_of_peak(holders: Sequence[Holder], use: MemoryUse, trace: Trace) -> Iterator[Fact]:
    """Give which parts of the program hold most at the peak, and what makes the largest smaller.

    `holders` hold what is allocated at the peak of the `use` of a GPU.
    """
    peak, stacks = use.allocated.peak, names(trace.counters["stack"])
    by_softmax = scores_by_softmax(holders, trace)
    parts = [
        (holder, "scores" if holder in by_softmax and part == "forward" else part)
        for holder in holders
        if (part := _part(holder))
    ]
    held = Counter[str]()
    for holder, part in parts:
        held[part] += holder.bytes
    scores = _bytes_of_scores(parts)
    of_forward = [holder for holder, part in parts if part in ("forward", "scores")]
    held["forward"] += held.pop("scores", 0)
    said = [(part, size) for part, size in held.most_common() if size >= max(_SAID * peak, 1)]
    # Gradients alone are told by the first statement if their holder is the largest.
    first = next((holder for holder in holders if holder.recorded and holder.op), None)
    is_told = [part for part, _ in said] == ["gradients"] and first and _is_gradient(first)
    if said and not is_told:
        yield fact(
            "snapshot.parts",
            parts=tuple(fact(f"snapshot.of-{part}", bytes=size) for part, size in said),
        )
    much = max(_MUCH * peak, 1)
    temporary = sum(
        holder.bytes for holder, part in parts if part == "optimizer" and _COMPUTED.match(holder.op)
    )
    if temporary >= max(_SAID * peak, 1):
        yield fact("snapshot.remedy-temporaries", bytes=temporary)
    loss = sum(holder.bytes for holder in holders if _is_of_loss(holder))
    trains = any(_is_backward(stack.split(BETWEEN)) for stack in stacks)
    # Log-softmax alone may be what a model returns.
    if loss >= much and (trains or any(map(_SURE_LOSS.search, stacks))):
        yield fact("snapshot.remedy-loss", bytes=loss)
        return
    if (in_place := _in_place(holders, much)) is not None:
        yield in_place
        return
    largest, size = said[0] if said else ("", 0)
    if size < much:
        return
    if scores >= max(_SAID * peak, size / 4) and largest in ("forward", "backward"):
        yield fact("snapshot.remedy-scores", bytes=scores)
    if largest == "forward" and scores < size / 2:
        much = max(_SAID * peak, 1)
        yield from forward_remedies(of_forward, much, stacks, trains=trains)
    elif largest == "gradients":
        yield fact("snapshot.remedy-gradients")
        if _asked_at_peak(trace, use) == "forward":
            yield fact("snapshot.remedy-zero-grad")
    elif largest == "optimizer":
        yield fact("snapshot.remedy-optimizer")


def _bytes_of_scores(parts: Sequence[tuple[Holder, str]]) -> int:
    """Return the bytes of attention's scores, in forward and backward passes.

    Queries and outputs of attention are far smaller. Backward has no names of functions, but what
    is of scores is as large as they are.
    """
    sizes = {holder.bytes / holder.blocks for holder, part in parts if part == "scores"}
    large = {size for size in sizes if _FEWER_BITS * size >= max(sizes)}
    return sum(
        holder.bytes
        for holder, part in parts
        if part in ("scores", "backward") and holder.bytes / holder.blocks in large
    )


def _in_place(holders: Sequence[Holder], much: float) -> Fact | None:
    """Return that an operator could write to its input: its block lies beside one of its size."""
    single = [holder for holder in holders if holder.blocks == 1]
    alike = Counter(holder.bytes for holder in single)
    for holder in single:
        if holder.bytes >= much and alike[holder.bytes] > 1 and _IN_PLACE.match(holder.op):
            return fact("snapshot.remedy-in-place", op=holder.op, bytes=holder.bytes)
    return None


def _part(holder: Holder) -> str | None:
    """Return the part of a program that allocated what is held, None if its stack does not tell."""
    frames = [holder.op, *program_frames(holder.scope)]
    step = _step(frames)
    if _is_backward(frames):
        return "gradients" if _is_gradient(holder) else "backward"
    if step is not None and (_OPTIMIZER.search(step["file"]) or _FILLED.match(holder.op)):
        return "optimizer"
    if any(map(_SCORES.search, frames[: _INNER + 1])) and not _FUSED.search(holder.op):
        return "scores"
    # The innermost frame that tells it counts.
    kinds = (
        "loading" if _LOADS.search(f) else "forward" if FORWARD.match(f) else None for f in frames
    )
    return next(filter(None, kinds), None)


def _step(frames: Sequence[str]) -> re.Match[str] | None:
    """Return the step of an optimizer that allocates itself, or in functions of its own file."""
    for at, frame in enumerate(frames):
        if match := _STEP.match(frame):
            return match
        if at and not _OPTIMIZER.search(frame.partition("(")[0]):
            break
    return None


def _is_of_loss(holder: Holder) -> bool:
    frames = [holder.op, *program_frames(holder.scope)]
    return any(map(_LOSS.match, frames[: _INNER + 1]))


def _is_gradient(holder: Holder) -> bool:
    return _GRADIENTS in (holder.op, *holder.scope.split(BETWEEN))


def _gradients(holder: Holder) -> int:
    """Return how many bytes of gradients are held by a holder."""
    return holder.bytes if _is_gradient(holder) else 0


def _asked_at_peak(trace: Trace, use: MemoryUse) -> str | None:
    """Return the part of a program that made the last allocation before the peak."""
    rows = AllocationRows.of(trace)
    device = -1 if use.device is None else use.device
    is_own = (rows.process == use.process) & (rows.device == device) & (rows.stack >= 0)
    is_own &= (rows.time_ns <= use.allocated.peak_ns) & (rows.address >= 0) & (rows.value > 0)
    if not is_own.any():
        return None
    code = int(rows.stack[np.flatnonzero(is_own)[-1]])
    op, _, callers = names(trace.counters["stack"])[code].partition(BETWEEN)
    return _part(Holder(op, callers, 0, 0))


def _is_backward(frames: Sequence[str]) -> bool:
    return any(map(_BACKWARD.match, frames))

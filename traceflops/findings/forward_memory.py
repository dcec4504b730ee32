"""What forward passes hold in a memory snapshot: activations, scores of attention, outputs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceflops.characters import function_name
from traceflops.facts import Fact, fact
from traceflops.memory.usage import BETWEEN, Holder
from traceflops.table.columns import codes, floats, is_one_of, names
from traceflops.table.grouping import groups
from traceflops.table.trace import Trace

FORWARD: Final = re.compile(r"^(?!pydev).*: (?:\w*forward|__call__)$")
_WITHOUT_GRADIENTS: Final = re.compile(r": (?:decorate|generator)_context$")
_SOFTMAX: Final = re.compile(r"aten::_?softmax")
_PRODUCT: Final = re.compile(r"aten::(?:matmul|bmm|baddbmm|einsum)$")
_LINEAR: Final = re.compile(r"aten::(?:linear|matmul|mm|addmm)$")
_LINE: Final = re.compile(r"\(\d+\)(?=: )")
_KEPT, _PLACES = 3, 3
"""Activations wait for a backward pass if blocks from one place in the code are held at once.

That is so many blocks from so many places; a cache of keys and values is from fewer places.
"""


def asker(op: str, callers: str) -> str:
    """Return the names of an operator and of the function that called it: "NAME in CALLER"."""
    frames = [*filter(None, (op, *program_frames(callers)[:1]))]
    return " in ".join(map(function_name, frames))


def program_frames(callers: str) -> list[str]:
    """Return the frames of callers without PyTorch's wrapper of what runs without gradients."""
    return [frame for frame in callers.split(BETWEEN) if not _WITHOUT_GRADIENTS.search(frame)]


def forward_remedies(
    held: Sequence[Holder], much: float, stacks: Sequence[str], *, trains: bool
) -> Iterator[Fact]:
    """Give what makes that smaller which forward passes hold (`held`).

    Outputs of the model are told from `much` (bytes) on. `stacks` are all of the recording, which
    `trains` if it has a backward pass. Activations are stored for it if those of several layers are
    held together.
    """
    half = sum(holder.bytes for holder in held) / 2
    repeated = [holder for holder in held if holder.blocks >= _KEPT]
    is_kept = sum(holder.bytes for holder in repeated) >= half
    off = sum(
        holder.bytes
        for holder in held
        if any(map(_WITHOUT_GRADIENTS.search, holder.scope.split(BETWEEN)))
    )
    if is_kept and trains:
        yield fact("snapshot.remedy-forward")
        return
    if is_kept and len(repeated) >= _PLACES and off < half:
        yield fact("snapshot.remedy-forward-alone")
        return
    for holder in () if trains else held:
        if holder.bytes >= much and _is_output(holder, stacks):
            yield fact(
                "snapshot.remedy-logits",
                asker=asker(holder.op, holder.scope),
                bytes=holder.bytes,
                earlier=fact("snapshot.earlier-passes") if holder.blocks > 1 else None,
            )
    is_off = not trains and off >= half
    yield fact("snapshot.remedy-fewer-without-gradients" if is_off else "snapshot.remedy-fewer")


def _is_output(holder: Holder, stacks: Sequence[str]) -> bool:
    """Return whether a module without a parent, which calls other modules, made it by a GEMM."""
    module, _, callers = holder.scope.partition(BETWEEN)
    if not (_LINEAR.match(holder.op) and FORWARD.match(module)):
        return False
    if not callers or any(map(FORWARD.match, callers.split(BETWEEN))):
        return False
    outer = _LINE.sub("", module)
    for stack in stacks:
        frames = stack.split(BETWEEN)
        inner = [at for at, frame in enumerate(frames) if FORWARD.match(frame)]
        if len(inner) > 1 and _LINE.sub("", frames[inner[-1]]) == outer:
            return True
    return False


def scores_by_softmax(held: Sequence[Holder], trace: Trace) -> frozenset[Holder]:
    """Return which of `held` are scores of attention that only a call of softmax gives away.

    A function that multiplies matrices and calls softmax on a result of that size is attention. The
    softmax may be in 32 bits, twice as large.
    """
    by_place: defaultdict[tuple[str, str], tuple[set[float], set[float]]]
    by_place = defaultdict(lambda: (set(), set()))
    table = trace.counters
    stack, size = codes(table["stack"]), floats(table["value"])
    is_made = is_one_of(table["name"], "device_memory.change_bytes") & (size > 0) & (stack >= 0)
    texts = names(table["stack"])
    rows = np.flatnonzero(is_made)
    for code, members in groups(stack[rows]):
        op, _, callers = texts[code].partition(BETWEEN)
        number = 0 if _PRODUCT.match(op) else 1 if _SOFTMAX.match(op) else None
        if number is not None:
            by_place[_place(callers)][number].update(size[rows[members]].tolist())
    scores = {
        (place, double * size)
        for place, (products, softmaxes) in by_place.items()
        for size in products
        for double in (1, 2)
        if {size, 2 * size} & softmaxes and (double == 1 or 2 * size in softmaxes)
    }
    return frozenset(
        one for one in held if one.blocks and (_place(one.scope), one.bytes / one.blocks) in scores
    )


def _place(callers: str) -> tuple[str, str]:
    """Return the innermost function of callers, without its line, and what called it."""
    innermost, _, outer = callers.partition(BETWEEN)
    return _LINE.sub("", innermost), outer

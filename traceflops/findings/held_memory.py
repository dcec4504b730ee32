"""What part of a program holds GPU memory at the peak, by its functions, and what holds less."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from traceflops.facts import Fact, fact
from traceflops.memory.usage import BETWEEN, Holder

_BACKWARD: Final = re.compile(r"\w*Backward\d*$|(?:.*: )?(?:backward|AccumulateGrad)$")
_STEP: Final = re.compile(r"(?P<file>.*)\(\d+\): (?:step|_init_group|_?init_state)$")
_OPTIMIZER: Final = re.compile(r"optim|adam|sgd|lion|muon|shampoo|adafactor", re.IGNORECASE)
_FILLED: Final = re.compile(r"aten::(?:zeros|empty|full)")
_SCORES: Final = re.compile(r": \w*(?:softmax|dot_product_attention|eager_attention)\w*$")
_FUSED: Final = re.compile(r"flash|efficient|scaled_dot_product|cudnn_attention")
_FORWARD: Final = re.compile(r": (?:\w*forward|__call__)$")
_INNER: Final = 2  # frames that tell whether an allocation is of attention's scores
_MUCH, _SAID = 0.25, 0.10
"""A part of the peak from which what holds less is told, and one from which the part is told."""


def parts_of_peak(holders: Sequence[Holder], peak: int, stacks: Iterable[str]) -> Iterator[Fact]:
    """Give which parts of the program hold most at the peak, and what makes the largest smaller.

    `holders` hold what is allocated at the `peak` (bytes), `stacks` are all of the recording.
    """
    held = Counter[str]()
    for holder in holders:
        if part := _part(holder):
            held[part] += holder.bytes
    scores = held["scores"]
    held["forward"] += held.pop("scores", 0)
    said = [(part, size) for part, size in held.most_common() if size >= _SAID * peak]
    if not said:
        return
    yield fact(
        "snapshot.parts",
        parts=tuple(fact(f"snapshot.of-{part}", bytes=size) for part, size in said),
    )
    largest, size = said[0]
    if size < _MUCH * peak:
        return
    if scores >= max(_SAID * peak, size / 4) and largest == "forward":
        yield fact("snapshot.remedy-scores", bytes=scores)
    elif largest == "forward":
        trains = any(_is_backward(stack.split(BETWEEN)) for stack in stacks)
        yield fact("snapshot.remedy-forward" if trains else "snapshot.remedy-forward-alone")
    elif largest == "optimizer":
        yield fact("snapshot.remedy-optimizer")


def _part(holder: Holder) -> str | None:
    """Return the part of a program that allocated what is held, None if its stack does not tell."""
    frames = [holder.op, *holder.scope.split(BETWEEN)]
    step = next(filter(None, map(_STEP.match, frames[:_INNER])), None)
    if _is_backward(frames):
        return "backward"
    if step is not None and (_OPTIMIZER.search(step["file"]) or _FILLED.match(holder.op)):
        return "optimizer"
    if not any(map(_FORWARD.search, frames)):
        return None
    is_scores = any(map(_SCORES.search, frames[: _INNER + 1])) and not _FUSED.search(holder.op)
    return "scores" if is_scores else "forward"


def _is_backward(frames: Sequence[str]) -> bool:
    return any(map(_BACKWARD.match, frames))

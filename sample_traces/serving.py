"""Forward passes of a server: what they are, their annotations, the truth about each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, get_args

from msgspec import Struct
from msgspec.structs import asdict, replace

from sample_traces.config import Engine, PassKind, RunConfig
from sample_traces.records import RankRun


class Requests(Struct, frozen=True):
    """Requests of one pass: so many read in, of so many tokens together; so many that generate."""

    context: int
    context_tokens: int
    generation: int

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.context + self.generation

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return self.context_tokens + self.generation


class PassTruth(Struct, frozen=True):
    """One pass: what it is, and when its kernels ran, in ns since the run began.

    `idle_after_ns` is the time without device work from its end to the start of the next pass;
    None for the last.
    """

    kind: PassKind
    batch: int
    tokens: int
    start_ns: int
    end_ns: int
    idle_after_ns: int | None


def kind_of(config: RunConfig, number: int) -> PassKind:
    """Return what the pass of a number does; they take turns."""
    return config.passes[number % len(config.passes)]


def requests(config: RunConfig, number: int) -> Requests:
    """Return whose pass it is."""
    kind = kind_of(config, number)
    context = 0 if kind == "decode" else config.batch
    return Requests(context, context * config.sequence, 0 if kind == "prefill" else config.batch)


def pass_config(config: RunConfig, number: int) -> RunConfig:
    """Return the sizes of a pass: all its tokens as one sequence."""
    return replace(config, batch=1, sequence=requests(config, number).tokens)


def folder_of(config: RunConfig) -> str:
    """Return where the source of an engine is that is known by it, or ""."""
    return {"vLLM": "vllm/v1/worker/", "SGLang": "sglang/srt/managers/"}.get(config.engine, "")


_VLLM: Final = "execute_context_{context}({context_tokens})_generation_{generation}({generation})"
_TENSORRT: Final = (
    "[Executor] _forward_step {number}: {context} ctx reqs, {context_tokens} ctx tokens, "
    "{generation} gen reqs"
)
_TEXTS: Final[Mapping[Engine, tuple[str, str, str]]] = {
    "vLLM": (_VLLM,) * 3,
    "SGLang": (
        "step[EXTEND bs={batch} toks={tokens}]",
        "step[DECODE bs={batch}]",
        "step[MIXED bs={batch} toks={tokens}]",
    ),
    "ATOM": (
        "prefill[bs={batch} tok={tokens} ctx=[{context_tokens}]]",
        "decode[bs={batch}/{batch} tok={tokens} d={generation}]",
        "decode[bs={batch}/{batch} tok={tokens} p={context} d={generation}]",
    ),
    "TensorRT-LLM": (_TENSORRT,) * 3,
}
"""What each engine writes at a pass that is prefill, decode and mixed."""


def annotation_of(config: RunConfig, number: int) -> str:
    """Return how the engine annotates a pass."""
    one = requests(config, number)
    text = _TEXTS[config.engine][get_args(PassKind).index(kind_of(config, number))]
    return text.format(number=number, batch=one.batch, tokens=one.tokens, **asdict(one))


def pass_truth(config: RunConfig, rank: RankRun) -> list[PassTruth]:
    """Return the passes on the device of a rank."""
    spans = list(_spans(config, rank))
    found = []
    for place, (number, start_ns, end_ns) in enumerate(spans):
        one, after = requests(config, number), None
        if place + 1 < len(spans):
            after = _idle_ns(rank, end_ns, spans[place + 1][1])
        found.append(
            PassTruth(kind_of(config, number), one.batch, one.tokens, start_ns, end_ns, after)
        )
    return found


def _spans(config: RunConfig, rank: RankRun) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each pass by what was launched in its annotation."""
    names = {annotation_of(config, number) for number in config.step_numbers}
    marks = [mark for mark in rank.marks if mark.kind == "annotation" and mark.name in names]
    for number, mark in zip(config.step_numbers, marks, strict=True):
        mine = [
            one
            for one in rank.activities
            if one.call is not None
            and mark.start_ns <= rank.calls[one.call].start_ns < mark.end_ns
            and one.work.kind == "kernel"
        ]
        yield number, min(one.start_ns for one in mine), max(one.end_ns for one in mine)


def _idle_ns(rank: RankRun, start_ns: int, end_ns: int) -> int:
    """Return for how long nothing runs between two times."""
    idle_ns, ended_ns = 0, start_ns
    for one in rank.activities:  # by start
        idle_ns += max(0, min(one.start_ns, end_ns) - ended_ns)
        ended_ns = max(ended_ns, min(one.end_ns, end_ns))
    return idle_ns + max(0, end_ns - ended_ns)

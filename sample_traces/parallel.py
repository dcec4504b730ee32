"""Ranks that work together: which groups a run has, and what a rank does to communicate in one.

Ranks that hold parts of one tensor are neighbours, then come those with other data, some of which
share experts, then the stages of a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final, Literal

from msgspec import Struct

from sample_traces.config import Dtype, RunConfig
from sample_traces.gpt import contiguous, scalar, transposed
from sample_traces.kernels import Kernels, element_type
from sample_traces.library import Exchange
from sample_traces.program import (
    COMMUNICATION,
    COMPUTE,
    Block,
    Launch,
    Node,
    Wait,
    annotation,
    kernel,
    op,
)
from sample_traces.records import Argument, Collective, Group

Dimension = Literal["dp", "tp", "pp", "ep"]
Way = Literal["forward", "backward"]
STREAM_OF: Final[dict[Dimension, int]] = {"dp": COMMUNICATION, "tp": 28, "ep": 32, "pp": 36}
_DTYPES: Final[dict[Dtype, str]] = {"bf16": "BFloat16", "fp16": "Half", "fp32": "Float"}


def groups_of(config: RunConfig, rank: int) -> dict[Dimension, Group]:
    """Return the groups of a rank; a dimension of one rank has none."""
    known = {group.ranks: group for group in all_groups(config)}
    found = {dim: ranks for dim, sets in _sets(config).items() for ranks in sets if rank in ranks}
    return {dim: known[ranks] for dim, ranks in found.items() if len(ranks) > 1}


def all_groups(config: RunConfig) -> tuple[Group, ...]:
    """Return the groups of a run, that of all ranks first, each set of ranks once."""
    known = {tuple(range(config.ranks)): "default_pg"}
    for dim, sets in _sets(config).items():
        for ranks in sorted(sets):
            if len(ranks) > 1:
                known.setdefault(ranks, f"mesh_{dim}")
    return tuple(Group(str(at), known[ranks], ranks) for at, ranks in enumerate(known))


def _sets(config: RunConfig) -> dict[Dimension, set[tuple[int, ...]]]:
    """Return the ranks that differ in one dimension alone, by dimension."""
    tensor, expert, stages = config.tensor_ranks, config.expert_ranks, config.stages
    data = config.ranks // (tensor * stages)

    def along(step: int, count: int) -> set[tuple[int, ...]]:
        def first(rank: int) -> int:
            return rank - rank // step % count * step

        firsts = sorted({first(rank) for rank in range(config.ranks)})
        return {tuple(range(one, one + step * count, step)) for one in firsts}

    return {
        "dp": along(tensor, data),
        "tp": along(1, tensor),
        "pp": along(tensor * data, stages),
        "ep": along(tensor, expert),
    }


class Communication(Struct, frozen=True):
    """Writes down the collectives of one rank."""

    config: RunConfig
    rank: int

    @property
    def groups(self) -> dict[Dimension, Group]:
        """Return the rank's groups."""
        return groups_of(self.config, self.rank)

    def allreduce(self, elements: int, dim: Dimension = "dp") -> Block:
        """Return the sum of a tensor over a group."""
        return self._exchange("allreduce", "all_reduce", dim, elements, elements)

    def after_layer(self) -> Iterator[Node]:
        """Yield what follows a layer, forth and back: its tensor is put together, experts work."""
        config = self.config
        if "tp" in self.groups:
            yield self.allreduce(config.tokens * config.hidden, "tp")
            yield Wait(COMPUTE, STREAM_OF["tp"])
        if "ep" in self.groups:
            yield from self._experts()

    def receive(self, way: Way) -> Iterator[Node]:
        """Yield what a stage gets from the one before it, or of gradients behind it."""
        if block := self._transfer("recv", -1 if way == "forward" else 1):
            yield from (block, Wait(COMPUTE, STREAM_OF["pp"]))

    def send(self, way: Way) -> Iterator[Node]:
        """Yield what a stage gives to the next one, or of gradients to the one before it."""
        if block := self._transfer("send", 1 if way == "forward" else -1):
            yield block

    def _transfer(self, kind: Literal["send", "recv"], distance: int) -> Block | None:
        group = self.groups.get("pp")
        place = group.ranks.index(self.rank) if group else 0
        if group is None or not 0 <= place + distance < group.size:
            return None
        peer, elements = place + distance, self.config.tokens * self.config.hidden
        ends = (place, peer) if kind == "send" else (peer, place)
        arrow = "->" if kind == "send" else "<-"
        return self._exchange(kind, f"{kind} {place}{arrow}{peer}", "pp", elements, elements, ends)

    def _experts(self) -> Iterator[Node]:
        """Yield how tokens get to the experts, what these do, and the way back."""
        hidden, ranks = self.config.hidden, self.groups["ep"].ranks
        mine = sum(self._routed(self.rank, other) for other in ranks)
        theirs = sum(self._routed(other, self.rank) for other in ranks)
        element = element_type(self.config.dtype)
        inputs = contiguous((theirs, hidden), element), transposed(hidden, hidden, element)
        work = Kernels(self.config).gemm(theirs, hidden, hidden, "TN")
        yield from self._swap(mine * hidden, theirs * hidden)
        yield op("aten::mm", kernel(work), inputs=inputs)
        yield from self._swap(theirs * hidden, mine * hidden)

    def _swap(self, elements: int, out: int) -> tuple[Node, ...]:
        exchange = self._exchange("all_to_allv", "all_to_all", "ep", elements, out)
        return exchange, Wait(COMPUTE, STREAM_OF["ep"])

    def _routed(self, source: int, target: int) -> int:
        """Return how many tokens a rank gives to the experts of another."""
        config = self.config
        size = self.groups["ep"].size
        share = Random(f"{config.seed}:tokens:{source}:{target}").randint(90, 110)
        return config.tokens * share * config.of_rank(target).expert_percent // (size * 10_000)

    def _exchange(
        self,
        kind: Exchange,
        annotated: str,
        dim: Dimension,
        elements: int,
        out: int,
        ends: tuple[int, int] | None = None,
    ) -> Block:
        config, group, stream = self.config, self.groups[dim], STREAM_OF[dim]
        collective = Collective(kind, elements, _DTYPES[config.dtype], group, out, *(ends or ()))
        work = Kernels(config).exchange(kind, max(elements, out), len(collective.members))
        launch = Launch("cudaLaunchKernelExC", (work,), stream, collective)
        tensor = contiguous((elements,), element_type(config.dtype))
        tensors = Argument("TensorList", members=(tensor,))
        rest = scalar("0"), scalar("[]"), scalar("[]"), scalar("0"), scalar(str(group.size))
        around = annotation(f"nccl:{annotated}", Wait(stream, COMPUTE), launch)
        comms = Block(
            "op", "record_param_comms", (around,), (tensors, *rest), collective=collective
        )
        return op(f"c10d::{kind}_", comms, inputs=(tensors,))

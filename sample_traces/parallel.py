"""Ranks that work together: which groups a run has, and what a rank does to communicate in one.

Ranks that hold parts of one tensor are neighbours, then come those with other data, some of which
share experts, then the stages of a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sample_traces.config import Dtype, RunConfig
from sample_traces.gpt import contiguous, scalar
from sample_traces.kernels import Kernels, element_type
from sample_traces.library import Exchange
from sample_traces.program import (
    COMMUNICATION,
    COMPUTE,
    Block,
    Launch,
    Wait,
    annotation,
    op,
)
from sample_traces.records import Argument, Collective, Group

Dimension = Literal["dp", "tp", "pp", "ep"]
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
        for ranks in sets:
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


@dataclass(frozen=True, slots=True)
class Communication:
    """Writes down the collectives of one rank."""

    config: RunConfig
    rank: int

    @property
    def groups(self) -> dict[Dimension, Group]:
        """Return the rank's groups."""
        return groups_of(self.config, self.rank)

    def allreduce(self, elements: int, dim: Dimension = "dp") -> Block:
        """Return the sum of a tensor over a group."""
        tensors = Argument("TensorList", members=(self._vector(elements),))
        return self._exchange("allreduce", "all_reduce", self.groups[dim], tensors, elements)

    def _exchange(
        self,
        kind: Exchange,
        annotated: str,
        group: Group,
        tensors: Argument,
        elements: int,
        out_elements: int | None = None,
    ) -> Block:
        config = self.config
        out = elements if out_elements is None else out_elements
        collective = Collective(kind, elements, _DTYPES[config.dtype], group, out)
        work = Kernels(config).exchange(kind, max(elements, out), group.size)
        launch = Launch("cudaLaunchKernelExC", (work,), COMMUNICATION, collective)
        rest = scalar("0"), scalar("[]"), scalar("[]"), scalar("0"), scalar(str(group.size))
        around = annotation(f"nccl:{annotated}", Wait(COMMUNICATION, COMPUTE), launch)
        inputs = (tensors, *rest)
        comms = Block("op", "record_param_comms", (around,), inputs, collective=collective)
        return op(f"c10d::{kind}_", comms, inputs=inputs[:1])

    def _vector(self, elements: int) -> Argument:
        return contiguous((elements,), element_type(self.config.dtype))

"""What the vendors' libraries bring: kernels whose name and geometry differ from GPU to GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from sample_traces.records import Collective, Triple

Layout = Literal["TN", "NN", "NT"]
Helper = Literal["dot_do_o", "convert_dq"]
Exchange = Literal["allreduce", "all_to_allv", "send", "recv"]


@dataclass(frozen=True, slots=True)
class Form:
    """How a kernel is called and launched."""

    name: str
    grid: Triple = (1, 1, 1)
    block: Triple = (128, 1, 1)
    registers: int = 32
    shared_bytes: int = 0


class Library(Protocol):
    """The kernels of one vendor, for the data type and sizes of one run."""

    def gemm(self, m: int, n: int, layout: Layout, bias: bool, aligned: bool) -> Form:
        """Return a product of matrices with an m x n result."""

    def attention_forward(self) -> Form:
        """Return fused attention."""

    def attention_backward(self) -> Form:
        """Return its gradient."""

    def attention_helper(self, which: Helper) -> str:
        """Return the name of a small kernel before or after the gradient."""

    def exchange(self, kind: Exchange) -> Form:
        """Return the kernel of a collective."""


def nccl_function(collective: Collective) -> str:
    """Return the function of NCCL that a framework calls."""
    return _FUNCTIONS[collective.name]


_FUNCTIONS: Final = {
    "allreduce": "ncclAllReduce",
    "all_to_allv": "ncclAllToAllv",
    "send": "ncclSend",
    "recv": "ncclRecv",
}


def ceil_divide(amount: int, unit: int) -> int:
    """Return how many units hold the amount."""
    return -(-amount // unit)

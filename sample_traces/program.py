"""What the host is told to do: nested blocks whose leaves are runtime calls and pauses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from sample_traces.records import Argument, Collective, Work

COMPUTE: Final = 7
COMMUNICATION: Final = 20
COPY: Final = 24

BlockKind = Literal["op", "backward", "step", "annotation", "python"]


@dataclass(frozen=True, slots=True)
class Launch:
    """A call that puts work on a stream: one piece, or all nodes of a graph."""

    api: str
    works: tuple[Work, ...]
    stream: int = COMPUTE
    collective: Collective | None = None
    is_graph: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Calls that make `stream` wait for everything so far on `awaited`."""

    stream: int
    awaited: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A call that blocks the host until the stream is empty."""

    stream: int = COMPUTE


@dataclass(frozen=True, slots=True)
class Pause:
    """Host time in which nothing is called, in ns."""

    dur_ns: int


@dataclass(frozen=True, slots=True)
class Block:
    """An op, annotation or python frame and what happens inside it."""

    kind: BlockKind
    name: str
    children: tuple[Node, ...] = ()
    inputs: tuple[Argument, ...] = ()
    sequence: int | None = None
    collective: Collective | None = None
    allocates: int = 0
    """Device memory in bytes that stays taken (negative: given back)."""


@dataclass(frozen=True, slots=True)
class OnBackwardThread:
    """What the autograd engine's thread does while the main thread waits for it."""

    children: tuple[Node, ...]


Node = Block | OnBackwardThread | Launch | Wait | Sync | Pause


def op(name: str, *children: Node, inputs: tuple[Argument, ...] = ()) -> Block:
    """Return a framework operator."""
    return Block("op", name, children, inputs)


def python(name: str, *children: Node) -> Block:
    """Return a python frame."""
    return Block("python", name, children)


def annotation(name: str, *children: Node) -> Block:
    """Return a named range made by record_function."""
    return Block("annotation", name, children)


def kernel(work: Work) -> Launch:
    """Return the launch of one kernel on the compute stream."""
    return Launch("cudaLaunchKernel", (work,))


def memset(work: Work) -> Launch:
    """Return a memset on the compute stream."""
    return Launch("cudaMemsetAsync", (work,))


def launched_works(nodes: tuple[Node, ...]) -> Iterator[Work]:
    """Yield what the nodes would launch, in order, as a graph capture sees it."""
    for node in nodes:
        if isinstance(node, Launch):
            yield from node.works
        elif isinstance(node, Block | OnBackwardThread):
            yield from launched_works(node.children)

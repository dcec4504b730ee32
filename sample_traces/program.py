"""What the host is told to do: nested blocks whose leaves are runtime calls and pauses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from sample_traces.records import Argument, Cause, Collective, RankRun, Work

COMPUTE: Final = 7
COMMUNICATION: Final = 20
COPY: Final = 24
STREAMS: Final = (COMPUTE, COMMUNICATION, COPY, 28, 32, 36)
"""All, by their numbers; the last are of communication in groups other than data parallel ones."""

BlockKind = Literal["op", "backward", "step", "annotation", "python", "system"]


class Launch(Struct, frozen=True):
    """A call that puts work on a stream: one piece, all nodes of a graph, or none.

    With `call_ns` the call takes that long and the work starts after it, `held_ns` later than it
    could.
    """

    api: str
    works: tuple[Work, ...]
    stream: int = COMPUTE
    collective: Collective | None = None
    is_graph: bool = False
    call_ns: int | None = None
    held_ns: int = 0
    cause: Cause | None = None
    """Of the time in the call beyond `usual_ns`."""
    usual_ns: int = 0


class Wait(Struct, frozen=True):
    """Calls that make `stream` wait for everything so far on `awaited`."""

    stream: int
    awaited: int


class Sync(Struct, frozen=True):
    """A call that blocks the host until the stream, or without one the device, is empty."""

    stream: int | None = COMPUTE
    api: str = "cudaStreamSynchronize"
    return_ns: int = 6_000
    """From the end of the work to the return of the call."""
    cause: Cause | None = None


class Pause(Struct, frozen=True):
    """Host time in which nothing is called, in ns."""

    dur_ns: int


class Block(Struct, frozen=True):
    """An op, annotation, python frame or call of the system and what happens inside it."""

    kind: BlockKind
    name: str
    children: tuple[Node, ...] = ()
    inputs: tuple[Argument, ...] = ()
    sequence: int | None = None
    collective: Collective | None = None
    allocates: int = 0
    """Device memory in bytes that stays taken (negative: given back)."""
    cause: Cause | None = None
    """Of the time in the block that is in nothing inside it."""


class OnBackwardThread(Struct, frozen=True):
    """What the autograd engine's thread does while the main thread waits for it."""

    children: tuple[Node, ...]
    handoff_ns: int = 9_000
    cause: Cause | None = None
    """Of the time from the end of the last call to the start of the thread."""


class Capture(Struct, frozen=True):
    """Launches that become nodes of a graph: calls without work."""

    children: tuple[Node, ...]
    cause: Cause | None = None
    """Of the time from its begin to its end."""


Node = Block | OnBackwardThread | Capture | Launch | Wait | Sync | Pause


def op(
    name: str, *children: Node, inputs: tuple[Argument, ...] = (), cause: Cause | None = None
) -> Block:
    """Return a framework operator."""
    return Block("op", name, children, inputs, cause=cause)


def python(name: str, *children: Node, cause: Cause | None = None) -> Block:
    """Return a python frame."""
    return Block("python", name, children, cause=cause)


def annotation(name: str, *children: Node, cause: Cause | None = None) -> Block:
    """Return a named range made by record_function."""
    return Block("annotation", name, children, cause=cause)


def system(name: str, *children: Node, cause: Cause | None = None) -> Block:
    """Return a call of the operating system."""
    return Block("system", name, children, cause=cause)


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


def streams_of(rank: RankRun) -> tuple[int, ...]:
    """Return the streams that a rank made: the usual ones, and others that it used."""
    used = {activity.stream for activity in rank.activities}
    return tuple(one for one in STREAMS if one <= COPY or one in used)

"""Start-up on purpose: what a run does only once, in its first step, while the device waits.

Each runs a kernel, waits until the device is empty, and does something for the first time. What
that takes beyond later ones of its kind is known by its `Cause`, whose function is the kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from sample_traces.config import RunConfig
from sample_traces.kernels import Kernels
from sample_traces.program import (
    Block,
    Capture,
    Launch,
    Node,
    Pause,
    Sync,
    annotation,
    kernel,
    op,
)
from sample_traces.records import Cause, Work

_SMALL: Final = 4_096
_WIDTH: Final = 2_048
_LATER: Final = 2
"""How often work that came first is launched again."""
_LONG: Final = 4
"""How much longer weights are read than anything else is done."""
_COMPILE: Final = "entire_frame_compile (dynamo_timed)"

_Nodes = tuple[Node, ...]


def plant_once(name: str, config: RunConfig) -> _Nodes:
    """Return what the host does for the first time, once the device has worked."""
    product = op("aten::mm", kernel(Kernels(config).gemm(_WIDTH, _WIDTH, _WIDTH, "TN")))
    return product, Sync(None, "cudaDeviceSynchronize"), *(BY_NAME | UNNAMED)[name](_First(config))


class _First(Struct, frozen=True):
    """What first times are made of."""

    config: RunConfig

    def call(self, kind: str, api: str, *works: Work, share: int = 100) -> Launch:
        """Return a call that takes long; with work, longer than later ones by that."""
        usual_ns = self.config.launch_call_ns if works else 0
        call_ns = usual_ns + self.config.once_ns * share // 100
        cause = Cause("start_up", kind)
        return Launch(api, works, call_ns=call_ns, cause=cause, usual_ns=usual_ns)

    def new(self, name: str) -> Work:
        return Kernels(self.config).pointwise(name, _SMALL)

    def in_op(self, name: str, *inner: Node) -> Block:
        return op(f"aten::{name}", *inner)

    def loads(self) -> _Nodes:
        load = self.call("load", "cuModuleLoadData")
        return (self.in_op("exp", load, kernel(self.new("exp"))),)

    def launches(self) -> _Nodes:
        first = self.call("first-launch", "cudaLaunchKernel", self.new("erf"))
        return (self.in_op("erf", first), *(self.in_op("erf", kernel(self.new("erf"))),) * _LATER)

    def copies(self) -> _Nodes:
        copy = Kernels(self.config).copy(_SMALL, "HtoD")
        first = self.call("first-copy", "cudaMemcpyAsync", copy)
        later = self.in_op("copy_", Launch("cudaMemcpyAsync", (copy,)))
        return self.in_op("copy_", first), *(later,) * _LATER

    def allocates(self) -> _Nodes:
        return (self.in_op("empty", self.call("first-call", "cudaMalloc")), *self.works())

    def compiles(self) -> _Nodes:
        pause, cause = Pause(self.config.once_ns), Cause("start_up", "compile")
        inner = self.in_op("sin", kernel(self.new("sin")))
        return annotation(_COMPILE, pause, cause=cause), inner

    def captures(self) -> _Nodes:
        """Return a graph that is captured and made, and then launched."""
        inner = Pause(self.config.once_ns // 2), self.in_op("cos", kernel(self.new("cos")))
        launch = Launch("cudaGraphLaunch", (self.new("cos"),), is_graph=True)
        made = self.call("capture", "cudaGraphInstantiate", share=50)
        return Capture(inner, Cause("start_up", "capture")), made, *(launch,) * _LATER

    def reads_weights(self) -> _Nodes:
        """Return a stretch of which nothing is recorded but a range around it."""
        pause, cause = Pause(_LONG * self.config.once_ns), Cause("start_up", "hole")
        return annotation("load weights", pause, cause=cause), *self.works()

    def works(self) -> _Nodes:
        return (self.in_op("mul", kernel(Kernels(self.config).scale(_SMALL))),)


BY_NAME: Final[dict[str, Callable[[_First], _Nodes]]] = {
    "load_code": _First.loads,
    "first_launch": _First.launches,
    "first_copy": _First.copies,
    "allocate": _First.allocates,
    "compile": _First.compiles,
    "capture": _First.captures,
}
"""All that a call or a function tells is done for the first time."""
UNNAMED: Final[dict[str, Callable[[_First], _Nodes]]] = {"read_weights": _First.reads_weights}
"""What is told by its length alone, where something else is done for the first time."""

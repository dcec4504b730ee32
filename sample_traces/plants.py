"""Idle time on purpose: what the host does while the device waits, of every class.

Each plant runs a kernel, waits until the device is empty, wastes time in one way, and launches
again. What it wastes is known by its `Cause`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from sample_traces.config import RunConfig
from sample_traces.kernels import Kernels
from sample_traces.program import (
    Block,
    Launch,
    Node,
    OnBackwardThread,
    Pause,
    Sync,
    annotation,
    kernel,
    op,
    python,
    system,
)
from sample_traces.records import Cause, Work

REPAIRED: Final = "repaired"
"""Only the work of a plant, without a wait."""
_LOADER: Final = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_OPTIMIZER: Final = "Optimizer.step#Lion.step"
_NEXT: Final = "torch/utils/data/dataloader.py(732): __next__"
_RESIZE: Final = "transformers/image_transforms.py(302): resize"
_ZOOM: Final = "scipy/ndimage/_interpolation.py(776): zoom"
_WAITS: Final = ("pthread_cond_wait", "sem_wait", "poll")
_COMPILE: Final = "entire_frame_compile (dynamo_timed)"
_SMALL: Final = 4_096
_WIDTH: Final = 2_048
_SHORT_OPS: Final = 40
_GRIDS: Final = {"one_block": 1, "full_grid": 128}
"""Blocks of a kernel that does the same work on as many multiprocessors."""

_Nodes = tuple[Node, ...]


def plant(name: str, config: RunConfig) -> _Nodes:
    """Return what the host does to plant a cause of idle time."""
    soil = _Soil(f"slow.py(7): {name}", config)
    cause = Cause("sync_call", "train.py(71): step")
    drain = Sync(None, "cudaDeviceSynchronize", cause=cause)
    work = Kernels(config).gemm(_WIDTH, _WIDTH, _WIDTH, "TN")
    product = op("aten::mm", kernel(work))
    if name in _GRIDS:
        return (soil.on_grid(_GRIDS[name]),)
    if name == REPAIRED:
        return product, soil.work()
    wasted = python(soil.function, *(PLANTS | OF_CALLS | OF_TORCH)[name](soil))
    return product, drain, wasted, soil.work()


def cause_of(name: str, config: RunConfig) -> str:
    """Return the class of idle time that a plant makes."""
    return next(_causes(PLANTS[name](_Soil("", config)))).kind


def _causes(nodes: _Nodes) -> Iterator[Cause]:
    for node in nodes:
        if cause := getattr(node, "cause", None):
            yield cause
        yield from _causes(getattr(node, "children", ()))


class _Soil(Struct, frozen=True):
    """What plants are made of: the function that they are in, and the run."""

    function: str
    config: RunConfig

    @property
    def pause(self) -> Pause:
        return Pause(self.config.plant_ns)

    def cause(self, kind: str, op: str = "", annotation: str = "") -> Cause:
        return Cause(kind, self.function, op, annotation)

    def small(self) -> Work:
        return Kernels(self.config).scale(_SMALL)

    def copy(self, direction: Literal["HtoD", "DtoH"]) -> Work:
        return Kernels(self.config).copy(_SMALL, direction)

    def work(self) -> Block:
        return op("aten::mul_", kernel(self.small()))

    def on_grid(self, blocks: int) -> Block:
        """Return a kernel of `plant_ns` where it has one block only."""
        dur_ns = self.config.plant_ns // blocks
        work = replace(self.small(), name="scan(float*, int)", grid=(blocks, 1, 1), dur_ns=dur_ns)
        return op("mylib::scan", kernel(work))

    def slow(self, kind: str, op: str, api: str, *works: Work) -> Launch:
        """Return a call that takes long; its work, if any, starts thereafter."""
        return Launch(api, works, call_ns=self.config.plant_ns, cause=self.cause(kind, op))

    def calls(self, kind: str, name: str, api: str, *works: Work) -> _Nodes:
        return (op(name, self.slow(kind, name, api, *works)),)

    def ops(self, kind: str, name: str, count: int = 1) -> _Nodes:
        pause = Pause(self.config.plant_ns // count)
        return (op(name, pause, cause=self.cause(kind, name)),) * count

    def returns_late(self, api: str) -> _Nodes:
        sync = Sync(api=api, return_ns=self.config.plant_ns, cause=self.cause("sync_call"))
        return self.work(), sync

    def data_input(self) -> _Nodes:
        """Return what a function of a user, called by the loader, has a library do."""
        cause = partial(Cause, "data_input", annotation=_LOADER)
        zoom = python(_ZOOM, self.pause, cause=cause(f"{_ZOOM} in {_RESIZE}"))
        resize = python(_RESIZE, zoom, cause=cause(_RESIZE))
        loads = annotation(_LOADER, resize, cause=cause())
        return (python(_NEXT, loads, cause=Cause("data_input", _NEXT)),)

    def read_back(self) -> _Nodes:
        name = "aten::is_nonzero"
        reads = self.slow("sync_call", name, "cudaMemcpyAsync", self.copy("DtoH"))
        return (op(name, op("aten::item", op("aten::_local_scalar_dense", reads))),)

    def optimizer(self) -> _Nodes:
        cause = Cause("optimizer_loop", _OPTIMIZER, _OPTIMIZER, _OPTIMIZER)
        update = op("aten::lerp_", self.pause, cause=cause)
        return (annotation(_OPTIMIZER, update, cause=cause),)

    def queue(self) -> _Nodes:
        cause, pause = self.cause("external_wait"), Pause(self.config.plant_ns // len(_WAITS))
        waits = (system(name, pause, cause=cause) for name in _WAITS)
        return (python("queue.py(154): get", *waits, cause=cause),)

    def churn(self) -> _Nodes:
        """Return a cache that is emptied and filled again."""
        cause, calls = self.cause("memory_alloc", "aten::empty"), ("cudaFree", "cudaMalloc") * 2
        share = self.config.plant_ns // len(calls)
        launches = (Launch(one, (), call_ns=share, cause=cause) for one in calls)
        return (op("aten::empty", *launches),)

    def recompile(self) -> _Nodes:
        """Return a compilation for shapes that are new."""
        cause = self.cause("compiled_runtime")
        inner = annotation(_COMPILE, self.pause, cause=cause)
        return (python("torch/_dynamo/convert_frame.py(1180): _compile", inner, cause=cause),)

    def own_code(self, name: str, *inner: str) -> _Nodes:
        """Return a function that takes long, maybe in an operator."""
        cause = Cause("host_code", name, *inner)
        ops = (op(one, self.pause, cause=cause) for one in inner)
        return (python(name, *(tuple(ops) or (self.pause,)), cause=cause),)

    def of_library(self, name: str) -> _Nodes:
        """Return a function of a library that takes long; that of the user is named."""
        cause = Cause("host_code", "metrics.py(33): tidy")
        return (python(cause.function, python(name, self.pause, cause=cause), cause=cause),)

    def unrecorded(self) -> _Nodes:
        cause = Cause("host_unrecorded", annotation="IO")
        return (annotation("IO 190", self.pause, cause=cause),)

    def handover(self) -> _Nodes:
        launch, cause = kernel(self.small()), Cause("thread_handover")
        return (OnBackwardThread((launch,), self.config.plant_ns, cause),)

    def held(self) -> _Nodes:
        work = self.copy("HtoD")
        cause = Cause("device_wait", work.name, work.name, work.name)
        held = Launch("cudaMemcpyAsync", (work,), held_ns=self.config.plant_ns, cause=cause)
        return (op("aten::to", held),)


PLANTS: Final[dict[str, Callable[[_Soil], _Nodes]]] = {
    "data_input": _Soil.data_input,
    "read_back": _Soil.read_back,
    "device_sync": lambda soil: soil.returns_late("cudaDeviceSynchronize"),
    "event_sync": lambda soil: soil.returns_late("cudaEventSynchronize"),
    "blocking_copy": lambda soil: soil.calls(
        "blocking_copy", "aten::copy_", "cudaMemcpy", soil.copy("HtoD")
    ),
    "pageable_copy": lambda soil: soil.calls(
        "blocking_copy", "aten::to", "cudaMemcpyAsync", soil.copy("HtoD")
    ),
    "allocate": lambda soil: soil.calls("memory_alloc", "aten::empty", "cudaMalloc"),
    "free": lambda soil: soil.calls("memory_alloc", "aten::resize_", "cudaFree"),
    "load_module": lambda soil: (soil.slow("slow_driver_call", "", "cuModuleLoadData"),),
    "first_launch": lambda soil: soil.calls(
        "slow_driver_call", "aten::relu", "cudaLaunchKernel", soil.small()
    ),
    "cache_lookup": lambda soil: soil.ops("compiled_runtime", "TorchDynamo Cache Lookup"),
    "optimizer": _Soil.optimizer,
    "queue": _Soil.queue,
    "python": lambda soil: soil.own_code("metrics.py(9): log"),
    "collector": lambda soil: soil.of_library("<built-in function collect>"),
    "checkpoint": lambda soil: soil.of_library("torch/serialization.py(944): save"),
    "long_op": lambda soil: soil.own_code("metrics.py(21): count", "aten::_unique2"),
    "short_ops": lambda soil: soil.ops("eager_overhead", "aten::view", _SHORT_OPS),
    "thread_handover": _Soil.handover,
    "unrecorded": _Soil.unrecorded,
    "held": _Soil.held,
}
"""By name, all ways to waste the device's time. `held` is the device's own."""
OF_CALLS: Final[dict[str, Callable[[_Soil], _Nodes]]] = {
    "query": lambda soil: (soil.slow("other_calls", "", "cudaGetDeviceProperties_v2"),),
}
"""More ways, which recordings without operators tell."""
OF_TORCH: Final[dict[str, Callable[[_Soil], _Nodes]]] = {
    "recompile": _Soil.recompile,
    "churn": _Soil.churn,
}
"""More ways, which only recordings of PyTorch tell."""

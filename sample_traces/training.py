"""A whole training step: batch, forward, backward, gradient exchange, optimizer, loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from sample_traces.config import RunConfig
from sample_traces.eager import EagerModel, optimizer_loop
from sample_traces.gpt import Gradient, Parameter, contiguous, scalar
from sample_traces.kernels import Kernels, element_type
from sample_traces.once import plant_once
from sample_traces.parallel import Communication
from sample_traces.plants import plant
from sample_traces.program import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    Block,
    Capture,
    Launch,
    Node,
    OnBackwardThread,
    Pause,
    Sync,
    Wait,
    annotation,
    kernel,
    launched_works,
    op,
    python,
)
from sample_traces.records import Argument, Cause
from sample_traces.serving import annotation_of, folder_of, kind_of, pass_config

_TENSORS_PER_KERNEL = 36
_TOKEN_BYTES = 8


class Trainer:
    """Writes down one step after the other, as a rank does them."""

    def __init__(self, config: RunConfig, rank: int = 0) -> None:
        self._config = config
        self._communication = Communication(config, rank)
        self._kernels = Kernels(config)
        self._model = EagerModel(config)

    def step(self, number: int) -> Block:
        """Return everything the host does in the step, or the pass of a server, of that number."""
        if self._config.engine:
            return self._pass(number)
        body = (
            *self._prefix(),
            *self._load(number),
            *self._once(number),
            annotation("Optimizer.zero_grad#AdamW.zero_grad"),
            *self._forward_and_backward(number),
            self._optimizer(),
            *self._planted(number),
            *self._read_loss(),
            *self._free(),
        )
        return Block("step", f"ProfilerStep#{number}", (python("train.py(71): step", *body),))

    def _pass(self, number: int) -> Block:
        forward = EagerModel(pass_config(self._config, number)).forward()
        if self._config.cuda_graph and kind_of(self._config, number) == "decode":
            forward = self._graph((forward,))
        annotated = annotation(
            annotation_of(self._config, number), *self._prefix(), *self._once(number), forward
        )
        rest = *self._planted(number), *self._read_loss(), *self._text()
        return python(
            f"{folder_of(self._config)}gpu_worker.py(88): execute_model", annotated, *rest
        )

    def _text(self) -> Iterator[Node]:
        """Yield how the host turns tokens into text."""
        if self._config.pass_gap_ns:
            name = "detokenizer.py(61): decode"
            pause = Pause(self._config.pass_gap_ns)
            yield python(name, pause, cause=Cause("host_code", name))

    def after_last_step(self) -> tuple[Node, ...]:
        """Return what the host does after the last step."""
        if not self._config.trailing_copy:
            return ()
        copy = self._kernels.copy(self._config.tokens * _TOKEN_BYTES, "DtoH")
        return (op("aten::copy_", Launch("cudaMemcpyAsync", (copy,))),)

    def _planted(self, number: int) -> Iterator[Node]:
        """Yield what is planted in the step; the steps take turns."""
        config = self._config
        for name in config.plants[number - config.first_step :: config.steps]:
            yield from plant(name, config)

    def _once(self, number: int) -> Iterator[Node]:
        """Yield what is done only once, in the first step."""
        for name in self._config.once if number == self._config.first_step else ():
            yield from plant_once(name, self._config)

    def _prefix(self) -> Iterator[Node]:
        """Yield what the host does before the first work of each step."""
        if self._config.prefix_ns:
            name = "video.py(12): decode"
            pause = Pause(self._config.prefix_ns)
            yield python(name, pause, cause=Cause("host_code", name))

    def _load(self, number: int) -> Iterator[Node]:
        config = self._config
        stall = config.data_stall_ns if number in config.data_stall_steps else 0
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        yield annotation(name, Pause(stall), cause=Cause("data_input", annotation=name))
        if not config.copy_stream:
            yield self._copy_batch(COMPUTE)
            return
        if number == config.first_step:
            yield self._copy_batch(COPY)
        yield Wait(COMPUTE, COPY)

    def _copy_batch(self, stream: int) -> Block:
        config = self._config
        tensor = contiguous((config.batch, config.sequence), "long int")
        copy = self._kernels.copy(config.tokens * _TOKEN_BYTES, "HtoD")
        launch = Launch("cudaMemcpyAsync", (copy,), stream)
        to_copy = op("aten::_to_copy", op("aten::copy_", launch, inputs=(tensor, tensor)))
        to = op("aten::to", to_copy, inputs=(tensor,))
        return python("train.py(58): to_device", to, to)

    def _forward_and_backward(self, number: int) -> Iterator[Node]:
        config, exchanges = self._config, "dp" in self._communication.groups
        overlapped = config.overlap and exchanges and not config.cuda_graph
        if config.cuda_graph:
            yield from self._replayed(number)
        else:
            yield from self._passes(overlapped)
        if exchanges and not overlapped:
            yield from map(self._communication.allreduce, self._bucket_sizes())
        if exchanges:
            yield Wait(COMPUTE, COMMUNICATION)

    def _replayed(self, number: int) -> Iterator[Node]:
        config, forward = self._config, self._model.forward()
        backward = tuple(self._backward(self._model.tape, overlapped=False))
        if config.capture and number == config.first_step:
            yield Capture((forward, OnBackwardThread(backward)))
        yield self._graph((forward, *backward))
        if config.copy_stream:
            yield self._copy_batch(COPY)

    def _passes(self, overlapped: bool) -> Iterator[Node]:
        """Yield all parts of the batch forth, then back; the last exchanges gradients."""
        talk, tapes = self._communication, []
        for _ in range(self._config.microbatches):
            yield from talk.receive("forward")
            yield self._forward()
            yield from talk.send("forward")
            tapes.append(tuple(self._model.tape))
        if self._config.copy_stream:
            yield self._copy_batch(COPY)
        for left, tape in zip(reversed(range(len(tapes))), tapes, strict=True):
            backward = tuple(self._backward(tape, overlapped and not left))
            yield from talk.receive("backward")
            yield python("torch/_tensor.py(630): backward", OnBackwardThread(backward))
            yield from talk.send("backward")

    def _forward(self) -> Block:
        forward = self._model.forward()
        layers = (
            (one, *(self._communication.after_layer() if _is_layer(one) else ()))
            for one in forward.children
        )
        return replace(forward, children=tuple(chain.from_iterable(layers)))

    def _graph(self, nodes: tuple[Node, ...]) -> Block:
        works = tuple(launched_works(nodes))
        if self._config.opaque_graph:
            works = (self._kernels.graph(works),)
        launch = Launch("cudaGraphLaunch", works, is_graph=True)
        return python("torch/cuda/graphs.py(139): replay", launch)

    def _backward(self, tape: Sequence[Gradient], overlapped: bool) -> Iterator[Node]:
        waiting = 0
        buckets = self._bucket_of()
        for gradient in reversed(tape):
            yield from self._model.again(gradient)
            if any(one.name.endswith("ln_1.weight") for one in gradient.parameters):
                yield from self._communication.after_layer()
            for parameter in gradient.parameters:
                waiting += parameter.elements
                full = overlapped and buckets[parameter.name]
                yield self._accumulate(parameter, overlapped, waiting if full else 0)
                waiting = 0 if full else waiting

    def _bucket_of(self) -> dict[str, bool]:
        """Return for each parameter whether it is the last of its bucket."""
        parameters = self._model.parameters()
        total = sum(parameter.elements for parameter in parameters)
        done, bucket, last = 0, 0, {}
        for parameter in parameters:
            done += parameter.elements
            # The bucket that the first element behind this parameter falls into.
            following = done * self._config.gradient_buckets // total
            last[parameter.name] = following > bucket
            bucket = following
        return last

    def _bucket_sizes(self) -> Iterator[int]:
        waiting = 0
        buckets = self._bucket_of()
        for parameter in self._model.parameters():
            waiting += parameter.elements
            if buckets[parameter.name]:
                yield waiting
                waiting = 0

    def _accumulate(self, parameter: Parameter, overlapped: bool, bucket: int) -> Block:
        """Return the node that stores a gradient, and exchanges its bucket if it is full."""
        name = "torch::autograd::AccumulateGrad"
        children: list[Node] = []
        if overlapped:
            scale = kernel(self._kernels.scale(parameter.elements))
            inputs = (self._vector(parameter.elements), scalar(""))
            mul = op("aten::mul", scale, inputs=inputs)
            children.append(op("torch::distributed::reducer::mul_out", mul))
        if bucket:
            children.append(self._communication.allreduce(bucket))
        inner = Block("backward", name, tuple(children))
        return Block("backward", f"autograd::engine::evaluate_function: {name}", (inner,))

    def _vector(self, elements: int) -> Argument:
        return contiguous((elements,), element_type(self._config.dtype))

    def _optimizer(self) -> Block:
        sizes = [parameter.elements for parameter in self._model.parameters()]
        starts = range(0, len(sizes), _TENSORS_PER_KERNEL)
        works = (
            self._kernels.adamw(sum(sizes[start : start + _TENSORS_PER_KERNEL])) for start in starts
        )
        members = tuple(self._vector(size) for size in sizes)
        tensors = Argument("TensorList", members=members)
        ops: tuple[Node, ...] = (
            op("aten::_fused_adamw_", *map(kernel, works), inputs=(tensors,) * 4),
        )
        if "optimizer" in self._config.eager:
            ops = tuple(optimizer_loop(self._kernels, members))
        step = python("torch/optim/adamw.py(216): step", *ops)
        return annotation("Optimizer.step#AdamW.step", step)

    def _read_loss(self) -> Iterator[Node]:
        if not self._config.sync_each_step:
            return
        copy = self._kernels.copy(self._config.element_bytes, "DtoH")
        sync = Sync(cause=Cause("sync_call", "train.py(71): step", "aten::item"))
        dense = op("aten::_local_scalar_dense", Launch("cudaMemcpyAsync", (copy,)), sync)
        yield op("aten::item", dense, inputs=(self._vector(1),))

    def _free(self) -> Iterator[Node]:
        if self._config.free_each_step:
            yield op("aten::resize_", Sync(None, "cudaFree", cause=Cause("memory_alloc")))


def _is_layer(node: Node) -> bool:
    return isinstance(node, Block) and node.name.startswith("nn.Module: Block_")

"""One training step of a GPT-like transformer as the ops, calls and kernels it is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from sample_traces.config import RunConfig
from sample_traces.kernels import Kernels, element_type
from sample_traces.library import Layout
from sample_traces.program import Block, Node, kernel, memset, op, python
from sample_traces.records import Argument

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A learnt tensor."""

    name: str
    elements: int


@dataclass(frozen=True, slots=True)
class Gradient:
    """One node of the backward graph and the parameters whose gradients it finishes."""

    block: Block
    parameters: tuple[Parameter, ...] = ()


_FLAGS: Final = {"flash": ("0.", "True", "False"), "efficient": ("", "True", "0.", "True")}
_INNER_FLAGS: Final = {
    "flash": ("", "", "", "", "0.", "True", "False"),
    "efficient": ("", "", "", "", "", "0.", "1", "True"),
}
_BACKWARD_FLAGS: Final = {
    "flash": ("out", "lse", "", "", "", "", "0.", "True"),
    "efficient": ("", "out", "lse", "", "", "0.", "[True, True, True, False]", "True"),
}
_INNER_BACKWARD_FLAGS: Final = {
    "flash": ("out", "lse", "", "", "", "", "0.", "True"),
    "efficient": ("", "out", "", "", "", "", "lse", "0.", "", "", "1"),
}
"""What follows query, key and value in torch's schemas: causal, no dropout, nothing packed."""


def contiguous(shape: Shape, type_: str) -> Argument:
    """Return a row-major tensor argument."""
    strides = []
    size = 1
    for extent in reversed(shape):
        strides.append(size)
        size *= extent
    return Argument(type_, shape, tuple(reversed(strides)))


def transposed(rows: int, columns: int, type_: str) -> Argument:
    """Return a rows x columns view of a row-major columns x rows matrix."""
    return Argument(type_, (rows, columns), (1, rows))


def scalar(value: str) -> Argument:
    """Return a number, flag or list of numbers given as an argument; empty text is None."""
    kinds = {"": "", "[": "ScalarList"}
    return Argument(kinds.get(value[:1], "Scalar"), value=value)


@dataclass(slots=True)
class Model:
    """Writes down a forward pass and, on a tape, the backward pass that belongs to it.

    `sequence` is the autograd sequence number of the next differentiable op.
    """

    config: RunConfig
    sequence: int = 0
    tape: list[Gradient] = field(default_factory=list)
    kernels: Kernels = field(init=False)
    activation: Shape = field(init=False)

    def __post_init__(self) -> None:
        self.kernels = Kernels(self.config)
        self.activation = (self.config.batch, self.config.sequence, self.config.hidden)

    @property
    def _elements(self) -> int:
        return self.config.tokens * self.config.hidden

    def _tensor(self, *shape: int) -> Argument:
        return contiguous(shape, element_type(self.config.dtype))

    def _transposed(self, rows: int, columns: int) -> Argument:
        return transposed(rows, columns, element_type(self.config.dtype))

    def _differentiable(
        self,
        forward: Block,
        backward_name: str,
        *backward: Node,
        parameters: tuple[Parameter, ...] = (),
        saved_bytes: int | None = None,
    ) -> Block:
        """Return the forward op with its sequence number, its gradient noted on the tape."""
        if saved_bytes is None:
            saved_bytes = self._elements * self.config.element_bytes
        number = self.sequence
        self.sequence += 1
        inner = Block("backward", backward_name, backward, sequence=number, allocates=-saved_bytes)
        outer = Block(
            "backward",
            f"autograd::engine::evaluate_function: {backward_name}",
            (inner,),
            sequence=number,
        )
        self.tape.append(Gradient(outer, parameters))
        return replace(forward, sequence=number, allocates=saved_bytes)

    def forward(self) -> Block:
        """Return the forward pass, in training up to the loss; fills the tape."""
        self.tape.clear()
        layers = (self._layer(index) for index in range(self.config.layers))
        return python(
            "nn.Module: GPT_0",
            *self._embed(),
            *layers,
            self._layer_norm("ln_f"),
            self._head(),
            *self._loss(),
        )

    def parameters(self) -> tuple[Parameter, ...]:
        """Return all parameters in the order in which backward finishes their gradients."""
        return tuple(p for gradient in reversed(self.tape) for p in gradient.parameters)

    def _embed(self) -> tuple[Block, ...]:
        config = self.config
        word = self._embedding("wte", config.vocab, (config.batch, config.sequence))
        position = self._embedding("wpe", config.positions or config.sequence, (1, config.sequence))
        return word, position, self._add()

    def _embedding(self, name: str, rows: int, index: Shape) -> Block:
        table = self._tensor(rows, self.config.hidden)
        places = contiguous(index, "long int")
        elements = index[0] * index[1] * self.config.hidden
        lookup = op(
            "aten::index_select",
            kernel(self.kernels.embedding(elements)),
            inputs=(table, scalar("0"), places),
        )
        dense = op(
            "aten::embedding_dense_backward",
            op("aten::zero_", memset(self.kernels.zero(rows * self.config.hidden))),
            kernel(self.kernels.embedding_backward(elements)),
            inputs=(self._tensor(*index, self.config.hidden), places, scalar(str(rows))),
        )
        return self._differentiable(
            op("aten::embedding", lookup, inputs=(table, places, scalar("-1"))),
            "EmbeddingBackward0",
            op("aten::embedding_backward", dense),
            parameters=(Parameter(name, rows * self.config.hidden),),
        )

    def _add(self) -> Block:
        shape = self._tensor(*self.activation)
        add = op(
            "aten::add",
            kernel(self.kernels.add(self._elements)),
            inputs=(shape, shape, scalar("1")),
        )
        return self._differentiable(add, "AddBackward0")

    def _layer(self, index: int) -> Block:
        name, hidden = f"h.{index}", self.config.hidden
        return python(
            f"nn.Module: Block_{index}",
            self._layer_norm(f"{name}.ln_1"),
            self._linear(f"{name}.attn.c_attn", hidden, 3 * hidden),
            self._attention(),
            self._linear(f"{name}.attn.c_proj", hidden, hidden),
            *self._dropout(),
            self._add(),
            self._layer_norm(f"{name}.ln_2"),
            self._linear(f"{name}.mlp.c_fc", hidden, 4 * hidden),
            self._gelu(),
            self._linear(f"{name}.mlp.c_proj", 4 * hidden, hidden),
            *self._dropout(),
            self._add(),
        )

    def _layer_norm(self, name: str) -> Block:
        hidden = self.config.hidden
        shape, vector = self._tensor(*self.activation), self._tensor(hidden)
        statistics = contiguous((self.config.batch, self.config.sequence, 1), "float")
        gradient, scale_shift = self.kernels.layer_norm_backward(self._elements)
        backward = op(
            "aten::native_layer_norm_backward",
            kernel(gradient),
            kernel(scale_shift),
            inputs=(shape, shape, scalar(f"[{hidden}]"), statistics, statistics, vector, vector),
        )
        native = self._differentiable(
            op(
                "aten::native_layer_norm",
                kernel(self.kernels.layer_norm(self._elements)),
                inputs=(shape, scalar(f"[{hidden}]"), vector, vector, scalar("1e-05")),
            ),
            "NativeLayerNormBackward0",
            backward,
            parameters=(Parameter(f"{name}.bias", hidden), Parameter(f"{name}.weight", hidden)),
        )
        return op("aten::layer_norm", native, inputs=(shape, scalar(f"[{hidden}]"), vector, vector))

    def _linear(self, name: str, fan_in: int, fan_out: int) -> Block:
        tokens = self.config.tokens
        x, bias = self._tensor(tokens, fan_in), self._tensor(fan_out)
        weight, weight_t = self._tensor(fan_out, fan_in), self._transposed(fan_in, fan_out)
        out = self._tensor(tokens, fan_out)
        column_sum = op(
            "aten::sum",
            kernel(self.kernels.column_sum(tokens * fan_out)),
            inputs=(out, scalar("[0]"), scalar("True"), scalar("")),
        )
        product = self._differentiable(
            op(
                "aten::addmm",
                kernel(self.kernels.gemm(tokens, fan_out, fan_in, "TN", bias=True)),
                inputs=(bias, x, weight_t, scalar("1"), scalar("1")),
            ),
            "AddmmBackward0",
            *self._product_gradients(fan_in, fan_out),
            column_sum,
            parameters=(
                Parameter(f"{name}.bias", fan_out),
                Parameter(f"{name}.weight", fan_in * fan_out),
            ),
            saved_bytes=tokens * fan_out * self.config.element_bytes,
        )
        shape = self._tensor(self.config.batch, self.config.sequence, fan_in)
        return op("aten::linear", _transpose(weight), product, inputs=(shape, weight, bias))

    def _product_gradients(self, fan_in: int, fan_out: int) -> tuple[Block, Block]:
        """Return the input gradient and the weight gradient of x @ weight.t()."""
        tokens = self.config.tokens
        out, weight = self._tensor(tokens, fan_out), self._tensor(fan_out, fan_in)
        out_t, x = self._transposed(fan_out, tokens), self._tensor(tokens, fan_in)
        return (
            self._mm(out, weight, "NN"),
            self._mm(out_t, x, "NT"),
        )

    def _mm(self, left: Argument, right: Argument, layout: Layout) -> Block:
        (m, k), n = left.shape, right.shape[1]
        return op("aten::mm", kernel(self.kernels.gemm(m, n, k, layout)), inputs=(left, right))

    def _attention(self) -> Block:
        config = self.config
        kind = "efficient" if config.dtype == "fp32" else "flash"
        heads = self._tensor(config.batch, config.heads, config.sequence, config.head_size)
        rows = self._tensor(config.batch, config.sequence, config.heads, config.head_size)
        flags = map(scalar, _FLAGS[kind])
        inner = op(
            f"aten::_{kind}_attention_forward",
            kernel(self.kernels.attention_forward()),
            inputs=(rows, rows, rows, *map(scalar, _INNER_FLAGS[kind])),
        )
        fused = self._differentiable(
            op(
                f"aten::_scaled_dot_product_{kind}_attention",
                inner,
                inputs=(heads, heads, heads, *flags),
            ),
            f"ScaledDotProduct{kind.capitalize()}AttentionBackward0",
            self._attention_backward(kind, heads, rows),
        )
        return op(
            "aten::scaled_dot_product_attention",
            fused,
            inputs=(heads, heads, heads, scalar(""), scalar("0."), scalar("True")),
        )

    def _attention_backward(self, kind: str, heads: Argument, rows: Argument) -> Block:
        works = [self.kernels.attention_backward()]
        if kind == "flash":
            works.insert(0, self.kernels.attention_backward_helper("dot_do_o"))
            works.append(self.kernels.attention_backward_helper("convert_dq"))
        inner = op(
            f"aten::_{kind}_attention_backward",
            *(kernel(work) for work in works),
            inputs=self._gradient_inputs(rows, _INNER_BACKWARD_FLAGS[kind]),
        )
        return op(
            f"aten::_scaled_dot_product_{kind}_attention_backward",
            inner,
            inputs=self._gradient_inputs(heads, _BACKWARD_FLAGS[kind]),
        )

    def _gradient_inputs(self, shape: Argument, flags: tuple[str, ...]) -> tuple[Argument, ...]:
        """Return the inputs of an attention's gradient: tensors where its schema has them."""
        config = self.config
        statistics = contiguous((config.batch, config.heads, config.sequence), "float")
        tensors = {"out": shape, "lse": statistics}
        return (shape,) * 4 + tuple(tensors.get(flag) or scalar(flag) for flag in flags)

    def _dropout(self) -> tuple[Block, ...]:
        if self.config.engine:
            return ()
        shape = self._tensor(*self.activation)
        native = self._differentiable(
            op(
                "aten::native_dropout",
                kernel(self.kernels.dropout(self._elements)),
                inputs=(shape, scalar("0.1"), scalar("True")),
            ),
            "NativeDropoutBackward0",
            op(
                "aten::native_dropout_backward",
                kernel(self.kernels.dropout_backward(self._elements)),
                inputs=(shape, contiguous(self.activation, "bool"), scalar("1.1111111111111112")),
            ),
        )
        return (op("aten::dropout", native, inputs=(shape, scalar("0.1"), scalar("True"))),)

    def _gelu(self) -> Block:
        wide = 4 * self._elements
        shape = self._tensor(self.config.batch, self.config.sequence, 4 * self.config.hidden)
        return self._differentiable(
            op(
                "aten::gelu",
                kernel(self.kernels.gelu(wide)),
                inputs=(shape, scalar("none")),
            ),
            "GeluBackward0",
            op(
                "aten::gelu_backward",
                kernel(self.kernels.gelu(wide, backward=True)),
                inputs=(shape, shape, scalar("none")),
            ),
            saved_bytes=wide * self.config.element_bytes,
        )

    def _head(self) -> Block:
        config = self.config
        x, weight = (
            self._tensor(config.tokens, config.hidden),
            self._tensor(config.vocab, config.hidden),
        )
        product = self._differentiable(
            self._mm(x, self._transposed(config.hidden, config.vocab), "TN"),
            "MmBackward0",
            *self._product_gradients(config.hidden, config.vocab),
            parameters=(Parameter("lm_head.weight", config.vocab * config.hidden),),
            saved_bytes=config.tokens * config.vocab * config.element_bytes,
        )
        shape = self._tensor(*self.activation)
        matmul = op("aten::matmul", product, inputs=(shape, product.inputs[1]))
        return op("aten::linear", _transpose(weight), matmul, inputs=(shape, weight, scalar("")))

    def _loss(self) -> tuple[Block, ...]:
        if self.config.engine:
            return ()
        tokens, vocab = self.config.tokens, self.config.vocab
        logits, targets = self._tensor(tokens, vocab), contiguous((tokens,), "long int")
        loss = op(
            "aten::cross_entropy_loss",
            op("aten::log_softmax", self._log_softmax(logits)),
            op("aten::nll_loss_nd", op("aten::nll_loss", self._nll_loss(logits, targets))),
            inputs=(logits, targets, scalar(""), scalar("1"), scalar("-100"), scalar("0.")),
        )
        return (loss,)

    def _log_softmax(self, logits: Argument) -> Block:
        elements = self.config.tokens * self.config.vocab
        return self._differentiable(
            op(
                "aten::_log_softmax",
                kernel(self.kernels.softmax(elements, log=True)),
                inputs=(logits, scalar("1"), scalar("False")),
            ),
            "LogSoftmaxBackward0",
            op(
                "aten::_log_softmax_backward_data",
                kernel(self.kernels.softmax(elements, backward=True, log=True)),
                inputs=(logits, logits, scalar("1"), scalar("15")),
            ),
            saved_bytes=elements * self.config.element_bytes,
        )

    def _nll_loss(self, logits: Argument, targets: Argument) -> Block:
        tokens = self.config.tokens
        backward = op(
            "aten::nll_loss_backward",
            op("aten::zero_", memset(self.kernels.zero(tokens * self.config.vocab))),
            kernel(self.kernels.loss(tokens, backward=True)),
            inputs=(self._tensor(), logits, targets),
        )
        return self._differentiable(
            op(
                "aten::nll_loss_forward",
                kernel(self.kernels.loss(tokens)),
                inputs=(logits, targets),
            ),
            "NllLossBackward0",
            backward,
            saved_bytes=0,
        )


def _transpose(weight: Argument) -> Block:
    """Return weight.t(): ops that launch nothing."""
    rows, columns = weight.shape
    strided = op(
        "aten::as_strided",
        inputs=(weight, scalar(f"[{columns}, {rows}]"), scalar(f"[1, {columns}]"), scalar("0")),
    )
    transpose = op("aten::transpose", strided, inputs=(weight, scalar("0"), scalar("1")))
    return op("aten::t", transpose, inputs=(weight,))

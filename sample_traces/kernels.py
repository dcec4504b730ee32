"""The kernels of a transformer training step and their exact costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from sample_traces.config import ELEMENT_BYTES, Dtype, MachineName, RunConfig
from sample_traces.library import (
    COPY,
    FILL,
    AmdLibrary,
    Exchange,
    Form,
    Helper,
    Layout,
    Library,
    NvidiaLibrary,
    ceil_divide,
)
from sample_traces.records import Work

_NS = 1_000_000_000
_NCCL_LATENCY_NS = 12_000
_ALIGNED: Final = 8
"""Sizes of products are multiples of this, or slow."""
_TURNS: Final[dict[Exchange, int]] = {"allreduce": 2, "all_to_allv": 1, "send": 2, "recv": 2}
"""How often (n - 1) / n of the message passes the link of a rank."""
_ELEMENT: Final[dict[Dtype, str]] = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float"}
_LIBRARIES: Final[dict[MachineName, Callable[[RunConfig], Library]]] = {
    "h100": NvidiaLibrary,
    "mi300x": AmdLibrary,
}


def element_type(dtype: Dtype) -> str:
    """Return the C++ name of the data type, as torch writes it."""
    return _ELEMENT[dtype]


def _rounded_divide(amount: int, unit: int) -> int:
    return (2 * amount + unit) // (2 * unit)


def _work(form: Form, top: str, sub: str, dur_ns: int, flops: int, bytes_: int) -> Work:
    return Work(
        form.name,
        "kernel",
        top,
        sub,
        dur_ns,
        flops,
        bytes_,
        form.grid,
        form.block,
        form.registers,
        form.shared_bytes,
    )


def _blit(name: str, bytes_: int) -> Form:
    """Return a kernel of the HIP runtime that fills or copies memory."""
    return Form(name, (max(1, ceil_divide(bytes_, 65_536)), 1, 1), (512, 1, 1), registers=16)


class Kernels(Struct, frozen=True):
    """Makes every kernel of a run; durations follow from FLOPs, bytes and the machine."""

    config: RunConfig

    @property
    def library(self) -> Library:
        """Kernels that the vendor of the run's machine brings."""
        return _LIBRARIES[self.config.machine](self.config)

    @property
    def element(self) -> str:
        """C++ name of the run's data type."""
        return _ELEMENT[self.config.dtype]

    def duration_ns(self, flops: int, bytes_: int, percent: int, *, tf32: bool = False) -> int:
        """Return max(FLOPs at the peak x percent, bytes at the memory's reachable rate), in ns.

        With `tf32`, products of fp32 are as fast as those units allow.
        """
        config = self.config
        permille = (500 if tf32 else config.fp32_permille) if config.dtype == "fp32" else 1000
        rate = config.peak_flops_per_s * percent * permille
        arithmetic = _rounded_divide(flops * 100_000 * _NS, rate)
        traffic = _rounded_divide(
            bytes_ * 100 * _NS, config.hbm_bytes_per_s * config.memory_percent
        )
        return max(arithmetic, traffic, config.kernel_floor_ns)

    def gemm(
        self, m: int, n: int, k: int, layout: Layout, bias: bool = False, count: int = 1
    ) -> Work:
        """Return `count` products of m x k and k x n matrices: exactly 2*m*n*k FLOPs each."""
        config = self.config
        flops = 2 * count * m * n * k
        bytes_ = count * (m * k + k * n + m * n) * config.element_bytes
        sizes = n, m if layout == "NT" else k  # those that lie together in memory
        aligned = config.misaligned_percent == 100 or not any(one % _ALIGNED for one in sizes)
        form = self.library.gemm(m, n, layout, bias, aligned)
        form = replace(form, grid=(*form.grid[:2], count))
        dur_ns = self.duration_ns(flops, bytes_, config.gemm_percent, tf32=config.tf32)
        dur_ns = dur_ns if aligned else dur_ns * 100 // config.misaligned_percent
        return self._work(form, "compute", "gemm", dur_ns, flops, bytes_)

    def attention_forward(self) -> Work:
        """Return causal attention forward: two matrix products over s(s+1)/2 pairs per head."""
        return self._attention(self.library.attention_forward(), products=2, tensors=4)

    def attention_backward(self) -> Work:
        """Return attention backward: five matrix products, the scores being computed again."""
        return self._attention(self.library.attention_backward(), products=5, tensors=8)

    def attention_backward_helper(self, which: Helper) -> Work:
        """Return one of flash attention's two small backward kernels."""
        name = self.library.attention_helper(which)
        elements = 2 * self.config.tokens * self.config.hidden
        return self._moving(name, "attention", elements, top="compute")

    def _attention(self, form: Form, products: int, tensors: int) -> Work:
        config = self.config
        pairs = config.sequence * (config.sequence + 1) // 2
        flops = 2 * products * config.batch * config.heads * config.head_size * pairs
        bytes_ = tensors * config.tokens * config.hidden * config.element_bytes
        dur_ns = self.duration_ns(flops, bytes_, config.attention_percent)
        return self._work(form, "compute", "attention", dur_ns, flops, bytes_)

    def _work(self, form: Form, top: str, sub: str, dur_ns: int, flops: int, bytes_: int) -> Work:
        """Return a kernel, slow if its category is."""
        config = self.config
        slow = config.slow_category_percent if sub == config.slow_category else 100
        return _work(form, top, sub, dur_ns * slow // 100, flops, bytes_)

    def _moving(self, name: str, sub: str, elements: int, top: str = "memory") -> Work:
        """Return a kernel that only moves `elements` elements to or from memory."""
        bytes_ = elements * self.config.element_bytes
        form = Form(name, (max(1, ceil_divide(elements, 4096)), 1, 1))
        dur_ns = self.duration_ns(0, bytes_, self.config.memory_percent)
        return self._work(form, top, sub, dur_ns, 0, bytes_)

    def elementwise(self, functor: str, elements: int, tensors: int) -> Work:
        """Return an ATen elementwise kernel over `tensors` tensors of `elements` elements."""
        arguments = f"{functor}, std::array<char*, {tensors}ul>"
        name = f"void at::native::vectorized_elementwise_kernel<4, {arguments} >(int, {arguments})"
        return self._moving(name, "elementwise", elements * tensors)

    def add(self, elements: int) -> Work:
        """Return the sum of two tensors."""
        return self.elementwise(f"at::native::CUDAFunctor_add<{self.element}>", elements, 3)

    def scale(self, elements: int) -> Work:
        """Return a tensor times a number."""
        functor = (
            f"at::native::AUnaryFunctor<{self.element}, {self.element}, {self.element}, "
            "at::native::binary_internal::MulFunctor<float> >"
        )
        return self.elementwise(functor, elements, 2)

    def pointwise(self, name: str, elements: int) -> Work:
        """Return any function of one tensor, or of two that become one."""
        functor = f"at::native::{name}_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#1}}"
        return self.elementwise(functor, elements, 2 if name in ("pow", "sqrt", "tanh") else 3)

    def gelu(self, elements: int, backward: bool = False) -> Work:
        """Return GELU or its gradient."""
        kind = "GeluBackwardCUDAKernelImpl" if backward else "GeluCUDAKernelImpl"
        arguments = f"{self.element}, {self.element}" if backward else self.element
        functor = (
            f"at::native::{kind}(at::TensorIteratorBase&, at::native::GeluType)::{{lambda()#2}}::"
            f"operator()() const::{{lambda()#4}}::operator()() const::{{lambda({arguments})#1}}"
        )
        return self.elementwise(functor, elements, 3 if backward else 2)

    def dropout(self, elements: int) -> Work:
        """Return fused dropout: output and mask from the input."""
        element = self.element
        name = (
            "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<"
            f"{element}, float, unsigned int, 1, 4, bool>(at::cuda::detail::TensorInfo<{element} "
            f"const, unsigned int>, at::cuda::detail::TensorInfo<{element}, unsigned int>, "
            "at::cuda::detail::TensorInfo<bool, unsigned int>, unsigned int, float, "
            "at::PhiloxCudaState)"
        )
        return self._moving(name, "rng_dropout", 2 * elements + elements // 2)

    def dropout_backward(self, elements: int) -> Work:
        """Return the gradient times the mask."""
        functor = (
            f"at::native::(anonymous namespace)::masked_scale_kernel<bool, {self.element}, float>"
            "(at::Tensor&, at::Tensor const&, at::Tensor const&, float)::"
            f"{{lambda({self.element}, bool)#1}}"
        )
        name = (
            f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, 3ul> >"
            f"(int, {functor}, std::array<char*, 3ul>)"
        )
        return self._moving(name, "rng_dropout", 2 * elements + elements // 2)

    def layer_norm(self, elements: int) -> Work:
        """Return layer normalisation forward."""
        element = self.element
        name = (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<"
            f"{element}, float, false>(int, float, {element} const*, {element} const*, "
            f"{element} const*, float*, float*, {element}*)"
        )
        return self._moving(name, "norm", 2 * elements)

    def layer_norm_backward(self, elements: int) -> tuple[Work, Work]:
        """Return the input gradient, and the gradients of scale and shift."""
        element = self.element
        gradient = (
            "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<"
            f"{element}, float, false>({element} const*, {element} const*, float const*, "
            f"float const*, {element} const*, {element}*, int)"
        )
        scale_shift = (
            "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<"
            f"{element}, float, 32u, 1u, 8u, true, true, true, false>(long, long, {element} "
            f"const*, {element} const*, float const*, float const*, {element}*, {element}*)"
        )
        return (
            self._moving(gradient, "norm", 3 * elements),
            self._moving(scale_shift, "norm", 2 * elements),
        )

    def column_sum(self, elements: int) -> Work:
        """Return the sum over rows that gives a bias its gradient."""
        operation = (
            f"at::native::ReduceOp<{self.element}, at::native::func_wrapper_t<{self.element}, "
            f"at::native::sum_functor<{self.element}, float, {self.element}>::operator()"
            "(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, "
            f"{self.element}, 4, 4>"
        )
        name = f"void at::native::reduce_kernel<128, 4, {operation} >({operation})"
        return self._moving(name, "reduction", elements)

    def embedding(self, elements: int) -> Work:
        """Return the lookup of rows of a table."""
        element = self.element
        info = "at::cuda::detail::TensorInfo"
        name = (
            f"void at::native::(anonymous namespace)::indexSelectLargeIndex<{element}, long, "
            f"unsigned int, 2, 2, -2, true>({info}<{element}, unsigned int>, {info}<{element} "
            f"const, unsigned int>, {info}<long const, unsigned int>, int, int, unsigned int, "
            "unsigned int, long)"
        )
        return self._moving(name, "embedding_index", 2 * elements)

    def embedding_backward(self, elements: int) -> Work:
        """Return the scatter of gradients into a table."""
        name = (
            "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<"
            f"{self.element}, float, long>(long const*, {self.element} const*, "
            f"{self.element}*, int, long, int)"
        )
        return self._moving(name, "embedding_index", 3 * elements)

    def softmax(self, elements: int, backward: bool = False, log: bool = False) -> Work:
        """Return softmax over the last dimension, its logarithm, or the gradient."""
        way, tensors = ("Backward", 3) if backward else ("Forward", 2)
        element = self.element
        epilogue = f"at::native::(anonymous namespace)::{'Log' * log}SoftMax{way}Epilogue"
        pointers = f"{element}*, {element} const*" + (f", {element} const*" if backward else "")
        name = (
            f"void at::native::(anonymous namespace)::cunn_SoftMax{way}<8, {element}, float, "
            f"{element}, {epilogue}>({pointers}, long)"
        )
        return self._moving(name, "softmax", tensors * elements)

    def loss(self, tokens: int, backward: bool = False) -> Work:
        """Return the mean negative log likelihood or its gradient."""
        element = self.element
        way = "backward" if backward else "forward"
        name = (
            f"void at::native::(anonymous namespace)::nll_loss_{way}_reduce_cuda_kernel_2d<"
            f"{element}, float, long>({element}*, {element}*, {element} const*, long const*, "
            f"{element} const*, bool, long, long, long, long)"
        )
        return self._moving(name, "elementwise", 2 * tokens)

    def adamw(self, elements: int) -> Work:
        """Return fused AdamW over parameters of `elements` elements: reads four, writes three."""
        lists = (
            "at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, "
            "at::native::(anonymous namespace)::FusedAdamMathFunctor<"
            f"{self.element}, 4, (at::native::ADAM_MODE)1, false>"
        )
        name = (
            f"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{lists}, "
            f"float const*, double, double, double, double, double, bool>({lists}, float const*, "
            "double, double, double, double, double, bool)"
        )
        return self._moving(name, "optimizer", 7 * elements)

    def cast(self, elements: int) -> Work:
        """Return a copy between FP32 and the type of the model."""
        return self._copied(elements * (1 + ELEMENT_BYTES["fp32"] // self.config.element_bytes))

    def layout_copy(self, elements: int) -> Work:
        """Return a copy into another order."""
        return self._copied(2 * elements)

    def _copied(self, elements: int) -> Work:
        """Return a copy that reads and writes so many elements."""
        lambda_ = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}"
        name = (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
            f"{lambda_}>(at::TensorIteratorBase&, {lambda_} const&)::{{lambda(int)#1}}>"
            f"(int, at::native::gpu_kernel_impl_nocast<{lambda_}>)"
        )
        return self._moving(name, "elementwise", elements)

    def zero(self, elements: int) -> Work:
        """Return a memset of a tensor; HIP does it with a kernel."""
        bytes_ = elements * self.config.element_bytes
        dur_ns = self.duration_ns(0, bytes_, self.config.memory_percent)
        if self.config.machine == "mi300x":
            return _work(_blit(FILL, bytes_), "memory", "memset", dur_ns, 0, bytes_)
        return Work("Memset (Device)", "memset", "memory", "memset", dur_ns, bytes=bytes_)

    def copy(self, bytes_: int, direction: Literal["HtoD", "DtoH"]) -> Work:
        """Return a copy between pinned host memory and the device over PCIe at 25 GB/s."""
        ends = "Pinned -> Device" if direction == "HtoD" else "Device -> Pinned"
        dur_ns = max(self.config.kernel_floor_ns, bytes_ // 25)
        if self.config.blit_copies:
            return _work(_blit(COPY, bytes_), "memory", "copy", dur_ns, 0, bytes_)
        name = f"Memcpy {direction} ({ends})"
        return Work(name, "memcpy", "memory", "copy", dur_ns, bytes=bytes_, direction=direction)

    def exchange(self, kind: Exchange, elements: int, ranks: int) -> Work:
        """Return a collective: each rank sends and receives (n-1)/n of the message, maybe twice."""
        config = self.config
        bytes_ = elements * config.element_bytes
        traffic = _TURNS[kind] * (ranks - 1) * bytes_ * 100 * _NS
        rate = ranks * config.link_bytes_per_s * config.link_percent
        dur_ns = _NCCL_LATENCY_NS + _rounded_divide(traffic, rate)
        form = self.library.exchange(kind)
        return _work(form, "communication", "collective", dur_ns, 0, bytes_)

    def graph(self, works: tuple[Work, ...]) -> Work:
        """Return one activity that stands for all the works of a graph."""
        dur_ns = sum(work.dur_ns + self.config.dispatch_gap_ns for work in works)
        flops = sum(work.flops for work in works)
        bytes_ = sum(work.bytes for work in works)
        return Work("CUDA Graph", "graph", "graph", "graph", dur_ns, flops, bytes_)

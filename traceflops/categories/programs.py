"""The kind of program that a trace is of, by its profiler and the names in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from traceflops.categories.kernel_names import without_return_type
from traceflops.remedies import PYTORCH, XLA, family
from traceflops.table.columns import codes, is_one_of, names
from traceflops.table.grouping import distinct
from traceflops.table.patterns import GRAPH_LAUNCH, started
from traceflops.table.trace import Trace

_OF_PYTORCH: Final = re.compile(r"\bat::native::|_ZN2at6native")
_OF_OPENACC: Final = re.compile(r"\w+_\d+_gpu(__red)?")
_OF_OPENMP: Final = re.compile(r"nvkernel_|__omp_offloading_")
_OF_LIBRARY: Final = re.compile(
    r"(at|at_cuda_detail|c10|cub|thrust|tensorflow|cudnn|cublas\w*)::|EigenMetaKernel|nvjet_|Cijk_"
    r"|nccl|cudnn_|MIOpen|gcnAsm|__pgi_uacc_|triton_(poi|red|per|tem|for|mm)_|\w*fusion(_\d+)*$"
    r"|(maxwell|pascal|volta|turing|ampere|hopper|sm\d+)_\w*(gemm|cudnn|xmma|conv)"
)
"""Beginnings of names of kernels of a framework or library, or made by a compiler of models."""
_OF_COMPILED: Final = re.compile(
    r"^Torch-Compiled Region|^CompiledFunction|CompiledFxGraph|(^|/)c[a-z2-7]{51}\.py\("
    r"|^triton_(poi|red|per|tem|for|mm)_"
)
"""Kernels of Inductor, and the ranges and functions from which PyTorch runs them."""
_REGION: Final = re.compile(r"^Torch-Compiled Region: (\S+)")
"""Regions by the numbers of their code and of its compilation, from 0 on; 0/0_1 has had a break."""
_OF_TRAINING: Final = re.compile(
    r"autograd::engine|backward|^Optimizer\.|bn_bw|[dw]grad|_bwd|adamw?(_|kernel|math|functor)",
    re.IGNORECASE,
)
_LIBRARIES: Final = (
    r"\b(at|c10|torch|xla|tensorflow|stream_executor|phi|paddle|mxnet|caffe2|onnxruntime|nvinfer1?"
    r"|tensorrt\w*|vllm|sgl|sglang|flashinfer|transformer_engine|deepspeed|apex|megatron|aiter"
    r"|ck_tile|flash|cudnn|miopen)(::|_)|_ZN(2at|3c10|10tensorflow|3phi|4vllm)\d|EigenMetaKernel"
    r"|MIOpen|gcnAsm|igemm_(fwd|bwd|wrw)|fprop|dgrad|wgrad|implicit_convolve|\bfm?ha_|nvjet_"
    r"|flash_?(fwd|bwd|attn)|paged_attention|^trt|^triton_(poi|red|per|tem|for|mm)_"
    r"|^((input|loop|wrapped|gemm)\w*_)?fusion(_\d+)*$"
)
_SHORT_TYPES: Final = (
    r"gemm\w{0,99}(bf16|f16|fp16|e4m3|e5m2)|(bf16|f16|fp16|h?16816|e4m3|e5m2)\w{0,99}gemm"
    r"|\w_?hgemm"
    r"|^Cijk_\w*_(HB|BB|HHS|BBS|HSS|BSS|F8\w*|B8\w*)_"
)
_ML_KERNEL: Final = re.compile(f"{_LIBRARIES}|{_SHORT_TYPES}")
_ML_RANGE: Final = re.compile(
    r"\b(aten|autograd|c10d|prims|torch\w*)::|, op_id = \d|Optimizer\.(step|zero_grad)"
    r"|^(TSL|Thunk|XlaModule)\b|tensorflow|tensorrt|vllm|\b(epoch|optimizer|backprop|data_?loader"
    r"|prefill|transformer|attention)\b|\.py\(\d+\): ",
    re.IGNORECASE,
)
_OF_ENGINE: Final = re.compile(
    rf"{_LIBRARIES}|^__amd_rocclr_|^__(nv|myl)_|^generatedNative|^op_generic_tensor|^cunn_|^CatArray"
    r"|^((unrolled|vectorized|legacy)_)*elementwise_kernel|(^|:)softmax_warp_"
    r"|^(reduce|multi_tensor_apply|vectorized_layer_norm)_kernel|\b(rocprim|hipcub|ck|oneapi)::"
)
"""Kernels of engines and drivers, and those of PyTorch and cuDNN that lack their namespaces."""
_TENSORRT: Final = re.compile(r"(?:^|_)trt(?:_|::|$)|\bnvinfer1::|^__myl_|\bgenericReformat::")
_TENSORRT_RANGE: Final = re.compile(r"^(\w+::)*ExecutionContext::(execute|enqueue)")
"""Names of kernels of TensorRT and its compiler Myelin, and of the range of each inference."""
_GGML: Final = re.compile(r"\bggml_|\(ggml_type\)|\bmul_mat_(vec_)?q\b|quantize_(mmq_)?q8_1")


def of_pytorch(trace: Trace) -> bool:
    """Return whether PyTorch ran, by the profiler or by the kernels."""
    kernels = [*names(trace.activities["name"]), *names(trace.totals["name"])]
    return family(trace.source.format) == PYTORCH or any(map(_OF_PYTORCH.search, kernels))


def is_of_library(kernel: str) -> bool:
    """Return whether a kernel is that of a framework or library, by its name."""
    return _OF_LIBRARY.match(without_return_type(kernel)) is not None


def may_be_own(kernel: str) -> bool:
    """Return whether a kernel may be the program's own: no library, engine or driver names it."""
    return not is_of_library(kernel) and not _OF_ENGINE.search(without_return_type(kernel))


def is_of_directives(kernel: str) -> bool:
    """Return whether a kernel is a loop of OpenMP or OpenACC, by its name."""
    return bool(_OF_OPENMP.match(kernel) or _OF_OPENACC.fullmatch(kernel))


def is_of_tensorrt(kernel: str) -> bool:
    """Return whether a kernel is one of TensorRT, by its name."""
    return _TENSORRT.search(kernel) is not None


def facts_of_program(trace: Trace) -> dict[str, bool]:
    """Return whether each fact of a program holds, by its id; see `findings.case.program_of`."""
    tables = (trace.ops, trace.marks, trace.activities)
    ops, ranges, kernels = (names(table["name"]) for table in tables)
    all_names = (*ops, *ranges, *kernels)
    regions = {match[1] for match in map(_REGION.match, (*ops, *ranges)) if match}
    by_kernels = any(map(_TENSORRT.search, kernels))
    return {
        "torch": of_pytorch(trace),
        "ml": of_ml(trace),
        "tensorrt": by_kernels or any(map(_TENSORRT_RANGE.match, ranges)),
        # Kernels of OpenACC loops are named after a function and a line.
        "openacc": any(map(_OF_OPENACC.fullmatch, kernels)),
        "compiled": any(map(_OF_COMPILED.search, all_names)),
        # All compiled code ran in one region, which was compiled once: no break.
        "one-region": len(regions) == 1 and regions.pop().endswith("/0"),
        "graphs": bool(started(trace.calls, GRAPH_LAUNCH).any()),
        # An operator, range or kernel is of a backward pass or an optimizer.
        "trains": are_of_training(all_names),
    }


def are_of_training(all_names: Iterable[str]) -> bool:
    """Return whether some names are of a backward pass or an optimizer."""
    return any(map(_OF_TRAINING.search, all_names))


def names_kernels(trace: Trace) -> bool:
    """Return whether words in names of kernels may tell their work: see `classify.BY_WORDS`.

    In other programs than frameworks and llama.cpp a word may mislead, as counters would show.
    """
    is_known = of_ml(trace) or trace.kernel_counters.num_rows > 0
    kernels = (*names(trace.activities["name"]), *names(trace.totals["name"]))
    return is_known or any(map(_GGML.search, kernels))


def of_ml(trace: Trace) -> bool:
    """Return whether a trace is of a framework, engine or library of machine learning.

    Then its model can be described and its steps marked. A matrix product is not enough, since
    simulations have those, too; nor is llama.cpp, whose steps and batches are unknown.
    """
    if family(trace.source.format) in (PYTORCH, XLA) or trace.ops.num_rows or of_pytorch(trace):
        return True
    kernels = [*names(trace.activities["name"]), *names(trace.kernel_counters["name"])]
    kernels += names(trace.totals["name"])
    if any(map(_GGML.search, kernels)):
        return False
    marked = codes(trace.marks["name"])[is_one_of(trace.marks["kind"], "annotation", "python")]
    labels = names(trace.marks["name"])
    ranges = (labels[code] for code in distinct(marked).tolist() if code >= 0)
    return any(map(_ML_KERNEL.search, kernels)) or any(map(_ML_RANGE.search, ranges))

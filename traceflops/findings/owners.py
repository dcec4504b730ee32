"""Whose code a function or range of the host is, by the folder of its file or by its name."""

from __future__ import annotations

import re
from typing import Final

from traceflops.attribution.host_events import is_of_library
from traceflops.findings.finding import Owner

OPERATOR: Final = re.compile(r"(aten|autograd|c10d?|prims|torch\w*)::|DistributedDataParallel\.")
LIBRARY_RANGE: Final = re.compile(
    r"P?MPI_|(nccl|rccl|nvshmem|shmem|cublas|cudnn|cufft|cusolver|cusparse|rocblas|hipblas|miopen)"
)
"""Ranges that libraries put around their own calls."""
_FRAMEWORK: Final = re.compile(
    r"(^|/)(accelerate|apex|colossalai|deepspeed|diffusers|flash_attn|flashinfer|lightllm|"
    r"lightning|megatron|nemo|peft|sglang|tensorrt_llm|timm|torchrec|torchtitan|torchtune|"
    r"torchvision|transformer_engine|transformers|triton|trl|unsloth|vllm|xformers)/"
    r"|^execute_(\w{1,40}_)?context_\d|^execute_new_\d|^gpu_model_runner: |^vllm::"
)
"""Packages that run or train models, by the folder of a function's file; and ranges of vLLM."""
_COMPILED: Final = re.compile(
    r"Torch-Compiled Region|CompiledFunction|TorchDynamo|## Call CompiledFxGraph"
)
"""Ranges of code that torch.compile made: what it runs is the framework's."""
_EAGER: Final = re.compile(
    rf"^{OPERATOR.pattern}|^nn\.Module: |: (forward|__call__|_(wrapped_)?call_impl)$|^torch\."
)
"""Operators, and functions of frameworks that only call operators one by one."""
_WRAPPER: Final = re.compile(r"torch\.nn\.modules\.(module\.)?Module\.(__call__|forward)")
"""Ranges that a profiler puts around every module, without telling which it is."""
_INSTALLED: Final = re.compile(r"(^|/)(site|dist)-packages/")


def owner_of(label: str) -> Owner | None:
    """Return whose a function or range is, by its name or file; None without a name."""
    if not label:
        return None
    if is_of_library(label) or OPERATOR.match(label) or LIBRARY_RANGE.match(label):
        return "library"
    if _FRAMEWORK.search(label) or _COMPILED.match(label):
        return "framework"
    return "library" if _INSTALLED.search(label) else "yours"


def is_wrapper(label: str) -> bool:
    """Return whether a name is the same around all modules, so that it names no place."""
    return _WRAPPER.fullmatch(label) is not None


def only_launches(label: str) -> bool:
    """Return whether a name is that of framework or library code that only calls operators."""
    return owner_of(label) != "yours" and _EAGER.search(label) is not None

"""Causes of idle time: what each is called, whose it is, its remedy, and the edits for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traceflops.attribution import CLASSES
from traceflops.findings.finding import Owner

LAUNCHING: Final = ("eager_overhead", "launch_latency")
GRAPHS: Final = (
    'Replay the step as a CUDA graph: torch.compile(mode="reduce-overhead") or '
    "torch.cuda.make_graphed_callables()."
)
UNLIKE: Final = (
    "Join kernels with torch.compile, and give each launch more work, for example by a larger "
    "batch. Graphs need the same launches and shapes in each step."
)
REPLAYED: Final = (
    "Graphs launch most of the work already: give each more to do, for example by a larger batch, "
    "and prepare the next launch while the GPU works."
)
_ON_HOST: Final = frozenset({*CLASSES} - {"launch_latency", "device_wait", "unexplained"})
WAITS: Final = _ON_HOST | {"return_from_wait"}
OF_CALLS: Final = ("sync:^({calls})$=0", "host:^({calls})$=0")
_LAUNCHES: Final = _ON_HOST | {"launch_latency"}
COMPILES: Final = (
    r"\(dynamo_timed\)$|/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py\("
    r"|/_inductor/(compile_fx|graph|scheduler|async_compile)\.py\("
    r"|(^|/)triton/(compiler|backends/\w+)/\w+\.py\(\d+\): (compile|make_\w+)$"
    r"|(^|/)triton/runtime/autotuner\.py\(\d+\): (_bench|check_disk_cache)$"
)
LOADS: Final = r"^(cu|hip)(Module|Library)(Load|Unload)"
ON_AMD: Final = {
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": (
        "PYTORCH_HIP_ALLOC_CONF=garbage_collection_threshold:0.8"
    ),
    "CUDA_MODULE_LOADING=EAGER": "HIP_ENABLE_DEFERRED_LOADING=0",
    "CUDA graph": "HIP graph",
}
RECORD_ALL: Final = (
    "Record all GPU work of a few steps{ranks}; then see in the timeline what the named work waits "
    "for."
)
NO_WAITS: Final = " Calls that wait for the GPU cannot be part of it."
ENGINES: Final = {
    "vllm/": "Run vLLM without --enforce-eager, so that it compiles and uses CUDA graphs; where it "
    "does, add the sizes of these passes to cudagraph_capture_sizes in --compilation-config.",
    "sglang/": "Run SGLang without --disable-cuda-graph, and with --enable-torch-compile.",
}
"""What launches faster, by the folder of the functions that launch."""
NOT_YOURS: Final = "Call it less often, or before the steps that count; try a newer version of it."
OTHER_OPTIMIZER: Final = (
    "Compile its step with torch.compile, or use torch._foreach_ operators on tensors of one type "
    "and layout (others run one by one); call zero_grad(set_to_none=True)."
)


@dataclass(frozen=True, slots=True)
class IdleCause:
    """One class: its title and owner, the remedy for PyTorch, and what stands for that in a replay.

    An empty remedy is that of the class for every framework. What is `by_name` is told by names, of
    whatever class it is. In edits, {name} is the largest name, {calls} are all innermost calls.
    `partly` are edits for a remedy that halves what it cannot take away.
    """

    title: str
    owner: Owner
    remedy: str = ""
    edits: tuple[str, ...] = ()
    on_path: frozenset[str] = _ON_HOST
    frees: bool = False
    partly: tuple[str, ...] = ()
    by_name: bool = False


CAUSES: Final = {
    "data_input": IdleCause(
        "The input pipeline is too slow",
        "input pipeline",
        "Raise num_workers of the DataLoader and set pin_memory=True, persistent_workers=True and "
        "prefetch_factor=4. Make the named function faster or run it in the workers.",
        ("data_input=0",),
    ),
    "sync_call": IdleCause(
        "The host waits for the GPU",
        "yours",
        "Remove .item(), bool(tensor), nonzero() and torch.cuda.synchronize() from the step; keep "
        "values on the GPU and log every N steps.",
        OF_CALLS,
        WAITS,
        frees=True,
    ),
    "blocking_copy": IdleCause(
        "Copies block the host",
        "yours",
        "Copy from and to pinned memory (pin_memory=True) with non_blocking=True, and wait for an "
        "event only where the CPU needs the values; join small copies.",
        OF_CALLS,
        WAITS,
        frees=True,
    ),
    "memory_alloc": IdleCause(
        "Memory is allocated inside the step",
        "yours",
        "Remove torch.cuda.empty_cache() from the step and set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        ("memory_alloc=0",),
    ),
    "recompilation": IdleCause(
        "Code is compiled inside the step",
        "yours",
        'Run with TORCH_LOGS="recompiles" to see why. Pass torch.compile(dynamic=True) or pad '
        "inputs to a few sizes, and warm up with all of them.",
        (f"host:{COMPILES}=0",),
        by_name=True,
    ),
    "code_loading": IdleCause(
        "GPU code is loaded inside the step",
        "yours",
        "Launch all kernels once before what is measured, or set CUDA_MODULE_LOADING=EAGER.",
        (f"host:{LOADS}=0",),
        by_name=True,
    ),
    "start_up": IdleCause(
        "Start-up is part of the window",
        "yours",
        "Warm up before recording and mark the steps, or leave start-up out with --from and --to.",
        ("host:^({calls})$=0",),
        by_name=True,
    ),
    "slow_driver_call": IdleCause(
        "Driver calls are slow", "library", on_path=frozenset({"slow_driver_call"})
    ),
    "compiled_runtime": IdleCause(
        "Compiled code is slow to start",
        "framework",
        'Find graph breaks and recompilation with TORCH_LOGS="graph_breaks,recompiles"; then try '
        'torch.compile(mode="reduce-overhead").',
        ("compiled_runtime=0",),
        partly=("compiled_runtime/2",),
    ),
    "optimizer_loop": IdleCause(
        "The optimizer launches too slowly",
        "framework",
        "Create the optimizer with fused=True, or foreach=True where that is not supported; call "
        "zero_grad(set_to_none=True).",
        ("optimizer_loop=0",),
        _LAUNCHES,
        partly=("optimizer_loop/2",),
    ),
    "own_sleep": IdleCause("The program sleeps", "yours", "", ("own_sleep=0",)),
    "external_wait": IdleCause(
        "The host waits for other threads or processes", "yours", "", ("external_wait=0",)
    ),
    "host_code": IdleCause(
        "Host code holds up the GPU",
        "yours",
        "",
        ("host:^{name}$=0",),
        frozenset({"host_code", *LAUNCHING}),
    ),
    "eager_overhead": IdleCause(
        "The host launches work too slowly",
        "framework",
        UNLIKE,
        ("eager_overhead=0",),
        _LAUNCHES,
        partly=("eager_overhead/2",),
    ),
    "thread_handover": IdleCause(
        "Threads hand over work slowly", "framework", on_path=frozenset({"thread_handover"})
    ),
    "host_unrecorded": IdleCause(
        "Unrecorded host work holds up the GPU",
        "yours",
        "",
        ("host:^{name}$=0",),
        frozenset({"host_unrecorded"}),
    ),
    "launch_latency": IdleCause(
        "Launches take long to reach the GPU",
        "framework",
        'Fuse kernels with torch.compile, or replay them with mode="reduce-overhead" (CUDA '
        "graphs).",
        ("launch_latency=1us",),
        frozenset({"launch_latency"}),
    ),
    "device_wait": IdleCause(
        "Queued work starts late",
        "library",
        on_path=frozenset({"late_start", "stream_wait", "unexplained"}),
    ),
}

WHEN: Final = {
    "data_input": "while data is loaded",
    "sync_call": "while the host waits for the GPU",
    "blocking_copy": "while copies block the host",
    "memory_alloc": "while memory is allocated",
    "recompilation": "while code is compiled",
    "code_loading": "while GPU code is loaded",
    "start_up": "during one-time start-up",
    "slow_driver_call": "during slow driver calls",
    "compiled_runtime": "while the host runs compiled code",
    "optimizer_loop": "while the optimizer launches its work",
    "own_sleep": "while the program sleeps on the host",
    "external_wait": "while the host waits for other threads or processes",
    "host_code": "while Python and other host code runs",
    "eager_overhead": "while operators are launched",
    "thread_handover": "while one thread hands work over to another",
    "host_unrecorded": "during unrecorded host work",
    "launch_latency": "between launches and the start of their work",
    "device_wait": "while queued work does not start",
}
"""When the GPU is idle, by cause, as the end of a sentence."""

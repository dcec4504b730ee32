"""What the name of a call, an operator, a Python frame or a label says of the work of the host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.table import BoolArray

FACTS: Final[dict[str, str]] = {
    "data_input": (
        r"^enumerate\(DataLoader\)#|DataLoader\S*__next__|/dataloader\.py\(\d+\): __next__$"
    ),
    "optimizer": r"^Optimizer\.(step|zero_grad)#|\bzero_grad\b|\btorch/optim/.*: (step|zero_grad)$",
    "compiled": (
        r"^TorchDynamo Cache Lookup|^Torch-Compiled Region|CompiledFunction|CompiledFxGraph"
        r"|^Pregraph bytecode|^AOTDispatcher|^triton_|(^|/)triton/|/_dynamo/|/_inductor/"
        r"|torchinductor|^<string>\(\d+\): dynamic_func$"
    ),
    "runs_backward": r"\brun_backward\b|_engine_run_backward",
    "reads_scalar": r"^aten::(item|_local_scalar_dense|is_nonzero)$",
    "waits_for_device": (
        r"^(cuda|cu|hip)(Device|Stream|Event|Ctx|Thread)Synchronize|^hsa_(amd_)?signal_wait"
    ),
    "copies": r"Memcpy|^hsa_(amd_)?memory_(async_)?copy",
    "copies_async": r"Memcpy\w*Async|^hsa_amd_memory_async_copy",
    "allocates": (
        r"Malloc|Free|MemAlloc|MemGetInfo|MemPool|Host(Alloc|Register|Unregister)"
        r"|^(cu|hip)Mem(Create|Map|Unmap|Release|SetAccess|AddressReserve)"
        r"|^hsa_(amd_)?(memory|vmem)_(pool_)?(allocate|free|lock|unlock|map|unmap|handle|address)"
    ),
    "waits": (
        r"^<built-in (method|function) (acquire|sleep|poll|select|recv|accept|wait)\b"
        r"|^(threading|queue|selectors)\.py\(|/(threading|queue|selectors)\.py\(\d+\): "
        r"(wait|acquire|join|get|select)$"
        r"|^(pthread_(cond_(timed|clock)?wait|mutex_(timed|clock)?lock|rwlock_\w*(rd|wr)lock|join"
        r"|barrier_wait)|p?poll$|epoll_p?wait|p?select$|(clock_)?nanosleep|u?sleep$|pause$|join$"
        r"|lock$|flock$|sem_(timed|clock)?wait|futex|recv|accept|connect$|sigwait|wait(pid|id|\d)?$)"
    ),
    "uses_files": (
        r"^(p?readv?|p?writev?|f?open|fopen|open_\w+|openat|f(read|write|lush|sync|close)|close"
        r"|f?stat|l?fstat|mmap|munmap|ioctl)(64)?$"
    ),
    "is_work": r"^record_param_comms$|^nccl[:A-Z]|\w::\w",
}
"""Fact -> pattern. `is_work` are labels that a library sets around work of its own."""


_ANY: Final = re.compile("|".join(f"(?:{pattern})" for pattern in FACTS.values()))


def facts_of(labels: Sequence[str]) -> dict[str, BoolArray]:
    """Return, by fact, which of the names tell it."""
    telling = [at for at, label in enumerate(labels) if _ANY.search(label)]
    facts = {fact: np.zeros(len(labels), dtype=np.bool_) for fact in FACTS}
    for fact, pattern in FACTS.items():
        search = re.compile(pattern).search
        facts[fact][[at for at in telling if search(labels[at])]] = True
    return facts

"""What the name of a call, an operator, a Python frame or a label says of the work of the host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table import BoolArray, matching

_SYSTEM_WAITS: Final = (
    r"pthread_(cond_(timed|clock)?wait|mutex_(timed|clock)?lock|rwlock_(timed)?(rd|wr)lock|join"
    r"|barrier_wait|spin_lock)|p?poll|epoll_p?wait2?|p?select|(clock_)?nanosleep|u?sleep|pause|join"
    r"|lock|flock|lockf|sem_(timed|clock)?wait|futex|recv(from|m?msg)?|accept4?|connect|msync"
    r"|sig(wait|waitinfo|timedwait|suspend)|wait([34]|pid|id)?"
)
_SYSTEM_FILES: Final = (
    r"(p?(read|write)v?2?|f?open|open_memstream|openat|f(read|write|flush|sync|datasync|close|gets"
    r"|puts|seek|stat|statat)|close|[lx]?stat|__[fl]?xstat|lseek|m(un)?map|ioctl)(64)?"
)
SYSTEM_CALLS: Final = re.compile(f"{_SYSTEM_WAITS}|{_SYSTEM_FILES}")
"""Names of calls of the operating system that wait or use files."""

FACTS: Final[dict[str, str]] = {
    "data_input": (
        r"^enumerate\(DataLoader\)#|DataLoader\S*__next__|/dataloader\.py\(\d+\): __next__$"
    ),
    "optimizer": r"^Optimizer\.(step|zero_grad)#|\bzero_grad\b|\btorch/optim/.*: (step|zero_grad)$",
    "compiled": (
        r"^TorchDynamo Cache Lookup|\(dynamo_timed\)$|^Torch-Compiled Region|CompiledFunction"
        r"|CompiledFxGraph"
        r"|^Pregraph bytecode|^AOTDispatcher|^triton_(?!\w*/)|(^|/(python|site-packages)/)triton/"
        r"|/(_dynamo|_inductor|_functorch/_aot_autograd)/|(^|/)c[a-z2-7]{51}\.py\("
        r"|^<string>\(\d+\): (dynamic_func|launcher)$"
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
        rf"|^({_SYSTEM_WAITS})$"
    ),
    "uses_files": rf"^({_SYSTEM_FILES})$",
    "helps": (
        r"\.py\(\d+\): __(?!init__|getitems?__)\w+__$"
        r"|(^|/)(numpy|scipy|pandas|pyarrow|PIL|cv2|skimage|imageio|librosa|albumentations|torchaudio"
        r"|torchvision/(transforms|io))/\S*\.py\("
    ),
    "is_work": r"^record_param_comms$|^nccl[:A-Z]|\w::\w",
}
"""Fact -> pattern. `is_work` are labels that a library sets around work of its own.

Functions that help are hooks that Python calls, and those of libraries for arrays and images: what
calls them says more.
"""


_ANY: Final = re.compile("|".join(f"(?:{pattern})" for pattern in FACTS.values()))


def is_telling(label: str) -> bool:
    """Return whether a name tells any fact."""
    return _ANY.search(label) is not None


def facts_of(labels: Sequence[str]) -> dict[str, BoolArray]:
    """Return, by fact, which of the names tell it."""
    telling = [at for at, label in enumerate(labels) if _ANY.search(label)]
    facts = {fact: np.zeros(len(labels), dtype=np.bool_) for fact in FACTS}
    for fact, pattern in FACTS.items():
        search = re.compile(pattern).search
        facts[fact][[at for at in telling if search(labels[at])]] = True
    return facts


def told(column: pa.ChunkedArray, fact: str) -> BoolArray:
    """Return, per row of a column of names, whether the name tells a fact."""
    return matching(column, re.compile(FACTS[fact]).search)

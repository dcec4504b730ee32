"""What a reading process does: `traceflops.parsers.io.worker_pool` starts it and talks to it."""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any


def main() -> None:
    """Read blocks out of shared memory until there is nobody left to answer.

    The first two arguments are the handle and the size of the memory. Messages on stdin are
    pickled: a block reader, used from then on, where a text begins and ends in the memory, or a
    call. The answer to a text or a call is a tuple of what it gives, or None where it failed.
    """
    handle, size = int(sys.argv[1]), int(sys.argv[2])
    memory = memoryview(mmap.mmap(handle, size, access=mmap.ACCESS_READ))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing but answers may get into the pipe
    gc.disable()  # what is built for a block holds no cycles and is freed with it
    reader: Any = None
    try:
        while True:
            message = pickle.load(sys.stdin.buffer)
            if isinstance(message, tuple):
                message = partial(reader.read, memory[slice(*message)])
            if isinstance(message, partial):
                answers.write(_answer(message))
                answers.flush()
            else:
                reader = message
    except (EOFError, OSError):
        os._exit(0)


def _answer(call: Callable[[], Any]) -> bytes:
    try:
        return pickle.dumps((call(),), protocol=5)
    except Exception:  # the process that asked does it itself and shows what is wrong
        return pickle.dumps(None)

"""Where the command starts: `traceflops` and `python -m traceflops`."""

from __future__ import annotations

import gc
import os
import sys

from traceflops.errors import MORE_MEMORY, is_out_of_memory

_FAILED = 2
_INTERRUPTED = 130
_SPARING = {
    "OPENBLAS_NUM_THREADS": "1",
    "MIMALLOC_ARENA_RESERVE": "65536",
    "NUMPY_MADVISE_HUGEPAGE": "0",
}
"""What keeps libraries from claiming memory that is never used: threads of linear algebra, which is
not used here, the GiB of addresses that Arrow's allocator reserves at once (here 65,536 KiB), and
huge pages, which the kernel clears whole for each of many short-lived arrays.
"""


def run() -> None:
    """Run the command line.

    Ctrl-C and a lack of memory end it without a traceback, even while it is loading.
    """
    if sys.version_info < (3, 11):  # noqa: UP036 -- pip refuses it, but a clone runs uninstalled
        sys.stderr.write(f"error: Python {sys.version.split()[0]}: too old\n")
        sys.stderr.write("hint: Python 3.11 is needed\n")
        sys.exit(_FAILED)
    for name, value in _SPARING.items():
        os.environ.setdefault(name, value)
    gc.set_threshold(1_000_000)  # new objects: hardly any cycles are made here
    try:
        from traceflops.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        sys.stderr.write(f"error: out of memory\nhint: {MORE_MEMORY}\n")
        sys.exit(_FAILED)
    finally:
        gc.freeze()  # else Python looks through all objects for cycles before it ends


if __name__ == "__main__":
    run()

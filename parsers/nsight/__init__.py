"""Readers of what Nsight Systems, Nsight Compute and nvprof write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.parsers.nsight.formats import (
        NCU,
        NSYS_ARROW,
        NSYS_PARQUET,
        NSYS_REPORT,
        NSYS_STATS,
    )
    from traceflops.parsers.nsight.nsys.ranks import without_clashes
    from traceflops.parsers.nsight.nsys.read import read_nsys
    from traceflops.parsers.nsight.nvprof.read import read_nvprof
else:
    __getattr__ = lazy(__name__, __file__)

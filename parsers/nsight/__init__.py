"""Readers of what Nsight Systems and Nsight Compute export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.parsers.nsight.ncu.report import NCU_REPORT, NSYS_REPORT
    from traceflops.parsers.nsight.ncu.trace import NCU_CSV
    from traceflops.parsers.nsight.nsys.ranks import without_clashes
    from traceflops.parsers.nsight.nsys.read import read_nsys
    from traceflops.parsers.nsight.nsys.table_files import NSYS_ARROW, NSYS_PARQUET
    from traceflops.parsers.nsight.stats.set import NSYS_STATS
else:
    __getattr__ = lazy(__name__, __file__)

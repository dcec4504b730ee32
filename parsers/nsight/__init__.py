"""Readers of what Nsight Systems, Nsight Compute and nvprof write.

What comes in is known by its first bytes (`formats`) or, of a database, by its tables:

    .nsys-rep, .qdrep -----> nsys/raw_*  ---+
    SQLite export ------------------------- +-> Tables -> nsys/ ----------------> Trace
    Parquet or Arrow folder -> nsys/tables -+   (of an export: CUPTI_ACTIVITY_KIND_...)
    nvprof, .nvvp ---------> nvprof/tables -+

    nsys stats, CSV or text -> stats_text -> stats_read -> stats_trace ---------> Trace
                               plain CSV     ReportPart    one per profile
    recipe, Parquet ---------> recipe ------------------------------------------> Trace

    ncu --csv ---------------> ncu_pages --+-> NcuPage -> ncu_trace ------------> Trace
    .ncu-rep ----------------> ncu_report -+   counters,  passes of one run      (no times)
                                               rules      become one trace
"""

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

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

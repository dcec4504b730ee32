"""Reports of Nsight Systems: databases, table folders and the profiler's own files.

Each becomes tables whose columns are asked for by name, and these a trace:

    Database | Folder | Report   rows in batches
      |
    ReportReading   timeline: work, calls, waits, overheads, memory, metrics
      |             nvtx: operators and ranges; nccl: collectives from their payloads
      |             ProcessRegistry: preliminary numbers of processes, devices, streams
    Gathered        rows whose names are ids of texts
      |
      |             resolve_names: ids -> texts
      |             settle: preliminary -> final numbers, ranks
    Trace           tables, facts, notes
"""

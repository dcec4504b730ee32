"""Reads what rocprof and RPD write: CSV, JSON, databases and Perfetto traces of all generations.

results.csv, *_kernel_trace.csv ...   layouts -> tables/ (a run is a set of files)
results.json, .db    v1               v1_events -> v1_read -> v1_tables (which reads the database)
*_results.json       v3               v3json_records -> v3json_tables -> v3json_run
*_results.db         v3 (rocpd)       rocpd_run -> rocpd_read, rocpd_host
*.rpd                RPD              rpd
*.pftrace            v3, rocprof-sys  perfetto_packets (perfetto_clocks) -> perfetto_trace
    |
    |  columns of numbers per kind of record; names by codes; agents -> DeviceFacts
    v
Gathered             builders of activities, calls, marks, counters, kernel_counters;
                     `counts` per kind of record, `odd` records by the codes of notes
    |  trace.trace_of
    v
Trace per file, or per run of CSV files
    |  counter_passes.without_repeated_passes: passes that only repeat a run for counters are joined
    v
Traces
"""

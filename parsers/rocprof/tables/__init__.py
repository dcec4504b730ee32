"""The CSV files of rocprof, rocprofv2 and rocprofv3."""

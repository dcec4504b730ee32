"""The CSV files of rocprof, rocprofv2, rocprofv3 and rocprof-compute.

4100_kernel_trace.csv, 4100_hip_api_trace.csv, 4100_agent_info.csv, pmc_1/results.csv ...
    |  read.read_table, work, counters: a file by itself
    v
TableFile --- ProcessPart per process: builders of tables; devices are texts still
    |  processes.processes_of: by guid, pid, else name of the file
    v
Process --- parts of all its files, counters of other repetitions
    |  runs.runs_of: folders; passes joined; pauses separate runs
    v
TableRun
    |  read.Assembly: devices get numbers, copies their direction
    v
Trace
"""

"""Which GPU is which, what it can do at most, and files of one run merged into one trace.

    Trace per file
      | jobs.merge_jobs: which files belong together (tool, world size, ranks, times, GPUs)
      v
    Trace per job
      | merging.merge: ranks in order, times on one clock, rows of one GPU on one device
      | processes.settle_shared: runs on one GPU apart, streams of one process each
      v
    one Trace
      |
      | SeenDevice.of(row of trace.devices): name, units, memory, architecture, ...
      v
    matching.match -> Match: the row of devices.toml or series.toml, and how sure that is
      |
      v
    DeviceSpec: dense FLOP/ns by data type, bytes/ns, links; None where unknown

Beside it: records made at the same time (side_records, gpu_samples) join a Trace by the calendar;
counters.toml and speed_of_light.toml say what hardware counters count on which architecture, and
occupancy.toml how many blocks of a launch a multiprocessor has room for.
"""

"""Identification of GPUs, their peaks, and merging of the files of one run into one trace.

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
    matching.match -> Match: the row of devices.toml or series.toml, and how certain it is
      |
      v
    DeviceSpec: dense FLOP/ns by data type, bytes/ns, links; None where unknown

Records made at the same time (side_records, gpu_samples) are added to a Trace by calendar time.
counters.toml and speed_of_light.toml describe hardware counters by architecture, occupancy.toml the
limits on blocks of a multiprocessor.
"""

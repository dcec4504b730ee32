"""Readers of what profilers left behind: `read` takes files and gives one Trace. No analysis here.

    paths, folders, archives, stdin, URIs
      -> ByteSource      one per input: its decompressed bytes            (io)
      -> Format          told by the first bytes, or a database's tables  (recognise)
      -> Trace           one per input, or per set of files of a run      (pytorch, rocprof, nsight,
                                                                           xla, gpu_samples, pack)
      -> plausible Trace without impossible times, amounts and repeats    (shared)
      -> one Trace       all ranks and files of a job                     (reading)

An input that cannot be read is an InputError with a hint; in a folder it is a note of the Trace.
"""

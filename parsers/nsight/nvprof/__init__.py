"""Databases of nvprof and the Visual Profiler.

They hold the records of CUPTI under nvprof's own numbers:

    Database -> Nvprof: tables as an export of Nsight Systems has them
                  |     (kinds, ids of threads, names of calls)
                  v
                nsys -> Trace, whose threads get the database's numbers back
"""

"""Reads XPlane files: what XLA's profiler writes for JAX, TensorFlow and PyTorch/XLA.

host.xplane.pb (Protocol Buffers)
    |  planes.planes_of
    v
Plane "/device:GPU:0" -- Line "Stream #7" ---+
                      -- Line "Steps"        |  Plane.events: columns, a row per event
Plane "/host:CPU"     -- Line per thread ----+  name, start, end and Stats by name
    |  read._trace
    v
"Stream #"  details or name -> kernel, memcpy, memset, graph      -> activities
"Steps", "XLA Modules"                                            -> marks of the GPU
host        cuda*, cu*, hip*, hsa_* -> calls; $file.py:1 f        -> marks (python)
            MemoryAllocation        -> counters; all other names  -> marks
            operators of TensorFlow -> ops, if no line is of a GPU
    |
    v
Trace of one process; other devices than GPUs are named in a note
"""

"""Reader of the databases of nvprof and the Visual Profiler."""

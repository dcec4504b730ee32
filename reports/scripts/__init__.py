"""Scripts that repeat one recorded call: facts of `traceflops.repro` -> Python text.

Call -> operator.txt filled in -> a program that needs only PyTorch
"""

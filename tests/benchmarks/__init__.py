"""Measures speed and memory: `python -m tests.benchmarks --mb 500`. No test asserts a time."""

"""Readers of what the PyTorch profiler writes: Chrome traces of Kineto."""

"""Prefill and decode: forward passes, their time, and the memory bandwidth they use."""

"""Writes simulated runs as AMD's rocprof would, in the formats of all its generations."""

"""Writes simulated runs as NVIDIA's Nsight Systems and Nsight Compute would."""

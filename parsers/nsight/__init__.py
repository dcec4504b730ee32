"""Reads what NVIDIA's Nsight Systems and Nsight Compute export."""

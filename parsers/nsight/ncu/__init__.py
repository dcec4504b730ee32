"""The pages of Nsight Compute."""

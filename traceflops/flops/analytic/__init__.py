"""Runs that are described, not traced: FLOPs, rates and utilisation of them."""

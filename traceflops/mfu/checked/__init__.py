"""A trace held against the description of its run."""

"""A trace held against the description of its run, and what would make the two agree."""

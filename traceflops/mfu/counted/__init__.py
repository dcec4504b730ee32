"""FLOPs and bytes by counters, or by a paired recording."""

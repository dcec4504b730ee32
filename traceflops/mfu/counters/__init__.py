"""Hardware counters: FLOPs and bytes of launches by formulas."""

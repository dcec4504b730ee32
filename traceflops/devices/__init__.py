"""Which GPU is which: what devices are called, who used them, on which clock."""

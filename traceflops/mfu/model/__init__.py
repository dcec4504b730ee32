"""Models in general terms: their cards, where cards come from, their weights and FLOPs."""

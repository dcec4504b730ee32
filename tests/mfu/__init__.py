"""Model FLOPs, peaks and utilisation."""

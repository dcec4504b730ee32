"""Models: cards of their blocks, from presets, files and configurations."""

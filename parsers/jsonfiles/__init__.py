"""JSON text in blocks, however it was damaged: whole values out of what is left."""
